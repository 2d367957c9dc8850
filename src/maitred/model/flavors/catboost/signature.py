"""The signature of a CatBoost model: its features as inputs, what it can be asked for as outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.model.flavors import ROWS, derived, feature_specs, spec_of, trees
from maitred.model.flavors.options import Options, features_in, methods_in
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import INTEGERS, Array

_SEVERAL_LABELS: Final = ("MultiLogloss", "MultiCrossEntropy")
"""Losses of models that say yes or no to each class."""


class Features(NamedTuple):
    """What a model knows about its features."""

    names: tuple[str, ...]
    named: bool
    """Whether these are names; else the library has counted."""
    categorical: frozenset[int]
    """Places of those that are hashed."""
    texts: frozenset[int]
    embeddings: frozenset[int]
    takes_nan: bool

    @property
    def numeric(self) -> bool:
        """Whether all are numbers."""
        return not (self.categorical or self.texts or self.embeddings)


def features_of(model: Any, options: Options) -> Features:
    """The features, named by the model or by the option `features`. Raises `CannotLoad`."""
    own = [str(name) for name in model.feature_names_]
    given = features_in(options, len(own))
    return Features(
        tuple(given or own),
        bool(given) or own != [str(at) for at in range(len(own))],
        frozenset(model.get_cat_feature_indices()),
        frozenset(model.get_text_feature_indices()),
        frozenset(model.get_embedding_feature_indices()),
        _parameters(model).get("nan_mode") != "Forbidden",
    )


def derive(model: Any, options: Options, sample: Any = None) -> Signature:
    """The signature, with the columns' dtypes from `sample` where there is one. Raises `CannotLoad`."""
    features = features_of(model, options)
    if features.numeric and not features.named:
        inputs = [feature_specs.of_matrix(len(features.names), sample, nullable=features.takes_nan)]
    else:
        inputs = [_input(features, at, sample, options) for at in range(len(features.names))]
    methods = methods_in(options, ["predict", "predict_proba"] if _classifies(model) else ["predict"])
    check_methods(model, methods)
    return derived(inputs, [_output(model, features, method) for method in methods])


def _input(features: Features, at: int, sample: Any, options: Options) -> TensorSpec:
    name = features.names[at]
    values = feature_specs.column_of(sample, name, at)
    if at in features.embeddings:
        return _embedding(name, values)
    if at not in features.categorical | features.texts:
        return feature_specs.of_columns([name], {name: values}, nullable=features.takes_nan)[0]
    if at in features.texts:
        return spec_of(name, "str", (ROWS,))
    (spec,) = feature_specs.of_columns([name], {name: values}, dtype="str")
    # The model hashes what it gets, so it knows no list of values: a category of the sample is like any other.
    return replace(spec, categories=None, nullable="missing" in options)


def _embedding(name: str, values: Any) -> TensorSpec:
    first = None if values is None or not len(values) else next(iter(values))
    array = np.asarray(first)
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise CannotLoad(f"the embedding {name!r} has a size that the model does not tell: pack it with an example")
    return spec_of(name, "float32", (ROWS, len(array)))


def check_input(features: Features, at: int, spec: TensorSpec, options: Options) -> None:
    """Raise `CannotLoad` for an input that this feature cannot be."""
    where = f"input {spec.name!r}"
    if at in features.embeddings:
        if len(spec.shape) != 2 or spec.dtype not in ("float32", "float64"):
            raise CannotLoad(f"{where} is an embedding: it must be a matrix such as float32[n, 12]")
    elif at in features.texts:
        if spec.dtype != "str" or spec.nullable:
            raise CannotLoad(f"{where} is a text feature: it must be str, and not nullable")
    elif at in features.categorical:
        if spec.dtype not in {"str", "bool", *INTEGERS} or spec.time is not None:
            raise CannotLoad(f"{where} is a categorical feature: it must be str, bool or whole numbers")
        if spec.nullable and "missing" not in options:
            raise CannotLoad(
                f"{where} is a categorical feature, of which CatBoost takes no missing values: say by the option "
                'missing which text the model was fitted on in their place, such as "nan"'
            )


# --- outputs ----------------------------------------------------------------------------------------------------


def check_methods(model: Any, methods: Collection[str]) -> None:
    """Raise `CannotLoad` for what this model cannot be asked for."""
    trees.check_known(methods)
    if "predict_proba" in methods and not len(model.classes_):
        raise CannotLoad(f"a model of the loss {_loss(model)} has no predict_proba")
    if "contributions" in methods and _loss(model) == "RMSEWithUncertainty":
        raise CannotLoad("CatBoost has contributions to one of the two values of RMSEWithUncertainty only")


def _output(model: Any, features: Features, method: str) -> TensorSpec:
    classes: Array = np.asarray(model.classes_)
    width = _width(model)
    sums: tuple[int, ...] = (width,) if width > 1 else ()
    if method == "predict_proba":
        return trees.probabilities("float64", classes)
    if method == "leaf":
        return trees.leaves(int(model.tree_count_))
    if method == "contributions":
        return trees.contributions("float64", sums, len(features.names), features.names if features.named else None)
    if method == "predict" and _classifies(model):
        if _loss(model) in _SEVERAL_LABELS:  # 0 or 1 for each, whatever they are called
            return spec_of(method, "int64", (ROWS, len(classes)))
        return trees.class_of(classes)
    return spec_of(method, "float64", (ROWS, *sums))


def _classifies(model: Any) -> bool:
    """Whether its own `predict` names classes: a bare CatBoost gives the trees' sum instead."""
    return len(model.classes_) > 0 and hasattr(model, "predict_proba")


def _width(model: Any) -> int:
    """How many sums the trees give for a row."""
    return int(np.size(model.get_scale_and_bias()[1]) or 1)


def _loss(model: Any) -> str:
    return str(_parameters(model).get("loss_function", "")).partition(":")[0]


def _parameters(model: Any) -> Mapping[str, Any]:
    """What it was fitted with, as the file keeps it; nothing for a sum of models, which was not."""
    known = {"params", "output_options"} <= set(model.get_metadata())
    found: Mapping[str, Any] = model.get_all_params() if known else {}
    return found
