"""How the inputs of one batch become what tabular models are given: one matrix of numbers, in the order of fitting.

A flavor makes a builder once, when it opens a model, and calls it once a batch:

    columns = arrange(signature, names)     # `names`: of the features, in the order of fitting, or None
    build = Matrix(columns)                 # codes for inputs with categories, NaN for what is missing
    model.predict(build(inputs))

Every value is turned into what it becomes by itself: no code, dtype or missing value depends on which rows share a
batch. (`sklearn/frame.py` builds data frames of the same columns.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, Array

Categories = Mapping[str, Sequence[Any]]
"""Known values by input, each at the position that is its code."""

Change = Callable[[Array], Array]
"""What makes of an input's values what the model is given."""

_HALVES: Final = frozenset({"float16", "bfloat16"})
"""Served as float32: neither pandas nor the libraries compute with them."""


class Column(NamedTuple):
    """One input, and the features that it holds: its own name, or those of a matrix's columns."""

    spec: TensorSpec
    features: tuple[str, ...]

    @property
    def name(self) -> str:
        """The input's name."""
        return self.spec.name

    @property
    def width(self) -> int:
        """How many features the input holds."""
        return len(self.features)


def arrange(signature: Signature, names: Iterable[str] | None, count: int | None = None) -> list[Column]:
    """The inputs in the order in which the model was fitted on them.

    `names` are the model's features. Inputs that are matrices (`float64[n, 12]`) take as many features as they have
    columns, in the signature's order, as all inputs do where the model knows no names (then `count` features in all,
    where that is known). Raises `CannotLoad` for a signature that is no table of the model's features.
    """
    for spec in signature.inputs.values():
        _check(spec)
    known = None if names is None else [str(name) for name in names]
    widths = {name: 1 if len(spec.shape) == 1 else int(spec.shape[1]) for name, spec in signature.inputs.items()}
    single = set(widths.values()) == {1}
    if known is not None and single and sorted(known) == sorted(widths):
        return [Column(signature.inputs[name], (name,)) for name in known]
    if known is not None and single and len(widths) > 1:
        raise CannotLoad(f"the model was fitted on the columns {known}, the signature has {[*signature.inputs]}")
    total, wanted = sum(widths.values()), count if known is None else len(known)
    if wanted is not None and total != wanted:
        raise CannotLoad(f"the model takes {wanted} features, the signature's inputs hold {total}")
    left = iter(known if known is not None else _numbered(widths))
    return [Column(spec, tuple(next(left) for _ in range(widths[name]))) for name, spec in signature.inputs.items()]


def _numbered(widths: Mapping[str, int]) -> list[str]:
    return [name if width == 1 else f"{name}_{at}" for name, width in widths.items() for at in range(width)]


def _check(spec: TensorSpec) -> None:
    fixed = len(spec.shape) == 1 or (len(spec.shape) == 2 and isinstance(spec.shape[1], int) and spec.shape[1] > 0)
    if not fixed or not isinstance(spec.shape[0], str):
        raise CannotLoad(f"input {spec.name!r} must be a column [n], or a matrix of columns such as [n, 12]")
    if spec.optional and spec.default is None:
        raise CannotLoad(
            f"input {spec.name!r} is optional, but the model needs every feature: say what stands for a missing one, "
            "such as default=NaN"
        )
    if spec.dtype == "bytes":
        raise CannotLoad(f"input {spec.name!r}: bytes cannot be a feature")


class Coder:
    """The positions of values among known categories. Equal values of other types (1 and 1.0) are the same category."""

    def __init__(self, categories: Sequence[Any]) -> None:
        self._codes = {value: code for code, value in enumerate(categories)}
        self._numbers = {value: float(code) for code, value in enumerate(categories)}
        self._type = np.min_scalar_type(-max(len(categories), 1))

    def codes(self, values: Array) -> Array:
        """As integers; -1 for everything else, missing values included."""
        return np.fromiter(map(self._codes.get, _listed(values), repeat(-1)), self._type, len(values))

    def numbers(self, values: Array) -> Array:
        """As float64; NaN for everything else, missing values included."""
        return np.fromiter(map(self._numbers.get, _listed(values), repeat(np.nan)), np.float64, len(values))


def _listed(values: Array) -> list[Any]:
    """A column's values as Python's own, None for masked ones."""
    listed: list[Any] = (values if values.ndim == 1 else values.reshape(len(values))).tolist()
    return listed


def known_categories(columns: Sequence[Column], given: Categories | None = None) -> dict[str, Sequence[Any]]:
    """The categories of each input that has some; what is `given` goes before what the signature says."""
    found: dict[str, Sequence[Any]] = {}
    for column in columns:
        values = (given or {}).get(column.name, column.spec.categories)
        if values is None:
            continue
        if column.width != 1:
            raise CannotLoad(f"input {column.name!r} holds several features, so it cannot have categories")
        found[column.name] = values
    return found


class Matrix:
    """A matrix of numbers in the order of fitting, contiguous by rows, or by columns where that is asked for.

    Its dtype holds every input's values, float64 and float32 being the only ones where `floats` says so. Categories
    become their codes, times their counts, booleans 0 and 1, missing values NaN. A single matrix of that dtype is
    passed on as it is.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        categories: Categories | None = None,
        floats: bool = True,
        by_columns: bool = False,
    ) -> None:
        known = known_categories(columns, categories)
        self._names = [column.name for column in columns]
        self._changes = dict(_changes(columns, known))
        kinds = [number_type(column.spec, column.name in known) for column in columns]
        common = np.result_type(*kinds)
        self.dtype = np.dtype(np.float64) if floats and common not in (np.float32, np.float64) else common
        """Of every matrix that it builds."""
        self._flat = all(len(column.spec.shape) == 1 or column.name in known for column in columns)
        self._only = columns[0].name if len(columns) == 1 and not self._flat else ""
        self._by_columns = by_columns

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """The matrix of one batch."""
        if self._changes:
            inputs = {**inputs, **{name: change(inputs[name]) for name, change in self._changes.items()}}
        if self._only:
            return np.asarray(inputs[self._only], self.dtype)
        parts = [inputs[name] for name in self._names]
        if self._flat:
            matrix = np.array(parts, self.dtype).T
            return matrix if self._by_columns else np.ascontiguousarray(matrix)
        wide = [part if part.ndim == 2 else part[:, None] for part in parts]
        return np.concatenate(wide, axis=1, dtype=self.dtype)


def _changes(columns: Sequence[Column], known: Categories) -> Iterable[tuple[str, Change]]:
    """What inputs must become before numpy can stack them."""
    for column in columns:
        spec = column.spec
        if column.name in known:
            yield column.name, Coder(known[column.name]).numbers
        elif spec.dtype == "str":
            raise CannotLoad(f"input {spec.name!r} is text without categories, which cannot go into a matrix")
        elif spec.time is not None:
            yield column.name, _counts
        elif spec.nullable and spec.dtype not in FLOATS:
            yield column.name, _filled


def number_type(spec: TensorSpec, coded: bool) -> Any:
    """numpy's dtype for an input's values; float64 where some may be missing, or where they are codes or counts."""
    if coded or spec.time is not None or (spec.nullable and spec.dtype not in FLOATS):
        return np.dtype(np.float64)
    return np.dtype(np.float32) if spec.dtype in _HALVES else NUMPY_TYPES[spec.dtype]


def _filled(values: Array) -> Array:
    """Nullable integers or booleans as float64, masked ones as NaN."""
    numbers: Array = np.ma.getdata(values).astype(np.float64)
    numbers[np.ma.getmaskarray(values)] = np.nan
    return numbers


def _counts(values: Array) -> Array:
    """Times as float64 counts of their unit, NaT as NaN."""
    numbers: Array = values.view(np.int64).astype(np.float64)
    numbers[np.isnat(values)] = np.nan
    return numbers
