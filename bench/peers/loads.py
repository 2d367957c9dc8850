"""The loads: wrk and gRPC in closed loops, open loops at intended times, and a burst that hangs up; each measured."""

from __future__ import annotations

import contextlib
import json
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc_messages
import peers
import prepared
from server import Server, WrongAnswers

Values = dict[str, Any]
LOADS = peers.HERE / "load"


class LoadFailed(Exception):
    """A load generator ended without a result; the message is what it said."""


class NoAnswer(LoadFailed):
    """Not one good answer came."""


def measured(server: Server, drive: Callable[[], Values]) -> Values:
    """Drive a load while sampled answers are compared; add CPU, cores, rows a batch and how busy the client was.

    `drive` gives at least `requests`, `seconds` and `errors`. Raises WrongAnswers or LoadFailed.
    """
    rows, calls = server.counter.read()
    checked, refused = server.checked, server.refused
    client, cpu = children_seconds(), server.cpu_seconds()
    with server.sampled():
        values = drive()
        used = server.cpu_seconds() - cpu
    client = children_seconds() - client
    rows_after, calls_after = server.counter.read()
    values["cpu_us"] = used * 1e6 / max(1, values["requests"] + server.checked - checked)
    values["errors"] += server.refused - refused
    values["busy"] = used / values["seconds"]
    values["client_busy"] = client / values["seconds"]
    values["batch"] = (rows_after - rows) / (calls_after - calls) if calls_after > calls else None
    return values


def children_seconds() -> float:
    """CPU time of this process's children that have ended: of load generators, while no server ends."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result_of(command: list[str], server: Server) -> Values:
    """Run a load generator on the client's core; its RESULT line. Raises LoadFailed."""
    pin = ["taskset", "-c", server.stand.client_core] if server.pinned else []
    done = subprocess.run([*pin, *command], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found: Values = json.loads(line[7:])
            return found
    raise LoadFailed((done.stdout + done.stderr)[-500:])


def warm_up(server: Server, connections: int, seconds: int) -> None:
    """As `wrk`, but nothing is measured: a model that takes long may have answered nothing by then."""
    with contextlib.suppress(NoAnswer):
        wrk(server, connections, seconds)


def wrk(server: Server, connections: int, seconds: int, requests: int = prepared.COUNT) -> Values:
    """A closed loop over HTTP for whole seconds; of `requests` different ones. Raises NoAnswer or LoadFailed."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(LOADS / "post.lua")]
    found = result_of([*command, server.url, "--", str(server.requests.file(requests)), "application/json"], server)
    spent = found["duration_us"] / 1e6
    ok = found["requests"] - found["err_status"]
    if ok <= 0:
        raise NoAnswer(f"no good answer in {spent:.0f} s with {connections} connections")
    return {
        "requests": found["requests"], "seconds": spent, "rps": ok / spent, "ok": ok,
        "errors": sum(value for name, value in found.items() if name.startswith("err_")),
        "mean_ms": found["mean"] / 1e3, "p50_ms": found["p50"] / 1e3, "p90_ms": found["p90"] / 1e3, "p99_ms": found["p99"] / 1e3,
    }  # fmt: skip


def open_loop(server: Server, *options: object) -> Values:
    """Poisson arrivals, or with `--burst` all at once."""
    script = str(LOADS / "openloop.py")
    return result_of([sys.executable, script, server.url, str(server.requests.file()), *map(str, options)], server)


def steady(server: Server, rate: float, seconds: float) -> Values:
    """Open loop with callers that wait as long as it takes (here 5 s)."""
    values = open_loop(server, "--rate", rate, "--seconds", seconds, "--timeout", 5)
    values["errors"] = values["sent"] - values["ok"]
    return {**values, "requests": values["sent"], "seconds": seconds}


def grpc(server: Server, connections: int, streams: int, seconds: float) -> Values:
    """A closed loop over gRPC, measured within its own warm-up; some answers are compared. Raises WrongAnswers."""
    kept = server.folder / "grpc-answers"
    script = str(LOADS / "grpc_load.py")
    options = ["--connections", connections, "--streams", streams, "--seconds", seconds, "--keep", kept]
    options += ["--keep-numbers", json.dumps(prepared.SAMPLED)]
    command = [sys.executable, script, server.grpc_port, server.requests.grpc_file(), *options]
    pin = ["taskset", "-c", server.stand.client_core] if server.pinned else []
    client = children_seconds()
    child = subprocess.Popen([*pin, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    said, at = "", {}
    for line in child.stdout:  # the load says when its warm-up is over, and when its time is
        if line.strip() in ("MEASURING", "MEASURED"):
            at[line.strip()] = (server.cpu_seconds(), *server.counter.read())
        said += line
    child.wait()
    found = next((json.loads(line[7:]) for line in said.splitlines() if line.startswith("RESULT ")), None)
    if found is None or len(at) != 2:
        raise LoadFailed(said[-500:])
    (cpu, rows, calls), (cpu_after, rows_after, calls_after) = at["MEASURING"], at["MEASURED"]
    check_kept(server, kept)
    ok, spent = found["ok"], found["seconds"]
    return {
        **{name: found[name] for name in ("ok", "seconds", "errors", "why", "p50_ms", "p90_ms", "p99_ms")},
        "requests": ok + found["errors"], "rps": ok / spent, "busy": (cpu_after - cpu) / spent,
        "cpu_us": (cpu_after - cpu) * 1e6 / max(1, ok + found["errors"]),
        "batch": (rows_after - rows) / (calls_after - calls) if calls_after > calls else None,
        "client_busy": min(1.0, (children_seconds() - client) / (spent + 1.0)),
    }  # fmt: skip


def check_kept(server: Server, place: Path) -> None:
    """Compare the answers that the gRPC load kept with the model's own. Raises WrongAnswers."""
    data, at, count = place.read_bytes(), 0, 0
    while at < len(data):
        number, size = struct.unpack_from("<II", data, at)
        id, values = grpc_messages.answer(data[at + 8 : at + 8 + size])
        wrong = server.requests.wrong_values(number, id, values)
        if wrong:
            raise WrongAnswers(f"gRPC: {wrong}")
        at += 8 + size
        count += 1
    if not count:
        raise WrongAnswers("gRPC: no answer could be compared")
    server.checked += count
