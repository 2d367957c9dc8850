"""Order, counts and memory of the queue."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.endpoint import Ticket
from maitred.errors import Cancelled
from maitred.messages import BACKGROUND, FOREVER, NORMAL, Request
from maitred.scheduling.queue import WAITING, Queue


def ticket(
    deadline: float = FOREVER, rows: int = 1, group: Hashable = "g", lane: int = NORMAL, size_bytes: int = 0
) -> Ticket:
    return Ticket(Request({}, rows, group, deadline, lane=lane, size_bytes=size_bytes))


def take(queue: Queue, lane: int = NORMAL, most: int = 64, now: float = 0.0) -> list[Ticket]:
    """One batch of the lane's leading line."""
    into: list[Ticket] = []
    if queue.lead(queue.lanes[lane]) is not None:
        queue.take(queue.lanes[lane].order[0][2], most, now, now, into, [])
    return into


def drain(queue: Queue, most: int = 1) -> list[Ticket]:
    taken: list[Ticket] = []
    while batch := take(queue, most=most):
        taken.extend(batch)
    return taken


def end(queue: Queue, ended: Ticket) -> None:
    ended.fail(Cancelled("gone"))
    assert queue.forget(ended)


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(1, 5), st.data())
def test_earliest_deadline_first_and_arrival_breaks_ties(deadlines: list[int], most: int, data: st.DataObject) -> None:
    queue = Queue()
    waiting: list[tuple[int, int, Ticket]] = []
    for number, deadline in enumerate(deadlines):
        pushed = ticket(float(deadline))
        queue.push(pushed)
        waiting.append((deadline, number, pushed))
        if data.draw(st.integers(0, 3)) == 0:
            waiting.sort()
            assert take(queue, most=most) == [entry[2] for entry in waiting[:most]]
            del waiting[:most]
    waiting.sort()
    assert drain(queue, most) == [entry[2] for entry in waiting]
    assert queue.lanes[NORMAL].rows == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), max_size=50))
def test_the_group_with_the_earliest_head_leads(pushes: list[tuple[int, str]]) -> None:
    queue = Queue()
    waiting: list[Ticket] = []
    for deadline, group in pushes:
        waiting.append(ticket(float(deadline), group=group))
        queue.push(waiting[-1])
    while batch := take(queue, most=3):
        assert len({member.request.group for member in batch}) == 1
        assert batch[0].request.deadline == min(other.request.deadline for other in waiting)
        for member in batch:
            waiting.remove(member)
    assert not waiting


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc"), st.booleans()), max_size=50))
def test_the_earliest_leads_though_lines_run_empty_between(pushes: list[tuple[int, str, bool]]) -> None:
    queue = Queue()
    waiting: list[float] = []
    for deadline, group, served in pushes:
        queue.push(ticket(float(deadline), group=group))
        waiting.append(float(deadline))
        if served:
            batch = take(queue, most=2)
            assert batch[0].request.deadline == min(waiting)
            for member in batch:
                waiting.remove(member.request.deadline)


def test_groups_without_deadlines_take_turns() -> None:
    queue = Queue()
    for _ in range(4):
        for group in "abc":
            queue.push(ticket(group=group))
    led = []
    for _ in range(6):
        led.append(take(queue, most=1)[0].request.group)
        queue.yield_turn(queue.lanes[NORMAL])
    assert led == ["a", "b", "c"] * 2


def test_rows_bound_a_batch_and_nothing_overtakes() -> None:
    queue = Queue()
    tickets = [ticket(rows=rows) for rows in (3, 4, 2, 1)]
    for pushed in tickets:
        queue.push(pushed)
    assert take(queue, most=8) == tickets[:2]  # the last would fit, but the third waits longer
    assert take(queue, most=8) == tickets[2:]


def test_requests_without_a_group_go_one_by_one() -> None:
    queue = Queue()
    tickets = [ticket(group=None) for _ in range(3)]
    for pushed in tickets:
        queue.push(pushed)
    assert [take(queue) for _ in range(3)] == [[only] for only in tickets]


def test_an_empty_request_weighs_one_row() -> None:
    queue = Queue()
    for _ in range(5):
        queue.push(ticket(rows=0))
    assert queue.lanes[NORMAL].rows == 5
    assert len(take(queue, most=3)) == 3
    assert queue.empty == 3


def test_a_late_ticket_is_set_apart() -> None:
    queue = Queue()
    first, second = ticket(1.0), ticket(2.0)
    queue.push(first)
    queue.push(second)
    into: list[Ticket] = []
    late: list[Ticket] = []
    assert queue.lead(queue.lanes[NORMAL]) is first
    assert queue.take(queue.lanes[NORMAL].order[0][2], 64, 1.0, 1.0, into, late) == 1
    assert (into, late) == ([second], [first])
    assert queue.lanes[NORMAL].rows == 0


def test_expire_tells_the_next_deadline() -> None:
    queue = Queue()
    tickets = [ticket(deadline, group=group) for deadline, group in ((3.0, "a"), (1.0, "a"), (2.0, "b"))]
    for pushed in tickets:
        queue.push(pushed)
    late: list[Ticket] = []
    assert queue.expire(queue.lanes[NORMAL], 2.0, late) == 3.0
    assert late == [tickets[1], tickets[2]]
    assert queue.expire(queue.lanes[NORMAL], 3.0, late) == FOREVER


def test_cancel_lowers_the_counts_at_once_and_only_once() -> None:
    queue = Queue()
    waiting = ticket(rows=7, size_bytes=100)
    queue.push(waiting)
    stranger = ticket()
    assert not queue.forget(stranger)
    end(queue, waiting)
    assert not queue.forget(waiting)
    assert (queue.lanes[NORMAL].rows, queue.lanes[NORMAL].size_bytes) == (0, 0)
    assert take(queue) == []


def test_a_ticket_that_ended_without_a_word_is_noticed_when_met() -> None:
    queue = Queue()
    waiting, other = ticket(1.0), ticket(2.0)
    queue.push(waiting)
    queue.push(other)
    waiting.fail(Cancelled("gone"))
    assert take(queue) == [other]
    assert queue.lanes[NORMAL].rows == 0


@pytest.mark.parametrize("order", ["in order", "out of order"])
@pytest.mark.parametrize("groups", [1, 40_000])
def test_cancelled_tickets_hold_no_memory(order: str, groups: int) -> None:
    """Behind one that lives long, many thousands come and go."""
    queue = Queue()
    chance = Random(1)
    oldest = ticket(0.5)
    queue.push(oldest)
    most = 0
    for number in range(40_000):
        deadline = 1.0 + (number if order == "in order" else chance.random())
        passing = ticket(deadline, group=number % groups)
        queue.push(passing)
        end(queue, passing)
        most = max(most, queue.lanes[NORMAL].dead)
    assert most <= 2000
    assert len(list(queue.tickets())) <= 2000
    assert len(queue.lanes[NORMAL].lines) <= 2000
    assert len(queue.lanes[NORMAL].order) <= 5000
    assert take(queue) == [oldest]


def test_lines_of_passing_groups_go_away() -> None:
    queue = Queue()
    for number in range(10_000):
        queue.push(ticket(float(number + 1), group=number))
        assert len(take(queue)) == 1
        queue.lead(queue.lanes[NORMAL])
    assert len(queue.lanes[NORMAL].lines) <= 65


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 20), st.lists(st.integers(1, 9), max_size=20)
)
def test_restored_tickets_go_first_again(deadlines: list[int], taken: int, later: list[int]) -> None:
    queue = Queue()
    for deadline in deadlines:
        queue.push(ticket(float(deadline)))
    batch = take(queue, most=taken)
    newer = [ticket(float(deadline)) for deadline in later]
    for pushed in newer:
        queue.push(pushed)
    rows = queue.lanes[NORMAL].rows
    queue.restore(batch)
    assert queue.lanes[NORMAL].rows == rows + len(batch)
    assert all(member.started_at == WAITING for member in batch)
    order = drain(queue)
    assert [other.request.deadline for other in order] == sorted(float(d) for d in deadlines + later)
    assert [member for member in order if member in batch] == batch


def test_clear_gives_everything_back_best_lane_first() -> None:
    queue = Queue()
    tickets = [ticket(deadline, lane=lane, group=deadline) for lane in (2, 1, 0) for deadline in (3.0, 1.0, 2.0)]
    for pushed in tickets:
        queue.push(pushed)
    end(queue, tickets[0])
    cleared = queue.clear()
    assert [(t.request.lane, t.request.deadline) for t in cleared] == [
        (0, 1.0), (0, 2.0), (0, 3.0), (1, 1.0), (1, 2.0), (1, 3.0), (BACKGROUND, 1.0), (BACKGROUND, 2.0),
    ]  # fmt: skip
    assert [lane.rows for lane in queue.lanes] == [0, 0, 0]
    assert not list(queue.tickets())
    assert not any(queue.forget(t) for t in cleared)


def test_the_fresh_go_first_and_the_older_keep_their_places() -> None:
    queue = Queue()
    waiting = []
    for number in range(6):
        pushed = ticket(100.0 + number)
        pushed.submitted_at = float(number)
        queue.push(pushed)
        waiting.append(pushed)
    end(queue, waiting[4])
    line = queue.lanes[NORMAL].lines["g"]

    def fresh(most: int, since: float) -> list[Ticket]:
        into: list[Ticket] = []
        assert queue.take_fresh(line, most, 10.0, since, 90.0, into) == len(into)
        return into

    assert fresh(2, 3.0) == [waiting[3], waiting[5]]
    assert list(line.tickets) == waiting[:3] and queue.lanes[NORMAL].rows == 3
    assert fresh(2, 3.0) == [waiting[2], waiting[1]], "none is fresh: the newest of the others"
    assert fresh(2, 0.0) == [waiting[0]]
    late = ticket(200.0)
    queue.push(late)
    assert drain(queue) == [late], "the line is as good as new"
    stated = ticket(10.5)
    stated.submitted_at = 9.0
    queue.push(stated)
    assert fresh(1, 5.0) == [], "who stated a deadline goes by that"
