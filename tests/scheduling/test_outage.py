"""Requests while no replica is ready: served if one is back in time, else refused soon, and told why."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.endpoint import Ticket
from maitred.errors import DeadlinePassed, NoReplica, Quarantined, ReplicaLost
from maitred.messages import BACKGROUND, FOREVER, HIGH
from maitred.scheduling.dispatcher import Cause, DispatchSettings
from maitred.scheduling.outage import Outage
from maitred.testing.dispatch import Ending, ManualPool, hang_up, outcome

PATIENCE = DispatchSettings().outage_seconds


@dataclass
class Case:
    why: str
    hope_ends: float
    lost_at: float | None = 50.0
    expected: int = 1
    looping: bool = False


CASES = [
    Case("the first start takes as long as it takes", FOREVER, lost_at=None),
    Case("the first start fails again and again", -FOREVER, lost_at=None, looping=True),
    Case("none is started", -FOREVER, lost_at=None, expected=0),
    Case("a lost copy may be back soon", 50.8),
    Case("it dies again and again", -FOREVER, looping=True),
    Case("it is not started again", -FOREVER, expected=0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_table(case: Case) -> None:
    outage = Outage(0.8)
    if case.lost_at is not None:
        outage.begin(case.lost_at)
    outage.expected, outage.looping = case.expected, case.looping
    assert outage.hope_ends() == pytest.approx(case.hope_ends)
    for ran, kind in ((False, NoReplica), (True, ReplicaLost)):
        error = outage.refusal(ran)
        assert type(error) is kind and error.http_status == 503
        assert error.retry_after_seconds is not None and error.retry_after_seconds > 0
        assert error.safe_to_retry is not ran


def test_a_new_outage_begins_with_hope() -> None:
    outage = Outage(0.8)
    outage.expected, outage.looping = 0, True
    outage.begin(10.0)
    assert outage.hope_ends() == pytest.approx(10.8)


def ended_at(ticket: Ticket) -> float:
    watcher = ticket.watcher
    assert isinstance(watcher, Ending) and watcher.times == 1
    return watcher.at


def test_a_copy_that_is_back_in_time_serves_those_who_waited() -> None:
    pool = ManualPool(restart_seconds=0.7)
    running = pool.send()
    pool.tick()
    waiting = [pool.send(lane=lane) for lane in (HIGH, BACKGROUND)]
    pool.lose(1)
    waiting += [pool.send() for _ in range(10)]
    pool.run()
    assert {outcome(ticket) for ticket in [running, *waiting]} == {"ok"}


def test_nobody_waits_longer_than_a_moment_for_a_slow_start() -> None:
    pool = ManualPool(restart_seconds=5.0)
    pool.lose(1)
    lost_at = pool.now
    tickets = [pool.send(), pool.send(deadline_seconds=30.0), pool.send(lane=BACKGROUND), pool.send(group=None)]
    pool.run(0.5)
    tickets.append(pool.send())
    assert not any(ticket.ended for ticket in tickets)
    late = pool.send(deadline_seconds=0.1)
    pool.run(0.5)
    for ticket in tickets:
        assert isinstance(ticket.error, NoReplica) and ticket.error.retry_after_seconds
        assert ended_at(ticket) == pytest.approx(lost_at + PATIENCE)
    assert isinstance(late.error, DeadlinePassed)
    assert pool.dispatcher.waiting_rows() == 0
    at_once = pool.send()
    assert isinstance(at_once.error, NoReplica) and ended_at(at_once) == pool.now
    pool.run(5.0)
    served = pool.send()
    pool.run()
    assert outcome(served) == "ok"


def test_another_outage_is_another_moment() -> None:
    pool = ManualPool(restart_seconds=0.5)
    tickets = []
    for replica in (1, 2, 3):
        pool.lose(replica)
        tickets.append(pool.send())
        pool.run(2.0)
    assert [outcome(ticket) for ticket in tickets] == ["ok"] * 3


def test_one_ready_copy_is_no_outage() -> None:
    pool = ManualPool(seconds=lambda rows: 3.0, replicas=2, restart_seconds=60.0)
    pool.send()
    pool.tick()
    pool.lose(2)
    waiting = pool.send()
    pool.run(10.0)
    assert outcome(waiting) == "ok"


def test_the_first_start_is_waited_for() -> None:
    pool = ManualPool(replicas=0)
    waiting = pool.send(deadline_seconds=100.0)
    pool.run(60.0)
    assert not waiting.ended
    pool.add_replica()
    pool.run()
    assert outcome(waiting) == "ok"


def test_once_copies_die_one_after_the_other_everybody_is_refused_at_once() -> None:
    pool = ManualPool(restart_seconds=60.0)
    pool.lose(1)
    waiting = pool.send()
    pool.run(0.1)
    pool.dispatcher.expect(1, pool.now)
    assert not waiting.ended
    pool.dispatcher.expect(1, pool.now, looping=True)
    assert isinstance(waiting.error, NoReplica) and ended_at(waiting) == pool.now
    assert isinstance(pool.send().error, NoReplica)
    assert pool.dispatcher.waiting_rows() == 0
    pool.add_replica()
    served = pool.send()
    pool.run(1.0)
    assert outcome(served) == "ok", "a copy that is ready is given work, whatever happened before"


def test_an_alarm_that_rings_early_is_set_again() -> None:
    pool = ManualPool(restart_seconds=60.0)
    asked: list[float] = []
    pool.wake = asked.append  # type: ignore[method-assign, assignment]
    pool.lose(1)
    ticket = pool.send()
    end = pool.now + PATIENCE
    pool.now = end - 0.005
    pool.dispatcher.rang()
    pool.tick()
    assert asked == [end, end] and not ticket.ended
    pool.now = end
    pool.tick()
    assert outcome(ticket) == "no_replica"


def killer_pool(restart_seconds: float) -> ManualPool:
    """Inputs are known by their request's id; the one named `deadly` ends its replica."""
    return ManualPool(
        judge=lambda batch: Cause.LOST if any(t.request.id == "deadly" for t in batch.tickets) else None,
        restart_seconds=restart_seconds,
        digest=lambda request: request.id,
    )


def test_an_input_that_kills_a_slow_starter_is_found_out_when_it_comes_again() -> None:
    """A5 where the one copy needs longer to start than requests wait."""
    pool = killer_pool(restart_seconds=5.0)
    first, neighbour = pool.send(name="deadly"), pool.send(name="good")
    pool.run(10.0)
    assert isinstance(first.error, ReplicaLost) and isinstance(neighbour.error, ReplicaLost)
    again, neighbour = pool.send(name="deadly"), pool.send(name="good")
    pool.run(10.0)
    assert isinstance(again.error, Quarantined) and pool.losses == 2
    assert pool.started[1].alone, "it is tried alone at once"
    assert isinstance(pool.send(name="deadly").error, Quarantined)
    others = [pool.send(name="good") for _ in range(2)]
    pool.run()
    assert {outcome(ticket) for ticket in others} == {"ok"} and pool.losses == 2


def test_a_suspect_is_tried_alone_once_and_then_forgotten() -> None:
    pool = killer_pool(restart_seconds=5.0)
    pool.send(name="deadly")
    pool.send(name="good")
    pool.run(10.0)
    for alone in (True, False):
        pool.started.clear()
        pool.send(name="good")
        pool.send(name="other")
        pool.run(1.0)
        assert any(batch.alone for batch in pool.started) is alone


Moves = st.lists(st.tuples(st.sampled_from(["send", "send", "lose", "hang up"]), st.floats(0.0, 0.5)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(Moves, st.integers(1, 2), st.sampled_from([0.3, 0.79, 0.81, 3.0]))
def test_no_wait_without_a_ready_copy_is_long(moves: list[tuple[str, float]], replicas: int, restart: float) -> None:
    chance = Random(1)
    pool = ManualPool(seconds=lambda rows: 0.2, replicas=replicas, restart_seconds=restart, digest=id)
    ready, outages = set(range(1, replicas + 1)), []
    tickets: list[Ticket] = []
    add = pool.dispatcher.add

    def added(replica: int, room: int, now: float) -> None:
        if not ready:
            outages[-1][1] = now
        ready.add(replica)
        add(replica, room, now)

    pool.dispatcher.add = added  # type: ignore[method-assign]
    for move, seconds in moves:
        if move == "send":
            tickets.append(pool.send(deadline_seconds=chance.choice((0.3, 30.0, FOREVER)), lane=chance.randrange(3)))
        elif move == "hang up" and tickets:
            hang_up(chance.choice(tickets))
        elif ready:
            lost = min(ready)
            ready.discard(lost)
            if not ready:
                outages.append([pool.now, FOREVER])
            pool.lose(lost)
        pool.run(seconds)
    pool.run()
    for ticket in tickets:
        assert outcome(ticket) != "open"
        for begin, end in outages:
            together = min(end, ended_at(ticket)) - max(begin, ticket.submitted_at)
            assert together <= PATIENCE + 1e-6
    assert pool.dispatcher.waiting_rows() == pool.dispatcher.running_rows() == 0


def test_whoever_comes_after_the_model_has_failed_hears_why() -> None:
    pool = ManualPool(restart_seconds=60.0)
    pool.lose(1)
    pool.dispatcher.expect(0, pool.now, reason="it was saved with scikit-learn 0.24.2")
    error = pool.send().error
    assert isinstance(error, NoReplica)
    assert error.message.endswith("and none is starting: it was saved with scikit-learn 0.24.2")
    pool.dispatcher.expect(0, pool.now)
    assert "scikit-learn" not in str(pool.send().error)
