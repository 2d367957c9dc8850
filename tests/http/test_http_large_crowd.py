"""Many large bodies within one bound: those that trickle cannot keep out those that move, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from http_memory import Line, Loop, Recorder, echo
from large_line import LargeLine

from maitred.clock import ManualClock
from maitred.deployment.router import Router
from maitred.gateway.bodies import Bodies
from maitred.http.limits import Limits
from maitred.http.port import Port

SIZE = 100_000
BODY = random.Random(2).randbytes(SIZE)
HEAD = b"POST /big HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % SIZE


class Crowd:
    """Connections of one port, whose places come from the gateway's own giver."""

    def __init__(self, limit: int) -> None:
        self.clock, self.loop = ManualClock(), Loop()
        self.bodies = Bodies(Router(), limit, self.loop)  # type: ignore[arg-type]
        app = Recorder(echo)
        self.port = Port(app, Limits(), self.clock, self.loop, bodies=self.bodies)  # type: ignore[arg-type]

    def line(self) -> LargeLine:
        line = LargeLine.__new__(LargeLine)
        Line.__init__(line, port=self.port)
        line.kernel, line.most = b"", 1 << 16
        return line

    def second(self) -> None:
        self.clock.advance(1)
        self.port.sweep()
        self.loop.turn()


def statuses(line: LargeLine) -> list[int]:
    return [answer.status for answer in line.answers(*["POST"] * 9)]


def test_tricklers_cannot_keep_out_an_honest_caller() -> None:
    crowd = Crowd(10 * SIZE)
    tricklers = [crowd.line().send(HEAD + BODY[:20_000]) for _ in range(25)]
    assert crowd.bodies.used_bytes == 10 * SIZE
    honest = crowd.line().send(HEAD + BODY)
    for _ in range(26):  # 15 tricklers came before it: two rounds of ten seconds
        crowd.second()
        for line in tricklers:
            if not line.refused:
                line.send(bytes(1100))
        honest.read()
    assert statuses(honest) == [200] and honest.answers("POST")[0].body == BODY
    first = [statuses(line) for line in tricklers[:10]]
    assert first == [[503]] * 10


def test_without_others_who_wait_tricklers_are_let_be() -> None:
    crowd = Crowd(10 * SIZE)
    slow = [crowd.line().send(HEAD + BODY[:20_000]) for _ in range(10)]
    for at in range(20_000, SIZE, 2000):
        crowd.second()
        for line in slow:
            line.send(BODY[at : at + 2000])
    assert [statuses(line) for line in slow] == [[200]] * 10
    assert crowd.bodies.used_bytes == 0


def test_one_connection_with_many_bodies_leaves_room_for_others() -> None:
    crowd = Crowd(8 * SIZE)
    crowd.port.exchange = lambda exchange: None  # never answered
    greedy = crowd.line()
    greedy.send(*[HEAD + BODY] * 8)
    assert crowd.bodies.used_bytes == 2 * SIZE and greedy.transport.paused
    assert not crowd.bodies.crowded
    crowd.line().send(HEAD + BODY[:20_000])
    assert crowd.bodies.used_bytes == 3 * SIZE
    greedy.hang_up()
    assert crowd.bodies.used_bytes == SIZE


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_crowd_does_all_is_given_back_and_each_gets_its_own(seed: int) -> None:
    dice = random.Random(seed)
    crowd = Crowd(dice.choice([SIZE, 3 * SIZE, 10 * SIZE]))
    lines: list[tuple[LargeLine, bytes]] = []
    bodies: list[bytes] = []
    for _ in range(250):
        act = dice.random()
        if act < 0.2 and len(lines) < 30:
            body = dice.randbytes(1) * dice.choice([100, 70_000, SIZE])
            head = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            if dice.random() < 0.3:
                pieces = [body[at : at + 9000] for at in range(0, len(body), 9000)]
                data = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                data += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
            else:
                data = head + body
            lines.append((crowd.line(), data))
            bodies.append(body)
        elif act < 0.85 and lines:
            which = dice.randrange(len(lines))
            line, data = lines[which]
            size = dice.choice([10, 5000, 50_000, 1 << 20])
            if not line.transport.closed:
                line.send(data[:size])
            lines[which] = (line, data[size:])
        elif act < 0.9 and lines:
            which = dice.randrange(len(lines))
            lines[which][0].hang_up()
            del lines[which], bodies[which]
        else:
            crowd.second()
        for line, _ in lines:
            line.read()
        assert 0 <= crowd.bodies.used_bytes <= crowd.bodies.limit_bytes
    for (line, data), body in zip(lines, bodies, strict=True):
        for _ in range(100):
            if line.refused or not (data or line.kernel or line.transport.paused):
                break
            if not line.transport.closed:
                line.send(data)
            data = b""
            crowd.second()
            for other, _ in lines:
                other.read()
        for answer in line.answers("POST"):
            assert answer.status in (200, 408, 413, 503)
            assert answer.status != 200 or answer.body == body
    for line, _ in lines:
        line.hang_up()
    crowd.loop.turn()
    assert crowd.bodies.used_bytes == 0 and not crowd.bodies.crowded
    assert not crowd.bodies._line and not crowd.bodies._held
