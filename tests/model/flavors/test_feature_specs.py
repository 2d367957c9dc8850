"""Inputs derived from a sample say what its columns hold, and refuse by name what no input can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

from maitred.model.flavors import feature_specs
from maitred.model.refusals import CannotLoad

UTC = pandas.to_datetime(["2020-01-01", "2020-01-02"]).tz_localize("UTC")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 2], "int64[n]"),
        ([1.5, None], "float64[n] nullable"),
        (np.array([1, 2], np.uint8), "uint8[n]"),
        (np.array([1, np.nan], np.float32), "float32[n] nullable"),
        (np.array([[1.0], [2.0]]), "float64[n, 1]"),
        (np.array([["a"], ["b"]]), "str[n, 1]"),
        (np.array([True, False]), "bool[n]"),
        (["de", "se"], "str[n]"),
        (["de", None], "str[n] nullable"),
        ([True, None], "bool[n] nullable"),
        ([1, None], "int64[n] nullable"),
        ([1, 2.5], "float64[n]"),
        (np.array(["de", np.nan], object), "str[n] nullable"),
        (np.ma.MaskedArray([1, 2], [False, True]), "int64[n] nullable"),
        (np.array(["2020-01-01", "NaT"], "M8[ms]"), 'int64[n] nullable time="ms"'),
        (np.array(["2020-01-01"], "M8[D]"), 'int64[n] time="s"'),
        (pandas.Series([1, None]), "float64[n] nullable"),
        (pandas.Series([np.nan, np.nan]), "float64[n] nullable"),
        (pandas.Series(["de", "se"]), "str[n]"),
        (pandas.Series(["de", None]), "str[n] nullable"),
        (pandas.Series(["de", None], dtype=object), "str[n] nullable"),
        (pandas.Series(["de", None], dtype="string"), "str[n] nullable"),
        (pandas.Series([None, None], dtype=object), "float64[n] nullable"),
        (pandas.Series([1, None], dtype="Int32"), "int32[n] nullable"),
        (pandas.Series([1.0, None], dtype="Float32"), "float32[n] nullable"),
        (pandas.Series([True, None], dtype="boolean"), "bool[n] nullable"),
        (pandas.Series([1, None], dtype="int64[pyarrow]"), "int64[n] nullable"),
        (pandas.Series(["a", None], dtype="string[pyarrow]"), "str[n] nullable"),
        (pandas.Series(UTC.tz_localize(None)), 'int64[n] time="us"'),
        (pandas.Series(UTC.as_unit("s")), 'int64[n] time="s" zone="UTC"'),
        (pandas.Series(["b", "a", None], dtype="category"), 'str[n] nullable categories=["a", "b"]'),
        (
            pandas.Series(pandas.Categorical([3], categories=[3, 1])),
            "int64[n] categories=[3, 1]",
        ),
        (pandas.Series([True, False], dtype="category"), "bool[n]"),
        (pandas.Series([1.5, None], dtype="category"), "float64[n] nullable"),
    ],
    ids=str,
)
def test_a_column_of_the_sample_tells_its_input(values: Any, text: str) -> None:
    (spec,) = feature_specs.of_columns(["a"], {"a": values})
    assert spec.to_text() == text
    if isinstance(values, pandas.Series):
        assert feature_specs.of_columns(["a"], pandas.DataFrame({"b": 0, "a": values})) == [spec]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["a", 1], "mixes numbers and text"),
        ([True, 1], "mixes booleans and numbers"),
        (np.zeros((2, 3)), "has the shape"),
        (np.array([1j]), "no feature can have: complex"),
        ([b"a"], "no feature can have: bytes"),
        ([("x",), ("y",)], "no feature can have: tuple"),
        (pandas.Series([("x",), ("y",)]), "no feature can have: tuple"),
        (np.array([1], "m8[s]"), "no feature can have: timedelta"),
        (pandas.Series(UTC.tz_convert("Europe/Berlin")), "zone Europe/Berlin"),
        (pandas.Series([(1,), (2,)], dtype="category"), "categories of column 'a' are of tuple"),
        (pandas.Series(["a", 1], dtype="category"), "are of int, str"),
        (pandas.Series([None], dtype="category"), "are of nothing"),
    ],
    ids=str,
)
def test_what_no_input_can_hold_is_refused_by_name(values: Any, told: str) -> None:
    with pytest.raises(CannotLoad, match=told) as refused:
        feature_specs.of_columns(["a"], {"a": values})
    assert "'a'" in refused.value.message


def test_what_the_model_knows_goes_before_the_sample() -> None:
    sample = pandas.DataFrame({"a": pandas.Categorical(["x"]), "b": [1]})
    known = {"a": ["y", "x"], "b": np.array([2, 1]), "c": [True, False]}
    specs = feature_specs.of_columns(["a", "b", "c", "d"], sample, known, "float32", nullable=True)
    assert [spec.to_text() for spec in specs] == [
        'str[n] nullable categories=["y", "x"]', "int64[n] nullable categories=[2, 1]", "bool[n] nullable",
        "float32[n] nullable",
    ]  # fmt: skip


def test_categories_of_large_integers() -> None:
    (spec,) = feature_specs.of_columns(["a"], None, {"a": [2**63, 1]})
    assert spec.dtype == "uint64"


def test_too_many_categories_are_refused() -> None:
    with pytest.raises(CannotLoad, match="at most 10000"):
        feature_specs.of_columns(["a"], None, {"a": range(10_001)})


@pytest.mark.parametrize(
    ("sample", "dtype"),
    [
        (None, "float64"), (np.zeros((1, 2), np.float32), "float32"), ({"x": np.zeros((1, 2), np.float32)}, "float32"),
        ([[1, 2]], "float64"), (pandas.DataFrame({"a": [1], "b": [2]}), "float64"),
    ],
)  # fmt: skip
def test_a_matrix_is_of_the_samples_floats(sample: Any, dtype: str) -> None:
    assert feature_specs.of_matrix(2, sample).to_text() == f"{dtype}[n, 2]"
    assert feature_specs.of_matrix(2, sample, nullable=True).to_text() == f"{dtype}[n, 2] nullable"


def test_columns_of_a_matrix_are_found_by_place() -> None:
    specs = feature_specs.of_columns(["a", "b"], np.zeros((2, 2), np.int32))
    assert [spec.to_text() for spec in specs] == ["int32[n]", "int32[n]"]
