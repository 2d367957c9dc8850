"""Instructions per request of the HTTP JSON lane, counted by valgrind: a gate that a busy machine cannot move.

`bench/lane.py` says what is real and what is counted. Every part is counted over N and over 2N requests, and the
difference is taken, so that what happens once is in no figure. The counts are compared with those of the same Python,
machine and libraries in `bench/instructions.json`: more than 3 % above fails. `--write` makes them the baseline.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.metadata
import json
import mmap
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

BASELINE = Path(__file__).with_name("instructions.json")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- bench-instructions: begin -->", "<!-- bench-instructions: end -->"
PARTS = {
    "http in": "bytes become an exchange",
    "decode": "JSON becomes a checked request, and the call that waits for it",
    "submit": "admitted and queued",
    "dispatch": "a batch is formed, laid out and sent to the replica",
    "replica": "read, run (a 4 × 3 product and a softmax) and written",
    "answer": "heard, split among its tickets, told to the metrics",
    "encode": "JSON and head written for each",
    "sum": "",
}
MOST = 0.03
"""How far above its baseline the sum may be."""
REQUESTS = 2048
"""N: each prepared request once, so that every section sees the same bytes."""
WARM_ROUNDS = 40
"""Before anything is counted: what is learned once (shapes, forms, the curve) has been learned, bytecode is adaptive."""
PLAIN_HEAP = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}
"""What is given back is found again at once, whatever else the heap holds: its state is nobody's doing."""
LIBRARIES = ("httptools", "msgspec", "numpy", "orjson")
SECTIONS = ("nothing", "http", "decode", "feed", "dispatch", "replica", "hear", "answer")

# Client requests of callgrind (valgrind/callgrind.h), and the instructions that make one on x86-64.
_BASE = (ord("C") << 24) | (ord("T") << 16)
DUMP_AT, TOGGLE, START = _BASE + 3, _BASE + 2, _BASE + 4
_CODE = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")


class Callgrind:
    """Speaks to the valgrind that this process runs in."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._page.write(_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)
        self._toggle = (ctypes.c_uint64 * 6)(TOGGLE)
        self._toggle_at = ctypes.addressof(self._toggle)

    def ask(self, request: int, argument: int = 0) -> None:
        words = (ctypes.c_uint64 * 6)(request, argument)
        self._call(ctypes.addressof(words))

    def dump(self, name: str) -> None:
        """Write what was counted since the last dump, under a name, and count from zero."""
        text = ctypes.create_string_buffer(name.encode())
        self.ask(DUMP_AT, ctypes.addressof(text))

    def __enter__(self) -> None:
        self._call(self._toggle_at)

    def __exit__(self, *exception: object) -> None:
        self._call(self._toggle_at)


def count_here() -> None:
    """In valgrind: every section over N and over 2N requests, a dump for each."""
    from lane import CONNECTIONS, Lane

    lane, off = Lane(), nullcontext()
    for _ in range(WARM_ROUNDS):
        lane.round(off, off, off, off)
        lane.round_of_http(off)
        lane.round_of_decode(off)
        lane.round_of_answer(off)
    gc.collect()
    gc.freeze()
    gc.disable()  # the lane makes no rubbish in circles: a collection would only fall where chance wants it
    on = Callgrind()
    rounds = {
        "http": lambda: lane.round_of_http(on),
        "decode": lambda: lane.round_of_decode(on),
        "feed": lambda: lane.round(on, off, off, off),
        "dispatch": lambda: lane.round(off, on, off, off),
        "replica": lambda: lane.round(off, off, on, off),
        "hear": lambda: lane.round(off, off, off, on),
        "answer": lambda: lane.round_of_answer(on),
        "nothing": lambda: on.__enter__() or on.__exit__(),  # type: ignore[func-returns-value]
    }
    on.ask(START)
    for name in SECTIONS:
        rounds[name]()
        on.dump("warm")
        for times in (1, 2):
            for _ in range(times * REQUESTS // CONNECTIONS):
                rounds[name]()
            on.dump(f"{name} {times}")


def counted() -> dict[str, float]:
    """Run this file in valgrind; instructions a request, by part."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        options = ["--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        command = ["valgrind", "--tool=callgrind", *options, sys.executable, "-B", __file__, "--here"]
        still = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        path = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parent.parent / "src")))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": path,
            **one_thread,
            **PLAIN_HEAP,
        }
        # Once without valgrind, so that all bytecode lies where Python looks for it: what is compiled moves the heap.
        subprocess.run([sys.executable, "-c", "import lane; lane.Lane()"], env=environment, check=True)
        subprocess.run([*still, *command], env=environment, cwd=Path(__file__).parent, check=True)
        sums = {}
        for file in Path(folder).glob("callgrind.out*"):
            text = file.read_text()
            found = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
            total = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
            if found and total:
                sums[found[1]] = int(total[1])
    return parts_of(sums)


def parts_of(sums: dict[str, int]) -> dict[str, float]:
    """From the sections' counts to those of parts: what one section has more than the one that ends before it."""
    lacking = [f"{name} {times}" for name in SECTIONS for times in (1, 2) if f"{name} {times}" not in sums]
    if lacking:
        raise SystemExit(f"valgrind gave no counts for: {', '.join(lacking)}")
    bracket = sums["nothing 2"] - sums["nothing 1"]
    each = {name: (sums[f"{name} 2"] - sums[f"{name} 1"] - bracket) / REQUESTS for name in SECTIONS}
    return {
        "http in": each["http"],
        "decode": each["decode"] - each["http"],
        "submit": each["feed"] - each["decode"],
        "dispatch": each["dispatch"],
        "replica": each["replica"],
        "answer": each["answer"],
        "encode": each["hear"] - each["answer"],
        "sum": each["feed"] + each["dispatch"] + each["replica"] + each["hear"],
    }


# ---------------------------------------------------------------- the gate


def key() -> str:
    """Counts of other Pythons, machines and libraries are no measure for these."""
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    compiler = re.sub(r"[^\w.]+", " ", platform.python_compiler()).strip()
    return f"Python {platform.python_version()} ({compiler}), {platform.machine()}, {libraries}"


def why_not() -> str:
    """Why nothing can be counted here; empty if it can."""
    if platform.machine() not in ("x86_64", "AMD64") or struct.calcsize("P") != 8 or sys.platform != "linux":
        return "this counts on Linux on x86-64 only"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (Debian: apt-get install valgrind)"
    return ""


def compared(parts: dict[str, float], known: dict[str, float] | None) -> tuple[list[str], bool]:
    """A line for each part beside its baseline, and whether the sum is within what is allowed."""
    lines = []
    for name, value in parts.items():
        before = known.get(name) if known else None
        change = f"   {before:>9,.0f} {100 * (value / before - 1):+6.2f} %" if before else ""
        lines.append(f"{name:<10s} {value:>9,.0f}{change}")
    return lines, known is None or parts["sum"] <= known["sum"] * (1 + MOST)


def written(parts: dict[str, float]) -> None:
    """Put the parts between the markers of the page."""
    before, found, rest = PAGE.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    rows = [f"| {name} | {value:,.0f} | {PARTS[name]} |" for name, value in parts.items()]
    lines = ["| part | instructions a request | what it is |", "| --- | ---: | --- |", *rows]
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END]) + after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", action="store_true", help="(within valgrind)")
    parser.add_argument(
        "--write", action="store_true", help="make these counts the baseline, here and in docs/benchmarks.md"
    )
    options = parser.parse_args()
    if options.here:
        count_here()
        return 0
    if reason := why_not():
        print(f"instructions: not counted: {reason}")
        return 0
    baselines = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    known = baselines.get(key())
    parts = counted()
    lines, good = compared(parts, known)
    print("instructions a request" + ("   baseline  change" if known else ""))
    print("\n".join(lines))
    if options.write:
        baselines[key()] = {name: round(value) for name, value in parts.items()}
        BASELINE.write_text(json.dumps(baselines, indent=2, sort_keys=True) + "\n")
        written(parts)
        print(f"written into {BASELINE.name} for {key()}, and into {PAGE.name}")
        return 0
    if known is None:
        print(
            f"no baseline for {key()}; `make bench-instructions WRITE=1` makes one, from a tree that is as it should be"
        )
    elif not good:
        print(f"the sum is more than {MOST:.0%} above its baseline; if that is meant, WRITE=1 makes these the baseline")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
