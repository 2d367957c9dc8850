"""Leases: a block goes back with the last who needs it, and whatever happens, what is used is what is alive."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maitred.messages import Request, Tensor
from maitred.model.signature import Signature
from maitred.replica import channel
from maitred.replica.inflight import PAGE_BYTES, InFlight
from maitred.replica.layout import body, lay_out, read, read_head, read_placed
from maitred.replica.lease import Lease
from maitred.replica.memory import Arena, NoMemory, Segment, size_class

SIGNATURE = Signature(inputs={"x": "float32[n, 4]"}, outputs={"y": "float32[n]"})


def test_a_block_goes_back_with_the_last_who_needs_it() -> None:
    arena = Arena(False)
    ended: list[int] = []
    lease = Lease.of_body(arena, 100_000, 77, lambda: ended.append(arena.used_bytes))
    lease.hold()
    seen = [(lease.alive, arena.used_bytes > 0, list(ended))]
    for _ in range(2):
        lease.drop()
        seen.append((lease.alive, arena.used_bytes > 0, list(ended)))
    assert seen == [(True, True, []), (True, True, []), (False, False, [0])]
    with pytest.raises(RuntimeError, match="more often"):
        lease.drop()
    with pytest.raises(RuntimeError, match="again"):
        lease.hold()
    arena.close()


@given(st.integers(0, 5000), st.integers(1, 300_000))
def test_tensors_behind_the_json_begin_where_arrays_should(head: int, size: int) -> None:
    arena = Arena(False)
    lease = Lease.of_body(arena, head + size, head)
    assert len(lease.view) == head + size <= size_class(head + size + 64)
    tensors = lease.body[head:]
    assert lease.place_of(tensors) == lease.start + head
    assert (lease.start + head) % 64 == 0
    assert lease.place_of(tensors[1:]) is None, "nothing is pointed at that no array would begin at"
    assert lease.place_of(bytes(tensors)) is None
    assert lease.place_of(memoryview(bytes(tensors))) is None
    assert lease.body.readonly and not lease.view.readonly
    lease.drop()
    arena.close()


def test_a_lease_outlives_its_arena() -> None:
    arena = Arena(True)
    lease = Lease.of_body(arena, 70_000, 0)
    lease.view[:5] = b"still"
    kept = np.frombuffer(lease.view, np.uint8)
    arena.close()
    assert bytes(kept[:5]) == b"still"
    assert bytes(lease.body[:5]) == b"still", "a body may become complete after its model has gone"
    del kept
    lease.drop()
    assert arena.used_bytes == 0
    with pytest.raises(NoMemory, match="stopped"):
        arena.take(100)


def test_no_memory_takes_nothing() -> None:
    arena = Arena(False, limit_bytes=1 << 20)
    with pytest.raises(NoMemory):
        Lease.of_body(arena, 2 << 20, 0)
    assert arena.used_bytes == 0
    arena.close()


# --- what a child is told of it ----------------------------------------------------------------------------------


class Hop:
    """The parent's half of a hop, and what a child would read of it."""

    def __init__(self, signature: Signature = SIGNATURE, with_rows: bool = False, arena: Arena | None = None) -> None:
        self.inputs, self.outputs = arena or Arena(False), Arena(True)
        self.pages = (Segment(0, PAGE_BYTES, False), Segment(0, PAGE_BYTES, True))
        self.shared: list[tuple[int, bool]] = []
        self.in_flight = InFlight(
            self.inputs, self.outputs, *self.pages, lambda s, out: self.shared.append((s.id, out))
        )
        self.in_flight.open(signature, 8, with_rows)

    def body(self, json: bytes, *tensors: bytes) -> tuple[Lease, list[memoryview]]:
        """A request's body in a block, and its tensors."""
        whole = json + b"".join(tensors)
        lease = Lease.of_body(self.inputs, len(whole), len(json))
        lease.view[:] = whole
        ends = list(itertools.accumulate(map(len, tensors), initial=len(json)))
        return lease, [lease.body[start:stop] for start, stop in itertools.pairwise(ends)]

    def run(self, batch: int, *requests: Request) -> tuple[int, ...]:
        rows = sum(request.rows for request in requests)
        fields: tuple[int, ...] = channel.MESSAGE.unpack(self.in_flight.run(batch, list(requests), rows))
        return fields

    def seen(self, run: tuple[int, ...]) -> dict[str, Any]:
        """The tensors as `Station.begin` finds them, and under `places` whether they were pointed at."""
        view = self.inputs.segments[run[5]].view
        at = run[9]
        layout = read_head(bytes(view[at : at + run[6]]))
        context = view[at + run[6] : at + run[6] + run[7]]
        places = msgspec.msgpack.decode(context)[3] if run[7] else None
        at += body(run[6], run[7])
        if places is None:
            return {**read(view, at, layout, len(view)), "places": None}
        found = read_placed(lambda id: self.inputs.segments[id].view, places, layout, view, at)
        return {**found, "places": [segment for segment, _ in places]}

    def answer(self, run: tuple[int, ...], rows: int) -> None:
        layout = lay_out([("y", "float32", (rows,))])
        map, at = self.outputs.segments[run[8]].map, run[10]
        map[at : at + len(layout.head)] = layout.head
        message = channel.message(
            channel.ANSWERED, slot=run[2], rows=rows, batch=run[4], a=len(layout.head), p=layout.size, q=1
        )
        work, _ = self.in_flight.answered(channel.MESSAGE.unpack(message))
        self.in_flight.ended(work)

    def close(self) -> None:
        self.in_flight.abandon()
        for arena in (self.inputs, self.outputs):
            arena.close()
        for page in self.pages:
            page.close()


def request(lease: Lease | None, rows: int, **inputs: Tensor) -> Request:
    return Request(inputs, rows, (), 0.0, lease=lease)


def rows_of(count: int, start: float = 0.0) -> bytes:
    return (np.arange(4 * count, dtype=np.float32) + np.float32(start)).tobytes()


def test_a_request_alone_is_pointed_at_and_one_among_others_is_copied() -> None:
    hop = Hop()
    lease, (x,) = hop.body(b"{json}", rows_of(5000))
    whole = request(lease, 5000, x=Tensor("float32", (5000, 4), x))
    used = hop.inputs.used_bytes
    run = hop.run(1, whole)
    assert hop.inputs.used_bytes - used == size_class(1), "the head alone"
    seen = hop.seen(run)
    assert seen["places"] == [lease.block.segment.id]
    assert seen["x"].tobytes() == rows_of(5000) and seen["x"].shape == (5000, 4)
    assert (lease.block.segment.id, False) in hop.shared
    lease.drop()
    lives = [lease.alive]  # the caller has gone, and the child still reads
    hop.answer(run, 5000)
    assert [*lives, lease.alive] == [True, False] and hop.inputs.used_bytes == 0

    lease, (x,) = hop.body(b"{json}", rows_of(5000))
    whole = request(lease, 5000, x=Tensor("float32", (5000, 4), x))
    other = request(None, 1, x=Tensor("float32", (1, 4), rows_of(1, 9.0)))
    run = hop.run(2, whole, other)
    seen = hop.seen(run)
    assert seen["places"] is None
    assert seen["x"].tobytes() == rows_of(5000) + rows_of(1, 9.0)
    lease.drop()
    assert not lease.alive, "nobody reads what has been copied"
    hop.answer(run, 5001)
    hop.close()


def test_what_does_not_lie_right_is_copied_and_the_rest_is_not() -> None:
    signature = Signature(
        inputs={"a": "uint8[n, k]", "b": "float64[n, 3]", "t": "str[n]", "c": "int16[n]", "e": "float32[n, m]"},
        outputs={"y": "float32[n]"},
    )
    hop = Hop(signature, with_rows=True)
    a, b, c = bytes(range(100)), np.arange(6.0).tobytes(), struct.pack("<2h", 3, 4)
    lease, (at_a, at_b) = hop.body(b"x" * 13, a, b)
    asked = request(
        lease, 2,
        a=Tensor("uint8", (2, 50), at_a), b=Tensor("float64", (2, 3), at_b), t=Tensor("str", (2,), ["u", "vé"]),
        c=Tensor("int16", (2,), c), e=Tensor("float32", (2, 0), b""),
    )  # fmt: skip
    seen = hop.seen(hop.run(1, asked))
    assert seen["places"] == [lease.block.segment.id, 0, 0, 0]
    assert seen["a"].tobytes() == a and seen["b"].tobytes() == b and seen["c"].tolist() == [3, 4]
    assert seen["t"] == ["u", "vé"] and seen["e"].shape == (2, 0)
    assert not any(seen[name].ctypes.data % 64 for name in "abc")
    lease.drop()
    hop.close()
    assert not lease.alive


def test_a_request_whose_bytes_are_gone_never_runs() -> None:
    hop = Hop()
    lease, (x,) = hop.body(b"{}", rows_of(5000))
    gone = request(lease, 5000, x=Tensor("float32", (5000, 4), x))
    lease.drop()
    for members in ([gone], [gone, gone]):
        with pytest.raises(ValueError, match="given back"):
            hop.in_flight.run(1, members, 5000 * len(members))
    assert hop.inputs.used_bytes == hop.outputs.used_bytes == 0
    hop.close()


def test_memory_of_another_arena_is_never_pointed_at() -> None:
    hop, other = Hop(), Hop()
    lease, (x,) = other.body(b"{}", rows_of(5000))
    run = hop.run(1, request(lease, 5000, x=Tensor("float32", (5000, 4), x)))
    assert hop.seen(run)["places"] is None
    assert hop.seen(run)["x"].tobytes() == rows_of(5000)
    hop.answer(run, 5000)
    lease.drop()
    hop.close()
    other.close()


def test_a_retry_reads_the_same_block() -> None:
    arena = Arena(False)
    first, second = Hop(arena=arena), Hop(arena=arena)
    lease, (x,) = first.body(b"{}", rows_of(5000))
    asked = request(lease, 5000, x=Tensor("float32", (5000, 4), x))
    first.run(1, asked)
    first.in_flight.abandon()  # its child has died
    assert lease.alive
    run = second.run(2, asked)
    assert second.seen(run)["places"] == [lease.block.segment.id]
    assert (lease.block.segment.id, False) in second.shared
    assert second.seen(run)["x"].tobytes() == rows_of(5000)
    lease.drop()
    second.answer(run, 5000)
    assert arena.used_bytes == 0
    for page in (*first.pages, *second.pages):
        page.close()
    arena.close()


# --- any sequence of what can happen -----------------------------------------------------------------------------


class Books(RuleBasedStateMachine):
    """Bodies come, are filled, hung up on, run alone or with others, answered, and lost with their replica."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(False, 1 << 16)
        self.hops = [Hop(arena=self.arena), Hop(arena=self.arena)]
        self.coming: list[tuple[Lease, int]] = []
        self.waiting: list[tuple[Request, int]] = []
        self.running: list[tuple[Hop, tuple[int, ...], list[tuple[Request, int]], int]] = []
        self.marks = itertools.count(1)
        self.batches = itertools.count(1)

    @rule(rows=st.integers(1, 9000), head=st.integers(1, 200))
    def reserve(self, rows: int, head: int) -> None:
        self.coming.append((Lease.of_body(self.arena, head + 16 * rows, head), rows))

    @precondition(lambda self: self.coming)
    @rule(which=st.integers(0, 99))
    def fill(self, which: int) -> None:
        lease, rows = self.coming.pop(which % len(self.coming))
        mark = next(self.marks)
        lease.view[-16 * rows :] = np.full(4 * rows, mark, np.float32).tobytes()
        self.waiting.append((request(lease, rows, x=Tensor("float32", (rows, 4), lease.body[-16 * rows :])), mark))

    @precondition(lambda self: self.coming)
    @rule(which=st.integers(0, 99))
    def hang_up(self, which: int) -> None:
        self.coming.pop(which % len(self.coming))[0].drop()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        self.waiting.pop(which % len(self.waiting))[0].lease.drop()

    @precondition(lambda self: self.waiting and len(self.running) < 6)
    @rule(count=st.integers(1, 3), hop=st.integers(0, 1))
    def dispatch(self, count: int, hop: int) -> None:
        members, self.waiting = self.waiting[:count], self.waiting[count:]
        at = self.hops[hop]
        rows = sum(member.rows for member, _ in members)
        run = at.run(next(self.batches), *(member for member, _ in members))
        self.running.append((at, run, members, rows))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def leave(self, which: int) -> None:
        """A caller whose request runs hangs up."""
        _, _, members, _ = self.running[which % len(self.running)]
        if members:
            members.pop()[0].lease.drop()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def answer(self, which: int) -> None:
        at, run, members, rows = self.running.pop(which % len(self.running))
        at.answer(run, rows)
        for member, _ in members:
            member.lease.drop()

    @rule(hop=st.integers(0, 1))
    def crash(self, hop: int) -> None:
        """What its callers still wait for goes back to the queue."""
        at = self.hops[hop]
        at.in_flight.abandon()
        at.in_flight.open(SIGNATURE, 8, False)
        for lost in [entry for entry in self.running if entry[0] is at]:
            self.running.remove(lost)
            self.waiting += lost[2]

    @invariant()
    def what_is_used_is_what_is_alive(self) -> None:
        alive = {id(lease): lease for lease, _ in self.coming}
        alive |= {id(member.lease): member.lease for member, _ in self.waiting}
        heads = 0
        for hop in self.hops:
            for work in hop.in_flight._running.values():
                heads += work.input.size
                if work.lease is not None:
                    alive[id(work.lease)] = work.lease
        for _, _, members, _ in self.running:
            alive |= {id(member.lease): member.lease for member, _ in members}
        assert all(lease.alive for lease in alive.values())
        assert self.arena.used_bytes == heads + sum(lease.block.size for lease in alive.values())

    @invariant()
    def nobody_reads_what_is_not_theirs(self) -> None:
        for member, mark in self.waiting:
            assert set(np.frombuffer(member.inputs["x"].data, np.float32)[[0, -1]]) == {mark}
        for at, run, members, _ in self.running:
            seen = at.seen(run)["x"][:, 0]
            marks = [mark for _, mark in members]
            assert list(dict.fromkeys(seen.tolist()))[: len(marks)] == marks

    def teardown(self) -> None:
        for lease, _ in self.coming:
            lease.drop()
        for hop in self.hops:
            hop.in_flight.abandon()
        for _, _, members, _ in self.running:
            self.waiting += members
        for member, _ in self.waiting:
            member.lease.drop()
        assert self.arena.used_bytes == 0
        for hop in self.hops:
            hop.close()


Books.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
