"""What is measured of each server, one row of the benchmark after the other: load, length and model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import ideal
import loads
import peers
from loads import Values
from server import Server, Stand

OVERLOAD = 4
"""Times the capacity that the overload offers."""
HANG_UP_SECONDS = 1.0
BURST, BURST_SECONDS = 128, 0.05
CAPACITY_CLIENTS = 64


@dataclass(frozen=True)
class Row:
    """One measurement of one server. `measure` gets the running server and the length in seconds of an ordinary load."""

    name: str
    title: str
    model: str
    measure: Callable[[Server, int], Values]
    once: bool = False
    """Long, and far from any doubt: in the first run only, but for maitred and its aims."""
    grpc: bool = False
    fresh: bool = False
    """On a server that no other load has taught anything, or left anything to do."""

    def applies(self, name: str) -> bool:
        """Whether a server has such a row at all."""
        if name == "bare":
            return self.name == "minilm64"
        peer = peers.named(name)
        return self.model in peer.models and (peer.grpc or not self.grpc)


def closed(connections: int, longer: float = 1) -> Callable[[Server, int], Values]:
    """So many callers, each of which asks again as soon as it has been answered."""

    def measure(server: Server, seconds: int) -> Values:
        values = loads.measured(server, lambda: loads.wrk(server, connections, max(1, int(seconds * longer))))
        if connections == CAPACITY_CLIENTS:
            server.notes["capacity"] = able(values)
        return values

    return measure


def identical(server: Server, seconds: int) -> Values:
    """One and the same request again and again."""
    return loads.measured(server, lambda: loads.wrk(server, 64, max(1, seconds // 2), requests=1))


def footprint(server: Server, seconds: int) -> Values:
    """Start and idle memory; maitred's start without the time that Python takes to import it."""
    time.sleep(0.3)
    values: Values = {"ready_s": server.start_seconds, "pss_mb": server.pss_mb(), "processes": len(server.pids())}
    if server.name == "maitred":
        values["after_import_s"] = server.start_seconds - import_seconds(server.stand)
    return values


def import_seconds(stand: Stand) -> float:
    """How long a Python on the server's core takes to begin and to import what serves."""
    started = time.perf_counter()
    code = "import maitred.cli.main, maitred.cli.serve, maitred.assemble"
    subprocess.run(["taskset", "-c", stand.server_core, sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def able(values: Values) -> float:
    """Requests a second of 64 clients who always wait for one answer each, from how long they waited on average.

    What was answered by the end would be less by what runs at the end: much, where a batch takes half a second.
    """
    return CAPACITY_CLIENTS / values["mean_ms"] * 1e3


def capacity(server: Server, seconds: int) -> float:
    """Requests a second with 64 closed clients, measured now where no row has."""
    if "capacity" not in server.notes:
        server.notes["capacity"] = able(loads.wrk(server, CAPACITY_CLIENTS, max(3, 2 * seconds)))
        server.quiet()
    return float(server.notes["capacity"])


def share_of_capacity(share: float) -> Callable[[Server, int], Values]:
    """Poisson arrivals at a share of what the server did with 64 closed clients."""

    def measure(server: Server, seconds: int) -> Values:
        rate = share * capacity(server, seconds)
        values = loads.measured(server, lambda: loads.steady(server, rate, seconds))
        if server.name == "maitred":
            values["ideal_p50_ms"], values["ideal_p99_ms"] = ideal.work_conserving(rate)
        return {**values, "rate": rate}

    return measure


def overload(server: Server, seconds: int) -> Values:
    """Four times the capacity, from callers who hang up after a second and say no deadline."""
    most = capacity(server, seconds)
    server.quiet()
    rows = server.counter.read()[0]
    length = 4 * seconds
    rate = min(OVERLOAD * most, 8000.0)
    values = loads.open_loop(server, "--rate", rate, "--seconds", length, "--timeout", HANG_UP_SECONDS)
    left = server.counter.read()[0]
    drain = server.quiet()
    computed = server.counter.read()[0]
    good = values["ok"] / length
    return {
        **values, "capacity": most, "good_share": good / most, "drain_s": drain, "drained_rows": computed - left,
        "wasted_share": max(0, computed - rows - values["ok"]) / max(1, computed - rows),
    }  # fmt: skip


def hang_up(server: Server, seconds: int) -> Values:
    """128 callers ask at once and leave after 50 ms: the rows that are computed for nobody."""
    server.quiet()
    rows, calls = server.counter.read()
    values = loads.open_loop(server, "--burst", BURST, "--timeout", BURST_SECONDS)
    server.quiet()
    rows_after, calls_after = server.counter.read()
    abandoned = max(0, rows_after - rows - values["ok"])
    return {"abandoned": abandoned, "ok": values["ok"], "calls": calls_after - calls, "ended": values["ended"]}


def grpc(server: Server, seconds: int) -> Values:
    return loads.grpc(server, 8, 8, seconds)


def bare(stand: Stand, rows: int, seconds: int) -> Values:
    """MiniLM without any server, on the server's core, at one size of batch; again with the client's core busy."""
    pin = ["taskset", "-c", stand.server_core]
    command = [*pin, sys.executable, str(peers.HERE / "bare.py"), "minilm", str(rows), str(seconds)]
    idle = float_of(command)
    spinning = ["taskset", "-c", stand.client_core, sys.executable, "-c", "while True: pass"]
    busy = subprocess.Popen(spinning)
    try:
        loaded = float_of(command)
    finally:
        busy.kill()
        busy.wait()
    return {"cpu_us": loaded, "cpu_us_idle": idle, "batch": rows}


def float_of(command: list[str]) -> float:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(said.rpartition("RESULT ")[2])["cpu_us"])


ROWS = [
    Row("start", "start to the first answer, idle memory", "overhead", footprint),
    Row("cpu64", "tiny model, 64 connections", "overhead", closed(64, longer=2)),
    Row("lone", "tiny model, one lone client", "overhead", closed(1, longer=0.5)),
    Row("c16", "tiny model, 16 connections", "overhead", closed(16, longer=0.5)),
    Row("c128", "tiny model, 128 connections", "overhead", closed(128, longer=0.5)),
    Row("c256", "tiny model, 256 connections", "overhead", closed(256)),
    Row("same", "tiny model, 64 connections, one identical request", "overhead", identical),
    Row("grpc", "tiny model, gRPC, 8 connections × 8 streams", "overhead", grpc, grpc=True),
    Row("slow64", "5 ms a call, 64 clients", "slow", closed(64)),
    Row("slow128", "5 ms a call, 128 clients", "slow", closed(128)),
    Row("curve16", "2 ms + 0.1 ms a row, 16 clients", "curve", closed(16)),
    Row("curve64", "2 ms + 0.1 ms a row, 64 clients", "curve", closed(64)),
    Row("curve50", "2 ms + 0.1 ms a row, open load at 50 %", "curve", share_of_capacity(0.5)),
    Row("curve80", "2 ms + 0.1 ms a row, open load at 80 %", "curve", share_of_capacity(0.8)),
    Row("minilm64", "MiniLM, 64 clients", "minilm", closed(64, longer=2)),
    Row("hangup", "MiniLM, 128 callers hang up after 50 ms", "minilm", hang_up, once=True, fresh=True),
    Row("overload", "MiniLM, 4× overload, callers hang up after 1 s", "minilm", overload, once=True),
]
BY_NAME = {row.name: row for row in ROWS}
