"""The fine timer: never early, once for each order, the last order counts."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest

from maitred import host
from maitred.host import fine_timer


@pytest.fixture(params=["own", "portable"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setenv("MAITRED_PORTABLE", "1")


@pytest.mark.usefixtures("kind")
class TestFineTimer:
    @pytest.mark.parametrize("seconds", [-1e-3, 0.0, 1e-9, 1e-4, 1e-3, 5.001e-3])
    def test_it_is_never_early(self, run, seconds):
        async def work() -> None:
            fired = asyncio.Event()
            timer = fine_timer(asyncio.get_running_loop(), fired.set)
            begun = time.monotonic()
            timer.start(seconds)
            await asyncio.wait_for(fired.wait(), 10)
            assert time.monotonic() >= begun + seconds
            timer.close()
            timer.close()

        run(work())

    def test_the_last_order_counts_and_is_obeyed_once(self, run):
        async def work() -> None:
            fired: asyncio.Queue[float] = asyncio.Queue()
            timer = fine_timer(asyncio.get_running_loop(), lambda: fired.put_nowait(time.monotonic()))
            timer.start(3600.0)
            timer.start(0.001)
            await asyncio.wait_for(fired.get(), 10)
            timer.start(0.0)
            timer.stop()
            begun = time.monotonic()
            timer.start(0.003)
            assert await asyncio.wait_for(fired.get(), 10) >= begun + 0.003, "the second is the one that rings"
            assert fired.empty()
            timer.close()

        run(work())

    def test_after_close_it_is_silent(self, run):
        async def work() -> None:
            fired: list[None] = []
            timer = fine_timer(asyncio.get_running_loop(), lambda: fired.append(None))
            timer.start(0.001)
            timer.close()
            other = asyncio.Event()
            later = fine_timer(asyncio.get_running_loop(), other.set)
            later.start(0.003)
            await asyncio.wait_for(other.wait(), 10)
            later.close()
            assert not fired

        run(work())


def test_without_a_descriptor_a_timer_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "portable", lambda: False)

    async def play() -> None:
        low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
        rang = asyncio.Event()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, high))
            timer = fine_timer(asyncio.get_running_loop(), rang.set)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (low, high))
        timer.start(0.001)
        async with asyncio.timeout(10):
            await rang.wait()
        timer.close()

    asyncio.run(play())
