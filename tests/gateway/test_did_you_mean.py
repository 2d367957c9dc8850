"""Wrong names on every route: the refusal ends with the name that was meant, and stays short."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from gates import Port, tensor

from maitred.gateway.answers import MAX_MESSAGE

INPUTS = {"height": "float32[n]", "weight": "float32[n]"}
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture
def port() -> Port:
    port = Port()
    port.add("people", INPUTS, {"score": "float32[n]"}, lambda inputs: {"score": inputs["height"]})
    return port


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/people/infer", {"inputs": [tensor("hieght", "FP32", [1], [1.0])]}),
        ("/v1/models/people:predict", {"instances": [{"hieght": 1.0}]}),
        ("/v1/models/people:predict", {"inputs": {"hieght": [1.0]}}),
        ("/predict/people", {"hieght": 1.0}),
        ("/predict/people", [{"hieght": 1.0}]),
        ("/predict/people", {"columns": {"hieght": [1.0]}}),
    ],
)
def test_an_input(port: Port, path: str, body: Any) -> None:
    answer = port.ask("POST", path, body)
    assert answer.status == 400
    assert answer.error == "unknown input 'hieght': this model takes 'height', 'weight'; did you mean 'height'?"


def test_an_input_in_binary(port: Port) -> None:
    head = b'{"inputs":[{"name":"hieght","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'
    answer = port.infer("people", head + struct.pack("<f", 1.0), {LENGTH: str(len(head))})
    assert answer.error.endswith("; did you mean 'height'?")


def test_an_output(port: Port) -> None:
    inputs = [tensor(name, "FP32", [1], [1.0]) for name in INPUTS]
    answer = port.infer("people", {"inputs": inputs, "outputs": [{"name": "scores"}]})
    assert answer.status == 400
    assert answer.error == "unknown output 'scores': this model gives 'score'; did you mean 'score'?"


@pytest.mark.parametrize("path", ["/v2/models/poeple/infer", "/v1/models/poeple:predict", "/predict/poeple"])
def test_a_model(port: Port, path: str) -> None:
    answer = port.ask("POST", path, {})
    assert answer.status == 404
    assert answer.error.endswith("; did you mean 'people'?")


def test_what_is_not_close_is_not_guessed(port: Port) -> None:
    assert "did you mean" not in port.ask("POST", "/predict/zebra", {}).error
    assert "did you mean" not in port.ask("POST", "/predict/people", {"zebra": 1}).error


def test_the_guess_has_room_where_there_are_many_inputs() -> None:
    port = Port()
    port.add("wide", {f"feature_number_{at:03}": "float32[n]" for at in range(42)}, {"y": "float32[n]"})
    answer = port.ask("POST", "/predict/wide", {"feature_numbr_007": 1})
    assert answer.error.endswith(", ...; did you mean 'feature_number_007'?")
    assert len(answer.error) < MAX_MESSAGE
