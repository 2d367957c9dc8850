"""The one coercion table: how JSON, raw bytes and Python values become tensors, and tensors become those again.

Rules (published in docs/coercion.md): a value is never narrowed silently; decimals go to the nearest value of a float
dtype and never to an integer or bool; integers are exact over their whole range; what does not fit is Malformed and
names the tensor and the place.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from maitred.errors import MaitredError, Malformed, ModelFault
from maitred.messages import ITEM_BYTES, DType, Tensor
from maitred.wire.json import count_outside_strings

Array = npt.NDArray[Any]
NanPolicy = Literal["error", "null", "string"]
"""What JSON shows for NaN and infinities, for which it has no numbers: nothing, `null`, or a string of `NAN_NAMES`."""

MAX_DIMENSIONS: Final = 32
MAX_ELEMENTS: Final = 2**60
"""Bound of the product of a shape's sizes (zeros left out): no count or byte size of a checked shape can overflow."""

DATATYPES: Final[Mapping[DType, str]] = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16", "str": "BYTES", "bytes": "BYTES",
}  # fmt: skip
"""The Open Inference Protocol's name of each dtype."""

DTYPES: Final[Mapping[str, DType]] = {
    **{datatype: dtype for dtype, datatype in DATATYPES.items() if datatype != "BYTES"}, "BYTES": "bytes",
}  # fmt: skip
"""The dtype of each protocol name; BYTES is `bytes` unless a signature says `str`."""

NAN_NAMES: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

FLOATS: Final = frozenset({"float16", "float32", "float64", "bfloat16"})

INTEGERS: Final = frozenset({"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"})

_CODES: Final[Mapping[str, str]] = {
    "bool": "?", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int16": "h", "int32": "i",
    "int64": "q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip

NUMPY_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    **{dtype: np.dtype(dtype) for dtype in _CODES}, "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "str": np.dtype(object), "bytes": np.dtype(object),
}  # fmt: skip
"""The numpy type of each dtype's arrays, in native (little-endian) order; `str` and `bytes` are arrays of objects."""

_WIDENINGS: Final[frozenset[tuple[str, str]]] = frozenset(
    (narrow, wide)
    for narrow, wides in {
        "uint8": "uint16 uint32 uint64 int16 int32 int64 float16 float32 float64",
        "uint16": "uint32 uint64 int32 int64 float32 float64",
        "uint32": "uint64 int64 float64",
        "int8": "int16 int32 int64 float16 float32 float64",
        "int16": "int32 int64 float32 float64",
        "int32": "int64 float64",
        "float16": "float32 float64",
        "bfloat16": "float32 float64",
        "float32": "float64",
    }.items()
    for wide in wides.split()
)
"""Changes of an array's dtype that keep every value exactly; direct calls make them, the wires do not."""


def checked_shape(name: str, shape: object) -> tuple[int, ...]:
    """`shape` as a tuple, where it is one: whole sizes >= 0, at most 32, and a product below 2**60; else Malformed."""
    if not isinstance(shape, (list, tuple)):
        raise Malformed(f"input {name!r}: shape must be a list of sizes")
    if len(shape) > MAX_DIMENSIONS:
        raise Malformed(f"input {name!r}: shape has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are allowed")
    product = 1
    for axis, size in enumerate(shape):
        if type(size) is not int:
            raise Malformed(f"input {name!r}: shape[{axis}] must be a whole number")
        if size < 0:
            raise Malformed(f"input {name!r}: shape[{axis}] is negative; send the real size")
        product *= size or 1
    if product >= MAX_ELEMENTS:
        raise Malformed(f"input {name!r}: shape holds too many elements")
    return tuple(shape)


# --- JSON -> tensor ---------------------------------------------------------------------------------------------


def from_json(
    name: str,
    dtype: DType,
    shape: tuple[int, ...] | None,
    raw_json: Any,
    nullable: bool = False,
    nan: NanPolicy = "error",
    pad: Any = None,
) -> Tensor:
    """The tensor that JSON text holds: an array, flat or nested as `shape` says (a scalar where the shape is empty).

    `shape` is a checked one; None takes it from the nesting. `nullable` (or the policy "null") turns null into NaN for
    float dtypes; the policy "string" accepts the strings of `NAN_NAMES`. Where the shape is None and `pad` is not, it
    fills up ragged nested lists. Raises Malformed naming the input and the place.
    """
    if shape is not None:
        if len(raw_json) > _MUCH:
            _check_number(name, dtype, shape, bytes(raw_json))
        decode, pack, count = _PLANS[dtype].get(shape) or _plan(dtype, shape)
        try:
            values = decode(raw_json)
            if len(values) == count:
                return Tensor(dtype, shape, pack(*values))
        except (ValueError, OverflowError, struct.error):
            pass  # nested, nullable or wrong: the long way accepts it, or says what is wrong and where
    return _from_json(name, dtype, shape, raw_json, nullable or nan == "null", nan, pad)


_Plan = tuple[Callable[[Any], list[Any]], Callable[..., Any], int]
_PLANS: Final[Mapping[str, dict[tuple[int, ...], _Plan]]] = {dtype: {} for dtype in DATATYPES}
"""Per dtype and shape: the decoder of a flat list, what packs its values, and their count."""

_MAX_PLANS: Final = 512
_MUCH: Final = 1 << 16
"""Bytes of JSON whose elements are counted before they are read, for reading is a hundred times as dear."""
_MAX_EMPTY_LISTS: Final = 1 << 16

NOT_FLAT: Final = (ValueError, OverflowError, RecursionError, struct.error)
"""What decoding and packing a flat list of values raise, where it is none or holds what its dtype cannot."""


def _check_number(name: str, dtype: DType, shape: tuple[int, ...], text: bytes) -> None:
    """Refuse text that cannot hold the elements of `shape`, however nested: all but the first follow a comma."""
    commas = count_outside_strings(text, b",") if dtype in ("str", "bytes") else text.count(b",")
    count = math.prod(shape)
    lists = math.prod(shape[: shape.index(0)]) if 0 in shape else 0
    if commas != count - 1 if count else commas >= max(1, min(lists, _MAX_EMPTY_LISTS)):
        raise Malformed(f"input {name!r}: shape {list(shape)} holds {count} elements, data hold {commas + 1}")


def _plan(dtype: DType, shape: tuple[int, ...]) -> _Plan:
    count = math.prod(shape)
    plan = (_decoder(dtype, 1, False, False).decode, packer(dtype, count), count)
    known = _PLANS[dtype]
    if len(known) >= _MAX_PLANS:
        known.clear()  # callers choose shapes, so the table must stay bounded
    known[shape] = plan
    return plan


@functools.lru_cache(1024)
def packer(dtype: DType, count: int) -> Callable[..., Any]:
    """What turns `count` values, given one by one, into a tensor's data. Calling it may raise what is in NOT_FLAT."""
    if dtype == "str":
        return lambda *values: list(values)
    if dtype == "bytes":
        return lambda *values: [value.encode() if isinstance(value, str) else value for value in values]
    if dtype == "bfloat16":
        return lambda *values: _bfloat16(values)
    return struct.Struct(f"<{count}{_CODES[dtype]}").pack


def json_kind(dtype: DType) -> type:
    """What JSON has for one element of this dtype."""
    return bool if dtype == "bool" else float if dtype in FLOATS else str if dtype in ("str", "bytes") else int


@functools.lru_cache(256)
def _decoder(dtype: DType, depth: int, nulls: bool, names: bool) -> msgspec.json.Decoder[Any]:
    """A strict decoder of lists nested `depth` deep: floats take integers too, nothing else is converted."""
    kind: Any = json_kind(dtype)
    if names:
        kind = kind | Literal["NaN", "Infinity", "-Infinity"]
    if nulls:
        kind = kind | None
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


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


def _from_json(
    name: str, dtype: DType, shape: tuple[int, ...] | None, raw_json: Any, nulls: bool, nan: NanPolicy, pad: Any
) -> Tensor:
    """As `from_json`, for every case that is not a plain flat list."""
    text = bytes(raw_json)
    depth = _depth(text)
    if depth > MAX_DIMENSIONS:
        raise Malformed(f"input {name!r}: data are nested more than {MAX_DIMENSIONS} lists deep")
    names = nan == "string" and dtype in FLOATS
    nulls = nulls and dtype in FLOATS
    try:
        values = _decoder(dtype, depth, nulls, names).decode(text)
    except msgspec.ValidationError as error:
        raise Malformed(f"input {name!r}: {_explained(dtype, str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"input {name!r}: data are not valid JSON: {_tame(str(error))}") from None
    dims, flat = _flattened(name, [values] if depth == 0 else values, max(depth, 1), pad if shape is None else None)
    dims = dims if depth else ()
    if shape is not None:
        _check_count(name, shape, dims, len(flat))
    if nulls or names:
        flat = [math.nan if v is None else NAN_NAMES[v] if isinstance(v, str) else v for v in flat]
    return Tensor(dtype, dims if shape is None else shape, _packed(name, dtype, flat, dims))


def _check_count(name: str, shape: tuple[int, ...], dims: tuple[int, ...], count: int) -> None:
    """Malformed where data of sizes `dims` are not those of `shape`; flat data only have to be as many."""
    if count != math.prod(shape):
        raise Malformed(f"input {name!r}: shape {list(shape)} holds {math.prod(shape)} elements, data hold {count}")
    if len(dims) != 1 and count and dims != shape:
        raise Malformed(f"input {name!r}: shape is {list(shape)}, data are nested as {list(dims)}")


def _depth(text: bytes) -> int:
    """How many lists open before the first element."""
    head = _OPENING.match(text)
    return head[0].count(b"[") if head is not None else 0


_OPENING: Final = re.compile(rb"[\[ \t\r\n]*")
_PLACE: Final = re.compile(r" - at `\$([^`]*)`")
_WORDS: Final = {
    "int": "an integer", "float": "a decimal number", "str": "a string", "bool": "true or false", "array": "a list",
    "object": "an object",
}  # fmt: skip


def _explained(dtype: DType, message: str) -> str:
    """A decoder's complaint in the words of the protocol, with the place in `data`."""
    place = _PLACE.search(message)
    where = f" at data{place[1]}" if place else ""
    got = re.search(r"got `(\w+)`", message)
    if got is not None and got[1] == "null":
        return f"null{where} is not allowed" + ("" if dtype in FLOATS else f" for {DATATYPES[dtype]}")
    if got is not None:
        return f"expected {DATATYPES[dtype]} values, got {_WORDS.get(got[1], got[1])}{where}"
    if "out of range" in message:
        return f"the value{where} does not fit {DATATYPES[dtype]}"
    return f"the value{where} is not allowed for {DATATYPES[dtype]}"


def _tame(message: str) -> str:
    """A parser's message without what could break a line."""
    return ascii(message.removeprefix("JSON is malformed: "))[1:-1][:200]


def _flattened(name: str, values: Any, depth: int, pad: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The sizes of evenly nested lists and their elements in C order; with `pad`, uneven ones are filled up."""
    level = values
    dims = [len(level)]
    for _ in range(depth - 1):
        sizes = {len(part) for part in level}
        width = max(sizes, default=0)
        if len(sizes) > 1:
            if pad is None:
                at = next(index for index, part in enumerate(level) if len(part) != len(level[0]))
                raise Malformed(f"input {name!r}: ragged data: list {at} has {len(level[at])} elements, list 0 has "
                                f"{len(level[0])}")  # fmt: skip
            filler = pad if len(dims) == depth - 1 else []
            level = [[*part, *[filler] * (width - len(part))] for part in level]
        dims.append(width)
        level = list(chain.from_iterable(level))
    return tuple(dims), level


def _packed(name: str, dtype: DType, flat: list[Any], dims: tuple[int, ...]) -> Any:
    """A tensor's data from elements of the right Python types; Malformed where one does not fit the dtype."""
    try:
        return packer(dtype, len(flat))(*flat)
    except (OverflowError, struct.error, UnicodeEncodeError):
        one = packer(dtype, 1)
        at = next((index for index, value in enumerate(flat) if not _fits(one, value)), 0)
        raise Malformed(f"input {name!r}: the value{_place(at, dims)} does not fit {DATATYPES[dtype]}") from None


def _fits(pack: Callable[..., Any], value: Any) -> bool:
    try:
        pack(value)
    except (OverflowError, struct.error, UnicodeEncodeError):
        return False
    return True


def _place(index: int, dims: tuple[int, ...]) -> str:
    """Where a flat index lies in data nested as `dims`."""
    if not dims:
        return ""
    return " at data" + "".join(f"[{i}]" for i in np.unravel_index(index, dims))


# --- Python values -> tensor ------------------------------------------------------------------------------------


def from_python(
    name: str, dtype: DType, value: Any, nullable: bool = False, nan: NanPolicy = "error", pad: Any = None
) -> Tensor:
    """The tensor of a value that a Python caller gives: array, list, scalar, pandas Series or frame, Arrow array.

    Arrays have a dtype, which must be the declared one or widen to it exactly; Python's own values follow the rules of
    JSON, and floats may be NaN or infinite. Raises Malformed naming the input and the place.
    """
    value = _unwrapped(name, dtype, value, nullable)
    if isinstance(value, np.ndarray) and (value.dtype.kind != "O" or value.size == 0):
        return _from_typed(name, dtype, value)
    depth = _nesting(name, value)
    dims, flat = _flattened(name, _listed(name, value, depth), max(depth, 1), pad)
    dims = dims if depth else ()
    _check_elements(name, dtype, flat, dims, nullable or nan == "null", nan == "string")
    return Tensor(dtype, dims, _packed(name, dtype, flat, dims))


def _unwrapped(name: str, dtype: DType, value: Any, nullable: bool) -> Any:
    """Columns of pandas, Arrow and polars, numpy's scalars, and lists of arrays: as arrays where that is possible."""
    if isinstance(value, (list, tuple)):
        return _stacked(value)
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask"):
            return _unmasked(name, value, nullable)
        return _stacked(value.tolist()) if value.dtype.kind == "O" and value.size else np.asarray(value)
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        return np.asarray(value)
    if hasattr(value, "to_pylist"):
        return _from_arrow(name, dtype, value, nullable)
    if hasattr(value, "as_py"):
        return value.as_py()
    if hasattr(value, "to_numpy"):
        return _unwrapped(name, dtype, value.to_numpy(), nullable)
    return value


def _stacked(values: Any) -> Any:
    """A list of arrays of one type and shape as one array; anything else as it is."""
    if not isinstance(values, (list, tuple)) or not values or not isinstance(values[0], np.ndarray):
        return values
    kinds = {(part.dtype, part.shape) if isinstance(part, np.ndarray) else None for part in values}
    return np.stack(values) if len(kinds) == 1 and values[0].dtype.kind != "O" else values


def _unmasked(name: str, value: Any, nullable: bool) -> Array:
    if not np.any(value.mask):
        return np.asarray(value.data)
    if nullable and value.dtype.kind == "f":
        return np.asarray(value.filled(np.nan))
    raise Malformed(f"input {name!r}: masked elements are not allowed")


def _from_arrow(name: str, dtype: DType, value: Any, nullable: bool) -> Any:
    """An Arrow array: numbers, and lists of them, without a loop; everything else element by element."""
    if value.null_count and not (nullable and dtype in FLOATS):
        raise Malformed(f"input {name!r}: null at data[{value.is_null().to_pylist().index(True)}] is not allowed")
    if hasattr(value, "combine_chunks") and hasattr(value, "chunks"):
        value = value.combine_chunks()
    kind = str(value.type)
    if "list<" in kind[:16] and not value.null_count:
        return _from_arrow_lists(name, dtype, value, nullable)
    if kind not in _ARROW_NUMBERS or (value.null_count and kind not in _ARROW_FLOATS):
        return value.to_pylist()
    return value.to_numpy(zero_copy_only=False)


_ARROW_FLOATS: Final = frozenset({"halffloat", "float", "double"})
_ARROW_NUMBERS: Final = _ARROW_FLOATS | frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split())


def _from_arrow_lists(name: str, dtype: DType, value: Any, nullable: bool) -> Any:
    inner = _from_arrow(name, dtype, value.flatten(), nullable)
    if not isinstance(inner, np.ndarray):
        return value.to_pylist()
    _check_type(name, dtype, inner)
    offsets = getattr(value, "offsets", None)
    widths = {value.type.list_size} if offsets is None else set(np.diff(offsets.to_numpy()).tolist())
    if len(widths) != 1:
        return value.to_pylist()
    return inner.reshape(len(value), *widths, *inner.shape[1:])


def _from_typed(name: str, dtype: DType, array: Array) -> Tensor:
    """An array whose elements have a type: the declared one, or one that widens to it without changing a value."""
    _check_type(name, dtype, array)
    if dtype in ("str", "bytes"):
        return Tensor(dtype, array.shape, array.reshape(-1).tolist())
    return Tensor(dtype, array.shape, plain(array.astype(NUMPY_TYPES[dtype], copy=False)))


def _check_type(name: str, dtype: DType, array: Array) -> None:
    got = dtype_of(array)
    if got == dtype or (got, dtype) in _WIDENINGS or (array.dtype.kind == "O" and array.size == 0):
        return
    if got in ("str", "bytes") and dtype in ("str", "bytes"):
        raise Malformed(f"input {name!r}: expected {dtype} elements, got {got}")
    seen = DATATYPES[got] if got is not None else str(array.dtype)
    raise Malformed(f"input {name!r}: expected {DATATYPES[dtype]}, got {seen}; convert it before the call")


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


_ELEMENTS: Final[Mapping[str, frozenset[type]]] = {
    **{dtype: frozenset({int}) for dtype in ITEM_BYTES}, **{dtype: frozenset({int, float}) for dtype in FLOATS},
    "bool": frozenset({bool}), "str": frozenset({str}), "bytes": frozenset({bytes, str}),
}  # fmt: skip
"""The Python types of each dtype's elements."""


def _check_elements(name: str, dtype: DType, flat: list[Any], dims: tuple[int, ...], nulls: bool, names: bool) -> None:
    """Turn elements into plain Python values of the dtype, in place; Malformed where one is of another kind."""
    if not _ELEMENTS[dtype].issuperset(map(type, flat)):
        for index, value in enumerate(flat):
            flat[index] = _element(name, dtype, value, nulls, names, index, dims)
    if dtype == "str" and not is_text("".join(flat)):
        at = next(index for index, value in enumerate(flat) if not is_text(value))
        raise Malformed(f"input {name!r}: the text{_place(at, dims)} holds a lone surrogate")


def _element(name: str, dtype: DType, value: Any, nulls: bool, names: bool, index: int, dims: tuple[int, ...]) -> Any:
    """One value as a plain Python value of the dtype."""
    allowed = _ELEMENTS[dtype]
    if type(value) in allowed:
        return value
    if dtype in FLOATS and value is None and nulls:
        return math.nan
    if dtype in FLOATS and names and isinstance(value, str) and value in NAN_NAMES:
        return NAN_NAMES[value]
    if isinstance(value, (np.generic, np.ndarray)) and np.ndim(value) == 0 and type(value.item()) in allowed:
        return value.item()
    if dtype == "bytes" and isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if value is None or type(value).__name__ == "NAType" or (type(value) is float and value != value):
        raise Malformed(f"input {name!r}: the missing value{_place(index, dims)} is not allowed")
    kind = type(value).__name__
    raise Malformed(f"input {name!r}: expected {DATATYPES[dtype]} values, got {kind}{_place(index, dims)}")


# --- raw bytes <-> tensor ---------------------------------------------------------------------------------------


def from_raw(name: str, dtype: DType, shape: tuple[int, ...], buffer: Any) -> Tensor:
    """The tensor in a binary body: little-endian elements, or for `str` and `bytes` a u32 length before each.

    Numbers are not copied. Raises Malformed where the length disagrees with the (checked) shape, a bool is not 0 or 1,
    or a `str` is not UTF-8.
    """
    count = math.prod(shape)
    if dtype in ("str", "bytes"):
        return Tensor(dtype, shape, _strings(name, dtype, count, memoryview(buffer).cast("B")))
    size = len(buffer) if isinstance(buffer, (bytes, bytearray)) else memoryview(buffer).nbytes
    if size != count * ITEM_BYTES[dtype]:
        raise Malformed(
            f"input {name!r}: {DATATYPES[dtype]} {list(shape)} takes {count * ITEM_BYTES[dtype]} bytes, got {size}"
        )
    if dtype == "bool" and bytes(buffer).translate(None, b"\0\1"):
        raise Malformed(f"input {name!r}: BOOL elements must be bytes of value 0 or 1")
    return Tensor(dtype, shape, buffer)


def _strings(name: str, dtype: DType, count: int, buffer: memoryview) -> list[Any]:
    if count > len(buffer) // 4:
        raise Malformed(f"input {name!r}: {len(buffer)} bytes cannot hold {count} BYTES elements")
    elements: list[Any] = []
    whole = bytes(buffer)
    at = 0
    for index in range(count):
        start = at + 4
        at = start + int.from_bytes(whole[at:start], "little")
        if start > len(whole) or at > len(whole):
            raise Malformed(f"input {name!r}: element {index} runs past the end of the data")
        elements.append(whole[start:at])
    if at != len(whole):
        raise Malformed(f"input {name!r}: {len(whole) - at} bytes follow the last of {count} elements")
    return decoded(name, elements) if dtype == "str" else elements


def decoded(name: str, elements: Sequence[bytes]) -> list[str]:
    """The texts of UTF-8 elements; Malformed naming the place of one that is not."""
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        at = next(index for index, element in enumerate(elements) if not is_text(element))
        raise Malformed(f"input {name!r}: element {at} is not UTF-8 text") from None


def is_text(element: str | bytes) -> bool:
    """Whether UTF-8 can hold a text, or the bytes are UTF-8."""
    try:
        element.encode() if isinstance(element, str) else element.decode()
    except UnicodeError:
        return False
    return True


def to_raw(tensor: Tensor) -> Any:
    """The tensor's bytes as the binary extension carries them; a view of its data where these are numbers."""
    data = tensor.data
    if isinstance(data, list):
        return b"".join(_prefixed(data))
    if isinstance(data, np.ndarray):
        octets: Any = data.reshape(-1).view(np.uint8)
        return memoryview(octets)
    return data


def _prefixed(elements: list[Any]) -> Iterator[bytes]:
    for element in elements:
        piece = element.encode() if isinstance(element, str) else element
        yield len(piece).to_bytes(4, "little")
        yield piece


# --- arrays <-> tensor ------------------------------------------------------------------------------------------


def to_array(tensor: Tensor) -> Array:
    """A read-only array of the tensor's elements; a view of its data where these are numbers."""
    data = tensor.data
    if isinstance(data, list):
        array: Array = np.empty(len(data), object)
        array[:] = data
    elif isinstance(data, np.ndarray):
        array = data.view()
    else:
        array = np.frombuffer(data, NUMPY_TYPES[tensor.dtype])
        if not array.flags.aligned:
            array = array.copy()  # a tensor in the middle of a binary body; native code may want aligned memory
    array = array.reshape(tensor.shape)
    array.flags.writeable = False
    return array


def from_array(array: Array, name: str = "array") -> Tensor:
    """The tensor of a numpy array of any stride and byte order, in the dtype that the array has.

    Arrays of objects must hold only `str` or only `bytes`. Raises Malformed for kinds that no dtype stands for.
    """
    dtype = dtype_of(array)
    if dtype is None:
        raise Malformed(f"input {name!r}: arrays of {array.dtype} are not tensors")
    if dtype in ("str", "bytes"):
        elements = array.reshape(-1).tolist()
        if array.dtype.kind == "O":  # numpy's own scalars hide in arrays of objects
            elements = [str(element) if dtype == "str" else bytes(element) for element in elements]
        return Tensor(dtype, array.shape, elements)
    return Tensor(dtype, array.shape, plain(array))


def dtype_of(array: Array) -> DType | None:
    """The dtype that an array's elements have, whatever their byte order; None where there is none."""
    kind = array.dtype.kind
    if kind in "UT":
        return "str"
    if kind == "S":
        return "bytes"
    if kind == "O":
        kinds = set(map(type, array.reshape(-1).tolist()))
        return "str" if kinds <= {str, np.str_} else "bytes" if kinds <= {bytes, np.bytes_} else None
    name = array.dtype.name
    return name if name in ITEM_BYTES else None  # type: ignore[return-value]


def plain(array: Array) -> Array:
    """The same elements in C order and native byte order; the array itself where it is so already."""
    native = array.dtype.newbyteorder("=")
    if array.dtype == native and array.flags.c_contiguous:
        return array if type(array) is np.ndarray else np.asarray(array)
    return np.array(array, native, order="C", subok=False)


# --- tensor -> JSON ---------------------------------------------------------------------------------------------


def to_json_values(tensor: Tensor, nan: NanPolicy = "error", name: str = "output") -> bytes:
    """The elements as one flat JSON array, in C order.

    Numbers are the shortest text that reads back to the same bits of their dtype (halves are shown as the float32 they
    equal). Raises, naming the output, for what JSON cannot show: ModelFault for NaN and infinities under the policy
    "error", Malformed for bytes that are not UTF-8.
    """
    rows = _rows_of_text(Tensor(tensor.dtype, (1, math.prod(tensor.shape)), tensor.data), nan)
    if rows[0] is None:
        raise unprintable(tensor, nan, name)
    return b"[" + rows[0] + b"]"


def rows_json(tensor: Tensor, nan: NanPolicy = "error") -> list[bytes | None]:
    """For each row of the first axis, its elements as `to_json_values` writes them, without the brackets.

    A row that JSON cannot show is None, so that it spoils no other row; `unprintable` makes its error.
    """
    rows = tensor.shape[0]
    if rows == 0:
        return []
    return _rows_of_text(Tensor(tensor.dtype, (rows, math.prod(tensor.shape) // rows), tensor.data), nan)


def unprintable(tensor: Tensor, nan: NanPolicy = "error", name: str = "output") -> MaitredError:
    """The error for an output that holds something JSON cannot show.

    Bytes are the caller's to ask for as binary data; text that is none, and NaN where none was announced, is the
    model's fault.
    """
    if tensor.dtype == "bytes":
        return Malformed(
            f"output {name!r} holds bytes that are not UTF-8 text, which JSON cannot show: ask for it as binary data "
            "(parameters: binary_data_output)"
        )
    if tensor.dtype == "str":
        return ModelFault(f"output {name!r} holds text that is not valid Unicode")
    return ModelFault(
        f"output {name!r} holds NaN or an infinity, for which JSON has no number: ask for it as binary data, or have "
        "its signature say nan=null or nan=string"
    )


_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


def _rows_of_text(tensor: Tensor, nan: NanPolicy) -> list[bytes | None]:
    """The rows of a two-dimensional tensor of at least one row."""
    rows, width = tensor.shape
    if width == 0:
        return [b""] * rows
    data = tensor.data
    if isinstance(data, list):
        return [_text_row(data[at : at + width]) for at in range(0, rows * width, width)]
    if not isinstance(data, np.ndarray):
        data = np.frombuffer(data, NUMPY_TYPES[tensor.dtype])
    if tensor.dtype in ("float16", "bfloat16"):
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
            data = data.astype(np.float32)
    if width == 1:
        text = orjson.dumps(data.reshape(rows), option=_NUMPY)
        pieces: list[bytes | None] = text[1:-1].split(b",")  # type: ignore[assignment]
    else:
        text = orjson.dumps(data.reshape(rows, width), option=_NUMPY)
        pieces = text[2:-2].split(b"],[")  # type: ignore[assignment]
    if b"n" in text and tensor.dtype in FLOATS and nan != "null":
        _apply_policy(pieces, data.reshape(rows, width), nan)
    return pieces


def _text_row(elements: list[Any]) -> bytes | None:
    try:
        return orjson.dumps([v if isinstance(v, str) else v.decode() for v in elements])[1:-1]
    except (UnicodeDecodeError, TypeError):  # TypeError: a str with a lone surrogate
        return None


def _apply_policy(pieces: list[bytes | None], data: Array, nan: NanPolicy) -> None:
    """Replace the rows in which a float has no JSON number."""
    for row in np.flatnonzero(~np.isfinite(data).all(axis=1)).tolist():
        pieces[row] = None if nan == "error" else b",".join(map(_named, data[row]))


def _named(value: Any) -> bytes:
    if math.isfinite(value):
        return orjson.dumps(value, option=_NUMPY)
    return b'"NaN"' if value != value else b'"Infinity"' if value > 0 else b'"-Infinity"'
