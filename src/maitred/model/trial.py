"""A model tried on its example before it is packed: it answers, repeats itself, and takes each row for itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model.asking import tensor_given
from maitred.model.example import Arrays, Example
from maitred.model.forms import whole, whole_tensor
from maitred.model.loading import run
from maitred.model.mixing import ROWS, advice, check_apart
from maitred.model.predictor import Predictor, WrongCount
from maitred.model.ragged_trial import check_fill
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, to_array


def tried(predictor: Predictor, given: Any, expected: Mapping[str, Any] | None, repeatable: bool) -> Example | None:
    """The example to keep: checked, run twice, and run in another order. None where none was given and none works."""
    if given is None:
        return _made_up(predictor, repeatable)
    inputs = inputs_of(predictor.signature, given)
    outputs = answers(predictor, inputs)
    found = Example(inputs, outputs)
    if expected is not None:
        wanted = Example(inputs, {name: np.asanyarray(value) for name, value in expected.items()})
        _refuse("the model does not give the expected answers", wanted, outputs, predictor.signature)
    if not repeatable:
        return Example(inputs, {})
    again = answers(predictor, inputs)
    said = "the model answers the same example differently each time (pack it with repeatable=False)"
    _refuse(said, found, again, predictor.signature)
    _check_rows(predictor, found)
    check_fill(predictor, found)
    return found


def _made_up(predictor: Predictor, repeatable: bool) -> Example | None:
    """One row made up from the signature, as a check for every later load; None if the model cannot answer it."""
    signature = predictor.signature
    travelling = {name: to_array(tensor) for name, tensor in signature.example(1).items()}
    made = whole(signature.special_inputs, travelling)
    try:
        outputs = answers(predictor, made)
        example = Example(made, outputs if repeatable else {})
        if examples.differences(example, answers(predictor, made), predictor.signature):
            return None
    except CannotPack:
        return None
    _check_made_up(predictor)
    return example


def inputs_of(signature: Signature, given: Any) -> Arrays:
    """The example as the arrays that a request would give. Raises `CannotPack` naming the input.

    Unlike a caller's, its numbers need not have the input's width: they are the author's data, as it lies there.
    """
    named = _by_name(signature, given)
    try:
        tensors = {}
        for name, value in named.items():
            if name not in signature.inputs:
                raise signature.unknown_input(name)
            spec = signature.inputs[name]
            tensors[name] = tensor_given(spec, _as_numbers(spec, value))
        fit = signature.fit(tensors)
    except Malformed as error:
        raise CannotPack(f"the example does not fit the signature: {error.message}") from error
    return {name: whole_tensor(signature.inputs[name], tensor) for name, tensor in fit.items()}


def _as_numbers(spec: TensorSpec, value: Any) -> Any:
    """An array, column or frame of numbers for a float input as plain values, which follow the rules of JSON."""
    frame = hasattr(value, "iloc") and value.ndim == 2
    if spec.dtype not in FLOATS or not (frame or hasattr(value, "dtype")) or hasattr(type(value), "nnz"):
        return value
    kinds = [*value.dtypes] if frame else [value.dtype]
    plain = all(isinstance(kind, np.dtype) and kind.kind in "iuf" for kind in kinds)
    if not plain or all(kind == NUMPY_TYPES[spec.dtype] for kind in kinds) or np.ma.isMaskedArray(value):
        return value
    return value.to_numpy(object).tolist() if frame else value.tolist()


def _by_name(signature: Signature, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "columns") and len(signature.inputs) > 1:
        return {str(column): given[column] for column in given.columns if str(column) in signature.inputs}
    if len(signature.inputs) == 1:
        return {next(iter(signature.inputs)): given}
    raise CannotPack(f"give the example as a mapping or data frame of {', '.join(signature.inputs)}")


def answers(predictor: Predictor, inputs: Arrays) -> Arrays:
    """What the model answers to its example. Raises `CannotPack` with what it raised."""
    try:
        return run(predictor, inputs)
    except LoadRefused:
        raise
    except Exception as error:  # the model's own code may raise anything
        raise CannotPack(f"the model fails on its example: {type(error).__name__}: {error}") from error


def _check_rows(predictor: Predictor, example: Example) -> None:
    """Rows must not influence each other: the same rows backwards, and the first alone, must give the same answers.

    Raises `CannotPack` naming the output and the worst difference.
    """
    signature = predictor.signature
    rows = example.rows(signature)
    if not signature.row_wise:
        return
    if rows < 2:
        _check_made_up(predictor)
        return
    for index in (np.arange(rows)[::-1], np.array([0])):
        inputs = examples.take_rows(example.inputs, signature, index)
        wanted = Example(inputs, examples.take_rows(example.outputs, signature, index))
        _refuse(advice(signature), wanted, answers(predictor, inputs), signature)


def _check_made_up(predictor: Predictor) -> None:
    """The same with made-up rows, where there are none to try it on; those that the model refuses show nothing."""
    try:
        check_apart(predictor, functools.partial(run, predictor), ROWS)
    except (CannotLoad, WrongCount) as error:
        raise CannotPack(error.message) from error


def _refuse(what: str, wanted: Example, got: Arrays, signature: Signature) -> None:
    if differing := examples.differences(wanted, got, signature):
        raise CannotPack(f"{what}: {'; '.join(differing)}")
