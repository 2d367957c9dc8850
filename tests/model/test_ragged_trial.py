"""Packing and warming up a model whose rows are filled up: no bucket is cold, and no fill changes an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import maitred
from maitred.model.example import Example
from maitred.model.loading import MAX_WARMUPS, Loaded, load, replay, run, warm, warmup_batches
from maitred.model.pack import pack
from maitred.model.predictor import ModelPredictor
from maitred.model.refusals import CannotPack
from maitred.model.signature import Signature
from maitred.model.source import Source

MASKED = Signature(
    {"ids": "int64[n, seq] pad=0 buckets=[2, 4, 8]", "mask": "int64[n, seq] default=1 pad=0"},
    {"mean": "float32[n]", "each": "float32[n, seq]"},
)
EXAMPLE = {"ids": [[1, 2, 3], [4, 5, 6]]}


class Mean(maitred.Model):
    """Reads its mask; keeps the shapes it was given."""

    signature = MASKED
    seen: ClassVar[list[tuple[int, ...]]] = []

    def predict(self, batch: Any) -> Any:
        ids, mask = batch["ids"].astype(np.float32), batch["mask"]
        self.seen.append(batch["ids"].shape)
        return {"mean": (ids * mask).sum(1) / np.maximum(mask.sum(1), 1), "each": ids}


class Careless(Mean):
    """Takes the fill for rows' own."""

    def predict(self, batch: Any) -> Any:
        ids = batch["ids"].astype(np.float32)
        return {"mean": ids.mean(1), "each": ids}


class Whole(Mean):
    """Looks at all the rows of a batch, but only where one is long."""

    def predict(self, batch: Any) -> Any:
        answer = dict(super().predict(batch))
        long = batch["mask"].all(axis=1)
        answer["mean"] = answer["mean"] + np.float32(long.sum() if batch["ids"].shape[1] == 8 else 0)
        return answer


class Rounding(Mean):
    """Answers a little differently in every shape."""

    def predict(self, batch: Any) -> Any:
        answer = dict(super().predict(batch))
        answer["mean"] = answer["mean"] + np.float32(0.001 * batch["ids"].shape[1])
        return answer


class Tolerant(Rounding):
    signature = Signature(MASKED.inputs, {"mean": "float32[n] atol=0.01", "each": "float32[n, seq]"})


class Fixed(Mean):
    """Knows the shapes of its buckets only, like an engine that was compiled for them."""

    def predict(self, batch: Any) -> Any:
        if batch["ids"].shape[1] not in (2, 4, 8):
            raise RuntimeError("no such shape")
        return super().predict(batch)


class Short(Mean):
    """Declares more than it can do."""

    def predict(self, batch: Any) -> Any:
        if batch["ids"].shape[1] > 4:
            raise IndexError("no position 4")
        return super().predict(batch)


def loaded(model: Any) -> Loaded:
    return Loaded(ModelPredictor(model()), None, None)  # type: ignore[arg-type]


# --- pack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Mean, Fixed])
def test_a_model_that_minds_its_mask_is_packed_with_rows_as_long_as_they_came(model: Any, tmp_path: Path) -> None:
    described = pack(model, tmp_path / "a", example=EXAMPLE)
    kept = json.loads((tmp_path / "a" / "example.json").read_text())
    assert [tensor["shape"] for tensor in kept["inputs"] + kept["outputs"]] == [[2, 3], [2, 3], [2], [2, 3]]
    assert '"shape":[1,3]' in described.example


def test_an_example_may_have_rows_of_different_lengths(tmp_path: Path) -> None:
    pack(Mean, tmp_path / "a", example={"ids": [[1, 2, 3], [4]]})
    kept = json.loads((tmp_path / "a" / "example.json").read_text())
    assert kept["inputs"][1]["data"] == [1, 1, 1, 1, 0, 0]
    assert kept["outputs"][0]["data"] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Careless,
            r"filled up to seq=4 get other answers than alone \(give the model a mask .*tolerance.*: output 'mean'",
        ),
        (Whole, r"rows that are filled up to seq=8 beside longer rows get other answers .*output 'mean'"),
        (Short, r"the model fails on rows that are filled up to seq=8, or as long as that: IndexError: no position 4"),
    ],
)
def test_a_model_that_does_not_is_refused_with_what_to_do(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match=message):
        pack(model, tmp_path / "a", example=EXAMPLE)
    assert not (tmp_path / "a").exists()


def test_a_wider_tolerance_lets_rounding_pass(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="filled up to seq=4 get other answers"):
        pack(Rounding, tmp_path / "a", example=EXAMPLE)
    pack(Tolerant, tmp_path / "a", example=EXAMPLE)


def test_an_example_longer_than_the_last_bucket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="the example does not fit the signature: input 'ids': seq = 9 is more"):
        pack(Mean, tmp_path / "a", example={"ids": [[1] * 9]})


# --- loading ------------------------------------------------------------------------------------------------------


def test_an_artifact_repeats_its_example_and_is_warm_in_every_bucket(tmp_path: Path) -> None:
    pack(f"{__file__}:Mean", tmp_path / "a", example=EXAMPLE, trust="me: a test")
    model = load(Source(str(tmp_path / "a"), trust="me: a test"))
    replay(model)
    seen = model.predictor.model.seen  # type: ignore[attr-defined]
    seen.clear()
    batches = list(warmup_batches(model, 8))
    wanted = [(rows, size) for size in (2, 4, 8) for rows in (1, 2, 4, 8)]
    assert [batch["ids"].shape for batch in batches] == wanted
    assert batches[-1]["ids"][0].tolist() == [1, 2, 3, 1, 2, 3, 1, 2] and batches[-1]["mask"].all()
    warm(model, 8)
    assert seen == [(2, 4), *wanted], "the example in its own bucket first"


def test_made_up_rows_are_as_long_as_the_buckets() -> None:
    assert [batch["ids"].shape for batch in warmup_batches(loaded(Mean), 2)] == [
        (rows, size) for size in (2, 4, 8) for rows in (1, 2)
    ]


def test_fixed_batch_goes_with_buckets() -> None:
    class Fixed(Mean):
        fixed_batch = (2, 4)
        seen: ClassVar[list[tuple[int, ...]]] = []

    model = loaded(Fixed)
    answer = run(model.predictor, {"ids": np.array([[1, 2, 3]]), "mask": np.ones((1, 3), np.int64)})
    assert Fixed.seen == [(2, 4)] and answer["each"].tolist() == [[1, 2, 3]]
    assert [batch["ids"].shape for batch in warmup_batches(model, 64)] == [
        (n, size) for size in (2, 4, 8) for n in (2, 4)
    ]


@pytest.mark.parametrize(
    ("heights", "widths", "shapes"),
    [
        ([1, 2], [3, 4], [(rows, h, w) for h in (1, 2) for w in (3, 4) for rows in (1, 2, 4, 8, 16, 32)]),
        (
            [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11],
            [(rows, h, w) for h in range(1, 7) for w in range(7, 12) for rows in (1, 32)],
        ),
        (
            list(range(1, 17)), list(range(1, 17)),
            [(rows, h, 16) for h in range(1, 16) for rows in (1, 32)]
            + [(rows, 16, w) for w in range(1, 17) for rows in (1, 32)],
        ),
    ],
)  # fmt: skip
def test_two_sizes_are_warmed_up_within_bounds(heights: Any, widths: Any, shapes: Any) -> None:
    class Looking(maitred.Model):
        signature = Signature(
            {"image": f'uint8[n, h, w] pad=0 buckets={{"h": {heights}, "w": {widths}}}'}, {"sum": "int64[n]"}
        )

        def predict(self, batch: Any) -> Any:
            return {"sum": batch["image"].sum(axis=(1, 2))}

    found = [batch["image"].shape for batch in warmup_batches(loaded(Looking), 32)]
    assert found == shapes and len(found) <= MAX_WARMUPS


def test_an_example_without_elements_is_warmed_up_with_fill() -> None:
    example = {"ids": np.zeros((2, 0), np.int64), "mask": np.zeros((2, 0), np.int64)}
    model = loaded(Mean)._replace(example=Example(example, {}))
    assert [batch["ids"].shape[1] for batch in warmup_batches(model, 1)] == [2, 4, 8]
    assert run(model.predictor, example)["each"].shape == (2, 0)
