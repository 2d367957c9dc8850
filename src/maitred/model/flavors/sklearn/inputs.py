"""How the inputs of a batch become the `X` of a fitted scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from maitred.model.flavors.matrix import Column, Matrix, arrange
from maitred.model.flavors.sklearn.estimator import names_of, takes_names_or_not, told_by
from maitred.model.flavors.sklearn.frame import Frame
from maitred.model.refusals import CannotLoad, MissingExtra
from maitred.model.signature import Signature
from maitred.wire.coerce import FLOATS, Array

Features = Callable[[Mapping[str, Array]], Any]


def features_of(model: Any, signature: Signature) -> Features:
    """What makes `X` of a batch: a matrix wherever that says as much as the data frame of fitting.

    Checks of a data frame's names and dtypes are most of the time of a small batch. Raises `CannotLoad` for a signature
    of other features, `MissingExtra` for pandas.
    """
    names, count = names_of(model), getattr(model, "n_features_in_", None)
    first = next(iter(signature.inputs.values()))
    if names is None and len(signature.inputs) == 1 and (count is None or first.dtype == "str"):
        if count is not None and first.shape[1:] != (count,):
            raise CannotLoad(f"the estimator takes {count} features, input {first.name!r} has the shape {first.shape}")
        return lambda inputs: inputs[first.name]
    columns = arrange(signature, names, count)
    if names is None:
        return Matrix(columns, floats=False)
    kinds = {(column.spec.dtype, _is_plain(column)) for column in columns}
    if len(kinds) == 1 and kinds <= _PLAIN and takes_names_or_not(model):
        return Matrix(columns, floats=False, by_columns=True)  # as the one block of a data frame lies
    told = told_by(model)
    try:
        return Frame(columns, as_objects=told.nones)
    except MissingExtra:
        if told.by_name or not all(plain for _, plain in kinds):
            raise
    return Matrix(columns, floats=False, by_columns=True)


_PLAIN: Final = frozenset({("float32", True), ("float64", True), ("int64", True), ("int32", True)})


def _is_plain(column: Column) -> bool:
    """Whether a matrix says as much as a data frame."""
    spec = column.spec
    special = spec.dtype == "str" or spec.categories is not None or spec.time is not None
    return not special and (spec.dtype in FLOATS or not spec.nullable)
