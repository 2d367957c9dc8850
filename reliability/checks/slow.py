"""Holds connections that send one byte a second, or none, and tells as JSON when the server closed each.

    python -m reliability.checks.slow PORT SECONDS HEADS BODIES SILENT

In a process of its own: in that of the traffic it is to disturb, it would disturb the measuring of it. It steps back
behind the server (`nice`), for a real attacker has a processor of its own; `lag_seconds` says whether it kept its pace
all the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import sys
import time
from collections import deque
from typing import Any

PATH = "/v2/models/sleeper/infer"
HEAD, BODY, SILENT = "head", "body", "silent"


class Slow:
    """One connection."""

    __slots__ = ("kind", "due", "sent", "opened_at", "socket")

    def __init__(self, port: int, kind: str) -> None:
        self.kind = kind
        self.sent = 0
        self.socket = socket.socket()
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.opened_at = self.due = time.monotonic()
        if kind == BODY:
            head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(TEXT)}\r\n\r\n"
            self.socket.send(head.encode())
        if kind != SILENT:
            self.send()

    def send(self) -> None:
        """The next byte; a second later it is the next one's turn."""
        self.socket.send(TEXT[self.sent : self.sent + 1])
        self.sent += 1
        self.due += 1


TEXT = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Long: ".encode() + b"a" * 10_000
"""Long enough for any test; what trickles as a body need not be one."""


def attack(port: int, seconds: float, kinds: dict[str, int]) -> dict[str, Any]:
    """Open all the connections, then send until the server has closed them or the time is up."""
    poll = select.epoll()
    opened: dict[int, Slow] = {}
    turns: deque[Slow] = deque()
    closed: dict[str, list[float]] = {kind: [] for kind in kinds}
    lag, ends_at = 0.0, time.monotonic() + seconds
    waiting = [kind for kind, count in kinds.items() for _ in range(count)]
    while (opened or waiting) and (now := time.monotonic()) < ends_at:
        while turns and turns[0].due <= now:
            slow = turns.popleft()
            if slow.socket.fileno() in opened:
                lag = max(lag, now - slow.due)
                try:
                    slow.send()
                except OSError:
                    continue  # closed; the poll says so too
                turns.append(slow)
        for _ in range(min(100, len(waiting))):
            slow = Slow(port, waiting.pop())
            opened[slow.socket.fileno()] = slow
            poll.register(slow.socket, select.EPOLLIN)
            if slow.kind != SILENT:
                turns.append(slow)
        for number, _ in poll.poll(0 if waiting else 0.001):
            slow = opened[number]
            try:
                if slow.socket.recv(4096):
                    continue
            except OSError:
                pass
            closed[slow.kind].append(time.monotonic() - slow.opened_at)
            del opened[number]
            poll.unregister(number)
            slow.socket.close()
    return {
        "last_closed": {kind: max(times) for kind, times in closed.items() if times},
        "left": len(opened) + len(waiting),
        "lag_seconds": lag,
    }


async def start(port: int, seconds: float, kinds: dict[str, int]) -> asyncio.subprocess.Process:
    """Start the attack; `result` waits for its end."""
    numbers = [str(number) for number in (port, seconds, kinds[HEAD], kinds[BODY], kinds[SILENT])]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "reliability.checks.slow", *numbers, stdout=asyncio.subprocess.PIPE
    )


async def result(attacker: asyncio.subprocess.Process) -> dict[str, Any]:
    said, _ = await attacker.communicate()
    found: dict[str, Any] = json.loads(said)
    return found


def main() -> None:
    port, seconds, heads, bodies, silent = sys.argv[1:]
    os.nice(10)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    kinds = {HEAD: int(heads), BODY: int(bodies), SILENT: int(silent)}
    print(json.dumps(attack(int(port), float(seconds), kinds)))


if __name__ == "__main__":
    main()
