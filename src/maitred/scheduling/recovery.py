"""What to do with a batch that failed or was lost: a table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import StrEnum
from math import sqrt
from typing import Final

from maitred.endpoint import Ticket
from maitred.errors import MaitredError, Malformed, ModelFault, Quarantined


class Cause(StrEnum):
    """Why a batch was not answered; the names are those of `events.BatchEnded.outcome`."""

    RAISED = "raised"
    MALFORMED = "malformed"
    """The model says that an input is the caller's mistake."""
    WRONG_COUNT = "wrong_count"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"


def error_of(cause: Cause, message: str) -> MaitredError:
    """What the member that is to blame for a batch's failure is told."""
    return Malformed(message) if cause == Cause.MALFORMED else ModelFault(message)


class Standing(StrEnum):
    """What the members of a failed batch have been through."""

    UNSTARTED = "unstarted"
    """The replica was lost before it began."""
    EFFECTS = "effects"
    """The model declares side effects: whatever has started never runs twice."""
    ONE = "one"
    MANY = "many"
    ALONE = "alone"
    """One suspect of an earlier loss, by itself on a replica that ran nothing else."""


class Step(StrEnum):
    """What happens next to the members."""

    SPLIT = "split"
    """Halves, unmerged, at the head of their lane; where both halves of a split fail, its members singly."""
    APART = "apart"
    """Each once by itself on a replica that runs nothing else."""
    BACK = "back"
    """Back to where they waited, uncharged."""
    FAIL = "fail"
    """The members fail with the batch's error."""
    QUARANTINE = "quarantine"
    """The member fails and its input is refused for a while."""


def standing(members: int, *, alone: bool, started: bool, side_effects: bool) -> Standing:
    """The column of the table for a batch that had `members` when it started."""
    if not started:
        return Standing.UNSTARTED
    if side_effects:
        return Standing.EFFECTS
    if members > 1:
        return Standing.MANY
    return Standing.ALONE if alone else Standing.ONE


_RAISED: Final = {
    Standing.EFFECTS: Step.FAIL,
    Standing.MANY: Step.SPLIT,
    Standing.ONE: Step.FAIL,
    Standing.ALONE: Step.FAIL,
}

TABLE: Final[dict[Cause, dict[Standing, Step]]] = {
    Cause.RAISED: _RAISED,
    Cause.MALFORMED: _RAISED,
    Cause.WRONG_COUNT: _RAISED,
    Cause.OUT_OF_MEMORY: _RAISED,
    Cause.LOST: {
        Standing.UNSTARTED: Step.BACK,
        Standing.EFFECTS: Step.FAIL,
        Standing.MANY: Step.APART,
        Standing.ONE: Step.APART,
        Standing.ALONE: Step.QUARANTINE,
    },
}


class Split:
    """Two halves of a failed batch, of which at least one has not been heard of yet."""

    __slots__ = ("pending", "failed")

    def __init__(self) -> None:
        self.pending = 2
        self.failed = 0

    def settle(self, failed: bool) -> None:
        """One of the halves has ended."""
        self.pending -= 1
        self.failed += failed


class Group:
    """Tickets set aside at the head of a lane: they go as they are and never merge with others."""

    __slots__ = ("tickets", "split", "broken", "apart")

    def __init__(self, tickets: list[Ticket], split: Split | None = None, *, broken: bool, apart: bool = False) -> None:
        self.tickets = tickets
        self.split = split
        """Whose half this is."""
        self.broken = broken
        """The tickets have failed together: what they become waits for the other half of their split."""
        self.apart = apart
        """Singly, each on a replica that runs nothing else."""


def divide(group: Group) -> list[Group] | None:
    """What a group goes as, in order; None while the other half of its split has not been heard of.

    All that is returned goes as it is. For n members this makes at most n + 3 calls in all, whoever is to blame: a
    split of which both halves failed is not halved again.
    """
    tickets = group.tickets
    if group.apart:
        return [Group([ticket], broken=False, apart=True) for ticket in tickets]
    if not group.broken:
        return [group]
    if group.split is not None and group.split.pending:
        return None
    if len(tickets) == 1 or (group.split is not None and group.split.failed == 2):
        return [Group([ticket], broken=False) for ticket in tickets]
    split = Split()
    middle = (len(tickets) + 1) // 2
    return [Group(tickets[:middle], split, broken=False), Group(tickets[middle:], split, broken=False)]


_MEMORY: Final = 1 / 256
_HIGH_SHARE: Final = 0.02
_HELD_BATCHES: Final = 64


class RowBound:
    """How many rows a batch may have after failures: fewer while many rows fail, or while memory ran out lately.

    With a share p of failing rows, batches of 1/sqrt(p) rows need the fewest calls (group testing). After a batch ran
    out of memory, half its rows; twice as many again each time 64 batches were answered.
    """

    __slots__ = ("rows", "steady", "_most", "_share", "_fits", "_held")

    def __init__(self, most: int) -> None:
        self.rows = most
        """The bound in force."""
        self.steady = True
        """Nothing has gone wrong of late: answers teach nothing."""
        self._most = most
        self._share = 0.0
        self._fits = most
        self._held = 0

    def answered(self, requests: int, rows: int) -> None:
        """A batch of so many requests and rows was answered. Need not be called while `steady`."""
        self._share *= (1.0 - _MEMORY) ** requests
        if self._share < 1e-4:
            self._share = 0.0
        if self._fits < self._most and 2 * rows > self._fits:  # smaller batches prove nothing
            self._held += 1
            if self._held >= _HELD_BATCHES:
                self._held = 0
                self._fits = min(self._most, 2 * self._fits)
        self._settle()

    def failed(self, requests: int) -> None:
        """So many requests have failed for good."""
        self._share = 1.0 - (1.0 - self._share) * (1.0 - _MEMORY) ** requests
        self._settle()

    def ran_out_of_memory(self, rows: int) -> None:
        """A batch of `rows` did not fit."""
        self._fits = max(1, min(self._fits, rows // 2))
        self._held = 0
        self._settle()

    def _settle(self) -> None:
        most = self._fits
        if self._share >= _HIGH_SHARE:
            most = min(most, max(1, round(1.0 / sqrt(self._share))))
        self.rows = most
        self.steady = self._share == 0.0 and self._fits == self._most


_SUSPECT_SECONDS: Final = 60.0


class Quarantine:
    """Digests of inputs that have killed replicas, each refused for a while. Bounded: the oldest makes place.

    Of inputs that may have killed one and could not be tried alone, it remembers just that: the next request that
    brings such an input is tried alone.
    """

    __slots__ = ("until", "_suspects", "_seconds", "_most")

    def __init__(self, seconds: float, most: int) -> None:
        self.until: OrderedDict[Hashable, float] = OrderedDict()
        """Digest to the end of its time, oldest first, suspects among them; empty on nearly every server."""
        self._suspects: set[Hashable] = set()
        self._seconds = seconds
        self._most = most

    def add(self, digest: Hashable, now: float) -> None:
        """Refuse this input from now on."""
        self._suspects.discard(digest)
        self._keep(digest, now + self._seconds)

    def suspect(self, digest: Hashable, now: float) -> None:
        """Remember that this input was lost with a replica and was not tried alone."""
        if not self.holds(digest, now):
            self._suspects.add(digest)
            self._keep(digest, now + min(self._seconds, _SUSPECT_SECONDS))

    def recall(self, digest: Hashable) -> bool:
        """Whether this input is a suspect; it is forgotten, for now it is tried."""
        if digest not in self._suspects:
            return False
        self._suspects.remove(digest)
        del self.until[digest]
        return True

    def holds(self, digest: Hashable, now: float) -> bool:
        """Whether an input is refused now; forgets those whose time is over."""
        until = self.until
        while until:
            oldest = next(iter(until))
            if until[oldest] > now:
                break
            del until[oldest]
            self._suspects.discard(oldest)
        return digest in until and digest not in self._suspects

    def _keep(self, digest: Hashable, until: float) -> None:
        self.until.pop(digest, None)
        self.until[digest] = until
        while len(self.until) > self._most:
            oldest, _ = self.until.popitem(last=False)
            self._suspects.discard(oldest)


def quarantined() -> MaitredError:
    """What callers with such an input are told."""
    return Quarantined("this input has ended two copies of the model one after the other and is refused for a while")
