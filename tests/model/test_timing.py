"""How long a model takes is measured with the least and the most rows, in rounds, with a clock turned by the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from maitred.clock import ManualClock
from maitred.model.description import Description, Timing
from maitred.model.loading import Loaded
from maitred.model.predictor import Model, ModelPredictor
from maitred.model.signature import Signature
from maitred.model.timing import timed


def loaded(predict: Callable[[dict[str, Any]], dict[str, Any]], inputs: str = "float32[n]", **traits: Any) -> Loaded:
    signature = Signature({"x": inputs}, {"y": "float32[m]" if "n" not in inputs else "float32[n]"})
    body = {"signature": signature, "predict": lambda self, batch: predict(batch), **traits}
    predictor = ModelPredictor(type("Timed", (Model,), body)())
    return Loaded(predictor, Description(name="m", signature=signature, traits=predictor.traits))


class Worker:
    """Takes 10 us and 1 us a row, and more in the calls that `also` names."""

    def __init__(self, also: Callable[[int], float] = lambda call: 0.0) -> None:
        self.clock = ManualClock()
        self.calls: list[int] = []
        self._also = also

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = len(batch["x"])
        self.calls.append(rows)
        self.clock.now += 10e-6 + rows * 1e-6 + self._also(len(self.calls))
        return {"y": batch["x"]}


def test_the_least_and_the_most_rows_are_timed() -> None:
    worker = Worker()
    timings = timed(loaded(worker.predict), 64, worker.clock)
    assert [timing.rows for timing in timings] == [1, 64]
    assert [round(timing.median_seconds * 1e6) for timing in timings] == [11, 74]
    assert [round(timing.slowest_seconds * 1e6) for timing in timings] == [11, 74]
    assert set(worker.calls) == {1, 64}


def test_what_the_machine_adds_now_and_then_is_left_out_and_what_the_model_does_now_and_then_is_not() -> None:
    disturbed = Worker(lambda call: 1e-3 if call % 13 == 0 else 0.0)
    quick = timed(loaded(disturbed.predict), 1, disturbed.clock)[0]
    assert round(quick.slowest_seconds * 1e6) == 11
    stuttering = Worker(lambda call: 100e-6 if call % 3 == 0 else 0.0)
    slow = timed(loaded(stuttering.predict), 1, stuttering.clock)[0]
    assert round(slow.slowest_seconds * 1e6) == 111
    assert round(slow.median_seconds * 1e6) == 11


def test_a_slow_model_is_asked_a_few_times_only_and_a_very_slow_one_once() -> None:
    slow = Worker(lambda call: 5e-3)
    assert [timing.rows for timing in timed(loaded(slow.predict), 64, slow.clock)] == [1]
    assert len(slow.calls) <= 7
    slowest = Worker(lambda call: 1.0)
    assert len(timed(loaded(slowest.predict), 64, slowest.clock)) == 1
    assert slowest.calls == [1]


def test_fixed_batches_are_timed_as_they_are() -> None:
    worker = Worker()
    assert [timing.rows for timing in timed(loaded(worker.predict, fixed_batch=[8]), 64, worker.clock)] == [8]


def test_a_model_without_rows_is_timed_as_it_is_called() -> None:
    worker = Worker()
    assert [timing.rows for timing in timed(loaded(worker.predict, "float32[4]"), 64, worker.clock)] == [1]


def test_a_model_that_refuses_made_up_rows_is_not_timed() -> None:
    def predict(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    assert timed(loaded(predict), 64) == ()


def test_an_asynchronous_model_is_not_timed() -> None:
    class Later(Model):
        signature = Signature({"x": "float32[n]"}, {"y": "float32[n]"})

        async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
            raise AssertionError("it must not be called")

    predictor = ModelPredictor(Later())
    assert timed(Loaded(predictor, Description(name="m", signature=Later.signature, traits=predictor.traits)), 8) == ()


@pytest.mark.parametrize("timing", [Timing(1, 1e-6, 2e-6)])
def test_timings_travel_with_the_description(timing: Timing) -> None:
    signature = Signature({"x": "float32[n]"}, {"y": "float32[n]"})
    known = Description(name="m", signature=signature, native=True, timings=(timing,))
    again = Description.decode(known.encode())
    assert again.timings == (timing,) and again.native
    assert np.isfinite(again.timings[0].median_seconds)
