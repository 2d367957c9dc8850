"""Which waiting requests go together now."""

from __future__ import annotations

from collections.abc import Hashable

from maitred.endpoint import Ticket
from maitred.messages import BACKGROUND, FOREVER, Request
from maitred.scheduling.curve import Curve
from maitred.scheduling.queue import Lane, Queue
from maitred.scheduling.recovery import Group


class Batch:
    """Tickets that run together, from their start until the replica has answered or was lost."""

    __slots__ = ("id", "replica", "tickets", "rows", "started_at", "ends_at", "deadline", "alive", "group", "alone")

    def __init__(
        self, id: int, replica: int, tickets: list[Ticket], rows: int, started_at: float, deadline: float,
        group: Group | None = None, ends_at: float = 0.0,
    ) -> None:  # fmt: skip
        self.id = id
        self.replica = replica
        self.tickets = tickets
        self.rows = rows
        self.started_at = started_at
        self.ends_at = ends_at
        """When it is expected to be answered."""
        self.deadline = deadline
        """The earliest of the members that have not ended."""
        self.alive = len(tickets)
        """Members that have not ended."""
        self.group = group
        """What recovery had set aside, where the batch was not formed from the queue."""
        self.alone = group is not None and group.apart
        """Nothing else runs on the replica meanwhile: the one member is suspected of having killed another."""


class Bounds:
    """How much may go together now; the dispatcher keeps it up to date."""

    __slots__ = ("rows", "background_rows", "seconds", "patience_seconds", "implied_seconds")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.background_rows = 0
        """Of a batch that has members of the background lane; 0 where these may only go by themselves, one by one."""
        self.seconds = 0.0
        """No batch is expected to run longer; 0.0 until that has been learned."""
        self.patience_seconds = FOREVER
        """How long callers wait who state no deadline."""
        self.implied_seconds = FOREVER
        """A request that has as long as this states none."""


def form(
    queue: Queue, lane: int, bounds: Bounds, curve: Curve, now: float, into: list[Ticket], late: list[Ticket]
) -> int:
    """Take the tickets that go together now into `into`, led by `lane`; return how many rows they weigh, 0 for none.

    Work-conserving: whatever waits goes, up to the bound. The group whose head has the earliest deadline leads, and is
    topped up with the same group of the other lanes. Those whose deadline has passed are moved to `late`.

    Where all that waits fits into one batch, that batch is kept small enough for the earliest deadline. Where more
    waits, smaller batches would make the many behind it late: then a request that a full batch would answer too late is
    moved to `late` too, and its place goes to one that can still be served.

    Where callers who state no deadline have waited for half of their patience, those who have not go first: the others
    are about to leave.

    Whether a free replica should rather wait for more requests is asked before this is called, never here.
    """
    leading = queue.lanes[lane]
    while (head := queue.lead(leading)) is not None:
        line = leading.order[0][2]
        request = head.request
        most = bounds.rows
        horizon = now
        if lane == BACKGROUND and bounds.background_rows < most:
            most = bounds.background_rows
        if request.deadline - now < bounds.seconds:
            if leading.rows > most:
                horizon = now + curve.seconds(most)
            else:
                most = _most_in_time(request, most, curve, now)
        if most < request.rows or not most:
            most = request.rows or 1  # the first always goes
        since = now - bounds.patience_seconds / 2
        if head.submitted_at < since and leading.rows > most and lane != BACKGROUND:
            weight = queue.take_fresh(line, most, now, since, bounds.implied_seconds, into)
        else:
            weight = 0
        if not weight:
            weight = queue.take(line, most, now, horizon, into, late)
        if not weight:
            continue  # all that was taken was late
        if len(leading.order) > 1:
            queue.yield_turn(leading)
        if weight < most and line.group is not None:
            for other in queue.lanes:
                if other.rows and other is not leading:
                    return _top_up(queue, leading, line.group, bounds, curve, most, weight, now, into, late)
        return weight
    return 0


def _most_in_time(first: Request, most: int, curve: Curve, now: float, besides: int = 0) -> int:
    """How many rows may go with `first`, itself and those `besides` included, without making it late; all if it is late
    anyway."""
    fits = curve.rows_within(first.deadline - now, most)
    return fits if fits >= besides + (first.rows or 1) else most


def _top_up(
    queue: Queue, leading: Lane, group: Hashable, bounds: Bounds, curve: Curve, most: int, weight: int, now: float,
    into: list[Ticket], late: list[Ticket],
) -> int:  # fmt: skip
    """Fill a batch up to `most` rows with the same group of other lanes, best first; return what it weighs then.

    Those of another lane may be in a greater hurry than the one who leads: the batch is kept small enough for them too.
    """
    background = queue.lanes[BACKGROUND]
    for lane in queue.lanes:
        line = lane.lines.get(group) if lane.rows and lane is not leading else None
        if line is None:
            continue
        head = queue.head(line)
        if head is not None and head.request.deadline - now < bounds.seconds:
            most = _most_in_time(head.request, most, curve, now, weight)
        room = (min(most, bounds.background_rows) if lane is background else most) - weight
        if room > 0:
            weight += queue.take(line, room, now, now, into, late)
    return weight
