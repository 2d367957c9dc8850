"""The parent's half of a hop without a child: what may be answered, and what is a lie."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from maitred.messages import Request, Tensor
from maitred.model.signature import Signature
from maitred.replica import channel
from maitred.replica.inflight import PAGE_BYTES, InFlight, Scribbled
from maitred.replica.layout import Layout, Named, body, lay_out, look, read_head
from maitred.replica.memory import Arena, Segment

ROW_WISE = Signature(inputs={"x": "float32[n, 2]"}, outputs={"y": "float32[n]", "flag": "bool[n]"})


class Desk:
    """An InFlight and the blocks that its child would see."""

    def __init__(self, signature: Signature, room: int = 2) -> None:
        self.shared: list[tuple[int, bool]] = []
        self.inputs, self.outputs = Arena(False), Arena(True)
        self.pages = [Segment(0, PAGE_BYTES, write) for write in (False, True)]
        self.in_flight = InFlight(self.inputs, self.outputs, self.pages[0], self.pages[1], self.share)
        self.in_flight.open(signature, room, with_rows=False)

    def share(self, segment: Segment, outputs: bool) -> None:
        self.shared.append((segment.id, outputs))

    def run(self, batch: int, *rows: int, outputs: tuple[str, ...] | None = None) -> tuple[int, ...]:
        requests = [request(count, outputs) for count in rows]
        fields: tuple[int, ...] = channel.MESSAGE.unpack(self.in_flight.run(batch, requests, sum(rows)))
        return fields

    def answer(
        self, run: tuple[int, ...], named: list[Named], data: list[bytes], written: int | None = None, number: int = 1
    ) -> tuple[int, ...]:
        """Write what a child would, and the fields of its message."""
        layout = lay_out(named)
        at = run[10]
        map = self.outputs.segments[run[8]].map
        map[at : at + len(layout.head)] = layout.head
        for item, raw in zip(layout.fixed, data, strict=True):
            start = at + layout.start + item.start
            map[start : start + len(raw)] = raw
        size = layout.size if written is None else written
        message = channel.message(
            channel.ANSWERED, slot=run[2], rows=number, batch=run[4], a=len(layout.head), p=size, q=5_000
        )
        fields: tuple[int, ...] = channel.MESSAGE.unpack(message)
        return fields

    def close(self) -> None:
        self.in_flight.abandon()
        assert self.inputs.used_bytes == self.outputs.used_bytes == 0
        for arena in (self.inputs, self.outputs):
            arena.close()
        for page in self.pages:
            page.close()


def request(rows: int, outputs: tuple[str, ...] | None = None) -> Request:
    x = np.arange(2 * rows, dtype=np.float32).tobytes()
    return Request({"x": Tensor("float32", (rows, 2), x)}, rows, (), 0.0, outputs=outputs)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(ROW_WISE)
    yield desk
    desk.close()


def good(rows: int) -> tuple[list[Named], list[bytes]]:
    return [("y", "float32", (rows,)), ("flag", "bool", (rows,))], [np.ones(rows, np.float32).tobytes(), b"\1" * rows]


def test_a_batch_is_laid_out_and_its_answer_read(desk: Desk) -> None:
    run = desk.run(7, 1, 2)
    assert run[0] == channel.RUN
    assert run[3:5] == (3, 7)
    view = desk.inputs.segments[run[5]].view
    layout: Layout = read_head(bytes(view[run[9] : run[9] + run[6]]))
    found = look(view, run[9] + body(run[6], run[7]), layout)
    assert found["x"].tolist() == [[0, 1], [0, 1], [2, 3]]
    work, outputs = desk.in_flight.answered(desk.answer(run, *good(3)))
    assert outputs.tensors["y"].data.tolist() == [1, 1, 1]
    assert outputs.tensors["flag"].data.tolist() == [True] * 3
    assert outputs.model_seconds == pytest.approx(5e-6)
    desk.in_flight.ended(work)
    assert desk.shared == [(1, False), (1, True)]


@pytest.mark.parametrize(
    ("named", "data", "says"),
    [
        ([("y", "float32", (2,)), ("flag", "bool", (3,))], [b"", b""], "2 rows, not 3"),
        ([("y", "float64", (3,)), ("flag", "bool", (3,))], [b"", b""], "another dtype"),
        ([("y", "float32", (3, 1)), ("flag", "bool", (3,))], [b"", b""], "number of axes"),
        ([("y", "float32", (3,))], [b""], "not those that were asked for"),
        ([("y", "float32", (3,)), ("other", "bool", (3,))], [b"", b""], "not those that were asked for"),
        ([("y", "float32", (3,)), ("flag", "bool", (3,))], [b"", b"\1\2\0"], "neither true nor false"),
    ],
)
def test_an_answer_must_be_what_the_signature_declares(
    desk: Desk, named: list[Named], data: list[bytes], says: str
) -> None:
    run = desk.run(1, 3)
    with pytest.raises(Scribbled, match=says):
        desk.in_flight.answered(desk.answer(run, named, data))


def test_a_known_number_cannot_lead_outside_what_was_written(desk: Desk) -> None:
    named, data = [("y", "float32", (3,))], [bytes(12)]
    for number in (4, 4):
        run = desk.run(1, 3, outputs=("y",))
        work, outputs = desk.in_flight.answered(desk.answer(run, named, data, number=number))
        assert list(outputs.tensors) == ["y"]
        desk.in_flight.ended(work)
    run = desk.run(2, 3, outputs=("y",))
    with pytest.raises(Scribbled, match="shorter"):
        desk.in_flight.answered(desk.answer(run, named, data, written=70, number=4))


def test_a_number_holds_for_its_rows_and_outputs_alone(desk: Desk) -> None:
    work, _ = desk.in_flight.answered(desk.answer(desk.run(1, 3), *good(3), number=9))
    desk.in_flight.ended(work)
    run = desk.run(2, 4)
    with pytest.raises(Scribbled, match="3 rows, not 4"):
        desk.in_flight.answered(desk.answer(run, *good(3), number=9))


def test_slots_and_batches_must_belong_together(desk: Desk) -> None:
    one, two = desk.run(1, 1), desk.run(2, 1)
    assert one[2] != two[2]
    swapped = (*one[:2], two[2], *one[3:])
    with pytest.raises(Scribbled, match="not running"):
        desk.in_flight.answered(desk.answer(swapped, *good(1)))


def test_more_room_is_given_once(desk: Desk) -> None:
    run = desk.run(1, 1)
    wish = channel.MESSAGE.unpack(channel.message(channel.NEED, slot=run[2], batch=1, p=run[11] + 1))
    fields = channel.MESSAGE.unpack(desk.in_flight.grow(wish))
    assert fields[0] == channel.ROOM
    assert fields[11] > run[11]
    with pytest.raises(Scribbled, match="impossible"):
        desk.in_flight.grow(wish)


def test_started_is_what_the_page_says(desk: Desk) -> None:
    one, two = desk.run(11, 1), desk.run(12, 1)
    assert desk.in_flight.started() == frozenset()
    struct.pack_into("<Q", desk.pages[1].map, 8 * two[2], 12)
    struct.pack_into("<Q", desk.pages[1].map, 8 * one[2], 10)  # an earlier batch in that slot
    assert desk.in_flight.started() == {12}


def test_cancelling_raises_the_flag_of_the_slot_until_the_next_batch(desk: Desk) -> None:
    run = desk.run(1, 1)
    desk.in_flight.cancel(99)
    assert desk.pages[0].map[run[2]] == 0
    desk.in_flight.cancel(1)
    assert desk.pages[0].map[run[2]] == 1
    work, _ = desk.in_flight.answered(desk.answer(run, *good(1)))
    desk.in_flight.ended(work)
    again = desk.run(2, 1)
    assert again[2] == run[2]
    assert desk.pages[0].map[run[2]] == 0


def test_a_segment_is_retired_only_where_it_was_known(desk: Desk) -> None:
    run = desk.run(1, 1)
    assert desk.in_flight.retired(False, 77) is None
    message = desk.in_flight.retired(False, run[5])
    assert message is not None
    fields = channel.MESSAGE.unpack(message)
    assert fields[:2] == (channel.RETIRE, 0)
    assert fields[5] == run[5]
    assert desk.in_flight.retired(False, run[5]) is None


def test_members_that_do_not_fit_leave_nothing_taken(desk: Desk) -> None:
    bad = request(2)
    bad.inputs["x"] = Tensor("float32", (2, 2), bytes(3))
    with pytest.raises((ValueError, IndexError)):
        desk.in_flight.run(1, [request(1), bad], 3)
    assert desk.inputs.used_bytes == desk.outputs.used_bytes == 0


def test_large_members_are_copied_one_by_one(desk: Desk) -> None:
    members = [request(40_000), request(1), request(30_000)]
    fields = channel.MESSAGE.unpack(desk.in_flight.run(1, members, 70_001))
    view = desk.inputs.segments[fields[5]].view
    layout = read_head(bytes(view[fields[9] : fields[9] + fields[6]]))
    found = look(view, fields[9] + layout.start, layout)["x"]
    parts = [np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) for rows in (40_000, 1, 30_000)]
    assert np.array_equal(found, np.concatenate(parts))
    for rows, claimed in ((30_000, 70_000), (40_001, 70_001)):
        wrong = request(40_000)
        wrong.rows = rows
        with pytest.raises(ValueError, match="members of a batch"):
            desk.in_flight.run(2, [wrong, request(29_999 if rows == 30_000 else 30_002)], claimed)


def test_values_shared_by_a_batch_are_written_once() -> None:
    desk = Desk(Signature(inputs={"x": "float32[n, 2]", "scale": "float32[]"}, outputs={"y": "float32[n]"}))
    members = [request(1), request(2)]
    for member in members:
        member.inputs["scale"] = Tensor("float32", (), struct.pack("<f", 3.0))
    fields = channel.MESSAGE.unpack(desk.in_flight.run(1, members, 3))
    view = desk.inputs.segments[fields[5]].view
    layout = read_head(bytes(view[fields[9] : fields[9] + fields[6]]))
    found = look(view, fields[9] + layout.start, layout)
    assert found["scale"].shape == ()
    assert found["scale"] == 3
    assert found["x"].shape == (3, 2)
    desk.close()


def test_a_large_answer_makes_room_for_the_next_of_its_group_and_for_no_other() -> None:
    desk = Desk(Signature(inputs={"x": "float32[n, w]"}, outputs={"y": "float32[n, k]"}))

    def run(batch: int, rows: int, width: int) -> tuple[int, ...]:
        tensor = Tensor("float32", (rows, width), bytes(4 * rows * width))
        message = desk.in_flight.run(batch, [Request({"x": tensor}, rows, ("x", width), 0.0)], rows)
        fields: tuple[int, ...] = channel.MESSAGE.unpack(message)
        return fields

    wide = run(1, 1, 50_000)
    wish = channel.MESSAGE.unpack(channel.message(channel.NEED, slot=wide[2], batch=1, p=1 << 20))
    more = channel.MESSAGE.unpack(desk.in_flight.grow(wish))
    placed = (*wide[:8], more[8], wide[9], *more[10:12], wide[12])
    work, outputs = desk.in_flight.answered(desk.answer(placed, [("y", "float32", (1, 200_000))], [bytes(800_000)]))
    assert outputs.tensors["y"].shape == (1, 200_000)
    desk.in_flight.ended(work)
    narrow, again = run(2, 32, 3), run(3, 1, 50_000)
    assert narrow[11] <= 32 * (1 << 14) * 1.25 + 4096, "32 rows as large as that one would be 25 MiB"
    assert again[11] >= 800_000
    desk.close()


def test_a_new_group_is_given_as_much_room_as_others_needed() -> None:
    desk = Desk(Signature(inputs={"x": "float32[n, w]"}, outputs={"y": "float32[n, k]"}))

    def run(batch: int, width: int) -> tuple[int, ...]:
        tensor = Tensor("float32", (1, width), bytes(4 * width))
        message = desk.in_flight.run(batch, [Request({"x": tensor}, 1, ("x", width), 0.0)], 1)
        fields: tuple[int, ...] = channel.MESSAGE.unpack(message)
        return fields

    first = run(1, 1)
    wish = channel.MESSAGE.unpack(channel.message(channel.NEED, slot=first[2], batch=1, p=first[11] + 4096))
    more = channel.MESSAGE.unpack(desk.in_flight.grow(wish))
    placed = (*first[:8], more[8], first[9], *more[10:12], first[12])
    work, _ = desk.in_flight.answered(desk.answer(placed, [("y", "float32", (1, 1_500))], [bytes(6_000)]))
    desk.in_flight.ended(work)
    assert run(2, 2)[11] >= 6_000 > first[11]
    desk.close()
