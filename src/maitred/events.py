"""What happened, as records: one event per batch, one per request that never reached one. A listener is a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec


class Event(msgspec.Struct, frozen=True, gc=False):
    """`model` and `version` are names that the operator chose, never what a caller sent."""

    model: str
    version: str


class BatchEnded(Event, frozen=True, gc=False):
    """A replica has answered a batch, or was lost while it ran it. Moments are on the monotonic clock, in seconds."""

    replica: int
    rows: int
    requests: int
    outcome: str
    """`ok`, or a value of `scheduling.recovery.Cause`."""
    ok: int
    """Members that were answered by this batch."""
    received_at: list[float]
    """Per member: when its last byte was read; 0.0 where it did not come over a wire."""
    submitted_at: list[float]
    """Per member."""
    started_at: float
    ended_at: float
    """When the replica answered."""
    model_seconds: float
    encode_seconds: float
    """Ending the tickets: the time in which gateways encode the answers."""
    bucket: str = ""
    """The sizes to which the members' rows were filled up, `seq=64`; empty for a model without buckets."""
    elements: int = 0
    """Elements of those inputs, as the model got them."""
    real: int = 0
    """How many of them were no fill."""


METHOD_NOT_ALLOWED: Final = "method_not_allowed"
"""The one code of a request's end that is no `MaitredError`'s."""


class RequestEnded(Event, frozen=True, gc=False):
    """A request ended without being one member of one batch: refused, cancelled, expired, failed, or made of parts."""

    code: str
    """`ok`, `MaitredError.code` or METHOD_NOT_ALLOWED."""
    waited_seconds: float
    count: int = 1
    """Requests that have ended like this at about the same time: refusals of a moment are told of together."""


class ReplicaChanged(Event, frozen=True, gc=False):
    replica: int
    state: str
    reason: str


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """The listener of those who want none."""
