"""Seeded damage to requests, byte by byte: no exception and no 5xx, whatever arrives in what pieces."""

from __future__ import annotations

import gzip
import logging
import random
import re

import pytest
from http_memory import Line

from maitred.http.limits import Limits

# ruff: noqa: E501
EACH = 2500
"""Inputs per seed; eight seeds make 20,000."""

SEEDS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n{\"inputs\":1}"[:-1],
    b"POST /p HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;e=f\r\nde\r\n0\r\nT: u\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /p HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nAccept-Encoding: gzip, *;q=0\r\nContent-Length: %d\r\n\r\n"
    % len(gzip.compress(b"hello", mtime=0)) + gzip.compress(b"hello", mtime=0),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"HEAD /a?b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: identity;q=0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nX: \xff\r\n\r\n",
]  # fmt: skip
WORDS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b"0", b"-1", b"FFFFFFFFFFFFFFFF", b"99999999999999999999",
    b"Host: x\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Upgrade: websocket\r\n", b"HTTP/1.1",
    b"Connection: upgrade\r\n", b"Expect: x\r\n", b"Content-Encoding: deflate\r\n", b"A" * 5000, b"a: b\r\n" * 120, b"PRI * ",
]  # fmt: skip


def damaged(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choices(SEEDS, k=chance.choice([1, 1, 2, 3]))))
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            data[at:at] = chance.choice(WORDS)
        elif kind == 1:
            data[at : at + chance.randrange(1, 20)] = b""
        elif kind == 2 and at < len(data):
            data[at] = chance.randrange(256)
        elif kind == 3 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 4:
            data[at:at] = data[at : at + chance.randrange(60)]
        else:
            data[at:at] = chance.randbytes(chance.randrange(1, 8))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_input_is_answered_or_refused_and_harms_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    limits = Limits(body_bytes=3000)
    port = Line(lambda exchange: exchange.reply(200, b"{}"), limits).port
    for _ in range(EACH):
        line = Line(port=port)
        data = damaged(chance)
        at = 0
        while at < len(data) and not line.transport.closed:
            size = chance.choice([1, 3, 20, 200, 10_000])
            line.connection.data_received(data[at : at + size])
            line.loop.turn()
            port.loop.turn()  # type: ignore[attr-defined]
            at += size
        statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", line.transport.sent)
        assert all(status < b"500" for status in statuses), data
        if chance.random() < 0.5:
            line.hang_up()
        else:
            line.sweep_after(31 * 3)
            assert line.transport.closed, data
            line.hang_up()
        assert line.transport.sent.count(b"Connection: close") <= 1
    assert len(port.connections) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
