"""Shared segments cut into blocks by the parent alone: the memory through which batches and answers go."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from typing import Final

from maitred import host

SMALLEST: Final = 4096
"""Bytes of the smallest block; a power of two."""
_LARGEST_STEP: Final = 64 << 20
LEND_BYTES: Final = 256 << 20
"""Of an arena's blocks, kept by arrays that are other people's to let go."""
_LOOK_EVERY: Final = 256
"""Blocks given back between two looks at whether a segment is still needed."""


class NoMemory(Exception):
    """The system, or the arena's own limit, has no room for a block; the message says how much was asked for."""


class Segment:
    """A nameless shared piece of memory, never resized. `id` is unique within its arena, from 1."""

    __slots__ = ("id", "size", "map", "view", "fd", "live", "top")

    def __init__(self, id: int, size: int, children_write: bool) -> None:
        self.id = id
        self.size = size
        self.map, self.fd = host.reserve(size, children_write)
        self.view = memoryview(self.map).toreadonly()
        self.live = 0
        """Blocks in use."""
        self.top = 0
        """Where the part that was never cut begins."""

    def close(self) -> None:
        """Give the memory back; while an array still looks at it, that happens with the array's end."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self.map.close()
        os.close(self.fd)


class Block:
    """A piece of a segment, of one of the arena's sizes; belongs to whoever took it until it is given back."""

    __slots__ = ("segment", "map", "offset", "size", "taken")

    def __init__(self, segment: Segment, offset: int, size: int) -> None:
        self.segment = segment
        self.map: mmap.mmap = segment.map
        self.offset = offset
        self.size = size
        self.taken = False


def size_class(size: int) -> int:
    """The size of the block for `size` bytes: at most a quarter more, once above the smallest block."""
    if size <= SMALLEST:
        return SMALLEST
    step = 1 << ((size - 1).bit_length() - 3)
    return (size + step - 1) // step * step


class Arena:
    """Blocks of any size out of segments that are added when needed and given back when long unused.

    Not thread-safe. Only the process that made it cuts blocks; children are handed the segments' descriptors.
    """

    def __init__(self, children_write: bool, segment_bytes: int = 1 << 20, limit_bytes: int = 1 << 62) -> None:
        self.children_write = children_write
        self.segments: dict[int, Segment] = {}
        self.reserved_bytes = 0
        self.used_bytes = 0
        self.lent_bytes = 0
        """Kept by arrays that left with the caller: see `Lease.lend`."""
        self.retired: list[Callable[[int], None]] = []
        """Called with the id of a segment that is being given back."""
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._free: dict[int, list[Block]] = {}
        self._next_id = 1
        self._peak = 0
        self._until_look = _LOOK_EVERY
        self._closed = False

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes, with whatever was in it before. Raises NoMemory."""
        size = SMALLEST if size <= SMALLEST else size_class(size)
        free = self._free.get(size)
        block = free.pop() if free else self._cut(size)
        block.taken = True
        block.segment.live += 1
        self.used_bytes += block.size
        if self.used_bytes > self._peak:
            self._peak = self.used_bytes
        return block

    def give(self, block: Block) -> None:
        """Take a block back; that of an arena which has been closed is gone. Raises RuntimeError if it isn't out."""
        if not block.taken:
            raise RuntimeError("a block was given back twice")
        if self._closed:
            block.taken = False
            return
        block.taken = False
        block.segment.live -= 1
        self.used_bytes -= block.size
        self._free[block.size].append(block)
        self._until_look -= 1
        if not self._until_look:
            self.look()

    def close(self) -> None:
        """Give all segments back. A block that is still out may be used while something looks at it."""
        self._closed = True
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()
        self._free.clear()
        self.reserved_bytes = self.used_bytes = 0

    def _cut(self, size: int) -> Block:
        segment = self._with_space(size) or self._reclaimed(size)
        if segment is None:
            try:
                segment = self._grown(size)
            except NoMemory:
                block = self._larger(size)
                if block is None:
                    raise
                return block
        block = Block(segment, segment.top, size)
        segment.top += size
        self._free.setdefault(size, [])
        return block

    def _with_space(self, size: int) -> Segment | None:
        return next((s for s in self.segments.values() if s.size - s.top >= size), None)

    def _reclaimed(self, size: int) -> Segment | None:
        """An idle segment, uncut again: its free blocks had other sizes."""
        for segment in self.segments.values():
            if not segment.live and segment.size >= size:
                self._forget(segment)
                segment.top = 0
                return segment
        return None

    def _larger(self, size: int) -> Block | None:
        """A free block that is larger than need be: better than none."""
        sizes = [other for other, blocks in self._free.items() if other > size and blocks]
        return self._free[min(sizes)].pop() if sizes else None

    def _grown(self, size: int) -> Segment:
        """One more segment, if need be in the place of idle ones, whose blocks had other sizes. Raises NoMemory."""
        wanted = max(size, self._segment_bytes, min(self.reserved_bytes, _LARGEST_STEP))
        if self._closed:
            raise NoMemory("the model is being stopped")
        if self.reserved_bytes + wanted > self._limit_bytes:
            wanted = size
        if self.reserved_bytes + wanted > self._limit_bytes:
            self._retire_idle()
        if self.reserved_bytes + wanted > self._limit_bytes:
            raise NoMemory(f"{size:,} bytes more are over the limit of {self._limit_bytes:,} for batches in flight")
        try:
            segment = Segment(self._next_id, wanted, self.children_write)
        except OSError:
            self._retire_idle()
            segment = self._last_try(size)
        self._next_id += 1
        self.segments[segment.id] = segment
        self.reserved_bytes += segment.size
        return segment

    def _last_try(self, size: int) -> Segment:
        """What is needed and no more, from a system that has just refused. Raises NoMemory."""
        try:
            return Segment(self._next_id, size, self.children_write)
        except OSError as error:
            raise NoMemory(f"the system has no {size:,} bytes for batches in flight ({error.strerror})") from error

    def _forget(self, segment: Segment) -> None:
        for size, blocks in self._free.items():
            self._free[size] = [block for block in blocks if block.segment is not segment]

    def look(self) -> None:
        """Give back idle segments, large ones first, beyond twice the bytes that were used at once since the last look.

        Happens by itself now and then while blocks come back; call it at times for an arena that may lie idle.
        """
        self._until_look = _LOOK_EVERY
        keep = max(2 * self._peak, self._segment_bytes)
        idle = sorted((s for s in self.segments.values() if not s.live), key=lambda s: -s.size)
        for segment in idle:
            if self.reserved_bytes - segment.size >= keep or segment.size > keep:
                self._retire(segment)
        self._peak = self.used_bytes

    def _retire_idle(self) -> None:
        for segment in [segment for segment in self.segments.values() if not segment.live]:
            self._retire(segment)

    def _retire(self, segment: Segment) -> None:
        self._forget(segment)
        del self.segments[segment.id]
        self.reserved_bytes -= segment.size
        segment.close()
        for told in self.retired:
            told(segment.id)
