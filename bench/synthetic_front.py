"""A front without callers: sends the core prepared requests as fast as its credit allows, and reads no answer.

`bench/fronts.py core` starts it in the place of `maitred.assemble_front`, with the same arguments. SYNTHETIC_CREDIT is
how many requests may be unanswered, SYNTHETIC_FRAME how many go into one frame.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import numpy as np

from maitred import host
from maitred.gateway import hop
from maitred.messages import NORMAL
from maitred.replica.frames import FrameReader

CREDIT = int(os.environ.get("SYNTHETIC_CREDIT", "256"))
FRAME = int(os.environ.get("SYNTHETIC_FRAME", "32"))


class Synthetic:
    def __init__(self, reading: int, writing: int) -> None:
        self.reader = FrameReader(reading)
        self.reading, self.writing = reading, writing
        self.number = self.answered = self.seen = self.pong = 0
        self.ready = False
        self.form = hop.Form(1, (("x", "float32", (1, 4)),), 1, True, NORMAL, "", None)
        rows = np.random.default_rng(3).standard_normal((FRAME, 4)).astype(np.float32)
        self.data = [row.tobytes() for row in rows]
        self.ids = [f"r-{at:05d}" for at in range(FRAME)]

    def say(self, frame: hop.FromFront) -> None:
        data = hop.encode(frame)
        rest = memoryview(len(data).to_bytes(4, "little") + data)
        while rest:
            rest = rest[os.write(self.writing, rest) :]

    def listen(self, wait: bool) -> None:
        if wait:
            select.select([self.reading], [], [])
        self.reader.fill()
        while (view := self.reader.frame()) is not None:
            if self.seen == 0:
                snapshot: hop.Snapshot | None = hop.read_hello(view).snapshot
            else:
                frame = hop.read_core(view)
                snapshot = frame.snapshot
                self.pong = frame.ping or self.pong
                self.answered += sum(len(batch.numbers) for batch in frame.answers)
                if frame.stop >= 0:
                    self.ready = False
                    self.say(hop.FromFront(seen=self.seen, left=0))
                elif frame.errors:
                    raise SystemExit(f"refused: {frame.errors[0]}")
            if snapshot is not None:
                self.seen = snapshot.number
                self.ready = snapshot.models[0].state == "ready"

    def ask(self) -> None:
        now = time.monotonic()
        first = self.number == 0
        numbers = list(range(self.number + 1, self.number + FRAME + 1))
        self.number += FRAME
        asked = hop.Asked(
            1, False, [self.form] if first else [], numbers, [1] * FRAME, [now + 30.0] * FRAME, [now] * FRAME,
            [60] * FRAME, self.ids, [""] * FRAME, self.data, {},
        )  # fmt: skip
        self.say(hop.FromFront(seen=self.seen, asked=[asked], pong=self.pong))

    def serve(self) -> None:
        while not self.seen:
            self.listen(True)
        self.say(hop.FromFront(seen=self.seen, ready=True))
        while not self.reader.ended:
            asks = self.ready and self.number - self.answered + FRAME <= CREDIT
            if asks:
                self.ask()
            else:
                self.say(hop.FromFront(seen=self.seen, pong=self.pong)) if self.pong else None
                self.pong = 0
            self.listen(not asks)


def main(arguments: list[str]) -> int:
    reading, writing, _, _, parent = map(int, arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    host.outlive_parent(parent, 1.0)
    front = Synthetic(reading, writing)
    os.set_blocking(writing, True)
    front.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
