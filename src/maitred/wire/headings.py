"""The names of a table's columns beside the inputs of a model: what they must have, and what seems misspelt."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from maitred.errors import Malformed


class MayBeAbsent(Protocol):
    """What a signature says of an input."""

    @property
    def optional(self) -> bool: ...


def check_spelling(names: Collection[str], inputs: Mapping[str, MayBeAbsent]) -> None:
    """Refuse a column that is, but for letter case and signs, an optional input that the table lacks.

    Tables may have columns that a model does not read; that one would be silently left out. Raises Malformed naming
    both.
    """
    others = {_letters(name): name for name in names if name not in inputs}
    for name, spec in inputs.items():
        if spec.optional and name not in names and _letters(name) in others:
            raise Malformed(
                f"the table has a column {others[_letters(name)]!r} and none {name!r}, which may be left out: "
                "rename the column, or drop it"
            )


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()
