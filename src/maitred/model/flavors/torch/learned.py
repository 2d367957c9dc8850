"""What PyTorch's modules do not say by themselves: their signature, learned from an example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors import ROWS, derived, spec_of
from maitred.model.flavors.torch.run import Leaves, row_count, tiled
from maitred.model.flavors.torch.tensors import DTYPES, Tensors, dtype_name
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.wire.coerce import NUMPY_TYPES, Array

if TYPE_CHECKING:
    import torch

_DEFAULT_FLOAT: Final = np.dtype("float32")
_FEWEST: Final = 2
"""Of one row alone nobody can tell which sizes follow the rows."""


def parameters(module: Any) -> list[str]:
    """The names that the module's `forward` gives to its inputs."""
    schema = getattr(module.forward, "schema", None)
    if schema is not None:  # TorchScript, whose first argument is the module under whatever name its author gave it
        return [argument.name for argument in schema.arguments[1:]]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, one in inspect.signature(module.forward).parameters.items() if one.kind not in kinds]


def floats_of(module: Any) -> np.dtype[Any]:
    """The dtype of the module's weights, in which it wants its inputs."""
    names = (dtype_name(weight.dtype) for weight in module.parameters() if weight.is_floating_point())
    found = next((name for name in names if name), "")
    return NUMPY_TYPES[found] if found else _DEFAULT_FLOAT


def arrays_of(module: Any, sample: Any, signature: Signature | None) -> dict[str, Array]:
    """An example as arrays by input, in the order of `forward`.

    Numbers of Python and numpy's float64, which is the dtype of whatever nobody chose a dtype for, take the dtype of
    the weights. Raises `CannotLoad` naming the input that no tensor can hold.
    """
    names = parameters(module)
    known = list(signature.inputs) if signature is not None else names
    given = sample if isinstance(sample, Mapping) else {known[0] if known else "x": sample}
    arrays: dict[str, Array] = {}
    for name, value in given.items():
        if known and name not in known:
            raise CannotLoad(f"the example has {name!r}, which is no input of the model: it takes {', '.join(known)}")
        spec = signature.inputs[str(name)] if signature is not None else None
        arrays[str(name)] = _array(str(name), value, NUMPY_TYPES[spec.dtype] if spec else None, floats_of(module))
    ordered = {name: arrays[name] for name in known if name in arrays}
    return ordered or arrays


def learned(
    run: Callable[[dict[str, torch.Tensor]], Any],
    leaves: Leaves,
    arrays: Mapping[str, Array],
    tensors: Tensors,
    labels: Mapping[str, tuple[str, ...]],
) -> Signature:
    """The signature of a model that answers these arrays: every size as it is, but for those that follow the rows.

    Raises `CannotLoad` with what the model raised.
    """
    rows = max(row_count(arrays), _FEWEST)
    with_rows = {name for name, array in arrays.items() if array.ndim and len(array) == row_count(arrays)}

    def answer(count: int) -> Mapping[str, Any]:
        given = {name: tiled(array, 0, count) if name in with_rows else array for name, array in arrays.items()}
        copies = {name: tensors.tensor(array.copy()) for name, array in given.items()}
        with tensors.torch.inference_mode():
            return leaves(run(copies))

    try:
        first = answer(rows)
    except Exception as error:  # the model's own code may raise anything
        raise CannotLoad(f"the model fails on its example: {type(error).__name__}: {error}") from error
    try:
        other: Mapping[str, Any] = answer(rows + 1)
    except Exception:  # it takes this number of rows and no other: then its sizes are fixed
        other, with_rows = first, set()
    inputs = [
        spec_of(name, array.dtype.name, (ROWS, *array.shape[1:]) if name in with_rows else array.shape)
        for name, array in arrays.items()
    ]
    outputs = [
        spec_of(name, _dtype(name, value), _open_sizes(name, value, other.get(name), rows), labels.get(name))
        for name, value in first.items()
    ]
    return derived(inputs, outputs)


def _open_sizes(name: str, value: Any, other: Any, rows: int) -> tuple[int | str, ...]:
    """The shape of an answer to `rows` rows; symbols where one row more (`other`) changes it."""
    shape, changed = _shape(value), _shape(other)
    if len(shape) != len(changed):
        raise CannotLoad(f"output {name!r} has {len(shape)} axes for some numbers of rows, {len(changed)} for others")
    return tuple(
        size if size == more else ROWS if (size, more) == (rows, rows + 1) else f"{name}_{axis}"
        for axis, (size, more) in enumerate(zip(shape, changed, strict=True))
    )


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _dtype(name: str, value: Any) -> str:
    if hasattr(value, "layout"):
        found = dtype_name(value.dtype)
    else:
        array = np.asarray(value)
        found = array.dtype.name if array.dtype.name in DTYPES else ""
    if not found:
        raise CannotLoad(f"output {name!r} is of a kind that cannot be served: {getattr(value, 'dtype', type(value))}")
    return found


def _array(name: str, value: Any, wanted: np.dtype[Any] | None, floats: np.dtype[Any]) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array: Array = np.asarray(value.to_numpy() if hasattr(value, "columns") else value)
    if array.dtype.kind in "OSU" or (array.dtype.name not in DTYPES and array.dtype.kind != "M"):
        raise CannotLoad(f"input {name!r}: PyTorch has no tensors of {array.dtype}; encode it as numbers")
    if wanted is None and array.dtype == np.float64:
        wanted = floats
    return np.ascontiguousarray(array if wanted is None else array.astype(wanted)).reshape(array.shape)
