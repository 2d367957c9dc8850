"""The child's end of the channel: batches out of shared memory, answers into it."""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from maitred import host
from maitred.model.predictor import Arrays, Context
from maitred.replica import channel
from maitred.replica.execution import Execution, Member, failure, objects
from maitred.replica.layout import (
    Layout,
    body,
    lay_out,
    look,
    loose_bytes,
    pack_items,
    raw,
    read,
    read_head,
    read_placed,
    write_loose,
)

log = logging.getLogger("maitred.replica")

_MAX_LAYOUTS: Final = 1024
_STARTED: Final = struct.Struct("<Q")
_context_decoder: Final = msgspec.msgpack.Decoder(
    tuple[dict[str, Any] | None, tuple[str, ...] | None, list[Member] | None, list[tuple[int, int]] | None]
)
_NOTHING: Final = (None, None, None, None)
_pack: Final = channel.MESSAGE.pack


class _Held(NamedTuple):
    """An answer, ready to be written somewhere."""

    number: int
    layout: Layout
    arrays: Arrays
    packed: list[bytes]
    size: int
    nanoseconds: int


class Station:
    """What the child reads and writes. Several threads may use it, each for batches of its own."""

    def __init__(self, reading: int, writing: int, control: socket.socket) -> None:
        self.reading = reading
        self._writing = writing
        self._control = control
        self._maps: tuple[dict[int, mmap.mmap], dict[int, mmap.mmap]] = ({}, {})
        """Of inputs and of outputs, by the segment's id."""
        self._views: dict[int, memoryview] = {}
        self._receiving = threading.Lock()
        self._forms: dict[int, Layout] = {}
        """Of batches, by the number that the parent gave the head."""
        self._answers: dict[tuple[Any, ...], tuple[int, Layout]] = {}
        self._numbers = itertools.count(1)
        self._held: dict[int, _Held] = {}
        self._execution: Execution | None = None
        self._flags = self._segment(False, 0)
        self._started = self._segment(True, 0)
        self._asked = [self._asker(slot) for slot in range(len(self._flags))]

    def open(self, execution: Execution) -> None:
        """Serve this model from now on."""
        self._execution = execution
        specs = execution.signature.answers
        self._dtypes = {name: spec.dtype for name, spec in specs.items()}

    def say(self, message: bytes) -> None:
        channel.write_all(self._writing, message)

    # ------------------------------------------------------------------ batches

    def begin(self, fields: tuple[int, ...], execution: Execution) -> tuple[Arrays, Context]:
        """A batch's inputs, which look into shared memory, and its context; it counts as started from here on."""
        _, _, slot, _, batch, segment, head_bytes, context_bytes, _, at, _, _, number = fields
        view = self._views.get(segment) or self._view(segment)
        layout = self._forms.get(number) or self._form(number, view[at : at + head_bytes])
        if context_bytes or layout.loose:
            values, context = self._begin_all(fields, view, layout, execution)
        else:
            values = look(view, at + layout.start, layout)
            context = Context(None, None, (), False, self._asked[slot])
        _STARTED.pack_into(self._started, 8 * slot, batch)
        return values, context

    def _begin_all(
        self, fields: tuple[int, ...], view: memoryview, layout: Layout, execution: Execution
    ) -> tuple[Arrays, Context]:
        _, _, slot, _, _, _, head_bytes, context_bytes, _, at, _, _, _ = fields
        start = at + head_bytes
        known = _context_decoder.decode(view[start : start + context_bytes]) if context_bytes else _NOTHING
        parameters, wanted, members, places = known
        at += body(head_bytes, context_bytes)
        if places is None:
            values = read(view, at, layout, len(view))
        else:
            values = read_placed(self._view_of, places, layout, view, at)
        for name, _, shape in layout.loose:
            values[name] = objects(values[name], shape)
        return values, execution.context(parameters, wanted, members, self._asked[slot])

    def answer(self, fields: tuple[int, ...], outputs: Arrays, nanoseconds: int) -> None:
        """Write the outputs where the parent said, or ask it for more room."""
        _, _, slot, _, batch, _, _, _, segment, _, at, room, _ = fields
        key = tuple([(name, array.shape) for name, array in outputs.items()])
        number, layout = self._answers.get(key) or self._answer(key)
        size = layout.size
        packed: list[bytes] = []
        if layout.loose:
            packed = [pack_items(outputs[name].reshape(-1).tolist()) for name, _, _ in layout.loose]
            size += loose_bytes(packed)
        if size > room:
            self._held[batch] = _Held(number, layout, outputs, packed, size, nanoseconds)
            self.say(channel.message(channel.NEED, slot=slot, batch=batch, p=size))
        else:
            self._write(slot, batch, segment, at, number, layout, outputs, packed, size, nanoseconds)

    def room(self, fields: tuple[int, ...]) -> None:
        """The parent's answer to a wish for more room."""
        _, _, slot, _, batch, _, _, _, segment, _, at, room, _ = fields
        held = self._held.pop(batch)
        if room:
            self._write(slot, batch, segment, at, *held)
        else:
            self.say(channel.message(channel.FAILED, channel.CAUSES.index("out_of_memory"), slot, batch=batch))

    def failed(self, fields: tuple[int, ...], error: BaseException, execution: Execution) -> None:
        """Say that the model failed on a batch; where even that fails, end this process: nobody should wait."""
        try:
            self._failed(fields, error, execution)
        except BaseException as broken:  # the error's own methods run in there
            log.error("a failure could not be told of", exc_info=broken)
            leave(1)

    def _failed(self, fields: tuple[int, ...], error: BaseException, execution: Execution) -> None:
        _, _, slot, _, batch, _, _, _, segment, _, at, room, _ = fields
        execution.faults.raised(error)
        cause, message = failure(error)
        text = message.encode("utf-8", "replace")[:room]
        self._segment(True, segment)[at : at + len(text)] = text
        self.say(channel.message(channel.FAILED, channel.CAUSES.index(cause), slot, batch=batch, a=len(text)))

    def retire(self, fields: tuple[int, ...]) -> None:
        """Forget a segment; its memory goes when the last array that looks at it does."""
        outputs, id = fields[1], fields[5]
        self._maps[outputs].pop(id, None)
        if not outputs:
            self._views.pop(id, None)

    def _write(
        self,
        slot: int,
        batch: int,
        segment: int,
        at: int,
        number: int,
        layout: Layout,
        arrays: Arrays,
        packed: list[bytes],
        size: int,
        nanoseconds: int,
    ) -> None:
        map = self._maps[1].get(segment) or self._segment(True, segment)
        head = layout.head
        map[at : at + len(head)] = head
        start = at + layout.start
        for name, dtype, _, _, _, begin, stop in layout.fixed:
            array = arrays[name]
            map[start + begin : start + stop] = (
                array.data if dtype != "bfloat16" and array.flags.c_contiguous else raw(array)
            )
        if packed:
            write_loose(map, start + layout.end, packed)
        os.write(
            self._writing,
            _pack(channel.ANSWERED, 0, slot, number, batch, len(head), 0, 0, 0, size, nanoseconds, 0, 0),
        )

    # ------------------------------------------------------------------ memory

    def _form(self, number: int, head: memoryview) -> Layout:
        layout = read_head(bytes(head))
        if len(self._forms) >= _MAX_LAYOUTS:
            self._forms.clear()
        self._forms[number] = layout
        return layout

    def _answer(self, key: tuple[Any, ...]) -> tuple[int, Layout]:
        layout = lay_out((name, self._dtypes[name], shape) for name, shape in key)
        if len(self._answers) >= _MAX_LAYOUTS:
            self._answers.clear()
        numbered = self._answers[key] = next(self._numbers) & 0xFFFFFFFF, layout
        return numbered

    def _view_of(self, segment: int) -> memoryview:
        return self._views.get(segment) or self._view(segment)

    def _view(self, segment: int) -> memoryview:
        view = self._views[segment] = memoryview(self._segment(False, segment))
        return view

    def _segment(self, outputs: bool, id: int) -> mmap.mmap:
        """A segment's map; waits for its descriptor where it is new."""
        maps = self._maps[outputs]
        if id not in maps:
            with self._receiving:
                while id not in maps:
                    handed = channel.receive_segment(self._control)
                    if handed is None:
                        leave()
                    self._maps[handed.outputs][handed.id] = host.attach(handed.fd, handed.size, handed.outputs)
                    os.close(handed.fd)
        return maps[id]

    def _asker(self, slot: int) -> Callable[[], bool]:
        flags = self._flags
        return lambda: flags[slot] != 0


def leave(code: int = 0) -> NoReturn:
    """End this process at once: the parent has gone, or the model wants to exit."""
    os._exit(code)
