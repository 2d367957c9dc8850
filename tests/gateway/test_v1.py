"""V1: rows or columns in, predictions out, as both families of its clients send and read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gates import Answer, Port, iris_port

from maitred.messages import Result


@pytest.fixture
def port() -> Port:
    port = iris_port()
    port.add("double", {"x": "float32[n, 2]"}, {"y": "float32[n, 2]"}, lambda inputs: {"y": inputs["x"] * 2})
    port.add(
        "mixed",
        {"age": "int64[n]", "country": "str[n]", "boost": "float64[n] default=1"},
        {"score": "float64[n]"},
        lambda inputs: {"score": inputs["age"] * inputs["boost"]},
    )
    port.add("total", {"x": "float32[k]"}, {"sum": "float32[]"}, lambda inputs: {"sum": np.sum(inputs["x"])})
    return port


def predict(port: Port, name: str, body: Any) -> Answer:
    return port.ask("POST", f"/v1/models/{name}:predict", body)


@pytest.mark.parametrize(
    ("name", "body", "predictions"),
    [
        ("double", {"instances": [[1, 2], [3, 4]]}, [[2.0, 4.0], [6.0, 8.0]]),
        ("double", {"instances": [{"x": [1, 2]}]}, [[2.0, 4.0]]),
        ("double", {"instances": []}, []),
        ("double", {"inputs": {"x": [[1, 2], [3, 4]]}}, [[2.0, 4.0], [6.0, 8.0]]),
        ("double", {"inputs": [[1, 2]]}, [[2.0, 4.0]]),
        ("double", {"inputs": []}, []),
        (
            "double",
            {"instances": [[1, 2]], "signature_name": "serving_default", "more": {"a": {"b": [1]}}},
            [[2.0, 4.0]],
        ),
        ("iris", {"instances": [[1, 2, 3, 4]]}, [{"p": [2.0, 4.0, 6.0], "label": "r0"}]),
        ("iris", {"inputs": [[1, 2, 3, 4]]}, {"p": [[2.0, 4.0, 6.0]], "label": ["r0"]}),
        ("mixed", {"instances": [{"age": 3, "country": "a:b"}, {"age": 4, "country": "c"}]}, [3.0, 4.0]),
        ("mixed", {"instances": [{"age": 3, "country": "a", "boost": 2}, {"age": 4, "country": "c"}]}, [6.0, 4.0]),
        ("mixed", {"inputs": {"age": [3, 4], "country": ["a", "b"]}}, [3.0, 4.0]),
        ("total", {"inputs": {"x": [1, 2, 3.5]}}, 6.5),
        ("total", {"inputs": [1, 2]}, 3.0),
    ],
)
def test_predictions(port: Port, name: str, body: Any, predictions: Any) -> None:
    for _ in range(2):
        answer = predict(port, name, body)
        assert answer.json == {"predictions": predictions}
        assert answer.content_type == b"application/json"


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("double", {}, "instances"),
        ("double", {"instances": [[1, 2]], "inputs": [[1, 2]]}, "either"),
        ("double", [], "the body"),
        ("double", b"", "empty"),
        ("double", {"instances": 5}, "instances: expected array"),
        ("double", {"instances": {"x": [1, 2]}}, "instances: expected array"),
        ("double", {"inputs": 5}, "'x'"),
        ("double", {"instances": [[1, 2], [3]]}, "input 'x'"),
        ("double", {"instances": [[1, 2], 3]}, "input 'x'"),
        ("double", {"instances": [[1, "a"]]}, "input 'x'"),
        ("double", {"instances": [{"x": [1, 2]}, [3, 4]]}, "instances[1]"),
        ("double", {"instances": [[3, 4], {"x": [1, 2]}]}, "input 'x'"),
        ("double", {"instances": [{"z": [1, 2]}]}, "unknown input 'z'"),
        ("double", {"instances": [{}]}, "'x' is missing"),
        ("double", {"inputs": {"z": [[1, 2]]}}, "unknown input 'z'"),
        ("double", {"instances": [[[1, 2]]]}, "input 'x'"),
        ("double", b'{"instances":[[1,2]],"instances":[[1,2]]}', "twice"),
        ("double", b'{"instances":[{"x":[1,2],"x":[3,4]}]}', "'x' occurs twice"),
        ("double", b'{"instances":[{"x":{"a":1}}]}', "'x'"),
        ("double", b'{"instances":[[1e400,2]]}', "input 'x'"),
        ("double", b'{"instances":[[NaN,2]]}', "JSON"),
        ("double", b'{"u":' + b"[" * 120 + b"]" * 120 + b',"instances":[]}', "deeper"),
        ("double", b'{"instances":' + b"[" * 250_000 + b"]" * 250_000 + b"}", "deeper"),
        ("mixed", {"instances": [[1, 2]]}, "several inputs"),
        ("mixed", {"inputs": [[1, 2]]}, "several inputs"),
        ("mixed", {"instances": [{"age": 3, "country": "a"}, {"age": 4}]}, "input 'country': row 1 has none"),
        ("mixed", {"instances": [{"age": 3, "country": None}]}, "input 'country'"),
        ("mixed", {"instances": [{"age": 1.5, "country": "a"}]}, "input 'age'"),
        ("mixed", {"inputs": {"age": [1, 2], "country": ["a"]}}, "'country'"),
        ("total", {"instances": [1, 2]}, "row by row"),
        ("total", {"instances": [{"x": [1]}]}, "row by row"),
    ],
)
def test_refusals_name_the_field(port: Port, name: str, body: Any, says: str) -> None:
    answer = predict(port, name, body)
    assert answer.status == 400
    assert says in answer.error
    assert port.endpoints[name].tickets == []


def test_status(port: Port) -> None:
    status = port.ask("GET", "/v1/models/iris").json
    assert (status["name"], status["ready"]) == ("iris", True)
    [version] = status["model_version_status"]
    assert (version["version"], version["state"], version["status"]["error_code"]) == ("1", "AVAILABLE", "OK")
    assert port.ask("GET", "/v1/models").json == {"models": ["iris", "double", "mixed", "total"]}
    assert port.ask("GET", "/v1/models/iris/versions/1").status == 200
    assert port.ask("GET", "/v1/models/iris/versions/9").status == 404
    port.router.names["iris"].changed("failed", "no such file: /srv/a/b.onnx", None)
    failed = port.ask("GET", "/v1/models/iris").json["model_version_status"][0]
    assert (failed["state"], failed["status"]["error_message"]) == ("END", "no such file: b.onnx")


def test_versions(port: Port) -> None:
    body = {"instances": [[1, 2]]}
    assert port.ask("POST", "/v1/models/double/versions/1:predict", body).status == 200
    assert port.ask("POST", "/v1/models/double/versions/2:predict", body).status == 404


def test_headers_count_here_too(port: Port) -> None:
    heads = {"Maitred-Timeout-Ms": "20", "X-Request-Id": "q"}
    port.ask("POST", "/v1/models/double:predict", {"instances": [[1, 2]]}, heads)
    request = port.endpoints["double"].request
    assert (request.deadline, request.id, request.rows) == (50.02, "q", 1)
    assert request.size_bytes == len(b'{"instances": [[1, 2]]}')
    answer = port.ask("POST", "/v1/models/double:predict", {"instances": [[1, 2]]}, {"Maitred-Timeout-Ms": "x"})
    assert answer.status == 400


def test_rows_of_a_shared_batch(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    path = "/v1/models/iris:predict"
    rows = port.send("POST", path, {"instances": [[1, 2, 3, 4]] * 2})
    columns = port.send("POST", path, {"inputs": {"x": [[1, 2, 3, 4]]}})
    p = np.arange(9, dtype=np.float32).reshape(3, 3)
    batch = endpoint.outputs({"p": p, "label": np.array(list("abc"))}, 3)
    endpoint.tickets[0].end(Result(batch, 0, 2))
    endpoint.tickets[1].end(Result(batch, 2, 3))
    assert Answer(rows).json["predictions"] == [
        {"p": [0.0, 1.0, 2.0], "label": "a"},
        {"p": [3.0, 4.0, 5.0], "label": "b"},
    ]
    assert Answer(columns).json["predictions"] == {"p": [[6.0, 7.0, 8.0]], "label": ["c"]}
    assert "model;dur=" in Answer(rows).headers["server-timing"]
