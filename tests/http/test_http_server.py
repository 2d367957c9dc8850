"""A server on real sockets: it listens, counts, refuses, drains without losing an accepted request, and stops."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable

import pytest
from http_memory import Recorder, Watch, echo, read_answers

from loops import run
from maitred.http.exchange import Exchange
from maitred.http.limits import Limits
from maitred.http.server import Server

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Caller:
    """A client socket; `answers` reads until `count` answers or the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def one(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head, await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 10)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


async def call(server: Server) -> Caller:
    return Caller(*await asyncio.open_connection(server.host, server.port))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; the suite's timeout is the bound."""
    while not condition():
        await asyncio.sleep(0.001)


def serve(
    play: Callable[[Server, Recorder], Awaitable[None]],
    answer: Callable[[Exchange], None] | None = echo,
    limits: Limits | None = None,
) -> None:
    async def main() -> None:
        app = Recorder(answer)
        server = Server(app, limits)
        await server.start()
        try:
            await asyncio.wait_for(play(server, app), 30)
        finally:
            await server.stop(0)

    run(main())


def test_it_answers_on_a_port_of_its_own_with_the_time_of_day() -> None:
    async def play(server: Server, app: Recorder) -> None:
        assert server.port > 0
        caller = await call(server)
        for number in range(3):
            await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d" % number)
            head, body = await caller.one()
            assert body == b"%d" % number
            assert b"Date: " in head
            assert b"1970" not in head
        assert server.connections == 1
        await caller.close()
        await until(lambda: server.connections == 0)

    serve(play)


def test_small_answers_are_not_delayed_by_nagle() -> None:
    async def play(server: Server, app: Recorder) -> None:
        caller = await call(server)
        await until(lambda: server.connections == 1)
        (connection,) = server._shared().connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await caller.close()

    serve(play)


def test_a_taken_port_is_an_error_of_the_system() -> None:
    async def play(server: Server, app: Recorder) -> None:
        other = Server(app)
        with pytest.raises(OSError):
            await other.start(port=server.port)
        with pytest.raises(RuntimeError):
            await server.start()

    serve(play)


def test_a_refused_upload_gets_its_answer_at_once_and_no_reset() -> None:
    async def play(server: Server, app: Recorder) -> None:
        caller = await call(server)
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n" + b"x" * 200_000)
        head, _ = await caller.one()
        assert head.startswith(b"HTTP/1.1 413")
        assert b"Connection: close" in head
        assert await caller.rest() == b""
        await caller.close()
        await until(lambda: server.connections == 0)

    serve(play)


def test_an_upload_that_goes_on_is_not_read_for_long() -> None:
    async def play(server: Server, app: Recorder) -> None:
        caller = await call(server)
        sock = caller.writer.get_extra_info("socket")
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
        caller.writer.write(b"x" * (64 << 20))
        head, _ = await caller.one()
        assert head.startswith(b"HTTP/1.1 413")
        await until(lambda: all(one._paused for one in server._shared().connections) and server.connections == 1)
        (connection,) = server._shared().connections
        assert connection._lingered <= 1 << 20
        assert sock.fileno() >= 0
        caller.writer.transport.abort()

    serve(play)


def test_large_bodies_go_both_ways_plain_and_coded() -> None:
    body = bytes(range(256)) * 40_000

    async def play(server: Server, app: Recorder) -> None:
        caller = await call(server)
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await caller.one())[1] == body
        coded = gzip.compress(body, 1)
        await caller.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(coded), coded) + GET
        )  # fmt: skip
        head, got = await caller.one()
        assert b"Content-Encoding: gzip" in head
        assert gzip.decompress(got) == body
        assert (await caller.one())[1] == b""
        await caller.close()

    serve(play)


def test_a_hang_up_reaches_the_application() -> None:
    watch = Watch()

    def keep(exchange: Exchange) -> None:
        exchange.gone = watch

    async def play(server: Server, app: Recorder) -> None:
        callers = [await call(server) for _ in range(3)]
        for caller in callers:
            await caller.send(GET)
        await until(lambda: server.in_flight == 3)
        callers[0].writer.write_eof()
        callers[1].writer.close()
        callers[2].writer.transport.abort()
        await until(lambda: watch.count == 3)
        assert server.in_flight == 0
        for exchange in app.seen:
            exchange.reply(200, b"nobody is there")
        await until(lambda: server.connections == 0)
        assert watch.count == 3
        for caller in callers:
            await caller.close()

    serve(play, keep)


def test_a_caller_who_does_not_read_holds_little_and_others_are_served() -> None:
    async def play(server: Server, app: Recorder) -> None:
        slow, quick = await call(server), await call(server)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000
        for _ in range(400):
            slow.writer.write(request)
        await until(lambda: any(connection.answers.clogged for connection in server._shared().connections))
        await quick.send(GET)
        assert (await quick.one())[1] == b""
        (clogged,) = [one for one in server._shared().connections if one.answers.clogged]
        assert clogged.transport.get_write_buffer_size() < 1 << 20
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            assert len((await slow.one())[1]) == 60_000
        for caller in (slow, quick):
            await caller.close()

    serve(play)


def test_connections_beyond_the_limit_get_a_503() -> None:
    async def play(server: Server, app: Recorder) -> None:
        first = await call(server)
        await until(lambda: server.connections == 1)
        second = await call(server)
        head, _ = await second.one()
        assert head.startswith(b"HTTP/1.1 503")
        assert await second.rest() == b""
        await second.close()
        await first.send(GET)
        assert (await first.one())[0].startswith(b"HTTP/1.1 200")
        await first.close()

    serve(play, limits=Limits(connections=1))


def test_draining_answers_all_that_was_accepted() -> None:
    async def main() -> None:
        app = Recorder()
        server = Server(app)
        await server.start()
        busy, idle, piped = [await call(server) for _ in range(3)]
        await busy.send(GET)
        await piped.send(GET * 3)
        await until(lambda: server.in_flight == 4 and server.connections == 3)
        server.begin_drain()
        late = await call(server)  # the listener is open for the grace
        await late.send(GET)
        await until(lambda: server.in_flight == 5)
        stopping = asyncio.create_task(server.stop(20))
        assert await idle.rest() == b"", "idle connections are closed at once"
        for exchange in app.seen:
            exchange.reply(200, b"done")
        for caller, count in ((busy, 1), (piped, 3), (late, 1)):
            answers = read_answers(await caller.rest())
            assert [answer.body for answer in answers] == [b"done"] * count
            assert [answer.headers.get(b"connection") for answer in answers] == [None] * (count - 1) + [b"close"]
        for caller in (busy, idle, piped, late):
            await caller.close()
        assert await stopping == 0
        with pytest.raises(OSError):
            await call(server)

    run(main())


@pytest.mark.parametrize("turns", range(6))
def test_who_stops_waiting_is_let_go_even_as_the_last_connection_closes(turns: int) -> None:
    async def main() -> None:
        server = Server(Recorder())
        await server.start()
        caller = await call(server)
        await caller.send(GET)
        await until(lambda: server.in_flight == 1)

        async def stop() -> None:
            await server.stop(20)
            await asyncio.Event().wait()  # the rest of a house that stops, which takes its time

        stopping = asyncio.create_task(stop())
        shared = server._shared()
        await until(lambda: shared.emptied is not None)
        assert shared.emptied is not None
        shared.emptied()  # as when the last connection is lost
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait({stopping}, timeout=5)
        assert stopping.cancelled()
        await caller.close()
        await server.stop(0.0)

    run(main())


def test_what_does_not_end_in_time_is_cut_off_and_told() -> None:
    async def main() -> None:
        watch = Watch()
        app = Recorder()
        server = Server(app)
        await server.start()
        caller = await call(server)
        await caller.send(GET * 2)
        await until(lambda: server.in_flight == 2)
        for exchange in app.seen:
            exchange.gone = watch
        assert await server.stop(0.05) == 2
        assert watch.count == 2
        assert server.connections == 0
        await caller.close()

    run(main())


def test_two_servers_fit_in_one_process() -> None:
    async def play(server: Server, app: Recorder) -> None:
        other_app = Recorder(lambda exchange: exchange.reply(200, b"other"))
        other = Server(other_app)
        await other.start()
        caller = await call(other)
        await caller.send(GET)
        assert (await caller.one())[1] == b"other"
        await caller.close()
        assert app.seen == []
        await other.stop(1)

    serve(play)


def test_a_listener_that_was_opened_elsewhere_is_taken_over() -> None:
    async def main() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        server = Server(Recorder(echo))
        await server.start(listening=bound)
        assert server.port == bound.getsockname()[1]
        caller = await call(server)
        await caller.send(GET)
        assert (await caller.one())[0].startswith(b"HTTP/1.1 200")
        await caller.close()
        await server.stop(1)

    run(main())


def test_a_thousand_silent_connections_do_not_delay_others() -> None:
    """A tier-P share of slow-loris: 300 connections with a byte of a head each; time has tests of its own."""

    async def play(server: Server, app: Recorder) -> None:
        slow = [await call(server) for _ in range(300)]
        for caller in slow:
            await caller.send(b"G")
        caller = await call(server)
        for _ in range(200):
            await caller.send(GET)
            assert (await caller.one())[0].startswith(b"HTTP/1.1 200")
        assert server.connections == 301
        for one in [*slow, caller]:
            await one.close()

    serve(play)


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8080, "http://127.0.0.1:8080"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::", 80, "http://[::1]:80"),
        ("fe80::1", 80, "http://[fe80::1]:80"),
    ],
)
def test_its_url_can_be_asked_from_this_machine(host: str, port: int, url: str) -> None:
    server = Server(Recorder())
    server.host, server.port = host, port
    assert server.url == url
