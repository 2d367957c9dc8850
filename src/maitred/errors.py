"""Every way a request can fail, and the answer that each boundary gives: one closed table.

The classes are the table's rows. `pool`, `replica` and the rules raise or return them and know no protocol; the
gateways read `http_status` and `grpc_status` from them and add nothing. A message says what happened and what the
caller can do next; it never holds a path, a stack trace or a payload.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

Fault = Literal["caller", "server", "model", "nobody"]


class MaitredError(Exception):
    """A request that was not answered. `message` is safe to show to callers.

    `retry_after_seconds` is how long a caller should wait before asking again; None where waiting does not help.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    fault: ClassVar[Fault] = "server"
    safe_to_retry: ClassVar[bool] = False
    """Whether the model certainly did not run, or running it again is harmless and may help."""
    counts_for_guards: ClassVar[bool] = True
    """Whether a rollout's guard holds this failure against the version that gave it."""
    next_step: ClassVar[str] = "report it to whoever runs this server"

    def __init__(self, message: object, *, retry_after_seconds: float | None = None) -> None:
        """`message` may be anything that has words, such as the exception that was caught."""
        message = str(message)
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Malformed(MaitredError):
    """The request breaks the protocol or the model's signature."""

    code, http_status, grpc_status = "malformed", 400, "INVALID_ARGUMENT"
    fault, counts_for_guards, next_step = "caller", False, "correct the request as the message says"


class InvalidInput(Malformed):
    """What a model raises for an input that is the caller's mistake and that no signature can tell: no image, too long.

    The request of that input gets this as a Malformed; others of its batch are answered.
    """


class Unauthenticated(MaitredError):
    code, http_status, grpc_status = "unauthenticated", 401, "UNAUTHENTICATED"
    fault, counts_for_guards, next_step = "caller", False, "send valid credentials"


class Forbidden(MaitredError):
    code, http_status, grpc_status = "forbidden", 403, "PERMISSION_DENIED"
    fault, counts_for_guards, next_step = "caller", False, "ask the operator for this right"


class Unknown(MaitredError):
    """No such model, version, route or job."""

    code, http_status, grpc_status = "unknown", 404, "NOT_FOUND"
    fault, counts_for_guards, next_step = "caller", False, "ask for one of the names that the index lists"


class Expired(MaitredError):
    """A result that existed and was removed."""

    code, http_status, grpc_status = "expired", 410, "NOT_FOUND"
    fault, counts_for_guards, next_step = "caller", False, "submit the work again"


class TooLarge(MaitredError):
    code, http_status, grpc_status = "too_large", 413, "RESOURCE_EXHAUSTED"
    fault, counts_for_guards, next_step = "caller", False, "send less at once"


class UnsupportedMedia(MaitredError):
    """A media type or content coding that is not spoken here."""

    code, http_status, grpc_status = "unsupported_media", 415, "INVALID_ARGUMENT"
    fault, counts_for_guards, next_step = "caller", False, "use a media type or coding that the message lists"


class KeyReused(MaitredError):
    """An idempotency key that was used with another body."""

    code, http_status, grpc_status = "key_reused", 422, "FAILED_PRECONDITION"
    fault, counts_for_guards, next_step = "caller", False, "use a new idempotency key"


class QueueFull(MaitredError):
    code, http_status, grpc_status = "queue_full", 429, "RESOURCE_EXHAUSTED"
    fault, counts_for_guards, safe_to_retry = "server", False, True
    next_step = "wait as long as Retry-After says"


class QuotaExceeded(MaitredError):
    code, http_status, grpc_status = "quota_exceeded", 429, "RESOURCE_EXHAUSTED"
    fault, counts_for_guards, safe_to_retry = "caller", False, True
    next_step = "wait as long as Retry-After says"


class WouldBeLate(MaitredError):
    """The deadline could not be met, so the request was refused before it cost anything."""

    code, http_status, grpc_status = "would_be_late", 429, "RESOURCE_EXHAUSTED"
    fault, counts_for_guards, safe_to_retry = "server", False, True
    next_step = "wait as long as Retry-After says, or allow more time"


class NoReplica(MaitredError):
    """The model is known, and no copy of it can run now."""

    code, http_status, grpc_status = "no_replica", 503, "UNAVAILABLE"
    safe_to_retry, next_step = True, "try again shortly"


class ReplicaLost(MaitredError):
    """The copy that ran the request died or hung, and the request was not tried again."""

    code, http_status, grpc_status = "replica_lost", 503, "UNAVAILABLE"
    safe_to_retry, next_step = False, "try again if running the model twice is harmless"


class Draining(MaitredError):
    code, http_status, grpc_status = "draining", 503, "UNAVAILABLE"
    counts_for_guards, safe_to_retry, next_step = False, True, "try again; another server may answer"


class StoreDown(MaitredError):
    code, http_status, grpc_status = "store_down", 503, "UNAVAILABLE"
    counts_for_guards, safe_to_retry, next_step = False, True, "try again shortly"


class Quarantined(MaitredError):
    """An input that has killed replicas and is refused for a while."""

    code, http_status, grpc_status = "quarantined", 500, "INTERNAL"
    fault, next_step = "model", "do not send this input again; report it to the model's owner"


class DeadlinePassed(MaitredError):
    code, http_status, grpc_status = "deadline_passed", 504, "DEADLINE_EXCEEDED"
    fault, next_step = "server", "allow more time, or send less load"


class ModelFault(MaitredError):
    """The model raised, or returned what its signature does not allow."""

    code, http_status, grpc_status = "model_fault", 500, "INTERNAL"
    fault, next_step = "model", "report it to the model's owner"


class Cancelled(MaitredError):
    """The caller went away or asked for an end."""

    code, http_status, grpc_status = "cancelled", 499, "CANCELLED"
    fault, counts_for_guards, next_step = "caller", False, "nothing; this was the caller's wish"


class Internal(MaitredError):
    """A defect of maitred itself."""


TABLE: Final[tuple[type[MaitredError], ...]] = (
    Malformed, Unauthenticated, Forbidden, Unknown, Expired, TooLarge, UnsupportedMedia, KeyReused, QueueFull,
    QuotaExceeded, WouldBeLate, NoReplica, ReplicaLost, Draining, StoreDown, Quarantined, DeadlinePassed, ModelFault,
    Cancelled, Internal,
)  # fmt: skip
