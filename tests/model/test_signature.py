"""Signatures: rows, groups, what a payload must be, and what they write down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.names import check_name
from maitred.model.signature import SAME_GROUP, BadSignature, Signature, TensorSpec
from maitred.wire.coerce import DATATYPES, NUMPY_TYPES, from_array, from_python, to_array

CHURN = Signature(
    inputs={"age": "int64[n] min=0", "country": "str[n]", "history": "float32[n, 12]"},
    outputs={"score": "float32[n]"},
)


def zeros(dtype: Any, *shape: int) -> Tensor:
    if dtype in ("str", "bytes"):
        return Tensor(dtype, shape, ["" if dtype == "str" else b""] * int(np.prod(shape)))
    return from_array(np.zeros(shape, NUMPY_TYPES[dtype]))


def churn(rows: int = 2) -> dict[str, Tensor]:
    return {"history": zeros("float32", rows, 12), "country": zeros("str", rows), "age": zeros("int64", rows)}


# --- the row axis -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs", "symbol", "row_wise"),
    [
        (["float32[n, 4]"], ["float32[n]"], "n", True),
        (["float32[rows]"], ["int64[rows, 3]", "str[rows]"], "rows", True),
        (["float32[n, seq]"], ["float32[n, seq]"], "n", True),
        (["float32[]", "float32[n]"], ["float32[n]"], "n", True),
        (["float32[4]", "float32[n]"], ["float32[n]"], "n", True),
        (["float32[n]"], ["float32[m]"], "n", False),
        (["float32[n]"], ["float32[]"], "n", False),
        (["float32[n]"], ["float32[n]", "float32[2]"], "n", False),
        (["float32[n]"], ["float32[2, n]"], "n", False),
        (["float32[n, n]"], ["float32[n]"], "n", False),
        (["float32[n]", "float32[2, n]"], ["float32[n]"], "n", False),
        (["float32[n]"], ["float32[n, n]"], "n", False),
        (["float32[4, n]"], ["float32[n]"], None, False),
        (["float32[4, m]", "float32[n]"], ["float32[n]"], None, False),
        (["float32[4]"], ["float32[2]"], None, False),
    ],
)
def test_row_axis(inputs: list[str], outputs: list[str], symbol: str | None, row_wise: bool) -> None:
    signature = Signature(dict(zip("abc", inputs, strict=False)), dict(zip("xyz", outputs, strict=False)))
    assert (signature.row_symbol, signature.row_wise) == (symbol, row_wise)


def test_models_without_rows_are_one_row_and_never_merged() -> None:
    signature = Signature({"x": "float32[n]"}, {"total": "float32[]"})
    checked = signature.check({"x": zeros("float32", 7)})
    assert (checked.rows, checked.group) == (1, None)


# --- plain payloads ---------------------------------------------------------------------------------------------


def test_a_payload_comes_back_in_order_with_its_rows() -> None:
    checked = CHURN.check(churn(3))
    assert list(checked.inputs) == ["age", "country", "history"]
    assert (checked.rows, checked.group) == (3, SAME_GROUP)


@pytest.mark.parametrize("dtype", sorted(DATATYPES))
def test_every_dtype_and_no_rows(dtype: Any) -> None:
    signature = Signature({"x": f"{dtype}[n, 2]"}, {"y": f"{dtype}[n, 2]"})
    for rows in (0, 1, 5):
        checked = signature.check({"x": zeros(dtype, rows, 2)})
        assert (checked.rows, checked.group) == (rows, SAME_GROUP)


def test_plain_checks_share_one_group_object() -> None:
    assert CHURN.check(churn(1)).group is CHURN.check(churn(2)).group


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ages": zeros("int64", 2)},
            r"unknown input 'ages': this model takes 'age', 'country', 'history'; did you mean 'age'\?",
        ),
        ({"age": None}, "input 'age' is missing: this model takes 'age', 'country', 'history'"),
        ({"age": zeros("int32", 2)}, "input 'age': expected INT64, got INT32"),
        ({"country": zeros("int64", 2)}, "input 'country': expected BYTES, got INT64"),
        ({"history": zeros("float64", 2, 12)}, "input 'history': expected FP32, got FP64"),
        ({"history": zeros("float32", 2, 11)}, r"input 'history': expected shape \[n, 12\], got \[2, 11\]"),
        ({"history": zeros("float32", 24)}, r"input 'history': expected shape \[n, 12\], got \[24\]"),
        ({"history": zeros("float32", 2, 12, 1)}, r"input 'history': expected shape \[n, 12\], got \[2, 12, 1\]"),
        ({"age": zeros("int64", 2, 2)}, r"input 'age': expected shape \[n\], got \[2, 2\]"),
        ({"age": zeros("int64", 2, 1, 1)}, r"input 'age': expected shape \[n\], got \[2, 1, 1\]"),
        ({"age": zeros("int64")}, r"input 'age': expected shape \[n\], got \[\]"),
        (
            {"history": zeros("float32", 3, 12)},
            r"input 'history': expected shape \[n, 12\] with n = 2 as in input 'age', got \[3, 12\]",
        ),
        ({"age": from_python("age", "int64", [1, -1])}, r"input 'age': the value at \[1\] is outside the range min=0"),
    ],
)
def test_refused_payloads(change: dict[str, Tensor | None], message: str) -> None:
    payload = {name: tensor for name, tensor in {**churn(), **change}.items() if tensor is not None}
    with pytest.raises(Malformed, match=f"^{message}$"):
        CHURN.check(payload)


def test_names_from_callers_are_escaped_and_cut() -> None:
    for name in ("a\nb\x1b[0m", "x" * 5000):
        with pytest.raises(Malformed) as refused:
            CHURN.check({**churn(), name: zeros("int64", 2)})
        assert refused.value.message.isprintable() and len(refused.value.message) < 300
        with pytest.raises(Malformed) as refused:
            CHURN.check_outputs([name])
        assert refused.value.message.isprintable() and len(refused.value.message) < 300


def test_one_input_twice_of_one_size() -> None:
    signature = Signature({"x": "float32[n, m, m]"}, {"y": "float32[n]"})
    assert signature.check({"x": zeros("float32", 2, 3, 3)}).rows == 2
    with pytest.raises(Malformed, match=r"expected shape \[n, m, m\] with m = 3, got \[2, 3, 4\]"):
        signature.check({"x": zeros("float32", 2, 3, 4)})


def test_bytes_and_str_stand_in_for_each_other() -> None:
    texts = Signature({"x": "str[n]"}, {"y": "str[n]"})
    assert texts.check({"x": Tensor("bytes", (2,), [b"a", "é".encode()])}).inputs["x"].data == ["a", "é"]
    with pytest.raises(Malformed, match="input 'x': element 1 is not UTF-8"):
        texts.check({"x": Tensor("bytes", (2,), [b"a", b"\xff"])})
    blobs = Signature({"x": "bytes[n]"}, {"y": "bytes[n]"})
    assert blobs.check({"x": Tensor("str", (1,), ["é"])}).inputs["x"].data == ["é".encode()]


# --- groups -----------------------------------------------------------------------------------------------------


def test_open_sizes_part_groups() -> None:
    signature = Signature({"x": "float32[n, seq]", "mask": "bool[n, seq]"}, {"y": "float32[n, seq]"})

    def group(rows: int, seq: int) -> Any:
        return signature.check({"x": zeros("float32", rows, seq), "mask": zeros("bool", rows, seq)}).group

    assert group(1, 5) == group(3, 5) != group(1, 6)
    assert group(0, 5) == group(1, 5)
    with pytest.raises(Malformed, match=r"input 'mask': expected shape \[n, seq\] with seq = 5 as in input 'x'"):
        signature.check({"x": zeros("float32", 1, 5), "mask": zeros("bool", 1, 6)})


def test_shared_inputs_part_groups_by_value() -> None:
    signature = Signature({"x": "float32[n]", "threshold": "float32[]", "tags": "str[k]"}, {"y": "float32[n]"})
    assert signature.shared == {"threshold", "tags"}

    def group(value: float, tags: list[str]) -> Any:
        tensors = {"x": zeros("float32", 2), "threshold": from_python("t", "float32", value)}
        checked = signature.check({**tensors, "tags": from_python("tags", "str", tags)})
        assert checked.rows == 2
        return checked.group

    assert group(1, ["a"]) == group(1, ["a"])
    assert len({group(1, ["a"]), group(2, ["a"]), group(1, ["b"]), group(1, ["a", "b"])}) == 4


def test_inputs_left_out_part_groups() -> None:
    signature = Signature({"x": "float32[n]", "w": "float32[n] optional", "v": "int8[n] optional"}, {"y": "float32[n]"})
    x = {"x": zeros("float32", 2)}
    groups = [
        signature.check({**x, **more}).group
        for more in ({}, {"w": zeros("float32", 2)}, {"v": zeros("int8", 2)}, {"v": zeros("int8", 2), "w": x["x"]})
    ]
    assert len(set(groups)) == 4 and groups[3] is SAME_GROUP
    assert list(signature.check({"v": zeros("int8", 2), **x}).inputs) == ["x", "v"]


# --- optional inputs and defaults -------------------------------------------------------------------------------


def test_defaults_are_filled_in_and_keep_the_group() -> None:
    signature = Signature(
        {"w": "float32[n, 2] default=0.5", "x": "float32[n]", "s": 'str[n] default="?"', "k": "int8[] default=3"},
        {"y": "float32[n]"},
    )
    checked = signature.check({"x": zeros("float32", 2)})
    assert list(checked.inputs) == ["w", "x", "s", "k"]
    assert to_array(checked.inputs["w"]).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert checked.inputs["s"].data == ["?", "?"] and to_array(checked.inputs["k"]).tolist() == 3
    explicit = signature.check({**checked.inputs})
    assert explicit.group == checked.group
    other = signature.check({**checked.inputs, "k": from_python("k", "int8", 4)})
    assert other.group != checked.group


def test_a_default_needs_its_sizes() -> None:
    signature = Signature({"x": "float32[n] optional", "w": "float32[n, seq] default=0"}, {"y": "float32[n]"})
    with pytest.raises(Malformed, match="input 'w' is missing, and no other input tells its size"):
        signature.check({"x": zeros("float32", 2)})
    with pytest.raises(Malformed, match="input 'w' is missing"):
        signature.check({})


def test_a_request_without_rows_is_refused() -> None:
    signature = Signature({"x": "float32[n] optional", "t": "float32[]"}, {"y": "float32[n]"})
    with pytest.raises(Malformed, match="at least one input with rows is needed, of 'x', 't'"):
        signature.check({"t": zeros("float32")})


# --- outputs ----------------------------------------------------------------------------------------------------


def test_wanted_outputs() -> None:
    signature = Signature({"x": "float32[n]"}, {"a": "float32[n]", "b": "str[n]"})
    assert signature.check_outputs(["b", "a"]) == ("b", "a")
    assert signature.check_outputs([]) == ()
    with pytest.raises(Malformed, match="unknown output 'c': this model gives 'a', 'b'"):
        signature.check_outputs(["a", "c"])
    with pytest.raises(Malformed, match="output 'a' is asked for twice"):
        signature.check_outputs(["a", "b", "a"])


def test_bytes_of_a_row() -> None:
    signature = Signature(
        {"x": "float32[n, k]"}, {"a": "float32[n, 2, 3]", "b": "int8[n]", "c": "str[n]", "d": "float64[n, k]"}
    )
    assert [signature.row_bytes(name) for name in "abcd"] == [24, 1, None, None]
    assert signature.row_shapes == {"a": (2, 3), "b": (), "c": (), "d": None}
    assert Signature({"x": "float32[n]"}, {"y": "float32[2]"}).row_bytes("y") is None


# --- examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_examples_are_accepted(rows: int) -> None:
    signature = Signature(
        {
            "a": "int64[n] min=3", "b": "float32[n, 2] max=-0.1", "c": "str[n]", "d": "bytes[n, seq]", "e": "bool[n]",
            "f": "bfloat16[n, seq] min=0.1 max=0.1", "g": "float16[n] default=2", "h": "uint8[n] optional",
            "i": "float32[]", "j": "float32[n] min=-1 nullable default=NaN",
        },
        {"y": "float32[n]"},
    )  # fmt: skip
    example = signature.example(rows)
    assert list(example) == list(signature.inputs)
    assert signature.check(example).rows == rows


# --- writing down -----------------------------------------------------------------------------------------------


def test_dict_and_back() -> None:
    signature = Signature(
        {
            "x": "FP32[n, 12] min=0 max=1 nullable nan=null pad=0",
            "s": 'str[n] default="a\\"b"',
            "z": "float32[n] default=NaN",
        },
        {"y": 'float32[n, 2] labels=["é", "b"] rtol=0.01', "l": TensorSpec("other", "str", ("n",))},
    )
    record = signature.to_dict()
    assert record["outputs"]["l"] == "str[n]"
    again = Signature.from_dict(record)
    assert again == signature and again.to_dict() == record
    assert again != CHURN and again != 5
    assert "x: float32[n, 12]" in repr(signature) and signature.to_text() in repr(signature)


@pytest.mark.parametrize("record", [{}, {"inputs": {"x": "float32[n]"}}, {"inputs": 5, "outputs": 5},
                                    {"inputs": {"x": 5}, "outputs": {"y": "float32[n]"}},
                                    {"inputs": {}, "outputs": {"y": "float32[n]"}}])  # fmt: skip
def test_bad_records(record: Any) -> None:
    with pytest.raises(BadSignature):
        Signature.from_dict(record)


def test_order_matters_for_equality() -> None:
    one = Signature({"a": "int8[n]", "b": "int8[n]"}, {"y": "int8[n]"})
    other = Signature({"b": "int8[n]", "a": "int8[n]"}, {"y": "int8[n]"})
    assert one != other


def test_values_must_be_texts_or_specs() -> None:
    with pytest.raises(BadSignature, match="input 'x': expected a notation"):
        Signature({"x": 5}, {"y": "float32[n]"})  # type: ignore[dict-item]
    with pytest.raises(BadSignature, match="at least one"):
        Signature({}, {"y": "float32[n]"})


# --- a property: what is checked is what was declared -----------------------------------------------------------


@given(st.data())
def test_a_checked_payload_obeys_its_signature(data: st.DataObject) -> None:
    signature = Signature({"x": "float32[n, k]", "y": "int8[n, 2]", "z": "int8[k] optional"}, {"out": "float32[n, k]"})
    sizes = st.integers(0, 3)
    payload = {}
    for name, dtype in {"x": "float32", "y": "int8", "z": "int8", "w": "int8"}.items():
        if data.draw(st.booleans() if name in "zw" else st.integers(0, 9).map(bool)):
            payload[name] = zeros(dtype, *data.draw(st.lists(sizes, min_size=1, max_size=2)))
    try:
        checked = signature.check(payload)
    except Malformed:
        fine = {"x", "y"} <= payload.keys() and "w" not in payload and len(payload["x"].shape) == 2
        if fine:
            n, k = payload["x"].shape
            fine = payload["y"].shape == (n, 2) and ("z" not in payload or payload["z"].shape == (k,))
        assert not fine
        return
    n, k = checked.inputs["x"].shape
    assert checked.rows == n and checked.inputs["y"].shape == (n, 2)
    assert "z" not in checked.inputs or checked.inputs["z"].shape == (k,)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["churn", "a", "7", "a.b-c_d", "A" * 128])
def test_names_that_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "_a", "a/b", "a b", "a%2Fb", "café", "a:b", "a\n", "A" * 129, "a\x00", None, 5]
)
def test_names_that_are_not(name: Any) -> None:
    with pytest.raises(Malformed, match="letters, digits") as refused:
        check_name(name)
    assert refused.value.message.isprintable() and len(refused.value.message) < 300
