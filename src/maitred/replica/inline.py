"""A replica on the event loop itself: for models that take microseconds, and for embedding."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from maitred.messages import Request
from maitred.replica.execution import Execution
from maitred.replica.lifecycle import OVER
from maitred.replica.local import Job, LocalReplica, Phases


class InlineReplica(LocalReplica):
    """One copy without a thread: the loop stands still while it runs unless it is asynchronous. A thread loads it."""

    _execution: Execution

    def launch(self) -> None:
        self._move("launch")
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.call_soon(self._load)

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        self._running.add(batch_id)
        job = Job(batch_id, requests, rows)
        if self._execution.asynchronous:
            task = self._loop.create_task(self._answer(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._loop.call_soon(self._work, job)

    def stop(self) -> None:
        if self._asked_to_stop() is not None:
            self._loop.call_soon(self._end_when_idle)

    def _room(self, execution: Execution) -> int:
        return execution.traits.slots if execution.asynchronous else 1

    def _load(self) -> None:
        if self.state != "loading":
            return

        def prepare() -> None:
            try:
                found: Phases | BaseException = self._prepare(self._wait)
            except BaseException as error:  # a model's own code may raise anything
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._loaded, found)

        # The loop is free meanwhile: an asynchronous model is warmed up on it.
        threading.Thread(target=prepare, name=f"maitred-replica-{self.id}", daemon=True).start()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of the model on the loop that it will serve on. Called in the loader's thread."""

        async def caught() -> tuple[Any, BaseException | None]:
            try:
                return await coroutine, None
            except BaseException as error:  # a SystemExit would end the loop
                return None, error

        result, error = asyncio.run_coroutine_threadsafe(caught(), self._loop).result()
        if error is not None:
            raise error
        return result

    def _loaded(self, found: Phases | BaseException) -> None:
        if isinstance(found, BaseException):
            self._refused(found)
        else:
            self._execution = found.execution
            self._prepared(found)

    def _work(self, job: Job) -> None:
        if self.state in OVER:
            return
        self._settle(job.id, self._run_now(self._execution, job))
        self._end_when_idle()

    async def _answer(self, job: Job) -> None:
        outcome = await self._run_async(self._execution, job)
        if not self._loop.is_closed():  # else this has been thrown away unfinished
            self._settle(job.id, outcome)
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self.state == "draining" and not self._running:
            self._over("stopped", frozenset())
