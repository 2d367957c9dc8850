"""The hop without processes: one side of it at a time, over prepared frames, to be timed or counted by callgrind.

    python bench/hop.py time           # CPU-us a request of each side
    python bench/hop.py count          # instructions a request of each side (needs valgrind, takes minutes)

`pool` is the pool alone, asked in its own process; `core` is the same asked by a front's frames, so that the
difference is what the hop costs the core. `front` is a front's share: submitting, writing frames, ending tickets.
What only the bench does (making requests and frames, reading the other side's) runs alone too, and is taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from maitred.deployment.router import Served
from maitred.endpoint import Ticket
from maitred.events import nobody
from maitred.gateway import hop
from maitred.gateway.core import CoreModel, Link
from maitred.gateway.front import Front, Remote
from maitred.messages import NORMAL, Outputs, Request, Tensor
from maitred.model.description import Description
from maitred.model.signature import SAME_GROUP, Signature
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica.frames import FrameReader
from maitred.scheduling.dispatcher import DispatchSettings

SIGNATURE = Signature({"x": "float32[n, 4]"}, {"y": "float32[n, 3]"})
ROW = np.ones((1, 4), np.float32).tobytes()
BATCH = int(os.environ.get("BENCH_BATCH", "64"))


class Copy:
    """A replica that answers at once, with the same array."""

    def __init__(self, id: int, pool: Pool, description: Description) -> None:
        self.id, self.room, self.pid, self.refused = id, 1, None, False
        self._pool, self._description = pool, description
        self._answer = np.ones((BATCH, 3), np.float32)
        self._loop = asyncio.get_running_loop()

    def launch(self) -> None:
        this: Any = self
        self._loop.call_soon(self._pool.ready, this, self._description)

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        self._loop.call_soon(self._done, batch_id, rows)

    def _done(self, batch_id: int, rows: int) -> None:
        this: Any = self
        tensor = Tensor("float32", (rows, 3), self._answer[:rows])
        self._pool.answered(this, batch_id, Outputs({"y": tensor}, rows, 0.00001))

    def cancel(self, batch_id: int) -> None: ...

    def stop(self) -> None: ...

    def kill(self, reason: str = "") -> None: ...

    def frozen(self) -> bool:
        return False


class Watcher:
    """Waits for the ends of BATCH tickets, without turning the loop for nothing."""

    def __init__(self) -> None:
        self.left = 0
        self.all = asyncio.get_running_loop().create_future()

    def expect(self) -> asyncio.Future[None]:
        self.left = BATCH
        self.all = asyncio.get_running_loop().create_future()
        return self.all

    def piece(self, ticket: Ticket, chunk: Any) -> None: ...

    def ended(self, ticket: Ticket) -> None:
        self.left -= 1
        if not self.left:
            self.all.set_result(None)

    def changed(self, *told: Any) -> None: ...


def pool_of(watcher: Watcher) -> tuple[Pool, Description]:
    loop = asyncio.get_running_loop()
    description = Description(name="m", signature=SIGNATURE)
    pool = Pool(
        "m", "1", DispatchSettings(), SupervisorSettings(), lambda id, pool: Copy(id, pool, description),  # type: ignore[arg-type,return-value]
        watcher, loop, time.monotonic, nobody,
    )  # fmt: skip
    pool.know(description)
    pool.launch()
    return pool, description


def a_request(at: int, now: float) -> Request:
    return Request(
        {"x": Tensor("float32", (1, 4), ROW)}, 1, SAME_GROUP, now + 30.0, NORMAL, "", f"r-{at:05d}", "", "", None, None,
        60, now, None,
    )  # fmt: skip


async def pool_side(requests: int) -> None:
    """A pool that is asked BATCH requests a turn."""
    watcher = Watcher()
    pool, _ = pool_of(watcher)
    await asyncio.sleep(0.01)
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        made = [a_request(at, now) for at in range(start, start + BATCH)]
        ended = watcher.expect()
        for request in made:
            pool.submit(request).watch(watcher)
        await ended


class Readable:
    """Waits for frames on a pipe."""

    def __init__(self, fd: int) -> None:
        self._reader = FrameReader(fd)
        self._loop = asyncio.get_running_loop()
        self._came = self._loop.create_future()
        self._loop.add_reader(fd, self._read)
        self.frames: list[bytes] = []

    def _read(self) -> None:
        self._reader.fill()
        while (view := self._reader.frame()) is not None:
            self.frames.append(bytes(view))
        if self.frames and not self._came.done():
            self._came.set_result(None)

    async def wait(self) -> list[bytes]:
        await self._came
        self._came = self._loop.create_future()
        frames, self.frames = self.frames, []
        return frames


def pipes() -> tuple[int, int, int, int]:
    to_front, from_core = os.pipe()
    to_core, from_front = os.pipe()
    return to_front, from_core, to_core, from_front


async def core_side(requests: int) -> None:
    """The same pool, and the link that asks it."""
    pool, description = pool_of(Watcher())
    served = Served("m", "1", description)
    served.endpoint = pool
    to_front, from_core, to_core, from_front = pipes()
    control, _other = socket.socketpair()
    loop = asyncio.get_running_loop()
    link = Link({1: CoreModel(1, served, lambda: False)}, to_core, from_core, control, loop, nobody)
    reader = Readable(to_front)
    await asyncio.sleep(0.01)
    form = hop.Form(1, (("x", "float32", (1, 4)),), 1, True, NORMAL, "", None)
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        numbers = list(range(start + 1, start + BATCH + 1))
        asked = hop.Asked(
            1, False, [] if start else [form], numbers, [1] * BATCH, [now + 30.0] * BATCH, [now] * BATCH, [60] * BATCH,
            [f"r-{at:05d}" for at in numbers], [""] * BATCH, [ROW] * BATCH, {},
        )  # fmt: skip
        data = hop.encode(hop.FromFront(0, [asked]))
        os.write(from_front, len(data).to_bytes(4, "little") + data)
        left = BATCH
        while left:
            for frame in await reader.wait():
                left -= sum(len(batch.numbers) for batch in hop.read_core(frame).answers)
    link.close()


async def front_side(requests: int) -> None:
    """A front's endpoint, answered by frames."""
    to_front, from_core, to_core, from_front = pipes()
    control, _other = socket.socketpair()
    front = Front(FrameReader(to_front), from_front, control, asyncio.get_running_loop())
    remote = Remote(1, "m", "1", front)
    reader = Readable(to_core)
    watcher = Watcher()
    tensors = msgspec.Raw(hop.encode([("y", "float32", (BATCH, 3), np.ones((BATCH, 3), np.float32))]))
    rows = list(range(BATCH + 1))
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        made = [a_request(at, now) for at in range(start, start + BATCH)]
        ended = watcher.expect()
        for request in made:
            remote.submit(request).watch(watcher)
        numbers = list(front.tickets)
        await reader.wait()
        answers = hop.Answers(tensors, BATCH, 1e-5, 1e-5, False, False, numbers, rows[:-1], rows[1:], [1e-4] * BATCH)
        tell(from_core, answers)
        await ended
    front.close()


def tell(pipe: int, answers: hop.Answers) -> None:
    """Write the frame in which the core would send these."""
    data = hop.encode(hop.FromCore([answers]))
    os.write(pipe, len(data).to_bytes(4, "little") + data)


async def made_side(requests: int) -> None:
    """What making and reading the frames costs in `core`, alone."""
    to_front, from_core, _, _ = pipes()
    reader = Readable(to_front)
    tensors = msgspec.Raw(hop.encode([("y", "float32", (BATCH, 3), np.ones((BATCH, 3), np.float32))]))
    rows = list(range(BATCH + 1))
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        numbers = list(range(start + 1, start + BATCH + 1))
        asked = hop.Asked(
            1, False, [], numbers, [1] * BATCH, [now + 30.0] * BATCH, [now] * BATCH, [60] * BATCH,
            [f"r-{at:05d}" for at in numbers], [""] * BATCH, [ROW] * BATCH, {},
        )  # fmt: skip
        hop.encode(hop.FromFront(0, [asked]))
        answers = hop.Answers(tensors, BATCH, 1e-5, 1e-5, False, False, numbers, rows[:-1], rows[1:], [1e-4] * BATCH)
        tell(from_core, answers)
        for frame in await reader.wait():
            hop.read_core(frame)


async def asked_side(requests: int) -> None:
    """What making requests costs in `pool` and `front`, alone."""
    for at in range(requests):
        a_request(at, time.monotonic())


async def answered_side(requests: int) -> None:
    """What making requests, and the core's answers to them, costs in `front`, alone."""
    to_front, from_core, _, _ = pipes()
    reader = Readable(to_front)
    tensors = msgspec.Raw(hop.encode([("y", "float32", (BATCH, 3), np.ones((BATCH, 3), np.float32))]))
    rows = list(range(BATCH + 1))
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        for at in range(start, start + BATCH):
            a_request(at, now)
        answers = hop.Answers(tensors, BATCH, 1e-5, 1e-5, False, False, rows[1:], rows[:-1], rows[1:], [1e-4] * BATCH)
        tell(from_core, answers)
        await reader.wait()


SIDES = {
    "pool": pool_side, "asked": asked_side, "core": core_side, "made": made_side, "front": front_side,
    "answered": answered_side,
}  # fmt: skip
ALONE = {"pool": "asked", "core": "made", "front": "answered"}
"""What is taken off each side."""


def counted(side: str, requests: int) -> int:
    """Instructions of a whole run."""
    out = Path(tempfile.mkdtemp(prefix="bench-hop-")) / "out"
    subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, __file__, side, "--requests",
         str(requests)],
        check=True, capture_output=True,
    )  # fmt: skip
    found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def play(side: str, requests: int, loop: str) -> float:
    """CPU seconds of a run of one side."""
    before = time.process_time()
    if loop == "uvloop":
        uvloop.run(SIDES[side](requests))
    else:
        asyncio.run(SIDES[side](requests))
    return time.process_time() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "count", *SIDES))
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    gc.freeze()
    if options.what in SIDES:
        play(options.what, options.requests, options.loop)
        return 0
    if options.what == "count":
        few, many = BATCH * 40, BATCH * 140
        each = {side: (counted(side, many) - counted(side, few)) / (many - few) for side in SIDES}
        unit, digits = "instructions", 0
    else:
        runs = [
            {side: play(side, options.requests, options.loop) * 1e6 / options.requests for side in SIDES}
            for _ in range(options.runs)
        ]
        each = {side: min(run[side] for run in runs) for side in SIDES}
        unit, digits = "CPU-us", 2
    pool, core, front = (each[side] - each[alone] for side, alone in ALONE.items())
    print(
        f"{unit} a request, {BATCH} a batch: the pool alone {pool:.{digits}f}; the core {core:.{digits}f}, of which the "
        f"hop {core - pool:.{digits}f}; a front's share of the hop {front:.{digits}f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
