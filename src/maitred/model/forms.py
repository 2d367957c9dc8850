"""The forms of tensors with missing elements or times: how they travel, and how models and Python callers see them.

Missing elements travel as two plain tensors (`wire/missing.py`), times as int64 counts; so what joins, splits and
copies tensors knows nothing of either. Models and callers see masked arrays (`str`: None) and datetime64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from maitred.messages import Filled, Tensor
from maitred.model.notation import TensorSpec
from maitred.wire.coerce import Array, to_array
from maitred.wire.missing import NAT, companion, reshaped, valid_of

Arrays = dict[str, Array]


def special(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors that are seen in another form than they travel in."""
    return tuple(spec for spec in specs if spec.masked or spec.time is not None)


def travelling(specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The plain tensors as which these travel."""
    found: dict[str, TensorSpec] = {}
    for name, spec in specs.items():
        found[name] = spec
        if spec.masked:
            found[companion(name)] = TensorSpec(companion(name), "bool", spec.shape, pad=True)
    return found


def whole(specs: Iterable[TensorSpec], arrays: Mapping[str, Array]) -> Arrays:
    """Arrays as they are seen, from those that travel; where nothing says what is missing, nothing is.

    `specs` are the special ones. The arrays are views where those are.
    """
    seen = dict(arrays)
    for spec in specs:
        array = seen.get(spec.name)
        if array is None:
            continue
        if spec.time is not None:
            seen[spec.name] = array.view(f"datetime64[{spec.time}]") if array.dtype.kind != "M" else array
        else:
            seen[spec.name] = _masked(array, seen.pop(companion(spec.name), None))
    return seen


def _masked(array: Array, valid: Array | None) -> Array:
    if isinstance(array, np.ma.MaskedArray) or (array.dtype.kind == "O" and valid is None):
        return array
    missing = np.zeros(array.shape, bool) if valid is None else ~valid
    if array.dtype.kind == "O":
        if missing.any():
            array = np.where(missing, np.array(None, object), array)
            array.flags.writeable = False
        return array
    seen: Any = array.view(np.ma.MaskedArray)
    seen._mask = missing  # as the class's own constructor has it, which takes 1.7 times as long
    return seen  # type: ignore[no-any-return]


def parted(specs: Iterable[TensorSpec], arrays: Mapping[str, Array]) -> Arrays:
    """Arrays as they travel, from those that are seen; plain ones have nothing that is missing."""
    plain = dict(arrays)
    for spec in specs:
        array = plain.get(spec.name)
        if array is None:
            continue
        if spec.time is not None:
            plain[spec.name] = array.view(np.int64) if array.dtype.kind == "M" else array
        elif companion(spec.name) not in plain:
            plain[spec.name], plain[companion(spec.name)] = _parts(spec, array)
    return plain


def _parts(spec: TensorSpec, array: Array) -> tuple[Array, Array]:
    """The elements, with 0 or an empty text where one is missing, and which are there."""
    if spec.dtype == "str":
        there = np.not_equal(array, np.array(None, object)).astype(bool)
        return array if there.all() else np.where(there, array, np.array("", object)), there
    if not isinstance(array, np.ma.MaskedArray):
        return array, np.ones(array.shape, bool)
    missing = np.ma.getmaskarray(array)
    data: Array = np.asarray(array.data)
    return data if not missing.any() else np.where(missing, data.dtype.type(0), data), ~missing


def whole_tensor(spec: TensorSpec, tensor: Tensor) -> Array:
    """A tensor, which may be a `Partial`, as it is seen."""
    arrays = {spec.name: to_array(tensor)}
    valid = valid_of(tensor)
    if valid is not None:
        arrays[companion(spec.name)] = np.frombuffer(valid, bool).reshape(tensor.shape)
    return whole(special((spec,)), arrays)[spec.name]


def tensors_of(specs: Mapping[str, TensorSpec], arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The tensors that travel, from arrays as they are seen."""
    kinds = travelling(specs)
    return {
        name: Tensor(kinds[name].dtype, array.shape, array.reshape(-1).tolist() if array.dtype.kind == "O" else array)
        for name, array in parted(special(specs.values()), arrays).items()
    }


def validity(spec: TensorSpec, tensors: Mapping[str, Tensor]) -> Array | None:
    """Which elements of a nullable tensor are there; None where all are, or where it is a float's NaN that says so."""
    if spec.time is not None:
        valid: Array = to_array(tensors[spec.name]) != NAT
    elif spec.masked:
        valid = to_array(tensors[companion(spec.name)])
    else:
        return None
    return None if valid.all() else valid


def fitted(spec: TensorSpec, tensor: Tensor) -> Tensor:
    """A column that came as `[n, 1]` for `[n]`, or the other way round, in the declared shape; others as they are."""
    shape, wanted = tensor.shape, spec.shape
    if isinstance(tensor, Filled):
        return tensor
    if len(wanted) == 1 and len(shape) == 2 and shape[1] == 1:
        return reshaped(tensor, shape[:1])
    if len(wanted) == 2 and len(shape) == 1 and wanted[1] == 1:
        return reshaped(tensor, (*shape, 1))
    return tensor
