"""The second loop: Starlette's answers, streams, hang-ups, failures, and handlers that block."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import h11
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from loops import run
from maitred.http.aside import Aside
from maitred.http.exchange import Exchange
from maitred.http.server import Server

PIECES = 150


class Fork:
    """`/quick` on the main loop, all else aside."""

    def __init__(self, aside: Aside) -> None:
        self.aside = aside

    def exchange(self, exchange: Exchange) -> None:
        if exchange.path == b"/quick":
            exchange.reply(200, b"quick")
        else:
            self.aside.exchange(exchange)


async def ask(
    port: int, target: bytes, method: bytes = b"GET", body: bytes = b""
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request on a connection of its own; status 0 where the answer is not whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (method, target, len(body), body))
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target=target, headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    status, headers, got = 0, {}, bytearray()
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status, headers = event.status_code, dict(event.headers)
            elif isinstance(event, h11.Data):
                got += event.data
            else:
                client.receive_data(await reader.read(65_536))
    except h11.RemoteProtocolError:
        status = 0
    writer.close()
    await writer.wait_closed()
    return status, headers, bytes(got)


def served(app: Any, play: Callable[[Server, Aside], Any], most_calls: int = 256) -> None:
    async def main() -> None:
        aside = Aside(app, most_calls)
        server = Server(Fork(aside))
        await server.start()
        try:
            await asyncio.wait_for(play(server, aside), 20)
        finally:
            await server.stop(1)
            assert await aside.close()

    run(main())
    gc.collect()


def test_requests_and_responses_cross_whole() -> None:
    seen: list[Any] = []

    async def echo(request: Request) -> Response:
        body = await request.body()
        seen.append(
            (request.method, request.url.path, request.scope["raw_path"], request.url.query, threading.get_ident())
        )
        return JSONResponse({"got": body.decode()}, 201, {"X-A": "b", "Set-Cookie": "c=d"})

    async def play(server: Server, aside: Aside) -> None:
        status, headers, body = await ask(server.port, b"/a%20b/caf%C3%A9?q=1", b"POST", b"hello")
        assert (status, body) == (201, b'{"got":"hello"}')
        assert headers[b"content-type"] == b"application/json"
        assert headers[b"content-length"] == b"15"
        assert headers[b"x-a"] == b"b"
        method, path, raw, query, thread = seen[0]
        assert (method, path, raw, query) == ("POST", "/a b/café", b"/a%20b/caf%C3%A9", "q=1")
        assert thread != threading.get_ident()
        assert (await ask(server.port, b"/quick"))[2] == b"quick"

    served(Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])]), play)


def test_head_404_and_405_are_as_the_app_gives_them() -> None:
    async def page(request: Request) -> Response:
        return PlainTextResponse("hello")

    async def play(server: Server, aside: Aside) -> None:
        status, headers, body = await ask(server.port, b"/page", b"HEAD")
        assert (status, headers[b"content-length"], body) == (200, b"5", b"")
        assert (await ask(server.port, b"/none"))[0] == 404
        status, headers, _ = await ask(server.port, b"/page", b"DELETE")
        assert status == 405
        assert b"GET" in headers[b"allow"]

    served(Starlette(routes=[Route("/page", page)]), play)


def test_a_stream_crosses_piece_by_piece_at_the_callers_pace() -> None:
    made: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(PIECES):
            made.append(number)
            yield b"%08d" % number * 8192

    async def stream(request: Request) -> Response:
        return StreamingResponse(pieces(), media_type="text/plain")

    async def play(server: Server, aside: Aside) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=65_536)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        while not any(one.answers.clogged for one in server._shared().connections):
            await asyncio.sleep(0.001)
        for _ in range(10):  # nobody reads: the app comes to a stop
            held = len(made)
            await ask(server.port, b"/quick")
        assert held == len(made) < PIECES
        writer.close()
        status, headers, body = await ask(server.port, b"/stream")
        assert status == 200
        assert b"content-length" not in headers
        assert body == b"".join(b"%08d" % number * 8192 for number in range(PIECES))

    served(Starlette(routes=[Route("/stream", stream)]), play)


def test_a_hang_up_cancels_the_app() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        started.set()
        try:
            await receive()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def play(server: Server, aside: Aside) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.to_thread(started.wait, 10)
        writer.close()
        assert await asyncio.to_thread(cancelled.wait, 10)
        assert aside._calls == set()

    served(app, play)


def test_a_handler_that_blocks_does_not_hold_up_the_main_loop() -> None:
    entered, release = threading.Event(), threading.Event()

    async def block(request: Request) -> Response:
        entered.set()
        release.wait(20)
        return PlainTextResponse("at last")

    async def play(server: Server, aside: Aside) -> None:
        blocked = [asyncio.create_task(ask(server.port, b"/block")) for _ in range(4)]
        assert await asyncio.to_thread(entered.wait, 10)
        for _ in range(20):
            assert (await asyncio.wait_for(ask(server.port, b"/quick"), 5))[2] == b"quick"
        refused = [(await ask(server.port, b"/block"))[0] for _ in range(2)]
        assert refused == [503, 503], "what waits is bounded"
        release.set()
        assert [answer[2] for answer in await asyncio.gather(*blocked)] == [b"at last"] * 4

    served(Starlette(routes=[Route("/block", block)]), play, most_calls=4)


async def raises(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("secret\npath")


async def returns_nothing(scope: Any, receive: Any, send: Any) -> None:
    return


async def forges(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nSet-Cookie: b")]})
    await send({"type": "http.response.body"})


async def body_first(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"x"})


async def starts_twice(scope: Any, receive: Any, send: Any) -> None:
    for _ in range(2):
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})


async def odd_status(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 99, "headers": []})


@pytest.mark.parametrize("app", [raises, returns_nothing, forges, body_first, starts_twice, websocket, odd_status])
def test_an_app_that_fails_is_a_500_without_a_trace_and_one_record(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def play(server: Server, aside: Aside) -> None:
        status, headers, body = await ask(server.port, b"/a%0ab")
        assert status == 500
        assert b"secret" not in body
        assert b"Traceback" not in body
        assert b'"error"' in body
        assert b"set-cookie" not in headers

    served(app, play)
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 1
    assert "\n" not in records[0].getMessage()


def test_an_app_that_fails_halfway_breaks_the_answer_off() -> None:
    async def halfway(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError

    async def play(server: Server, aside: Aside) -> None:
        assert (await ask(server.port, b"/"))[0] == 0

    served(halfway, play)


def test_closing_cancels_what_runs_and_refuses_what_comes() -> None:
    async def forever(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def play(server: Server, aside: Aside) -> None:
        running = asyncio.create_task(ask(server.port, b"/"))
        while not aside._calls:
            await asyncio.sleep(0.001)
        assert await aside.close()
        assert (await running)[0] == 500
        assert (await ask(server.port, b"/"))[0] == 503

    served(forever, play)


def test_an_app_that_will_not_let_go_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    entered, release = threading.Event(), threading.Event()

    async def block(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        release.wait(20)

    async def main() -> None:
        aside = Aside(block)
        server = Server(aside)
        await server.start()
        running = asyncio.create_task(ask(server.port, b"/"))
        assert await asyncio.to_thread(entered.wait, 10)
        assert not await aside.close(0.05)
        release.set()
        assert await aside.close()
        assert (await running)[0] == 500
        await server.stop(1)

    run(main())
    assert "left behind" in caplog.text


def test_closing_an_aside_that_was_never_used_is_nothing() -> None:
    assert run(Aside(raises).close())
