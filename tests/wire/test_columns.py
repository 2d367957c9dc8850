"""Columns of pandas, Arrow, scipy, and masked arrays: their values, exactly, or a refusal that names what is wrong."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.wire import arrow
from maitred.wire.coerce import from_python, to_array
from maitred.wire.columns import MAX_DENSE
from maitred.wire.missing import Partial
from maitred.wire.times import Clock

BIG = 2**63 - 1


def seen(tensor: Tensor) -> list[Any]:
    """The elements, None for each that is missing."""
    flat = to_array(tensor).reshape(-1).tolist()
    there = tensor.valid if isinstance(tensor, Partial) else b"\1" * len(flat)
    assert len(there) == len(flat)
    return [value if one else None for value, one in zip(flat, there, strict=True)]


MISSING: list[tuple[str, Any, list[Any]]] = [
    ("int64", [BIG, None, -BIG - 1], [BIG, None, -BIG - 1]),
    ("int64", np.ma.array([BIG, 5, 3], mask=[0, 1, 0]), [BIG, None, 3]),
    ("int64", pd.array([BIG, None, 3], "Int64"), [BIG, None, 3]),
    ("int64", pd.Series([BIG, None, 3], dtype="Int64"), [BIG, None, 3]),
    ("int64", pd.Series([BIG, pd.NA, 3], dtype="int64[pyarrow]"), [BIG, None, 3]),
    ("int64", pd.Series([BIG, None, 3], dtype=object), [BIG, None, 3]),
    ("int64", pd.Series([7, None, 7], dtype=pd.CategoricalDtype(pd.Index([9, 7]))), [7, None, 7]),
    ("int64", pa.array([BIG, None, 3]), [BIG, None, 3]),
    ("int64", pa.chunked_array([[BIG], [None, 3]]), [BIG, None, 3]),
    ("int64", pa.array([BIG, None, 3]).dictionary_encode(), [BIG, None, 3]),
    ("int64", pa.array([[BIG, None], [1, 2]]), [BIG, None, 1, 2]),
    ("int64", pa.nulls(3), [None, None, None]),
    ("int64", pa.array([1, None, 3], pa.int8()), [1, None, 3]),
    ("uint64", pd.array([2**64 - 1, None], "UInt64"), [2**64 - 1, None]),
    ("uint64", pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
    ("bool", [True, None], [True, None]),
    ("bool", pd.array([True, None], "boolean"), [True, None]),
    ("bool", pa.array([True, None]), [True, None]),
    ("bool", np.ma.array([[True], [False]], mask=[[0], [1]]), [True, None]),
    ("str", ["a", None, "", "c\0"], ["a", None, "", "c\0"]),
    ("str", pd.Series(["a", None, "c"]), ["a", None, "c"]),
    ("str", pd.Series(["a", None, "c"], dtype="string"), ["a", None, "c"]),
    ("str", pd.Series(["a", float("nan"), "c"], dtype=object), ["a", None, "c"]),
    ("str", pd.Series(["a", None, "a"], dtype="category"), ["a", None, "a"]),
    ("str", pa.array(["a", None, "c"]), ["a", None, "c"]),
    ("str", pa.array(["a", None, "c"], pa.large_string()), ["a", None, "c"]),
    ("str", pa.array(["a", None, "c"], pa.string_view()), ["a", None, "c"]),
    ("str", pa.chunked_array([["a", None], ["b", "a"]]).dictionary_encode(), ["a", None, "b", "a"]),
]


@pytest.mark.parametrize(("dtype", "value", "wanted"), MISSING)
def test_missing_elements(dtype: Any, value: Any, wanted: list[Any]) -> None:
    tensor = from_python("x", dtype, value, nullable=True)
    assert tensor.dtype == dtype and seen(tensor) == wanted
    blank = {"bool": False, "str": ""}.get(dtype, 0)
    flat = to_array(tensor).reshape(-1).tolist()
    assert all(value == blank for value, there in zip(flat, wanted, strict=True) if there is None)
    with pytest.raises(Malformed, match=r"^input 'x': the missing value at data(\[\d\])+ is not allowed$"):
        from_python("x", dtype, value)


@pytest.mark.parametrize(
    "value",
    [
        [1.0, None],
        np.ma.array([1.0, 2.0], mask=[0, 1]),
        pd.Series([1.0, None], dtype="Float64"),
        pd.Series([1.0, None]),
        pa.array([1.0, None]),
        pd.Series([1.0, None], dtype="category"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_missing_floats_are_nan(value: Any) -> None:
    tensor = from_python("x", "float64", value, nullable=True)
    assert type(tensor) is Tensor and np.array_equal(to_array(tensor), [1.0, np.nan], equal_nan=True)


def test_a_null_is_not_a_nan() -> None:
    both = pa.array([float("nan"), 1.0, None])
    with pytest.raises(Malformed, match=r"data\[2\]"):
        from_python("x", "float64", both)
    assert np.isnan(to_array(from_python("x", "float64", both[:2]))[0])
    assert np.isnan(to_array(from_python("x", "float64", pd.Series([np.nan])))[0]), "numpy's columns say no more"


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        ("str", pd.Categorical(["b", "a", "b"], categories=["a", "b", "zzz"]), ["b", "a", "b"]),
        ("str", pd.CategoricalIndex(["b", "a"]), ["b", "a"]),
        ("int64", pd.Series([30, 10], dtype="category"), [30, 10]),
        ("bool", pd.Series([True, False], dtype="category"), [True, False]),
        ("str", pd.Series([], dtype="category"), []),
        ("str", pa.array(["b", "a", "b"]).dictionary_encode().slice(1), ["a", "b"]),
        ("str", pa.chunked_array([], pa.dictionary(pa.int8(), pa.string())), []),
        ("float64", pd.arrays.SparseArray([0.0, 1.0, 0.0]), [0.0, 1.0, 0.0]),
        ("int64", pd.Series([1, 2], dtype="Int32"), [1, 2]),
        ("int64", pd.RangeIndex(3), [0, 1, 2]),
        ("bytes", pa.array([b"a\0", b"\xff\0"], pa.binary(2)), [b"a\0", b"\xff\0"]),
        ("bytes", pd.Series([b"a\0", b""]), [b"a\0", b""]),
        ("float32", pa.array([1.5, 2.5], pa.float16()), [1.5, 2.5]),
        ("int64", pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], [3, 4]]),
        ("int64", pa.chunked_array([[[1, 2]], [[3, 4]]], pa.large_list(pa.int64())), [[1, 2], [3, 4]]),
        ("int64", pa.array([[], []], pa.list_(pa.int64())), [[], []]),
        ("int64", pa.chunked_array([], pa.int64()), []),
    ],
)  # fmt: skip
def test_columns_are_their_values(dtype: Any, value: Any, wanted: list[Any]) -> None:
    assert to_array(from_python("x", dtype, value)).tolist() == wanted
    assert type(from_python("x", dtype, value, nullable=dtype != "bytes")) is Tensor, "nothing is missing"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (pa.array([decimal.Decimal("1.5")]), "decimal128"),
        (pa.array([{"a": 1.0}]), "struct<a: double>"),
        (pa.array([[("a", 1.0)]], pa.map_(pa.string(), pa.float64())), "map<string, double"),
        (pa.array([[{"a": 1.0}]]), r"list<.*struct.*which holds struct"),
        (pa.array([1], pa.duration("s")), "duration"),
        (pa.array([1], pa.time32("s")), "time32"),
        (pa.array([1]), "expected FP64, got INT64"),
        (pa.array([[1], [2, 3]]), "expected FP64, got INT64"),
        (pa.array([None, [1.0]]), "missing value|ragged"),
        (pa.array(["1.5"]), "expected FP64 values, got str"),
        (pd.Series(["1.5"]), "expected FP64"),
        (pd.Series(pd.period_range("2026", periods=1, freq="D")), "expected FP64 values, got Period"),
        (pd.Series([pd.Interval(0, 1)]), "expected FP64"),
        (pd.Series(pd.to_timedelta(["1s"])), "timedelta64"),
        (pd.Series([1j]), "complex128"),
        (scipy.sparse.coo_array((10**6, 10**6), dtype="f8"), "too large to be made dense"),
    ],
)  # fmt: skip
def test_columns_that_are_no_tensors_are_refused(value: Any, why: str) -> None:
    with pytest.raises(Malformed, match=f"^input 'x': .*({why})"):
        from_python("x", "float64", value)


def test_refused_types_of_arrow_are_told_before_any_element() -> None:
    for kind in (pa.decimal128(5), pa.struct([("a", pa.int8())]), pa.list_(pa.duration("s"))):
        with pytest.raises(Malformed, match="make it one"):
            from_python("x", "int64", pa.array([], kind))


def test_chunks_that_are_too_much_for_one_column_of_texts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_MOST_BYTES", 0)
    for dtype, column in (
        ("str", pa.chunked_array([["a"], ["b", "c"]])),
        ("bytes", pa.chunked_array([[b"a"], [b"\0"]])),
        ("int64", pa.chunked_array([[1], [2]])),
    ):
        assert to_array(from_python("x", dtype, column)).tolist() == column.to_pylist()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("form", ["matrix", "array"])
def test_sparse_is_its_dense_twin(kind: str, form: str) -> None:
    dense = np.array([[0, 1.5, 0], [2.5, 0, -0.0]], np.float32)
    sparse = getattr(scipy.sparse, f"{kind}_{form}")(dense)
    twin = from_python("x", "float32", np.asarray(sparse.toarray()))
    tensor = from_python("x", "float32", sparse)
    assert (tensor.shape, np.asarray(tensor.data).tobytes()) == ((2, 3), np.asarray(twin.data).tobytes())
    with pytest.raises(Malformed, match="expected INT64, got FP32"):
        from_python("x", "int64", sparse)


def test_the_bound_on_sparse_matrices_is_on_what_they_would_become() -> None:
    assert MAX_DENSE >= 10**6 * 100
    wide = scipy.sparse.csr_array((1, MAX_DENSE + 1), dtype=np.int8)
    with pytest.raises(Malformed, match="too large"):
        from_python("x", "int8", wide)


def test_frames_keep_every_value() -> None:
    frame = pd.DataFrame({"a": np.array([1, 2], np.int16), "b": np.array([1.5, -0.0], np.float32)})
    assert to_array(from_python("x", "float32", frame)).tolist() == [[1.0, 1.5], [2.0, -0.0]]
    with pytest.raises(Malformed, match="expected FP64, got INT64"):
        from_python("x", "float64", pd.DataFrame({"a": [2**53 + 1], "b": [0.5]}))
    nullable = pd.DataFrame({"a": pd.array([BIG, None], "Int64"), "b": [1, 2]})
    assert seen(from_python("x", "int64", nullable, nullable=True)) == [BIG, 1, None, 2]
    assert to_array(from_python("x", "str", pd.DataFrame({"a": ["x"], "b": ["y"]}))).tolist() == [["x", "y"]]
    same = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert to_array(from_python("x", "float64", same)).tolist() == [[1.0, 3.0], [2.0, 4.0]]


class Kind:
    def __init__(self, temporal: bool) -> None:
        self.is_temporal = lambda: temporal


class Series:
    """What a Series of polars answers, which is no part of the development environment."""

    def __init__(self, values: Any, temporal: bool = False) -> None:
        self.arrow = values
        self.dtype = Kind(temporal)
        self.shape = (len(values),)

    def null_count(self) -> int:
        return int(self.arrow.null_count)

    def to_arrow(self) -> Any:
        return self.arrow

    def to_numpy(self) -> Any:
        return self.arrow.to_numpy(zero_copy_only=False)


def test_polars_is_asked_for_arrow_where_numpy_would_lose_something() -> None:
    assert seen(from_python("x", "int64", Series(pa.array([BIG, None])), nullable=True)) == [BIG, None]
    assert seen(from_python("x", "int64", Series(pa.array([BIG, 1])))) == [BIG, 1]
    zoned = Series(pa.array([1], pa.timestamp("us", "UTC")), temporal=True)
    assert seen(from_python("x", "int64", zoned, clock=Clock("us", "UTC"))) == [1]
    with pytest.raises(Malformed, match="have a zone"):
        from_python("x", "int64", zoned, clock=Clock("us", None))


def test_what_speaks_numpy_is_an_array() -> None:
    class Spoken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array([1, 2], np.int8)

    assert to_array(from_python("x", "int8", Spoken())).tolist() == [1, 2]


def test_text_with_lone_surrogates_is_refused_in_every_column() -> None:
    for value in (["a", "\ud800"], np.array(["a", "\ud800"]), pd.Series(["a", "\ud800"], dtype=object)):
        with pytest.raises(Malformed, match=r"data\[1\] holds a lone surrogate"):
            from_python("x", "str", value)
