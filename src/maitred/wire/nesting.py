"""How lists of JSON are nested, found in their text: what they would cost is known before they are read."""

from __future__ import annotations

from typing import Final

import numpy as np

from maitred.errors import Malformed
from maitred.wire.json import outside_strings

MAX_EMPTY_LISTS: Final = 1 << 16
"""Lists without elements that any data may have; data with more elements may have as many as those."""

MAX_UNEVEN_LISTS: Final = 1 << 20
"""Lists that have to be read one by one, for they are not all of one length."""

_SPACE: Final = b" \t\r\n"
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b"[],"))


def structure(text: bytes) -> bytes:
    """The brackets and commas of valid JSON, those in strings left out."""
    return (outside_strings(text).tobytes() if b'"' in text else text).translate(None, _NO_STRUCTURE)


def check_empty_lists(name: str, text: bytes) -> None:
    """Refuse valid JSON made of lists that hold nothing: each costs as much as many elements."""
    if text.count(b"[") <= MAX_EMPTY_LISTS or text.translate(None, _SPACE).count(b"[]") <= MAX_EMPTY_LISTS:
        return
    close = outside_strings(text).tobytes().translate(None, _SPACE)
    empty = close.count(b"[]")
    elements = close.count(b",") + 1 - empty  # each but the first of its list follows a comma
    if empty > max(MAX_EMPTY_LISTS, elements):
        raise Malformed(f"input {name!r}: {empty} empty lists beside {elements} elements; send fewer rows at once")


def even_sizes(brackets: bytes, depth: int) -> tuple[int, ...] | None:
    """The sizes of lists nested `depth` deep, given their `structure`; None where they are not all of one length.

    A list without elements passes for one of a single element.
    """
    size = brackets.find(b"]") - depth + 1
    sizes = [size]
    part = b"[%b]" % (b"," * (size - 1))
    for outer in range(depth - 2, -1, -1):
        end = brackets.find(part + b"]", outer + 1)
        size, rest = divmod(end - outer - 1, len(part) + 1)
        if end < 0 or rest:
            return None
        sizes.append(size + 1)
        part = b"[%b%b]" % ((part + b",") * size, part)
    return tuple(reversed(sizes)) if part == brackets else None


def flat(text: bytes) -> bytes:
    """The list of what is in nested lists that all hold something, given as valid JSON; strings stay as they are."""
    if b'"' not in text:
        return b"[%b]" % text.translate(None, b"[]")
    characters = np.frombuffer(text, np.uint8)
    unescaped = np.frombuffer(text.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
    outside = np.cumsum(unescaped == ord('"'), dtype=np.uint8) & 1 == 0  # may wrap: that keeps odd and even apart
    brackets = (characters == ord("[")) | (characters == ord("]"))
    return b"[%b]" % characters[~(outside & brackets)].tobytes()


def check_uneven_lists(name: str, brackets: bytes) -> None:
    """Refuse more lists than may be read one by one, given their `structure`."""
    if (lists := brackets.count(b"[")) > MAX_UNEVEN_LISTS:
        raise Malformed(f"input {name!r}: {lists} lists, and they are not all alike; send fewer rows at once")
