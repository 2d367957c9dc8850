"""Known head lines: the quick way and the parser's must never differ, whatever is remembered and however full it is."""

from __future__ import annotations

import random

import pytest
from http_memory import Line, outcome

from maitred.http.coding import Choice
from maitred.http.exchange import WATCHED
from maitred.http.heads import LENGTH_SHIFT, MOST_LINES, PLAIN, UNWATCHED, WATCHED_BITS, WATCHED_SHIFT, Heads, Unusual

LINES = [
    b"Host: x", b"Host: y", b"Host: a/b", b"host: x", b"Content-Length: 3", b"Content-Length: 0", b"Content-Length: 4",
    b"Content-Length: 03", b"content-length: 3", b"Content-Length: +3", b"Content-Length:3", b"Content-Length: 3 ",
    b"Accept-Encoding: gzip", b"Accept-Encoding: gzip;q=0, identity;q=0", b"Accept-Encoding: identity;q=0",
    b"Accept-Encoding: deflate, *;q=0", b"Connection: keep-alive", b"Connection: close", b"Connection: upgrade",
    b"Proxy-Connection: close", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c",
    b"Content-Encoding: gzip", b"X: a", b"X:  a", b"X: ", b"X:", b": a", b" X: a", b"X : a", b"X", b"X: a\x00",
    b"X: caf\xe9", b"X: a\nHost: z", b"X: a\rb", b"X\x00: a", b"X!: a", b"Traceparent: 00-1-2-01",
    b"POST /p HTTP/1.1", b"GET /g HTTP/1.1", b"Content_Length: 3",
]  # fmt: skip
FIRST = [
    b"POST /p HTTP/1.1", b"POST /p HTTP/1.1", b"GET /g HTTP/1.1", b"HEAD /g HTTP/1.1", b"GET /g?q HTTP/1.1",
    b"GET /g HTTP/1.0", b"GET /g HTTP/1.1 ", b"", b"Host: x",
]  # fmt: skip
BODIES = [b"", b"abc", b"abcd", b"abcGET /s HTTP/1.1\r\nHost: x\r\n\r\n", b"ab"]


def head(chance: random.Random) -> bytes:
    lines = [b"Host: x"] if chance.random() < 0.8 else []
    lines += [b"Content-Length: 3"] if chance.random() < 0.6 else []
    lines += chance.choices(LINES, k=chance.randrange(4))
    chance.shuffle(lines)
    return b"\r\n".join([chance.choice(FIRST), *lines]) + b"\r\n\r\n" + chance.choice(BODIES)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_changes_nothing_but_speed(seed: int) -> None:
    chance = random.Random(seed)
    knowing = Line()
    for data in (b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n"):
        knowing.send(data)
    for _ in range(1500):
        data = head(chance)
        quick = Line(port=knowing.port)
        slow = Line()
        quick.app = knowing.app
        for line in (quick, slow):
            line.send(b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.connection._fast = False
        assert outcome(quick, data) == outcome(slow, data), data
        quick.hang_up()
        if chance.random() < 0.02:
            knowing.port.heads.make_room()


@pytest.mark.parametrize("count", range(2, MOST_LINES + 1))
@pytest.mark.parametrize("line", [b"Host: x", b"Content-Length: 0", b"Accept-Encoding: gzip"])
def test_repeated_lines_never_add_up_to_a_plain_head(line: bytes, count: int) -> None:
    heads = Heads(1 << 20)
    lines = [b"Host: x"] * (line != b"Host: x") + [line] * count
    weight = sum(map(heads.weights.__getitem__, lines))
    assert weight not in PLAIN
    assert weight & UNWATCHED not in PLAIN


def test_watched_headers_and_labels_are_told_apart() -> None:
    heads = Heads(1 << 20, frozenset((b"traceparent", b"content-type")), (b"x-request-id", b"baggage"))
    plain = [b"Host: x", b"Content-Type: application/json", b"Other: 1"]
    assert sum(map(heads.weights.__getitem__, plain)) in PLAIN

    def watched(*lines: bytes) -> int:
        weight = sum(map(heads.weights.__getitem__, [*plain, *lines]))
        assert weight & UNWATCHED in PLAIN
        return weight >> WATCHED_SHIFT & WATCHED_BITS

    assert watched() == 0
    assert watched(b"X-Request-Id: a") == 1
    for count in (1, 30, 60):
        for line in (b"Traceparent: 00-1", b"TRACEPARENT: 2", b"Content-Type: text/plain"):
            assert watched(*[line] * count) >= WATCHED
            assert watched(b"X-Request-Id: a", b"Baggage: a", *[line] * min(count, 58)) >= WATCHED
        assert watched(*[b"BAGGAGE: a"] * count) > 1
        assert watched(*[b"X-Request-Id: a"] * (count + 1)) > 1
    for number in range(1000):
        assert heads.weights[b"traceparent: %d" % number] == heads.weights[b"Traceparent: 00-1"] != 0
    with pytest.raises(Unusual):
        heads.weights[b"traceparent: \x07"]


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: h2c", b"Connection: close", b"X : a", b"X:a",
        b"X: a ", b"X:  a", b" X: a", b"X", b"", b"X: \x7f", b"X: \x00", b"X: a\tb", b"X: a\nb", b"X: \xff", b"(): a",
        b"Content-Length: 1048577", b"Content-Length: -1", b"Content-Length: 99999999999", b"Host: a b",
        b"Accept-Encoding: identity;q=0",
    ],
)  # fmt: skip
def test_lines_for_the_parser(line: bytes) -> None:
    heads = Heads(1 << 20)
    with pytest.raises(Unusual):
        heads.weights[line]
    assert len(heads.weights) == 0
    for number in range(100):
        heads.weights[b"X: a%d" % number]
    with pytest.raises(Unusual):  # nor once its values are known to vary
        heads.weights[line]


def test_a_plain_head_weighs_its_length_and_says_what_is_accepted() -> None:
    heads = Heads(1 << 20)
    lines = [b"Host: x", b"Content-Length: 1234", b"Accept-Encoding: gzip, deflate", b"X: a"]
    weight = sum(map(heads.weights.__getitem__, lines))
    assert PLAIN[weight - (1234 << LENGTH_SHIFT)] == Choice(b"gzip", True)


def test_memory_is_bounded_and_what_varies_is_not_kept() -> None:
    heads = Heads(1 << 30)
    for number in range(10_000):
        assert heads.weights[b"X-Request-Id: %d" % number] == 0
        assert heads.weights[b"x%d: a" % number] == 0
    assert len(heads.weights) <= 2048
    heads.make_room()
    for number in range(10_000):
        assert heads.weights[b"X-Request-Id: %d" % number] == 0
    assert len(heads.weights) <= 64
    for number in range(10_000):
        try:
            heads.weights[b"Host: h%d" % number]
        except Unusual:
            continue
        heads.learn(b"GET /%d HTTP/1.1" % number, ("GET", b"/%d" % number, b"", False))
    assert len(heads.weights) <= 2048
    assert len(heads.request_lines) <= 2048
    assert heads.weights[b"Long: " + b"x" * 5000] == 0
    heads.make_room()
    assert len(heads.weights) == 0
    assert heads.weights[b"Host: new"] == 1


def test_a_full_memory_never_hides_a_length() -> None:
    line = Line()
    line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    for number in range(3000):
        line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nX-%d: a\r\nContent-Length: 0\r\n\r\n" % number)
    line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
    assert line.connection._mid
    line.send(b"abcde")
    assert bytes(line.app.seen[-1].body) == b"abcde"
