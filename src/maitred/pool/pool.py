"""Drives the dispatcher: requests come in on one side, replicas answer on the other, and every ticket ends once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Literal, Protocol

import msgspec

from maitred.clock import Clock
from maitred.endpoint import Ticket
from maitred.errors import Draining, MaitredError
from maitred.events import BatchEnded, Listener, ReplicaChanged, RequestEnded
from maitred.host import FineTimer, fine_timer
from maitred.messages import FOREVER, Outputs, Request, Result
from maitred.model.description import Description
from maitred.model.ragged import cut_back
from maitred.model.signature import Signature
from maitred.pool.cut import Cut, Part, cut
from maitred.pool.settings import SupervisorSettings
from maitred.pool.supervisor import Supervisor
from maitred.replica.memory import Arena
from maitred.replica.replica import Cause, Replica
from maitred.scheduling.dispatcher import Batch, Dispatcher, DispatchSettings

PoolState = Literal["loading", "ready", "failed"]


_request_of: Final = attrgetter("request")
_received_at: Final = attrgetter("received_at")
_submitted_at: Final = attrgetter("submitted_at")
_TICKETS: Final = {Ticket}


_A_MOMENT_SECONDS: Final = 0.02
"""What a pool gets to notice that nothing runs, however short it is told to drain."""


class PoolWatcher(Protocol):
    """Whoever shows the pool's state to the world."""

    def changed(self, state: PoolState, reason: str, description: Description | None) -> None: ...


class Snapshot(msgspec.Struct):
    """A pool's gauges at one moment."""

    model: str
    version: str
    waiting_rows: list[int]
    """By lane."""
    waiting_requests: list[int]
    running_rows: int
    replicas: dict[str, int]
    """By state."""
    restarts: int
    submitted_rows: int
    """Rows that were ever submitted: with the time between two looks, the work arriving."""
    best_rows_per_second: float
    """What the ready replicas could do with batches of the best size; 0 while nothing has been learned."""


class Pool:
    """Replicas of one version behind one shared queue. An endpoint; belongs to one event loop."""

    def __init__(
        self,
        name: str,
        version: str,
        dispatch: DispatchSettings,
        supervise: SupervisorSettings,
        make: Callable[[int, Pool], Replica],
        watcher: PoolWatcher,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        listener: Listener,
        rng: random.Random | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        """`close` gives back what the replicas share; `drain` calls it once the last of them is gone."""
        self.name = name
        self.version = version
        self.description: Description | None = None
        self._settings = dispatch
        self._max_batch_rows = dispatch.max_batch_rows
        self._rng = rng or random.Random()
        self._dispatcher = Dispatcher(dispatch, self, self._rng, digest)
        self._supervisor = Supervisor(supervise, lambda id: make(id, self), self, loop, clock)
        self._watcher = watcher
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._close = close
        self.memory: Arena | None = None
        """Where its replicas' inputs lie, if they are processes."""
        self._replicas: dict[int, Replica] = {}
        self._running: dict[int, dict[int, Batch]] = {}
        self._ticking = False
        """The end of this turn of the loop is to be seen to."""
        self._timer: FineTimer | None = None
        """For waits of less than a millisecond; made when the first is asked for."""
        self._alarm: asyncio.TimerHandle | None = None
        self._draining = False
        self._quiet: asyncio.Event | None = None
        """Set, once draining, when nothing waits or runs."""
        self._submitted_rows = 0
        self._refused: dict[str, int] = {}
        """By code: requests that ended before anybody could wait for them, of which nobody has been told."""

    # ------------------------------------------------------------------ the endpoint

    def submit(self, request: Request) -> Ticket:
        now = self._clock()
        ticket = Ticket(request, self, now)
        rows = request.rows
        if self._draining or rows > self._max_batch_rows:
            self._submit_unusual(ticket, now)
        else:
            self._submitted_rows += rows
            self._dispatcher.submit(ticket, now)
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)
        return ticket

    def _submit_unusual(self, ticket: Ticket, now: float) -> None:
        """Refuse a request that comes too late, and cut one that is larger than a batch, if it may be cut."""
        if self._draining:
            self.fail(ticket, Draining("this server is shutting down; send the request again"))
            return
        request = ticket.request
        self._submitted_rows += request.rows
        if request.group is None or request.rows > self._settings.max_waiting_rows:
            self._dispatcher.submit(ticket, now)  # which refuses what could never wait, before anything is cut
            return
        requests = cut(request, self._dispatcher.part_rows(request.lane), self._signature().shared)
        whole = Cut(ticket, requests, self, now, self._whole_ended)
        self._dispatcher.submit(ticket, now, whole.parts)

    def room(self, lane: int) -> int:
        return self._dispatcher.room(lane)

    def cancelled(self, ticket: Ticket) -> None:
        now = self._clock()
        unwanted = self._dispatcher.cancelled(ticket, now)
        if unwanted is not None:
            self._replicas[unwanted.replica].cancel(unwanted.id)
        if self._draining:
            self._tick_soon()
        if not isinstance(ticket, Part):
            self._whole_ended(ticket)

    # ------------------------------------------------------------------ its life

    def know(self, description: Description) -> None:
        """Keep to what the model says of itself. Before the first request, which needs its signature."""
        self.description = description
        traits = description.traits
        self._max_batch_rows = min(self._settings.max_batch_rows, traits.max_batch_rows or self._max_batch_rows)
        self._settings = replace(
            self._settings,
            max_batch_rows=self._max_batch_rows,
            side_effects=self._settings.side_effects or traits.side_effects,
        )
        self._dispatcher = Dispatcher(self._settings, self, self._rng, digest)

    def launch(self) -> None:
        """Start the replicas; `watcher` hears when the first one is ready."""
        self._dispatcher.expect(self._supervisor.wanted, self._clock())
        self._supervisor.start()

    def move(self, make: Callable[[int], Replica], done: Callable[[str], None]) -> None:
        """Put copies of another kind in the place of those that there are: see `Supervisor.move`."""
        self._supervisor.move(make, done)

    async def drain(self, seconds: float) -> None:
        """Take nothing new, answer what is here within `seconds`, then stop the replicas."""
        self._draining = True
        self._quiet = asyncio.Event()
        self._tick_soon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, _A_MOMENT_SECONDS)):  # `wait_for` may swallow a cancellation
                await self._quiet.wait()
        if not self._quiet.is_set():
            self._supervisor.kill()
        for ticket in self._dispatcher.evict(self._clock()):
            self.fail(ticket, Draining("this server shut down before the request could run; send it again"))
        self._supervisor.stop()
        await self._supervisor.emptied.wait()
        self._tell_of_refused()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._timer is not None:
            self._timer.close()
        if self._close is not None:
            self._close()

    def pids(self) -> list[int]:
        """Processes of the ready replicas."""
        return [replica.pid for replica in self._replicas.values() if replica.pid is not None]

    def snapshot(self) -> Snapshot:
        states: dict[str, int] = {}
        for replica in self._supervisor.replicas():
            state = "ready" if replica.id in self._replicas else "loading"
            states[state] = states.get(state, 0) + 1
        dispatcher = self._dispatcher
        best = dispatcher.curve.best_rows(self._max_batch_rows)
        seconds = dispatcher.curve.seconds(best)
        return Snapshot(
            self.name,
            self.version,
            [lane.rows for lane in dispatcher.queue.lanes],
            dispatcher.waiting_requests(),
            dispatcher.running_rows(),
            states,
            max(0, self._supervisor.starts - self._supervisor.wanted),
            self._submitted_rows,
            dispatcher.load.slots * best / seconds if seconds > 0 else 0.0,
        )

    # ------------------------------------------------------------------ what the dispatcher wants done

    def start(self, batch: Batch) -> None:
        self._running[batch.replica][batch.id] = batch
        self._replicas[batch.replica].run(batch.id, list(map(_request_of, batch.tickets)), batch.rows)

    def fail(self, ticket: Ticket, error: MaitredError) -> None:
        if not ticket.fail(error) or isinstance(ticket, Part):
            return
        if ticket.watcher is None and not ticket.started_at:  # refused in `submit`, whose turn ends with a tick
            self._refused[error.code] = self._refused.get(error.code, 0) + 1
        else:
            self._whole_ended(ticket)

    def wake(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(max(0.0, at - self._clock()), self._rang)

    def hold(self, until: float) -> None:
        if not until:
            if not self._ticking:
                self._ticking = True
                self._loop.call_soon(self._tick)
        elif until != FOREVER:
            if self._timer is None:
                self._timer = fine_timer(self._loop, self._held_back)
            self._timer.start(until - self._clock())
        elif self._timer is not None:
            self._timer.stop()

    def _held_back(self) -> None:
        """A replica has waited long enough."""
        self._dispatcher.waited()
        self._tick()

    def _whole_ended(self, ticket: Ticket) -> None:
        """Tell of a request whose end no batch tells of."""
        code = "ok" if ticket.error is None else ticket.error.code
        self._listener(RequestEnded(self.name, self.version, code, self._clock() - ticket.submitted_at))

    def _signature(self) -> Signature:
        if self.description is None:
            raise RuntimeError("a request was submitted before its model's signature was known")
        return self.description.signature

    def _rang(self) -> None:
        self._dispatcher.rang()
        self._tick()

    def _tick(self) -> None:
        self._ticking = False
        if self._refused:
            self._tell_of_refused()
        for unwanted in self._dispatcher.tick(self._clock()):
            self._replicas[unwanted.replica].cancel(unwanted.id)
        if self._quiet is not None and not (self._dispatcher.waiting_rows() or any(self._running.values())):
            self._quiet.set()

    def _tell_of_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for code, count in refused.items():
            self._listener(RequestEnded(self.name, self.version, code, 0.0, count))

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)

    # ------------------------------------------------------------------ what replicas tell

    def ready(self, replica: Replica, description: Description) -> None:
        if self.description is None:
            self.know(description)
        self._supervisor.ready(replica, description)

    def answered(self, replica: Replica, batch_id: int, outputs: Outputs) -> None:
        """End the members' tickets. The arrays in `outputs` are views that die when this returns."""
        now = self._clock()
        batch = self._running[replica.id].pop(batch_id)
        supervisor = self._supervisor
        if supervisor.troubled:
            supervisor.useful(replica)
        dispatcher = self._dispatcher
        dispatcher.answered(replica.id, batch_id, now, now - batch.started_at)
        if dispatcher.load.waiting_rows() >= self._max_batch_rows:
            self._tick()  # a full batch waits: nothing could be gained by writing the answers first
        elif not self._ticking:
            self._ticking = True
            self._loop.call_soon(self._tick)
        started = batch.started_at
        outputs.batch_seconds = max(0.0, now - started - outputs.model_seconds)
        tickets = batch.tickets
        fill = tickets[0].request.ragged  # all members are of one group, so of one bucket or of none
        whole = len(tickets) == 1
        start = early = 0
        for ticket in tickets:
            stop = start + ticket.request.rows
            if ticket.ended:
                early += 1
            else:  # what `Ticket.end` does, without the call
                result = Result(outputs, start, stop, whole, started - ticket.submitted_at)
                if fill is not None:
                    result = cut_back(result, ticket.request)
                ticket.ended = True
                watcher = ticket.watcher
                if watcher is None:
                    ticket.result = result.owned()
                else:
                    ticket.result = result
                    try:
                        watcher.ended(ticket)
                    except Exception as error:  # a defect of the watcher's; the others of the batch wait too
                        self._loop.call_exception_handler({"message": "a ticket's watcher raised", "exception": error})
                    ticket.result = None
            start = stop
        if early or outputs.unwritten or set(map(type, tickets)) != _TICKETS:
            tickets = [ticket for ticket in tickets if ticket.error is None and type(ticket) is Ticket]
            for ticket in outputs.unwritten:
                self._whole_ended(ticket)
        ended = self._clock()
        if dispatcher.returning.seconds:
            dispatcher.written(batch, ended)
        self._listener(
            BatchEnded(
                self.name, self.version, batch.replica, batch.rows, len(batch.tickets), "ok", len(tickets),
                list(map(_received_at, map(_request_of, tickets))), list(map(_submitted_at, tickets)),
                started, now, outputs.model_seconds, ended - now, *(_filled(batch) if fill is not None else ()),
            )
        )  # fmt: skip

    def failed(self, replica: Replica, batch_id: int, cause: Cause, error: MaitredError) -> None:
        now = self._clock()
        batch = self._running[replica.id].pop(batch_id)
        self._supervisor.useful(replica)
        self._told_of_failure(batch, str(cause), now)
        self._dispatcher.failed(replica.id, batch_id, cause, error, now)
        self._tick_soon()

    def lost(self, replica: Replica, reason: str, started: frozenset[int]) -> None:
        self._supervisor.lost(replica, reason, started)

    def _told_of_failure(self, batch: Batch, outcome: str, now: float) -> None:
        spent = now - batch.started_at
        self._listener(
            BatchEnded(
                self.name, self.version, batch.replica, batch.rows, len(batch.tickets), outcome, 0, [], [],
                batch.started_at, now, spent, 0.0,
            )
        )  # fmt: skip

    # ------------------------------------------------------------------ what the supervisor tells

    def joined(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica
        self._running[replica.id] = {}
        self._dispatcher.add(replica.id, replica.room, self._clock())
        self._tick_soon()

    def leaving(self, replica: Replica) -> None:
        if replica.id in self._replicas:
            self._dispatcher.remove(replica.id, self._clock())

    def left(self, replica: Replica, started: frozenset[int], reason: str) -> bool:
        if self._replicas.pop(replica.id, None) is None:
            return False
        now = self._clock()
        for batch in self._running.pop(replica.id).values():
            self._told_of_failure(batch, "lost", now)
        self._tick_soon()
        return self._dispatcher.lost(replica.id, now, started)

    def running_since(self, replica: Replica) -> float | None:
        running = self._running.get(replica.id)
        return min(batch.started_at for batch in running.values()) if running else None

    def changed(self, state: PoolState, reason: str, description: Description | None) -> None:
        supervisor = self._supervisor
        why = reason if state == "failed" else ""
        self._dispatcher.expect(supervisor.loading_count(), self._clock(), supervisor.looping(), why)
        self._watcher.changed(state, reason, description)

    def told(self, replica: Replica, state: str, reason: str) -> None:
        self._listener(ReplicaChanged(self.name, self.version, replica.id, state, reason))


def _filled(batch: Batch) -> tuple[str, int, int]:
    """The bucket of a batch's members, and how many elements of theirs there are, with the fill and without."""
    members = [ticket.request.ragged for ticket in batch.tickets if ticket.request.ragged is not None]
    return members[0].bucket, sum(member.elements for member in members), sum(member.real for member in members)


def digest(request: Request) -> bytes:
    """A fingerprint of a request's inputs, by which one that kills replicas is known again."""
    hasher = hashlib.blake2b(digest_size=16)
    for name, tensor in request.inputs.items():
        hasher.update(f"{name}:{tensor.dtype}:{tensor.shape}:".encode())
        data: Any = tensor.data
        if isinstance(data, list):
            for item in data:
                raw = item.encode() if isinstance(item, str) else item
                hasher.update(len(raw).to_bytes(8, "little") + raw)
        else:
            hasher.update(data)
    return hasher.digest()
