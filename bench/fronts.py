"""What several fronts cost and bring: CPU a request in the core, the fronts and the replica, and the core's own limit.

`served` has real servers with 1 and more fronts take turns under the load of `bench/peers` (wrk, 64 connections, the
tiny model, answers checked). `core` has synthetic fronts (`bench/synthetic_front.py`) send prepared requests as fast
as they are answered: what is left is the core with its queue and one replica. Figures are user + system time of the
processes of each kind, over the requests done; on a busy machine compare CPU and not rates.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))
import loads
from processes import cpu_seconds
from server import Server, Stand

MODEL = f"{HERE / 'peers' / 'servers' / 'maitred_model.py'}:Overhead"
KINDS = {"maitred.assemble_front": "front", "maitred.replica.child": "replica", "maitred.cli.main": "core"}


def kind_of(pid: int) -> str:
    """Which part of the house a process is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return ""
    return next((kind for word, kind in KINDS.items() if word in words), "")


def seconds_by_kind(pids: set[int]) -> dict[str, float]:
    spent = dict.fromkeys(("core", "front", "replica"), 0.0)
    for pid in pids:
        kind = kind_of(pid)
        if kind:
            spent[kind] += cpu_seconds({pid})
    return spent


def served(options: argparse.Namespace) -> int:
    errors = 0
    figures: dict[int, list[dict[str, float]]] = {count: [] for count in options.fronts}
    for _ in range(options.runs):
        for count in options.fronts:
            figure, failed = served_once(count, options)
            figures[count].append(figure)
            errors += failed
    print(f"{'fronts':>6} {'core':>7} {'front':>7} {'replica':>7} {'all':>7}  {'requests/s':>10} {'p50 ms':>7} rows")
    for count, found in figures.items():
        middle = {key: statistics.median(figure[key] for figure in found) for key in found[0]}
        print(
            f"{count:>6} {middle['core']:7.2f} {middle['front']:7.2f} {middle['replica']:7.2f} {middle['all']:7.2f}  "
            f"{middle['rate']:10.0f} {middle['p50']:7.2f} {middle['rows']:4.1f}"
        )
    print(f"CPU-us a request; the median of {options.runs} runs in turns; {errors} errors")
    return 1 if errors else 0


def served_once(count: int, options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """CPU-us a request by kind of process, rate, and errors of one run."""
    stand = Stand(options.port, options.server_core, options.client_core)
    with Server(f"maitred:fronts={count}", "overhead", stand, pinned=options.server_core != "") as server:
        loads.wrk(server, options.connections, 2)
        before = seconds_by_kind(server.pids())
        found = loads.measured(server, lambda: loads.wrk(server, options.connections, options.seconds))
        after = seconds_by_kind(server.pids())
    figure = {kind: (after[kind] - before[kind]) * 1e6 / found["requests"] for kind in after}
    figure["all"] = sum(figure.values())
    return {**figure, "rate": found["rps"], "p50": found["p50_ms"], "rows": found["batch"]}, found["errors"]


# ---------------------------------------------------------------------- the core alone


def core(options: argparse.Namespace) -> int:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    os.environ["SYNTHETIC_CREDIT"], os.environ["SYNTHETIC_FRAME"] = str(options.credit), str(options.frame)
    from maitred import assemble
    from maitred.gateway.fronts import FrontsSettings
    from maitred.loop import run

    def synthetic(count: int, inflight_bytes: int) -> FrontsSettings:
        return FrontsSettings(max(options.fronts), inflight_bytes, module="synthetic_front")

    assemble.FrontsSettings = synthetic  # type: ignore[misc,assignment]
    return run(core_once(assemble, options))


async def core_once(assemble: Any, options: argparse.Namespace) -> int:
    from maitred.settings import Address, ModelSettings, ServerSettings

    model = ModelSettings(name="overhead", source=MODEL)
    settings = ServerSettings(
        listen=Address("127.0.0.1", 0), admin_listen=Address("127.0.0.1", 0), drain_notice_seconds=0.0,
        home=Path(tempfile.mkdtemp(prefix="bench-fronts-")), fronts=2, models={"overhead": model},
    )  # fmt: skip
    house = assemble.House(settings)
    await house.start()
    await house.settled()
    await asyncio.sleep(1.0)

    def counted() -> tuple[int, int]:
        version = house.metrics._versions["overhead", "1"]
        return version.requests["ok"], version.batches["ok"]

    perf = None
    if options.instructions:
        perf = subprocess.Popen(
            ["perf", "stat", "-x,", "-e", "instructions:u", "-p", str(os.getpid()), "sleep", str(options.seconds)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    before, spent, started = counted(), time.process_time(), time.monotonic()
    await asyncio.sleep(options.seconds)
    spent, lasted, after = time.process_time() - spent, time.monotonic() - started, counted()
    requests, batches = after[0] - before[0], after[1] - before[1]
    print(
        f"{max(options.fronts)} synthetic fronts, credit {options.credit} each, {options.frame} requests a frame: "
        f"{requests / lasted:,.0f} requests/s, {spent * 1e6 / max(1, requests):.2f} CPU-us a request in the core, "
        f"{requests / max(1, batches):.1f} rows a batch; the core was busy {100 * spent / lasted:.0f} % of the time"
    )
    if perf is not None:
        told = await asyncio.to_thread(perf.communicate)
        print(f"perf: {told[1].strip()}; {requests} requests in about that time")
    await house.stop(1.0)
    return 0 if requests else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("served", "core"))
    parser.add_argument("--fronts", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=int, default=8, help="of one run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=18500)
    parser.add_argument("--server-core", default="", help="for taskset; empty: wherever there is room")
    parser.add_argument("--client-core", default="")
    parser.add_argument("--credit", type=int, default=256, help="requests that a synthetic front may have unanswered")
    parser.add_argument("--frame", type=int, default=32, help="requests in one of its frames")
    parser.add_argument("--instructions", action="store_true", help="count them too (needs perf)")
    options = parser.parse_args()
    return served(options) if options.what == "served" else core(options)


if __name__ == "__main__":
    sys.exit(main())
