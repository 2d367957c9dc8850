"""The server's log: one line per event that matters, as text or JSON, which nothing in it can break or forge."""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, TextIO

from maitred.clock import Clock, monotonic
from maitred.errors import TABLE
from maitred.events import BatchEnded, Event, ReplicaChanged, RequestEnded

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]

MAX_CHARACTERS: Final = 8192
"""Longer values are cut, and say so."""

_HARMFUL: Final = re.compile("[\x00-\x1f\\\\\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""What ends a line, moves a terminal's cursor, or hides or reorders text; the backslash, so that escapes are unique."""
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_BARE: Final = re.compile(r"[\w.:/@+-]+")


def escaped(text: str) -> str:
    """The text on one line, harmless to a terminal; what was escaped can be told from what was written."""
    return _HARMFUL.sub(_escape, _cut(text))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class _Formatter(logging.Formatter):
    """One line per record. Its fields come as `extra={"fields": {...}}`."""

    def __init__(self, payloads: bool = False) -> None:
        super().__init__()
        self._payloads = payloads

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = dict(getattr(record, "fields", None) or {})
        if record.exc_info and record.exc_info[1] is not None:
            fields.update(self._error(record.exc_info[1], record.exc_info[2]))
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return self.line(time, record.levelname, record.name, record.getMessage(), fields)

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def _error(self, error: BaseException, trace: TracebackType | None) -> dict[str, str]:
        """An exception's type and frames. Its text may hold a caller's data, so only that of our own is shown."""
        told = {"error": type(error).__name__}
        if self._payloads or type(error).__module__.partition(".")[0] == "maitred":
            told["error_text"] = str(error)
        frames = traceback.extract_tb(trace)
        told["trace"] = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        return told


class TextFormatter(_Formatter):
    """`2026-11-30T18:00:00.000Z INFO maitred.pool: replica is ready model=churn replica=1`"""

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        pairs = "".join(f" {escaped(name)}={_value(value)}" for name, value in fields.items())
        return f"{time} {level} {escaped(logger)}: {escaped(message)}{pairs}"


class JsonFormatter(_Formatter):
    """An object per line with `time`, `level`, `logger`, `message` and the record's fields."""

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        own = {"time": time, "level": level, "logger": logger, "message": _cut(message)}
        others = {_cut(name): _json_value(value) for name, value in fields.items() if name not in own}
        return json.dumps({**own, **others}).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    text = str(value)
    if len(text) <= MAX_CHARACTERS and text.isascii() and _BARE.fullmatch(text):
        return text
    return '"' + escaped(text).replace('"', '\\"') + '"'


def _json_value(value: object) -> object:
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return str(value)  # JSON has no number for these
    return value if value is None or isinstance(value, (bool, int, float)) else _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text) - MAX_CHARACTERS} more)"


FORMATTERS: Final[Mapping[Format, type[_Formatter]]] = {"text": TextFormatter, "json": JsonFormatter}


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
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[format](payloads))
    root, ours = logging.getLogger(), logging.getLogger("maitred")
    before = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(level.upper())
    logging.captureWarnings(True)

    def undo() -> None:
        logging.captureWarnings(False)
        root.removeHandler(handler)
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
            if event.outcome != "ok":
                self._trouble(event, "batch failed", event.outcome)
        elif isinstance(event, RequestEnded):
            if event.code in NOT_THE_CALLERS:
                self._trouble(event, "requests failed", event.code)
        elif isinstance(event, ReplicaChanged):
            self._replica_changed(event)

    def _replica_changed(self, event: ReplicaChanged) -> None:
        level = logging.WARNING if event.state in ("lost", "hung", "failed") else logging.INFO
        fields = {"model": event.model, "version": event.version, "replica": event.replica}
        if event.reason:
            fields["reason"] = event.reason
        self._logger.log(level, "replica is %s", event.state, extra={"fields": fields})

    def _trouble(self, event: Event, message: str, cause: str) -> None:
        key = (event.model, event.version, cause)
        now = self._clock()
        last, more = self._told.get(key, (-REPEAT_SECONDS, 0))
        if now - last < REPEAT_SECONDS:
            self._told[key] = (last, more + 1)
            return
        self._told[key] = (now, 0)
        fields = {"model": event.model, "version": event.version, "cause": cause, "times": more + 1}
        self._logger.warning(message, extra={"fields": fields})
