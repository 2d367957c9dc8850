"""What is cheap to see is refused first: no body makes the gateway read far more than it would have to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gates import Port, tensor

from maitred.gateway import rest, rows
from maitred.wire.json import MAX_KEYS


@pytest.fixture
def port() -> Port:
    port = Port()
    port.add(
        "three",
        {"a": "int64[n]", "b": "int64[n]", "c": "int64[n] default=1"},
        {"sum": "int64[n]"},
        lambda inputs: {"sum": inputs["a"] + inputs["b"] + inputs["c"]},
    )
    names = [f"x{at}" for at in range(64)]
    port.add(
        "wide",
        dict.fromkeys(names, "int64[n] default=0"),
        {"first": "int64[n]"},
        lambda inputs: {"first": np.asarray(inputs["x0"])},
    )
    return port


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The inputs whose elements were read."""
    seen: list[str] = []
    for module in (rest, rows):
        from_json: Any = vars(module)["from_json"]

        def noted(name: str, *arguments: Any, way: Any = from_json) -> Any:
            seen.append(name)
            return way(name, *arguments)

        monkeypatch.setattr(module, "from_json", noted)
    return seen


BIG = list(range(1000))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict/three", {"columns": {"a": BIG}}),
        ("/predict/three", [{"a": 1}] * 1000),
        ("/predict/three", [{}] * 1000),
        ("/v1/models/three:predict", {"inputs": {"a": BIG}}),
        ("/v1/models/three:predict", {"instances": [{"a": 1}] * 1000}),
        ("/v1/models/three:predict", {"instances": [{}] * 1000}),
        ("/v2/models/three/infer", {"inputs": [tensor("a", "INT64", [1000], BIG)]}),
    ],
)
def test_a_missing_input_is_seen_before_any_is_read(port: Port, path: str, body: Any, read: list[str]) -> None:
    answer = port.ask("POST", path, body)
    missing = "b" if b'"a"' in json.dumps(body).encode() else "a"
    assert answer.status == 400
    assert answer.error == f"input {missing!r} is missing: this model takes 'a', 'b', 'c'"
    assert read == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict/three", {"columns": {"a": BIG, "b": BIG, "z": BIG}}),
        ("/predict/three", [{"a": 1, "b": 1}] * 1000 + [{"z": 1}]),
        ("/v1/models/three:predict", {"inputs": {"a": BIG, "b": BIG, "z": BIG}}),
        ("/v1/models/three:predict", {"instances": [{"a": 1, "b": 1}] * 1000 + [{"z": 1}]}),
        ("/v2/models/three/infer", {"inputs": [tensor(name, "INT64", [1000], BIG) for name in "abz"]}),
    ],
)
def test_an_unknown_input_is_seen_before_any_is_read(port: Port, path: str, body: Any, read: list[str]) -> None:
    answer = port.ask("POST", path, body)
    assert answer.status == 400 and "unknown input 'z'" in answer.error
    assert read == []


def test_what_is_all_there_is_read_once_and_answered(port: Port, read: list[str]) -> None:
    assert port.ask("POST", "/predict/three", {"columns": {"a": [1], "b": [2]}}).json == {"columns": {"sum": [4]}}
    assert port.ask("POST", "/predict/three", [{"a": 1, "b": 2, "c": 3}]).json == [{"sum": 6}]
    assert read == ["a", "b", "a", "b", "c"]


@pytest.mark.parametrize(
    ("path", "around"), [("/predict/three", "%s"), ("/v1/models/three:predict", '{"instances":%s}')]
)
def test_more_rows_than_keys_are_not_read(
    port: Port, path: str, around: str, monkeypatch: pytest.MonkeyPatch, read: list[str]
) -> None:
    taken: list[int] = []
    gathered = rows.Bridge.rows

    def noted(bridge: Any, given: Any) -> Any:
        taken.append(len(given))
        return gathered(bridge, given)

    monkeypatch.setattr(rows.Bridge, "rows", noted)
    answer = port.ask("POST", path, (around % f"[{','.join(['{}'] * (MAX_KEYS + 1))}]").encode())
    assert answer.status == 400
    assert answer.error == f"the body has more than {MAX_KEYS} rows; send columns, or fewer rows at once"
    assert taken == [] and read == []
    texts = json.dumps({"columns": {"a": ["{"] * (MAX_KEYS + 1), "b": [1]}}).encode()
    assert "expected INT64 values, got a string" in port.ask("POST", "/predict/three", texts).error


def test_one_full_row_among_empty_ones_is_not_filled_up_without_end(port: Port, read: list[str]) -> None:
    full = json.dumps({f"x{at}": at for at in range(64)})
    few = port.ask("POST", "/predict/wide", f"[{full},{{}},{{}}]".encode())
    assert few.json == [{"first": 0}] * 3
    read.clear()
    answer = port.ask("POST", "/predict/wide", f"[{full}{',{}' * 100_000}]".encode())
    assert answer.status == 400
    assert answer.error == "6400000 values are left out of the rows; send columns, or fewer rows at once"
    assert read == []
