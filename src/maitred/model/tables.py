"""Tables of pandas and Arrow as a model's inputs, and its outputs as such tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from maitred.errors import Malformed
from maitred.model.signature import Signature, TensorSpec
from maitred.wire import arrow
from maitred.wire.coerce import NUMPY_TYPES, Array
from maitred.wire.headings import check_spelling

T = TypeVar("T")


def columns(table: Any, signature: Signature) -> dict[str, Any]:
    """The table's columns that the model reads, as values that `from_python` takes."""
    if not signature.row_wise:
        raise Malformed("this model does not answer row by row, so it takes no table; use predict")
    names = _column_names(table)
    missing = [name for name, spec in signature.inputs.items() if name not in names and not spec.optional]
    if missing:
        found = ", ".join(map(str, names))
        raise Malformed(f"the table lacks the columns {', '.join(map(repr, missing))}; it has: {found}")
    check_spelling([str(name) for name in names], signature.inputs)
    chosen = {name: table[name] for name in signature.inputs if name in names}
    if len(table) == 0:  # empty lists do not say how long they would have been
        chosen.update({name: _no_rows(signature.inputs[name]) for name in chosen})
    return chosen


def _no_rows(spec: TensorSpec) -> Array:
    return np.empty([0, *(0 if isinstance(size, str) else size for size in spec.shape[1:])], NUMPY_TYPES[spec.dtype])


def _column_names(table: Any) -> list[Any]:
    if hasattr(table, "column_names"):
        return list(table.column_names)
    if hasattr(table, "columns") and hasattr(table, "index"):
        return list(table.columns)
    raise Malformed(f"a table is a pandas DataFrame or an Arrow table, not {type(table).__name__}")


def table_like(table: T, answer: Mapping[str, Array], signature: Signature) -> T:
    """The answer as a table of the same kind; what is missing is so in the libraries' own way."""
    made: Any
    specs = signature.outputs
    if hasattr(table, "column_names"):
        columns = {name: arrow.made(array, specs[name].dtype, specs[name].zone) for name, array in answer.items()}
        made = type(table).from_pydict(columns)  # type: ignore[attr-defined]
        return made  # type: ignore[no-any-return]
    import pandas

    made = pandas.DataFrame(
        {name: _pandas(array, specs[name]) for name, array in answer.items()},
        index=table.index,  # type: ignore[attr-defined]
    )
    return made  # type: ignore[no-any-return]


def _pandas(array: Array, spec: TensorSpec) -> Any:
    """What becomes a column of a data frame: of a nullable type where elements may be missing."""
    import pandas

    if array.ndim > 1:
        return [row.tolist() for row in array] if spec.masked else list(array)
    if spec.masked and spec.dtype == "str":
        return pandas.array(array, dtype="string")
    if spec.masked:
        kind = pandas.arrays.BooleanArray if spec.dtype == "bool" else pandas.arrays.IntegerArray
        masked: Any = array
        return kind(masked.data, np.ma.getmaskarray(array))
    if spec.zone is None:
        return array
    times: Any = pandas.array(array)
    return times.tz_localize(spec.zone)
