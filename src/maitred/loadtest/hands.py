"""Whoever runs a share of each step: this process, or a worker process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from maitred.loadtest.frames import Begin, Ready, Stop, framed, next_frame, read_report
from maitred.loadtest.load import Load
from maitred.loadtest.loops import load_of
from maitred.loadtest.plan import Plan, Step
from maitred.loadtest.tally import Tally


class WorkerLost(Exception):
    """A worker process ended without having told what it counted."""


class Hand(Protocol):
    """Runs one step after the other."""

    async def prepare(self, step: Step) -> None:
        """Open the connections of its share of a step."""
        ...

    async def run(self, begins: int) -> Tally:
        """Run what was prepared, from that moment of `time.monotonic_ns` on."""
        ...

    def cut(self) -> None:
        """End what runs now; `run` returns what was counted until then."""
        ...


class OwnHand:
    """This process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._load: Load | None = None

    async def prepare(self, step: Step) -> None:
        self._load = load_of(self._plan, step)
        await self._load.prepare()

    async def run(self, begins: int) -> Tally:
        assert self._load is not None
        return await self._load.run(begins)

    def cut(self) -> None:
        if self._load is not None:
            self._load.cut()


class WorkerHand:
    """A process of its own. It ends when its pipe does, so also when this process is killed."""

    def __init__(self, process: Process, number: int, workers: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._orders = process.stdin
        self._reports = process.stdout
        self._number = number
        self._workers = workers

    async def give(self, plan: Plan) -> None:
        """Hand over its share of the plan."""
        self._orders.write(framed(plan.share(self._number, self._workers)))
        with contextlib.suppress(ConnectionError):  # what becomes of it is told by the first report
            await self._orders.drain()

    async def prepare(self, step: Step) -> None:
        self._orders.write(framed(step.share(self._number, self._workers)))
        await self._report()

    async def run(self, begins: int) -> Tally:
        self._orders.write(framed(Begin(begins)))
        report = await self._report()
        assert isinstance(report, Tally)
        return report

    def cut(self) -> None:
        self._orders.write(framed(Stop()))

    async def _report(self) -> Ready | Tally:
        try:
            return read_report(await next_frame(self._reports))
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            raise WorkerLost(
                f"worker {self._number + 1} of {self._workers} ended early, with exit code {code}"
            ) from None


@contextlib.asynccontextmanager
async def hands(plan: Plan, workers: int) -> AsyncIterator[Sequence[Hand]]:
    """As many as there are to be workers; processes end with the context."""
    if workers == 1:
        yield [OwnHand(plan)]
        return
    async with contextlib.AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(_process()) for _ in range(workers)]
        made = [WorkerHand(process, number, workers) for number, process in enumerate(processes)]
        await asyncio.gather(*(hand.give(plan) for hand in made))
        yield made


@contextlib.asynccontextmanager
async def _process() -> AsyncIterator[Process]:
    command = (sys.executable, "-m", "maitred.loadtest.worker")
    # a session of its own: Ctrl-C is for us, who tell it when to end
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
