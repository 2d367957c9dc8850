"""Columns as other libraries keep them: pandas, polars, scipy and numpy's masked arrays, as plain arrays."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from maitred.wire import arrow
from maitred.wire.arrow import Column as Column
from maitred.wire.arrow import NoColumn as NoColumn
from maitred.wire.dtypes import Array

MAX_DENSE: Final = 1 << 28
"""Elements of a sparse matrix that is made dense: its few entries say nothing about how much that would take."""


def opened(value: Any) -> Column:
    """The elements of any library's column, without a loop over them where that can be. Raises NoColumn."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            missing = np.ma.getmaskarray(value)
            return Column(np.asarray(value.data), ~missing if missing.any() else None)
        return Column(np.asarray(value))
    if isinstance(value, (str, bytes, list, tuple)) or value is None:
        return Column(value)
    if isinstance(value, np.generic):
        return Column(np.asarray(value))
    kind = type(value)  # asked instead of the value: a Series takes its time to say what it does not have
    if hasattr(kind, "isna") and hasattr(kind, "to_numpy"):
        return _of_pandas(value)
    if hasattr(kind, "to_pylist") and hasattr(kind, "type"):
        return arrow.opened(value)
    if hasattr(kind, "as_py"):
        return Column(value.as_py())
    if hasattr(kind, "toarray") and hasattr(kind, "nnz"):
        return Column(_dense(value))
    if hasattr(kind, "to_arrow") and hasattr(kind, "null_count") and len(value.shape) == 1:
        lossy = value.null_count() or value.dtype.is_temporal()  # numpy knows neither nulls nor zones
        return opened(value.to_arrow() if lossy else value.to_numpy())
    if hasattr(kind, "to_numpy") or hasattr(kind, "__array__"):
        return opened(value.to_numpy() if hasattr(kind, "to_numpy") else np.asarray(value))
    return Column(value)


def _dense(matrix: Any) -> Array:
    if math.prod(matrix.shape) > MAX_DENSE:
        raise NoColumn(f"a sparse matrix of {' x '.join(map(str, matrix.shape))} is too large to be made dense")
    return np.asarray(matrix.toarray())


# --- pandas -----------------------------------------------------------------------------------------------------


def _of_pandas(value: Any) -> Column:
    """A Series, an Index, a frame, or the array inside one."""
    if value.ndim != 1:
        return opened(value.to_numpy())
    dtype = value.dtype
    if isinstance(dtype, np.dtype):
        return Column(value.to_numpy(), zoned=False if dtype.kind == "M" else None)
    array = getattr(value, "array", value)
    if hasattr(dtype, "categories") and hasattr(array, "codes"):
        return _of_categories(np.asarray(array.codes), array.categories)
    if hasattr(dtype, "tz"):
        return Column(np.asarray(array.tz_convert("UTC").tz_localize(None)), zoned=True)
    if hasattr(dtype, "pyarrow_dtype"):
        return opened(array.__arrow_array__())
    missing = np.asarray(array.isna())
    valid = ~missing if missing.any() else None
    if hasattr(dtype, "numpy_dtype"):
        kind = dtype.numpy_dtype
        return Column(array.to_numpy(dtype=kind, na_value=math.nan if kind.kind == "f" else kind.type(0)), valid)
    if dtype.name in ("string", "str"):
        return Column(array.to_numpy(dtype=object), valid)
    return Column(np.asarray(array), valid)


def _of_categories(codes: Array, categories: Any) -> Column:
    """The values, never the codes, which mean nothing outside of this one column."""
    known = opened(categories)
    there = codes >= 0
    if not len(codes) or not there.any():
        return Column(np.full(len(codes), None, object))
    return Column(known.values[np.where(there, codes, 0)], None if there.all() else there, known.zoned)
