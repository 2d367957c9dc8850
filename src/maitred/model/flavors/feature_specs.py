"""What the features of a tabular model look like as inputs: from their names, a sample of them, and known categories.

    specs = feature_specs.of_columns(names, sample, categories, dtype="float32", nullable=True)

gives one input a feature. What the sample (a data frame, a mapping of columns, a matrix) shows of a column goes before
`dtype`, what the model itself knows of categories before the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from maitred.model.flavors import ROWS, spec_of
from maitred.model.notation import MAX_CATEGORIES
from maitred.model.refusals import CannotLoad
from maitred.model.signature import TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, Array, dtype_of
from maitred.wire.elements import is_missing

MATRIX: Final = "x"
"""The one input of a model that was fitted on a matrix without names."""

_UNITS: Final = ("s", "ms", "us", "ns")


def of_columns(
    names: Iterable[str],
    sample: Any = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    dtype: str = "float64",
    nullable: bool = False,
) -> list[TensorSpec]:
    """An input for each name. `dtype`: of columns of which the sample shows nothing; `nullable`: whether the model

    takes NaN in place of any number or category. Raises `CannotLoad` naming the column that cannot be served.
    """
    known = dict(categories or {})
    specs = []
    for at, name in enumerate(names):
        values = column_of(sample, name, at)
        spec = spec_of(name, dtype, (ROWS,)) if values is None else _seen(name, values, dtype)
        if name in known:
            spec = _categorical(spec, known[name])
        if nullable and (spec.dtype in FLOATS or spec.categories is not None or name in known):
            spec = replace(spec, nullable=True)
        specs.append(spec)
    return specs


def of_matrix(width: int, sample: Any = None, dtype: str = "float64", nullable: bool = False) -> TensorSpec:
    """The input `x` of a model without names; float32 or text where the sample is, else `dtype`.

    Raises `CannotLoad` for a sample of another width.
    """
    _check_width(width, matrix_of(sample))
    found = None if sample is None else dtype_of(np.asarray(matrix_of(sample)))
    known = found if found in ("float32", "float64", "str") else dtype
    return replace(spec_of(MATRIX, known, (ROWS, width)), nullable=nullable and known in FLOATS)


def _check_width(width: int, matrix: Any) -> None:
    shape = matrix.shape if hasattr(matrix, "shape") else np.shape(matrix)
    if not shape or shape[1:] == (width,) or (len(shape) == 1 and width == 1):
        return
    has = f"{shape[1]} columns" if len(shape) == 2 else f"the shape {list(shape)}"
    raise CannotLoad(f"the example has {has}, the model takes {width}{'' if len(shape) == 2 else ' columns'}")


def matrix_of(sample: Any) -> Any:
    """The matrix that a sample is, or is a mapping of one input to."""
    return next(iter(sample.values())) if isinstance(sample, Mapping) and len(sample) == 1 else sample


def column_of(sample: Any, name: str, at: int) -> Any:
    """The sample's column of that name; the one at that place where it is a matrix; None where it has none."""
    if sample is None:
        return None
    if isinstance(sample, Mapping):
        return sample.get(name)
    if hasattr(sample, "columns") and hasattr(sample, "iloc"):
        places = [place for place, label in enumerate(sample.columns) if str(label) == name]
        return sample.iloc[:, places[0]] if places else None
    array = np.asarray(sample)
    return array[:, at] if array.ndim == 2 and at < array.shape[1] and array.dtype.kind in "fiub" else None


def rows_of(specs: Iterable[TensorSpec], sample: Any, count: int = 2) -> dict[str, Array] | None:
    """The first rows of a sample as the arrays that a request of them would give; None where a column is not there."""
    rows: dict[str, Array] = {}
    for at, spec in enumerate(specs):
        values = column_of(sample, spec.name, at)
        if values is None:
            return None
        rows[spec.name] = _as_sent(spec, list(values[:count]))
    return rows


def _as_sent(spec: TensorSpec, values: list[Any]) -> Array:
    """Some values (or rows) of a column as a model gets them."""
    flat = [part for value in values for part in (value if isinstance(value, (np.ndarray, list)) else (value,))]
    missing = [is_missing(value) for value in flat]
    made: Array
    if spec.time is not None:
        made = np.array([_moment(value, spec.time) for value in flat], f"datetime64[{spec.time}]")
    elif spec.dtype == "str":
        made = np.empty(len(flat), object)
        made[:] = [None if gone else str(value) for value, gone in zip(flat, missing, strict=True)]
    elif spec.dtype in FLOATS:
        made = np.array([np.nan if gone else value for value, gone in zip(flat, missing, strict=True)])
        made = made.astype(NUMPY_TYPES[spec.dtype])
    else:
        made = np.array([0 if gone else value for value, gone in zip(flat, missing, strict=True)], spec.dtype)
        made = np.ma.MaskedArray(made, missing) if spec.nullable else made
    return made.reshape(len(values), *spec.shape[1:])


def _moment(value: Any, unit: str) -> Any:
    if is_missing(value):
        return np.datetime64("NaT")
    return value.to_datetime64() if hasattr(value, "to_datetime64") else np.array(value, f"datetime64[{unit}]")[()]


def _seen(name: str, values: Any, fallback: str) -> TensorSpec:
    """What a column of the sample shows."""
    dtype = getattr(values, "dtype", None)
    if hasattr(dtype, "categories") and hasattr(values, "cat"):
        spec = _categorical(spec_of(name, fallback, (ROWS,)), list(dtype.categories))  # type: ignore[union-attr]
        return replace(spec, nullable=bool(values.isna().any()))
    if _is_table_column(values):
        return _series(name, values, fallback)
    if np.ma.isMaskedArray(values):
        spec = _array(name, np.ma.getdata(values), fallback)
        return replace(spec, nullable=spec.nullable or bool(np.ma.getmaskarray(values).any()))
    array = values if isinstance(values, np.ndarray) else _from_list(name, values)
    return _array(name, array, fallback)


def _is_table_column(values: Any) -> bool:
    return hasattr(values, "isna") and hasattr(values, "dtype") and not isinstance(values, np.ndarray)


def _series(name: str, values: Any, fallback: str) -> TensorSpec:
    """A pandas Series that is not categorical."""
    dtype = values.dtype
    zone = getattr(dtype, "tz", None)
    if zone is not None and str(zone) not in ("UTC", "datetime.timezone.utc", "UTC+00:00"):
        raise CannotLoad(
            f"the example's column {name!r} has times of the zone {zone}, which no signature can say: let the model "
            f"take them in UTC (tz_convert('UTC'))"
        )
    if zone is not None:
        return _times(name, values.to_numpy(f"datetime64[{dtype.unit}]"), "UTC")
    if isinstance(dtype, np.dtype):
        return _array(name, values.to_numpy(), fallback)
    storage = getattr(dtype, "numpy_dtype", None)  # of Int64, boolean, int64[pyarrow]: what their values are
    if storage is not None and storage.kind in "iufb":
        return replace(spec_of(name, _dtype(name, np.empty(0, storage)), (ROWS,)), nullable=True)
    if storage is not None and storage.kind == "M":
        return _times(name, values.to_numpy(storage), None)
    missing = np.asarray(values.isna())
    return replace(_array(name, values.to_numpy(object)[~missing], "str"), nullable=bool(missing.any()))


def _array(name: str, array: Array, fallback: str) -> TensorSpec:
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1):
        raise CannotLoad(f"the example's column {name!r} has the shape {list(array.shape)}; expected [n] or [n, 1]")
    shape = (ROWS, *array.shape[1:])
    if array.dtype.kind == "M":
        return replace(_times(name, array, None), shape=shape)
    if array.dtype.kind != "O":
        missing = array.dtype.kind == "f" and bool(np.isnan(array).any())
        return replace(spec_of(name, _dtype(name, array), shape), nullable=missing)
    values = array.reshape(-1).tolist()
    present = [value for value in values if not is_missing(value)]
    dtype = _dtype(name, _from_list(name, present)) if present else fallback
    return replace(spec_of(name, dtype, shape), nullable=len(present) < len(values))


def _from_list(name: str, values: Any) -> Array:
    """Python's own values as the array that they stand for; of objects where some are missing."""
    listed = list(values)
    if any(is_missing(value) for value in listed):
        array: Array = np.empty(len(listed), object)
        array[:] = listed
        return array
    groups = {_group(type(value)) for value in listed}
    if len(groups) > 1:
        raise CannotLoad(f"the example's column {name!r} mixes {' and '.join(sorted(groups))}")
    if unknown := groups - {"text", "booleans", "numbers", "datetime64"}:
        raise CannotLoad(f"the example's column {name!r} has values that no feature can have: {unknown.pop()}")
    return np.asarray(listed)


def _group(kind: type) -> str:
    """What Python's own values of a type are, in a word."""
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, (bool, np.bool_)):
        return "booleans"
    return "numbers" if issubclass(kind, (int, float, np.integer, np.floating)) else kind.__name__


def _dtype(name: str, array: Array) -> str:
    dtype = dtype_of(array)
    if dtype is None or dtype == "bytes":
        raise CannotLoad(f"the example's column {name!r} has values that no feature can have: {array.dtype}")
    return dtype


def _times(name: str, array: Array, zone: str | None) -> TensorSpec:
    unit = np.datetime_data(array.dtype)[0]
    wanted: Any = unit if unit in _UNITS else "s"
    spec = spec_of(name, "int64", (ROWS,))
    return replace(spec, time=wanted, zone=zone, nullable=bool(np.isnat(array).any()))


def _categorical(spec: TensorSpec, values: Sequence[Any]) -> TensorSpec:
    """The input for a feature of these categories; of booleans and floats a signature cannot list them."""
    listed = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = {type(value) for value in listed}
    if kinds == {str}:
        return replace(spec_of(spec.name, "str", spec.shape), categories=_bounded(spec.name, listed))
    if kinds == {int}:
        return replace(spec_of(spec.name, _integers(listed), spec.shape), categories=_bounded(spec.name, listed))
    if kinds in ({bool}, {float}):
        return spec_of(spec.name, "bool" if kinds == {bool} else "float64", spec.shape)
    names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
    raise CannotLoad(
        f"the categories of column {spec.name!r} are of {names}; texts, integers, booleans or floats can be served"
    )


def _integers(values: Sequence[int]) -> str:
    return "uint64" if max(values) > np.iinfo(np.int64).max else "int64"


def _bounded(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if len(values) > MAX_CATEGORIES:
        raise CannotLoad(f"column {name!r} has {len(values)} categories; at most {MAX_CATEGORIES} can be served")
    return tuple(values)
