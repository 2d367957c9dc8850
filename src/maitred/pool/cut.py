"""A request with more rows than a batch may hold, as parts that are queued on their own and joined at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import numpy as np

from maitred.endpoint import Owner, Ticket
from maitred.errors import ModelFault
from maitred.messages import Chunk, Outputs, Request, Result, Tensor


def cut(request: Request, max_rows: int, shared: Collection[str]) -> list[Request]:
    """The request's rows in order, at most `max_rows` in each part; tensors are views of the whole's.

    `shared` names the inputs without the row axis, which every part has whole.
    """
    parts = []
    for start in range(0, request.rows, max_rows):
        stop = min(start + max_rows, request.rows)
        inputs = {
            name: tensor if name in shared else tensor.rows(start, stop) for name, tensor in request.inputs.items()
        }
        size = request.size_bytes * (stop - start) // request.rows
        part = msgspec.structs.replace(request, inputs=inputs, rows=stop - start, size_bytes=size)
        if request.ragged is not None:
            part.ragged = request.ragged.part(start, stop, request.rows)
        parts.append(part)
    return parts


class Part(Ticket):
    """A piece of an oversized request. It is queued like any ticket, and is nobody's request of its own."""

    __slots__ = ("kept",)

    def __init__(self, request: Request, owner: Owner, submitted_at: float) -> None:
        super().__init__(request, owner, submitted_at)
        self.kept: Result | None = None


class Cut:
    """Watches the parts of one ticket and ends it when all have ended, or as soon as one fails."""

    __slots__ = ("ticket", "parts", "_left", "_whole_ended")

    def __init__(
        self, ticket: Ticket, requests: list[Request], pool: Owner, now: float, whole_ended: Callable[[Ticket], None]
    ) -> None:
        self.ticket = ticket
        self.parts = [Part(request, pool, now) for request in requests]
        self._left = len(self.parts)
        self._whole_ended = whole_ended
        ticket.owner = self
        for part in self.parts:
            part.watch(self)

    def cancelled(self, ticket: Ticket) -> None:
        """The caller has left: nobody needs the parts."""
        self._whole_ended(ticket)
        self._drop_parts()

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        raise NotImplementedError("a request of several parts is not streamed")

    def ended(self, ticket: Ticket) -> None:
        """A part has ended. What it was given is copied: the views die when this returns."""
        if self.ticket.ended:
            return
        if ticket.error is not None:
            self.ticket.fail(ticket.error)
            self._whole_ended(self.ticket)
            self._drop_parts()
            return
        assert isinstance(ticket, Part) and ticket.result is not None
        ticket.kept = ticket.result.owned()
        self._left -= 1
        if self._left == 0:
            kept = [part.kept for part in self.parts if part.kept is not None]
            unlike = _unlike(kept)
            if unlike:
                self.ticket.fail(ModelFault(unlike))
            else:
                self.ticket.end(_joined(kept))
            self._whole_ended(self.ticket)

    def _drop_parts(self) -> None:
        for part in self.parts:
            part.cancel()


def _unlike(results: list[Result]) -> str:
    """Why the parts' answers do not go below each other; empty if they do."""
    for name in results[0].batch.tensors:
        shapes = sorted({result.batch.tensors[name].shape[1:] for result in results})
        if len(shapes) > 1:
            return (
                f"the request has more rows than a batch may hold, and output '{name}' of its {len(results)} parts has "
                f"rows of different shapes, {list(shapes[0])} and {list(shapes[-1])}: send fewer rows at once"
            )
    return ""


def _joined(results: list[Result]) -> Result:
    """The parts' answers one below the other; times are the slowest part's wait and the sum of the model's."""
    tensors = {}
    for name, first in results[0].batch.tensors.items():
        pieces = [result.batch.tensors[name] for result in results]
        shape = (sum(piece.shape[0] for piece in pieces), *first.shape[1:])
        if isinstance(first.data, list):
            tensors[name] = Tensor(first.dtype, shape, [item for piece in pieces for item in piece.data])
        else:
            tensors[name] = Tensor(first.dtype, shape, np.concatenate([piece.data for piece in pieces]))
    rows = sum(result.stop for result in results)
    model_seconds = sum(result.batch.model_seconds for result in results)
    batch_seconds = sum(result.batch.batch_seconds for result in results)
    queue_seconds = max(result.queue_seconds for result in results)
    return Result(Outputs(tensors, rows, model_seconds, batch_seconds), 0, rows, True, queue_seconds)
