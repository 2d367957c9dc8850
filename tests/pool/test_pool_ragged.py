"""Requests of different lengths behind one queue: they share batches, get their own sizes back, and are counted."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import run
from maitred.clock import ManualClock
from maitred.endpoint import Ticket
from maitred.events import BatchEnded, Event
from maitred.messages import FOREVER, Outputs, Request
from maitred.model.description import Description
from maitred.model.signature import Signature
from maitred.observe.metrics import Metrics
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.testing.dispatch import ManualPool
from maitred.wire.coerce import from_array, from_python, to_array
from maitred.wire.tensors import join

SIGNATURE = Signature(
    {"x": "int64[n, seq] pad=0 buckets=[2, 6]"}, {"saw": "int64[n, seq]", "width": "int64[n]", "text": "str[n, seq]"}
)
DESCRIPTION = Description(name="reader", signature=SIGNATURE)


class Copy:
    """A replica that answers when the test says so: with what it saw, and how wide that was."""

    def __init__(self, id: int, pool: Pool) -> None:
        self.id, self.room, self.pid, self.refused, self.pool = id, 1, None, False, pool
        self.batches: dict[int, list[Request]] = {}

    def launch(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self, reason: str = "") -> None: ...

    def cancel(self, batch_id: int) -> None: ...

    def frozen(self) -> bool:
        return False

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        self.batches[batch_id] = requests

    def answer(self) -> None:
        """In memory that is overwritten as soon as the pool has settled the batch."""
        this: Any = self
        batch_id = min(self.batches)
        block = to_array(join(self.batches.pop(batch_id))["x"]).copy()
        rows, width = block.shape
        tensors = {"saw": from_array(block), "width": from_array(np.full(rows, width))}
        tensors["text"] = from_array(block.astype(str).astype(object))
        self.pool.answered(this, batch_id, Outputs(tensors, rows, 0.001))
        block[:] = -1


class House:
    def __init__(self, max_batch_rows: int = 64) -> None:
        self.events: list[Event] = []
        self.answers: dict[int, dict[str, Any]] = {}
        self.pool = Pool(
            "reader", "1", DispatchSettings(max_batch_rows=max_batch_rows), SupervisorSettings(replicas=1), self.make,
            self, asyncio.get_running_loop(), ManualClock(), self.events.append,
        )  # fmt: skip
        self.pool.launch()
        self.pool.ready(self.copy, DESCRIPTION)

    def make(self, id: int, pool: Pool) -> Any:
        self.copy: Any = Copy(id, pool)
        return self.copy

    def changed(self, state: str, reason: str, description: Description | None) -> None: ...

    def ask(self, rows: list[list[int]], watched: bool = True) -> Ticket:
        checked = SIGNATURE.check({"x": from_python("x", "int64", rows, pad=0)})
        request = Request(checked.inputs, checked.rows, checked.group, FOREVER, ragged=checked.ragged)
        ticket = self.pool.submit(request)
        if watched:
            ticket.watch(self)
        return ticket

    def piece(self, ticket: Ticket, chunk: Any) -> None:
        raise AssertionError("nothing streams here")

    def ended(self, ticket: Ticket) -> None:
        if ticket.result is not None:
            tensors = ticket.result.tensors()
            self.answers[id(ticket)] = {name: to_array(tensor).tolist() for name, tensor in tensors.items()}

    async def finish(self) -> None:
        await turn()
        while self.copy.batches:
            self.copy.answer()
            await turn()

    def batches(self) -> list[BatchEnded]:
        return [event for event in self.events if isinstance(event, BatchEnded)]


async def turn() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def wanted(rows: list[list[int]]) -> dict[str, Any]:
    longest = max(map(len, rows))
    filled = [row + [0] * (longest - len(row)) for row in rows]
    return {
        "saw": filled, "width": [2 if longest <= 2 else 6] * len(rows), "text": [list(map(str, row)) for row in filled],
    }  # fmt: skip


def test_different_lengths_share_a_batch_and_one_event_counts_the_fill() -> None:
    async def play() -> None:
        house = House()
        asked = [[[1, 2, 3]], [[4] * 6, [5] * 6], [[6, 7, 8, 9]], [[1]], [[1, 2]]]
        tickets = [house.ask(rows) for rows in asked]
        await house.finish()
        assert [house.answers[id(ticket)] for ticket in tickets] == [wanted(rows) for rows in asked]
        told = [(event.bucket, event.requests, event.elements, event.real) for event in house.batches()]
        assert sorted(told) == [("seq=2", 2, 4, 3), ("seq=6", 3, 24, 19)]

    run(play())


def test_who_left_early_still_counts_for_the_batch_and_who_looks_late_has_memory_of_its_own() -> None:
    async def play() -> None:
        house = House()
        late, leaver = house.ask([[1, 2, 3]], watched=False), house.ask([[4, 5, 6, 7]])
        await turn()
        leaver.cancel()
        await house.finish()
        assert to_array((await late).tensors()["saw"]).tolist() == [[1, 2, 3]]
        [batch] = house.batches()
        assert (batch.ok, batch.requests, batch.elements, batch.real) == (1, 2, 12, 7)

    run(play())


def test_a_request_of_more_rows_than_a_batch_is_cut_filled_up_and_joined() -> None:
    async def play() -> None:
        house = House(max_batch_rows=4)
        rows = [[n] * (1 + n % 5) for n in range(11)]
        ticket = house.ask(rows)
        await house.finish()
        assert house.answers[id(ticket)] == wanted(rows)
        assert len(house.batches()) == 3
        assert sum(event.real for event in house.batches()) == sum(map(len, rows))
        assert sum(event.elements for event in house.batches()) == 6 * 11

    run(play())


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 6),
)
def test_any_mix_of_lengths_and_rows(requests: list[list[list[int]]], max_batch_rows: int) -> None:
    async def play() -> None:
        house = House(max_batch_rows)
        tickets = [house.ask(rows) for rows in requests]
        await house.finish()
        assert [house.answers[id(ticket)] for ticket in tickets] == [wanted(rows) for rows in requests]
        metrics = Metrics()
        for event in house.events:
            metrics(event)
        page = metrics.page()[0].decode()
        real = sum(len(row) for rows in requests for row in rows)
        assert sum(counted(page, "maitred_bucket_elements_total", "real")) == real
        assert sum(counted(page, "maitred_bucket_elements_total", "pad")) == sum(
            len(rows) * wanted(rows)["width"][0] - sum(map(len, rows)) for rows in requests
        )

    run(play())


def counted(page: str, name: str, kind: str) -> list[float]:
    lines = [line for line in page.splitlines() if line.startswith(name) and f'kind="{kind}"' in line]
    return [float(line.rpartition(" ")[2]) for line in lines]


def test_a_manual_pool_gives_each_its_own_part_as_a_real_one_does() -> None:
    pool = ManualPool()
    tickets = []
    for row in ([1], [2, 3], [4]):
        checked = SIGNATURE.check({"x": from_python("x", "int64", [row])})
        ticket = Ticket(Request(checked.inputs, 1, checked.group, FOREVER, ragged=checked.ragged), pool, pool.now)
        tickets.append(pool.submit(ticket))
    pool.run()
    assert len(pool.started) == 1
    places = [(ticket.result.start, ticket.result.stop) for ticket in tickets if ticket.result is not None]
    assert places == [(0, 1), (0, 1), (0, 1)], "each has outputs of its own by now"
