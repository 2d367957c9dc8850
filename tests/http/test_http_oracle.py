"""Our reading of HTTP/1 against h11's: the same requests, however they are cut, or both refuse.

Where we are stricter or laxer on purpose, the reason stands in a table; any other difference fails.
"""

from __future__ import annotations

import random
import re

import h11
import pytest
from http_memory import Line

Request = tuple[str, bytes, tuple[tuple[bytes, bytes], ...], bytes, bool]
"""Method, target, headers, body, and whether the connection may go on."""

# ruff: noqa: E501
STRICTER: dict[str, bytes] = {
    "a line feed ends no line": rb"(?<!\r)\n",
    "folded headers": rb"\r\n[ \t]",
    "methods that nobody registered": rb"(?:^|\r\n|[^\r\n])(?!(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE) )[!-~]+ [^\r\n]* HTTP/1",
    "other targets than paths and http addresses": rb"[A-Z]+ (?!/|\*|https?://)[^\r\n]* HTTP/1",
    "raw bytes in a target": rb"[A-Z]+ [^\r\n]*[^!-~\r\n ][^\r\n]* HTTP/1",
    "fragments in a target": rb"[A-Z]+ [^\r\n ]*#[^\r\n]* HTTP/1",
    "versions other than 1.0 and 1.1": rb"HTTP/(?!1\.[01])",
    "a Host that is none": rb"(?i)host:[^\r\n]*[^\w.:\[\]\s-]",
    "several Hosts in 1.0": rb"(?i)host:[^\x00]*\r\nhost:",
    "Content-Length lists": rb"(?i)content-length:[^\r\n]*,",
    "Content-Length twice": rb"(?i)content-length:[^\x00]*\r\ncontent-length:",
    "Content-Length beside Transfer-Encoding": rb"(?i)content-length:[^\x00]*transfer-encoding|transfer-encoding:[^\x00]*content-length:",
    "Transfer-Encoding in 1.0": rb"(?i)HTTP/1\.0\r\n[^\x00]*transfer-encoding",
    "expectations other than 100-continue": rb"(?i)expect:[ \t]*(?!100-continue[ \t]*\r)",
    "chunk sizes with space around": rb"\r\n[0-9A-Fa-f]*[ \t]",
    "chunk extensions that are none": rb"\r\n[0-9A-Fa-f]+;",
}
"""What we refuse and h11 takes."""

LAXER: dict[str, bytes] = {
    "blank lines before a request": rb"[\r\n][A-Z]+ [^\r\n]* HTTP/1",
    "several spaces in the request line": rb"[A-Z]  [^\r\n]*HTTP/1|  HTTP/1",
    "kept connections in 1.0": rb"HTTP/1\.0",
}
"""What we take and h11 refuses, or takes as the connection's end."""


def ours(pieces: list[bytes]) -> tuple[list[Request], bool]:
    line = Line()
    for piece in pieces:
        if not line.transport.closed:
            line.connection.data_received(piece)
    line.loop.turn()
    requests = []
    for exchange in line.app.seen:
        target = exchange.path + (b"?" + exchange.query if exchange.query else b"")
        keep = exchange.keep  # type: ignore[attr-defined]
        headers = tuple(
            (name, value.lower() if name == b"transfer-encoding" else value) for name, value in exchange.headers
        )
        requests.append((exchange.method, target, headers, bytes(exchange.body), keep))
    methods = [request[0] for request in requests]
    try:
        answers = line.answers(*methods)
    except h11.RemoteProtocolError:  # a refused HEAD, whose answer has no body either
        assert b"HEAD " in b"".join(pieces)
        answers = line.answers(*methods, "HEAD")
    statuses = [answer.status for answer in answers]
    assert not [status for status in statuses if status >= 500]
    return requests, bool(statuses) and statuses[-1] >= 400


def theirs(pieces: list[bytes]) -> tuple[list[Request], bool]:
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    requests: list[Request] = []
    head: h11.Request | None = None
    body = b""
    for piece in pieces:
        server.receive_data(piece)
        while True:
            try:
                event = server.next_event()
            except h11.RemoteProtocolError:
                return requests, True
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                server.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                server.send(h11.EndOfMessage())
                keep = server.our_state is h11.DONE and server.their_state is h11.DONE
                target = re.sub(rb"(?i)^https?://[^/?]+", b"", bytes(head.target))
                target = target if target.startswith((b"/", b"*")) else b"/" + target
                requests.append((head.method.decode(), target.removesuffix(b"?"), tuple(head.headers), body, keep))
                if not keep:
                    return requests, False
                server.start_next_cycle()
            else:
                break
    return requests, False


def explained(data: bytes, table: dict[str, bytes]) -> bool:
    return any(re.search(pattern, data) for pattern in table.values())


def compare(data: bytes, pieces: list[bytes]) -> None:
    our_requests, we_refused = ours(pieces)
    their_requests, they_refused = theirs(pieces)
    for mine, other in zip(our_requests, their_requests, strict=False):
        if mine[4] != other[4] and mine[:4] == other[:4]:
            assert explained(data, LAXER), f"kept by one only: {data!r}"
            return
        assert mine == other, data
    if len(our_requests) < len(their_requests):
        assert we_refused, f"not seen by us and not refused: {data!r}"
        assert explained(data, STRICTER), f"refused by us alone: {data!r}"
    elif len(our_requests) > len(their_requests):
        assert they_refused, data
        assert explained(data, LAXER), f"taken by us alone: {data!r}"


METHODS = [b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]
TARGETS = [b"/", b"/a/b", b"/a?b=c", b"/?", b"/%41", b"/a;b", b"http://x/y?z", b"http://x", b"*"]
NAMES = [b"X-A", b"x-b", b"Accept", b"User-Agent", b"Traceparent", b"X_C"]
VALUES = [b"", b"a", b"a b", b" padded \t", b"caf\xe9", b"a,b;q=0.5", b"x" * 300, b'"quoted"', b":", b"a: b"]
BODIES = [b"", b"a", b"abc\r\n\r\nGET / HTTP/1.1\r\n\r\n", b"x" * 5000, b"\x00\xff"]
CONNECTIONS = [b"", b"", b"", b"close", b"keep-alive", b"Close", b"te, close", b"upgrade"]
INSERTS = [
    b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b",", b";", b"0", b"1", b"-", b"+", b"\xff", b"\x0b", b"\x7f", b"#",
    b"Host: y\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n",
]  # fmt: skip


def request(chance: random.Random) -> bytes:
    version = chance.choice([b"1.1", b"1.1", b"1.1", b"1.0"])
    first = b"%b %b HTTP/%b" % (chance.choice(METHODS), chance.choice(TARGETS), version)
    lines = [b"Host: " + chance.choice([b"x", b"127.0.0.1:80"])]
    for _ in range(chance.randrange(4)):
        lines.append(chance.choice(NAMES) + b":" + chance.choice([b" ", b"", b"\t"]) + chance.choice(VALUES))
    if connection := chance.choice(CONNECTIONS):
        lines.append(b"Connection: " + connection)
    body = chance.choice(BODIES)
    if version == b"1.1" and chance.random() < 0.5:
        lines.append(b"Transfer-Encoding: chunked")
        size = chance.randint(1, 4000)
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        body += b"0\r\n" + chance.choice([b"", b"", b"Trailer: a\r\n"]) + b"\r\n"
    elif body or chance.random() < 0.5:
        lines.append(b"Content-Length: %d" % len(body))
    chance.shuffle(lines)
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n" + body


def damaged(chance: random.Random) -> bytes:
    data = request(chance)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(min(len(data), 400) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            data = data[:at] + chance.choice(INSERTS) + data[at:]
        elif kind == 1:
            at = data.find(b"\r\n", at) + 2
            data = data[:at] + chance.choice(INSERTS) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + 1 :]
        else:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(7)))
    return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True) if start < stop]


@pytest.mark.parametrize("seed", range(4))
def test_valid_requests_are_read_as_h11_reads_them(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        stream = b"".join(request(chance) for _ in range(chance.randint(1, 4)))
        compare(stream, cut(stream, chance))


@pytest.mark.parametrize("seed", range(8))
def test_damaged_requests_are_read_as_h11_reads_them_or_refused(seed: int) -> None:
    chance = random.Random(1000 + seed)
    for _ in range(800):
        stream = damaged(chance) + (request(chance) if chance.random() < 0.5 else b"")
        compare(stream, cut(stream, chance))
