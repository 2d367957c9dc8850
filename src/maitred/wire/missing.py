"""Tensors in which elements are missing, and how those travel: two plain tensors, of values and of which are there."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from maitred.messages import Filled, Tensor
from maitred.wire.dtypes import FLOATS, NUMPY_TYPES, Array

NAT: Final = -(2**63)
"""The count that stands for no time at all, as in numpy."""

_SUFFIX: Final = "\0valid"
"""No caller can name a tensor so: names are printable."""


class Partial(Tensor, frozen=True, eq=False, gc=False):
    """A tensor of which some elements are missing: there, `data` hold 0, False or an empty text."""

    valid: bytes
    """A byte for each element: 1 where it is there, 0 where it is missing."""


def companion(name: str) -> str:
    """The name of the tensor that says which elements of tensor `name` are there."""
    return name + _SUFFIX


def valid_of(tensor: Tensor) -> bytes | None:
    """Which elements are there, a byte for each; None where all are."""
    return tensor.valid if isinstance(tensor, (Partial, Filled)) else None


def parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The two plain tensors as which a tensor travels that may have missing elements."""
    valid = valid_of(tensor) or b"\1" * math.prod(tensor.shape)
    values = tensor if isinstance(tensor, Filled) else Tensor(tensor.dtype, tensor.shape, tensor.data)
    return {name: values, companion(name): Tensor("bool", tensor.shape, valid)}


def partial(tensor: Tensor, valid: Array) -> Tensor:
    """The tensor without the elements that are not valid: NaN stands for them in floats. `valid` has its shape."""
    if valid.all():
        return tensor
    data = tensor.data
    if isinstance(data, list):
        blank = "" if tensor.dtype == "str" else b""
        kept = [value if there else blank for value, there in zip(data, valid.reshape(-1).tolist(), strict=True)]
        return Partial(tensor.dtype, tensor.shape, kept, valid.tobytes())
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, NUMPY_TYPES[tensor.dtype])
    array = array.reshape(tensor.shape)
    nothing = np.array(math.nan if tensor.dtype in FLOATS else 0, array.dtype)
    kept_array: Any = np.where(valid, array, nothing)
    if tensor.dtype in FLOATS:
        return Tensor(tensor.dtype, tensor.shape, kept_array)
    return Partial(tensor.dtype, tensor.shape, kept_array, valid.tobytes())


def reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements in another shape of as many."""
    data = tensor.data.reshape(shape) if isinstance(tensor.data, np.ndarray) else tensor.data
    if isinstance(tensor, Partial):
        return Partial(tensor.dtype, shape, data, tensor.valid)
    return Tensor(tensor.dtype, shape, data)
