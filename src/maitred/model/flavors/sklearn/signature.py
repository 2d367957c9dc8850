"""The signature of a fitted scikit-learn estimator: its features as inputs, its methods as outputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.model.flavors import ROWS, derived, feature_specs, spec_of
from maitred.model.flavors.options import Options, features_in, methods_in
from maitred.model.flavors.sklearn.estimator import names_of, reads_texts, told_by
from maitred.model.flavors.sklearn.inputs import features_of
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, Array, dtype_of

METHODS: Final = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform", "apply",
)  # fmt: skip
"""What may be offered as an output: methods that only look at the rows they are given."""

_MOST_TRIES: Final = 64
"""Columns that are tried one by one to find those in which a value may be missing."""


class Plan(NamedTuple):
    """Which method gives an output, and which part of its answer where that is a list (one per target)."""

    method: str
    part: int | None


def plan(output: str) -> Plan:
    """`predict_proba` is the method's whole answer, `predict_proba_0` its first target's. Raises `CannotLoad`."""
    match = re.fullmatch(r"(.+?)(?:_(\d{1,6}))?", output)
    if match is None or match.group(1) not in METHODS:
        raise CannotLoad(f"no output can be named {output!r}: outputs are methods, {', '.join(METHODS)}")
    return Plan(match.group(1), int(match.group(2)) if match.group(2) else None)


def derive(model: Any, options: Options, sample: Any = None) -> Signature:
    """The signature, with dtypes from `sample` (a data frame or matrix as given to `fit`) where there is one.

    The methods are tried on two rows to see what they return, and whether values may be missing. Raises `CannotLoad`
    saying what to state by hand.
    """
    inputs = _inputs(model, sample, options)
    methods = _methods(model, options)
    rows = _rows(model, inputs, sample)
    try:
        answers = _answers(model, inputs, methods, rows)
    except CannotLoad:
        raise
    except Exception as error:  # made-up rows may be nothing that this estimator accepts
        raise CannotLoad(
            f"{type(model).__name__} fails on {'two rows of the example' if sample is not None else 'made-up rows'} "
            f"({type(error).__name__}: {error}): pack it with an example, or with a signature"
        ) from error
    inputs = _nullable(model, inputs, methods[0], rows)
    outputs = [spec for method, answer in answers.items() for spec in _outputs(model, method, answer)]
    return derived(inputs, outputs)


def _methods(model: Any, options: Options) -> list[str]:
    wanted = methods_in(options, ())
    if missing := [method for method in wanted if method not in METHODS or not hasattr(model, method)]:
        raise CannotLoad(f"{type(model).__name__} has no method {missing[0]!r} that could be an output")
    return wanted or _usual(model)


def _usual(model: Any) -> list[str]:
    """The methods that answer, and how sure of it the estimator is."""
    found = [method for method in ("predict", "predict_proba") if hasattr(model, method)]
    if "predict" not in found:
        return [*found, "transform"]
    if "predict_proba" not in found and hasattr(model, "classes_") and hasattr(model, "decision_function"):
        return [*found, "decision_function"]
    if hasattr(model, "decision_function") and _kind(model) == "outlier_detector":
        return [*found, "decision_function"]
    return found


def _kind(model: Any) -> str:
    try:
        return str(model.__sklearn_tags__().estimator_type)
    except AttributeError:  # estimators of other packages, written before there were tags
        return ""


def _inputs(model: Any, sample: Any, options: Options) -> list[TensorSpec]:
    names, count = names_of(model), getattr(model, "n_features_in_", None)
    if names is not None:
        told = told_by(model)
        specs = feature_specs.of_columns(names, sample, told.categories)
        return [_as_told(spec, told.texts, sample) for spec in specs]
    if features := features_in(options, count):
        return [spec_of(name, "float64", (ROWS,)) for name in features]
    if count is not None:
        return [feature_specs.of_matrix(int(count), sample)]
    given = feature_specs.matrix_of(sample)
    if reads_texts(model) or (isinstance(given, (list, tuple)) and given and isinstance(given[0], str)):
        return [spec_of(feature_specs.MATRIX, "str", (ROWS,))]
    raise CannotLoad(f"{type(model).__name__} does not say how many features it takes: pack it with a signature")


def _as_told(spec: TensorSpec, texts: Mapping[str, str], sample: Any) -> TensorSpec:
    """A column that the sample does not show, or shows without a value, is text where the estimator encodes text."""
    shown = feature_specs.column_of(sample, spec.name, -1)
    if spec.name not in texts or spec.categories is not None or spec.dtype == "str":
        return spec
    if shown is None or not any(value == value and value is not None for value in shown):
        return replace(spec_of(spec.name, "str", spec.shape), nullable=spec.nullable)
    return spec


# --- tried on a few rows -------------------------------------------------------------------------------------------

_Rows = dict[str, Array]


def _rows(model: Any, inputs: list[TensorSpec], sample: Any) -> _Rows:
    """Two rows: the sample's first, or made up."""
    if sample is not None:
        given: Any = sample
        if len(inputs) == 1 and names_of(model) is None and not isinstance(sample, Mapping):
            frame = hasattr(sample, "to_numpy")
            given = {inputs[0].name: sample.to_numpy() if frame else sample}
        found = feature_specs.rows_of(inputs, given)
        if found is not None:
            return found
    texts = told_by(model).texts
    return {spec.name: _made_up(spec, texts.get(spec.name, "")) for spec in inputs}


def _made_up(spec: TensorSpec, text: str) -> Array:
    """Two values of a column."""
    shape = (2, *(int(size) for size in spec.shape[1:]))
    if spec.time is not None:
        return np.zeros(shape, f"datetime64[{spec.time}]")
    value = spec.categories[0] if spec.categories is not None else text if spec.dtype == "str" else 0
    return np.full(shape, value, NUMPY_TYPES[spec.dtype])


def _answers(model: Any, inputs: list[TensorSpec], methods: Iterable[str], rows: _Rows) -> dict[str, Any]:
    placeholder = [spec_of(method, "float64", (ROWS,)) for method in methods]
    features = features_of(model, derived(inputs, placeholder))(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that only these rows have
        return {method: getattr(model, method)(features) for method in methods}


def _nullable(model: Any, inputs: list[TensorSpec], method: str, rows: _Rows) -> list[TensorSpec]:
    """The inputs, nullable where the estimator answers rows in which their values are missing."""
    wanted = [spec.name for spec in inputs if not spec.nullable and _may_miss(spec)]
    if not wanted:
        return inputs
    if not _takes_missing(model, inputs, method, rows, wanted):
        tried = wanted if 1 < len(wanted) <= _MOST_TRIES else []
        wanted = [name for name in tried if _takes_missing(model, inputs, method, rows, [name])]
    return [replace(spec, nullable=spec.nullable or spec.name in wanted) for spec in inputs]


def _may_miss(spec: TensorSpec) -> bool:
    """Whether a missing value needs no other dtype in what the estimator gets."""
    return spec.dtype in FLOATS or spec.dtype == "str" or spec.categories is not None


def _takes_missing(model: Any, inputs: list[TensorSpec], method: str, rows: _Rows, names: list[str]) -> bool:
    lacking = dict(rows)
    for name in names:
        lacking[name] = _without_first(rows[name])
    specs = [replace(spec, nullable=spec.nullable or spec.name in names) for spec in inputs]
    try:
        answer = _answers(model, specs, [method], lacking)
    except Exception:  # whatever an estimator raises that does not take them
        return False
    return len(answer) == 1


def _without_first(values: Array) -> Array:
    """The values, those of the first row missing."""
    if values.dtype.kind not in "fO":
        return np.ma.MaskedArray(values, np.arange(len(values)) == 0)
    lacking = values.copy()
    lacking[0] = None if values.dtype.kind == "O" else np.nan
    return lacking


def _outputs(model: Any, method: str, answer: Any) -> list[TensorSpec]:
    classes = getattr(model, "classes_", None)
    if isinstance(answer, list):  # several targets: an answer and a set of classes for each
        several = classes if isinstance(classes, list) else [None] * len(answer)
        return [_output(f"{method}_{i}", part, several[i]) for i, part in enumerate(answer)]
    return [_output(method, answer, None if isinstance(classes, list) else classes)]


def _output(name: str, answer: Any, classes: Any) -> TensorSpec:
    array = np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer)
    dtype = dtype_of(array)
    if dtype is None:
        raise CannotLoad(f"{name} gives values that no dtype stands for: {array.dtype}")
    shape = (ROWS, *array.shape[1:])
    fits = classes is not None and array.ndim == 2 and array.shape[1] == len(classes) and dtype in FLOATS
    return spec_of(name, dtype, shape, tuple(str(label) for label in classes) if fits else None)
