"""The one verb: `submit(Request) -> Ticket`. A ticket calls back its watcher, and can be awaited and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from maitred.errors import Cancelled, MaitredError
from maitred.messages import Chunk, Request, Result

T = TypeVar("T")


class Watcher(Protocol):
    """Whoever waits for a ticket. Must not call `submit` from inside `ended`, and must not raise."""

    def piece(self, ticket: Ticket, chunk: Chunk) -> None: ...

    def ended(self, ticket: Ticket) -> None: ...


class Owner(Protocol):
    """The endpoint that works on a ticket and wants to hear that its caller has left."""

    def cancelled(self, ticket: Ticket) -> None: ...


class Endpoint(Protocol):
    """Anything that answers requests. Belongs to one event loop and is not thread-safe."""

    def submit(self, request: Request) -> Ticket:
        """Never waits and never raises for a refusal: a refused request gets a ticket that has ended."""
        ...

    def room(self, lane: int) -> int:
        """Rows that this lane may still send without being refused."""
        ...


class Ticket:
    """One request on its way. Ends exactly once, with `result` or with `error`; later endings are ignored."""

    __slots__ = ("request", "ended", "result", "error", "submitted_at", "started_at", "attempts", "owner", "watcher")

    def __init__(self, request: Request, owner: Owner | None = None, submitted_at: float = 0.0) -> None:
        self.request = request
        self.ended = False
        self.result: Result | None = None
        self.error: MaitredError | None = None
        self.submitted_at = submitted_at
        self.started_at = 0.0
        self.attempts = 0
        """How often this request was part of a batch that was lost with its replica."""
        self.owner = owner
        self.watcher: Watcher | None = None
        """Set by `watch`."""

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called on pieces and at the end; at once if the ticket has ended. One watcher only."""
        if self.watcher is not None:
            raise RuntimeError("a ticket has exactly one watcher")
        self.watcher = watcher
        if self.ended:
            watcher.ended(self)

    def end(self, result: Result) -> bool:
        """Answer the request. False if it had ended already.

        Arrays of `result` may be views that die when this returns: a watcher encodes or copies them inside `ended`.
        """
        if self.ended:
            return False
        self.ended = True
        watcher = self.watcher
        if watcher is None:
            self.result = result.owned()  # nobody looks yet, and the views are about to die
        else:
            self.result = result
            watcher.ended(self)
            self.result = None
        return True

    def fail(self, error: MaitredError) -> bool:
        """Refuse or fail the request. False if it had ended already."""
        if self.ended:
            return False
        self.ended = True
        self.error = error
        if self.watcher is not None:
            self.watcher.ended(self)
        return True

    def cancel(self, error: MaitredError | None = None) -> bool:
        """End now because the caller has left (or, with `error`, for that reason), and tell the endpoint."""
        if not self.fail(error or Cancelled("the caller cancelled the request")):
            return False
        if self.owner is not None:
            self.owner.cancelled(self)
        return True

    def __await__(self) -> Generator[Any, None, Result]:
        waiter = Waiter(asyncio.get_running_loop(), Result.owned)
        self.watch(waiter)
        try:
            return (yield from waiter.future.__await__())
        except asyncio.CancelledError:
            self.cancel()
            raise


class Waiter(Generic[T]):
    """Turns the end of a ticket into a future's, with what `keep` makes of the answer while its memory is there."""

    __slots__ = ("future", "_keep")

    def __init__(self, loop: asyncio.AbstractEventLoop, keep: Callable[[Result], T]) -> None:
        self.future: asyncio.Future[T] = loop.create_future()
        self._keep = keep

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        raise NotImplementedError

    def ended(self, ticket: Ticket) -> None:
        if self.future.done():
            return
        if ticket.error is not None:
            self.future.set_exception(ticket.error)
        elif ticket.result is not None:
            self.future.set_result(self._keep(ticket.result))
