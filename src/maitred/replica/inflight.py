"""The batches that a child process runs: the blocks they lie in, and the check of all that the child says of them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from maitred.messages import Outputs, Request, Tensor
from maitred.model.signature import Signature
from maitred.replica import channel
from maitred.replica.execution import MAX_MESSAGE
from maitred.replica.layout import (
    Fixed,
    Invalid,
    Layout,
    body,
    lay_out,
    loose_bytes,
    pack_items,
    raw,
    read,
    read_head,
    write_loose,
)
from maitred.replica.lease import Lease
from maitred.replica.memory import Arena, Block, NoMemory, Segment

_JOIN_BYTES: Final = 1 << 18
"""Up to this size the members' bytes are joined and copied at once; larger ones are copied one by one."""
_LEASED_BYTES: Final = 1 << 16
"""Answers from this size on may be kept by those who got them, without a copy."""
_MAX_LAYOUTS: Final = 1024
_MAX_OUTPUT_BYTES: Final = 1 << 40
_LARGE_ROW_BYTES: Final = 1 << 14
"""Rows of answers above this size say nothing about other groups: a full batch of them would be a mebibyte."""
MAX_ROOM: Final = 512
PAGE_BYTES: Final = 8 * MAX_ROOM
_STARTED: Final = struct.Struct("<Q")
_encoder: Final = msgspec.msgpack.Encoder()
_pack: Final = channel.MESSAGE.pack
frombuffer: Final = np.frombuffer


class Scribbled(Exception):
    """The child said what cannot be true; it is no longer to be believed. The message ends `the child ...`."""


class Guess(msgspec.Struct, eq=False, gc=False):
    """How many bytes a row's answer will probably have: learned for each group, for sizes of inputs may decide it."""

    row_bytes: float


class Work(msgspec.Struct, eq=False, gc=False):
    """One batch at the child."""

    batch: int
    slot: int
    rows: int
    wanted: tuple[str, ...] | None
    input: Block
    output: Block
    guess: Guess
    lease: Lease | None
    """Of what its only request brought: that is read again after a loss, so it is held even where it was copied."""
    grown: bool = False
    kept: Lease | None = None
    """Of a large answer, whose arrays may be lent to callers."""


class Form(NamedTuple):
    """A batch's layout under the number by which the child knows it, and what its answers were like."""

    number: int
    layout: Layout
    guess: Guess


class InFlight:
    """What one child runs. The caller sends what `message` methods give, in order.

    `share(segment, outputs)` is called before the first message that names a segment.
    """

    def __init__(
        self,
        inputs: Arena,
        outputs: Arena,
        flags: Segment,
        started: Segment,
        share: Callable[[Segment, bool], None],
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._flags = flags.map
        self._started = started
        self._share = share
        self._shared_inputs: set[int] = set()
        self._shared_outputs: set[int] = set()
        self._running: dict[int, Work] = {}
        self._slots: list[int] = []
        self._forms: dict[Hashable, Form] = {}
        self._form_numbers = itertools.count(1)
        self._guesses: dict[Hashable, Guess] = {}
        self._answers: dict[Hashable, Layout] = {}
        self._row_bytes = 0.0
        self._usual = Guess(0.0)
        """Over all groups."""
        self._fixed_bytes = 0

    def open(self, signature: Signature, room: int, with_rows: bool) -> None:
        """Make ready for batches of a model with this signature; `with_rows`: it wants to know each row's request."""
        self._signature = signature
        self._shared_values = signature.shared
        self._with_rows = with_rows
        self._slots = list(range(room - 1, -1, -1))
        known = [signature.row_bytes(name) for name in signature.answers]
        self._learns = None in known
        self._row_bytes = float(sum(size or 0 for size in known))
        self._usual = Guess(self._row_bytes)
        self._fixed_bytes = sum(512 + 4 * len(name) for name in signature.answers)

    def running(self) -> bool:
        return bool(self._running)

    # ------------------------------------------------------------------ to the child

    def run(self, batch: int, requests: list[Request], rows: int) -> bytes:
        """Lay a batch out and make the message that starts it.

        Raises NoMemory, and ValueError, TypeError or OverflowError where the requests don't fit each other.
        """
        first = requests[0]
        wanted = first.outputs
        if wanted is not None and any(request.outputs != wanted for request in requests):
            wanted = None  # each takes its own from all of them
        group = first.group
        form = self._forms.get((group, rows)) if group is not None else None
        if form is None:
            form = self._form(requests, rows)
        layout = form.layout
        lease: Lease | None = first.lease
        if layout.loose or wanted or first.parameters or self._with_rows or lease is not None:
            lease = _alone(lease, requests)
            input, context_bytes = self._write_all(form, requests, wanted, lease)
        else:
            context_bytes = 0
            input = self._inputs.take(layout.size)
            try:
                self._write(input, layout.start, form, requests)
            except BaseException:
                self._inputs.give(input)
                raise
        try:
            output = self._output(rows, form.guess)
        except NoMemory:
            self._inputs.give(input)
            raise
        slot = self._slots.pop()
        self._running[batch] = Work(batch, slot, rows, wanted, input, output, form.guess, lease)
        if lease is not None:
            lease.hold()
        self._flags[slot] = 0
        from_, to = input.segment.id, output.segment.id
        if from_ not in self._shared_inputs or to not in self._shared_outputs:
            self._shared(input, output)
        return _pack(
            channel.RUN, 0, slot, rows, batch, from_, len(layout.head), context_bytes, to, input.offset,
            output.offset, output.size, form.number,
        )  # fmt: skip

    def _output(self, rows: int, guess: Guess) -> Block:
        """A block for the answer, as large as that will probably be."""
        try:
            return self._outputs.take(int(guess.row_bytes * rows) + self._fixed_bytes)
        except NoMemory:
            return self._outputs.take(self._fixed_bytes)  # the guess may be wrong; if not, the child asks for more

    def cancel(self, batch: int) -> None:
        work = self._running.get(batch)
        if work is not None:
            self._flags[work.slot] = 1

    def retired(self, outputs: bool, segment: int) -> bytes | None:
        """The message that a segment will not be used again; None if the child never heard of it."""
        shared = self._shared_outputs if outputs else self._shared_inputs
        if segment not in shared:
            return None
        shared.remove(segment)
        return channel.message(channel.RETIRE, detail=outputs, a=segment)

    def _form(self, requests: list[Request], rows: int) -> Form:
        """The form of a batch; made once for batches of the same group and size."""
        first = requests[0]
        merged = len(requests) > 1
        alone = self._shared_values if merged else first.inputs
        layout = lay_out(
            (name, tensor.dtype, tensor.shape if name in alone else (rows, *tensor.shape[1:]))
            for name, tensor in first.inputs.items()
        )
        if first.group is None:
            return Form(next(self._form_numbers), layout, self._first_guess())
        if len(self._forms) >= _MAX_LAYOUTS:
            self._forms.clear()
            self._guesses.clear()
        guess = self._guesses.get(first.group) or self._guesses.setdefault(first.group, self._first_guess())
        form = self._forms[first.group, rows] = Form(next(self._form_numbers), layout, guess)
        return form

    def _first_guess(self) -> Guess:
        """For a group that is new: what others' answers were like, unless those were large."""
        return Guess(min(self._usual.row_bytes, max(self._row_bytes, _LARGE_ROW_BYTES)))

    def _context(
        self, requests: list[Request], wanted: tuple[str, ...] | None, places: list[tuple[int, int]] | None
    ) -> bytes:
        members = [(r.rows, r.id, r.lane, r.parameters) for r in requests] if self._with_rows else None
        return _encoder.encode((requests[0].parameters, wanted, members, places))

    def _packed(self, name: str, requests: list[Request]) -> bytes:
        if len(requests) == 1 or name in self._shared_values:
            return pack_items(_items(requests[0].inputs[name]))
        return pack_items([item for request in requests for item in _items(request.inputs[name])])

    def _write_all(
        self, form: Form, requests: list[Request], wanted: tuple[str, ...] | None, lease: Lease | None
    ) -> tuple[Block, int]:
        """A block with a batch that has more to it than tensors of fixed-size elements, and its context's bytes."""
        layout = form.layout
        if lease is not None:
            pointed = self._point(form, requests, wanted, lease)
            if pointed is not None:
                return pointed
        needs_context = wanted or requests[0].parameters or self._with_rows
        context = self._context(requests, wanted, None) if needs_context else b""
        packed = [self._packed(name, requests) for name, _, _ in layout.loose]
        start = body(len(layout.head), len(context))
        block = self._inputs.take(start + layout.end + loose_bytes(packed))
        try:
            at = block.offset + len(layout.head)
            block.map[at : at + len(context)] = context
            self._write(block, start, form, requests)
            write_loose(block.map, block.offset + start + layout.end, packed)
        except BaseException:
            self._inputs.give(block)
            raise
        return block, len(context)

    def _point(
        self, form: Form, requests: list[Request], wanted: tuple[str, ...] | None, lease: Lease
    ) -> tuple[Block, int] | None:
        """As `_write_all`, for a request whose tensors lie in memory that the child can read: it is told where.

        What does not lie there, or not as arrays should, is copied beside the head. None if that is everything.
        """
        if lease.arena is not self._inputs:
            return None
        inputs = requests[0].inputs
        places: list[tuple[int, int]] = []
        copied: list[tuple[int, int, Any]] = []
        segment, end = lease.block.segment.id, 0
        for fixed in form.layout.fixed:
            data = inputs[fixed.name].data
            size = fixed.stop - fixed.start
            at = lease.place_of(data)
            if at is not None and data.nbytes == size:
                places.append((segment, at))
                continue
            places.append((0, end))
            copied.append((end, end + size, data))
            end = body(end + size)
        if len(copied) == len(places):
            return None
        packed = [self._packed(name, requests) for name, _, _ in form.layout.loose]
        head, context = form.layout.head, self._context(requests, wanted, places)
        start = body(len(head), len(context))
        block = self._inputs.take(start + end + loose_bytes(packed))
        try:
            map, at = block.map, block.offset
            map[at : at + len(head) + len(context)] = head + context
            for begin, stop, data in copied:
                map[at + start + begin : at + start + stop] = raw(data)
            write_loose(map, at + start + end, packed)
            self._share_input(lease.block.segment)
        except BaseException:
            self._inputs.give(block)
            raise
        return block, len(context)

    def _write(self, block: Block, start: int, form: Form, requests: list[Request]) -> None:
        """Copy the head and the elements of fixed size into a block, where those begin at `start`."""
        map, at = block.map, block.offset
        layout = form.layout
        map[at : at + len(layout.head)] = layout.head
        at += start
        single = len(requests) == 1
        for fixed in layout.fixed:
            name, dtype, _, _, _, begin, stop = fixed
            if single or name in self._shared_values:
                data = requests[0].inputs[name].data
                map[at + begin : at + stop] = data if type(data) is bytes else raw(data)
            elif stop - begin <= _JOIN_BYTES and dtype != "bfloat16":
                map[at + begin : at + stop] = b"".join([request.inputs[name].data for request in requests])
            else:
                _write_singly(map, at, fixed, requests)

    def _share_input(self, segment: Segment) -> None:
        if segment.id not in self._shared_inputs:
            self._share(segment, False)
            self._shared_inputs.add(segment.id)

    def _shared(self, input: Block, output: Block) -> None:
        self._share_input(input.segment)
        if output.segment.id not in self._shared_outputs:
            self._share(output.segment, True)
            self._shared_outputs.add(output.segment.id)

    # ------------------------------------------------------------------ from the child

    def answered(self, fields: tuple[int, ...]) -> tuple[Work, Outputs]:
        """A batch's answer, looking into its output block: `ended` frees that. Raises Scribbled."""
        _, _, slot, number, batch, head_bytes, _, _, _, written, nanoseconds, _, _ = fields
        work = self._running.get(batch)
        if work is None or work.slot != slot:
            raise Scribbled("spoke of a batch that it was not running")
        block = work.output
        if not 0 < head_bytes <= written <= block.size:
            raise Scribbled("said that its answer lies outside the block it was given")
        rows = work.rows
        # A number that stands for another layout than the head's is the child's lie to its own callers: whatever layout
        # is kept here for these rows and outputs may be answered with.
        layout = self._answers.get((number, rows, work.wanted))
        if layout is None:
            layout = self._expected(work, number, block.map[block.offset : block.offset + head_bytes])
        if layout.special:
            tensors = self._special(work, layout, written)
        else:
            if layout.size > written:
                raise Scribbled("said that its answer is shorter than its outputs")
            view, at = block.segment.view, block.offset + layout.start
            tensors = {}
            for name, dtype, shape, numpy, count, start, _ in layout.fixed:
                array = frombuffer(view, numpy, count, at + start)
                tensors[name] = Tensor(dtype, shape, array if len(shape) == 1 else array.reshape(shape))  # type: ignore[arg-type]
        if self._learns:
            _learn(work.guess, written, rows)
            _learn(self._usual, written, rows)
        del self._running[batch]
        self._slots.append(slot)
        self._inputs.give(work.input)
        if work.lease is not None:
            work.lease.drop()
        outputs = Outputs(tensors, rows, nanoseconds * 1e-9)
        if written >= _LEASED_BYTES:
            outputs.lease = work.kept = Lease(self._outputs, block, 0, block.size)
        return work, outputs

    def _special(self, work: Work, layout: Layout, written: int) -> dict[str, Tensor]:
        """The tensors of an answer with texts, bools, or nothing in it. Raises Scribbled."""
        block = work.output
        try:
            values = read(block.segment.view, block.offset + layout.start, layout, block.offset + written)
        except Invalid as error:
            raise Scribbled(f"answered what its signature does not allow: {error}") from error
        tensors = {}
        for name, dtype, shape, *_ in layout.fixed:
            value = values[name]
            if dtype == "bool" and value.size and value.view(np.uint8).max() > 1:
                raise Scribbled(f"answered a bool that is neither true nor false: '{name}'")
            tensors[name] = Tensor(dtype, shape, value)  # type: ignore[arg-type]
        for name, dtype, shape in layout.loose:
            tensors[name] = Tensor(dtype, shape, values[name])  # type: ignore[arg-type]
        return {name: tensors[name] for name in self._signature.carried(work.wanted)}

    def failed(self, fields: tuple[int, ...]) -> tuple[Work, str]:
        """What the child says of a batch that the model failed on. Raises Scribbled."""
        _, detail, slot, _, batch, length, *_ = fields
        work = self._work(batch, slot)
        block = work.output
        if length > block.size or detail >= len(channel.CAUSES):
            raise Scribbled("said that its error lies outside the block it was given")
        text = block.map[block.offset : block.offset + length].decode("utf-8", "replace")
        self._leave(work)
        return work, text[:MAX_MESSAGE] or "the outputs of this batch need more memory than batches may take"

    def grow(self, fields: tuple[int, ...]) -> bytes:
        """The message that gives a batch the bigger output block it needs. Raises Scribbled, NoMemory."""
        _, _, slot, _, batch, _, _, _, _, needed, *_ = fields
        work = self._work(batch, slot)
        if work.grown or not work.output.size < needed < _MAX_OUTPUT_BYTES:
            raise Scribbled("asked for an impossible amount of memory")
        work.grown = True
        output = self._outputs.take(needed)
        self._outputs.give(work.output)
        work.output = output
        self._shared(work.input, output)
        return channel.message(
            channel.ROOM, slot=slot, batch=batch, d=output.segment.id, q=output.offset, r=output.size
        )

    def refuse(self, fields: tuple[int, ...]) -> bytes:
        """The message that there is no bigger block: the child answers that it failed."""
        return channel.message(channel.ROOM, slot=fields[2], batch=fields[4])

    def ended(self, work: Work) -> None:
        """Free an answer's block: its views are dead, but for those of a lease."""
        if work.kept is None:
            self._outputs.give(work.output)
        else:
            work.kept.drop()

    def started(self) -> frozenset[int]:
        """The batches that the child says it had begun, or of which it says what cannot be true.

        Batches' numbers rise: a slot's page names an earlier one or none until the batch begins.
        """
        page = self._started.view
        return frozenset(
            work.batch for work in self._running.values() if _STARTED.unpack_from(page, 8 * work.slot)[0] >= work.batch
        )

    def given(self) -> frozenset[int]:
        """The batches that the child has and has not answered, whatever it says of them."""
        return frozenset(self._running)

    def abandon(self) -> None:
        """The child has gone: nobody writes into its blocks any more."""
        for work in self._running.values():
            self._give_input(work)
            self._outputs.give(work.output)
        self._running.clear()

    def _give_input(self, work: Work) -> None:
        self._inputs.give(work.input)
        if work.lease is not None:
            work.lease.drop()

    def _work(self, batch: int, slot: int) -> Work:
        work = self._running.get(batch)
        if work is None or work.slot != slot:
            raise Scribbled("spoke of a batch that it was not running")
        return work

    def _leave(self, work: Work) -> None:
        del self._running[work.batch]
        self._slots.append(work.slot)
        self._give_input(work)

    def _expected(self, work: Work, number: int, head: bytes) -> Layout:
        """The layout that a head names, if it is one that this batch may be answered with. Raises Scribbled."""
        try:
            layout = self._allowed(work.rows, work.wanted, head)
        except Invalid as error:
            raise Scribbled(f"answered what its signature does not allow: {error}") from error
        if len(self._answers) >= _MAX_LAYOUTS:
            self._answers.clear()
        self._answers[number, work.rows, work.wanted] = layout
        return layout

    def _allowed(self, rows: int, wanted: tuple[str, ...] | None, head: bytes) -> Layout:
        form = read_head(head)
        signature = self._signature
        names = signature.carried(wanted)
        named = [*((f.name, f.dtype, f.shape) for f in form.fixed), *form.loose]
        if {name for name, _, _ in named} != set(names):
            raise Invalid("its outputs are not those that were asked for")
        for name, dtype, shape in named:
            spec = signature.answers[name]
            if dtype != spec.dtype or len(shape) != len(spec.shape):
                raise Invalid(f"'{name}' has another dtype or number of axes than declared")
            for size, declared in zip(shape, spec.shape, strict=True):
                if isinstance(declared, int) and size != declared:
                    raise Invalid(f"'{name}' has another shape than declared")
            if signature.row_wise and spec.shape and spec.shape[0] == signature.row_symbol and shape[0] != rows:
                raise Invalid(f"'{name}' has {shape[0]} rows, not {rows}")
        return form


def _learn(guess: Guess, written: int, rows: int) -> None:
    """Guess the next answers' size from this one's: up at once, down slowly."""
    seen, known = 1.25 * written / max(1, rows), guess.row_bytes
    guess.row_bytes = seen if seen > known else known + 0.05 * (seen - known)


def _alone(lease: Lease | None, requests: list[Request]) -> Lease | None:
    """The lease of a batch of one. Raises ValueError where a member's bytes have been given back: that is a defect."""
    if any(request.lease is not None and not request.lease.alive for request in requests):
        raise ValueError("a request came to run whose bytes had been given back")
    return lease if len(requests) == 1 else None


def _items(tensor: Tensor) -> list[Any]:
    items: list[Any] = tensor.data if isinstance(tensor.data, list) else tensor.data.reshape(-1).tolist()
    return items


def _write_singly(map: Any, at: int, fixed: Fixed, requests: list[Request]) -> None:
    start, stop = at + fixed.start, at + fixed.stop
    for request in requests:
        data = memoryview(raw(request.inputs[fixed.name].data)).cast("B")
        if start + len(data) > stop:
            raise ValueError("the members of a batch hold more elements than their rows say")
        map[start : start + len(data)] = data
        start += len(data)
    if start != stop:
        raise ValueError("the members of a batch hold fewer elements than their rows say")
