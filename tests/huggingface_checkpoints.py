"""Tiny checkpoints with random weights, and a tokenizer of their own: what the tests of the flavor stand on."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NEEDS_LIBRARIES = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "transformers", "PIL")),
    reason="torch, transformers and pillow are not all installed",
)
"""Not imported while tests are collected: that alone takes seconds."""

LINES = [
    "the cat sat on the mat", "a dog ran in the park with a ball", "numbers such as 3 and 14 are short",
    "Paris is a city in France, and Rome one in Italy", "who ate the last piece of the cake?", "nothing is so long",
]  # fmt: skip
MOODS = {0: "sad", 1: "glad", 2: "so-so"}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary() -> dict[str, int]:
    """The words of `LINES` and all letters. Not trained: that gives another order each time."""
    letters = sorted({letter for line in LINES for letter in line.lower() if letter != " "})
    words = sorted({word for line in LINES for word in re.findall(r"\w{2,}", line.lower())})
    return {token: at for at, token in enumerate([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words])}


SIZE = len(vocabulary())


def tokenizer(length: int = 64) -> Any:
    """Words and pieces of words, as BERT has them."""
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab=vocabulary(), model_max_length=length)


def settings(**more: Any) -> Any:
    """A network of two layers, 16 wide."""
    import transformers

    small = {"vocab_size": SIZE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.BertConfig(
        **small, intermediate_size=32, max_position_embeddings=64, initializer_range=0.5, **more
    )


def network(kind: str, **more: Any) -> Any:
    """`kind`: a class of transformers, such as `BertForMaskedLM`. The same weights each time."""
    import torch
    import transformers

    torch.manual_seed(1)
    return getattr(transformers, kind)(settings(**more)).eval()


def checkpoint(folder: Path, kind: str = "BertForSequenceClassification", **more: Any) -> Path:
    """A folder as save_pretrained writes it."""
    if kind == "BertForSequenceClassification" and not more:
        more = {"id2label": MOODS, "label2id": {label: at for at, label in MOODS.items()}}
    network(kind, **more).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences(folder: Path, *, pooling: dict[str, Any], normalize: bool = True, **more: Any) -> Path:
    """A folder as sentence-transformers writes it."""
    checkpoint(folder, "BertModel")
    kinds = ["models.Transformer", "models.Pooling", *(["models.Normalize"] if normalize else [])]
    places = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": at, "name": str(at), "path": place, "type": f"sentence_transformers.{kind}"}
        for at, (kind, place) in enumerate(zip(kinds, places, strict=False))
    ]
    write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **pooling})
    for name, table in more.items():
        write(folder / f"{name}.json", table)
    return folder


def write(path: Path, table: Any) -> None:
    path.write_text(json.dumps(table))


def change(path: Path, **more: Any) -> None:
    """Put keys into a JSON file."""
    write(path, {**json.loads(path.read_text()), **more})
