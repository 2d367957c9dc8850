"""What a front and the core say to each other: the records of their frames, as MessagePack without names.

A turn of either loop makes one frame at most (more only where much is to be said). Requests travel in columns, so that
a front fills them and the core empties them without an object for each in between; what many requests have in common
is said once, as a form with a number.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import numpy as np

from maitred.errors import TABLE, Internal, MaitredError
from maitred.http.limits import Limits
from maitred.logline import Style
from maitred.messages import Request
from maitred.replica.layout import raw

INLINE_BYTES: Final = 64 << 10
"""What of one request, or of one batch's answers, goes through the pipe; more lies in shared memory."""
REQUESTS_A_FRAME: Final = 512
MAX_FORMS: Final = 4096
"""Forms of one model that a front numbers before it starts anew."""
TIDY_PINGS: Final = 10
"""With every tenth ping, about that many seconds apart, either side looks for memory that it no longer needs."""

PLACE: Final = 1
"""The code of a MessagePack extension that stands for elements in shared memory."""
_PLACE: Final = struct.Struct("<QQQQ")


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where elements lie that are too many for the pipe."""

    block: int
    """By this number the other side is told that nobody reads them any more."""
    segment: int
    offset: int
    size: int

    def packed(self) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(PLACE, _PLACE.pack(self.block, self.segment, self.offset, self.size))

    @classmethod
    def read(cls, data: Any) -> Place:
        """Raises ValueError for what is no place."""
        if type(data) is not msgspec.msgpack.Ext or data.code != PLACE or len(bytes(data.data)) != _PLACE.size:
            raise ValueError("elements that are neither here nor anywhere")
        return cls(*_PLACE.unpack(data.data))


# ---------------------------------------------------------------- front to core


class Form(msgspec.Struct, array_like=True, frozen=True):
    """What requests of a model have in common; numbered by the front."""

    number: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, dtype, shape of each input."""
    rows: int
    merges: bool
    """Whether such requests may share a batch."""
    lane: int
    tenant: str
    outputs: tuple[str, ...] | None


class Rare(msgspec.Struct, array_like=True, frozen=True):
    """What few requests have besides."""

    parameters: dict[str, Any] | None
    ragged: tuple[str, dict[str, tuple[tuple[int, int], ...]], int, int, tuple[int, ...] | None] | None


class Asked(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Requests for one model, in columns."""

    model: int
    anew: bool
    """Forms that were told of before mean nothing any more."""
    forms: list[Form]
    """New ones."""
    numbers: list[int]
    """By which they are answered; never twice the same."""
    kinds: list[int]
    """The number of each one's form."""
    deadlines: list[float]
    received: list[float]
    sizes: list[int]
    ids: list[str]
    traces: list[str]
    data: list[Any]
    """The elements of each input of each request: bytes, a list of texts, or a place."""
    rare: dict[int, Rare]
    """By the place in the columns."""


class FromFront(msgspec.Struct, array_like=True):
    seen: int = 0
    """The newest snapshot that it has."""
    asked: list[Asked] = []
    cancelled: list[int] = []
    done: list[int] = []
    """Blocks of answers that nobody reads any more."""
    retired: list[int] = []
    """Segments of its memory that it has given back: maps of them would keep them."""
    settled: list[tuple[int, str]] = []
    """How answers ended of which the core could not know whether they can be written: `ok`, or an error's code."""
    refused: list[tuple[str, str, str, int]] = []
    """Requests that ended before they were submitted: model, version, code, how many."""
    statuses: dict[int, int] = {}
    """How many HTTP refused, by status."""
    connections: int = 0
    in_flight: int = 0
    pong: int = 0
    """The number of the newest ping that it has heard."""
    pages: list[int] = []
    """Asks for the page of metrics."""
    ready: bool = False
    """It accepts connections."""
    left: int = -1
    """It has stopped, and has cut off so many requests; -1 while it serves."""


# ---------------------------------------------------------------- core to front


class Answers(msgspec.Struct, array_like=True):
    """What one batch brought for requests of one front."""

    tensors: msgspec.Raw
    """Of the whole batch, or where they are large of these requests alone: name, dtype, shape, elements of each."""
    rows: int
    model_seconds: float
    batch_seconds: float
    whole: bool
    doubtful: bool
    """The core wants to hear how each of these was answered."""
    numbers: list[int] = []
    starts: list[int] = []
    stops: list[int] = []
    queued: list[float] = []


class Told(msgspec.Struct, array_like=True, frozen=True):
    """A model as callers may see it."""

    number: int
    name: str
    version: str
    state: str
    reason: str
    place: str
    description: bytes | None


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """All that a front knows of the house."""

    number: int
    models: list[Told]
    draining: bool


class FromCore(msgspec.Struct, array_like=True):
    answers: list[Answers] = []
    errors: list[tuple[int, str, str, float | None]] = []
    """Requests that have failed: number, code, message, seconds after which to try again."""
    freed: list[int] = []
    """Blocks of requests that nobody reads any more."""
    retired: list[int] = []
    """Segments of the core's memory that it has given back."""
    snapshot: Snapshot | None = None
    ping: int = 0
    least: int = 0
    """Connections of the front that has fewest."""
    elsewhere: int = 0
    """Connections of all other fronts."""
    pages: list[tuple[int, str]] = []
    stop: float = -1.0
    """Stop accepting, and cut off what is not answered within so many seconds; -1: go on."""


class Hello(msgspec.Struct):
    """The core's first words to a new front."""

    limits: Limits
    deadlines: dict[str, float]
    """Per model, in seconds."""
    repository_control: bool
    metrics: bool
    """Whether the data port shows them."""
    inflight_bytes: int
    """What this front's large bodies may take at once."""
    snapshot: Snapshot
    log: Style


# ---------------------------------------------------------------- to bytes and back


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return memoryview(raw(value))
    raise NotImplementedError(f"a {type(value).__name__} cannot travel")


encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
encode: Final = encoder.encode
read_front: Final = msgspec.msgpack.Decoder(FromFront).decode
read_core: Final = msgspec.msgpack.Decoder(FromCore).decode
read_hello: Final = msgspec.msgpack.Decoder(Hello).decode
read_tensors: Final = msgspec.msgpack.Decoder(list[tuple[str, str, tuple[int, ...], Any]]).decode
read_items: Final[dict[str, Any]] = {
    "str": msgspec.msgpack.Decoder(list[str]).decode,
    "bytes": msgspec.msgpack.Decoder(list[bytes]).decode,
}
"""Elements without a fixed size, as `encode` writes a list of them."""

_CLASSES: Final = {error.code: error for error in TABLE}


def error_of(code: str, message: str, retry_after_seconds: float | None) -> MaitredError:
    """An error as it was on the other side."""
    return _CLASSES.get(code, Internal)(message, retry_after_seconds=retry_after_seconds)


def clean(text: str) -> str:
    """Text that UTF-8 can hold: a model's own words may be anything."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class Hopped(Request, eq=False, gc=False):
    """A request that came from a front."""

    number: int = 0
    model: Any = None
    """The `CoreModel` that it is for."""
