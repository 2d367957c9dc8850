"""A `tokenizer.json` that would make its library hang or abort is refused before the library sees it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from maitred.model.flavors.huggingface.tokenizer_file import check_tokenizer
from maitred.model.refusals import CannotLoad

VOCABULARY = {"type": "WordPiece", "vocab": {"a": 0}}


def charsmap(size: int, numbers: bytes, texts: bytes) -> str:
    return base64.b64encode(size.to_bytes(4, "little") + numbers + texts).decode()


def mapped(text: str) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": text}


def nested(levels: int) -> dict[str, Any]:
    found = {"type": "Lowercase"}
    for _ in range(levels):
        found = {"type": "Sequence", "normalizers": [found]}  # type: ignore[dict-item]
    return found


@pytest.mark.parametrize(
    "content",
    [
        {"model": VOCABULARY},
        {"model": {"vocab": {"a": 0}}, "version": "1.0"},
        {"model": {"type": "Unigram", "vocab": [["a", -1.0]]}, "normalizer": None},
        {"model": VOCABULARY, "normalizer": nested(8)},
        {"model": VOCABULARY, "normalizer": mapped(charsmap(8, bytes(8), "ß".encode()))},
    ],
)
def test_sound_files_pass(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    check_tokenizer(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model": {"type": "Unigram", "unk_id": 0, "vocab": []}}, "without a vocabulary"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "without a vocabulary"),
        ({"model": {"type": "BPE", "merges": []}}, "without a vocabulary"),
        ({"model": {"type": "Odd", "vocab": {"a": 0}}}, "type 'Odd'"),
        ({"model": VOCABULARY, "normalizer": nested(40)}, "deeper"),
        ({"model": VOCABULARY, "normalizer": mapped("AAAAAQ==")}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": mapped("/////w==")}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": mapped("BAAAAP////9hYmM")}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": mapped("")}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": mapped("not base64")}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": mapped(charsmap(4, bytes(4), b"\xff"))}, "charsmap is damaged"),
        ({"model": VOCABULARY, "normalizer": {"normalizers": [mapped(charsmap(6, bytes(6), b""))]}}, "damaged"),
        ({"model": []}, "not what the tokenizers library writes"),
        ([], "not what the tokenizers library writes"),
    ],
)
def test_others_are_refused_by_name(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CannotLoad, match=rf"^tokenizer\.json .*{said}"):
        check_tokenizer(path)


@pytest.mark.parametrize("data", [b"", b"{", b'{"model": {"vocab": {\xff', b'{"model": ' + b"[" * 100_000])
def test_what_is_no_json_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(CannotLoad):
        check_tokenizer(tmp_path / "tokenizer.json")


def test_spaces_are_no_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [' + " " * 99 + "]}}")
    with pytest.raises(CannotLoad, match="without a vocabulary"):
        check_tokenizer(tmp_path / "tokenizer.json")
