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
    at, end = 0, len(text)
    while True:
        reach = PIECE_BYTES
        while True:
            piece = bytes(text[at : at + reach])
            if at + reach >= end:
                yield at, piece
                return
            cut = _last_comma(piece) if quoted else piece.rfind(b",")
            if cut >= 0:
                break
            reach *= 2
        yield at, piece[:cut]
        at += cut + 1


def _last_comma(piece: bytes) -> int:
    """The place of the last comma that is not in a string; -1 where there is none."""
    if b'"' not in piece:
        return piece.rfind(b",")
    found = np.flatnonzero(outside(piece) & (np.frombuffer(piece, np.uint8) == ord(",")))
    return int(found[-1]) if len(found) else -1


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
        piece = np.frombuffer(piece, np.uint8)[outside(piece)].tobytes()
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
    """How many commas outside of strings valid JSON has."""
    count = -1
    for _, piece in pieces(text, quoted):
        if quoted and b'"' in piece:
            count += 1 + int(np.count_nonzero((np.frombuffer(piece, np.uint8) == ord(",")) & outside(piece)))
        else:
            count += 1 + piece.count(b",")
        pause()
    return count
