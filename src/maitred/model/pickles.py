"""What a pickle would import, read without running it."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import pickletools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

MAX_BYTES: Final = 16 << 20
MAX_OPCODES: Final = 200_000
"""How much of the (inflated) file is looked at: a fraction of a second's work."""
MAX_NAMES: Final = 40

_STRINGS: Final = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_PUTS: Final = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS: Final = {"GET", "BINGET", "LONG_BINGET"}


def imports(path: Path) -> tuple[str, ...]:
    """Names, `module.name`, that unpickling the file would import; sorted, at most `MAX_NAMES`.

    Best effort: a hostile or damaged pickle can hide some, so the list explains a refusal and never grants anything.
    """
    found: set[str] = set()
    try:
        for name in _names(_inflated(path)):
            found.add(name)
            if len(found) == MAX_NAMES:
                break
    except (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, IndexError, UnicodeDecodeError, MemoryError):
        return tuple(sorted(found))  # joblib keeps raw arrays between opcodes: what was seen up to there is what we say
    return tuple(sorted(found))


def _names(data: bytes) -> Iterator[str]:
    strings: list[str] = []
    memo: dict[int, str] = {}
    pushed = ""
    for opcode, argument, _ in itertools.islice(pickletools.genops(data), MAX_OPCODES):
        name = opcode.name
        if name in {"GLOBAL", "INST"}:
            yield str(argument).replace(" ", ".", 1)
        elif name == "STACK_GLOBAL":
            if len(strings) >= 2:
                yield f"{strings[-2]}.{strings[-1]}"
        elif name in _STRINGS:
            pushed = str(argument)
            strings = [*strings[-1:], pushed]
        elif name in _GETS:
            if cast(int, argument) in memo:
                strings = [*strings[-1:], memo[cast(int, argument)]]
        elif name == "MEMOIZE":
            memo[len(memo)] = pushed
        elif name in _PUTS:
            memo[cast(int, argument)] = pushed
        else:
            pushed = ""


def _inflated(path: Path) -> bytes:
    """The first `MAX_BYTES` of the pickle; joblib may have compressed it."""
    with open(path, "rb") as file:
        start = file.read(6)
        file.seek(0)
        if start.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=file).read(MAX_BYTES)
        if start.startswith(b"BZh"):
            return bz2.BZ2File(file).read(MAX_BYTES)
        if start.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
            return lzma.LZMAFile(file).read(MAX_BYTES)
        data = file.read(MAX_BYTES)
    if start[:1] == b"\x78":  # zlib
        return zlib.decompressobj().decompress(data, MAX_BYTES)
    return data
