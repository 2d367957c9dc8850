"""Open-loop HTTP load: requests go out at their intended times whatever the server does (standard library, uvloop if here).

Arrivals are Poisson from a fixed seed, so every server gets the same ones. Latency counts from the intended time, so a
server that holds up the client is not spared. A request not answered within --timeout seconds is abandoned: its
connection is closed, as a real caller would. Idle connections are reused, new ones opened as needed. Requests come from
a file of prepared ones (id, tab, body on each line), one after the other. Prints one JSON line. --burst N sends N at
once and hangs up after --timeout.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

EARLY_SECONDS = 0.002
"""So long before the next request is due the client stops sleeping and watches the time: its timers step by 1 ms."""


def message(where: SplitResult, line: str) -> bytes:
    id, _, body = line.rstrip("\n").partition("\t")
    return (
        f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {id}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def share(values: list[float], part: float) -> float | None:
    """A percentile of sorted seconds, in milliseconds."""
    return round(values[min(len(values) - 1, int(part * len(values)))] * 1000, 3) if values else None


class Load:
    """All requests of one run and what became of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.where = urlsplit(options.url)
        with Path(options.requests).open() as file:
            self.messages = itertools.cycle([message(self.where, line) for line in file])
        self.ended: Counter[str] = Counter()
        self.good: list[float] = []
        self.refused: list[float] = []
        self.late: list[float] = []
        """How long after its intended time each request was sent."""
        self.idle: list[Conn] = []
        self.open = 0
        """Connections."""
        self.waiting = 0
        """Requests that have not come to an end."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()

    def over(self, how: str) -> None:
        self.ended[how] += 1
        self.waiting -= 1

    def fire(self, due: float) -> None:
        now = time.perf_counter()
        self.late.append(now - due)
        self.waiting += 1
        while self.idle:
            connection = self.idle.pop()
            if connection.alive and not connection.transport.is_closing():
                connection.send(due)
                return
        if self.open >= self.options.max_open:
            self.over("client_full")
            return
        self.open += 1
        task = self.loop.create_task(self.fresh(due))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def fresh(self, due: float) -> None:
        try:
            made = self.loop.create_connection(lambda: Conn(self), self.where.hostname, self.where.port)
            _, connection = await asyncio.wait_for(made, self.options.timeout)
        except (OSError, asyncio.TimeoutError) as error:
            self.open -= 1
            self.over("connect_" + type(error).__name__)
            return
        connection.send(due)

    async def burst(self) -> int:
        """All at once, on connections that are open already."""
        where = (self.where.hostname, self.where.port)
        for _ in range(self.options.burst):
            _, connection = await self.loop.create_connection(lambda: Conn(self), *where)
            self.open += 1
            self.idle.append(connection)
        for _ in range(self.options.burst):
            self.fire(time.perf_counter())
        return self.options.burst

    async def steady(self) -> int:
        """Poisson arrivals for --seconds; how many."""
        rng, rate = random.Random(5), self.options.rate
        start = time.perf_counter()
        due, end, sent = start + rng.expovariate(rate), start + self.options.seconds, 0
        while due < end:
            now = time.perf_counter()
            if due > now:
                await asyncio.sleep(due - now - EARLY_SECONDS if due - now > 2 * EARLY_SECONDS else 0)
                continue
            self.fire(due)
            sent += 1
            due += rng.expovariate(rate)
            if not sent % 32:
                await asyncio.sleep(0)  # behind: answers must be read all the same
        return sent

    def result(self, sent: int, seconds: float) -> dict[str, object]:
        good, refused, late = sorted(self.good), sorted(self.refused), sorted(self.late)
        return {
            "sent": sent, "offered": sent / seconds, "ok": len(good), "rps": len(good) / seconds,
            "p50_ms": share(good, 0.5), "p90_ms": share(good, 0.9), "p99_ms": share(good, 0.99),
            "refused": len(refused), "refused_p50_ms": share(refused, 0.5), "refused_p99_ms": share(refused, 0.99),
            "sent_late_p99_ms": share(late, 0.99), "ended": dict(self.ended),
        }  # fmt: skip


class Conn(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""
        self.due: float | None = None
        self.alive = False

    def connection_made(self, transport) -> None:
        self.transport = transport
        self.alive = True

    def send(self, due: float) -> None:
        left = due + self.load.options.timeout - time.perf_counter()
        if left <= 0:
            self.load.over("timeout")
            self.transport.abort()
            return
        self.due, self.buffer = due, b""
        self.transport.write(next(self.load.messages))
        self.timer = self.load.loop.call_later(left, self.expire)

    def data_received(self, data: bytes) -> None:
        if self.due is None:
            return
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        low = head.lower()
        if b"content-length:" in low:
            if len(rest) < int(low.split(b"content-length:")[1].split(b"\r\n")[0]):
                return
        elif b"chunked" in low and not rest.endswith(b"0\r\n\r\n"):
            return
        self.timer.cancel()
        spent, self.due = time.perf_counter() - self.due, None
        if spent > self.load.options.timeout:  # the timer was late, not the answer in time
            self.load.over("timeout")
            self.transport.abort()
            return
        status = int(head[9:12])
        self.load.over(str(status))
        (self.load.good if status == 200 else self.load.refused).append(spent)
        if b"connection: close" in low:
            self.transport.close()
        else:
            self.load.idle.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.open -= 1
        self.alive = False
        if self.due is not None:
            self.due = None
            self.timer.cancel()
            self.load.over("reset")

    def expire(self) -> None:
        if self.due is not None:
            self.due = None
            self.load.over("timeout")
            self.transport.abort()


async def main(options: argparse.Namespace) -> None:
    load = Load(options)
    sent = await (load.burst() if options.burst else load.steady())
    seconds = options.timeout if options.burst else options.seconds
    end = time.perf_counter() + options.timeout + 0.2
    while load.waiting and time.perf_counter() < end:
        await asyncio.sleep(0.02)
    print("RESULT " + json.dumps(load.result(sent, seconds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("requests")
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--timeout", type=float, default=1.0)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--max-open", type=int, default=8000)
    chosen = parser.parse_args()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(chosen))
    else:
        uvloop.run(main(chosen))
