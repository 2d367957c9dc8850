"""A manual pool behind a front: one loop that reads requests and writes answers, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maitred.messages import Outputs, Result
from maitred.scheduling.dispatcher import Batch, DispatchSettings
from maitred.testing.dispatch import NOTHING, ManualPool


class FrontedPool(ManualPool):
    """What a manual pool leaves out: the server's own time, for which callers and batches wait.

    The loop takes turns. In each it reads what has come by then, `read_seconds` a request, and writes the answers of
    the batches that are over, `write_seconds` a request; at its end the dispatcher is asked, as a pool does.
    """

    def __init__(
        self, settings: DispatchSettings | None = None, *, read_seconds: float = 6e-6, write_seconds: float = 6e-6,
        **more: Any,
    ) -> None:  # fmt: skip
        super().__init__(settings, **more)
        self.read_seconds = read_seconds
        self.write_seconds = write_seconds
        self._inbox: list[Callable[[], object]] = []
        self._turn_due = False

    def receive(self, read: Callable[[], object]) -> object:
        """A request has reached the server: `read`, which submits it, is called once it is its turn."""

        def work() -> None:
            self.now += self.read_seconds
            read()

        return self._leave_to_turn(work)

    def hold(self, until: float) -> None:
        if until:
            super().hold(until)
        else:
            self._held = until
            self._turn_soon()

    def _leave_to_turn(self, work: Callable[[], object]) -> object:
        self._inbox.append(work)
        self._turn_soon()
        return NOTHING

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.call_at(self.now, self._turn)

    def _turn(self) -> object:
        self._turn_due = False
        inbox, self._inbox = self._inbox, []
        for work in inbox:
            work()
        return None  # which asks the dispatcher

    def _batch_over(self, batch: Batch) -> object:
        return self._leave_to_turn(lambda: super(FrontedPool, self)._batch_over(batch))

    def _answer(self, batch: Batch) -> None:
        self.dispatcher.answered(batch.replica, batch.id, self.now, self.now - batch.started_at)
        if self.dispatcher.waiting_rows() >= self.settings.max_batch_rows:
            self.tick()  # a full batch waits: nothing could be gained by writing the answers first
        outputs = Outputs({}, batch.rows)
        start = 0
        for ticket in batch.tickets:
            stop = start + ticket.request.rows
            self.now += self.write_seconds
            ticket.end(Result(outputs, start, stop))
            start = stop
        if self.dispatcher.returning.seconds:
            self.dispatcher.written(batch, self.now)
