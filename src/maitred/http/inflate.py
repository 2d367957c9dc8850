"""Undoes a request's content coding before the application sees it: on the loop if that is quick, else in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from maitred.errors import MaitredError
from maitred.http.answers import WAITING, OneExchange
from maitred.http.bodies import LARGE_BYTES
from maitred.http.coding import ACCEPTED, Inflation, check_coding
from maitred.http.exchange import INTERNAL, JSON, error_body
from maitred.http.limits import Refused
from maitred.http.port import LOG, Port

HandOver = Callable[[OneExchange], None]


def inflate(exchange: OneExchange, header: bytes, port: Port, hand_over: HandOver) -> None:
    """Have `hand_over` called with the plain body, now or later, or answer with what is wrong with it."""
    limits = port.limits
    try:
        coding = check_coding(header)
        if coding is None:
            hand_over(exchange)
            return
        source = exchange.body if isinstance(exchange.body, bytearray) else bytearray(exchange.body)
        exchange.body = b""
        inflation = Inflation(coding, source, limits.body_bytes)
        if len(source) <= limits.offload_bytes and inflation.run(limits.offload_bytes):
            _inflated_body(exchange, inflation, port, hand_over)
            return
    except MaitredError as error:
        _reply_refused(exchange, error, port)
        return
    exchange.inflation = inflation
    future = port.loop.run_in_executor(port.workers(), inflation.run)
    future.add_done_callback(partial(_inflated, exchange, port, hand_over))


def _inflated(exchange: OneExchange, port: Port, hand_over: HandOver, future: asyncio.Future[bool]) -> None:
    inflation, exchange.inflation = exchange.inflation, None
    if future.cancelled() or exchange.phase != WAITING or inflation is None:
        return
    error = future.exception()
    if error is None:
        exchange.received_at = port.clock()
        _inflated_body(exchange, inflation, port, hand_over)
    elif isinstance(error, MaitredError):
        _reply_refused(exchange, error, port)
    else:
        LOG.error("a body could not be inflated", exc_info=error)
        exchange.reply(500, error_body(INTERNAL))


def _inflated_body(exchange: OneExchange, inflation: Inflation, port: Port, hand_over: HandOver) -> None:
    """Hand a plain body over, counted as the large one that it may be by now: that its coded bytes were few bounds
    nothing."""
    body, inflation.plain = inflation.plain, b""
    if port.bodies is not None and len(body) > LARGE_BYTES:
        if exchange.place is not None:
            exchange.place.drop()  # of the coded bytes, which are gone
            exchange.place = None
        try:
            exchange.place = port.bodies.count(exchange, len(body))
        except Refused as refused:
            _refuse(exchange, refused, port)
            return
        exchange.plain = False
    exchange.body = body
    hand_over(exchange)


def coding_refused(error: MaitredError) -> Refused:
    """The answer to a coding that is not spoken here, or a body that does not keep to it."""
    extra = b"Accept-Encoding: %b\r\n" % ACCEPTED if error.http_status == 415 else b""
    return Refused(error.http_status, error.message, extra)


def _reply_refused(exchange: OneExchange, error: MaitredError, port: Port) -> None:
    _refuse(exchange, coding_refused(error), port)


def _refuse(exchange: OneExchange, refused: Refused, port: Port) -> None:
    port.refused(refused.status)
    exchange.reply(refused.status, error_body(refused.message), JSON, refused.extra)
