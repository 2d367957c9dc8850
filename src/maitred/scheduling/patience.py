"""How long callers who state no deadline wait before they hang up: learned from those who did."""

from __future__ import annotations

from typing import Final

from maitred.messages import FOREVER

_WEIGHT: Final = 1 / 8
_MEMORY: Final = 1 / 16
_FEWEST: Final = 8
_CREDIBLE: Final = 0.5
_RECENT: Final = 1 / 64
_MANY: Final = 0.25
_MOMENT_SECONDS: Final = 0.05
_LULL_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 0.5
"""Whoever leaves sooner was not impatient: no less is ever reckoned with."""


class Patience:
    """An estimate that holds only while most of those who waited that long did leave.

    A hang-up speaks for it; an answer that was still awaited after a longer time speaks against it. It is not formed
    before a good part of all callers has left of late, at several moments in a row: many who go at once, as the
    clients of a program that ends, were not impatient. So a few callers who leave early, as those do who ask twice and
    drop the slower answer, teach nothing, and get nobody else refused.
    """

    __slots__ = ("seconds", "_guess", "_share", "_left", "seen", "_moment")

    def __init__(self) -> None:
        self.seconds = FOREVER
        """The patience to reckon with; `FOREVER` while nothing credible is known."""
        self._guess = 0.0
        self._share = 0.0
        """Of late, how many of those who waited as long as the guess had left."""
        self._left = 0.0
        """Of late, how many of all callers had left."""
        self.seen = 0
        """Moments of late at which callers have left."""
        self._moment = -FOREVER

    def hung_up(self, waited: float, now: float) -> None:
        """A caller who had stated no deadline left after `waited` seconds."""
        since = now - self._moment
        if since >= _MOMENT_SECONDS:
            self.seen = self.seen + 1 if since < _LULL_SECONDS or self.seconds != FOREVER else 1
            self._moment = now
        self._guess = waited if self._guess == 0.0 else self._guess + (waited - self._guess) * _WEIGHT
        self._share += (1.0 - self._share) * _MEMORY
        self._left += (1.0 - self._left) * _RECENT
        self._settle()

    def answered(self, waited: float, callers: int) -> None:
        """So many callers were still there for an answer for which the first of them had waited `waited` seconds.

        Teaches nothing while nobody was `seen` to leave.
        """
        self._left *= (1.0 - _RECENT) ** callers
        if waited <= self._guess:
            return
        self._guess += (waited - self._guess) * _WEIGHT
        self._share *= (1.0 - _MEMORY) ** callers
        self._settle()

    def _settle(self) -> None:
        known = self.seconds != FOREVER
        credible = self.seen >= _FEWEST and self._share > _CREDIBLE and (known or self._left > _MANY)
        self.seconds = max(self._guess, _LEAST_SECONDS) if credible else FOREVER
