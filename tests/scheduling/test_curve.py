"""The learned cost of a batch."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.scheduling.curve import Curve


def taught(seconds_of: dict[int, float], times: int = 20) -> Curve:
    curve = Curve()
    for _ in range(times):
        for rows, seconds in seconds_of.items():
            curve.teach(rows, seconds)
    return curve


def test_knows_nothing_at_first() -> None:
    curve = Curve()
    assert not curve.learned
    assert curve.seconds(64) == 0.0
    curve.teach(1, 0.01)
    assert not curve.learned, "one sample is not enough to refuse somebody"
    curve.teach(1, 0.01)
    curve.teach(1, 0.01)
    assert curve.learned


def test_between_sizes_a_line_and_beyond_them_the_last_slope() -> None:
    curve = taught({1: 0.0021, 16: 0.0036, 64: 0.0084})
    assert curve.seconds(1) == pytest.approx(0.0021)
    assert curve.seconds(40) == pytest.approx(0.006)
    assert curve.seconds(64) == pytest.approx(0.0084)
    assert curve.seconds(128) == pytest.approx(0.0148)


def test_one_size_alone_is_flat() -> None:
    curve = taught({64: 0.005})
    assert curve.seconds(1) == curve.seconds(128) == pytest.approx(0.005)


def test_the_first_batch_may_be_slow() -> None:
    curve = Curve()
    for seconds in (3.0, 0.005, 0.006):
        curve.teach(8, seconds)
    assert curve.seconds(8) == pytest.approx(0.005)


def test_one_hiccup_changes_little() -> None:
    curve = taught({8: 0.005})
    curve.teach(8, 60.0)
    assert curve.seconds(8) < 0.0057


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_lasting_change_is_learned(factor: float) -> None:
    curve = taught({8: 0.005})
    for _ in range(60):
        curve.teach(8, 0.005 * factor)
    assert curve.seconds(8) == pytest.approx(0.005 * factor, rel=0.05)


def test_learns_a_noisy_line() -> None:
    chance = Random(1)
    curve = Curve()
    for _ in range(5000):
        rows = chance.randint(1, 64)
        curve.teach(rows, (0.002 + 0.0001 * rows) * chance.uniform(0.9, 1.1))
    for rows in (1, 5, 20, 50, 64):
        assert curve.seconds(rows) == pytest.approx(0.002 + 0.0001 * rows, rel=0.1)
    assert 0.02 < curve.spread < 0.12


@given(st.dictionaries(st.integers(0, 64), st.floats(0, 1), min_size=1), st.floats(0, 2), st.integers(1, 64))
def test_rows_within_is_within(seconds_of: dict[int, float], budget: float, most: int) -> None:
    curve = taught(seconds_of, 3)
    rows = curve.rows_within(budget, most)
    assert 0 <= rows <= most
    assert rows == 0 or curve.seconds(rows) <= budget
    if rows == 0:
        assert curve.seconds(1) > budget


@pytest.mark.parametrize(
    ("seconds_of", "best"),
    [
        ({1: 0.005, 64: 0.005}, 64),  # a fixed price: the more the better
        ({1: 0.001, 8: 0.008, 64: 0.064}, 64),  # proportional: larger ones do no harm
        ({1: 0.001, 8: 0.004, 64: 0.200}, 8),  # does not fit into a cache beyond 8
    ],
)
def test_the_batch_that_pays(seconds_of: dict[int, float], best: int) -> None:
    assert taught(seconds_of).best_rows(64) == best


FIXED = [
    ("nothing is known", {}, 0.0),
    ("a straight line", {1: 0.0021, 16: 0.0036, 64: 0.0084}, 0.002),
    ("whatever the batch", {1: 0.005, 64: 0.005}, 0.005),
    ("only the rows", {2: 0.002, 32: 0.032}, 0.0),
    ("ever dearer rows", {1: 0.001, 8: 0.010, 64: 0.300}, 0.0),
    ("larger ones are quicker, of late", {1: 0.009, 64: 0.005}, 0.005),
    ("batches of one row", {1: 0.004}, 0.004),
    ("batches of one size", {16: 0.004}, 0.002),
]


@pytest.mark.parametrize(("why", "batches", "fixed"), FIXED, ids=[case[0] for case in FIXED])
def test_the_part_of_a_batch_that_does_not_depend_on_its_rows(
    why: str, batches: dict[int, float], fixed: float
) -> None:
    curve = Curve()
    for _ in range(5):
        for rows, seconds in batches.items():
            curve.teach(rows, seconds)
    assert curve.fixed_seconds() == pytest.approx(fixed, abs=1e-9)


def test_what_was_seen_once_may_have_been_cold_and_says_nothing_of_that_part() -> None:
    curve = Curve()
    curve.teach(1, 0.5)
    for _ in range(5):
        curve.teach(64, 0.008)
    assert curve.fixed_seconds() == pytest.approx(0.004)
