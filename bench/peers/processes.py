"""What the processes of a server under test use: its process tree, CPU time, memory, and the rows its model computed."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAIR = struct.Struct("<QQ")


def tree(tag: str, root: int | None) -> set[int]:
    """Every process that carries the tag in its environment, or descends from `root`; not this one."""
    found: set[int] = set() if root is None else {root}
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        with contextlib.suppress(OSError, ValueError):  # it has ended since, or is another user's
            parents[pid] = int(fields(pid)[1])
            if tag and tag.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid for pid in found if pid in parents and pid != os.getpid()}


def fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pids: set[int]) -> float:
    """User and system time of these processes and of their children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, fields(pid)[11:15]))
    return ticks / TICKS


def pss_mb(pids: set[int]) -> float:
    """Memory of these processes in MiB, pages that several share counted once."""
    kib = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kib += int(line.split()[1])
    return kib / 1024


class RowCounter:
    """Rows and calls of the served model, from the file that it maps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[int, int]:
        try:
            data = self.path.read_bytes()[: PAIR.size]
        except OSError:  # the server has not begun it yet, or has no model
            return 0, 0
        rows, calls = PAIR.unpack(data) if len(data) == PAIR.size else (0, 0)
        return rows, calls
