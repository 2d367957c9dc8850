"""The signature of an XGBoost model: its features as inputs, what it can be asked for as outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from maitred.model.flavors import ROWS, derived, feature_specs, spec_of, trees
from maitred.model.flavors.options import Options, classes_in, features_in, methods_in
from maitred.model.flavors.xgboost.file import CATEGORICAL, Header
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec

BASE_MARGIN: Final = "base_margin"
"""An input of this name that is no feature: what the trees' sum of a row starts from, in place of the model's own."""

_KINDS: Final = {"int": np.dtype(np.int64), "i": np.dtype(np.bool_)}
"""What a feature was fitted on, by the library's name for it; everything else goes as float64."""
_UNLIKELY: Final = ("binary:logitraw",)
"""Objectives of classifiers that have no probabilities."""


class Facts:
    """What follows from a header and the options. Raises `CannotLoad` where they do not fit each other."""

    def __init__(self, header: Header, options: Options) -> None:
        self.header = header
        self.multilabel = header.targets > 1 and header.classes < 2
        count = max(2, header.classes)
        self.labels = classes_in(options, count)
        """Names or numbers of the classes that are not 0, 1, 2 ...; in the order of those."""
        if self.labels is not None and self.multilabel:
            raise CannotLoad("the option classes is for models of one target, this one has several")
        self.classifier = header.estimator == "classifier" or self.labels is not None
        self.classes = self.labels if self.labels is not None else np.arange(count)
        self.rounds = _rounds(header, options)
        """How many rounds count; 0 for all."""
        self.names = features_in(options, header.features) or list(header.names) or None
        """Of the features; None for a matrix."""

    @property
    def methods(self) -> list[str]:
        """What the outputs are where nobody says so: as `Classifier` and `Booster` have it."""
        likely = self.classifier and self.header.objective not in _UNLIKELY
        return ["predict", "predict_proba"] if likely else ["predict"]

    def check(self, methods: Collection[str]) -> None:
        """Raise `CannotLoad` for what this model cannot be asked for."""
        trees.check_known(methods)
        likely = self.classifier or self.header.objective.startswith(("multi:", "binary:logistic"))
        if "predict_proba" in methods and not likely:
            raise CannotLoad(f"a model of the objective {self.header.objective} has no predict_proba")
        if "leaf" in methods and self.header.booster == "gblinear":
            raise CannotLoad("a linear model has no leaves")
        if "contributions" in methods and self.header.vectors:
            raise CannotLoad("XGBoost has no contributions for trees of several targets")

    def output(self, method: str) -> TensorSpec:
        """What an output looks like."""
        header = self.header
        several: tuple[int, ...] = (header.groups,) if header.groups > 1 else ()
        if method == "predict_proba":
            if self.multilabel:
                return spec_of(method, "float32", (ROWS, header.targets))
            return trees.probabilities("float32", self.classes)
        if method == "leaf":
            return trees.leaves(self._trees())
        if method == "contributions":
            return trees.contributions("float32", several, header.features, self.names)
        if method == "raw_score" or not self.classifier:
            alone = method == "predict" and header.objective == "multi:softmax"
            return spec_of(method, "float32", (ROWS,) if alone else (ROWS, *several))
        return spec_of(method, "int64", (ROWS, header.targets)) if self.multilabel else trees.class_of(self.classes)

    def _trees(self) -> int:
        until = self.header.trees_until
        if not until:
            raise CannotLoad("the file does not tell its trees' rounds: load it once and save it again")
        return until[self.rounds or -1]


def derive(header: Header, options: Options, sample: Any = None) -> Signature:
    """The signature, with the columns' dtypes from `sample` where there is one. Raises `CannotLoad`."""
    facts = Facts(header, options)
    if facts.names is None:
        inputs = [feature_specs.of_matrix(header.features, sample, nullable=True)]
    else:
        columns = {name: _column(header, sample, name, at) for at, name in enumerate(facts.names)}
        known = categories_of(header, facts.names, columns)
        inputs = feature_specs.of_columns(facts.names, columns, known, nullable=True)
    if options.get(BASE_MARGIN):
        margin = spec_of(BASE_MARGIN, "float32", facts.output("raw_score").shape)
        inputs.append(replace(margin, optional=True))
    methods = methods_in(options, facts.methods)
    facts.check(methods)
    return derived(inputs, [facts.output(method) for method in methods])


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


def check_rounds(rounds: Any) -> None:
    """Raises `CannotLoad` for what is no number of rounds of any model."""
    if rounds != "best" and (type(rounds) is not int or rounds < 0):
        raise CannotLoad('the option rounds must be a whole number, 0 for all of them, or "best"')


def _rounds(header: Header, options: Options) -> int:
    """The estimators stop after their best round, a Booster does not; the option says so otherwise."""
    best = header.best_iteration
    usual = best + 1 if best is not None and header.estimator else 0
    rounds = options.get("rounds", usual)
    if rounds == "best":
        rounds = 0 if best is None else best + 1
    most = len(header.trees_until) - 1
    check_rounds(rounds)
    if 0 < most < rounds:
        raise CannotLoad(f'the option rounds must be a whole number up to {most}, 0 for all of them, or "best"')
    return 0 if header.booster == "gblinear" else rounds
