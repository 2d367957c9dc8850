"""CatBoost models in the library's own binary format, which needs no trust."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from maitred.errors import ModelFault
from maitred.model.flavors import Found, Opening, Saved
from maitred.model.flavors.catboost.rows import Rows
from maitred.model.flavors.catboost.signature import check_methods, derive, features_of
from maitred.model.flavors.libraries import needs, words_of
from maitred.model.flavors.options import Check, among, one_of, text_in, texts_in
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.wire.coerce import Array

FILE: Final = "model.cbm"
_MAGIC: Final = b"CBM1"
_ESTIMATORS: Final = ("CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker", "CatBoost")


class Catboost:
    """Options, besides those in `options.py`:

    - `estimator`: whose `predict` is meant (default: a classifier's where the file knows classes, else a regressor's),
    - `missing`: the text that the model was fitted on in place of missing categories, which it then takes.
    """

    name = "catboost"
    suffixes = (".cbm",)
    markers = ()
    libraries = ("catboost",)
    options: Mapping[str, Check] = {
        "estimator": among(*_ESTIMATORS),
        "features": texts_in,
        "methods": texts_in,
        "missing": text_in,
    }

    def claims(self, model: object) -> bool:
        """A CatBoost, or an estimator of the library's own; classes derived from these may predict otherwise."""
        return type(model).__module__.partition(".")[0] == "catboost" and type(model).__name__ in _ESTIMATORS

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: the format holds numbers and names."""
        return ()

    def native(self, opening: Opening) -> bool:
        """Always: the file holds no code, and the library runs it."""
        return True

    def derive(self, opening: Opening) -> Found | None:
        """None: only the opened model tells."""
        return None

    def save(self, model: Any, folder: Path) -> Saved:
        """As the library's binary file, with the estimator's name; or a copy of the given file."""
        if isinstance(model, Path):
            _check_magic(model)
            shutil.copyfile(model, folder / model.name)
            return Saved(model.name)
        try:
            model.save_model(str(folder / FILE))
        except Exception as error:  # it is not fitted
            raise CannotPack(f"CatBoost cannot save this {type(model).__name__}: {words_of(error)}") from error
        return Saved(FILE, options={"estimator": type(model).__name__})

    def open(self, opening: Opening) -> Predictor:
        """The model. Raises `MissingExtra`, or `CannotLoad` for a file that is none."""
        with needs("catboost", "catboost"):
            import catboost
        _check_magic(opening.path)
        model = _loaded(catboost, opening)
        signature = opening.signature or derive(model, opening.options, opening.sample)
        return CatboostPredictor(model, catboost.Pool, signature, opening)


class CatboostPredictor:
    """A model that is asked for each wanted output from one pool. Safe to call from several threads."""

    def __init__(self, model: Any, pool: Any, signature: Signature, opening: Opening) -> None:
        self.signature = signature
        self.traits = opening.traits or Traits()
        self._model = model
        self._pool = pool
        self._all = signature.output_names
        check_methods(model, self._all)
        self._threads = threads_of(opening.options)
        self._rows = Rows(features_of(model, opening.options), signature, opening.options, self._threads)

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name."""
        try:
            pool = self._rows(inputs, self._pool)
            return {method: self._output(method, pool) for method in context.outputs or self._all}
        except Exception as error:  # the library's own, which has places in its source in its text
            raise ModelFault(f"CatBoost failed: {words_of(error)}") from error

    def _output(self, method: str, pool: Any) -> Array:
        answer = np.ascontiguousarray(self._asked(method, pool))  # the library's are transposed
        if method == "leaf":
            return answer.astype(np.int32)
        # one label a row, which the library puts into a column where there are more than two classes
        return answer.reshape(-1) if len(self.signature.outputs[method].shape) == 1 else answer

    def _asked(self, method: str, pool: Any) -> Any:
        model, threads = self._model, self._threads
        if method == "predict":
            return model.predict(pool, thread_count=threads)
        if method == "leaf":
            return model.calc_leaf_indexes(pool, thread_count=threads)
        if method == "contributions":
            return model.get_feature_importance(pool, type="ShapValues", thread_count=threads)
        kind = "Probability" if method == "predict_proba" else "RawFormulaVal"
        return model.predict(pool, prediction_type=kind, thread_count=threads)


def _loaded(catboost: Any, opening: Opening) -> Any:
    """The model as the estimator that it was, or that fits what it knows."""
    given = one_of(opening.options, "estimator", _ESTIMATORS)
    try:
        model = catboost.CatBoost().load_model(str(opening.path))
        classifies = len(model.classes_) > 0
        kind = given or ("CatBoostClassifier" if classifies else "CatBoostRegressor")
        if kind == "CatBoostClassifier" and not classifies:
            raise CannotLoad(f"{opening.file} knows no classes, so it is no CatBoostClassifier")
        if kind in ("CatBoost", "CatBoostRanker"):
            return model  # a ranker predicts as the bare model does
        return getattr(catboost, kind)().load_model(str(opening.path))
    except catboost.CatBoostError as error:
        raise CannotLoad(f"CatBoost cannot load {opening.file}: {words_of(error)}") from error


def _check_magic(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise CannotLoad(f"{path.name} is no CatBoost model in the binary format: save it with format='cbm'")
