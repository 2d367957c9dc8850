"""How lists of JSON are nested, found in their text: what they would cost is known before they are read."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from maitred.errors import Malformed
from maitred.wire.json import outside_strings
from maitred.wire.pieces import Pause, pieces
from maitred.wire.sizes import PIECE_BYTES

MAX_EMPTY_LISTS: Final = 1 << 16
"""Lists without elements that any data may have; data with more elements may have as many as those."""

MAX_UNEVEN_LISTS: Final = 1 << 20
"""Lists that have to be read one by one, for they are not all of one length."""

_SPACE: Final = b" \t\r\n"
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))


def structure(text: bytes) -> bytes:
    """The brackets and commas of valid JSON, those in strings left out."""
    return (outside_strings(text).tobytes() if b'"' in text else text).translate(None, _NO_STRUCTURE)


def check_empty_lists(name: str, text: bytes) -> None:
    """Refuse valid JSON made of lists that hold nothing: each costs as much as many elements."""
    if text.count(b"[") <= MAX_EMPTY_LISTS or text.translate(None, _SPACE).count(b"[]") <= MAX_EMPTY_LISTS:
        return
    close = outside_strings(text).tobytes().translate(None, _SPACE)
    empty = close.count(b"[]")
    elements = close.count(b",") + 1 - empty  # each but the first of its list follows a comma
    if empty > max(MAX_EMPTY_LISTS, elements):
        raise Malformed(f"input {name!r}: {empty} empty lists beside {elements} elements; send fewer rows at once")


class Evenness:
    """The structure of evenly nested lists, of which any part can be had without the whole."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        """`dims`: the sizes, none of them 0."""
        self.dims = dims
        self._lengths = [0] * len(dims) + [0]
        """Of the structure at each depth, without a comma behind it; nothing for an element."""
        for axis in range(len(dims) - 1, -1, -1):
            self._lengths[axis] = dims[axis] * (self._lengths[axis + 1] + 1) + 1
        self.length = self._lengths[0]
        self._blocks: dict[int, bytes] = {}

    def part(self, start: int, stop: int, axis: int = 0) -> bytes:
        """The characters `start:stop` of the structure of a list of that axis."""
        length, unit = self._lengths[axis], self._lengths[axis + 1] + 1
        low, high = max(start, 1) - 1, min(stop, length - 1) - 1
        """Without the bracket before the units, each of which ends with a comma but the last."""
        inner = b""
        if high > low:
            inner = self._units(low, high, axis + 1, unit)
        return b"".join((b"[" if start <= 0 < stop else b"", inner, b"]" if start < length <= stop else b""))

    def _units(self, low: int, high: int, axis: int, unit: int) -> bytes:
        if unit == 1:
            return b"," * (high - low)
        if unit > PIECE_BYTES:
            parts = []
            for index in range(low // unit, (high - 1) // unit + 1):
                begin, end = max(low - index * unit, 0), min(high - index * unit, unit)
                parts.append(self.part(begin, min(end, unit - 1), axis) + (b"," if begin < unit == end else b""))
            return b"".join(parts)
        block = self._blocks.get(axis, b"")
        offset = low % unit
        if len(block) < offset + high - low:
            one = self.part(0, unit - 1, axis) + b","
            block = self._blocks[axis] = one * ((offset + max(high - low, PIECE_BYTES)) // unit + 1)
        return block[offset : offset + high - low]


def are_even(text: memoryview, quoted: bool, dims: tuple[int, ...], pause: Pause) -> bool:
    """Whether lists of valid JSON are nested as `dims` says, none of which is 0; a list of nothing passes for one of a
    single element."""
    even = Evenness(dims)
    at = 0
    for place, piece in pieces(text, quoted):
        brackets = structure(piece)
        if place + len(piece) < len(text):
            brackets += b","
        if even.part(at, at + len(brackets)) != brackets:
            return False
        at += len(brackets)
        pause()
    return at == even.length


def sizes(text: memoryview, quoted: bool, depth: int, count: int, pause: Pause) -> tuple[int, ...] | None:
    """How lists of `count` elements in all would be nested, `depth` deep, if they were even as the first of each depth
    is; None where they cannot be."""
    ends: list[int] = []
    before = 0
    for _, piece in pieces(text, quoted):
        brackets = structure(piece)
        while len(ends) < depth - 1 and (end := brackets.find(b"]" * (len(ends) + 1))) >= 0:
            ends.append(before + brackets.count(b",", 0, end) + 1)
        if len(ends) == depth - 1:
            break
        before += brackets.count(b",") + 1
        pause()
    counts = [1, *ends, count]
    if len(counts) <= depth or any(more % fewer for fewer, more in pairwise(counts)):
        return None
    return tuple(more // fewer for fewer, more in pairwise(counts))[::-1]


def flat(text: bytes) -> bytes:
    """The list of what is in nested lists that all hold something, given as valid JSON; strings stay as they are."""
    if b'"' not in text:
        return b"[%b]" % text.translate(None, b"[]")
    characters = np.frombuffer(text, np.uint8)
    unescaped = np.frombuffer(text.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
    outside = np.cumsum(unescaped == ord('"'), dtype=np.uint8) & 1 == 0  # may wrap: that keeps odd and even apart
    brackets = (characters == ord("[")) | (characters == ord("]"))
    return b"[%b]" % characters[~(outside & brackets)].tobytes()


def check_uneven_lists(name: str, lists: int) -> None:
    """Refuse more lists than may be read one by one."""
    if lists > MAX_UNEVEN_LISTS:
        raise Malformed(f"input {name!r}: {lists} lists, and they are not all alike; send fewer rows at once")
