"""What the connections of one port share: the application, limits, the time of day, and what they remember together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from maitred.clock import Clock
from maitred.http.bodies import Bodies
from maitred.http.coding import Choice, choose
from maitred.http.exchange import JSON, REASONS, Application
from maitred.http.heads import MOST_LINES, Heads
from maitred.http.limits import SLICES, SWEEP_SECONDS, Limits, slice_size
from maitred.http.shapes import Shapes

if TYPE_CHECKING:
    from maitred.http.one import Connection

LOG: Final = logging.getLogger("maitred.http")

_PLAIN_BYTES: Final = 16384
_REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 512

ProtocolFactory = Callable[[], asyncio.Protocol]


class Roll(dict["Connection", None]):
    """Connections, in the order in which they came."""

    def add(self, connection: Connection) -> None:
        self[connection] = None

    def discard(self, connection: Connection) -> None:
        self.pop(connection, None)


class Port:
    """Belongs to one loop."""

    __slots__ = (
        "exchange", "limits", "clock", "loop", "two", "connections", "draining", "heads", "shapes", "refused",
        "json_ok", "elsewhere", "counted", "_plain_below", "most_lines", "plain_bytes", "emptied", "_date",
        "_beginnings", "_choices", "_workers", "_unswept", "_slice", "_sweeping", "bodies",
    )  # fmt: skip

    def __init__(
        self,
        app: Application,
        limits: Limits,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        two: ProtocolFactory | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self.exchange = app.exchange
        self.limits = limits
        self.clock = clock
        self.loop = loop
        self._plain_below = limits.compress_from_bytes
        """Bodies of that size and more, and all while draining, take the long way out."""
        self.plain_bytes = min(limits.head_bytes, _PLAIN_BYTES)
        """Larger requests are the parser's; so are those whose body has lines."""
        self.most_lines = min(limits.headers, MOST_LINES) + 3
        """So many headers, with the lines around them, are known here."""
        self.bodies = bodies
        """Gives places to large bodies; without it they are as small ones."""
        self.two = two
        """Makes the protocol that takes over a connection whose first bytes are those of HTTP/2."""
        self.connections = Roll()
        self.elsewhere = 0
        """Connections that other processes hold on the same port; they count to the limit too."""
        self.counted: Callable[[int], None] | None = None
        """Told how many connections there are, after each change."""
        self.draining = False
        self.heads = Heads(limits.body_bytes, getattr(app, "watched", ()), getattr(app, "labels", ()))
        self.shapes = Shapes(limits)
        self.refused: Callable[[int], None] = lambda status: None
        """Told the status of every request that the application does not get to see."""
        self.emptied: Callable[[], None] | None = None
        """Called when the last connection has closed."""
        self._choices: dict[bytes, Choice] = {}
        self._workers: ThreadPoolExecutor | None = None
        self._unswept: list[Connection] = []
        """Those that this round of sweeping has not come to, the next one last."""
        self._slice = slice_size(limits)
        self._sweeping: asyncio.TimerHandle | None = None
        self.json_ok: dict[int, bytes] = {}
        """Head by size of body, for bodies that are not compressed; begun anew every second, with the date."""
        self.set_date("Thu, 01 Jan 1970 00:00:00 GMT")

    def set_date(self, date: str) -> None:
        """Use `date` in answers; called once a second."""
        self._date = date.encode("ascii")
        self._beginnings: dict[tuple[int, bytes], bytes] = {}
        self.json_ok = {}

    def head(self, status: int, content_type: bytes) -> bytes:
        """An answer's head as far as its Content-Type."""
        head = self._beginnings.get((status, content_type))
        if head is None:
            head = b"HTTP/1.1 %d %b\r\nDate: %b\r\n" % (status, REASONS.get(status, b"Unknown"), self._date)
            if content_type:
                head += b"Content-Type: %b\r\n" % content_type
            if len(self._beginnings) < _REMEMBERED:
                self._beginnings[status, content_type] = head
        return head

    def json_head(self, size: int) -> bytes | None:
        """The head, but for what the application adds, of a plain JSON answer with status 200 and `size` bytes of body.

        None if such an answer takes the long way out.
        """
        if size >= self._plain_below:
            return None
        self.json_ok[size] = head = b"%bContent-Length: %d\r\n" % (self.head(200, JSON), size)
        return head

    def error_head(self, status: int, size: int) -> bytes | None:
        """As `json_head`, for errors: refusing must be cheaper than answering. None for all other statuses too."""
        if status < 400 or size >= self._plain_below:
            return None
        beginning = self._beginnings.get((status, JSON)) or self.head(status, JSON)
        return b"%bContent-Length: %d\r\n" % (beginning, size)

    def choose(self, accept: bytes) -> Choice:
        """`coding.choose`, remembered: few clients differ in this header."""
        choice = self._choices.get(accept)
        if choice is None:
            choice = choose(accept)
            if len(self._choices) >= _REMEMBERED:
                self._choices.clear()
            if len(accept) <= _REMEMBERED_BYTES:
                self._choices[accept] = choice
        return choice

    def workers(self) -> ThreadPoolExecutor:
        """Threads for compressing and inflating what would hold up the loop."""
        if self._workers is None:
            self._workers = ThreadPoolExecutor(2, thread_name_prefix="maitred-coding")
        return self._workers

    def begin_drain(self) -> None:
        """From now on answers say `Connection: close`."""
        self.draining = True
        self._plain_below = 0
        self.json_ok = {}

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.counted is not None:
            self.counted(len(self.connections))
        if not self.connections and self.emptied is not None:
            self.emptied()

    def in_flight(self) -> int:
        """Requests read and not yet answered."""
        return sum(len(connection.queue) for connection in self.connections)

    def sweep(self) -> None:
        """Begin a round in which the connections whose time is up are closed; called every `SWEEP_SECONDS`.

        A round is cut into slices, so that thousands of connections, or the end of thousands, hold up nobody. It goes
        through them in the order in which they came, at the same pace every time: none waits for longer than
        `SWEEP_SECONDS` from one look to the next, unless the loop is held up by others.
        """
        self.heads.make_room()
        behind = len(self._unswept)
        if behind <= len(self.connections):  # else a whole round behind
            self._unswept[:0] = reversed(self.connections)
            if not behind:
                self._sweep_slice()

    def _sweep_slice(self) -> None:
        unswept, connections = self._unswept, self.connections
        due = unswept[-self._slice :]
        del unswept[-self._slice :]
        self._sweeping = self.loop.call_later(SWEEP_SECONDS / SLICES, self._sweep_slice) if unswept else None
        now = self.clock()
        for connection in reversed(due):
            if connection in connections:
                connection.sweep(now)

    def close(self) -> None:
        self._unswept.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._workers = None
