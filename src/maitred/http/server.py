"""A port that listens: starts, counts, drains and stops the connections of one socket."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from email.utils import formatdate

from maitred.clock import Clock, monotonic
from maitred.http.accepting import Accepting
from maitred.http.bodies import Bodies
from maitred.http.exchange import Application
from maitred.http.limits import SWEEP_SECONDS, Limits
from maitred.http.one import Connection
from maitred.http.port import Port, ProtocolFactory

BACKLOG = 4096


class Server:
    """One listening socket and its connections. All calls belong to the loop in which `start` ran."""

    def __init__(
        self,
        app: Application,
        limits: Limits | None = None,
        clock: Clock = monotonic,
        two: ProtocolFactory | None = None,
        refused: Callable[[int], None] | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        """`refused` is told the status of every request that the application does not get to see; `bodies` gives places
        to large ones."""
        self._refused = refused
        self._bodies = bodies
        self._app = app
        self._limits = limits or Limits()
        self._clock = clock
        self._two = two
        self._port: Port | None = None
        self._listener: asyncio.Server | Accepting | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.host = ""
        self.port = 0
        """The port number in use, once started."""

    async def start(self, host: str = "127.0.0.1", port: int = 0, listening: socket.socket | None = None) -> None:
        """Listen on the first address that `host` has, or on a socket that is bound already. Raises OSError."""
        loop = asyncio.get_running_loop()
        shared = self._new_port(loop)
        bound = listening if listening is not None else await bind(host, port)
        self._listener = await loop.create_server(lambda: Connection(shared), sock=bound, backlog=BACKLOG)
        self._started(shared, bound)

    def share(self, listening: socket.socket, ahead: Callable[[], bool]) -> Port:
        """Accept from a socket that listens already, beside other processes; see `Accepting`. Takes it over."""
        loop = asyncio.get_running_loop()
        shared = self._new_port(loop)
        self._started(shared, listening)
        self._listener = Accepting(loop, listening, lambda: Connection(shared), ahead)
        return shared

    def _new_port(self, loop: asyncio.AbstractEventLoop) -> Port:
        if self._port is not None:
            raise RuntimeError("a server is started once")
        shared = Port(self._app, self._limits, self._clock, loop, self._two, self._bodies)
        if self._refused is not None:
            shared.refused = self._refused
        return shared

    def _started(self, shared: Port, bound: socket.socket) -> None:
        self._port = shared
        self.host, self.port = bound.getsockname()[:2]
        self._tick()

    def _tick(self) -> None:
        """Once a second: the time of day for answers, and the connections whose time is up."""
        shared = self._shared()
        self._timer = shared.loop.call_later(SWEEP_SECONDS, self._tick)
        shared.set_date(formatdate(time.time(), usegmt=True))
        shared.sweep()

    def _shared(self) -> Port:
        if self._port is None:
            raise RuntimeError("the server has not been started")
        return self._port

    @property
    def url(self) -> str:
        """Where it is reached from this machine; a server on every address is reached on loopback."""
        return url_of(self.host, self.port)

    @property
    def connections(self) -> int:
        return len(self._shared().connections)

    @property
    def in_flight(self) -> int:
        """Requests read and not yet answered."""
        return self._shared().in_flight()

    def begin_drain(self) -> None:
        """From now on answers say `Connection: close`; new connections are still taken."""
        self._shared().begin_drain()

    async def stop(self, within_seconds: float = 30.0) -> int:
        """Stop listening, let running requests end, cut off the rest; how many were cut off."""
        shared = self._shared()
        self.begin_drain()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if isinstance(listener, Accepting):
            await listener.settled()
        for connection in tuple(shared.connections):
            if connection.is_idle():
                connection.close()
        await _until_empty(shared, within_seconds)
        cut = shared.in_flight()
        for connection in tuple(shared.connections):
            connection.transport.abort()
        await _until_empty(shared, 1.0)  # connection_lost comes in the next turn
        if self._timer is not None:
            self._timer.cancel()
        shared.close()
        return cut


async def _until_empty(shared: Port, within_seconds: float) -> None:
    """Wait until the last connection has closed, or the time is up."""
    if not shared.connections:
        return
    empty = asyncio.Event()
    shared.emptied = empty.set
    try:
        async with asyncio.timeout(within_seconds):  # `wait_for` may swallow a cancellation
            await empty.wait()
    except TimeoutError:
        return
    finally:
        shared.emptied = None


def url_of(host: str, port: int) -> str:
    """Where a port of this machine is reached from here."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to the first address that `host` has. Raises OSError."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = addresses[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound
