"""The signature of a fitted scikit-learn estimator: its features as inputs, its methods as outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.model.flavors import derived, spec_of
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, dtype_of

METHODS: Final = (
    "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform", "apply",
)  # fmt: skip
"""What may be offered as an output: methods that only look at the rows they are given."""

_USUAL: Final = ("predict", "predict_proba")
ROWS: Final = "n"
MATRIX: Final = "x"
"""The one input of an estimator that was fitted on a matrix."""


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


def derive(model: Any, options: Mapping[str, Any], sample: Any = None) -> Signature:
    """The signature, with dtypes from `sample` (a data frame or matrix as given to `fit`) where there is one.

    The methods are tried on two rows to see what they return. Raises `CannotLoad` saying what to state by hand.
    """
    inputs = _inputs(model, sample, [str(name) for name in options.get("features", ())])
    probe = _probe(model, inputs, sample)
    outputs: list[TensorSpec] = []
    for method in _methods(model, options):
        try:
            answer = getattr(model, method)(probe)
        except Exception as error:  # made-up rows may be nothing that this estimator accepts
            raise CannotLoad(
                f"{type(model).__name__}.{method} fails on made-up rows ({type(error).__name__}: {error}): pack it "
                "with an example, or with a signature"
            ) from error
        outputs += _outputs(model, method, answer)
    return derived(inputs, outputs)


def _methods(model: Any, options: Mapping[str, Any]) -> list[str]:
    if "methods" in options:
        wanted = [str(method) for method in options["methods"]]
        if missing := [method for method in wanted if method not in METHODS or not hasattr(model, method)]:
            raise CannotLoad(f"{type(model).__name__} has no method {missing[0]!r} that could be an output")
        return wanted
    found = [method for method in _USUAL if hasattr(model, method)]
    if "predict" not in found:
        return [*found, "transform"]
    if "predict_proba" not in found and hasattr(model, "classes_") and hasattr(model, "decision_function"):
        return [*found, "decision_function"]
    return found


def _inputs(model: Any, sample: Any, features: list[str]) -> list[TensorSpec]:
    nullable = _allows_nan(model)
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        texts = _text_columns(model)
        return [_feature(str(name), _column_dtype(str(name), sample, texts), (), nullable) for name in names]
    count = getattr(model, "n_features_in_", None)
    if features and len(set(features)) != count:
        raise CannotLoad(f"the estimator takes {count} features, the option features names {len(set(features))}")
    if features:
        return [_feature(name, _matrix_dtype(None), (), nullable) for name in features]
    if count is not None:
        return [_feature(MATRIX, _matrix_dtype(sample), (int(count),), nullable)]
    if _reads_text(model, sample):
        return [_feature(MATRIX, "str", (), False)]
    raise CannotLoad(f"{type(model).__name__} does not say how many features it takes: pack it with a signature")


def _feature(name: str, dtype: str, rest: tuple[int, ...], nullable: bool) -> TensorSpec:
    spec = spec_of(name, dtype, (ROWS, *rest))
    return TensorSpec(
        spec.name, spec.dtype, spec.shape, nullable=nullable and spec.dtype in FLOATS, tolerance=spec.tolerance
    )


def _column_dtype(name: str, sample: Any, texts: Mapping[str, Any]) -> str:
    if sample is not None and hasattr(sample, "columns"):
        return _known(np.asarray(sample[name]), name)
    if isinstance(sample, Mapping) and name in sample:
        return _known(np.asarray(sample[name]), name)
    return "str" if name in texts else "float64"


def _matrix_dtype(sample: Any) -> str:
    if sample is None:
        return "float64"
    value = next(iter(sample.values())) if isinstance(sample, Mapping) and len(sample) == 1 else sample
    array = np.asarray(value)
    return array.dtype.name if array.dtype.name in ("float32", "float64") else "float64"


def _known(array: Any, name: str) -> str:
    dtype = dtype_of(array)
    if dtype is None:
        raise CannotLoad(f"the example's column {name!r} has values that no dtype stands for: {array.dtype}")
    return dtype


def _text_columns(model: Any) -> dict[str, Any]:
    """Columns that a ColumnTransformer encodes as categories of text, each with a known category."""
    found: dict[str, Any] = {}
    for part in _parts(model):
        for _, encoder, columns in getattr(part, "transformers_", ()):
            for name, categories in zip(columns, _categories(encoder), strict=False):
                if len(categories) and isinstance(categories[0], str):
                    found[str(name)] = str(categories[0])
    return found


def _parts(model: Any) -> list[Any]:
    """The steps of a pipeline (of pipelines), or the model alone."""
    steps = getattr(model, "steps", None)
    return [part for _, step in steps for part in _parts(step)] if steps else [model]


def _categories(encoder: Any) -> list[Any]:
    return next((part.categories_ for part in _parts(encoder) if hasattr(part, "categories_")), [])


def _reads_text(model: Any, sample: Any) -> bool:
    if isinstance(sample, (list, tuple)) and sample and isinstance(sample[0], str):
        return True
    first = _parts(model)[0]
    return hasattr(first, "vocabulary_") or hasattr(first, "build_analyzer")


def _allows_nan(model: Any) -> bool:
    try:
        return bool(model.__sklearn_tags__().input_tags.allow_nan)
    except AttributeError:  # estimators of other packages, written before there were tags
        return False


def _probe(model: Any, inputs: list[TensorSpec], sample: Any) -> Any:
    """Two rows in the form in which the estimator was fitted; made up where the sample has none."""
    named = hasattr(model, "feature_names_in_")
    if sample is not None and not isinstance(sample, Mapping):
        return sample[:2] if named or not hasattr(sample, "to_numpy") else sample.to_numpy()[:2]
    given = sample or {}
    if not named and len(inputs) == 1:
        spec = inputs[0]
        if spec.name in given:
            return given[spec.name][:2]
        return ["", ""] if spec.dtype == "str" else np.zeros((2, *spec.shape[1:]), NUMPY_TYPES[spec.dtype])
    texts = _text_columns(model)
    columns = {spec.name: _two(spec, given.get(spec.name), texts.get(spec.name, "")) for spec in inputs}
    try:
        import pandas
    except ImportError:
        return np.column_stack(list(columns.values()))
    return pandas.DataFrame(columns) if named else np.column_stack(list(columns.values()))


def _two(spec: TensorSpec, given: Any, text: str) -> Any:
    """Two values of a column."""
    if given is not None:
        return np.asarray(given)[:2]
    return np.full(2, text, object) if spec.dtype == "str" else np.zeros(2, NUMPY_TYPES[spec.dtype])


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
