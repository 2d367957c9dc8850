"""What the host tells, and the watch on children, in both branches."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maitred import host

PATIENCE_SECONDS = 20.0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL"),
        (-200, "was killed by signal 200"),
        (None, "ended, and another part of this program collected its exit code"),
    ],
)
def test_ends_in_words(code: int | None, text: str) -> None:
    assert host.end_of(code) == text


def test_memory_of_processes() -> None:
    mine = host.memory_of(os.getpid())
    assert mine is not None
    assert mine.rss > 1 << 20
    assert mine.pss is None or 0 < mine.pss <= mine.rss
    assert host.memory_of(2**22 + 1) is None
    available = host.available_memory()
    assert available is None or available > 0


@pytest.mark.parametrize(
    ("files", "quota", "memory"),
    [
        ({"cpu.max": "50000 100000", "memory.max": "1000000", "memory.current": "400000"}, 0.5, 600_000),
        ({"cpu.max": "max 100000", "memory.max": "max", "memory.current": "1"}, None, None),
        ({"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "9000"}, None, 0),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "9"}, None, None),
        ({}, None, None),
    ],
)
def test_control_groups_bound_what_there_is(
    files: dict[str, str], quota: float | None, memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    unbound = host.available_memory()
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert host.cpu_quota() == (cores if quota is None else quota)
    if memory is not None:
        assert host.available_memory() == memory
    elif unbound is not None:
        assert (host.available_memory() or 0) > 1 << 20


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(4)", 4), ("import time; time.sleep(60)", -9)])
def test_the_watch_tells_of_an_end_once(
    portable: bool, script: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "portable", lambda: portable or sys.platform != "linux")

    async def play() -> None:
        ends: asyncio.Queue[int | None] = asyncio.Queue()
        process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        watch = host.watch_child(asyncio.get_running_loop(), process.pid, ends.put_nowait)
        async with asyncio.timeout(PATIENCE_SECONDS):
            if code < 0:
                os.kill(process.pid, signal.SIGSTOP)
                while not watch.stopped():
                    await asyncio.sleep(0.005)
                os.kill(process.pid, signal.SIGCONT)
                while watch.stopped():
                    await asyncio.sleep(0.005)
                watch.kill(signal.SIGKILL)
            assert await ends.get() == code
        assert not watch.stopped()
        watch.kill(signal.SIGKILL)
        process.returncode = code
        assert ends.empty()

    asyncio.run(play())


@pytest.mark.parametrize("portable", [False, True])
def test_a_child_that_somebody_else_reaped_is_told_of_too(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "portable", lambda: portable or sys.platform != "linux")

    async def play() -> None:
        ends: asyncio.Queue[int | None] = asyncio.Queue()
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin is not None
        if portable:
            process.kill()
            process.wait()  # before the watch begins: there it waits itself
            watch = host.watch_child(asyncio.get_running_loop(), process.pid, ends.put_nowait)
        else:
            watch = host.watch_child(asyncio.get_running_loop(), process.pid, ends.put_nowait)
            process.kill()
            process.wait()
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await ends.get() is None
        assert not watch.stopped()

    asyncio.run(play())
