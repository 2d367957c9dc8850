"""Content codings both ways: what is chosen, what is inflated, what is refused, and how much memory a bomb gets."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import time
import tracemalloc
import zlib

import http_resident
import pytest
from http_memory import Line
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed, TooLarge, UnsupportedMedia
from maitred.http.coding import Choice, Inflation, check_coding, choose, compress
from maitred.http.exchange import Exchange
from maitred.http.limits import Limits


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(6, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


def inflate(coding: bytes, source: bytes, limit: int = 1 << 20) -> bytes:
    inflation = Inflation(coding, bytearray(source), limit)
    assert inflation.run()
    return bytes(inflation.plain)


@pytest.mark.parametrize(
    ("accept", "coding", "identity"),
    [
        (None, None, True),
        (b"", None, True),
        (b"gzip", b"gzip", True),
        (b"GZIP", b"gzip", True),
        (b"x-gzip", b"gzip", True),
        (b"gzip, deflate, br, zstd", b"gzip", True),
        (b"deflate, gzip", b"gzip", True),
        (b"deflate;q=1, gzip;q=0.5", b"deflate", True),
        (b"gzip;q=0", None, True),
        (b"gzip;q=0.000", None, True),
        (b"gzip;q=0, *", b"deflate", True),
        (b"*", b"gzip", True),
        (b"*;q=0", None, False),
        (b"*;q=0, identity", None, True),
        (b"*;q=0, gzip", b"gzip", False),
        (b"identity;q=0", None, False),
        (b"identity;q=0, gzip", b"gzip", False),
        (b"identity;q=0, br", None, False),
        (b"identity, gzip;q=0.5", None, True),
        (b"identity;q=0.5, gzip", b"gzip", True),
        (b"gzip ; q=1", b"gzip", True),
        (b"gzip;level=9", None, True),
        (b"gzip;q=x", None, True),
        (b"gzip;q=7", None, True),
        (b"gzip;q=nan", None, True),
        (b"br", None, True),
        (b",,;,", None, True),
    ],
)
def test_the_best_coding_is_chosen(accept: bytes | None, coding: bytes | None, identity: bool) -> None:
    assert choose(accept) == Choice(coding, identity)


@given(st.binary(max_size=200))
def test_any_accept_encoding_can_be_read(accept: bytes) -> None:
    assert choose(accept).coding in (None, b"gzip", b"deflate")


@pytest.mark.parametrize("header", [b"gzip", b"GZip", b" gzip ", b"x-gzip"])
def test_gzip_has_several_spellings(header: bytes) -> None:
    assert check_coding(header) == b"gzip"


@pytest.mark.parametrize("header", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip,identity", b"*", b"\xff"])
def test_other_codings_are_not_spoken(header: bytes) -> None:
    with pytest.raises(UnsupportedMedia):
        check_coding(header)


@given(st.binary(max_size=5000), st.sampled_from([b"gzip", b"deflate"]))
def test_there_and_back(data: bytes, coding: bytes) -> None:
    assert inflate(coding, compress(data, coding)) == data


@given(st.binary(max_size=2000), st.integers(1, 4))
def test_members_are_joined_and_both_kinds_of_deflate_are_read(data: bytes, members: int) -> None:
    assert inflate(b"gzip", gzip.compress(data) * members) == data * members
    assert inflate(b"deflate", zlib.compress(data)) == data
    assert inflate(b"deflate", raw_deflate(data)) == data


GOOD = gzip.compress(b"hello" * 100)


@pytest.mark.parametrize(
    ("coding", "source"),
    [
        (b"gzip", GOOD[:-1]),
        (b"gzip", GOOD[:15]),
        (b"gzip", GOOD[:1]),
        (b"gzip", GOOD + GOOD[:12]),
        (b"gzip", GOOD + b"garbage"),
        (b"gzip", b'{"plain": "json"}'),
        (b"gzip", GOOD[:-6] + b"\0" * 6),
        (b"gzip", zlib.compress(b"hello")),
        (b"deflate", zlib.compress(b"hello")[:-1]),
        (b"deflate", zlib.compress(b"hello") + b"x"),
        (b"deflate", b'{"plain": "json"}'),
        (b"deflate", GOOD),
        (b"deflate", b"x"),
    ],
)
def test_broken_bodies_are_malformed(coding: bytes, source: bytes) -> None:
    with pytest.raises(Malformed):
        inflate(coding, source)


@given(st.binary(min_size=1, max_size=300), st.sampled_from([b"gzip", b"deflate"]))
def test_any_bytes_end_in_a_body_or_an_error_for_the_caller(source: bytes, coding: bytes) -> None:
    try:
        inflate(coding, source)
    except (Malformed, TooLarge) as error:
        assert len(error.message) > 20


def bomb(mebibytes: int) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    return b"".join([*(engine.compress(block) for _ in range(mebibytes)), engine.flush()])


BOMB = bomb(20)


def many_members(count: int) -> bytes:
    return gzip.compress(b"", mtime=0) * count


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gzip", bomb(200)),
        ("gzip of gzip", gzip.compress(bomb(200))),
        ("members", bomb(1) * 200),
        ("empty members", many_members(200_000)),
        ("empty blocks", gzip.compress(b"", mtime=0)[:10] + b"\x00\x00\x00\xff\xff" * 2_000_000),
    ],
)
def test_bombs_stop_at_the_limit_in_time_and_memory(name: str, source: bytes) -> None:
    limit = 16 << 20
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    inflation = Inflation(b"gzip", bytearray(source), limit)
    held = len(source)
    try:
        if inflation.run():
            assert name == "gzip of gzip", "one layer is a body like any other"
            assert len(inflation.plain) < 1 << 20
    except (TooLarge, Malformed):
        pass
    else:
        assert name == "gzip of gzip"
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 1.2 * limit + held + (1 << 20)
    assert spent < 5, "1 s without the tracing of memory on an idle machine"


def resident(kind: str, threads: int) -> list[list[int]]:
    """The figures of http_resident.py: most memory, what is left of it, size of the coded body and of the plain one."""
    program = [sys.executable, http_resident.__file__, kind, str(threads)]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=True, text=True)
    return [[int(figure) for figure in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_bombs_take_their_limit_once_and_give_it_back() -> None:
    times = resident("bomb", threads=3)
    assert [size for *_, size in times] == [0] * 5
    assert max(most for most, *_ in times) <= 1.2 * http_resident.LIMIT
    assert sum(left for _, left, *_ in times) <= 0.2 * http_resident.LIMIT, "no thread keeps any"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_good_body_is_never_there_twice() -> None:
    times = resident("body", threads=1)
    assert [size for *_, size in times] == [7_999_999] * 5
    assert all(most <= 1.2 * size + coded for most, _, coded, size in times)
    assert sum(left for _, left, *_ in times[1:]) <= 1 << 20, "what one leaves free is for the next"


@pytest.mark.parametrize("size", [262_143, 262_144, 262_145, 327_681, 524_288, 532_481, 1 << 20, 5_000_000, 20 << 20])
@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_large_bodies_come_out_whole_up_to_the_limit_itself(size: int, coding: bytes) -> None:
    for plain in (bytes(size), bytes(range(256)) * (size // 256) + b"x" * (size % 256)):
        source = zlib.compress(plain, 9) if coding == b"deflate" else gzip.compress(plain, 9)
        assert inflate(coding, source, limit=size) == plain
        assert inflate(coding, source, limit=1 << 40) == plain, "no more is reserved than the source can bring"
        with pytest.raises(TooLarge):
            inflate(coding, source, limit=size - 1)


def test_work_on_the_loop_is_bounded() -> None:
    inflation = Inflation(b"gzip", bytearray(BOMB), 1 << 30)
    assert not inflation.run(256 << 10)
    assert len(inflation.plain) < 512 << 10
    blocks = Inflation(b"deflate", bytearray(b"\x00\x00\x00\xff\xff" * 2_000_000), 1 << 30)
    assert not blocks.run(256 << 10)


def test_a_stopped_inflation_returns() -> None:
    inflation = Inflation(b"gzip", bytearray(BOMB), 1 << 30)
    inflation.stopped = True
    assert not inflation.run()


# ---- on a connection


def coded(body: bytes, coding: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        coding,
        len(body),
        body,
    )


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        (b"gzip", gzip.compress(b"hello")),
        (b"deflate", zlib.compress(b"hello")),
        (b"deflate", raw_deflate(b"hello")),
        (b"identity", b"hello"),
        (b"", b"hello"),
    ],
)
def test_a_coded_body_reaches_the_application_plain(coding: bytes, body: bytes) -> None:
    line = Line().send(coded(body, coding) * 2)
    assert [bytes(exchange.body) for exchange in line.app.seen] == [b"hello"] * 2


def test_a_large_coded_body_is_inflated_beside_and_answers_keep_their_order() -> None:
    line = Line()
    line.connection.data_received(coded(bomb(1), b"gzip") + coded(gzip.compress(b"small"), b"gzip"))
    assert [len(exchange.body) for exchange in line.app.seen] == [5], "the large one is still with its thread"
    line.loop.turn()
    assert [len(answer.body) for answer in line.answers()] == [1 << 20, 5]


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        (b"br", b"x", 415),
        (b"gzip, gzip", gzip.compress(gzip.compress(b"x")), 415),
        (b"gzip\r\nContent-Encoding: gzip", gzip.compress(gzip.compress(b"x")), 415),
        (b"gzip", b"x", 400),
        (b"gzip", GOOD[:-3], 400),
        (b"gzip", bomb(2), 413),
        (b"gzip", gzip.compress(bytes(100_001)), 413),
    ],
)
def test_a_bad_coded_body_is_refused_and_the_connection_goes_on(coding: bytes, body: bytes, status: int) -> None:
    line = Line(limits=Limits(body_bytes=100_000)).send(coded(body, coding), coded(gzip.compress(b"next"), b"gzip"))
    refusal, following = line.answers()
    assert refusal.status == status
    assert "error" in json.loads(refusal.body)
    assert refusal.headers.get(b"accept-encoding") == (b"gzip, deflate" if status == 415 else None)
    assert following.body == b"next"


def test_a_coding_without_a_body_means_nothing() -> None:
    line = Line().send(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\n\r\n")
    assert [answer.status for answer in line.answers()] == [200]


def test_a_caller_who_leaves_stops_the_inflation() -> None:
    line = Line()
    line.connection.data_received(coded(bomb(1), b"gzip"))
    inflation = line.connection.queue[0].inflation
    assert inflation is not None
    line.hang_up()
    assert inflation.stopped
    assert line.app.seen == []


LONG = json.dumps(list(range(1000))).encode()


def get(accept: bytes | None, method: bytes = b"GET") -> bytes:
    header = b"" if accept is None else b"Accept-Encoding: %b\r\n" % accept
    return b"%b / HTTP/1.1\r\nHost: x\r\n%b\r\n" % (method, header)


@pytest.mark.parametrize("body", [LONG, LONG * 100], ids=["on the loop", "in a thread"])
@pytest.mark.parametrize(
    ("accept", "coding"),
    [(None, None), (b"gzip", b"gzip"), (b"deflate", b"deflate"), (b"gzip;q=0", None), (b"*", b"gzip"), (b"br", None)],
)
def test_long_answers_are_compressed_as_the_caller_likes(
    accept: bytes | None, coding: bytes | None, body: bytes
) -> None:
    line = Line(lambda exchange: exchange.reply(200, body)).send(get(accept), get(accept))
    for answer in line.answers():
        assert answer.headers.get(b"content-encoding") == coding
        assert answer.headers[b"vary"] == b"Accept-Encoding"
        plain = {None: bytes, b"gzip": gzip.decompress, b"deflate": zlib.decompress}[coding](answer.body)
        assert plain == body
        assert (len(answer.body) < len(body)) is (coding is not None)


def test_answers_compressed_beside_keep_their_order() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.reply(200, LONG * 100 if exchange.path == b"/long" else b"short")

    line = Line(answer).send(get(b"gzip").replace(b" / ", b" /long ") + get(b"gzip"))
    first, second = line.answers()
    assert gzip.decompress(first.body) == LONG * 100
    assert second.body == b"short"


@pytest.mark.parametrize("size", [0, 1, 1023])
def test_short_answers_are_left_alone(size: int) -> None:
    answer = Line(lambda exchange: exchange.reply(200, b"x" * size)).send(get(b"gzip")).answers()[0]
    assert answer.body == b"x" * size
    assert b"content-encoding" not in answer.headers
    assert b"vary" not in answer.headers


def test_short_answers_are_compressed_where_identity_is_excluded() -> None:
    answer = Line(lambda exchange: exchange.reply(200, b"x")).send(get(b"gzip, identity;q=0")).answers()[0]
    assert answer.headers[b"content-encoding"] == b"gzip"
    assert gzip.decompress(answer.body) == b"x"


@pytest.mark.parametrize("accept", [b"identity;q=0", b"*;q=0", b"br, *;q=0"])
def test_a_caller_who_accepts_nothing_is_told_before_any_work(accept: bytes) -> None:
    line = Line().send(get(accept), get(None))
    assert [answer.status for answer in line.answers()] == [406, 200]
    assert len(line.app.seen) == 1


def test_what_does_not_shrink_is_sent_plain() -> None:
    noise = zlib.compress(bytes(time.time_ns() % 256 for _ in range(9)) + LONG)[:1100]
    noise = bytes(byte ^ (index * 197 + 13) % 256 for index, byte in enumerate(noise))
    answer = Line(lambda exchange: exchange.reply(200, noise)).send(get(b"gzip")).answers()[0]
    assert answer.headers.get(b"content-encoding") in (None, b"gzip")
    assert len(answer.body) <= len(noise)


def test_an_answer_that_is_coded_already_is_not_coded_again() -> None:
    body = gzip.compress(LONG)
    line = Line(lambda exchange: exchange.reply(200, body, b"text/plain", b"Content-Encoding: gzip\r\n"))
    answer = line.send(get(b"gzip")).answers()[0]
    assert gzip.decompress(answer.body) == LONG


def test_a_caller_who_leaves_while_compressing_is_forgotten() -> None:
    line = Line(lambda exchange: exchange.reply(200, LONG * 100))
    line.connection.data_received(get(b"gzip"))
    line.hang_up()
    assert line.transport.sent == b""
