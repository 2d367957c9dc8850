"""Runs the steps of a plan with a common beginning for all hands, and adds up what they counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from maitred.loadtest.connection import now_ns
from maitred.loadtest.hands import Hand, hands
from maitred.loadtest.plan import Plan, Step
from maitred.loadtest.report import Done, Server
from maitred.loadtest.tally import Tally, merged
from maitred.loadtest.usage import NoProcess, family_cpu_seconds

_AHEAD_NS: Final = 50_000_000
"""How far ahead the common beginning of several workers lies, so that each has heard of it by then."""


class Crew:
    """Runs steps one after the other; after `stop` the one that runs ends, and no other begins."""

    def __init__(self, plan: Plan, workers: int = 1, pid: int | None = None) -> None:
        """`pid`: the server's process, if its use of processors is wanted."""
        self._plan = plan
        self._workers = workers
        self._pid = pid
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    async def run(self, steps: Sequence[Step], say: Callable[[Step], None]) -> list[Done]:
        """What came of each step; of fewer where it was stopped. `say` is called before each. Raises WorkerLost."""
        done: list[Done] = []
        async with hands(self._plan, self._workers) as all_hands:
            for step in steps:
                if self.stopped:
                    break
                say(step)
                done.append(await self._step(all_hands, step))
        return done

    async def _step(self, all_hands: Sequence[Hand], step: Step) -> Done:
        await asyncio.gather(*(hand.prepare(step) for hand in all_hands))
        begins = now_ns() + (_AHEAD_NS if len(all_hands) > 1 else 0)
        watch = None if self._pid is None else Watch(self._pid, begins, step)
        stopping = asyncio.create_task(self._pass_on(all_hands))
        try:
            tally = merged(await asyncio.gather(*(hand.run(begins) for hand in all_hands)))
        finally:
            stopping.cancel()
            if watch is not None:
                watch.end()
        return Done(step, tally, None if watch is None else watch.found(tally))

    async def _pass_on(self, all_hands: Sequence[Hand]) -> None:
        await self._stopping.wait()
        for hand in all_hands:
            hand.cut()


class Watch:
    """What a server's processes use while a step is counted."""

    def __init__(self, pid: int, begins: int, step: Step) -> None:
        self._pid = pid
        self._looks: list[tuple[float, float]] = []
        """Seconds of processors used, and when."""
        loop = asyncio.get_running_loop()
        ahead = (begins - now_ns()) / 1e9 + step.warmup_seconds
        self._handles = [loop.call_later(max(0.0, ahead), self._look)]
        if step.requests is None:
            self._handles.append(loop.call_later(ahead + step.seconds, self._look))

    def end(self) -> None:
        """The step is over, perhaps before its time."""
        for handle in self._handles:
            handle.cancel()
        if len(self._looks) == 1:
            self._look()

    def found(self, tally: Tally) -> Server | None:
        """None where the process was not there all the time, or nothing was counted."""
        if len(self._looks) < 2:
            return None
        (before, since), (after, until) = self._looks[:2]
        answers = tally.answered + sum(tally.statuses.values())
        return Server(self._pid, after - before, answers, until - since)

    def _look(self) -> None:
        try:
            self._looks.append((family_cpu_seconds(self._pid), now_ns() / 1e9))
        except NoProcess:  # it has ended: the report then has no figure of it
            self._looks.clear()
