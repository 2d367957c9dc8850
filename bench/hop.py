"""The hop without processes: one side of it at a time, over prepared frames, to be timed or counted by callgrind.

    python bench/hop.py core --requests 100000          # CPU-us a request
    python bench/hop.py count                           # instructions a request of each side (needs valgrind)

`pool` is the pool alone, asked in its own process; `core` is the same asked by a front's frames, so that the
difference is what the hop costs the core. `front` is a front's share: submitting, writing frames, ending tickets.
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
BATCH = 64


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
    def __init__(self) -> None:
        self.ends = 0

    def piece(self, ticket: Ticket, chunk: Any) -> None: ...

    def ended(self, ticket: Ticket) -> None:
        self.ends += 1

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


async def pool_side(requests: int) -> float:
    """CPU seconds of a pool that is asked BATCH requests a turn; making the requests is not counted."""
    watcher = Watcher()
    pool, _ = pool_of(watcher)
    await asyncio.sleep(0.01)
    spent = 0.0
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        made = [a_request(at, now) for at in range(start, start + BATCH)]
        wanted = watcher.ends + BATCH
        before = time.process_time()
        for request in made:
            pool.submit(request).watch(watcher)
        while watcher.ends < wanted:
            await asyncio.sleep(0)
        spent += time.process_time() - before
    return spent


def pipes() -> tuple[int, int, int, int]:
    to_front, from_core = os.pipe()
    to_core, from_front = os.pipe()
    return to_front, from_core, to_core, from_front


async def core_side(requests: int) -> float:
    """CPU seconds of the same pool and of the link that asks it; frames are made and read outside of the count."""
    pool, description = pool_of(Watcher())
    served = Served("m", "1", description)
    served.endpoint = pool
    to_front, from_core, to_core, from_front = pipes()
    control, _other = socket.socketpair()
    loop = asyncio.get_running_loop()
    link = Link({1: CoreModel(1, served, False)}, to_core, from_core, control, loop, nobody)
    reader = FrameReader(to_front)
    await asyncio.sleep(0.01)
    spent = 0.0
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
        before = time.process_time()
        await asyncio.sleep(0)
        while left or link.tickets:
            await asyncio.sleep(0)
            if link.tickets:
                continue
            spent += time.process_time() - before
            reader.fill()
            while (view := reader.frame()) is not None:
                left -= sum(len(batch.numbers) for batch in hop.read_core(view).answers)
            before = time.process_time()
    link.close()
    return spent


async def front_side(requests: int) -> float:
    """CPU seconds of a front's endpoint; the core's answers are made outside of the count."""
    to_front, from_core, to_core, from_front = pipes()
    control, _other = socket.socketpair()
    front = Front(FrameReader(to_front), from_front, control, asyncio.get_running_loop())
    remote = Remote(1, "m", "1", front)
    reader = FrameReader(to_core)
    watcher = Watcher()
    spent = 0.0
    tensors = msgspec.Raw(hop.encode([("y", "float32", (BATCH, 3), np.ones((BATCH, 3), np.float32))]))
    rows = list(range(BATCH + 1))
    for start in range(0, requests, BATCH):
        now = time.monotonic()
        made = [a_request(at, now) for at in range(start, start + BATCH)]
        before = time.process_time()
        for request in made:
            remote.submit(request).watch(watcher)
        await asyncio.sleep(0)
        spent += time.process_time() - before
        numbers = list(front.tickets)
        reader.fill()
        while reader.frame() is not None:
            pass
        answers = hop.Answers(tensors, BATCH, 1e-5, 1e-5, False, False, numbers, rows[:-1], rows[1:], [1e-4] * BATCH)
        data = hop.encode(hop.FromCore([answers]))
        os.write(from_core, len(data).to_bytes(4, "little") + data)
        before = time.process_time()
        while front.tickets:
            await asyncio.sleep(0)
        spent += time.process_time() - before
    front.close()
    return spent


async def made_side(requests: int) -> float:
    """What making and reading the frames costs in `core`, alone: to be taken off a count of instructions."""
    to_front, from_core, _, _ = pipes()
    reader = FrameReader(to_front)
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
        data = hop.encode(hop.FromCore([answers]))
        os.write(from_core, len(data).to_bytes(4, "little") + data)
        reader.fill()
        while (view := reader.frame()) is not None:
            hop.read_core(view)
    return 0.0


async def asked_side(requests: int) -> float:
    """What making requests costs in `pool` and `front`, alone."""
    for at in range(requests):
        a_request(at, time.monotonic())
    return 0.0


SIDES = {"pool": pool_side, "core": core_side, "front": front_side, "made": made_side, "asked": asked_side}


def counted(side: str, requests: int) -> int:
    """Instructions of a whole run."""
    out = Path(tempfile.mkdtemp(prefix="bench-hop-")) / "out"
    subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, __file__, side, "--requests",
         str(requests), "--loop", "asyncio"],
        check=True, capture_output=True,
    )  # fmt: skip
    found = re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=(*SIDES, "count"))
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    if options.side == "count":
        few, many = 64 * 40, 64 * 140
        each = {side: (counted(side, many) - counted(side, few)) / (many - few) for side in SIDES}
        pool, core = each["pool"] - each["asked"], each["core"] - each["made"]
        print(f"instructions a request, {BATCH} a batch: pool alone {pool:.0f}, core with the hop {core:.0f}", end="")
        print(f" (the hop: {core - pool:.0f}), front's share of the hop {each['front'] - each['asked']:.0f}")
        return 0
    gc.freeze()
    requests = options.requests or 200_000
    work = SIDES[options.side](requests)
    if options.loop == "uvloop":
        import uvloop

        spent = uvloop.run(work)
    else:
        spent = asyncio.run(work)
    print(f"{options.side}: {spent * 1e6 / requests:.2f} CPU-us a request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
