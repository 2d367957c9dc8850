"""`maitred predict` with rows of different lengths: what it prints is what a server would answer."""

from __future__ import annotations

from pathlib import Path

import maitred
from maitred.cli.predict import parsed, written

MODELS = Path(__file__).parents[1] / "story" / "ragged_models.py"


def test_rows_of_different_lengths_are_masked_as_a_server_masks_them() -> None:
    with maitred.load(f"{MODELS}:Tokens") as handle:
        table = parsed(b'[{"ids": [1, 2, 3]}, {"ids": [4]}]', handle.signature)
        answer = handle.predict(table.columns)
    assert answer["total"].tolist() == [6, 4] and answer["width"].tolist() == [4, 4]
    assert answer["each"].tolist() == [[[2.0, 1.0], [4.0, 1.0], [6.0, 1.0]], [[8.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]
    assert written(answer, handle.signature, "rows").count(b'"total":') == 2
