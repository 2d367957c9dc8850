"""Frames of any length over pipes that never block: what does not fit now is kept, in bounds, and sent later."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Final

from maitred.replica.channel import Broken

_LENGTH: Final = 4
BUFFER_BYTES: Final = 1 << 20
"""What a pipe is enlarged to where the system allows it, and what one read takes."""
MAX_FRAME_BYTES: Final = 256 << 20


class Clogged(Exception):
    """The other side has not read for too long: more is kept for it than may be."""


class FrameWriter:
    """The sending end of a pipe, which belongs to one event loop."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, limit_bytes: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._limit_bytes = limit_bytes
        self._kept: deque[memoryview] = deque()
        self.kept_bytes = 0
        self.broken = False
        """Nobody reads any more: what is sent is dropped."""

    def send(self, payload: bytes) -> None:
        """Send a frame now or, in its turn, later. Raises Clogged, after which no more may be sent."""
        if self.broken:
            return
        head = len(payload).to_bytes(_LENGTH, "little")
        done = 0
        if not self._kept:
            try:
                done = os.writev(self._fd, (head, payload))
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self.broken = True
                return
            if done == _LENGTH + len(payload):
                return
            self._loop.add_writer(self._fd, self._go_on)
        self._keep(memoryview(head + payload)[done:])

    def _keep(self, rest: memoryview) -> None:
        self.kept_bytes += len(rest)
        if self.kept_bytes > self._limit_bytes:
            raise Clogged(f"does not read what it is sent: {self.kept_bytes:,} bytes wait for it")
        self._kept.append(rest)

    def _go_on(self) -> None:
        kept = self._kept
        try:
            while kept:
                done = os.write(self._fd, kept[0])
                self.kept_bytes -= done
                if done < len(kept[0]):
                    kept[0] = kept[0][done:]
                else:
                    kept.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.broken = True
            kept.clear()
            self.kept_bytes = 0
        self._loop.remove_writer(self._fd)

    def close(self) -> None:
        """Forget what is kept; the descriptor is its owner's to close."""
        if self._kept:
            self._loop.remove_writer(self._fd)
            self._kept.clear()
        self.broken = True


class FrameReader:
    """The receiving end of a pipe."""

    def __init__(self, fd: int, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._limit_bytes = limit_bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._at = 0
        """Where what was not handed out begins."""
        self._filled = 0
        self.ended = False
        """The other side has closed its end."""

    def fill(self) -> bool:
        """Take what has come, as far as there is room for it. False if nothing has."""
        try:
            got = os.readv(self.fd, (self._view[self._filled :],))
        except BlockingIOError:
            return False
        self.ended = not got
        self._filled += got
        return got > 0

    def frame(self) -> memoryview | None:
        """The next frame that is complete: a view that dies with the next call. None where there is none.

        Raises Broken.
        """
        at, filled, view = self._at, self._filled, self._view
        if filled - at >= _LENGTH:
            length = int.from_bytes(view[at : at + _LENGTH], "little")
            if length > self._limit_bytes:
                raise Broken(f"sent a frame of {length:,} bytes")
            start = at + _LENGTH
            if filled - start >= length:
                self._at = start + length
                return view[start : start + length]
            self._settle(_LENGTH + length)
        else:
            self._settle(0)
        return None

    def _settle(self, wanted: int) -> None:
        """Move what is left of an unfinished frame to the start of a buffer that can hold all of it."""
        at, left = self._at, self._filled - self._at
        size = max(wanted, BUFFER_BYTES)
        if size != len(self._buffer):
            larger = bytearray(size)
            larger[:left] = self._view[at : self._filled]
            self._buffer, self._view = larger, memoryview(larger)
        elif at and left:
            self._buffer[:left] = self._buffer[at : self._filled]
        self._at, self._filled = 0, left
