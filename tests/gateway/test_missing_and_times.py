"""Missing elements, times, categories and columns of one over V2, V1 and the plain route."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from gates import Port, tensor

from maitred.gateway.openapi import openapi
from maitred.wire.missing import NAT, companion

KINDS = {
    "i": "int64[n] nullable",
    "b": "bool[n, 2] nullable",
    "s": "str[n] nullable",
    "t": 'int64[n] time="ms" zone="UTC" nullable',
    "f": "float32[n] nullable",
}
BACK = {**KINDS, "f": "float32[n] nan=null"}
V2_INPUTS = [
    tensor("i", "INT64", [3], [2**63 - 1, None, 0]),
    tensor("b", "BOOL", [3, 2], [True, None, False, False, None, None]),
    tensor("s", "BYTES", [3], ["a\0", None, ""]),
    tensor("t", "BYTES", [3], ["2026-01-01T01:00:00+01:00", None, "1970-01-01T00:00:00.001Z"]),
    tensor("f", "FP32", [3], [0.5, None, 1]),
]
ROWS = [
    {"i": 2**63 - 1, "b": [True, None], "s": "a\0", "t": "2026-01-01T00:00:00.000Z", "f": 0.5},
    {"i": None, "b": [False, False], "s": None, "t": None, "f": None},
    {"i": 0, "b": [None, None], "s": "", "t": "1970-01-01T00:00:00.001Z", "f": 1.0},
]
COUNTS = [1_767_225_600_000, None, 1]


def echo(inputs: dict[str, Any]) -> dict[str, Any]:
    return dict(inputs)


@pytest.fixture
def port() -> Port:
    port = Port()
    port.add("every", KINDS, BACK, echo)
    port.add("one", {"x": "int64[n]"}, {"x": "int64[n]"}, echo)
    port.add("time", {"t": 'int64[n] time="s"'}, {"t": 'int64[n] time="s"'}, echo)
    port.add("lone", {"x": "int64[n] nullable"}, {"x": "int64[n] nullable"}, echo)
    port.add("scalar", {"x": "int64[] nullable"}, {"x": "int64[] nullable"}, echo)
    return port


def data(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {output["name"]: output["data"] for output in answer.json["outputs"]}


def test_null_there_and_back_over_v2(port: Port) -> None:
    found = data(port.infer("every", {"inputs": V2_INPUTS}))
    assert found == {
        "i": [2**63 - 1, None, 0],
        "b": [True, None, False, False, None, None],
        "s": ["a\0", None, ""],
        "t": COUNTS,
        "f": [0.5, None, 1.0],
    }


def test_null_there_and_back_on_the_plain_route_and_v1(port: Port) -> None:
    assert port.ask("POST", "/predict/every", ROWS).json == ROWS
    assert [port.ask("POST", "/predict/every", row).json for row in ROWS] == ROWS
    columns = {name: [row[name] for row in ROWS] for name in KINDS}
    assert port.ask("POST", "/predict/every", {"columns": columns}).json == {"columns": columns}
    assert port.ask("POST", "/v1/models/every:predict", {"instances": ROWS}).json == {"predictions": ROWS}
    assert port.ask("POST", "/v1/models/every:predict", {"inputs": columns}).json == {"predictions": columns}


def test_a_single_nullable_input_is_read_alike_each_time(port: Port) -> None:
    for _ in range(3):
        assert data(port.infer("lone", {"inputs": [tensor("x", "INT64", [2], [1, None])]})) == {"x": [1, None]}
        assert data(port.infer("lone", {"inputs": [tensor("x", "INT64", [2], [1, 2])]})) == {"x": [1, 2]}


def test_a_scalar_may_be_missing(port: Port) -> None:
    for value in (5, None):
        assert data(port.infer("scalar", {"inputs": [tensor("x", "INT64", [], value)]})) == {"x": [value]}
        assert port.ask("POST", "/predict/scalar", {"x": value}).json == {"x": value}


def test_a_neighbour_s_missing_elements_are_its_own(port: Port) -> None:
    """Rows of a batch are written once for all its members."""
    endpoint = port.endpoints["lone"]
    endpoint.function = None
    exchanges = [
        port.send("POST", "/v2/models/lone/infer", {"inputs": [tensor("x", "INT64", [1], [value])]})
        for value in (7, None, 9)
    ]
    outputs = endpoint.outputs({"x": np.array([7, 0, 9]), companion("x"): np.array([True, False, True])}, 3)
    from maitred.messages import Result

    for at, ticket in enumerate(endpoint.tickets):
        ticket.end(Result(outputs, at, at + 1))
    bodies = [json.loads(exchange.answer[1]) for exchange in exchanges if exchange.answer is not None]
    assert [body["outputs"][0]["data"] for body in bodies] == [[7], [None], [9]]


# --- binary tensors ---------------------------------------------------------------------------------------------


def binary(port: Port, name: str, entries: list[tuple[str, str, list[int], bytes]], **parameters: Any) -> Any:
    inputs = [
        {"name": n, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(blob)}}
        for n, datatype, shape, blob in entries
    ]
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return port.infer(name, head + b"".join(entry[3] for entry in entries), headers)


def test_a_binary_tensor_is_all_there(port: Port) -> None:
    blob = struct.pack("<2q", 0, -5)
    assert data(binary(port, "lone", [("x", "INT64", [2], blob)])) == {"x": [0, -5]}
    raw = binary(port, "lone", [("x", "INT64", [2], blob)], binary_data_output=True)
    assert raw.status == 200 and raw.body.endswith(blob)


def test_missing_elements_are_refused_as_binary_data_with_advice(port: Port) -> None:
    body = {"inputs": V2_INPUTS, "outputs": [{"name": "i", "parameters": {"binary_data": True}}]}
    answer = port.infer("every", body)
    assert answer.status == 400
    assert answer.error == (
        "output 'i' has missing elements, which binary data cannot show: ask for it as JSON (binary_data: false)"
    )
    body["outputs"] = [{"name": "t", "parameters": {"binary_data": True}}]
    answer = port.infer("every", body)
    assert answer.status == 200 and answer.body.endswith(struct.pack("<3q", 1_767_225_600_000, NAT, 1)), (
        "NaT is a count"
    )


def test_times_as_binary_counts_and_texts(port: Port) -> None:
    counts = struct.pack("<2q", 0, 86_400)
    assert data(binary(port, "time", [("t", "INT64", [2], counts)])) == {"t": [0, 86_400]}
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (b"1970-01-01", b"1970-01-02T00:00:00"))
    assert data(binary(port, "time", [("t", "BYTES", [2], texts)])) == {"t": [0, 86_400]}
    wrong = struct.pack("<I", 4) + b"soon"
    answer = binary(port, "time", [("t", "BYTES", [1], wrong)])
    assert (answer.status, answer.error) == (
        400, "input 't': the value at data[0] is no ISO 8601 time, such as 2026-01-31T12:00:00Z",
    )  # fmt: skip
    answer = binary(port, "time", [("t", "INT64", [2], struct.pack("<2q", 0, NAT))])
    assert (answer.status, answer.error) == (400, "input 't': the missing value at data[1] is not allowed")


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "entry", "why"),
    [
        ("one", tensor("x", "INT64", [2], [1, None]), "input 'x': null at data[1] is not allowed for INT64"),
        ("time", tensor("t", "INT64", [1], [None]), "input 't': null at data[0] is not allowed for INT64"),
        ("time", tensor("t", "BYTES", [1], ["2026-01-01T00:00:00Z"]), "data[0] says a zone"),
        ("time", tensor("t", "INT64", [1], [1.5]), "input 't': expected times, as ISO 8601 text or whole numbers"),
        ("time", tensor("t", "INT64", [1], [2**63]), "does not fit INT64"),
        ("time", tensor("t", "INT64", [1], [NAT]), "the missing value at data[0] is not allowed"),
        ("time", tensor("t", "FP64", [1], [1]), "input 't': expected INT64, got FP64"),
        ("one", tensor("x", "BYTES", [1], ["1"]), "input 'x': expected INT64, got BYTES"),
        ("one", tensor("x", "INT64", [2, 2], [1, 2, 3, 4]), "input 'x': expected shape [n], got [2, 2]"),
    ],
)
def test_what_does_not_fit_is_a_400(port: Port, name: str, entry: dict[str, Any], why: str) -> None:
    for _ in range(2):
        answer = port.infer(name, {"inputs": [entry]})
        assert answer.status == 400 and why in answer.error
    assert data(port.infer("one", {"inputs": [tensor("x", "INT64", [1], [1])]})) == {"x": [1]}


def test_the_name_of_what_is_there_is_no_name_for_callers(port: Port) -> None:
    entries = [tensor("x", "INT64", [1], [1]), tensor(companion("x"), "BOOL", [1], [False])]
    answer = port.infer("lone", {"inputs": entries})
    assert answer.status == 400 and "unknown input 'x\\x00valid'" in answer.error
    body = {"inputs": entries[:1], "outputs": [{"name": companion("x")}]}
    assert port.infer("lone", body).status == 400


def test_a_time_that_has_no_text_is_said_to_have_none(port: Port) -> None:
    body = {"inputs": [tensor("t", "INT64", [2], [0, 2**62])]}
    assert data(port.infer("time", body)) == {"t": [0, 2**62]}
    answer = port.ask("POST", "/predict/time", [{"t": 0}, {"t": 2**62}])
    assert answer.status == 500 and "after 9999" in answer.error


@pytest.mark.parametrize("wanted", ["i", "t"])
def test_missing_elements_and_times_have_no_classes(port: Port, wanted: str) -> None:
    body = {"inputs": V2_INPUTS, "outputs": [{"name": wanted, "parameters": {"classification": 1}}]}
    answer = port.infer("every", body)
    assert answer.status == 400 and "classification is not for times" in answer.error


# --- columns of one ---------------------------------------------------------------------------------------------


def test_columns_of_one_are_taken_on_every_route(port: Port) -> None:
    body = {"inputs": [tensor("x", "INT64", [3, 1], [1, 2, 3])]}
    for _ in range(3):  # the second time they are read on the short way
        answer = port.infer("one", body)
        assert answer.tensor("x") == tensor("x", "INT64", [3], [1, 2, 3])
    assert port.endpoints["one"].request.inputs["x"].shape == (3,)
    nested = {"inputs": [tensor("x", "INT64", [3, 1], [[1], [2], [3]])]}
    assert port.infer("one", nested).tensor("x")["shape"] == [3]
    assert data(binary(port, "one", [("x", "INT64", [2, 1], struct.pack("<2q", 4, 5))])) == {"x": [4, 5]}
    assert port.ask("POST", "/predict/one", {"columns": {"x": [[1], [2]]}}).json == {"columns": {"x": [1, 2]}}
    assert port.ask("POST", "/v1/models/one:predict", {"inputs": [[1], [2]]}).json == {"predictions": [1, 2]}
    lone = {"inputs": [tensor("x", "INT64", [2, 1], [1, None])]}
    assert port.infer("lone", lone).tensor("x") == tensor("x", "INT64", [2], [1, None])


def test_flat_columns_are_taken_for_columns_of_one(port: Port) -> None:
    port.add("wide", {"x": "int64[n, 1]"}, {"x": "int64[n, 1]"}, echo)
    for _ in range(3):
        answer = port.infer("wide", {"inputs": [tensor("x", "INT64", [2], [1, 2])]})
        assert answer.tensor("x") == tensor("x", "INT64", [2, 1], [1, 2])


# --- what is told of it -----------------------------------------------------------------------------------------


def test_metadata_tell_what_elements_may_be(port: Port) -> None:
    many = json.dumps([f"c{number}" for number in range(500)])
    port.add("told", {"c": f"str[n] categories={many}", "d": "int64[n] categories=[3, 1]"}, {"y": "float32[n]"}, echo)
    inputs = port.ask("GET", "/v2/models/every").json["inputs"]
    meant = {entry["name"]: entry["parameters"] for entry in inputs}
    assert meant["i"] == {"notation": "int64[n] nullable", "nullable": True}
    assert meant["t"] == {
        "notation": 'int64[n] nullable time="ms" zone="UTC"', "time": "ms", "zone": "UTC", "nullable": True,
    }  # fmt: skip
    told = {entry["name"]: entry["parameters"] for entry in port.ask("GET", "/v2/models/told").json["inputs"]}
    assert told["d"] == {"notation": "int64[n] categories=[3, 1]", "categories": [3, 1], "categories_count": 2}
    assert (told["c"]["notation"], told["c"]["categories_count"]) == ("str[n]", 500)
    assert told["c"]["categories"] == [f"c{number}" for number in range(100)]


def test_openapi_tells_what_elements_may_be(port: Port) -> None:
    port.add("told", {"c": 'str[n] categories=["de", "se"]'}, {"y": "float32[n]"}, echo)
    schemas = openapi(port.router.all())["components"]["schemas"]
    row = schemas["every.Row"]["properties"]
    assert row["i"]["anyOf"][1:] == [{"type": "null"}]
    assert row["s"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert row["b"]["items"]["anyOf"] == [{"type": "boolean"}, {"type": "null"}]
    assert row["t"]["anyOf"][1:] == [{"type": "string", "format": "date-time"}, {"type": "null"}]
    request = schemas["every.InferRequest"]["properties"]["inputs"]["items"]["oneOf"]
    assert [entry["properties"]["datatype"] for entry in request][3] == {"enum": ["INT64", "BYTES"]}
    assert schemas["told.Row"]["properties"]["c"]["examples"] == ["de", "se"]
    assert schemas["time.Row"]["properties"]["t"]["anyOf"][1] == {"type": "string"}
