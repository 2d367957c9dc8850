"""A lease on a block: several may need its bytes, and it goes back to its arena with the last of them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from maitred.replica.layout import ALIGN
from maitred.replica.memory import LEND_BYTES, Arena, Block


class Lease:
    """Bytes in a block, and how many still need them: a plain number, for only the arena's own process counts.

    Whoever makes it needs it first. `ended` is called once, when the block has been given back.
    """

    __slots__ = ("block", "start", "size", "address", "arena", "_holders", "_ended")

    def __init__(
        self, arena: Arena, block: Block, start: int, size: int, ended: Callable[[], None] | None = None
    ) -> None:
        """The bytes `start:start + size` of a block that the arena has given out."""
        self.block = block
        self.start = block.offset + start
        """From the beginning of the segment."""
        self.size = size
        self.address = address_of(self.view)
        self.arena = arena
        self._holders = 1
        self._ended = ended

    @classmethod
    def of_body(cls, arena: Arena, size: int, head_bytes: int, ended: Callable[[], None] | None = None) -> Lease:
        """Room for a body whose tensors follow `head_bytes` of other things: they begin where arrays should.

        Raises NoMemory. There is whatever was in the block before: nothing may be read before it has been written.
        """
        start = -head_bytes % ALIGN
        block = arena.take(start + size)
        return cls(arena, block, start, size, ended)

    @property
    def view(self) -> memoryview:
        """The bytes, to be written."""
        return memoryview(self.block.map)[self.start : self.start + self.size]

    @property
    def body(self) -> memoryview:
        """The bytes, to be read."""
        return self.view.toreadonly()  # not by the segment's view, which ends with the arena

    @property
    def alive(self) -> bool:
        """Whether anybody needs the bytes. If not, they are other people's by now."""
        return self._holders > 0

    def hold(self) -> None:
        """One more needs the bytes. Raises RuntimeError where they have been given back."""
        if not self._holders:
            raise RuntimeError("a block was leased again after it had been given back")
        self._holders += 1

    def drop(self) -> None:
        """One of those who needed them needs them no more. Raises RuntimeError if nobody did."""
        if not self._holders:
            raise RuntimeError("a lease was dropped more often than it was held")
        self._holders -= 1
        if not self._holders:
            self.arena.give(self.block)
            if self._ended is not None:
                self._ended()

    def lend(self, data: memoryview | np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """These bytes as an array that keeps the block for as long as anything looks at it, wherever that ends.

        None where they don't lie here, or where more would be lent than may be: make a copy. To be called on the
        arena's loop, to which the block then comes back.
        """
        at = address_of(data) - self.address
        size = data.nbytes
        if at < 0 or at + size > self.size or self.arena.lent_bytes + size > LEND_BYTES:
            return None
        whole = np.frombuffer(self.block.map, np.uint8, size, self.start + at)
        self.hold()
        self.arena.lent_bytes += size
        weakref.finalize(whole, _bring_back, asyncio.get_running_loop(), self, size).atexit = False
        return whole

    def place_of(self, data: object) -> int | None:
        """Where in the segment these bytes lie; None where they don't lie in the lease, or not as arrays should."""
        if not isinstance(data, (memoryview, np.ndarray)) or not data.nbytes:
            return None
        at = address_of(data) - self.address
        if at < 0 or at + data.nbytes > self.size or (self.start + at) % ALIGN:
            return None
        return self.start + at


def _bring_back(loop: asyncio.AbstractEventLoop, lease: Lease, size: int) -> None:
    """Runs where the last view of a lent array ends: in any thread, in the middle of anything."""
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the arena
        loop.call_soon_threadsafe(_brought_back, lease, size)


def _brought_back(lease: Lease, size: int) -> None:
    lease.arena.lent_bytes -= size
    lease.drop()


def address_of(data: memoryview | np.ndarray[Any, Any]) -> int:
    """Of the first byte, in this process."""
    whole = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return int(whole.ctypes.data)
