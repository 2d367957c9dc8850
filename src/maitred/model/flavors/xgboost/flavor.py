"""XGBoost models in the library's own data formats, which need no trust."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from maitred.errors import ModelFault
from maitred.model.flavors import Found, Opening, Saved, derived
from maitred.model.flavors.libraries import needs, words_of
from maitred.model.flavors.matrix import Column, Matrix, arrange
from maitred.model.flavors.options import Check, flag_in, some_in, texts_in
from maitred.model.flavors.probabilities import of_all, softmax
from maitred.model.flavors.threads import threads_of
from maitred.model.flavors.xgboost.file import Header, header, read
from maitred.model.flavors.xgboost.signature import BASE_MARGIN, Facts, categories_of, check_rounds, derive
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.wire.coerce import Array

FILE: Final = "model.ubj"
_VECTORS_APART: Final = (3, 2)
"""The version that has put the leaves of several values into an array of their own."""
_BASES: Final = frozenset({"Booster", "XGBModel"})
_INPLACE: Final = {"predict": "value", "raw_score": "margin"}
"""What the library gives without a matrix of its own, by its words for it."""


class Xgboost:
    """Options, besides those in `options.py`:

    - `rounds`: how many rounds count, 0 for all, "best" up to the best (as the estimators do by themselves),
    - `missing`: a number that means missing, as NaN always does,
    - `base_margin`: true for an optional input of that name.
    """

    name = "xgboost"
    suffixes = (".ubj", ".xgb", ".xgb.json")
    markers = ()
    libraries = ("xgboost",)
    options: Mapping[str, Check] = {
        "base_margin": flag_in,
        "classes": some_in,
        "features": texts_in,
        "methods": texts_in,
        "missing": lambda options, key: _missing(options[key]),
        "rounds": lambda options, key: check_rounds(options[key]),
    }

    def claims(self, model: object) -> bool:
        """A Booster, or an estimator of XGBoost's own; classes derived from these may predict otherwise."""
        own = type(model).__module__.partition(".")[0] == "xgboost"
        return own and not _BASES.isdisjoint(kind.__name__ for kind in type(model).__mro__)

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: the formats hold numbers and names."""
        return ()

    def native(self, opening: Opening) -> bool:
        """Always: the file holds no code, and the library runs it."""
        return True

    def derive(self, opening: Opening) -> Found | None:
        """From the file, which is read without the library."""
        return Found(derive(read(opening.path), opening.options, opening.sample), Traits())

    def save(self, model: Any, folder: Path) -> Saved:
        """As UBJSON, with the estimator's `missing`; or a copy of the given file."""
        if isinstance(model, Path):
            read(model)
            shutil.copyfile(model, folder / model.name)
            return Saved(model.name)
        try:
            model.save_model(folder / FILE)
        except Exception as error:  # it is not fitted, or of a device that is not there
            raise CannotPack(f"XGBoost cannot save this {type(model).__name__}: {words_of(error)}") from error
        missing = getattr(model, "missing", math.nan)
        if isinstance(missing, (int, float)) and math.isfinite(missing):
            return Saved(FILE, options={"missing": float(missing)})
        return Saved(FILE)

    def open(self, opening: Opening) -> Predictor:
        """The booster. Raises `MissingExtra`, or `CannotLoad` for a file that is none."""
        with needs("xgboost", "xgboost"):
            import xgboost
        content = opening.path.read_bytes()
        found = header(content, opening.file)
        _check_vectors(found, xgboost.__version__)
        signature = opening.signature or derive(found, opening.options, opening.sample)
        settings = {"nthread": threads_of(opening.options), "verbosity": 0, "device": "cpu"}
        try:
            booster = xgboost.Booster()
            booster.load_model(bytearray(content))
            booster.set_param(settings)
        except xgboost.core.XGBoostError as error:
            raise CannotLoad(f"XGBoost cannot load {opening.file}: {words_of(error)}") from error
        return XgboostPredictor(booster, xgboost.DMatrix, found, signature, opening)


class XgboostPredictor:
    """A booster, asked without a DMatrix where it can be. Safe to call from several threads."""

    def __init__(self, booster: Any, data: Any, header: Header, signature: Signature, opening: Opening) -> None:
        """`data` is the library's class of matrices."""
        self.signature = signature
        self.traits = opening.traits or Traits()
        self._booster = booster
        self._data = data
        self._header = header
        self._facts = Facts(header, opening.options)
        self._all = signature.output_names
        self._facts.check(self._all)
        self._missing = _missing(opening.options.get("missing", math.nan))
        self._linear = header.booster == "gblinear"
        self._threads = threads_of(opening.options)
        self._one_at_a_time = threading.Lock()
        names = self._facts.names
        features = {
            name: spec for name, spec in signature.inputs.items() if name != BASE_MARGIN or name in (names or ())
        }
        table = derived([*features.values()], [*signature.outputs.values()])
        columns = arrange(table, names, header.features)
        self._takes_margin = len(features) < len(signature.inputs)
        self._build = Matrix(columns, _categories(header, columns, names))

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name; the trees are walked once for the outputs that come from the same sums."""
        matrix = self._build(inputs)
        margin = inputs.get(BASE_MARGIN) if self._takes_margin else None
        raw: dict[str, Array] = {}

        def value(kind: str) -> Array:
            if kind not in raw:
                raw[kind] = self._run(kind, matrix, margin)
            return raw[kind]

        return {method: self._output(method, value) for method in context.outputs or self._all}

    def _output(self, method: str, value: Any) -> Array:
        facts, by_place = self._facts, self._header.objective == "multi:softmax"
        if method == "predict_proba":
            return softmax(value("raw_score")) if by_place else of_all(value("predict"))
        if method != "predict":
            answer: Array = value(method)
            return answer.astype(np.int32) if method == "leaf" else answer
        answer = value("predict")
        if not facts.classifier:
            return answer
        if facts.multilabel:
            return (answer > 0.5).astype(np.int64)
        if by_place:
            places = answer.astype(np.int64)
        else:
            places = answer.argmax(axis=1) if answer.ndim == 2 else (answer > 0.5).astype(np.int64)
        return places if facts.labels is None else facts.labels[places]

    def _run(self, kind: str, matrix: Array, margin: Array | None) -> Array:
        try:
            if kind in _INPLACE and not self._linear:
                answer: Array = self._booster.inplace_predict(
                    matrix,
                    iteration_range=(0, self._facts.rounds),
                    predict_type=_INPLACE[kind],
                    missing=self._missing,
                    validate_features=False,
                    base_margin=margin,
                )
                return answer
            with self._one_at_a_time:
                return self._run_matrix(kind, matrix, margin)
        except Exception as error:  # the library's own, whose text is a trace with the paths of this machine
            raise ModelFault(f"XGBoost failed: {words_of(error)}") from error

    def _run_matrix(self, kind: str, matrix: Array, margin: Array | None) -> Array:
        """What the library answers for its own matrices only."""
        data = self._data(matrix, missing=self._missing, nthread=self._threads, base_margin=margin)
        answer: Array = self._booster.predict(
            data,
            output_margin=kind == "raw_score",
            pred_leaf=kind == "leaf",
            pred_contribs=kind == "contributions",
            validate_features=False,
            iteration_range=(0, self._facts.rounds),
        )
        return answer.reshape(len(matrix), -1) if kind == "leaf" else answer


def _categories(header: Header, columns: Sequence[Column], names: Sequence[str] | None) -> dict[str, Sequence[Any]]:
    """The categories by input. Raises `CannotLoad` where the signature says others, or puts them into a matrix."""
    specs = {column.name: column.spec for column in columns}
    found = categories_of(header, names or (), specs)
    for name, values in found.items():
        spec = specs.get(name)
        if spec is None:
            raise CannotLoad(f"the feature {name!r} has categories, so it must be an input of its own")
        if spec.categories is not None and list(spec.categories) != list(values):
            raise CannotLoad(f"input {name!r}: the signature has other categories than the model was fitted on")
    return found


def _check_vectors(header: Header, version: str) -> None:
    """Raise `CannotLoad` for trees that this version of the library would read past their end."""
    since = (int(version.split(".")[0]), int(version.split(".")[1])) >= _VECTORS_APART
    if header.vectors and since != (header.vectors == "apart"):
        raise CannotLoad(
            f"XGBoost {version} cannot read the trees of several targets in this file, which were saved "
            f"{'before' if since else 'with'} XGBoost 3.2: install that version, or fit the model again"
        )


def _missing(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CannotLoad("the option missing must be a number")
    return float(value)
