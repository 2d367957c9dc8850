"""Who waits at the head of a lane after a failure: groups that go as they are and never merge with others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from maitred.endpoint import Ticket
from maitred.messages import BACKGROUND, FOREVER, LANES
from maitred.scheduling.queue import Queue
from maitred.scheduling.recovery import Group, divide


class Aside:
    """Groups by lane, latest first. Their tickets are counted by the queue like all that wait."""

    __slots__ = ("lanes", "_queue")

    def __init__(self, queue: Queue) -> None:
        self.lanes: tuple[deque[Group], ...] = tuple(deque() for _ in LANES)
        self._queue = queue

    def add(self, group: Group) -> None:
        """Let a group wait at the head of the best of its members' lanes."""
        lane = BACKGROUND
        for ticket in group.tickets:
            self._queue.count(ticket)
            lane = min(lane, ticket.request.lane)
        self.lanes[lane].appendleft(group)

    def take(self, lane: int, now: float, *, room: bool, idle: bool, late: list[Ticket]) -> Group | None:
        """The first group that can go now, no longer counted; what it was divided into besides stays.

        `room`: a replica has some; `idle`: one runs nothing. Tickets past their deadline are moved to `late`.
        """
        groups = self.lanes[lane]
        index = 0
        while index < len(groups):
            group = groups[index]
            self._prune(group, now, late)
            if not group.tickets:
                del groups[index]
                if group.split is not None and not group.broken:
                    group.split.settle(failed=False)
                    index = 0  # the other half may have waited for this one
                continue
            parts = divide(group) if (idle if group.apart else room) else None
            if parts is None:
                index += 1
                continue
            del groups[index]
            for part in reversed(parts[1:]):
                groups.insert(index, part)
            for ticket in parts[0].tickets:
                self._queue.leave(ticket, now)
            return parts[0]
        return None

    def expire(self, lane: int, now: float, late: list[Ticket]) -> float:
        """Move tickets past their deadline to `late`; return the earliest deadline that remains."""
        return min((self._prune(group, now, late) for group in self.lanes[lane]), default=FOREVER)

    def has_suspects(self) -> bool:
        """Whether somebody waits for a replica that runs nothing else."""
        return any(group.apart for groups in self.lanes for group in groups)

    def tickets(self) -> Iterator[Ticket]:
        """All that are kept, those included that have ended."""
        for groups in self.lanes:
            for group in groups:
                yield from group.tickets

    def clear(self) -> list[Ticket]:
        """Take out all tickets that have not ended."""
        taken: list[Ticket] = []
        for ticket in self.tickets():
            if ticket.ended:
                self._queue.forget(ticket)
            else:
                self._queue.leave(ticket)
                taken.append(ticket)
        for groups in self.lanes:
            groups.clear()
        return taken

    def _prune(self, group: Group, now: float, late: list[Ticket]) -> float:
        """Let go of tickets that have ended or whose deadline has passed; return the earliest deadline left."""
        kept = []
        earliest = FOREVER
        for ticket in group.tickets:
            if ticket.ended:
                self._queue.forget(ticket)
            elif ticket.request.deadline <= now:
                self._queue.leave(ticket)
                late.append(ticket)
            else:
                kept.append(ticket)
                earliest = min(earliest, ticket.request.deadline)
        group.tickets = kept
        return earliest
