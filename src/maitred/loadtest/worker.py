"""The process of one worker: takes its share of a plan and of each step, and hands back what it counted."""

from __future__ import annotations

import asyncio
import os
import sys

from maitred.loadtest.frames import Begin, Ready, Stop, framed, next_frame, read_order
from maitred.loadtest.load import Load
from maitred.loadtest.loops import load_of
from maitred.loadtest.plan import Plan, Step
from maitred.loop import run


class Worker:
    """Obeys orders until their pipe ends."""

    def __init__(self, reader: asyncio.StreamReader, out: int) -> None:
        self._reader = reader
        self._out = out
        self._plan: Plan | None = None
        self._load: Load | None = None
        self._running: asyncio.Task[None] | None = None

    async def live(self) -> None:
        """Raises what goes wrong in a step, which ends the process with a traceback: it is a defect."""
        orders = asyncio.create_task(self._orders())
        while True:
            tasks = {orders} | ({self._running} if self._running is not None else set())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if orders in done:
                if self._running is not None:
                    self._running.cancel()
                return orders.result()
            for task in done:
                task.result()
            self._running = None

    async def _orders(self) -> None:
        while True:
            try:
                order = read_order(await next_frame(self._reader))
            except asyncio.IncompleteReadError:
                return
            if isinstance(order, Plan):
                self._plan = order
            elif isinstance(order, Step):
                assert self._plan is not None
                self._load = load_of(self._plan, order)
                await self._load.prepare()
                self._say(Ready())
            elif isinstance(order, Stop):
                if self._load is not None:
                    self._load.cut()
            else:
                await self._begin(order)

    async def _begin(self, order: Begin) -> None:
        assert self._load is not None
        self._running = asyncio.create_task(self._run(self._load, order.at))

    async def _run(self, load: Load, at: int) -> None:
        self._say(await load.run(at))

    def _say(self, record: object) -> None:
        left = memoryview(framed(record))
        while left:
            left = left[os.write(self._out, left) :]


async def _live() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await Worker(reader, sys.stdout.fileno()).live()


if __name__ == "__main__":
    run(_live())
