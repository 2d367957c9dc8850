"""A body that is large, or may become so: it has a place given to it, and then the socket reads straight into that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.http.bodies import MOVING_BYTES, Place, Steps
from maitred.http.limits import CHUNKED

if TYPE_CHECKING:
    from maitred.http.one import Connection

_READ_BYTES: Final = 1 << 20
"""Taken from the socket at once: others have their turn in between."""
_STEP_BYTES: Final = 1 << 20
"""A body without a size is counted in steps that grow up to this."""
_NOTHING: Final = memoryview(b"")


class Large(asyncio.BufferedProtocol):
    """One such body. It is the connection's protocol while the socket reads into its place, and never reads beyond."""

    __slots__ = ("size", "asked", "lies", "came", "since", "reading", "_connection", "_place", "_steps", "_view")

    def __init__(self, connection: Connection, size: int, coded: bool) -> None:
        """`size` of the body, or CHUNKED. Where it has a coding, or no size, it is taken in as small ones are, and only
        counted as it grows."""
        self.size = size
        self.asked = 0
        """Bytes for which a place was last wanted."""
        self.lies = False
        """It has its place: what comes of it goes there."""
        self.came = 0
        """Bytes of it in its place."""
        self.since = 0.0
        """When it was first given one."""
        self.reading = False
        """It is the connection's protocol now."""
        self._connection = connection
        self._place: Place | None = None
        self._steps = Steps() if coded or size == CHUNKED else None
        self._view = _NOTHING

    @property
    def counted(self) -> bool:
        return self._steps is not None

    def wants(self, came: int, most: int) -> bool:
        """Whether a place is needed, for `asked` bytes, now that so many of `most` have come. Not once it has one."""
        steps = self._steps
        if steps is None:
            self.asked = self.size
            return came >= MOVING_BYTES and not self.lies
        end = self.size if self.size > 0 else min(most, steps.size + min(steps.size, _STEP_BYTES))
        self.asked = max(1, end - steps.size)
        return came > steps.size

    def give(self, place: Place, begun: bytes | bytearray, now: float) -> None:
        """The place that was wanted. `begun`: what has come already."""
        self.since = self.since or now
        if self._steps is not None:
            self._steps.add(place, self.asked)
            return
        self._place, self._view = place, place.view
        self.lies = True
        self.take(begun)

    def kept(self) -> Place | Steps | None:
        """What holds the complete body, to be dropped when nobody needs it."""
        return self._place or self._steps or None

    @property
    def body(self) -> bytes | bytearray:
        """The body, complete in its place."""
        assert self._place is not None
        body: bytes | bytearray = self._place.body
        return body

    def drop(self) -> None:
        """Nobody wants the rest of it."""
        kept = self.kept()
        if kept is not None:
            kept.drop()

    def take(self, data: bytes | bytearray | memoryview) -> int:
        """Copy what has been read already; how much of it belongs to this body."""
        at = self.came
        self.came = min(at + len(data), self.size)
        self._view[at : self.came] = data[: self.came - at]
        return self.came - at

    @property
    def full(self) -> bool:
        return self.came == self.size

    # ---- a protocol's side

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self.came : self.came + _READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self.came += nbytes
        if self.came == self.size:
            self._connection.large_complete()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
