"""An example kept with a model: inputs and the outputs they gave, as JSON that anybody can read."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from maitred.errors import Malformed
from maitred.model.asking import tensor_given
from maitred.model.forms import special, whole, whole_tensor
from maitred.model.refusals import CannotPack, Corrupt
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import DATATYPES, FLOATS, NAN_NAMES, NUMPY_TYPES, Array
from maitred.wire.missing import NAT, companion

MAX_BYTES: Final = 4 << 20
"""Bound on the example's file."""

Arrays = dict[str, Array]


class Example(NamedTuple):
    """Real inputs of a model, and what it answered; no outputs where its answers are not repeatable."""

    inputs: Arrays
    outputs: Arrays

    def rows(self, signature: Signature) -> int:
        """Size of the row axis; 1 for a model that is not row-wise."""
        for name, array in self.inputs.items():
            if signature.row_wise and name not in signature.shared:
                return int(array.shape[0])
        return 1


class _Tensor(msgspec.Struct):
    """One tensor, in the form of the Open Inference Protocol; bytes are base64 and say so."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, str] | None = None


class _Document(msgspec.Struct):
    inputs: list[_Tensor]
    outputs: list[_Tensor] = []


def write(path: Path, example: Example, signature: Signature) -> None:
    """Write the example. Raises `CannotPack` if it is too large to keep."""
    document = {
        "inputs": [_document(signature.inputs[name], array) for name, array in example.inputs.items()],
        "outputs": [_document(signature.outputs[name], array) for name, array in example.outputs.items()],
    }
    text = msgspec.json.encode(document)
    if len(text) > MAX_BYTES:
        raise CannotPack(f"the example takes {len(text)} bytes, more than {MAX_BYTES}: give fewer rows")
    path.write_bytes(msgspec.json.format(text, indent=1) if len(text) < 4096 else text)


def read(path: Path, signature: Signature) -> Example:
    """Read an example that fits the signature; nothing of it is run. Raises `Corrupt`."""
    try:
        if path.stat().st_size > 2 * MAX_BYTES:
            raise Corrupt("the example is too large")
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
        inputs = {tensor.name: _array(signature.inputs[tensor.name], tensor) for tensor in document.inputs}
        outputs = {tensor.name: _array(signature.outputs[tensor.name], tensor) for tensor in document.outputs}
        fit = signature.fit({name: tensor_given(signature.inputs[name], array) for name, array in inputs.items()})
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError, OverflowError, Malformed) as error:
        raise Corrupt(f"the example does not fit the signature: {error}") from error
    return Example({name: whole_tensor(signature.inputs[name], tensor) for name, tensor in fit.items()}, outputs)


def differences(example: Example, got: Mapping[str, Any], signature: Signature) -> list[str]:
    """What differs by more than the signature's tolerance: one line per output, with the worst place."""
    lines = (_difference(signature.outputs[name], want, got.get(name)) for name, want in example.outputs.items())
    return [line for line in lines if line]


def _difference(spec: TensorSpec, want: Array, got: Any) -> str:
    if got is None:
        return f"output {spec.name!r} is missing"
    found = np.asanyarray(got)
    if found.shape != want.shape:
        return f"output {spec.name!r} has the shape {list(found.shape)}, not {list(want.shape)}"
    fine, distance = agreement(spec, want, found)
    if fine.all():
        return ""
    said = f"{np.count_nonzero(~fine)} of {want.size} differ"
    if distance is None:
        return _worst(spec, want, found, int(fine.argmin()), said)
    said += " by more than rtol={:g}, atol={:g}".format(*spec.tolerance)
    return _worst(spec, want, found, int(np.where(fine, -1.0, distance).argmax()), said)


def agreement(spec: TensorSpec, want: Array, found: Array) -> tuple[Array, Array | None]:
    """Which elements of two arrays of one shape agree, flat: floats within the tolerance, everything else exactly.

    Also, of floats only, how far apart they are; infinite where just one is NaN.
    """
    if spec.dtype not in FLOATS:
        return _same(want, found).reshape(-1), None
    wide_want, wide_found = want.astype(np.float64).reshape(-1), found.astype(np.float64).reshape(-1)
    rtol, atol = spec.tolerance
    fine = np.isclose(wide_found, wide_want, rtol=rtol, atol=atol, equal_nan=True)
    with np.errstate(invalid="ignore"):  # of two infinities
        apart = np.nan_to_num(np.abs(wide_found - wide_want), nan=math.inf, posinf=math.inf)
    equal = (wide_found == wide_want) | (np.isnan(wide_found) & np.isnan(wide_want))
    return fine, np.where(equal, 0.0, apart)


def _same(want: Array, found: Array) -> Array:
    """Which elements are equal; what is missing equals only what is missing."""
    if want.dtype.kind == "M" or found.dtype.kind == "M":
        want, found = want.view(np.int64), found.view(np.int64)
    missing = np.ma.getmaskarray(want), np.ma.getmaskarray(found)
    same = np.asarray(want) == np.asarray(found)
    equal: Array = (missing[0] == missing[1]) & (same | missing[0])
    return equal


def _worst(spec: TensorSpec, want: Array, found: Array, index: int, said: str) -> str:
    place = [int(i) for i in np.unravel_index(index, want.shape)]
    expected, given = want.reshape(-1)[index], found.reshape(-1)[index]
    return f"output {spec.name!r}: {said}; worst at {place}: expected {shown(expected)}, got {shown(given)}"


def shown(value: Any) -> str:
    """One element, for a message."""
    return repr(value.item() if isinstance(value, np.generic) else value)[:80]


def request_text(inputs: Mapping[str, Array], signature: Signature) -> str:
    """The inputs as a request of the Open Inference Protocol, for people to copy."""
    tensors = [_document(signature.inputs[name], array) for name, array in inputs.items()]
    return msgspec.json.encode({"inputs": tensors}).decode()


def take_rows(inputs: Mapping[str, Array], signature: Signature, index: Array) -> Arrays:
    """The rows of that index, in its order; inputs and outputs without rows stay as they are."""
    alone = signature.shared if signature.row_wise else inputs.keys()
    return {name: array if name in alone else array[index] for name, array in inputs.items()}


def _document(spec: TensorSpec, array: Array) -> dict[str, Any]:
    if array.dtype.kind == "M":
        array = array.view(np.int64)
    flat = array.reshape(-1).tolist()
    if spec.time is not None:
        flat = [None if item == NAT else item for item in flat]
    shape = list(array.shape)
    document: dict[str, Any] = {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape, "data": flat}
    if spec.dtype == "bytes":
        document["data"] = [base64.b64encode(item).decode() for item in flat]
        document["parameters"] = {"encoding": "base64"}
    elif spec.dtype in FLOATS:
        document["data"] = [_number(float(item)) for item in flat]
    return document


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _array(spec: TensorSpec, tensor: _Tensor) -> Array:
    if tensor.datatype != DATATYPES[spec.dtype]:
        raise ValueError(f"{spec.name!r} is {tensor.datatype}, not {DATATYPES[spec.dtype]}")
    data = tensor.data
    if spec.dtype == "bytes":
        data = [base64.b64decode(item, validate=True) for item in data]
    elif spec.dtype in FLOATS:
        data = [NAN_NAMES[item] if isinstance(item, str) else float(item) for item in data]
        return np.array(data, np.float64).astype(NUMPY_TYPES[spec.dtype]).reshape(tensor.shape)
    there = [item is not None for item in data]
    if spec.dtype == "str" and not all(isinstance(item, (str, NoneType)) for item in data):
        raise ValueError(f"{spec.name!r} must hold strings")
    if not all(there) and not spec.nullable:
        raise ValueError(f"{spec.name!r} must hold no null")
    array = np.empty(len(data), NUMPY_TYPES[spec.dtype])
    array[:] = [_blank(spec) if item is None else item for item in data]
    valid = np.array(there, bool)
    arrays = {spec.name: array.reshape(tensor.shape), companion(spec.name): valid.reshape(tensor.shape)}
    return whole(special((spec,)), arrays)[spec.name]


def _blank(spec: TensorSpec) -> Any:
    return NAT if spec.time is not None else "" if spec.dtype == "str" else 0
