"""What a flavor adds to its library's own time: both from the same columns of 32 rows, taking turns, one thread each.

Prints a Markdown table, in microseconds a batch; `--write FILE` puts it between that file's markers. A row holds where
the difference is at most 5 % of the library's own time or 30 us. The exit status is 1 if a row does not hold, or if
the two answers differ.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flavor_cases import KINDS, ROWS, Case, Kind

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MAITRED_THREADS"), "1")
SHARE, MICROSECONDS = 0.05, 30.0
"""What a flavor may add: whichever is more."""
BEGIN, END = "<!-- bench-flavors: begin -->", "<!-- bench-flavors: end -->"
LIBRARIES = (
    "numpy", "pandas", "scikit-learn", "xgboost", "xgboost-cpu", "lightgbm", "catboost", "onnxruntime", "torch",
    "transformers",
)  # fmt: skip
ROUND_SECONDS = 0.05


class Timed(NamedTuple):
    own: float
    ours: float

    @property
    def added(self) -> float:
        return self.ours - self.own

    @property
    def holds(self) -> bool:
        return self.added <= max(SHARE * self.own, MICROSECONDS)


def measure(case: Case, rounds: int) -> Timed:
    """Medians of the rounds' medians, in microseconds; the two take turns, and so do their places in a round."""
    own, ours = case.own(), case.ours()
    if not np.allclose(np.asarray(own, np.float64), np.asarray(ours, np.float64), rtol=1e-4, atol=1e-5):
        raise ValueError("the flavor's answer is not the library's")
    calls = max(3, int(ROUND_SECONDS / max(once(case.own), once(case.ours), 1e-6)))
    sides: list[tuple[Callable[[], Any], list[float]]] = [(case.own, []), (case.ours, [])]
    gc.collect()
    gc.freeze()
    for number in range(rounds + 1):
        for run, times in sides if number % 2 else reversed(sides):
            median = statistics.median(once(run) for _ in range(calls))
            if number:  # the first round warms up
                times.append(median * 1e6)
    gc.unfreeze()
    return Timed(*(statistics.median(times) for _, times in sides))


def once(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def row(kind: Kind, rounds: int) -> tuple[str, bool]:
    """One line of the table, and whether it is as it should be."""
    if missing := kind.missing():
        return f"| {kind.flavor} | {kind.form} | | | | skipped: no {', '.join(missing)} |", True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MAITRED_HOME"] = folder
        try:
            timed = measure(kind.build(Path(folder)), rounds)
        except Exception as error:  # whatever the library or its flavor raises: the other rows are wanted too
            return f"| {kind.flavor} | {kind.form} | | | | **failed: {type(error).__name__}: {error}** |", False
    verdict = "holds" if timed.holds else "**does not hold**"
    added = f"{timed.added:+,.1f} ({timed.added / timed.own:+.0%})"
    return f"| {kind.flavor} | {kind.form} | {timed.own:,.1f} | {timed.ours:,.1f} | {added} | {verdict} |", timed.holds


def versions() -> str:
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def written(table: list[str], place: Path) -> None:
    """Put the table between the markers of a file."""
    before, found, rest = place.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{place} lacks the lines {BEGIN} and {END}")
    place.write_text("\n".join([before + BEGIN, "", *table, "", END]) + after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="", help="flavors whose name holds this text")
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the libraries', about each other
    where = f"{datetime.date.today():%Y-%m-%d}, {processor()}, {os.cpu_count()} processors"
    how = f"Microseconds a batch of {ROWS} rows, one thread, medians of {options.rounds} rounds in turns."
    head = [
        f"{where}, Python {platform.python_version()}; {versions()}. {how}",
        "",
        "| flavor | model | library alone | through maitred | added | 5 % or 30 µs |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    print("\n".join(head), flush=True)
    table, good = list(head), True
    for kind in KINDS:
        if options.only in kind.flavor:
            line, holds = row(kind, options.rounds)
            print(line, flush=True)
            table.append(line)
            good &= holds
    if options.write:
        written(table, options.write)
    return 0 if good else 1


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():  # libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    sys.exit(main())
