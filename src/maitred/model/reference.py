"""A model against another form of it, such as an export against its original: the same rows, output by output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from maitred.model.example import agreement, shown
from maitred.model.refusals import CannotPack
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS, Array

Arrays = Mapping[str, Array]


class Agreement(NamedTuple):
    """How far one output is from the reference's."""

    output: str
    reference: str
    """The reference's name for it."""
    elements: int
    over: int
    """Elements that differ by more than the output's tolerance; labels and integers have none."""
    worst: float | None
    """The largest absolute difference; None where the elements are no numbers."""
    place: str
    """Where the worst is (the first, where there is no worse and better), and both values; empty where all agree."""

    def to_text(self) -> str:
        """One line to read."""
        name = self.output if self.output == self.reference else f"{self.output} (there {self.reference})"
        numbers = self.worst is not None
        counted = f"{self.over} of {self.elements} elements differ{' by more than the tolerance' if numbers else ''}"
        if not self.over:
            counted = f"all {self.elements} elements agree"
        if not numbers:
            return f"{name}: {counted}{', first' if self.over else ''}{self.place}"
        return f"{name}: {counted}, the worst by {self.worst:.3g}{self.place}"


def restated(sample: Any, signature: Signature) -> Any:
    """An example of one model for another form of it: an only input by its other name, columns as a matrix or back."""
    names = [*signature.inputs]
    if not isinstance(sample, Mapping) or not sample or not sample.keys() - signature.inputs.keys():
        return sample
    if len(names) == 1 and len(sample) == 1:
        return {names[0]: next(iter(sample.values()))}
    if len(names) == 1:
        return {names[0]: np.column_stack([np.asarray(column) for column in sample.values()])}
    matrix = np.asarray(next(iter(sample.values())))
    fits = len(sample) == 1 and matrix.ndim == 2 and matrix.shape[1] == len(names)
    return dict(zip(names, matrix.T, strict=True)) if fits else sample


def compare(signature: Signature, got: Arrays, other: Signature, reference: Arrays) -> list[Agreement]:
    """How the outputs `got` of a model agree with those of its reference, for every output that both have.

    Outputs pair by name, the others by kind (numbers or labels) and shape, in order. Raises `CannotPack` where nothing
    pairs.
    """
    pairs = list(_pairs(signature, got, other, reference))
    if not pairs:
        raise CannotPack(
            f"nothing can be compared with the reference: the model gives {', '.join(signature.outputs)}, the "
            f"reference {', '.join(other.outputs)}, and no two have the same kind and shape"
        )
    return [_agreement(signature.outputs[name], got[name], there, reference[there]) for name, there in pairs]


def _pairs(signature: Signature, got: Arrays, other: Signature, reference: Arrays) -> Iterator[tuple[str, str]]:
    free = {name: spec for name, spec in other.outputs.items() if name not in signature.outputs}
    for name, spec in signature.outputs.items():
        if name in other.outputs:
            yield name, name
            continue
        for there, candidate in free.items():
            kinds = {(one.dtype in FLOATS, one.dtype in ("str", "bytes")) for one in (spec, candidate)}
            if len(kinds) == 1 and got[name].shape == reference[there].shape:
                del free[there]
                yield name, there
                break


def _agreement(spec: TensorSpec, got: Array, there: str, reference: Array) -> Agreement:
    if got.shape != reference.shape:
        raise CannotPack(f"output {spec.name!r}: shape {list(got.shape)}, the reference's is {list(reference.shape)}")
    fine, distance = agreement(spec, reference, got)
    worst = None if distance is None else float(distance.max(initial=0.0))
    place = ""
    if worst or not fine.all():
        at = int(fine.argmin() if distance is None else distance.argmax())
        index = "".join(f"[{i}]" for i in np.unravel_index(at, got.shape))
        mine, theirs = shown(got.reshape(-1)[at]), shown(reference.reshape(-1)[at])
        place = f" at {index or 'the scalar'}: {mine}, there {theirs}"
    return Agreement(spec.name, there, fine.size, int(np.count_nonzero(~fine)), worst, place)
