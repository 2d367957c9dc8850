"""The server's log: one line per event that matters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TextIO

from maitred.clock import Clock, monotonic
from maitred.errors import TABLE
from maitred.events import BatchEnded, Event, ReplicaChanged, RequestEnded
from maitred.logline import Format, Level, Style, handler


def set_up(
    level: Level = "info",
    format: Format = "text",
    stream: TextIO | None = None,
    *,
    payloads: bool = False,
) -> Callable[[], None]:
    """Send this process' log to `stream` (standard error) and return what takes it back.

    Other libraries are heard from `warning` up, Python's own warnings among them. `payloads`: show the text of
    foreign exceptions too, which may quote what callers sent.
    """
    writes = handler(Style(format, level, payloads), stream)
    root, ours = logging.getLogger(), logging.getLogger("maitred")
    before = root.level, ours.level
    root.addHandler(writes)
    root.setLevel(logging.WARNING)
    ours.setLevel(level.upper())
    logging.captureWarnings(True)

    def undo() -> None:
        logging.captureWarnings(False)
        root.removeHandler(writes)
        root.setLevel(before[0])
        ours.setLevel(before[1])

    return undo


NOT_THE_CALLERS: Final = frozenset(error.code for error in TABLE if error.fault not in ("caller", "nobody"))
"""Failures that an operator wants to hear of."""

REPEAT_SECONDS: Final = 10.0
"""The same trouble with the same version is told of this often at most, with how often it came."""


class EventLog:
    """A listener that writes what an operator would want to know, and never a line per request."""

    def __init__(self, logger: logging.Logger, clock: Clock = monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When a trouble was last told of, and how often it came since."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchEnded):
            if event.outcome not in ("ok", "malformed"):  # whose mistake it was, was told of it
                self._trouble(event, "batch failed", event.outcome)
        elif isinstance(event, RequestEnded):
            if event.code in NOT_THE_CALLERS:
                self._trouble(event, "requests failed", event.code, event.count)
        elif isinstance(event, ReplicaChanged):
            self._replica_changed(event)

    def _replica_changed(self, event: ReplicaChanged) -> None:
        level = logging.WARNING if event.state in ("lost", "hung", "failed") else logging.INFO
        fields = {"model": event.model, "version": event.version, "replica": event.replica}
        if event.reason:
            fields["reason"] = event.reason
        self._logger.log(level, "replica is %s", event.state, extra={"fields": fields})

    def _trouble(self, event: Event, message: str, cause: str, count: int = 1) -> None:
        key = (event.model, event.version, cause)
        now = self._clock()
        last, more = self._told.get(key, (-REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._told[key] = (last, more + count)
            return
        self._told[key] = (now, 0)
        fields = {"model": event.model, "version": event.version, "cause": cause, "times": more + count}
        self._logger.warning(message, extra={"fields": fields})
