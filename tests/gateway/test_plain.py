"""The plain route: what goes in as an object, an array or columns comes out as the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gates import Answer, Port, iris_port

from maitred.gateway.openapi import openapi
from maitred.messages import Result


@pytest.fixture
def port() -> Port:
    port = iris_port()
    port.add(
        "mixed",
        {"age": "int64[n]", "name": "str[n]", "h": "float32[n, 2] optional nullable"},
        {"score": "float64[n]", "echo": "str[n]"},
        lambda inputs: {"score": inputs["age"] / 2, "echo": inputs["name"]},
    )
    port.add(
        "filled",
        {"a": "float32[n] default=0.5", "b": "bool[n] optional", "c": "float64[n] optional nullable"},
        {"y": "float32[n]"},
        lambda inputs: {"y": inputs["a"]},
    )
    port.add("total", {"x": "float32[k]"}, {"sum": "float32[]", "twice": "float32[k]"}, lambda inputs: {
        "sum": np.sum(inputs["x"]), "twice": inputs["x"] * 2,
    })  # fmt: skip
    port.add(
        "shared",
        {"x": "float32[n]", "by": "float32[2]"},
        {"y": "float32[n, 2]"},
        lambda inputs: {"y": inputs["x"][:, None] * inputs["by"]},
    )
    port.add(
        "cube",
        {"x": "int32[n, 2, 2]"},
        {"y": "int32[n, 2, 2]", "e": "int8[n, 0]", "f": "int8[n, 2, 0, 3]"},
        lambda inputs: {
            "y": inputs["x"] + 1,
            "e": np.zeros((len(inputs["x"]), 0), np.int8),
            "f": np.zeros((len(inputs["x"]), 2, 0, 3), np.int8),
        },
    )
    port.add("pad", {"t": "int64[n, s] pad=0"}, {"t": "int64[n, s]"}, lambda inputs: {"t": inputs["t"]})
    return port


def predict(port: Port, name: str, body: Any) -> Answer:
    return port.ask("POST", f"/predict/{name}", body)


CUBE = [[1, 2], [3, 4]]
MORE = [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("name", "body", "answer"),
    [
        ("iris", {"x": [1, 2, 3, 4]}, {"p": [2.0, 4.0, 6.0], "label": "r0"}),
        ("iris", [{"x": [1, 2, 3, 4]}], [{"p": [2.0, 4.0, 6.0], "label": "r0"}]),
        ("iris", [], []),
        ("iris", {"columns": {"x": [[1, 2, 3, 4]]}}, {"columns": {"p": [[2.0, 4.0, 6.0]], "label": ["r0"]}}),
        ("iris", {"columns": {"x": []}}, {"columns": {"p": [], "label": []}}),
        ("mixed", {"age": 3, "name": "a:b"}, {"score": 1.5, "echo": "a:b"}),
        (
            "mixed",
            [{"age": 3, "name": "é"}, {"age": 5, "name": ""}],
            [{"score": 1.5, "echo": "é"}, {"score": 2.5, "echo": ""}],
        ),
        ("mixed", {"columns": {"age": [3], "name": ["x"]}}, {"columns": {"score": [1.5], "echo": ["x"]}}),
        ("mixed", {"age": 3, "name": "a", "h": [None, 1]}, {"score": 1.5, "echo": "a"}),
        ("filled", [{"a": 1}, {"b": True}, {"c": 2, "b": False}], None),
        ("filled", [{"a": 1, "b": True}, {"b": False}], [{"y": 1.0}, {"y": 0.5}]),
        ("total", {"x": [1, 2, 3.5]}, {"sum": 6.5, "twice": [2.0, 4.0, 7.0]}),
        ("total", {"columns": {"x": [1]}}, {"columns": {"sum": 1.0, "twice": [2.0]}}),
        ("shared", {"x": 3, "by": [1, 2]}, {"y": [3.0, 6.0]}),
        ("shared", [{"x": 3, "by": [1, 2]}, {"x": 4, "by": [1, 2]}], [{"y": [3.0, 6.0]}, {"y": [4.0, 8.0]}]),
        ("shared", {"columns": {"x": [3, 4], "by": [1, 2]}}, {"columns": {"y": [[3.0, 6.0], [4.0, 8.0]]}}),
        ("cube", {"x": CUBE}, {"y": MORE, "e": [], "f": [[], []]}),
        ("cube", [{"x": CUBE}] * 2, [{"y": MORE, "e": [], "f": [[], []]}] * 2),
        ("cube", {"columns": {"x": [CUBE] * 3}}, {"columns": {"y": [MORE] * 3, "e": [[]] * 3, "f": [[[], []]] * 3}}),
        ("pad", [{"t": [1]}, {"t": [2, 3, 4]}], [{"t": [1, 0, 0]}, {"t": [2, 3, 4]}]),
        ("pad", {"columns": {"t": [[1], [2, 3]]}}, {"columns": {"t": [[1, 0], [2, 3]]}}),
    ],
)
def test_answers(port: Port, name: str, body: Any, answer: Any) -> None:
    for _ in range(2):
        got = predict(port, name, body)
        if answer is None:
            assert got.status == 400
        else:
            assert got.json == answer


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("iris", b"", "empty"),
        ("iris", b"5", "the body: expected object"),
        ("iris", [5], "expected object"),
        ("iris", {}, "'x' is missing"),
        ("iris", [{}], "'x' is missing"),
        ("iris", {"z": 1}, "unknown input 'z'"),
        ("iris", {"x": [1, 2, 3]}, "input 'x'"),
        ("iris", {"x": [[1, 2, 3, 4]]}, "input 'x'"),
        ("iris", {"x": None}, "input 'x'"),
        ("iris", {"x": {"a": 1}}, "input 'x'"),
        ("iris", [{"x": [1, 2, 3, 4]}, {"x": [1, 2, 3]}], "input 'x'"),
        ("iris", [{"x": [1, 2, 3, 4]}, {}], "input 'x': row 1 has none"),
        ("iris", {"columns": {"x": [1, 2, 3, 4]}}, "input 'x'"),
        ("iris", {"columns": []}, "columns: expected object"),
        ("iris", {"columns": {"x": [[1, 2, 3, 4]]}, "x": [1]}, "columns must stand alone, and 'x'"),
        ("iris", {"columns": {"z": [1]}}, "unknown input 'z'"),
        ("iris", b'{"x":[1,2,3,4],"x":[1,2,3,4]}', "'x' occurs twice"),
        ("iris", b'[{"x":[1,2,3,4],"x":[1,2,3,4]}]', "'x' occurs twice"),
        ("iris", b'{"columns":{"x":[[1,2,3,4]],"x":[[1,2,3,4]]}}', "'x' occurs twice"),
        ("iris", b'{"columns":{},"columns":{"x":[[1,2,3,4]]}}', "'columns' occurs twice"),
        ("iris", b'{"x":[1e400,2,3,4]}', "input 'x'"),
        ("iris", b'{"x":[1,2,3,4]', "ends too early"),
        ("iris", b"[" * 250_000, "[0]: expected object"),
        ("iris", b'{"x":' + b"[" * 120 + b"]" * 120 + b"}", "deeper"),
        ("iris", b"{" + b",".join(b'"a%d":1' % i for i in range(1_000_000)) + b"}", "more than 250000 keys"),
        ("mixed", [{"age": 3, "name": "a", "h": [1, 2]}, {"age": 3, "name": "a"}], "input 'h': row 1 has none"),
        ("mixed", {"age": "3", "name": "a"}, "input 'age'"),
        ("mixed", {"age": 3, "name": "\ud800"}, "lone surrogate"),
        ("filled", {}, "missing"),
        ("shared", [{"x": 3, "by": [1, 2]}, {"x": 4, "by": [1, 3]}], "input 'by' has no rows"),
        ("total", [{"x": [1]}], "row by row"),
        ("pad", {"columns": {"t": [[1], 2]}}, "input 't'"),
    ],
)
def test_refusals_name_the_field(port: Port, name: str, body: Any, says: str) -> None:
    answer = predict(port, name, body)
    assert answer.status == 400
    assert says in answer.error
    assert port.endpoints[name].tickets == []


def test_rows_of_a_shared_batch(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    one = port.send("POST", "/predict/iris", {"x": [1, 2, 3, 4]})
    two = port.send("POST", "/predict/iris", [{"x": [1, 2, 3, 4]}] * 2)
    p = np.array([[np.nan, 0, 0], [1, 2, 3], [4, 5, 6]], np.float32)
    batch = endpoint.outputs({"p": p, "label": np.array(list("abc"))}, 3)
    endpoint.tickets[0].end(Result(batch, 0, 1))
    endpoint.tickets[1].end(Result(batch, 1, 3))
    assert Answer(one).status == 500
    assert "'p'" in Answer(one).error
    assert Answer(two).json == [{"p": [1.0, 2.0, 3.0], "label": "b"}, {"p": [4.0, 5.0, 6.0], "label": "c"}]


def test_output_names_are_escaped(port: Port) -> None:
    port.add("odd", {'a"b': "int64[n]"}, {'c"\\d': "int64[n]"}, lambda inputs: {'c"\\d': inputs['a"b']})
    assert predict(port, "odd", {'a"b': 1}).json == {'c"\\d': 1}
    assert (
        port.infer("odd", {"inputs": [{"name": 'a"b', "datatype": "INT64", "shape": [1], "data": [1]}]}).status == 200
    )


def test_a_million_rows_of_keys_are_not_too_many(port: Port) -> None:
    rows = [{"age": i, "name": "a"} for i in range(20_000)]
    assert len(predict(port, "mixed", rows).json) == 20_000


def picture_port() -> Port:
    port = Port()
    port.add(
        "picture",
        {"image": "bytes[n]", "name": 'str[n] default="?"'},
        {"size": "int64[n]", "name": "str[n]"},
        lambda inputs: {"size": np.array([len(item) for item in inputs["image"]]), "name": inputs["name"]},
    )
    port.add("two", {"a": "bytes[n]", "b": "bytes[n]"}, {"y": "int64[n]"}, lambda inputs: {"y": [1]})
    port.add("text", {"a": "str[n]"}, {"y": "int64[n]"}, lambda inputs: {"y": [1]})
    return port


@pytest.mark.parametrize("media", ["image/jpeg", "IMAGE/x-odd", "audio/wav", "video/mp4", "application/octet-stream"])
@pytest.mark.parametrize("body", [b"\xff\xd8\x00", b'{"image": "text"}', b"[1]", b""])
def test_plain_bytes_are_one_row_of_a_model_that_takes_just_that(media: str, body: bytes) -> None:
    answer = picture_port().ask("POST", "/predict/picture", body, {"Content-Type": media})
    assert (answer.status, answer.json) == (200, {"size": len(body), "name": "?"})


def test_plain_bytes_are_for_no_other_model_and_no_other_route() -> None:
    port = picture_port()
    for path in ("/predict/two", "/predict/text", "/v2/models/picture/infer", "/v1/models/picture:predict"):
        answer = port.ask("POST", path, b"\xff\xd8", {"Content-Type": "image/jpeg"})
        assert answer.status in (400, 415), path
    json_bytes = port.ask("POST", "/predict/picture", {"image": "abc"})
    assert json_bytes.json == {"size": 3, "name": "?"}
    text = port.ask("POST", "/predict/picture", b"abc", {"Content-Type": "text/plain"})
    assert text.status in (400, 415)
    both = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "2"}
    assert port.ask("POST", "/predict/picture", b"{}", both).status == 400


def test_the_openapi_page_tells_of_plain_bytes() -> None:

    paths = openapi(picture_port().router.all())["paths"]
    media = {path: [*paths[path]["post"]["requestBody"]["content"]] for path in ("/predict/picture", "/predict/two")}
    assert media == {
        "/predict/picture": ["application/json", "application/octet-stream"],
        "/predict/two": ["application/json"],
    }
