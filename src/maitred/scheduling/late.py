"""Requests past their deadline: which of a batch they are, and what their callers are told."""

from __future__ import annotations

from collections.abc import Sequence

from maitred.endpoint import Ticket
from maitred.errors import DeadlinePassed, MaitredError, WouldBeLate
from maitred.messages import FOREVER
from maitred.scheduling.admission import Load, drain_seconds
from maitred.scheduling.batching import Batch


def deadline_of(tickets: Sequence[Ticket]) -> float:
    """The earliest of their deadlines."""
    return min(ticket.request.deadline for ticket in tickets)


def find_overdue(batch: Batch, now: float, overdue: list[tuple[Batch, Ticket]]) -> float:
    """Add the members past their deadline; return the earliest deadline of the others."""
    earliest = FOREVER
    for ticket in batch.tickets:
        if ticket.ended:
            continue
        deadline = ticket.request.deadline
        if deadline <= now:
            overdue.append((batch, ticket))
        elif deadline < earliest:
            earliest = deadline
    return earliest


def late_waiting(ticket: Ticket, now: float) -> MaitredError:
    """The deadline came before the request's turn."""
    return DeadlinePassed(
        f"the deadline passed while the request waited in the queue, for {now - ticket.submitted_at:.3f} s; "
        "the model did not run"
    )


def too_late(ticket: Ticket, load: Load, now: float) -> MaitredError:
    """The deadline is still to come, and the answer would come after it."""
    return WouldBeLate(
        f"the answer would take about {load.batch_seconds:.3f} s, and the deadline is in "
        f"{ticket.request.deadline - now:.3f} s: try later, or allow more time",
        retry_after_seconds=drain_seconds(load, load.lanes[ticket.request.lane].rows),
    )


def late_running(ticket: Ticket, now: float) -> MaitredError:
    """The deadline came before the model's answer."""
    waited, ran = ticket.started_at - ticket.submitted_at, now - ticket.started_at
    return DeadlinePassed(
        f"the deadline passed while the model ran: after {waited:.3f} s in the queue and {ran:.3f} s of running"
    )
