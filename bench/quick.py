"""CPU time per request of a tiny model beside nginx: 64 connections, a process replica, default settings, < 2 minutes.

The same harness as `bench/peers`: the server on core 0, the load on core 1, varied requests, sampled answers checked
against the model. Figures are user + system time of the whole process tree over the requests done, the median of
three runs in which the two servers take turns. The exit status is 1 if any answer was wrong or failed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import run as harness

PACKAGES = {"wrk": "wrk", "nginx": "nginx-light", "taskset": "util-linux"}
CONNECTIONS = 64
WARMUP_SECONDS = 3


def missing() -> list[str]:
    """The Debian packages whose programs this machine lacks."""
    return [package for program, package in PACKAGES.items() if shutil.which(program) is None]


def measure(server: harness.Server, options: argparse.Namespace) -> tuple[float, float, float, int]:
    """CPU-us a request, requests a second, rows a batch and errors of one run."""
    rows, calls = server.counter.read()
    before = harness.cpu_s(server.pids())
    with server.sampled():
        result = harness.wrk(server, CONNECTIONS, options.seconds, True, options)
    used = harness.cpu_s(server.pids()) - before
    rows_after, calls_after = server.counter.read()
    batch = (rows_after - rows) / max(1, calls_after - calls)
    return used * 1e6 / max(1, result["requests"]), result["ok"] / result["seconds"], batch, result["errors"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="of one run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port", type=int, default=18400)
    options = parser.parse_args()
    if packages := missing():
        print(f"bench-quick needs programs that are not here; on Debian: apt-get install {' '.join(packages)}")
        return 2
    defaults = {"server_core": "0", "client_core": "1", "max_wait_ms": 2.0, "start_timeout": 60.0, "extras": {}}
    shared = {**defaults, **vars(options)}
    other = argparse.Namespace(**{**shared, "port": options.port + 10})
    figures: dict[str, list[float]] = {"maitred": [], "nginx": []}
    errors = 0
    with (
        harness.Server("maitred", "overhead", True, argparse.Namespace(**shared)) as ours,
        harness.Server("nginx", "overhead", True, other) as nginx,
    ):
        for server in (ours, nginx):
            harness.wrk(server, CONNECTIONS, WARMUP_SECONDS, True, server.o)
        for run in range(1, options.runs + 1):
            for server in (ours, nginx):
                cpu, rate, batch, failed = measure(server, server.o)
                figures[server.name].append(cpu)
                errors += failed
                told = f"run {run}: {server.name:8s} {cpu:6.2f} cpu-us  {rate:8.0f} requests/s  {failed} errors"
                print(told + (f"  {batch:.1f} rows a batch" if batch else ""), flush=True)
        ours.check()
        print(f"{ours.checked} answers of maitred compared with the model's: 0 wrong; {errors} errors")
    x, y = statistics.median(figures["maitred"]), statistics.median(figures["nginx"])
    print(f"cpu-us per request: {x:.1f}, nginx: {y:.1f}, ratio: {x / y:.2f}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
