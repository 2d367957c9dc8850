"""Sweeping over a port's connections: few in one go, each in its turn, none forgotten, whoever comes and goes."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from http_memory import Line, Recorder

from maitred.clock import ManualClock
from maitred.http.limits import SWEEP_SECONDS, Limits, slice_size
from maitred.http.port import Port


class Timers:
    """A loop that has timers only, and the clock by which they go off."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waiting: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(callback)
        heapq.heappush(self.waiting, (self.clock() + seconds, next(self._numbers), handle))
        return handle

    def go_off(self) -> bool:
        """Have the next timer go off at its time; False if there is none."""
        while self.waiting:
            due, _, handle = heapq.heappop(self.waiting)
            if not handle.cancelled:
                self.clock.advance(max(0.0, due - self.clock()))
                handle.callback()
                return True
        return False


class Handle:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Looked:
    """A connection that notes when it is looked at."""

    def __init__(self, log: list[Any], broken: bool = False) -> None:
        self.log = log
        self.broken = broken

    def sweep(self, now: float) -> None:
        self.log.append((self, now))
        if self.broken:
            raise RuntimeError("broken")


class Swept:
    """A port with its timers, and a log of what was looked at."""

    def __init__(self, count: int = 0, limits: Limits | None = None) -> None:
        self.clock = ManualClock(0.0)
        self.timers = Timers(self.clock)
        self.port = Port(Recorder(), limits or Limits(), self.clock, self.timers)  # type: ignore[arg-type]
        self.log: list[tuple[Looked, float]] = []
        self.come(count)

    def come(self, count: int, broken: bool = False) -> list[Looked]:
        come = [Looked(self.log, broken) for _ in range(count)]
        for connection in come:
            self.port.connections.add(connection)  # type: ignore[arg-type]
        return come

    def leave(self, connection: Looked) -> None:
        self.port.left(connection)  # type: ignore[arg-type]

    def finish(self) -> int:
        """Have the round end; in how many more goes."""
        goes = 0
        while self.timers.go_off():
            goes += 1
        return goes


def test_no_go_looks_at_more_than_a_slice_of_thousands() -> None:
    swept = Swept(6_000)
    swept.port.sweep()
    most = slice_size(swept.port.limits)
    assert most == 50
    assert len(swept.log) == most
    while swept.timers.waiting:
        before = len(swept.log)
        assert swept.timers.go_off()
        assert len(swept.log) - before == most
    assert [connection for connection, _ in swept.log] == list(swept.port.connections)
    assert swept.clock() < SWEEP_SECONDS


def test_as_many_as_may_come_are_looked_at_within_the_time_of_a_round() -> None:
    for most in (1, 100, 10_000, 12_345, 50_000):
        swept = Swept(most, Limits(connections=most))
        swept.port.sweep()
        swept.finish()
        assert len(swept.log) == most
        assert swept.clock() <= SWEEP_SECONDS


def test_the_end_of_thousands_comes_a_slice_at_a_time() -> None:
    swept = Swept()
    lines = [Line(port=swept.port) for _ in range(1_000)]
    for line in lines:
        line.connection.data_received(b"G")

    def closed() -> int:
        return sum(line.transport.closed for line in lines)

    most, last = slice_size(swept.port.limits), 0
    for _ in range(31):
        swept.port.sweep()
        while True:
            assert closed() - last <= most
            last = closed()
            if not swept.timers.go_off():
                break
        swept.clock.advance(SWEEP_SECONDS - swept.clock() % SWEEP_SECONDS)
    assert last == 1_000


def test_a_few_are_looked_at_at_once_and_without_timers() -> None:
    swept = Swept(50)
    swept.port.sweep()
    assert len(swept.log) == 50
    assert not swept.timers.waiting
    Swept(0).port.sweep()


def test_one_that_has_gone_is_left_alone() -> None:
    swept = Swept(200)
    swept.port.sweep()
    gone = list(swept.port.connections)[60:170]
    for connection in gone:
        swept.leave(connection)  # type: ignore[arg-type]
    swept.finish()
    assert len(swept.log) == 90
    assert not {connection for connection, _ in swept.log} & set(gone)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("seed", range(5))
def test_none_waits_longer_than_a_round_whoever_comes_and_goes(seed: int) -> None:
    rng = random.Random(seed)
    swept = Swept()
    there = swept.come(1_000)
    for second in range(6):
        swept.port.sweep()
        while swept.timers.go_off():
            if rng.random() < 0.1:
                rng.shuffle(there)
                for connection in [there.pop() for _ in range(min(len(there), rng.choice((0, 5, 300))))]:
                    swept.leave(connection)
                if len(there) < 4_000:
                    there += swept.come(rng.choice((0, 5, 500)))
        assert swept.clock() <= (second + 1) * SWEEP_SECONDS
        swept.clock.advance((second + 1) * SWEEP_SECONDS - swept.clock())
    seen: dict[Looked, float] = {}
    for connection, now in swept.log:
        assert now - seen.get(connection, now) <= SWEEP_SECONDS + 1e-6
        seen[connection] = now


def test_a_round_that_is_late_ends_before_the_next_which_is_not_left_out() -> None:
    swept = Swept(120)
    swept.port.sweep()
    swept.port.sweep()  # the loop was held up for a second
    assert len(swept.log) == 50
    swept.finish()
    everyone = list(swept.port.connections)
    assert [connection for connection, _ in swept.log] == everyone * 2  # type: ignore[comparison-overlap]


def test_rounds_do_not_pile_up() -> None:
    swept = Swept(120)
    for _ in range(50):
        swept.port.sweep()
    swept.finish()
    assert len(swept.log) <= 3 * 120


def test_one_that_fails_does_not_end_the_sweeping() -> None:
    swept = Swept(49)
    swept.come(1, broken=True)
    swept.come(100)
    with pytest.raises(RuntimeError, match="broken"):
        swept.port.sweep()
    swept.finish()
    assert len(swept.log) == 150


def test_a_port_that_is_closed_sweeps_no_more() -> None:
    swept = Swept(200)
    swept.port.sweep()
    swept.port.close()
    assert swept.finish() == 0
    assert len(swept.log) == 50
