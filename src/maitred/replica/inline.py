"""A replica on the event loop itself: for models that take microseconds, and for embedding."""

from __future__ import annotations

import asyncio
import threading

from maitred.messages import Request
from maitred.replica.execution import Execution, said
from maitred.replica.lifecycle import OVER
from maitred.replica.local import Job, LocalReplica, Phases


class InlineReplica(LocalReplica):
    """One copy without a thread: the loop stands still while it loads, and while it runs unless it is asynchronous."""

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
        found: list[Phases | BaseException] = []

        def prepare() -> None:
            try:
                found.append(self._prepare())
            except (Exception, SystemExit) as error:  # a model's own code may raise anything
                found.append(error)

        # In a thread that is waited for: the warm-up of an asynchronous model needs a loop of its own.
        loader = threading.Thread(target=prepare, name=f"maitred-replica-{self.id}", daemon=True)
        loader.start()
        loader.join()
        phases = found[0]
        if isinstance(phases, BaseException):
            self._refused(phases)
        else:
            self._execution = phases.execution
            self._prepared(phases)

    def _work(self, job: Job) -> None:
        if self.state in OVER:
            return
        try:
            outcome = self._run_now(self._execution, job)
        except BaseException as error:  # SystemExit and its like: the model may end itself, but not its host
            self._over(f"ended with {said(error)}", frozenset(self._begun))
            return
        self._settle(job.id, outcome)
        self._end_when_idle()

    async def _answer(self, job: Job) -> None:
        self._settle(job.id, await self._run_async(self._execution, job))
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self.state == "draining" and not self._running:
            self._over("stopped", frozenset())
