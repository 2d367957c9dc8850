"""Long JSON lists of objects in pieces: what they hold is counted first, then some rows are read at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from maitred.wire.pieces import Pause, blocks, outside

_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1


class RowScan:
    """A list of rows, looked through once. It need not be valid JSON."""

    __slots__ = ("colons", "braces", "deepest", "_text", "_cuts")

    def __init__(self, text: memoryview, pause: Pause) -> None:
        self.colons = self.braces = self.deepest = 0
        """Outside of strings: keys, objects, and how deep the text is nested."""
        self._text = text
        self._cuts: list[int] = []
        """Commas between rows, one for each block that has one."""
        inside, depth = False, 0
        for at, block in blocks(text):
            characters = np.frombuffer(block, np.uint8)
            free = outside(block, inside)
            inside = not free[-1]
            depths = np.cumsum(_STEPS[characters] * free, dtype=np.int32) + depth
            depth = int(depths[-1])
            self.deepest = max(self.deepest, int(depths.max()))
            self.colons += int(np.count_nonzero(free & (characters == ord(":"))))
            self.braces += int(np.count_nonzero(free & (characters == ord("{"))))
            between = np.flatnonzero(free & (characters == ord(",")) & (depths == 1))
            if len(between):
                self._cuts.append(at + int(between[-1]))
            pause()

    def rows(self, decode: Callable[[Any], list[Any]], pause: Pause) -> list[Any] | None:
        """The rows; None where the text is not what `decode` takes, which is for it to say of the whole."""
        rows: list[Any] = []
        starts, stops = [0, *[cut + 1 for cut in self._cuts]], [*self._cuts, len(self._text)]
        for start, stop in zip(starts, stops, strict=True):
            head, tail = b"[" if start else b"", b"]" if stop < len(self._text) else b""
            try:
                some = decode(b"".join((head, self._text[start:stop], tail)))
            except (msgspec.DecodeError, RecursionError):
                return None
            if not some and (head or tail):
                return None  # nothing between two commas
            rows += some
            pause()
        return rows
