"""V2 answers: the wanted outputs in the wanted order and form, binary tensors both ways, classes."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from gates import Answer, FakeExchange, Port, iris_port, tensor
from hypothesis import given
from hypothesis import strategies as st

from maitred.messages import Outputs, Result, Tensor

X = tensor("x", "FP32", [2, 4], [[1, 2, 3, 4], [5, 6, 7, 8]])


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def split(answer: Answer) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The JSON of an answer, and the bytes of each binary output."""
    line = answer.headers.get("inference-header-content-length")
    length = len(answer.body) if line is None else int(line)
    assert answer.content_type == (b"application/json" if line is None else b"application/octet-stream")
    head = json.loads(answer.body[:length])
    rest, blobs = answer.body[length:], {}
    for entry in head["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        assert (size is None) == ("data" in entry)
        if size is not None:
            blobs[entry["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    return head, blobs


@pytest.fixture
def port() -> Port:
    return iris_port()


@pytest.mark.parametrize("names", [[], ["p"], ["label"], ["p", "label"], ["label", "p"]])
def test_exactly_the_wanted_outputs_in_the_wanted_order(port: Port, names: list[str]) -> None:
    for _ in range(2):
        answer = port.infer("iris", {"inputs": [X], "outputs": [output(name) for name in names]})
        assert [entry["name"] for entry in answer.json["outputs"]] == (names or ["p", "label"])
        assert port.endpoints["iris"].request.outputs == (tuple(names) or None)


def test_outputs_that_cannot_be(port: Port) -> None:
    for outputs, says in (
        ([output("q")], "unknown output 'q'"),
        ([output("p"), output("p")], "twice"),
        ([output("p", binary_data=1)], "output 'p': binary_data"),
        ([output("p", binary_data="true")], "output 'p': binary_data"),
        ([output("p", shared_memory_region="r")], "output 'p': shared memory"),
        ([{"name": 5}], "outputs[0].name"),
        ([{}], "outputs[0]"),
        ("p", "outputs"),
        ([None], "outputs[0]"),
    ):
        for _ in range(2):
            answer = port.infer("iris", {"inputs": [X], "outputs": outputs})
            assert answer.status == 400
            assert says in answer.error
    assert port.endpoints["iris"].tickets == []


def test_members_of_a_batch_get_the_outputs_they_asked_for(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    asked = [["p"], ["label"], ["label", "p"], [], ["p"]]
    exchanges = [
        port.send("POST", "/v2/models/iris/infer", {"inputs": [X], "outputs": [output(name) for name in names]})
        for names in asked
    ]
    assert len({ticket.request.group for ticket in endpoint.tickets}) == 1, "they may share a batch"
    rows = 2 * len(asked)
    p = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    batch = endpoint.outputs({"p": p, "label": np.array([f"l{row}" for row in range(rows)])}, rows)
    for at, ticket in enumerate(endpoint.tickets):
        ticket.end(Result(batch, 2 * at, 2 * at + 2))
    for at, (exchange, names) in enumerate(zip(exchanges, asked, strict=True)):
        outputs = {entry["name"]: entry["data"] for entry in Answer(exchange).json["outputs"]}
        assert list(outputs) == (names or ["p", "label"])
        if "p" in outputs:
            assert outputs["p"] == p[2 * at : 2 * at + 2].reshape(-1).tolist()
        if "label" in outputs:
            assert outputs["label"] == [f"l{2 * at}", f"l{2 * at + 1}"]


# ---------------------------------------------------------------- binary outputs


@pytest.mark.parametrize(("everything", "p", "label"), list(itertools.product([None, True, False], repeat=3)))
def test_binary_outputs(port: Port, everything: bool | None, p: bool | None, label: bool | None) -> None:
    body: dict[str, Any] = {"id": "i", "inputs": [X]}
    if everything is not None:
        body["parameters"] = {"binary_data_output": everything}
    wanted = {"p": p, "label": label}
    body["outputs"] = [output(n) if v is None else output(n, binary_data=v) for n, v in wanted.items()]
    head, blobs = split(port.infer("iris", body))
    assert [entry["name"] for entry in head["outputs"]] == ["p", "label"]
    assert (head["id"], head["model_name"]) == ("i", "iris")
    raw = {name for name, value in wanted.items() if (bool(everything) if value is None else value)}
    assert set(blobs) == raw
    values = np.array([[2, 4, 6], [10, 12, 14]], "<f4")
    if "p" in raw:
        assert blobs["p"] == values.tobytes()
    else:
        assert head["outputs"][0]["data"] == values.reshape(-1).tolist()
    if "label" in raw:
        assert blobs["label"] == b"\x02\0\0\0r0\x02\0\0\0r1"
    assert head["outputs"][0]["shape"] == [2, 3]


def test_all_outputs_binary_without_naming_them(port: Port) -> None:
    head, blobs = split(port.infer("iris", {"inputs": [X], "parameters": {"binary_data_output": True}}))
    assert list(blobs) == ["p", "label"]
    assert "id" not in head
    assert "server-timing" in port.infer("iris", {"inputs": [X], "parameters": {"binary_data_output": True}}).headers


def test_binary_rows_of_a_shared_batch(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    body = {"inputs": [X], "parameters": {"binary_data_output": True}}
    exchanges = [port.send("POST", "/v2/models/iris/infer", body) for _ in range(3)]
    p = np.arange(18, dtype=np.float32).reshape(6, 3)
    batch = endpoint.outputs({"p": p, "label": np.array([f"l{row}" for row in range(6)])}, 6)
    for at, ticket in enumerate(endpoint.tickets):
        ticket.end(Result(batch, 2 * at, 2 * at + 2))
    for at, exchange in enumerate(exchanges):
        head, blobs = split(Answer(exchange))
        assert head["outputs"][0]["shape"] == [2, 3]
        assert blobs["p"] == p[2 * at : 2 * at + 2].tobytes()
        assert blobs["label"] == b"".join(b"\x02\0\0\0l%d" % row for row in (2 * at, 2 * at + 1))


def test_outputs_without_rows_and_without_elements() -> None:
    port = Port()
    made = {"y": np.float32(2.5), "z": np.zeros((0,), np.int64), "w": np.zeros((2, 0, 3), np.int8)}
    port.add("m", {"x": "float32[k]"}, {"y": "float32[]", "z": "int64[m]", "w": "int8[a, b, 3]"}, lambda inputs: made)
    body = {"inputs": [tensor("x", "FP32", [1], [1])]}
    outputs = {entry["name"]: entry for entry in port.infer("m", body).json["outputs"]}
    assert (outputs["y"]["shape"], outputs["y"]["data"]) == ([], [2.5])
    assert (outputs["z"]["shape"], outputs["z"]["data"]) == ([0], [])
    assert (outputs["w"]["shape"], outputs["w"]["data"]) == ([2, 0, 3], [])
    head, blobs = split(port.infer("m", {**body, "parameters": {"binary_data_output": True}}))
    assert [entry["shape"] for entry in head["outputs"]] == [[], [0], [2, 0, 3]]
    assert {name: len(blob) for name, blob in blobs.items()} == {"y": 4, "z": 0, "w": 0}
    assert port.infer("m", {**body, "outputs": [output("z", classification=3)]}).json["outputs"][0]["data"] == []


# ---------------------------------------------------------------- binary inputs


def binary(entries: list[dict[str, Any]], blobs: bytes, **more: Any) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"inputs": entries, **more}).encode()
    return head + blobs, {"Inference-Header-Content-Length": str(len(head))}


def entry(name: str, datatype: str, shape: list[int], size: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


VALUES = np.arange(8, dtype="<f4").reshape(2, 4)


@pytest.mark.parametrize("media", ["application/octet-stream", "application/json", None])
def test_binary_inputs(port: Port, media: str | None) -> None:
    body, headers = binary([entry("x", "FP32", [2, 4], 32)], VALUES.tobytes())
    if media:
        headers["Content-Type"] = media
    assert port.infer("iris", body, headers).tensor("p")["data"] == (VALUES[:, :3] * 2).reshape(-1).tolist()
    request = port.endpoints["iris"].request
    view = request.inputs["x"].data
    assert isinstance(view, memoryview), "no copy"
    assert view.obj == body
    assert request.size_bytes == len(body)


def test_binary_and_json_inputs_together() -> None:
    port = Port()
    port.add(
        "m",
        {"a": "int16[n]", "b": "float32[n]", "s": "bytes[n]"},
        {"y": "float32[n]", "s": "bytes[n]"},
        lambda inputs: {"y": inputs["a"] + inputs["b"], "s": inputs["s"]},
    )
    strings = [b"\0\0", b"a\0"]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in strings)
    body, headers = binary(
        [entry("s", "BYTES", [2], len(raw)), tensor("b", "FP32", [2], [0.5, 1.5]), entry("a", "INT16", [2], 4)],
        raw + np.array([1, -2], "<i2").tobytes(),
        outputs=[output("s", binary_data=True), output("y")],
    )
    head, blobs = split(port.infer("m", body, headers))
    assert blobs["s"] == raw
    assert head["outputs"][1]["data"] == [1.5, -0.5]
    port.endpoints["m"].function = None
    port.send("POST", "/v2/models/m/infer", body, headers)
    assert port.endpoints["m"].request.inputs["s"].data == strings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body, headers: headers.clear(), "Inference-Header-Content-Length|trailing"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": str(len(body))}), "JSON"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": "100000"}), "has only"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": "-1"}), "count of bytes"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": "abc"}), "count of bytes"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": "0"}), "empty"),
        (lambda body, headers: headers.update({"Inference-Header-Content-Length": "10"}), "JSON"),
    ],
)
def test_a_length_that_is_wrong(port: Port, change: Any, says: str) -> None:
    body, headers = binary([entry("x", "FP32", [2, 4], 32)], VALUES.tobytes())
    change(body, headers)
    answer = port.infer("iris", body, headers)
    assert answer.status == 400
    assert __import__("re").search(says, answer.error), answer.error


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("x", "FP32", [2, 4], 28)], "add up to 28, and 32"),
        ([entry("x", "FP32", [2, 4], 36)], "binary_data_size 36, and 32 bytes are left"),
        ([entry("x", "FP32", [1, 4], 32)], "takes 16 bytes, got 32"),
        ([entry("x", "FP32", [2, 4], "32")], "must be a count"),
        ([entry("x", "FP64", [2, 4], 32)], "expected FP32, got FP64"),
        ([entry("y", "FP32", [2, 4], 32)], "unknown input 'y'"),
        ([entry("x", "FP32", [2, -4], 32)], "negative"),
        ([{**entry("x", "FP32", [2, 4], 32), "data": [1]}], "has both"),
        ([{"name": "x", "datatype": "FP32", "shape": [2, 4]}], "add up to 0"),
        ([entry("x", "FP32", [2, 4], 32), entry("x", "FP32", [2, 4], 0)], "sent twice"),
    ],
)
def test_sizes_that_are_wrong(port: Port, entries: list[dict[str, Any]], says: str) -> None:
    body, headers = binary(entries, VALUES.tobytes())
    answer = port.infer("iris", body, headers)
    assert answer.status == 400
    assert says in answer.error
    assert port.infer("iris", *binary([entry("x", "FP32", [2, 4], 32)], VALUES.tobytes())).status == 200


def test_two_inputs_with_swapped_sizes() -> None:
    port = Port()
    port.add("m", {"a": "int32[n]", "b": "int64[n]"}, {"y": "int64[n]"}, lambda inputs: {"y": inputs["b"]})
    good, headers = binary([entry("a", "INT32", [2], 8), entry("b", "INT64", [2], 16)], bytes(24))
    assert port.infer("m", good, headers).status == 200
    bad, headers = binary([entry("a", "INT32", [2], 16), entry("b", "INT64", [2], 8)], bytes(24))
    assert "'a'" in port.infer("m", bad, headers).error


# ---------------------------------------------------------------- classes


def classes(values: Any, dtype: str = "float32", labels: str = "", count: Any = 2) -> Answer:
    port = Port()
    array = np.asarray(values)
    spec = f"{dtype}[{'n, ' * (array.ndim > 0)}{', '.join(map(str, array.shape[1:]))}]".replace(", ]", "]")
    port.add("m", {"x": "float32[n]"}, {"p": spec + labels}, lambda inputs: {"p": array})
    body = {
        "inputs": [tensor("x", "FP32", [len(array)], [0] * len(array))],
        "outputs": [output("p", classification=count)],
    }
    return port.infer("m", body)


def test_classes_with_labels() -> None:
    p = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]], np.float32)
    answer = classes(p, labels=' labels=["setosa","ver:si","ü"]')
    expected = {"name": "p", "datatype": "BYTES", "shape": [2, 2]}
    assert answer.tensor("p") == {**expected, "data": ["0.7:1:ver:si", "0.2:2:ü", "0.5:0:setosa", "0.25:1:ver:si"]}


@pytest.mark.parametrize(
    ("values", "dtype", "count", "texts"),
    [
        ([[3, 1, 2]], "int64", 3, ["3:0", "2:2", "1:1"]),
        ([[3, 1, 2]], "int64", 1000, ["3:0", "2:2", "1:1"]),
        ([[5, 5, 7]], "uint8", 3, ["7:2", "5:0", "5:1"]),
        ([[2**63 - 1, 2**63 - 2]], "int64", 1, ["9223372036854775807:0"]),
        ([[2**64 - 1, 0]], "uint64", 2, ["18446744073709551615:0", "0:1"]),
        ([[np.nan, 1, -np.inf, np.inf]], "float64", 4, ["inf:3", "1.0:1", "-inf:2", "nan:0"]),
        ([[np.nan, np.nan]], "float32", 1, ["nan:0"]),
        (np.array([[0x7F810000, 0x3F800000]], "<u4").view("<f4"), "float32", 2, ["1.0:1", "nan:0"]),
        ([4, 5], "float32", 2, ["4.0:0", "5.0:0"]),
        ([[[1, 2], [4, 3]]], "float16", 3, ["4.0:2", "3.0:3", "2.0:1"]),
    ],
)
def test_classes_in_order(values: Any, dtype: str, count: int, texts: list[str]) -> None:
    answer = classes(np.array(values, dtype), dtype, count=count)
    assert answer.tensor("p")["data"] == texts
    assert answer.tensor("p")["shape"] == [len(values), len(texts) // len(values)]


@pytest.mark.parametrize("count", [0, -1, "3", 1.0, True, [], {}, 2**40])
def test_counts_of_classes_that_are_none(count: Any) -> None:
    answer = classes(np.zeros((1, 3), np.float32), count=count)
    assert answer.status == 400
    assert "output 'p': classification" in answer.error


def test_classes_need_numbers(port: Port) -> None:
    answer = port.infer("iris", {"inputs": [X], "outputs": [output("label", classification=1)]})
    assert answer.status == 400
    assert "output 'label'" in answer.error
    assert "BYTES" in answer.error


def test_classes_beside_other_outputs_and_as_bytes(port: Port) -> None:
    outputs = [output("label"), output("p", classification=1, binary_data=True)]
    head, blobs = split(port.infer("iris", {"inputs": [X], "outputs": outputs}))
    assert head["outputs"][0]["data"] == ["r0", "r1"]
    assert (head["outputs"][1]["datatype"], head["outputs"][1]["shape"]) == ("BYTES", [2, 1])
    assert blobs["p"] == b"\x07\0\0\0006.0:2:c" + b"\x08\0\0\00014.0:2:c"


def test_classes_of_a_model_without_rows() -> None:
    port = Port()
    port.add("m", {"x": "float32[k]"}, {"p": "float32[3]", "q": "float32[2, 2]"}, lambda inputs: {
        "p": np.array([1, 3, 2], np.float32), "q": np.array([[1, 2], [4, 3]], np.float32),
    })  # fmt: skip
    body = {
        "inputs": [tensor("x", "FP32", [1], [0])],
        "outputs": [output("p", classification=2), output("q", classification=1)],
    }
    p, q = port.infer("m", body).json["outputs"]
    assert (p["shape"], p["data"]) == ([2], ["3.0:1", "2.0:2"])
    assert (q["shape"], q["data"]) == ([2, 1], ["2.0:1", "4.0:0"])


def test_a_row_that_json_cannot_show_still_has_classes_and_bytes() -> None:
    port = Port()
    endpoint = port.add("m", {"x": "float32[n]"}, {"y": "float32[n, 2]"})
    one = tensor("x", "FP32", [1], [0])
    exchanges = [
        port.send("POST", "/v2/models/m/infer", {"inputs": [one], "outputs": [output("y", **how)]})
        for how in ({}, {"binary_data": True}, {"classification": 2})
    ]
    y = np.array([[np.nan, 1]] * 3, np.float32)
    batch = Outputs({"y": Tensor("float32", (3, 2), y)}, 3)
    for at, ticket in enumerate(endpoint.tickets):
        ticket.end(Result(batch, at, at + 1))
    plain, raw, best = [Answer(exchange) for exchange in exchanges]
    assert plain.status == 500
    assert raw.body.endswith(y[0].tobytes())
    assert best.tensor("y")["data"] == ["1.0:1", "nan:0"]


# ---------------------------------------------------------------- models without rows, and rows without elements

_SIZES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.dictionaries(st.sampled_from("abc"), _SIZES, min_size=1), st.sampled_from(["float32", "int64", "str"]))
def test_a_model_without_rows_is_answered_whole_in_every_form(shapes: dict[str, tuple[int, ...]], dtype: str) -> None:
    """Scalars, empty outputs and outputs of any size, one wanted or several: JSON and bytes say what the model gave."""
    arrays = {}
    for name, shape in shapes.items():
        values = np.arange(int(np.prod(shape, dtype=np.int64))) + ord(name)
        arrays[name] = (values.astype(str).astype(object) if dtype == "str" else values.astype(dtype)).reshape(shape)
    port = Port()
    outputs = {
        name: f"{dtype}[{', '.join(f'{name}{axis}' for axis in range(len(shape)))}]" for name, shape in shapes.items()
    }
    port.add("m", {"x": "float32[k]"}, outputs, lambda inputs: arrays)
    question = {"inputs": [tensor("x", "FP32", [2], [1, 2])], "outputs": [output(name) for name in shapes]}
    for id in ({}, {"id": "7"}):
        answer = port.infer("m", {**question, **id})
        assert answer.status == 200
        assert [entry["name"] for entry in answer.json["outputs"]] == list(shapes)
        for name, array in arrays.items():
            entry = answer.tensor(name)
            assert (tuple(entry["shape"]), entry["data"]) == (array.shape, array.reshape(-1).tolist())
    head, blobs = split(port.infer("m", {**question, "parameters": {"binary_data_output": True}}))
    for entry in head["outputs"]:
        array = arrays[entry["name"]]
        assert tuple(entry["shape"]) == array.shape
        if dtype != "str":
            assert blobs[entry["name"]] == array.tobytes()
    columns = port.ask("POST", "/predict/m", {"columns": {"x": [1, 2]}}).json["columns"]
    assert columns == {name: array.tolist() for name, array in arrays.items()}


@pytest.mark.parametrize("shape", [(0, 0), (1, 0), (2, 0), (0, 2), (2, 0, 3), (2, 3, 0), (0, 0, 2)])
@pytest.mark.parametrize("dtype", ["FP32", "BYTES"])
def test_rows_without_elements_are_valid_json_everywhere(shape: tuple[int, ...], dtype: str) -> None:
    kind = {"FP32": "float32", "BYTES": "str"}[dtype]
    port = Port()
    axes = ", ".join(["n", "j", "k"][: len(shape)])
    port.add("m", {"x": f"{kind}[{axes}]"}, {"y": f"{kind}[{axes}]"}, lambda inputs: {"y": inputs["x"]})
    nested = np.zeros(shape).tolist()
    asked = {"inputs": [tensor("x", dtype, list(shape), [])]}
    y = port.infer("m", asked).tensor("y")
    assert (y["shape"], y["data"]) == (list(shape), [])
    if dtype == "FP32":
        best = port.infer("m", {**asked, "outputs": [output("y", classification=1)]}).tensor("y")
        width = int(np.prod(shape[1:]))
        assert (best["shape"], best["data"]) == ([shape[0], min(1, width)], [])
    assert split(port.infer("m", {**asked, "parameters": {"binary_data_output": True}}))[1] == {"y": b""}
    if shape == (2, 0):
        rows = [{"x": []}, {"x": []}]
        assert port.ask("POST", "/v1/models/m:predict", {"instances": rows}).json == {"predictions": nested}
        assert port.ask("POST", "/v1/models/m:predict", {"inputs": {"x": nested}}).json == {"predictions": nested}
        assert port.ask("POST", "/predict/m", rows).json == [{"y": []}, {"y": []}]
        assert port.ask("POST", "/predict/m", {"columns": {"x": nested}}).json == {"columns": {"y": nested}}


def test_callers_of_one_batch_of_rows_without_elements() -> None:
    port = Port()
    endpoint = port.add("m", {"x": "float32[n, k]"}, {"y": "float32[n, k]"})
    body = {"inputs": [tensor("x", "FP32", [2, 0], [])]}
    exchanges = [port.send("POST", "/v2/models/m/infer", body) for _ in range(2)]
    batch = Outputs({"y": Tensor("float32", (4, 0), np.zeros((4, 0), np.float32))}, 4)
    for at, ticket in enumerate(endpoint.tickets):
        ticket.end(Result(batch, 2 * at, 2 * at + 2))
    for exchange in exchanges:
        y = Answer(exchange).tensor("y")
        assert (y["shape"], y["data"]) == ([2, 0], [])


MANY = 150_528
"""Elements of a picture: 600 KB."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_binary_tensor_stays_where_the_body_is(kind: Any) -> None:
    port = Port()
    endpoint = port.add("pixels", {"x": "float32[n]"}, {"y": "float32[n]"}, lambda inputs: {"y": inputs["x"][:1]})
    raw = np.arange(MANY, dtype=np.float32).tobytes()
    entry = {"name": "x", "datatype": "FP32", "shape": [MANY], "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [entry]}).encode()
    body = kind(head + raw)
    pairs = [(b"inference-header-content-length", str(len(head)).encode())]
    exchange = FakeExchange("POST", b"/v2/models/pixels/infer", b"", pairs, body, 50.0)
    port.rest.exchange(exchange)
    assert exchange.answer is not None and exchange.answer[0] == 200
    data = np.frombuffer(endpoint.request.inputs["x"].data, np.float32)
    assert np.shares_memory(data, np.frombuffer(body, np.uint8)) and data[-1] == MANY - 1


def test_a_binary_answer_is_copied_once() -> None:
    """From the replica's memory, which is somebody else's afterwards, into the body."""
    port = Port()
    pixels = np.arange(MANY, dtype=np.float32)
    endpoint = port.add("pixels", {"n": "int64[1]"}, {"y": "float32[m]"})
    body = {"inputs": [tensor("n", "INT64", [1], [1])], "parameters": {"binary_data_output": True}}
    for _ in range(2):  # the first time more than the answer is kept
        exchange = port.send("POST", "/v2/models/pixels/infer", body)
        result = Result(endpoint.outputs({"y": pixels}, 1), 0, 1, True, 0.0)
        tracemalloc.start()
        try:
            endpoint.tickets[-1].end(result)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    answer = Answer(exchange)
    assert answer.status == 200 and answer.body.endswith(pixels.tobytes())
    assert pixels.nbytes < peak < pixels.nbytes * 1.2
