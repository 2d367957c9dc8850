"""Starts, watches, replaces and drains a pool's replicas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from maitred.clock import Clock
from maitred.model.description import Description
from maitred.pool.settings import SupervisorSettings
from maitred.replica.replica import Replica


class Charge(Protocol):
    """The pool, as its supervisor sees it."""

    def joined(self, replica: Replica) -> None:
        """A copy is ready for work."""
        ...

    def left(self, replica: Replica, started: frozenset[int], reason: str) -> bool:
        """A copy is gone, with whatever it ran. Whether an input was found to have killed it, and one before it."""
        ...

    def leaving(self, replica: Replica) -> None:
        """A copy takes no more batches; what it runs may end."""
        ...

    def running_since(self, replica: Replica) -> float | None:
        """When the oldest batch that the copy still runs was started; None if it is idle."""
        ...

    def changed(
        self, state: Literal["loading", "ready", "failed"], reason: str, description: Description | None
    ) -> None:
        """The pool as a whole became something else, or has one copy more or less."""
        ...

    def told(self, replica: Replica, state: str, reason: str) -> None:
        """A copy's own state changed: for the log and the metrics."""
        ...


class _Seat:
    """A replica's place in the pool, which outlives the copies that sit in it."""

    __slots__ = ("number", "replica", "next", "ready", "deaths", "failed_loads", "pause", "retry", "frozen_since")

    def __init__(self, number: int) -> None:
        self.number = number
        self.replica: Replica | None = None
        self.next: Replica | None = None
        """Takes the place once it is ready: see `Supervisor.move`."""
        self.ready = False
        self.deaths: deque[float] = deque()
        """When copies died without having answered a batch in between."""
        self.failed_loads = 0
        """In a row."""
        self.pause = 0.0
        self.retry: asyncio.TimerHandle | None = None
        self.frozen_since: float | None = None


class Supervisor:
    """Keeps `settings.replicas` copies ready. Belongs to the pool's loop."""

    def __init__(
        self,
        settings: SupervisorSettings,
        make: Callable[[int], Replica],
        charge: Charge,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.wanted = settings.replicas
        self._settings = settings
        self._make = make
        self._charge = charge
        self._loop = loop
        self._clock = clock
        self._seats = [_Seat(number) for number in range(settings.replicas)]
        self._by_id: dict[int, _Seat] = {}
        self._next_id = 0
        self._retired: dict[int, Replica] = {}
        """Copies that have left their seats to others, and end what they run."""
        self._move: tuple[Callable[[int], Replica], Callable[[str], None]] | None = None
        """How copies are made elsewhere, and who hears how that went."""
        self._closing = False
        self._failed = ""
        self._failed_loads = 0
        """In a row, over all seats."""
        self._watch: asyncio.TimerHandle | None = None
        self.troubled = False
        """Whether some seat has deaths that are not forgiven."""
        self.starts = 0
        """How many copies have been launched; the first ones are not restarts."""
        self.emptied = asyncio.Event()
        """Set once the last copy has gone after `stop`."""

    # ------------------------------------------------------------------ what the pool asks

    def start(self) -> None:
        """Launch the first copies; the rest follow as loads end."""
        self._fill()
        self._watch = self._loop.call_later(1.0, self._look)

    def replicas(self) -> Iterable[Replica]:
        """Every copy that lives, those included that come and go while the pool moves."""
        here = [copy for seat in self._seats for copy in (seat.replica, seat.next) if copy is not None]
        return [*here, *self._retired.values()]

    def move(self, make: Callable[[int], Replica], done: Callable[[str], None]) -> None:
        """Replace every copy by one that `make` makes; each stays until the new one in its seat is ready.

        `done` hears once: nothing when all have moved; or why the first new copy could not be started, after which
        those that had not moved stay as they are. One move at a time.
        """
        if self._move is not None:
            raise RuntimeError("the copies are being moved already")
        if self._closing or self._failed:
            return
        self._move = (make, done)
        for seat in self._seats:
            replica = make(self._next_id)
            self._next_id += 1
            seat.next = replica
            self._by_id[replica.id] = seat
            self._charge.told(replica, "loading", "")
            replica.launch()

    def ready_count(self) -> int:
        return sum(seat.ready for seat in self._seats)

    def loading_count(self) -> int:
        """Copies on their way, those that wait for their turn or their pause included."""
        return 0 if self._failed or self._closing else len(self._seats) - self.ready_count()

    def looping(self) -> bool:
        """Whether every seat has lost a second copy without an answer in between: what is started next may die too."""
        since = self._clock() - self._settings.fruitless_seconds
        return all(sum(at >= since for at in seat.deaths) + seat.failed_loads > 1 for seat in self._seats)

    def stop(self) -> None:
        """Drain every copy: each ends what it runs, then exits. `emptied` tells when."""
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
        for seat in self._seats:
            if seat.retry is not None:
                seat.retry.cancel()
            if seat.next is not None:
                seat.next.stop()
            if seat.replica is not None:
                self._charge.leaving(seat.replica)
                seat.replica.stop()
        self._settled()

    def kill(self) -> None:
        """End every copy now."""
        for replica in self.replicas():
            replica.kill()

    def useful(self, replica: Replica) -> None:
        """The copy has answered a batch: earlier deaths in its seat are forgiven. Asked only while `troubled`."""
        seat = self._by_id.get(replica.id)
        if seat is not None:
            seat.deaths.clear()
            seat.pause = 0.0
            self.troubled = any(seat.deaths or seat.pause for seat in self._seats)

    # ------------------------------------------------------------------ what replicas tell

    def ready(self, replica: Replica, description: Description) -> None:
        if self._failed:
            return  # it was killed, and this is the last that was heard of it
        seat = self._by_id[replica.id]
        if seat.next is replica:
            self._moved(seat, replica)
            return
        seat.ready, seat.frozen_since = True, None
        seat.failed_loads = self._failed_loads = 0
        self._charge.told(replica, "ready", "")
        self._charge.joined(replica)
        self._charge.changed("ready", "", description)
        self._fill()

    def lost(self, replica: Replica, reason: str, started: frozenset[int]) -> None:
        if self._retired.pop(replica.id, None) is not None:
            self._charge.left(replica, started, reason)
            self._charge.told(replica, "stopped", reason)
            self._settled()
            return
        seat = self._by_id.pop(replica.id, None)
        if seat is not None and seat.next is replica:
            seat.next = None
            self._not_moved(replica, reason)
            return
        if seat is None or seat.replica is not replica:
            return
        was_ready = seat.ready
        if not was_ready and seat.frozen_since is not None:
            stopped = self._clock() - seat.frozen_since
            reason += f"; its process had been stopped from outside, for the last {stopped:.0f} s at least"
        seat.replica, seat.ready, seat.frozen_since = None, False, None
        blamed = self._charge.left(replica, started, reason)
        if self._closing or self._failed:
            self._charge.told(replica, "stopped", reason)
            self._settled()
            return
        if blamed:
            self._forgive(seat)
        elif self._is_hopeless(replica, seat, was_ready) and self.ready_count() == 0:
            self._charge.told(replica, "lost", "")  # the reason follows, as that of the model
            self._fail(reason)
            return
        self._charge.told(replica, "lost", reason)
        if self.ready_count() == 0:
            self._charge.changed("loading", reason, None)
        self._retry_later(seat)
        self._fill()

    # ------------------------------------------------------------------ moving

    def _moved(self, seat: _Seat, replica: Replica) -> None:
        """The copy that was to come is ready: it takes the seat, then the other leaves, so that there is always one."""
        assert self._move is not None
        before, was_ready = seat.replica, seat.ready
        seat.replica, seat.next, seat.ready, seat.frozen_since = replica, None, True, None
        seat.failed_loads = self._failed_loads = 0
        if seat.retry is not None:
            seat.retry.cancel()
            seat.retry = None
        self._charge.told(replica, "ready", "")
        self._charge.joined(replica)
        if before is not None:
            self._by_id.pop(before.id, None)
            self._retired[before.id] = before
            self._charge.leaving(before)
            before.stop()
        if not was_ready:
            self._charge.changed("ready", "", None)
        if any(other.next is not None for other in self._seats):
            return
        self._make, done = self._move
        self._move = None
        done("")

    def _not_moved(self, replica: Replica, reason: str) -> None:
        """A copy that was to come could not be started; those that were to come with it are given up too."""
        move, self._move = self._move, None
        self._charge.told(replica, "stopped" if self._closing or self._failed else "lost", reason)
        for seat in self._seats:
            if seat.next is not None:
                seat.next.kill("was given up: another copy could not be moved")
        if move is not None and not (self._closing or self._failed):
            move[1](reason)
        self._settled()

    # ------------------------------------------------------------------ inside

    def _is_hopeless(self, replica: Replica, seat: _Seat, was_ready: bool) -> bool:
        """Whether this loss, with those before it, means that no copy of the model can live."""
        if not was_ready:
            seat.failed_loads += 1
            self._failed_loads += 1
            # Trying again helps against crashes and slowness, and against no decision: of those, a replica says so.
            return replica.refused or self._failed_loads >= self._settings.max_load_attempts
        now = self._clock()
        seat.deaths.append(now)
        while seat.deaths and seat.deaths[0] < now - self._settings.fruitless_seconds:
            seat.deaths.popleft()
        return len(seat.deaths) >= self._settings.max_fruitless_deaths

    def _fail(self, reason: str) -> None:
        """The model has failed for good; copies that are still loading are given up."""
        self._failed = reason
        for other in self._seats:
            if other.retry is not None:
                other.retry.cancel()
            if other.replica is not None:
                other.replica.kill("was killed: the model has failed")
            if other.next is not None:
                other.next.kill("was killed: the model has failed")
        self._charge.changed("failed", reason, None)

    def _forgive(self, seat: _Seat) -> None:
        """An input was the culprit: neither this death nor the one before it speaks against the model."""
        latest = max((other for other in self._seats if other.deaths), key=lambda other: other.deaths[-1], default=None)
        if latest is not None:
            latest.deaths.pop()
        seat.pause = 0.0

    def _retry_later(self, seat: _Seat) -> None:
        """Start another copy: at once after a first loss, later and later after fruitless ones."""
        pause = seat.pause
        seat.pause = min(max(seat.pause * 2, self._settings.restart_seconds), self._settings.max_restart_seconds)
        seat.retry = self._loop.call_later(pause, self._retry, seat)
        self.troubled = True

    def _retry(self, seat: _Seat) -> None:
        seat.retry = None
        self._fill()

    def _fill(self) -> None:
        loading = sum(1 for seat in self._seats if seat.replica is not None and not seat.ready)
        for seat in self._seats:
            if self._closing or self._failed or loading >= self._settings.max_loads_at_once:
                return
            if seat.replica is None and seat.retry is None:
                self._launch(seat)
                loading += 1

    def _launch(self, seat: _Seat) -> None:
        replica = self._make(self._next_id)
        self._next_id += 1
        self.starts += 1
        seat.replica = replica
        self._by_id[replica.id] = seat
        self._charge.told(replica, "loading", "")
        replica.launch()

    def _look(self) -> None:
        """Once a second: is a copy hung, or stopped in the middle of a batch?"""
        now = self._clock()
        for seat in self._seats:
            if seat.replica is None:
                continue
            if seat.ready:
                self._examine(seat, seat.replica, now)
            else:
                self._examine_start(seat, seat.replica, now)
        self._watch = self._loop.call_later(1.0, self._look)

    def _examine(self, seat: _Seat, replica: Replica, now: float) -> None:
        since = self._charge.running_since(replica)
        if since is None:
            seat.frozen_since = None
            return
        if now - since > self._settings.max_execution_seconds:
            replica.kill(f"hung: a batch ran for over {self._settings.max_execution_seconds:g} s")
        elif not replica.frozen():
            seat.frozen_since = None
        elif seat.frozen_since is None:
            seat.frozen_since = now
        elif now - seat.frozen_since >= self._settings.frozen_seconds:
            replica.kill("hung: its process was stopped from outside")

    def _examine_start(self, seat: _Seat, replica: Replica, now: float) -> None:
        """A start has its own time limit; but whoever reads that it was too slow wants to know that it was stopped."""
        if not replica.frozen():
            seat.frozen_since = None
        elif seat.frozen_since is None:
            seat.frozen_since = now

    def _settled(self) -> None:
        if self._closing and not self._retired and all(s.replica is None and s.next is None for s in self._seats):
            self.emptied.set()
