"""Inputs become one matrix or one DataFrame, and no value depends on which rows share a batch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pandas
import pytest

from maitred.model.flavors import frames
from maitred.model.refusals import CannotLoad, MissingExtra
from maitred.model.signature import Signature

OUTPUTS = {"y": "float64[n]"}


def columns(inputs: dict[str, str], names: Any = None, count: int | None = None) -> list[frames.Column]:
    return frames.arrange(Signature(inputs, OUTPUTS), names, count)


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


# --- a frame -------------------------------------------------------------------------------------------------------


def test_a_frame_has_the_order_names_and_dtypes_of_fitting() -> None:
    names = [*reversed(MIXED)]
    frame = frames.Frame(columns(MIXED, names), "sklearn")(ROWS)
    assert [*frame.columns] == names
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "age": "int64", "income": "float64", "half": "float32", "brain": "float32", "country": "str",
        "plan": "category", "size": "category", "kids": "Int32", "member": "boolean", "since": "datetime64[ms]",
        "seen": "datetime64[s, UTC]",
    }  # fmt: skip
    expected = pandas.DataFrame(
        {
            "age": [20, 30, 40],
            "income": [1.5, np.nan, -2.0],
            "half": np.array([0.5, 1.0, 2.0], np.float32),
            "brain": np.array([0.5, 1.0, 2.0], np.float32),
            "country": pandas.array(["de", None, "sé"], dtype=pandas.StringDtype("python", na_value=np.nan)),
            "plan": pandas.Categorical(["free", "pro", None], categories=["pro", "free"]),
            "size": pandas.Categorical([1, None, 3], categories=[3, 1]),
            "kids": pandas.array([1, None, 3], dtype="Int32"),
            "member": pandas.array([True, False, None], dtype="boolean"),
            "since": pandas.DatetimeIndex(ROWS["since"]),
            "seen": pandas.DatetimeIndex(ROWS["seen"]).tz_localize("UTC"),
        }
    )
    pandas.testing.assert_frame_equal(frame[[*MIXED]], expected)


@pytest.mark.parametrize("row", range(3))
def test_a_row_of_a_frame_is_the_same_alone(row: int) -> None:
    build = frames.Frame(columns(MIXED, [*MIXED]), "sklearn")
    alone = build({name: array[row : row + 1] for name, array in ROWS.items()})
    pandas.testing.assert_frame_equal(alone, build(ROWS).iloc[row : row + 1].reset_index(drop=True))
    assert (alone.plan.cat.codes.item(), alone.dtypes.plan.categories.tolist()) == ([1, 0, -1][row], ["pro", "free"])


def test_frames_can_be_written_into_and_share_nothing() -> None:
    build = frames.Frame(columns(MIXED, [*MIXED]), "sklearn")
    frame = build(ROWS)
    frame["age"] += 1
    for name in MIXED:
        frame.loc[0, name] = frame.loc[2, name]
    frame["new"] = 0
    assert ROWS["age"].tolist() == [20, 30, 40]
    assert [*build(ROWS).columns] == [*MIXED]


def test_text_can_stay_objects_with_none() -> None:
    frame = frames.Frame(columns({"a": "str[n] nullable"}, ["a"]), "sklearn", as_objects=["a"])(
        {"a": objects("x", None)}
    )
    assert frame.dtypes.a == np.dtype(object)
    assert frame.a.tolist() == ["x", None]


def test_before_pandas_3_text_is_objects_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pandas, "__version__", "2.2.3")
    monkeypatch.setattr(frames, "_block_builder", lambda: frames._assembled)
    frame = frames.Frame(columns(MIXED, [*MIXED]), "sklearn")(ROWS)
    assert [*frame.columns] == [*MIXED]
    assert frame.country.isna().tolist() == [False, True, False]
    assert str(frame.dtypes.plan) == "category"
    assert frame.age.tolist() == [20, 30, 40]


def test_columns_of_one_and_matrices_are_taken_apart() -> None:
    signature = {"a": "float64[n, 1]", "history": "float64[n, 2]", "t": "str[n, 1]", "c": 'str[n, 1] categories=["x"]'}
    rows = {
        "a": np.array([[1.0], [2.0]]), "history": np.array([[3.0, 4.0], [5.0, 6.0]]),
        "t": objects("u", "v").reshape(2, 1), "c": objects("x", "y").reshape(2, 1),
    }  # fmt: skip
    frame = frames.Frame(columns(signature, ["a", "h0", "h1", "t", "c"]), "sklearn")(rows)
    assert frame.astype(object).fillna("-").to_numpy().tolist() == [
        [1.0, 3.0, 4.0, "u", "x"],
        [2.0, 5.0, 6.0, "v", "-"],
    ]


def test_one_matrix_gets_the_names_of_fitting() -> None:
    frame = frames.Frame(columns({"x": "float32[n, 2]"}, ["a", "b"]), "sklearn")({"x": np.eye(2, dtype=np.float32)})
    assert ([*frame.columns], {*map(str, frame.dtypes)}) == (["a", "b"], {"float32"})


def test_booleans_can_be_categories_that_only_the_flavor_knows() -> None:
    made = frames.Frame(columns({"b": "bool[n]"}, ["b"]), "sklearn", {"b": [False, True]})(
        {"b": np.array([True, True])}
    )
    assert made.dtypes.b.categories.tolist() == [False, True]
    assert made.b.cat.codes.tolist() == [1, 1]


def test_a_frame_without_rows() -> None:
    empty = frames.Frame(columns(MIXED, [*MIXED]), "sklearn")({name: array[:0] for name, array in ROWS.items()})
    assert empty.shape == (0, len(MIXED))


def test_without_pandas_a_frame_is_refused_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"maitred\[pandas\]"):
        frames.Frame(columns({"a": "str[n]"}, ["a"]), "sklearn")


# --- a matrix ------------------------------------------------------------------------------------------------------


def test_a_matrix_holds_codes_counts_and_nan() -> None:
    inputs = {name: text for name, text in MIXED.items() if name != "country"}
    matrix = frames.Matrix(columns(inputs, [*inputs]))(ROWS)
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
    build = frames.Matrix(columns({"x": "float32[n, 2]"}))
    assert build({"x": given}) is given
    assert frames.Matrix(columns({"x": "int64[n, 2]"}))({"x": np.eye(2, dtype=np.int64)}).dtype == np.float64


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
    build = frames.Matrix(columns({"a": f"{dtypes[0]}[n]", "b": f"{dtypes[1]}[n]"}), floats=floats)
    kinds = {"bfloat16": ml_dtypes.bfloat16}
    rows = {name: np.array([1, 0]).astype(kinds.get(kind, kind)) for name, kind in zip("ab", dtypes, strict=True)}
    assert build.dtype == build(rows).dtype == np.dtype(dtype)
    np.testing.assert_array_equal(build(rows), [[1, 1], [0, 0]])


def test_columns_of_one_and_matrices_are_joined() -> None:
    build = frames.Matrix(columns({"a": "float64[n]", "h": "float64[n, 2]", "b": "float64[n, 1]"}, None, 4))
    rows = {"a": np.array([1.0]), "h": np.array([[2.0, 3.0]]), "b": np.array([[4.0]])}
    assert build(rows).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_text_without_categories_is_no_number() -> None:
    with pytest.raises(CannotLoad, match="input 'a' is text without categories"):
        frames.Matrix(columns({"a": "str[n]"}))


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
        frames.Matrix(columns({"x": "int64[n, 2] categories=[1]"}))


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_codes_of_many_categories(count: int) -> None:
    coder = frames.Coder([f"c{i}" for i in range(count)])
    assert coder.codes(objects(f"c{count - 1}", "other", "c0")).tolist() == [count - 1, -1, 0]
    assert coder.numbers(objects(f"c{count - 1}", None, "c0"))[[0, 2]].tolist() == [count - 1, 0]
