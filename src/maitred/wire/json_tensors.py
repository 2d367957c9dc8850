"""Tensors as JSON: a flat or nested array of elements becomes a tensor, its rows become text."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from maitred.errors import MaitredError, Malformed, ModelFault
from maitred.messages import DType, Tensor
from maitred.wire.dtypes import DATATYPES, FLOATS, MAX_DIMENSIONS, NUMPY_TYPES, Array, NanPolicy
from maitred.wire.elements import Target, flattened, packer, tensor_of
from maitred.wire.json_decoders import decoder, depth_of, explained, tame
from maitred.wire.json_pieces import from_pieces
from maitred.wire.missing import NAT
from maitred.wire.nesting import check_empty_lists, check_uneven_lists, structure
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.sizes import AT_ONCE_BYTES, ON_LOOP_CHARACTERS, ON_LOOP_ELEMENTS, PIECE_BYTES, PIECE_ELEMENTS
from maitred.wire.times import Clock, texts, writable


def from_json(
    name: str,
    dtype: DType,
    shape: tuple[int, ...] | None,
    raw_json: Any,
    nullable: bool = False,
    nan: NanPolicy = "error",
    pad: Any = None,
    clock: Clock | None = None,
    pause: Pause = no_pause,
) -> Tensor:
    """The tensor that JSON text holds: an array, flat or nested as `shape` says (a scalar where the shape is empty).

    `shape` is a checked one; None takes it from the nesting. `nullable` allows null: NaN for float dtypes (for which
    the policy "null" does so too), NAT for times, else an element of a `Partial` that is missing. The policy "string"
    accepts the strings of `NAN_NAMES`. With a `clock`, elements are times: counts, or ISO 8601 text. Where the shape is
    None and `pad` is not, it fills up ragged nested lists. Long text is read in pieces, with a `pause` between them.
    Raises Malformed naming the input and the place.
    """
    if shape is not None:
        if len(raw_json) > AT_ONCE_BYTES:
            return _from_much(Target.of(name, dtype, nullable, nan, clock), shape, raw_json, pad, pause)
        decode, pack, count = _PLANS[dtype].get(shape) or _plan(dtype, shape)
        try:
            values = decode(raw_json)
            if len(values) == count:
                return Tensor(dtype, shape, pack(*values))
        except (ValueError, OverflowError, struct.error):
            pass  # nested, nullable or wrong: the long way accepts it, or says what is wrong and where
    elif len(raw_json) > AT_ONCE_BYTES:
        return _from_much(Target.of(name, dtype, nullable, nan, clock), shape, raw_json, pad, pause)
    return _from_json(Target.of(name, dtype, nullable, nan, clock), shape, raw_json, pad)


_Plan = tuple[Callable[[Any], list[Any]], Callable[..., Any], int]
_PLANS: Final[Mapping[str, dict[tuple[int, ...], _Plan]]] = {dtype: {} for dtype in DATATYPES}
"""Per dtype and shape: the decoder of a flat list, what packs its values, and their count."""

_MAX_PLANS: Final = 512


def _plan(dtype: DType, shape: tuple[int, ...]) -> _Plan:
    count = math.prod(shape)
    plan = (decoder(dtype, 1, False, False, False).decode, packer(dtype, count), count)
    known = _PLANS[dtype]
    if len(known) >= _MAX_PLANS:
        known.clear()  # callers choose shapes, so the table must stay bounded
    known[shape] = plan
    return plan


def _from_much(target: Target, shape: tuple[int, ...] | None, raw_json: Any, pad: Any, pause: Pause) -> Tensor:
    """As `from_json`, for long text: lists of nothing, and what is wrong in uneven ones, are read as a whole."""
    text = memoryview(raw_json)
    tensor = from_pieces(target, shape, text, pad, pause)
    return _from_json(target, shape, text, pad) if tensor is None else tensor


def _from_json(target: Target, shape: tuple[int, ...] | None, raw_json: Any, pad: Any) -> Tensor:
    """As `from_json`, for every case that is not a plain flat list."""
    name = target.name
    text = bytes(raw_json)
    depth = depth_of(text)
    if depth > MAX_DIMENSIONS:
        raise Malformed(f"input {name!r}: data are nested more than {MAX_DIMENSIONS} lists deep")
    if len(text) > AT_ONCE_BYTES:
        check_empty_lists(name, text)
        if depth > 1:
            check_uneven_lists(name, text.count(b"[") if b'"' not in text else structure(text).count(b"["))
    try:
        values = decoder(target.dtype, depth, target.nulls, target.names, target.clock is not None).decode(text)
    except msgspec.ValidationError as error:
        raise Malformed(f"input {name!r}: {explained(target, str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"input {name!r}: data are not valid JSON: {tame(str(error))}") from None
    nest = [values] if depth == 0 else values
    dims, elements, real = flattened(name, nest, max(depth, 1), pad if shape is None else None)
    dims = dims if depth else ()
    if shape is not None:
        _check_count(name, shape, dims, len(elements))
    return tensor_of(target, elements, dims, dims if shape is None else shape, real)


def _check_count(name: str, shape: tuple[int, ...], dims: tuple[int, ...], count: int) -> None:
    """Malformed where data of sizes `dims` are not those of `shape`; flat data only have to be as many."""
    if count != math.prod(shape):
        raise Malformed(f"input {name!r}: shape {list(shape)} holds {math.prod(shape)} elements, data hold {count}")
    if len(dims) != 1 and count and dims != shape:
        raise Malformed(f"input {name!r}: shape is {list(shape)}, data are nested as {list(dims)}")


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


def rows_json(
    tensor: Tensor, nan: NanPolicy = "error", valid: Array | None = None, clock: Clock | None = None
) -> list[bytes | None]:
    """For each row of the first axis, its elements as `to_json_values` writes them, without the brackets.

    Elements that are not `valid` (an array of as many bools) are null; with a `clock`, counts are written as ISO 8601
    text. A row that JSON cannot show is None, so that it spoils no other row; `unprintable` makes its error.
    """
    rows = tensor.shape[0]
    if rows == 0:
        return []
    matrix = Tensor(tensor.dtype, (rows, math.prod(tensor.shape) // rows), tensor.data)
    if valid is None and clock is None:
        return _rows_of_text(matrix, nan)
    if matrix.shape[1] == 0:
        return [b""] * rows
    if clock is not None:
        return _rows_of_times(matrix, clock)
    return _rows_with_nulls(matrix, nan, np.asarray(valid).reshape(matrix.shape))


def is_long(tensor: Tensor) -> bool:
    """Whether writing it as JSON would hold up a loop."""
    data = tensor.data
    if type(data) is list:
        return len(data) > ON_LOOP_ELEMENTS or sum(map(len, data)) > ON_LOOP_CHARACTERS
    return math.prod(tensor.shape) > ON_LOOP_ELEMENTS


def lacks_number(tensor: Tensor, nan: NanPolicy) -> bool:
    """Whether a float is among the elements that JSON cannot show; quick, for long tensors."""
    if tensor.dtype not in FLOATS or nan != "error":
        return False
    data = tensor.data if isinstance(tensor.data, np.ndarray) else np.frombuffer(tensor.data, NUMPY_TYPES[tensor.dtype])
    return not np.isfinite(data).all()


def rows_in_pieces(
    tensor: Tensor, nan: NanPolicy, valid: Array | None, clock: Clock | None, pause: Pause
) -> list[bytes | None]:
    """As `rows_json`, with a `pause` after every PIECE_ELEMENTS elements or PIECE_BYTES of text."""
    rows, width = tensor.shape[0], math.prod(tensor.shape[1:])
    flags = None if valid is None else np.asarray(valid).reshape(-1)
    count = rows * width
    data = tensor.data.reshape(-1) if isinstance(tensor.data, np.ndarray) else tensor.data
    flat = Tensor(tensor.dtype, (count,), data)

    def written(start: int, stop: int, columns: int) -> list[bytes | None]:
        part = flat.rows(start, stop)
        there = None if flags is None else flags[start:stop]
        pause()
        return rows_json(Tensor(part.dtype, ((stop - start) // columns, columns), part.data), nan, there, clock)

    step = _step(tensor)
    lines: list[bytes | None] = []
    if not count:
        return rows_json(tensor, nan, valid, clock)
    if width <= step:
        step -= step % width
        for start in range(0, count, step):
            lines += written(start, min(start + step, count), width)
        return lines
    for start in range(0, count, width):
        parts = [written(at, min(at + step, start + width), min(at + step, start + width) - at)[0]
                 for at in range(start, start + width, step)]  # fmt: skip
        lines.append(None if None in parts else b",".join(parts))  # type: ignore[arg-type]
    return lines


def _step(tensor: Tensor) -> int:
    """How many elements are to be written at once."""
    if not isinstance(tensor.data, list):
        return PIECE_ELEMENTS
    each = sum(map(len, tensor.data)) // len(tensor.data) + 1 if tensor.data else 1
    return max(1, min(PIECE_ELEMENTS, PIECE_BYTES // each))


def _rows_with_nulls(tensor: Tensor, nan: NanPolicy, valid: Array) -> list[bytes | None]:
    """The rows of a two-dimensional tensor of which some elements are missing."""
    width = tensor.shape[1]
    rows = _rows_of_text(tensor, nan)
    for row in np.flatnonzero(~valid.all(axis=1)).tolist():
        there = valid[row].tolist()
        if isinstance(tensor.data, list):
            values = tensor.data[row * width : (row + 1) * width]
            rows[row] = _text_row([value if one else None for value, one in zip(values, there, strict=True)])
        elif (text := rows[row]) is not None:
            pieces = text.split(b",")
            rows[row] = b",".join([piece if one else b"null" for piece, one in zip(pieces, there, strict=True)])
    return rows


def _rows_of_times(tensor: Tensor, clock: Clock) -> list[bytes | None]:
    """The rows of a two-dimensional tensor of times."""
    rows, width = tensor.shape
    array = tensor.data if isinstance(tensor.data, np.ndarray) else np.frombuffer(tensor.data, np.int64)
    array = array.reshape(rows, width)
    fine = (writable(array, clock) | (array == NAT)).all(axis=1).tolist()
    written = texts(array, clock)
    return [
        orjson.dumps(written[row * width : (row + 1) * width])[1:-1] if one else None for row, one in enumerate(fine)
    ]


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
    if tensor.dtype == "int64":
        return ModelFault(
            f"output {name!r} holds a time before the year 1 or after 9999: ask for it over V2, as a number"
        )
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
        return orjson.dumps([v if isinstance(v, (str, NoneType)) else v.decode() for v in elements])[1:-1]
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
