"""A batch's outputs on their way to a front: whole through the pipe, or its own rows in memory that it can read."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import msgspec

from maitred.gateway import hop
from maitred.gateway.hop import INLINE_BYTES
from maitred.messages import Outputs, Result
from maitred.replica.layout import raw
from maitred.replica.memory import Block

_ALIGN: Final = 64


class Memory(Protocol):
    """Where a front can read, and gives back what it has read."""

    def take(self, size: int) -> tuple[int, Block]:
        """A block and its number. Raises NoMemory."""
        ...

    def done(self, numbers: list[int]) -> None: ...

    def listed(self, items: list[Any]) -> Any:
        """Texts as they travel. Raises NoMemory."""
        ...


class OwnRows:
    """A batch's outputs that are too large for the pipe: the rows that belong to one front, in a block of memory."""

    __slots__ = ("rows", "whole", "_names", "_lists", "_at", "_block", "_number")

    def __init__(self, outputs: Outputs, memory: Memory) -> None:
        """Raises NoMemory."""
        self.rows = 0
        self.whole = False
        self._names: list[tuple[str, Any, tuple[int, ...]]] = []
        self._lists: dict[str, list[Any]] = {}
        self._at: dict[str, tuple[int, int]] = {}
        end = 0
        for name, tensor in outputs.tensors.items():
            self._names.append((name, tensor.dtype, tensor.shape))
            if isinstance(tensor.data, list):
                self._lists[name] = []
            else:
                self._at[name] = (end, 0)
                end = (end + memoryview(raw(tensor.data)).nbytes + _ALIGN - 1) & -_ALIGN
        self._number = 0
        self._block: Block | None = None
        if end:
            self._number, self._block = memory.take(end)

    def add(self, result: Result) -> tuple[int, int]:
        """Copy one caller's rows; where they lie among these."""
        self.whole = result.whole
        start = self.rows
        for name, tensor in result.tensors().items():
            if isinstance(tensor.data, list):
                self._lists[name] += tensor.data
            elif self._block is not None:
                begin, filled = self._at[name]
                data = memoryview(raw(tensor.data)).cast("B")
                at = self._block.offset + begin + filled
                self._block.map[at : at + len(data)] = data
                self._at[name] = (begin, filled + len(data))
        self.rows += result.stop - result.start
        return start, self.rows

    def tensors(self, memory: Memory) -> msgspec.Raw:
        """As they travel. Raises NoMemory."""
        told: list[tuple[str, str, tuple[int, ...], Any]] = []
        number = self._number
        for name, dtype, shape in self._names:
            shape = shape if self.whole else (self.rows, *shape[1:])
            if name in self._lists:
                data: Any = memory.listed(self._lists[name])
            elif not math.prod(shape) or self._block is None:
                data = b""
            else:
                begin, filled = self._at[name]
                block = self._block
                data = hop.Place(number, block.segment.id, block.offset + begin, filled).packed()
                number = 0  # told once for all of them
            told.append((name, dtype, shape, data))
        if number:
            memory.done([number])
        return msgspec.Raw(hop.encode(told))

    def give_back(self, memory: Memory) -> None:
        """The front will not hear of these."""
        if self._number:
            memory.done([self._number])


def packed(outputs: Outputs) -> msgspec.Raw | None:
    """A batch's outputs for the pipe; None where they are too large. Raises UnicodeEncodeError."""
    room = INLINE_BYTES
    told: list[tuple[str, str, tuple[int, ...], Any]] = []
    for name, tensor in outputs.tensors.items():
        data: Any = tensor.data
        if isinstance(data, list):
            data = msgspec.Raw(hop.encode(data))
            room -= len(memoryview(data))
        else:
            data = memoryview(raw(data))
            room -= data.nbytes
            if not data.nbytes:
                data = b""
        if room < 0:
            return None
        told.append((name, tensor.dtype, tensor.shape, data))
    return msgspec.Raw(hop.encode(told))
