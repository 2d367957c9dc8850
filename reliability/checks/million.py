"""A great many mixed requests through several replicas: each answer compared byte by byte, and memory watched."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reliability.driver import House, message, model, tensor
from reliability.judge import Case, Check

FIRST = 1_000_000_000_000_000
"""Numbers of requests and rows have sixteen digits each, so that all requests of one shape have the same length."""
STEP = 10_000_000
"""From one request's numbers to the next one's; a request's own lie in between."""
PROOF = 1_000
"""Apart by so much, at least, lie the proofs of rows with different values."""
CONNECTIONS = 128
VARIANTS = 6
"""Requests of one shape with different values."""


class Shape:
    """One kind of request, with its answer. Both are cut at the numbers that change from one request to the next."""

    def __init__(
        self, name: str, binary: bool, inputs: dict[str, Any], wanted: dict[str, Any], tag: int | None
    ) -> None:
        """`inputs` and `wanted` by name as arrays, of the request with number 0."""
        self.name = name
        self.binary = binary
        self.wanted = wanted
        self.rows = len(inputs["nonce"])
        self._request = _cut(self._encoded(inputs, tag))
        self._answer: tuple[bytes | int, ...] = ()

    def request(self, number: int) -> bytes:
        return _filled(self._request, number)

    def learn(self, answer: bytes, head_bytes: int) -> str:
        """Take the answer to request 0 for the pattern of all, if it is right; else what is wrong with it.

        `head_bytes`: of its JSON part; 0 for an answer without binary tensors.
        """
        found = json.loads(answer[:head_bytes] if head_bytes else answer)
        if found.get("id") != f"q-{FIRST}" or [output["name"] for output in found["outputs"]] != [*self.wanted]:
            return f"{found.get('id')} {[output['name'] for output in found['outputs']]}"
        at = head_bytes
        for output in found["outputs"]:
            array = self.wanted[output["name"]]
            if "data" in output:
                got = np.array(output["data"], array.dtype).reshape(output["shape"])
            else:
                size = output["parameters"]["binary_data_size"]
                got = _unpacked(answer[at : at + size], array.dtype).reshape(output["shape"])
                at += size
            if got.shape != array.shape or not (got == array).all():
                return f"{output['name']} {got} for {array}"
        self._answer = _cut(answer)
        return ""

    def right(self, number: int, answer: bytes) -> bool:
        return answer == _filled(self._answer, number)

    def _encoded(self, inputs: dict[str, Any], tag: int | None) -> bytes:
        entries, tails = [], []
        for name, array in inputs.items():
            entry = tensor(name, _DATATYPES[array.dtype.kind + str(array.dtype.itemsize)], [], list(array.shape))
            if self.binary and array.dtype.kind != "O":
                del entry["data"]
                entry["parameters"] = {"binary_data_size": array.nbytes}
                tails.append(array.tobytes())
            else:
                entry["data"] = array.ravel().tolist()
            entries.append(entry)
        body: dict[str, Any] = {"id": f"q-{FIRST}", "inputs": entries, "parameters": {}}
        body["outputs"] = [{"name": name} for name in self.wanted]
        if self.binary:
            body["parameters"]["binary_data_output"] = True
        if tag is not None:
            body["parameters"]["tag"] = tag
        head = json.dumps(body).encode()
        headers = {"Maitred-Timeout-Ms": "20000"}  # stated, so that no hang-up of others lets it be refused
        headers |= {"Inference-Header-Content-Length": str(len(head))} if self.binary else {}
        return message("POST", f"/v2/models/{self.name}/infer", head + b"".join(tails), headers)


_DATATYPES = {"i8": "INT64", "f4": "FP32", "f8": "FP64", "u1": "UINT8", "b1": "BOOL", "i2": "INT16", "O8": "BYTES"}


def _unpacked(data: bytes, dtype: np.dtype[Any]) -> Any:
    """The elements of a binary tensor; those of text have their length before them."""
    if dtype.kind != "O":
        return np.frombuffer(data, dtype)
    items, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        items.append(data[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return np.array(items, object)


_NUMBERS = re.compile(rb"10000000\d{8}|[\x00-\xff]{4}\x7e\x8d\x03\x00", re.DOTALL)
"""The numbers of request 0 as text and as eight bytes: FIRST and up to ten million more."""


def _cut(data: bytes) -> tuple[bytes | int, ...]:
    """Constant pieces, and between them the numbers: how far from the request's own, as text or, below 0, as bytes."""
    pieces: list[bytes | int] = []
    at = 0
    for found in _NUMBERS.finditer(data):
        text = found.group()
        value = int(text) if len(text) == 16 else int.from_bytes(text, "little")
        if not FIRST <= value < FIRST + STEP:
            continue
        pieces += [data[at : found.start()], value - FIRST if len(text) == 16 else -1 - (value - FIRST)]
        at = found.end()
    return (*pieces, data[at:])


def _filled(pieces: tuple[bytes | int, ...], number: int) -> bytes:
    base = FIRST + number * STEP
    return b"".join(
        [
            piece
            if piece.__class__ is bytes
            else b"%d" % (base + piece)  # type: ignore[operator]
            if piece >= 0  # type: ignore[operator]
            else (base - 1 - piece).to_bytes(8, "little")  # type: ignore[operator]
            for piece in pieces
        ]
    )


def shapes() -> list[tuple[int, Shape]]:
    """Every kind of request with how often it comes: two models, many sizes, JSON and binary, small and large."""
    made: list[tuple[int, Shape]] = []
    for variant in range(VARIANTS):
        rng = np.random.default_rng(variant)
        for rows, often in ((1, 60), (2, 12), (3, 8), (7, 6), (40, 1)):
            for binary in (False, True):
                made.append((often, _mixed(rng, rows, (1, 4)[variant % 2], binary, variant % 2)))
                made.append((often, _numbers(rng, rows, (2, 5)[variant % 2], binary)))
        made.append((1, _mixed(rng, 1, 500, False, 0)))
        made.append((2, _numbers(rng, 1, 50_000, True)))
    made.append((1, _numbers(np.random.default_rng(99), 1, 1 << 20, True)))
    return made


def _mixed(rng: Any, rows: int, width: int, binary: bool, tag: int) -> Shape:
    nonces = FIRST + np.arange(rows, dtype=np.int64)
    values = rng.standard_normal((rows, width)).astype(np.float32)
    text = np.array([f"row é {rng.integers(1e9)}" for _ in range(rows)], object)
    inputs = {"nonce": nonces, "values": values, "text": text}
    if rng.random() < 0.3:
        inputs["flag"] = np.ones(rows, bool)
    wanted = {"nonce": nonces, "twice": values * np.float32(2), "text": text, "tag": np.full(rows, tag, np.int64)}
    if rng.random() < 0.3:
        wanted = {"text": text, "nonce": nonces}
    return Shape("mixed", binary, inputs, wanted, tag)


def _numbers(rng: Any, rows: int, width: int, binary: bool) -> Shape:
    nonces = FIRST + np.arange(rows, dtype=np.int64)
    octets = rng.integers(0, 256, (rows, 16), np.uint8)
    real, flags = rng.standard_normal(rows), rng.random((rows, 3)) < 0.5
    short = rng.integers(-30_000, 30_000, (rows, width), np.int16)
    proof = nonces + PROOF * (octets.sum(axis=1, dtype=np.int64) + flags.sum(axis=1))
    inputs = {"nonce": nonces, "octets": octets, "real": real, "flags": flags, "short": short}
    wanted = {"octets": 255 - octets, "real": real + 1, "flags": ~flags, "short": -short, "proof": proof}
    return Shape("numbers", binary, inputs, wanted, None)


class Load:
    """Sends requests of all shapes over some connections and checks every answer."""

    def __init__(self, house: House, count: int, cancel_share: float) -> None:
        self.house = house
        self.count = count
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self.right = self.cancelled = 0
        self.done = asyncio.Event()
        self._rng = random.Random(4)
        self._share = cancel_share
        self._open = 0
        self._numbers: Iterator[int] = iter(range(1, count + 1))
        self._plan: Iterator[Shape] = iter(())
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ended(self) -> int:
        return self.right + self.cancelled + len(self.wrong) + len(self.failed)

    async def learn(self, plan: list[tuple[int, Shape]]) -> list[str]:
        """Ask one of each and look closely at the answers; what was wrong."""
        wrong = []
        for _, shape in plan:
            answer = await self.house.client.raw(shape.request(0))
            head = int(answer.headers.get("inference-header-content-length", "0"))
            if answer.status != 200:
                wrong.append(f"{answer.status} {answer.body[:160]!r}")
            elif trouble := shape.learn(answer.body, head):
                wrong.append(trouble[:300])
        order = [shape for often, shape in plan for _ in range(often)]
        self._rng.shuffle(order)
        self._plan = itertools.cycle(order)
        return wrong

    async def run(self) -> None:
        for _ in range(CONNECTIONS):
            self._open += 1
            await self._connect()
        await self.done.wait()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Line(self), "127.0.0.1", self.house.port)

    def next(self, line: Line) -> None:
        """Send one more over this connection, or close it."""
        number = next(self._numbers, 0)
        if not number:
            line.shape = None
            line.transport.abort()
            self._closed()
            return
        line.shape, line.number = next(self._plan), number
        line.transport.write(line.shape.request(number))
        if self._rng.random() < self._share:
            line.leave(self._rng.random() * 0.002)

    def replace(self, line: Line) -> None:
        """A connection is over: open another."""
        task = asyncio.get_running_loop().create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _closed(self) -> None:
        self._open -= 1
        if not self._open:
            self.done.set()


class Line(asyncio.Protocol):
    """A connection with one request at a time."""

    __slots__ = ("load", "number", "received", "shape", "transport", "wanted")

    def __init__(self, load: Load) -> None:
        self.load = load
        self.shape: Shape | None = None
        self.number = 0
        self.received: list[bytes] = []
        self.wanted = 0
        """Bytes of the answer that are still to come; 0 before its head is here."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.load.next(self)

    def leave(self, seconds: float) -> None:
        """Hang up a little later, unless the answer has come by then."""
        asyncio.get_running_loop().call_later(seconds, self._left, self.number)

    def _left(self, number: int) -> None:
        if self.shape is not None and self.number == number:
            self.load.cancelled += 1
            self.shape = None
            self.transport.abort()
            self.load.replace(self)

    def data_received(self, data: bytes) -> None:
        if self.shape is None:
            return
        if self.received:
            self.received.append(data)
            self.wanted -= len(data)
            if self.wanted > 0:
                return
            data = b"".join(self.received)
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.received, self.wanted = [data], 1
            return
        head = data[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        missing = end + 4 + length - len(data)
        if missing > 0:
            self.received, self.wanted = [data], missing
            return
        self.received, self.wanted = [], 0
        shape, load, body = self.shape, self.load, data[end + 4 :]
        if not head.startswith(b"http/1.1 200"):
            load.failed.append(f"{data[9:12]!r} {body[:160]!r}")
        elif shape.right(self.number, body):
            load.right += 1
        else:
            load.wrong.append(f"{body[:160]!r} for number {self.number} of {shape.name}")
        load.next(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.shape is not None:
            self.load.failed.append(f"the connection was lost: {error}")
            self.shape = None
            self.load.replace(self)


def memory(house: House) -> tuple[int, int]:
    """Bytes of the whole tree: what its processes hold, shared pages counted once; and those of shared segments."""
    held = segments = 0
    for pid in [house.pid, *house.workers()]:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            held += sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss:", "SwapPss:")))
    seen = set()
    for name in os.listdir(f"/proc/{house.pid}/fd"):
        with contextlib.suppress(OSError):
            path = f"/proc/{house.pid}/fd/{name}"
            if "memfd:maitred" in os.readlink(path):
                found = os.stat(path)
                segments += found.st_blocks * 512 if found.st_ino not in seen else 0
                seen.add(found.st_ino)
    return held, segments


async def m1(case: Case) -> None:
    count = case.size("requests")
    models = {
        "mixed": model("Mixed", replicas=3, max_batch_rows=32), "numbers": model("Numbers", 2, max_batch_rows=32),
    }  # fmt: skip
    plan = shapes()
    samples: list[tuple[int, int, int]] = []
    async with House(models, log_level="warning") as house:
        load = Load(house, count, case.limit("cancel_share"))
        case.none("wrong at the first look", await load.learn(plan))
        gc.collect()
        gc.freeze()
        started = time.monotonic()
        running = asyncio.create_task(load.run())
        while not running.done():
            await asyncio.wait({running}, timeout=0.25)
            samples.append((load.ended, *memory(house)))
        await running
        took = time.monotonic() - started
        workers = len(house.workers())
    gc.unfreeze()
    case.none("mix-ups", load.wrong)
    case.none("failed", load.failed)
    case.fact(f"{load.right:,} answers checked, {load.cancelled:,} cancelled, {load.ended / took:,.0f} a second")
    case.fact(f"{workers} replicas of 5", workers == 5)
    case.fact("all have ended", load.ended == count)
    for place, name in ((1, "processes"), (2, "segments")):
        early = [sample[place] for sample in samples if 0.2 * count <= sample[0] <= 0.4 * count]
        late = [sample[place] for sample in samples if sample[0] >= 0.8 * count]
        grown = (statistics.median(late) - statistics.median(early)) / (1 << 20) if early and late else 99.0
        case.fact(f"{name} held {statistics.median(late or [0]) / (1 << 20):,.0f} MiB")
        case.at_most(f"{name} grew by", grown, case.limit("growth_mib"), " MiB")


CHECKS: dict[str, Check] = {"M1": m1}
