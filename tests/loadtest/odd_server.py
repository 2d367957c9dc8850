"""A server in the test's own loop that behaves as it is told: right, slow, silent, or wrong in some way."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

Behave = Callable[["Odd", bytes, asyncio.StreamWriter], Awaitable[None]]


class Odd:
    """What it was asked, and on how many connections."""

    def __init__(self, behave: Behave) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        self.connections = 0
        self.now = 0
        self.most_at_once = 0
        self._behave = behave

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.asked.append(head + body)
                self.now += 1
                self.most_at_once = max(self.most_at_once, self.now)
                try:
                    await self._behave(self, body, writer)
                    await writer.drain()
                finally:
                    self.now -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the tester has left
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def odd(behave: Behave) -> AsyncIterator[Odd]:
    """The server, on a free port of loopback."""
    made = Odd(behave)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await made.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def says(*pieces: bytes, close: bool = False) -> Behave:
    """One that writes these pieces to whatever it is asked."""

    async def behave(odd: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return behave
