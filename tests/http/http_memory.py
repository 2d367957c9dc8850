"""A connection without a socket: its transport, its loop and its clock are in the test's hands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import h11

from maitred.clock import ManualClock
from maitred.http.exchange import Exchange
from maitred.http.limits import Limits
from maitred.http.one import Connection
from maitred.http.port import Port


class Transport:
    """Keeps what is written; `unsent` plays a caller who does not read."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = self.aborted = self.ended = self.paused = False
        self.unsent = 0
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        assert not self.ended, "written after the end"
        if not self.aborted:
            self.writes.append(bytes(data))

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    @property
    def sent(self) -> bytes:
        return b"".join(self.writes)


class Loop:
    """Callbacks run when `turn` is called; threads' work is done at once."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def run_in_executor(self, executor: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        future: Future[Any] = Future()
        try:
            result = call(*arguments)
        except Exception as error:
            self.call_soon(future.set_exception, error)
        else:
            self.call_soon(future.set_result, result)
        return future

    def turn(self) -> None:
        while self.soon:
            callback, arguments = self.soon.popleft()
            callback(*arguments)


class Recorder:
    """An application that keeps exchanges; `answer`, if given, replies to each at once."""

    def __init__(self, answer: Callable[[Exchange], None] | None = None) -> None:
        self.seen: list[Exchange] = []
        self.answer = answer

    def exchange(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if self.answer is not None:
            self.answer(exchange)


class Watch:
    """Counts hang-ups."""

    def __init__(self) -> None:
        self.count = 0

    def gone(self) -> None:
        self.count += 1


def echo(exchange: Exchange) -> None:
    """Replies with the body, at once."""
    exchange.reply(200, bytes(exchange.body))


class Line:
    """One connection with all its surroundings."""

    def __init__(
        self, answer: Callable[[Exchange], None] | None = echo, limits: Limits | None = None, port: Port | None = None
    ) -> None:
        self.app = Recorder(answer)
        if port is None:
            port = Port(self.app, limits or Limits(), ManualClock(), Loop())  # type: ignore[arg-type]
        self.port = port
        self.clock: ManualClock = port.clock  # type: ignore[assignment]
        self.loop: Loop = port.loop  # type: ignore[assignment]
        self.transport = Transport()
        self.connection = Connection(self.port)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, *pieces: bytes) -> Line:
        """Have the pieces read, one after the other, with a turn of the loop after each."""
        for piece in pieces:
            if not self.transport.closed:
                self.connection.data_received(piece)
                self.loop.turn()
        return self

    def send_together(self, *pieces: bytes) -> Line:
        """Have the pieces read within one turn."""
        for piece in pieces:
            self.connection.data_received(piece)
        self.loop.turn()
        return self

    def hang_up(self) -> Line:
        self.connection.eof_received()
        self.connection.connection_lost(None)
        self.loop.turn()
        return self

    def sweep_after(self, seconds: float) -> Line:
        """Let time pass with a sweep each second."""
        for _ in range(round(seconds)):
            if self.transport.closed:
                break
            self.clock.advance(1)
            self.port.sweep()
            self.loop.turn()
        return self

    @property
    def refused(self) -> bool:
        """Whether the connection takes no more requests."""
        return self.transport.ended or self.transport.closed

    def answers(self, *methods: str) -> list[Answer]:
        return read_answers(self.transport.sent, *methods)


class Answer:
    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def read_answers(data: bytes, *methods: str) -> list[Answer]:
    """Take answers apart with h11; `methods` of the requests, where one is not GET. Raises where they are not valid."""
    answers: list[Answer] = []
    at = 0
    while data:
        client = h11.Connection(h11.CLIENT)
        method = methods[at] if at < len(methods) else "GET"
        client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        event = client.next_event()
        while isinstance(event, h11.InformationalResponse):
            answers.append(Answer(event.status_code, dict(event.headers), b""))
            event = client.next_event()
        if event is h11.NEED_DATA and answers and answers[-1].status == 100:
            return answers
        assert isinstance(event, h11.Response), event
        body = b""
        while (piece := client.next_event()) is h11.NEED_DATA or isinstance(piece, h11.Data):
            if isinstance(piece, h11.Data):
                body += bytes(piece.data)
            else:
                client.receive_data(b"")  # the end of the connection may be the end of the answer
        assert isinstance(piece, h11.EndOfMessage), piece
        answers.append(Answer(event.status_code, dict(event.headers), body))
        data = client.trailing_data[0]
        at += 1
    return answers


def outcome(line: Line, data: bytes) -> object:
    """All that some bytes bring about: what the application sees, what is sent, and the state that is left."""
    before = len(line.app.seen)
    sent = len(line.transport.sent)
    line.connection.data_received(data)
    line.loop.turn()
    seen = [
        (x.method, x.path, x.query, x.headers, bytes(x.body), x.keep, x.choice)  # type: ignore[attr-defined]
        for x in line.app.seen[before:]
    ]
    return seen, line.transport.sent[sent:], line.refused, line.connection._mid
