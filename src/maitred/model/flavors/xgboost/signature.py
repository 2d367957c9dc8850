"""The signature of an XGBoost model: its features as inputs, what it can be asked for as outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from maitred.model.flavors import derived, feature_specs, spec_of
from maitred.model.flavors.feature_specs import ROWS
from maitred.model.flavors.xgboost.file import CATEGORICAL, Header
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import Array, dtype_of

METHODS: Final = ("predict", "predict_proba", "margin", "leaf", "contribs")
"""What may be an output: the answer, probabilities, the sum before any link function, each tree's leaf, SHAP values."""

BASE_MARGIN: Final = "base_margin"
"""An input of this name that is no feature: what the trees' sum of a row starts from, in place of the model's own."""

_KINDS: Final = {"int": np.dtype(np.int64), "i": np.dtype(np.bool_)}
"""What a feature was fitted on, by the library's name for it; everything else goes as float64."""
_UNLIKELY: Final = ("binary:logitraw",)
"""Objectives of classifiers that have no probabilities."""


class Facts:
    """What follows from a header and the options. Raises `CannotLoad` where they do not fit each other."""

    def __init__(self, header: Header, options: Mapping[str, Any]) -> None:
        self.header = header
        self.multilabel = header.targets > 1 and header.classes < 2
        count = max(2, header.classes)
        given = options.get("classes")
        self.labels = None if given is None else _labels(given, count)
        """Names or numbers of the classes that are not 0, 1, 2 ...; in the order of those."""
        if self.labels is not None and self.multilabel:
            raise CannotLoad("the option classes is for models of one target, this one has several")
        self.classifier = header.estimator == "classifier" or self.labels is not None
        self.classes = self.labels if self.labels is not None else np.arange(count)
        self.rounds = _rounds(header, options)
        """How many rounds count; 0 for all."""

    def methods(self, options: Mapping[str, Any]) -> list[str]:
        """What the outputs are: as `Classifier` and `Booster` have it, or as the options say."""
        if "methods" in options:
            wanted = [str(method) for method in options["methods"]]
            for method in wanted:
                self.check(method)
            return wanted
        likely = self.classifier and self.header.objective not in _UNLIKELY
        return ["predict", "predict_proba"] if likely else ["predict"]

    def check(self, method: str) -> None:
        """Raise `CannotLoad` for what this model cannot be asked for."""
        if method not in METHODS:
            raise CannotLoad(f"no output can be named {method!r}: outputs are {', '.join(METHODS)}")
        likely = self.classifier or self.header.objective.startswith(("multi:", "binary:logistic"))
        if method == "predict_proba" and not likely:
            raise CannotLoad(f"a model of the objective {self.header.objective} has no predict_proba")
        if method == "leaf" and self.header.booster == "gblinear":
            raise CannotLoad("a linear model has no leaves")
        if method == "contribs" and self.header.vectors:
            raise CannotLoad("XGBoost has no contribs for trees of several targets")

    def output(self, method: str) -> TensorSpec:
        """What an output looks like."""
        header = self.header
        several: tuple[int, ...] = (header.groups,) if header.groups > 1 else ()
        if method == "predict_proba":
            names = None if self.multilabel else tuple(str(label) for label in self.classes.tolist())
            return spec_of(method, "float32", (ROWS, header.targets if names is None else len(names)), names)
        if method == "leaf":
            return spec_of(method, "int32", (ROWS, self._trees()))
        if method == "contribs":
            return spec_of(method, "float32", (ROWS, *several, header.features + 1))
        if method == "margin" or not self.classifier:
            alone = method == "predict" and header.objective == "multi:softmax"
            return spec_of(method, "float32", (ROWS,) if alone else (ROWS, *several))
        shape = (ROWS, header.targets) if self.multilabel else (ROWS,)
        return spec_of(method, dtype_of(self.classes) or "str", shape)

    def _trees(self) -> int:
        until = self.header.trees_until
        if not until:
            raise CannotLoad("the file does not tell its trees' rounds: load it once and save it again")
        return until[self.rounds or -1]


def derive(header: Header, options: Mapping[str, Any], sample: Any = None) -> Signature:
    """The signature, with the columns' dtypes from `sample` where there is one. Raises `CannotLoad`."""
    facts = Facts(header, options)
    names = names_of(header, options)
    if names is None:
        inputs = [feature_specs.of_matrix(header.features, sample, nullable=True)]
    else:
        columns = {name: _column(header, sample, name, at) for at, name in enumerate(names)}
        known = categories_of(header, names, columns)
        inputs = feature_specs.of_columns(names, columns, known, nullable=True)
    if options.get(BASE_MARGIN):
        margin = spec_of(BASE_MARGIN, "float32", facts.output("margin").shape)
        inputs.append(replace(margin, optional=True))
    return derived(inputs, [facts.output(method) for method in facts.methods(options)])


def names_of(header: Header, options: Mapping[str, Any]) -> list[str] | None:
    """The features' names, by the file or the option `features`; None for a matrix. Raises `CannotLoad`."""
    names = [str(name) for name in options.get("features", header.names)]
    if not names:
        return None
    if len(set(names)) != header.features:
        raise CannotLoad(f"the model takes {header.features} features, the option features names {len(set(names))}")
    return names


def categories_of(header: Header, names: Sequence[str], columns: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """The values of each categorical feature, in the order of their codes.

    `columns` stands in, by its values' own categories, for names that the file has cut. Raises `CannotLoad`.
    """
    found: dict[str, Sequence[Any]] = {}
    for name, values in zip(names, header.categories, strict=False):
        if values is None:
            continue
        if header.cut and isinstance(values[0], str):
            stated = _stated(columns.get(name))
            if len(stated) != len(values):
                raise CannotLoad(
                    f"the file does not hold the categories of {name!r} whole (XGBoost before 3.4 cuts letters outside "
                    "of ASCII): pack it with a data frame as example in which that column is categorical, or with a "
                    "signature that says categories="
                )
            values = tuple(stated)
        found[name] = values
    return found


def _stated(values: Any) -> Sequence[Any]:
    """The categories that an input's spec, or a column of a data frame, has."""
    if isinstance(values, TensorSpec):
        return values.categories or ()
    return list(getattr(getattr(values, "dtype", None), "categories", ()))


def _column(header: Header, sample: Any, name: str, at: int) -> Any:
    """A feature's values in the sample, or none of its kind."""
    values = feature_specs.column_of(sample, name, at)
    if values is not None or not header.types:
        return values
    unknown = header.types[at] == CATEGORICAL and not header.categories
    kind = np.dtype(np.int64) if unknown else _KINDS.get(header.types[at])  # codes, as the model was fitted on them
    return None if kind is None else np.empty(0, kind)


def _labels(given: Any, count: int) -> Array:
    values = list(given) if isinstance(given, (list, tuple, np.ndarray)) else []
    kinds = {type(value) for value in values}
    if len(values) != count or len(set(values)) != count or len(kinds) != 1:
        raise CannotLoad(f"the option classes must list {count} different classes, all text or all numbers")
    labels = np.array(values, object if kinds == {str} else None)
    if dtype_of(labels) is None:
        raise CannotLoad("the option classes must hold text, whole numbers or booleans")
    return labels


def _rounds(header: Header, options: Mapping[str, Any]) -> int:
    """The estimators stop after their best round, a Booster does not; the option says so otherwise."""
    best = header.best_iteration
    usual = best + 1 if best is not None and header.estimator else 0
    rounds = options.get("rounds", usual)
    if rounds == "best":
        rounds = 0 if best is None else best + 1
    most = len(header.trees_until) - 1
    if type(rounds) is not int or rounds < 0 or (most > 0 and rounds > most):
        raise CannotLoad(f'rounds must be a whole number up to {most}, 0 for all of them, or "best"')
    return 0 if header.booster == "gblinear" else rounds
