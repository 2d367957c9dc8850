"""Tensors as numpy arrays, and back."""

from __future__ import annotations

import numpy as np

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, DType, Tensor
from maitred.wire.dtypes import NUMPY_TYPES, Array


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
