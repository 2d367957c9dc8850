"""Heads made of lines that are known to be good: what most requests consist of, without the parser.

A request line is known once the parser has accepted it. A header line is known if it is of the plainest form that every
reader takes in the same way, and either has no meaning for the framing or one of the few that are weighed here. A
head with any other line is the parser's: knowing less costs time, never correctness.
"""

from __future__ import annotations

from typing import Final

from maitred.http.coding import ANYTHING, Choice, choose

RequestLine = tuple[str, bytes, bytes, bool]
"""Method, path, query, and whether it is HTTP/1.0."""

_LINES: Final = 2048
_LINE_BYTES: Final = 256
_VALUES: Final = 64
"""A header seen with more values than that varies from request to request: its lines are checked, not kept."""

MOST_LINES: Final = 63
# A header line's weight; the weights of a head are added up. Six bits count each kind, so that among MOST_LINES lines
# a second Host cannot pass for anything else; a Content-Length is above all of them.
_HOST: Final = 1
_LENGTH: Final = 1 << 6
_ACCEPT: Final = 1 << 12
_CHOICE_SHIFT: Final = 18
LENGTH_SHIFT: Final = 32
"""Above this bit a weight is a Content-Length."""

_CHOICES: Final = (
    ANYTHING, Choice(b"gzip", True), Choice(b"deflate", True), Choice(b"gzip", False), Choice(b"deflate", False),
)  # fmt: skip

PLAIN: Final[dict[int, Choice]] = {
    _HOST + length + accept: choice
    for length in (0, _LENGTH)
    for accept, choice in [
        (0, ANYTHING),
        *((_ACCEPT + (number << _CHOICE_SHIFT), choice) for number, choice in enumerate(_CHOICES)),
    ]
}
"""Sums of weights (without the length) that are the head of a plain request."""

_MEANINGFUL: Final = frozenset(
    (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"connection", b"proxy-connection")
)
_NAME: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
_VISIBLE: Final = bytes(range(0x21, 0x7F))
_VALUE: Final = b" " + _VISIBLE
_HOST_NAME: Final = _NAME + b".:[]"
_DIGITS: Final = b"0123456789"


class Unusual(Exception):
    """A line for the parser."""


class _Pairs(dict[bytes, tuple[bytes, bytes]]):
    """Header line -> lower-case name and value. Looking up an unknown line checks it; raises Unusual."""

    __slots__ = ("_weights", "_values", "_body_bytes")

    def __init__(self, weights: _Weights, body_bytes: int) -> None:
        self._weights = weights
        self._body_bytes = body_bytes
        self._values: dict[bytes, int] = {}

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        name, colon, value = line.partition(b": ")
        if not colon or not name or name.translate(None, _NAME) or value.translate(None, _VALUE):
            raise Unusual
        if not value or value[0] == 0x20 or value[-1] == 0x20:
            raise Unusual
        name = name.lower()
        pair = (name, value)
        weight = _weigh(name, value, self._body_bytes)
        seen = self._values.get(name, 0)
        if weight == 0 and (seen >= _VALUES or len(line) > _LINE_BYTES):
            return pair
        if len(self) >= _LINES or len(line) > _LINE_BYTES:
            if weight:
                raise Unusual  # its weight has no place
            return pair
        self._values[name] = seen + 1
        self._weights[line] = weight
        self[line] = pair
        return pair

    def forget(self) -> None:
        self.clear()
        self._weights.clear()
        self._values.clear()


class _Weights(dict[bytes, int]):
    """Header line -> weight. A line that `_Pairs` has checked and not kept weighs nothing."""

    __slots__ = ()

    def __missing__(self, line: bytes) -> int:
        return 0


def _weigh(name: bytes, value: bytes, body_bytes: int) -> int:
    """The weight of a header; raises Unusual where the parser must look."""
    if name == b"host":
        if value.translate(None, _HOST_NAME):
            raise Unusual
        return _HOST
    if name == b"content-length":
        if value.translate(None, _DIGITS) or len(value) > 9 or int(value) > body_bytes:
            raise Unusual
        return _LENGTH + (int(value) << LENGTH_SHIFT)
    if name == b"accept-encoding":
        choice = choose(value)
        if choice not in _CHOICES:
            raise Unusual
        return _ACCEPT + (_CHOICES.index(choice) << _CHOICE_SHIFT)
    if name == b"connection" and value.lower() == b"keep-alive":
        return 0
    if name in _MEANINGFUL:
        raise Unusual
    return 0


class Heads:
    """What one port knows. Bounded; cleared when it is full, between requests."""

    __slots__ = ("request_lines", "pairs", "weights")

    def __init__(self, body_bytes: int) -> None:
        self.request_lines: dict[bytes, RequestLine] = {}
        self.weights = _Weights()
        self.pairs = _Pairs(self.weights, body_bytes)

    def learn(self, line: bytes, parsed: RequestLine) -> None:
        """Remember a request line that the parser has accepted."""
        method, _, query, old = parsed
        if len(line) > _LINE_BYTES or query or old or method in ("HEAD", "CONNECT"):
            return  # queries vary, and the others need more than the plain way
        if len(self.request_lines) < _LINES:
            self.request_lines[line] = parsed

    def make_room(self) -> None:
        """Forget all if there is no place for more. Not to be called while a head is being looked up."""
        if len(self.request_lines) >= _LINES:
            self.request_lines.clear()
        if len(self.pairs) >= _LINES:
            self.pairs.forget()
