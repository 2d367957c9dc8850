"""What differs between operating systems: shared memory, the watch on child processes, and what the machine offers."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

_F_SEAL_FUTURE_WRITE: Final = 0x10
_PR_SET_PDEATHSIG: Final = 1
_ZEROS: Final = bytes(1 << 20)
_UNLIMITED: Final = 1 << 60
"""Cgroup v1 says "no limit" with a number near 2**63."""


def portable() -> bool:
    """Whether to use only what every supported system has: elsewhere than on Linux, or with MAITRED_PORTABLE=1."""
    return sys.platform != "linux" or os.environ.get("MAITRED_PORTABLE") == "1"


# ---------------------------------------------------------------------- shared memory


class Shared(NamedTuple):
    """A nameless piece of memory: a writable map of it here, and a descriptor to hand to children."""

    map: mmap.mmap
    fd: int


def reserve(size: int, children_write: bool) -> Shared:
    """Nameless zeroed memory of `size` bytes, reserved in full and never to be resized.

    Where `children_write` is False, a child that gets the descriptor can map it for reading only. Raises OSError
    (ENOSPC, ENOMEM) where the system cannot give so much; a later write then never fails.
    """
    return _reserve_file(size, children_write) if portable() else _reserve_memfd(size, children_write)


def _reserve_memfd(size: int, children_write: bool) -> Shared:
    fd = os.memfd_create("maitred", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        shared = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        if not children_write:
            with contextlib.suppress(OSError):  # Linux before 5.1: children still map it read-only, by agreement
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        return Shared(shared, fd)
    except BaseException:
        os.close(fd)
        raise


def _reserve_file(size: int, children_write: bool) -> Shared:
    fd, path = tempfile.mkstemp(prefix="maitred-")
    reading = -1
    try:
        if not children_write:
            reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.unlink(path)
    try:
        left = size
        while left:  # zeros written now, so that a full disk is an error here and not a fault later
            left -= os.write(fd, _ZEROS[: min(left, len(_ZEROS))])
        shared = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except BaseException:
        os.close(fd)
        if reading >= 0:
            os.close(reading)
        raise
    if children_write:
        return Shared(shared, fd)
    os.close(fd)
    return Shared(shared, reading)


def attach(fd: int, size: int, write: bool) -> mmap.mmap:
    """Map, in a child, memory that the parent reserved. Raises PermissionError for a forbidden `write`."""
    access = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
    return mmap.mmap(fd, size, mmap.MAP_SHARED, access)


def attach_foreign(fd: int, size: int) -> mmap.mmap:
    """Map for reading memory that another process reserved, which must not be able to shrink it: that would kill us.

    Raises OSError or ValueError for what is no such memory. Where the system has no seals, its size is all that is
    looked at.
    """
    if os.fstat(fd).st_size < size or size < 1:
        raise ValueError("it is smaller than was said")
    if not portable() and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("it is not sealed")
    return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)


def widen_pipe(fd: int, size: int) -> None:
    """Have a pipe hold `size` bytes, where the system can do that and allows it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)


# ---------------------------------------------------------------------- children


def die_with_parent(parent: int, at_thread_end: bool) -> None:
    """Have this process end when `parent` does, also while it is busy; exits at once if the parent has gone already.

    The kernel's signal comes when the *thread* that made this process ends: `at_thread_end` says that this is wanted.
    Otherwise, and where there is no such signal, a thread looks once a second.
    """
    if at_thread_end and not portable():
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_follow, args=(parent,), name="maitred-parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent(parent: int, seconds: float) -> None:
    """Have this process end at the latest `seconds` after `parent`, whatever it does by then; wakes it if it sleeps.

    Exits at once if the parent has gone already.
    """
    if not portable():  # a stopped process would otherwise stay for ever
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    threading.Thread(target=_follow, args=(parent, seconds), name="maitred-parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _follow(parent: int, seconds: float = 0.0) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(seconds)
    os._exit(1)


Exited = Callable[["int | None"], None]
"""Called once with the exit code (negative: the signal), or None where someone else has collected it."""


class ChildWatch(Protocol):
    """The watch on one child process, which also reaps it."""

    def stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP, a debugger) and not ended."""
        ...

    def kill(self, number: int) -> None:
        """Signal the child's whole process group; harmless once the child has been reaped."""
        ...


def watch_child(loop: asyncio.AbstractEventLoop, pid: int, exited: Exited) -> ChildWatch:
    """Call `exited` on `loop` when the child `pid`, which leads a process group, has ended and been reaped.

    What is left of its group is killed first.
    """
    return _ThreadWatch(loop, pid, exited) if portable() else _PidfdWatch(loop, pid, exited)


class _PidfdWatch:
    """Linux: a descriptor that becomes readable at the child's end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, exited: Exited) -> None:
        self._loop = loop
        self._pid = pid
        self._exited = exited
        self._fd = os.pidfd_open(pid)
        self._reaped = False
        loop.add_reader(self._fd, self._ended)

    def stopped(self) -> bool:
        if self._reaped:
            return False
        try:
            return os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # somebody else reaped it
            return False

    def kill(self, number: int) -> None:
        if not self._reaped:
            _signal_group(self._pid, number)

    def _ended(self) -> None:
        self._loop.remove_reader(self._fd)
        self.kill(signal.SIGKILL)  # its helpers, while its number cannot have been given to another process
        self._reaped = True
        os.close(self._fd)
        try:
            code: int | None = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:
            code = None
        self._exited(code)


class _ThreadWatch:
    """Elsewhere: a thread that waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, exited: Exited) -> None:
        self._loop = loop
        self._pid = pid
        self._exited = exited
        self._stopped = False
        self._reaped = False
        threading.Thread(target=self._wait, name=f"maitred-child-{pid}", daemon=True).start()

    def stopped(self) -> bool:
        return self._stopped

    def kill(self, number: int) -> None:
        if not self._reaped:
            _signal_group(self._pid, number)

    def _wait(self) -> None:
        code: int | None = None
        while True:
            try:
                status = os.waitpid(self._pid, os.WUNTRACED | os.WCONTINUED)[1]
            except ChildProcessError:
                break
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                code = os.waitstatus_to_exitcode(status)
                break
            self._stopped = os.WIFSTOPPED(status)
        self._stopped = False
        _signal_group(self._pid, signal.SIGKILL)  # as long as a helper lives, the group's number is taken
        self._reaped = True
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits for this any more
            self._loop.call_soon_threadsafe(self._exited, code)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM where only a zombie is left
        os.killpg(pid, number)


def end_of(code: int | None) -> str:
    """How a process ended, for people: `was killed by SIGSEGV`, `exited with code 3`."""
    if code is None:
        return "ended, and another part of this program collected its exit code"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


# ---------------------------------------------------------------------- waits shorter than a millisecond


class FineTimer(Protocol):
    """One wait at a time on an event loop, finer than the loop's own timers, which step by a millisecond."""

    def start(self, seconds: float) -> None:
        """Ring once, no earlier than so many seconds from now, instead of what was asked for before."""
        ...

    def stop(self) -> None:
        """Don't ring."""
        ...

    def close(self) -> None:
        """Give back what it holds; it never rings again."""
        ...


def fine_timer(loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> FineTimer:
    """A timer that calls `rang` on `loop`. Where the system has none that is finer, it steps as the loop's do."""
    if not portable():
        try:
            return _DescriptorTimer(loop, rang)
        except (OSError, AttributeError):  # no descriptor left, or a C library without such timers
            pass
    return _LoopTimer(loop, rang)


class _TimerSpec(ctypes.Structure):
    """The C library's `struct itimerspec`."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "after_s", "after_ns"))


class _DescriptorTimer:
    """Linux: a timer of the kernel, behind a descriptor that becomes readable. Starting it is one system call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)  # Python offers these calls from 3.13 on
        self._set = library.timerfd_settime
        self._fd: int = library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _TimerSpec()
        self._at = ctypes.byref(self._spec)
        self._loop = loop
        self._rang = rang
        loop.add_reader(self._fd, self._due)

    def start(self, seconds: float) -> None:
        nanoseconds = max(1, int(seconds * 1e9))  # none would be no order at all
        self._spec.after_s, self._spec.after_ns = divmod(nanoseconds, 1_000_000_000)
        self._set(self._fd, 0, self._at, None)

    def stop(self) -> None:
        self._spec.after_s = self._spec.after_ns = 0
        self._set(self._fd, 0, self._at, None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # stopped or started anew in the same turn of the loop
            return
        self._rang()


class _LoopTimer:
    """Elsewhere: the loop's own, which knows milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> None:
        self._loop = loop
        self._rang = rang
        self._handle: asyncio.Handle | None = None

    def start(self, seconds: float) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, self._due, time.monotonic() + seconds)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self, at: float) -> None:
        if time.monotonic() < at:  # loops round, and count from the beginning of their turn
            self._handle = self._loop.call_soon(self._due, at)
        else:
            self._handle = None
            self._rang()

    def close(self) -> None:
        self.stop()


# ---------------------------------------------------------------------- what the machine offers


class Memory(NamedTuple):
    """What a process holds, in bytes."""

    pss: int | None
    """Its own pages and its share of shared ones; None where the system doesn't tell."""
    rss: int


def memory_of(pid: int) -> Memory | None:
    """The memory that a process holds now; None if there is no such process or it may not be seen."""
    try:
        fields = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
        return Memory(fields["Pss"], fields["Rss"])
    except (OSError, KeyError):
        pass
    try:
        return Memory(None, _kilobytes(Path(f"/proc/{pid}/status"))["VmRSS"])
    except (OSError, KeyError):
        return None


def available_memory() -> int | None:
    """Bytes that may still be taken before this machine or its control group runs out; None if unknown."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        found.append(_kilobytes(Path("/proc/meminfo"))["MemAvailable"])
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such version of control groups, or "max"
            bound = int((_CGROUP / limit).read_text())
            if bound < _UNLIMITED:
                found.append(max(0, bound - int((_CGROUP / used).read_text())))
    return min(found, default=None)


def memory_limit() -> int | None:
    """Bytes that this machine has, or its control group may use where that is less; None if unknown."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        found.append(_kilobytes(Path("/proc/meminfo"))["MemTotal"])
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such version of control groups, or "max"
            bound = int((_CGROUP / limit).read_text())
            if bound < _UNLIMITED:
                found.append(bound)
    return min(found, default=None)


def processors() -> int:
    """How many processors this process may keep busy, in whole numbers: its quota rounded down, and at least 1."""
    return max(1, int(cpu_quota()))


def cpu_quota() -> float:
    """How many processors this process may use at once: affinity, and every control group that it is in."""
    # sched_getaffinity is Linux only; mypy checks for one platform at a time
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        groups, mounts = (_PROCESS / "cgroup").read_text(), (_PROCESS / "mountinfo").read_text()
    except OSError:  # no such thing on this system
        return cores
    return min((cores, *_quotas(groups, mounts)))


_PROCESS: Final = Path("/proc/self")


def _quotas(groups: str, mounts: str) -> Iterator[float]:
    """What bounds a process with these lines of `cgroup` and `mountinfo`: its own groups' quotas, and all above."""
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        root, place = mount.split()[3:5]
        system, _, options = kind.split(maxsplit=2)
        own = _group(groups, "" if system == "cgroup2" else "cpu")
        if own is None or (system != "cgroup2" and (system != "cgroup" or "cpu" not in options.split(","))):
            continue
        top = Path(place.replace("\\040", " "))
        below = PurePosixPath(own)  # as seen from `root`, unless the group lies outside of what is mounted here
        known = below.is_relative_to(root) and ".." not in below.parts
        folder = top / below.relative_to(root) if known else top
        for at in (folder, *folder.parents):
            if at.is_relative_to(top):
                yield from _quota(at)


def _group(groups: str, controller: str) -> str | None:
    """The group of a controller, or for an empty one that of version 2, which has all; None where there is none."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _quota(folder: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):  # version 1, the root of version 2, or "max"
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            yield quota_us / int((folder / "cpu.cfs_period_us").read_text())


_CGROUP: Final = Path("/sys/fs/cgroup")


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines `Name:  123 kB` of a file in /proc, in bytes."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
    return fields
