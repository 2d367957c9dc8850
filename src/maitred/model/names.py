"""The one rule for names of models and deployments, applied at every door."""

from __future__ import annotations

import re
from typing import Final

from maitred.errors import Malformed

MAX_CHARACTERS: Final = 128
RULE: Final = f"use 1 to {MAX_CHARACTERS} letters, digits, '.', '_' or '-', beginning with a letter or digit"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


def check_name(name: object, what: str = "model name") -> str:
    """`name` itself, where it may name a model; raises Malformed saying the rule.

    A valid name starts with a letter or digit, goes on with letters, digits, `.`, `_` and `-`, and has at most 128
    characters: it needs no escaping in a URL, a file name, a log line or a metrics label.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise Malformed(f"{what} {_shown(name)} is not valid: {RULE}")


def _shown(name: object) -> str:
    """The name with everything escaped that could forge a line or flood a message."""
    if not isinstance(name, str):
        return f"of type {type(name).__name__}"
    return ascii(name if len(name) <= MAX_CHARACTERS else name[:40] + "...")
