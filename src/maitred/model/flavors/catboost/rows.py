"""How the inputs of one batch become a CatBoost pool: a matrix of floats, or of objects where some are no numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from maitred.model.flavors import derived
from maitred.model.flavors.catboost.signature import Features, check_input
from maitred.model.flavors.matrix import Matrix, arrange
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import INTEGERS, Array

_Change = Callable[[Array], Any]
_WHOLE: Final = frozenset({"bool", *INTEGERS})
_COLUMN_MAJOR: Final = "F"
"""The order of floats that the library takes as they lie, in half the time of any other."""


class Rows:
    """Makes pools of what a signature says. Raises `CannotLoad` for one that these features cannot be."""

    def __init__(self, features: Features, signature: Signature, options: Mapping[str, Any], threads: int) -> None:
        self._settings: dict[str, Any] = {"thread_count": threads}
        self._matrix: Matrix | None = None
        self._cells: list[tuple[str, _Change | None]] = []
        if features.numeric:
            names = features.names if features.named else None
            self._matrix = Matrix(arrange(signature, names, len(features.names)))
            return
        if set(features.names) != signature.inputs.keys():
            raise CannotLoad(f"the model was fitted on {[*features.names]}, the signature has {[*signature.inputs]}")
        missing = options.get("missing")
        if missing is not None and not isinstance(missing, str):
            raise CannotLoad("missing must be the text that stands for a missing category")
        for at, name in enumerate(features.names):
            spec = signature.inputs[name]
            check_input(features, at, spec, options)
            if at in features.embeddings:
                change: _Change | None = _vectors
            elif at in features.categorical and spec.nullable:
                change = _with_missing(str(missing))
            elif at in features.categorical | features.texts:
                change = None if len(spec.shape) == 1 else _flat
            else:
                change = _numbers(spec, signature)
            self._cells.append((name, change))
        kinds = {"cat": features.categorical, "text": features.texts, "embedding": features.embeddings}
        self._settings |= {f"{kind}_features": sorted(places) for kind, places in kinds.items() if places}

    def __call__(self, inputs: Mapping[str, Array], pool: Any) -> Any:
        """The batch as a `pool`, which is the library's class."""
        if self._matrix is not None:
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, as the library has it
                return pool(self._matrix(inputs).astype(np.float32, order=_COLUMN_MAJOR), **self._settings)
        rows = len(next(iter(inputs.values())))
        cells = np.empty((len(self._cells), rows), object)
        for at, (name, change) in enumerate(self._cells):
            cells[at] = inputs[name] if change is None else change(inputs[name])
        return pool(cells.T, **self._settings)


def _numbers(spec: TensorSpec, signature: Signature) -> _Change | None:
    """What makes plain numbers of an input; None where it has them."""
    plain = spec.dtype in ("float32", "float64") or (spec.dtype in _WHOLE and not spec.nullable and spec.time is None)
    if plain and len(spec.shape) == 1:
        return None
    table = derived([spec], [*signature.outputs.values()])
    matrix = Matrix(arrange(table, [spec.name]))
    return lambda values: matrix({spec.name: values})[:, 0]


def _flat(values: Array) -> Array:
    return values.reshape(-1)


def _vectors(values: Array) -> Array:
    """Each row's embedding as one object, which the library wants to be writeable."""
    return np.fromiter(values.copy(), object, len(values))


def _with_missing(text: str | None) -> _Change:
    """Categories with the text that stands for missing ones."""

    def filled(values: Array) -> Array:
        masked = np.ma.isMaskedArray(values)
        cells: Array = np.ma.getdata(values).reshape(-1).astype(object)
        cells[np.ma.getmaskarray(values).reshape(-1) if masked else cells == None] = text  # noqa: E711  each element
        return cells

    return filled
