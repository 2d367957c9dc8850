"""What a model returned, whatever it was, as arrays of the outputs that its signature declares."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np

from maitred.errors import ModelFault
from maitred.messages import DType
from maitred.model.signature import Signature, TensorSpec, shown
from maitred.wire.coerce import FLOATS, INTEGERS, NUMPY_TYPES, Array, dtype_of, plain
from maitred.wire.columns import Column, opened
from maitred.wire.elements import is_missing
from maitred.wire.missing import NAT, companion
from maitred.wire.times import Clock, NoTime, count, counts

Arrays = dict[str, Array]


class WrongCount(ModelFault):
    """The model returned another number of rows than it was given."""

    def __init__(self, expected: int, got: int, output: str = "") -> None:
        where = f"output {output!r}: " if output else ""
        super().__init__(f"{where}the model was given {expected} rows and returned {got}")
        self.expected = expected
        self.got = got


def settled(raw: Any, signature: Signature, rows: int, inputs: Mapping[str, Array], names: tuple[str, ...]) -> Arrays:
    """These outputs, as `predictor.settle` gives them, where the model did not return just that."""
    values = _by_name(raw, signature, names, rows)
    sizes = known_sizes(signature, inputs)
    outputs: Arrays = {}
    for name in names:
        spec = signature.outputs[name]
        array, valid = _settled(spec, values[name])
        _check_shape(signature, spec, array.shape, rows, sizes)
        if any(np.may_share_memory(array, other) for other in inputs.values()):
            array = array.copy()
        outputs[name] = array
        if spec.masked:
            outputs[companion(name)] = np.ones(array.shape, bool) if valid is None else np.ascontiguousarray(valid)
    return outputs


def known_sizes(signature: Signature, inputs: Mapping[str, Array]) -> dict[str, int]:
    """What each symbol of the inputs is in this batch."""
    return {
        symbol: size
        for name, array in inputs.items()
        if name in signature.inputs
        for symbol, size in zip(signature.inputs[name].shape, array.shape, strict=True)
        if isinstance(symbol, str)
    }


def _by_name(raw: Any, signature: Signature, names: tuple[str, ...], rows: int) -> Mapping[str, Any]:
    """The model's values by output name."""
    if isinstance(raw, Mapping):
        found: Mapping[str, Any] = raw
    elif hasattr(raw, "columns") and hasattr(raw, "__getitem__"):
        found = _from_table(raw, signature)
    elif isinstance(raw, list) and (raw or len(signature.outputs) > 1) and all(isinstance(r, Mapping) for r in raw):
        found = _from_records(raw, names, signature, rows)
    elif len(signature.outputs) == 1 and not _is_odd(raw):
        found = {next(iter(signature.outputs)): raw}
    else:
        raise ModelFault(
            f"the model returned {_type_name(raw)}; expected a dict with {', '.join(map(repr, signature.outputs))}"
        )
    missing = [name for name in names if name not in found]
    if missing:
        raise ModelFault(
            f"the model did not return output {missing[0]!r}; it returned "
            + (", ".join(sorted(repr(str(name))[:80] for name in found)[:20]) or "nothing")
        )
    return found


def _is_odd(raw: Any) -> bool:
    """Whether a value is certainly no tensor: None, a generator, a coroutine, a string of no array."""
    return raw is None or inspect.isawaitable(raw) or inspect.isgenerator(raw) or inspect.isasyncgen(raw)


def _type_name(raw: Any) -> str:
    return "None" if raw is None else f"a value of type {type(raw).__name__}"


def _from_table(raw: Any, signature: Signature) -> Mapping[str, Any]:
    """A data frame (pandas, polars) or an Arrow table: one output per column, or all columns as the one output."""
    labels = list(getattr(raw, "column_names", raw.columns))
    named = {name: raw[name] for name in signature.outputs if name in labels}
    if named or len(signature.outputs) != 1 or not hasattr(raw, "to_numpy"):
        return named
    spec = next(iter(signature.outputs.values()))
    values = raw.to_numpy()
    return {spec.name: values[:, 0] if len(spec.shape) == 1 and len(labels) == 1 else values}


def _from_records(
    raw: list[Mapping[str, Any]], names: tuple[str, ...], signature: Signature, rows: int
) -> dict[str, list[Any]]:
    if signature.row_wise and len(raw) != rows:
        raise WrongCount(rows, len(raw))
    for index, record in enumerate(raw):
        for name in names:
            if name not in record:
                raise ModelFault(f"the model did not return output {name!r} for row {index}")
    return {name: [record[name] for record in raw] for name in names}


def _check_shape(
    signature: Signature, spec: TensorSpec, shape: tuple[int, ...], rows: int, sizes: dict[str, int]
) -> None:
    if signature.row_wise and shape and shape[0] != rows:
        raise WrongCount(rows, shape[0], spec.name)
    fits = len(shape) == len(spec.shape)
    if fits:
        for size, wanted in zip(shape, spec.shape, strict=True):
            fits &= size == (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
    if not fits:
        known = {size: sizes[size] for size in spec.shape if isinstance(size, str) and size in sizes}
        where = "".join(f", {symbol} = {size}" for symbol, size in known.items())
        raise ModelFault(
            f"output {spec.name!r}: expected shape {shown(spec.shape)}{where}; the model returned {shown(shape)}"
        )


# --- one output -------------------------------------------------------------------------------------------------


def _settled(spec: TensorSpec, value: Any) -> tuple[Array, Array | None]:
    """A value as a contiguous array of the declared dtype, and which elements are there (None: all).

    What is missing is NaN in floats and NAT in times; elsewhere 0 or an empty text stands in its place.
    """
    column = _column(spec, value)
    array, valid = column.values, column.valid
    if array.dtype.kind == "O" and array.size:
        array, valid = _without_missing(array, valid)
    if valid is not None and spec.dtype not in FLOATS and not spec.nullable:
        raise _missing(spec, valid)
    if spec.time is not None:
        return _times(spec, column, array, valid), None
    array = _typed(spec, array if valid is None else _blanked(spec, array, valid))
    if valid is not None and spec.dtype in FLOATS:
        return np.where(valid, array, np.array(np.nan, array.dtype)), None
    return array, valid


def _missing(spec: TensorSpec, valid: Array) -> ModelFault:
    at = "".join(f"[{index}]" for index in np.unravel_index(int(np.argmin(valid)), valid.shape))
    return ModelFault(
        f"output {spec.name!r}: the model returned a missing value{' at ' + at if at else ''}, and the signature does "
        "not say nullable"
    )


def _without_missing(array: Array, valid: Array | None) -> tuple[Array, Array | None]:
    """An array of objects with 0 for each that stands for none (None, NaN, NA, NaT), and which are there."""
    flat = array.reshape(-1).tolist()
    if _CERTAIN.issuperset(map(type, flat)):
        return array, valid
    there = np.array([not is_missing(element) for element in flat]).reshape(array.shape)
    if valid is not None:
        there &= valid
    return (array, valid) if there.all() else (array, there)


_CERTAIN = frozenset({str, bytes, int, bool, np.str_, np.bytes_})
"""Types of which no value stands for a missing one."""


def _blanked(spec: TensorSpec, array: Array, valid: Array) -> Array:
    """The array with 0, or an empty text, for what is missing."""
    if array.dtype.kind != "O":
        return np.where(valid, array, array.dtype.type())
    blank: Any = {"str": "", "bytes": b"", "bool": False}.get(spec.dtype, 0.0 if spec.dtype in FLOATS else 0)
    return np.where(valid, array, np.array(blank, object))


def _times(spec: TensorSpec, column: Column, array: Array, valid: Array | None) -> Array:
    """Counts of the output's unit; times without a zone are taken as the output's."""
    clock: Any = spec.clock
    if column.zoned and clock.zone is None:
        raise ModelFault(f"output {spec.name!r}: the model returned times with a zone; the signature says no zone=")
    try:
        if array.dtype.kind == "M":
            found = counts(array, clock)
        elif array.dtype.kind == "O":
            there = [True] * array.size if valid is None else valid.reshape(-1).tolist()
            pairs = zip(array.reshape(-1).tolist(), there, strict=True)
            found = np.array([_count(element, clock) if one else NAT for element, one in pairs], np.int64)
            found = found.reshape(array.shape)
        else:
            found = _typed(spec, array)
    except NoTime as error:
        raise ModelFault(f"output {spec.name!r}: what the model returned {error}") from None
    if valid is not None:
        found = np.where(valid, found, NAT)
    if not spec.nullable and (found == NAT).any():
        raise _missing(spec, found != NAT)
    return np.ascontiguousarray(found)


def _count(element: Any, clock: Clock) -> int:
    if isinstance(element, date) and getattr(element, "tzinfo", None) is None:
        return count(element, Clock(clock.unit, None))
    return count(element, clock)


def _typed(spec: TensorSpec, array: Array) -> Array:
    """An array of the declared dtype; floats may change width, integers only where they fit."""
    if spec.dtype in ("str", "bytes"):
        return _texts(spec, array)
    if array.dtype.kind == "O":
        array = _from_objects(spec, array)
    got = dtype_of(array)
    if got == spec.dtype:
        return plain(array)
    if got is None or not _castable(got, spec.dtype):
        raise ModelFault(f"output {spec.name!r}: expected {spec.dtype}, the model returned {got or array.dtype}")
    wanted = NUMPY_TYPES[spec.dtype]
    if spec.dtype in INTEGERS and got != "bool" and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ModelFault(f"output {spec.name!r}: the model returned {got} values that do not fit {spec.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(wanted, order="C")


def _column(spec: TensorSpec, value: Any) -> Column:
    """The value as an array, whatever it was. Raises ModelFault."""
    if _is_odd(value):
        raise ModelFault(f"output {spec.name!r}: the model returned {_type_name(value)}")
    try:
        if isinstance(value, (list, tuple)) and _has_masked(value):
            value = _unmasked(value)
        if isinstance(value, (list, tuple)) and (spec.dtype in ("str", "bytes") or spec.time is not None):
            return Column(_object_array(value))
        column = opened(value)
        if isinstance(column.values, np.ndarray):
            return column
        array = np.asarray(column.values)
        if array.dtype.kind == "f" and spec.dtype in INTEGERS:
            array = np.asarray(column.values, object)  # numpy makes floats of integers that need 64 bits and a sign
        return column._replace(values=array)
    except Exception as error:  # a foreign object's own conversion may raise anything
        raise ModelFault(
            f"output {spec.name!r}: a value of type {type(value).__name__} could not be made an array "
            f"({type(error).__name__})"
        ) from error


def _has_masked(value: Sequence[Any]) -> bool:
    kinds = set(map(type, value))
    deeper = not kinds.isdisjoint((list, tuple))
    return any(map(_is_masked, kinds)) or (
        deeper and any(_has_masked(part) for part in value if isinstance(part, (list, tuple)))
    )


def _unmasked(value: Any) -> Any:
    """Lists with None for each of numpy's masked elements, of which numpy itself would make NaN."""
    if isinstance(value, (list, tuple)):
        return [_unmasked(part) for part in value]
    return None if _is_masked(type(value)) else value


def _is_masked(kind: type) -> bool:
    """Asked by name: importing numpy's masked arrays takes a replica's start as long as a small model."""
    return kind.__name__ == "MaskedConstant"


def _object_array(value: Sequence[Any]) -> Array:
    """Lists of texts as an array of objects: numpy's own would cut trailing NULs from bytes."""
    depth = 0
    first: Any = value
    dims = []
    while isinstance(first, (list, tuple)):
        dims.append(len(first))
        depth += 1
        first = first[0] if first else None
    flat: list[Any] = list(value)
    for _ in range(depth - 1):
        flat = [element for part in flat for element in part]
    array: Array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(dims)


def _castable(got: DType, wanted: DType) -> bool:
    """Whether a model's output of one dtype may stand for another: never float to integer, never anything to bool."""
    if wanted in FLOATS:
        return got in FLOATS or got in INTEGERS
    return wanted in INTEGERS and (got in INTEGERS or got == "bool")


def _from_objects(spec: TensorSpec, array: Array) -> Array:
    """An array of Python's own values, or of numpy's scalars, as a typed one."""
    elements = array.tolist()
    try:
        typed = np.array(elements)
        if typed.dtype.kind in "fO" and spec.dtype in INTEGERS:
            kinds = {type(element) for element in array.reshape(-1).tolist()}
            typed = np.array(elements, NUMPY_TYPES[spec.dtype]) if kinds == {int} else typed
    except OverflowError:
        raise ModelFault(f"output {spec.name!r}: the model returned values that do not fit {spec.dtype}") from None
    except ValueError:
        raise ModelFault(f"output {spec.name!r}: the model returned ragged lists") from None
    if typed.dtype.kind == "O":
        kinds_seen = sorted({type(element).__name__ for element in array.reshape(-1).tolist()})
        raise ModelFault(f"output {spec.name!r}: expected {spec.dtype}, the model returned {', '.join(kinds_seen[:5])}")
    return typed


def _texts(spec: TensorSpec, array: Array) -> Array:
    """An array of `str` or `bytes` objects."""
    flat = array.reshape(-1).tolist()
    wanted: type = str if spec.dtype == "str" else bytes
    for index, element in enumerate(flat):
        if type(element) is not wanted:
            flat[index] = _text(spec, element)
    texts: Array = np.empty(len(flat), object)
    texts[:] = flat
    return texts.reshape(array.shape)


def _text(spec: TensorSpec, element: Any) -> Any:
    if spec.dtype == "str" and isinstance(element, str):
        return str(element)
    if spec.dtype == "bytes" and isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    if spec.dtype == "bytes" and isinstance(element, str):
        return element.encode()
    raise ModelFault(f"output {spec.name!r}: expected {spec.dtype}, the model returned {type(element).__name__}")
