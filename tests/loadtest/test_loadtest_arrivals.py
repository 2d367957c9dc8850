"""When requests are due: evenly or as chance has it, and counted from then, also while a server stands still."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from maitred.loadtest.arrivals import NEVER, Schedule, constant, poisson
from maitred.loadtest.histogram import Histogram
from maitred.loadtest.plan import Plan, Step, Target

SECOND = 1_000_000_000


def first(count, arrivals):
    return list(itertools.islice(arrivals, count))


def test_constant_arrivals_are_even_and_do_not_drift():
    times = first(30_001, constant(3000.0))
    assert times[0] == 0 and times[-1] == 10 * SECOND
    assert {b - a for a, b in itertools.pairwise(times)} <= {333_333, 333_334}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_constant_arrivals_of_workers_are_those_of_one(workers):
    step = Step(workers, 1.0, 0.0, rate=1000.0, arrivals="constant")
    shares = [step.share(number, workers) for number in range(workers)]
    merged = heapq.merge(*(constant(share.rate, share.first, share.stride) for share in shares))
    assert first(500, merged) == first(500, constant(1000.0))


def test_the_gaps_of_poisson_arrivals_are_exponential():
    times = first(100_000, poisson(1000.0, random.Random(1)))
    gaps = sorted(b - a for a, b in itertools.pairwise([0, *times]))
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1e6, rel=0.02)
    assert variance**0.5 == pytest.approx(mean, rel=0.02)
    assert gaps[len(gaps) // 2] == pytest.approx(0.6931 * 1e6, rel=0.03)  # the median: ln 2
    assert sum(gap > 3e6 for gap in gaps) / len(gaps) == pytest.approx(0.0498, rel=0.1)  # e^-3


def test_counts_of_poisson_arrivals_vary_as_much_as_they_should():
    times = first(100_000, poisson(1000.0, random.Random(2)))
    counts = [0] * 1000
    for at in times:
        if at < 100 * SECOND:
            counts[at // (SECOND // 10)] += 1
    counts = counts[:900]
    mean = sum(counts) / len(counts)
    assert mean == pytest.approx(100, rel=0.02)
    assert sum((count - mean) ** 2 for count in counts) / len(counts) == pytest.approx(100, rel=0.15)


def test_the_same_seed_gives_the_same_arrivals():
    assert first(50, poisson(10.0, random.Random(5))) == first(50, poisson(10.0, random.Random(5)))
    assert first(50, poisson(10.0, random.Random(5))) != first(50, poisson(10.0, random.Random(6)))


def drained(schedule):
    return list(iter(lambda: schedule.take(NEVER - 1), None))


class TestSchedule:
    def test_none_is_due_before_its_moment(self):
        schedule = Schedule(constant(10.0), 1000, NEVER)
        assert schedule.next == 1000
        assert schedule.take(999) is None
        assert schedule.take(1000) == 1000
        assert schedule.next == 1000 + SECOND // 10

    def test_those_that_wait_come_in_order_with_their_own_moments(self):
        schedule = Schedule(constant(10.0), 0, NEVER)
        assert [schedule.take(SECOND) for _ in range(12)] == [*range(0, SECOND + 1, SECOND // 10), None]

    def test_none_is_due_at_the_end_or_later(self):
        assert drained(Schedule(constant(10.0), 0, SECOND // 5)) == [0, SECOND // 10]
        assert Schedule(constant(10.0), 5, 5).next == NEVER

    def test_so_many_are_counted_and_the_warm_up_is_not(self):
        times = drained(Schedule(constant(10.0), 0, NEVER, counted_from=SECOND, most=4))
        assert [at for at in times if at >= SECOND] == [SECOND + n * SECOND // 10 for n in range(4)]
        assert len(times) == 14

    def test_it_can_be_ended_early(self):
        schedule = Schedule(constant(10.0), 0, NEVER)
        schedule.end(SECOND // 4)
        assert drained(schedule) == [0, SECOND // 10, SECOND // 5]
        schedule = Schedule(constant(10.0), 0, NEVER)
        schedule.take(0)
        schedule.end(1)
        assert schedule.next == NEVER


def stalled(schedule, connections, service, stall):
    """A server in a simulation: it answers in `service`, but during `stall` (from, to) nothing.

    Requests leave when they are due, or when a connection is free again. Latencies from both moments.
    """
    free = [0] * connections  # when each connection is free
    heapq.heapify(free)
    from_due, from_sending = [], []
    while (due := schedule.take(NEVER - 1)) is not None:
        sent = max(due, heapq.heappop(free))
        begun = stall[1] if stall[0] <= sent < stall[1] else sent
        ends = begun + service
        heapq.heappush(free, ends)
        from_due.append(ends - due)
        from_sending.append(ends - sent)
    return from_due, from_sending


@pytest.mark.parametrize("arrivals", [constant(1000.0), poisson(1000.0, random.Random(4))])
def test_a_server_that_stops_for_a_second_shows_in_the_latency_from_when_requests_were_due(arrivals):
    """Ten seconds at 1,000 a second on 8 connections: a tenth of all callers met the second in which nothing moved."""
    schedule = Schedule(arrivals, 0, 10 * SECOND)
    from_due, from_sending = stalled(schedule, 8, SECOND // 1000, (4 * SECOND, 5 * SECOND))
    due, sending = Histogram(), Histogram()
    due.record(from_due)
    sending.record(from_sending)
    assert due.percentile(0.99) > 0.85 * SECOND
    assert due.percentile(0.95) > 0.4 * SECOND
    assert sending.percentile(0.99) < 0.002 * SECOND  # what a tester says that leaves those out
    assert sum(latency > SECOND // 2 for latency in from_sending) <= 8


class TestShares:
    def test_a_step_is_shared_out_whole(self):
        step = Step(10, 1.0, 0.0, rate=900.0, requests=100)
        shares = [step.share(number, 3) for number in range(3)]
        assert [share.connections for share in shares] == [4, 3, 3]
        assert sum(share.requests or 0 for share in shares) == 100
        assert sum(share.rate or 0 for share in shares) == pytest.approx(900)
        assert step.share(0, 1) is step

    @pytest.mark.parametrize("expected", [[], [b"x"], [b"%d" % n for n in range(10)]])
    def test_a_plan_is_shared_out_with_the_answers_that_belong_to_it(self, expected):
        plan = Plan(Target("h", 1), [b"%d" % n for n in range(10)], 1.0, expected, seed=3)
        shares = [plan.share(number, 3) for number in range(3)]
        assert sorted(request for share in shares for request in share.requests) == sorted(plan.requests)
        for share in shares:
            assert share.expected == (share.requests if len(expected) > 1 else expected)
        assert len({share.seed for share in shares}) == 3

    def test_too_few_requests_are_sent_by_all(self):
        plan = Plan(Target("h", 1), [b"a"], 1.0)
        assert [plan.share(number, 2).requests for number in range(2)] == [[b"a"], [b"a"]]
