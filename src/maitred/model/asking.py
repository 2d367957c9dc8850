"""What a caller in Python gives, as a checked request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from maitred.clock import monotonic
from maitred.errors import Malformed
from maitred.messages import FOREVER, NORMAL, Request, Tensor
from maitred.model.predictor import Traits
from maitred.model.signature import Signature, TensorSpec, shown
from maitred.wire.coerce import from_python
from maitred.wire.parameters import from_mapping, mark
from maitred.wire.tensors import sealed

_LONGEST_SECONDS: Final = 1e9
"""A longer timeout is none at all: timers overflow somewhere beyond."""

_NUMBERS: Final = (int, float, np.integer, np.floating)


def question(
    signature: Signature,
    traits: Traits,
    inputs: Any,
    named: Mapping[str, Any],
    outputs: Any,
    parameters: Any,
    timeout_seconds: Any,
) -> Request:
    """The request; no model can write into the caller's arrays through it. Raises Malformed naming what is wrong."""
    deadline = _deadline(timeout_seconds)
    wanted = _wanted(outputs, signature)
    chosen = from_mapping(parameters)
    tensors = {}
    for name, value in _by_name(inputs, named, signature).items():
        spec = signature.inputs.get(name)
        if spec is None:
            raise signature.unknown_input(name)
        tensors[name] = tensor_given(spec, value)
    checked = signature.check(tensors)
    group = checked.group
    if chosen and group is not None and not traits.per_row_parameters:
        group = (group, mark(chosen))
    safe = {name: sealed(tensor) for name, tensor in checked.inputs.items()}
    return Request(
        safe, checked.rows, group, deadline, NORMAL, parameters=chosen, outputs=wanted, ragged=checked.ragged
    )


def tensor_given(spec: TensorSpec, value: Any) -> Tensor:
    """The tensor of what a caller in Python gives for an input; it may lack elements, where the input is nullable.

    A `Tensor` is taken as it is. Raises Malformed.
    """
    if isinstance(value, Tensor):
        return value
    inner = spec.shape[1:]
    if hasattr(type(value), "nnz") and len(inner) == 1 and isinstance(inner[0], int) and value.shape[1:] != inner:
        # before it is made dense, which may take far more than its few entries
        raise Malformed(f"input {spec.name!r}: expected shape {shown(spec.shape)}, got {shown(value.shape)}")
    return from_python(spec.name, spec.dtype, value, spec.nullable, spec.nan, spec.pad, spec.clock)


def _by_name(inputs: Any, named: Mapping[str, Any], signature: Signature) -> Mapping[str, Any]:
    if inputs is None:
        return named
    if named:
        raise Malformed("give the inputs either as one argument or by name, not both")
    if isinstance(inputs, Mapping):
        return inputs
    if len(signature.inputs) == 1:
        return {next(iter(signature.inputs)): inputs}
    raise Malformed(f"this model has several inputs; give them by name: {', '.join(signature.inputs)}")


def _deadline(timeout_seconds: Any) -> float:
    if timeout_seconds is None:
        return FOREVER
    seconds = math.nan
    number = isinstance(timeout_seconds, _NUMBERS) and not isinstance(timeout_seconds, bool)
    if number:
        try:
            seconds = float(timeout_seconds)
        except OverflowError:  # a whole number that is larger than any float
            seconds = math.inf
    if not 0 < seconds < math.inf:
        got = seconds if number else f"a value of type {type(timeout_seconds).__name__}"
        raise Malformed(
            f"timeout_seconds must be a positive, finite number of seconds, or None for no limit; this is {got}"
        )
    return FOREVER if seconds > _LONGEST_SECONDS else monotonic() + seconds


def _wanted(outputs: Any, signature: Signature) -> tuple[str, ...] | None:
    if outputs is None:
        return None
    names = None if isinstance(outputs, (str, bytes, Mapping)) or not hasattr(outputs, "__iter__") else tuple(outputs)
    if names is None or not all(isinstance(name, str) for name in names):
        raise Malformed(f"outputs must be a list of output names, such as {list(signature.outputs)}")
    if not names:
        raise Malformed(f"outputs is empty: leave it out for all, or name some of: {', '.join(signature.outputs)}")
    return signature.check_outputs(map(str, names))
