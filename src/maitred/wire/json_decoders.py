"""What reads the elements of a JSON array, strictly, and what a caller is told of those that it refuses."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Final, Literal

import msgspec

from maitred.errors import Malformed
from maitred.messages import DType
from maitred.wire.dtypes import DATATYPES, FLOATS, json_kind
from maitred.wire.elements import Target
from maitred.wire.nesting import MAX_EMPTY_LISTS


@functools.lru_cache(256)
def decoder(dtype: DType, depth: int, nulls: bool, names: bool, times: bool) -> msgspec.json.Decoder[Any]:
    """A strict decoder of lists nested `depth` deep: floats take integers too, nothing else is converted."""
    kind: Any = json_kind(dtype)
    if names:
        kind = kind | Literal["NaN", "Infinity", "-Infinity"]
    if times:
        kind = kind | str
    if nulls:
        kind = kind | None
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def check_number(name: str, shape: tuple[int, ...], commas: int) -> None:
    """Refuse text that cannot hold the elements of `shape`, however nested: all but the first follow a comma."""
    count = math.prod(shape)
    lists = math.prod(shape[: shape.index(0)]) if 0 in shape else 0
    if commas != count - 1 if count else commas >= max(1, min(lists, MAX_EMPTY_LISTS)):
        raise Malformed(f"input {name!r}: shape {list(shape)} holds {count} elements, data hold {commas + 1}")


def depth_of(text: bytes) -> int:
    """How many lists open before the first element."""
    head = _OPENING.match(text)
    return head[0].count(b"[") if head is not None else 0


_OPENING: Final = re.compile(rb"[\[ \t\r\n]*")
_PLACE: Final = re.compile(r" - at `\$([^`]*)`")
_WORDS: Final = {
    "int": "an integer", "float": "a decimal number", "str": "a string", "bool": "true or false", "array": "a list",
    "object": "an object",
}  # fmt: skip


def explained(target: Target, message: str) -> str:
    """A decoder's complaint in the words of the protocol, with the place in `data`."""
    datatype = DATATYPES[target.dtype]
    place = _PLACE.search(message)
    where = f" at data{place[1]}" if place else ""
    got = re.search(r"got `(\w+)`", message)
    if got is not None and got[1] == "null":
        return f"null{where} is not allowed" + ("" if target.dtype in FLOATS else f" for {datatype}")
    if got is not None:
        wanted = "times, as ISO 8601 text or whole numbers" if target.clock is not None else f"{datatype} values"
        return f"expected {wanted}, got {_WORDS.get(got[1], got[1])}{where}"
    if "out of range" in message:
        return f"the value{where} does not fit {datatype}"
    return f"the value{where} is not allowed for {datatype}"


def tame(message: str) -> str:
    """A parser's message without what could break a line."""
    return ascii(message.removeprefix("JSON is malformed: "))[1:-1][:200]
