"""Joining, padding and stacking of batches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.messages import FOREVER, Request, Tensor
from maitred.wire.coerce import from_array, to_array
from maitred.wire.tensors import join, pad_rows, stacked


def request(rows: int, **inputs: Tensor) -> Request:
    return Request(inputs, rows, (), FOREVER)


def joined_rows(sizes: list[int], dtype: Any, form: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    whole = np.arange(sum(sizes) * 2).reshape(-1, 2).astype(dtype)
    requests = []
    start = 0
    for size in sizes:
        requests.append(request(size, x=form(whole[start : start + size])))
        start += size
    return to_array(join(requests)["x"]), whole


FORMS: dict[str, Any] = {
    "array": from_array,
    "bytes": lambda a: Tensor(from_array(a).dtype, a.shape, a.tobytes()),
    "bytearray": lambda a: Tensor(from_array(a).dtype, a.shape, bytearray(a.tobytes())),
    "view": lambda a: Tensor(from_array(a).dtype, a.shape, memoryview(a.tobytes())),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", ml_dtypes.bfloat16, "float64"])
@given(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_join_is_concatenation(form: str, dtype: Any, sizes: list[int]) -> None:
    got, whole = joined_rows(sizes, dtype, FORMS[form])
    assert got.dtype == whole.dtype and got.shape == whole.shape and got.tobytes() == whole.tobytes()


def test_join_mixes_forms_and_texts() -> None:
    a = request(1, x=Tensor("float32", (1,), b"abcd"), s=Tensor("str", (1,), ["a"]))
    b = request(2, x=from_array(np.zeros(2, np.float32)), s=Tensor("str", (2,), ["b", "c"]))
    batch = join([a, b])
    assert batch["x"].shape == (3,) and batch["x"].data == b"abcd" + b"\0" * 8
    assert batch["s"].shape == (3,) and batch["s"].data == ["a", "b", "c"]
    assert a.inputs["s"].data == ["a"]


def test_one_request_is_taken_as_it_is() -> None:
    one = request(1, x=Tensor("float32", (1,), b"abcd"))
    assert join([one]) is one.inputs


def test_shared_inputs_are_taken_once() -> None:
    shared = Tensor("float32", (), b"abcd")
    parts = [request(1, x=Tensor("uint8", (1,), b"a"), t=shared), request(1, x=Tensor("uint8", (1,), b"b"), t=shared)]
    batch = join(parts, shared=frozenset({"t"}))
    assert batch["t"] is shared and batch["x"].data == b"ab"


def test_padding_repeats_the_last_row() -> None:
    inputs = {"x": np.array([[1, 2], [3, 4], [5, 6]]), "s": np.array(["a", "b", "c"], object), "t": np.array(7)}
    padded = pad_rows(inputs, 1, 3, 4, {"t"})
    assert padded["x"].tolist() == [[3, 4], [5, 6], [5, 6], [5, 6]]
    assert padded["s"].tolist() == ["b", "c", "c", "c"]
    assert padded["t"] is inputs["t"]


def test_a_full_batch_is_not_copied() -> None:
    inputs = {"x": np.arange(4)}
    assert pad_rows(inputs, 0, 4, 4)["x"] is inputs["x"]


def test_no_rows_are_padded_with_blanks() -> None:
    inputs = {"x": np.empty((0, 2)), "s": np.empty(0, object)}
    padded = pad_rows(inputs, 0, 0, 2)
    assert padded["x"].tolist() == [[0, 0], [0, 0]] and padded["s"].tolist() == ["", ""]


def test_pieces_are_stacked_in_order() -> None:
    assert stacked([{"y": np.array([1])}, {"y": np.array([2, 3])}])["y"].tolist() == [1, 2, 3]
