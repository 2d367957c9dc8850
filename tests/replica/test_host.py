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
    ("files", "memory"),
    [
        ({"memory.max": "1000000", "memory.current": "400000"}, 600_000),
        ({"memory.max": "max", "memory.current": "1"}, None),
        ({"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "9000"}, 0),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "9"}, None),
        ({}, None),
    ],
)
def test_control_groups_bound_memory(
    files: dict[str, str], memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    unbound = host.available_memory()
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    if memory is not None:
        assert host.available_memory() == memory
    elif unbound is not None:
        assert (host.available_memory() or 0) > 1 << 20


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1000000"}, 1_000_000),
        ({"memory.max": "max"}, None),
        ({"memory/memory.limit_in_bytes": "5000"}, 5000),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ({}, None),
    ],
)
def test_what_may_be_used_of_memory_is_the_machine_or_the_control_group(
    files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(host, "_CGROUP", tmp_path / "none")
    machine = host.memory_limit()
    assert machine is None or machine > 1 << 26
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    found = host.memory_limit()
    assert found == limit if limit is not None else (found is None or found >= (machine or 0))


V2 = "30 24 0:26 / {top}/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 / {top}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct"
OTHER = "26 1 8:1 / / rw - ext4 /dev/sda1 rw\n33 31 0:30 / {top}/memory rw - cgroup cgroup rw,memory"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        ("0::/a/b", V2, {"unified/a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b", V2, {"unified/a/cpu.max": "150000 100000", "unified/a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b", V2, {"unified/a/cpu.max": "250000 1000000", "unified/a/b/cpu.max": "900000 1000000"}, 0.25),
        ("0::/a/b", V2, {"unified/a/bc/cpu.max": "10000 100000", "unified/cpu.max": "max 100000"}, None),
        ("0::/", V2, {"unified/cpu.max": "75000 100000"}, 0.75),
        ("0::/../outside", V2, {"unified/cpu.max": "75000 100000", "outside/cpu.max": "1 100000"}, 0.75),
        ("0::/docker/x/job", V2.replace(" / ", " /docker/x ", 1), {"unified/job/cpu.max": "50000 100000"}, 0.5),
        ("0::/elsewhere", V2.replace(" / ", " /docker/x ", 1), {"unified/cpu.max": "50000 100000"}, 0.5),
        ("0::/a", V2, {"unified/a/cpu.max": "nonsense"}, None),
        ("4:memory:/m\n3:cpuacct,cpu:/a\n0::/", V1 + "\n" + V2 + "\n" + OTHER,
         {"cpu/a/cpu.cfs_quota_us": "25000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.25),
        ("3:cpu,cpuacct:/a/b", V1, {"cpu/a/cpu.cfs_quota_us": "30000", "cpu/a/cpu.cfs_period_us": "100000",
         "cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, 0.3),
        ("3:cpu:/", V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("3:cpuset:/", V1, {"cpu/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("", "", {}, None),
    ],
)  # fmt: skip
def test_control_groups_bound_processors(
    groups: str, mounts: str, files: dict[str, str], quota: float | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    top = tmp_path / "with space"
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts.format(top=str(top).replace(" ", "\\040")))
    monkeypatch.setattr(host, "_PROCESS", tmp_path)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert host.cpu_quota() == min(cores, cores if quota is None else quota)
    monkeypatch.setattr(host, "_PROCESS", tmp_path / "none")
    assert host.cpu_quota() == cores


@pytest.mark.parametrize(("quota", "whole"), [(0.1, 1), (1.0, 1), (1.9, 1), (2.0, 2), (15.99, 15)])
def test_processors_are_the_quota_rounded_down(quota: float, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    assert host.processors() == whole


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
