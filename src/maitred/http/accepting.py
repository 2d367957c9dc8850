"""Accepts connections from a socket that several processes share: one a turn of the loop, so that all get some."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from maitred.http.port import LOG

PAUSE_SECONDS: Final = 0.002
"""How long a process that has far more than its share leaves the next connection to the others."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_EXHAUSTED_SECONDS: Final = 1.0


class Accepting:
    """The listening end of one process. What it does not take stays in the socket's backlog, for the others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        ahead: Callable[[], bool],
    ) -> None:
        """`ahead`: whether this process has far more connections than another."""
        self._loop = loop
        self._listening = listening
        self._protocol = protocol
        self._ahead = ahead
        self._paused: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()
        self._closed = False
        listening.setblocking(False)
        self._watch()

    def _watch(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._readable)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._paused = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """Take what nobody else has taken meanwhile, one connection of it, and watch again."""
        self._paused = None
        self._watch()
        self._take()

    def _readable(self) -> None:
        if self._ahead():
            self._pause(PAUSE_SECONDS)  # whoever else is idle has it by then
        else:
            self._take()

    def _take(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another was quicker, or it has gone
            return
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise
            LOG.error("no connection can be accepted now: %s", error.strerror)
            self._pause(_EXHAUSTED_SECONDS)
            return
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # it has gone already
            connection.close()

    async def settled(self) -> None:
        """Wait until every connection that was accepted is open, or has gone."""
        if self._opening:
            await asyncio.wait(self._opening)

    def close(self) -> None:
        """Accept no more. The socket itself stays open for the other processes that have it."""
        if self._closed:
            return
        self._closed = True
        if self._paused is not None:
            self._paused.cancel()
        else:
            self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
