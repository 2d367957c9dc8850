"""Broken bodies by the thousand: every one is answered with 200 or 4xx, and the next good one works."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from gates import Answer, Port

ROUNDS = 20_000

_TOKENS = [
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"\\",
    b"null",
    b"true",
    b"false",
    b"NaN",
    b"-",
    b"1e400",
    b"1e-400",
    b"0.5",
    b"9" * 30,
    b"-9223372036854775809",
    b'""',
    b'"x"',
    b'"\\ud800"',
    b'"\\u0000"',
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b" " * 50,
    b"[[[[",
    b"[" * 200,
    b'{"a":' * 150,
    b'"shape":[',
    b'"data":',
    b'"name":"x",',
    b'"id":"a",',
    b'"parameters":{"a":1},',
    b'"binary_data_size":8',
    b'"classification":2',
    b'"priority":1',
    b'"timeout":0',
    b'"outputs":[{"name":"y"}],',
]


def port() -> Port:
    made = Port()
    made.add(
        "m",
        {"x": "float32[n, 2] min=-1000", "i": "int64[n] default=0", "s": "str[n] optional", "b": "bytes[n] optional"},
        {"y": "float32[n, 2] nan=null", "z": 'float64[n, 3] labels=["a","b","c"] nan=string'},
        lambda inputs: {"y": inputs["x"], "z": np.repeat(inputs["i"].astype(np.float64), 3).reshape(-1, 3)},
    )
    made.add("one", {"x": "float32[n, 4]"}, {"y": "float32[n, 4] nan=null"}, lambda inputs: {"y": inputs["x"]})
    made.add("free", {"k": "int16[a, b]"}, {"y": "int16[b]"}, lambda inputs: {"y": inputs["k"].sum(0, np.int16)})
    return made


def json_seeds() -> list[tuple[str, bytes]]:
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, -3, 0.1]}
    i = {"name": "i", "datatype": "INT64", "shape": [2], "data": [1, 9007199254740993]}
    s = {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a:b", "\u00e9"]}
    one = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}
    free = {"name": "k", "datatype": "INT16", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    outputs = [{"name": "z", "parameters": {"classification": 2}}, {"name": "y", "parameters": {"binary_data": True}}]
    parameters = {"timeout": 100000, "priority": 1, "k": "v"}
    bodies = [
        ("/v2/models/m/infer", {"id": "a", "inputs": [x, i, s], "parameters": parameters, "outputs": outputs}),
        ("/v2/models/m/infer", {"inputs": [x]}),
        ("/v2/models/one/infer", {"id": "r-1", "inputs": [one]}),
        ("/v2/models/free/infer", {"inputs": [free]}),
        ("/v1/models/one:predict", {"instances": [[1, 2, 3, 4], [5, 6, 7, 8]]}),
        ("/v1/models/m:predict", {"instances": [{"x": [1, 2], "i": 3}, {"x": [1, 2]}]}),
        ("/v1/models/m:predict", {"inputs": {"x": [[1, 2]], "i": [3]}}),
        ("/predict/m", {"x": [1, 2], "i": 5}),
        ("/predict/m", [{"x": [1, 2]}, {"x": [3, 4]}]),
        ("/predict/one", {"columns": {"x": [[1, 2, 3, 4]]}}),
        ("/v2/repository/index", {"ready": True}),
    ]
    return [(path, json.dumps(body).encode()) for path, body in bodies]


def binary_seeds() -> list[tuple[str, bytes, int]]:
    raw = np.arange(4, dtype="<f4").tobytes() + b"\x01\0\0\0a\x02\0\0\0\xff\0"
    head = {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}},
            {"name": "b", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw) - 16}},
            {"name": "i", "datatype": "INT64", "shape": [2], "data": [1, 2]},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}],
    }
    one = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]}
    seeds = [("/v2/models/m/infer", head, raw), ("/v2/models/one/infer", one, bytes(16))]
    return [(path, json.dumps(text).encode() + tail, len(json.dumps(text))) for path, text, tail in seeds]


def broken(body: bytes, chance: random.Random) -> bytes:
    """`body` with one to four small damages."""
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        until = min(len(changed), at + chance.choice((1, 1, 2, 8, 40)))
        match chance.randrange(7):
            case 0:
                changed[at:until] = b""
            case 1:
                changed[at:at] = chance.choice(_TOKENS)
            case 2:
                changed[at:until] = chance.choice(_TOKENS)
            case 3:
                changed[at:at] = changed[at:until]
            case 4:
                changed[at:until] = chance.randbytes(until - at)
            case 5:
                del changed[at:]
            case _:
                other = chance.randrange(len(changed) + 1)
                changed[at:until] = changed[other : other + until - at]
    return bytes(changed)


def holds(made: Port, answer: Answer) -> int:
    assert answer.status == 200 or 400 <= answer.status < 500, (answer.status, answer.body)
    if answer.status != 200:
        assert answer.content_type == b"application/json"
        assert set(answer.json) == {"error"}
        assert answer.error.isprintable()
        assert len(answer.error) <= 1000
    return answer.status


def hunt(seed: int, draw: Callable[[random.Random], tuple[str, bytes, dict[str, str]]]) -> dict[int, int]:
    chance, made = random.Random(seed), port()
    seen: dict[int, int] = {}
    for round in range(ROUNDS // 4):
        path, body, headers = draw(chance)
        status = holds(made, made.ask("POST", path, body, headers))
        seen[status] = seen.get(status, 0) + 1
        if round % 50 == 0:
            good = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, round]}]}
            assert made.infer("one", good).tensor("y")["data"] == [1, 2, 3, round]
    return seen


@pytest.mark.parametrize("seed", [1, 2])
def test_json(seed: int) -> None:
    seeds = json_seeds()

    def draw(chance: random.Random) -> tuple[str, bytes, dict[str, str]]:
        path, body = chance.choice(seeds)
        return path, broken(body, chance), {}

    seen = hunt(seed, draw)
    assert seen[200] > 100, "some damages are harmless; else the seeds are not near valid bodies"
    assert seen[400] > 1000


@pytest.mark.parametrize("seed", [3, 4])
def test_binary(seed: int) -> None:
    seeds = binary_seeds()

    def draw(chance: random.Random) -> tuple[str, bytes, dict[str, str]]:
        path, body, length = chance.choice(seeds)
        said = str(length)
        if chance.random() < 0.3:
            said = chance.choice(
                (str(length + chance.randint(-5, 5)), "0", "-1", "", "abc", str(len(body)), "9" * 25, "1e2")
            )
        if chance.random() < 0.3:
            return path, body[:length] + broken(body[length:], chance), {"Inference-Header-Content-Length": said}
        return path, broken(body, chance), {"Inference-Header-Content-Length": said}

    seen = hunt(seed, draw)
    assert seen[200] > 100
    assert seen[400] > 1000


def test_seeds_are_valid() -> None:
    made = port()
    for path, body in json_seeds():
        assert made.ask("POST", path, body).status == 200, path
    for path, body, length in binary_seeds():
        answer = made.ask("POST", path, body, {"Inference-Header-Content-Length": str(length)})
        assert answer.status == 200, answer.body


def test_paths_and_headers() -> None:
    chance, made = random.Random(5), port()
    paths = [path.encode() for path, _ in json_seeds()] + [b"/v2", b"/v2/models/m/versions/1/ready", b"/v2/health/live"]
    names = ["Content-Type", "Maitred-Timeout-Ms", "Inference-Header-Content-Length", "traceparent", "X-Request-Id"]
    values = [
        "application/json",
        "1000",
        "5",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "text/plain",
        "\xff",
        "",
        "-1",
    ]
    for _ in range(ROUNDS // 10):
        path = broken(chance.choice(paths), chance)
        headers = {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(3))}
        holds(made, made.ask(chance.choice(("GET", "POST", "PUT", "HEAD")), path, b"{}", headers))
