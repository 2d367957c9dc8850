"""The supervisor on a loop and clock turned by hand: starts, losses, back-off, hangs, giving up, draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from maitred.clock import ManualClock
from maitred.pool.settings import SupervisorSettings
from maitred.pool.supervisor import Supervisor


class HandLoop:
    """The three calls of an event loop that a pool uses, driven by a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...], list[bool]]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> Any:
        cancelled: list[bool] = []
        self.timers.append((self.clock() + delay, call, args, cancelled))

        class Handle:
            def cancel(self) -> None:
                cancelled.append(True)

        return Handle()

    def advance(self, seconds: float) -> None:
        end = self.clock() + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda entry: entry[0])
            self.timers.remove(timer)
            self.clock.now = max(self.clock.now, timer[0])
            if not timer[3]:
                timer[1](*timer[2])
        self.clock.now = end


class Copy:
    def __init__(self, id: int) -> None:
        self.id = id
        self.calls: list[str] = []
        self.is_frozen = False
        self.refused = False

    def launch(self) -> None:
        self.calls.append("launch")

    def stop(self) -> None:
        self.calls.append("stop")

    def kill(self, reason: str = "") -> None:
        self.calls.append(f"kill {reason}")

    def frozen(self) -> bool:
        return self.is_frozen


class Charge:
    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.serving: list[int] = []
        self.running: dict[int, float] = {}
        self.told_reasons: list[str] = []

    def joined(self, replica: Any) -> None:
        self.serving.append(replica.id)

    def left(self, replica: Any, started: frozenset[int], reason: str) -> bool:
        if replica.id in self.serving:
            self.serving.remove(replica.id)
        return reason == "killed by an input"

    def leaving(self, replica: Any) -> None: ...

    def running_since(self, replica: Any) -> float | None:
        return self.running.get(replica.id)

    def changed(self, state: str, reason: str, description: Any) -> None:
        self.states.append((state, reason))

    def told(self, replica: Any, state: str, reason: str) -> None:
        if reason:
            self.told_reasons.append(reason)


class House:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.loop = HandLoop(self.clock)
        self.charge = Charge()
        self.copies: list[Copy] = []
        loop: Any = self.loop
        self.supervisor = Supervisor(SupervisorSettings(**settings), self.make, self.charge, loop, self.clock)

    def make(self, id: int) -> Any:
        self.copies.append(Copy(id))
        return self.copies[-1]

    def ready(self, index: int) -> None:
        copy: Any = self.copies[index]
        self.supervisor.ready(copy, None)  # type: ignore[arg-type]

    def lose(self, index: int, reason: str = "killed by SIGKILL") -> None:
        copy: Any = self.copies[index]
        self.supervisor.lost(copy, reason, frozenset())


def test_copies_load_a_few_at_a_time() -> None:
    house = House(replicas=4, max_loads_at_once=2)
    house.supervisor.start()
    assert len(house.copies) == 2
    house.ready(0)
    assert len(house.copies) == 3
    house.ready(1)
    house.ready(2)
    house.ready(3)
    assert house.charge.serving == [0, 1, 2, 3]
    assert house.supervisor.loading_count() == 0


def test_a_lost_copy_is_replaced_at_once_and_later_with_growing_pauses() -> None:
    house = House(replicas=1, restart_seconds=1.0, max_restart_seconds=4.0, max_fruitless_deaths=100)
    house.supervisor.start()
    house.ready(0)
    house.lose(0)
    house.loop.advance(0.0)
    assert len(house.copies) == 2, "a first loss costs no pause"
    for index, pause in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 4.0)]:
        house.ready(index)
        house.lose(index)
        house.loop.advance(pause - 0.01)
        assert len(house.copies) == index + 1
        house.loop.advance(0.02)
        assert len(house.copies) == index + 2


def test_a_copy_that_answered_is_forgiven_its_seats_past() -> None:
    house = House(replicas=1, restart_seconds=5.0, max_fruitless_deaths=2)
    house.supervisor.start()
    for index in range(6):
        house.ready(index)
        copy: Any = house.copies[index]
        house.supervisor.useful(copy)
        house.lose(index)
        house.loop.advance(0.0)
        assert len(house.copies) == index + 2, "each was useful, so none counts as a loop of crashes"


def test_a_loop_of_crashes_fails_the_model_and_says_why() -> None:
    house = House(replicas=1, max_fruitless_deaths=5, fruitless_seconds=60.0, restart_seconds=0.1)
    house.supervisor.start()
    for index in range(5):
        house.ready(index)
        house.lose(index, "exited with code 3")
        house.loop.advance(2.0)
    assert house.charge.states[-1] == ("failed", "exited with code 3")
    house.loop.advance(100.0)
    assert len(house.copies) == 5, "a failed model is not started again"


def test_slow_deaths_are_not_a_loop() -> None:
    house = House(replicas=1, max_fruitless_deaths=3, fruitless_seconds=10.0)
    house.supervisor.start()
    for index in range(8):
        house.ready(index)
        house.loop.advance(11.0)
        house.lose(index)
        house.loop.advance(10.0)
    assert all(state != "failed" for state, _ in house.charge.states)


def test_a_model_that_cannot_load_fails_after_three_attempts() -> None:
    house = House(replicas=2, max_load_attempts=3, max_loads_at_once=1)
    house.supervisor.start()
    for index in range(3):
        house.lose(index, "ValueError: no weights")
        house.loop.advance(30.0)
    assert house.charge.states[-1] == ("failed", "ValueError: no weights")
    assert len(house.copies) <= 4
    assert house.supervisor.loading_count() == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_a_hung_or_frozen_copy_is_killed(frozen: bool) -> None:
    house = House(replicas=1, max_execution_seconds=20.0, frozen_seconds=5.0)
    house.supervisor.start()
    house.ready(0)
    house.charge.running[0] = house.clock()
    house.copies[0].is_frozen = frozen
    house.loop.advance(4.0)
    assert house.copies[0].calls == ["launch"]
    house.loop.advance(4.0)
    assert (house.copies[0].calls != ["launch"]) == frozen
    house.loop.advance(14.0)
    assert house.copies[0].calls[1].startswith("kill hung")


def test_an_idle_copy_is_never_taken_for_hung() -> None:
    house = House(replicas=1, max_execution_seconds=1.0)
    house.supervisor.start()
    house.ready(0)
    house.copies[0].is_frozen = True
    house.loop.advance(100.0)
    assert house.copies[0].calls == ["launch"]


def test_stop_ends_every_copy_and_starts_no_other() -> None:
    async def story() -> None:
        house = House(replicas=2)
        house.supervisor.start()
        house.ready(0)
        house.supervisor.stop()
        assert [copy.calls[-1] for copy in house.copies] == ["stop", "stop"]
        assert not house.supervisor.emptied.is_set()
        house.lose(0, "stopped")
        house.lose(1, "stopped")
        assert house.supervisor.emptied.is_set()
        house.loop.advance(100.0)
        assert len(house.copies) == 2

    asyncio.run(story())


def test_deaths_that_an_input_is_to_blame_for_are_no_loop_of_crashes() -> None:
    house = House(replicas=1, max_fruitless_deaths=3)
    house.supervisor.start()
    for index in range(0, 20, 2):
        house.ready(index)
        house.lose(index, "killed by SIGKILL")
        house.loop.advance(1.0)
        house.ready(index + 1)
        house.lose(index + 1, "killed by an input")
        house.loop.advance(1.0)
    assert all(state != "failed" for state, _ in house.charge.states)
    assert len(house.copies) == 21


def test_a_loop_of_deaths_is_known_from_the_second_on() -> None:
    house = House(replicas=1, restart_seconds=0.0)
    supervisor = house.supervisor
    supervisor.start()
    house.ready(0)
    house.lose(0)
    assert not supervisor.looping(), "one death is bad luck"
    house.loop.advance(0.0)
    house.ready(1)
    house.lose(1)
    assert supervisor.looping()
    house.loop.advance(0.0)
    house.ready(2)
    assert supervisor.looping(), "it has yet to answer something"
    copy: Any = house.copies[2]
    supervisor.useful(copy)
    assert not supervisor.looping()
    house.lose(2)
    assert not supervisor.looping()


def test_loads_that_fail_are_deaths_too() -> None:
    house = House(replicas=1, max_load_attempts=10)
    house.supervisor.start()
    house.lose(0, "exited with code 3")
    assert not house.supervisor.looping()
    house.loop.advance(1.0)
    house.lose(1, "exited with code 3")
    assert house.supervisor.looping()
    house.loop.advance(1.0)
    house.ready(2)
    assert not house.supervisor.looping()
    house.lose(2)
    house.loop.advance(1.0)
    house.lose(3, "exited with code 3")
    assert house.supervisor.looping(), "a death and a load that failed"


def test_there_is_hope_while_any_seat_has_lost_only_one() -> None:
    house = House(replicas=2, max_load_attempts=10)
    house.supervisor.start()
    house.ready(0)
    house.ready(1)
    house.lose(0)
    house.lose(1)
    house.loop.advance(0.0)
    house.lose(2)
    assert not house.supervisor.looping()
    house.lose(3)
    assert house.supervisor.looping()


def test_old_deaths_are_no_loop() -> None:
    house = House(replicas=1, fruitless_seconds=10.0)
    house.supervisor.start()
    for index in range(3):
        house.ready(index)
        house.loop.advance(11.0)
        house.lose(index)
        house.loop.advance(0.5)
        assert not house.supervisor.looping()


def test_a_load_that_was_refused_by_decision_is_not_repeated() -> None:
    house = House(replicas=2)
    house.supervisor.start()
    house.copies[0].refused = True
    house.lose(0, "a file is not as it was packed")
    assert house.charge.states == [("failed", "a file is not as it was packed")]
    assert house.copies[1].calls[-1].startswith("kill"), "what loads the same is given up"
    house.lose(1, "was killed: the model has failed")
    house.loop.advance(100.0)
    assert len(house.copies) == 2 and len(house.charge.states) == 1
    assert house.supervisor.loading_count() == 0


def test_a_copy_that_serves_is_not_given_up_for_one_that_was_refused() -> None:
    house = House(replicas=2)
    house.supervisor.start()
    house.ready(0)
    house.copies[1].refused = True
    house.lose(1, "a file is not as it was packed")
    assert house.charge.states == [("ready", "")] and house.copies[0].calls == ["launch"]
    house.loop.advance(10.0)
    assert len(house.copies) == 3, "whoever puts the file right need not do more"


@pytest.mark.parametrize("ready", [False, True])
def test_a_failed_model_fails_once_and_does_not_come_back(ready: bool) -> None:
    house = House(replicas=2, max_load_attempts=3, restart_seconds=0.0)
    house.supervisor.start()
    house.lose(0, "ValueError: no weights")
    house.loop.advance(0.0)
    house.lose(1, "ValueError: no weights")
    house.lose(2, "ValueError: no weights")
    house.loop.advance(0.0)
    last = len(house.copies) - 1
    if ready:
        house.ready(last)
    for index in range(3, last + 1):
        house.lose(index, "was killed")
    house.loop.advance(100.0)
    assert [state for state, _ in house.charge.states].count("failed") == 1
    assert house.charge.states[-1][0] == "failed" and house.charge.serving == []


def test_the_reason_of_the_end_is_told_once() -> None:
    house = House(replicas=1, max_load_attempts=2)
    house.supervisor.start()
    for index in range(2):
        house.lose(index, f"reason {index}")
        house.loop.advance(30.0)
    assert house.charge.told_reasons == ["reason 0"]
    assert house.charge.states[-1] == ("failed", "reason 1")


def test_who_was_stopped_while_it_loaded_is_said_to_have_been() -> None:
    house = House(replicas=1)
    house.supervisor.start()
    house.copies[0].is_frozen = True
    house.loop.advance(30.0)
    assert house.copies[0].calls == ["launch"], "a start has a limit of its own"
    house.lose(0, "was killed: it was not ready after 30 s")
    slow = "was killed: it was not ready after 30 s"
    assert house.charge.states == [
        ("loading", f"{slow}; its process had been stopped from outside, for the last 29 s at least")
    ]
    house.loop.advance(5.0)
    house.copies[1].is_frozen = True
    house.loop.advance(5.0)
    house.copies[1].is_frozen = False
    house.loop.advance(5.0)
    house.lose(1, "exited with code 3")
    assert house.charge.states[-1] == ("loading", "exited with code 3"), "it went on"
