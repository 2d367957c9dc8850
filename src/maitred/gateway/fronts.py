"""Starts, watches and replaces the fronts: the processes that own the data port's connections, beside this one core."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import maitred
from maitred import host
from maitred.clock import Clock, monotonic
from maitred.deployment.router import Router, Served
from maitred.events import Event, Listener, RequestEnded
from maitred.gateway import hop
from maitred.gateway.answers import log
from maitred.gateway.core import UNSETTLED, CoreModel, Link
from maitred.gateway.settings import GatewaySettings
from maitred.http.limits import Limits
from maitred.http.server import BACKLOG, bind, url_of
from maitred.logline import style_in_use
from maitred.replica.frames import BUFFER_BYTES

_PING_SECONDS: Final = 1.0
_EOF_SECONDS: Final = 1.0
"""A front that has closed its pipe and not ended after this time is killed."""
_BARRIER_SECONDS: Final = 0.25
"""How long a page of metrics waits for fronts to say what they have counted."""


@dataclass(frozen=True, slots=True)
class FrontsSettings:
    """How many fronts there are, and when one is given up."""

    count: int
    inflight_bytes: int
    """What the large bodies of all of them may take at once; each has its part."""
    start_seconds: float = 60.0
    """How long a front may take until it accepts connections."""
    silent_pings: int = 5
    """A front that leaves so many pings in a row, one a second, without an answer is killed."""
    restart_seconds: float = 0.1
    """Wait before a lost front is replaced; doubled each time its successor does not last."""
    max_restart_seconds: float = 10.0
    lasting_seconds: float = 10.0
    """A front that served for so long was a good one."""
    exit_seconds: float = 2.0
    """How long a front may take to exit once it is told to, before it is killed."""
    module: str = "maitred.assemble_front"


class FrontLost(Exception):
    """A front did not come up. The message says how it ended."""


class _Seat:
    """A front's place, which outlives the processes that sit in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: Link | None = None
        self.watch: host.ChildWatch | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.owned = contextlib.ExitStack()
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.gone.set()
        self.reason = ""
        """Why it was killed, if it was."""
        self.ended = ""
        """How its last process ended."""
        self.pinged = 0
        self.pause = 0.0
        self.started_at = 0.0
        self.timers: list[asyncio.TimerHandle] = []


class Fronts:
    """All fronts of a house, in the place of the `Server` that a house without them has. Belongs to one event loop,
    which must run in the thread that starts it."""

    def __init__(
        self,
        settings: FrontsSettings,
        router: Router,
        gateway: GatewaySettings,
        limits: Limits,
        page: Callable[[], str] | None,
        listener: Listener,
        refused: Callable[[int, int], None],
        clock: Clock = monotonic,
    ) -> None:
        """`page` writes the metrics; None where they are not for this port.

        `listener` hears what fronts have refused; `refused`, what HTTP has: a status and how many.
        """
        self._settings = settings
        self._router = router
        self._models = {
            number: CoreModel(number, served, partial(_here, served))
            for number, served in enumerate(router.names.values(), 1)
        }
        self._gateway = gateway
        self._limits = limits
        self._page = page
        self._listener = listener
        self._refused = refused
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._seats = [_Seat(number) for number in range(1, settings.count + 1)]
        self._listening: socket.socket | None = None
        self._snapshots = 0
        self._pings = 0
        self._pinging: asyncio.TimerHandle | None = None
        self._asked: list[tuple[Link, int]] = []
        """Asks for the page of metrics that wait for what the fronts have counted."""
        self._barrier: tuple[int, asyncio.TimerHandle] | None = None
        self._closing = False
        self._stopping: float | None = None
        self._came: asyncio.Event = asyncio.Event()
        """Set with every frame that tells of a front's state, for those who wait for one."""
        self.host = ""
        self.port = 0
        """The port number in use, once started."""
        self.restarts = 0

    # ------------------------------------------------------------------ what a server offers

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)

    @property
    def connections(self) -> int:
        return sum(link.connections for link in self._links())

    @property
    def in_flight(self) -> int:
        """Requests that fronts had read and not answered, when they last spoke."""
        return sum(link.in_flight for link in self._links())

    def counts(self) -> list[int]:
        """Connections of each front."""
        return [link.connections for link in self._links()]

    def pids(self) -> list[int]:
        """The fronts' processes."""
        return [seat.process.pid for seat in self._seats if seat.process is not None]

    async def start(self, host: str, port: int) -> None:
        """Listen, and begin to start the fronts: `up` waits for them. Raises OSError."""
        bound = await bind(host, port)
        bound.listen(BACKLOG)
        self._listening = bound
        self.host, self.port = bound.getsockname()[:2]
        for seat in self._seats:
            self._spawn(seat)
        self._pinging = self._loop.call_later(_PING_SECONDS, self._ping)

    async def up(self) -> None:
        """Wait until every front accepts connections. Raises FrontLost where one does not come up."""
        waits = [asyncio.ensure_future(event.wait()) for seat in self._seats for event in (seat.ready, seat.gone)]
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                while not all(seat.ready.is_set() for seat in self._seats):
                    lost = next((seat for seat in self._seats if seat.ended), None)
                    if lost is not None:
                        raise FrontLost(f"a front did not start: {lost.ended}")
                    pending = [wait for wait in waits if not wait.done()]
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise FrontLost(f"a front did not start within {self._settings.start_seconds:g} s") from None
        finally:
            for wait in waits:
                wait.cancel()

    def changed(self) -> None:
        """Something of the router's has become something else: show the fronts."""
        snapshot = self._snapshot()
        for link in self._links():
            link.show(snapshot)

    async def shown(self, within_seconds: float = 1.0) -> None:
        """Wait until every front shows the newest state, or the time is up."""
        await self._until(
            lambda: all(link.seen >= self._snapshots for link in self._links() if link.ready), within_seconds
        )

    async def _until(self, what: Callable[[], bool], within_seconds: float) -> None:
        """Wait until the fronts have said enough for this, or the time is up."""
        try:
            async with asyncio.timeout(within_seconds):  # `wait_for` may swallow a cancellation
                while not what():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return

    def begin_drain(self) -> None:
        """From now on answers say `Connection: close`; new connections are still taken."""
        self.changed()

    async def stop(self, within_seconds: float = 30.0) -> int:
        """Have the fronts stop accepting, and answer what they have; how many requests were cut off."""
        self._stopping = within_seconds
        for link in self._links():
            link.left = -1
            link.stop(within_seconds)
        await self._until(
            lambda: all(link.left >= 0 for link in self._links() if link.ready),
            within_seconds + self._settings.exit_seconds,
        )
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        return sum(max(0, link.left) for link in self._links())

    async def close(self) -> None:
        """Have the fronts exit, and kill those that do not."""
        self._closing = True
        for handle in (self._pinging, self._barrier[1] if self._barrier else None):
            if handle is not None:
                handle.cancel()
        for seat in self._seats:
            for timer in seat.timers:
                timer.cancel()
            if seat.link is not None:
                seat.owned.close()  # the end of its pipe is what tells it
        try:
            async with asyncio.timeout(self._settings.exit_seconds):  # `wait_for` may swallow a cancellation
                await self._all_gone()
        except TimeoutError:
            for seat in self._seats:
                if seat.watch is not None:
                    seat.watch.kill(signal.SIGKILL)
            await self._all_gone()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _all_gone(self) -> None:
        for seat in self._seats:
            await seat.gone.wait()

    def standing(self) -> float:
        """How many fronts accept connections."""
        return float(sum(link.ready for link in self._links()))

    # ------------------------------------------------------------------ one front

    def _links(self) -> list[Link]:
        return [seat.link for seat in self._seats if seat.link is not None]

    def _snapshot(self) -> hop.Snapshot:
        self._snapshots += 1
        told = [model.told() for model in self._models.values()]
        return hop.Snapshot(self._snapshots, told, self._router.draining)

    def _spawn(self, seat: _Seat) -> None:
        if self._closing or self._listening is None:
            return
        try:
            self._start(seat)
        except OSError as error:
            seat.ended = f"it could not be started ({error.strerror})"
            seat.owned.close()
            seat.gone.set()
            self._again(seat)

    def _start(self, seat: _Seat) -> None:
        """Raises OSError."""
        assert self._listening is not None
        seat.owned = owned = contextlib.ExitStack()
        with contextlib.ExitStack() as childs:
            reading, writing, control, theirs = _channels(owned, childs)
            theirs = (*theirs, self._listening.fileno())
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._settings.module, *map(str, (*theirs, os.getpid()))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=theirs,
                env=_environment(),
                start_new_session=True,
            )
        try:
            seat.watch = host.watch_child(self._loop, process.pid, lambda code: self._exited(seat, code))
        except OSError:
            process.kill()
            process.wait()
            raise
        seat.process, seat.started_at, seat.reason, seat.pinged = process, self._clock(), "", 0
        seat.gone.clear()
        link = seat.link = Link(self._models, reading, writing, control, self._loop, self._listener, self._clock)
        owned.callback(link.close)
        link.told = lambda frame: self._told(seat, link, frame)
        link.failed = lambda reason: self._failed(seat, reason)
        link.ponged = self._pings
        link.greet(
            hop.Hello(
                limits=self._limits,
                deadlines=dict(self._gateway.deadlines),
                repository_control=self._gateway.repository_control,
                metrics=self._page is not None,
                inflight_bytes=self._part(),
                snapshot=self._snapshot(),
                log=style_in_use(),
            )
        )

    def _part(self) -> int:
        """What the large bodies of one front may take: an equal part, and at least one body as large as may come."""
        total = self._settings.inflight_bytes
        return max(total // self._settings.count, min(total, self._limits.body_bytes))

    def _told(self, seat: _Seat, link: Link, frame: hop.FromFront) -> None:
        for status, count in frame.statuses.items():
            self._refused(status, count)
        if frame.pages:
            self._ask_for_page(link, frame.pages)
        if frame.pong:
            seat.pinged = 0
            self._see_to_barrier()
        if frame.ready:
            seat.ready.set()
            seat.pause = min(seat.pause, self._settings.max_restart_seconds)
            if self._stopping is not None:
                link.stop(self._stopping)
        self._came.set()
        self._share()

    def _share(self) -> None:
        """Tell each front how many connections the others have, where that has changed."""
        links = self._links()
        counts = [link.connections for link in links if link.ready]
        total, least = sum(counts), min(counts, default=0)
        for link in links:
            elsewhere = total - link.connections if link.ready else total
            if (link.least, link.elsewhere) != (least, elsewhere):
                link.least, link.elsewhere = least, elsewhere
                link.turn_soon()

    def _failed(self, seat: _Seat, reason: str) -> None:
        """What a front says is no longer heard."""
        if self._closing:
            return
        if reason == "has closed its pipe":  # a hint only: the watch tells when it has ended
            seat.timers.append(self._loop.call_later(_EOF_SECONDS, self._kill, seat, f"was killed: it {reason}"))
        else:
            self._kill(seat, f"was killed: it {reason}")

    def _kill(self, seat: _Seat, reason: str) -> None:
        if seat.watch is not None and not seat.gone.is_set():
            seat.reason = seat.reason or reason
            seat.watch.kill(signal.SIGKILL)

    def _exited(self, seat: _Seat, code: int | None) -> None:
        link, seat.link, seat.watch = seat.link, None, None
        if seat.process is not None:
            seat.process.returncode = code or 0
        seat.process = None
        waited = 0
        if link is not None:
            if not self._closing:
                link.finish()
            waited = link.in_flight
        for timer in seat.timers:  # after `finish`, which may find the end of the pipe: that is no successor's fault
            timer.cancel()
        seat.timers.clear()
        seat.owned.close()
        seat.ended = seat.reason or f"its process {host.end_of(code)}"
        seat.gone.set()
        self._came.set()
        self._share()
        self._see_to_barrier()
        if self._closing or self._stopping is not None:
            return
        if seat.ready.is_set():
            fields = {"front": seat.number, "requests": waited}
            log.error("a front was lost: it %s", seat.ended.removeprefix("its process "), extra={"fields": fields})
            self.restarts += 1
            self._again(seat)

    def _again(self, seat: _Seat) -> None:
        """Replace a front, after a pause that grows while they do not last."""
        settings = self._settings
        lasted = self._clock() - seat.started_at >= settings.lasting_seconds
        seat.pause = settings.restart_seconds if lasted or not seat.pause else seat.pause * 2
        seat.pause = min(seat.pause, settings.max_restart_seconds)
        seat.timers.append(self._loop.call_later(seat.pause, self._spawn, seat))

    def _ping(self) -> None:
        """Once a second: ask each front whether it is still there, and give up those that have long been silent."""
        self._pinging = self._loop.call_later(_PING_SECONDS, self._ping)
        self._pings += 1
        for seat in self._seats:
            link = seat.link
            if link is None:
                continue
            late = self._clock() - seat.started_at > self._settings.start_seconds
            if link.ready and seat.pinged >= self._settings.silent_pings:
                self._kill(seat, f"was killed: it has been silent for {seat.pinged * _PING_SECONDS:g} s")
            elif not link.ready and late:
                self._kill(seat, f"was killed: it was not ready after {self._settings.start_seconds:g} s")
            seat.pinged += 1
            link.ping(self._pings)

    # ------------------------------------------------------------------ the page of metrics

    def _ask_for_page(self, link: Link, numbers: list[int]) -> None:
        """Write the page once every front has said what it has counted until now, or has had its time."""
        self._asked += [(link, number) for number in numbers]
        if self._barrier is None:
            self._pings += 1
            for other in self._links():
                other.ping(self._pings)
            self._barrier = (self._pings, self._loop.call_later(_BARRIER_SECONDS, self._write_pages))

    def _see_to_barrier(self) -> None:
        if self._barrier is not None and all(link.ponged >= self._barrier[0] for link in self._links() if link.ready):
            self._write_pages()

    def _write_pages(self) -> None:
        asked, self._asked = self._asked, []
        if self._barrier is not None:
            self._barrier[1].cancel()
            self._barrier = None
        text = "" if self._page is None else self._page()
        for link, number in asked:
            link.page(number, text)


def _here(served: Served) -> bool:
    """Whether a model runs in this process."""
    return served.memory() is None


def is_settled(event: Event) -> bool:
    """Whether a pool's event is to be counted: of what is not settled yet, a link tells once it is."""
    return not isinstance(event, RequestEnded) or event.code != UNSETTLED


def _channels(
    owned: contextlib.ExitStack, childs: contextlib.ExitStack
) -> tuple[int, int, socket.socket, tuple[int, ...]]:
    """Open what joins the two: our ends, to be closed with `owned`, and the front's, to be closed with `childs`."""
    theirs_reading, writing = os.pipe()
    childs.callback(os.close, theirs_reading)
    owned.callback(os.close, writing)
    reading, theirs_writing = os.pipe()
    childs.callback(os.close, theirs_writing)
    owned.callback(os.close, reading)
    control, theirs = socket.socketpair()
    childs.enter_context(theirs)
    owned.enter_context(control)
    for fd in (reading, writing):
        host.widen_pipe(fd, BUFFER_BYTES)
    return reading, writing, control, (theirs_reading, theirs_writing, theirs.fileno())


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    root = str(Path(maitred.__file__).parent.parent)
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root if not known else os.pathsep.join((root, known))
    return environment
