"""Heads made of lines that are known to be good: what most requests consist of, without the parser.

A request line is known once the parser has accepted it. A header line is known if it is of the plainest form that every
reader takes in the same way, and either has no meaning for the framing or one of the few that are weighed here. A
head with any other line is the parser's: knowing less costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
# Of what the application watches six bits count its labels, of which the second counts twice (so it may spill into the
# next six, and such a head passes for a watched one), and six all others.
WATCHED_SHIFT: Final = 26
_WATCHED: Final = 1 << 32
UNWATCHED: Final = ~((1 << 38) - (1 << WATCHED_SHIFT))
"""What of a sum of weights does not count the headers that the application watches."""
WATCHED_BITS: Final = 4095
"""Of a sum of weights shifted by WATCHED_SHIFT: an exchange's `watched`."""
LENGTH_SHIFT: Final = 38
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
"""Sums of weights (without the length) that are the head of a plain request with no watched header."""

_MEANINGFUL: Final = frozenset(
    (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"connection", b"proxy-connection")
)
FRAMING: Final = frozenset((b"host", b"content-length", b"accept-encoding", b"connection", b"content-type"))
"""Headers whose weight depends on their value."""
_JSON: Final = b"application/json"
_NAME: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
_HOST_NAME: Final = _NAME + b".:[]"
_DIGITS: Final = b"0123456789"
_PRINTED: Final = bytes(code if 0x20 < code < 0x7F else 0x20 for code in range(256))
"""Changes what may not be in a value: so it may be kept as a table, which makes the check cheap."""


class Unusual(Exception):
    """A line for the parser."""


class Weights(dict[bytes, int]):
    """Header line -> weight. Looking up an unknown line checks it; raises Unusual."""

    __slots__ = ("_varying", "_values", "_watched", "_labels", "_body_bytes")

    def __init__(self, watched: Collection[bytes], labels: Sequence[bytes], body_bytes: int) -> None:
        self._watched = watched
        self._labels = {name: place + 1 << WATCHED_SHIFT for place, name in enumerate(labels[:2])}
        self._body_bytes = body_bytes
        self._varying: dict[bytes, int] = {}
        """Names, as they were spelled, of headers that vary: what each weighs."""
        self._values: dict[bytes, int] = {}
        """How many lines are kept, by lower-case name."""

    def __missing__(self, line: bytes) -> int:
        name, _, value = line.partition(b": ")
        weight = self._varying.get(name)
        if weight is not None and (value.isalnum() or (value and value.translate(_PRINTED).strip() == value)):
            return weight
        return self._look(line, name, value)

    def _look(self, line: bytes, spelled: bytes, value: bytes) -> int:
        if not spelled or spelled.translate(None, _NAME) or not value or value.translate(_PRINTED).strip() != value:
            raise Unusual
        name = spelled.lower()
        weight = self._weigh(name, value)
        seen = self._values.get(name, 0)
        place = len(self) < _LINES and len(line) <= _LINE_BYTES
        if name in FRAMING:
            if not place and weight:
                raise Unusual  # its weight has no place
        elif seen >= _VALUES:
            if len(self._varying) < _LINES:
                self._varying[spelled] = weight
            return weight
        if place:
            self._values[name] = seen + 1
            self[line] = weight
        return weight

    def _weigh(self, name: bytes, value: bytes) -> int:
        """The weight of a header; raises Unusual where the parser must look."""
        if name == b"host":
            if value.translate(None, _HOST_NAME):
                raise Unusual
            return _HOST
        if name == b"content-length":
            if value.translate(None, _DIGITS) or len(value) > 9 or int(value) > self._body_bytes:
                raise Unusual
            return _LENGTH + (int(value) << LENGTH_SHIFT)
        if name == b"accept-encoding":
            choice = choose(value)
            if choice not in _CHOICES:
                raise Unusual
            return _ACCEPT + (_CHOICES.index(choice) << _CHOICE_SHIFT)
        if name in _MEANINGFUL and (name != b"connection" or value.lower() != b"keep-alive"):
            raise Unusual
        if name in self._labels:
            return self._labels[name]
        return _WATCHED if name in self._watched and (name != b"content-type" or value != _JSON) else 0

    def forget(self) -> None:
        self.clear()
        self._varying.clear()
        self._values.clear()


class Heads:
    """What one port knows. Bounded; cleared when it is full, between requests."""

    __slots__ = ("request_lines", "weights")

    def __init__(self, body_bytes: int, watched: Collection[bytes] = (), labels: Sequence[bytes] = ()) -> None:
        """`watched`: lower-case names of the headers that the application wants to look at; `labels`: up to two more
        that it may want to look at."""
        self.request_lines: dict[bytes, RequestLine] = {}
        self.weights = Weights(watched, labels, body_bytes)

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
        if len(self.weights) >= _LINES:
            self.weights.forget()
