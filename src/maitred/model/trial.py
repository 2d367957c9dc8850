"""A model tried on its example before it is packed: it answers, repeats itself, and takes each row for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model.asking import tensor_given
from maitred.model.example import Arrays, Example
from maitred.model.forms import whole, whole_tensor
from maitred.model.loading import run
from maitred.model.predictor import Predictor
from maitred.model.ragged_trial import check_fill
from maitred.model.refusals import CannotPack, LoadRefused
from maitred.model.signature import Signature
from maitred.wire.coerce import to_array


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
    return example


def inputs_of(signature: Signature, given: Any) -> Arrays:
    """The example as the arrays that a request would give. Raises `CannotPack` naming the input."""
    named = _by_name(signature, given)
    try:
        tensors = {}
        for name, value in named.items():
            if name not in signature.inputs:
                raise signature.unknown_input(name)
            spec = signature.inputs[name]
            tensors[name] = tensor_given(spec, value)
        fit = signature.fit(tensors)
    except Malformed as error:
        raise CannotPack(f"the example does not fit the signature: {error.message}") from error
    return {name: whole_tensor(signature.inputs[name], tensor) for name, tensor in fit.items()}


def _by_name(signature: Signature, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "columns") and len(signature.inputs) > 1:
        return {str(column): given[column] for column in given.columns if str(column) in signature.inputs}
    if len(signature.inputs) == 1:
        return {next(iter(signature.inputs)): given}
    raise CannotPack(f"give the example as a mapping or data frame of {', '.join(signature.inputs)}")


def answers(predictor: Predictor, inputs: Arrays) -> Arrays:
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
    if not signature.row_wise or rows < 2:
        return
    for index in (np.arange(rows)[::-1], np.array([0])):
        inputs = examples.take_rows(example.inputs, signature, index)
        wanted = Example(inputs, examples.take_rows(example.outputs, signature, index))
        advice = f"another symbol than {signature.row_symbol!r} in the outputs' shapes; for rounding, a wider tolerance"
        said = f"rows influence each other (if that is meant: {advice})"
        _refuse(said, wanted, answers(predictor, inputs), signature)


def _refuse(what: str, wanted: Example, got: Arrays, signature: Signature) -> None:
    if differing := examples.differences(wanted, got, signature):
        raise CannotPack(f"{what}: {'; '.join(differing)}")
