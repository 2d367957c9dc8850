"""A private event loop on a thread of its own, for callers in other threads and on other loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from maitred.errors import Draining

T = TypeVar("T")

CLOSED: Final = "this model was closed; load it again"
JOIN_SECONDS: Final = 30.0
"""How long `close` waits for the loop's thread; only a model that never gives the thread back takes as long."""


class Bridge:
    """A loop on a thread of its own, asked from other threads and loops. Every call ends, at the latest with it."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # the finalizer of a handle may run in the middle of anything
        self._closed = False
        self._closing = asyncio.Event()
        self._last: Callable[[], Awaitable[None]]
        self._futures: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # this process may have no more threads
            self._loop.close()
            raise

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call `work` on the loop and await there what it returns. Returns or raises what that does.

        Raises Draining once the bridge is closed, RuntimeError where the answer could never come.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a model cannot wait for an answer of its own handle: await predict_async")
        future = self._begin(work)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C while waiting: then nobody wants the answer any more
            future.cancel()
            raise

    async def run_async(self, work: Callable[[], Awaitable[T]]) -> T:
        """As `run`, for callers on another loop; cancelling it cancels the work."""
        return await asyncio.wrap_future(self._begin(work))

    def check_open(self) -> None:
        """Raises Draining once the bridge is closed."""
        if self._closed:
            raise Draining(CLOSED)

    async def idle(self, seconds: float) -> None:
        """Wait until no call runs, but no longer than that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def close(self, last: Callable[[], Awaitable[None]], wait: bool = True) -> None:
        """Refuse new calls, await `last` on the loop, fail the calls that are left, end the thread."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._last = last
            self._loop.call_soon_threadsafe(self._closing.set)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _begin(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        if os.getpid() != self._process:
            raise RuntimeError("this model was loaded before the process was forked; load it again in the child")
        future: Future[T] = Future()
        with self._lock:
            self.check_open()
            self._futures.add(future)
            self._loop.call_soon_threadsafe(self._start, work, future)
        future.add_done_callback(self._futures.discard)
        return future

    # ------------------------------------------------------------------ on the loop

    def _start(self, work: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        task = self._loop.create_task(self._carry(work, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def left(future: Future[T]) -> None:
            if future.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has ended, and the call with it
                    self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(left)

    async def _carry(self, work: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        error: BaseException
        try:
            value = await work()
        except asyncio.CancelledError:
            error = Draining(CLOSED)
        except BaseException as raised:  # also SystemExit and Ctrl-C, which would end the loop
            error = raised
        else:
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                future.set_result(value)
            return
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        finally:
            self._fail_all()  # if the loop broke, as for a model that exits on it, nobody else would

    async def _main(self) -> None:
        await self._closing.wait()
        await self._last()
        for task in self._tasks:
            task.cancel()
        await self.idle(1.0)
        self._fail_all()  # those of a model that does not let itself be cancelled

    def _fail_all(self) -> None:
        with self._lock:
            self._closed = True
            futures = tuple(self._futures)
        for future in futures:
            with contextlib.suppress(InvalidStateError):  # it has ended just now
                future.set_exception(Draining(CLOSED))
