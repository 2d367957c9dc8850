"""What the door learns from those whom it let in and who were late."""

from __future__ import annotations

from random import Random

import pytest

from maitred.scheduling.caution import Caution

BATCH_SECONDS = 0.04


def caution(since: float = 0.0) -> Caution:
    made = Caution()
    made.scale(BATCH_SECONDS)
    made.admitted(since)
    return made


def test_who_was_let_in_before_the_first_forecast_teaches_nothing() -> None:
    made = caution(since=5.0)
    made.late(4.9, 5.2)
    assert made.seconds == 0.0
    made.late(5.0, 5.2)
    assert made.seconds > 0.0


def test_many_who_are_late_at_once_count_once() -> None:
    made = caution()
    made.late(1.0, 2.0)
    once = made.seconds
    for member in range(64):
        made.late(1.0, 2.0 + member * 0.0001)
    assert made.seconds == once
    made.late(1.0, 2.0 + BATCH_SECONDS)
    assert made.seconds == 2 * once


def test_a_long_stall_is_forgotten() -> None:
    made = caution()
    for moment in range(1000):
        made.late(1.0, 2.0 + moment)
    assert made.seconds == made.most
    for number in range(30_000):
        made.admitted(1100.0 + number)
    assert made.seconds < BATCH_SECONDS
    for number in range(30_000):
        made.admitted(1100.0 + number)
    assert made.seconds == 0.0


def test_who_is_in_a_hurry_is_not_refused_by_caution_alone() -> None:
    made = caution()
    assert made.of(1.0) == 0.0, "there is no reason yet"
    for moment in range(1000):
        made.late(1.0, 2.0 + moment)
    assert made.of(0.03) == pytest.approx(0.01)
    assert made.of(0.0) == 0.0
    assert made.of(1000.0) == made.seconds


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.06])
def test_few_are_late_whatever_the_size_of_the_error(spread: float) -> None:
    """A forecast that is wrong by a normal error: one batch of ten after the other, each late if the error is larger
    than the caution was."""
    chance = Random(1)
    made = caution()
    late = 0
    for batch in range(20_000):
        now = 1.0 + batch * BATCH_SECONDS
        if chance.gauss(0.0, spread) > made.of(10.0):
            late += batch >= 2_000
            made.late(now - 0.001, now)
        for _ in range(10):
            made.admitted(now)
    assert 0 < late <= 0.015 * 18_000
