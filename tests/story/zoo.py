"""One small fitted model of every kind that people bring, each with rows to ask it about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Animal(NamedTuple):
    """What goes into `maitred.pack`."""

    model: Any
    """An object that a flavor claims, or a path."""
    example: Any
    """At least three different rows."""
    more: dict[str, Any] = {}
    """Further arguments of `pack`."""


class Kind(NamedTuple):
    """How an animal is made, and what has to be installed for that."""

    make: Callable[[Path], Animal]
    needs: tuple[str, ...]


ROWS = 120


def numbers(columns: int = 4) -> tuple[Any, Any]:
    """A matrix of features and a class for each of its rows."""
    generator = np.random.default_rng(3)
    features = generator.normal(size=(ROWS, columns))
    return features, (features[:, 0] + features[:, 1] > 0).astype(int)


def mixed() -> tuple[Any, Any]:
    """A data frame of numbers, text with gaps, categories and a column of gaps; a yes or no for each row."""
    import pandas as pd

    generator = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": generator.integers(18, 90, ROWS),
            "income": np.where(generator.random(ROWS) < 0.1, np.nan, generator.normal(3e4, 1e4, ROWS)),
            "country": generator.choice(["de", "se", "ja"], ROWS),
            "plan": pd.Categorical(generator.choice(["free", "pro"], ROWS), categories=["pro", "free"]),
        }
    )
    return frame, np.where((frame["age"] > 50) ^ (frame["plan"] == "pro"), "ja", "nein")


def python(folder: Path) -> Animal:
    path = folder / "double.py"
    path.write_text(
        "import maitred\n\nsignature = maitred.Signature({'x': 'float64[n, 2]', 'name': 'str[n]'}, "
        "{'y': 'float64[n, 2]', 'greeting': 'str[n]'})\n\n\n"
        "def predict(batch):\n    return {'y': batch['x'] * 2, 'greeting': 'hello ' + batch['name']}\n"
    )
    return Animal(str(path), {"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]], "name": ["a", "ü", ""]}, {"trust": "me: mine"})


def onnx(folder: Path) -> Animal:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    features, target = numbers()
    features = features.astype(np.float32)
    return Animal(to_onnx(LogisticRegression().fit(features, target), features[:1]), {"X": features[:5]})


def sklearn_matrix(folder: Path) -> Animal:
    from sklearn.ensemble import RandomForestClassifier

    features, target = numbers()
    return Animal(RandomForestClassifier(10, random_state=0).fit(features, target), features[:5])


def sklearn_frame(folder: Path) -> Animal:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, target = mixed()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), ["country", "plan"]),
    )
    return Animal(make_pipeline(columns, LogisticRegression()).fit(frame, target), frame.head(5))


def lightgbm(folder: Path) -> Animal:
    from lightgbm import LGBMClassifier

    frame, target = mixed()
    frame["country"] = frame["country"].astype("category")
    return Animal(LGBMClassifier(n_estimators=8, verbose=-1, n_jobs=1).fit(frame, target), frame.head(5))


def xgboost(folder: Path) -> Animal:
    from xgboost import XGBClassifier

    frame, target = mixed()
    frame["country"] = frame["country"].astype("category")
    model = XGBClassifier(n_estimators=8, enable_categorical=True, n_jobs=1)
    return Animal(model.fit(frame, (target == "ja").astype(int)), frame.head(5))


def catboost(folder: Path) -> Animal:
    from catboost import CatBoostClassifier

    frame, target = mixed()
    frame["plan"] = frame["plan"].astype(str)
    model = CatBoostClassifier(iterations=8, verbose=False, allow_writing_files=False, thread_count=1)
    return Animal(model.fit(frame, target, cat_features=["country", "plan"]), frame.head(5))


def torch_export(folder: Path) -> Animal:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    rows = numbers()[0][:5].astype(np.float32)
    batch = torch.export.Dim("n", min=1, max=1024)
    program = torch.export.export(module, (torch.from_numpy(rows),), dynamic_shapes=({0: batch},))
    name = next(spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT")
    return Animal(program, {name: rows})


def torch_script(folder: Path) -> Animal:
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(torch.nn.Linear(4, 2).eval(), torch.zeros(2, 4))
    return Animal(script, {"input": numbers()[0][:5].astype(np.float32)}, {"trust": "me: mine"})


def torch_weights(folder: Path) -> Animal:
    import torch
    from safetensors.torch import save_file

    (folder / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, width)\n\n"
        "    def forward(self, x):\n        return self.layer(x).tanh()\n"
    )
    save_file({"layer.weight": torch.ones(3, 4) / 4, "layer.bias": torch.zeros(3)}, folder / "weights.safetensors")
    more = {"options": {"class": "net.py:Net", "arguments": {"width": 3}}, "files": [folder / "net.py"]}
    rows = {"x": numbers()[0][:5].astype(np.float32)}
    return Animal(str(folder / "weights.safetensors"), rows, {**more, "trust": "me: mine"})


def huggingface(folder: Path) -> Animal:
    import huggingface_checkpoints

    checkpoint = huggingface_checkpoints.checkpoint(folder / "checkpoint")
    return Animal(str(checkpoint), {"text": ["good", "a bad day", ""]})


KINDS = {
    "python": Kind(python, ()),
    "onnx": Kind(onnx, ("skl2onnx",)),
    "sklearn_matrix": Kind(sklearn_matrix, ("sklearn",)),
    "sklearn_frame": Kind(sklearn_frame, ("sklearn", "pandas")),
    "lightgbm": Kind(lightgbm, ("lightgbm", "pandas")),
    "xgboost": Kind(xgboost, ("xgboost", "pandas")),
    "catboost": Kind(catboost, ("catboost", "pandas")),
    "torch_export": Kind(torch_export, ("torch",)),
    "torch_script": Kind(torch_script, ("torch",)),
    "torch_weights": Kind(torch_weights, ("torch", "safetensors")),
    "huggingface": Kind(huggingface, ("torch", "transformers")),
}
"""Every kind by name."""
