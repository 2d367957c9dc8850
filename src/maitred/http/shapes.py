"""Heads that a caller sends again but for a few values: one pattern takes in the whole of such a request.

What a pattern takes in is what `heads` had found plain twice, with other values where they have no meaning for the
framing. A head that does not fit is looked at line by line, as ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from maitred.http.coding import Choice
from maitred.http.heads import FRAMING
from maitred.http.limits import Limits

Shape = tuple[Callable[[bytes], "re.Match[bytes] | None"], str, bytes, int, Choice, bool]
"""Matches the request; groups: Content-Length and body. Then method, path, the exchange's `watched`, what is accepted
and whether identity is."""

LEARN_AT: Final = frozenset((2, 8, 64, 1024))
"""After so many plain requests of a connection that fitted no shape, the next is compared with the last."""

_KEPT: Final = 256
_LEARNED_AT_ONCE: Final = 8
"""New patterns between two calls of `make_room`: making one takes as long as some requests."""
_LONGEST: Final = 2048
"""Bytes of a head that is learned."""

_MOST_LENGTH: Final = 9999
_LENGTH: Final = rb"([0-9]{1,4})"
_VALUE_BYTES: Final = 256
_VALUE: Final = rb"[!-~](?:[ -~]{0,%d}[!-~])?" % (_VALUE_BYTES - 2)


class Shapes:
    """What the connections of one port have learned."""

    __slots__ = ("_limits", "_known", "_learned")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[tuple[bytes, int, Choice], Shape] = {}
        self._learned = 0

    def learn(
        self, line: bytes, method: str, path: bytes, earlier: list[bytes], later: list[bytes], watched: int,
        choice: Choice,
    ) -> Shape | None:  # fmt: skip
        """The shape of a plain head with this request line and of an earlier one's lines; None if they share none."""
        if len(earlier) != len(later) or self._limits.body_bytes < _MOST_LENGTH or sum(map(len, later)) > _LONGEST:
            return None
        parts = [_part(*pair) for pair in zip(earlier, later, strict=True)]
        if None in parts or sum(_LENGTH in part for part in parts if part) != 1:
            return None
        if len(line) + sum(map(len, later)) + len(later) * (_VALUE_BYTES + 2) > self._limits.head_bytes:
            return None
        pattern = b"\r\n".join([re.escape(line), *[part for part in parts if part]]) + rb"\r\n\r\n(.*)"
        key = (pattern, watched, choice)
        shape = self._known.get(key)
        if shape is None and self._learned < _LEARNED_AT_ONCE:
            self._learned += 1
            if len(self._known) >= _KEPT:
                self._known.clear()
            match = re.compile(pattern, re.DOTALL).match
            shape = self._known[key] = (match, method, path, watched, choice, choice.identity)
        return shape

    def make_room(self) -> None:
        """Let more be learned; called now and then."""
        self._learned = 0


def _part(earlier: bytes, later: bytes) -> bytes | None:
    """What matches both lines; None if they differ in more than a value without meaning."""
    name, _, _ = later.partition(b": ")
    known = name.lower()
    if known == b"content-length":
        return re.escape(name) + b": " + _LENGTH if earlier.startswith(name + b": ") else None
    if earlier == later:
        return re.escape(later)
    if known in FRAMING or not earlier.startswith(name + b": "):
        return None
    return re.escape(name) + b": " + _VALUE
