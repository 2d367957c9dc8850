"""A `tokenizer.json`, looked at before the library is: what would make that hang or abort is refused."""

from __future__ import annotations

import binascii
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.model.refusals import CannotLoad

FILE: Final = "tokenizer.json"
_KINDS: Final = ("BPE", "WordPiece", "WordLevel", "Unigram")
_MAX_DEPTH: Final = 16
_COUNT_BYTES: Final = 4
"""The size of the first part of a character map stands before it, and it consists of numbers so wide."""
_EMPTY: Final = re.compile(rb"\s*(\[\s*\]|\{\s*\}|null)?\s*")


class _Model(msgspec.Struct):
    type: str | None = None
    """Absent in files of old libraries."""
    vocab: msgspec.Raw = msgspec.Raw()
    """Not looked into: it may be large."""


class _Tokenizer(msgspec.Struct):
    model: _Model
    normalizer: Any = None


def check_tokenizer(path: Path) -> None:
    """Raises `CannotLoad` for a file without a vocabulary, of an unknown kind, or with a map that is cut or odd."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CannotLoad(f"{FILE} is not what the tokenizers library writes: {error}") from error
    except OSError as error:
        raise CannotLoad(f"{FILE} cannot be read: {error.strerror}") from error
    if found.model.type not in (None, *_KINDS):
        raise CannotLoad(f"{FILE} has a model of type {found.model.type[:80]!a}, but only {', '.join(_KINDS)} are read")
    if _EMPTY.fullmatch(found.model.vocab):
        raise CannotLoad(f"{FILE} has a model without a vocabulary")
    level = [found.normalizer]
    for _ in range(_MAX_DEPTH):
        level = [part for one in level for part in _parts(one)]
    if level:
        raise CannotLoad(f"{FILE} has a normalizer that is nested deeper than {_MAX_DEPTH} levels")


def _parts(normalizer: Any) -> list[Any]:
    """The normalizers inside one, whose own map of characters is sound. Raises `CannotLoad`."""
    if not isinstance(normalizer, dict):
        return []
    text = normalizer.get("precompiled_charsmap")
    if isinstance(text, str) and not _is_sound(text):
        raise CannotLoad(f"{FILE} has a normalizer whose precompiled_charsmap is damaged")
    inner = normalizer.get("normalizers")
    return inner if isinstance(inner, list) else []


def _is_sound(charsmap: str) -> bool:
    """Whether it is base64 of a size, of so many bytes of numbers, and of texts in UTF-8."""
    try:
        data = binascii.a2b_base64(charsmap, strict_mode=True)
        size = int.from_bytes(data[:_COUNT_BYTES], "little")
        data[_COUNT_BYTES + size :].decode()
    except ValueError:
        return False
    return 0 < size <= len(data) - _COUNT_BYTES and size % _COUNT_BYTES == 0
