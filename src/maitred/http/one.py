"""HTTP/1.1 and 1.0 over httptools: a connection's bytes become exchanges.

`data_received` is on the path of every request: there the budget wins over small functions. A plain request, alone on
its connection and made of lines that are known, passes through none of the others; all else is the parser's.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import httptools

from maitred.errors import MaitredError
from maitred.http.answers import WAITING, Answers, OneExchange
from maitred.http.bodies import LARGE_BYTES, MOVING_BYTES, Place, Want
from maitred.http.coding import ANYTHING, check_coding
from maitred.http.exchange import INTERNAL, JSON, WATCHED, error_body
from maitred.http.heads import LENGTH_SHIFT, PLAIN, UNWATCHED, WATCHED_BITS, WATCHED_SHIFT, RequestLine, Unusual
from maitred.http.inflate import coding_refused, inflate
from maitred.http.large import Large
from maitred.http.limits import (
    BODY,
    BUSY,
    CHUNKED,
    CLOSING,
    FIRST_BYTE,
    HEAD,
    IDLE,
    ROOM,
    WAIT_A_MOMENT,
    ChunkSizes,
    Head,
    Headers,
    Refused,
    check_framing,
    check_head,
    check_version,
    head_bytes,
    no_room,
    outstayed,
    outstays,
    overdue,
    split_target,
    too_large_body,
    too_large_head,
    too_slow,
)
from maitred.http.port import LOG, Port
from maitred.http.shapes import LEARN_AT, Shape

# What has become of a connection's input.
_FRESH: Final = 0
_OPEN: Final = 1
_LAST: Final = 2
"""No more requests are taken; answers are still due."""
_LINGERING: Final = 3
"""All is answered; the caller may finish sending, so that it sees the answer and not a reset."""
_CLOSED: Final = 4

# Why reading is paused.
_PIPELINED: Final = 1
_CLOGGED: Final = 2
_ENOUGH: Final = 4
_ROOM: Final = 8
"""A large body waits for its place."""

_SLICE_BYTES: Final = 4096
"""The parser cannot be stopped: a slice bounds the requests read beyond the pipelining bound."""
_NO_LINES: Final[list[bytes]] = []
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_UPGRADE_OPTIONS: Final = (b"upgrade", b"http2-settings")
_NOTHING_ACCEPTABLE: Final = Refused(406, "Accept-Encoding excludes all of identity, gzip and deflate; allow one")


class Connection(asyncio.Protocol):
    """One caller's connection, and the callbacks of its parser."""

    __slots__ = (
        "port", "transport", "answers", "queue", "_clock", "_exchange", "_shape", "_unshaped", "_sample",
        "_request_lines", "_weigh", "_fast", "_stage", "_parser", "_feed", "_mid", "_in_body", "_line",
        "_line_key", "_target", "_headers", "_head", "_body", "_upgrading", "_rejected", "_count", "_sliced", "_raw",
        "_barren", "_gained", "_sizes", "_chunk_at", "_chunk_new", "_header_count", "_ready", "_held", "_paused",
        "_continue_due", "_lingered", "_seen", "_seen_at", "_seen_bytes", "_unsent", "_unsent_at", "_large",
    )  # fmt: skip

    def __init__(self, port: Port) -> None:
        self.port = port
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.answers = Answers(port, self)
        self.queue = self.answers.queue
        self._clock = port.clock
        self._exchange = port.exchange
        self._request_lines = port.heads.request_lines
        self._weigh = port.heads.weights.__getitem__
        self._fast = False
        """Between two requests, with nothing else to see to: the next one may be a plain one."""
        self._shape: Shape | None = None
        """What the next request is likely to look like."""
        self._unshaped = 0
        """Plain requests that did not."""
        self._sample = _NO_LINES
        """Header lines of the last of them, where a shape is to be learned from it and the next."""
        self._stage = _FRESH
        self._mid = False
        """A message has begun and is not complete."""
        self._in_body = False
        self._line: RequestLine | None = None
        self._line_key = b""
        """The request line as bytes, where it is to be learned."""
        self._target = b""
        self._headers: Headers = []
        self._head: Head = (0, False, None, None, False)
        self._body: bytes | bytearray = b""
        self._upgrading = False
        self._rejected: Refused | None = None
        """Why a callback has stopped the parser."""
        self._count = 0
        """Messages begun."""
        self._sliced = 0
        """The message (by count) whose head did not come in one piece."""
        self._raw = self._barren = self._gained = self._header_count = 0
        self._sizes: ChunkSizes | None = None
        """For a chunked body."""
        self._chunk_at = -1
        """How much of the body was there before the chunk that is open; -1 between chunks."""
        self._chunk_new = False
        """The chunk's size has not been looked at."""
        self._ready = 0
        """How many at the end of the queue the application has not seen yet."""
        self._held = b""
        """Input that the parser has not seen yet."""
        self._paused = 0
        self._large: Large | None = None
        """The body, if it may be large. Once it lies in its place, the parser sees no more of it."""
        self._continue_due = False
        self._lingered = 0
        self._seen = (0, 0)
        self._seen_at = self._unsent_at = 0.0
        self._seen_bytes = self._unsent = 0
        self._new_parser()

    def _new_parser(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._feed = self._parser.feed_data

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self.answers.transport = cast("asyncio.Transport", transport)
        port = self.port
        limits = port.limits
        self.transport.set_write_buffer_limits(limits.buffered_bytes)
        port.connections.add(self)
        if port.counted is not None:
            port.counted(len(port.connections))
        if len(port.connections) + port.elsewhere > limits.connections:
            message = f"this server holds {limits.connections} connections, its limit; try again shortly"
            self._refuse(Refused(503, message, WAIT_A_MOMENT))
            self._after(0)

    def data_received(self, data: bytes) -> None:
        if not self._fast or self._mid or self.queue:
            self._receive(data)
            return
        exchange = None
        shape = self._shape
        if shape is not None:
            match, method, path, watched, choice, plain = shape
            if found := match(data):
                length, body = found.groups()
                if int(length) == len(body):
                    exchange = OneExchange(
                        method, path, b"", data, body, self._clock(), None, None, watched, self.answers, choice, plain
                    )
        if exchange is None:
            exchange = self._plain(data)
            if exchange is None:
                self._receive(data)
                return
        self._count += 1
        self.queue.append(exchange)
        try:
            self._exchange(exchange)
        except Exception:
            self._raised(exchange)

    def _plain(self, data: bytes) -> OneExchange | None:
        """A complete plain request made of lines that are known; None for all else."""
        port = self.port
        pieces = data.split(b"\r\n") if len(data) <= port.plain_bytes else _NO_LINES
        if len(pieces) < 4:
            return None
        key, *lines, end, body = pieces
        line = self._request_lines.get(key)
        if line is None or end or len(pieces) > port.most_lines:
            self._line_key = key
            return None
        # What is left of the weight without the body's length is the kind of head, if the body is complete and alone.
        try:
            weight = sum(map(self._weigh, lines)) - (len(body) << LENGTH_SHIFT)
        except Unusual:
            return None
        choice = PLAIN.get(weight & UNWATCHED)
        if choice is None:
            return None
        method, path, query, _ = line
        watched = weight >> WATCHED_SHIFT & WATCHED_BITS
        if self._sample:
            learned = port.shapes.learn(key, method, path, self._sample, lines, watched, choice)
            self._shape = learned or self._shape
            self._sample = _NO_LINES
        self._unshaped += 1
        if self._unshaped in LEARN_AT:
            self._sample = lines
        return OneExchange(
            method, path, query, lines, body, port.clock(), None, None, watched, self.answers, choice, choice[1]
        )

    def eof_received(self) -> bool:
        self._hang_up()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._hang_up()
        del self._feed, self._parser  # they hold bound methods of this object
        self.port.left(self)

    def pause_writing(self) -> None:
        self.answers.clogged = True
        self._pause(_CLOGGED)

    def resume_writing(self) -> None:
        self.answers.clogged = False
        self._resume(_CLOGGED)
        self.answers.drained()

    # ---- the parser's side

    def on_message_begin(self) -> None:
        self._mid = True
        self._count += 1
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        try:
            self._take_head()
        except Refused as refused:
            self._rejected = refused
            raise

    def _take_head(self) -> None:
        limits = self.port.limits
        self._line = line = self._parse_line()
        self._head = head = check_head(self._headers, line[3], limits)
        self._in_body = True
        self._raw = self._barren = self._gained = 0
        self._sizes = ChunkSizes() if head[0] == CHUNKED else None
        self._chunk_at = -1
        self._header_count = len(self._headers)
        if self._sliced == self._count and head_bytes(self._target, self._headers) > limits.head_bytes:
            raise too_large_head(limits)
        if head[4] and self._parser.should_upgrade():
            self._upgrading = True
            return
        if self.port.bodies is not None and (head[0] > LARGE_BYTES or head[0] == CHUNKED):
            self._large = Large(self, head[0], head[2] is not None)
        self._continue_due = head[1] and head[0] != 0
        if self._continue_due and head[2] is not None:
            try:
                check_coding(head[2])
            except MaitredError as error:  # before the caller sends a body for nothing
                raise coding_refused(error) from None

    def _parse_line(self) -> RequestLine:
        method = self._parser.get_method().decode("ascii")
        old = check_version(self._parser.get_http_version())
        if method == "CONNECT":
            raise Refused(405, "this is no proxy: CONNECT is not served here", b"Allow: GET, HEAD, POST\r\n")
        path, query = split_target(self._target)
        line = (method, path, query, old)
        if self._line_key:
            self.port.heads.learn(self._line_key, line)
        return line

    def on_body(self, piece: bytes) -> None:
        body = self._body
        if not body:
            self._body = piece
        elif isinstance(body, bytearray):
            body += piece
        else:
            self._body = bytearray(body)
            self._body += piece
        if len(self._body) > self.port.limits.body_bytes:  # whatever the head has said
            self._rejected = too_large_body(self.port.limits)
            raise self._rejected

    def on_chunk_header(self) -> None:
        self._chunk_at = len(self._body)
        self._chunk_new = True

    def on_chunk_complete(self) -> None:
        self._chunk_at = -1

    def on_message_complete(self) -> None:
        self._mid = self._in_body = False
        self._line_key = b""
        if self._upgrading:
            return
        method, path, query, old = cast("RequestLine", self._line)
        length, _, coding, accept, _ = self._head
        body, self._body = self._body, b""
        headers = self._headers
        special: Any = coding if body else None
        if length == CHUNKED:
            try:
                self._check_chunked(body, headers)
            except Refused as refused:
                self._rejected = refused
                raise
        choice = ANYTHING if accept is None else self.port.choose(accept)
        if not choice.identity and choice.coding is None:
            special = _NOTHING_ACCEPTABLE
        keep = self._parser.should_keep_alive()
        large, self._large = self._large, None
        place = None if large is None else large.kept()
        plain = keep and not old and choice.identity and method != "HEAD" and place is None
        received_at = self.port.clock()
        self.queue.append(
            OneExchange(
                method, path, query, headers, body, received_at, None, None, WATCHED, self.answers, choice, plain,
                keep, old, special,
            )
        )  # fmt: skip
        if place is not None:
            self.queue[-1].place = place
        self._ready += 1
        self.answers.entangled = True

    def _check_chunked(self, body: bytes | bytearray, headers: Headers) -> None:
        limits = self.port.limits
        if len(body) > limits.body_bytes:
            raise too_large_body(limits)
        if len(headers) - self._header_count > limits.headers:
            raise Refused(400, f"the body ends in more than {limits.headers} trailers; send fewer")
        del headers[self._header_count :]  # trailers are not headers

    # ---- input that is not one plain request

    def _receive(self, data: bytes) -> None:
        """Take input in slices, as far as there is room for the requests in it."""
        if self._stage == _FRESH:
            data = self._first_bytes(data)
        elif self._held:
            self._held += data
            return
        at, size = 0, len(data)
        while at < size and self._stage == _OPEN:
            if self._paused & _ROOM:
                self._held = data[at:]
                return
            if len(self.queue) >= self.port.limits.pipelined:
                self._held = data[at:]
                self._fast, self.answers.entangled = False, True
                self._pause(_PIPELINED)
                return
            if self._large is not None and self._large.lies:
                at += self._large.take(memoryview(data)[at:])
                if self._large.full:
                    self.large_complete()
                continue
            appetite = self._appetite()
            at += self._take(data if not at and size <= appetite else memoryview(data)[at : at + appetite])
        if at < size:
            self._discard(size - at)
        elif self._large is not None and self._large.lies and not self._large.reading:
            self._large.reading = True
            self.transport.set_protocol(self._large)

    def _first_bytes(self, data: bytes) -> bytes:
        """Tell HTTP/2 from HTTP/1; what is left to be read as the latter."""
        data = self._held + data
        self._held = b""
        if _PREFACE.startswith(data) and len(data) < len(_PREFACE):
            self._held = data
            return b""
        self._stage, self._fast = _OPEN, True
        if not data.startswith(_PREFACE):
            return data
        if self.port.two is None:
            self._refuse(Refused(400, "HTTP/2 is not spoken on this port; use HTTP/1.1"))
            self._after(0)
            return data
        self._stage, self._fast = _CLOSED, False
        self.port.left(self)
        protocol = self.port.two()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(data)
        return b""

    def _appetite(self) -> int:
        """How much the parser may get at once: what is known to be body at least."""
        if self._in_body and self._head[0] > 0:
            to_place = self._large is not None and not self._large.counted
            return max(_SLICE_BYTES, (MOVING_BYTES if to_place else self._head[0]) - len(self._body))
        return _SLICE_BYTES

    def _take(self, piece: bytes | memoryview) -> int:
        """Have one slice parsed; how much of it was."""
        taken = len(piece)
        try:
            self._feed(piece)
            if self._in_body and self._sizes is not None:
                self._check_chunk(bytes(piece), self._sizes)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            taken = self._stopped(error, taken)
        self._after(taken)
        return taken

    def _after(self, taken: int) -> None:
        """Act on what a slice has brought."""
        if self._ready:
            self._pump()
        if self._mid and self._stage == _OPEN:
            try:
                self._check_unfinished(taken)
            except Refused as refused:
                self._refuse(refused)
                self._pump()
        answers = self.answers
        if answers.has_output() or answers.last:
            answers.flush()
        answers.untangle()

    def _check_chunk(self, piece: bytes, sizes: ChunkSizes) -> None:
        """Refuse a chunk that announces more than may come, before it comes."""
        if self._chunk_at < 0:
            sizes.between(piece)
        elif self._chunk_new:
            self._chunk_new = False
            size = sizes.announced(piece, len(self._body) - self._chunk_at)
            if self._chunk_at + size > self.port.limits.body_bytes:
                self._refuse(too_large_body(self.port.limits))

    def _check_unfinished(self, taken: int) -> None:
        limits = self.port.limits
        if not self._in_body:
            # The slice in which a head begins does not count: it may hold other requests too.
            self._raw = self._raw + taken if self._sliced == self._count else 0
            self._sliced = self._count
            if self._raw > limits.head_bytes:
                raise too_large_head(limits)
            return
        if self._continue_due:
            self._continue()
        large = self._large
        if large is not None and not self._paused & _ROOM and large.wants(len(self._body), limits.body_bytes):
            self._ask_place(large)
        if self._head[0] == CHUNKED:
            size = len(self._body)
            self._raw += taken
            self._barren = self._barren + taken if size == self._gained else 0
            self._gained = size
            check_framing(self._raw, size, self._barren, len(self._headers) - self._header_count, limits)

    # ---- large bodies

    def _ask_place(self, large: Large) -> None:
        """Have a place given to the body that comes, or wait for it. Raises Refused."""
        method, path, _, _ = cast("RequestLine", self._line)
        bodies = self.port.bodies
        assert bodies is not None
        place = bodies.ask(self, Want(method, path, self._headers, large.asked, large.counted))
        if place is None:
            self._pause(_ROOM)
        else:
            self._give(large, place)

    def _give(self, large: Large, place: Place) -> None:
        large.give(place, self._body, self.port.clock())
        if large.lies:
            self._body = b""

    def granted(self, place: Place) -> None:
        """The place that was waited for is there: go on reading."""
        assert self._large is not None
        self._give(self._large, place)
        held, self._held = self._held, b""
        self._resume(_ROOM)
        self._receive(held)

    def denied(self, refused: Refused) -> None:
        """The body will not get a place: it is not taken in."""
        self._refuse(refused)
        self._after(0)

    def large_complete(self) -> None:
        """The last byte of a large body has come. The parser has stopped in the middle of it: the next one begins."""
        large = self._large
        assert large is not None
        if large.reading:
            self.transport.set_protocol(self)
        self._body = large.body
        self.on_message_complete()
        self._new_parser()
        if not self.queue[-1].keep:
            self.take_no_more()
        self._after(0)

    def _leave_place(self) -> None:
        """The body that was coming is not wanted any more: its memory is given back at once."""
        large, self._large = self._large, None
        if large is not None:
            large.drop()
            if large.reading and not self.transport.is_closing():
                self.transport.set_protocol(self)
        if self._paused & _ROOM and self.port.bodies is not None:
            self.port.bodies.leave(self)
            self._resume(_ROOM)

    def _continue(self) -> None:
        """Ask for the body that the caller holds back, once all earlier answers are out."""
        if self._body:
            self._continue_due = False
        elif not self.queue and not self.answers.has_output():
            self._continue_due = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _stopped(self, error: Exception, size: int) -> int:
        """The parser will not go on: how much of the slice of `size` bytes is dealt with."""
        if isinstance(error, httptools.HttpParserUpgrade):
            self._replay()
            return int(error.args[0])
        if self._rejected is not None:
            self._refuse(self._rejected)
        elif isinstance(error, httptools.HttpParserCallbackError):
            LOG.error("a request could not be taken in", exc_info=error)
            self._refuse(Refused(500, INTERNAL))
        elif self.queue and not self.queue[-1].keep:
            self.take_no_more()  # more input behind a request that asked for the end
        else:
            refused = Refused(400, f"this is not valid HTTP/1.1 ({error}); correct the request")
            self._refuse(refused, isinstance(error, httptools.HttpParserInvalidURLError))
        return size

    def _replay(self) -> None:
        """Read a head that asked for another protocol again, without its asking: it is answered in HTTP/1.1.

        The parser skips the body of such a request; common clients send h2c upgrades with a body.
        """
        method, _, _, old = cast("RequestLine", self._line)
        version = b"1.0" if old else b"1.1"
        lines = [b"%b %b HTTP/%b\r\n" % (method.encode(), self._target, version)]
        for name, value in self._headers:
            if name == b"connection":
                kept = [option for option in value.split(b",") if option.strip().lower() not in _UPGRADE_OPTIONS]
                value = b",".join(kept).strip()
            if name not in _UPGRADE_OPTIONS and (value or name != b"connection"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self._upgrading = self._mid = self._in_body = False
        self._new_parser()
        headers = self._headers
        try:
            self._feed(b"".join(lines) + b"\r\n")
        except httptools.HttpParserError as error:
            self._stopped(error, 0)
        else:  # the application sees what was sent
            if self._mid:
                self._headers, self._header_count = headers, len(headers)
            else:
                self.queue[-1].head = headers

    def _refuse(self, refused: Refused, bad_target: bool = False) -> None:
        """Answer with an error after all earlier requests, and take no more input.

        `bad_target`: the parser has stopped inside the target, and so has read the method.
        """
        known = self._mid and (bad_target or self._target)
        method = "HEAD" if known and self._parser.get_method() == b"HEAD" else ""
        self.take_no_more()
        self._mid = self._in_body = self._continue_due = False
        self._body = self._held = b""
        refusal = OneExchange(method, b"", b"", [], b"", self.port.clock(), answers=self.answers, keep=False)
        refusal.special = refused
        self.queue.append(refusal)
        self._ready += 1

    def _discard(self, size: int) -> None:
        """Input that nobody will read: taken for a while, so that the caller sees its answer and not a reset."""
        self._lingered += size
        if self._lingered > self.port.limits.linger_bytes:
            self._pause(_ENOUGH)

    # ---- requests on their way to the application

    def _pump(self) -> None:
        """Hand over the requests that are ready, in their order."""
        if self.answers.collecting:
            return
        self.answers.collecting = True
        while self._ready:
            exchange = self.queue[-self._ready]
            self._ready -= 1
            special = exchange.special
            if special is None:
                self._hand_over(exchange)
            elif isinstance(special, Refused):
                self.port.refused(special.status)
                exchange.reply(special.status, error_body(special.message), JSON, special.extra)
            else:
                inflate(exchange, special, self.port, self._hand_over)
        self.answers.collecting = False

    def _hand_over(self, exchange: OneExchange) -> None:
        try:
            self._exchange(exchange)
        except Exception:
            self._raised(exchange)

    def _raised(self, exchange: OneExchange) -> None:
        """The application has failed: it is told in the log, with the path escaped, and to the caller in general."""
        LOG.exception("the application raised on %s %s", exchange.method, ascii(exchange.path)[2:-1])
        if exchange.phase == WAITING:
            exchange.reply(500, error_body(INTERNAL))
        else:
            exchange.abort()

    # ---- what the answers ask of the input

    def has_more(self) -> bool:
        return bool(self._mid or self._held or self._ready)

    def catch_up(self) -> None:
        room = len(self.queue) < self.port.limits.pipelined and not self._paused & _ROOM
        if self._held and self._stage == _OPEN and room:
            held, self._held = self._held, b""
            self._fast = True
            self._receive(held)
            if not self._held:
                self._resume(_PIPELINED)
        if self._continue_due and self._mid:
            self.answers.flush()
            self._continue()

    def take_no_more(self) -> None:
        self.answers.last = True
        self._leave_place()
        if self._stage < _LAST:
            self._stage, self._fast = _LAST, False

    def all_answered(self) -> None:
        """Let the caller know that all is said, and wait for its end."""
        if self._stage >= _LINGERING:
            return
        self._stage = _LINGERING
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.close()

    # ---- pauses and ends

    def _pause(self, reason: int) -> None:
        if not self._paused and not self.transport.is_closing():
            self.transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        if self._paused & reason:
            self._paused &= ~reason
            if not self._paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _hang_up(self) -> None:
        self._stage, self._fast, self._mid = _CLOSED, False, False
        self._leave_place()
        self._body = self._held = b""
        self._ready = 0
        self.answers.hang_up()

    def close(self) -> None:
        """Take no more requests and close once what was written is out."""
        self._hang_up()
        self.transport.close()

    def is_idle(self) -> bool:
        """Whether nothing of a request has been read that is not answered."""
        return not (self.queue or self._mid or self._held or self.answers.has_output() or self.answers.last)

    # ---- time

    def sweep(self, now: float) -> None:
        """Notice in which phase the connection is, and end it if it has been there for too long."""
        if self._is_stalled(now):
            self.transport.abort()
            return
        phase = self._phase()
        seen = (phase, self._count)
        if seen != self._seen:
            self._seen, self._seen_at, self._seen_bytes = seen, now, self._came()
            return
        limits = self.port.limits
        large = self._large
        if large is not None and self._must_make_room(large, now):
            self.denied(outstayed())
            return
        seconds = now - self._seen_at
        if phase != BODY:
            if overdue(phase, seconds, limits):
                self._expire(phase)
        elif seconds >= limits.body_window_seconds:
            came = self._came()
            if too_slow(came - self._seen_bytes, seconds, limits):
                self._expire(phase)
            else:
                self._seen_at, self._seen_bytes = now, came

    def _came(self) -> int:
        """How much of the body that comes is there."""
        return self._large.came if self._large is not None and self._large.lies else len(self._body)

    def _must_make_room(self, large: Large, now: float) -> bool:
        bodies = self.port.bodies
        if bodies is None or not bodies.crowded or large.kept() is None or self._paused & _ROOM:
            return False
        came = self._came()
        size = large.size if large.size > 0 else 2 * came
        return outstays(came, size, now - large.since, self.port.limits)

    def _phase(self) -> int:
        if self._stage >= _LINGERING:
            return BUSY if self._unsent else CLOSING
        if self._paused:
            return ROOM if self._paused & _ROOM else BUSY
        if self._mid:
            return BODY if self._in_body else HEAD
        if self._stage == _FRESH:
            return HEAD if self._held else FIRST_BYTE
        return BUSY if self.queue else IDLE

    def _is_stalled(self, now: float) -> bool:
        """Whether the caller has taken nothing of what waits for it for too long."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or not self._unsent or unsent < self._unsent:
            self._unsent, self._unsent_at = unsent, now
            return False
        return now - self._unsent_at >= self.port.limits.stalled_seconds

    def _expire(self, phase: int) -> None:
        if phase == CLOSING:
            self.transport.abort()
            return
        if phase == ROOM:
            self.denied(no_room(self._head[0]))
            return
        if phase in (HEAD, BODY):
            part = "head" if phase == HEAD else "body"
            self._refuse(Refused(408, f"the request's {part} came too slowly; send it faster"))
            self._after(0)
            if self.queue:
                return  # earlier requests are answered first
        self.close()
