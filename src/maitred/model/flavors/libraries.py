"""The library behind a flavor: asked for where it is needed, and quoted without the places that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from maitred.model.refusals import MissingExtra

_MAX_CHARACTERS: Final = 500
_TRACE: Final = re.compile(r"\n\s*(?:Stack trace:|\n)")
"""Where the words end and the library's own calls begin."""
_PLACE: Final = re.compile(r"(?:\[[\d:]+\] )?\S*\.(?:cc|cpp|cu|cuh|h|hpp):\d+: ")
"""Where in its source a library says it, and at which time."""


@contextmanager
def needs(flavor: str, library: str, extra: str | None = None) -> Iterator[None]:
    """For the import of a library, within: raises `MissingExtra` where it is not installed.

    `extra` of maitred brings it, the flavor's own where it is None; empty: no extra does.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(flavor, library, flavor if extra is None else extra) from error


def words_of(error: BaseException, root: Path | None = None) -> str:
    """What a library said, on one line: without its stack trace, places in its source, and the model's folder."""
    said = _TRACE.split(str(error).strip(), maxsplit=1)[0]
    if root is not None:
        said = said.replace(str(root), "")
    said = _PLACE.sub("", said, count=1) if _PLACE.match(said) else said
    return " ".join(said.split())[:_MAX_CHARACTERS] or type(error).__name__
