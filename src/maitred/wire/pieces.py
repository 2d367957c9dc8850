"""Long JSON arrays in pieces: cut at commas, so that no single call has to look at all of their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from maitred.wire.sizes import PIECE_BYTES

Pause = Callable[[], None]
"""Called between two pieces: lets others have a turn. Raises to stop the work."""


def no_pause() -> None:
    """The pause of those who hold up nobody."""


Flags = npt.NDArray[np.bool_]
_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode


def pieces(text: memoryview, quoted: bool) -> Iterator[tuple[int, bytes]]:
    """The text cut at commas outside of strings, each piece with its place; the commas at the cuts are left out.

    `quoted`: whether it may hold strings. A piece is longer than PIECE_BYTES only where one string or number is.
    """
    at = 0
    while True:
        cut, inside = -1, False
        for place, block in blocks(text, at):
            if quoted and b'"' in block:
                found_at, inside = _last_comma(block, inside)
            else:
                found_at = -1 if inside else block.rfind(b",")
            if found_at >= 0:
                cut = place + found_at
            if place + len(block) == len(text):
                yield at, block if place == at else bytes(text[at:])
                return
            if cut >= 0:
                yield at, block[: cut - at] if place == at else bytes(text[at:cut])
                break
        else:
            yield at, b""
            return
        at = cut + 1


def _last_comma(block: bytes, inside: bool) -> tuple[int, bool]:
    """The place of the last comma that is not in a string, -1 where there is none, and whether a string is open at the
    end. `inside`: whether one is at the beginning."""
    block = _unescaped(block)
    quotes = int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord('"'))) + inside
    at = len(block)
    for _ in range(_TRIES):
        at = block.rfind(b",", 0, at)
        if at < 0 or (quotes - block.count(b'"', at)) % 2 == 0:
            return at, quotes % 2 == 1
    found = np.flatnonzero(outside(block, inside) & (np.frombuffer(block, np.uint8) == ord(",")))
    return int(found[-1]) if len(found) else -1, quotes % 2 == 1


_TRIES: Final = 16
"""Commas in the last string of a block after which all of the block is looked at."""


def _unescaped(text: bytes) -> bytes:
    """The same text with nothing but the quotes that begin and end strings."""
    return text.replace(b"\\\\", b"..").replace(b'\\"', b"..") if b"\\" in text else text


def blocks(text: memoryview, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """The text from a place on in blocks of about PIECE_BYTES, none of which ends within an escape."""
    while at < len(text):
        block = bytes(text[at : at + PIECE_BYTES])
        if block.endswith(b"\\"):
            block = block.rstrip(b"\\") or bytes(text[at : at + len(block) + len(block) % 2])
        yield at, block
        at += len(block)


def counted(text: memoryview, characters: bytes, pause: Pause = no_pause) -> list[int]:
    """How often each of some ASCII characters occurs in valid JSON outside of strings."""
    counts = [0] * len(characters)
    inside = False
    for _, block in blocks(text):
        array = np.frombuffer(block, np.uint8)
        there = [at for at, character in enumerate(characters) if character in block]
        if b'"' not in block:
            for at in there if not inside else ():
                counts[at] += int(np.count_nonzero(array == characters[at]))
        elif there:
            free = outside(block, inside)
            inside = not free[-1]
            for at in there:
                counts[at] += int(np.count_nonzero(free & (array == characters[at])))
        else:
            inside = (int(np.count_nonzero(np.frombuffer(_unescaped(block), np.uint8) == ord('"'))) + inside) % 2 == 1
        pause()
    return counts


def outside(text: bytes, inside: bool = False) -> Flags:
    """For each character whether it stands outside of strings; the quotes that end them count as outside.

    `inside`: whether the text begins within a string. It must not begin within an escape.
    """
    octets = np.frombuffer(_unescaped(text), np.uint8)
    quotes = np.cumsum(octets == ord('"'), dtype=np.uint8)  # may wrap: odd and even stay apart
    flags: Flags = (quotes & 1) == inside
    return flags


def opened(piece: bytes, quoted: bool) -> int:
    """How many more lists a piece opens than it closes."""
    if quoted and b'"' in piece:
        opens, closes = counted(memoryview(piece), b"[]")
        return opens - closes
    return piece.count(b"[") - piece.count(b"]")


def has_quotes(text: memoryview) -> bool:
    """Whether a text holds strings."""
    return any(b'"' in bytes(text[at : at + PIECE_BYTES]) for at in range(0, len(text), PIECE_BYTES))


def flaw(text: memoryview, quoted: bool, pause: Pause) -> tuple[int, int, bytes] | None:
    """Where an array is no valid JSON: the bounds of the piece that is to blame, and what must stand before it so that
    a decoder is where it would be; None for valid JSON. Strings are not looked into, as with `msgspec.Raw`."""
    depth = 0
    for at, piece in pieces(text, quoted):
        last = at + len(piece) >= len(text)
        head = b"[" * depth + b"0," if at else b""
        if at and depth <= 0:
            return at, at + len(piece), head
        depth += opened(piece, quoted)
        try:
            _skip(b"".join((head, piece, b"" if last else b",0" + b"]" * depth)))
        except (msgspec.DecodeError, RecursionError):
            return at, at + len(piece), head
        if last:
            return None
        pause()
    return None


def commas(text: memoryview, quoted: bool, pause: Pause) -> int:
    """How many commas valid JSON has, where it may be `quoted` outside of strings only."""
    if quoted:
        return counted(text, b",", pause)[0]
    count = 0
    for _, block in blocks(text):
        count += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord(",")))  # quicker than bytes.count
        pause()
    return count
