"""UBJSON, the binary JSON in which XGBoost saves its models, read without the library and without trusting a byte."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

MAX_DEPTH: Final = 64
"""Deeper than any model; a file of nothing but opening brackets must not exhaust the stack."""

_NUMBERS: Final = {
    marker: (struct.Struct(code), np.dtype(kind))
    for marker, code, kind in (
        (b"i", ">b", ">i1"), (b"U", ">B", ">u1"), (b"I", ">h", ">i2"), (b"l", ">i", ">i4"), (b"L", ">q", ">i8"),
        (b"d", ">f", ">f4"), (b"D", ">d", ">f8"),
    )
}  # fmt: skip
_WORDS: Final = {b"T": True, b"F": False, b"Z": None}


def decode(data: bytes) -> Any:
    """The value: dicts, lists, text, numbers, and numpy arrays (views of `data`) for lists of one numeric type.

    Raises ValueError for anything that is not one whole value.
    """
    reader = _Reader(data)
    try:
        value = reader.value(reader.take(1), 0)
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it breaks off or is no text at byte {reader.at}") from error
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow its end")
    return value


class _Reader:
    """A place in the bytes."""

    __slots__ = ("data", "at")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"it breaks off at byte {self.at}")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def peek(self) -> bytes:
        return self.data[self.at : self.at + 1]

    def value(self, marker: bytes, depth: int) -> Any:
        """The value whose marker has been taken."""
        number = _NUMBERS.get(marker)
        if number is not None:
            (value,) = number[0].unpack_from(self.data, self.at)
            self.at += number[0].size
            return value
        if marker == b"S":
            return self.text()
        if marker in _WORDS:
            return _WORDS[marker]
        if depth >= MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if marker == b"{":
            return self.object(depth + 1)
        if marker == b"[":
            return self.array(depth + 1)
        raise ValueError(f"{marker!r} at byte {self.at - 1} begins no value")

    def count(self) -> int:
        """A length: a whole number with its marker."""
        marker = self.take(1)
        value = self.value(marker, 0) if marker in _NUMBERS else None
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{marker!r} at byte {self.at - 1} begins no length")
        return value

    def text(self) -> str:
        return self.take(self.count()).decode()

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.peek() != b"}":
            key = self.text()
            found[key] = self.value(self.take(1), depth)
        self.at += 1
        return found

    def array(self, depth: int) -> Any:
        if self.peek() == b"$":
            self.at += 1
            number = _NUMBERS.get(self.take(1))
            if number is None or self.take(1) != b"#":
                raise ValueError(f"an array of no known type ends at byte {self.at}")
            count = self.count()
            self.take(count * number[1].itemsize)
            return np.frombuffer(self.data, number[1], count, self.at - count * number[1].itemsize)
        if self.peek() == b"#":
            self.at += 1
            return [self.value(self.take(1), depth) for _ in range(self.count())]
        values = []
        while self.peek() != b"]":
            values.append(self.value(self.take(1), depth))
        self.at += 1
        return values
