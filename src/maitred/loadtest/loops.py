"""The two ways to pace a load: callers who ask again once they are answered, and callers who come when they come."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Final

from maitred.host import fine_timer
from maitred.loadtest.arrivals import NEVER, Schedule, constant, poisson
from maitred.loadtest.connection import Connection, now_ns
from maitred.loadtest.load import Load
from maitred.loadtest.plan import Plan, Step

_PAUSE_SECONDS: Final = 0.1
"""Before a caller whose connection brought nothing tries again: else a dead server would be asked at full speed."""

_OPEN_AT_ONCE: Final = 32
"""Connections that an open loop has before it begins; others are made as they are needed."""

_NONE: Final = -1
"""The index of no request: whose connection has it does not ask any more."""


def load_of(plan: Plan, step: Step) -> Load:
    """The load of a step, to be made on the loop on which it runs."""
    return ClosedLoop(plan, step) if step.rate is None else OpenLoop(plan, step, step.rate)


class ClosedLoop(Load):
    """So many callers, each with a connection of its own, ask all the time."""

    def __init__(self, plan: Plan, step: Step) -> None:
        super().__init__(plan, step)
        self._callers = 0
        """Who still ask; 0 before the beginning."""

    def begin(self) -> None:
        connected = list(self.open)
        self._callers = self.step.connections
        for _ in range(self.step.connections - len(connected)):
            self._ask_anew()
        for connection in connected:
            self.free(connection, 0)

    def count(self) -> None:
        if self.step.requests is not None:
            self.indices = itertools.islice(self.indices, self.step.requests)

    def free(self, connection: Connection, now: int) -> None:
        index = next(self.indices, _NONE) if self.running else _NONE
        if index >= 0:
            connection.send(index, now_ns())
        else:
            connection.due = 0
            connection.index = _NONE
            self._leave()

    def unopened(self) -> None:
        self.loop.call_later(_PAUSE_SECONDS, self._ask_anew)

    def closed(self, connection: Connection) -> None:
        self.forget(connection)
        if not self._callers or connection.index == _NONE:
            return
        if connection.received_bytes:
            self._ask_anew()
        else:
            self.loop.call_later(_PAUSE_SECONDS, self._ask_anew)

    def stop(self) -> None:
        """Each caller leaves when its answer is there."""

    def _ask_anew(self) -> None:
        index = next(self.indices, _NONE) if self.running else _NONE
        if index >= 0:
            self.open_for(index, now_ns())
        else:
            self._leave()

    def _leave(self) -> None:
        self._callers -= 1
        if self._callers <= 0:
            self.finished.set()


class OpenLoop(Load):
    """Requests leave when they are due, on connections that are made as they are needed."""

    def __init__(self, plan: Plan, step: Step, rate: float) -> None:
        super().__init__(plan, step)
        self._rate = rate
        self.at_once = min(_OPEN_AT_ONCE, step.connections)
        self.sendings = []
        self._late: list[int] = []
        self.behind = self._late
        self._idle: deque[Connection] = deque()
        self._schedule = Schedule(itertools.repeat(0), 0, 0)
        self._armed = NEVER
        self._begun = False
        self._timer = fine_timer(self.loop, self._due)

    def begin(self) -> None:
        step, begins = self.step, now_ns()
        if step.arrivals == "constant":
            arrivals = constant(self._rate, step.first, step.stride)
        else:
            arrivals = poisson(self._rate, random.Random(self.plan.seed))
        counts = begins + round(step.warmup_seconds * 1e9)
        ends = NEVER if step.requests is not None else counts + round(step.seconds * 1e9)
        self.counted_from = counts
        self._schedule = Schedule(arrivals, begins, ends, counts, step.requests)
        self._idle.extend(self.open)
        self._begun = True
        self._due()

    def count(self) -> None:
        """The moment was known from the beginning."""

    def free(self, connection: Connection, now: int) -> None:
        due = self._schedule.take(now)
        if due is not None:
            self._note(due, now)
            connection.send(next(self.indices), due)
            return
        connection.due = 0
        self._idle.append(connection)
        self._see_to_it()

    def unopened(self) -> None:
        self._send_held_up()

    def closed(self, connection: Connection) -> None:
        self.forget(connection)
        self._send_held_up()

    def stop(self) -> None:
        self._schedule.end(now_ns())
        self._see_to_it()

    def impatient(self, now: int, oldest: int) -> None:
        while (due := self._schedule.take(oldest)) is not None:
            self.missed("unsent", f"each of {self.step.connections:,} connections waited for an answer", due, now)
        self._see_to_it()

    def _clear(self) -> None:
        self._timer.close()
        super()._clear()

    def _due(self) -> None:
        """The moment of a request has come: how late this is called is the tester's own doing."""
        self._armed = NEVER
        now = now_ns()
        while (due := self._schedule.next) <= now and self._send():
            self._note(due, now, True)
            now = now_ns()
        self._see_to_it()

    def _send_held_up(self) -> None:
        """There is room for a connection: what has waited for one may go."""
        now = now_ns()
        while (due := self._schedule.next) <= now and self._send():
            self._note(due, now)
        self._see_to_it()

    def _send(self) -> bool:
        """Send the oldest request that is due; False if every connection waits for an answer and no more may be."""
        idle = self._idle
        while idle:
            connection = idle.popleft()
            if not connection.closing:
                connection.send(next(self.indices), self._taken())
                return True
        if not self._room():
            return False
        self.open_for(next(self.indices), self._taken())
        return True

    def _taken(self) -> int:
        due = self._schedule.take(NEVER - 1)
        assert due is not None
        return due

    def _note(self, due: int, now: int, in_time: bool = False) -> None:
        """A request leaves late: because no connection was free for it, or (`in_time`: surely) by our own doing."""
        if due >= self.counted_from:
            if in_time or self._room():
                self._late.append(now - due)
            else:
                self.held_up += 1

    def _room(self) -> bool:
        """Whether a request could be sent now."""
        return bool(self._idle) or len(self.open) + self.opening < self.step.connections

    def _see_to_it(self) -> None:
        """That the next request is sent in time; that the step is over once no one is left."""
        due = self._schedule.next
        if due == NEVER:
            if self._begun and self._idle_or_none():
                self.finished.set()
        elif due != self._armed and self._room():
            self._armed = due
            self._timer.start((due - now_ns()) / 1e9)

    def _idle_or_none(self) -> bool:
        return not self.opening and not any(connection.due for connection in self.open)
