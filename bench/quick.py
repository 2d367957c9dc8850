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
import loads
from server import Server, Stand

PACKAGES = {"wrk": "wrk", "nginx": "nginx-light", "taskset": "util-linux"}
CONNECTIONS = 64
WARMUP_SECONDS = 3


def missing() -> list[str]:
    """The Debian packages whose programs this machine lacks."""
    return [package for program, package in PACKAGES.items() if shutil.which(program) is None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="of one run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port", type=int, default=18400)
    options = parser.parse_args()
    if packages := missing():
        print(f"bench-quick needs programs that are not here; on Debian: apt-get install {' '.join(packages)}")
        return 2
    figures: dict[str, list[float]] = {"maitred": [], "nginx": []}
    errors = 0
    with (
        Server("maitred", "overhead", Stand(options.port)) as ours,
        Server("nginx", "overhead", Stand(options.port + 10)) as nginx,
    ):
        for server in (ours, nginx):
            loads.wrk(server, CONNECTIONS, WARMUP_SECONDS)
        for run in range(1, options.runs + 1):
            for server in (ours, nginx):
                found = loads.measured(server, lambda: loads.wrk(server, CONNECTIONS, options.seconds))
                figures[server.name].append(found["cpu_us"])
                errors += found["errors"]
                told = f"run {run}: {server.name:8s} {found['cpu_us']:6.2f} cpu-us  {found['rps']:8.0f} requests/s"
                batch = f"  {found['batch']:.1f} rows a batch" if found["batch"] else ""
                print(f"{told}  {found['errors']} errors{batch}", flush=True)
        ours.check()
        print(f"{ours.checked} answers of maitred compared with the model's: 0 wrong; {errors} errors")
    x, y = statistics.median(figures["maitred"]), statistics.median(figures["nginx"])
    print(f"cpu-us per request: {x:.1f}, nginx: {y:.1f}, ratio: {x / y:.2f}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
