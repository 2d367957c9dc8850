"""How the inputs of one batch become the pandas DataFrame that a scikit-learn estimator was fitted on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from maitred.model.flavors.libraries import needs
from maitred.model.flavors.matrix import Categories, Change, Coder, Column, known_categories, number_type
from maitred.model.refusals import CannotLoad
from maitred.model.signature import TensorSpec
from maitred.wire.coerce import FLOATS, Array


class Frame:
    """A pandas DataFrame in the order of fitting, of the dtypes that pandas gives such columns.

    Numbers as numpy has them; `Int64`, `boolean` and their like where the input is nullable; `str`; `category` with the
    known categories in their order; `datetime64`, in UTC where the input says so. Text of the inputs in `as_objects`
    stays Python's own, None for missing (a model fitted on such columns tells None from NaN).
    """

    def __init__(self, columns: Sequence[Column], as_objects: Iterable[str] = ()) -> None:
        """Raises `MissingExtra` without pandas."""
        with needs("sklearn", "pandas", extra="pandas"):
            import pandas
        self._pandas = pandas
        self._from_blocks = _block_builder()
        self.columns = pandas.Index([feature for column in columns for feature in column.features])
        """The names of the features, shared by all the frames."""
        self._numbers: dict[np.dtype[Any], list[tuple[str, bool]]] = {}
        places: dict[np.dtype[Any], list[int]] = {}
        self._arrays: list[tuple[str, Change, Any]] = []
        known, kept = known_categories(columns), frozenset(as_objects)
        at = 0
        for column in columns:
            make = self._array_maker(column, known, kept)
            if make is not None:
                self._arrays.append((column.name, make, np.array([at])))
            else:
                dtype = number_type(column.spec, False)
                self._numbers.setdefault(dtype, []).append((column.name, len(column.spec.shape) == 2))
                places.setdefault(dtype, []).extend(range(at, at + column.width))
            at += column.width
        self._places = {dtype: np.array(listed) for dtype, listed in places.items()}

    def __call__(self, inputs: Mapping[str, Array]) -> Any:
        """The DataFrame of one batch."""
        blocks: list[tuple[Any, Any]] = []
        for dtype, members in self._numbers.items():
            parts = [inputs[name].T if wide else inputs[name] for name, wide in members]
            if any(wide for _, wide in members):
                block = np.concatenate([part if part.ndim == 2 else part[None] for part in parts], dtype=dtype)
            else:
                block = np.array(parts, dtype)
            blocks.append((block, self._places[dtype]))
        blocks += [(make(inputs[name]), place) for name, make, place in self._arrays]
        rows = len(next(iter(inputs.values())))
        return self._from_blocks(blocks, self._pandas.RangeIndex(rows), self.columns)

    def _array_maker(self, column: Column, known: Categories, kept: frozenset[str]) -> Change | None:
        """What makes an input a column of its own; None for numbers, of which all of one dtype are one block."""
        spec, pandas = column.spec, self._pandas
        if column.name in known:
            return _categorical(pandas, known[column.name])
        single = spec.dtype == "str" or spec.time is not None or (spec.nullable and spec.dtype not in FLOATS)
        if not single:
            return None
        if column.width != 1:
            raise CannotLoad(f"input {column.name!r} holds several features, which must be plain numbers then")
        if spec.dtype == "str":
            return _objects if column.name in kept else _texts(pandas)
        if spec.time is not None:
            return _times(pandas, spec)
        made = pandas.arrays.BooleanArray if spec.dtype == "bool" else pandas.arrays.IntegerArray
        return lambda values: made(np.ma.getdata(values).reshape(-1), np.ma.getmaskarray(values).reshape(-1), copy=True)


def _categorical(pandas: Any, categories: Sequence[Any]) -> Change:
    coder, dtype = Coder(categories), pandas.CategoricalDtype(pandas.Index(list(categories)))
    return lambda values: pandas.Categorical.from_codes(coder.codes(values), dtype=dtype, validate=False)


def _objects(values: Array) -> Array:
    return values.reshape(1, -1).copy()


def _texts(pandas: Any) -> Change:
    """The dtype `str` of pandas 3, with NaN for None; before it, objects."""
    if int(pandas.__version__.partition(".")[0]) < 3:
        return _objects_with_nan
    dtype = pandas.StringDtype("python", na_value=np.nan)  # Arrow's storage takes four times as long to fill
    made = dtype.construct_array_type()
    return lambda values: made._from_sequence(values.reshape(-1), dtype=dtype, copy=True)


def _objects_with_nan(values: Array) -> Array:
    texts = np.array(values).reshape(1, -1)
    texts[texts == None] = np.nan  # noqa: E711  numpy compares each element
    return texts


def _times(pandas: Any, spec: TensorSpec) -> Change:
    if spec.zone is None:
        return lambda values: values.reshape(1, -1).copy()
    dtype = pandas.DatetimeTZDtype(spec.time, spec.zone)
    made = dtype.construct_array_type()
    return lambda values: made._from_sequence(values.reshape(-1), dtype=dtype, copy=True)


def _block_builder() -> Callable[[Any, Any, Any], Any]:
    """pandas' own way to make a DataFrame of ready blocks, an eighth of the time of its constructor."""
    try:
        from pandas.api.internals import create_dataframe_from_blocks
    except ImportError:  # before pandas 3
        return _assembled
    build: Callable[[Any, Any, Any], Any] = create_dataframe_from_blocks
    return build


def _assembled(blocks: list[tuple[Any, Any]], index: Any, names: Any) -> Any:
    """As `create_dataframe_from_blocks`, for a pandas without it."""
    import pandas

    by_place: dict[int, Any] = {}
    for block, places in blocks:
        rows = block if getattr(block, "ndim", 1) == 2 else [block]
        by_place.update(zip(places.tolist(), rows, strict=True))
    frame = pandas.DataFrame({at: by_place[at] for at in sorted(by_place)}, index=index, copy=False)
    frame.columns = names
    return frame
