"""A pool that runs on a manual clock: the real dispatcher, made-up replicas, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from maitred.endpoint import Ticket
from maitred.errors import Cancelled, MaitredError
from maitred.messages import FOREVER, NORMAL, Chunk, Outputs, Request, Result
from maitred.model.ragged import cut_back
from maitred.scheduling.dispatcher import Batch, Cause, Dispatcher, DispatchSettings
from maitred.scheduling.recovery import error_of

NOTHING = object()
"""What an event returns after which the dispatcher need not be called."""

Judge = Callable[[Batch], Cause | None]
"""What becomes of a batch when its time is over: None is an answer; LOST takes the replica with it."""


def well(batch: Batch) -> Cause | None:
    """The judge of a model that never fails."""
    return None


class Ending:
    """Watches one ticket and counts its endings, of which there must be one."""

    __slots__ = ("times", "at", "_pool")

    def __init__(self, pool: ManualPool) -> None:
        self.times = 0
        self.at = 0.0
        self._pool = pool

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        raise AssertionError("the dispatcher sends no pieces")

    def ended(self, ticket: Ticket) -> None:
        self.times += 1
        self.at = self._pool.now


class ManualPool:
    """Drives a dispatcher like a pool does, with time that only `run` moves.

    `seconds(rows)` is how long a batch runs. Lost replicas are replaced after `restart_seconds`. Nothing is random
    but what `rng` decides.
    """

    def __init__(
        self,
        settings: DispatchSettings | None = None,
        *,
        seconds: Callable[[int], float] = lambda rows: 0.005,
        judge: Judge = well,
        replicas: int = 1,
        room: int = 1,
        restart_seconds: float = 0.1,
        digest: Callable[[Request], Hashable] | None = None,
        rng: Random | None = None,
        now: float = 1000.0,
    ) -> None:
        self.now = now
        self.settings = settings or DispatchSettings()
        self.dispatcher = Dispatcher(self.settings, self, rng or Random(1), digest)
        self.seconds = seconds
        self.judge = judge
        self.room = room
        self.restart_seconds = restart_seconds
        self.started: list[Batch] = []
        """Every batch, in order of its start."""
        self.running: dict[int, Batch] = {}
        self.abandoned: list[Batch] = []
        """Running batches that nobody waited for any more, as a pool is told of them."""
        self.losses = 0
        self.on_start: Callable[[Batch], None] | None = None
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0
        self._last_replica = 0
        self._alarm = FOREVER
        self._held = FOREVER
        for _ in range(replicas):
            self.add_replica()

    # Effects

    def start(self, batch: Batch) -> None:
        self.started.append(batch)
        self.running[batch.id] = batch
        if self.on_start is not None:
            self.on_start(batch)
        self.call_at(self.now + self.seconds(batch.rows), self._batch_over, batch)

    def fail(self, ticket: Ticket, error: MaitredError) -> None:
        if not ticket.fail(error):
            raise AssertionError("the dispatcher failed a ticket that had ended")

    def wake(self, at: float) -> None:
        self._alarm = at
        self.call_at(at, self._ring, at)

    def hold(self, until: float) -> None:
        if not until:
            self.call_at(self.now, self.tick)
        self._held = until
        if until and until != FOREVER:
            self.call_at(until, self._hold_over, until)

    # The owner of tickets

    def cancelled(self, ticket: Ticket) -> None:
        batch = self.dispatcher.cancelled(ticket, self.now)
        if batch is not None:
            self.abandoned.append(batch)

    # What a test does

    def ticket(
        self,
        rows: int = 1,
        *,
        group: Hashable = "group",
        deadline_seconds: float = FOREVER,
        lane: int = NORMAL,
        tenant: str = "",
        name: str = "",
        size_bytes: int = 0,
    ) -> Ticket:
        """A ticket that has not been submitted. `name` becomes the request's id, which judges may look at."""
        request = Request(
            {}, rows, group, self.now + deadline_seconds, lane=lane, tenant=tenant, id=name, size_bytes=size_bytes
        )
        ticket = Ticket(request, self, self.now)
        ticket.watch(Ending(self))
        return ticket

    def submit(self, ticket: Ticket, parts: Sequence[Ticket] | None = None) -> Ticket:
        self.dispatcher.submit(ticket, self.now, parts)
        return ticket

    def send(self, rows: int = 1, **more: Any) -> Ticket:
        """Make a ticket and submit it; nothing starts before the next `tick` or `run`."""
        return self.submit(self.ticket(rows, **more))

    def tick(self) -> None:
        self.abandoned.extend(self.dispatcher.tick(self.now))

    def add_replica(self) -> int:
        self._last_replica += 1
        self.dispatcher.add(self._last_replica, self.room, self.now)
        return self._last_replica

    def lose(self, replica: int, started: frozenset[int] | bool = True) -> None:
        """Kill a replica and order another."""
        self.losses += 1
        for batch in [batch for batch in self.running.values() if batch.replica == replica]:
            del self.running[batch.id]
        self.dispatcher.lost(replica, self.now, started)
        self.call_at(self.now + self.restart_seconds, self._replace)
        self.tick()

    def call_at(self, at: float, call: Callable[..., object], *arguments: Any) -> None:
        self._sequence += 1
        heappush(self._events, (at, self._sequence, call, arguments))

    def run(self, seconds: float = FOREVER) -> None:
        """Let time pass, event by event; without a limit, until nothing is left to happen."""
        end = self.now + seconds
        self.tick()
        while self._events and self._events[0][0] <= end:
            at, _, call, arguments = heappop(self._events)
            self.now = max(self.now, at)
            if call(*arguments) is not NOTHING:
                self.tick()
        if end != FOREVER:
            self.now = end
            self.tick()

    def _ring(self, at: float) -> object:
        """The alarm rings, if it was not set anew meanwhile."""
        return None if at == self._alarm else NOTHING

    def _hold_over(self, until: float) -> object:
        if until != self._held:
            return NOTHING  # asked for anew, or no more
        self.dispatcher.waited()
        return None

    def _replace(self) -> None:
        self.add_replica()

    def _batch_over(self, batch: Batch) -> object:
        if self.running.pop(batch.id, None) is None:
            return None  # lost meanwhile
        cause = self.judge(batch)
        if cause is None:
            self._answer(batch)
        elif cause is Cause.LOST:
            self.running[batch.id] = batch
            self.lose(batch.replica)
        else:
            error = error_of(cause, f"the model failed: {cause}")
            self.dispatcher.failed(batch.replica, batch.id, cause, error, self.now)
        return None

    def _answer(self, batch: Batch) -> None:
        seconds = self.now - batch.started_at
        answered = self.dispatcher.answered(batch.replica, batch.id, self.now, seconds)
        outputs = Outputs({}, batch.rows, seconds)
        start = 0
        for ticket in answered.tickets:
            stop = start + ticket.request.rows
            result = Result(outputs, start, stop, len(answered.tickets) == 1)
            ticket.end(cut_back(result, ticket.request))
            start = stop
        if self.dispatcher.returning.seconds:
            self.dispatcher.written(answered, self.now)


def outcome(ticket: Ticket) -> str:
    """`ok`, the code of the error, or `open`."""
    if ticket.error is not None:
        return ticket.error.code
    return "ok" if ticket.ended else "open"


def hang_up(ticket: Ticket) -> bool:
    """What a caller does who leaves."""
    return ticket.cancel(Cancelled("the caller has gone"))
