"""What goes together."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from maitred.endpoint import Ticket
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL, Request
from maitred.scheduling.batching import Bounds, form
from maitred.scheduling.curve import Curve
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.scheduling.queue import Queue
from maitred.testing.dispatch import ManualPool


def queue_of(*waiting: tuple[int, Hashable, int], deadline: float = FOREVER) -> Queue:
    """(lane, group, rows) each, in order of arrival."""
    queue = Queue()
    for lane, group, rows in waiting:
        queue.push(Ticket(Request({}, rows, group, deadline, lane=lane)))
    return queue


def formed(queue: Queue, lane: int, rows: int = 8, background_rows: int = 0, curve: Curve | None = None) -> list[str]:
    """The batch as `lane group rows` strings."""
    bounds = Bounds(rows)
    bounds.background_rows = background_rows
    curve = curve or Curve()
    bounds.seconds = curve.seconds(rows)
    into: list[Ticket] = []
    weight = form(queue, lane, bounds, curve, 0.0, into, [])
    assert weight == sum(ticket.request.rows for ticket in into)
    return [f"{t.request.lane}{'-' if t.request.group is None else t.request.group}{t.request.rows}" for t in into]


def linear(rows: int = 64) -> Curve:
    """A millisecond a row."""
    curve = Curve()
    for _ in range(5):
        for size in (1, rows):
            curve.teach(size, size / 1000)
    return curve


TOP_UP = [
    ("one lane", [(1, "a", 1)] * 3, NORMAL, 0, ["1a1"] * 3),
    ("never more than fits", [(1, "a", 3)] * 3, NORMAL, 0, ["1a3"] * 2),
    ("one group a batch", [(1, "a", 1), (1, "b", 1), (1, "a", 1)], NORMAL, 0, ["1a1", "1a1"]),
    ("no group, no company", [(1, None, 1), (1, None, 1)], NORMAL, 0, ["1-1"]),
    ("topped up with the same group", [(0, "a", 1), (1, "a", 1), (1, "b", 1)], HIGH, 0, ["0a1", "1a1"]),
    ("best lane first", [(1, "a", 5), (0, "a", 5)], HIGH, 0, ["0a5"]),
    ("a lower lane that leads goes first", [(1, "a", 5), (0, "a", 5), (0, "a", 3)], NORMAL, 0, ["1a5"]),
    ("and is topped up from above", [(1, "a", 5), (0, "a", 3), (0, "a", 3)], NORMAL, 0, ["1a5", "0a3"]),
    ("background joins within its bound", [(1, "a", 2), *[(2, "a", 1)] * 9], NORMAL, 4, ["1a2", "2a1", "2a1"]),
    ("and not beyond", [(1, "a", 5), (2, "a", 1)], NORMAL, 4, ["1a5"]),
    ("background alone keeps to its bound", [(2, "a", 1)] * 9, BACKGROUND, 4, ["2a1"] * 4),
    ("one request always goes", [(2, "a", 7), (2, "a", 1)], BACKGROUND, 4, ["2a7"]),
    ("while nothing is known, one", [(2, "a", 1)] * 3, BACKGROUND, 0, ["2a1"]),
    ("nothing waits", [], NORMAL, 0, []),
]


@pytest.mark.parametrize(("why", "waiting", "lane", "background", "expected"), TOP_UP, ids=[case[0] for case in TOP_UP])
def test_who_goes_together(
    why: str, waiting: list[tuple[int, Hashable, int]], lane: int, background: int, expected: list[str]
) -> None:
    assert formed(queue_of(*waiting), lane, background_rows=background) == expected


def test_a_batch_is_small_enough_for_the_earliest_deadline() -> None:
    queue = queue_of(*[(1, "a", 1)] * 8, deadline=0.0055)
    assert len(formed(queue, NORMAL, curve=linear())) == 5


def test_what_is_late_anyway_does_not_make_the_batch_small() -> None:
    queue = queue_of((1, "a", 4), (1, "a", 4), deadline=0.0035)
    assert len(formed(queue, NORMAL, curve=linear())) == 2


def test_with_a_backlog_batches_stay_full_and_the_late_give_way() -> None:
    queue = queue_of(*[(1, "a", 1)] * 4, deadline=0.0055)
    for _ in range(8):
        queue.push(Ticket(Request({}, 1, "a", 1.0)))
    late: list[Ticket] = []
    into: list[Ticket] = []
    bounds = Bounds(8)
    bounds.seconds = 0.008
    assert form(queue, NORMAL, bounds, linear(), 0.0, into, late) == 8
    assert [ticket.request.deadline for ticket in late] == [0.0055] * 4
    assert all(ticket.request.deadline == 1.0 for ticket in into)


def test_a_batch_is_small_enough_for_those_too_who_are_in_a_greater_hurry_than_its_leader() -> None:
    queue = queue_of(*[(NORMAL, "a", 1)] * 2)
    for _ in range(4):
        queue.push(Ticket(Request({}, 1, "a", 0.0045, lane=HIGH)))
    assert formed(queue, NORMAL, curve=linear()) == ["1a1"] * 2 + ["0a1"] * 2
    assert queue.lanes[HIGH].rows == 2


def test_who_would_be_late_in_a_batch_however_small_does_not_make_it_small() -> None:
    queue = queue_of(*[(NORMAL, "a", 1)] * 5)
    queue.push(Ticket(Request({}, 1, "a", 0.0045, lane=HIGH)))
    assert formed(queue, NORMAL, curve=linear()) == ["1a1"] * 5 + ["0a1"]


def cliff(rows: int) -> float:
    """Past 32 rows a batch no longer fits into the cache: ten times as long a row."""
    return 0.001 + 0.0001 * min(rows, 32) + 0.001 * max(0, rows - 32)


def test_a_batch_that_no_longer_pays_is_formed_only_now_and_then_to_see_whether_it_does() -> None:
    pool = ManualPool(DispatchSettings(max_batch_rows=64), seconds=cliff)
    for rows in (4, 8, 16, 28) * 8:  # before there is a backlog
        for _ in range(rows):
            pool.send()
        pool.run()
    before = len(pool.started)
    backlog = [pool.send() for _ in range(4000)]
    pool.run()
    learned = [batch.rows for batch in pool.started[before + 32 : -1]]
    assert all(ticket.ended for ticket in backlog)
    assert len(learned) > 40
    assert sum(rows > 32 for rows in learned) <= len(learned) / 16


def test_where_larger_batches_pay_they_are_formed() -> None:
    pool = ManualPool(DispatchSettings(max_batch_rows=64), seconds=lambda rows: 0.001 + 0.0001 * rows)
    for _ in range(8000):
        pool.send()
        if not len(pool.started) % 7:
            pool.run(0.0004)
    pool.run()
    assert min(batch.rows for batch in pool.started[-60:-1]) == 64
