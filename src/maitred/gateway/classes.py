"""The classification extension: the best classes of each row, as `value:index[:label]`, best first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.signature import TensorSpec
from maitred.wire.coerce import FLOATS, to_array

_NO_NUMBERS: Final = frozenset(("bool", "str", "bytes"))


def check_classes(spec: TensorSpec, count: object) -> int:
    """`count`, where it is a count >= 1 and the output holds numbers. Raises Malformed naming the output."""
    if type(count) is not int or not 1 <= count < 2**31:
        raise Malformed(f"output {spec.name!r}: classification must be a whole number >= 1")
    if spec.dtype in _NO_NUMBERS:
        raise Malformed(f"output {spec.name!r}: classification needs an output of numbers, this one is {spec.datatype}")
    if spec.nullable or spec.time is not None:
        raise Malformed(f"output {spec.name!r}: classification is not for times or elements that may be missing")
    return count


def classes(tensor: Tensor, count: int, labels: tuple[str, ...] | None, row_wise: bool) -> Tensor:
    """The `count` (or all, where there are fewer) best elements of each row: largest first, equal ones by their index,
    NaN last. A row is what follows the row axis, or the last axis of a model that is not row-wise.
    """
    array = to_array(tensor)
    if row_wise:
        outer: tuple[int, ...] = array.shape[:1]
    else:
        outer = array.shape[:-1]
    rows = int(np.prod(outer, dtype=np.int64))
    width = int(np.prod(array.shape[len(outer) :], dtype=np.int64))
    array = array.reshape(rows, width)
    keep = min(count, width)
    order = _order(array, tensor.dtype in FLOATS)[:, :keep]
    named = labels if labels is not None and len(labels) == width else None
    texts = [_text(array[row, index], int(index), named) for row in range(rows) for index in order[row]]
    return Tensor("bytes", (*outer, keep), texts)


def _order(array: npt.NDArray[Any], floats: bool) -> Any:
    """Per row the indexes of its elements, largest first."""
    if floats:
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide = array.astype(np.float64)
        return np.argsort(-wide, axis=1, kind="stable")  # argsort puts NaN last
    reverse = np.argsort(array[:, ::-1], axis=1, kind="stable")[:, ::-1]
    return np.subtract(array.shape[1] - 1, reverse)


def _text(value: Any, index: int, labels: tuple[str, ...] | None) -> bytes:
    text = f"{value!s}:{index}"
    return (f"{text}:{labels[index]}" if labels is not None else text).encode()
