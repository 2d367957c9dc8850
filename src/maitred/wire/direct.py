"""What Python callers give, as tensors: arrays and columns of any library, lists, scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from maitred.errors import Malformed
from maitred.messages import DType, Tensor
from maitred.wire.arrays import dtype_of, plain, to_array
from maitred.wire.columns import Column, NoColumn, opened
from maitred.wire.dtypes import DATATYPES, FLOATS, MAX_DIMENSIONS, NUMPY_TYPES, WIDENINGS, Array, NanPolicy, is_text
from maitred.wire.elements import Target, check_elements, flattened, no_time, place, tensor_of
from maitred.wire.missing import NAT, Partial, partial
from maitred.wire.times import Clock, NoTime, counts


def from_python(
    name: str,
    dtype: DType,
    value: Any,
    nullable: bool = False,
    nan: NanPolicy = "error",
    pad: Any = None,
    clock: Clock | None = None,
) -> Tensor:
    """The tensor of a value that a Python caller gives: array, list, scalar, column or frame of pandas, Arrow, scipy.

    Arrays have a dtype, which must be the declared one or widen to it exactly; Python's own values follow the rules of
    JSON, and floats may be NaN or infinite. With a `clock`, elements are times: counts, datetime64, ISO 8601 text or
    Python's own. Missing elements need `nullable`. Raises Malformed naming the input and the place.
    """
    if type(value) is np.ndarray and _is_plain(dtype, value):
        return Tensor(dtype, value.shape, value)  # what there is most of goes the shortest way
    target = Target.of(name, dtype, nullable, nan, clock)
    if _is_mixed(value):
        return _from_frame(target, value, nan)
    try:
        column = opened(_stacked(value))
    except NoColumn as error:
        raise Malformed(f"input {name!r}: {error}") from None
    values = column.values
    if isinstance(values, np.ndarray):
        if column.valid is None and _is_plain(dtype, values):
            return Tensor(dtype, values.shape, values)
        if values.dtype.kind == "O" and values.size and column.valid is None:
            values = _stacked(values.tolist())
        if isinstance(values, np.ndarray) and (values.dtype.kind != "O" or values.size == 0):
            return _from_typed(target, Column(values, column.valid, column.zoned))
    if column.like is not None and target.clock is None:
        _check_type(target, column.like)
    return _from_elements(target, values, column, pad)


def _is_plain(dtype: DType, array: Array) -> bool:
    return array.dtype == NUMPY_TYPES[dtype] and array.dtype.kind != "O" and array.flags.c_contiguous


def _stacked(values: Any) -> Any:
    """A list of arrays of one type and shape as one array; anything else as it is."""
    if not isinstance(values, (list, tuple)) or not values or type(values[0]) is not np.ndarray:
        return values
    kinds = {(part.dtype, part.shape) if type(part) is np.ndarray else None for part in values}
    return np.stack(values) if len(kinds) == 1 and values[0].dtype.kind != "O" else values


def _is_mixed(value: Any) -> bool:
    """Whether this is a frame whose columns have different types, which one array could not hold exactly."""
    if not hasattr(type(value), "iloc") or value.ndim != 2:
        return False
    return len(set(value.dtypes)) > 1 or any(not isinstance(dtype, np.dtype) for dtype in value.dtypes)


def _from_frame(target: Target, frame: Any, nan: NanPolicy) -> Tensor:
    """The columns side by side, each made to the dtype on its own."""
    columns = [
        from_python(target.name, target.dtype, frame.iloc[:, at], target.nulls, nan, None, target.clock)
        for at in range(frame.shape[1])
    ]
    whole = _typed(target, np.stack([to_array(column) for column in columns], axis=1))
    if not any(isinstance(column, Partial) for column in columns):
        return whole
    there = [
        np.frombuffer(column.valid, bool) if isinstance(column, Partial) else np.ones(column.shape, bool)
        for column in columns
    ]
    return partial(whole, np.stack(there, axis=1))


# --- elements of a type -----------------------------------------------------------------------------------------


def _from_typed(target: Target, column: Column) -> Tensor:
    """An array whose elements have a type: the declared one, or one that widens to it without changing a value."""
    array = column.values
    if target.clock is not None and array.dtype.kind == "M":
        tensor = _from_times(target, column)
    else:
        tensor = _typed(target, array)
    if column.valid is None or column.valid.all():
        return tensor
    _check_missing_allowed(target, column.valid)
    if target.clock is not None:
        return Tensor(tensor.dtype, tensor.shape, np.where(column.valid, to_array(tensor), NAT))
    return partial(tensor, column.valid)


def _typed(target: Target, array: Array) -> Tensor:
    """The tensor of an array without missing elements. Raises Malformed where its type is another."""
    dtype = target.dtype
    _check_type(target, array)
    if dtype not in ("str", "bytes"):
        return Tensor(dtype, array.shape, plain(array.astype(NUMPY_TYPES[dtype], copy=False)))
    elements = array.reshape(-1).tolist()
    if dtype == "str" and not is_text("".join(elements)):
        at = next(index for index, value in enumerate(elements) if not is_text(value))
        raise Malformed(f"input {target.name!r}: the text{place(at, array.shape)} holds a lone surrogate")
    return Tensor(dtype, array.shape, elements)


def _from_times(target: Target, column: Column) -> Tensor:
    clock: Any = target.clock
    array = column.values
    if column.zoned is not None and column.zoned != (clock.zone is not None):
        raise Malformed(
            f"input {target.name!r}: these times have a zone, and it takes local times without one"
            if column.zoned
            else f"input {target.name!r}: these times have no zone: say which it is, for it takes moments (UTC)"
        )
    if column.valid is not None:
        array = np.where(column.valid, array, np.array("NaT", array.dtype))
    missing = np.isnat(array)
    if missing.any() and not target.nulls:
        _check_missing_allowed(target, ~missing)
    try:
        return Tensor("int64", array.shape, counts(array, clock))
    except NoTime as error:
        raise no_time(target.name, error, error.index, array.shape) from None


def _check_missing_allowed(target: Target, valid: Array) -> None:
    if not target.nulls:
        at = place(int(np.argmin(valid)), valid.shape)
        raise Malformed(f"input {target.name!r}: the missing value{at} is not allowed")


def _check_type(target: Target, array: Array) -> None:
    dtype = target.dtype
    got = dtype_of(array)
    if got == dtype or (got, dtype) in WIDENINGS or (array.dtype.kind == "O" and array.size == 0):
        return
    if got in ("str", "bytes") and dtype in ("str", "bytes"):
        raise Malformed(f"input {target.name!r}: expected {dtype} elements, got {got}")
    seen = DATATYPES[got] if got is not None else str(array.dtype)
    wanted = DATATYPES[dtype] if target.clock is None else "times"
    raise Malformed(f"input {target.name!r}: expected {wanted}, got {seen}; convert it before the call")


# --- Python's own values ----------------------------------------------------------------------------------------


def _from_elements(target: Target, values: Any, column: Column, pad: Any) -> Tensor:
    """Lists, scalars and arrays of objects."""
    name = target.name
    valid = column.valid
    if valid is not None:
        _check_missing_allowed(target, valid)
        blank = math.nan if target.dtype in FLOATS else "" if target.dtype == "str" else None
        values = np.where(valid, values, np.array(blank, object))
    depth = _nesting(name, values)
    dims, flat, real = flattened(name, _listed(name, values, depth), max(depth, 1), pad)
    dims = dims if depth else ()
    check_elements(target, flat, dims)
    tensor = tensor_of(target, flat, dims, dims, real)
    return tensor if valid is None or target.dtype != "str" else partial(tensor, valid)


def _is_nest(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _nesting(name: str, value: Any) -> int:
    """How many lists lie around the first element."""
    depth = 0
    while _is_nest(value):
        depth += 1
        if depth > MAX_DIMENSIONS:
            raise Malformed(f"input {name!r}: data are nested more than {MAX_DIMENSIONS} lists deep")
        value = value[0] if len(value) else None
    return depth


def _listed(name: str, value: Any, depth: int) -> list[Any]:
    """The same values in lists nested `depth` deep; Malformed where the nesting is not that deep everywhere."""
    if depth == 0:
        return [value]
    if not _is_nest(value):
        raise Malformed(f"input {name!r}: ragged data: lists and a {type(value).__name__} side by side")
    if depth == 1:
        return list(value)
    return [_listed(name, part, depth - 1) for part in value]
