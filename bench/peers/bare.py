"""The model alone in a process of its own: CPU-us a row at one size of batch. Run on the server's core.

Prints one JSON line. Arguments: model, rows a batch, seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import models
import prepared


def batches(model: str, rows: int) -> Iterator[tuple[Any, ...]]:
    """The prepared rows in batches, again from the front when they are spent."""
    columns, at = prepared.values_of(model), 0
    while True:
        yield tuple(column[at : at + rows] for column in columns)
        at = at + rows if at + 2 * rows <= prepared.COUNT else 0


def main(name: str, rows: int, seconds: float) -> None:
    model, source = models.load(name), batches(name, rows)
    model(*next(source))
    done = 0
    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        model(*next(source))
        done += rows
    spent, used = time.perf_counter() - started, time.process_time() - cpu
    print("RESULT " + json.dumps({"cpu_us": used / done * 1e6, "rps": done / spent, "batch": rows}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
