"""The one coercion table: every dtype, edge values, and what is refused."""

from __future__ import annotations

import json
import math
import struct
from fractions import Fraction
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed, ModelFault
from maitred.messages import ITEM_BYTES, Tensor
from maitred.wire import coerce, json_tensors
from maitred.wire.coerce import (
    DATATYPES,
    FLOATS,
    INTEGERS,
    NUMPY_TYPES,
    checked_shape,
    from_array,
    from_json,
    from_python,
    from_raw,
    rows_json,
    to_array,
    to_json_values,
    to_raw,
)
from maitred.wire.json_decoders import check_number
from maitred.wire.pieces import commas, no_pause

NUMBERS = sorted(FLOATS | INTEGERS)
DTYPES = sorted(DATATYPES)


def raw_of(tensor: Tensor) -> bytes:
    return bytes(to_raw(tensor))


def limits(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


@st.composite
def elements(draw: st.DrawFn, dtype: str, finite: bool = True) -> Any:
    """One element of a dtype, as numpy or Python holds it exactly."""
    if dtype == "bool":
        return draw(st.booleans())
    if dtype in INTEGERS:
        low, high = limits(dtype)
        return draw(st.sampled_from([low, high, 0, 1]) | st.integers(low, high))
    if dtype in FLOATS:
        bits = draw(st.integers(0, 256 ** ITEM_BYTES[dtype] - 1))
        value = np.frombuffer(bits.to_bytes(ITEM_BYTES[dtype], "little"), NUMPY_TYPES[dtype])[0]
        return value if not finite or np.isfinite(value) else NUMPY_TYPES[dtype].type(0.5)
    text = draw(st.text(max_size=8))
    return text if dtype == "str" else draw(st.binary(max_size=8))


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[str] = DTYPES, finite: bool = True) -> Tensor:
    dtype: Any = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = math.prod(shape)
    values = draw(st.lists(elements(dtype, finite), min_size=count, max_size=count))
    if dtype in ("str", "bytes"):
        return Tensor(dtype, shape, values)
    return Tensor(dtype, shape, np.array(values, NUMPY_TYPES[dtype]).tobytes())


# --- the same bits on every way ---------------------------------------------------------------------------------


@given(tensors(finite=False))
def test_raw_there_and_back(tensor: Tensor) -> None:
    again = from_raw("x", tensor.dtype, tensor.shape, raw_of(tensor))
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert raw_of(again) == raw_of(tensor)


@given(tensors(finite=False))
def test_array_there_and_back(tensor: Tensor) -> None:
    array = to_array(tensor)
    assert array.shape == tensor.shape and array.dtype == NUMPY_TYPES[tensor.dtype]
    assert not array.flags.writeable
    assert raw_of(from_python("x", tensor.dtype, array)) == raw_of(tensor)
    if array.size:
        again = from_array(array)
        assert again.dtype == tensor.dtype and raw_of(again) == raw_of(tensor)


@given(tensors([dtype for dtype in DTYPES if dtype != "bytes"]))
def test_json_there_and_back(tensor: Tensor) -> None:
    text = to_json_values(tensor)
    json.loads(text)
    assert raw_of(from_json("x", tensor.dtype, tensor.shape, text)) == raw_of(tensor)


@given(tensors([dtype for dtype in DTYPES if dtype != "bytes"]))
def test_nested_json_and_lists_give_the_same_bits_as_flat_ones(tensor: Tensor) -> None:
    array = to_array(tensor)
    if tensor.dtype in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    nested = array.tolist()
    assert raw_of(from_json("x", tensor.dtype, tensor.shape, msgspec.json.encode(nested))) == raw_of(tensor)
    assert raw_of(from_python("x", tensor.dtype, nested)) == raw_of(tensor)


@given(tensors(sorted(FLOATS), finite=False))
def test_nan_and_infinities_survive_json_under_the_string_policy(tensor: Tensor) -> None:
    text = to_json_values(tensor, "string")
    got = to_array(from_json("x", tensor.dtype, tensor.shape, text, nan="string")).astype(np.float64)
    np.testing.assert_array_equal(got, to_array(tensor).astype(np.float64))


@given(tensors())
def test_rows_are_the_pieces_of_the_whole(tensor: Tensor) -> None:
    if not tensor.shape:
        return
    rows = rows_json(tensor)
    assert len(rows) == tensor.shape[0]
    for index, text in enumerate(rows):
        row = tensor.rows(index, index + 1)
        if text is None:
            with pytest.raises(Malformed if tensor.dtype == "bytes" else ModelFault):
                to_json_values(row)
        else:
            assert b"[" + text + b"]" == to_json_values(row)


@pytest.mark.parametrize("value", [1111111.0, 0.1, 1 / 3, 5e-324, 16777217, 3.4e38, 1e-45, -0.0, 2**24 + 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_printed_floats_read_back_to_the_same_bits(dtype: Any, value: float) -> None:
    bits = np.array([value]).astype(dtype).tobytes()
    text = to_json_values(Tensor(dtype, (1,), bits))
    assert np.array(json.loads(text), np.float64).astype(dtype).tobytes() == bits


def test_every_half_float_survives_json() -> None:
    for dtype in ("float16", "bfloat16"):
        every = np.arange(65536, dtype=np.uint16).view(NUMPY_TYPES[dtype])
        with np.errstate(invalid="ignore"):
            every = every[np.isfinite(every.astype(np.float64))]
        tensor = from_array(every)
        assert raw_of(from_json("x", tensor.dtype, tensor.shape, to_json_values(tensor))) == every.tobytes()


# --- decimals ---------------------------------------------------------------------------------------------------


def test_decimals_go_to_the_nearest_float32() -> None:
    tensor = from_json("x", "float32", (2,), b"[0.96,1.24]")
    assert tensor.data == np.array([0.96, 1.24], np.float32).tobytes()


@given(st.floats(-3e38, 3e38))
def test_decimals_go_to_the_nearest_bfloat16(value: float) -> None:
    """Against exact arithmetic: no other bfloat16 is nearer, and ties go to the even one."""
    got = int(np.frombuffer(from_python("x", "bfloat16", [value]).data, np.uint16)[0])
    here = abs(Fraction(_bfloat16(got)) - Fraction(value))
    for other in (got + 1, got - 1):
        if 0 <= other < 65536 and math.isfinite(_bfloat16(other)):
            there = abs(Fraction(_bfloat16(other)) - Fraction(value))
            assert here < there or (here == there and got % 2 == 0) or (here == there == 0)


def _bfloat16(bits: Any) -> float:
    return float(np.array([bits], np.uint16).view(ml_dtypes.bfloat16)[0])


def test_bfloat16_is_rounded_once() -> None:
    """1.00390625 and 1.01171875 are ties; just beside them the nearer neighbour wins, though float32 cannot tell."""
    text = b"[1.0039062500009, 1.00390625, 1.0039062499991, 1.0117187500009, 1.01171875, 1.0117187499991]"
    got = to_array(from_json("x", "bfloat16", (6,), text)).astype(float).tolist()
    assert got == [1.0078125, 1.0, 1.0, 1.015625, 1.015625, 1.0078125]


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
def test_integers_are_exact_to_their_limits(dtype: Any) -> None:
    low, high = limits(dtype)
    text = json.dumps([low, high]).encode()
    tensor = from_json("x", dtype, (2,), text)
    assert to_array(tensor).tolist() == [low, high]
    assert to_json_values(tensor).replace(b" ", b"") == text.replace(b" ", b"")
    for beyond in (low - 1, high + 1):
        with pytest.raises(Malformed, match=r"input 'x': the value at data\[1\] does not fit"):
            from_json("x", dtype, (2,), json.dumps([0, beyond]).encode())
        with pytest.raises(Malformed, match=r"data\[1\] does not fit"):
            from_python("x", dtype, [0, beyond])


# --- what JSON may not hold -------------------------------------------------------------------------------------

REFUSED: list[tuple[str, tuple[int, ...] | None, bytes, str]] = [
    ("int8", (1,), b"[1.5]", r"expected INT8 values, got a decimal number at data\[0\]"),
    ("int64", (1,), b"[1.0]", r"expected INT64 values, got a decimal number at data\[0\]"),
    ("int8", (1,), b"[300]", r"the value at data\[0\] does not fit INT8"),
    ("uint8", (1,), b"[-1]", r"the value at data\[0\] does not fit UINT8"),
    ("int32", (2,), b"[1,true]", r"expected INT32 values, got true or false at data\[1\]"),
    ("bool", (2,), b"[true,1]", r"expected BOOL values, got an integer at data\[1\]"),
    ("float32", (1,), b"[true]", r"expected FP32 values, got true or false at data\[0\]"),
    ("float32", (1,), b'["1"]', r"expected FP32 values, got a string at data\[0\]"),
    ("float32", (1,), b'["NaN"]', r"expected FP32 values, got a string at data\[0\]"),
    ("float32", (2,), b"[1,null]", r"null at data\[1\] is not allowed"),
    ("float32", (1, 2), b"[[1,null]]", r"null at data\[0\]\[1\] is not allowed"),
    ("int64", (1,), b"[null]", r"null at data\[0\] is not allowed for INT64"),
    ("bool", (1,), b"[null]", r"null at data\[0\] is not allowed for BOOL"),
    ("str", (1,), b"[null]", r"null at data\[0\] is not allowed for BYTES"),
    ("str", (1,), b"[1]", r"expected BYTES values, got an integer at data\[0\]"),
    ("float32", (1,), b"[NaN]", "not valid JSON"),
    ("float32", (1,), b"[1e400]", r"the value at data\[0\] does not fit FP32"),
    ("float32", (2,), b"[1,1e39]", r"the value at data\[1\] does not fit FP32"),
    ("float16", (1,), b"[65520]", r"the value at data\[0\] does not fit FP16"),
    ("bfloat16", (1, 2), b"[[1,3.4e38]]", r"the value at data\[0\]\[1\] does not fit BF16"),
    ("float64", (1,), b"[1e309]", r"the value at data\[0\] does not fit FP64"),
    ("str", (59,), b'["one string"]', r"shape \[59\] holds 59 elements, data hold 1"),
    ("float32", (2, 3), b"[1,2,3,4,5]", r"shape \[2, 3\] holds 6 elements, data hold 5"),
    ("float32", (2, 3), b"[1,2,3,4,5,6,7]", "data hold 7"),
    ("float32", (2, 2), b"[[1,2],[3]]", "ragged data: list 1 has 1 elements, list 0 has 2"),
    ("float32", None, b"[[1,2],[3]]", "ragged data"),
    ("float32", (2,), b"[1,[2]]", r"got a list at data\[1\]"),
    ("float32", (3, 2), b"[[1,2,3],[4,5,6]]", r"shape is \[3, 2\], data are nested as \[2, 3\]"),
    ("float32", (1,), b"1.5", r"shape is \[1\], data are nested as \[\]"),
    ("float32", (1,), b'{"a":1}', "got an object"),
    ("float32", (1,), b"null", "null is not allowed"),
    ("float32", (1,), b"", "not valid JSON"),
    ("float32", (2,), b"[1,]", "not valid JSON"),
    ("str", (1,), b'["\\ud800"]', "not valid JSON"),
    ("str", (1,), b'["\xff"]', "not valid JSON"),
    ("str", (1,), b'["\xed\xa0\x80"]', "not valid JSON"),
    ("float32", (1,), b"[" * 250_000, "nested more than 32 lists deep"),
    ("float32", (1,), b"[" * 33 + b"1" + b"]" * 33, "nested more than 32 lists deep"),
    ("int64", (1,), b"[" + b"9" * 1_000_000 + b"]", "does not fit INT64"),
    ("float64", (1,), b"[" + b"9" * 1_000_000 + b"]", "does not fit FP64"),
]


@pytest.mark.parametrize(("dtype", "shape", "text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused_json_names_input_and_place(dtype: Any, shape: Any, text: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=r"^input 'x': ") as refused:
        from_json("x", dtype, shape, text)
    refused.match(message)
    assert len(refused.value.message) < 400 and "\n" not in refused.value.message


@given(st.sampled_from(DTYPES), st.binary(max_size=40), st.lists(st.integers(0, 3), max_size=2), st.booleans())
def test_junk_is_malformed_and_nothing_else(dtype: Any, junk: bytes, shape: list[int], nested: bool) -> None:
    text = b"[" + junk + b"]" if nested else junk
    try:
        tensor = from_json("x", dtype, tuple(shape), text)
    except Malformed:
        return
    assert to_array(tensor).shape == tuple(shape)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), st.lists)


@given(st.sampled_from(DTYPES), JSON)
def test_json_and_python_values_are_judged_alike(dtype: Any, value: Any) -> None:
    text = json.dumps(value).encode()
    if b"NaN" in text or b"Infinity" in text or b"\\u" in text:
        return
    outcomes: list[Any] = []
    for way in (lambda: from_json("x", dtype, None, text), lambda: from_python("x", dtype, value)):
        try:
            tensor = way()
            outcomes.append((tensor.shape, raw_of(tensor)))
        except Malformed:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


def test_null_is_nan_where_nullable() -> None:
    for tensor in (
        from_json("x", "float32", (2,), b"[1,null]", nullable=True),
        from_json("x", "float16", (2, 1), b"[[1],[null]]", nullable=True),
        from_json("x", "bfloat16", (2,), b"[1,null]", nan="null"),
        from_python("x", "float64", [1, None], nullable=True),
    ):
        assert np.isnan(to_array(tensor).astype(float).ravel()).tolist() == [False, True]
    with pytest.raises(Malformed, match="for INT64"):
        from_json("x", "int64", (1,), b"[null]")


def test_scalars_and_inferred_shapes() -> None:
    assert from_json("x", "float32", (), b"1.5").data == struct.pack("<f", 1.5)
    assert from_json("x", "float32", (), b"[1.5]").data == struct.pack("<f", 1.5)
    assert from_json("x", "int8", None, b"7").shape == ()
    assert from_json("x", "int8", None, b" [ [1, 2],\n [3, 4], [5, 6] ] ").shape == (3, 2)
    assert from_json("x", "int8", None, b"[]").shape == (0,)
    assert from_json("x", "int8", None, b"[[],[]]").shape == (2, 0)
    assert from_json("x", "int8", (0, 5), b"[]").shape == (0, 5)
    assert from_json("x", "str", (1,), b'["\\u0000"]').data == ["\0"]


def test_pad_fills_ragged_lists() -> None:
    tensor = from_json("x", "int8", None, b"[[[1,2],[3]],[[4]]]", pad=-1)
    assert to_array(tensor).tolist() == [[[1, 2], [3, -1]], [[4, -1], [-1, -1]]]
    assert to_array(from_python("x", "str", [["a"], []], pad="-")).tolist() == [["a"], ["-"]]


def test_many_shapes_do_not_fill_the_memory() -> None:
    for count in range(2000):
        from_json("x", "int8", (0, count), b"[]")
    assert all(len(plans) <= 512 for plans in json_tensors._PLANS.values())


# --- raw --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "shape", "raw", "message"),
    [
        ("float32", (2,), b"1234567", r"FP32 \[2\] takes 8 bytes, got 7"),
        ("bool", (2,), b"\x00\x02", "BOOL elements must be bytes of value 0 or 1"),
        ("bytes", (2,), b"\x01\0\0\0a", "cannot hold 2 BYTES elements"),
        ("bytes", (1,), b"\x02\0\0\0a", "element 0 runs past the end"),
        ("bytes", (2,), b"\x01\0\0\0a\xff\xff\xff\xff", "element 1 runs past the end"),
        ("bytes", (1,), b"\x01\0\0\0ab", "1 bytes follow the last of 1 elements"),
        ("bytes", (0,), b"\0\0\0\0", "4 bytes follow the last of 0 elements"),
        ("bytes", (2**50,), b"\0\0\0\0", "cannot hold"),
        ("str", (2,), b"\x01\0\0\0a\x01\0\0\0\xff", "element 1 is not UTF-8"),
    ],
)
def test_refused_raw(dtype: Any, shape: Any, raw: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=f"^input 'x': .*{message}"):
        from_raw("x", dtype, shape, raw)


@given(st.sampled_from(DTYPES), st.binary(max_size=40), st.lists(st.integers(0, 3), max_size=2))
def test_junk_bytes_are_malformed_or_come_back_as_they_were(dtype: Any, junk: bytes, shape: list[int]) -> None:
    try:
        tensor = from_raw("x", dtype, tuple(shape), junk)
    except Malformed:
        return
    assert raw_of(tensor) == junk


def test_blobs_keep_every_byte() -> None:
    blobs = [b"\x00\x00", b"a\x00", b"", b"\xff\xfe"]
    tensor = from_python("x", "bytes", np.array(blobs, object))
    assert from_raw("x", "bytes", (4,), raw_of(tensor)).data == blobs


def test_views_are_not_copied_but_aligned() -> None:
    body = bytearray(b"\0" + struct.pack("<4f", 1, 2, 3, 4))
    tensor = from_raw("x", "float32", (4,), memoryview(body)[1:])
    array = to_array(tensor)
    assert array.flags.aligned and array.tolist() == [1, 2, 3, 4]
    assert np.shares_memory(to_array(from_raw("x", "uint8", (17,), body)), np.frombuffer(body, np.uint8))


# --- Python values ----------------------------------------------------------------------------------------------


def views() -> list[tuple[str, Any]]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    return [
        ("transposed", x.T), ("sliced", x[::2]), ("reversed", x[::-1, ::-1]), ("column", x[:, 1]),
        ("broadcast", np.broadcast_to(x[0], (5, 4))), ("fortran", np.asfortranarray(x)),
        ("big endian", x.astype(">f4")), ("scalar", x[1, 1]), ("empty", x[:0]), ("matrix of one", x[:1, :1]),
    ]  # fmt: skip


@pytest.mark.parametrize(("label", "view"), views(), ids=[label for label, _ in views()])
def test_any_view_is_its_contiguous_copy(label: str, view: Any) -> None:
    copy = np.array(view, np.float32, order="C")
    for tensor in (from_python("x", "float32", view), from_array(np.asarray(view))):
        assert tensor.shape == copy.shape and raw_of(tensor) == copy.tobytes()


@pytest.mark.parametrize("text", [">f4", ">i8", ">u2", ">f8", ">f2"])
def test_byte_order_is_swapped(text: str) -> None:
    array = np.array([1, 2], text)
    tensor = from_array(array)
    assert to_array(tensor).tolist() == [1, 2] and raw_of(tensor) == array.astype(text.replace(">", "<")).tobytes()


@pytest.mark.parametrize("given_type", [*NUMBERS, "bool"])
@pytest.mark.parametrize("declared", [*NUMBERS, "bool"])
def test_arrays_widen_exactly_or_are_refused(given_type: str, declared: Any) -> None:
    info: Any = np.iinfo(given_type) if given_type in INTEGERS else None
    if info is not None:
        extremes = [int(info.min), int(info.max), 0, 1]
        array = np.array(extremes, given_type)
    else:
        array = np.array([0, 1], bool).astype(NUMPY_TYPES[given_type])
    try:
        tensor = from_python("x", declared, array)
    except Malformed as error:
        assert error.message.startswith(f"input 'x': expected {DATATYPES[declared]}, got ")
        return
    assert declared == given_type or ITEM_BYTES[declared] >= ITEM_BYTES[given_type]
    assert [Fraction(v) for v in to_array(tensor).astype(object)] == [Fraction(v) for v in array.astype(object)]


def test_narrowing_is_never_silent() -> None:
    for value in (np.array([1]), np.int64(1), [np.array([1])], np.array([1.0])):
        with pytest.raises(Malformed, match=r"input 'ids': expected INT32, got (INT64|FP64)"):
            from_python("ids", "int32", value)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int8", [1, 1.0], r"expected INT8 values, got float at data\[1\]"),
        ("int8", [True], r"got bool at data\[0\]"),
        ("bool", [1], r"got int at data\[0\]"),
        ("float32", [1, None], r"missing value at data\[1\]"),
        ("str", ["a", float("nan")], r"missing value at data\[1\]"),
        ("str", ["a", b"b"], r"got bytes at data\[1\]"),
        ("str", ["a", "\ud800"], r"text at data\[1\] holds a lone surrogate"),
        ("bytes", ["\ud800"], r"value at data\[0\] does not fit"),
        ("int8", [[1, 2], [3]], "ragged"),
        ("int8", [[1, 2], 3], "ragged data: lists and a int side by side"),
        ("float64", [10**400], r"value at data\[0\] does not fit FP64"),
        ("float64", np.array(["2020-01-01"], "M8[D]"), r"expected FP64, got datetime64\[D\]"),
        ("float64", np.array([1], np.complex128), "got complex128"),
        ("float32", {"a": 1}, "got dict"),
        ("float32", object(), "got object"),
        ("bytes", np.array(["a"]), "expected bytes elements, got str"),
        ("float32", np.ma.array([1, 2], mask=[0, 1], dtype="f4"), r"missing value at data\[1\]"),
    ],
)
def test_refused_python_values(dtype: Any, value: Any, message: str) -> None:
    with pytest.raises(Malformed, match=f"^input 'x': .*{message}"):
        from_python("x", dtype, value)


def test_numpy_scalars_in_lists_are_values() -> None:
    assert to_array(from_python("x", "float32", [np.float32(1.5), np.int64(2), 3])).tolist() == [1.5, 2.0, 3.0]
    assert to_array(from_python("x", "bfloat16", [ml_dtypes.bfloat16(1.5)])).astype(float).tolist() == [1.5]
    assert from_python("x", "str", [np.str_("a")]).data == ["a"]
    assert type(from_array(np.array([np.str_("a")], object)).data[0]) is str
    assert from_python("x", "bytes", [bytearray(b"a"), "b", memoryview(b"c")]).data == [b"a", b"b", b"c"]
    assert to_array(from_python("x", "float32", [math.nan, -math.inf])).tolist()[1] == -math.inf


def test_pandas_columns() -> None:
    pd = pytest.importorskip("pandas")
    assert to_array(from_python("x", "int64", pd.Series([1, 2], dtype="int32"))).tolist() == [1, 2]
    assert to_array(from_python("x", "int64", pd.Series([2**53 + 1, 2], dtype="Int64"))).tolist() == [2**53 + 1, 2]
    assert from_python("x", "str", pd.Series(["a", "b"])).data == ["a", "b"]
    assert from_python("x", "str", pd.Series(["a", "b"], dtype="category")).data == ["a", "b"]
    assert from_python("x", "float32", pd.Series([[1, 2], [3, 4]])).shape == (2, 2)
    assert from_python("x", "float64", pd.DataFrame({"a": [1.0, 2], "b": [3.0, 4]})).shape == (2, 2)
    got = to_array(from_python("x", "float64", pd.Series([1, None], dtype="Float64"), nullable=True))
    assert got[0] == 1 and math.isnan(got[1])
    for refused in (pd.Series([1, None], dtype="Int64"), pd.Series([1.0])):
        with pytest.raises(Malformed):
            from_python("x", "int64", refused)
    with pytest.raises(Malformed, match=r"missing value at data\[1\]"):
        from_python("x", "str", pd.Series(["a", None]))


def test_arrow_columns() -> None:
    pa = pytest.importorskip("pyarrow")
    f4 = pa.list_(pa.float32())
    for declared, value, wanted in [
        ("int64", pa.array([1, 2]), [1, 2]),
        ("int64", pa.chunked_array([[1, 2], [3]]), [1, 2, 3]),
        ("bool", pa.array([True, False]), [True, False]),
        ("str", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("bytes", pa.array([b"a\0", b"\xff"]), [b"a\0", b"\xff"]),
        ("float32", pa.array([[0], [1.0, 2], [3, 4]], f4)[1:], [[1, 2], [3, 4]]),
        ("float32", pa.array([[0.0, 0], [1.0, 2]], pa.list_(pa.float32(), 2))[1:], [[1, 2]]),
        ("int64", pa.chunked_array([[[1], [2]], [[3]]]), [[1], [2], [3]]),
        ("int64", pa.array([[[1], [2]], [[3], [4]]]), [[[1], [2]], [[3], [4]]]),
        ("str", pa.array([["a"], ["b"]]), [["a"], ["b"]]),
        ("int64", pa.scalar(3), 3),
    ]:
        assert to_array(from_python("x", declared, value)).tolist() == wanted
    assert math.isnan(to_array(from_python("x", "float32", pa.array([1, None], pa.float32()), nullable=True))[1])
    assert to_array(from_python("x", "float32", pa.array([[1.0, 2], [3]], f4), pad=0)).tolist() == [[1, 2], [3, 0]]
    for value, message in [
        (pa.array([1, None], pa.float32()), r"missing value at data\[1\]"),
        (pa.array([[1.0, 2], [3, 4]]), "expected FP32, got FP64"),
        (pa.array([[1.0, 2], [3]], f4), "ragged"),
        (pa.array([1], pa.timestamp("ns")), "expected FP32"),
    ]:
        with pytest.raises(Malformed, match=message):
            from_python("x", "float32", value)


# --- shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [5, "ab", None, [1, -1], ["2"], [2.0], [True], [None], [16, 1152921504606846978], [2**63 - 1] * 2, [1] * 33,
     [0, 2**40, 2**40], [10**30]],
)  # fmt: skip
def test_refused_shapes_name_the_input(shape: Any) -> None:
    with pytest.raises(Malformed, match="input 'x': shape"):
        checked_shape("x", shape)


def test_allowed_shapes() -> None:
    assert checked_shape("x", [2, 0, 3]) == (2, 0, 3)
    assert checked_shape("x", []) == ()
    assert checked_shape("x", (1,) * 32) == (1,) * 32


# --- what JSON cannot show --------------------------------------------------------------------------------------


def test_policies_for_nan() -> None:
    tensor = Tensor("float32", (2, 2), np.array([[1, np.nan], [np.inf, -np.inf]], np.float32))
    with pytest.raises(ModelFault, match=r"output 'y' holds NaN or an infinity.*nan=null"):
        to_json_values(tensor, name="y")
    assert to_json_values(tensor, "null") == b"[1.0,null,null,null]"
    assert to_json_values(tensor, "string") == b'[1.0,"NaN","Infinity","-Infinity"]'
    assert rows_json(tensor, "string") == [b'1.0,"NaN"', b'"Infinity","-Infinity"']


def test_a_row_that_cannot_be_shown_spoils_no_other() -> None:
    floats = Tensor("float64", (3,), np.array([1, np.nan, 3]))
    assert rows_json(floats) == [b"1.0", None, b"3.0"]
    blobs = Tensor("bytes", (2, 2), [b"a", b"\xff", b"b", b"c"])
    assert rows_json(blobs) == [None, b'"b","c"']
    whose = coerce.unprintable(blobs, name="y")
    assert type(whose) is Malformed and "binary" in whose.message, "the caller chooses the form"
    assert type(coerce.unprintable(Tensor("str", (1,), ["\ud800"]))) is ModelFault
    assert type(coerce.unprintable(floats)) is ModelFault
    assert rows_json(Tensor("str", (2,), ["\ud800", "n"])) == [None, b'"n"']


def test_texts_with_separators_stay_whole() -> None:
    texts = ["a", '",', "\\", '","', "],[", "n\n", "é"]
    rows = rows_json(Tensor("str", (7,), texts))
    assert [json.loads(text or b"null") for text in rows] == texts


def test_rows_of_nothing() -> None:
    assert rows_json(Tensor("float32", (0, 3), b"")) == []
    assert rows_json(Tensor("float32", (2, 0), b"")) == [b"", b""]
    assert to_json_values(Tensor("int64", (0, 3), b"")) == b"[]"
    assert rows_json(Tensor("bool", (2, 1, 2), b"\0\1\1\0")) == [b"false,true", b"true,false"]


@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from(["int64", "str"]),
    st.booleans(),
    st.sampled_from(["", ",", "[,]", '","', "\\", '\\",', "\u00e9,"]),
)
def test_counting_elements_before_reading_them_refuses_nothing_that_fits(shape, dtype, nested, text) -> None:
    array = np.full(shape, text if dtype == "str" else 7, object)
    values = array.tolist() if nested else array.reshape(-1).tolist()
    raw = json.dumps(values, ensure_ascii=False, indent=1).encode()
    check_number("x", tuple(shape), commas(memoryview(raw), dtype == "str", no_pause))
    assert from_json("x", dtype, tuple(shape), raw).shape == tuple(shape)


@pytest.mark.parametrize("dtype", ["int64", "float32", "bool", "str"])
@pytest.mark.parametrize("piece", [b"[]", b"7", b'"a"', b"[1]", b"null"])
@pytest.mark.parametrize("shape", [(1,), (2, 0), (0,), (2, 2)])
def test_many_elements_for_a_small_shape_are_refused_unread(dtype, piece, shape, monkeypatch) -> None:
    def read(*arguments: Any) -> Any:
        raise AssertionError("read")

    monkeypatch.setattr(json_tensors, "_plan", read)
    monkeypatch.setattr(json_tensors, "_from_json", read)
    monkeypatch.setitem(json_tensors._PLANS, dtype, {})
    raw = b"[" + b",".join([piece] * 40_000) + b"]"
    with pytest.raises(Malformed, match=r"data hold 40000"):
        from_json("x", dtype, shape, raw)
