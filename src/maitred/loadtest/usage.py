"""How much of a processor a process uses: this one, and a server's with all of its children."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def own_cpu_seconds() -> float:
    """User and system time of this process so far."""
    return time.process_time()


def own_wait_seconds() -> float | None:
    """How long this process's main thread was ready to run while others did; None where the system doesn't tell."""
    try:
        return int((_PROC / "self" / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class NoProcess(Exception):
    """There is no such process, or the system does not show it."""


def family_cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, with those that have ended and were waited for.

    In steps of the kernel's ticks, 10 ms as a rule. Raises NoProcess.
    """
    total = _ticks(pid)
    if total is None:
        raise NoProcess(f"there is no process {pid} to be seen here")
    todo = _children(pid)
    while todo:
        child = todo.pop()
        total += _ticks(child) or 0  # it may just have ended
        todo += _children(child)
    return total / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15]))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(_PROC / str(pid) / "task"):
            found += map(int, (_PROC / str(pid) / "task" / task / "children").read_text().split())
    except OSError:  # it has ended, or a thread of it has
        return found
    return found
