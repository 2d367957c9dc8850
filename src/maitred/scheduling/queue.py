"""Who waits, best first: tickets by lane and group, indexed so that forming a batch never scans the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter
from typing import Final

from maitred.endpoint import Ticket
from maitred.messages import FOREVER

WAITING: Final = -1.0
"""`Ticket.started_at` of a ticket that waits in a queue: how a queue knows its own, whatever it is told about."""

_NEVER: Final = -FOREVER
_submitted_at: Final = attrgetter("submitted_at")
_SPARE_LINES: Final = 64
_SPARE_DEAD: Final = 1024
_FRONT: Final = -(1 << 60)
"""Arrival numbers below this are of restored tickets: before all that came by themselves."""


class Line:
    """The waiting tickets of one group in one lane, earliest deadline first, arrival breaking ties."""

    __slots__ = ("group", "lane", "tickets", "heap", "last", "turn")

    def __init__(self, group: Hashable, lane: Lane) -> None:
        self.group = group
        self.lane = lane
        self.tickets: deque[Ticket] = deque()
        """In use while deadlines arrive in order."""
        self.heap: list[tuple[float, int, Ticket]] | None = None
        """In use instead, from the first deadline that came out of order until the line is empty."""
        self.last = _NEVER
        self.turn = 0
        """Which entry of the lane's order is this line's; 0 for none."""


class Lane:
    """The lines of one priority class and what waits in them."""

    __slots__ = ("rows", "size_bytes", "lines", "order", "dead")

    def __init__(self) -> None:
        self.rows = 0
        """Waiting now; never counts a ticket that has ended."""
        self.size_bytes = 0
        self.lines: dict[Hashable, Line] = {}
        self.order: list[tuple[float, int, Line]] = []
        """A heap of (deadline of the line's head, turn, line); entries may be out of date, but never too late."""
        self.dead = 0
        """About how many tickets in the lines have ended."""


class Queue:
    """Tickets by lane and group. Counts are exact at every moment.

    An empty request weighs one row, so that nothing that waits is free. Tickets that end while they wait are left
    behind, skipped when met and swept out once they outnumber the rows that wait.
    """

    __slots__ = ("lanes", "empty", "_turn", "_front")

    def __init__(self) -> None:
        self.lanes = (Lane(), Lane(), Lane())
        self.empty = 0
        """Requests without rows that were ever taken: what `take` returned counts each as one row."""
        self._turn = 0
        self._front = _FRONT

    def push(self, ticket: Ticket) -> None:
        """Let a ticket wait in the lane and group of its request."""
        request = ticket.request
        lane = self.lanes[request.lane]
        deadline = request.deadline
        try:
            line = lane.lines[request.group]
        except KeyError:
            line = lane.lines[request.group] = Line(request.group, lane)
        ticket.started_at = WAITING
        lane.rows += request.rows or 1
        lane.size_bytes += request.size_bytes
        if deadline < line.last or line.heap is not None:
            self._turn += 1
            self._push_out_of_order(line, ticket, deadline, self._turn)
            return
        line.last = deadline
        if not line.tickets:
            self._list(line, deadline)
        line.tickets.append(ticket)

    def restore(self, tickets: list[Ticket]) -> None:
        """Put taken tickets back where they were, before those that came after them."""
        for ticket in reversed(tickets):
            request = ticket.request
            line = self.lanes[request.lane].lines.get(request.group)
            if line is None or not _length(line):
                self.push(ticket)
                continue
            if line.heap is None and request.deadline <= line.tickets[0].request.deadline:
                line.tickets.appendleft(ticket)
                self._list(line, request.deadline)
            else:
                self._front -= 1
                self._push_out_of_order(line, ticket, request.deadline, self._front)
            self.count(ticket)

    def count(self, ticket: Ticket) -> None:
        """Count a ticket that waits elsewhere than in a line: set aside by recovery."""
        request = ticket.request
        lane = self.lanes[request.lane]
        ticket.started_at = WAITING
        lane.rows += request.rows or 1
        lane.size_bytes += request.size_bytes

    def leave(self, ticket: Ticket, started_at: float = 0.0) -> None:
        """Stop counting a ticket that was taken out."""
        request = ticket.request
        lane = self.lanes[request.lane]
        ticket.started_at = started_at
        lane.rows -= request.rows or 1
        lane.size_bytes -= request.size_bytes

    def forget(self, ticket: Ticket) -> bool:
        """Stop counting a ticket that has ended while it waited. False if it did not wait here."""
        if ticket.started_at != WAITING:
            return False
        self.leave(ticket)
        lane = self.lanes[ticket.request.lane]
        lane.dead += 1
        if lane.dead > lane.rows + _SPARE_DEAD:
            self._sweep(lane)
        return True

    def head(self, line: Line) -> Ticket | None:
        """The first living ticket of a line, or None."""
        heap = line.heap
        if heap is None:
            tickets = line.tickets
            while tickets:
                ticket = tickets[0]
                if not ticket.ended:
                    return ticket
                tickets.popleft()
                self._drop(ticket)
        else:
            while heap:
                ticket = heap[0][2]
                if not ticket.ended:
                    return ticket
                heappop(heap)
                self._drop(ticket)
            line.heap = None
        line.last = _NEVER
        return None

    def lead(self, lane: Lane) -> Ticket | None:
        """The head of the line whose head has the earliest deadline; None where no line waits.

        That line is `lane.order[0][2]`. Among equal deadlines lines take turns.
        """
        order = lane.order
        while order:
            deadline, turn, line = order[0]
            if turn != line.turn:
                heappop(order)
                continue
            head = self.head(line)
            if head is None:
                heappop(order)
                _close(line)
                continue
            if head.request.deadline == deadline:
                return head
            self._turn = line.turn = self._turn + 1
            heapreplace(order, (head.request.deadline, self._turn, line))
        return None

    def yield_turn(self, lane: Lane) -> None:
        """Let other lines with the same deadline lead before the one that has just led."""
        order = lane.order
        deadline, _, line = order[0]
        self._turn = line.turn = self._turn + 1
        heapreplace(order, (deadline, self._turn, line))

    def take(self, line: Line, most: int, now: float, horizon: float, into: list[Ticket], late: list[Ticket]) -> int:
        """Move tickets into `into`, earliest first, while they weigh at most `most` rows; return what they weigh.

        Stops at the first that does not fit (small requests do not overtake large ones). Tickets whose deadline is at
        `horizon` (>= now) or before go to `late` instead. A line of group None gives one ticket.
        """
        if line.heap is not None:
            return self._take_from_heap(line, most, now, horizon, into, late)
        tickets = line.tickets
        popleft = tickets.popleft
        append = into.append
        weight = size_bytes = 0
        single = line.group is None
        while tickets:
            ticket = tickets[0]
            request = ticket.request
            if ticket.ended or request.deadline <= horizon:
                popleft()
                if ticket.ended:
                    self._drop(ticket)
                else:
                    self.leave(ticket)
                    late.append(ticket)
                continue
            more = weight + (request.rows or 1)
            if more > most:
                break
            if not request.rows:
                self.empty += 1
            weight = more
            size_bytes += request.size_bytes
            ticket.started_at = now
            append(popleft())
            if single:
                break
        if not tickets:
            line.last = _NEVER
        lane = line.lane
        lane.rows -= weight
        lane.size_bytes -= size_bytes
        return weight

    def take_fresh(
        self, line: Line, most: int, now: float, since: float, implied_seconds: float, into: list[Ticket]
    ) -> int:
        """Move tickets into `into` that came at `since` or later, earliest first; return what they weigh.

        The older ones keep their places. If only those are left, the newest of them go. Takes only what was given
        `implied_seconds`, and nothing from a line whose deadlines came out of order.
        """
        tickets = line.tickets
        older = bisect_left(tickets, since, key=_submitted_at)
        newest = older == len(tickets)
        weight = 0
        if not newest:
            tickets.rotate(-older)
        # What was older stands at the end now, unless only that is there.
        end = older if not newest else 0
        while len(tickets) > end:
            ticket = tickets[-1] if newest else tickets[0]
            request = ticket.request
            take = tickets.pop if newest else tickets.popleft
            if ticket.ended:
                take()
                self._drop(ticket)
                continue
            more = weight + (request.rows or 1)
            if more > most or request.deadline - ticket.submitted_at < implied_seconds or request.deadline <= now:
                break
            take()
            weight = more
            self.empty += not request.rows
            self.leave(ticket, now)
            into.append(ticket)
            if line.group is None:
                break
        if not newest:
            tickets.rotate(older)
        line.last = tickets[-1].request.deadline if tickets else _NEVER
        return weight

    def _take_from_heap(
        self, line: Line, most: int, now: float, horizon: float, into: list[Ticket], late: list[Ticket]
    ) -> int:
        heap = line.heap
        weight = 0
        while heap:
            ticket = heap[0][2]
            if ticket.ended:
                heappop(heap)
                self._drop(ticket)
                continue
            if ticket.request.deadline <= horizon:
                heappop(heap)
                self.leave(ticket)
                late.append(ticket)
                continue
            more = weight + (ticket.request.rows or 1)
            if more > most:
                break
            heappop(heap)
            weight = more
            self.empty += not ticket.request.rows
            self.leave(ticket, now)
            into.append(ticket)
            if line.group is None:
                break
        if not heap:
            line.heap = None
            line.last = _NEVER
        return weight

    def expire(self, lane: Lane, now: float, late: list[Ticket]) -> float:
        """Move every ticket whose deadline has passed to `late`; return the earliest deadline that remains."""
        while (head := self.lead(lane)) is not None:
            if head.request.deadline > now:
                return head.request.deadline
            line = lane.order[0][2]
            if line.heap is None:
                line.tickets.popleft()
            else:
                heappop(line.heap)
            self.leave(head)
            late.append(head)
        return FOREVER

    def clear(self) -> list[Ticket]:
        """Take out everything that waits in lines, best lane first."""
        taken: list[Ticket] = []
        for lane in self.lanes:
            found: list[Ticket] = []
            for line in lane.lines.values():
                for ticket in _tickets(line):
                    if ticket.started_at == WAITING:
                        self.leave(ticket)
                    if not ticket.ended:
                        found.append(ticket)
            found.sort(key=_urgency)
            taken.extend(found)
            lane.lines.clear()
            lane.order.clear()
            lane.dead = 0
        return taken

    def tickets(self) -> Iterator[Ticket]:
        """Every ticket that the lines keep in memory, those included that have ended."""
        for lane in self.lanes:
            for line in lane.lines.values():
                yield from _tickets(line)

    def _push_out_of_order(self, line: Line, ticket: Ticket, deadline: float, arrival: int) -> None:
        heap = line.heap
        if heap is None:
            tickets = line.tickets
            first = -len(tickets)
            heap = line.heap = [(other.request.deadline, first + n, other) for n, other in enumerate(tickets)]
            tickets.clear()
        earlier = not heap or deadline < heap[0][0]
        heappush(heap, (deadline, arrival, ticket))
        if earlier:
            self._list(line, deadline)

    def _list(self, line: Line, deadline: float) -> None:
        """Enter a line into its lane's order; an older entry of it becomes void."""
        lane = line.lane
        order = lane.order
        self._turn = line.turn = self._turn + 1
        if order and order[0][2] is line:
            heapreplace(order, (deadline, self._turn, line))
            return
        heappush(order, (deadline, self._turn, line))
        if len(order) > 2 * len(lane.lines) + _SPARE_LINES:
            order[:] = [entry for entry in order if entry[1] == entry[2].turn]
            heapify(order)

    def _drop(self, ticket: Ticket) -> None:
        """An ended ticket has left its line."""
        if ticket.started_at == WAITING:
            self.leave(ticket)  # it ended without a word to the dispatcher
        else:
            self.lanes[ticket.request.lane].dead -= 1

    def _sweep(self, lane: Lane) -> None:
        """Let go of the ended tickets of a lane; costs as much as the cancels that led to it."""
        for line in list(lane.lines.values()):
            for ticket in _tickets(line):
                if ticket.ended and ticket.started_at == WAITING:
                    self.leave(ticket)
            if line.heap is None:
                line.tickets = deque(ticket for ticket in line.tickets if not ticket.ended)
            else:
                line.heap = [entry for entry in line.heap if not entry[2].ended]
                heapify(line.heap)
            if not _length(line):
                line.heap, line.last, line.turn = None, _NEVER, 0
                del lane.lines[line.group]
        lane.order[:] = [entry for entry in lane.order if entry[1] == entry[2].turn]
        heapify(lane.order)
        lane.dead = 0


def _close(line: Line) -> None:
    """A line has run empty. A few stay for the next of their group; the others go, for groups have no bound."""
    line.turn = 0
    lines = line.lane.lines
    if len(lines) > _SPARE_LINES:
        del lines[line.group]


def _length(line: Line) -> int:
    return len(line.tickets) if line.heap is None else len(line.heap)


def _tickets(line: Line) -> Iterable[Ticket]:
    """In their order, with those that have ended."""
    if line.heap is None:
        return line.tickets
    return [ticket for _, _, ticket in sorted(line.heap)]


def _urgency(ticket: Ticket) -> float:
    return ticket.request.deadline
