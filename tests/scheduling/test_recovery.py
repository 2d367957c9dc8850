"""The table of failures and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.endpoint import Ticket
from maitred.errors import ModelFault, Quarantined, ReplicaLost
from maitred.messages import HIGH, NORMAL, Request
from maitred.scheduling.dispatcher import Batch, Cause, DispatchSettings
from maitred.scheduling.recovery import TABLE, Group, Quarantine, RowBound, Split, Standing, Step, divide, standing
from maitred.testing.dispatch import ManualPool, hang_up, outcome

RAISED = [Cause.RAISED, Cause.MALFORMED, Cause.WRONG_COUNT, Cause.OUT_OF_MEMORY]


@pytest.mark.parametrize(
    ("causes", "where", "step"),
    [
        (RAISED, Standing.MANY, Step.SPLIT),
        (RAISED, Standing.ONE, Step.FAIL),
        (RAISED, Standing.ALONE, Step.FAIL),
        (RAISED, Standing.EFFECTS, Step.FAIL),
        ([Cause.LOST], Standing.EFFECTS, Step.FAIL),
        ([Cause.LOST], Standing.MANY, Step.APART),
        ([Cause.LOST], Standing.ONE, Step.APART),
        ([Cause.LOST], Standing.ALONE, Step.QUARANTINE),
        ([Cause.LOST], Standing.UNSTARTED, Step.BACK),
    ],
)
def test_table(causes: list[Cause], where: Standing, step: Step) -> None:
    for cause in causes:
        assert TABLE[cause][where] is step


def test_every_case_has_a_row() -> None:
    for cause, members, alone, effects in product(Cause, (1, 2, 32), (False, True), (False, True)):
        assert standing(members, alone=alone, started=True, side_effects=effects) in TABLE[cause]
    assert standing(1, alone=True, started=False, side_effects=True) is Standing.UNSTARTED


def group(size: int, *, broken: bool = True, apart: bool = False, split: Split | None = None) -> Group:
    tickets = [Ticket(Request({}, 1, "g", 1.0)) for _ in range(size)]
    return Group(tickets, split, broken=broken, apart=apart)


def sizes(groups: list[Group] | None) -> list[int] | None:
    return None if groups is None else [len(part.tickets) for part in groups]


def test_divide() -> None:
    assert sizes(divide(group(5))) == [3, 2]
    assert sizes(divide(group(1))) == [1]
    assert sizes(divide(group(4, broken=False))) == [4]
    assert sizes(divide(group(3, broken=False, apart=True))) == [1, 1, 1]
    split = Split()
    half = group(4, split=split)
    split.settle(failed=True)
    assert divide(half) is None, "the other half may yet fail"
    split.settle(failed=True)
    assert sizes(divide(half)) == [1, 1, 1, 1]
    split.failed = 1
    assert sizes(divide(half)) == [2, 2]


def poisoned_pool(
    poison: Iterable[int], cause: Cause, size: int = 32, **more: object
) -> tuple[ManualPool, list[Ticket]]:
    """One batch of `size` requests, of which some make whatever they are in fail."""
    names = {str(number) for number in poison}

    def judge(batch: Batch) -> Cause | None:
        return cause if any(ticket.request.id in names for ticket in batch.tickets) else None

    pool = ManualPool(judge=judge, digest=lambda request: request.id, **more)  # type: ignore[arg-type]
    return pool, [pool.send(name=str(number)) for number in range(size)]


@pytest.mark.parametrize("cause", [Cause.RAISED, Cause.WRONG_COUNT])
@pytest.mark.parametrize(
    ("poison", "calls"), [([], 1), ([13], 11), ([0], 11), ([31], 11), (range(32), 35), ([0, 16], 35), ([0, 8], 21)]
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_bad_row_fails_alone(poison: list[int], calls: int, cause: Cause, replicas: int) -> None:
    pool, tickets = poisoned_pool(poison, cause, replicas=replicas)
    pool.run()
    assert len(pool.started) == calls
    for number, ticket in enumerate(tickets):
        assert outcome(ticket) == ("model_fault" if number in poison else "ok")


@given(st.integers(1, 64).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_at_most_n_and_three_calls(case: tuple[int, set[int]]) -> None:
    size, poison = case
    pool, tickets = poisoned_pool(poison, Cause.RAISED, size)
    pool.run()
    assert len(pool.started) <= size + 3
    for number, ticket in enumerate(tickets):
        assert outcome(ticket) == ("model_fault" if number in poison else "ok")


def test_halves_go_before_what_came_later_and_never_merge() -> None:
    pool, tickets = poisoned_pool([2], Cause.RAISED, 4)
    pool.run(0.001)
    later = [pool.send(name="later") for _ in range(10)]
    pool.run()
    assert [len(batch.tickets) for batch in pool.started] == [4, 2, 2, 1, 1, 10]
    assert pool.started[-1].tickets == later
    assert outcome(tickets[2]) == "model_fault"


def test_a_callers_mistake_is_the_callers_alone() -> None:
    pool, tickets = poisoned_pool([3], Cause.MALFORMED, 8)
    pool.run()
    assert [outcome(ticket) for ticket in tickets] == ["ok"] * 3 + ["malformed"] + ["ok"] * 4


def test_where_nothing_runs_twice_nobody_is_blamed_for_anothers_mistake() -> None:
    pool, tickets = poisoned_pool([3], Cause.MALFORMED, 8, settings=DispatchSettings(side_effects=True))
    pool.run()
    assert [outcome(ticket) for ticket in tickets] == ["model_fault"] * 8
    pool, [alone] = poisoned_pool([0], Cause.MALFORMED, 1, settings=DispatchSettings(side_effects=True))
    pool.run()
    assert outcome(alone) == "malformed"


@pytest.mark.parametrize("cause", [Cause.RAISED, Cause.LOST, Cause.OUT_OF_MEMORY, Cause.WRONG_COUNT])
def test_side_effects_never_run_twice(cause: Cause) -> None:
    pool, tickets = poisoned_pool([3], cause, settings=DispatchSettings(side_effects=True))
    pool.run()
    assert len(pool.started) == 1
    expected = ReplicaLost if cause is Cause.LOST else ModelFault
    assert all(isinstance(ticket.error, expected) for ticket in tickets)


def test_a_culprit_takes_two_replicas_and_is_refused_then() -> None:
    pool, tickets = poisoned_pool([7], Cause.LOST, replicas=2)
    pool.run()
    assert pool.losses == 2
    assert [outcome(ticket) for ticket in tickets] == ["ok"] * 7 + ["quarantined"] + ["ok"] * 24
    assert all(len(batch.tickets) == 1 and batch.alone for batch in pool.started[1:])
    again = pool.send(name="7")
    assert isinstance(again.error, Quarantined) and not again.error.safe_to_retry
    assert pool.losses == 2
    other = pool.send(name="8")
    pool.run(599.0)
    assert outcome(other) == "ok"
    assert isinstance(pool.send(name="7").error, Quarantined)
    pool.run(2.0)
    assert outcome(pool.send(name="7")) == "open", "ten minutes are over"


def test_an_innocent_alone_at_the_first_loss_is_answered() -> None:
    """A process killed from outside: whoever was on it is tried again."""
    pool = ManualPool(digest=lambda request: request.id)
    ticket = pool.send(name="x")
    pool.run(0.001)
    pool.lose(1)
    pool.run()
    assert outcome(ticket) == "ok"
    assert outcome(pool.send(name="x")) == "open"


def test_a_suspect_shares_its_replica_with_nobody() -> None:
    """Replicas that take many at once: one is kept from taking more until it is idle."""
    pool = ManualPool(replicas=2, room=4, seconds=lambda rows: 0.01, restart_seconds=1000.0)
    suspect = pool.send(group=None)
    pool.send(group=None)
    pool.run(0.001)
    assert [batch.replica for batch in pool.running.values()] == [1, 2]
    pool.send(group=None)
    pool.lose(1)
    for _ in range(50):  # the one that is left is never idle by itself
        pool.send(group=None)
        pool.send(group=None)
        pool.run(0.0051)
    assert outcome(suspect) == "ok"
    pool.run(1.0)
    alone = [batch for batch in pool.started if batch.alone]
    assert [batch.tickets for batch in alone] == [[suspect]]
    start, end = alone[0].started_at, alone[0].started_at + 0.01
    others = [b for b in pool.started if b.replica == alone[0].replica and b is not alone[0]]
    assert not [b for b in others if b.started_at < end and b.started_at + 0.01 > start + 1e-9]


def test_what_had_not_started_goes_back_uncharged() -> None:
    pool = ManualPool(room=2, settings=DispatchSettings(max_batch_rows=4))
    first, second = [[pool.send() for _ in range(4)] for _ in range(2)]
    pool.run(0.001)
    pool.lose(1, started=frozenset([pool.started[0].id]))
    pool.run()
    assert all(outcome(ticket) == "ok" for ticket in first + second)
    assert [ticket.attempts for ticket in first] == [1] * 4
    assert [ticket.attempts for ticket in second] == [0] * 4
    assert [len(batch.tickets) for batch in pool.started] == [4, 4, 1, 1, 1, 1, 4]


def test_between_runs_callers_may_leave_and_deadlines_pass() -> None:
    pool, tickets = poisoned_pool([0], Cause.RAISED, 8)
    tickets.append(pool.send(name="short", deadline_seconds=0.006))
    pool.run(0.0051)
    hang_up(tickets[1])
    pool.run()
    assert [outcome(ticket) for ticket in tickets] == ["model_fault", "cancelled"] + ["ok"] * 6 + ["deadline_passed"]
    runs = [ticket for batch in pool.started[2:] for ticket in batch.tickets]
    assert tickets[8] not in runs


def test_a_half_whose_members_all_left_does_not_hold_up_the_other() -> None:
    pool, tickets = poisoned_pool([0], Cause.RAISED, 4)
    pool.run(0.0051)  # the whole has failed, the first half runs
    for ticket in tickets[2:]:
        hang_up(ticket)
    pool.run()
    assert [outcome(ticket) for ticket in tickets] == ["model_fault", "ok", "cancelled", "cancelled"]


def test_what_is_left_of_a_mixed_batch_goes_on_though_its_best_lane_has_nobody_left() -> None:
    pool = ManualPool(judge=lambda batch: Cause.RAISED if len(batch.tickets) > 1 else None)
    best, lower = pool.send(lane=HIGH), [pool.send(lane=NORMAL) for _ in range(2)]
    pool.tick()
    assert len(pool.started[0].tickets) == 3
    pool.run(0.006)
    hang_up(best)
    pool.run()
    assert [outcome(ticket) for ticket in lower] == ["ok", "ok"]

    pool = ManualPool(judge=lambda batch: Cause.RAISED if len(batch.tickets) > 2 else None)
    best, lower = pool.send(lane=HIGH), [pool.send(lane=NORMAL) for _ in range(2)]
    pool.on_start = lambda batch: pool.call_at(batch.started_at + 0.005, hang_up, best)
    pool.run()
    assert [outcome(ticket) for ticket in lower] == ["ok", "ok"]


def test_out_of_memory_halves_the_batches_until_it_has_held() -> None:
    def judge(batch: Batch) -> Cause | None:
        return Cause.OUT_OF_MEMORY if batch.rows > 20 else None

    pool = ManualPool(judge=judge)
    tickets = [pool.send() for _ in range(64 + 16 * 70)]
    pool.run()
    assert all(outcome(ticket) == "ok" for ticket in tickets)
    rows = [batch.rows for batch in pool.started]
    assert rows[:3] == [64, 32, 32]
    assert rows[3:67] == [1] * 64, "both halves failed"
    assert max(rows[67:]) == 32 and rows.index(32, 67) > 67 + 16, "what fits is tried again after a while"
    assert rows[67] == 16


def test_batches_shrink_while_many_rows_fail() -> None:
    bound = RowBound(64)
    bound.failed(1)
    assert bound.rows == 64, "one bad row is no reason"
    for _ in range(2000):
        bound.failed(1)
    assert bound.rows == 1, "all fail: one call a row"
    bound.answered(100_000, 64)
    assert bound.rows == 64
    for _ in range(3000):
        bound.failed(1)
        bound.answered(9, 9)
    assert bound.rows == round(1 / sqrt(0.1))


def test_quarantine_is_bounded_and_ends() -> None:
    quarantine = Quarantine(600.0, 3)
    for number in range(5):
        quarantine.add(number, float(number))
    assert [quarantine.holds(number, 5.0) for number in range(5)] == [False, False, True, True, True]
    quarantine.add(2, 300.0)
    assert [quarantine.holds(number, 604.5) for number in range(2, 5)] == [True, False, False]
    assert not quarantine.holds(2, 900.0)
    assert not quarantine.until


def test_suspects_are_remembered_once_and_refused_never() -> None:
    quarantine = Quarantine(600.0, 3)
    quarantine.suspect("a", 0.0)
    assert not quarantine.holds("a", 1.0)
    assert quarantine.recall("a") and not quarantine.recall("a") and not quarantine.until
    quarantine.suspect("a", 2.0)
    assert not quarantine.holds("b", 61.9) and quarantine.until
    assert not quarantine.holds("b", 62.1) and not quarantine.until, "a minute"
    assert not quarantine.recall("a")
    quarantine.suspect("a", 70.0)
    quarantine.add("a", 71.0)
    quarantine.suspect("a", 72.0)
    assert quarantine.holds("a", 73.0) and not quarantine.recall("a"), "the culprit is no suspect any more"
    for name in "bcd":
        quarantine.suspect(name, 74.0)
    assert not quarantine.holds("a", 75.0), "bounded: the oldest makes place"
    quarantine.add("e", 76.0)
    assert list(quarantine.until) == ["c", "d", "e"]
    assert not quarantine.recall("b") and quarantine.recall("c")
