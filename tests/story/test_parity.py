"""The same rows give the same bits embedded, over JSON and over binary tensors: every dtype, and its edge values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from house import MODELS, Standing, settings, standing
from hypothesis import given
from hypothesis import strategies as st

import maitred
from maitred.wire.coerce import DATATYPES, NUMPY_TYPES, from_array, from_raw, to_array, to_json_values, to_raw
from models import DTYPES

Rows = dict[str, Any]


class Place:
    """A server and the embedded model beside it, for many examples."""

    def __init__(
        self, runner: asyncio.Runner, house: Standing, embedded: maitred.Handle, above: maitred.Handle
    ) -> None:
        self.runner = runner
        self.caller = house.caller()
        self.embedded = embedded
        self.above = above


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    every, above = maitred.load(f"{MODELS}:Every"), maitred.load(f"{MODELS}:Above")
    with asyncio.Runner() as runner, every, above:
        house = standing(settings(tmp_path_factory.mktemp("home"), {"every": "Every", "above": "Above"}))
        yield Place(runner, runner.run(house.__aenter__()), every, above)
        runner.run(house.__aexit__(None, None, None))


def elements(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "str":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    if dtype == "bytes":
        return st.binary(max_size=12)
    kind = NUMPY_TYPES[dtype]
    size = kind.itemsize * 8
    if dtype == "bool":
        return st.booleans()
    if "int" in dtype:
        info = np.iinfo(kind)
        return st.integers(int(info.min), int(info.max)) | st.sampled_from([int(info.min), int(info.max), 0])
    edges = [0.0, -0.0, float("inf"), float("-inf"), float("nan")]
    bits = st.integers(0, 2**size - 1).map(lambda pattern: np.array(pattern, f"uint{size}").view(kind).item())
    return bits | st.sampled_from(edges)


@st.composite
def batches(draw: st.DrawFn) -> Rows:
    """Some rows of two elements, as arrays by dtype."""
    rows = draw(st.integers(1, 4))
    found: Rows = {}
    for dtype in DTYPES:
        values = draw(st.lists(elements(dtype), min_size=2 * rows, max_size=2 * rows))
        array = np.empty(2 * rows, NUMPY_TYPES[dtype])
        array[:] = values
        found[dtype] = array.reshape(rows, 2)
    return found


def bits(array: Any) -> Any:
    """What tells two arrays apart: NaNs are equal whatever their payload, which text cannot carry."""
    if array.dtype == object:
        return array.tolist()
    floats = array.dtype.kind not in "biu"
    return [repr(value) for value in array.astype(np.float64).ravel()] if floats else array.tobytes()


def by_json(place: Place, rows: Rows) -> Rows:
    """JSON has no bytes: they go out as Latin-1 text, which the model sees and gives back in UTF-8."""
    texts = {name: array for name, array in rows.items() if name != "bytes"}
    inputs = ",".join(
        f'{{"name":"{name}","datatype":"{DATATYPES[name]}","shape":{list(array.shape)},"data":'
        f"{to_json_values(from_array(array), 'string').decode()}}}"
        for name, array in texts.items()
    )
    data = json.dumps([item.decode("latin-1") for item in rows["bytes"].ravel()])
    latin = f'{{"name":"bytes","datatype":"BYTES","shape":{list(rows["bytes"].shape)},"data":{data}}}'
    body = f'{{"inputs":[{inputs},{latin}]}}'.encode()
    reply = place.runner.run(place.caller.ask("POST", "/v2/models/every/infer", body))
    assert reply.status == 200, reply.body
    found: Rows = {}
    for output in reply.json()["outputs"]:
        name, shape = output["name"], output["shape"]
        flat = [float(item) if "float" in name else item for item in output["data"]]
        array = np.empty(len(flat), NUMPY_TYPES[name])
        array[:] = [item.encode("latin-1") for item in flat] if name == "bytes" else flat
        found[name] = array.reshape(shape)
    return found


def by_binary(place: Place, rows: Rows) -> Rows:
    blobs = {name: bytes(to_raw(from_array(array))) for name, array in rows.items()}
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": DATATYPES[name],
                    "shape": list(rows[name].shape),
                    "parameters": {"binary_data_size": len(blob)},
                }
                for name, blob in blobs.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = head + b"".join(blobs.values())
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    reply = place.runner.run(place.caller.ask("POST", "/v2/models/every/infer", body, headers))
    assert reply.status == 200, reply.body
    length = int(reply.headers["inference-header-content-length"])
    rest, found = memoryview(reply.body)[length:], {}
    for output in json.loads(reply.body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        tensor = from_raw(output["name"], output["name"], tuple(output["shape"]), rest[:size])
        found[output["name"]] = to_array(tensor)
        rest = rest[size:]
    return found


@given(batches())
def test_every_way_of_asking_gives_the_same_bits(place: Place, rows: Rows) -> None:
    expected = place.embedded.predict(rows)
    for name, array in rows.items():
        assert bits(expected[name]) == bits(array), f"embedded changed {name}"
    for way in (by_json, by_binary):
        answer = way(place, rows)
        assert set(answer) == set(rows)
        for name in rows:
            assert answer[name].dtype == expected[name].dtype
            assert bits(answer[name]) == bits(expected[name]), f"{way.__name__} changed {name}"


@given(
    st.lists(st.integers(-9, 9), max_size=4),
    st.lists(st.sampled_from(["above", "sum", "all"]), min_size=1, max_size=3, unique=True),
)
def test_a_model_without_rows_gives_the_same_in_every_way(place: Place, values: list[int], names: list[str]) -> None:
    x = np.array(values, np.float32)
    expected = place.above.predict(x=x, outputs=names)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}]
    body = {"inputs": inputs, "outputs": [{"name": name} for name in names]}
    reply = place.runner.run(place.caller.ask("POST", "/v2/models/above/infer", body))
    assert reply.status == 200, reply.body
    outputs = reply.json()["outputs"]
    assert [output["name"] for output in outputs] == names
    for output in outputs:
        array = expected[output["name"]]
        assert (tuple(output["shape"]), output["data"]) == (array.shape, array.reshape(-1).tolist())
    body["parameters"] = {"binary_data_output": True}
    reply = place.runner.run(place.caller.ask("POST", "/v2/models/above/infer", body))
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == b"".join(
        expected[name].tobytes() for name in names
    )
