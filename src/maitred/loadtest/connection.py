"""One connection with one request on its way at most: writes it, takes the answer, tells the load what came of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol, cast

from maitred.loadtest.answer import BadAnswer, Reader, shown
from maitred.loadtest.heads import Shape, is_json

if TYPE_CHECKING:
    from maitred.loadtest.heads import Heads
    from maitred.loadtest.tally import Kind

now_ns: Final = time.monotonic_ns


class Values(Protocol):
    """The values of an answer's head that matter, by name."""

    def __getitem__(self, name: str, /) -> bytes: ...


class Owner(Protocol):
    """What a connection needs of the load that it is part of."""

    requests: list[bytes]
    heads: Heads
    shape: Shape
    """Of the last answer that had a known one."""

    def answered(self, connection: Connection, now: int, shape: Shape, values: Values, body: bytes) -> None:
        """A whole answer came; the connection is free, or about to close."""

    def show(self, body: bytes | bytearray) -> None:
        """A good answer that was read the long way, as the first one is: worth a look for people."""

    def broken(self, connection: Connection, kind: Kind, said: str) -> None:
        """No answer will come; the connection is closed or about to be."""

    def closed(self, connection: Connection) -> None:
        """A connection that was adopted is closed; comes once, after all else."""


class Connection(asyncio.Protocol):
    """A keep-alive connection over HTTP/1.1."""

    __slots__ = (
        "_owner", "transport", "due", "sent", "index", "_reader", "_head", "closing", "adopted", "answers",
        "received_bytes", "sent_bytes",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.transport: asyncio.WriteTransport
        self.due = 0
        """When the request on its way should have left, in nanoseconds; 0 where there is none."""
        self.sent = 0
        """When it did."""
        self.index = 0
        """Which request it is."""
        self._reader: Reader | None = None
        self._head = b""
        self.closing = False
        """Whether no other request may follow."""
        self.adopted = False
        """Whether the owner has it, and wants to hear of its end."""
        self.answers = 0
        """Good ones."""
        self.received_bytes = 0
        self.sent_bytes = 0

    def send(self, index: int, due: int) -> None:
        """Send the request of that index, which is due at that moment."""
        request = self._owner.requests[index]
        self.index = index
        self.due = due
        self.sent_bytes += len(request)
        self.sent = now_ns()
        self.transport.write(request)

    def give_up(self) -> None:
        """Close, and hear no more of the request on its way."""
        self.due = 0
        self.closing = True
        self.transport.abort()

    # --- called by the loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        now = now_ns()
        self.received_bytes += len(data)
        if not self.due:
            self.give_up()  # an answer that nobody asked for: what follows could be taken for another one
            return
        if self._reader is None:
            owner = self._owner
            shape = owner.shape
            found = shape.match(data)
            if found is None:
                shape, found = owner.heads.find(data)
                owner.shape = shape
            if found is not None:
                start = found.end()
                if int(found["length"]) == len(data) - start:
                    owner.answered(self, now, shape, found, data[start:])
                    return
            self._reader = Reader()
            self._head = data
        self._read(now, self._reader, data)

    def _read(self, now: int, reader: Reader, data: bytes) -> None:
        try:
            reader.feed(data)
        except BadAnswer as error:
            self._break("malformed", str(error))
            return
        if reader.done:
            self.closing = not reader.keep
            if reader.keep:
                self._owner.heads.learn(self._head, reader.status, reader.headers)
            self._end(now, reader)

    def _end(self, now: int, reader: Reader) -> None:
        self._reader, self._head = None, b""
        values = {name.lower(): value for name, value in reader.headers}
        binary = values.get(b"inference-header-content-length")
        timing = values.get(b"server-timing")
        good = 200 <= reader.status < 300
        shape = Shape(
            self._owner.shape.match, reader.status, good, is_json(reader.headers) and binary is None,
            timing is not None, binary is not None,
        )  # fmt: skip
        if good:
            self._owner.show(reader.body)
        self._owner.answered(self, now, shape, {"timing": timing or b"", "binary": binary or b""}, bytes(reader.body))

    def eof_received(self) -> None:
        self.closing = True

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        if self.due:
            self._lost(error)
        if self.adopted:
            self._owner.closed(self)

    def _lost(self, error: Exception | None) -> None:
        reader = self._reader
        if error is None and reader is not None and reader.end():
            self._end(now_ns(), reader)
        elif isinstance(error, ConnectionError):
            self._break("reset", f"the connection was reset: {error}")
        elif error is not None:
            self._break("other", f"{type(error).__name__}: {error}")
        else:
            began = "" if reader is None else f" after {shown(self._head)}"
            self._break("closed", f"the other side closed the connection{began}")

    def _break(self, kind: Kind, said: str) -> None:
        self._owner.broken(self, kind, said)
        self.give_up()
