"""The fine timer: never early, once for each order, the last order counts."""

from __future__ import annotations

import asyncio
import time

import pytest

from maitred.host import fine_timer

MS = 1_000_000


@pytest.fixture(params=["own", "portable"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "portable":
        monkeypatch.setenv("MAITRED_PORTABLE", "1")


@pytest.mark.usefixtures("kind")
class TestFineTimer:
    @pytest.mark.parametrize("ahead", [-MS, 0, 1, MS // 10, MS, 5 * MS + 1])
    def test_it_is_never_early(self, run, ahead):
        async def work() -> None:
            fired = asyncio.Event()
            timer = fine_timer(asyncio.get_running_loop(), fired.set)
            when = time.monotonic_ns() + ahead
            timer.at(when)
            await asyncio.wait_for(fired.wait(), 10)
            assert time.monotonic_ns() >= when
            timer.close()
            timer.close()

        run(work())

    def test_the_last_order_counts_and_is_obeyed_once(self, run):
        async def work() -> None:
            fired: list[int] = []
            timer = fine_timer(asyncio.get_running_loop(), lambda: fired.append(time.monotonic_ns()))
            now = time.monotonic_ns()
            timer.at(now + 3600_000 * MS)
            timer.at(now + MS)
            while not fired:
                await asyncio.sleep(0.001)
            timer.at(now + 2 * MS)  # again, from the beginning
            while len(fired) < 2:
                await asyncio.sleep(0.001)
            last = time.monotonic_ns() + 5 * MS
            timer.at(last)
            while len(fired) < 3:
                await asyncio.sleep(0.001)
            assert fired[2] >= last and len(fired) == 3
            timer.close()

        run(work())

    def test_after_close_it_is_silent(self, run):
        async def work() -> None:
            fired: list[None] = []
            timer = fine_timer(asyncio.get_running_loop(), lambda: fired.append(None))
            timer.at(time.monotonic_ns() + MS)
            timer.close()
            other = asyncio.Event()
            later = fine_timer(asyncio.get_running_loop(), other.set)
            later.at(time.monotonic_ns() + 3 * MS)
            await asyncio.wait_for(other.wait(), 10)
            later.close()
            assert not fired

        run(work())
