"""One connection over HTTP/1: refusals, the order of answers, hang-ups, streams, and how time ends it."""

from __future__ import annotations

import json
import logging

import pytest
from http_memory import Line, Recorder, Watch, echo

from maitred.clock import ManualClock
from maitred.http.exchange import Exchange
from maitred.http.limits import Limits
from maitred.http.port import Port

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes = b"abc", path: bytes = b"/p", extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, extra, len(body), body)


def chunked(*chunks: bytes, tail: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + tail


def held(line: Line) -> list[Exchange]:
    return line.app.seen


MALFORMED = {
    "garbage": (b"GARBAGE\r\n\r\n", 400),
    "binary": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "HTTP/0.9 by name": (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 400),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 400),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "unknown method": (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "lower-case method": (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
    "two Hosts in 1.0": (b"GET / HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "65 Hosts": (b"GET / HTTP/1.1\r\n" + b"Host: x\r\n" * 65 + b"\r\n", 400),
    "Host with a path": (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
    "Host list": (b"GET / HTTP/1.1\r\nHost: x, y\r\n\r\n", 400),
    "target without slash": (b"GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target with a space": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target with high bytes": (b"GET /caf\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target with NUL": (b"GET /a\x00b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "ftp target": (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "obs-fold": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "obs-fold with a tab": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\tc\r\n\r\n", 400),
    "first line folded": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "LF only": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "LF after a header": (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    "bare CR in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400),
    "NUL in a name": (b"GET / HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n", 400),
    "control in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x07c\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", 400),
    "empty name": (b"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400),
    "CL and TE": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
    "TE and CL": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two CLs, equal": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two CLs, not equal": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "CL list": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
    "CL signed": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
    "CL negative": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    "CL in hex": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc", 400),
    "CL empty": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n", 400),
    "CL wraps 64 bits": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551619\r\n\r\nabc", 400),
    "TE in 1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "TE gzip, chunked": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "TE chunked, gzip": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "TE chunked twice": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
    ),
    "TE xchunked": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "TE identity": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", 400),
    "TE with vertical tab": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunk size empty": (chunked(tail=b"\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size not hex": (chunked(tail=b"xyz\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size 0x3": (chunked(tail=b"0x3\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size negative": (chunked(tail=b"-3\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size wraps": (chunked(tail=b"FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"), 400),
    "chunk size and space": (chunked(tail=b"3 \r\nabc\r\n0\r\n\r\n"), 400),
    "chunk longer than said": (chunked(tail=b"3\r\nabcd\r\n0\r\n\r\n"), 400),
    "chunk with LF only": (chunked(tail=b"3\nabc\n0\n\n"), 400),
    "101 headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100 + b"\r\n", 431),
    "head of 65 KiB": (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * (65 << 10) + b"\r\n\r\n", 431),
    "endless head": (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * (200 << 10), 431),
    "endless target": (b"GET /" + b"b" * (200 << 10), 431),
    "endless many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * (40 << 10), 431),
    "body too large": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865\r\n\r\n", 413),
    "body of a terabyte": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1099511627776\r\n\r\n", 413),
    "expects the impossible": (b"POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc", 417),
    "expects two things": (
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nExpect: tea\r\nContent-Length: 3\r\n\r\nabc", 417,
    ),
    "chunk extension of 1 MiB": (chunked(tail=b"3;a=" + b"b" * (1 << 20) + b"\r\nabc\r\n0\r\n\r\n"), 400),
    "trailer of 1 MiB": (chunked(b"abc", tail=b"0\r\nA: " + b"b" * (1 << 20) + b"\r\n\r\n"), 400),
    "CL in a trailer": (chunked(b"abc", tail=b"0\r\nContent-Length: 5\r\n\r\n"), 400),
    "101 trailers": (chunked(b"abc", tail=b"0\r\n" + b"A: b\r\n" * 101 + b"\r\n"), 400),
    "trailer flood": (chunked(b"abc", tail=b"0\r\n" + b"A: b\r\n" * 100_000 + b"\r\n"), 400),
}  # fmt: skip


@pytest.mark.parametrize("pieces", ["whole", "slices", "behind another"])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests_are_refused_and_the_connection_is_closed(name: str, pieces: str) -> None:
    data, status = MALFORMED[name]
    line = Line()
    if pieces == "whole":
        line.send(data)
    elif pieces == "slices":
        line.send(*(data[at : at + 997] for at in range(0, len(data), 997)))
    else:
        line.send(GET + data)
    answers = line.answers()
    assert [answer.status for answer in answers] == [200] * (pieces == "behind another") + [status]
    assert answers[-1].headers[b"connection"] == b"close"
    assert line.refused
    error = json.loads(answers[-1].body)["error"]
    assert len(error) > 20
    seen = len(held(line))
    line.send(GET)
    assert len(held(line)) == seen, "nothing after the refusal is taken for a request"


SMUGGLED = [name for name in MALFORMED if any(word in name for word in ("CL", "TE", "chunk", "fold", "LF", "Host"))]


@pytest.mark.parametrize("name", SMUGGLED)
def test_nothing_can_be_smuggled_behind_ambiguous_framing(name: str) -> None:
    line = Line().send(MALFORMED[name][0] + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    assert all(b"smuggled" not in exchange.path for exchange in held(line))
    assert line.refused


ACCEPTED = {
    "plain": (GET, b"/a", b""),
    "query": (b"GET /a?b=c?d HTTP/1.1\r\nHost: x\r\n\r\n", b"/a", b""),
    "1.0 without Host": (b"GET /a HTTP/1.0\r\n\r\n", b"/a", b""),
    "absolute target": (b"GET http://x:80/a?q HTTP/1.1\r\nHost: x\r\n\r\n", b"/a", b""),
    "absolute target, no path": (b"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n", b"/", b""),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"*", b""),
    "empty Host": (b"GET /a HTTP/1.1\r\nHost:\r\n\r\n", b"/a", b""),
    "IPv6 Host": (b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"/a", b""),
    "blank lines first": (b"\r\n\r\n" + GET, b"/a", b""),
    "100 headers": (b"GET /a HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 99 + b"\r\n", b"/a", b""),
    "head just under the limit": (b"GET /a HTTP/1.1\r\nHost: x\r\nA: " + b"b" * (65_500) + b"\r\n\r\n", b"/a", b""),
    "body": (post(b"abc"), b"/p", b"abc"),
    "body on GET": (b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"/a", b"abc"),
    "CL 0": (post(b""), b"/p", b""),
    "CL 003": (b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 003\r\n\r\nabc", b"/p", b"abc"),
    "chunked": (chunked(b"ab", b"c"), b"/p", b"abc"),
    "Chunked": (chunked(b"ab", b"c").replace(b": chunked", b": Chunked"), b"/p", b"abc"),
    "chunk extension": (chunked(tail=b'3;a="b"\r\nabc\r\n0\r\n\r\n'), b"/p", b"abc"),
    "trailers": (chunked(b"abc", tail=b"0\r\nHost: y\r\nExpect: tea\r\nA: b\r\n\r\n"), b"/p", b"abc"),
    "h2c upgrade": (
        b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings:\r\n\r\n",
        b"/a", b"",
    ),
    "h2c upgrade with a body": (
        post(b"GET /x HTTP/1.1\r\n\r\n", extra=b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"),
        b"/p", b"GET /x HTTP/1.1\r\n\r\n",
    ),
    "h2c upgrade with chunks": (
        chunked(b"abc").replace(b"Host", b"Upgrade: h2c\r\nConnection: upgrade\r\nHost"), b"/p", b"abc",
    ),
    "websocket upgrade": (
        b"GET /a HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n", b"/a", b"",
    ),
    "large body": (post(b"x" * 300_000), b"/p", b"x" * 300_000),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 30])
@pytest.mark.parametrize("name", ACCEPTED)
def test_sound_requests_are_taken_however_they_are_cut(name: str, size: int) -> None:
    data, path, body = ACCEPTED[name]
    if len(data) // size > 70_000:
        size = 5
    line = Line()
    for at in range(0, len(data), size):
        line.connection.data_received(data[at : at + size])
    line.loop.turn()
    assert [(exchange.path, bytes(exchange.body)) for exchange in held(line)] == [(path, body)]
    line.send(post(b"next")) if name != "1.0 without Host" else None
    answers = line.answers()
    assert [answer.status for answer in answers] == [200] * (1 if name == "1.0 without Host" else 2)
    assert answers[0].body == body


def test_header_values_lose_the_space_around_them_and_names_their_case() -> None:
    line = Line().send(b"GET / HTTP/1.1\r\nHOST:x\r\nX-Empty:\r\nX-Space: \t a b \t\r\nX-Obs: caf\xe9\r\n\r\n")
    assert held(line)[0].headers == [(b"host", b"x"), (b"x-empty", b""), (b"x-space", b"a b"), (b"x-obs", b"caf\xe9")]
    assert held(line)[0].header(b"x-space") == b"a b"
    assert held(line)[0].header(b"x-none") is None


def test_trailers_do_not_become_headers() -> None:
    line = Line().send(chunked(b"abc", tail=b"0\r\nAuthorization: forged\r\n\r\n"))
    assert held(line)[0].header(b"authorization") is None


@pytest.mark.parametrize(
    ("head", "kept", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True, None),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", True, None),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False, b"close"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Close, te\r\n\r\n", False, b"close"),
        (b"GET / HTTP/1.0\r\n\r\n", False, b"close"),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, b"keep-alive"),
        (b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n", False, b"close"),
    ],
)
def test_the_connection_is_kept_as_the_caller_asks(head: bytes, kept: bool, said: bytes | None) -> None:
    line = Line().send(head)
    assert line.answers()[0].headers.get(b"connection") == said
    assert line.refused is not kept
    line.send(head)
    assert len(held(line)) == (2 if kept else 1)


def test_input_behind_connection_close_is_ignored_without_harm() -> None:
    line = Line().send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)
    assert [answer.status for answer in line.answers()] == [200]
    assert line.transport.ended


def test_head_has_the_headers_of_get_and_no_body() -> None:
    line = Line(lambda exchange: exchange.reply(200, b"x" * 5000))
    line.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"
              b"Accept-Encoding: gzip\r\n\r\n")  # fmt: skip
    head, get = line.answers("HEAD", "GET")
    assert head.body == b""
    assert head.headers == get.headers
    assert int(get.headers[b"content-length"]) == len(get.body) < 5000


def test_an_answer_without_body_has_no_length() -> None:
    line = Line(lambda exchange: exchange.reply(204, b"")).send(GET)
    assert b"Content-Length" not in line.transport.sent


# ---- pipelining


def test_answers_go_in_the_order_of_the_requests_in_one_write_a_turn() -> None:
    line = Line(answer=None)
    line.send(b"".join(post(b"%d" % number) for number in range(10)))
    exchanges = held(line)
    assert len(exchanges) == 10
    for number in (3, 1, 2):
        exchanges[number].reply(200, b"%d" % number)
    line.loop.turn()
    assert line.transport.writes == []
    exchanges[0].reply(200, b"0")
    exchanges[5].reply(200, b"5")
    line.loop.turn()
    assert [answer.body for answer in line.answers()] == [b"0", b"1", b"2", b"3"]
    assert len(line.transport.writes) == 1
    for number in (4, 9, 8, 7, 6):
        exchanges[number].reply(200, b"%d" % number)
    line.loop.turn()
    assert [answer.body for answer in line.answers()] == [b"%d" % number for number in range(10)]
    assert len(line.transport.writes) == 2


def test_answers_given_at_once_leave_in_one_write() -> None:
    line = Line().send(GET * 50)
    assert len(line.transport.writes) == 1
    assert len(line.answers()) == 50


def test_the_application_is_not_called_from_within_a_reply() -> None:
    line = Line(answer=None, limits=Limits(pipelined=1))
    line.send(GET * 400)
    first = len(held(line))
    assert first < 400
    assert line.transport.paused
    while held(line):
        exchange = held(line).pop(0)
        count = len(held(line))
        exchange.reply(200, b"")
        assert len(held(line)) == count
        line.loop.turn()
    assert len(line.answers()) == 400
    assert not line.transport.paused


def test_requests_in_flight_are_bounded_and_all_are_answered_in_the_end() -> None:
    line = Line(answer=None)
    data = b"".join(post(b"%d" % number) for number in range(5000))
    sent = most = 0
    while sent < len(data) or held(line):
        if not line.transport.paused and sent < len(data):
            line.connection.data_received(data[sent : sent + 65_536])
            sent += 65_536
        line.loop.turn()
        most = max(most, len(line.connection.queue))
        for exchange in held(line):
            exchange.reply(200, bytes(exchange.body))
        held(line).clear()
        line.loop.turn()
    assert most <= 64 + 4096 // len(post(b"1")) + 1
    assert [answer.body for answer in line.answers()] == [b"%d" % number for number in range(5000)]


def test_a_plain_request_behind_one_in_flight_waits_its_turn() -> None:
    line = Line(answer=None).send(post(b"1"), post(b"2"), post(b"3"))
    held(line)[2].reply(200, b"3")
    held(line)[1].reply(200, b"2")
    line.loop.turn()
    assert line.transport.writes == []
    held(line)[0].reply(200, b"1")
    line.loop.turn()
    assert [answer.body for answer in line.answers()] == [b"1", b"2", b"3"]


def test_an_error_waits_for_the_answers_before_it() -> None:
    line = Line(answer=None).send(post(b"1") + b"GARBAGE\r\n\r\n")
    assert line.transport.writes == []
    held(line)[0].reply(200, b"1")
    line.loop.turn()
    assert [answer.status for answer in line.answers()] == [200, 400]
    assert line.transport.ended


def test_a_caller_who_does_not_read_is_not_read_from() -> None:
    line = Line()
    line.connection.pause_writing()
    assert line.transport.paused
    line.connection.resume_writing()
    assert not line.transport.paused


# ---- bodies


def test_the_body_is_asked_for_once_when_the_caller_waits() -> None:
    head = b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n"
    line = Line().send(head)
    assert line.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.send(b"a", b"bc")
    assert [answer.status for answer in line.answers()] == [100, 200]
    line = Line().send(head + b"a")
    assert line.transport.sent == b"", "the body is on its way already"
    line.send(b"bc", head.replace(b"1.1", b"1.0"))
    assert [answer.status for answer in line.answers()] == [200]


def test_the_body_is_asked_for_after_earlier_answers() -> None:
    line = Line(answer=None).send(
        GET + b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    )
    assert line.transport.sent == b""
    held(line)[0].reply(200, b"")
    line.loop.turn()
    assert [answer.status for answer in line.answers()] == [200, 100]
    line.send(b"abc")
    held(line)[1].reply(200, b"done")
    line.loop.turn()
    assert line.transport.sent.endswith(b"done")


@pytest.mark.parametrize(
    ("header", "status"), [(b"Content-Length: 99999999999", 413), (b"Content-Encoding: br\r\nContent-Length: 3", 415)]
)
def test_a_body_that_would_be_refused_is_not_asked_for(header: bytes, status: int) -> None:
    line = Line().send(b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n" + header + b"\r\n\r\n")
    assert [answer.status for answer in line.answers()] == [status]
    assert line.transport.ended


def test_a_body_over_the_limit_is_refused_with_little_of_it_read() -> None:
    line = Line().send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
    assert [answer.status for answer in line.answers()] == [413]
    assert line.transport.ended
    read = 0
    while not line.transport.paused:
        line.connection.data_received(b"x" * 65_536)
        read += 65_536
    assert read <= 1 << 20
    line.sweep_after(4)
    assert line.transport.aborted


@pytest.mark.parametrize("size", [1000, 50_000])
def test_a_chunked_body_is_cut_at_the_limit(size: int) -> None:
    line = Line(limits=Limits(body_bytes=100_000))
    chunks = b"".join(b"%x\r\n%b\r\n" % (size, b"x" * size) for _ in range(100_000 // size))
    line.send(chunked(tail=chunks + b"0\r\n\r\n"))
    assert [answer.status for answer in line.answers()] == [200]
    line.send(chunked(tail=chunks + b"1\r\nx\r\n0\r\n\r\n"))
    assert [answer.status for answer in line.answers()] == [200, 413]


def test_a_million_one_byte_chunks_leave_nothing_but_the_body() -> None:
    line = Line()
    line.send(chunked(tail=b""))
    piece = b"1\r\nA\r\n" * 10_000
    for _ in range(100):
        line.connection.data_received(piece)
    assert len(line.connection._body) == 1_000_000
    assert isinstance(line.connection._body, bytearray)
    assert len(line.connection._headers) == 2
    line.send(b"0\r\n\r\n")
    assert line.answers()[0].body == b"A" * 1_000_000


# ---- hang-ups


def test_a_hang_up_is_told_once_for_each_request_that_is_not_answered() -> None:
    line = Line(answer=None).send(GET * 3)
    watches = [Watch() for _ in range(3)]
    for exchange, watch in zip(held(line), watches, strict=True):
        exchange.gone = watch
    held(line)[0].reply(200, b"")
    line.hang_up()
    line.connection.connection_lost(None) if hasattr(line.connection, "_feed") else None
    assert [watch.count for watch in watches] == [0, 1, 1]
    for exchange in held(line)[1:]:
        exchange.reply(200, b"too late")
        exchange.start(200)
        assert exchange.write(b"too late") is False
        exchange.end()
    assert b"too late" not in line.transport.sent
    assert not line.port.connections


def test_a_reset_is_a_hang_up_too() -> None:
    line = Line(answer=None).send(post(b"1"))
    watch = held(line)[0].gone = Watch()
    line.connection.connection_lost(ConnectionResetError())
    assert watch.count == 1


def test_a_half_read_request_of_a_caller_who_leaves_is_forgotten() -> None:
    line = Line().send(post(b"abc")[:-1]).hang_up()
    assert held(line) == []
    assert line.transport.sent == b""


def test_a_watch_that_raises_does_not_hide_the_hang_up_from_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def gone(self) -> None:
            raise ValueError

    line = Line(answer=None).send(GET * 2)
    held(line)[0].gone = Broken()
    watch = held(line)[1].gone = Watch()
    line.hang_up()
    assert watch.count == 1
    assert len(caplog.records) == 1


# ---- what the application does wrong


def test_an_application_that_raises_is_a_500_and_one_escaped_line(caplog: pytest.LogCaptureFixture) -> None:
    def broken(exchange: Exchange) -> None:
        raise ValueError("secret")

    line = Line(broken).send(b"GET /a%0a HTTP/1.1\r\nHost: x\r\n\r\n", GET, GET + GET)
    answers = line.answers()
    assert [answer.status for answer in answers] == [500] * 4
    assert b"secret" not in line.transport.sent
    assert "report it" in json.loads(answers[0].body)["error"]
    assert not line.refused
    assert len(caplog.records) == 4
    assert all(record.levelno == logging.ERROR for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_second_answer_is_a_defect() -> None:
    line = Line(answer=None).send(GET)
    held(line)[0].reply(200, b"")
    for verb in (lambda: held(line)[0].reply(200, b""), lambda: held(line)[0].start(200), held(line)[0].end):
        with pytest.raises(RuntimeError):
            verb()
    assert len(line.answers()) == 1


# ---- streams


def test_a_stream_is_chunked_and_waits_its_turn() -> None:
    line = Line(answer=None).send(GET * 3)
    first, second, third = held(line)
    second.start(200, b"text/event-stream", b"X: y\r\n")
    assert second.write(b"one")
    third.reply(200, b"last")
    line.loop.turn()
    assert line.transport.sent == b""
    first.reply(200, b"first")
    line.loop.turn()
    assert second.write(b"two")
    assert second.write(b"")
    line.loop.turn()
    second.end()
    line.loop.turn()
    answers = line.answers()
    assert [answer.body for answer in answers] == [b"first", b"onetwo", b"last"]
    assert answers[1].headers[b"x"] == b"y"
    assert answers[1].headers[b"content-type"] == b"text/event-stream"
    assert not line.refused


def test_a_stream_to_http_1_0_ends_with_the_connection() -> None:
    line = Line(answer=None).send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    held(line)[0].start(200)
    held(line)[0].write(b"one")
    held(line)[0].end()
    line.loop.turn()
    assert line.transport.ended
    assert line.answers()[0].body == b"one"
    assert b"chunked" not in line.transport.sent


def test_head_of_a_stream_has_no_body() -> None:
    line = Line(answer=None).send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    held(line)[0].start(200)
    held(line)[0].write(b"one")
    held(line)[0].end()
    line.loop.turn()
    assert line.transport.sent.endswith(b"\r\n\r\n")
    assert line.answers("HEAD")[0].body == b""


def test_a_stream_is_told_to_pause_and_to_go_on() -> None:
    drains: list[int] = []
    line = Line(answer=None).send(GET * 2)
    first, second = held(line)
    second.start(200)
    second.on_drain = lambda: drains.append(2)
    assert second.write(b"x" * 100_000)
    assert not second.write(b"x" * 100_000), "too much waits for its turn"
    first.start(200)
    first.on_drain = lambda: drains.append(1)
    line.loop.turn()
    line.connection.pause_writing()
    assert not first.write(b"x")
    line.loop.turn()
    assert drains == []
    line.connection.resume_writing()
    assert drains == [1]
    first.end()
    line.loop.turn()
    assert drains == [1, 2]


def test_a_broken_off_stream_cannot_be_taken_for_a_whole_one() -> None:
    def halfway(exchange: Exchange) -> None:
        exchange.start(200)
        exchange.write(b"half")
        raise ValueError

    line = Line(halfway).send(GET)
    assert line.transport.ended
    assert not line.transport.sent.endswith(b"0\r\n\r\n")
    line = Line(halfway).send(b"GET / HTTP/1.0\r\n\r\n")
    assert line.transport.aborted


def test_a_caller_who_leaves_a_stream_is_told_of() -> None:
    line = Line(answer=None).send(GET)
    watch = held(line)[0].gone = Watch()
    held(line)[0].start(200)
    held(line)[0].write(b"x")
    line.hang_up()
    assert watch.count == 1
    assert held(line)[0].write(b"y") is False


# ---- time


def test_a_silent_connection_is_closed_within_30_s() -> None:
    line = Line().sweep_after(27)
    assert not line.transport.closed
    line.sweep_after(3)
    assert line.transport.closed
    assert line.transport.sent == b""


def test_a_trickled_head_is_refused_30_s_after_its_first_byte() -> None:
    line = Line()
    data = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 50
    for second in range(31):
        line.send(data[second : second + 1])
        if line.transport.closed:
            break
        line.sweep_after(1)
    assert 27 <= second <= 30
    assert [answer.status for answer in line.answers()] == [408]
    assert line.transport.closed


def test_a_trickled_preface_counts_as_a_head() -> None:
    line = Line().send(b"P").sweep_after(30)
    assert [answer.status for answer in line.answers()] == [408]


def test_a_head_that_trickles_behind_a_good_request_is_bounded_too() -> None:
    line = Line().send(GET + b"GET /", b"x").sweep_after(30)
    assert [answer.status for answer in line.answers()] == [200, 408]
    assert line.transport.closed


@pytest.mark.parametrize(("rate", "closed"), [(1, True), (1000, True), (1100, False), (100_000, False)])
def test_a_body_needs_a_kibibyte_a_second(rate: int, closed: bool) -> None:
    line = Line().send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
    for _ in range(70):
        if line.transport.closed:
            break
        line.send(b"x" * rate).sweep_after(1)
    assert line.transport.closed is closed
    assert [answer.status for answer in line.answers()] == [408] * closed


def test_a_fast_start_does_not_buy_a_slow_rest() -> None:
    line = Line().send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n" + b"x" * 200_000)
    line.sweep_after(65)
    assert line.transport.closed


def test_an_idle_connection_lives_75_s_and_no_less() -> None:
    line = Line().send(GET).sweep_after(70).send(GET).sweep_after(74)
    assert not line.transport.closed
    line.sweep_after(3)
    assert line.transport.closed
    assert len(line.answers()) == 2


def test_a_request_may_take_as_long_as_it_takes() -> None:
    line = Line(answer=None).send(GET).sweep_after(3600)
    assert not line.transport.closed
    held(line)[0].reply(200, b"")
    assert len(line.answers()) == 1


def test_a_caller_who_takes_nothing_for_a_minute_is_cut_off() -> None:
    line = Line(answer=None).send(GET)
    held(line)[0].start(200)
    line.transport.unsent = 100_000
    line.sweep_after(50)
    line.transport.unsent = 90_000
    line.sweep_after(50)
    assert not line.transport.closed
    line.sweep_after(12)
    assert line.transport.aborted


def test_a_refused_caller_that_stays_is_reset() -> None:
    line = Line().send(b"GARBAGE\r\n\r\n").sweep_after(1)
    assert line.transport.ended
    assert not line.transport.closed
    line.sweep_after(3)
    assert line.transport.aborted


def test_a_closing_connection_that_still_sends_is_left_alone() -> None:
    line = Line().send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    line.transport.unsent = 1000
    line.sweep_after(20)
    assert not line.transport.aborted
    line.transport.unsent = 0
    line.sweep_after(4)
    assert line.transport.aborted


# ---- what connections share


def test_connections_beyond_the_limit_are_told_to_come_again() -> None:
    first = Line(limits=Limits(connections=1))
    second = Line(port=first.port)
    second.send(GET)
    assert [answer.status for answer in second.answers()] == [503]
    assert second.answers()[0].headers[b"retry-after"] == b"1"
    assert second.transport.ended
    assert first.app.seen == []
    second.hang_up()
    third = Line(port=first.hang_up().port)
    assert third.transport.sent == b""


def test_http2_goes_to_its_own_protocol_whole() -> None:
    class Two:
        data = b""

        def connection_made(self, transport: object) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.data += data

    made: list[Two] = []

    def two() -> Two:
        made.append(Two())
        return made[-1]

    line = Line()
    line.port.two = two  # type: ignore[assignment]
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for byte in preface:
        line.connection.data_received(bytes([byte]))
    assert made[0].data == preface
    assert line.transport.protocol is made[0]
    assert not line.port.connections
    assert Line(port=line.port).send(b"PRO").transport.sent == b""


def test_draining_ends_connections_after_their_last_answer() -> None:
    line = Line(answer=None).send(GET, GET + GET)
    idle = Line(port=line.port)
    line.port.begin_drain()
    for exchange in held(line):
        exchange.reply(200, b"")
        line.loop.turn()
    answers = line.answers()
    assert [answer.headers.get(b"connection") for answer in answers] == [None, None, b"close"]
    assert line.transport.ended
    assert idle.connection.is_idle()
    idle.send(GET)
    held(line)[-1].reply(200, b"")
    assert idle.answers()[0].headers[b"connection"] == b"close"


def test_draining_does_not_cut_a_request_that_is_being_read() -> None:
    line = Line(answer=None).send(GET + post(b"abc")[:-1])
    line.port.begin_drain()
    held(line)[0].reply(200, b"")
    line.loop.turn()
    assert not line.refused
    line.send(b"c")
    held(line)[1].reply(200, b"")
    line.loop.turn()
    assert [answer.headers.get(b"connection") for answer in line.answers()] == [None, b"close"]
    assert line.transport.ended


def test_the_time_of_reading_is_that_of_the_last_byte() -> None:
    line = Line().send(post(b"abc")[:-1])
    line.clock.advance(5)
    line.send(b"c")
    assert held(line)[0].received_at == line.clock()


def test_two_ports_share_nothing() -> None:
    first, second = Line(), Line()
    first.send(post(b"a"), post(b"a"))
    assert second.port.heads.request_lines == {}
    assert isinstance(first.clock, ManualClock)
    assert isinstance(Port(Recorder(echo), Limits(), first.clock, first.loop), Port)  # type: ignore[arg-type]


# ---- more than the head has said, and chunks that announce too much

MUCH = Limits(body_bytes=100)


@pytest.mark.parametrize("before", [b"", post(b"abc")])
@pytest.mark.parametrize(
    ("size", "status"),
    [(b"100", 200), (b"0" * 40 + b"100", 200), (b"101", 413), (b"000000101", 413), (b"0" * 40 + b"101", 413)],
)
def test_zeros_before_a_length_do_not_hide_it(before: bytes, size: bytes, status: int) -> None:
    line = Line(limits=MUCH).send(before) if before else Line(limits=MUCH)
    for _ in range(2):  # the second time its request line is known
        if not line.refused:
            line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % size + b"x" * int(size))
    assert line.answers()[-1].status == status
    assert all(len(exchange.body) <= 100 for exchange in held(line))


@pytest.mark.parametrize("size", [1, 50, 1 << 20])
def test_a_body_is_cut_at_the_limit_whatever_its_head_has_said(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("maitred.http.one.check_head", lambda *_: (1, False, None, None, False))
    line = Line(limits=MUCH)
    data = post(b"x" * 5000)
    most = 0
    for at in range(0, len(data), size):
        line.connection.data_received(data[at : at + size])
        most = max(most, len(line.connection._body))
    line.loop.turn()
    assert [answer.status for answer in line.answers()] == [413]
    assert held(line) == []
    assert most <= 100 + size


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"FFFFFFFFFFFFFFFF", 413),
        (b"7FFFFFFFFFFFFFFF", 413),
        (b"0000000000000000000000065", 413),
        (b"65;name=value", 413),
        (b"ffffff;" + b"x" * 50, 413),
        (b"64", 0),
        (b"00000000000000000000000000064;x", 0),
    ],
)
@pytest.mark.parametrize("taken", [b"", b"abc"])
def test_a_chunk_that_is_too_large_is_refused_when_it_is_announced(
    said: bytes, status: int, taken: bytes, size: int
) -> None:
    if taken and not status:
        said = said.replace(b"64", b"61")
    line = Line(limits=MUCH)
    data = chunked(*([taken] if taken else []), tail=said + b"\r\n" + b"x" * 5)
    for at in range(0, len(data), size):
        line.connection.data_received(data[at : at + size])
    line.loop.turn()
    assert [answer.status for answer in line.answers()] == ([status] if status else [])
    assert line.refused == bool(status)


def test_large_chunks_behind_each_other_are_counted_together() -> None:
    line = Line(limits=MUCH).send(chunked(b"x" * 60, tail=b"29\r\n"))
    assert [answer.status for answer in line.answers()] == [413]
    line = Line(limits=MUCH).send(chunked(b"x" * 60, tail=b"28\r\n" + b"y" * 40 + b"\r\n0\r\nFFFFFFFF: 1\r\n\r\n"))
    assert [answer.body for answer in line.answers()] == [b"x" * 60 + b"y" * 40]


# ---- refused HEAD


@pytest.mark.parametrize(
    "refused",
    [
        b"HEAD /a\x01b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /caf\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.2\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 70_000,
    ],
)
@pytest.mark.parametrize("before", [b"", post(b"abc")])
def test_a_refused_head_is_answered_without_a_body(before: bytes, refused: bytes) -> None:
    line = Line().send(before + refused)
    answer = line.answers(*["POST"] * bool(before), "HEAD")[-1]
    assert (answer.status in (400, 431), answer.body) == (True, b"")
    assert int(answer.headers[b"content-length"]) > 0
    assert line.refused


def test_what_follows_a_head_and_has_no_method_is_answered_with_a_body() -> None:
    line = Line().send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", b"GARBAGE\r\n\r\n")
    assert json.loads(line.answers("HEAD", "GET")[-1].body)["error"]


def test_requests_that_the_application_does_not_get_to_see_are_told_of() -> None:
    told: list[int] = []
    sent = [
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Encoding: br\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 70_000 + b"\r\n\r\n",
    ]  # fmt: skip
    for data in sent:
        line = Line()
        line.port.refused = told.append
        line.send(data)
        assert not line.app.seen
    assert told == [400, 400, 400, 413, 415, 400, 431]
