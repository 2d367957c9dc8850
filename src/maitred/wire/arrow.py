"""Arrow columns as arrays, and arrays as Arrow columns; pyarrow is there wherever one of its columns is."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from maitred.wire.dtypes import Array


class Column(NamedTuple):
    """What a column holds."""

    values: Any
    """An array; or Python's own values, for lists of different lengths and for what is no library's column."""
    valid: Array | None = None
    """Which elements are there, in the array's shape; None where at most the values themselves say that some are not.
    What stands in the place of a missing one means nothing."""
    zoned: bool | None = None
    """Of times: whether they are moments, counted in UTC, or local times; None where the column cannot say so."""
    like: Array | None = None
    """An array of the type that elements have in the column, where `values` are Python's own."""


_MOST_BYTES: Final = 1 << 31
"""What a column of texts holds at most; large texts have no such bound."""

_NUMBERS: Final = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double".split())
_OBJECTS: Final = frozenset("string large_string string_view binary large_binary binary_view".split())


class NoColumn(ValueError):
    """A column of a kind that no tensor's elements have; says which."""


def opened(column: Any) -> Column:
    """An array or chunked array of Arrow, however it is chunked and whether or not it is dictionary-encoded.

    Numbers, bools, times and strings are not looped over; so are lists of as many elements each. Uneven lists become
    Python's own. Raises NoColumn.
    """
    check_type(column.type)
    return _opened(_plain(column))


def check_type(kind: Any) -> None:
    """Refuse a type that no tensor's elements have, before any element is looked at. Raises NoColumn."""
    import pyarrow.types as types

    inner = kind
    while (next_inner := getattr(inner, "storage_type", None) or _inside(inner)) is not None:
        inner = next_inner
    fine = str(inner) in _NUMBERS | _OBJECTS or types.is_null(inner) or types.is_fixed_size_binary(inner)
    if not fine and not types.is_timestamp(inner) and not types.is_date(inner):
        inside = "" if inner == kind else f", which holds {inner}"
        raise NoColumn(f"an Arrow column of {kind}{inside} is no tensor: make it one of numbers, text or times")


def _inside(kind: Any) -> Any:
    """The type of the elements of lists and dictionaries; None for other types."""
    import pyarrow.types as types

    nests = (types.is_dictionary, types.is_list, types.is_large_list, types.is_fixed_size_list)
    return kind.value_type if any(nest(kind) for nest in nests) else None


def _plain(column: Any) -> Any:
    """One array of the elements themselves: chunks joined, dictionaries and extensions resolved."""
    import pyarrow

    chunks = column.chunks if hasattr(column, "chunks") else [column]
    chunks = [chunk.storage if hasattr(chunk, "storage") else chunk for chunk in chunks]
    chunks = [chunk.dictionary_decode() if hasattr(chunk, "dictionary_decode") else chunk for chunk in chunks]
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        kind = getattr(column.type, "storage_type", column.type)
        return pyarrow.array([], getattr(kind, "value_type", kind) if pyarrow.types.is_dictionary(kind) else kind)
    if sum(chunk.nbytes for chunk in chunks) >= _MOST_BYTES:
        kind = chunks[0].type
        large = {pyarrow.string(): pyarrow.large_string(), pyarrow.binary(): pyarrow.large_binary()}.get(kind, kind)
        chunks = [chunk.cast(large) for chunk in chunks]
    return pyarrow.concat_arrays(chunks)


def _opened(array: Any) -> Column:
    import pyarrow
    import pyarrow.types as types

    kind = array.type
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False)) if array.null_count else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array)
    if types.is_null(kind):
        return Column(np.full(len(array), None, object))
    if types.is_timestamp(kind):
        counts = array.view(pyarrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return Column(counts.view(f"datetime64[{kind.unit}]"), valid, kind.tz is not None)
    if types.is_date(kind):
        days = array.cast(pyarrow.date32()).view(pyarrow.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        return Column(days.astype(np.int64).view("datetime64[D]"), valid, False)
    if str(kind) in _NUMBERS and valid is not None and not types.is_floating(kind):
        array = array.fill_null(False if types.is_boolean(kind) else 0)
    return Column(array.to_numpy(zero_copy_only=False), valid)


def _lists(array: Any) -> Column:
    """Lists of as many elements each as one array with an axis more; others as Python's own lists."""
    import pyarrow.types as types

    inner = _opened(_plain(array.flatten()))
    if types.is_fixed_size_list(array.type):
        widths = {array.type.list_size}
    else:
        widths = set(np.diff(array.offsets.to_numpy()).tolist())
    if array.null_count or len(widths) != 1 or not isinstance(inner.values, np.ndarray):
        like = inner.values if isinstance(inner.values, np.ndarray) else inner.like
        return Column(array.to_pylist(), zoned=inner.zoned, like=like)
    shape = (len(array), *widths, *inner.values.shape[1:])
    return Column(inner.values.reshape(shape), None if inner.valid is None else inner.valid.reshape(shape), inner.zoned)


def made(array: Array, dtype: str, zone: str | None = None) -> Any:
    """An Arrow array of the same elements: null where a masked array, None or NaT says so; axes after the first become
    lists. Arrow has no bfloat16: these become the float32 that they equal."""
    import pyarrow

    column = _flat(array.reshape(-1), dtype, zone)
    count = array.size
    for size in reversed(array.shape[1:]):
        count = count // size if size else len(array)
        kind, offset = (pyarrow.ListArray, np.int32) if count * size < 2**31 else (pyarrow.LargeListArray, np.int64)
        column = kind.from_arrays(pyarrow.array(np.arange(count + 1, dtype=offset) * offset(size)), column)
    return column


def _flat(flat: Array, dtype: str, zone: str | None) -> Any:
    import pyarrow

    if flat.dtype.kind == "O":
        return pyarrow.array(flat, pyarrow.binary() if dtype == "bytes" else pyarrow.string())
    if flat.dtype.kind == "M":
        unit, _ = np.datetime_data(flat.dtype)
        return pyarrow.array(flat.view(np.int64), mask=np.isnat(flat)).view(pyarrow.timestamp(unit, zone))
    if dtype == "bfloat16":
        flat = flat.astype(np.float32)
    if isinstance(flat, np.ma.MaskedArray):
        return pyarrow.array(np.asarray(flat.data), mask=np.ma.getmaskarray(flat))
    return pyarrow.array(flat)
