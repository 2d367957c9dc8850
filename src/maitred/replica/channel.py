"""Descriptors over pipes: messages of one small fixed size, which cannot tear, and the frames of the start-up."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

MESSAGE: Final = struct.Struct("<BBHIQIIIIQQQQ")
"""kind, detail, slot, rows, batch, four 32-bit and four 64-bit numbers whose meaning depends on the kind: 64 bytes."""

# parent to child. Numbers not named are 0.
HELLO: Final = 1
"""A frame: what to load and how."""
RUN: Final = 2
"""slot, rows, batch; input segment, head bytes, context bytes, output segment; input offset, output offset, output
bytes, number of the head (equal numbers: equal heads)."""
ROOM: Final = 3
"""A bigger output block for a batch that needs one; 0 bytes: there is none. slot, batch; output segment; output
offset, output bytes."""
RETIRE: Final = 4
"""A segment that will not be used again. detail: 1 for outputs; its id."""
STOP: Final = 5
"""End what runs, then exit."""

# child to parent
LOADED: Final = 16
"""The model is loaded and is being warmed up. nanoseconds taken by the load."""
READY: Final = 17
"""A frame: the description. detail: 1 if the model reads `context.rows`; nanoseconds taken by the warm-up."""
REFUSED: Final = 18
"""A frame: why the model cannot be loaded. detail: 1 if trying again does not change that. The child exits."""
ANSWERED: Final = 19
"""slot, rows: number of the head (equal numbers: equal heads), batch; head bytes; bytes written, nanoseconds of the
model."""
FAILED: Final = 20
"""detail: index into CAUSES; slot, batch; bytes of the text at the start of the output block."""
NEED: Final = 21
"""The outputs don't fit. slot, batch; bytes needed."""

CAUSES: Final = ("raised", "wrong_count", "out_of_memory", "malformed")

_SEGMENT: Final = struct.Struct("<IIQ")


class Frame(NamedTuple):
    """A message with what follows it."""

    fields: tuple[int, ...]
    payload: bytes


class Broken(Exception):
    """The other side sent what is no message."""


def message(
    kind: int,
    detail: int = 0,
    slot: int = 0,
    rows: int = 0,
    batch: int = 0,
    a: int = 0,
    b: int = 0,
    c: int = 0,
    d: int = 0,
    p: int = 0,
    q: int = 0,
    r: int = 0,
    s: int = 0,
) -> bytes:
    return MESSAGE.pack(kind, detail, slot, rows, batch, a, b, c, d, p, q, r, s)


def frame(kind: int, payload: bytes, p: int = 0, detail: int = 0) -> bytes:
    """A message whose number `a` is the length of the payload that follows it."""
    return message(kind, detail, a=len(payload), p=p) + payload


class FrameReader:
    """Cuts the bytes of the start-up into frames."""

    def __init__(self, kinds: frozenset[int], limit_bytes: int = 64 << 20) -> None:
        self._kinds = kinds
        """Those that have a payload."""
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises Broken."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= MESSAGE.size:
            fields = MESSAGE.unpack_from(buffer)
            length = fields[5] if fields[0] in self._kinds else 0
            if length > self._limit_bytes:
                raise Broken(f"a frame of {length:,} bytes")
            end = MESSAGE.size + length
            if len(buffer) < end:
                return
            payload = bytes(buffer[MESSAGE.size : end])
            del buffer[:end]
            yield Frame(fields, payload)


def write_all(fd: int, data: bytes) -> None:
    """Write to a blocking pipe. Raises BrokenPipeError when nobody reads any more."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, data[done:])


def send_segment(control: socket.socket, outputs: bool, id: int, size: int, fd: int) -> None:
    """Hand a segment over a local socket. Raises OSError if the other side has gone."""
    socket.send_fds(control, [_SEGMENT.pack(outputs, id, size)], [fd])


class Handed(NamedTuple):
    outputs: bool
    id: int
    size: int
    fd: int


def receive_segment(control: socket.socket) -> Handed | None:
    """The next segment that the parent hands over; waits for it. None if the parent has gone."""
    data, fds, _, _ = socket.recv_fds(control, _SEGMENT.size, 1)
    if len(data) < _SEGMENT.size or not fds:
        return None
    outputs, id, size = _SEGMENT.unpack(data)
    return Handed(bool(outputs), id, size, fds[0])
