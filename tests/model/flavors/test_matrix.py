"""Inputs become one matrix, and no value depends on which rows share a batch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mixed_columns import MIXED, ROWS, columns, objects

from maitred.model.flavors.matrix import Coder, Matrix
from maitred.model.refusals import CannotLoad


def test_a_matrix_holds_codes_counts_and_nan() -> None:
    inputs = {name: text for name, text in MIXED.items() if name != "country"}
    matrix = Matrix(columns(inputs, [*inputs]))(ROWS)
    nan = np.nan
    expected = [
        [20, 1.5, 0.5, 0.5, 1, 1, 1, 1, 0, 0],
        [30, nan, 1.0, 1.0, 0, nan, nan, 0, 1, nan],
        [40, -2.0, 2.0, 2.0, nan, 0, 3, nan, 2, 2],
    ]
    assert matrix.dtype == np.float64
    assert matrix.flags.c_contiguous
    np.testing.assert_array_equal(matrix, expected)


def test_a_single_matrix_passes_through() -> None:
    given = np.eye(2, dtype=np.float32)
    given.flags.writeable = False
    build = Matrix(columns({"x": "float32[n, 2]"}))
    assert build({"x": given}) is given
    assert Matrix(columns({"x": "int64[n, 2]"}))({"x": np.eye(2, dtype=np.int64)}).dtype == np.float64


@pytest.mark.parametrize(
    ("dtypes", "floats", "dtype"),
    [
        (("float32", "float32"), True, "float32"), (("float32", "float64"), True, "float64"),
        (("float16", "bfloat16"), True, "float32"), (("int8", "bool"), True, "float64"),
        (("int64", "int64"), False, "int64"), (("int8", "float32"), False, "float32"),
        (("bool", "bool"), False, "bool"), (("int64", "float32"), True, "float64"),
    ],
)  # fmt: skip
def test_a_matrix_has_a_dtype_that_holds_every_input(dtypes: tuple[str, str], floats: bool, dtype: str) -> None:
    build = Matrix(columns({"a": f"{dtypes[0]}[n]", "b": f"{dtypes[1]}[n]"}), floats=floats)
    kinds = {"bfloat16": ml_dtypes.bfloat16}
    rows = {name: np.array([1, 0]).astype(kinds.get(kind, kind)) for name, kind in zip("ab", dtypes, strict=True)}
    assert build.dtype == build(rows).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(build(rows), [[1, 1], [0, 0]])


def test_columns_of_one_and_matrices_are_joined() -> None:
    build = Matrix(columns({"a": "float64[n]", "h": "float64[n, 2]", "b": "float64[n, 1]"}, None, 4))
    rows = {"a": np.array([1.0]), "h": np.array([[2.0, 3.0]]), "b": np.array([[4.0]])}
    assert build(rows).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_text_without_categories_is_no_number() -> None:
    with pytest.raises(CannotLoad, match="input 'a' is text without categories"):
        Matrix(columns({"a": "str[n]"}))


# --- arranging -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "names", "count", "told"),
    [
        ({"a": "float64[n]", "b": "float64[n]"}, ["a", "c"], None, r"fitted on the columns \['a', 'c'\]"),
        ({"x": "float64[n, 3]"}, ["a", "c"], None, "takes 2 features, the signature's inputs hold 3"),
        ({"x": "float64[n, 3]"}, None, 4, "takes 4 features"),
        ({"x": "float64[n, m]"}, None, None, "must be a column"),
        ({"x": "float64[2]"}, None, None, "must be a column"),
        ({"x": "float64[n] optional"}, ["x"], None, "say what stands for a missing one"),
        ({"x": "bytes[n]"}, ["x"], None, "bytes cannot be a feature"),
    ],
)
def test_a_signature_of_other_features_is_refused(inputs: Any, names: Any, count: Any, told: str) -> None:
    with pytest.raises(CannotLoad, match=told):
        columns(inputs, names, count)


def test_categories_belong_to_single_columns() -> None:
    with pytest.raises(CannotLoad, match="holds several features"):
        Matrix(columns({"x": "int64[n, 2] categories=[1]"}))


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_codes_of_many_categories(count: int) -> None:
    coder = Coder([f"c{i}" for i in range(count)])
    assert coder.codes(objects(f"c{count - 1}", "other", "c0")).tolist() == [count - 1, -1, 0]
    assert coder.numbers(objects(f"c{count - 1}", None, "c0"))[[0, 2]].tolist() == [count - 1, 0]
