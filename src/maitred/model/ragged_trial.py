"""A model tried on its example in every bucket before it is packed: what fills rows up must not change its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from maitred.messages import Ragged
from maitred.model import example as examples
from maitred.model.example import Arrays, Example
from maitred.model.forms import parted, whole
from maitred.model.loading import run_as_is
from maitred.model.predictor import Predictor
from maitred.model.ragged import Buckets, cut_arrays
from maitred.model.refusals import CannotPack, LoadRefused
from maitred.model.signature import Signature
from maitred.wire.coerce import from_array, to_array

_ADVICE: Final = (
    "give the model a mask among its inputs that tells it what was filled up, such as "
    'mask="int64[n, {symbol}] default=1 pad=0"; or a pad that it ignores; for rounding, a wider tolerance (rtol= and '
    "atol= of the output)"
)


def check_fill(predictor: Predictor, example: Example) -> None:
    """The example as it came, in the buckets that hold it, and beside rows that need no fill: the same answers.

    Where several sizes have buckets, they are made larger one at a time. Does nothing without buckets. Raises
    `CannotPack` naming the bucket, the output and the worst difference.
    """
    signature = predictor.signature
    buckets = signature.buckets
    own = signature.sizes_of({name: array.shape for name, array in example.inputs.items()})
    if buckets is None or not any(symbol in own for symbol in buckets.sizes):
        return
    plain = parted(signature.special_inputs, example.inputs)
    alone = _unfilled(predictor, example, plain)
    for sizes in _larger(buckets, own):
        filled, ragged = signature.fill({name: from_array(array, name) for name, array in plain.items()}, sizes)
        assert ragged is not None  # one of the sizes is there
        inputs = {name: to_array(tensor) for name, tensor in filled.items()}
        _compare(signature, alone, _answers(predictor, inputs, ragged), ragged, "")
        if signature.row_wise:
            beside = _below(signature, inputs, buckets.stretched(plain, sizes))
            _compare(signature, alone, _answers(predictor, beside, ragged), ragged, " beside longer rows")


def _unfilled(predictor: Predictor, example: Example, plain: Arrays) -> Example:
    """What the model answers to rows that nothing was added to; what it answered before, if it takes buckets only."""
    try:
        return Example(example.inputs, whole(predictor.signature.special_outputs, run_as_is(predictor, plain)))
    except Exception:  # a model of fixed shapes may refuse others in any way it likes: that is what buckets are for
        return example


def _larger(buckets: Buckets, own: Mapping[str, int]) -> list[dict[str, int]]:
    """The buckets that hold the example: the smallest sizes, and each larger one of a symbol beside the smallest."""
    held = {
        symbol: [size for size in sizes if size >= own[symbol]]
        for symbol, sizes in buckets.sizes.items()
        if symbol in own
    }
    least = {symbol: sizes[0] for symbol, sizes in held.items()}
    return [least, *({**least, symbol: size} for symbol, sizes in held.items() for size in sizes[1:])]


def _answers(predictor: Predictor, inputs: Arrays, ragged: Ragged) -> Arrays:
    try:
        return run_as_is(predictor, inputs)
    except LoadRefused:
        raise
    except Exception as error:  # the model's own code may raise anything
        raise CannotPack(
            f"the model fails on rows that are filled up to {ragged.bucket}, or as long as that: "
            f"{type(error).__name__}: {error}"
        ) from error


def _below(signature: Signature, upper: Arrays, lower: Arrays) -> Arrays:
    """The rows of both; inputs without rows are the upper ones'."""
    return {
        name: array if name in signature.shared else np.concatenate([array, lower[name]])
        for name, array in upper.items()
    }


def _compare(signature: Signature, wanted: Example, answers: Arrays, ragged: Ragged, where: str) -> None:
    """The answers of the first rows, cut back."""
    first = answers
    if signature.row_wise:
        first = {name: array[: wanted.rows(signature)] for name, array in answers.items()}
    got = whole(signature.special_outputs, cut_arrays(first, ragged))
    if differing := examples.differences(wanted, got, signature):
        symbol = ragged.bucket.partition("=")[0]
        said = f"rows that are filled up to {ragged.bucket}{where} get other answers than alone"
        raise CannotPack(f"{said} ({_ADVICE.format(symbol=symbol)}): {'; '.join(differing)}")
