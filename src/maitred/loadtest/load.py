"""One step of a plan on the running loop: what closed and open loops have in common."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from maitred.loadtest.answer import shown
from maitred.loadtest.arrivals import NEVER
from maitred.loadtest.ask import untrusted
from maitred.loadtest.checks import Compared, not_binary, not_json
from maitred.loadtest.connection import Connection, Values, now_ns
from maitred.loadtest.descriptors import allow
from maitred.loadtest.heads import UNKNOWN, Heads, Shape
from maitred.loadtest.histogram import Histogram
from maitred.loadtest.plan import Plan, Step, Target
from maitred.loadtest.tally import MAX_TIMINGS, Kind, Tally, Timing, Usage, keep_sample
from maitred.loadtest.timing import durations
from maitred.loadtest.usage import own_cpu_seconds, own_wait_seconds

_TURN_SECONDS: Final = 0.05
"""How often lists become histograms and callers' patience is looked at."""

_EACH: Final = 15
_ALL: Final = 1000
"""Server-Timing is read on so many answers, and then on one of 16 (a mask of their count)."""

_MAX_SAMPLE: Final = 300
_LOOKED_AT: Final = 100


class Mark(NamedTuple):
    """What had been counted at a moment."""

    at: int
    answers: int
    received_bytes: int
    sent_bytes: int
    cpu: float
    waited: float | None


def tls_context(target: Target) -> ssl.SSLContext | None:
    """How connections to the target are secured; None where they are not."""
    if target.tls is None:
        return None
    context = ssl.create_default_context()
    if not target.tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Load:
    """Asks until the step is over; `run` gives what was counted. One run each."""

    def __init__(self, plan: Plan, step: Step) -> None:
        self.plan = plan
        self.step = step
        self.requests = plan.requests
        self.heads = Heads()
        self.shape: Shape = UNKNOWN
        self.counted_from = NEVER
        """The moment from which requests are counted by when they are due."""
        self.latencies: list[int] = []
        self.sendings: list[int] | None = None
        self.indices: Iterator[int] = itertools.cycle(range(len(plan.requests)))
        self.at_once = step.connections
        """Connections to open before the run."""
        self.running = False
        self.finished = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.open: set[Connection] = set()
        self.opening = 0
        """How many connections are being made for a request."""
        self.held_up = 0
        self.behind: list[int] | None = None
        self._tls = tls_context(plan.target)
        self._timeout_ns = round(plan.timeout_seconds * 1e9)
        self._compared = Compared(plan.expected, plan.same, plan.tolerance)
        self._compares = bool(plan.expected or plan.same)
        self._latency, self._sending, self._refusals, self._behind = (Histogram() for _ in range(4))
        self._waits: list[int] = []
        self._refused: list[int] = []
        self._good = 0
        self._failed: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._samples: dict[str, list[str]] = {}
        self._sample = ""
        self._told = 0
        """Counted answers with Server-Timing."""
        self._timings: dict[str, Timing] = {}
        self._timed = Timing(0, 0)
        self._connections = 0
        self._gone = Mark(0, 0, 0, 0, 0.0, None)
        """What closed connections had counted."""
        self._marks: list[Mark] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handles: list[asyncio.TimerHandle] = []
        self._cut_short = False

    # --- what the two loops do in their own way -----------------------------------------------------------------

    def begin(self) -> None:
        """Send what is to be sent first."""
        raise NotImplementedError

    def count(self) -> None:
        """From now on requests are counted."""

    def free(self, connection: Connection, now: int) -> None:
        """The connection's answer is here: send the next request, or keep the connection."""
        raise NotImplementedError

    def unopened(self) -> None:
        """A connection could not be made; its request has been told of as failed."""
        raise NotImplementedError

    def closed(self, connection: Connection) -> None:
        """The connection is closed. Comes once for each that was open."""
        raise NotImplementedError

    def impatient(self, now: int, oldest: int) -> None:
        """Requests that are due since before `oldest` and were not sent are not wanted any more."""

    def stop(self) -> None:
        """No request becomes due any more; `finished` is set once none is on its way."""
        raise NotImplementedError

    # --- the run ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Open connections before anything is counted; one that fails is left to the run."""
        allow(self.step.connections)
        results = await asyncio.gather(*(self._opened() for _ in range(self.at_once)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (OSError, ssl.SSLError)):
                raise result

    async def run(self, begins: int) -> Tally:
        """Begin at that moment (`time.monotonic_ns`), and return what was counted."""
        step = self.step
        counts = begins + round(step.warmup_seconds * 1e9)
        self._later(begins, self._begin)
        if counts > begins:
            self._later(counts, self._count)
        if step.requests is None:
            self._later(counts + round(step.seconds * 1e9), self._end)
        turning = self.loop.create_task(self._turn())
        turning.add_done_callback(lambda _: self.finished.set())
        gc.freeze()  # what is there stays: looking at it again would only make callers wait
        try:
            await self.finished.wait()
            if turning.done():
                turning.result()  # a defect of ours
        finally:
            gc.unfreeze()
            turning.cancel()
            self._clear()
        while len(self._marks) < 2:
            self._mark()
        self._collect()
        return self._tally()

    def cut(self) -> None:
        """End now: what has not been answered yet is not counted."""
        self._cut_short = True
        self.running = False
        if len(self._marks) == 1:
            self._mark()
        self.finished.set()

    def _later(self, at: int, call: Callable[[], None]) -> None:
        self._handles.append(self.loop.call_later(max(0, at - now_ns()) / 1e9, call))

    def _begin(self) -> None:
        self.running = True
        if not self.step.warmup_seconds:
            self._count()
        self.begin()

    def _count(self) -> None:
        self._mark()
        self.counted_from = min(self.counted_from, now_ns())
        self.count()

    def _end(self) -> None:
        self._mark()
        self.running = False
        self.stop()

    def _clear(self) -> None:
        for handle in self._handles:
            handle.cancel()
        for task in self._tasks:
            task.cancel()
        for connection in list(self.open):
            connection.give_up()

    def _mark(self) -> None:
        answers, received, sent = self._gone[1:4]
        for connection in self.open:
            answers += connection.answers
            received += connection.received_bytes
            sent += connection.sent_bytes
        self._marks.append(Mark(now_ns(), answers, received, sent, own_cpu_seconds(), own_wait_seconds()))

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(_TURN_SECONDS)
            now = now_ns()
            oldest = now - self._timeout_ns
            for connection in [c for c in self.open if 0 < c.due < oldest]:
                self.missed("timeout", f"no whole answer in {self.plan.timeout_seconds:g} s", connection.due, now)
                connection.give_up()
            self.impatient(now, oldest)
            self._collect()

    # --- connections --------------------------------------------------------------------------------------------

    async def _opened(self) -> Connection:
        """A new connection. Raises OSError (TimeoutError too), ssl.SSLError."""
        target = self.plan.target
        name = target.tls.server_name if target.tls is not None else None
        self._connections += 1
        async with asyncio.timeout(self.plan.timeout_seconds):
            _, connection = await self.loop.create_connection(
                lambda: Connection(self), target.host, target.port, ssl=self._tls, server_hostname=name
            )
        if connection.closing:  # by the other side, before we could use it
            connection.give_up()
            raise ConnectionResetError("the other side closed it at once")
        connection.adopted = True
        self.open.add(connection)
        return connection

    def open_for(self, index: int, due: int) -> None:
        """Open a connection for the request of that index, which is due at that moment, and send it."""
        self.opening += 1
        task = self.loop.create_task(self._open_for(index, due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_for(self, index: int, due: int) -> None:
        try:
            connection = await self._opened()
        except (OSError, ssl.SSLError) as error:
            self.opening -= 1
            kind, said = _unopened(error)
            self.missed(kind, said, due, now_ns())
            self.unopened()
        else:
            self.opening -= 1
            connection.send(index, due)

    def forget(self, connection: Connection) -> None:
        """Keep what a closed connection has counted."""
        self.open.discard(connection)
        gone = self._gone
        self._gone = gone._replace(
            answers=gone.answers + connection.answers,
            received_bytes=gone.received_bytes + connection.received_bytes,
            sent_bytes=gone.sent_bytes + connection.sent_bytes,
        )

    # --- answers ------------------------------------------------------------------------------------------------

    def answered(self, connection: Connection, now: int, shape: Shape, values: Values, body: bytes) -> None:
        if shape.good:
            wrong = not_json(body) if shape.json else not_binary(body, values["binary"]) if shape.binary else ""
            if self._compares and not wrong:
                wrong = self._compared.wrong(connection.index, body)
            if wrong:
                self.missed("content", f"{wrong}: {shown(body)}", connection.due, now)
            else:
                connection.answers += 1
                due = connection.due
                if due >= self.counted_from:
                    self.latencies.append(now - due)
                    if self.sendings is not None:
                        self.sendings.append(now - connection.sent)
                    if shape.timed:
                        self._told += 1
                        if not self._told & _EACH or self._told <= _ALL:
                            self._read_timing(values["timing"], now - connection.sent)
        else:
            self._refusal(shape.status, body, connection.due, now)
        if connection.closing:
            connection.give_up()
        else:
            self.free(connection, now)

    def show(self, body: bytes | bytearray) -> None:
        if not self._sample:
            self._sample = shown(body, _MAX_SAMPLE)

    def broken(self, connection: Connection, kind: Kind, said: str) -> None:
        self.missed(kind, said, connection.due, now_ns())

    def missed(self, kind: Kind, said: str, due: int, now: int) -> None:
        """A request that was due at that moment gets no good answer."""
        if due < self.counted_from:
            return
        self._failed[kind] += 1
        if kind in ("timeout", "unsent"):
            self._waits.append(now - due)
        if self._looks_at(kind):
            keep_sample(self._samples.setdefault(kind, []), said[:_MAX_SAMPLE])

    def _looks_at(self, kind: Kind) -> bool:
        """Whether what is said of a failure may still be new: the first of each kind are enough."""
        return self._failed[kind] <= _LOOKED_AT

    def _refusal(self, status: int, body: bytes, due: int, now: int) -> None:
        if due >= self.counted_from:
            self._statuses[str(status)] += 1
            self._refused.append(now - due)
            self.missed("status", f"{status}: {shown(body)}" if self._looks_at("status") else "", due, now)

    def _read_timing(self, value: bytes, latency: int) -> None:
        read = False
        for name, duration in durations(value):
            if name in self._timings or len(self._timings) < MAX_TIMINGS:
                timing = self._timings.setdefault(name, Timing(0, 0))
                timing.count += 1
                timing.total_ns += duration
                read = True
        if read:
            self._timed.count += 1
            self._timed.total_ns += latency

    # --- counts -------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Lists become histograms, and are empty again."""
        self._good += len(self.latencies)
        self._latency.record(self.latencies)
        self._latency.record(self._waits)
        self._refusals.record(self._refused)
        for values, histogram in ((self.sendings, self._sending), (self.behind, self._behind)):
            if values is not None:
                histogram.record(values)
                values.clear()
        for values in (self.latencies, self._waits, self._refused):
            values.clear()

    def _tally(self) -> Tally:
        first, last = self._marks[:2]
        seconds = max(last.at - first.at, 1) / 1e9
        waited = None if first.waited is None or last.waited is None else (last.waited - first.waited) / seconds
        return Tally(
            seconds=seconds,
            answered=last.answers - first.answers,
            good=self._good,
            failed=dict(self._failed),
            statuses=dict(self._statuses),
            latency=self._latency.pack(),
            sending=None if self.sendings is None else self._sending.pack(),
            refusals=self._refusals.pack(),
            behind=None if self.behind is None else self._behind.pack(),
            held_up=self.held_up,
            connections=self._connections,
            received_bytes=last.received_bytes - first.received_bytes,
            sent_bytes=last.sent_bytes - first.sent_bytes,
            timings=self._timings,
            timed=self._timed,
            compared=self._compared.compared,
            samples=self._samples,
            sample=self._sample,
            usage=[Usage((last.cpu - first.cpu) / seconds, waited)],
            cut_short=self._cut_short,
        )


def _unopened(error: OSError | ssl.SSLError) -> tuple[Kind, str]:
    if isinstance(error, ssl.SSLError):
        return "other", untrusted(error)
    if isinstance(error, TimeoutError):
        return "timeout", "no connection in time"
    return "refused", f"no connection: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}"
