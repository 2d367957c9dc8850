"""How a line of the log looks, as text or JSON: one per record, which nothing in it can break or forge."""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, TextIO

import msgspec

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
        self.payloads = payloads

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = dict(getattr(record, "fields", None) or {})
        if record.exc_info and record.exc_info[1] is not None:
            fields.update(self._error(record.exc_info[1], record.exc_info[2]))
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return self.line(time, record.levelname, record.name, _message(record), fields)

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def _error(self, error: BaseException, trace: TracebackType | None) -> dict[str, str]:
        """An exception's type and frames. Its text may hold a caller's data, so only that of our own is shown."""
        told = {"error": type(error).__name__}
        if self.payloads or type(error).__module__.partition(".")[0] == "maitred":
            told["error_text"] = _text(error)
        frames = traceback.extract_tb(trace)
        told["trace"] = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        return told


class TextFormatter(_Formatter):
    """`2026-11-30T18:00:00.000Z INFO maitred.pool: replica is ready model=churn replica=1`"""

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        pairs = "".join(f" {escaped(name)}={_value(value)}" for name, value in fields.items())
        return f"{time} {escaped(level)} {escaped(logger)}: {escaped(message)}{pairs}"


class JsonFormatter(_Formatter):
    """An object per line with `time`, `level`, `logger`, `message` and the record's fields."""

    def line(self, time: str, level: str, logger: str, message: str, fields: Mapping[str, Any]) -> str:
        own = {"time": time, "level": level, "logger": logger, "message": _cut(message)}
        others = {_cut(name): _json_value(value) for name, value in fields.items() if name not in own}
        return json.dumps({**own, **others}).replace("\x7f", "\\u007f")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # its methods may be anybody's, and must not cost the line
        return f"({type(broken).__name__} while it was put into words)"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # whoever logged it gave arguments that do not fit, which must not cost the line
        return f"{record.msg!s} (cannot be filled in: {type(error).__name__})"


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


class Style(msgspec.Struct, frozen=True):
    """What the log of one process has in common with that of another."""

    format: Format = "text"
    level: Level = "info"
    payloads: bool = False
    """Show the text of foreign exceptions too, which may quote what callers sent."""


def handler(style: Style, stream: TextIO | None = None) -> logging.Handler:
    """Writes lines of this style to `stream` (standard error)."""
    made = logging.StreamHandler(stream or sys.stderr)
    made.setFormatter(FORMATTERS[style.format](style.payloads))
    return made


def style_in_use() -> Style:
    """That of this process' log; the default where another library or program has set it up."""
    for each in logging.getLogger().handlers:
        formatter = each.formatter
        if isinstance(formatter, _Formatter):
            format: Format = "json" if isinstance(formatter, JsonFormatter) else "text"
            return Style(format, _level(logging.getLogger("maitred").level), formatter.payloads)
    return Style()


def _level(number: int) -> Level:
    levels: tuple[tuple[int, Level], ...] = ((logging.DEBUG, "debug"), (logging.INFO, "info"), (30, "warning"))
    return next((name for bound, name in levels if number <= bound), "error")


def take_over(style: Style) -> None:
    """Have all that Python itself would write to standard error written as lines of this style, to the process' end.

    Our log records from `style.level` up and those of others too (but none of their debugging), warnings, and
    exceptions that nobody caught.
    """
    root, ours = logging.getLogger(), logging.getLogger("maitred")
    root.addHandler(handler(style))
    ours.setLevel(style.level.upper())
    root.setLevel(max(ours.level, logging.INFO))
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    sys.unraisablehook = _unraisable


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("python").error("an exception was not caught", exc_info=(kind, error, trace))


def _uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None and told.exc_type is not SystemExit:
        _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def _unraisable(told: sys.UnraisableHookArgs) -> None:
    if told.exc_value is not None:
        _uncaught(told.exc_type, told.exc_value, told.exc_traceback)
