"""Large answers of a model in a child process: arrays that keep the memory they were written to, and nothing else."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import maitred
from maitred.errors import MaitredError
from maitred.replica import lease
from maitred.replica.memory import Arena

HERE = str(pathlib.Path(__file__).with_name("embed_models.py"))
WIDE = 150_000
pytestmark = pytest.mark.timeout(60)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


@pytest.fixture
def wide() -> Iterator[maitred.Handle]:
    with maitred.load(f"{HERE}:Wide", queue=True, kind="process") as handle:
        yield handle


def outputs_of(handle: maitred.Handle) -> Arena:
    """Where the only copy writes its answers."""
    engine: Any = handle._engine
    (copy,) = engine._pool._replicas.values()
    arena: Arena = copy._outputs
    return arena


def test_small_answers_are_copies_and_large_ones_are_not(wide: maitred.Handle) -> None:
    answer = wide.predict([7])
    assert answer["z"].flags.owndata
    assert not answer["y"].flags.owndata and not answer["flag"].flags.owndata
    for array in answer.values():
        assert array.flags.writeable and array.flags.aligned
    assert answer["y"].dtype == np.float64 and answer["y"].shape == (1, WIDE) and (answer["y"] == 7).all()
    assert answer["flag"].dtype == np.bool_ and answer["flag"].all()
    answer["y"][:] = 1  # it is the caller's own
    assert (answer["y"] == 1).all()


def test_a_kept_answer_stays_what_it_was_and_goes_back_with_its_last_view(wide: maitred.Handle) -> None:
    arena = outputs_of(wide)
    kept = [wide.predict([number]) for number in range(5)]
    for number, answer in enumerate(kept):
        assert (answer["y"] == number).all() and (answer["flag"] == bool(number % 2)).all()
    assert len({answer["y"].ctypes.data for answer in kept}) == 5
    part = kept[3]["y"][0, 5:10]
    until(lambda: arena.lent_bytes == 5 * (8 * WIDE + 1_100_000))
    del answer
    kept.clear()
    until(lambda: arena.lent_bytes == 8 * WIDE)
    for number in range(20, 30):
        wide.predict([number])
    assert (part == 3).all()
    del part
    until(lambda: arena.lent_bytes == 0 and arena.used_bytes == 0)


def test_after_the_end_of_the_model_kept_answers_are_still_there() -> None:
    with maitred.load(f"{HERE}:Wide", queue=True, kind="process") as handle:
        answer = handle.predict([9])
    gc.collect()
    assert (answer["y"] == 9).all()
    answer["y"][0, 0] = 4
    assert answer["y"][0, 0] == 4
    del answer


def test_after_the_death_of_its_copy_a_kept_answer_is_still_there(wide: maitred.Handle) -> None:
    answer = wide.predict([9])
    engine: Any = wide._engine
    (pid,) = engine._pool.pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: engine._pool.pids() not in ([pid], []))
    assert (wide.predict([2])["y"] == 2).all()
    assert (answer["y"] == 9).all()
    with pytest.raises(MaitredError):
        wide.predict([-1])
    assert (answer["y"] == 9).all()


def test_more_than_may_be_lent_is_copied(wide: maitred.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEND_BYTES", 3 << 20)
    first, second = wide.predict([1]), wide.predict([2])
    assert not first["y"].flags.owndata and second["y"].flags.owndata
    assert (first["y"] == 1).all() and (second["y"] == 2).all()
    del first
    until(lambda: outputs_of(wide).lent_bytes == 0)
    assert not wide.predict([3])["y"].flags.owndata


def test_a_small_part_of_a_large_batch_does_not_keep_all_of_it(wide: maitred.Handle) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: wide.predict([number]), range(40)))
    for number, answer in enumerate(answers):
        assert (answer["y"] == number).all()
    arena = outputs_of(wide)
    until(lambda: arena.used_bytes <= 2.5 * arena.lent_bytes)
    answers.clear()
    del answer
    until(lambda: arena.lent_bytes == 0 and arena.used_bytes == 0)


def test_other_kinds_copy_as_ever() -> None:
    with maitred.load("embed_models:Wide", queue=True, kind="thread") as handle:
        assert handle.predict([1])["y"].flags.owndata


def test_arrays_may_be_let_go_in_any_thread(wide: maitred.Handle) -> None:
    def some(number: int) -> bool:
        return all((wide.predict([number + turn])["y"] == number + turn).all() for turn in range(5))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(some, range(0, 40, 10)))
    arena = outputs_of(wide)
    until(lambda: arena.lent_bytes == 0 and arena.used_bytes == 0)
