"""Runs an ASGI application on a second event loop in a second thread, so that nothing in it can hold up the first."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from maitred.http.exchange import Exchange, error_body
from maitred.http.limits import WAIT_A_MOMENT
from maitred.http.port import LOG

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Any, Receive, Send], Awaitable[None]]

_MOST_CALLS: Final = 256
_OURS: Final = frozenset((b"content-length", b"content-type", b"transfer-encoding", b"connection", b"date"))
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")


class Aside:
    """An `Application` that is an ASGI app, asked for `http` only: it gets no lifespan events and no websockets.

    All calls belong to one loop, the first to call `exchange`; the thread starts with that call.
    """

    def __init__(self, app: ASGIApp, most_calls: int = _MOST_CALLS) -> None:
        self._app = app
        self._most_calls = most_calls
        """More calls at once are refused: a blocked app must not pile up requests."""
        self._calls: set[_Call] = set()
        self._main: asyncio.AbstractEventLoop | None = None
        self._second: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._closed = False

    def exchange(self, exchange: Exchange) -> None:
        if self._closed:
            exchange.reply(503, error_body("the server is shutting down; try again"), extra=WAIT_A_MOMENT)
            return
        if len(self._calls) >= self._most_calls:
            body = error_body("too many requests wait for this page; try again shortly")
            exchange.reply(503, body, extra=WAIT_A_MOMENT)
            return
        main, second = self._loops()
        call = _Call(exchange, self._app, main, second, self._calls.discard)
        self._calls.add(call)
        exchange.gone = call
        second.call_soon_threadsafe(call.begin)

    def _loops(self) -> tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]:
        if self._main is None or self._second is None:
            self._main = asyncio.get_running_loop()
            self._second = asyncio.new_event_loop()
            self._ended = asyncio.Event()
            threading.Thread(target=self._run, name="maitred-aside", daemon=True).start()
        return self._main, self._second

    def _run(self) -> None:
        """The second thread."""
        assert self._main is not None and self._second is not None and self._ended is not None
        second = self._second
        asyncio.set_event_loop(second)
        try:
            second.run_forever()
            second.run_until_complete(second.shutdown_asyncgens())
        finally:
            second.close()
            _post(self._main, self._ended.set)

    async def close(self, within_seconds: float = 5.0) -> bool:
        """Cancel what runs, end the thread; False if the app would not let go of it in time."""
        self._closed = True
        if self._main is None or self._second is None or self._ended is None:
            return True
        _post(self._second, self._cancel_all)
        try:
            async with asyncio.timeout(within_seconds):  # `wait_for` may swallow a cancellation
                await self._ended.wait()
        except TimeoutError:
            LOG.warning("an ASGI application blocks its thread and was left behind")
            return False
        return True

    def _cancel_all(self) -> None:
        """On the second loop: stop it once every task has taken its cancellation."""
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.call_soon(self._cancel_all)
        else:
            loop.stop()


class _Call:
    """One exchange with the app. Methods say on which of the two loops they run."""

    __slots__ = (
        "_exchange", "_app", "_main", "_second", "_done", "_task", "_received", "_left", "_head", "_streams",
        "_complete",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        app: ASGIApp,
        main: asyncio.AbstractEventLoop,
        second: asyncio.AbstractEventLoop,
        done: Callable[[_Call], None],
    ) -> None:
        self._exchange = exchange
        self._app = app
        self._main = main
        self._second = second
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._received = False
        self._left = False
        self._head: tuple[int, bytes, bytes] | None = None
        self._streams = False
        self._complete = False

    def gone(self) -> None:
        """Main loop: the caller has left."""
        self._done(self)
        _post(self._second, self._cancel)

    def _cancel(self) -> None:
        self._left = True
        if self._task is not None:
            self._task.cancel()

    def begin(self) -> None:
        """Second loop."""
        if not self._left:
            self._task = self._second.create_task(self._play())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Second loop."""
        self._task = None
        if task.cancelled():  # because the caller has left, or for the end of the server
            self._tell(self._failed)

    async def _play(self) -> None:
        try:
            await self._app(_scope(self._exchange), self._receive, self._send)
            if not self._complete:
                raise RuntimeError("the ASGI application returned without a complete response")
        except Exception:
            exchange = self._exchange
            LOG.exception("an ASGI application raised on %s %s", exchange.method, ascii(exchange.path)[2:-1])
            self._tell(self._failed)

    async def _receive(self) -> Message:
        if not self._received:
            self._received = True
            return {"type": "http.request", "body": bytes(self._exchange.body), "more_body": False}
        await self._second.create_future()  # until the caller leaves, which cancels this task
        raise AssertionError("unreachable")

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._head is not None:
                raise RuntimeError("http.response.start was sent twice")
            self._head = _head(int(message["status"]), message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._send_body(bytes(message.get("body", b"")), bool(message.get("more_body", False)))
        else:
            raise RuntimeError(f"{message['type']} is not spoken here")

    async def _send_body(self, body: bytes, more: bool) -> None:
        if self._head is None or self._complete:
            raise RuntimeError("http.response.body belongs between http.response.start and its last piece")
        if not more and not self._streams:
            self._complete = True
            self._tell(self._reply, body)
            return
        if not self._streams:
            self._streams = True
            self._tell(self._start)
        if body:
            room = self._second.create_future()
            self._tell(self._write, body, room)
            await room
        if not more:
            self._complete = True
            self._tell(self._end)

    def _tell(self, method: Callable[..., None], *arguments: object) -> None:
        """Second loop: have a method run on the main loop."""
        _post(self._main, method, *arguments)

    # ---- main loop

    def _reply(self, body: bytes) -> None:
        self._done(self)
        assert self._head is not None
        self._exchange.reply(self._head[0], body, self._head[1], self._head[2])

    def _start(self) -> None:
        assert self._head is not None
        self._exchange.start(*self._head)

    def _write(self, piece: bytes, room: asyncio.Future[None]) -> None:
        def drained() -> None:
            _post(self._second, _settle, room)

        if self._exchange.write(piece):
            drained()
        else:
            self._exchange.on_drain = drained

    def _end(self) -> None:
        self._done(self)
        self._exchange.end()

    def _failed(self) -> None:
        """The app will not finish: a 500 if nothing has been said yet, else a broken connection."""
        self._done(self)
        if self._streams:
            self._exchange.abort()
        elif not self._complete:
            self._exchange.reply(500, error_body("this page failed; report it to whoever runs this server"))


def _settle(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object) -> None:
    """Have `callback` run on another thread's loop, if that loop still runs."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        LOG.debug("a loop had ended before the other was done with it")


def _scope(exchange: Exchange) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": exchange.method,
        "scheme": "http",
        "path": unquote_to_bytes(exchange.path).decode("utf-8", "replace"),
        "raw_path": exchange.path,
        "query_string": exchange.query,
        "root_path": "",
        "headers": list(exchange.headers),
        "client": None,
        "server": None,
    }


def _head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, bytes, bytes]:
    """Status, content type and the other header lines of an app's response. Raises ValueError for forged headers."""
    if not 200 <= status <= 599:
        raise ValueError("an ASGI application gave a status outside 200-599")
    content_type, lines = b"", []
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("an ASGI application gave a header with bytes that headers cannot hold")
        lower = name.lower()
        if lower == b"content-type":
            content_type = value
        elif lower not in _OURS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return status, content_type, b"".join(lines)
