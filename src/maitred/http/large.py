"""A large body on its way into its place: while it comes, the socket reads straight into that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from maitred.http.bodies import Place

if TYPE_CHECKING:
    from maitred.http.one import Connection

_READ_BYTES: Final = 1 << 20
"""Taken from the socket at once: others have their turn in between."""


class Large(asyncio.BufferedProtocol):
    """The protocol of a connection for as long as the rest of a large body lasts. It never reads beyond that."""

    __slots__ = ("place", "came", "since", "reading", "_connection", "_view", "_size")

    def __init__(self, connection: Connection, place: Place, begun: bytes | bytearray, since: float) -> None:
        """`begun`: what has come of the body already."""
        self.place = place
        self.since = since
        """When it got its place."""
        self.came = 0
        """Bytes of the body that are there."""
        self.reading = False
        """It is the connection's protocol now."""
        self._connection = connection
        self._view = place.view
        self._size = len(self._view)
        self.take(begun)

    @property
    def full(self) -> bool:
        return self.came == self._size

    @property
    def size(self) -> int:
        return self._size

    def take(self, data: bytes | bytearray | memoryview) -> int:
        """Copy what has been read already; how much of it belongs to this body."""
        at = self.came
        self.came = min(at + len(data), self._size)
        self._view[at : self.came] = data[: self.came - at]
        return self.came - at

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self.came : self.came + _READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self.came += nbytes
        if self.came == self._size:
            self._connection.large_complete()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
