"""How a command says what went wrong: one line on standard error and an exit code, no traceback."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple


class CommandFailed(Exception):
    """A command cannot do what it was asked; the message says why, in words for whoever typed it."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Told(NamedTuple):
    """What is printed, and the exit code: 2 where the caller can mend it, else 1."""

    line: str
    exit_code: int


def told(error: Exception) -> Told | None:
    """What to say about an error that was to be expected; None for a defect of ours, which shows its traceback."""
    from maitred.errors import MaitredError
    from maitred.logline import escaped

    found = _told(error)
    if isinstance(error, MaitredError):
        found = Told(error.message, 2 if error.fault == "caller" else 1)
    return found and Told(f"maitred: {escaped(found.line)}", found.exit_code)


def _told(error: Exception) -> Told | None:
    from maitred.model.refusals import LoadRefused
    from maitred.model.signature import BadSignature
    from maitred.settings import SettingsError

    if isinstance(error, CommandFailed):
        return Told(str(error), error.exit_code)
    if isinstance(error, (LoadRefused, SettingsError, BadSignature)):
        return Told(str(error), 2)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return Told(f"{error.strerror}{where}", 2)
    return None


def stop_printing() -> None:
    """Whoever read standard output has left: what is printed from now on goes nowhere, without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
