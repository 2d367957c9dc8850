"""The pool between callers and replicas that the test answers by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops import run
from maitred.clock import ManualClock
from maitred.endpoint import Ticket
from maitred.errors import (
    DeadlinePassed,
    Draining,
    MaitredError,
    ModelFault,
    NoReplica,
    Quarantined,
    ReplicaLost,
    TooLarge,
)
from maitred.events import BatchEnded, Event, RequestEnded, nobody
from maitred.messages import FOREVER, Outputs, Request, Tensor
from maitred.model.description import Description
from maitred.model.predictor import Traits
from maitred.model.signature import Signature
from maitred.model.source import Source
from maitred.pool import build
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica.replica import ReplicaSettings
from maitred.scheduling.dispatcher import DispatchSettings

ECHO = Description(name="echo", signature=Signature({"x": "int64[n]"}, {"y": "int64[n]"}))


class Copy:
    """A replica that does nothing by itself."""

    def __init__(self, id: int, pool: Pool, room: int = 1) -> None:
        self.id = id
        self.room = room
        self.pid = None
        self.refused = False
        self.pool = pool
        self.batches: dict[int, list[Request]] = {}
        self.cancelled: list[int] = []
        self.stopped = False

    def launch(self) -> None: ...

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        assert rows == sum(request.rows for request in requests)
        self.batches[batch_id] = requests

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)

    def stop(self) -> None:
        self.stopped = True
        asyncio.get_running_loop().call_soon(self.lose, "stopped")

    def kill(self, reason: str = "") -> None: ...

    def frozen(self) -> bool:
        return False

    # what the test does with it

    def come(self) -> None:
        this: Any = self
        self.pool.ready(this, ECHO)

    def answer(self, batch_id: int | None = None) -> None:
        """Echo a batch from memory that is overwritten as soon as the pool has settled it."""
        this: Any = self
        batch_id = min(self.batches) if batch_id is None else batch_id
        requests = self.batches.pop(batch_id)
        block = np.concatenate([np.frombuffer(request.inputs["x"].data, np.int64) for request in requests])
        self.pool.answered(this, batch_id, Outputs({"y": Tensor("int64", block.shape, block)}, len(block), 0.001))
        block[:] = -1

    def fail(self, cause: Any = "raised") -> None:
        this: Any = self
        batch_id = min(self.batches)
        del self.batches[batch_id]
        self.pool.failed(this, batch_id, cause, ModelFault("ValueError: bad row"))

    def lose(self, reason: str = "killed by SIGKILL", started: bool = True) -> None:
        this: Any = self
        began = frozenset(self.batches) if started else frozenset()
        self.batches.clear()
        self.pool.lost(this, reason, began)


class House:
    def __init__(self, replicas: int = 1, **dispatch: Any) -> None:
        self.clock = ManualClock()
        self.copies: list[Copy] = []
        self.events: list[Event] = []
        self.states: list[str] = []
        self.tickets: list[Ticket] = []
        self.ends: Counter[int] = Counter()
        self.answers: dict[int, list[int]] = {}
        supervise = SupervisorSettings(replicas=replicas, max_fruitless_deaths=1000, max_restart_seconds=0.0)
        self.pool = Pool(
            "echo", "1", DispatchSettings(**dispatch), supervise, self.make, self, asyncio.get_running_loop(),
            self.clock, self.events.append,
        )  # fmt: skip
        self.pool.launch()
        for copy in list(self.copies):
            copy.come()

    def make(self, id: int, pool: Pool) -> Any:
        self.copies.append(Copy(id, pool))
        return self.copies[-1]

    def changed(self, state: str, reason: str, description: Description | None) -> None:
        self.states.append(state)

    def ask(self, *values: int, deadline: float = FOREVER, group: Any = "all") -> Ticket:
        data = np.array(values, np.int64).tobytes()
        request = Request({"x": Tensor("int64", (len(values),), data)}, len(values), group, deadline)
        ticket = self.pool.submit(request)
        self.tickets.append(ticket)
        ticket.watch(self)
        return ticket

    def piece(self, ticket: Ticket, chunk: Any) -> None:
        raise AssertionError("nothing streams here")

    def ended(self, ticket: Ticket) -> None:
        self.ends[id(ticket)] += 1
        if ticket.result is not None:
            tensor = ticket.result.tensors()["y"]
            self.answers[id(ticket)] = np.asarray(tensor.data).tolist()

    def answer_of(self, ticket: Ticket) -> list[int]:
        assert ticket.ended and ticket.error is None, ticket.error
        return self.answers[id(ticket)]

    def counted(self) -> Counter[str]:
        """Requests by outcome, as the metrics would count them."""
        counts: Counter[str] = Counter()
        for event in self.events:
            if isinstance(event, BatchEnded):
                counts["ok"] += event.ok
            elif isinstance(event, RequestEnded):
                counts[event.code] += 1
        return counts


def story(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(play())


async def turn() -> None:
    """Let everything that is due on the loop happen."""
    for _ in range(4):
        await asyncio.sleep(0)


def test_each_ticket_gets_its_own_rows() -> None:
    async def play() -> None:
        house = House()
        tickets = [house.ask(*range(start, start + start % 3 + 1)) for start in range(1, 20)]
        await turn()
        house.copies[0].answer()
        for start, ticket in zip(range(1, 20), tickets, strict=True):
            assert house.answer_of(ticket) == list(range(start, start + start % 3 + 1))

    story(play)


def test_one_event_a_batch_counts_every_member() -> None:
    async def play() -> None:
        house = House()
        for value in range(10):
            house.ask(value)
        await turn()
        house.copies[0].answer()
        batches = [event for event in house.events if isinstance(event, BatchEnded)]
        assert [(event.rows, event.requests, event.ok) for event in batches] == [(10, 10, 10)]
        assert len(batches[0].received_at) == len(batches[0].submitted_at) == 10

    story(play)


def test_a_cancelled_member_hurts_nobody_and_its_replica_hears_when_all_have_left() -> None:
    async def play() -> None:
        house = House()
        first, second = house.ask(1), house.ask(2)
        await turn()
        first.cancel()
        copy = house.copies[0]
        assert copy.cancelled == []
        second.cancel()
        assert len(copy.cancelled) == 1
        third = house.ask(3)
        await turn()
        assert len(copy.batches) == 1, "the room comes back with the work, not with the tickets"
        copy.answer()
        await turn()
        copy.answer()
        assert house.answer_of(third) == [3]
        assert house.counted() == Counter({"cancelled": 2, "ok": 1})

    story(play)


def test_a_poisoned_row_fails_alone() -> None:
    async def play() -> None:
        house = House()
        tickets = [house.ask(value) for value in range(32)]
        calls = 0
        await turn()
        while house.copies[0].batches:
            calls += 1
            requests = next(iter(house.copies[0].batches.values()))
            if any(13 in np.frombuffer(request.inputs["x"].data, np.int64) for request in requests):
                house.copies[0].fail()
            else:
                house.copies[0].answer()
            await turn()
        assert isinstance(tickets[13].error, ModelFault)
        assert [house.answer_of(ticket) for ticket in tickets if ticket is not tickets[13]] == [
            [value] for value in range(32) if value != 13
        ]
        assert calls <= 13

    story(play)


def test_a_lost_replicas_members_are_tried_alone_and_the_culprit_is_refused_from_then_on() -> None:
    async def play() -> None:
        house = House()
        tickets = [house.ask(value) for value in (1, 666, 3)]
        lost = 0
        for _ in range(40):
            await asyncio.sleep(0.001)
            for copy in house.copies:
                if not copy.stopped and copy.id not in house.pool._replicas and copy is house.copies[-1]:
                    copy.come()
            await turn()
            copy = house.copies[-1]
            if not copy.batches:
                continue
            requests = next(iter(copy.batches.values()))
            if any(666 in np.frombuffer(request.inputs["x"].data, np.int64) for request in requests):
                lost += 1
                copy.lose()
            else:
                copy.answer()
            if all(ticket.ended for ticket in tickets):
                break
        assert lost == 2
        assert house.answer_of(tickets[0]) == [1] and house.answer_of(tickets[2]) == [3]
        assert isinstance(tickets[1].error, MaitredError)
        again = house.ask(666)
        assert isinstance(again.error, Quarantined)

    story(play)


def test_an_oversized_request_is_cut_and_joined_in_order() -> None:
    async def play() -> None:
        house = House(replicas=2, max_batch_rows=8)
        values = list(range(100, 127))
        ticket, small = house.ask(*values), house.ask(7)
        rows = []
        for _ in range(10):
            await turn()
            for copy in reversed(house.copies):
                for batch_id in list(copy.batches):
                    rows.append(sum(request.rows for request in copy.batches[batch_id]))
                    copy.answer(batch_id)
        assert house.answer_of(ticket) == values and house.answer_of(small) == [7]
        assert max(rows) <= 8 and sum(rows) == 28
        assert house.counted() == Counter({"ok": 2})

    story(play)


def test_an_oversized_request_fails_once_and_leaves_nothing_behind() -> None:
    async def play() -> None:
        house = House(max_batch_rows=4)
        ticket = house.ask(*range(12))
        await turn()
        house.copies[0].fail()
        await turn()
        assert isinstance(ticket.error, ModelFault)
        assert house.counted() == Counter({"model_fault": 1})
        assert house.pool.snapshot().waiting_rows == [0, 0, 0]

    story(play)


@pytest.mark.parametrize("text", [False, True])
def test_parts_whose_answers_do_not_go_together_are_the_models_fault(text: bool) -> None:
    async def play() -> None:
        house = House(max_batch_rows=4)
        ticket = house.ask(*range(8))
        for width in (2, 3):
            await turn()
            copy: Any = house.copies[0]
            [batch_id] = copy.batches
            requests = copy.batches.pop(batch_id)
            rows = requests[0].rows
            data: Any = ["a"] * (rows * width) if text else np.zeros((rows, width), np.int64)
            tensor = Tensor("str" if text else "int64", (rows, width), data)
            house.pool.answered(copy, batch_id, Outputs({"y": tensor}, rows, 0.001))
        assert isinstance(ticket.error, ModelFault) and "output 'y' of its 2 parts" in ticket.error.message
        assert "[2] and [3]" in ticket.error.message
        assert house.counted() == Counter({"model_fault": 1})

    story(play)


def test_a_watcher_that_raises_keeps_no_answer_from_the_others() -> None:
    class Broken:
        def ended(self, ticket: Ticket) -> None:
            raise RuntimeError("a defect")

        def piece(self, ticket: Ticket, chunk: Any) -> None:
            raise AssertionError("nothing streams here")

    async def play() -> None:
        house = House()
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        first = house.ask(1)
        broken = house.pool.submit(first.request)
        broken.watch(Broken())
        last = house.ask(3)
        await turn()
        house.copies[0].answer()
        assert house.answer_of(first) == [1] and house.answer_of(last) == [3]
        assert [str(error) for error in told] == ["a defect"]
        assert house.counted() == Counter({"ok": 3}), "and the batch is counted"

    story(play)


def test_cancelling_an_oversized_request_takes_its_parts_out_of_the_queue() -> None:
    async def play() -> None:
        house = House(max_batch_rows=4)
        ticket = house.ask(*range(12))
        await turn()
        assert sum(house.pool.snapshot().waiting_rows) == 8
        ticket.cancel()
        assert sum(house.pool.snapshot().waiting_rows) == 0
        assert len(house.copies[0].cancelled) == 1
        house.copies[0].answer()
        assert house.counted() == Counter({"cancelled": 1})

    story(play)


def test_an_answer_that_nobody_watches_yet_outlives_its_memory() -> None:
    async def play() -> None:
        house = House()
        data = np.array([5], np.int64).tobytes()
        ticket = house.pool.submit(Request({"x": Tensor("int64", (1,), data)}, 1, "all", FOREVER))
        await turn()
        house.copies[0].answer()
        result = await ticket
        assert result.tensors()["y"].data.tolist() == [5]

    story(play)


def test_a_deadline_ends_waiting_and_running_tickets() -> None:
    async def play() -> None:
        house = House(max_batch_rows=1)
        soon = house.clock() + 0.01
        running, waiting = house.ask(1, deadline=soon), house.ask(2, deadline=soon)
        await turn()
        house.clock.advance(0.02)
        for _ in range(100):
            if running.ended and waiting.ended:
                break
            await asyncio.sleep(0.001)
        assert isinstance(running.error, DeadlinePassed) and isinstance(waiting.error, DeadlinePassed)
        assert len(house.copies[0].cancelled) == 1, "the model is told that nobody waits"
        house.copies[0].answer()
        await turn()
        assert house.copies[0].batches == {}, "what has expired is never run"

    story(play)


def test_draining_answers_what_is_here_and_refuses_what_is_new() -> None:
    async def play() -> None:
        house = House()
        ticket = house.ask(1)
        await turn()
        drained = asyncio.ensure_future(house.pool.drain(5.0))
        await turn()
        assert isinstance(house.ask(2).error, Draining)
        house.copies[0].answer()
        await drained
        assert house.answer_of(ticket) == [1]
        assert house.copies[0].stopped

    story(play)


@pytest.mark.parametrize("turns", range(6))
def test_a_drain_that_is_cut_short_as_the_last_answer_comes_is_cut_short(turns: int) -> None:
    async def play() -> None:
        house = House()
        house.ask(1)
        await turn()
        house.copies[0].stop = lambda: None  # type: ignore[method-assign]  # it takes its time
        draining = asyncio.ensure_future(house.pool.drain(60.0))
        await turn()
        house.copies[0].answer()
        while not house.pool._quiet.is_set():  # type: ignore[union-attr]
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        draining.cancel()
        await asyncio.wait({draining}, timeout=5)
        assert draining.cancelled()
        house.copies[0].lose("stopped")

    story(play)


def test_several_killing_inputs_do_not_fail_the_model() -> None:
    async def play() -> None:
        house = Chaos()
        house.pool._supervisor._settings = SupervisorSettings(max_fruitless_deaths=5, max_restart_seconds=0.0)
        for culprit in range(6):
            ticket = house.ask(culprit)
            for _ in range(100):
                if ticket.ended:
                    break
                await asyncio.sleep(0.0005)
                house.welcome()
                await turn()
                for copy in house.serving():
                    if copy.batches:
                        copy.lose()
            assert isinstance(ticket.error, Quarantined)
        assert house.states[-1] != "failed"

    story(play)


def test_a_request_that_could_never_wait_is_refused_before_it_is_cut() -> None:
    async def play() -> None:
        house = House()
        huge = Request({"x": Tensor("int64", (1 << 40, 0), b"")}, 1 << 40, "all", FOREVER)
        ticket = house.pool.submit(huge)
        assert isinstance(ticket.error, TooLarge)

    story(play)


def test_a_model_of_which_nothing_was_known_is_served_as_it_says() -> None:
    async def play() -> None:
        house = House(max_batch_rows=8)
        traits = Traits(side_effects=True, max_batch_rows=2)
        house.pool.description = None
        house.pool.know(Description(name="echo", signature=ECHO.signature, traits=traits))
        house.pool.joined(house.copies[0])  # type: ignore[arg-type]
        tickets = [house.ask(value) for value in range(4)]
        await turn()
        assert [len(requests) for requests in house.copies[0].batches.values()] == [2]
        house.copies[0].fail()
        await turn()
        assert [isinstance(ticket.error, ModelFault) for ticket in tickets] == [True, True, False, False], "never twice"

    story(play)


def test_a_failed_model_refuses_what_waits() -> None:
    async def play() -> None:
        house = House()
        house.copies[0].lose("exited with code 1")
        waiting = house.ask(1)
        for _ in range(50):
            await asyncio.sleep(0.001)
            copy = house.copies[-1]
            if house.states[-1] == "failed":
                break
            if copy.id not in house.pool._replicas:
                copy.lose("ValueError: no weights")
        assert house.states[-1] == "failed"
        assert isinstance(waiting.error, NoReplica)

    story(play)


async def until(true: Callable[[], bool]) -> None:
    """Wait for it, a second at most."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true")


def test_without_a_ready_copy_requests_wait_a_moment_and_are_refused() -> None:
    """A4: the pool is woken for them although no deadline is near."""

    async def play() -> None:
        house = House(max_batch_rows=4, outage_seconds=0.01)
        ran = house.ask(1)
        await turn()
        house.copies[0].lose()
        waiting, oversized = house.ask(2), house.ask(*range(12))
        await turn()
        assert not waiting.ended and not oversized.ended
        house.clock.advance(0.02)
        await until(lambda: waiting.ended)
        assert isinstance(ran.error, ReplicaLost)
        assert isinstance(waiting.error, NoReplica) and isinstance(oversized.error, NoReplica)
        assert isinstance(house.ask(3).error, NoReplica), "at once"
        assert house.pool.snapshot().waiting_rows == [0, 0, 0]
        await until(lambda: len(house.copies) == 2)
        house.copies[1].come()
        served = house.ask(4)
        await turn()
        house.copies[1].answer()
        assert house.answer_of(served) == [4]
        assert house.counted() == Counter({"no_replica": 3, "replica_lost": 1, "ok": 1})
        assert set(house.ends.values()) == {1}

    story(play)


def test_a_copy_that_is_back_soon_serves_those_who_waited() -> None:
    async def play() -> None:
        house = House()
        house.copies[0].lose()
        waiting = house.ask(1)
        await until(lambda: len(house.copies) == 2)
        house.clock.advance(0.7)
        house.copies[1].come()
        await turn()
        house.copies[1].answer()
        assert house.answer_of(waiting) == [1]

    story(play)


def test_while_copies_die_one_after_the_other_requests_are_refused_at_once() -> None:
    async def play() -> None:
        house = House()
        house.copies[0].lose()
        waiting = house.ask(1)
        await until(lambda: len(house.copies) == 2)
        assert not waiting.ended
        house.copies[1].lose("exited with code 3")
        assert isinstance(waiting.error, NoReplica) and isinstance(house.ask(2).error, NoReplica)
        assert house.states[-1] == "loading"

    story(play)


def test_what_the_copies_share_is_given_back_after_the_last_of_them() -> None:
    async def play() -> None:
        house = House()
        order: list[str] = []
        house.pool._close = lambda: order.append(f"closed, {house.copies[0].stopped}")
        await house.pool.drain(0.0)
        assert order == ["closed, True"] and house.pool._replicas == {}

    story(play)


@pytest.mark.parametrize(("kind", "closed"), [("process", 1), ("thread", 0), ("inline", 0)])
def test_a_built_pool_closes_its_shared_memory(kind: Any, closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    closings: list[object] = []
    monkeypatch.setattr(build.Arena, "close", lambda arena: closings.append(arena))

    async def play() -> None:
        pool = build.build_pool(
            Source("model.py", "echo"), "1", kind, DispatchSettings(), SupervisorSettings(), ReplicaSettings(),
            NobodyWatches(), asyncio.get_running_loop(), nobody,
        )  # fmt: skip
        await pool.drain(0.0)
        assert len(closings) == closed

    story(play)


class NobodyWatches:
    def changed(self, state: str, reason: str, description: Description | None) -> None: ...


@pytest.mark.parametrize("replicas", [1, 3])
def test_cutting_keeps_shared_inputs_whole(replicas: int) -> None:
    from maitred.pool.cut import cut

    shared = Tensor("float64", (2,), np.array([1.0, 2.0]).tobytes())
    rows = Tensor("int64", (5, 2), np.arange(10, dtype=np.int64).tobytes())
    parts = cut(Request({"x": rows, "w": shared}, 5, "all", FOREVER, size_bytes=100), 2, {"w"})
    assert [part.rows for part in parts] == [2, 2, 1]
    assert all(part.inputs["w"] is shared for part in parts)
    assert b"".join(bytes(part.inputs["x"].data) for part in parts) == rows.data


Move = st.tuples(st.sampled_from(["ask", "ask", "ask", "cancel", "answer", "answer", "fail", "lose", "turn"]),
                 st.integers(0, 40))  # fmt: skip


class Chaos(House):
    """Does one thing after another to a pool, then lets everything come to its end."""

    def serving(self) -> list[Copy]:
        return [copy for copy in self.copies if copy.id in self.pool._replicas]

    def welcome(self) -> None:
        """Copies that have been launched become ready."""
        for copy in list(self.copies):
            if copy.id in self.pool._supervisor._by_id and copy.id not in self.pool._replicas:
                copy.come()

    async def do(self, move: str, number: int) -> None:
        serving = self.serving()
        copy = serving[number % len(serving)] if serving else None
        if move == "ask":
            self.ask(*range(number % 11 + 1))
        elif move == "cancel" and self.tickets:
            self.tickets[number % len(self.tickets)].cancel()
        elif move == "turn" or copy is None:
            await asyncio.sleep(0.0005)
            self.welcome()
        elif move == "lose":
            copy.lose(started=bool(number % 2))
        elif copy.batches and move == "answer":
            copy.answer()
        elif copy.batches:
            copy.fail(("raised", "wrong_count")[number % 2])
        await turn()

    async def finish(self) -> None:
        for _ in range(200):
            if all(ticket.ended for ticket in self.tickets):
                return
            await asyncio.sleep(0.0005)
            self.welcome()
            for copy in self.serving():
                while copy.batches:
                    copy.answer()


@given(st.lists(Move, max_size=60), st.integers(1, 3))
def test_every_ticket_ends_exactly_once_whatever_happens(moves: list[tuple[str, int]], replicas: int) -> None:
    async def play() -> None:
        house = Chaos(replicas=replicas, max_batch_rows=4)
        for move, number in moves:
            await house.do(move, number)
        await house.finish()
        assert all(ticket.ended for ticket in house.tickets)
        assert set(house.ends.values()) <= {1} and len(house.ends) == len(house.tickets)
        assert sum(house.counted().values()) == len(house.tickets)
        for ticket in house.tickets:
            if ticket.error is None:
                assert house.answers[id(ticket)] == list(range(ticket.request.rows))

    story(play)


def test_a_freed_replica_waits_while_each_turn_of_the_loop_brings_more() -> None:
    async def play() -> None:
        house = House()
        copy = house.copies[0]

        async def answered(rows: int) -> None:
            for _ in range(rows):
                house.ask(0)
            await turn()
            copy.answer()

        await answered(2)
        await asyncio.sleep(0)  # callers may take a turn to come back
        for came in range(1, 3):
            house.ask(came)
            await asyncio.sleep(0)
            assert not copy.batches
        await turn()
        assert [len(requests) for requests in copy.batches.values()] == [2]
        copy.answer()

        for _ in range(8):  # it waits for a few turns only
            house.ask(1)
            await asyncio.sleep(0)
        assert [len(requests) for requests in copy.batches.values()] == [5]
        copy.answer()
        await turn()
        copy.answer()

        house.clock.advance(1.0)  # and not for what comes much later
        house.ask(1)
        await asyncio.sleep(0)
        assert len(copy.batches) == 1
        copy.answer()

        house.ask(1)  # nor for the company of a lone caller
        await asyncio.sleep(0)
        assert len(copy.batches) == 1
        copy.answer()

        await answered(2)
        for _ in range(64):  # nor where there is enough for a batch
            house.ask(1)
        await asyncio.sleep(0)
        assert len(copy.batches) == 1

    story(play)


def test_a_freed_replica_does_not_wait_where_another_is_free() -> None:
    async def play() -> None:
        house = House(replicas=2)
        house.ask(1), house.ask(2)
        await turn()
        busy = next(copy for copy in house.copies if copy.batches)
        busy.answer()
        house.ask(3)
        await asyncio.sleep(0)
        assert sum(len(copy.batches) for copy in house.copies) == 1

    story(play)


def test_an_alarm_that_goes_off_early_is_set_anew() -> None:
    """Timers count in milliseconds: one that is early by some must not be the last."""

    async def play() -> None:
        house = House()
        house.ask(0)  # keeps the replica busy
        await turn()
        late = house.ask(1, deadline=house.clock() + 1000.0)
        await turn()
        house.clock.advance(999.99)
        first = house.pool._alarm
        assert first is not None
        house.pool._rang()
        second = house.pool._alarm
        assert second is not None and second is not first and not late.ended
        house.clock.advance(0.01)
        house.pool._rang()
        assert isinstance(late.error, DeadlinePassed)

    story(play)


def test_a_request_that_nobody_waits_for_is_counted_when_the_pool_ends() -> None:
    async def play() -> None:
        house = House()
        house.copies[
            0
        ].lose()  # and the next one never gets ready, so that nothing happens after the request is given up
        await turn()
        data = np.array([1], np.int64).tobytes()
        ticket = house.pool.submit(Request({"x": Tensor("int64", (1,), data)}, 1, "all", FOREVER))
        await turn()
        assert not ticket.ended
        await asyncio.wait_for(house.pool.drain(0.0), 10)
        assert isinstance(ticket.error, Draining) and house.counted()["draining"] == 1

    story(play)


async def held_house() -> House:
    """A house whose pool has learned that callers return at once: two were just answered, and one more waits."""
    house = House()
    house.ask(1)
    house.ask(2)
    await turn()
    house.ask(3)
    returning = house.pool._dispatcher.returning
    returning.learn(0.004)
    house.clock.advance(0.01)
    house.copies[0].answer()
    returning.share, returning.wait_seconds = 1.0, 0.002
    await turn()
    assert house.copies[0].batches == {}
    return house


def test_a_batch_waits_for_callers_who_return_at_once() -> None:
    async def play() -> None:
        house = await held_house()
        house.ask(4)
        await turn()
        assert house.copies[0].batches == {}
        house.ask(5)
        await turn()
        assert [len(requests) for requests in house.copies[0].batches.values()] == [3]
        house.copies[0].answer()
        assert [house.answer_of(ticket) for ticket in house.tickets] == [[1], [2], [3], [4], [5]]
        await house.pool.drain(5.0)

    story(play)


@pytest.mark.parametrize("portable", [False, True])
def test_and_starts_without_them_when_the_time_is_over(portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if portable:
        monkeypatch.setenv("MAITRED_PORTABLE", "1")

    async def play() -> None:
        house = await held_house()
        for _ in range(2000):
            if house.copies[0].batches:
                break
            await asyncio.sleep(0.001)
        assert [len(requests) for requests in house.copies[0].batches.values()] == [1]
        house.copies[0].answer()
        await house.pool.drain(5.0)

    story(play)


def test_a_pool_that_is_drained_while_it_waits_answers_what_is_here() -> None:
    async def play() -> None:
        house = await held_house()
        drained = asyncio.ensure_future(house.pool.drain(5.0))
        for _ in range(2000):
            if house.copies[0].batches:
                break
            await asyncio.sleep(0.001)
        house.copies[0].answer()
        await drained
        assert house.answer_of(house.tickets[2]) == [3]

    story(play)
