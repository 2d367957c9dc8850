"""Answers of one HTTP/1 connection: each put into bytes, sent in the order of the requests, once per loop turn."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, Protocol, cast

from maitred.http.coding import ANYTHING, Choice, Inflation, compress
from maitred.http.exchange import JSON, Exchange, Pieces
from maitred.http.port import LOG, Port

# What has become of an exchange.
WAITING: Final = 0
STARTED: Final = 1
ANSWERING: Final = 2
"""Replied, but the answer is still being compressed."""
DONE: Final = 3
GONE: Final = 4

_JOIN_BYTES: Final = 64 << 10
"""Up to this size a body is copied behind its head, to leave as one buffer."""
_BODILESS: Final = (204, 304)
_join: Final = b"".join


class OneExchange(Exchange, eq=False, weakref=False):
    """An exchange over HTTP/1. `reply` is on the path of every request."""

    answers: Answers = cast("Answers", None)
    choice: Choice = ANYTHING
    plain: bool = False
    """Nothing about the answer is out of the ordinary: not HEAD, kept alive, HTTP/1.1, identity allowed."""
    keep: bool = True
    """Whether the connection may go on after this answer."""
    old: bool = False
    """HTTP/1.0."""
    special: Any = None
    """What happens in place of the application's turn: a content coding (bytes) to undo, or a Refused to answer."""
    phase: int = WAITING
    pieces: list[Any] | None = None
    """Bytes of the answer that wait until earlier answers are out."""
    inflation: Inflation | None = None
    held_back: bool = False
    """`write` has returned False since the last `on_drain`."""
    place: Any = None
    """Where the body lies, if that was given for it; until the answer, or the caller's end. Such an exchange is not
    `plain`."""

    def lies(self) -> Any:
        place = self.place  # the body itself may have been replaced by what was read of it
        return place if place is not None and type(place.body) is memoryview else None

    def reply(self, status: int, body: bytes | Pieces, content_type: bytes = JSON, extra: bytes = b"") -> None:
        answers = self.answers
        if self.plain and not (self.phase or answers.entangled) and content_type is JSON:
            port = answers.port
            if status == 200:
                head = port.json_ok.get(len(body)) or port.json_head(len(body))
            else:
                head = port.error_head(status, len(body))
            if head is not None:
                self.phase = DONE
                answers.queue.clear()
                answers.transport.write(_join((head, extra, b"\r\n", body)))  # type: ignore[arg-type]
                return
        if self.phase:
            self._late("reply")
            return
        self.gone = self.on_drain = None
        if self.place is not None:
            self._let_go()
        answers.send(self, status, body if isinstance(body, tuple) else bytes(body), content_type, extra)

    def start(self, status: int, content_type: bytes = JSON, extra: bytes = b"") -> None:
        if self.phase:
            self._late("start")
            return
        self.phase = STARTED
        self.keep = self.keep and not self.old  # without chunks the end of the connection is the end of the answer
        framing = b"" if self.old else b"Transfer-Encoding: chunked\r\n"
        head = self.answers.port.head(status, content_type) + framing + extra + self.answers.ending(self)
        self.answers.put(self, [head + b"\r\n"])

    def write(self, piece: bytes) -> bool:
        if self.phase == GONE:
            return False
        if self.phase != STARTED:
            raise RuntimeError("an answer is written between start and end")
        answers = self.answers
        if piece and self.method != "HEAD":
            answers.put(self, [bytes(piece)] if self.old else [b"%x\r\n%b\r\n" % (len(piece), piece)])
        self.held_back = answers.is_full(self)
        return not self.held_back

    def end(self) -> None:
        if self.phase == GONE:
            return
        if self.phase != STARTED:
            raise RuntimeError("an answer is ended once, after start")
        self._complete([] if self.old or self.method == "HEAD" else [b"0\r\n\r\n"])

    def abort(self) -> None:
        if self.phase != STARTED:
            return
        self.keep = False
        if self.old:
            self.answers.transport.abort()
        self._complete([])

    def _complete(self, pieces: list[bytes]) -> None:
        self.phase = DONE
        self.gone = self.on_drain = None
        if self.place is not None:
            self._let_go()
        self.answers.put(self, pieces)

    def _let_go(self) -> None:
        """The body is not needed any more; one that lies in a place will be another's, so nobody can look at it."""
        if self.lies() is not None:
            self.body = b""
        place, self.place = self.place, None
        place.drop()

    def _late(self, verb: str) -> None:
        if self.phase != GONE:
            raise RuntimeError(f"{verb}: the exchange has been answered")

    def leave(self) -> None:
        """The caller has gone: tell whoever works for it, once."""
        gone = self.gone
        self.phase = GONE
        self.gone = self.on_drain = self.pieces = None
        if self.inflation is not None:
            self.inflation.stopped = True
        if gone is not None:
            try:
                gone.gone()
            except Exception:
                LOG.exception("the hang-up of a caller was not dealt with")
        if self.place is not None:
            self._let_go()


class Intake(Protocol):
    """The other half of a connection: what reads requests."""

    def has_more(self) -> bool:
        """Whether input waits for room, or part of a further request has been read."""
        ...

    def catch_up(self) -> None:
        """There may be room again."""
        ...

    def take_no_more(self) -> None:
        """The last answer is decided on."""
        ...

    def all_answered(self) -> None:
        """The last answer is out."""
        ...


class Answers:
    """The way out of one connection."""

    __slots__ = (
        "port", "transport", "queue", "entangled", "collecting", "clogged", "last",
        "_intake", "_out", "_out_bytes", "_scheduled",
    )  # fmt: skip

    def __init__(self, port: Port, intake: Intake) -> None:
        self.port = port
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.queue: list[OneExchange] = []
        """Requests that have been read and not answered in full, in their order."""
        self.entangled = False
        """Something besides one answer is to be seen to: the short way out is closed."""
        self.collecting = False
        """Requests are being handed over: whoever does it sends the output afterwards."""
        self.clogged = False
        """The caller does not take its answers."""
        self.last = False
        """No more requests are taken."""
        self._intake = intake
        self._out: list[Any] = []
        self._out_bytes = 0
        self._scheduled = False

    def send(self, exchange: OneExchange, status: int, body: bytes | Pieces, content_type: bytes, extra: bytes) -> None:
        """The general way of a whole answer: compression, HEAD, the connection's end, other answers before it."""
        if isinstance(body, tuple):
            if exchange.choice.coding is None and exchange.method != "HEAD":
                self._send_coded(exchange, status, body, content_type, extra + b"Vary: Accept-Encoding\r\n")
                return
            body = _join(body)
        limits = self.port.limits
        if status in _BODILESS:
            body = b""
        wanted = body and (len(body) >= limits.compress_from_bytes or not exchange.choice.identity)
        if not wanted or b"content-encoding:" in extra.lower():
            self._send_coded(exchange, status, body, content_type, extra)
            return
        coding = exchange.choice.coding
        extra += b"Vary: Accept-Encoding\r\n"
        if coding is None:
            self._send_coded(exchange, status, body, content_type, extra)
        elif len(body) <= limits.offload_bytes:
            self._send_smaller(exchange, status, body, content_type, extra, compress(body, coding))
        else:
            exchange.phase = ANSWERING
            future = self.port.loop.run_in_executor(self.port.workers(), compress, body, coding)
            future.add_done_callback(partial(self._compressed, exchange, status, body, content_type, extra))

    def _compressed(
        self, exchange: OneExchange, status: int, body: bytes, content_type: bytes, extra: bytes,
        future: asyncio.Future[bytes],
    ) -> None:  # fmt: skip
        if not future.cancelled() and exchange.phase != GONE:
            self._send_smaller(exchange, status, body, content_type, extra, future.result())

    def _send_smaller(
        self, exchange: OneExchange, status: int, body: bytes, content_type: bytes, extra: bytes, coded: bytes
    ) -> None:
        coding = exchange.choice.coding
        if coding is not None and (len(coded) < len(body) or not exchange.choice.identity):
            body, extra = coded, extra + b"Content-Encoding: %b\r\n" % coding
        self._send_coded(exchange, status, body, content_type, extra)

    def _send_coded(
        self, exchange: OneExchange, status: int, body: bytes | Pieces, content_type: bytes, extra: bytes
    ) -> None:
        exchange.phase = DONE
        start = self.port.head(status, content_type)
        size = sum(map(len, body)) if isinstance(body, tuple) else len(body)
        length = b"" if status in _BODILESS else b"Content-Length: %d\r\n" % size
        head = b"%b%b%b%b\r\n" % (start, length, extra, self.ending(exchange))
        if isinstance(body, tuple):
            self.put(exchange, [head, *body])
            return
        if exchange.method == "HEAD":
            body = b""
        self.put(exchange, [head, body] if len(body) > _JOIN_BYTES else [head + body])

    def ending(self, exchange: OneExchange) -> bytes:
        """The Connection header of an answer; decides whether it is the last."""
        newest = exchange is self.queue[-1]
        if self.port.draining and newest and not self._intake.has_more():
            exchange.keep = False
        if exchange.keep:
            return b"Connection: keep-alive\r\n" if exchange.old else b""
        if newest:
            self.last = True
            self._intake.take_no_more()
        return b"Connection: close\r\n"

    def put(self, exchange: OneExchange, pieces: list[Any]) -> None:
        """Send pieces of an answer, or keep them until it is its turn."""
        if exchange.pieces is None:
            exchange.pieces = pieces
        else:
            exchange.pieces += pieces
        if self.queue[0] is exchange:
            self._advance()

    def _advance(self) -> None:
        """Move what the first answers have into the output."""
        queue = self.queue
        while queue:
            first = queue[0]
            if first.pieces:
                self._out += first.pieces
                self._out_bytes += sum(map(len, first.pieces))
            first.pieces = None
            if first.phase != DONE:
                break
            del queue[0]
            if not first.keep:
                self._cut()
        if self.collecting:
            return
        if queue or self.entangled:
            self.schedule()
        else:
            self.flush()

    def _cut(self) -> None:
        """An answer has ended the connection: requests behind it, if any, are not answered."""
        self.last = True
        self._intake.take_no_more()
        behind = self.queue[:]
        self.queue.clear()
        for exchange in behind:
            exchange.leave()

    def schedule(self) -> None:
        """See to the output and to what waits for room at the end of this turn of the loop.

        Not at once: the application may be inside a callback in which it must not be called.
        """
        self.entangled = True
        if not self._scheduled:
            self._scheduled = True
            self.port.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.transport.is_closing():
            return
        self._intake.catch_up()
        self.flush()
        self.untangle()
        if not self.clogged:
            self.drained()

    def untangle(self) -> None:
        """Open the short way out again if there is one answer at most, and nothing else to be seen to."""
        self.entangled = bool(len(self.queue) > 1 or self._out or self._scheduled or self._intake.has_more())

    def flush(self) -> None:
        """One write for all that has been answered."""
        out = self._out
        if out:
            self._out = []
            if self._out_bytes <= _JOIN_BYTES:
                self.transport.write(out[0] if len(out) == 1 else _join(out))
            else:
                self.transport.writelines(out)
            self._out_bytes = 0
        if self.last and not self.queue:
            self._intake.all_answered()

    def is_full(self, exchange: OneExchange) -> bool:
        """Whether a stream should pause."""
        if self.queue[0] is not exchange:
            return sum(map(len, exchange.pieces or ())) > self.port.limits.buffered_bytes
        return self.clogged or self._out_bytes > self.port.limits.buffered_bytes

    def drained(self) -> None:
        """Tell a stream that has held back that there is room."""
        if self.queue and self.queue[0].held_back:
            first = self.queue[0]
            first.held_back = False
            if first.on_drain is not None:
                first.on_drain()

    def has_output(self) -> bool:
        return bool(self._out)

    def hang_up(self) -> None:
        """The caller has gone."""
        self._out = []
        self._out_bytes = 0
        gone = self.queue[:]
        self.queue.clear()
        for exchange in gone:
            exchange.leave()
