"""What time it is, and a clock that tests and simulations turn by hand."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds on a monotonic scale; valid between processes of one machine, never sent to another machine."""

monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Move on by `seconds` (>= 0) and return the new time."""
        if seconds < 0:
            raise ValueError("a clock cannot go back")
        self.now += seconds
        return self.now
