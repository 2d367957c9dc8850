"""The child's loop for models whose `predict` is a coroutine function: as many batches at once as they have slots."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

from maitred.replica import channel
from maitred.replica.execution import Execution
from maitred.replica.station import Station, leave

log = logging.getLogger("maitred.model")


def serve(station: Station, execution: Execution, runner: asyncio.Runner) -> None:
    """Until told to stop."""
    runner.run(_serve(station, execution))


def runner() -> asyncio.Runner:
    """The loop for a model's whole life. What it says of tasks that failed unseen leaves out what may be payloads."""
    made = asyncio.Runner()
    made.get_loop().set_exception_handler(_unseen)
    return made


def _unseen(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.error("%s", context.get("message", "an exception was not caught"), exc_info=context.get("exception"))


async def _serve(station: Station, execution: Execution) -> None:
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    stopped = asyncio.Event()

    def readable() -> None:
        data = os.read(station.reading, 64 * channel.MESSAGE.size)
        if not data:
            leave()
        for fields in channel.MESSAGE.iter_unpack(data):
            kind = fields[0]
            if kind == channel.RUN:
                task = loop.create_task(_run(station, execution, fields))
                running.add(task)
                task.add_done_callback(running.discard)
            elif kind == channel.ROOM:
                station.room(fields)
            elif kind == channel.RETIRE:
                station.retire(fields)
            elif kind == channel.STOP:
                stopped.set()

    loop.add_reader(station.reading, readable)
    await stopped.wait()
    while running:
        await asyncio.wait(running)
    loop.remove_reader(station.reading)


async def _run(station: Station, execution: Execution, fields: tuple[int, ...]) -> None:
    try:
        inputs, context = station.begin(fields, execution)
        started = time.perf_counter_ns()
        outputs = await execution.run_async(inputs, context)
        station.answer(fields, outputs, time.perf_counter_ns() - started)
    except BaseException as error:  # CancelledError and its like too: the batch's failure, and not the replica's
        station.failed(fields, error, execution)
