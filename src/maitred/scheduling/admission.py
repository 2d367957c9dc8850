"""Whether a request may join the queue: a decision from a snapshot that is kept up to date."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from maitred.errors import DeadlinePassed, MaitredError, QueueFull, TooLarge, WouldBeLate
from maitred.messages import BACKGROUND, FOREVER, HIGH, LANES, Request
from maitred.scheduling.batching import Batch
from maitred.scheduling.caution import Caution
from maitred.scheduling.curve import Curve
from maitred.scheduling.outage import Outage
from maitred.scheduling.patience import Patience
from maitred.scheduling.queue import Lane

_UNKNOWN_DRAIN_SECONDS: Final = 1.0
"""What a refused caller is told to wait while nothing is known about the model's speed."""
_SHORTEST_WAIT_SECONDS: Final = 0.001


class LaneLimits:
    """Bounds of one lane's queue."""

    __slots__ = ("max_waiting_rows", "max_waiting_bytes")

    def __init__(self, max_waiting_rows: int, max_waiting_bytes: int) -> None:
        self.max_waiting_rows = max_waiting_rows
        self.max_waiting_bytes = max_waiting_bytes


class Load:
    """What admission may look at: one object that the dispatcher keeps up to date. Not thread-safe."""

    __slots__ = (
        "lanes", "curve", "slots", "outage", "room", "running", "batch_rows", "batch_seconds", "full_seconds",
        "longest_seconds", "caution", "patience", "implied_seconds",
    )  # fmt: skip

    def __init__(
        self,
        lanes: tuple[Lane, Lane, Lane],
        curve: Curve,
        running: Collection[Batch],
        batch_rows: int,
        patience: Patience,
        implied_seconds: float,
        outage: Outage,
    ) -> None:
        self.lanes = lanes
        """What waits in each: the queue's own."""
        self.curve = curve
        self.slots = 0
        """Batches that the ready replicas can run at once, busy or not."""
        self.outage = outage
        """How long requests wait where there are no slots."""
        self.room = 0
        """How many of the slots are free."""
        self.running = running
        """The dispatcher's own, in order of their start: about the order in which they are expected to make room."""
        self.batch_rows = float(batch_rows)
        """Rows of a batch while more wait than fit: what a slot takes off the queue at a time."""
        self.batch_seconds = 0.0
        """Expected run of such a batch; 0.0 until it has been learned."""
        self.full_seconds = 0.0
        """Expected run of the largest batch."""
        self.longest_seconds = 0.0
        """No admitted request is expected to take longer, whatever waits: later deadlines need no closer look."""
        self.caution = Caution()
        self.patience = patience
        self.implied_seconds = implied_seconds
        """A request that has as long as this is taken for one whose caller stated no deadline."""

    def learn(self, max_batch_rows: int, max_waiting_rows: int) -> None:
        """Take over what the curve says now."""
        curve = self.curve
        if not curve.learned:
            return
        seconds = self.batch_seconds = curve.seconds(self.batch_rows)
        self.full_seconds = max(seconds, curve.seconds(max_batch_rows))
        waves = len(self.lanes) * max_waiting_rows / self.batch_rows / max(self.slots, 1)
        self.caution.scale(seconds)
        self.longest_seconds = (waves + 3.0) * seconds + self.caution.most
        if self.patience.seconds != FOREVER:
            self.longest_seconds = FOREVER

    def start_of(self, turn: int, now: float) -> float:
        """When the batch is expected to start that goes after `turn` others which wait."""
        turn -= self.room
        if turn < 0:
            return now
        wave, place = divmod(turn, self.slots)
        wait = wave * self.batch_seconds
        if place < len(self.running):
            return max(now, next(islice(self.running, place, None)).ends_at) + wait
        return now + self.batch_seconds + wait  # after one that is about to start

    def waiting_rows(self) -> int:
        high, normal, background = self.lanes
        return high.rows + normal.rows + background.rows


def decide(request: Request, load: Load, limits: LaneLimits, now: float) -> MaitredError | None:
    """The error to refuse with, or None to admit.

    Only rows that go before this request count against its deadline: those of its lane and of better ones. A pool
    that would start the request at once refuses nobody as late, which is also how a curve that is too high is
    unlearned.
    """
    lane = load.lanes[request.lane]
    if lane.rows + (request.rows or 1) > limits.max_waiting_rows:
        return _full(request, load, limits)
    if lane.size_bytes + request.size_bytes > limits.max_waiting_bytes:
        return _full_of_bytes(request, load, limits)
    if not load.slots and now >= load.outage.hope_ends():
        return load.outage.refusal()
    if request.deadline - now > load.longest_seconds:
        return None
    return _late(request, load, now)


def _late(request: Request, load: Load, now: float) -> MaitredError | None:
    """The error for a deadline that has passed or, by what was learned, would be missed."""
    deadline = request.deadline
    if deadline <= now:
        return DeadlinePassed("the deadline had passed before the request could be queued")
    if load.batch_seconds == 0.0 or not load.slots:
        return None
    high, normal, background = load.lanes
    ahead = high.rows
    if request.lane != HIGH:
        ahead += normal.rows
        if request.lane == BACKGROUND:
            ahead += background.rows
    if not ahead and load.room > 0:
        return None
    run = load.batch_seconds
    turn = int(ahead / load.batch_rows)
    if not turn:  # what waits now goes together with it
        run = load.curve.seconds(min(ahead + request.rows, load.batch_rows))
    end = load.start_of(turn, now) + run
    if end <= deadline - load.caution.of(max(0.0, deadline - now - run)):
        return _impatient(request, load, end, now)
    return WouldBeLate(
        f"behind {ahead} rows the answer would take about {end - now:.3f} s, "
        f"and the deadline is in {deadline - now:.3f} s: try later, or allow more time",
        retry_after_seconds=max(end - deadline, _SHORTEST_WAIT_SECONDS),
    )


def _impatient(request: Request, load: Load, end: float, now: float) -> MaitredError | None:
    """The error for a caller without a deadline who would wait more than half as long as such callers are known to."""
    patience = load.patience.seconds
    if patience == FOREVER or request.lane == BACKGROUND or request.deadline - now < load.implied_seconds:
        return None
    excess = end - now - load.batch_seconds - patience / 2
    if excess <= 0.0:
        return None
    return WouldBeLate(
        f"the answer would take about {end - now:.3f} s, and callers who state no deadline have lately left after "
        f"{patience:.3f} s: try later, or state a deadline",
        retry_after_seconds=max(excess, _SHORTEST_WAIT_SECONDS),
    )


def drain_seconds(load: Load, rows: float) -> float:
    """How long the replicas need for `rows` waiting rows."""
    if load.batch_seconds == 0.0 or not load.slots:
        return _UNKNOWN_DRAIN_SECONDS
    return max(rows / load.batch_rows * load.batch_seconds / load.slots, _SHORTEST_WAIT_SECONDS)


def _full(request: Request, load: Load, limits: LaneLimits) -> MaitredError:
    most, lane = limits.max_waiting_rows, request.lane
    if (request.rows or 1) > most:
        return TooLarge(f"the request has {request.rows} rows, and at most {most} may wait: send fewer rows at once")
    excess = load.lanes[lane].rows + request.rows - most
    return QueueFull(
        f"the queue is full: {load.lanes[lane].rows} rows wait in lane {LANES[lane]}, and at most {most} may",
        retry_after_seconds=drain_seconds(load, max(excess, most / 4)),
    )


def _full_of_bytes(request: Request, load: Load, limits: LaneLimits) -> MaitredError:
    most, lane = limits.max_waiting_bytes, request.lane
    if request.size_bytes > most:
        return TooLarge(f"the request has {request.size_bytes} bytes, and at most {most} may wait: send less at once")
    return QueueFull(
        f"the queue is full: {load.lanes[lane].size_bytes} bytes wait in lane {LANES[lane]}, and at most {most} may",
        retry_after_seconds=drain_seconds(load, max(load.lanes[lane].rows / 4, 1.0)),
    )
