"""What NVIDIA's client sends and reads, without a network between: its own encoder and decoder against our routes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gates import Answer, Port

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput


@pytest.fixture
def port() -> Port:
    port = Port()
    port.add(
        "echo",
        {"f": "float32[n, k]", "s": "bytes[n]", "i": "int64[n] optional"},
        {"f": 'float32[n, k] labels=["a","b"]', "s": "bytes[n]"},
        lambda inputs: {"f": inputs["f"], "s": inputs["s"]},
    )
    port.add("half", {"h": "float16[n]"}, {"h": "float16[n]"}, lambda inputs: {"h": inputs["h"]})
    return port


F = np.array([[1.5, -2.25], [0.1, 1e-30], [3, 4]], np.float32)
S = np.array([b"\x00\x00", b"a\x00", b""], object)


def inputs(binary: bool) -> list[Any]:
    f = InferInput("f", list(F.shape), "FP32")
    f.set_data_from_numpy(F, binary_data=binary)
    s = InferInput("s", [3], "BYTES")
    s.set_data_from_numpy(S if binary else np.array([b"x", b"y:z", b""], object), binary_data=binary)
    return [f, s]


def ask(port: Port, name: str, body: bytes, json_size: int | None) -> Any:
    headers = {}
    if json_size is not None:
        headers = {"Inference-Header-Content-Length": str(json_size), "Content-Type": "application/octet-stream"}
    answer: Answer = port.infer(name, bytes(body), headers)
    assert answer.status == 200, answer.body
    length = answer.headers.get("inference-header-content-length")
    return InferenceServerClient.parse_response_body(answer.body, header_length=int(length) if length else None)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("named", [None, True, False])
def test_round_trip(port: Port, binary: bool, named: bool | None) -> None:
    outputs = None if named is None else [InferRequestedOutput(name, binary_data=named) for name in ("s", "f")]
    if named is False and binary:
        outputs = outputs[1:] if outputs else None  # those bytes are no text, so JSON cannot show them
    body, size = InferenceServerClient.generate_request_body(inputs(binary), outputs=outputs, request_id="q 1")
    result = ask(port, "echo", body, size)
    assert result.as_numpy("f").tobytes() == F.tobytes()
    assert result.get_response()["id"] == "q 1"
    assert result.get_response()["model_name"] == "echo"
    if outputs is None or len(outputs) == 2:
        given = list(result.as_numpy("s"))
        assert given == (list(S) if binary else [b"x", b"y:z", b""] if named is not False else ["x", "y:z", ""])
    if outputs is not None:
        names = [entry["name"] for entry in result.get_response()["outputs"]]
        assert names == [output.name() for output in outputs]


def test_priority_timeout_and_parameters(port: Port) -> None:
    body, size = InferenceServerClient.generate_request_body(
        inputs(True), priority=1, timeout=250_000, parameters={"temperature": 0.5}
    )
    ask(port, "echo", body, size)
    request = port.endpoints["echo"].request
    assert (request.lane, request.deadline, request.parameters) == (0, 50.25, {"temperature": 0.5})


def test_sequences_are_refused(port: Port) -> None:
    body, size = InferenceServerClient.generate_request_body(inputs(True), sequence_id=5, sequence_start=True)
    answer = port.infer("echo", bytes(body), {"Inference-Header-Content-Length": str(size)})
    assert answer.status == 400
    assert "sequence" in answer.error


def test_classes(port: Port) -> None:
    body, size = InferenceServerClient.generate_request_body(
        inputs(True), outputs=[InferRequestedOutput("f", class_count=1)]
    )
    assert list(ask(port, "echo", body, size).as_numpy("f").reshape(-1)) == [b"1.5:0:a", b"0.1:0:a", b"4.0:1:b"]


def test_halves(port: Port) -> None:
    h = np.array([65504, 6e-8, -0.0], np.float16)
    entry = InferInput("h", [3], "FP16")
    entry.set_data_from_numpy(h)
    body, size = InferenceServerClient.generate_request_body([entry])
    assert ask(port, "half", body, size).as_numpy("h").tobytes() == h.tobytes()


@pytest.mark.parametrize("array", [np.array([1, 2], ">f4"), F.T, F[::2], F[::-1]])
def test_arrays_of_any_layout(port: Port, array: Any) -> None:
    array = array.reshape(-1, 1) if array.ndim == 1 else array
    f = InferInput("f", list(array.shape), "FP32")
    f.set_data_from_numpy(array.astype(np.float32))
    s = InferInput("s", [len(array)], "BYTES")
    s.set_data_from_numpy(np.array([b"x"] * len(array), object))
    body, size = InferenceServerClient.generate_request_body([f, s])
    assert np.array_equal(ask(port, "echo", body, size).as_numpy("f"), array)
