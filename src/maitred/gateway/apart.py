"""Long bodies and long answers: read and written in threads that work in pieces, so that the loop has its turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from maitred.clock import Clock, monotonic
from maitred.errors import DeadlinePassed
from maitred.http.exchange import Exchange
from maitred.messages import FOREVER
from maitred.wire.pieces import Pause

THREADS: Final = 2
"""At work at once; other long bodies wait for one of them. Python runs one at a time, so more would gain nothing, and a
single one would make a short long body wait for the longest."""

WORK_SECONDS: Final = 1e-3
REST_SECONDS: Final = 5e-5
"""A thread rests after so much work. Without that the loop would have to wait for the interpreter to take the turn from
it, which is 5 ms each time."""


class Much(Exception):
    """An answer is too long to be written on the loop."""


class Stopped(Exception):
    """Nobody wants the work any more."""


class Read:
    """What has become of a body that was read apart: stands in its exchange in the place of the body."""

    __slots__ = ("body", "_key", "_future")

    def __init__(self, body: Any, key: object, future: asyncio.Future[Any]) -> None:
        self.body = body
        self._key = key
        self._future = future

    def __len__(self) -> int:
        return len(self.body)

    def holds_for(self, key: object) -> bool:
        """Whether it was read by this signature, or not at all."""
        return self._key is None or self._key is key

    def take(self) -> Any:
        """What was read. Raises what reading raised."""
        return self._future.result()


class Work:
    """One body or answer in a thread; a `Pause` for what is done there."""

    __slots__ = ("stopped", "exchange", "_way", "_apart", "_loop", "_timer", "_rested")

    def __init__(
        self, apart: Apart, exchange: Exchange | None, loop: asyncio.AbstractEventLoop, way: Callable[[Work], Any]
    ) -> None:
        self.stopped = False
        self.exchange = exchange
        self._way: Callable[[Work], Any] | None = way
        """What is to be done, and with it the body or answer: a thread may come to it long after its caller left."""
        self._apart = apart
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._rested = 0.0

    def __call__(self) -> None:
        """Any thread: rest if it is time. Raises Stopped."""
        if self.stopped:
            raise Stopped
        clock = self._apart.clock
        if clock() - self._rested >= WORK_SECONDS:
            time.sleep(REST_SECONDS)
            self._rested = clock()

    def run(self) -> Any:
        """In a thread: all of it. Raises Stopped, and what the way raises."""
        way, self._way = self._way, None  # what is being done refers to this
        if way is None:
            raise Stopped
        return way(self)

    def by(self, deadline: float) -> None:
        """Any thread: the caller has lost interest at `deadline` (absolute), if not before."""
        if deadline < FOREVER:
            self._loop.call_soon_threadsafe(self._arm, deadline)

    def _arm(self, deadline: float) -> None:
        if self.stopped or self.exchange is None:
            return
        when = self._loop.time() + deadline - self._apart.clock()
        if self._timer is None or when < self._timer.when():
            self.disarm()
            self._timer = self._loop.call_at(when, self._late)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._apart.late(self)

    def stop(self) -> None:
        """Nobody wants it any more: what it was to be done with is not kept for a thread that has yet to come."""
        self.stopped = True
        self.exchange = self._way = None
        self.disarm()

    def gone(self) -> None:
        """The caller has left."""
        self.stop()


class Apart:
    """Belongs to one loop."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self.clock = clock
        self.again: Callable[[Exchange], None] = _nobody
        """Takes an exchange once more, whose body is a `Read`."""
        self._pool: ThreadPoolExecutor | None = None
        self._works: set[Work] = set()

    def read(self, exchange: Exchange, key: object, deadline: float, way: Callable[[Work], Any]) -> None:
        """Do `way` in a thread, then have the exchange handed in `again`: what came of it, or that it was too late.

        `key`: the signature by which it is read.
        """
        loop = asyncio.get_running_loop()
        work = Work(self, exchange, loop, way)
        exchange.gone = work
        self._works.add(work)
        if deadline < FOREVER:
            work._arm(deadline)
        future = loop.run_in_executor(self._threads(), work.run)
        future.add_done_callback(partial(self._has_read, work, key))

    def _has_read(self, work: Work, key: object, future: asyncio.Future[Any]) -> None:
        self._works.discard(work)
        work.disarm()
        if _wanted(work, future):
            self._hand_in(work.exchange, key, future)

    def _hand_in(self, exchange: Any, key: object, future: asyncio.Future[Any]) -> None:
        exchange.gone = None
        exchange.body = Read(exchange.body, key, future)
        self.again(exchange)

    def late(self, work: Work) -> None:
        """The deadline has passed while a body was read."""
        exchange = work.exchange
        if work.stopped or exchange is None:
            return
        work.stop()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message = "the deadline passed while the body was read: allow more time, or send less at once"
        future.set_exception(DeadlinePassed(message))
        self._hand_in(exchange, None, future)

    def write(self, way: Callable[[Pause], Any], done: Callable[[asyncio.Future[Any]], None]) -> Work:
        """Do `way` in a thread and call `done`, unless the work was stopped."""
        loop = asyncio.get_running_loop()
        work = Work(self, None, loop, way)
        self._works.add(work)
        future = loop.run_in_executor(self._threads(), work.run)
        future.add_done_callback(partial(self._has_written, work, done))
        return work

    def _has_written(
        self, work: Work, done: Callable[[asyncio.Future[Any]], None], future: asyncio.Future[Any]
    ) -> None:
        self._works.discard(work)
        if _wanted(work, future):
            done(future)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="maitred-apart")
        return self._pool

    def close(self) -> None:
        """Stop what is under way, at its next piece."""
        for work in self._works:
            work.gone()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _wanted(work: Work, future: asyncio.Future[Any]) -> bool:
    """Whether what came of a work is still of use; an error that is of none counts as seen."""
    return not (future.cancelled() or (future.exception() is not None and work.stopped) or work.stopped)


def _nobody(exchange: Exchange) -> None:
    raise RuntimeError("nobody takes exchanges again")
