"""A server in a process of its own, and everything that is done to it: asked, loaded, watched, killed, stopped."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from reliability.judge import percentile

ROOT = Path(__file__).parent.parent
MODELS = ROOT / "reliability" / "models.py"
SLO_SECONDS = 0.25
PAGE = os.sysconf("SC_PAGE_SIZE")


def model(name: str, replicas: int = 1, max_batch_rows: int = 8, **more: Any) -> dict[str, Any]:
    """One entry of `models` in the server's settings: a class of reliability/models.py in processes of its own."""
    kept = {"kind": "process", "min": replicas, "max": replicas, **more.pop("replicas_more", {})}
    return {"source": f"{MODELS}:{name}", "replicas": kept, "batching": {"max_batch_rows": max_batch_rows}, **more}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def resident(pids: list[int]) -> int:
    """Bytes of memory that the processes hold, shared pages counted in each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return total


def cpu_seconds(pid: int) -> float:
    """User + system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class House:
    """`maitred serve` with the given models and settings, in a folder of its own; use it as an async context."""

    def __init__(self, models: Mapping[str, Mapping[str, Any]], **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="reliability-"))
        self.marks = self.folder / "marks"
        self.marks.mkdir()
        self.port, self.admin_port = free_port(), free_port()
        self.home = self.folder / "home"
        self.log = self.folder / "log"
        self.settings = {
            "listen": f"127.0.0.1:{self.port}",
            "admin_listen": f"127.0.0.1:{self.admin_port}",
            "home": str(self.home),
            "drain_notice_seconds": 0,
            **settings,
            "models": {name: dict(entry) for name, entry in models.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(self.port)
        self.start_seconds = 0.0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        """Start the server, without waiting for it."""
        atexit.register(self.end)
        file = self.folder / "maitred.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        environment = {**os.environ, "RELIABILITY_MARKS": str(self.marks), "PYTHONUNBUFFERED": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "maitred.cli.main", "serve", "--config", str(file)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )  # fmt: skip

    async def ready(self, seconds: float = 30.0) -> None:
        """Wait until the server says that it is ready, then for its last replica; raises with its log otherwise."""
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            if self.process is not None and self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, ConnectionLost):
                if (await self.client.ask("GET", "/v2/health/ready", seconds=2)).status == 200:
                    self.start_seconds = time.monotonic() - started
                    wanted = sum(entry["replicas"]["min"] for entry in self.settings["models"].values())
                    if await copies_ready(self, wanted, seconds):
                        return
                    break
            await asyncio.sleep(0.02)
        raise RuntimeError(f"the server did not become ready: {self.log.read_text()[-1500:]}")

    async def __aenter__(self) -> House:
        self.launch()
        try:
            await self.ready()
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()
        self.end()

    def end(self) -> None:
        """Kill what still runs and remove the folder."""
        if self.process is not None:
            left = [self.process.pid, *children(self.process.pid)]
            self.process.send_signal(signal.SIGKILL)
            for pid in left[1:]:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        atexit.unregister(self.end)
        shutil.rmtree(self.folder, ignore_errors=True)

    def workers(self) -> list[int]:
        return [pid for pid in children(self.pid) if alive(pid)]

    def memory(self) -> int:
        return resident([self.pid, *self.workers()])

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def marked(self, kind: str) -> list[list[str]]:
        """The lines that the models wrote: pid, time, and the rest."""
        path = self.marks / kind
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def tell(self, kind: str) -> None:
        (self.marks / kind).touch()

    def untell(self, kind: str) -> None:
        (self.marks / kind).unlink(missing_ok=True)

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels, as written."""
        text = (await self.client.ask("GET", "/metrics")).body.decode()
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in rows}


async def copies_ready(house: House, count: int, seconds: float) -> bool:
    """Wait until so many replicas are ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = (await house.metrics()).items()
        if sum(v for name, v in found if name.startswith("maitred_replicas{") and 'state="ready"' in name) >= count:
            return True
        await asyncio.sleep(0.05)
    return False


class ConnectionLost(Exception):
    """The server closed the connection before the whole answer had come; `written_at`: when the request was sent."""

    def __init__(self, reason: str, written_at: float = 0.0) -> None:
        super().__init__(reason)
        self.written_at = written_at


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Wire(asyncio.Protocol):
    """One connection: one request at a time, answered through a callback with an Answer or an exception."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.open = False
        self.reusable = True
        self._received = bytearray()
        self._done: Callable[[Answer | Exception], None] | None = None
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        self.open = True

    def send(self, message: bytes, done: Callable[[Answer | Exception], None]) -> None:
        self._done, self._sent_at = done, time.monotonic()
        self._received.clear()
        assert self.transport is not None
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._done is None:
            return
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(self._received) < end + 4 + length:
            return
        if headers.get("connection", "").lower() == "close":
            self.reusable = False
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._finish(Answer(int(first.split(" ")[1]), headers, body, time.monotonic() - self._sent_at))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = self.reusable = False
        self._finish(ConnectionLost(str(error or "closed"), self._sent_at))

    def abort(self) -> None:
        self._done = None
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()

    def _finish(self, outcome: Answer | Exception) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)


def message(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of one HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: maitred.test"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class Client:
    """Keep-alive connections to one server, opened as needed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[Wire] = []
        self.opened = 0

    async def wire(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.open and wire.reusable:
                return wire
        _, made = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", self.port)
        self.opened += 1
        return made

    def back(self, wire: Wire) -> None:
        if wire.open and wire.reusable:
            self._idle.append(wire)
        elif wire.transport is not None:
            wire.transport.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        seconds: float = 30.0,
    ) -> Answer:
        """One request; raises ConnectionLost, OSError or TimeoutError."""
        return await self.raw(message(method, path, body, headers), seconds)

    async def raw(self, data: bytes, seconds: float = 30.0) -> Answer:
        wire = await self.wire()
        answered: asyncio.Future[Answer | Exception] = asyncio.get_running_loop().create_future()
        wire.send(data, lambda outcome: None if answered.done() else answered.set_result(outcome))
        try:
            outcome = await asyncio.wait_for(answered, seconds)
        except BaseException:
            wire.abort()
            raise
        self.back(wire)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def infer(self, name: str, body: Mapping[str, Any], seconds: float = 30.0, **headers: str) -> Answer:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return await self.ask("POST", f"/v2/models/{name}/infer", json.dumps(body).encode(), named, seconds)

    def close(self) -> None:
        for wire in self._idle:
            wire.abort()
        self._idle.clear()


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


def nonces(*values: int) -> dict[str, Any]:
    """A V2 request for the nonce models."""
    return {"id": f"id-{values[0]}", "inputs": [tensor("nonce", "INT64", list(values))]}


def wrong_nonce(answer: Answer, *values: int) -> str | None:
    """What is wrong with a 200 answer to `nonces(*values)`, or None."""
    found = answer.json()
    if found.get("id") != f"id-{values[0]}":
        return f"id {found.get('id')!r} for id-{values[0]}"
    data = found["outputs"][0]["data"]
    return None if data == list(values) else f"nonces {data} for {list(values)}"


@dataclass
class Tally:
    """What came of a load: one entry for each request sent."""

    sent: int = 0
    waiting: int = 0
    """Sent and not answered yet."""
    statuses: Counter[int] = field(default_factory=Counter)
    good: int = 0
    """Answered 200 with the right content and inside the limit."""
    late: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """The connection went away after the request had been sent."""
    refused_connections: int = 0
    hung: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of the 200s."""
    refusal_seconds: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    failures: list[tuple[float, int, str]] = field(default_factory=list)
    """(when answered, status, body) of each answer that is neither 200 nor 429."""
    not_offered: int = 0
    """Requests that the driver had no connection left for."""
    driver_lag_seconds: float = 0.0
    """How far the driver itself was behind at worst: its own share in the slowest times."""

    def p99(self) -> float:
        return percentile(self.seconds, 0.99)

    @property
    def failed(self) -> int:
        """Everything that is not a right answer."""
        return self.sent - self.statuses[200] + len(self.wrong)


MAX_CONNECTIONS = 4_000
"""Of one open loop: a driver that cannot keep up must not drown itself in connections."""


class LoadWire(asyncio.Protocol):
    """A connection of the open loop: as little work for each request as can be."""

    __slots__ = ("loop", "nonce", "open", "received", "sent_at", "tally", "transport")

    def __init__(self, loop: OpenLoop) -> None:
        self.loop = loop
        self.tally = loop.tally
        self.received = b""
        self.nonce = 0
        self.sent_at = 0.0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.open = True

    def send(self, nonce: int, data: bytes) -> None:
        self.nonce, self.received, self.tally, self.sent_at = nonce, b"", self.loop.tally, time.monotonic()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        received = self.received = self.received + data if self.received else data
        end = received.find(b"\r\n\r\n")
        if end < 0 or not self.nonce:
            return
        head = received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(received) >= end + 4 + length:
            nonce, self.nonce = self.nonce, 0
            self.loop.answered(self, nonce, head, received[end + 4 :], time.monotonic() - self.sent_at)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self.loop.connections -= 1
        if self.nonce:
            nonce, self.nonce = self.nonce, 0
            self.loop.lost(self, nonce, time.monotonic() - self.sent_at)


class OpenLoop:
    """Sends nonce requests at a fixed rate whatever the server does, and checks every answer."""

    def __init__(self, house: House, name: str, limit_seconds: float = 10.0, deadline: bool = False) -> None:
        self._port = house.port
        head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: maitred.test\r\n"
        head += f"Maitred-Timeout-Ms: {int(limit_seconds * 1000)}\r\n" if deadline else ""
        self._head = head.encode() + b"Content-Length: %d\r\n\r\n%s"
        self._limit = limit_seconds
        self._nonce = itertools.count(1)
        self._idle: list[LoadWire] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.tally = Tally()

    async def run(self, rate: float, seconds: float) -> Tally:
        """Offer `rate` requests a second for so long, wait for what is open, and return this run's tally."""
        tally = self.tally = Tally()
        gc.collect()
        gc.disable()
        start = last = time.monotonic()
        while (now := time.monotonic()) < start + seconds:
            tally.driver_lag_seconds = max(tally.driver_lag_seconds, now - last - 0.001)
            last = now
            due = int((now - start) * rate)
            while tally.sent + tally.not_offered < due:
                self._fire(tally)
            await asyncio.sleep(0.001)
        gc.enable()
        end = time.monotonic() + self._limit + 5
        while tally.waiting and time.monotonic() < end:
            await asyncio.sleep(0.01)
        tally.hung = tally.waiting
        return tally

    def _fire(self, tally: Tally) -> None:
        nonce = next(self._nonce)
        body = b'{"id":"id-%d","inputs":[{"name":"nonce","datatype":"INT64","shape":[1],"data":[%d]}]}' % (nonce, nonce)
        data = self._head % (len(body), body)
        while self._idle:
            wire = self._idle.pop()
            if wire.open:
                tally.sent += 1
                tally.waiting += 1
                wire.send(nonce, data)
                return
        if self.connections >= MAX_CONNECTIONS:
            tally.not_offered += 1
            return
        tally.sent += 1
        tally.waiting += 1
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._connect(nonce, data, tally))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, nonce: int, data: bytes, tally: Tally) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, wire = await loop.create_connection(lambda: LoadWire(self), "127.0.0.1", self._port)
        except OSError:
            self.connections -= 1
            tally.waiting -= 1
            tally.refused_connections += 1
            return
        wire.send(nonce, data)

    def lost(self, wire: LoadWire, nonce: int, seconds: float) -> None:
        """Called by the connection if it goes away before the answer has come."""
        wire.tally.waiting -= 1
        wire.tally.lost.append(f"nonce {nonce} after {seconds:.3f} s")

    def answered(self, wire: LoadWire, nonce: int, head: bytes, body: bytes, seconds: float) -> None:
        """Called by the connection for each answer; `head` is in lower case."""
        tally = wire.tally  # of the run in which it was sent
        tally.waiting -= 1
        if b"connection: close" in head:
            wire.transport.close()
        else:
            self._idle.append(wire)
        status = int(head[9:12])
        tally.statuses[status] += 1
        if status == 200:
            tally.seconds.append(seconds)
            if b'"id":"id-%d"' % nonce not in body or b'"data":[%d]' % nonce not in body:
                tally.wrong.append(f"{body[:160]!r} for nonce {nonce}")
            elif seconds <= self._limit:
                tally.good += 1
            else:
                tally.late += 1
            return
        if status in (429, 503):
            tally.refusal_seconds.append(seconds)
            tally.without_retry_after += b"retry-after:" not in head
        if status != 429:
            tally.failures.append((time.monotonic(), status, body[:200].decode(errors="replace")))


class Watch:
    """Samples the memory and descriptors of a server ten times a second, from a thread, while it is entered."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.before = self.peak = house.memory()
        self.peak_descriptors = 0

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(OSError):
                self.peak = max(self.peak, self._house.memory())
                self.peak_descriptors = max(self.peak_descriptors, self._house.descriptors())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.peak - self.before


class Liveness:
    """Asks for liveness all the time on a connection of its own, and remembers how long each answer took."""

    def __init__(self, house: House, every_seconds: float = 0.02) -> None:
        self._client = Client(house.port)
        self._every = every_seconds
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self.seconds: list[float] = []
        self.failed = 0

    async def _run(self) -> None:
        while not self._over:  # a cancellation alone may be lost: `wait_for` drops one that comes with the answer
            started = time.monotonic()
            try:
                answer = await self._client.ask("GET", "/v2/health/live", seconds=10)
                self.failed += answer.status != 200
            except (OSError, ConnectionLost, TimeoutError):
                self.failed += 1
            self.seconds.append(time.monotonic() - started)
            await asyncio.sleep(self._every)

    async def __aenter__(self) -> Liveness:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._over = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._client.close()

    def p99(self) -> float:
        return percentile(self.seconds, 0.99)


async def until(condition: Callable[[], bool], seconds: float, step: float = 0.01) -> float | None:
    """How long it took until the condition held, or None if it did not within `seconds`."""
    started = time.monotonic()
    while time.monotonic() < started + seconds:
        if condition():
            return time.monotonic() - started
        await asyncio.sleep(step)
    return None


async def gather_bounded(count: int, at_once: int, job: Callable[[int], Any]) -> None:
    """Run `job(0)` … `job(count - 1)`, so many at once."""
    numbers: Iterator[int] = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await job(number)

    await asyncio.gather(*(work() for _ in range(min(at_once, count))))
