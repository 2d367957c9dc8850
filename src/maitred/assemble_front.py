"""Builds a front, in a process of its own, from what the core says: sockets, HTTP and the gateway, and no model."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import sys
from typing import Final, cast

from maitred import host
from maitred.assemble import METRICS_SECONDS
from maitred.deployment.router import Router, Served, State
from maitred.gateway import hop
from maitred.gateway.apart import Apart
from maitred.gateway.bodies import Bodies
from maitred.gateway.front import Front, Remote
from maitred.gateway.rest import Rest
from maitred.gateway.settings import GatewaySettings
from maitred.gateway.site import site
from maitred.http.aside import Aside
from maitred.http.port import Port
from maitred.http.server import Server
from maitred.logline import take_over
from maitred.loop import run
from maitred.model.description import Description
from maitred.replica.frames import FrameReader

_LEAVE_SECONDS: Final = 1.0
"""How long answers may take to go out after the core has gone."""
_SPARE: Final = 8
"""Connections that a front may have more than another, besides an eighth, before it leaves the next one to others."""


def main(arguments: list[str]) -> int:
    """Arguments: the pipe to read, the pipe to write, the socket for segments, the listening socket, the core."""
    reading, writing, control, listening, parent = map(int, arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the core decides when this ends
    host.outlive_parent(parent, 2 * _LEAVE_SECONDS)
    reader = FrameReader(reading)
    hello = _hello(reader, reading)
    if hello is None:
        return 1
    take_over(hello.log)

    async def live() -> int:
        house = FrontHouse(hello, reader, writing, socket.socket(fileno=control))
        return await house.live(socket.socket(fileno=listening))

    return run(live())


def _hello(reader: FrameReader, reading: int) -> hop.Hello | None:
    """The core's first words; None if it has gone before."""
    while not reader.ended:
        select.select([reading], [], [])
        reader.fill()
        if (view := reader.frame()) is not None:
            return hop.read_hello(view)
    return None


class FrontHouse:
    """What stands on a front's loop: the hop, the router's copy, the data port."""

    def __init__(self, hello: hop.Hello, reader: FrameReader, writing: int, control: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._front = Front(reader, writing, control, self._loop)
        self._router = Router()
        self._served: dict[int, Served] = {}
        self._described: dict[int, bytes | None] = {}
        self._show(hello.snapshot)
        self._front.shown(hello.snapshot.number)
        self._pages = Aside(site(self._router, self._metrics if hello.metrics else None))
        gateway = GatewaySettings(deadlines=hello.deadlines, repository_control=hello.repository_control)
        self._apart = Apart()
        rest = Rest(self._router, gateway, self._pages, listener=self._front.listen, apart=self._apart)
        bodies = Bodies(self._router, hello.inflight_bytes, self._loop)
        self._server = Server(rest, hello.limits, refused=self._front.http_refused, bodies=bodies)
        self._port: Port | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def live(self, listening: socket.socket) -> int:
        """Serve until the core says that it is over, or has gone; the exit code."""
        front = self._front
        front.ended = self._over.set
        front.heard = self._heard
        front.in_flight = lambda: self._server.in_flight
        self._port = self._server.share(listening, self._ahead)
        self._port.counted = front.connected
        if self._router.draining:
            self._server.begin_drain()
        front.ready()
        await self._over.wait()
        alone = self._stopping is None  # nobody has said that this would come
        if self._stopping is not None:
            self._stopping.cancel()
        await self._server.stop(_LEAVE_SECONDS if alone else 0.0)
        self._apart.close()
        await self._pages.close(_LEAVE_SECONDS)
        front.close()
        return 1 if alone else 0

    def _ahead(self) -> bool:
        """Whether this front has far more connections than the one that has fewest."""
        least = self._front.least
        return self._server.connections > least + _SPARE + least // 8

    def _heard(self, frame: hop.FromCore) -> None:
        if self._port is not None:
            self._port.elsewhere = frame.elsewhere
        if frame.snapshot is not None:
            self._show(frame.snapshot)
        if frame.stop >= 0.0:
            if self._stopping is not None:
                self._stopping.cancel()
            self._stopping = self._loop.create_task(self._stop(frame.stop))

    async def _stop(self, seconds: float) -> None:
        self._front.left(await self._server.stop(seconds))

    def _show(self, snapshot: hop.Snapshot) -> None:
        """Make the router's copy what the core's router is."""
        router = self._router
        names: dict[str, Served] = {}
        for told in snapshot.models:
            served = self._served.get(told.number)
            if served is None:
                served = self._served[told.number] = Served(told.name, told.version)
                served.endpoint = Remote(told.number, told.name, told.version, self._front)
            description = None
            if told.description is not None and self._described.get(told.number) != told.description:
                self._described[told.number] = told.description
                description = Description.decode(told.description)
                cast("Remote", served.endpoint).forget()
            served.place = told.place
            served.changed(cast("State", told.state), told.reason, description)
            names[told.name] = served
        if names != router.names:
            router.swap(names)
        router.draining = snapshot.draining
        if router.draining and self._port is not None:
            self._server.begin_drain()

    def _metrics(self) -> str:
        """Called on the pages' thread."""
        return asyncio.run_coroutine_threadsafe(self._front.page(), self._loop).result(METRICS_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
