"""The outline of a long JSON body: long arrays are checked in pieces and left out, what is around them is short."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.wire.pieces import Pause, blocks, flaw, has_quotes, outside
from maitred.wire.sizes import LEFT_OUT_BYTES

MAX_EVENTS: Final = 1 << 16
"""Objects and lists between which long arrays are looked for: a body of rows has many, and no long arrays."""

_TAIL: Final = 1 << 16
"""Characters behind a flaw that a decoder gets to see, so that it finds the flaw and not the end."""

_KEY_BYTES: Final = 64
"""In front of an array, in which its key is looked for."""

_MARK: Final = b"[0]"
"""What stands for an array: any array may take its place."""


class Span(NamedTuple):
    """A long array of a body."""

    start: int
    stop: int
    place: int
    """Where its mark is in the outline."""


class Outline:
    """A body without its long arrays, and those."""

    __slots__ = ("around", "spans", "_places", "_body", "_claimed", "_begin")

    def __init__(self, body: memoryview, arrays: list[tuple[int, int]]) -> None:
        self._body = body
        self.spans: list[Span] = []
        self._places: dict[int, Span] = {}
        self._claimed = 0
        around: list[bytes] = []
        at = size = 0
        for start, stop in arrays:
            around += (bytes(body[at:start]), _MARK)
            size += start - at
            span = Span(start, stop, size)
            self.spans.append(span)
            self._places[size] = span
            size += len(_MARK)
            at = stop
        around.append(bytes(body[at:]))
        self.around = b"".join(around)
        """The body with a mark for each array."""
        self._begin = address(self.around)

    def value(self, raw: Any) -> Any:
        """The text of a field that was read from `around`: the long array where the field is its mark."""
        if len(raw) == len(_MARK) and (span := self._places.get(address(raw) - self._begin)) is not None:
            self._claimed += 1
            return self._body[span.start : span.stop]
        return raw

    def all_claimed(self) -> bool:
        """Whether each array was asked for, once: else there is one in a place that nobody knows."""
        return self._claimed == len(self.spans)

    def place(self, byte: int) -> int:
        """The place in the body of one in `around`."""
        at = bisect_left(self.spans, byte, key=lambda span: span.place) - 1
        if at < 0:
            return byte
        return byte - self.spans[at].place - len(_MARK) + self.spans[at].stop

    def broken(self, pause: Pause) -> tuple[bytes, int, int] | None:
        """None where all arrays are valid JSON. Else a short text whose first flaw is that of the body; from which of
        its places on it is the body's own, and how far that lies behind in the body."""
        for span in self.spans:
            text = self._body[span.start : span.stop]
            found = flaw(text, has_quotes(text), pause)
            if found is not None:
                start, stop, head = found
                before = self.around[: span.place] + head
                at = span.start + start
                return before + bytes(self._body[at : span.start + stop + _TAIL]), len(before), at - len(before)
        return None


def address(buffer: Any) -> int:
    """Where the bytes of a buffer are."""
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def outline(body: Any, pause: Pause, key: bytes | None = None) -> Outline | None:
    """The outline of a body; None where there is nothing long to be left out. It need not be valid JSON.

    `key`: arrays are left out where they are the value of this key only.
    """
    view = memoryview(body).cast("B")
    arrays = _Search(view).run(pause)
    if key is not None:
        follows = re.compile(rb'"%b"\s*:\s*\Z' % key)
        arrays = [span for span in arrays if follows.search(bytes(view[max(0, span[0] - _KEY_BYTES) : span[0]]))]
    return Outline(view, arrays) if arrays else None


class _Search:
    """Looks for arrays without objects in them, a piece of the body at a time."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._arrays: list[tuple[int, int]] = []
        self._inside = False
        """In a string."""
        self._depth = 0
        """Of lists, since the last brace."""
        self._least = 0
        """The least since then: below it lies what was open before the brace."""
        self._begin = -1
        """Of the array that is open."""
        self._events = 0

    def run(self, pause: Pause) -> list[tuple[int, int]]:
        for at, block in blocks(self._body):
            if not self._plain(block):
                self._closely(block, at)
            if self._events > MAX_EVENTS:
                return []
            pause()
        if self._begin >= 0:
            self._end(len(self._body))  # it is cut off; who checks it will see
        return self._arrays

    def _plain(self, block: bytes) -> bool:
        """Whether nothing but the depth changes in a block; done then."""
        if b'"' in block:
            return False
        if self._inside:
            return True
        if self._begin < 0 or b"{" in block or b"}" in block:
            return False
        depth = self._depth + block.count(b"[") - block.count(b"]")
        if depth <= self._least:
            return False
        self._depth = depth
        return True

    def _closely(self, block: bytes, at: int) -> None:
        characters = np.frombuffer(block, np.uint8)
        free = outside(block, self._inside)
        self._inside = bool(len(free)) and not free[-1]
        places = np.flatnonzero(free & (_STEPS[characters] != 0))
        if not len(places):
            return
        kinds = characters[places]
        steps = _STEPS[kinds]
        brace = steps == _BRACE
        steps[brace] = 0
        total = np.cumsum(steps, dtype=np.int64) + self._depth
        last = np.maximum.accumulate(np.where(brace, np.arange(len(places)), -1))
        depth = total - np.where(last >= 0, total[last], 0)  # the depth is 0 at each brace
        part = np.cumsum(brace) * -_APART  # each brace begins the least depth anew
        least = np.minimum.accumulate(np.concatenate(([self._least], depth + part)))[1:] - part
        telling = brace | ((steps == 1) & (depth == least + 1)) | ((steps == -1) & (depth == least))
        self._depth, self._least = int(depth[-1]), int(least[-1])
        self._events += int(np.count_nonzero(telling))
        if self._events <= MAX_EVENTS:
            for place, kind in zip(places[telling].tolist(), kinds[telling].tolist(), strict=True):
                self._event(at + place, kind)

    def _event(self, place: int, kind: int) -> None:
        if kind == ord("["):
            self._begin = place
        elif kind == ord("]"):
            self._end(place + 1)
        else:
            if kind == ord("}"):
                self._end(place)  # it is not closed
            self._begin = -1

    def _end(self, place: int) -> None:
        if self._begin >= 0 and place - self._begin > LEFT_OUT_BYTES:
            self._arrays.append((self._begin, place))
        self._begin = -1


_BRACE: Final = 2
_APART: Final = 1 << 40
"""More than the depth of any text."""


def _steps() -> Any:
    table = np.zeros(256, np.int8)
    for characters, step in ((b"[", 1), (b"]", -1), (b"{}", _BRACE)):
        for character in characters:
            table[character] = step
    return table


_STEPS: Final = _steps()
