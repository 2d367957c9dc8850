"""The whole pool on a manual clock."""

from __future__ import annotations

from random import Random

import pytest

from maitred.endpoint import Ticket
from maitred.errors import DeadlinePassed, NoReplica, QueueFull, TooLarge, WouldBeLate
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL
from maitred.scheduling.dispatcher import Batch, Cause, DispatchSettings
from maitred.testing.dispatch import Ending, ManualPool, hang_up, outcome


def outcomes(tickets: list[Ticket]) -> set[str]:
    return {outcome(ticket) for ticket in tickets}


def lanes_of(batch: Batch) -> list[int]:
    return [ticket.request.lane for ticket in batch.tickets]


def test_a_lone_request_starts_at_once() -> None:
    pool = ManualPool()
    ticket = pool.send()
    pool.tick()
    assert pool.started[0].tickets == [ticket]
    assert ticket.started_at == pool.now
    pool.run()
    assert outcome(ticket) == "ok"


def test_a_free_replica_takes_what_waits() -> None:
    pool = ManualPool(DispatchSettings(max_batch_rows=8), replicas=2)
    for _ in range(20):
        pool.send()
    pool.tick()
    assert [batch.rows for batch in pool.started] == [8, 8]
    pool.run()
    assert [batch.rows for batch in pool.started] == [8, 8, 4]


@pytest.mark.parametrize("rows", [1, 3, 7, 8])
def test_rows_never_exceed_the_bound(rows: int) -> None:
    """A15."""
    chance = Random(rows)
    pool = ManualPool(DispatchSettings(max_batch_rows=8), replicas=3)
    tickets = [pool.send(chance.randint(0, rows), lane=chance.randint(0, 2)) for _ in range(500)]
    pool.run()
    assert all(batch.rows <= 8 and batch.rows == sum(t.request.rows for t in batch.tickets) for batch in pool.started)
    assert outcomes(tickets) == {"ok"}


def test_a_cut_request_is_admitted_or_refused_as_one() -> None:
    pool = ManualPool(DispatchSettings(max_batch_rows=8, max_waiting_rows=32))

    def cut(parts: int) -> tuple[Ticket, list[Ticket]]:
        made = [pool.ticket(8) for _ in range(parts)]
        return pool.submit(pool.ticket(8 * parts), made), made

    whole, parts = cut(3)
    assert not whole.ended and pool.dispatcher.waiting_rows() == 24
    refused, unused = cut(2)
    assert isinstance(refused.error, QueueFull) and pool.dispatcher.waiting_rows() == 24
    assert isinstance(cut(5)[0].error, TooLarge)
    hang_up(unused[0])  # as a pool would whose request was refused
    hang_up(whole)
    assert pool.dispatcher.waiting_rows() == 24, "the whole never waited; its parts do"
    pool.run()
    assert outcomes(parts) == {"ok"}


# Deadlines


def test_nothing_is_answered_late_or_run_when_late() -> None:
    """A11: deadlines shorter than the wait, ten thousand of them."""
    pool = ManualPool(DispatchSettings(max_waiting_rows=20_000), seconds=lambda rows: 0.05)
    chance = Random(1)
    tickets = [pool.send(deadline_seconds=chance.uniform(0.01, 2.0)) for _ in range(10_000)]

    def started(batch: Batch) -> None:
        assert all(ticket.request.deadline > pool.now for ticket in batch.tickets)

    pool.on_start = started
    pool.run()
    for ticket in tickets:
        watcher = ticket.watcher
        assert isinstance(watcher, Ending) and watcher.times == 1
        assert watcher.at <= ticket.request.deadline + 1e-9
        if ticket.error is not None:
            assert isinstance(ticket.error, (DeadlinePassed, WouldBeLate))
    assert len([ticket for ticket in tickets if outcome(ticket) == "ok"]) > 1500
    assert pool.dispatcher.waiting_rows() == pool.dispatcher.running_rows() == 0


def test_the_text_says_whether_it_waited_or_ran() -> None:
    pool = ManualPool(seconds=lambda rows: 1.0)
    running = pool.send(deadline_seconds=0.5)
    pool.tick()
    waiting = pool.send(deadline_seconds=0.25)
    pool.run(0.3)
    assert isinstance(waiting.error, DeadlinePassed) and "waited in the queue, for 0.250 s" in waiting.error.message
    assert not running.ended
    pool.run(0.3)
    assert isinstance(running.error, DeadlinePassed) and "0.500 s of running" in running.error.message
    assert pool.abandoned == pool.started, "nobody wants the running batch any more"


def test_wakes_are_rare() -> None:
    """A deadline that is later than one that was asked for asks for nothing."""
    pool = ManualPool(seconds=lambda rows: 0.001)
    asked: list[float] = []
    pool.wake = asked.append  # type: ignore[method-assign, assignment]
    for _ in range(1000):
        pool.send(deadline_seconds=30.0)
        pool.run(0.002)
    assert len(asked) == 1


def test_an_alarm_that_rings_early_is_set_again() -> None:
    pool = ManualPool(replicas=0)
    asked: list[float] = []
    pool.wake = asked.append  # type: ignore[method-assign, assignment]
    ticket = pool.send(deadline_seconds=0.1)
    deadline = ticket.request.deadline
    pool.now = deadline - 0.005
    pool.dispatcher.rang()
    pool.tick()
    assert asked == [deadline, deadline] and not ticket.ended
    pool.now = deadline
    pool.tick()
    assert outcome(ticket) == "deadline_passed"


def test_a_long_lived_ticket_does_not_hold_ended_ones() -> None:
    pool = ManualPool(seconds=lambda rows: 10_000.0)
    pool.send(deadline_seconds=FOREVER)
    pool.tick()
    pool.send(deadline_seconds=5000.0)
    for _ in range(20_000):
        hang_up(pool.send(deadline_seconds=6000.0))
    assert len(list(pool.dispatcher.queue.tickets())) <= 1100
    assert pool.dispatcher.waiting_rows() == 1


# Cancel


def test_a_cancelled_batch_keeps_its_room_until_it_is_answered() -> None:
    pool = ManualPool()
    tickets = [pool.send() for _ in range(3)]
    pool.tick()
    for ticket in tickets:
        assert not pool.abandoned
        hang_up(ticket)
    assert pool.abandoned == pool.started
    waiting = pool.send()
    pool.tick()
    assert waiting.started_at == -1.0
    assert pool.dispatcher.running_rows() == 3
    pool.run()
    assert outcome(waiting) == "ok"


def test_callers_who_left_are_not_run() -> None:
    """128 leave while one batch runs: nothing but that batch is computed."""
    pool = ManualPool()
    tickets = [pool.send() for _ in range(64)]
    pool.tick()
    tickets += [pool.send() for _ in range(64)]
    for ticket in tickets:
        hang_up(ticket)
    pool.run()
    assert len(pool.started) == 1


def test_a_watcher_may_cancel_others_from_inside() -> None:
    """As parts of one request do: the first that fails takes the others along."""
    pool = ManualPool(seconds=lambda rows: 1.0)
    pool.send()
    pool.tick()
    family = [pool.ticket(deadline_seconds=0.5) for _ in range(5)]

    class Together:
        def piece(self, ticket: Ticket, chunk: object) -> None: ...

        def ended(self, ticket: Ticket) -> None:
            for other in family:
                hang_up(other)

    for ticket in family:
        ticket.watcher = Together()
        pool.submit(ticket)
    pool.run()
    assert sorted(outcome(ticket) for ticket in family) == ["cancelled"] * 4 + ["deadline_passed"]
    assert pool.dispatcher.waiting_rows() == 0


def test_cancelling_others_while_a_replica_is_lost() -> None:
    """Two batches of a lost replica: a member of one takes one of the other along."""
    pool = ManualPool(DispatchSettings(side_effects=True), room=2)
    first, second = pool.send(group=None), pool.send(group=None)

    class Together:
        def piece(self, ticket: Ticket, chunk: object) -> None: ...

        def ended(self, ticket: Ticket) -> None:
            hang_up(second)

    first.watcher = Together()
    pool.tick()
    pool.lose(1)
    pool.run()
    assert (outcome(first), outcome(second)) == ("replica_lost", "cancelled")
    assert not pool.abandoned


def test_a_replica_may_answer_while_it_is_started() -> None:
    """As one does that runs on the loop: start, answer and tick nest, but not once for each that waits."""
    pool = ManualPool(DispatchSettings(max_batch_rows=1))
    depth = deepest = 0

    def at_once(batch: Batch) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        pool._batch_over(batch)
        pool.tick()
        depth -= 1

    pool.on_start = at_once
    tickets = [pool.send() for _ in range(4000)]
    pool.tick()
    assert outcomes(tickets) == {"ok"}
    assert deepest == 1


# Lanes


def lane_pool(**more: int | float) -> ManualPool:
    """2 ms + 0.1 ms a row, learned."""
    pool = ManualPool(DispatchSettings(**more), seconds=lambda rows: 0.002 + 0.0001 * rows)  # type: ignore[arg-type]
    for _ in range(10):
        for rows in (1, 16, 64):
            pool.send(rows)
            pool.run()
    pool.started.clear()
    return pool


def test_a_flood_above_leaves_the_lower_lanes_their_share() -> None:
    pool = lane_pool(background_seconds=1.0)
    for lane in (HIGH, NORMAL, BACKGROUND):
        for number in range(4000):
            pool.send(lane=lane, group=lane if number % 2 else f"other {lane}")
    pool.run(0.5)
    rows = [0, 0, 0]
    for batch in pool.started:
        for lane in lanes_of(batch):
            rows[lane] += 1
    total = sum(rows)
    assert 0.05 <= rows[NORMAL] / total <= 0.075
    assert 0.05 <= rows[BACKGROUND] / total <= 0.075


def test_background_batches_are_short() -> None:
    pool = lane_pool(background_seconds=0.00305)
    for _ in range(100):
        pool.send(lane=BACKGROUND)
    pool.run()
    assert {batch.rows for batch in pool.started[:-1]} == {10}
    pool.started.clear()
    for _ in range(4):
        pool.send()
    for _ in range(100):
        pool.send(lane=BACKGROUND)
    pool.tick()
    assert lanes_of(pool.started[0]) == [NORMAL] * 4 + [BACKGROUND] * 6
    assert pool.dispatcher.part_rows(BACKGROUND) == 10
    assert pool.dispatcher.part_rows(NORMAL) == 64


def test_the_first_background_requests_teach_the_curve() -> None:
    pool = ManualPool(seconds=lambda rows: 0.0001 * rows)
    tickets = [pool.send(lane=BACKGROUND) for _ in range(200)]
    pool.run()
    assert outcomes(tickets) == {"ok"}
    assert [batch.rows for batch in pool.started[:3]] == [1, 1, 1]
    assert len(pool.started) < 10


@pytest.mark.parametrize(
    ("replicas", "keep_free", "busy"), [(1, None, 1), (3, None, 3), (4, None, 3), (4, 0, 4), (4, 2, 2), (8, None, 7)]
)
def test_background_leaves_replicas_alone(replicas: int, keep_free: int | None, busy: int) -> None:
    pool = ManualPool(DispatchSettings(keep_free=keep_free), replicas=replicas)
    for _ in range(100):
        pool.send(lane=BACKGROUND)
    pool.tick()
    assert len(pool.started) == busy


def test_a_background_backlog_refuses_nobody_online() -> None:
    pool = lane_pool(max_waiting_rows=1000)
    for _ in range(1000):
        pool.send(lane=BACKGROUND)
    assert outcome(pool.send(lane=BACKGROUND)) == "queue_full"
    assert pool.dispatcher.room(BACKGROUND) == 0
    assert pool.dispatcher.room(NORMAL) == 1000
    assert outcome(pool.send(deadline_seconds=0.02)) == "open"


def test_a_noisy_tenant_goes_one_lane_lower_while_there_is_a_queue() -> None:
    pool = ManualPool()
    alone = [pool.send(tenant="noisy") for _ in range(500)]
    assert {ticket.request.lane for ticket in alone} == {NORMAL}
    quiet = pool.send(tenant="quiet")
    noisy = pool.send(tenant="noisy")
    assert (quiet.request.lane, noisy.request.lane) == (NORMAL, BACKGROUND)
    pool.run()
    assert outcomes([*alone, quiet, noisy]) == {"ok"}
    assert pool.send(tenant="noisy").request.lane == NORMAL, "nothing waits"


# Replicas


def test_no_replica() -> None:
    pool = ManualPool(replicas=0)
    waiting = pool.send()
    pool.tick()
    assert not waiting.ended, "one is expected"
    pool.dispatcher.expect(0, pool.now)
    assert isinstance(waiting.error, NoReplica)
    assert isinstance(pool.send().error, NoReplica)
    pool.dispatcher.expect(1, pool.now)
    later = pool.send()
    pool.add_replica()
    pool.run()
    assert outcome(later) == "ok"


def test_a_replica_that_leaves_finishes_what_it_runs() -> None:
    pool = ManualPool(replicas=2, room=2)
    tickets = [pool.send(group=None) for _ in range(10)]
    pool.tick()
    pool.dispatcher.remove(1, pool.now)
    pool.dispatcher.remove(1, pool.now)
    pool.run()
    assert outcomes(tickets) == {"ok"}
    assert [batch.replica for batch in pool.started].count(1) == 2
    assert pool.dispatcher.load.slots == 2 == pool.dispatcher.load.room
    pool.dispatcher.add(1, 2, pool.now)
    assert pool.dispatcher.load.slots == 4


def test_unknown_things_are_said_to_be_unknown() -> None:
    pool = ManualPool()
    with pytest.raises(KeyError):
        pool.dispatcher.answered(1, 99, pool.now, 0.0)
    with pytest.raises(KeyError):
        pool.dispatcher.failed(1, 99, Cause.RAISED, TooLarge(""), pool.now)
    with pytest.raises(ValueError, match="replica 1"):
        pool.dispatcher.add(1, 1, pool.now)
    pool.send()
    pool.tick()
    with pytest.raises(KeyError):
        pool.dispatcher.answered(2, pool.started[0].id, pool.now, 0.0)
    pool.dispatcher.lost(77, pool.now)
    pool.dispatcher.remove(77, pool.now)


def test_the_idle_replica_is_preferred() -> None:
    pool = ManualPool(replicas=3, room=2)
    for _ in range(6):
        pool.send(group=None)
    pool.tick()
    assert [batch.replica for batch in pool.started] == [1, 2, 3, 1, 2, 3]


def test_evicted_tickets_can_go_elsewhere() -> None:
    """A rollback: what the bad version has not started goes to the good one, same ticket; a suspect stays apart."""
    bad, good = ManualPool(replicas=1), ManualPool(replicas=2)
    suspects = [bad.send() for _ in range(2)]
    bad.tick()
    bad.lose(1)
    waiting = [bad.send() for _ in range(5)]
    moved = bad.dispatcher.evict(bad.now)
    assert moved == suspects + waiting
    assert bad.dispatcher.waiting_rows() == 0
    for ticket in moved:
        ticket.owner = good
        good.submit(ticket)
    good.run()
    assert outcomes(moved) == {"ok"}
    assert sorted(len(batch.tickets) for batch in good.started) == [1, 1, 5]


# Load


def overload(factor: float, deadline_seconds: float, replicas: int = 4) -> tuple[float, ManualPool, list[Ticket]]:
    """Goodput as a part of capacity, on reliability's reference box: 10 ms + 0.2 ms a row, 8 rows, open load."""
    chance = Random(1)
    pool = ManualPool(DispatchSettings(max_batch_rows=8), seconds=lambda rows: 0.010 + 0.0002 * rows, replicas=replicas)
    capacity = replicas * 8 / 0.0116
    tickets: list[Ticket] = []
    end = pool.now + 3.0

    def arrive() -> None:
        tickets.append(pool.send(deadline_seconds=deadline_seconds))
        if pool.now < end:
            pool.call_at(pool.now + chance.expovariate(factor * capacity), arrive)

    pool.call_at(pool.now, arrive)
    pool.run()
    counted = [ticket for ticket in tickets if 1000.5 <= ticket.submitted_at < 1003.0]
    return sum(outcome(ticket) == "ok" for ticket in counted) / 2.5 / capacity, pool, tickets


@pytest.mark.parametrize(("factor", "wanted"), [(0.8, 0.78), (4.0, 0.95), (10.0, 0.9)])
def test_overload_is_no_collapse(factor: float, wanted: float) -> None:
    goodput, pool, tickets = overload(factor, 0.25)
    assert goodput >= wanted
    refused = [ticket.error for ticket in tickets if ticket.error is not None]
    assert all(error.retry_after_seconds for error in refused)
    assert pool.dispatcher.waiting_rows() == 0


def test_a_hundred_thousand_requests() -> None:
    """Random rows, groups, lanes, deadlines, hang-ups, failures and losses; everything ends, once."""
    chance = Random(7)
    pool = ManualPool(
        DispatchSettings(max_batch_rows=32),
        seconds=lambda rows: 0.001 + 0.0001 * rows,
        judge=lambda batch: chance.choice([Cause.RAISED, Cause.LOST]) if chance.random() < 0.002 else None,
        replicas=4,
        digest=id,
    )
    tickets: list[Ticket] = []

    def arrive() -> None:
        for _ in range(100):
            ticket = pool.send(
                chance.choice((1, 1, 1, 4, 32)),
                lane=chance.choice((0, 1, 1, 2)),
                group=chance.choice("aaab"),
                deadline_seconds=chance.choice((0.05, 0.5, 30.0)),
            )
            tickets.append(ticket)
            if not ticket.ended and chance.random() < 0.1:
                pool.call_at(pool.now + chance.uniform(0, 0.05), hang_up, ticket)
        if len(tickets) < 100_000:
            pool.call_at(pool.now + 0.02, arrive)

    pool.call_at(pool.now, arrive)
    pool.run()
    assert len(tickets) == 100_000
    assert all(isinstance(t.watcher, Ending) and t.watcher.times == 1 for t in tickets)
    assert sum(outcome(ticket) == "ok" for ticket in tickets) > 50_000
    assert pool.dispatcher.waiting_rows() == pool.dispatcher.running_rows() == 0
    assert all(batch.rows <= 32 for batch in pool.started)


def test_one_bad_row_among_many_fails_alone_whatever_else_waits() -> None:
    """A13, a thousand batches."""
    chance = Random(3)
    pool = ManualPool(
        DispatchSettings(max_batch_rows=32),
        judge=lambda batch: Cause.RAISED if any(t.request.id == "bad" for t in batch.tickets) else None,
    )
    for _ in range(1000):
        bad = chance.randrange(32)
        tickets = [pool.send(name="bad" if number == bad else "good") for number in range(32)]
        pool.run()
        assert [outcome(ticket) for ticket in tickets] == ["model_fault" if n == bad else "ok" for n in range(32)]
    assert len(pool.started) < 20 * 1000


def test_a_suspect_is_tried_on_the_only_replica_there_will_be() -> None:
    pool = ManualPool(restart_seconds=0.1)
    [suspect] = [pool.send()]
    pool.tick()
    pool.lose(1)
    pool.run()
    assert outcome(suspect) == "ok"
