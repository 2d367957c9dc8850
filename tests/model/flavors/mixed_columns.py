"""A signature of every kind of column, and rows for it, as tabular models get them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from maitred.model.flavors.matrix import Column, arrange
from maitred.model.signature import Signature

OUTPUTS = {"y": "float64[n]"}


def columns(inputs: dict[str, str], names: Any = None, count: int | None = None) -> list[Column]:
    return arrange(Signature(inputs, OUTPUTS), names, count)


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


MIXED = {
    "age": "int64[n]", "income": "float64[n] nullable", "half": "float16[n]", "brain": "bfloat16[n]",
    "country": "str[n] nullable", "plan": 'str[n] categories=["pro", "free"]', "size": "int64[n] categories=[3, 1]",
    "kids": "int32[n] nullable", "member": "bool[n] nullable", "since": 'int64[n] time="ms"',
    "seen": 'int64[n] nullable time="s" zone="UTC"',
}  # fmt: skip
ROWS: dict[str, Any] = {
    "age": np.array([20, 30, 40]),
    "income": np.array([1.5, np.nan, -2.0]),
    "half": np.array([0.5, 1.0, 2.0], np.float16),
    "brain": np.array([0.5, 1.0, 2.0], ml_dtypes.bfloat16),
    "country": objects("de", None, "sé"),
    "plan": objects("free", "pro", "??"),
    "size": np.array([1, 2, 3]),
    "kids": np.ma.MaskedArray(np.array([1, 2, 3], np.int32), [False, True, False]),
    "member": np.ma.MaskedArray([True, False, True], [False, False, True]),
    "since": np.array([0, 1, 2], "M8[ms]"),
    "seen": np.array([0, "NaT", 2], "M8[s]"),
}
for _array in ROWS.values():
    _array.flags.writeable = False
