"""Rows with missing elements and times: the same embedded and served, alone and in a batch, in every kind of copy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import MODELS, settings, standing

import maitred
from loops import run
from maitred.model.forms import tensors_of
from maitred.wire.coerce import DATATYPES

ROWS: list[dict[str, Any]] = [
    {"i": 2**63 - 1, "b": [True, None], "s": "a\0", "t": "2026-01-01T00:00:00.000Z"},
    {"i": None, "b": [None, None], "s": None, "t": None},
    {"i": -(2**63), "b": [False, True], "s": "", "t": "0001-01-01T00:00:00.000Z"},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
SEEN = "b:MaskedArray:bool i:MaskedArray:int64 s:ndarray:object t:ndarray:datetime64[ms]"


@pytest.fixture(scope="module")
def embedded() -> Any:
    with maitred.load(f"{MODELS}:Missing") as handle:
        return handle.predict(COLUMNS)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        (one[name].dtype, type(one[name]), one[name].tolist())
        == (other[name].dtype, type(other[name]), other[name].tolist())
        for name in one
    )


def test_embedded_shows_what_is_missing(embedded: Any) -> None:
    assert embedded["i"].tolist() == COLUMNS["i"] and embedded["b"].tolist() == COLUMNS["b"]
    assert embedded["s"].tolist() == COLUMNS["s"]
    assert np.isnat(embedded["t"]).tolist() == [False, True, False] and str(embedded["t"][2]).startswith("0001-01-01")
    assert embedded["kinds"].tolist() == [SEEN] * 3


@pytest.mark.parametrize("kind", ["process", "thread", "inline"])
def test_a_queue_changes_nothing(kind: Any, embedded: Any) -> None:
    with maitred.load(f"{MODELS}:Missing", queue=True, kind=kind, max_batch_rows=2) as handle:
        assert same(handle.predict(COLUMNS), embedded), "cut into parts of two rows"
        only = handle.predict(COLUMNS, outputs=["t", "i"])
        assert list(only) == ["t", "i"] and only["i"].tolist() == COLUMNS["i"]
        with_limit = handle.predict({**COLUMNS, "limit": None})
        assert with_limit["kinds"][0] == SEEN.replace(" s:", " limit:MaskedArray:uint64 s:")


def test_served_rows_share_batches_and_stay_apart(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"missing": "Missing"})) as house:
            callers = [house.caller() for _ in range(12)]
            for _ in range(5):
                asked = [caller.ask("POST", "/predict/missing", ROWS[at % 3]) for at, caller in enumerate(callers)]
                for at, reply in enumerate(await asyncio.gather(*asked)):
                    assert reply.status == 200, reply.body
                    answer = reply.json()
                    assert answer.pop("kinds") == SEEN
                    assert answer == ROWS[at % 3]
            reply = await callers[0].ask("POST", "/v2/models/missing/infer", {"inputs": v2_inputs()})
            found = {output["name"]: output["data"] for output in reply.json()["outputs"]}
            assert (found["i"], found["s"]) == (COLUMNS["i"], COLUMNS["s"])
            assert found["b"] == [element for pair in COLUMNS["b"] for element in pair]
            assert found["t"] == [1_767_225_600_000, None, -62_135_596_800_000]

    run(play())


def v2_inputs() -> list[dict[str, Any]]:
    kinds = {"i": "INT64", "b": "BOOL", "s": "BYTES", "t": "BYTES"}
    shapes = {"b": [3, 2]}
    return [
        {"name": name, "datatype": kind, "shape": shapes.get(name, [3]), "data": COLUMNS[name]}
        for name, kind in kinds.items()
    ]


def test_a_packed_model_repeats_an_example_with_missing_elements(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    from maitred.model.example import request_text
    from maitred.model.loading import load, replay
    from maitred.model.pack import pack
    from maitred.model.source import Source

    description = pack(f"{MODELS}:Missing", tmp_path / "packed", example=COLUMNS, trust="tester: a story")
    loaded = load(Source(str(tmp_path / "packed"), trust="tester: a story"))
    assert loaded.example is not None
    replay(loaded)
    assert loaded.example.inputs["i"].tolist() == COLUMNS["i"]
    assert loaded.example.inputs["t"].dtype == "M8[ms]"
    text = request_text(loaded.example.inputs, loaded.predictor.signature)
    assert '"data":[9223372036854775807,null,-9223372036854775808]' in text
    assert description.example and DATATYPES["bool"] in description.example
    changed = dict(loaded.example.outputs)
    changed["i"] = np.ma.array(changed["i"].data, mask=[0, 0, 0])
    from maitred.model.example import Example, differences

    assert differences(Example({}, changed), loaded.example.outputs, loaded.predictor.signature) == [
        "output 'i': 1 of 3 differ; worst at [1]: expected 0, got masked"
    ]
    assert tensors_of(loaded.predictor.signature.outputs, loaded.example.outputs)["i"].dtype == "int64"
