"""One server under test: started on its core, its answers checked, stopped with all its processes."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import peers
import prepared
from processes import RowCounter, cpu_seconds, pss_mb, tree


@dataclass(frozen=True)
class Stand:
    """Where servers are started, and how."""

    port: int = 18400
    """The first of those that are used: HTTP; one more is gRPC's, one more for whatever else a server opens."""
    server_core: str = "0"
    client_core: str = "1"
    max_wait_ms: float = 2.0
    """The window of those that have one."""
    start_seconds: float = 90.0


class DidNotStart(Exception):
    """A server gave no right answer in time; the message holds the end of its log."""


class WrongAnswers(Exception):
    """A server answered what its model did not say."""


@dataclass
class Server:
    """A context: the server runs inside it. `name` is one of `peers.PEERS`, with variants after colons."""

    name: str
    model: str
    stand: Stand = field(default_factory=Stand)
    pinned: bool = True

    def __post_init__(self) -> None:
        self.peer = peers.named(self.name)
        self.folder = Path(tempfile.mkdtemp(prefix="bench-server-"))
        self.counter = RowCounter(self.folder / "counter")
        self.tag = uuid.uuid4().hex
        self.url = f"http://127.0.0.1:{self.stand.port}" + self.peer.path.format(model=self.model)
        self.grpc_port = self.stand.port + self.peer.grpc_offset
        self.requests = prepared.requests(self.peer.body, self.model)
        self.checked = 0
        self.wrong: list[str] = []
        self.refused = 0
        """Of those compared, how many were answered with another status than 200 while a load ran."""
        self.start_seconds = 0.0
        self.notes: dict[str, Any] = {}
        """What one row has found out and another one needs."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def knows_the_model(self) -> bool:
        """False for nginx, which answers a constant."""
        return self.name != "nginx"

    # ------------------------------------------------------------------ its life

    def __enter__(self) -> Server:
        started = time.perf_counter()
        self._spawn()
        try:
            self._until_it_answers(started + self.stand.start_seconds)
            self.start_seconds = time.perf_counter() - started
            self.check()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        port, model = self.stand.port, self.model
        if self.peer.command:
            return ["sh", "-c", "exec " + self.peer.command.format(model=model, port=port)]
        base, *variants = self.name.split(":")
        command = [self.peer.python(), str(peers.HERE / "servers" / f"{base}_server.py")]
        command += ["--port", str(port), "--grpc-port", str(self.grpc_port), "--aux-port", str(port + 2)]
        command += ["--model", model, "--max-wait-ms", str(self.stand.max_wait_ms)]
        for variant in variants:
            command += ["--batch", "off"] if variant == "nobatch" else ["--opt", variant]
        return command

    def _spawn(self) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        ours = {"BENCH_COUNTER": str(self.counter.path), "BENCH_TAG": self.tag, "PYTHONUNBUFFERED": "1"}
        if self.peer.own_folder:
            ours["TMPDIR"] = str(self.folder)  # what it leaves behind goes with the folder
        pin = ["taskset", "-c", self.stand.server_core] if self.pinned else []
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*pin, *self._command()], env={**os.environ, **one_thread, **ours}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _until_it_answers(self, end: float) -> None:
        assert self._process is not None
        last: object = None
        while True:
            try:
                status, data = self.ask(0)
                if status == 200:
                    return
                last = (status, data[:200])
            except (OSError, http.client.HTTPException) as error:
                last = error
            if self._process.poll() is not None or time.perf_counter() > end:
                tail = (self.folder / "log").read_bytes()[-2000:].decode(errors="replace")
                raise DidNotStart(f"{last}\n{tail}")
            time.sleep(0.01)

    def pids(self) -> set[int]:
        return tree(self.tag, self._process.pid if self._process is not None else None)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pids())

    def pss_mb(self) -> float:
        return pss_mb(self.pids())

    def stop(self) -> None:
        """Ask it to stop, and end what has not done so after half a second."""
        process, self._process = self._process, None
        if process is None:
            return
        found = tree(self.tag, process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        for _ in range(3):
            for pid in tree(self.tag, None if process.returncode is not None else process.pid) | (found & alive(found)):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ its answers

    def ask(self, number: int, seconds: float = 5.0) -> tuple[int, bytes]:
        """Send one prepared request on a connection of its own. Raises OSError or HTTPException."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=seconds)
        try:
            id, body = self.requests.ids[number], self.requests.bodies[number]
            connection.request("POST", where.path, body, {"Content-Type": "application/json", "X-Request-Id": id})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def check(self, threads: int = 8) -> None:
        """Ask varied requests, several at once so that they share batches: all must be answered. Raises WrongAnswers."""
        if not self.knows_the_model:
            return
        numbers = prepared.SAMPLED[:48]
        self.requests.know(prepared.SAMPLED)
        workers = [threading.Thread(target=self._ask_all, args=(numbers[k::threads],)) for k in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if self.refused:
            raise WrongAnswers(f"{self.refused} of {len(numbers)} requests were refused")
        self.raise_if_wrong()

    def _ask_all(self, numbers: list[int]) -> None:
        for number in numbers:
            self._compare(number)

    def _compare(self, number: int) -> None:
        try:
            status, data = self.ask(number, 30)
            wrong = self.requests.wrong(number, data) if status == 200 else None
            self.refused += status != 200
        except Exception as error:  # whatever went wrong is a wrong answer
            wrong = f"request {number}: {error!r}"
        self.checked += 1
        if wrong:
            self.wrong.append(wrong)

    def raise_if_wrong(self) -> None:
        if self.wrong:
            raise WrongAnswers(f"{len(self.wrong)} of {self.checked} answers wrong: {self.wrong[:2]}")

    @contextlib.contextmanager
    def sampled(self, every_seconds: float = 0.05) -> Iterator[None]:
        """Compare some twenty answers a second while a load runs. Raises WrongAnswers at the end."""
        if not self.knows_the_model:
            yield
            return
        stop = threading.Event()

        def sample() -> None:
            at = 0
            while not stop.wait(every_seconds):
                self._compare(prepared.SAMPLED[at % len(prepared.SAMPLED)])
                at += 1

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        self.raise_if_wrong()

    def quiet(self, still_seconds: float = 0.7, limit_seconds: float = 5.0) -> float:
        """Wait until the model computes no more rows; how long that took, at most the limit."""
        started = last = time.perf_counter()
        rows = self.counter.read()[0]
        while (now := time.perf_counter()) - last < still_seconds and now - started < limit_seconds:
            time.sleep(0.02)
            if (more := self.counter.read()[0]) != rows:
                rows, last = more, time.perf_counter()
        return last - started


def alive(pids: set[int]) -> set[int]:
    """Those of these processes that still run; they were the server's a moment ago."""
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}
