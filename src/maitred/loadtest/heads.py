"""Heads of answers that were seen before but for a few values: one pattern takes in the whole of such an answer.

A head that fits has, byte for byte, the lines of one that a whole HTTP parser has read, but for the values of headers
that mean nothing for where the answer ends, and for the digits of its length. All else goes the parser's way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

_FRAMING: Final = frozenset(
    (b"connection", b"transfer-encoding", b"content-encoding", b"content-type", b"keep-alive", b"trailer", b"upgrade")
)
"""Headers that say how to read the rest: their values are part of the pattern."""

_LONGEST: Final = 4096
_KEPT: Final = 16

Match = Callable[[bytes], "re.Match[bytes] | None"]


class Shape(NamedTuple):
    """One kind of answer."""

    match: Match
    """Groups: `length`, and where the head has such lines `timing` and `binary`."""
    status: int
    good: bool
    json: bool
    """Whether the body has to be JSON."""
    timed: bool
    """Whether the head has a Server-Timing line."""
    binary: bool
    """Whether the body is JSON and raw tensors behind it."""


def nothing(data: bytes) -> None:
    """Matches no answer."""


UNKNOWN: Final = Shape(nothing, 0, False, False, False, False)


def is_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an answer's headers say that its body is JSON, not compressed."""
    found = {name.lower(): value for name, value in headers}
    kind = found.get(b"content-type", b"").partition(b";")[0].strip().lower()
    plain = found.get(b"content-encoding", b"identity").strip().lower() == b"identity"
    return plain and (kind == b"application/json" or kind.endswith(b"+json"))


class Heads:
    """What the answers of one run have taught."""

    __slots__ = ("_shapes", "_known")

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._known: set[bytes] = set()

    def find(self, data: bytes) -> tuple[Shape, re.Match[bytes] | None]:
        """The shape that fits the beginning of `data`."""
        for shape in self._shapes:
            found = shape.match(data)
            if found is not None:
                return shape, found
        return UNKNOWN, None

    def learn(self, data: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Learn from an answer that the parser found whole, kept the connection open and had a body with a length."""
        head, end, _ = data.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        if not end or len(head) > _LONGEST or len(lines) - 1 != len(headers) or len(self._shapes) >= _KEPT:
            return
        if status < 200 or status in (204, 304):
            return
        names = [line.partition(b":")[0].lower() for line in lines[1:]]
        if names.count(b"content-length") != 1 or b"transfer-encoding" in names:
            return
        seen: set[bytes] = set()
        parts = [re.escape(lines[0])]
        for line, name in zip(lines[1:], names, strict=True):
            parts.append(_part(line, name, name in seen))
            seen.add(name)
        pattern = rb"\r\n".join(parts) + rb"\r\n\r\n"
        if pattern in self._known:
            return
        self._known.add(pattern)
        good, binary = 200 <= status < 300, b"inference-header-content-length" in seen
        self._shapes.append(
            Shape(
                re.compile(pattern).match,
                status,
                good,
                is_json(headers) and not binary,
                b"server-timing" in seen,
                binary,
            )
        )


_GROUPS: Final = {b"server-timing": b"timing", b"inference-header-content-length": b"binary"}


def _part(line: bytes, name: bytes, again: bool) -> bytes:
    written = line[: len(name)]
    if name == b"content-length":
        digits = line[len(name) + 1 :].strip()
        before, _, after = line.partition(digits)
        return re.escape(before) + rb"(?P<length>[0-9]{1,15})" + re.escape(after)
    if name in _FRAMING:
        return re.escape(line)
    group = None if again else _GROUPS.get(name)
    value = rb".*" if group is None else rb"(?P<%b>.*)" % group  # up to the line's end: far quicker than [^\r\n]*
    return re.escape(written) + rb":" + value
