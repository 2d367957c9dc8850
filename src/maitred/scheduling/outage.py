"""How long requests wait for a copy of the model while none is ready."""

from __future__ import annotations

from typing import Final

from maitred.errors import MaitredError, NoReplica, ReplicaLost
from maitred.messages import FOREVER

_RETRY_SECONDS: Final = 1.0
"""What the refused are told to wait: about what a small model needs to start."""


class Outage:
    """The time without a ready copy, and whether there is hope. Asked only while no copy is ready.

    Before the first copy was ever ready, requests wait as long as their deadlines allow. Once all are lost, they wait
    `patience_seconds` from then on, within which a copy that died by chance is back and serves them; whoever comes
    later is refused at once, until a copy is ready. Nobody waits for copies that die one after the other, or for none.
    """

    __slots__ = ("patience_seconds", "expected", "looping", "reason", "since")

    def __init__(self, patience_seconds: float) -> None:
        self.patience_seconds = patience_seconds
        self.expected = 1
        """Copies on their way."""
        self.looping = False
        """They die again and again, without an answer in between."""
        self.reason = ""
        """Why none is on its way, where the model has failed for good."""
        self.since = FOREVER
        """When the last ready copy was lost; FOREVER while there never was one."""

    def begin(self, now: float) -> None:
        """The last ready copy is lost. Until told otherwise, another is on its way and no loop is known."""
        self.since = now
        self.expected = max(self.expected, 1)
        self.looping = False

    def hope_ends(self) -> float:
        """From when on those who wait, and whoever comes, are refused; may be past."""
        if self.looping or not self.expected:
            return -FOREVER
        return self.since + self.patience_seconds

    def refusal(self, ran: bool = False) -> MaitredError:
        """The error to refuse with. `ran`: the copy that ran the request was lost, perhaps for that reason."""
        if ran:
            return ReplicaLost(
                f"the copy of the model that ran this request was lost, and {self._why()}",
                retry_after_seconds=_RETRY_SECONDS,
            )
        return NoReplica(f"no copy of this model is running, and {self._why()}", retry_after_seconds=_RETRY_SECONDS)

    def _why(self) -> str:
        if not self.expected:
            return f"none is starting: {self.reason}" if self.reason else "none is starting"
        if self.looping:
            return "those started last ended before they had answered anything"
        return f"the next was not ready within {self.patience_seconds:g} s"
