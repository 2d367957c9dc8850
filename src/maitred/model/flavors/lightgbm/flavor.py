"""LightGBM models as their native text, which is pure data: they need no trust."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors import Found, Opening, Saved, trees
from maitred.model.flavors.libraries import needs, words_of
from maitred.model.flavors.lightgbm.file import checked_text, read_header
from maitred.model.flavors.lightgbm.signature import CLASSIFIER, ESTIMATORS, categories_of, classes_of, derive, names_of
from maitred.model.flavors.matrix import Matrix, arrange
from maitred.model.flavors.options import Check, among, some_in, texts_in
from maitred.model.flavors.probabilities import of_all
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.wire.coerce import Array

if TYPE_CHECKING:
    import lightgbm

FILE: Final = "model.lgb"
_ARGUMENTS: Final = {"raw_score": "raw_score", "leaf": "pred_leaf", "contributions": "pred_contrib"}
"""What LightGBM calls the kinds of answers."""


class Lightgbm:
    """Options, besides those in `options.py`:

    - `estimator`: whose model it is, which makes a classifier of one with classes and an objective of its own,
    - `categorical`: the columns of dtype category, where neither the file nor an example tells.
    """

    name = "lightgbm"
    suffixes = (".lgb", ".lightgbm", ".txt")
    markers = ()
    libraries = ("lightgbm",)
    options: Mapping[str, Check] = {
        "categorical": texts_in,
        "classes": some_in,
        "estimator": among(*ESTIMATORS),
        "features": texts_in,
        "methods": texts_in,
    }

    def claims(self, model: object) -> bool:
        """A Booster, or one of LightGBM's own estimators; classes derived from these may predict otherwise."""
        kind = type(model)
        if kind.__module__ == "lightgbm.basic":
            return kind.__name__ == "Booster"
        return kind.__module__ == "lightgbm.sklearn" and kind.__name__ in ESTIMATORS

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: a text model is numbers. Raises `CannotLoad` for a file that is none."""
        read_header(opening.path)
        return ()

    def native(self, opening: Opening) -> bool:
        """Always: the file holds no code, and the library runs it."""
        return True

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
        if model is booster:
            return Saved(FILE)
        options: dict[str, Any] = {"estimator": type(model).__name__}
        if options["estimator"] == CLASSIFIER:
            options["classes"] = np.asarray(model.classes_).tolist()
        return Saved(FILE, options=options)

    def open(self, opening: Opening) -> Predictor:
        """The booster. Raises `MissingExtra`, or `CannotLoad` for a damaged file, which the library never sees."""
        with needs("lightgbm", "lightgbm"):
            import lightgbm
        header = read_header(opening.path)
        text = checked_text(opening.path)
        signature = opening.signature or derive(header, opening.options, opening.sample)
        columns = arrange(signature, names_of(header, opening.options, signature.inputs), len(header.features))
        build = Matrix(columns, categories_of(header, opening.options, signature.inputs))
        try:
            booster = lightgbm.Booster(model_str=text)
        except lightgbm.basic.LightGBMError as error:
            raise CannotLoad(f"LightGBM cannot load {opening.file}: {words_of(error)}") from error
        return LightgbmPredictor(booster, signature, build, classes_of(header, opening.options), opening)


class LightgbmPredictor:
    """A booster, run once for each kind of answer that the wanted outputs need."""

    def __init__(
        self,
        booster: lightgbm.Booster,
        signature: Signature,
        build: Callable[[Mapping[str, Array]], Array],
        classes: Array | None,
        opening: Opening,
    ) -> None:
        """`classes`: in the order of their probabilities; None for a model that is no classifier."""
        self.signature = signature
        self.traits = opening.traits or Traits()
        self._run = booster.predict
        self._build = build
        self._threads = threads_of(opening.options)
        self._all = signature.output_names
        self._classes = classes
        trees.check_known(self._all)
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
        chances = of_all(predicted)
        return {"predict": self._classes[chances.argmax(axis=1)], "predict_proba": chances}
