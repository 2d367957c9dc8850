"""A replica in threads of this process: for native models that release the interpreter's lock, and for embedding."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from maitred.messages import Request
from maitred.replica.execution import Execution, said
from maitred.replica.local import Job, LocalReplica, Phases


class ThreadReplica(LocalReplica):
    """One copy with a thread of its own for each slot; an asynchronous model has one thread with a loop."""

    _jobs: SimpleQueue[Job | None]

    def launch(self) -> None:
        self._move("launch")
        self._jobs = SimpleQueue()
        self._timers: list[asyncio.TimerHandle] = []
        self._working = 1
        self._submit: Callable[[Job | None], None] = self._jobs.put
        self._start(self._main)

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        self._running.add(batch_id)
        self._submit(Job(batch_id, requests, rows))

    def stop(self) -> None:
        if self._asked_to_stop() is None:
            return
        self._submit(None)
        patience = 2 * self._settings.stop_seconds
        self._timers.append(self._loop.call_later(patience, self.kill, "stopped; its thread was left running"))

    def _over(self, reason: str, started: frozenset[int]) -> None:
        for timer in self._timers:
            timer.cancel()
        super()._over(reason, started)

    # ------------------------------------------------------------------ in its threads

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        name = f"maitred-replica-{self.id}"
        threading.Thread(target=self._guard, args=(work, *arguments), name=name, daemon=True).start()

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        """A thread's whole life: its end is told, however it comes."""
        reason = "stopped"
        try:
            work(*arguments)
        except BaseException as error:  # SystemExit and its like: the model wants to exit
            reason = f"its thread ended with {said(error)}"
        finally:
            self._tell(self._thread_ended, reason)

    def _main(self) -> None:
        with contextlib.closing(asyncio.Runner()) as runner:
            try:
                phases = self._prepare(runner.run)
            except BaseException as error:  # a model's own code may raise anything
                self._tell(self._refused, error)
                return
            if phases.execution.asynchronous:
                runner.run(self._serve_async(phases.execution, phases))
                return
        execution = phases.execution
        self._working += execution.traits.slots - 1
        for _ in range(execution.traits.slots - 1):
            self._start(self._serve, execution)
        self._tell(self._prepared, phases)
        self._serve(execution)

    def _serve(self, execution: Execution) -> None:
        while (job := self._jobs.get()) is not None:
            self._tell(self._settle, job.id, self._run_now(execution, job))
        self._jobs.put(None)  # for the next thread

    async def _serve_async(self, execution: Execution, phases: Phases) -> None:
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        running: set[asyncio.Task[None]] = set()

        def submit(job: Job | None) -> None:
            loop.call_soon_threadsafe(jobs.put_nowait, job)

        self._submit = submit
        self._tell(self._prepared, phases)
        while (job := await jobs.get()) is not None:
            task = loop.create_task(self._answer(execution, job))
            running.add(task)
            task.add_done_callback(running.discard)
        while running:
            await asyncio.wait(running)

    async def _answer(self, execution: Execution, job: Job) -> None:
        self._tell(self._settle, job.id, await self._run_async(execution, job))

    def _tell(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits for this any more
            self._loop.call_soon_threadsafe(call, *arguments)

    # ------------------------------------------------------------------ on the loop

    def _prepared(self, phases: Phases) -> None:
        super()._prepared(phases)
        if self.state == "draining":
            self._submit(None)  # what `stop` said before may have gone to a queue that nobody reads now

    def _thread_ended(self, reason: str) -> None:
        self._working -= 1
        if reason != "stopped" or self._working == 0:
            self._over(reason, frozenset(self._begun))
