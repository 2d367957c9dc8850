"""What an element may be: the dtypes, their names on the wire and in numpy, and which hold all values of which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from maitred.errors import Malformed
from maitred.messages import DType

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

CODES: Final[Mapping[str, str]] = {
    "bool": "?", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int16": "h", "int32": "i",
    "int64": "q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip

NUMPY_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    **{dtype: np.dtype(dtype) for dtype in CODES}, "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "str": np.dtype(object), "bytes": np.dtype(object),
}  # fmt: skip
"""The numpy type of each dtype's arrays, in native (little-endian) order; `str` and `bytes` are arrays of objects."""

WIDENINGS: Final[frozenset[tuple[str, str]]] = frozenset(
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


def json_kind(dtype: DType) -> type:
    """What JSON has for one element of this dtype."""
    return bool if dtype == "bool" else float if dtype in FLOATS else str if dtype in ("str", "bytes") else int


def is_text(element: str | bytes) -> bool:
    """Whether UTF-8 can hold a text, or the bytes are UTF-8."""
    try:
        element.encode() if isinstance(element, str) else element.decode()
    except UnicodeError:
        return False
    return True


def decoded(name: str, elements: Sequence[bytes]) -> list[str]:
    """The texts of UTF-8 elements; Malformed naming the place of one that is not."""
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        at = next(index for index, element in enumerate(elements) if not is_text(element))
        raise Malformed(f"input {name!r}: element {at} is not UTF-8 text") from None
