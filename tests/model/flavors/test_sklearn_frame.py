"""Inputs become one DataFrame, and no value depends on which rows share a batch."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from mixed_columns import MIXED, ROWS, columns, objects

from maitred.model.flavors.sklearn import frame as frames
from maitred.model.flavors.sklearn.frame import Frame
from maitred.model.refusals import MissingExtra


def test_a_frame_has_the_order_names_and_dtypes_of_fitting() -> None:
    names = [*reversed(MIXED)]
    frame = Frame(columns(MIXED, names))(ROWS)
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
    build = Frame(columns(MIXED, [*MIXED]))
    alone = build({name: array[row : row + 1] for name, array in ROWS.items()})
    pandas.testing.assert_frame_equal(alone, build(ROWS).iloc[row : row + 1].reset_index(drop=True))
    assert (alone.plan.cat.codes.item(), alone.dtypes.plan.categories.tolist()) == ([1, 0, -1][row], ["pro", "free"])


def test_frames_can_be_written_into_and_share_nothing() -> None:
    build = Frame(columns(MIXED, [*MIXED]))
    frame = build(ROWS)
    frame["age"] += 1
    for name in MIXED:
        frame.loc[0, name] = frame.loc[2, name]
    frame["new"] = 0
    assert ROWS["age"].tolist() == [20, 30, 40]
    assert [*build(ROWS).columns] == [*MIXED]


def test_text_can_stay_objects_with_none() -> None:
    frame = Frame(columns({"a": "str[n] nullable"}, ["a"]), as_objects=["a"])({"a": objects("x", None)})
    assert frame.dtypes.a == np.dtype(object)
    assert frame.a.tolist() == ["x", None]


def test_before_pandas_3_text_is_objects_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pandas, "__version__", "2.2.3")
    monkeypatch.setattr(frames, "_block_builder", lambda: frames._assembled)
    frame = Frame(columns(MIXED, [*MIXED]))(ROWS)
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
    frame = Frame(columns(signature, ["a", "h0", "h1", "t", "c"]))(rows)
    assert frame.astype(object).fillna("-").to_numpy().tolist() == [
        [1.0, 3.0, 4.0, "u", "x"],
        [2.0, 5.0, 6.0, "v", "-"],
    ]


def test_one_matrix_gets_the_names_of_fitting() -> None:
    frame = Frame(columns({"x": "float32[n, 2]"}, ["a", "b"]))({"x": np.eye(2, dtype=np.float32)})
    assert ([*frame.columns], {*map(str, frame.dtypes)}) == (["a", "b"], {"float32"})


def test_a_frame_without_rows() -> None:
    empty = Frame(columns(MIXED, [*MIXED]))({name: array[:0] for name, array in ROWS.items()})
    assert empty.shape == (0, len(MIXED))


def test_without_pandas_a_frame_is_refused_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"maitred\[pandas\]"):
        Frame(columns({"a": "str[n]"}, ["a"]))
