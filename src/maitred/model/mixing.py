"""Whether a model takes each row for itself, tried on a few made-up rows: no caller may get what belongs to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from maitred.clock import Clock, monotonic
from maitred.model import example as examples
from maitred.model.example import Arrays, Example
from maitred.model.notation import TensorSpec
from maitred.model.predictor import Predictor, WrongCount
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, Array, to_array

ROWS: Final = 4
"""So many rows are made up: enough to be out of order."""

LONGEST_SECONDS: Final = 3.0
"""After so long no further run is begun: a start must not wait for a slow model's check."""

_SPAN: Final = 4
"""How far made-up numbers go from the allowed one that is nearest to zero."""
_STEP: Final = (math.sqrt(5) - 1) / 2
"""Multiples of the golden ratio, without their whole parts: spread evenly, in no order, and never the same."""
_STEP_INSIDE: Final = math.sqrt(2) - 1
"""Between the elements of a row: it only turns the circle on which those of other rows lie."""
_MIXED: Final = np.array([2, 0, 3, 1])
_WORDS: Final = ("made/up", "4 / 5", "a few/more words", "two/", "Ü/ß", "none/of these", "no/", "8/more")
"""No names of files that a model could make in passing: each has a folder that there is not."""
_ROUNDING: Final = 1e-4
"""How far, relative to an output's largest value, the arithmetic of another batch size may lead."""
_SPREAD: Final = 0.05
"""What part of the difference between rows counts as rounding too: quantized models round by the batch."""


def advice(signature: Signature) -> str:
    """What is wrong with a model whose rows influence each other, and what to do."""
    other = f"another symbol than {signature.row_symbol!r} in the outputs' shapes; for rounding, a wider tolerance"
    return f"rows influence each other (if that is meant: declare {other})"


def check_apart(
    predictor: Predictor, ask: Callable[[Arrays], Arrays], max_batch_rows: int, clock: Clock = monotonic
) -> str:
    """Made-up rows together, in other orders and each alone must get the same answers; a note where that is not known.

    Does nothing for models with side effects, without rows, of one row at a time, and for those that answer
    differently each time. Rounding is forgiven more generously than the signature's tolerances say, for nobody chose
    these rows. Raises `CannotLoad` naming the output and the worst difference, or `WrongCount`.
    """
    signature, traits = predictor.signature, predictor.traits
    rows = min(ROWS, max_batch_rows, traits.max_batch_rows or ROWS)
    if not signature.row_wise or traits.side_effects or rows < 2:
        return ""
    inputs = made_up(signature, rows)
    same = np.arange(rows)
    begun = clock()
    try:
        first = ask(inputs)
        for index in _orders(rows):
            if clock() - begun > LONGEST_SECONDS:
                return "not checked whether rows influence each other: it takes too long; pack it with an example"
            found = _differences(signature, first, index, ask(examples.take_rows(inputs, signature, index)))
            if not found:
                continue
            if np.array_equal(index, same) or _differences(signature, first, same, ask(inputs)):
                return ""  # the same rows, and another answer: it repeats nothing
            raise CannotLoad(f"{advice(signature)}: {'; '.join(found)}")
    except (CannotLoad, WrongCount):
        raise
    except Exception as error:  # the model's own code may raise anything
        refused = f"it refuses made-up rows ({type(error).__name__})"
        return f"not checked whether rows influence each other: {refused}; pack it with an example"
    return ""


def _orders(rows: int) -> list[Array]:
    """The same again, backwards, in no order, and each row alone."""
    same = np.arange(rows)
    return [same, same[::-1], _MIXED[rows > _MIXED], *same[:, None]]


def _differences(signature: Signature, all_rows: Arrays, index: Array, got: Mapping[str, Array]) -> list[str]:
    """What differs from these rows' answers by more than rounding explains: one line per output."""
    apart, found = {}, {}
    for name, want in examples.take_rows(all_rows, signature, index).items():
        spec = signature.outputs[name]
        want, answer = _in_common(signature, spec, want, got[name])
        if not _near(spec, want, answer, all_rows[name]):
            apart[name], found[name] = want, answer
    return examples.differences(Example({}, apart), found, signature) if apart else []


def _in_common(signature: Signature, spec: TensorSpec, want: Array, got: Array) -> tuple[Array, Array]:
    """Both, without what only the longer one has where the model chose the size: often the longest row's."""
    told = {size for one in signature.inputs.values() for size in one.shape}
    axes = zip(spec.shape, want.shape, got.shape, strict=True)
    open_ones = (isinstance(size, str) and size not in told for size in spec.shape)
    part = tuple(slice(min(axis[1:]) if chosen else None) for axis, chosen in zip(axes, open_ones, strict=True))
    return want[part], got[part]


def _near(spec: TensorSpec, want: Array, got: Array, all_rows: Array) -> bool:
    """Whether floats are as near as another order of adding them up, or another rounding of them, may lead."""
    if spec.dtype not in FLOATS or got.shape != want.shape:
        return False
    wide = all_rows.astype(np.float64)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    rtol, atol = spec.tolerance
    spread = float(np.ptp(finite, axis=0).max(initial=0.0)) if len(finite) else 0.0
    allowed = atol + max(rtol, _ROUNDING) * float(np.abs(finite).max(initial=0.0)) + _SPREAD * spread
    near = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=0.0, atol=allowed, equal_nan=True)
    return bool(near.all())


# --- rows ---------------------------------------------------------------------------------------------------------


def made_up(signature: Signature, rows: int) -> Arrays:
    """Inputs whose rows differ, in no order, and that `check` accepts. Those with a default keep it beside others."""
    usual = signature.example(rows)
    sizes = signature.sizes_of({name: tensor.shape for name, tensor in usual.items()})
    own = [spec for spec in signature.inputs.values() if spec.default is None and spec.name not in signature.shared]
    varied = {spec.name for spec in own} or signature.inputs.keys() - signature.shared
    return {
        name: _different(spec, spec.sized(sizes), at) if name in varied else to_array(usual[name])
        for at, (name, spec) in enumerate(signature.inputs.items())
    }


def _different(spec: TensorSpec, shape: tuple[int, ...], at: int) -> Array:
    """Allowed values, none like its neighbours where there are several; of the `at`-th input, for these differ too."""
    width = math.prod(shape[1:])
    places = (np.arange(shape[0])[:, None] + 1) * _STEP + (np.arange(width) + at) * _STEP_INSIDE
    parts = np.mod(places, 1.0).reshape(-1)
    if spec.categories is not None:
        return _chosen(spec, spec.categories, parts, shape)
    if spec.dtype in ("str", "bytes"):
        words = _WORDS if spec.dtype == "str" else tuple(word.encode() for word in _WORDS)
        return _chosen(spec, words, parts, shape)
    if spec.dtype == "bool":
        return np.array(parts < 0.5).reshape(shape)
    low, high = _range(spec)
    if spec.dtype in FLOATS:
        return np.array(low + parts * (high - low), NUMPY_TYPES[spec.dtype]).reshape(shape)
    limits = np.iinfo(NUMPY_TYPES[spec.dtype])
    low, high = max(math.ceil(low), int(limits.min)), min(math.floor(high), int(limits.max))
    counts = np.floor(parts * (high - low + 1)).astype(np.int64).tolist()
    return np.array([low + count for count in counts], NUMPY_TYPES[spec.dtype]).reshape(shape)


def _chosen(spec: TensorSpec, values: Sequence[Any], parts: Array, shape: tuple[int, ...]) -> Array:
    chosen: Array = np.empty(len(parts), NUMPY_TYPES[spec.dtype])
    chosen[:] = [values[int(part * len(values))] for part in parts.tolist()]
    return chosen.reshape(shape)


def _range(spec: TensorSpec) -> tuple[Any, Any]:
    """Allowed numbers near zero, the least and the most."""
    low, high = spec.minimum, spec.maximum
    nearest = max(0, low if low is not None else 0)
    if high is None or nearest < high:
        return nearest, min(nearest + _SPAN, high) if high is not None else nearest + _SPAN
    return max(high - _SPAN, low) if low is not None else high - _SPAN, high
