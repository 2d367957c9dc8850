"""A whole server in the test's own process, asked over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from maitred.assemble import House
from maitred.settings import Address, BatchingSettings, ModelSettings, ReplicaSettings, ServerSettings

MODELS = Path(__file__).with_name("models.py")


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, body: bytes | Any = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        given = {"Host": "test", "Content-Length": str(len(body)), **(headers or {})}
        if body and "Content-Type" not in given:
            given["Content-Type"] = "application/json"
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(head.encode() + b"\r\n" + body)
        return await self._read(reader)

    async def _read(self, reader: asyncio.StreamReader) -> Reply:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.hang_up()  # as callers do: the server would wait for it, for some seconds
            self._streams = None
        return Reply(int(head[0].split()[1]), headers, body)

    def hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()


def settings(home: Path, models: Mapping[str, str], kind: Any = "process", **more: Any) -> ServerSettings:
    """A server on free ports; `models`: the name of a class in models.py by the name to serve it under."""
    replicas, rows = more.pop("replicas", 1), more.pop("max_batch_rows", 64)
    return ServerSettings(
        listen=Address("127.0.0.1", 0),
        admin_listen=Address("127.0.0.1", 0),
        home=home,
        drain_notice_seconds=0.0,
        models={
            name: ModelSettings(
                name=name,
                source=f"{MODELS}:{model}",
                replicas=ReplicaSettings(kind=kind, min=replicas, max=replicas),
                batching=BatchingSettings(max_batch_rows=rows),
            )
            for name, model in models.items()
        },
        **more,
    )


class Standing(House):
    """A house that knows its callers, to hang up for them at the end."""

    def __init__(self, given: ServerSettings) -> None:
        super().__init__(given)
        self._callers: list[Caller] = []

    def caller(self) -> Caller:
        self._callers.append(Caller(self.port))
        return self._callers[-1]

    async def leave(self) -> None:
        for caller in self._callers:
            await caller.close()


@contextlib.asynccontextmanager
async def standing(given: ServerSettings) -> AsyncIterator[Standing]:
    """The house with every model ready (or failed), taken down at the end."""
    house = Standing(given)
    await house.start()
    try:
        await asyncio.wait_for(house.settled(), 120)
        yield house
    finally:
        await house.leave()
        await house.stop(5.0)


def v2(name: str, datatype: str, rows: list[Any], width: int | None = None, **more: Any) -> dict[str, Any]:
    """A V2 body of one input: flat elements, `width` to a row."""
    shape = [len(rows)] if width is None else [len(rows) // width, width]
    return {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": rows}], **more}
