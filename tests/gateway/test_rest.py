"""The data port: routes and methods, requests as the endpoint gets them, answers, refusals, hang-ups."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import numpy as np
import pytest
from gates import Answer, Port, iris_port, tensor

from maitred.deployment.router import Served
from maitred.errors import (
    TABLE,
    Cancelled,
    MaitredError,
    ModelFault,
    NoReplica,
    QueueFull,
    WouldBeLate,
)
from maitred.events import METHOD_NOT_ALLOWED, RequestEnded
from maitred.gateway.rest import MAX_SHAPES, Rest
from maitred.http.exchange import Exchange
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL, Outputs, Result, Tensor

X = tensor("x", "FP32", [1, 4], [0.5, 1.5, 2.5, 3.5])
TWO = tensor("x", "FP32", [2, 4], [[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.fixture
def port() -> Port:
    return iris_port()


# ---------------------------------------------------------------- routes


def test_server_routes(port: Port) -> None:
    server = port.ask("GET", "/v2").json
    assert server["name"] == "maitred"
    assert "binary_tensor_data" in server["extensions"]
    assert port.ask("GET", "/v2/health/live").status == 200
    assert port.ask("GET", "/v2/health/ready").json == {"ready": True}
    assert port.ask("GET", "/v2/models").json == {"models": ["iris"]}
    assert port.ask("HEAD", "/v2/health/live").status == 200


def test_metadata(port: Port) -> None:
    for path in ("/v2/models/iris", "/v2/models/iris/", "/v2/models/iris/versions/1"):
        model = port.ask("GET", path).json
        assert (model["name"], model["versions"]) == ("iris", ["1"])
        [x] = model["inputs"]
        assert (x["name"], x["datatype"], x["shape"]) == ("x", "FP32", [-1, 4])
        p, label = model["outputs"]
        assert (p["name"], p["datatype"], p["shape"], p["parameters"]["labels"]) == (
            "p",
            "FP32",
            [-1, 3],
            ["a", "b", "c"],
        )
        assert (label["datatype"], label["shape"]) == ("BYTES", [-1])
        assert x["parameters"]["notation"] == "float32[n, 4]"


def test_config_for_triton_clients(port: Port) -> None:
    config = port.ask("GET", "/v2/models/iris/config").json
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert config["output"][1]["data_type"] == "TYPE_STRING"
    assert config["max_batch_size"] == 0


def test_readiness_of_models_and_server(port: Port) -> None:
    assert port.ask("GET", "/v2/models/iris/ready").status == 200
    port.router.names["iris"].changed("failed", "could not open /srv/models/iris/model.onnx", None)
    answer = port.ask("GET", "/v2/models/iris/ready")
    assert answer.status == 503
    assert "model.onnx" in answer.error
    assert "/srv" not in answer.error
    assert port.ask("GET", "/v2/health/ready").status == 503
    assert port.ask("GET", "/v2/health/live").status == 200
    assert Port().ask("GET", "/v2/health/ready").status == 503, "no models is not ready"


def test_index(port: Port) -> None:
    served = Served("other", "1")
    served.changed("failed", "line one\nTraceback (most recent call last)", None)
    port.router.swap({**port.router.names, "other": served})
    ready = {"name": "iris", "version": "1", "state": "READY", "reason": ""}
    failed = {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "line one"}
    for body in (b"", b"{}", b'{"ready":false}', b'{"ready":false,"other":{"a":[1]}}'):
        assert port.ask("POST", "/v2/repository/index", body).json == [ready, failed]
    assert port.ask("POST", "/v2/repository/index", {"ready": True}).json == [ready]
    for body, says in (
        (b'{"ready":1}', "ready must be"),
        (b"{", "JSON"),
        (b"[]", "the body"),
        (b'{"x":' + b"[" * 25_000 + b"]" * 25_000 + b"}", "deeper than 100"),
        (b'{"x":' + b"[" * 120 + b"]" * 120 + b"}", "deeper than 100"),
    ):
        answer = port.ask("POST", "/v2/repository/index", body)
        assert answer.status == 400
        assert says in answer.error


@pytest.mark.parametrize("action", ["index", "models/new/load", "models/new/unload"])
def test_what_is_no_prediction_and_long_is_refused_unread(action: str) -> None:
    """It would be read on the loop: 48 MB of objects took half a second, in which nobody was answered."""
    port, control = Port(repository_control=True), Control()
    port.rest = Rest(port.router, port.settings, control=control)
    for size, status in ((1 << 16, 200), ((1 << 16) + 1, 413)):
        answer = port.ask("POST", f"/v2/repository/{action}", b"{" + b" " * (size - 2) + b"}")
        assert answer.status == status
    assert "65537 bytes, and this route takes 65536: send less" in answer.error


def test_what_the_operator_should_know_of_a_ready_model_is_in_the_index(port: Port) -> None:
    served = port.router.names["iris"]
    warned = ("the model was saved with scikit-learn 1.2.0, and 1.9.1 is installed", "not warmed up")
    served.description = msgspec.structs.replace(served.known(), warnings=warned)
    [row] = port.ask("POST", "/v2/repository/index", b"").json
    assert (row["state"], row["reason"]) == ("READY", "; ".join(warned))
    assert port.ask("GET", "/v2/models/iris/ready").json == {"ready": True}


def test_repository_control_is_off_and_says_how_to_switch_it_on(port: Port) -> None:
    for action in ("load", "unload"):
        answer = port.ask("POST", f"/v2/repository/models/iris/{action}")
        assert answer.status == 403
        assert "--allow-repository-control" in answer.error


class Control:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error: MaitredError | None = None

    def load(self, name: str, done: Any) -> None:
        self.calls.append(("load", name))
        done(self.error)

    def unload(self, name: str, done: Any) -> None:
        self.calls.append(("unload", name))
        done(self.error)


def test_repository_control_when_it_is_on() -> None:
    port, control = Port(repository_control=True), Control()
    port.rest = Rest(port.router, port.settings, control=control)
    assert port.ask("POST", "/v2/repository/models/new/load", b"{}").json == {}
    assert port.ask("POST", "/v2/repository/models/new/unload").status == 200
    assert control.calls == [("load", "new"), ("unload", "new")]
    control.error = NoReplica("it did not load")
    assert port.ask("POST", "/v2/repository/models/new/load").status == 503
    answer = port.ask("POST", "/v2/repository/models/new/load", {"parameters": {"config": "{}"}})
    assert (answer.status, len(control.calls)) == (400, 3)
    port.rest = Rest(port.router, Port().settings, control=control)
    assert port.ask("POST", "/v2/repository/models/new/load").status == 403


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/iris/infer", "POST"),
        ("PUT", "/v2/models/iris/infer", "POST"),
        ("POST", "/v2/models/iris", "GET, HEAD"),
        ("POST", "/v2/health/live", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("DELETE", "/predict/iris", "POST"),
        ("HEAD", "/predict/iris", "POST"),
        ("GET", "/v1/models/iris:predict", "POST"),
        ("x" * 5000, "/v2", "GET, HEAD"),
    ],
)
def test_other_methods(port: Port, method: str, path: str, allowed: str) -> None:
    answer = port.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, f"{allowed}, OPTIONS")
    assert len(answer.error) < 300


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("*", "GET, HEAD, POST, OPTIONS"),
        ("/v2", "GET, HEAD, OPTIONS"),
        ("/v2/models/iris", "GET, HEAD, OPTIONS"),
        ("/v2/models/iris/infer", "POST, OPTIONS"),
        ("/v1/models/iris:predict", "POST, OPTIONS"),
        ("/predict/iris", "POST, OPTIONS"),
    ],
)
def test_options_tell_the_methods(port: Port, path: str, allowed: str) -> None:
    answer = port.ask("OPTIONS", path)
    assert (answer.status, answer.headers["allow"], answer.body) == (204, allowed, b"")


def test_the_server_as_a_whole_takes_options_only(port: Port) -> None:
    answer = port.ask("GET", "*")
    assert (answer.status, answer.headers["allow"]) == (405, "OPTIONS")
    assert port.ask("OPTIONS", "/v2/models/nope").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/nope/infer",
        "/v2/models/a%2Fb/infer",
        "/v2/models/..",
        "/v2/models/iris/versions/2/infer",
        "/v2//models",
    ],
)
def test_unknown_things_are_404(port: Port, path: str) -> None:
    for method in ("GET", "POST"):
        answer = port.ask(method, path)
        assert answer.status == 404
        assert answer.headers["maitred-error"] == "unknown"


def test_long_names_are_not_repeated(port: Port) -> None:
    answer = port.ask("POST", "/v2/models/" + "n" * 1500 + "/infer", {})
    assert answer.status == 404
    assert len(answer.body) < 400
    assert b"\n" not in port.ask("GET", "/v2/models/a%0aINFO%20fake").body


class Beside:
    def __init__(self) -> None:
        self.paths: list[tuple[str, bytes]] = []

    def exchange(self, exchange: Exchange) -> None:
        self.paths.append((exchange.method, exchange.path))
        exchange.reply(200, b"page", b"text/html")


def test_everything_else_goes_aside(port: Port) -> None:
    beside = Beside()
    port.rest = Rest(port.router, port.settings, beside)
    for method, path in (("GET", "/"), ("POST", "/docs"), ("HEAD", "/metrics"), ("GET", "/v3/x"), ("GET", "//")):
        assert port.ask(method, path).body == b"page"
        assert beside.paths[-1] == (method, path.encode())
    assert port.ask("GET", "/v2").status == 200
    assert len(beside.paths) == 5


def test_without_a_site_other_routes_are_unknown(port: Port) -> None:
    assert port.ask("GET", "/").status == 404


def test_colons_and_slashes(port: Port) -> None:
    body = {"instances": [[1, 2, 3, 4]]}
    for path in ("/v1/models/iris:predict", "/v1/models/iris%3Apredict", "/v1/models/iris:predict/"):
        assert port.ask("POST", path, body).status == 200
    answer = port.ask("POST", "/v1/models/iris:explain", body)
    assert answer.status == 404
    assert "'explain'" in answer.error


def test_routes_follow_the_router(port: Port) -> None:
    assert port.infer("iris", {"inputs": [X]}).status == 200
    port.router.swap({})
    assert port.infer("iris", {"inputs": [X]}).status == 404
    other = Port()
    other.add("iris", {"x": "float32[n, 4]"}, {"z": "float32[n, 4]"}, lambda inputs: {"z": inputs["x"]})
    port.router.swap(other.router.names)
    assert port.infer("iris", {"inputs": [X]}).json["outputs"][0]["name"] == "z"


def test_routes_follow_a_changed_description(port: Port) -> None:
    assert port.infer("iris", {"inputs": [X]}).status == 200
    other = Port()
    other.add("iris", {"w": "int8[n]"}, {"p": "float32[n, 3]", "label": "str[n]"})
    port.router.names["iris"].description = other.router.names["iris"].description
    assert "unknown input 'x': this model takes 'w'" in port.infer("iris", {"inputs": [X]}).error
    port.endpoints["iris"].function = None
    port.send("POST", "/v2/models/iris/infer", {"inputs": [tensor("w", "INT8", [1], [5])]})
    assert bytes(port.endpoints["iris"].request.inputs["w"].data) == b"\x05"


def test_a_model_that_is_not_known_yet(port: Port) -> None:
    served = Served("late", "1")
    port.router.swap({"late": served})
    for path in ("/v2/models/late/infer", "/v1/models/late:predict", "/predict/late"):
        answer = port.ask("POST", path, {"inputs": [X]})
        assert answer.status == 503
        assert "loading" in answer.error
        assert int(answer.headers["retry-after"]) >= 1
    assert port.ask("GET", "/v2/models/late").status == 503
    assert port.ask("GET", "/v2/models/late/ready").status == 503
    assert port.ask("GET", "/v1/models/late").json["ready"] is False
    served.description = iris_port().router.names["iris"].description
    served.endpoint = port.endpoints["iris"]
    assert port.ask("POST", "/v2/models/late/infer", {"inputs": [X]}).status == 200


# ---------------------------------------------------------------- requests


def test_a_plain_request_and_its_answer(port: Port) -> None:
    answer = port.infer("iris", {"id": "a-1", "inputs": [X]})
    assert answer.json == {
        "model_name": "iris",
        "model_version": "1",
        "outputs": [
            {"name": "p", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 3.0, 5.0]},
            {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["r0"]},
        ],
        "id": "a-1",
    }
    assert answer.content_type == b"application/json"
    request = port.endpoints["iris"].request
    assert request.inputs["x"].shape == (1, 4)
    assert np.frombuffer(request.inputs["x"].data, "<f4").tolist() == [0.5, 1.5, 2.5, 3.5]
    assert (request.rows, request.lane, request.id, request.tenant) == (1, NORMAL, "a-1", "")
    assert (request.received_at, request.deadline) == (50.0, 80.0)
    assert request.size_bytes == len(json.dumps({"id": "a-1", "inputs": [X]}))
    assert (request.parameters, request.outputs, request.group) == (None, None, ())


def test_the_second_request_is_like_the_first(port: Port) -> None:
    """What was learned of a shape is used again, and only for that shape."""
    first = port.infer("iris", {"inputs": [X]}).json
    assert port.infer("iris", {"inputs": [X]}).json == first
    for entry, says in (
        ({**X, "name": "y"}, "unknown input 'y'"),
        ({**X, "datatype": "FP64"}, "input 'x': expected FP32, got FP64"),
        ({**X, "shape": [1, 5]}, "input 'x'"),
        ({**X, "shape": [4]}, "input 'x'"),
        ({**X, "data": [1, 2, 3]}, "input 'x'"),
        ({key: value for key, value in X.items() if key != "data"}, "input 'x': data is missing"),
        ({**X, "parameters": {"binary_data_size": 16}}, "no Inference-Header-Content-Length"),
        ({**X, "parameters": {"shared_memory_region": "r"}}, "shared memory is not supported"),
    ):
        answer = port.infer("iris", {"inputs": [entry]})
        assert answer.status == 400
        assert says in answer.error
    assert "sent twice" in port.infer("iris", {"inputs": [X, X]}).error
    assert "missing" in port.infer("iris", {"inputs": []}).error
    assert port.infer("iris", {"inputs": [{**X, "parameters": {"content_type": "np"}}]}).json == first


def test_ranges_are_checked_every_time() -> None:
    port = Port()
    port.add("m", {"x": "float32[n] min=0 max=1"}, {"y": "float32[n]"}, lambda inputs: {"y": inputs["x"]})
    good, bad = tensor("x", "FP32", [1], [0.5]), tensor("x", "FP32", [1], [1.5])
    for _ in range(3):
        assert port.infer("m", {"inputs": [good]}).status == 200
        assert "input 'x'" in port.infer("m", {"inputs": [bad]}).error


def test_several_inputs_in_any_order_with_defaults() -> None:
    port = Port()
    port.add(
        "m",
        {"a": "int64[n]", "b": "float64[n] default=0.25", "c": "str[n] optional"},
        {"y": "float64[n]"},
        lambda inputs: {"y": inputs["a"] + inputs["b"]},
    )
    a, b = tensor("a", "INT64", [2], [1, 2]), tensor("b", "FP64", [2], [10, 20])
    for _ in range(2):
        assert port.infer("m", {"inputs": [b, a]}).tensor("y")["data"] == [11.0, 22.0]
        assert list(port.endpoints["m"].request.inputs) == ["a", "b"]
        assert port.infer("m", {"inputs": [a]}).tensor("y")["data"] == [1.25, 2.25]
    mine = port.endpoints["m"].request.group
    port.infer("m", {"inputs": [a, tensor("c", "BYTES", [2], ["x", "y"])]})
    assert port.endpoints["m"].request.group != mine


@pytest.mark.parametrize(
    "shape",
    [
        [16, 1152921504606846978],
        [2, -5],
        [9223372036854775807, 9223372036854775807],
        [2**64, 4],
        [2**59, 4],
        [2**40, 4],
        [-1, -4],
        [1] * 40,
        [1] * 33,
        [0, 2**62],
        [],
        [5],
        [1, 4, 1],
        [2, 4],
        [0, 4],
    ],
)
@pytest.mark.parametrize("data", [[1.0], [1.0, 2.0, 3.0, 4.0], []])
def test_shapes_that_lie(port: Port, shape: list[int], data: list[float]) -> None:
    answer = port.infer("iris", {"inputs": [tensor("x", "FP32", shape, data)]})
    if shape == [0, 4] and not data:
        assert answer.status == 200
        return
    assert answer.status == 400, answer.body
    assert "'x'" in answer.error


@pytest.mark.parametrize("depth", [33, 101, 120, 900, 250_000])
def test_data_nested_without_end(port: Port, depth: int) -> None:
    nest = b"[" * depth + b"]" * depth
    v2 = json.dumps({"id": "a:", "inputs": [X]}).encode()
    for path, body in (
        ("/v2/models/iris/infer", v2.replace(b"[0.5, 1.5, 2.5, 3.5]", nest)),
        ("/v2/models/iris/infer", v2.replace(b'"a:"', b'"a:","parameters":{"k":' + nest + b"}")),
        ("/v2/models/iris/infer", v2.replace(b"[0.5, 1.5, 2.5, 3.5]", b'{"a":' * depth + b"1" + b"}" * depth)),
        ("/predict/iris", b'{"x":' + nest + b"}"),
        ("/predict/iris", b'[{"x":' + nest + b"}]"),
        ("/v1/models/iris:predict", b'{"instances":' + nest + b"}"),
        ("/v1/models/iris:predict", b'{"inputs":{"x":' + nest + b"}}"),
    ):
        answer = port.ask("POST", path, body)
        assert answer.status == 400
        assert any(word in answer.error for word in ("'x'", "deeper", "parameters.k", "instances"))
    assert port.infer("iris", {"inputs": [X]}).status == 200


def test_rows_may_be_none(port: Port) -> None:
    answer = port.infer("iris", {"inputs": [tensor("x", "FP32", [0, 4], [])]})
    assert answer.tensor("p") == {"name": "p", "datatype": "FP32", "shape": [0, 3], "data": []}
    assert answer.tensor("label")["data"] == []


def test_nested_and_flat_data_are_the_same(port: Port) -> None:
    flat = tensor("x", "FP32", [2, 4], [1, 2, 3, 4, 5, 6, 7, 8])
    assert port.infer("iris", {"inputs": [TWO]}).json == port.infer("iris", {"inputs": [flat]}).json
    assert port.infer("iris", {"inputs": [TWO]}).tensor("p")["shape"] == [2, 3]


def test_ids(port: Port) -> None:
    for id in ("", "a", 'é\n"\\', "x" * 4096, "\u2028", "😀"):
        assert port.infer("iris", {"id": id, "inputs": [X]}).json["id"] == id
        port.infer("iris", {"id": id, "inputs": [X], "outputs": [{"name": "p", "parameters": {"binary_data": True}}]})
    assert "id" not in port.infer("iris", {"inputs": [X]}).json
    assert "id" not in port.infer("iris", {"inputs": [X], "id": None}).json
    for id in (5, 1.5, True, [], {}, "x" * 4097, "a\0"):
        answer = port.infer("iris", {"id": id, "inputs": [X]})
        assert answer.status == 400
        assert answer.error.startswith("id")


def test_what_headers_and_parameters_say(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    heads = {"traceparent": trace, "X-Request-Id": "r-7", "Maitred-Timeout-Ms": "500"}
    port.infer("iris", {"inputs": [X]}, heads)
    request = endpoint.request
    assert (request.trace, request.id, request.deadline) == (trace, "r-7", 50.5)
    answer = port.infer("iris", {"id": "mine", "inputs": [X], "parameters": {"timeout": 100_000}}, heads)
    assert (endpoint.request.id, answer.json["id"], endpoint.request.deadline) == ("mine", "mine", 50.1)
    port.infer("iris", {"inputs": [X], "parameters": {"timeout": 900_000}}, heads)
    assert endpoint.request.deadline == 50.5
    assert "id" not in answer.headers


def test_labels_are_taken_along(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    name, label = {"X-Request-Id": "r-7"}, {"traceparent": trace}
    cases: list[tuple[dict[str, str], dict[str, str], tuple[str, str]]] = [
        ({}, {}, ("", "")), ({}, name, ("r-7", "")), ({"id": ""}, name, ("r-7", "")),
        ({"id": "mine"}, name, ("mine", "")),
        ({}, label, ("", trace)), ({}, name | label, ("r-7", trace)), ({"id": "mine"}, name | label, ("mine", trace)),
    ]  # fmt: skip
    for body, headers, wanted in cases:
        assert port.infer("iris", {**body, "inputs": [X]}, headers).status == 200
        assert (endpoint.request.id, endpoint.request.trace) == wanted


def test_lanes(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    for priority, lane, deadline in ((0, NORMAL, 80.0), (1, HIGH, 80.0), (2, NORMAL, 80.0), (9, BACKGROUND, FOREVER)):
        port.infer("iris", {"inputs": [X], "parameters": {"priority": priority}})
        assert (endpoint.request.lane, endpoint.request.deadline) == (lane, deadline)
    port.infer("iris", {"inputs": [X], "parameters": {"priority": 3, "timeout": 1_000_000}})
    assert (endpoint.request.lane, endpoint.request.deadline) == (BACKGROUND, 51.0)


def test_deadlines_of_single_models() -> None:
    port = Port(deadline_seconds=2.0, deadlines={"quick": 0.5})
    for name in ("quick", "slow"):
        port.add(name, {"x": "float32[n, 4]"}, {"y": "float32[n, 4]"}, lambda inputs: {"y": inputs["x"]})
        port.infer(name, {"inputs": [X]})
        port.ask("POST", f"/predict/{name}", {"x": [1, 2, 3, 4]})
    assert [port.endpoints[name].request.deadline for name in ("quick", "slow")] == [50.5, 52.0]


def test_custom_parameters_part_the_groups(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    groups = []
    for parameters in (
        None,
        {"k": 1},
        {"k": 1.0},
        {"k": True},
        {"k": "1"},
        {"k": 1, "timeout": 5000},
        {"timeout": 5000},
    ):
        port.infer("iris", {"inputs": [X], "parameters": parameters} if parameters else {"inputs": [X]})
        groups.append(endpoint.request.group)
    assert groups[1] == groups[5]
    assert groups[0] == groups[6] == ()
    assert len(set(groups)) == 5
    port.infer("iris", {"inputs": [X], "parameters": {"k": 1, "timeout": 5000, "binary_data_output": False}})
    assert endpoint.request.parameters == {"k": 1}


def test_models_with_parameters_by_row_share_batches() -> None:
    port = Port()
    endpoint = port.add("m", {"x": "float32[n, 4]"}, {"y": "float32[n, 4]"}, per_row_parameters=True)
    port.send("POST", "/v2/models/m/infer", {"inputs": [X], "parameters": {"k": 1}})
    assert (endpoint.request.group, endpoint.request.parameters) == ((), {"k": 1})


def test_models_that_are_not_row_wise_never_share() -> None:
    port = Port()
    endpoint = port.add("m", {"x": "float32[n]"}, {"y": "float32[m]"}, lambda inputs: {"y": inputs["x"][:1]})
    answer = port.infer("m", {"inputs": [tensor("x", "FP32", [3], [1, 2, 3])], "parameters": {"k": 1}})
    assert answer.tensor("y") == {"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}
    assert (endpoint.request.group, endpoint.request.rows) == (None, 1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "application/JSON; charset=UTF-8"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "application/vnd.bentoml+pickle"}, 415),
        ({"Content-Type": "application/octet-stream"}, 400),
    ],
)
@pytest.mark.parametrize("path", ["/v2/models/iris/infer", "/predict/iris", "/v1/models/iris:predict"])
def test_content_types(port: Port, headers: dict[str, str], status: int, path: str) -> None:
    row = [1, 2, 3, 4]
    body = {"/predict/iris": {"x": row}, "/v1/models/iris:predict": {"instances": [row]}}.get(path, {"inputs": [X]})
    answer = port.ask("POST", path, body, headers)
    assert (answer.status, answer.content_type) == (status, b"application/json")


def test_pickles_and_foreign_content_types_reach_nothing(port: Port) -> None:
    pickle = b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."
    for headers in ({}, {"Content-Type": "application/vnd.bentoml+pickle"}, {"Payload-Container": "pickle"}):
        assert 400 <= port.infer("iris", pickle, headers).status < 500
    assert port.infer("iris", {"inputs": [{**X, "parameters": {"content_type": "pickle"}}]}).status == 200
    assert len(port.endpoints["iris"].tickets) == 1


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", TABLE)
def test_every_error_has_its_status_and_code(port: Port, kind: type[MaitredError]) -> None:
    port.endpoints["iris"].refusal = kind("what happened")
    answer = port.infer("iris", {"inputs": [X]})
    assert (answer.status, answer.headers["maitred-error"]) == (kind.http_status, kind.code)
    assert answer.json == {"error": "what happened"}
    assert ("retry-after" in answer.headers) == (kind.http_status in (429, 503))


def test_when_to_come_back(port: Port) -> None:
    for seconds, whole, exact in (
        (0.0123, "1", "13"),
        (0.0, "1", "0"),
        (1.5, "2", "1500"),
        (1e12, "86400", "86400000"),
    ):
        port.endpoints["iris"].refusal = QueueFull("full", retry_after_seconds=seconds)
        answer = port.infer("iris", {"inputs": [X]})
        assert (answer.headers["retry-after"], answer.headers["maitred-retry-after-ms"]) == (whole, exact)
    port.endpoints["iris"].refusal = WouldBeLate("late")
    assert port.infer("iris", {"inputs": [X]}).headers["retry-after"] == "1"


def test_models_faults_tell_no_paths_and_no_traces(port: Port) -> None:
    for said, shown in (
        ("the model raised ValueError: no such file /srv/models/iris/w.npy", "ValueError: no such file w.npy"),
        ('boom\nTraceback (most recent call last):\n  File "/x/y.py"', "boom"),
        ("open('C:\\\\models\\\\a.bin') failed", "a.bin') failed"),
        ("see ~/secret/key.pem", "see key.pem"),
        ("3/4 of rows and km/h stay", "3/4 of rows and km/h stay"),
        ("x" * 5000, "x" * 900),
        ("bad \ud800 text", "bad"),
    ):
        port.endpoints["iris"].refusal = ModelFault(said)
        answer = port.infer("iris", {"inputs": [X]})
        assert shown in answer.error
        assert len(answer.error) <= 1000
        for hidden in ("/srv", "Traceback", "models\\", "secret", "/x/"):
            assert hidden not in answer.error


def test_defects_are_logged_and_not_told(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: Any) -> Any:
        raise RuntimeError("secret /srv/path")

    port.endpoints["iris"].submit = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, "maitred.gateway"):
        answer = port.infer("iris", {"inputs": [X]})
    assert (answer.status, answer.headers["maitred-error"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert "secret /srv/path" in caplog.text


def test_an_answer_that_cannot_be_written_is_a_defect_of_one(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    exchange = port.send("POST", "/v2/models/iris/infer", {"inputs": [X]})
    with caplog.at_level(logging.ERROR, "maitred.gateway"):
        assert endpoint.tickets[0].end(Result(Outputs({}, 1), 0, 1, True))
    assert Answer(exchange).status == 500
    assert "KeyError" in caplog.text


def test_refusals_are_told_to_the_listener(port: Port) -> None:
    port.ask("GET", "/v2/models/nope")
    port.infer("iris", b"{")
    port.ask("POST", "/predict/iris", b"[{}]")
    port.infer("iris", {"inputs": [X]})
    told = [(event.model, event.version, event.code) for event in port.events if isinstance(event, RequestEnded)]
    assert told == [("", "", "unknown"), ("iris", "1", "malformed"), ("iris", "1", "malformed")]


# ---------------------------------------------------------------- later answers


def test_an_answer_that_comes_later(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    exchange = port.send("POST", "/v2/models/iris/infer", {"id": "a", "inputs": [X]})
    assert exchange.answer is None
    batch = endpoint.outputs({"p": np.arange(9, dtype=np.float32).reshape(3, 3), "label": np.array(list("abc"))}, 3)
    endpoint.tickets[0].end(Result(batch, 1, 2, False, 0.0123))
    answer = Answer(exchange)
    assert answer.tensor("p")["data"] == [3.0, 4.0, 5.0]
    assert answer.tensor("label")["data"] == ["b"]
    assert answer.headers["server-timing"] == "queue;dur=12.30, batch;dur=0.500, model;dur=1.000"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0.00"), (0.00012, "0.12"), (0.0399, "39.90"), (0.25, "250.00"), (31.0, "31000.00")]
)
def test_server_timing(port: Port, seconds: float, shown: str) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    for path, body in (("/v2/models/iris/infer", {"inputs": [X]}), ("/predict/iris", {"x": [1, 2, 3, 4]})):
        exchange = port.send("POST", path, body)
        batch = endpoint.outputs({"p": np.zeros((1, 3), np.float32), "label": np.array(["a"])}, 1)
        endpoint.tickets[-1].end(Result(batch, 0, 1, True, seconds))
        timing = Answer(exchange).headers["server-timing"]
        assert timing == f"queue;dur={shown}, batch;dur=0.500, model;dur=1.000"


def test_a_batch_is_encoded_once_and_its_members_get_their_rows(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    rows = [1, 3, 0, 2, 1]
    exchanges = [
        port.send("POST", "/v2/models/iris/infer", {"id": str(i), "inputs": [tensor("x", "FP32", [n, 4], [i] * 4 * n)]})
        for i, n in enumerate(rows)
    ]
    total = sum(rows)
    p = np.arange(total * 3, dtype=np.float32).reshape(total, 3)
    batch = endpoint.outputs({"p": p, "label": np.array([f"l{i}" for i in range(total)])}, total)
    start = 0
    for ticket, n in zip(endpoint.tickets, rows, strict=True):
        ticket.end(Result(batch, start, start + n))
        start += n
    start = 0
    for i, (exchange, n) in enumerate(zip(exchanges, rows, strict=True)):
        answer = Answer(exchange)
        assert answer.json["id"] == str(i)
        assert answer.tensor("p")["shape"] == [n, 3]
        assert answer.tensor("p")["data"] == p[start : start + n].reshape(-1).tolist()
        assert answer.tensor("label")["data"] == [f"l{row}" for row in range(start, start + n)]
        start += n


def test_one_row_that_json_cannot_show_fails_alone() -> None:
    port = Port()
    endpoint = port.add("m", {"x": "float32[n]"}, {"y": "float32[n, 2]"})
    bodies = [{"inputs": [tensor("x", "FP32", [n], [0] * n)]} for n in (1, 1, 2, 2)]
    exchanges = [port.send("POST", "/v2/models/m/infer", body) for body in bodies]
    y = np.array([[1, 2], [np.nan, 2], [3, 4], [5, 6], [7, np.inf], [8, 9]], np.float32)
    batch = endpoint.outputs({"y": y}, 6)
    for ticket, (start, stop) in zip(endpoint.tickets, ((0, 1), (1, 2), (2, 4), (4, 6)), strict=True):
        ticket.end(Result(batch, start, stop))
    answers = [Answer(exchange) for exchange in exchanges]
    assert [answer.status for answer in answers] == [200, 500, 200, 500]
    assert answers[2].tensor("y")["data"] == [3.0, 4.0, 5.0, 6.0]
    assert "'y'" in answers[1].error
    assert "binary" in answers[1].error


@pytest.mark.parametrize(("policy", "data"), [("null", [None, None, 1.5]), ("string", ["NaN", "-Infinity", 1.5])])
def test_policies_for_what_json_cannot_show(policy: str, data: list[Any]) -> None:
    port = Port()
    y = np.array([np.nan, -np.inf, 1.5], np.float32)
    port.add("m", {"x": "float32[n]"}, {"y": f"float32[n] nan={policy}"}, lambda inputs: {"y": y})
    assert port.infer("m", {"inputs": [tensor("x", "FP32", [3], [0, 0, 0])]}).tensor("y")["data"] == data


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/iris/infer", {"inputs": [X]}),
        ("/v1/models/iris:predict", {"instances": [[1, 2, 3, 4]]}),
        ("/predict/iris", {"x": [1, 2, 3, 4]}),
    ],
)
def test_who_hangs_up_is_cancelled_and_never_answered(port: Port, path: str, body: Any) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    exchange = port.send("POST", path, body)
    ticket = endpoint.tickets[-1]
    exchange.gone.gone()
    assert ticket.ended
    assert isinstance(ticket.error, Cancelled)
    assert endpoint.cancels == [ticket]
    exchange.gone.gone()
    assert endpoint.cancels == [ticket]
    batch = endpoint.outputs({"p": np.zeros((1, 3), np.float32), "label": np.array(["a"])}, 1)
    assert not ticket.end(Result(batch, 0, 1, True))
    assert exchange.answer is None


def test_a_request_that_the_server_cancels_is_answered(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    exchange = port.send("POST", "/v2/models/iris/infer", {"inputs": [X]})
    endpoint.tickets[-1].cancel()
    assert Answer(exchange).status == 499


def test_a_hang_up_after_the_answer_means_nothing(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    exchange = port.send("POST", "/v2/models/iris/infer", {"inputs": [X]})
    batch = endpoint.outputs({"p": np.zeros((1, 3), np.float32), "label": np.array(["a"])}, 1)
    endpoint.tickets[-1].end(Result(batch, 0, 1, True))
    exchange.gone.gone()
    assert endpoint.cancels == []
    assert Answer(exchange).status == 200


def test_outputs_that_are_views_are_encoded_before_they_die(port: Port) -> None:
    endpoint = port.endpoints["iris"]
    endpoint.function = None
    memory = bytearray(12)
    exchange = port.send("POST", "/v2/models/iris/infer", {"inputs": [X], "outputs": [{"name": "p"}]})
    binary = {"inputs": [X], "outputs": [{"name": "p", "parameters": {"binary_data": True}}]}
    other = port.send("POST", "/v2/models/iris/infer", binary)
    memory[:] = np.array([1, 2, 3], "<f4").tobytes()
    batch = Outputs({"p": Tensor("float32", (1, 3), memoryview(memory))}, 1)
    for ticket in endpoint.tickets:
        ticket.end(Result(batch, 0, 1, True))
    memory[:] = bytes(12)
    assert Answer(exchange).tensor("p")["data"] == [1.0, 2.0, 3.0]
    assert Answer(other).body.endswith(np.array([1, 2, 3], "<f4").tobytes())


def test_all_spellings_of_a_path_lead_to_one_reader(port: Port) -> None:
    for path in (
        "/v2/models/iris/infer",
        "/v2/models/%69ris/infer",
        "/v2/models/iris/infer/",
        "/v2/%6Dodels/iris/infer",
    ):
        assert port.ask("POST", path, {"inputs": [X]}).status == 200
        assert port.ask("POST", path.replace("iris/", "iris/versions/1/"), {"inputs": [X]}).status == 200
    handlers = {route["POST"].__self__ for route in port.rest._routes.values()}  # type: ignore[attr-defined]
    assert len(handlers) == 1
    assert len(port.rest._routes) == 7


def test_shapes_that_callers_make_up_take_bounded_memory() -> None:
    port = Port()
    port.add("mat", {"x": "float32[n, k]"}, {"y": "float32[n]"}, lambda inputs: {"y": inputs["x"].sum(axis=1)})
    for width in range(MAX_SHAPES + 100):
        assert port.infer("mat", {"inputs": [tensor("x", "FP32", [0, width], [])]}).status == 200
    [route] = port.rest._routes.values()
    infer = route["POST"].__self__  # type: ignore[attr-defined]
    assert len(infer._known) <= MAX_SHAPES and len(infer._shapes) <= MAX_SHAPES


def test_methods_that_a_route_does_not_take_are_told_of(port: Port) -> None:
    assert port.ask("PUT", "/v2/models/iris/infer").status == 405
    assert [event for event in port.events if isinstance(event, RequestEnded)] == [
        RequestEnded("", "", METHOD_NOT_ALLOWED, 0.0)
    ]
