"""Models tried on made-up rows: those that mix their rows are refused, and all others are let be."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maitred.clock import ManualClock
from maitred.model.description import Description
from maitred.model.loading import Loaded, load, run, warm
from maitred.model.mixing import ROWS, check_apart, made_up
from maitred.model.pack import pack
from maitred.model.predictor import Traits, WrongCount
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.model.source import Source
from maitred.replica.execution import is_decision
from maitred.wire.coerce import from_array

NUMBERS = Signature({"x": "float32[n]"}, {"y": "float32[n]"})
INFLUENCE = r"rows influence each other \(if that is meant: declare another symbol than 'n'.*output 'y'"
Predict = Callable[[dict[str, Any]], Any]


class _Predictor:
    def __init__(self, predict: Predict, signature: Signature = NUMBERS, **traits: Any) -> None:
        self.signature, self.traits, self.asked = signature, Traits(**traits), 0
        self._predict = predict

    def predict(self, inputs: dict[str, Any], context: Any) -> Any:
        self.asked += 1
        return {"y": self._predict(inputs)}


def check(predict: Predict, signature: Signature = NUMBERS, rows: int = 64, **traits: Any) -> str:
    predictor: Any = _Predictor(predict, signature, **traits)
    return check_apart(predictor, functools.partial(run, predictor), rows)


MIXING: dict[str, Predict] = {
    "sorts": lambda batch: np.sort(batch["x"]),
    "backwards": lambda batch: batch["x"][::-1].copy(),
    "shifts": lambda batch: np.roll(batch["x"], 1),
    "largest": lambda batch: np.full(len(batch["x"]), batch["x"].max()),
    "centres": lambda batch: batch["x"] - batch["x"].mean(),
    "counts": lambda batch: np.arange(len(batch["x"]), dtype=np.float32),
    "shares": lambda batch: batch["x"] / batch["x"].sum(),
    "first": lambda batch: batch["x"] * 0 + batch["x"][0],
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_influence_each_other_are_refused(name: str) -> None:
    with pytest.raises(CannotLoad, match=INFLUENCE) as refused:
        check(MIXING[name])
    assert is_decision(refused.value), "trying again does not help"


@pytest.mark.parametrize(
    "notation",
    [
        "float64[n, 3]", "float32[n] min=5 max=6", "float16[n] max=-1", "int8[n]", "uint64[n] min=0 max=1",
        "bool[n]", "int64[n] max=0", "int8[n] min=126", "str[n]", "bytes[n]", 'str[n] categories=["a", "b"]',
        "int64[n] categories=[9, 4]", "int64[n] nullable", 'int64[n] time="s"', "int64[n, s] pad=0", "float32[n, 2, 2]",
    ],
)  # fmt: skip
def test_made_up_rows_differ_in_no_order_and_are_what_the_signature_allows(notation: str) -> None:
    signature = Signature({"x": notation}, {"y": "float32[n]"})
    made = made_up(signature, ROWS)
    assert signature.check({"x": from_array(made["x"], "x")}).rows == ROWS
    rows = made["x"].tolist()
    assert len({repr(row) for row in rows}) >= 2
    assert rows not in (sorted(rows), sorted(rows, reverse=True))
    assert all((made_up(signature, ROWS)[name] == array).all() for name, array in made.items()), "the same every time"


def test_inputs_with_a_default_keep_it_beside_others() -> None:
    signature = Signature({"x": "int64[n, s]", "mask": "int64[n, s] default=1"}, {"y": "float32[n]"})
    made = made_up(signature, ROWS)
    assert made["mask"].tolist() == [[1]] * ROWS
    alone = made_up(Signature({"x": "int64[n] default=1"}, {"y": "float32[n]"}), ROWS)
    assert len({*alone["x"].tolist()}) == ROWS


def test_rows_filled_up_to_a_bucket_are_compared_too() -> None:
    signature = Signature({"x": 'int64[n, s] pad=0 buckets={"s": [4, 8]}'.replace('{"s": [4, 8]}', "[4, 8]")},
                          {"y": "int64[n]"})  # fmt: skip
    assert check(lambda batch: batch["x"].sum(axis=1), signature) == ""
    with pytest.raises(CannotLoad, match=INFLUENCE):
        check(lambda batch: np.sort(batch["x"].sum(axis=1)), signature)


def test_texts_and_rows_beside_a_shared_input_are_compared_too() -> None:
    texts = Signature({"x": "str[n]", "by": "int64[]"}, {"y": "str[n]"})
    assert check(lambda batch: batch["x"], texts) == ""
    with pytest.raises(CannotLoad, match=INFLUENCE):
        check(lambda batch: np.sort(batch["x"]), texts)


def test_rounding_that_comes_with_the_size_of_a_batch_is_forgiven() -> None:
    assert check(lambda batch: batch["x"] * (1 + np.float32(2e-5) * len(batch["x"]))) == ""
    with pytest.raises(CannotLoad, match=INFLUENCE):
        check(lambda batch: batch["x"] * (1 + np.float32(0.1) * len(batch["x"])))


def test_what_only_the_longest_row_of_a_batch_needs_is_no_influence() -> None:
    """Where the model chose a size, as for the words of texts, answers are as long as the longest."""
    signature = Signature({"x": "int64[n]"}, {"y": "int64[n, words]"})
    assert check(lambda b: np.where(np.arange(max(b["x"])) < b["x"][:, None], b["x"][:, None], 0), signature) == ""
    with pytest.raises(CannotLoad, match=INFLUENCE):
        check(lambda b: np.sort(b["x"])[:, None].repeat(max(b["x"]), axis=1), signature)


def test_a_model_that_answers_differently_each_time_is_let_be() -> None:
    dice, calls = np.random.default_rng(1), itertools.count()
    assert check(lambda batch: dice.random(len(batch["x"]))) == ""
    assert check(lambda batch: np.full(len(batch["x"]), next(calls))) == ""
    now_and_then = itertools.count()
    assert check(lambda batch: batch["x"] + (next(now_and_then) > 3) * next(now_and_then)) == ""


def test_no_model_is_asked_that_must_not_be_or_need_not_be() -> None:
    """One with side effects, one that never sees two rows, one without rows."""
    for signature, rows, traits in (
        (NUMBERS, 64, {"side_effects": True}),
        (NUMBERS, 1, {}),
        (NUMBERS, 64, {"max_batch_rows": 1}),
        (Signature({"x": "float32[n]"}, {"y": "float32[m]"}), 64, {}),
    ):
        predictor: Any = _Predictor(MIXING["sorts"], signature, **traits)
        assert check_apart(predictor, functools.partial(run, predictor), rows) == ""
        assert predictor.asked == 0


def test_refusing_made_up_rows_is_noted_and_another_count_is_no_excuse() -> None:
    def picky(batch: dict[str, Any]) -> Any:
        raise KeyError("Berlin")

    assert check(picky) == (
        "not checked whether rows influence each other: it refuses made-up rows (KeyError); pack it with an example"
    )
    with pytest.raises(WrongCount):
        check(lambda batch: batch["x"][:1])


def test_a_slow_model_is_not_asked_again_and_again() -> None:
    clock = ManualClock()

    def slow(batch: dict[str, Any]) -> Any:
        clock.advance(2.0)
        return np.sort(batch["x"])

    predictor: Any = _Predictor(slow)
    note = check_apart(predictor, functools.partial(run, predictor), 64, clock)
    assert "takes too long" in note
    assert predictor.asked == 2


def test_a_quick_model_is_asked_a_handful_of_times() -> None:
    predictor: Any = _Predictor(lambda batch: batch["x"])
    assert check_apart(predictor, functools.partial(run, predictor), 64) == ""
    assert predictor.asked <= ROWS + 4


# --- where it is asked ---------------------------------------------------------------------------------------------


CODE = """import numpy as np, maitred
class Sorts(maitred.Model):
    signature = maitred.Signature({'x': 'int64[n]'}, {'y': 'int64[n]'})
    def predict(self, batch):
        return {'y': np.sort(batch['x'])}
"""


def test_a_bare_file_is_refused_before_it_is_ready_and_nothing_packs_it(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(CODE)
    source = f"{tmp_path / 'm.py'}:Sorts"
    with pytest.raises(CannotLoad, match=INFLUENCE):
        warm(load(Source(source)), 64)
    for example in (None, {"x": [3]}):
        with pytest.raises(CannotPack, match=INFLUENCE):
            pack(source, tmp_path / "out", example=example, trust="tester: mine")
    assert not (tmp_path / "out").exists()


def test_a_model_that_was_packed_with_rows_starts_without_it(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(CODE.replace("np.sort(batch['x'])", "batch['x']"))
    pack(f"{tmp_path / 'm.py'}:Sorts", tmp_path / "out", example={"x": [3, 1]}, trust="tester: mine")
    loaded = load(Source(str(tmp_path / "out"), trust="tester: mine"))
    predictor: Any = _Predictor(lambda batch: batch["x"], loaded.predictor.signature)
    warm(loaded._replace(predictor=predictor), 2)
    assert predictor.asked == 3  # the example, one row, two rows
    predictor.asked = 0
    warm(Loaded(predictor, Description(name="m", signature=predictor.signature)), 2)
    assert predictor.asked > 3


def test_the_note_is_in_the_models_description() -> None:
    def only_zero(batch: dict[str, Any]) -> Any:
        if batch["x"].any():
            raise ValueError
        return batch["x"]

    predictor: Any = _Predictor(only_zero)
    warnings = warm(Loaded(predictor, Description(name="m", signature=NUMBERS)), 4).description.warnings
    assert len(warnings) == 1 and "refuses made-up rows (ValueError)" in warnings[0]
