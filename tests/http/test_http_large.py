"""Large bodies: straight into the place that was given for them, which goes back however the request ends."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pytest
from http_memory import Watch
from hypothesis import given
from hypothesis import strategies as st
from large_line import Giver, LargeLine

from maitred.http.bodies import MOVING_BYTES
from maitred.http.exchange import Exchange
from maitred.http.large import Large
from maitred.http.limits import Limits

SIZE = 200_000
BODY = random.Random(1).randbytes(SIZE)


def post(body: bytes = BODY, extra: bytes = b"", path: bytes = b"/big", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, extra, size, body)


def chunked(body: bytes, size: int = 5000) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"POST /big HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def keep(exchange: Exchange) -> None:
    """Answers later."""


def test_a_large_body_is_read_into_its_place_and_that_goes_back_with_the_answer() -> None:
    giver = Giver()
    line = LargeLine(giver, keep).send(post(extra=b"A: b\r\n"))
    (exchange,) = line.app.seen
    (spot,) = giver.given
    assert exchange.body is spot.body and exchange.lies() is spot
    assert spot.memory == BODY
    assert spot.want.path == b"/big" and (b"a", b"b") in spot.want.headers and spot.want.method == "POST"
    assert not spot.dropped
    assert line.transport.protocol is line.connection, "the connection reads again"
    exchange.reply(200, b"{}")
    line.loop.turn()
    assert spot.dropped == 1 and giver.used == 0
    assert not exchange.body, "nobody can look at it any more"
    assert [answer.status for answer in line.answers("POST")] == [200]


@given(st.lists(st.integers(1, 90_000), max_size=12), st.integers(700, 70_000))
def test_however_it_is_cut_and_whatever_surrounds_it_the_same_is_seen(sizes: list[int], most: int) -> None:
    data = post(b"first") + post() + post(b"between", path=b"/small") + post(BODY[:70_000]) + post(b"last")
    seen = []
    for giver in (None, Giver()):
        line = LargeLine(giver)
        line.most = most
        at = 0
        for size in sizes:
            line.send(data[at : at + size])
            at += size
        line.send(data[at:])
        seen.append([answer.body for answer in line.answers(*["POST"] * 5)])
        assert giver is None or (giver.used == 0 and len(giver.given) == 2)
    assert seen[0] == seen[1] == [b"first", BODY, b"between", BODY[:70_000], b"last"]


def test_only_the_first_bytes_pass_through_the_parser() -> None:
    giver = Giver()
    line = LargeLine(giver, keep)
    fed: list[int] = []
    feed = line.connection._feed

    def count(piece: bytes) -> None:
        fed.append(len(piece))
        feed(piece)

    line.connection._feed = count
    line.send(post(BODY * 5))
    assert sum(fed) <= 25_000
    assert bytes(line.app.seen[0].body) == BODY * 5


def test_the_socket_is_read_no_further_than_the_body() -> None:
    giver = Giver()
    line = LargeLine(giver, keep).send(post(BODY[:100_000], length=SIZE))
    large = line.transport.protocol
    assert isinstance(large, Large)
    assert len(large.get_buffer(-1)) == SIZE - 100_000


@pytest.mark.parametrize("come", [17_000, 70_000, SIZE - 1])
def test_a_hang_up_in_the_middle_gives_the_place_back_at_once(come: int) -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[:come], length=SIZE))
    assert giver.used == SIZE
    line.hang_up()
    assert giver.used == 0
    assert not line.app.seen and not line.transport.writes


def test_a_hang_up_before_the_answer_gives_it_back_once_the_caller_is_known_to_be_gone() -> None:
    giver = Giver()
    line = LargeLine(giver, keep).send(post())
    watch = Watch()
    line.app.seen[0].gone = watch
    line.hang_up()
    assert watch.count == 1 and giver.used == 0


def test_an_announcement_alone_takes_nothing() -> None:
    giver = Giver()
    LargeLine(giver).send(post(b"", length=SIZE), BODY[:15_000])
    assert not giver.given and not giver.line


def test_small_bodies_need_no_place() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[: 64 << 10]), chunked(BODY[: 64 << 10]))
    assert len(line.app.seen) == 2 and not giver.given
    assert all(exchange.lies() is None for exchange in line.app.seen)


def test_who_finds_no_room_waits_without_being_read_and_goes_on() -> None:
    giver = Giver(room=SIZE)
    one, two = LargeLine(giver, keep), LargeLine(giver)
    one.send(post())
    two.send(post() + post(b"behind"))
    assert two.transport.paused and not two.app.seen
    one.app.seen[0].reply(200, b"")
    giver.serve()
    two.loop.turn()
    two.read()
    assert [answer.body for answer in two.answers("POST", "POST")] == [BODY, b"behind"]
    assert giver.used == 0


def test_small_requests_are_answered_while_a_large_one_waits() -> None:
    giver = Giver(room=0)
    large, small = LargeLine(giver), LargeLine(giver)
    large.send(post())
    small.send(post(b"abc"))
    assert large.transport.paused
    assert [answer.body for answer in small.answers("POST")] == [b"abc"]


def test_earlier_requests_of_the_connection_are_answered_while_it_waits() -> None:
    giver = Giver(room=0)
    line = LargeLine(giver, keep).send(post(b"abc") + post())
    (first,) = line.app.seen
    first.reply(200, b"early")
    line.loop.turn()
    assert [answer.body for answer in line.answers("POST")] == [b"early"]
    assert line.transport.paused


def test_who_waits_too_long_is_told_so() -> None:
    giver = Giver(room=0)
    line = LargeLine(giver).send(post()).sweep_after(27)
    assert not line.transport.writes
    line.sweep_after(4)
    (answer,) = line.answers("POST")
    assert answer.status == 503 and answer.headers[b"retry-after"] == b"1"
    assert b"no memory to spare for a body of 200000 bytes" in answer.body
    assert line.refused and not giver.line
    assert not line.transport.paused, "what still comes is thrown away"


def test_who_waits_and_hangs_up_leaves_the_line() -> None:
    giver = Giver(room=0)
    LargeLine(giver).send(post()).hang_up()
    assert not giver.line


def test_where_there_is_no_memory_the_caller_is_told_and_others_go_on() -> None:
    giver = Giver(most=100_000)
    line = LargeLine(giver).send(post())
    (answer,) = line.answers("POST")
    assert answer.status == 503 and b"no memory" in answer.body
    assert line.refused
    assert [answer.body for answer in LargeLine(giver).send(post(BODY[:70_000])).answers("POST")] == [BODY[:70_000]]


def test_a_body_that_comes_too_slowly_is_given_up_as_ever() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[:20_000], length=SIZE))
    for _ in range(40):
        line.send(b"x").sweep_after(1)
    (answer,) = line.answers("POST")
    assert answer.status == 408
    assert giver.used == 0 and line.transport.protocol is line.connection


def test_a_slow_but_fair_upload_passes_while_nobody_waits() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[:20_000], length=SIZE))
    for at in range(20_000, SIZE, 2000):
        line.send(BODY[at : at + 2000]).sweep_after(1)
    assert [answer.status for answer in line.answers("POST")] == [200]


def test_while_others_wait_the_slow_make_room_and_the_quick_do_not() -> None:
    giver = Giver()
    slow, quick = LargeLine(giver), LargeLine(giver)
    slow.send(post(BODY[:20_000], length=SIZE))
    quick.send(post(BODY[:20_000], length=SIZE))
    giver.crowded = True
    for at in range(20_000, 20_000 + 12 * 12_000, 12_000):
        slow.send(BODY[:5000]).sweep_after(1)
        quick.send(BODY[at : at + 12_000]).sweep_after(1)
    (answer,) = slow.answers("POST")
    assert answer.status == 503 and b"too slowly" in answer.body and answer.headers[b"retry-after"] == b"1"
    assert slow.refused and giver.given[0].dropped
    assert not quick.transport.writes and not giver.given[1].dropped


def test_a_body_of_unknown_length_is_counted_as_it_grows() -> None:
    giver = Giver()
    line = LargeLine(giver, keep).send(chunked(BODY))
    assert bytes(line.app.seen[0].body) == BODY
    assert line.app.seen[0].lies() is None
    assert all(spot.want.counted for spot in giver.given)
    assert SIZE - (64 << 10) <= giver.used <= 2 * SIZE
    line.app.seen[0].reply(200, b"")
    assert giver.used == 0


def test_a_body_of_unknown_length_waits_too_and_gives_back_what_it_has() -> None:
    giver = Giver(room=100_000)
    line = LargeLine(giver).send(chunked(BODY))
    assert line.transport.paused and giver.used
    waiting = LargeLine(giver, limits=Limits(body_window_seconds=5)).send(chunked(BODY))
    assert waiting.sweep_after(6).answers("POST")[0].status == 503
    line.hang_up()
    assert giver.used == 0 and not giver.line
    giver.room = 1 << 20
    line = LargeLine(giver).send(chunked(BODY))
    assert line.answers("POST")[0].body == BODY


def test_a_body_of_unknown_length_makes_room_too() -> None:
    giver = Giver()
    line = LargeLine(giver).send(chunked(BODY)[:150_000]).sweep_after(12)
    assert not line.transport.writes
    giver.crowded = True
    line.send(b"x").sweep_after(2)
    assert [answer.status for answer in line.answers("POST")] == [503]
    assert giver.used == 0


def test_a_compressed_body_is_counted_and_inflated_as_ever() -> None:
    giver = Giver()
    packed = gzip.compress(BODY)
    line = LargeLine(giver).send(post(packed, extra=b"Content-Encoding: gzip\r\n"))
    assert line.answers("POST")[0].body == BODY
    assert [spot.want.size for spot in giver.given] == [len(packed) - (64 << 10), len(BODY)]
    assert giver.used == 0


def test_few_bytes_that_become_many_are_counted_until_the_answer() -> None:
    giver = Giver()
    line = LargeLine(giver, keep)
    packed = gzip.compress(bytes(SIZE))
    assert len(packed) < MOVING_BYTES, "small, by what its head says"
    line.send(post(packed, extra=b"Content-Encoding: gzip\r\n"))
    (exchange,) = line.app.seen
    assert len(exchange.body) == giver.used == SIZE
    exchange.reply(200, b"{}")
    assert giver.used == 0
    line.send(post(packed, extra=b"Content-Encoding: gzip\r\n"))
    line.hang_up()
    assert giver.used == 0 and len(giver.given) == 2


def test_a_body_that_finds_no_room_once_it_is_inflated_is_refused_and_the_connection_goes_on() -> None:
    giver = Giver(room=SIZE - 1)
    line = LargeLine(giver).send(post(gzip.compress(bytes(SIZE)), extra=b"Content-Encoding: gzip\r\n"))
    giver.room = SIZE
    line.send(post(gzip.compress(bytes(SIZE)), extra=b"Content-Encoding: gzip\r\n"))
    assert [answer.status for answer in line.answers("POST", "POST")] == [503, 200]
    assert len(line.app.seen) == 1 and giver.used == 0


def test_what_is_expected_is_asked_for_and_then_read() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(b"", extra=b"Expect: 100-continue\r\n", length=SIZE))
    assert line.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    line.send(BODY)
    assert [answer.status for answer in line.answers("POST")] == [100, 200]
    assert line.answers("POST")[-1].body == BODY


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nContent-Length: 200000\r\n\r\n", False),
        (b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 200000\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n", True),
    ],
)
def test_the_connection_goes_on_only_where_the_caller_wants_it(head: bytes, kept: bool) -> None:
    line = LargeLine(Giver()).send(head + BODY + post(b"more"))
    assert line.refused is not kept
    assert len(line.app.seen) == 1 + kept


def test_a_request_for_another_protocol_with_a_large_body_is_answered_in_this_one() -> None:
    head = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    line = LargeLine(Giver()).send(post(extra=head) + post(b"more"))
    assert [answer.body for answer in line.answers("POST", "POST")] == [BODY, b"more"]


@pytest.mark.parametrize("room", [SIZE, 0])
def test_an_answer_that_ends_the_connection_ends_the_body_behind_it(room: int) -> None:
    giver = Giver(room)
    line = LargeLine(giver, keep).send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    line.send(post(BODY[:100_000], length=SIZE))
    assert (giver.used, len(giver.line)) == ((SIZE, 0) if room else (0, 1))
    exchange = line.app.seen[0]
    exchange.start(200)  # without chunks, its end is that of the connection
    assert giver.used == 0 and not giver.line
    line.send(BODY[100_000:])
    exchange.end()
    line.loop.turn()
    assert line.refused and len(line.app.seen) == 1


def test_garbage_behind_a_large_body_is_refused_and_harms_nothing_before() -> None:
    line = LargeLine(Giver()).send(post() + b"BREW\r\n\r\n")
    assert [answer.status for answer in line.answers("POST", "GET")] == [200, 400]


def test_an_answer_before_the_body_is_complete_is_impossible_and_draining_waits_for_it() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[:50_000], length=SIZE))
    line.port.begin_drain()
    assert not line.connection.is_idle()
    line.send(BODY[50_000:])
    (answer,) = line.answers("POST")
    assert answer.body == BODY and answer.headers[b"connection"] == b"close"


def test_a_slow_reader_does_not_stop_its_own_body() -> None:
    giver = Giver()
    line = LargeLine(giver).send(post(BODY[:50_000], length=SIZE))
    protocol: Any = line.transport.protocol
    protocol.pause_writing()
    assert line.transport.paused
    protocol.resume_writing()
    line.send(BODY[50_000:])
    assert [answer.body for answer in line.answers("POST")] == [BODY]


def test_without_a_giver_nothing_changes() -> None:
    line = LargeLine(None).send(post())
    assert type(line.app.seen[0].body) is bytearray
    assert line.transport.protocol is None


def test_an_application_that_raises_gives_the_place_back() -> None:
    giver = Giver()

    def fail(exchange: Exchange) -> None:
        raise ValueError("a defect")

    line = LargeLine(giver, fail).send(post())
    assert [answer.status for answer in line.answers("POST")] == [500]
    assert giver.used == 0


def test_a_streamed_answer_keeps_the_body_to_its_end() -> None:
    giver = Giver()
    line = LargeLine(giver, keep).send(post())
    exchange = line.app.seen[0]
    exchange.start(200)
    exchange.write(bytes(exchange.body[:3]))
    assert giver.used == SIZE
    exchange.end()
    assert giver.used == 0
    line.loop.turn()
    assert line.answers("POST")[0].body == BODY[:3]
