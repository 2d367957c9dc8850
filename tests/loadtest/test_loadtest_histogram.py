"""The histogram: three digits everywhere, exact ends, nothing lost by adding or travelling."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from maitred.loadtest.histogram import LONGEST, Histogram, Packed

DURATIONS = st.lists(st.integers(0, LONGEST), min_size=1, max_size=300)
SHARES = st.sampled_from([0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0])


def of(values: list[int]) -> Histogram:
    made = Histogram()
    made.record(values)
    return made


def near(found: float, values: list[int], share: float) -> bool:
    """Whether it is numpy's percentile to three digits; a share that is a rank by a hair may be either neighbour's."""
    ends = [max(0.0, share - 1e-9) * 100, min(1.0, share + 1e-9) * 100]
    low, high = np.percentile(values, ends, method="inverted_cdf")
    return bool(low * 0.9995 <= found <= high * 1.0005)


@given(DURATIONS, SHARES)
def test_percentiles_are_those_of_numpy_to_three_digits(values, share):
    assert near(of(values).percentile(share), values, share)


@pytest.mark.parametrize("kind", ["lognormal", "uniform", "two humps", "constant"])
def test_percentiles_of_what_servers_do(kind):
    chance = np.random.default_rng(7)
    values = {
        "lognormal": chance.lognormal(13, 1.0, 20_000),
        "uniform": chance.uniform(0, 5e9, 20_000),
        "two humps": np.concatenate([chance.normal(2e5, 1e4, 19_000), chance.normal(3e8, 1e6, 1_000)]),
        "constant": np.full(20_000, 123_456.0),
    }[kind]
    whole = [int(value) for value in values]
    made = of(whole)
    for share in (0.5, 0.9, 0.99, 0.999, 0.9999):
        assert near(made.percentile(share), whole, share)


@pytest.mark.parametrize("count", [1, 2, 10, 99, 100, 101, 1000])
def test_ranks_are_not_off_by_one(count):
    made = of(list(range(1, count + 1)))  # each below 2048 has a bucket of its own
    for share in ("0.01", "0.1", "0.5", "0.9", "0.99", "0.999"):
        assert made.percentile(float(share)) == max(1, math.ceil(Fraction(share) * count))


@given(DURATIONS)
def test_what_is_exact(values):
    made = of(values)
    assert (made.count, made.total, made.least, made.most) == (len(values), sum(values), min(values), max(values))
    assert made.percentile(1.0) == max(values)
    assert made.mean == pytest.approx(sum(values) / len(values))


@given(DURATIONS, DURATIONS, SHARES)
def test_adding_is_recording_all(one, other, share):
    both, whole = of(one), of(one + other)
    both.add(of(other))
    assert both.pack() == whole.pack()
    assert both.percentile(share) == whole.percentile(share)


@given(DURATIONS)
def test_it_travels(values):
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(of(values).pack()), type=Packed)
    assert Histogram.unpack(packed).pack() == of(values).pack()
    assert Histogram.unpack(packed).count == len(values)


def test_in_pieces_it_is_the_same():
    values = [random.Random(3).randrange(1 << 34) for _ in range(5000)]
    pieces = Histogram()
    for at in range(0, len(values), 700):
        pieces.record(values[at : at + 700])
    assert pieces.pack() == of(values).pack()


def test_an_empty_one_has_no_figures():
    made = Histogram()
    made.record([])
    assert math.isnan(made.percentile(0.5)) and math.isnan(made.mean)
    assert (made.count, made.most) == (0, 0)
    assert Histogram.unpack(made.pack()).count == 0


def test_beyond_its_ends():
    made = of([-5, LONGEST * 4, LONGEST * 8])
    assert (made.least, made.most, made.count) == (0, LONGEST * 8, 3)
    assert made.percentile(0.5) >= LONGEST * 0.999
    assert made.percentile(1.0) == LONGEST * 8


@pytest.mark.parametrize("value", [0, 1, 1023, 1024, 2047, 2048, 2049, 4095, 4096, (1 << 41) - 1, 1 << 41, LONGEST])
def test_at_the_borders_of_buckets(value):
    made = of([value, LONGEST])
    assert made.percentile(0.5) == pytest.approx(value, rel=0.0005, abs=0)
