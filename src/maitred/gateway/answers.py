"""How a call is answered: the watcher of its ticket, the times in its header, and the one form of errors."""

from __future__ import annotations

import asyncio
import logging
import re
from math import ceil
from typing import Any, Final, Protocol

import msgspec
import orjson

from maitred.endpoint import Ticket
from maitred.errors import Internal, MaitredError
from maitred.gateway.apart import Apart, Much
from maitred.http.exchange import JSON, Exchange, Pieces
from maitred.messages import Chunk, Outputs, Result, Tensor
from maitred.wire.coerce import Array, NanPolicy, is_long, rows_in_pieces, rows_json
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.times import Clock

log = logging.getLogger("maitred.gateway")

MAX_MESSAGE: Final = 1000
"""Characters of an error's message that a caller gets to see."""
_LONGEST_WAIT_SECONDS: Final = 86400.0

OCTETS: Final = b"application/octet-stream"

PAUSE: Final = "pause"
"""In a batch's memo: what to do between pieces of a long answer; until it is there, nothing long is written."""

_encode: Final = msgspec.json.Encoder().encode


class Form(Protocol):
    """How one route writes a result. Called while the result's arrays are valid."""

    apart: Apart | None
    """Where what is too long for the loop is written; None: on the spot."""

    def write(self, call: Call, result: Result) -> tuple[bytes | Pieces, bytes, bytes]:
        """Body, content type and further header lines. Raises MaitredError where these rows cannot be written."""
        ...

    def check(self, call: Call, result: Result) -> None:
        """Raise MaitredError for numbers among these rows that cannot be written: quick, where writing is not."""
        ...


class Call(msgspec.Struct, eq=False):
    """One request on its way through an endpoint: answers its exchange when its ticket ends, cancels when it leaves."""

    exchange: Exchange | None
    """None once there is nobody to be answered any more."""
    ticket: Ticket
    form: Form
    id: str | None
    """What the caller wants to see again in the answer."""
    wanted: Any
    """Names of the outputs to be answered, in order."""
    forms: Any
    """What else the form has to know about this call."""

    def follow(self) -> None:
        """Answer when the ticket ends, which may be now. To be called once, first."""
        if not self.ticket.ended:
            self.exchange.gone = self  # type: ignore[union-attr]
        self.ticket.watch(self)

    def gone(self) -> None:
        """The caller has left: nobody is to be answered any more."""
        self.exchange = None
        self.ticket.cancel()

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        """Pieces belong to streamed answers; a unary call waits for the end."""

    def ended(self, ticket: Ticket) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        self.exchange = ticket.watcher = None  # exchange, call and ticket refer to each other: let them go without gc
        if ticket.error is not None:
            reply_error(exchange, ticket.error)
            return
        result: Result = ticket.result  # type: ignore[assignment]
        try:
            body, content_type, more = self.form.write(self, result)
        except Much:
            self._write_long(exchange, ticket, result)
            return
        except Exception as error:
            self._unwritten(exchange, ticket, result, error)
            return
        batch = result.batch
        rest = batch.timing or _timing_of(batch)
        step = int(result.queue_seconds * 1e5)
        lines = (_STEPS[step] if step < _MOST_STEPS else b"Server-Timing: queue;dur=%.2f, " % (step / 100)) + rest
        exchange.reply(200, body, content_type, lines + more)

    def _unwritten(self, exchange: Exchange, ticket: Ticket, result: Result, error: Exception) -> None:
        """Answer that these rows cannot be shown."""
        if not isinstance(error, MaitredError):
            log.error("an answer could not be written", exc_info=error)
            error = defect()
        # Frames of the writing have the result, and that has the ticket: no collector would ever look through records.
        error.__traceback__ = error.__context__ = None
        ticket.error = error
        result.batch.unwritten.append(ticket)
        reply_error(exchange, error)

    def _write_long(self, exchange: Exchange, ticket: Ticket, result: Result) -> None:
        """Write an answer that is too long for the loop: from a copy, in pieces, in a thread."""
        apart = self.form.apart
        if apart is None:
            result.batch.memo[PAUSE] = no_pause
            self.exchange = exchange
            self.ended(ticket)
            return
        try:
            self.form.check(self, result)
        except MaitredError as error:  # now, while the batch is being counted
            self._unwritten(exchange, ticket, result, error)
            return
        own = result.owned()

        def way(pause: Pause) -> tuple[Any, bytes, bytes]:
            own.batch.memo[PAUSE] = pause
            return self.form.write(self, own)

        def done(future: asyncio.Future[tuple[Any, bytes, bytes]]) -> None:
            exchange.gone = None
            error = future.exception()
            if error is None:
                body, content_type, more = future.result()
                wait = b"Server-Timing: queue;dur=%.2f, " % (result.queue_seconds * 1e3)
                exchange.reply(200, body, content_type, wait + _timing_of(own.batch) + more)
            else:
                self._unwritten(exchange, ticket, own, error)  # type: ignore[arg-type]

        exchange.gone = apart.write(way, done)


def rows_written(
    batch: Outputs, tensor: Tensor, nan: NanPolicy, valid: Array | None = None, clock: Clock | None = None
) -> list[bytes | None]:
    """As `rows_json`, for an output of a batch, or the rows of a caller. Raises Much where that is for a thread."""
    if not is_long(tensor):
        return rows_json(tensor, nan, valid, clock)
    pause = batch.memo.get(PAUSE)
    if pause is None:
        raise Much
    return rows_in_pieces(tensor, nan, valid, clock, pause)


def reply_json(exchange: Exchange, value: Any, status: int = 200, extra: bytes = b"") -> None:
    exchange.reply(status, orjson.dumps(value), JSON, extra)


def defect() -> Internal:
    """What a caller is told of an exception that nobody expected; the log has all of it."""
    return Internal("a defect of this server; its log has the details")


def reply_error(exchange: Exchange, error: MaitredError) -> None:
    """Answer `{"error": message}` with the status and the headers that the table of errors says."""
    message = error.message
    status = error.http_status
    if status >= 500:
        message = discreet(message)
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 3] + "..."
    exchange.reply(status, b'{"error":%b}' % _encode(_clean(message)), JSON, error_lines(error))


def error_lines(error: MaitredError) -> bytes:
    """`Maitred-Error` with the error's code, and when to come back where that helps."""
    wait = error.retry_after_seconds
    if wait is None and error.http_status in (429, 503):
        wait = 1.0
    code = error.code.encode()
    if wait is None:
        lines = b"Maitred-Error: %b\r\n" % code
    else:
        milliseconds = ceil(min(max(wait, 0.0), _LONGEST_WAIT_SECONDS) * 1e3)
        seconds = (milliseconds + 999) // 1000 or 1
        lines = b"Maitred-Error: %b\r\nRetry-After: %d\r\nMaitred-Retry-After-Ms: %d\r\n" % (
            code, seconds, milliseconds,
        )  # fmt: skip
    if error.http_status == 401:
        lines += b"WWW-Authenticate: Bearer\r\n"
    return lines


_PATH: Final = re.compile(r"(?:[A-Za-z]:\\|(?<![\w.~/:])~?/)(?:[^\s\"'`:;,)\]}<>]*[/\\])?([^\s\"'`:;,)\]}<>/\\]+)")


def discreet(text: str) -> str:
    """What foreign code said, without what is not for callers: its first line, and of file paths the last part."""
    line = text.strip().partition("\n")[0]
    return _PATH.sub(r"\1", line)


def _clean(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- Server-Timing

_MOST_STEPS: Final = 4000
_STEPS: Final = tuple(b"Server-Timing: queue;dur=%.2f, " % (step / 100) for step in range(_MOST_STEPS))
"""The header's beginning for waits below 40 ms, by hundredths of a millisecond: looking up is cheaper."""


def _timing_of(batch: Outputs) -> bytes:
    """The part of `Server-Timing: queue;dur=…, batch;dur=…, model;dur=…` (in milliseconds) that a batch shares."""
    line = b"batch;dur=%.3f, model;dur=%.3f\r\n" % (batch.batch_seconds * 1e3, batch.model_seconds * 1e3)
    batch.timing = line
    return line
