#!/usr/bin/env python3
"""Measure the rows of the benchmark: every server in turn, run by run. See README.md.

Commands: `rows` (measure, then write the table), `table` (from what was measured), `check` (start each server and
compare its answers), `bodies` (write the prepared requests).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import loads
import peers
import plots
import prepared
import rows
import table
from results import Results
from server import DidNotStart, Server, Stand, WrongAnswers

ROOT = peers.HERE.parent.parent
NEEDED = {"wrk": "wrk", "taskset": "util-linux", "nginx": "nginx-light"}
FAILURES = (DidNotStart, WrongAnswers, loads.LoadFailed, OSError, subprocess.SubprocessError)
"""What ends one server's turn, and not the benchmark."""
WARMUP_SECONDS = 1
PORTS, PORT_STEP = 40, 10
"""So many starts before a port is used again."""


class Progress:
    """Tells what is done, and how long the rest is likely to take."""

    def __init__(self, turns: int) -> None:
        self.started = time.monotonic()
        self.turns, self.done = turns, 0

    def told(self, text: str) -> None:
        spent = time.monotonic() - self.started
        print(f"[{int(spent) // 60:2d}:{int(spent) % 60:02d}] {text}", flush=True)

    def turned(self) -> None:
        self.done += 1
        spent = time.monotonic() - self.started
        left = spent / self.done * (self.turns - self.done)
        print(f"        {self.done} of {self.turns} turns, about {left / 60:.0f} min left", flush=True)


@dataclasses.dataclass
class Turn:
    """One server with one model in one run: the rows that are measured while it stands."""

    run: int
    model: str
    name: str
    rows: list[rows.Row]


def turns_of(options: argparse.Namespace, results: Results) -> list[Turn]:
    """Servers take turns run by run, in another order each time."""
    found = []
    chosen = [row for row in rows.ROWS if not options.rows or row.name in options.rows]
    for run in range(1, options.runs + 1):
        shift = (run - 1) * 3 % max(1, len(options.peers))
        order = options.peers[shift:] + options.peers[:shift]
        for model in peers.MODELS:
            for name in order:
                mine = [row for row in chosen if row.model == model and row.applies(name)]
                if run > 1 and model not in peers.named(name).every_run:
                    continue
                mine = [row for row in mine if run == 1 or not row.once or name == "maitred"]
                if options.resume:
                    mine = [row for row in mine if (row.name, name, run) not in results.cells]
                together = [row for row in mine if not row.fresh]
                for part in ([together] if together else []) + [[row] for row in mine if row.fresh]:
                    found.append(Turn(run, model, name, part))
    return found


def line_of(name: str, row: str, values: dict[str, object]) -> str:
    keys = ("rps", "p50_ms", "p99_ms", "cpu_us", "batch", "good_share", "abandoned", "ready_s", "pss_mb", "errors")
    found = [f"{key} {value:,.2f}" for key in keys if isinstance(value := values.get(key), (int, float))]
    return f"{name:<10s} {row:<9s} " + "  ".join(found)


def measure(turn: Turn, stand: Stand, seconds: int, results: Results, progress: Progress) -> None:
    """One turn. What fails becomes a cell that says why."""
    left = list(turn.rows)
    try:
        if why := peers.named(turn.name).missing():
            raise DidNotStart(why)
        with Server(turn.name, turn.model, stand) as server:
            time.sleep(server.peer.settle_seconds)
            warm = False
            while left:
                row = left[0]
                if not warm and row.name != "start":
                    loads.warm_up(server, 64, WARMUP_SECONDS)
                    server.quiet(0.1)
                    warm = True
                values = row.measure(server, seconds)
                left.pop(0)
                results.put(row.name, turn.name, turn.run, values)
                progress.told(line_of(turn.name, row.name, values))
                if turn.name == "maitred" and row.name == "minilm64":
                    batch = max(1, round(values["batch"] or 64))
            if turn.name != "nginx":
                progress.told(f"{turn.name:<10s} {server.checked} answers compared with the model's: none wrong")
    except FAILURES as error:
        text = f"{type(error).__name__}: {error}"
        for row in left:
            results.put(row.name, turn.name, turn.run, {"error": text})
        progress.told(f"{turn.name:<10s} {', '.join(row.name for row in left)}: {text[:300]}")
        return
    if turn.name == "maitred" and any(row.name == "minilm64" for row in turn.rows):
        values = rows.bare(stand, batch, seconds)
        results.put("minilm64", "bare", turn.run, values)
        progress.told(line_of("bare", "minilm64", values))


# ---------------------------------------------------------------- the words of the command line


def about(options: argparse.Namespace, known: dict[str, str]) -> dict[str, object]:
    """Machine and versions, with those that are known from earlier runs."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    machine = f"{processor}, {os.cpu_count()} processors, {memory:.0f} GB, Linux {platform.release().split('-')[0]}"
    machine += f", server on core {options.server_core}, load on core {options.client_core}"
    return {"machine": machine, "versions": {**known, **versions(options.peers)}}


def commit() -> str:
    told = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


def versions(names: list[str]) -> dict[str, str]:
    found = {"Python": platform.python_version(), "maitred": commit()}
    if shutil.which("nginx"):
        told = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr
        found["nginx"] = told.strip().rpartition("/")[2].split()[0]
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    for name in names:
        peer = peers.named(name)
        if peer.package and not peer.missing():
            told = subprocess.run([peer.python(), "-c", code, peer.package], capture_output=True, text=True).stdout
            found[peer.package] = told.strip()
    return found


def write_table(results: Results, options: argparse.Namespace) -> None:
    pictures = []
    if options.write:
        folder = options.write.parent / "benchmarks"
        drawn = plots.drawn(results, folder)
        pictures = [(title, place.relative_to(options.write.parent).as_posix()) for title, place in drawn]
    lines = table.page(results, pictures)
    print("\n" + "\n".join(lines[: next((i for i, x in enumerate(lines) if x.startswith("<details")), None)]))
    if options.write:
        table.written(lines, options.write)
        print(f"written into {options.write}")


def measure_rows(options: argparse.Namespace, stand: Stand) -> int:
    lacking = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if lacking:
        print(f"programs are missing; on Debian: apt-get install {' '.join(lacking)}")
        return 2
    os.sched_setaffinity(0, {int(options.client_core)})  # what is done here must not disturb the server
    results = Results.read(options.results)
    results.about = about(options, results.about.get("versions", {}))
    results.stamp = {"commit": commit(), "length": options.seconds}
    turns = turns_of(options, results)
    if not options.resume:  # measured anew: nothing of an older run may stay in a median
        for turn in turns:
            for row in turn.rows:
                results.forget(row.name, turn.name)
    progress = Progress(len(turns))
    for number, turn in enumerate(turns):
        progress.told(f"run {turn.run}: {turn.name}, {turn.model}")
        port = stand.port + number % PORTS * PORT_STEP
        measure(turn, dataclasses.replace(stand, port=port), options.seconds, results, progress)
        progress.turned()
    results.write()
    write_table(results, options)
    return 0


def check(options: argparse.Namespace, stand: Stand) -> int:
    failed = 0
    for name in options.peers:
        for model in peers.named(name).models:
            try:
                if why := peers.named(name).missing():
                    raise DidNotStart(why)
                with Server(name, model, stand, pinned=False) as server:
                    told = f"up in {server.start_seconds:.2f} s, {server.checked} answers right"
                    print(
                        f"{name} {model} {told}, {len(server.pids())} processes, {server.pss_mb():.0f} MB", flush=True
                    )
            except FAILURES as error:
                failed += 1
                print(f"FAILED {name} {model}: {error}", flush=True)
    return 1 if failed else 0


def words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def extra(options: argparse.Namespace) -> None:
    """Make known the servers that were given on the command line."""
    for name, _, command in (given.partition("=") for given in options.extra):
        path = dict(given.split("=", 1) for given in options.extra_path).get(name, peers.V2)
        body = dict(given.split("=", 1) for given in options.extra_body).get(name, "v2")
        peers.PEERS[name] = peers.Peer(name, None, path, body, command=command)
        if name not in options.peers:
            options.peers.append(name)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "table", "check", "bodies"])
    parser.add_argument("--rows", type=words, default=[], help=f"of {' '.join(rows.BY_NAME)} (default: all)")
    parser.add_argument("--peers", type=words, default=[], help=f"default: {' '.join(peers.DEFAULT)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of an ordinary load; some take two or three times it")
    parser.add_argument("--resume", action="store_true", help="measure only what the results lack")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "bench" / "results.json")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between this page's markers")
    parser.add_argument("--port", type=int, default=int(os.environ.get("BENCH_PORT", "18400")))
    parser.add_argument("--server-core", default="0")
    parser.add_argument("--client-core", default="1")
    parser.add_argument("--max-wait-ms", type=float, default=2.0, help="the window of servers that have one")
    parser.add_argument("--start-seconds", type=float, default=90.0)
    parser.add_argument("--extra", action="append", default=[], metavar="NAME=COMMAND", help="{model}, {port}")
    parser.add_argument(
        "--extra-path", action="append", default=[], metavar="NAME=/PATH", help="{model}; default: V2's"
    )
    parser.add_argument("--extra-body", action="append", default=[], metavar="NAME=KIND", help="v2, native or bento")
    parser.add_argument("--out-dir", type=Path, default=Path("bodies"), help="bodies: where to write them")
    options = parser.parse_args()
    options.peers = options.peers or list(peers.DEFAULT)
    extra(options)
    if unknown := set(options.rows) - rows.BY_NAME.keys():
        parser.error(f"no such rows: {' '.join(sorted(unknown))}")
    if unknown := {name for name in options.peers if name.partition(":")[0] not in peers.PEERS}:
        parser.error(f"no such servers: {' '.join(sorted(unknown))}")
    return options


def main() -> int:
    options = parsed()
    stand = Stand(options.port, options.server_core, options.client_core, options.max_wait_ms, options.start_seconds)
    if options.what == "rows":
        return measure_rows(options, stand)
    if options.what == "check":
        return check(options, stand)
    if options.what == "table":
        write_table(Results.read(options.results), options)
        return 0
    options.out_dir.mkdir(parents=True, exist_ok=True)
    for model in peers.MODELS:
        for kind in prepared.KINDS:
            shutil.copy(prepared.requests(kind, model).file(), options.out_dir / f"{kind}-{model}.tsv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
