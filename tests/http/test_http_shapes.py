"""Heads that come again: what a shape takes in must be read as the parser reads it, and patterns stay few."""

from __future__ import annotations

import random

import pytest
from http_memory import Line, outcome

from maitred.http.coding import ANYTHING
from maitred.http.limits import Limits
from maitred.http.shapes import LEARN_AT, Shapes

HEAD = (
    b"POST /p HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nTraceparent: %b\r\nContent-Length: %b\r\n"
    b"Accept-Encoding: gzip\r\n\r\n"
)
VALUES = [
    b"a", b"r-2 of 3", b"", b" a", b"a ", b"a\tb", b"\x7f", b"\x00", b"caf\xe9", b"a\r\nHost: z", b"a\r\n b", b"a\nb",
    b"a\rb", b"a" * 256, b"a" * 257, b"a: b", b"\r\n", b"a\r\n\r\n", b"%s", b"~!",
]  # fmt: skip
LENGTHS = [
    b"3",
    b"03",
    b"+3",
    b"3 ",
    b"",
    b"4",
    b"2",
    b"0",
    b"10003",
    b"0003",
    b"00003",
    b"3\r\nContent-Length: 3",
    b"\xb2",
]
BODIES = [b"abc", b"", b"ab", b"abcd", b"\r\n\r", b"abcGET /s HTTP/1.1\r\nHost: x\r\n\r\n"]


def shaped(line: Line) -> Line:
    """A caller whose requests have been seen to differ in two values."""
    for number in range(min(LEARN_AT) + 3):
        line.send(HEAD % (b"id-%d" % number, b"t-%d" % number, b"3") + b"abc")
    assert line.connection._shape is not None
    return line


def parsed(data: bytes) -> object:
    line = shaped(Line())
    line.connection._fast = False
    return outcome(line, data)


@pytest.mark.parametrize("seed", range(4))
def test_a_shape_changes_nothing_but_speed(seed: int) -> None:
    chance = random.Random(seed)
    first = shaped(Line())
    for _ in range(700):
        plain = chance.random() < 0.5
        data = HEAD % (
            chance.choice(VALUES[:2] if plain else VALUES),
            chance.choice(VALUES[:2] if plain else VALUES),
            b"3" if plain else chance.choice(LENGTHS),
        ) + chance.choice(BODIES)
        if chance.random() < 0.2:
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice([b"", b"\r\n", b" ", b"\x00", b"Z"]) + data[at + chance.randrange(3) :]
        line = shaped(Line(port=first.port))
        line.app = first.app
        assert outcome(line, data) == parsed(data), data


def test_the_usual_request_of_a_shape_is_not_taken_apart() -> None:
    line = shaped(Line())
    count = line.connection._unshaped
    for number in range(100):
        line.send(HEAD % (b"other-%d" % number, b"t", b"%d" % (number + 1)) + b"b" * (number + 1))
    assert line.connection._unshaped == count
    exchange = line.app.seen[-1]
    assert (exchange.method, exchange.path, exchange.body) == ("POST", b"/p", b"b" * 100)
    assert exchange.headers[:2] == [(b"host", b"x"), (b"x-request-id", b"other-99")]
    line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nb")
    assert line.connection._unshaped == count + 1


def test_two_heads_of_one_shape() -> None:
    def learn(*pairs: tuple[bytes, bytes]) -> bool:
        earlier, later = ([pair[side] for pair in pairs] for side in (0, 1))
        shapes = Shapes(Limits())
        return shapes.learn(b"POST /p HTTP/1.1", "POST", b"/p", earlier, later, 0, ANYTHING) is not None

    length = (b"Content-Length: 3", b"Content-Length: 4")
    assert learn(length)
    assert learn(length, (b"Host: x", b"Host: x"), (b"A: 1", b"A: 2"))
    assert not learn()
    assert not learn((b"Host: x", b"Host: x"))
    assert not learn(length, (b"Host: x", b"Host: y"))
    assert not learn(length, (b"A: 1", b"B: 1"))
    assert not learn(length, (b"Accept-Encoding: gzip", b"Accept-Encoding: deflate"))
    assert not learn(length, (b"Content-Type: a/b", b"Content-Type: application/json"))
    assert not learn((b"Content-Length: 3", b"Content-length: 3"))


def test_small_limits_have_no_shapes() -> None:
    lines = [b"Content-Length: 3", b"A: 1"], [b"Content-Length: 3", b"A: 2"]
    for limits, wanted in ((Limits(), True), (Limits(body_bytes=9998), False), (Limits(head_bytes=500), False)):
        shape = Shapes(limits).learn(b"POST /p HTTP/1.1", "POST", b"/p", *lines, 0, ANYTHING)
        assert (shape is not None) is wanted


def test_long_heads_are_not_learned() -> None:
    for size, wanted in ((1000, True), (3000, False)):
        lines = [b"Content-Length: 3", b"A: " + b"a" * size]
        assert (
            Shapes(Limits()).learn(b"POST /p HTTP/1.1", "POST", b"/p", lines, lines, 0, ANYTHING) is not None
        ) is wanted


def test_patterns_are_few() -> None:
    shapes = Shapes(Limits())
    made = set()
    for number in range(1000):
        lines = [b"Content-Length: 3", b"A%d: 1" % number]
        made.add(shapes.learn(b"POST /p HTTP/1.1", "POST", b"/p", lines, lines, 0, ANYTHING))
        if number == 499:
            assert len(made) < 100
            shapes.make_room()
    assert len(made) < 200
    for round in range(100):
        shapes.make_room()
        for number in range(8):
            lines = [b"Content-Length: 3", b"B%d-%d: 1" % (round, number)]
            assert shapes.learn(b"POST /p HTTP/1.1", "POST", b"/p", lines, lines, 0, ANYTHING) is not None
    assert len(shapes._known) <= 256


def test_a_caller_without_a_shape_is_looked_at_now_and_then() -> None:
    line = Line()
    for number in range(max(LEARN_AT) + 2):
        line.send(b"POST /p HTTP/1.1\r\nHost: x\r\nX%d: a\r\nContent-Length: 1\r\n\r\nb" % number)
    assert line.connection._shape is None
    assert len(line.port.shapes._known) <= len(LEARN_AT)
