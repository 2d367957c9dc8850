"""Whether a replica that could start waits for callers who were answered just now, because they tend to ask again.

A replica that takes whatever waits at the moment it is free falls into a convoy: of 16 clients that ask again as soon
as they are answered, half wait while the other half runs, for ever. Waiting a little for the others mends that and
costs nobody anything, but only where the others do come.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

MOST_SECONDS: Final = 0.002
"""Nothing is ever held back for longer, whatever that may save."""
_WORTH: Final = 0.5
"""How much of what one batch less saves, its fixed part, may be spent on waiting."""
_SHORTEST_SECONDS: Final = 0.0001
"""Less is not waited for by a timer: a few turns of the event loop bring what is here already, and cost less."""
ENOUGH: Final = 0.6
"""Share of callers who must have come back of late."""
_FEW: Final = 0.05
"""Where fewer than this came in the last part of the wait, it ends before that part."""
_MEMORY: Final = 48.0
"""In requests: a batch of as many counts for half of what is known."""
_PARTS: Final = 4
_BESIDE: Final = 4.0
"""For so many times the wait, arrivals after it are counted to know the rate of those who do not return."""
_DOUBT: Final = 0.05
"""What arrivals during waits count for that rate: all, where batches end so often that there is no time between."""
_TURNS: Final = 4
_WRITE_SECONDS: Final = 1e-5
"""What the answer to one request may take to be written: turns are counted from then."""


class Returning:
    """Learns from the arrivals after each answer, and says until when to wait.

    `share` is how many of the answered rows came back within `seconds` of the writing of the answers: what came in that
    time, less what would have come anyway at the rate of the time between such waits. Callers who do not care about
    answers come as often then as at any other time, at any load and with any number of replicas; those who return come
    then only. Learning does not depend on waiting, so no trial is needed to find out when that begins or ceases to pay.

    Where a batch costs so little of its own that waiting pays only for some microseconds, `seconds` is 0.0 and nothing
    is learned: only the loop turns (see `gathers`).
    """

    __slots__ = (
        "seconds", "share", "wait_seconds", "turns", "gathered", "missing", "_most", "_turns_end", "_group",
        "_written_at", "_arrived", "_rows", "_came", "_times", "_others", "_other_seconds",
    )  # fmt: skip

    def __init__(self, most_seconds: float = MOST_SECONDS) -> None:
        self._most = most_seconds
        self.turns = 0
        """How many more turns of the loop a replica that has just answered may wait."""
        self.gathered = 0
        """Rows that waited at the last of them."""
        self._turns_end = 0.0
        self._forget()

    def _forget(self) -> None:
        self.seconds = 0.0
        """How long callers are looked for; 0.0: not at all."""
        self.share = 0.0
        self.wait_seconds = 0.0
        """The part of `seconds` in which they do come."""
        self.missing = 0
        """Rows that were answered in the last `seconds` and have not come back."""
        self._group: Hashable = None
        """The group of all of these; None where there are several."""
        self._written_at = 0.0
        self._arrived = 0
        # Sums over what is remembered; each batch answered takes its part of them away.
        self._rows = 0.0
        self._came = [0.0] * _PARTS
        """Rows that came in each part of the time after an answer, and below, how long these were in all."""
        self._times = [0.0] * _PARTS
        self._others = 0.0
        """Rows that came soon after that time, and how long this was."""
        self._other_seconds = 0.0

    def learn(self, fixed_seconds: float) -> None:
        """A batch takes so long whatever its rows."""
        seconds = min(fixed_seconds * _WORTH, self._most)
        if seconds >= _SHORTEST_SECONDS:
            self.seconds = seconds
        elif self.seconds:
            self._forget()

    def answered(self, requests: int, now: float) -> None:
        """A batch of several requests is over, and its answers are about to be written."""
        self.turns, self.gathered = _TURNS, 0
        self._turns_end = now + MOST_SECONDS + requests * _WRITE_SECONDS

    def gathers(self, waiting: int, most: int, now: float) -> bool:
        """Whether the loop turns once more before `waiting` rows are taken, while `turns`.

        What was sent at once may be here already: it is read in the next turns, as long as each brings more. A full
        batch never waits. There are no turns after a batch of one, so that a lone caller never waits either.
        """
        if self.gathered < waiting < most and now < self._turns_end:
            self.turns -= 1
            self.gathered = waiting
            return True
        self.turns = 0
        return False

    def look(self, arrived: int, now: float) -> None:
        """So many rows have ever come. Asked at the end of every turn of the loop, while `seconds`."""
        came = arrived - self._arrived
        self._arrived = arrived
        if came <= 0:
            return
        age = now - self._written_at
        seconds = self.seconds
        if age < seconds:
            if self.missing > 0:
                self._came[int(age / seconds * _PARTS)] += min(came, self.missing)
                self.missing -= came
            return
        self.missing = 0
        if age < (1.0 + _BESIDE) * seconds:
            self._others += came

    def written(self, rows: int, requests: int, group: Hashable, arrived: int, now: float) -> None:
        """The answers of a batch have just left: look for its callers, while `seconds`."""
        self.look(arrived, now)
        over = now - self._written_at >= self.seconds
        self._settle(now)
        if not self._rows:
            self._rows = rows / requests * _MEMORY  # nobody came back yet: it takes some to believe that they do
        keep = _MEMORY / (_MEMORY + requests)
        self._rows = self._rows * keep + rows
        self._others *= keep
        self._other_seconds *= keep
        for part in range(_PARTS):
            self._came[part] *= keep
            self._times[part] *= keep
        if over:
            self.missing, self._group = rows, group
        else:
            self.missing = max(0, self.missing) + rows
            self._group = group if group == self._group else None
        self._written_at = now

    def until(self, group: Hashable, now: float) -> float:
        """Until when to wait for callers who shared a batch of this group; 0.0: no longer.

        Not once as many rows have come as were answered: a lone caller, once back, never waits.
        """
        if self.share <= ENOUGH or self.missing <= 0 or group != self._group:
            return 0.0
        until = self._written_at + self.wait_seconds
        return until if until > now else 0.0

    def _settle(self, now: float) -> None:
        """Learn from the time since the last answers were written."""
        age = now - self._written_at
        part_seconds = self.seconds / _PARTS
        came, times = self._came, self._times
        for part in range(_PARTS):
            times[part] += max(0.0, min(age - part * part_seconds, part_seconds))
        self._other_seconds += max(0.0, min(age - self.seconds, _BESIDE * self.seconds))
        if not self._rows:
            return
        rate = (self._others + _DOUBT * sum(came)) / (self._other_seconds + _DOUBT * sum(times))
        returned = [(came[part] - rate * times[part]) / self._rows for part in range(_PARTS)]
        while returned and returned[-1] < _FEW:
            returned.pop()
        self.wait_seconds = len(returned) * part_seconds
        self.share = sum(returned)
