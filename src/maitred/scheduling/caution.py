"""How much earlier than its deadline a request must be expected to end: learned from those who were late."""

from __future__ import annotations

from typing import Final

from maitred.messages import FOREVER

_STEP: Final = 1 / 2
_MOST: Final = 8.0
_MOMENT: Final = 1 / 4
"""In batches: what a moment adds in which somebody was late, the bound, and how long a moment is."""
_FORGET: Final = 1 / 8000


class Caution:
    """Grows at each moment at which requests turn out late that were admitted, shrinks a little with each admission.

    In balance some in a thousand are late, whatever makes the forecast err: noise of the model, a busy machine,
    requests that overtake, batches that are not full. Nothing need be known about the size or the shape of the error.
    """

    __slots__ = ("seconds", "most", "_step", "_moment_seconds", "_since", "_last")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.most = 0.0
        """`seconds` is never more."""
        self._step = self._moment_seconds = 0.0
        self._since = FOREVER
        """When the first request was admitted by a forecast."""
        self._last = -FOREVER
        """The last moment at which somebody was late."""

    def scale(self, batch_seconds: float) -> None:
        """Reckon in batches that run for so long."""
        self._step = _STEP * batch_seconds
        self._moment_seconds = _MOMENT * batch_seconds
        self.most = _MOST * batch_seconds

    def admitted(self, now: float) -> None:
        """A request was admitted that the forecast might have refused as late."""
        if self._since == FOREVER:
            self._since = now
        if self.seconds:
            self.seconds = max(0.0, self.seconds - (self.seconds + self._step) * _FORGET)

    def late(self, submitted_at: float, now: float) -> None:
        """A request that was admitted at `submitted_at` is late. Those before the first forecast do not count."""
        if submitted_at >= self._since and now - self._last >= self._moment_seconds:
            self._last = now
            self.seconds = min(self.most, self.seconds + self._step)

    def of(self, spare: float) -> float:
        """How much earlier than its deadline a request must be expected to end that could wait for `spare` seconds.

        At most a third of that, so that caution does not refuse whoever is in a hurry.
        """
        return min(self.seconds, spare / 3)
