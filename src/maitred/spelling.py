"""Which known name somebody may have meant, at a price that a stranger who sends wrong names cannot raise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MAX_NAMES: Final = 100
MAX_CHARACTERS: Final = 128
"""Of the wrong name, and of each known one that is looked at."""
MAX_COMPARED: Final = 768
"""Characters of all names of a fitting length together: comparing one takes about a tenth of a microsecond."""

_CLOSE: Final = 0.7
"""Two names are close if they have so much of their characters in common, in the same order. From 0 to 1."""


def nearest(name: str, known: Collection[str]) -> str | None:
    """The name among `known` that is closest to `name`, letter case aside; None where none is close.

    None also where an answer would be expensive: a long name, or many known ones.
    """
    if not 0 < len(name) <= MAX_CHARACTERS or len(known) > MAX_NAMES:
        return None
    wrong = name.lower()
    size = len(wrong)
    fitting = [other for other in known if 2 * min(size, len(other)) >= _CLOSE * (size + len(other))]
    if sum(map(len, fitting)) > MAX_COMPARED:
        return None
    places: dict[str, int] = {}
    for place, character in enumerate(wrong):
        places[character] = places.get(character, 0) | 1 << place
    best, score = None, _CLOSE
    for other in fitting:
        ratio = 2 * _in_common(places, size, other.lower()) / (size + len(other))
        if ratio > score or (ratio == score and best is None):
            best, score = other, ratio
    return best


def _in_common(places: dict[str, int], size: int, other: str) -> int:
    """The length of the longest common subsequence, by Hyyrö's bits: one step per character of `other`.

    `places`: for each character of the first text, the bits of its positions.
    """
    missing = (1 << size) - 1
    full = missing
    for character in other:
        found = places.get(character)
        if found is not None:
            matched = missing & found
            missing = (missing + matched | missing - matched) & full
    return size - missing.bit_count()


def did_you_mean(name: object, known: Collection[str]) -> str:
    """What ends a message about an unknown name: `; did you mean 'x'?`, or nothing where no known one is close."""
    close = nearest(name, known) if isinstance(name, str) else None
    return "" if close is None else f"; did you mean {close!r}?"
