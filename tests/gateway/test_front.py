"""The hop between a front and the core: an endpoint like the pool behind it, whatever is sent and whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import run
from maitred.clock import ManualClock
from maitred.deployment.router import Served
from maitred.endpoint import Endpoint, Ticket
from maitred.errors import (
    Cancelled,
    DeadlinePassed,
    Draining,
    InvalidInput,
    MaitredError,
    ModelFault,
    QueueFull,
    ReplicaLost,
    TooLarge,
    WouldBeLate,
)
from maitred.events import BatchEnded, Event, RequestEnded
from maitred.gateway import hop
from maitred.gateway.core import UNSETTLED, CoreModel, Link
from maitred.gateway.front import Front, Remote
from maitred.messages import FOREVER, HIGH, NORMAL, Outputs, Request, Tensor
from maitred.model.description import Description
from maitred.model.predictor import Traits
from maitred.model.signature import SAME_GROUP, Signature
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica import channel
from maitred.replica.frames import FrameReader
from maitred.replica.memory import Segment
from maitred.scheduling.dispatcher import DispatchSettings

ECHO = Signature({"x": "int64[n]"}, {"y": "int64[n]"})
WIDE = Signature({"x": "int64[n, k]"}, {"y": "int64[n, k]"})
LARGE = 100_000


class Copy:
    """A replica that the test answers by hand, from memory that is overwritten as soon as the pool has settled it."""

    def __init__(self, id: int, pool: Pool, description: Description) -> None:
        self.id = id
        self.room = 1
        self.pid = None
        self.refused = False
        self.pool = pool
        self.description = description
        self.batches: dict[int, list[Request]] = {}
        self.cancelled: list[int] = []
        self.read: dict[int, dict[str, Any]] = {}

    def launch(self) -> None:
        this: Any = self
        asyncio.get_running_loop().call_soon(self.pool.ready, this, self.description)

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        assert rows == sum(request.rows for request in requests)
        self.batches[batch_id] = requests
        self.read[batch_id] = {name: self._joined(requests, name) for name in requests[0].inputs}  # as a process does

    def _joined(self, requests: list[Request], name: str) -> Any:
        tensors = [request.inputs[name] for request in requests]
        if isinstance(tensors[0].data, list):
            return [item for tensor in tensors for item in tensor.data]
        dtype = tensors[0].dtype
        parts = [np.frombuffer(tensor.data, dtype).reshape(tensor.shape) for tensor in tensors]
        return np.concatenate(parts) if parts[0].ndim else parts[0].copy()

    def cancel(self, batch_id: int) -> None:
        self.cancelled.append(batch_id)

    def stop(self) -> None:
        this: Any = self
        asyncio.get_running_loop().call_soon(self.pool.lost, this, "stopped", frozenset())

    def kill(self, reason: str = "") -> None: ...

    def frozen(self) -> bool:
        return False

    # what the test does with it

    def answer(self, made: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        """Answer the oldest batch with what `made` makes of its inputs; without it `y` is `x`."""
        this: Any = self
        batch_id = min(self.batches)
        requests = self.batches.pop(batch_id)
        rows = sum(request.rows for request in requests)
        outputs = made(self.read[batch_id]) if made else {"y": self.read[batch_id]["x"]}
        specs = self.description.signature.outputs
        tensors = {}
        for name, value in outputs.items():
            shape = np.shape(value) if not isinstance(value, list) else (len(value),)
            tensors[name] = Tensor(specs[name].dtype, shape, value)
        self.pool.answered(this, batch_id, Outputs(tensors, rows, 0.001))
        for value in outputs.values():
            if not isinstance(value, list):
                value[...] = 0

    def fail(self, cause: str = "raised", error: MaitredError | None = None) -> None:
        this: Any = self
        batch_id = min(self.batches)
        del self.batches[batch_id]
        self.pool.failed(this, batch_id, cause, error or ModelFault("ValueError: bad row"))  # type: ignore[arg-type]

    def lose(self) -> None:
        this: Any = self
        began = frozenset(self.batches)
        self.batches.clear()
        self.pool.lost(this, "killed by SIGKILL", began)


class Bench:
    """A pool, and ways to it: straight, or through as many fronts as are joined."""

    def __init__(self, signature: Signature = ECHO, traits: Traits | None = None, **dispatch: Any) -> None:
        self.clock = ManualClock()
        self.description = Description(name="echo", signature=signature, traits=traits or Traits())
        self.copies: list[Copy] = []
        self.events: list[Event] = []
        self.loop = asyncio.get_running_loop()
        self.pool = Pool(
            "echo", "1", DispatchSettings(**dispatch), SupervisorSettings(max_restart_seconds=0.0), self._make, self,
            self.loop, self.clock, self._listen,
        )  # fmt: skip
        self.pool.know(self.description)
        self.served = Served("echo", "1", self.description)
        self.served.endpoint = self.pool
        self.models = {1: CoreModel(1, self.served, lambda: False)}
        self.joints: list[Joint] = []
        self.pool.launch()

    def _make(self, id: int, pool: Pool) -> Any:
        self.copies.append(Copy(id, pool, self.description))
        return self.copies[-1]

    def _listen(self, event: Event) -> None:
        if not isinstance(event, RequestEnded) or event.code != UNSETTLED:
            self.events.append(event)

    def changed(self, state: str, reason: str, description: Description | None) -> None: ...

    @property
    def copy(self) -> Copy:
        return self.copies[-1]

    def join(self) -> Joint:
        self.joints.append(Joint(self))
        return self.joints[-1]

    def counted(self) -> Counter[str]:
        """Requests by outcome, as the metrics count them."""
        counts: Counter[str] = Counter()
        for event in self.events:
            if isinstance(event, BatchEnded):
                counts["ok"] += event.ok
            elif isinstance(event, RequestEnded):
                counts[event.code] += event.count
        return +counts

    async def close(self) -> None:
        for joint in self.joints:
            joint.close()
        await self.pool.drain(0.0)


class Joint:
    """A front and its link to the core, on one loop."""

    def __init__(self, bench: Bench) -> None:
        self.ends = contextlib.ExitStack()
        to_front, from_core = os.pipe()
        to_core, from_front = os.pipe()
        for fd in (to_front, from_core, to_core):
            self.ends.callback(os.close, fd)
        self.from_front = from_front
        ours, theirs = socket.socketpair()
        self.ends.enter_context(ours)
        self.ends.enter_context(theirs)
        self.failures: list[str] = []
        self.control = theirs
        self.link = Link(bench.models, to_core, from_core, ours, bench.loop, bench._listen, bench.clock)
        self.link.failed = self.failures.append
        self.front = Front(FrameReader(to_front), from_front, theirs, bench.loop)
        self.endpoint = Remote(1, "echo", "1", self.front)
        self._closed = False

    def say(self, frame: bytes) -> None:
        """Have the core hear bytes that no front would send."""
        os.write(self.from_front, len(frame).to_bytes(4, "little") + frame)

    def die(self) -> None:
        """The front ends in the middle of everything."""
        if not self._closed:
            self._closed = True
            os.close(self.from_front)
            self.front.close()

    def close(self) -> None:
        self.link.finish()
        self.die()
        self.ends.close()


class Ends:
    """Watches tickets: how each ended, and how often."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.values: dict[int, dict[str, Any]] = {}

    def piece(self, ticket: Ticket, chunk: Any) -> None:
        raise AssertionError("nothing streams here")

    def ended(self, ticket: Ticket) -> None:
        self.times[id(ticket)] += 1
        if ticket.result is not None:
            self.values[id(ticket)] = {
                name: list(tensor.data) if isinstance(tensor.data, list) else np.array(tensor.data)
                for name, tensor in ticket.result.tensors().items()
            }

    def watch(self, ticket: Ticket) -> Ticket:
        ticket.watch(self)
        return ticket

    def of(self, ticket: Ticket, name: str = "y") -> Any:
        assert ticket.ended and ticket.error is None, ticket.error
        value = self.values[id(ticket)][name]
        return value if isinstance(value, list) else value.tolist()


def ask(*values: int, deadline: float = FOREVER, **more: Any) -> Request:
    data = np.array(values, np.int64).tobytes()
    more = {"received_at": 1000.0, "size_bytes": len(data), **more}
    return Request({"x": Tensor("int64", (len(values),), data)}, len(values), SAME_GROUP, deadline, **more)


async def settled() -> None:
    """Let everything that is due on the loop happen: frames cross in a few turns."""
    for _ in range(12):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def bench(*given: Any, **more: Any) -> AsyncIterator[Bench]:
    made = Bench(*given, **more)
    await settled()
    try:
        yield made
    finally:
        await made.close()


def on_both_ways(play: Callable[[Bench, Endpoint, Ends], Coroutine[Any, Any, None]], *given: Any, **more: Any) -> None:
    """Have the same story play before the pool itself and before a front."""

    async def both() -> None:
        for through_a_front in (False, True):
            async with bench(*given, **more) as made:
                await play(made, made.join().endpoint if through_a_front else made.pool, Ends())

    run(both())


# ---------------------------------------------------------------------- the contract: a front is as good as the pool


def test_each_ticket_gets_its_own_rows() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = [ends.watch(endpoint.submit(ask(*range(start, start + start % 3 + 1)))) for start in range(1, 20)]
        await settled()
        made.copy.answer()
        await settled()
        for start, ticket in zip(range(1, 20), tickets, strict=True):
            assert ends.of(ticket) == list(range(start, start + start % 3 + 1))
        assert made.counted() == {"ok": 19}

    on_both_ways(play)


def test_who_cancels_is_not_computed_and_hurts_nobody() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        first = [ends.watch(endpoint.submit(ask(value))) for value in range(3)]
        await settled()
        waiting = [ends.watch(endpoint.submit(ask(value))) for value in range(10, 13)]
        at_once = ends.watch(endpoint.submit(ask(99)))
        at_once.cancel()
        await settled()
        first[0].cancel()
        waiting[1].cancel()
        await settled()
        assert made.copy.cancelled == []
        made.copy.answer()
        await settled()
        made.copy.answer()
        await settled()
        assert [ends.of(ticket) for ticket in (*first[1:], waiting[0], waiting[2])] == [[1], [2], [10], [12]]
        assert all(isinstance(ticket.error, Cancelled) for ticket in (first[0], waiting[1], at_once))
        assert made.counted() == {"ok": 4, "cancelled": 3}

    on_both_ways(play)


def test_the_last_of_a_batch_who_leaves_has_it_cancelled() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = [ends.watch(endpoint.submit(ask(value))) for value in range(3)]
        await settled()
        for ticket in tickets:
            ticket.cancel()
        await settled()
        assert len(made.copy.cancelled) == 1

    on_both_ways(play)


def test_refusals_are_those_of_the_pool_word_for_word() -> None:
    said: list[list[tuple[Any, ...]]] = []

    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = [ends.watch(endpoint.submit(ask(1, 2, 3, received_at=made.clock()))) for _ in range(6)]
        await settled()
        tickets += [ends.watch(endpoint.submit(ask(*range(4)))), ends.watch(endpoint.submit(ask(*range(40))))]
        await settled()
        errors = [ticket.error for ticket in tickets if ticket.error is not None]
        said.append([(type(one), one.message, one.retry_after_seconds) for one in errors])
        assert {QueueFull, TooLarge} <= {type(one) for one in errors}
        made.copy.answer()

    on_both_ways(play, max_waiting_rows=10, max_batch_rows=4)
    assert said[0] == said[1]


def test_deadlines_end_what_waits_and_what_runs() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        now = made.clock()
        running = ends.watch(endpoint.submit(ask(1, deadline=now + 5.0)))
        await settled()
        waiting = ends.watch(endpoint.submit(ask(2, deadline=now + 5.0)))
        await settled()
        made.clock.advance(6.0)
        made.pool._rang()
        await settled()
        assert isinstance(running.error, DeadlinePassed) and "while the model ran" in running.error.message
        assert isinstance(waiting.error, (DeadlinePassed, WouldBeLate))
        assert sum(made.counted().values()) == 2

    on_both_ways(play)


def test_errors_of_the_model_arrive_as_they_are() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        ticket = ends.watch(endpoint.submit(ask(1)))
        await settled()
        made.copy.fail(error=ModelFault("ValueError: bad row"))
        await settled()
        assert type(ticket.error) is ModelFault and ticket.error.message == "ValueError: bad row"
        ticket = ends.watch(endpoint.submit(ask(1)))
        await settled()
        made.copy.fail("malformed", InvalidInput("too long"))
        await settled()
        assert ticket.error is not None and (ticket.error.code, ticket.error.message) == ("malformed", "too long")

    on_both_ways(play)


def test_a_lost_replica_costs_nobody_an_answer() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = [ends.watch(endpoint.submit(ask(value, 7))) for value in range(3)]
        await settled()
        made.copy.lose()
        async with asyncio.timeout(10):
            while not all(ticket.ended for ticket in tickets):
                await asyncio.sleep(0)
                if made.copy.batches:
                    made.copy.answer()
        assert [ends.of(ticket) for ticket in tickets] == [[value, 7] for value in range(3)]

    on_both_ways(play)


EVERY = Signature(
    {
        "f": "float32[n, 3]",
        "b": "bool[n]",
        "s": "str[n]",
        "raw": "bytes[n]",
        "shared": "int32[2]",
        "big": "float64[n, w]",
    },
    {"f": "float32[n, 3]", "b": "bool[n]", "s": "str[n]", "raw": "bytes[n]", "big": "float64[n, w]"},
)


def every(start: int, rows: int, width: int) -> Request:
    values = {
        "f": Tensor("float32", (rows, 3), np.arange(start, start + 3 * rows, dtype=np.float32).tobytes()),
        "b": Tensor("bool", (rows,), bytes(i % 2 for i in range(start, start + rows))),
        "s": Tensor("str", (rows,), [f"ä{start + i}" * 9 for i in range(rows)]),
        "raw": Tensor("bytes", (rows,), [b"\xff%d" % (start + i) for i in range(rows)]),
        "shared": Tensor("int32", (2,), np.array([4, 5], np.int32).tobytes()),
        "big": Tensor("float64", (rows, width), np.full((rows, width), start, np.float64)),
    }
    checked = EVERY.check(values)
    return Request(checked.inputs, checked.rows, checked.group, FOREVER, received_at=1000.0)


@pytest.mark.parametrize("width", [1, 3000, LARGE])
def test_every_dtype_goes_there_and_back_small_and_large(width: int) -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = [ends.watch(endpoint.submit(every(10 * number, number % 2 + 1, width))) for number in range(3)]
        await settled()
        made.copy.answer(lambda read: {name: read[name] for name in EVERY.outputs})
        await settled()
        for number, ticket in enumerate(tickets):
            rows, start = number % 2 + 1, 10 * number
            assert ends.of(ticket, "f") == np.arange(start, start + 3 * rows).reshape(rows, 3).tolist()
            assert ends.of(ticket, "b") == [bool(i % 2) for i in range(start, start + rows)]
            assert ends.of(ticket, "s") == [f"ä{start + i}" * 9 for i in range(rows)]
            assert ends.of(ticket, "raw") == [b"\xff%d" % (start + i) for i in range(rows)]
            assert ends.of(ticket, "big") == [[start] * width] * rows
        await settled()
        assert made.counted() == {"ok": 3}
        for joint in made.joints:
            assert joint.front._arena.used_bytes == joint.link._arena.used_bytes == 0, "all memory has come back"

    on_both_ways(play, EVERY)


def wide(width: int) -> Request:
    """One row of its width's number."""
    data = np.full((1, width), width).tobytes()
    return Request({"x": Tensor("int64", (1, width), data)}, 1, None, FOREVER, received_at=1000.0)


def test_memory_that_one_side_gives_back_is_let_go_by_the_other() -> None:
    async def play() -> None:
        async with bench(WIDE) as made:
            joint = made.join()
            front, link, ends = joint.front, joint.link, Ends()
            for width in (LARGE, 3 * LARGE):
                ticket = ends.watch(joint.endpoint.submit(wide(width)))
                await settled()
                made.copy.answer()
                await settled()
                assert ends.of(ticket) == [[width] * width]
            lost = joint.endpoint.submit(wide(7 * LARGE))
            await settled()
            lost.cancel()
            made.copy.answer()
            await settled()
            assert link._maps and front._maps
            for number in (hop.TIDY_PINGS, 2 * hop.TIDY_PINGS):  # a look counts from the one before
                link.ping(number)
                await settled()
            assert not set(link._maps) - set(front._arena.segments)
            assert not set(front._maps) - set(link._arena.segments)
            assert front._arena.reserved_bytes + link._arena.reserved_bytes <= 2 << 20, "a segment of either"
            ticket = ends.watch(joint.endpoint.submit(wide(LARGE)))
            await settled()
            made.copy.answer()
            await settled()
            assert ends.of(ticket) == [[LARGE] * LARGE] and joint.failures == []

    run(play())


def test_a_request_larger_than_a_batch_is_cut_and_joined() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        ticket = ends.watch(endpoint.submit(ask(*range(150))))
        async with asyncio.timeout(10):
            while not ticket.ended:
                await asyncio.sleep(0)
                if made.copy.batches:
                    made.copy.answer()
        assert ends.of(ticket) == list(range(150))
        assert made.counted() == {"ok": 1}

    on_both_ways(play, max_batch_rows=32)


def test_what_a_request_says_besides_arrives_with_it() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        more = {
            "lane": HIGH,
            "id": "a b",
            "trace": "00-1-2-01",
            "outputs": ("y",),
            "size_bytes": 77,
            "received_at": 999.5,
        }
        endpoint.submit(ask(1, parameters={"k": [1, "x", None]}, **more)).watch(ends)
        await settled()
        [request] = next(iter(made.copy.batches.values()))
        for name, value in {**more, "parameters": {"k": [1, "x", None]}, "rows": 1, "deadline": FOREVER}.items():
            assert getattr(request, name) == value, name
        made.copy.answer()

    on_both_ways(play)


def test_an_awaited_answer_is_the_callers_own() -> None:
    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        waiting = [asyncio.ensure_future(_await(endpoint.submit(ask(value, 5)))) for value in (3, 4)]
        unwatched = endpoint.submit(ask(6))
        await settled()
        made.copy.answer()
        results = await asyncio.gather(*waiting)
        await settled()
        assert [result.tensors()["y"].data.tolist() for result in results] == [[3, 5], [4, 5]]
        assert unwatched.result is not None and unwatched.result.tensors()["y"].data.tolist() == [6]

    on_both_ways(play)


async def _await(ticket: Ticket) -> Any:
    return await ticket


def test_models_without_rows_are_never_merged() -> None:
    whole = Signature({"x": "int64[n]"}, {"sum": "int64[]", "x": "int64[n]"})

    async def play(made: Bench, endpoint: Endpoint, ends: Ends) -> None:
        tickets = []
        for values in ([1, 2], [3, 4, 5]):
            checked = whole.check({"x": Tensor("int64", (len(values),), np.array(values).tobytes())})
            request = Request(checked.inputs, checked.rows, checked.group, FOREVER, received_at=1000.0)
            tickets.append(ends.watch(endpoint.submit(request)))
        for _ in range(2):
            await settled()
            made.copy.answer(lambda read: {"sum": np.array(read["x"].sum()), "x": read["x"]})
        await settled()
        assert [ends.of(ticket, "sum") for ticket in tickets] == [3, 12]
        assert [ends.of(ticket, "x") for ticket in tickets] == [[1, 2], [3, 4, 5]]

    on_both_ways(play, whole)


# ---------------------------------------------------------------------- side by side


def test_requests_of_several_fronts_share_batches_and_the_bound_on_what_waits() -> None:
    async def play() -> None:
        async with bench(max_waiting_rows=8) as made:
            fronts, ends = [made.join(), made.join()], Ends()
            first = ends.watch(fronts[0].endpoint.submit(ask(0)))
            await settled()
            tickets = [ends.watch(fronts[at % 2].endpoint.submit(ask(at))) for at in range(1, 13)]
            await settled()
            refused = [ticket for ticket in tickets if isinstance(ticket.error, QueueFull)]
            assert len(refused) == 4, "eight rows may wait, whoever asks"
            made.copy.answer()
            await settled()
            assert len(made.copy.batches[min(made.copy.batches)]) == 8
            made.copy.answer()
            await settled()
            assert ends.of(first) == [0]
            for at, ticket in enumerate(tickets, 1):
                assert ticket in refused or ends.of(ticket) == [at]

    run(play())


def test_only_what_may_share_a_batch_does_whatever_fronts_call_it() -> None:
    signature = Signature({"x": "int64[n]", "scale": "int64[]"}, {"y": "int64[n]"})

    def scaled(value: int, scale: int, parameters: dict[str, Any] | None = None) -> Request:
        inputs = {
            "x": Tensor("int64", (1,), np.array([value]).tobytes()),
            "scale": Tensor("int64", (), np.array(scale).tobytes()),
        }
        return Request(inputs, 1, "anything", FOREVER, parameters=parameters, received_at=1000.0)

    async def play() -> None:
        async with bench(signature) as made:
            one, other = made.join(), made.join()
            one.endpoint.submit(scaled(0, 0))
            await settled()
            one.endpoint.submit(scaled(1, 2))
            other.endpoint.submit(scaled(2, 2))
            one.endpoint.submit(scaled(3, 5))
            one.endpoint.submit(scaled(4, 2, {"a": 1}))
            other.endpoint.submit(scaled(5, 2, {"a": 1}))
            await settled()
            seen = []
            for _ in range(4):
                batch = next(iter(made.copy.batches.values()))
                seen.append(sorted(int(np.frombuffer(request.inputs["x"].data, np.int64)[0]) for request in batch))
                made.copy.answer()
                await settled()
            assert sorted(seen) == [[0], [1, 2], [3], [4, 5]]

    run(play())


def test_a_front_that_dies_leaves_nothing_behind_and_others_notice_nothing() -> None:
    async def play() -> None:
        async with bench() as made:
            dying, staying = made.join(), made.join()
            ends = Ends()
            lost = [dying.endpoint.submit(ask(value)) for value in range(4)]
            kept = ends.watch(staying.endpoint.submit(ask(50)))
            await settled()
            behind = [dying.endpoint.submit(ask(value)) for value in range(4)]
            after = ends.watch(staying.endpoint.submit(ask(51)))
            await settled()
            dying.die()
            await settled()
            assert dying.failures == ["has closed its pipe"] and not dying.link.tickets
            assert all(isinstance(ticket.error, ReplicaLost) for ticket in (*lost, *behind))
            made.copy.answer()
            await settled()
            assert [request.rows for request in made.copy.batches[min(made.copy.batches)]] == [1], (
                "nobody computes those"
            )
            made.copy.answer()
            await settled()
            assert (ends.of(kept), ends.of(after)) == ([50], [51])
            assert made.counted() == {"ok": 2, "cancelled": 8}

    run(play())


def test_the_end_of_the_core_ends_every_ticket_and_nothing_new_is_taken() -> None:
    async def play() -> None:
        async with bench() as made:
            joint = made.join()
            ended: list[None] = []
            joint.front.ended = lambda: ended.append(None)
            tickets = [joint.endpoint.submit(ask(value)) for value in range(3)]
            await settled()
            joint.link.close()
            joint.ends.close()
            joint.front._gone()
            assert [ticket.error.http_status for ticket in tickets if ticket.error is not None] == [503] * 3
            late = joint.endpoint.submit(ask(1))
            assert isinstance(late.error, Draining) and ended == [None]

    run(play())


def test_answers_that_may_not_be_writable_are_counted_once_the_front_has_told() -> None:
    signature = Signature({"x": "float64[n]"}, {"y": "float64[n]"})

    class Picky(Ends):
        """As the gateway does it: what JSON cannot show is an error, noted in the batch."""

        def ended(self, ticket: Ticket) -> None:
            super().ended(ticket)
            if ticket.result is not None and not np.isfinite(self.values[id(ticket)]["y"]).all():
                ticket.error = ModelFault("NaN")
                ticket.result.batch.unwritten.append(ticket)

    async def play() -> None:
        async with bench(signature) as made:
            joint, ends = made.join(), Picky()
            for value in (1.0, np.nan, 3.0, np.inf):
                data = np.array([value]).tobytes()
                request = Request({"x": Tensor("float64", (1,), data)}, 1, SAME_GROUP, FOREVER, received_at=1000.0)
                joint.endpoint.submit(request).watch(ends)
            await settled()
            made.copy.answer()
            await settled()
            assert made.counted() == {"ok": 2, "model_fault": 2}
            joint.endpoint.submit(request).watch(ends)
            await settled()
            made.copy.answer()
            joint.die()
            await settled()
            assert made.counted() == {"ok": 2, "model_fault": 2, "cancelled": 1}, "it could not tell any more"

    run(play())


# ---------------------------------------------------------------------- a front that is not to be believed

FORM = hop.Form(1, (("x", "int64", (1,)),), 1, True, NORMAL, "", None)
ROW = np.array([1]).tobytes()


def asked(**more: Any) -> hop.Asked:
    usual = {
        "model": 1, "anew": False, "forms": [FORM], "numbers": [1], "kinds": [1], "deadlines": [FOREVER],
        "received": [1000.0], "sizes": [8], "ids": [""], "traces": [""], "data": [ROW], "rare": {},
    }  # fmt: skip
    return hop.Asked(**{**usual, **more})


def form(**more: Any) -> hop.Asked:
    return asked(forms=[msgspec.structs.replace(FORM, **more)])


def place(block: int, segment: int, offset: int, size: int) -> Any:
    return hop.Place(block, segment, offset, size).packed()


LIES: dict[str, hop.FromFront | bytes] = {
    "no frame": b"\xc1\xc1\xc1",
    "another record": hop.encode([1, 2]),
    "no such model": hop.FromFront(asked=[asked(model=7)]),
    "a form that nobody described": hop.FromFront(asked=[asked(kinds=[9])]),
    "a shape that is not the data's": hop.FromFront(asked=[asked(data=[ROW * 2])]),
    "an unknown input": hop.FromFront(asked=[form(tensors=(("z", "int64", (1,)),))]),
    "another dtype": hop.FromFront(asked=[form(tensors=(("x", "float64", (1,)),))]),
    "an axis too many": hop.FromFront(asked=[form(tensors=(("x", "int64", (1, 1)),))]),
    "a size below nothing": hop.FromFront(asked=[form(tensors=(("x", "int64", (-1,)),), rows=-1)]),
    "an impossible size": hop.FromFront(asked=[form(tensors=(("x", "int64", (1 << 60,)),), rows=1 << 60)]),
    "an input twice": hop.FromFront(asked=[form(tensors=(("x", "int64", (1,)), ("x", "int64", (1,))))]),
    "no input": hop.FromFront(asked=[form(tensors=())]),
    "rows that are not those of the shape": hop.FromFront(asked=[form(rows=5)]),
    "an unknown lane": hop.FromFront(asked=[form(lane=9)]),
    "outputs that are not there": hop.FromFront(asked=[form(outputs=("z",))]),
    "a deadline that is no number": hop.FromFront(asked=[asked(deadlines=[float("nan")])]),
    "a time in the future": hop.FromFront(asked=[asked(received=[5000.0])]),
    "a negative size": hop.FromFront(asked=[asked(sizes=[-1])]),
    "columns of different lengths": hop.FromFront(asked=[asked(ids=[])]),
    "no data": hop.FromFront(asked=[asked(data=[])]),
    "more data": hop.FromFront(asked=[asked(data=[ROW, ROW])]),
    "texts for numbers": hop.FromFront(asked=[asked(data=[["a"]])]),
    "memory that was not handed over": hop.FromFront(asked=[asked(data=[place(1, 1, 0, 8)])]),
    "a bucket": hop.FromFront(asked=[asked(rare={0: hop.Rare(None, ("w=8", {}, 0, 0, None))})]),
    "a number twice": hop.FromFront(asked=[asked(), asked()]),
    "memory back that it never had": hop.FromFront(done=[1]),
    "memory gone that it never had": hop.FromFront(retired=[1]),
    "an end that nobody asked for": hop.FromFront(settled=[(1, "ok")]),
    "an unknown outcome": hop.FromFront(refused=[("echo", "1", "fine", 1)]),
    "an unknown version": hop.FromFront(refused=[("echo", "2", "malformed", 1)]),
    "fewer than none": hop.FromFront(refused=[("echo", "1", "malformed", -1)]),
    "fewer statuses than none": hop.FromFront(statuses={400: 0}),
    "fewer connections than none": hop.FromFront(connections=-1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_front_that_says_what_cannot_be_is_not_believed(lie: str) -> None:
    async def play() -> None:
        async with bench() as made:
            liar, honest, ends = made.join(), made.join(), Ends()
            said = LIES[lie]
            liar.say(said if isinstance(said, bytes) else hop.encode(said))
            ticket = ends.watch(honest.endpoint.submit(ask(5)))
            await settled()
            assert len(liar.failures) == 1, "told once"
            while made.copy.batches:
                made.copy.answer()
                await settled()
            assert ends.of(ticket) == [5]
            assert honest.failures == []

    run(play())


def test_the_frame_that_the_lies_are_made_of_is_an_honest_one() -> None:
    async def play() -> None:
        async with bench() as made:
            joint = made.join()
            joint.say(hop.encode(hop.FromFront(asked=[asked()], refused=[("echo", "1", "malformed", 2)])))
            await settled()
            assert joint.failures == [] and len(made.copy.batches) == 1
            assert made.counted() == {"malformed": 2}
            made.copy.answer()

    run(play())


def test_memory_is_taken_only_where_it_is_what_was_said() -> None:
    async def play() -> None:
        async with bench() as made:
            segment = Segment(1, 1 << 16, children_write=False)
            for size, offset, wanted in ((1 << 20, 0, 8), (1 << 16, (1 << 16) - 4, 8), (1 << 16, 0, 1 << 40)):
                joint = made.join()
                channel.send_segment(joint.control, False, 1, size, segment.fd)
                joint.say(hop.encode(hop.FromFront(asked=[asked(data=[place(1, 1, offset, wanted)])])))
                await settled()
                assert len(joint.failures) == 1
            segment.close()

    run(play())


# ---------------------------------------------------------------------- any interleaving

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 2), st.sampled_from([1, 2, 20, LARGE])),
        st.tuples(st.just("cancel"), st.integers(0, 99), st.just(0)),
        st.tuples(st.sampled_from(["answer", "fail", "lose", "turn", "settle"]), st.just(0), st.just(0)),
        st.tuples(st.just("die"), st.integers(0, 2), st.just(0)),
    ),
    max_size=60,
)


async def _played(made: Bench, joints: list[Joint], ends: Ends, steps: list[tuple[str, int, int]]) -> list[Any]:
    """The tickets, each with its first value."""
    tickets: list[tuple[Ticket, int]] = []
    for step, number, rows in steps:
        if step == "ask":
            first = 1000 * len(tickets)
            tickets.append((ends.watch(joints[number].endpoint.submit(ask(first, *range(1, rows)))), first))
        elif step == "cancel" and tickets:
            tickets[number % len(tickets)][0].cancel()
        elif step == "die":
            joints[number].die()
        elif step == "turn":
            await asyncio.sleep(0)
        elif step == "settle":
            await settled()
        elif step in ("answer", "fail", "lose") and made.copy.batches:
            getattr(made.copy, step)()
    return tickets


@settings(max_examples=80)
@given(STEPS)
def test_every_ticket_ends_once_and_all_memory_comes_back(steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        async with bench(max_batch_rows=30, max_waiting_rows=3 * LARGE, max_waiting_bytes=1 << 40) as made:
            joints, ends = [made.join() for _ in range(3)], Ends()
            tickets = await _played(made, joints, ends, steps)
            async with asyncio.timeout(20):
                while not all(ticket.ended for ticket, _ in tickets) or made.copy.batches:
                    await asyncio.sleep(0)
                    if made.copy.batches:
                        made.copy.answer()
            await settled()
            for ticket, first in tickets:
                assert ends.times[id(ticket)] == 1
                assert ticket.error is not None or ends.of(ticket)[0] == first, "nobody gets another's answer"
            for joint in joints:
                assert not joint.link.tickets and not joint.front.tickets
                assert joint.failures or joint.front._arena.used_bytes == joint.link._arena.used_bytes == 0

    run(play())
