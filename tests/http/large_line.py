"""A connection for large bodies, with the kernel's buffer in the test's hands, and a giver of places to watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from http_memory import Line, Loop, Recorder, echo

from maitred.clock import ManualClock
from maitred.http.bodies import Asker, Place, Want
from maitred.http.exchange import Exchange
from maitred.http.limits import Limits, Refused
from maitred.http.port import Port


class Spot:
    """A place that remembers what was done with it. What is there before the body is somebody else's."""

    def __init__(self, want: Want, giver: Giver) -> None:
        self.memory = bytearray(b"\xaa" * want.size)
        self.view = memoryview(self.memory)
        self.body = memoryview(self.memory).toreadonly()
        self.want = want
        self.dropped = 0
        self._giver = giver

    def drop(self) -> None:
        assert not self.dropped, "dropped twice"
        self.dropped += 1
        self._giver.used -= self.want.size


class Giver:
    """Gives out places up to `room` bytes; above `most` it says that there will never be any."""

    def __init__(self, room: int = 1 << 30, most: int = 1 << 30) -> None:
        self.room, self.most, self.used = room, most, 0
        self.crowded = False
        self.given: list[Spot] = []
        self.line: list[tuple[Asker, Want]] = []

    def ask(self, asker: Asker, want: Want) -> Place | None:
        if want.size > self.most:
            raise Refused(503, "there is no memory", b"Retry-After: 1\r\n")
        assert all(other is not asker for other, _ in self.line), "asked twice"
        if self.line or self.used + want.size > self.room:
            self.line.append((asker, want))
            return None
        return self._give(want)

    def _give(self, want: Want) -> Spot:
        self.used += want.size
        self.given.append(Spot(want, self))
        return self.given[-1]

    def leave(self, asker: Asker) -> None:
        self.line = [(other, want) for other, want in self.line if other is not asker]

    def count(self, holder: object, size: int) -> Place:
        if self.used + size > self.room:
            raise Refused(503, "there is no memory", b"Retry-After: 1\r\n")
        return self._give(Want("POST", b"/", [], size, True))

    def serve(self) -> None:
        """Let the first who waits have a place."""
        asker, want = self.line.pop(0)
        asker.granted(self._give(want))


class LargeLine(Line):
    """A connection whose transport keeps back what comes while reading is paused."""

    def __init__(
        self, giver: Giver | None, answer: Callable[[Exchange], None] | None = echo, limits: Limits | None = None
    ) -> None:
        app = Recorder(answer)
        clock, loop = ManualClock(), Loop()
        port = Port(app, limits or Limits(), clock, loop, bodies=giver)  # type: ignore[arg-type]
        super().__init__(port=port)
        self.app = app
        self.kernel = b""
        self.most = 1 << 16
        """Read at once, where the protocol has no buffer of its own."""

    def send(self, *pieces: bytes) -> LargeLine:
        for piece in pieces:
            self.kernel += piece
            self.read()
        return self

    def read(self) -> LargeLine:
        """Have everything read that may be."""
        while self.kernel and not self.transport.paused and not self.transport.closed:
            protocol = self.transport.protocol or self.connection
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer: Any = protocol.get_buffer(-1)
                assert len(buffer)
                count = min(len(buffer), len(self.kernel))
                buffer[:count] = self.kernel[:count]
                self.kernel = self.kernel[count:]
                protocol.buffer_updated(count)
            else:
                data, self.kernel = self.kernel[: self.most], self.kernel[self.most :]
                protocol.data_received(data)
            self.loop.turn()
        return self

    def hang_up(self) -> LargeLine:
        protocol = self.transport.protocol or self.connection
        protocol.eof_received()
        self.transport.closed = True
        (self.transport.protocol or self.connection).connection_lost(None)
        self.loop.turn()
        return self
