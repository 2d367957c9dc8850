"""What a model of trees can be asked for: the same outputs under the same names, whichever library made it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from maitred.model.flavors import ROWS, spec_of
from maitred.model.refusals import CannotLoad
from maitred.model.signature import TensorSpec
from maitred.wire.coerce import Array, dtype_of

METHODS: Final = ("predict", "predict_proba", "raw_score", "leaf", "contributions")
"""The answer, probabilities, the trees' sum before any link function, each tree's leaf, what each feature adds."""
EXPECTED: Final = "expected"
"""The last of a row's contributions: the sum of a row of which nothing is known."""


def check_known(methods: Iterable[str]) -> None:
    """Raises `CannotLoad` for a name that no output can have."""
    for method in methods:
        if method not in METHODS:
            raise CannotLoad(f"there is no output {method!r}: outputs are {', '.join(METHODS)}")


def class_of(classes: Array) -> TensorSpec:
    """`predict` of a classifier: one of the classes."""
    dtype = dtype_of(classes)
    if dtype is None:
        raise CannotLoad(f"the classes {classes.tolist()} are of no dtype that can be served")
    return spec_of("predict", dtype, (ROWS,))


def probabilities(dtype: str, classes: Array) -> TensorSpec:
    """`predict_proba`: of each class."""
    labels = tuple(str(label) for label in classes.tolist())
    return spec_of("predict_proba", dtype, (ROWS, len(labels)), labels)


def leaves(trees: int) -> TensorSpec:
    """`leaf`: the number of the leaf that a row comes to, in each tree."""
    return spec_of("leaf", "int32", (ROWS, trees))


def contributions(dtype: str, sums: tuple[int, ...], features: int, names: Sequence[str] | None) -> TensorSpec:
    """`contributions` (SHAP values) of each feature to each of the sums; by place where features have no names."""
    labels = names if names is not None else tuple(str(at) for at in range(features))
    return spec_of("contributions", dtype, (ROWS, *sums, features + 1), (*labels, EXPECTED))
