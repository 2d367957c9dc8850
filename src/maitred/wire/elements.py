"""Elements as Python has them: checked one by one, laid out as their shape says, packed as a tensor's data."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, DType, Filled, Tensor
from maitred.wire.dtypes import CODES, DATATYPES, FLOATS, NAN_NAMES, Array, NanPolicy, is_text
from maitred.wire.missing import NAT, Partial
from maitred.wire.times import Clock, NoTime, all_counts

NOT_FLAT: Final = (ValueError, OverflowError, RecursionError, struct.error)
"""What decoding and packing a flat list of values raise, where it is none or holds what its dtype cannot."""


MAX_FILL: Final = 1 << 22
"""Elements that may be added to lists of different lengths: short lists beside a long one must not become huge."""


class Target(NamedTuple):
    """What elements are to become."""

    name: str
    dtype: DType
    nulls: bool
    """Whether elements may be missing."""
    names: bool
    """Whether the strings of `NAN_NAMES` are numbers."""
    clock: Clock | None

    @staticmethod
    def of(name: str, dtype: DType, nullable: bool, nan: NanPolicy, clock: Clock | None) -> Target:
        floats = dtype in FLOATS
        return Target(name, dtype, nullable or (floats and nan == "null"), floats and nan == "string", clock)


@functools.lru_cache(1024)
def packer(dtype: DType, count: int) -> Callable[..., Any]:
    """What turns `count` values, given one by one, into a tensor's data. Calling it may raise what is in NOT_FLAT."""
    if dtype == "str":
        return lambda *values: list(values)
    if dtype == "bytes":
        return lambda *values: [value.encode() if isinstance(value, str) else value for value in values]
    if dtype == "bfloat16":
        return lambda *values: _bfloat16(values)
    return struct.Struct(f"<{count}{CODES[dtype]}").pack


def _bfloat16(values: Sequence[float]) -> bytes:
    """Each value's nearest bfloat16, ties to even; OverflowError where a finite value has none.

    The step through float32 rounds to odd, so that the second rounding cannot be misled by the first.
    """
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32)
    inexact = (back != exact) & np.isfinite(exact)
    bits -= (inexact & (np.abs(back) > np.abs(exact))).astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    rounded = single.astype(ml_dtypes.bfloat16)
    if np.isinf(rounded.astype(np.float32)).sum() != np.isinf(exact).sum():
        raise OverflowError("too large for bfloat16")
    return rounded.tobytes()


def tensor_of(
    target: Target, flat: list[Any], dims: tuple[int, ...], shape: tuple[int, ...], real: Array | None = None
) -> Tensor:
    """The tensor of `shape` of elements of the right Python types, in C order; `dims` is how they were nested.

    None stands for a missing one; `real` says which are the caller's own where lists were filled up. Raises Malformed
    where one does not fit.
    """
    tensor = _tensor_of(target, flat, dims, shape)
    if real is None:
        return tensor
    return Filled(tensor.dtype, tensor.shape, tensor.data, real, tensor.valid if isinstance(tensor, Partial) else None)


def _tensor_of(target: Target, flat: list[Any], dims: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    dtype = target.dtype
    if target.clock is not None:
        return Tensor(dtype, shape, _counted(target, flat, dims))
    if dtype in FLOATS:
        if target.nulls or target.names:
            flat = [math.nan if v is None else NAN_NAMES[v] if isinstance(v, str) else v for v in flat]
        return Tensor(dtype, shape, packed(target.name, dtype, flat, dims))
    if not target.nulls or None not in flat:
        return Tensor(dtype, shape, packed(target.name, dtype, flat, dims))
    blank: Any = False if dtype == "bool" else "" if dtype == "str" else 0
    data = packed(target.name, dtype, [blank if value is None else value for value in flat], dims)
    return Partial(dtype, shape, data, bytes([value is not None for value in flat]))


def _counted(target: Target, flat: list[Any], dims: tuple[int, ...]) -> Any:
    """The data of a tensor of times."""
    clock: Any = target.clock
    if {int}.issuperset(map(type, flat)) and NAT not in flat:
        return packed(target.name, target.dtype, flat, dims)
    try:
        return all_counts(flat, clock).tobytes()
    except NoTime as error:
        raise no_time(target.name, error, error.index, dims) from None


def from_texts(name: str, texts: Tensor, clock: Clock) -> Tensor:
    """Times in ISO 8601 as their counts. Raises Malformed naming the place of one that is none."""
    return tensor_of(Target(name, "int64", False, False, clock), texts.data, texts.shape, texts.shape)


def no_time(name: str, error: NoTime, index: int, dims: tuple[int, ...]) -> Malformed:
    """The refusal of what is no time, with its place."""
    return Malformed(f"input {name!r}: the value{place(index, dims)} {error}")


KINDS: Final[Mapping[str, frozenset[type]]] = {
    **{dtype: frozenset({int}) for dtype in ITEM_BYTES}, **{dtype: frozenset({int, float}) for dtype in FLOATS},
    "bool": frozenset({bool}), "str": frozenset({str}), "bytes": frozenset({bytes, str}),
}  # fmt: skip
"""The Python types of each dtype's elements."""


def check_elements(target: Target, flat: list[Any], dims: tuple[int, ...]) -> None:
    """Turn elements into plain Python values of the dtype (times: as they are), and missing ones into None, in place.

    Raises Malformed where one is of another kind.
    """
    if not KINDS[target.dtype].issuperset(map(type, flat)):
        for index, value in enumerate(flat):
            flat[index] = _element(target, value, index, dims)
    if target.dtype == "str" and not is_text("".join([value for value in flat if value is not None])):
        at = next(index for index, value in enumerate(flat) if value is not None and not is_text(value))
        raise Malformed(f"input {target.name!r}: the text{place(at, dims)} holds a lone surrogate")


def _element(target: Target, value: Any, index: int, dims: tuple[int, ...]) -> Any:
    """One value as a plain Python value of the dtype, or None."""
    name, dtype = target.name, target.dtype
    kinds = KINDS[dtype]
    if type(value) in kinds:
        return value
    if is_missing(value) and not (dtype in FLOATS and isinstance(value, (float, np.floating))):
        if target.nulls:
            return None
        raise Malformed(f"input {name!r}: the missing value{place(index, dims)} is not allowed")
    if target.clock is not None and isinstance(value, (str, date, np.datetime64)):
        return value
    if target.names and isinstance(value, str) and value in NAN_NAMES:
        return value
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 and type(value.item()) in kinds:
        return value.item()
    if dtype == "bytes" and isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    wanted = "times" if target.clock is not None else f"{DATATYPES[dtype]} values"
    raise Malformed(f"input {name!r}: expected {wanted}, got {type(value).__name__}{place(index, dims)}")


def is_missing(value: Any) -> bool:
    """Whether a value stands for none in the libraries of columns: None, NaN, pandas' NA, NaT, numpy's masked."""
    if value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return True
    return isinstance(value, (float, np.floating, np.datetime64)) and bool(value != value)


def packed(name: str, dtype: DType, flat: list[Any], dims: tuple[int, ...]) -> Any:
    """A tensor's data from elements of the right Python types; Malformed where one does not fit the dtype."""
    try:
        return packer(dtype, len(flat))(*flat)
    except (OverflowError, struct.error, UnicodeEncodeError):
        one = packer(dtype, 1)
        at = next((index for index, value in enumerate(flat) if not _fits(one, value)), 0)
        raise Malformed(f"input {name!r}: the value{place(at, dims)} does not fit {DATATYPES[dtype]}") from None


def _fits(pack: Callable[..., Any], value: Any) -> bool:
    try:
        pack(value)
    except (OverflowError, struct.error, UnicodeEncodeError):
        return False
    return True


class Within(tuple[int, ...]):
    """Sizes as which data are nested, of which a part is at hand."""

    first: int = 0
    """The flat index of the part's first element."""

    @staticmethod
    def of(dims: tuple[int, ...], first: int) -> Within:
        within = Within(dims)
        within.first = first
        return within


def place(index: int, dims: tuple[int, ...]) -> str:
    """Where a flat index lies in data nested as `dims`."""
    if not dims:
        return ""
    if isinstance(dims, Within):
        index += dims.first
    return " at data" + "".join(f"[{i}]" for i in np.unravel_index(index, tuple(dims)))


def ragged(name: str, lengths: Sequence[int]) -> Malformed:
    """The refusal of lists that are not of one length."""
    at = next(index for index, length in enumerate(lengths) if length != lengths[0])
    return Malformed(f"input {name!r}: ragged data: list {at} has {lengths[at]} elements, list 0 has {lengths[0]}")


def check_fill(name: str, more: int) -> None:
    """Refuse to fill up lists with so many more elements. Raises Malformed."""
    if more > MAX_FILL:
        raise Malformed(
            f"input {name!r}: ragged data: {more} elements would be needed to fill up the lists; send fewer at once, "
            "or lists of about the same length"
        )


def flattened(name: str, values: Any, depth: int, pad: Any) -> tuple[tuple[int, ...], list[Any], Array | None]:
    """The sizes of evenly nested lists and their elements in C order; with `pad`, uneven ones are filled up.

    Also whether each element is the caller's own, in the shape of the sizes; None where all are.
    """
    level = values
    dims = [len(level)]
    uneven, lengths = False, []
    for _ in range(depth - 1):
        sizes = {len(part) for part in level}
        width = max(sizes, default=0)
        if len(sizes) > 1:
            if pad is None:
                raise ragged(name, list(map(len, level)))
            check_fill(name, len(level) * width - sum(map(len, level)))
            uneven = True
        last = len(dims) == depth - 1
        if last and uneven:
            lengths = [len(part) for part in level]
        if len(sizes) > 1:
            filler = pad if last else []
            level = [[*part, *[filler] * (width - len(part))] for part in level]
        dims.append(width)
        level = list(chain.from_iterable(level))
    real = (np.arange(dims[-1]) < np.array(lengths)[:, None]).reshape(dims) if uneven else None
    return tuple(dims), level, real
