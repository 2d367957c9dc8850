"""`maitred new`: a folder with a starter model that can be served, called, tested and packed as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from maitred.cli.failure import CommandFailed

_MODEL: Final = '''\
"""The model __NAME__: what it takes, what it gives, and how it gets there."""

import json
from pathlib import Path

import maitred
import numpy as np


class __CLASS__(maitred.Model):
    # `n` is the row axis: requests of different callers are merged along it and split again.
    signature = maitred.Signature(
        inputs={
            "age": "int64[n] min=0 max=150",
            "country": 'str[n] default="?"',  # may be left out
            "history": "float32[n, 3]",
        },
        outputs={"score": "float32[n]", "segment": "str[n]"},
    )

    def load(self, path, device):
        """Once per copy, in the copy's own process: read weights, open sessions. `path` is the model's folder."""
        weights = Path(path) / "weights.json"
        self.weights = np.array(json.loads(weights.read_text()), np.float32)

    def predict(self, batch):
        """All rows of a batch at once: an array for each input (read-only), an array for each output."""
        score = batch["history"] @ self.weights + batch["age"].astype(np.float32) / 100
        segment = np.where(batch["country"] == "?", "unknown", np.where(score > 1, "likely", "unlikely"))
        return {"score": score, "segment": segment}
'''

_WEIGHTS: Final = "[0.5, 0.25, 0.125]\n"

_EXAMPLE: Final = """\
[
  {"age": 42, "country": "se", "history": [1, 0, 2]},
  {"age": 27, "country": "?", "history": [0, 0, 1]},
  {"age": 63, "country": "de", "history": [0, 0, 0]}
]
"""

_TEST: Final = '''\
"""The model in this process: `python -m pytest`. Served, it gives the same answers."""

from pathlib import Path

import maitred
import pytest

MODEL = Path(__file__).parent / "model.py"


def test_it_answers_for_each_row():
    with maitred.load(MODEL) as model:
        answer = model.predict(age=[42, 27], country=["se", "?"], history=[[1, 0, 2], [0, 0, 1]])
    assert answer["score"].tolist() == pytest.approx([1.17, 0.395])
    assert answer["segment"].tolist() == ["likely", "unknown"]
'''

_FILES: Final = {"model.py": _MODEL, "weights.json": _WEIGHTS, "example.json": _EXAMPLE, "test_model.py": _TEST}
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it; its name becomes the model's.")],
) -> None:
    """Write a starter model into a new folder, and say how to serve, call, test and pack it."""
    name = folder.resolve().name
    if not _NAME.fullmatch(name):
        raise CommandFailed(
            f"{name!r} cannot be a model's name: begin with a letter; letters, digits, _ and - may follow"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandFailed(f"{folder} exists and is not an empty folder; choose another place")
    folder.mkdir(parents=True, exist_ok=True)
    kind = "".join(part.capitalize() for part in re.split("[_-]", name))
    for file, text in _FILES.items():
        (folder / file).write_text(text.replace("__NAME__", name).replace("__CLASS__", kind))
    typer.echo(
        f"{folder}: {', '.join(_FILES)}\n\n"
        f"serve it   maitred serve {name}={folder}/model.py\n"
        f"call it    maitred predict {folder}/model.py --input {folder}/example.json\n"
        f"test it    python -m pytest {folder}\n"
        f"pack it    maitred pack {folder}/model.py --name {name} --file {folder}/weights.json "
        f"--example {folder}/example.json --out {folder}.packed --trust 'WHO: WHY'"
    )
