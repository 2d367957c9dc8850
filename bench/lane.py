"""The HTTP JSON lane in one process and one thread, part by part, for counting instructions.

Real: the connection, the gateway, the pool with its dispatcher, the replica's both halves with their pipes and shared
memory, the metrics, and a tiny model. Stand-ins: the event loop (callbacks are called in order by hand), the clock (it
goes on by a microsecond with every look), the caller's socket (what is written to it is counted), and the replica's
process, whose half runs in this one. So nothing depends on time, and what the kernel does is not counted.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import prepared
from maitred.deployment.router import Router, Served
from maitred.endpoint import Ticket
from maitred.gateway.rest import Rest
from maitred.gateway.settings import GatewaySettings
from maitred.http.limits import Limits
from maitred.http.one import Connection
from maitred.http.port import Port
from maitred.model.source import Source
from maitred.observe.metrics import Metrics
from maitred.pool.pool import Pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica import channel, child
from maitred.replica.execution import open_model
from maitred.replica.memory import Arena
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import ReplicaSettings
from maitred.replica.station import Station
from maitred.scheduling.dispatcher import DispatchSettings

CONNECTIONS = 64
"""So many callers, each with one request at a time: a round is a batch."""
MODEL = str(Path(__file__).parent / "peers" / "servers" / "maitred_model.py") + ":Overhead"
PATH = "/v2/models/overhead/infer"
PARTS = ("http in", "decode", "submit", "dispatch", "replica", "answer", "encode")


class HandLoop:
    """An event loop whose callbacks are called by `turn`; its timers never ring, its descriptors are read by hand."""

    def __init__(self) -> None:
        self.ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.ready.append((call, arguments))

    def call_later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def add_reader(self, fd: int, call: Callable[..., Any]) -> None:
        pass

    def remove_reader(self, fd: int) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise RuntimeError(context["message"]) from context["exception"]

    def turn(self) -> None:
        """Until nothing is to be called."""
        while self.ready:
            call, arguments = self.ready.popleft()
            call(*arguments)


class HereReplica(ProcessReplica):
    """A process replica whose other half is in this process: the same pipes, segments and code."""

    def _spawn(self) -> None:
        with contextlib.ExitStack() as childs:
            reading, writing, control, _ = map(os.dup, self._channels(childs))
        self.station = Station(reading, writing, socket.socket(fileno=control))
        self._reading = True
        self._load_timer = self._after(60.0, self._too_slow)
        self.execution = execution = open_model(self._source, self._settings.device, True)
        self.station.say(channel.message(channel.LOADED))
        execution.warm(self._settings.max_batch_rows, None)
        self.station.open(execution)
        self.station.say(channel.frame(channel.READY, execution.description.encode(), 1000, execution.reads_rows))
        self._loop.call_soon(self._read)

    def serve_one(self) -> None:
        """What the child's loop does for the next batch in the pipe."""
        fields = channel.MESSAGE.unpack(os.read(self.station.reading, channel.MESSAGE.size))
        if fields[0] != channel.RUN:
            raise RuntimeError(f"expected a batch, got a message of kind {fields[0]}")
        child._run(self.station, self.execution, fields)

    def hear(self) -> None:
        self._read()


class Wire(NamedTuple):
    """One caller's connection and what was written to it."""

    connection: Connection
    sent: list[bytes]


class Lane:
    """The whole lane, ready and warm. A round: one request on every connection, in one batch."""

    def __init__(self) -> None:
        child.time = SimpleNamespace(perf_counter_ns=partial(next, count(1000, 1000)))  # type: ignore[assignment]
        self.clock: Callable[[], float] = count(1000.0, 1e-6).__next__
        self.loop = cast("Any", HandLoop())
        self.served = Served("overhead", "1")
        self.metrics = Metrics()
        arena = Arena(False, 1 << 20, 8 << 30)
        source = Source(path=MODEL, name="overhead")
        self.replica: HereReplica

        def make(id: int, pool: Pool) -> HereReplica:
            self.replica = HereReplica(id, source, ReplicaSettings(), self.loop, pool, arena)
            return self.replica

        self.pool = Pool(
            "overhead", "1", DispatchSettings(), SupervisorSettings(), make, self.served, self.loop, self.clock,
            self.metrics, rng=random.Random(7),
        )  # fmt: skip
        self.served.endpoint = self.pool
        self.pool.launch()
        self.loop.turn()
        router = Router()
        router.swap({"overhead": self.served})
        self.rest = Rest(router, GatewaySettings(), None, listener=self.metrics)
        self.wires = self._wires(self.rest)
        found: list[Any] = []
        self.taken = found
        self.sink_wires = self._wires(SimpleNamespace(exchange=found.append, watched=Rest.watched, labels=Rest.labels))
        requests = prepared.requests("v2", "overhead")
        self.requests = [message(id, body) for id, body in zip(requests.ids, requests.bodies, strict=True)]
        self.known = requests
        self.at = 0
        self.asked: list[int] = []

    def _wires(self, app: Any) -> list[Wire]:
        port = Port(app, Limits(), self.clock, self.loop)
        wires = []
        for _ in range(CONNECTIONS):
            sent: list[bytes] = []
            connection = Connection(port)
            connection.connection_made(
                SimpleNamespace(write=sent.append, set_write_buffer_limits=lambda high: None)  # type: ignore[arg-type]
            )
            wires.append(Wire(connection, sent))
        return wires

    def feed(self, wires: list[Wire]) -> None:
        """A request on each connection: read, checked, submitted."""
        for wire, data in zip(wires, self.batch, strict=True):
            wire.connection.data_received(data)

    def next_batch(self) -> None:
        """Choose the requests of the next round; not counted."""
        self.asked = [(self.at + k) % len(self.requests) for k in range(CONNECTIONS)]
        self.batch = [self.requests[number] for number in self.asked]
        self.at += CONNECTIONS

    def check(self) -> None:
        """Compare every answer of the round with the model's own. Raises RuntimeError."""
        for wire, number in zip(self.wires, self.asked, strict=True):
            (answer,) = wire.sent
            head, _, body = answer.partition(b"\r\n\r\n")
            wrong = "no 200" if not head.startswith(b"HTTP/1.1 200") else self.known.wrong(number, body)
            if wrong:
                raise RuntimeError(f"the lane answered wrongly: {wrong}")

    def clear(self) -> None:
        """Forget what the last round left on the connections, so that a next one can begin."""
        for wire in (*self.wires, *self.sink_wires):
            wire.connection.queue.clear()
            wire.sent.clear()
        self.taken.clear()

    # ------------------------------------------------------------------ rounds, with what is counted in brackets

    def round(self, feeding: Bracket, dispatching: Bracket, running: Bracket, answering: Bracket) -> None:
        """A whole round."""
        self.next_batch()
        with feeding:
            self.feed(self.wires)
        with dispatching:
            self.loop.turn()
        with running:
            self.replica.serve_one()
        with answering:
            self.replica.hear()
        self.check()
        self.clear()

    def round_of_http(self, counted: Bracket) -> None:
        """Reading only: the application takes the exchange and does nothing."""
        self.next_batch()
        with counted:
            self.feed(self.sink_wires)
        if len(self.taken) != CONNECTIONS:
            raise RuntimeError("not every request was read")
        self.clear()

    def round_of_decode(self, counted: Bracket) -> None:
        """Reading and checking: the endpoint gives out tickets that nobody works on."""
        self.next_batch()
        tickets = [Ticket(None) for _ in range(CONNECTIONS)]  # type: ignore[arg-type]
        self.served.endpoint = SimpleNamespace(submit=partial(next, iter(tickets)))  # type: ignore[assignment]
        with counted:
            self.feed(self.wires)
        self.served.endpoint = self.pool
        if any(ticket.watcher is None for ticket in tickets):
            raise RuntimeError("not every request was submitted")
        self.clear()

    def round_of_answer(self, counted: Bracket) -> None:
        """The end of a batch, where nobody waits for its answers."""
        self.next_batch()
        self.feed(self.wires)
        self.loop.turn()
        self.replica.serve_one()
        (batch,) = next(iter(self.pool._running.values())).values()
        nobody: Any = SimpleNamespace(ended=id)
        for ticket in batch.tickets:
            ticket.watcher = nobody
        with counted:
            self.replica.hear()
        self.clear()


Bracket = contextlib.AbstractContextManager[Any]
"""What is inside is counted."""


def message(id: str, body: str) -> bytes:
    """A request as the load generators of `bench/peers` send it."""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\nX-Request-Id: {id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
