"""What goes in comes out with the same bits, in every form, for every dtype and edge value."""

from __future__ import annotations

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gates import Answer, Port
from hypothesis import given
from hypothesis import strategies as st

from maitred.wire.coerce import DATATYPES, NUMPY_TYPES

NUMBERS = [dtype for dtype in DATATYPES if dtype not in ("str", "bytes")]
FLOATS = ["float16", "bfloat16", "float32", "float64"]

_PORTS: dict[str, Port] = {}


def echo(dtype: str) -> Port:
    if dtype not in _PORTS:
        port = Port()
        port.add("echo", {"x": f"{dtype}[n, k]"}, {"y": f"{dtype}[n, k]"}, lambda inputs: {"y": inputs["x"]})
        _PORTS[dtype] = port
    return _PORTS[dtype]


def edges(dtype: str) -> list[Any]:
    """Values at the ends of a dtype's range and around its odd places, as numpy scalars; finite."""
    kind = NUMPY_TYPES[dtype]
    if dtype == "bool":
        return [np.bool_(True), np.bool_(False)]
    if dtype in FLOATS:
        info: Any = ml_dtypes.finfo(kind) if dtype == "bfloat16" else np.finfo(kind)
        ends = [info.max, info.min, info.tiny, info.eps, info.smallest_subnormal]
        others = [0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3, 0.96, 1.24, 1111111.0, 16777217.0, 65504.0, 5e-324, 1e-40]
        values = [kind.type(value) for value in [*ends, *others] if abs(float(value)) <= float(info.max)]
        return [value for value in values if np.isfinite(value)]
    whole = np.iinfo(kind)
    values = {whole.max, whole.min, 0, 1, whole.max - 1, whole.max // 3, min(2**53 + 1, whole.max)}
    return [kind.type(value) for value in values]


def through_json(dtype: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = array.astype(np.float64).tolist() if dtype in FLOATS else array.tolist()
    body = {"inputs": [{"name": "x", "datatype": DATATYPES[dtype], "shape": list(array.shape), "data": values}]}
    [y] = echo(dtype).infer("echo", body).json["outputs"]
    assert y["shape"] == list(array.shape)
    assert y["datatype"] == DATATYPES[dtype]
    wide = np.array(y["data"], np.float64) if dtype in FLOATS else np.array(y["data"], object)
    return wide.astype(NUMPY_TYPES[dtype]).reshape(array.shape)


def through_binary(dtype: str, raw: bytes, shape: list[int], also_back: bool = True) -> bytes:
    head = {
        "inputs": [
            {"name": "x", "datatype": DATATYPES[dtype], "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        ],
        "parameters": {"binary_data_output": also_back},
    }
    text = json.dumps(head).encode()
    answer = echo(dtype).infer("echo", text + raw, {"Inference-Header-Content-Length": str(len(text))})
    assert answer.status == 200, answer.body
    return raw_of(answer)


def raw_of(answer: Answer) -> bytes:
    length = int(answer.headers["inference-header-content-length"])
    size = json.loads(answer.body[:length])["outputs"][0]["parameters"]["binary_data_size"]
    assert len(answer.body) == length + size
    return answer.body[length:]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_edge_values_of_every_dtype(dtype: str) -> None:
    array = np.array(edges(dtype), NUMPY_TYPES[dtype])[:, None]
    assert through_json(dtype, array).tobytes() == array.tobytes()
    assert through_binary(dtype, array.tobytes(), list(array.shape)) == array.tobytes()


@pytest.mark.parametrize("dtype", NUMBERS)
@given(data=st.data())
def test_all_bits_of_every_dtype(dtype: str, data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    kind = NUMPY_TYPES[dtype]
    size = rows * width * kind.itemsize
    raw = bytes(data.draw(st.binary(min_size=size, max_size=size)))
    if dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    assert through_binary(dtype, raw, [rows, width]) == raw, "NaN payloads too"
    array = np.frombuffer(raw, kind).reshape(rows, width)
    with np.errstate(invalid="ignore"):
        plain = dtype not in FLOATS or np.isfinite(array.astype(np.float64)).all()
    if plain:
        assert through_json(dtype, array).tobytes() == raw


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=8))
def test_float32_answers_are_the_shortest_text_that_reads_back(values: list[float]) -> None:
    array = np.array(values, np.float32)[None]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(array.shape), "data": values}]}
    text = echo("float32").infer("echo", body).body.split(b'"data":[')[1].split(b"]")[0]
    for part, value in zip(text.split(b","), values, strict=True):
        assert np.float32(float(part)).tobytes() == np.float32(value).tobytes()
        digits = part.split(b"e")[0].replace(b".", b"").lstrip(b"-0").rstrip(b"0")
        assert len(digits) <= 9
        assert len(digits) <= len(repr(float(str(np.float32(value)))).split("e")[0].replace(".", "").lstrip("-0"))


@pytest.mark.parametrize("dtype", ["str", "bytes"])
@given(data=st.data())
def test_strings(dtype: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=6))
    shape = [len(texts), 1]
    for ascii in (True, False):
        entry = {"name": "x", "datatype": "BYTES", "shape": shape, "data": texts}
        body = json.dumps({"inputs": [entry]}, ensure_ascii=ascii).encode()
        assert echo(dtype).infer("echo", body).json["outputs"][0]["data"] == texts
    raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    assert through_binary(dtype, raw, shape) == raw


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=6))
def test_bytes_that_are_no_text(blobs: list[bytes]) -> None:
    blobs = [*blobs, b"\0\0", b"a\0", b"", b"\xff\xfe"]
    raw = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    assert through_binary("bytes", raw, [len(blobs), 1]) == raw
    head = {
        "inputs": [
            {"name": "x", "datatype": "BYTES", "shape": [len(blobs), 1], "parameters": {"binary_data_size": len(raw)}}
        ]
    }
    text = json.dumps(head).encode()
    answer = echo("bytes").infer("echo", text + raw, {"Inference-Header-Content-Length": str(len(text))})
    assert (answer.status, "binary_data_output" in answer.error) == (400, True), "the form is the caller's choice"


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("float32", [1, None]),
        ("float32", [1e39]),
        ("float32", ["NaN"]),
        ("float32", [True]),
        ("float16", [65520.0]),
        ("int8", [300]),
        ("int8", [1.5]),
        ("int8", [1.0]),
        ("uint8", [-1]),
        ("uint64", [2**64]),
        ("int64", [2**63]),
        ("int64", [None]),
        ("int64", [True]),
        ("int64", ["1"]),
        ("bool", [1]),
        ("bool", ["true"]),
        ("bytes", [1]),
        ("bytes", [None]),
        ("bytes", [["a"], "b"]),
        ("float64", [[1, 2], [3]]),
        ("float64", {"a": 1}),
        ("float64", "1,2"),
        ("float64", 5),
        ("float64", None),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(dtype: str, data: Any) -> None:
    shape = [len(data) if isinstance(data, list) else 1, 1]
    body = {"inputs": [{"name": "x", "datatype": DATATYPES[dtype], "shape": shape, "data": data}]}
    answer = echo(dtype).infer("echo", body)
    assert answer.status == 400
    assert "'x'" in answer.error
    if isinstance(data, list) and data and not isinstance(data[0], list):
        row = [{"x": [value]} for value in data]
        assert echo(dtype).ask("POST", "/predict/echo", row).status == 400
        assert echo(dtype).ask("POST", "/v1/models/echo:predict", {"instances": row}).status == 400


@pytest.mark.parametrize("text", ["1e400", "-1e999", "NaN", "Infinity", "1" * 1000 + ".5e9", "0x1", "01", "+1", "1."])
def test_numbers_that_are_none(text: str) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1,1],"data":[%b]}]}' % text.encode()
    answer = echo("float64").infer("echo", body)
    assert answer.status == 400


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_route_says_the_same(dtype: str) -> None:
    array = np.array(edges(dtype), NUMPY_TYPES[dtype])[:, None]
    values = array.astype(np.float64).tolist() if dtype in FLOATS else array.tolist()
    port = echo(dtype)
    rows = port.ask("POST", "/predict/echo", [{"x": row} for row in values]).json
    columns = port.ask("POST", "/predict/echo", {"columns": {"x": values}}).json["columns"]["y"]
    predictions = port.ask("POST", "/v1/models/echo:predict", {"instances": values}).json["predictions"]
    body = {"inputs": [{"name": "x", "datatype": DATATYPES[dtype], "shape": list(array.shape), "data": values}]}
    data = port.infer("echo", body).json["outputs"][0]["data"]
    assert [row["y"] for row in rows] == columns == predictions == [[value] for value in data]
