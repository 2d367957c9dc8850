"""Shares of lanes and tenants."""

from __future__ import annotations

import pytest

from maitred.messages import BACKGROUND, HIGH, NORMAL
from maitred.scheduling.fairness import Shares, Tenants


def served(waiting: list[bool], batches: int) -> list[int]:
    """How often each lane leads when the lanes that wait never run empty and each batch takes 64 rows."""
    shares = Shares(0.05, 64.0)
    led = [0, 0, 0]
    for _ in range(batches):
        lane = shares.lead(*(int(waits) for waits in waiting))
        led[lane] += 1
        for lower in (NORMAL, BACKGROUND):
            shares.charge(lower, 64, 64 if lane == lower else 0, waiting[lower])
    return led


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([True, False, False], [1000, 0, 0]),
        ([False, False, True], [0, 0, 1000]),
        ([True, True, False], [950, 50, 0]),
        ([False, True, True], [0, 950, 50]),
        ([True, True, True], [900, 50, 50]),
    ],
)
def test_a_lower_lane_gets_its_share_and_no_more(waiting: list[bool], expected: list[int]) -> None:
    assert served(waiting, 1000) == pytest.approx(expected, abs=2)


def test_nothing_is_owed_to_a_lane_that_does_not_wait() -> None:
    shares = Shares(0.05, 64.0)
    for _ in range(100):
        shares.charge(BACKGROUND, 64, 0, True)
    assert shares.is_owed(BACKGROUND)
    shares.charge(BACKGROUND, 64, 0, False)
    assert not shares.is_owed(BACKGROUND)
    assert shares.lead(1, 0, 1) == HIGH


def test_a_small_lane_is_not_made_to_wait_for_a_full_batch() -> None:
    shares = Shares(0.05, 64.0)
    shares.charge(NORMAL, 64, 0, True)
    assert shares.lead(1, 1, 0) == NORMAL


def test_a_tenant_alone_is_never_over_its_share() -> None:
    tenants = Tenants()
    assert not any(tenants.over("only", 10, now) for now in range(100))


def test_the_noisy_tenant_is_over_and_the_quiet_one_is_not() -> None:
    tenants = Tenants()
    over = {"noisy": 0, "quiet": 0}
    for second in range(100):
        for _ in range(50):
            over["noisy"] += tenants.over("noisy", 1, second)
        over["quiet"] += tenants.over("quiet", 1, second)
    assert over["quiet"] <= 1
    assert over["noisy"] > 4900


def test_equal_tenants_are_not_over() -> None:
    tenants = Tenants()
    for second in range(3):
        for tenant in "abcd":
            tenants.over(tenant, 1, second)
    assert not any(tenants.over(tenant, 1, 5) for _ in range(50) for tenant in "abcd")


def test_tenants_are_forgotten() -> None:
    tenants = Tenants()
    for number in range(5000):
        tenants.over(str(number), 1, 0.0)
        tenants.over("noisy", 3, 0.0)
    assert len(tenants._rows) <= 1025
    assert tenants.over("noisy", 1, 1.0), "the largest is remembered"
    for period in range(1, 20):
        tenants.over("late", 1, period * 11.0)
    assert len(tenants._rows) <= 2
