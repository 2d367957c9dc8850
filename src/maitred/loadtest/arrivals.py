"""When requests are meant to leave: the moments of an open loop, whatever the server does.

A caller in the world does not wait for somebody else's answer before it asks. So each request has a moment at which it
is due; if the tester can send it only later, because every connection waits for an answer, its latency still counts
from that moment. Counting from the sending would leave out just those waits that a slow server causes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

NEVER: Final = 1 << 62
"""A moment, in nanoseconds, that does not come."""


def constant(rate: float, first: int = 0, stride: int = 1) -> Iterator[int]:
    """Nanoseconds from the start, evenly `1/rate` s apart; of `stride` workers the one of number `first` (from 0)."""
    for number in itertools.count(first, stride):
        yield round(number * 1e9 / rate)


def poisson(rate: float, random: Random) -> Iterator[int]:
    """Nanoseconds from the start, as independent callers make them: gaps are exponential, with a mean of `1/rate` s.

    Such streams of several workers add up to one of the rates' sum.
    """
    at = 0.0
    while True:
        at += random.expovariate(rate)
        yield round(at * 1e9)


class Schedule:
    """The moments that are still to come, or have passed and wait for a free connection. Not thread-safe."""

    __slots__ = ("_arrivals", "_begins", "_ends", "_counted_from", "_left", "next")

    def __init__(
        self, arrivals: Iterator[int], begins: int, ends: int, counted_from: int = 0, most: int | None = None
    ) -> None:
        """`arrivals` count from `begins`. None at `ends` or later; of those from `counted_from` on, `most` at most."""
        self._arrivals = arrivals
        self._begins = begins
        self._ends = ends
        self._counted_from = counted_from
        self._left = NEVER if most is None else most
        self.next = NEVER
        """The oldest moment that nobody has taken; NEVER once all were."""
        self._advance()

    def take(self, now: int) -> int | None:
        """The oldest moment that has come; None if none has."""
        due = self.next
        if due > now:
            return None
        self._advance()
        return due

    def end(self, at: int) -> None:
        """None is due at `at` or later."""
        self._ends = min(self._ends, at)
        if self.next >= self._ends:
            self.next = NEVER

    def _advance(self) -> None:
        due = self._begins + next(self._arrivals)
        if due >= self._counted_from:
            self._left -= 1
        self.next = due if due < self._ends and self._left >= 0 else NEVER
