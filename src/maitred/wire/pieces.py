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
                free = outside(block, inside)
                inside = not free[-1]
                found = np.flatnonzero(free & (np.frombuffer(block, np.uint8) == ord(",")))
                cut = place + int(found[-1]) if len(found) else -1
            elif not inside and (found_at := block.rfind(b",")) >= 0:
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
        if b'"' in block:
            free = outside(block, inside)
            inside = not free[-1]
            array = np.frombuffer(block, np.uint8)
            for at, character in enumerate(characters):
                counts[at] += int(np.count_nonzero(free & (array == character)))
        elif not inside:
            for at in range(len(characters)):
                counts[at] += block.count(characters[at : at + 1])
        pause()
    return counts


def outside(text: bytes, inside: bool = False) -> Flags:
    """For each character whether it stands outside of strings; the quotes that end them count as outside.

    `inside`: whether the text begins within a string. It must not begin within an escape.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    quotes = np.cumsum(np.frombuffer(text, np.uint8) == ord('"'), dtype=np.uint8)  # may wrap: odd and even stay apart
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
        count += block.count(b",")
        pause()
    return count
