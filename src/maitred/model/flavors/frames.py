"""How the inputs of one batch become what tabular models are given: one matrix of floats, or one pandas DataFrame.

A flavor makes a builder once, when it opens a model, and calls it once a batch:

    columns = frames.arrange(signature, names)         # `names`: of the features, in the order of fitting, or None
    build = frames.Matrix(columns)                     # codes for inputs with categories, NaN for what is missing
    build = frames.Frame(columns, "catboost")          # the dtypes of fitting; raises MissingExtra without pandas
    model.predict(build(inputs))

Every value is turned into what it becomes by itself: no code, dtype or missing value depends on which rows share a
batch. `categories` (of either builder) states those that a signature cannot: of booleans, or of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.model.refusals import CannotLoad, MissingExtra
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, Array

Categories = Mapping[str, Sequence[Any]]
"""Known values by input, each at the position that is its code."""

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


def known_categories(columns: Sequence[Column], given: Categories | None) -> dict[str, Sequence[Any]]:
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


# --- one matrix -------------------------------------------------------------------------------------------------

_Change = Callable[[Array], Array]


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
        kinds = [_number_type(column.spec, column.name in known) for column in columns]
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


def _changes(columns: Sequence[Column], known: Categories) -> Iterable[tuple[str, _Change]]:
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


def _number_type(spec: TensorSpec, coded: bool) -> Any:
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


# --- one DataFrame ----------------------------------------------------------------------------------------------


class Frame:
    """A pandas DataFrame in the order of fitting, of the dtypes that pandas gives such columns.

    Numbers as numpy has them; `Int64`, `boolean` and their like where the input is nullable; `str`; `category` with the
    known categories in their order; `datetime64`, in UTC where the input says so. Text of the inputs in `as_objects`
    stays Python's own, None for missing (a model fitted on such columns tells None from NaN).
    """

    def __init__(
        self,
        columns: Sequence[Column],
        flavor: str,
        categories: Categories | None = None,
        as_objects: Iterable[str] = (),
    ) -> None:
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra(flavor, "pandas", "pandas") from error
        self._pandas = pandas
        self._from_blocks = _block_builder()
        self.columns = pandas.Index([feature for column in columns for feature in column.features])
        """The names of the features, shared by all the frames."""
        self._numbers: dict[np.dtype[Any], list[tuple[str, bool]]] = {}
        places: dict[np.dtype[Any], list[int]] = {}
        self._arrays: list[tuple[str, _Change, Any]] = []
        known, kept = known_categories(columns, categories), frozenset(as_objects)
        at = 0
        for column in columns:
            make = self._array_maker(column, known, kept)
            if make is not None:
                self._arrays.append((column.name, make, np.array([at])))
            else:
                dtype = _number_type(column.spec, False)
                self._numbers.setdefault(dtype, []).append((column.name, len(column.spec.shape) == 2))
                places.setdefault(dtype, []).extend(range(at, at + column.width))
            at += column.width
        self._places = {dtype: np.array(listed) for dtype, listed in places.items()}

    def __call__(self, inputs: Mapping[str, Array]) -> Any:
        """The DataFrame of one batch."""
        blocks: list[tuple[Any, Any]] = []
        for dtype, members in self._numbers.items():
            parts = [inputs[name].T if wide else inputs[name] for name, wide in members]
            if any(wide for _, wide in members):
                block = np.concatenate([part if part.ndim == 2 else part[None] for part in parts], dtype=dtype)
            else:
                block = np.array(parts, dtype)
            blocks.append((block, self._places[dtype]))
        blocks += [(make(inputs[name]), place) for name, make, place in self._arrays]
        rows = len(next(iter(inputs.values())))
        return self._from_blocks(blocks, self._pandas.RangeIndex(rows), self.columns)

    def _array_maker(self, column: Column, known: Categories, kept: frozenset[str]) -> _Change | None:
        """What makes an input a column of its own; None for numbers, of which all of one dtype are one block."""
        spec, pandas = column.spec, self._pandas
        if column.name in known:
            return _categorical(pandas, known[column.name])
        single = spec.dtype == "str" or spec.time is not None or (spec.nullable and spec.dtype not in FLOATS)
        if not single:
            return None
        if column.width != 1:
            raise CannotLoad(f"input {column.name!r} holds several features, which must be plain numbers then")
        if spec.dtype == "str":
            return _objects if column.name in kept else _texts(pandas)
        if spec.time is not None:
            return _times(pandas, spec)
        made = pandas.arrays.BooleanArray if spec.dtype == "bool" else pandas.arrays.IntegerArray
        return lambda values: made(np.ma.getdata(values).reshape(-1), np.ma.getmaskarray(values).reshape(-1), copy=True)


def _categorical(pandas: Any, categories: Sequence[Any]) -> _Change:
    coder, dtype = Coder(categories), pandas.CategoricalDtype(pandas.Index(list(categories)))
    return lambda values: pandas.Categorical.from_codes(coder.codes(values), dtype=dtype, validate=False)


def _objects(values: Array) -> Array:
    return values.reshape(1, -1).copy()


def _texts(pandas: Any) -> _Change:
    """The dtype `str` of pandas 3, with NaN for None; before it, objects."""
    if int(pandas.__version__.partition(".")[0]) < 3:
        return _objects_with_nan
    dtype = pandas.StringDtype("python", na_value=np.nan)  # Arrow's storage takes four times as long to fill
    made = dtype.construct_array_type()
    return lambda values: made._from_sequence(values.reshape(-1), dtype=dtype, copy=True)


def _objects_with_nan(values: Array) -> Array:
    texts = np.array(values).reshape(1, -1)
    texts[texts == None] = np.nan  # noqa: E711  numpy compares each element
    return texts


def _times(pandas: Any, spec: TensorSpec) -> _Change:
    if spec.zone is None:
        return lambda values: values.reshape(1, -1).copy()
    dtype = pandas.DatetimeTZDtype(spec.time, spec.zone)
    made = dtype.construct_array_type()
    return lambda values: made._from_sequence(values.reshape(-1), dtype=dtype, copy=True)


def _block_builder() -> Callable[[Any, Any, Any], Any]:
    """pandas' own way to make a DataFrame of ready blocks, an eighth of the time of its constructor."""
    try:
        from pandas.api.internals import create_dataframe_from_blocks
    except ImportError:  # before pandas 3
        return _assembled
    build: Callable[[Any, Any, Any], Any] = create_dataframe_from_blocks
    return build


def _assembled(blocks: list[tuple[Any, Any]], index: Any, names: Any) -> Any:
    """As `create_dataframe_from_blocks`, for a pandas without it."""
    import pandas

    by_place: dict[int, Any] = {}
    for block, places in blocks:
        rows = block if getattr(block, "ndim", 1) == 2 else [block]
        by_place.update(zip(places.tolist(), rows, strict=True))
    frame = pandas.DataFrame({at: by_place[at] for at in sorted(by_place)}, index=index, copy=False)
    frame.columns = names
    return frame
