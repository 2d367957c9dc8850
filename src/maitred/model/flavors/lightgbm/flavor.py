"""LightGBM models as their native text, which is pure data: they need no trust."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors import Found, Opening, Saved, frames
from maitred.model.flavors.lightgbm.file import checked_text, read_header
from maitred.model.flavors.lightgbm.signature import METHODS, categories_of, classes_of, derive, names_of
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack, MissingExtra
from maitred.model.signature import Signature
from maitred.wire.coerce import Array

if TYPE_CHECKING:
    import lightgbm

FILE: Final = "model.lgb"
_ARGUMENTS: Final = {"raw_score": "raw_score", "leaf": "pred_leaf", "contribs": "pred_contrib"}
"""What LightGBM calls the kinds of answers."""
_KINDS: Final = {"LGBMClassifier": "classifier", "LGBMRegressor": "regressor", "LGBMRanker": "ranker"}


class Lightgbm:
    """Options:

    - `methods` to offer as outputs: `predict`, `predict_proba`, `raw_score`, `leaf`, `contribs`,
    - `classes`: what the classes 0, 1, 2 ... stand for; makes a classifier of a `Booster`,
    - `features`: names for the columns of a model that was fitted on a matrix, each of which becomes an input,
    - `categorical`: the columns of dtype category, where neither the file nor an example tells,
    - `threads` of one run (default $MAITRED_THREADS or 1).
    """

    name = "lightgbm"
    suffixes = (".lgb", ".lightgbm", ".txt")
    markers = ()
    libraries = ("lightgbm",)

    def claims(self, model: object) -> bool:
        """A Booster, or one of LightGBM's own estimators; classes derived from these may predict otherwise."""
        kind = type(model)
        if kind.__module__ == "lightgbm.basic":
            return kind.__name__ == "Booster"
        return kind.__module__ == "lightgbm.sklearn" and kind.__name__ in (*_KINDS, "LGBMModel")

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: a text model is numbers. Raises `CannotLoad` for a file that is none."""
        read_header(opening.path)
        return ()

    def derive(self, opening: Opening) -> Found | None:
        """From the head of the file, which names features, categories and objective."""
        return Found(derive(read_header(opening.path), opening.options, opening.sample), Traits())

    def save(self, model: Any, folder: Path) -> Saved:
        """The text model with what the estimator knows besides it, or a copy of the file at a `Path`."""
        if isinstance(model, Path):
            read_header(model)
            shutil.copyfile(model, folder / FILE)
            return Saved(FILE)
        booster = model if type(model).__name__ == "Booster" else model._Booster
        if booster is None:
            raise CannotPack(f"this {type(model).__name__} has not been fitted")
        booster.save_model(str(folder / FILE))
        kind = _KINDS.get(type(model).__name__, "")
        options: dict[str, Any] = {"kind": kind} if kind else {}
        if kind == "classifier":
            options["classes"] = np.asarray(model.classes_).tolist()
        return Saved(FILE, options=options)

    def open(self, opening: Opening) -> Predictor:
        """The booster. Raises `MissingExtra`, or `CannotLoad` for a damaged file, which the library never sees."""
        lightgbm = _library()
        header = read_header(opening.path)
        text = checked_text(opening.path)
        signature = opening.signature or derive(header, opening.options, opening.sample)
        columns = frames.arrange(signature, names_of(header, opening.options, signature.inputs), len(header.features))
        build = frames.Matrix(columns, categories_of(header, opening.options, signature.inputs))
        try:
            booster = lightgbm.Booster(model_str=text)
        except lightgbm.basic.LightGBMError as error:
            raise CannotLoad(f"LightGBM cannot load {opening.file}: {error}") from error
        classes = classes_of(header, opening.options)
        return LightgbmPredictor(
            booster, signature, opening.traits or Traits(), build, classes, threads_of(opening.options)
        )


class LightgbmPredictor:
    """A booster, run once for each kind of answer that the wanted outputs need."""

    def __init__(
        self,
        booster: lightgbm.Booster,
        signature: Signature,
        traits: Traits,
        build: Callable[[Mapping[str, Array]], Array],
        classes: Sequence[Any] | None,
        threads: int,
    ) -> None:
        self.signature = signature
        self.traits = traits
        self._run = booster.predict
        self._build = build
        self._threads = threads
        self._all = tuple(signature.outputs)
        self._classes = None if classes is None else _array(classes)
        if wrong := [name for name in self._all if name not in METHODS]:
            raise CannotLoad(f"no output can be named {wrong[0]!r}: outputs are {', '.join(METHODS)}")
        self._shapes = {name: shape for name, shape in signature.row_shapes.items() if shape is not None}

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name."""
        matrix = self._build(inputs)
        wanted = context.outputs or self._all
        values: dict[str, Any] = {}
        if "predict" in wanted or "predict_proba" in wanted:
            predicted: Any = self._run(matrix, num_threads=self._threads)
            values = self._answers(predicted)
        for name in wanted:
            if name not in ("predict", "predict_proba"):
                told: Any = self._run(matrix, num_threads=self._threads, **{_ARGUMENTS[name]: True})
                values[name] = told.reshape(len(matrix), *self._shapes[name])
        return values

    def _answers(self, predicted: Array) -> dict[str, Array]:
        if self._classes is None:
            return {"predict": predicted}
        chances = predicted if predicted.ndim == 2 else np.column_stack([1.0 - predicted, predicted])
        return {"predict": self._classes[chances.argmax(axis=1)], "predict_proba": chances}


def _array(classes: Sequence[Any]) -> Array:
    array = np.asarray(classes)
    return array.astype(object) if array.dtype.kind == "U" else array


def _library() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtra("lightgbm", "lightgbm", "lightgbm") from error
    return lightgbm
