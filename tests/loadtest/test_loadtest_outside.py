"""What the tester learns of the system and of others: places, use of processors, descriptors, lost workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE

import pytest

from maitred.loadtest.ask import BadUrl, place_of
from maitred.loadtest.hands import WorkerHand, WorkerLost
from maitred.loadtest.plan import Plan, Step, Target
from maitred.loadtest.usage import NoProcess, family_cpu_seconds, own_cpu_seconds


@pytest.mark.parametrize(("url", "wanted"), [
    ("http://h/x", (False, "h", 80, "/x", "h")),
    ("h:8080/x?a=b#c", (False, "h", 8080, "/x?a=b", "h:8080")),
    ("https://h", (True, "h", 443, "/", "h")),
    ("https://h:80/", (True, "h", 80, "/", "h:80")),
    ("http://[::1]:8080/x", (False, "::1", 8080, "/x", "[::1]:8080")),
    ("http://h/a%20b", (False, "h", 80, "/a%20b", "h")),
])  # fmt: skip
def test_places(url, wanted):
    place = place_of(url)
    assert (*place, place.authority) == wanted


@pytest.mark.parametrize(
    "url", ["", "http://", "http://:80/", "grpc://h:1", "ws://h/", "http://h/a b", "http://h/é", "http://[::1/"]
)
def test_no_places(url):
    with pytest.raises(BadUrl):
        place_of(url)


@pytest.mark.skipif(sys.platform != "linux", reason="processes of others are read in /proc")
class TestUse:
    def test_a_family_is_counted_with_those_who_have_ended(self):
        """A child burns a quarter of a second and ends: its parent's family has used it."""
        before = family_cpu_seconds(os.getpid())
        burn = "import time\nwhile time.process_time() < 0.25: pass"
        subprocess.run([sys.executable, "-c", burn], check=True)
        assert family_cpu_seconds(os.getpid()) - before >= 0.2
        assert family_cpu_seconds(os.getpid()) >= own_cpu_seconds() - 0.1

    def test_children_that_run_are_counted(self):
        burn = "import sys, time\nwhile time.process_time() < 0.25: pass\nprint(1, flush=True)\nsys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", burn], stdin=PIPE, stdout=PIPE) as child:
            assert child.stdout is not None and child.stdin is not None
            child.stdout.readline()
            alone = family_cpu_seconds(child.pid)
            assert alone >= 0.2 and family_cpu_seconds(os.getpid()) >= alone
            child.stdin.close()

    def test_nobody(self):
        with pytest.raises(NoProcess, match="no process 999999999"):
            family_cpu_seconds(999_999_999)


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may_be():
    script = (
        "import resource as r; from maitred.loadtest.descriptors import allow\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 500))\n"
        "for wanted in (10, 200, 10_000): allow(wanted); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["100", "264", "500"]


@pytest.mark.parametrize("script", ["pass", "import sys; sys.stdin.buffer.read(20)"])
def test_a_worker_that_ends_early_is_told_of(run, script):
    async def work() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdin=PIPE, stdout=PIPE)
        hand = WorkerHand(process, 1, 4)
        with pytest.raises(WorkerLost, match="worker 2 of 4 ended early, with exit code 0"):
            await hand.give(Plan(Target("127.0.0.1", 1), [b"x" * 1000] * 1000, 1.0))
            await hand.prepare(Step(4, 1.0, 0.0))

    run(work())


def test_a_worker_ends_with_its_pipe():
    command = [sys.executable, "-m", "maitred.loadtest.worker"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
