"""Whatever happens, at whatever moment: every ticket ends exactly once and the counts come back to zero."""

from __future__ import annotations

import hashlib
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maitred.endpoint import Ticket
from maitred.messages import BACKGROUND, FOREVER
from maitred.scheduling.dispatcher import Batch, Cause, DispatchSettings
from maitred.testing.dispatch import Ending, ManualPool, hang_up, outcome

MAX_ROWS = 8
LANES = st.sampled_from([0, 1, 1, 1, 2])
GROUPS = st.sampled_from(["a", "a", "a", "b", None])
ROWS = st.one_of(st.just(1), st.integers(0, MAX_ROWS))
DEADLINES = st.one_of(st.just(30.0), st.floats(0.001, 0.2), st.just(FOREVER))


def check_batch(pool: ManualPool, batch: Batch) -> None:
    """What must hold of every batch at its start."""
    requests = [ticket.request for ticket in batch.tickets]
    assert batch.tickets
    assert batch.rows == sum(request.rows for request in requests) <= pool.settings.max_batch_rows
    assert len(requests) <= pool.settings.max_batch_rows
    assert len({request.group for request in requests}) == 1
    assert requests[0].group is not None or len(requests) == 1, "requests without a group never merge"
    for ticket in batch.tickets:
        assert not ticket.ended, "an ended ticket was run"
        assert ticket.request.deadline > pool.now, "run after its deadline"
        assert ticket.started_at == batch.started_at == pool.now
    on_same_replica = [other for other in pool.running.values() if other.replica == batch.replica]
    assert len(on_same_replica) <= pool.room
    if any(other.alone for other in on_same_replica):
        assert len(on_same_replica) == 1, "a suspect shares its replica"


def ending(ticket: Ticket) -> Ending:
    watcher = ticket.watcher
    assert isinstance(watcher, Ending)
    return watcher


class Chaos(RuleBasedStateMachine):
    """Submits, hang-ups, losses, failures and time in any order."""

    @initialize(
        replicas=st.integers(1, 3), room=st.integers(1, 2), effects=st.booleans(), seed=st.integers(0, 1000),
        restart=st.sampled_from([0.1, 0.1, 2.0]),
    )  # fmt: skip
    def open(self, replicas: int, room: int, effects: bool, seed: int, restart: float) -> None:
        self.chance = Random(seed)
        self.tickets: list[Ticket] = []
        self.poison: set[str] = set()
        self.deadly: set[str] = set()
        self.flaky = 0.0
        self.runs: dict[str, int] = {}
        self.pool = ManualPool(
            DispatchSettings(max_batch_rows=MAX_ROWS, max_waiting_rows=64, side_effects=effects),
            judge=self.judge,
            seconds=lambda rows: 0.01 + 0.001 * rows,
            replicas=replicas,
            room=room,
            restart_seconds=restart,
            digest=lambda request: hashlib.sha256(request.id.encode()).digest(),
        )
        self.pool.on_start = self.started

    def started(self, batch: Batch) -> None:
        check_batch(self.pool, batch)
        for ticket in batch.tickets:
            name = ticket.request.id
            self.runs[name] = self.runs.get(name, 0) + 1
            if self.pool.settings.side_effects:
                assert self.runs[name] == 1, "a model with side effects ran twice"

    def judge(self, batch: Batch) -> Cause | None:
        names = {ticket.request.id for ticket in batch.tickets}
        if names & self.deadly:
            return Cause.LOST
        if names & self.poison:
            return self.chance.choice([Cause.RAISED, Cause.WRONG_COUNT, Cause.OUT_OF_MEMORY])
        if self.chance.random() < self.flaky:
            return self.chance.choice([Cause.RAISED, Cause.LOST])
        return None

    @rule(
        count=st.integers(1, 20), rows=ROWS, lane=LANES, group=GROUPS, deadline=DEADLINES, harm=st.integers(0, 20),
        tenant=st.sampled_from(["", "", "x", "y"]),
    )  # fmt: skip
    def submit(
        self, count: int, rows: int, lane: int, group: str | None, deadline: float, harm: int, tenant: str
    ) -> None:
        for _ in range(count):
            name = str(len(self.tickets))
            ticket = self.pool.ticket(
                rows, lane=lane, group=group, deadline_seconds=deadline, name=name, tenant=tenant, size_bytes=10
            )
            self.tickets.append(ticket)
            if harm == 0:
                self.deadly.add(name)
            elif harm < 4:
                self.poison.add(name)
            self.pool.submit(ticket)

    @rule(parts=st.integers(2, 5), lane=LANES)
    def submit_cut(self, parts: int, lane: int) -> None:
        """A request that the pool had to cut: the parts are tickets of their own."""
        whole = self.pool.ticket(parts * MAX_ROWS, lane=lane, deadline_seconds=1.0)
        made = [self.pool.ticket(MAX_ROWS, lane=lane, deadline_seconds=1.0, name=f"part{len(self.tickets)}.{part}")
                for part in range(parts)]  # fmt: skip
        self.pool.submit(whole, made)
        if not whole.ended:
            self.tickets.extend(made)

    @rule(share=st.floats(0, 1), seed=st.integers(0, 1000))
    def cancel_some(self, share: float, seed: int) -> None:
        chance = Random(seed)
        for ticket in self.tickets:
            if not ticket.ended and chance.random() < share:
                hang_up(ticket)

    @rule(share=st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    def become_flaky(self, share: float) -> None:
        self.flaky = share

    @rule(seconds=st.floats(0, 0.1))
    def wait(self, seconds: float) -> None:
        self.pool.run(seconds)

    @rule()
    def tick(self) -> None:
        self.pool.tick()

    @precondition(lambda self: self.pool.running)
    @rule(pick=st.integers(0, 10), started=st.sampled_from(["all", "none", "some"]))
    def lose(self, pick: int, started: str) -> None:
        batches = list(self.pool.running.values())
        replica = batches[pick % len(batches)].replica
        ids = frozenset(batch.id for batch in batches[::2])
        if self.pool.settings.side_effects and started != "all":
            for batch in batches:  # what had not begun did not run
                if batch.replica == replica and (started == "none" or batch.id not in ids):
                    for ticket in batch.tickets:
                        self.runs[ticket.request.id] -= 1
        self.pool.lose(replica, ids if started == "some" else started == "all")

    @rule()
    def drain_and_replace(self) -> None:
        """A replica leaves for good reasons, and another comes."""
        newest = self.pool.add_replica()
        for replica in range(1, newest):
            self.pool.dispatcher.remove(replica, self.pool.now)

    @rule(replicas=st.integers(0, 2), looping=st.booleans())
    def expect(self, replicas: int, looping: bool) -> None:
        """What the supervisor says while no replica is ready; elsewhere it changes nothing."""
        waiting = self.pool.dispatcher.waiting_rows()
        self.pool.dispatcher.expect(replicas, self.pool.now, looping)
        if not self.pool.dispatcher.load.slots and (looping or not replicas):
            assert self.pool.dispatcher.waiting_rows() == 0
        elif self.pool.dispatcher.load.slots:
            assert self.pool.dispatcher.waiting_rows() == waiting

    @rule()
    def move(self) -> None:
        """Whoever waits is taken out and submitted again, as at a rollback."""
        for ticket in self.pool.dispatcher.evict(self.pool.now):
            assert not ticket.ended
            self.pool.submit(ticket)

    @invariant()
    def counts_are_exact(self) -> None:
        pool = self.pool
        running = {id(ticket) for batch in pool.running.values() for ticket in batch.tickets}
        waiting = [ticket for ticket in self.tickets if not ticket.ended and id(ticket) not in running]
        for lane in range(3):
            expected = [ticket.request for ticket in waiting if ticket.request.lane == lane]
            counted = pool.dispatcher.queue.lanes[lane]
            assert counted.rows == sum(request.rows or 1 for request in expected)
            assert counted.size_bytes == sum(request.size_bytes for request in expected)
        assert pool.dispatcher.waiting_requests() == [
            sum(ticket.request.lane == lane for ticket in waiting) for lane in range(3)
        ]
        assert pool.dispatcher.running_rows() == sum(batch.rows for batch in pool.running.values())
        for batch in pool.running.values():
            assert batch.alive == sum(not ticket.ended for ticket in batch.tickets)
        assert all(ending(ticket).times == ticket.ended for ticket in self.tickets)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool = self.pool
        self.flaky = 0.0
        pool.run()
        for ticket in self.tickets:
            assert outcome(ticket) != "open"
            assert ending(ticket).times == 1
            if ticket.request.id in self.poison | self.deadly:
                assert outcome(ticket) != "ok"
        assert pool.dispatcher.waiting_rows() == 0
        assert pool.dispatcher.running_rows() == 0
        assert pool.dispatcher.running_batches() == 0
        load = pool.dispatcher.load
        assert load.room == load.slots
        assert [lane.size_bytes for lane in pool.dispatcher.queue.lanes] == [0, 0, 0]


TestChaos = Chaos.TestCase
TestChaos.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_answer_is_in_time(data: st.DataObject) -> None:
    """A ticket that has not been answered by its deadline ends at it, not later."""
    pool = ManualPool(DispatchSettings(max_batch_rows=4), seconds=lambda rows: 0.02)
    tickets = []
    for _ in range(data.draw(st.integers(1, 40))):
        tickets.append(pool.send(deadline_seconds=data.draw(st.floats(0.001, 0.2))))
        if data.draw(st.booleans()):
            pool.run(data.draw(st.floats(0, 0.02)))
    pool.run()
    for ticket in tickets:
        assert ending(ticket).at <= ticket.request.deadline
        assert ticket.request.lane != BACKGROUND
