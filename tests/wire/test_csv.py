"""CSV files: the rules of JSON, with the row, the line and the column of whatever breaks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.signature import Signature
from maitred.wire import csv
from maitred.wire.coerce import to_array
from maitred.wire.missing import NAT, Partial


def read(text: str | bytes, **inputs: str) -> dict[str, Tensor] | None:
    signature = Signature(inputs, {"y": "float32[n]"})
    return csv.tensors(text if isinstance(text, bytes) else text.encode(), signature.inputs, signature.shared)


def column(text: str | bytes, **inputs: str) -> Any:
    found = read(text, **inputs)
    assert found is not None
    tensor = found[next(iter(inputs))]
    return to_array(tensor).tolist()


@pytest.mark.parametrize(
    ("kind", "fields", "wanted"),
    [
        ("int64[n]", "9223372036854775807\n-9223372036854775808\n-0\n 7 ", [2**63 - 1, -(2**63), 0, 7]),
        ("uint64[n]", "18446744073709551615\n0", [2**64 - 1, 0]),
        ("float64[n]", "0.1\n-0.0\n1e3\n5e-324\n9007199254740993\n1.7976931348623157e308",
         [0.1, -0.0, 1000.0, 5e-324, 9007199254740992.0, 1.7976931348623157e308]),
        ("float32[n]", "0.1\n1", [float(np.float32(0.1)), 1.0]),
        ("float32[n] nan=string", "Infinity\n-Infinity", [np.inf, -np.inf]),
        ("bool[n]", "true\nFalse\nTRUE", [True, False, True]),
        ("str[n]", 'a\n"b,c"\n"d""e"\n" f "\n"two\nlines"', ["a", "b,c", 'd"e', " f ", "two\nlines"]),
        ("str[n]", '""\nnull\n1', ["", "null", "1"]),
        ("bytes[n]", "a\n\u00e9", [b"a", "\u00e9".encode()]),
        ('int64[n] time="ms"', "2026-01-01\n5", [1_767_225_600_000, 5]),
        ('int64[n] time="s" zone="UTC" nullable', '1970-01-01T05:30:00+05:30\n""', [0, NAT]),
        ("float32[n, 2]", '"[1, 2]"\n"[3,4]"', [[1.0, 2.0], [3.0, 4.0]]),
        ("float32[n, k] pad=0", '"[1, 2]"\n[3]', [[1.0, 2.0], [3.0, 0.0]]),
        ("int64[n] default=7", '1\n""\n3', [1, 7, 3]),
        ('str[n] default="?"', 'a\n""', ["a", "?"]),
    ],
)  # fmt: skip
def test_fields_become_elements(kind: str, fields: str, wanted: list[Any]) -> None:
    assert column(f"x\n{fields}\n", x=kind) == wanted
    assert column(f"x\r\n{fields}".replace("\n", "\r\n").replace("two\r\nlines", "two\nlines"), x=kind) == wanted


@pytest.mark.parametrize(
    ("kind", "fields", "valid"),
    [
        ("int64[n] nullable", '1\n""\n3', [1, 0, 1]),
        ("bool[n] nullable", '""\ntrue', [0, 1]),
        ("str[n] nullable", 'a\n""', [1, 0]),
        ("int64[n, 2] nullable", '"[1, null]"\n"[2, 3]"', [1, 0, 1, 1]),
    ],
)
def test_empty_fields_are_missing(kind: str, fields: str, valid: list[int]) -> None:
    found = read(f"x\n{fields}\n", x=kind)
    assert found is not None and isinstance(found["x"], Partial)
    assert list(found["x"].valid) == valid


def test_missing_floats_are_nan() -> None:
    for kind in ("float32[n] nullable", "float64[n] nan=null"):
        assert np.isnan(column('x\n1\n""\n', x=kind)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("int64[n]", "1\n1.5", "row 2 (line 3), column 'x': expected INT64, got '1.5'"),
        ("int64[n]", "1\n007", "row 2 (line 3), column 'x': expected INT64, got '007'"),
        ("int64[n]", "1e3", "row 1 (line 2), column 'x': expected INT64, got '1e3'"),
        ("int64[n]", "9223372036854775808", "row 1 (line 2), column 'x': the value does not fit INT64"),
        ("int64[n]", "9" * 5000, "row 1 (line 2), column 'x': expected INT64"),
        ("int8[n]", "1\n300", "row 2 (line 3), column 'x': the value does not fit INT8"),
        ("float32[n]", "1e39", "row 1 (line 2), column 'x': the value does not fit FP32"),
        ("float32[n]", "NaN", "row 1 (line 2), column 'x': expected FP32, got 'NaN'"),
        ("float32[n]", "1,5", "row 1 (line 2) has 2 fields, the header has 1"),
        ("float32[n]", '""', "row 1 (line 2), column 'x': the value is missing"),
        ("bool[n]", "1", "row 1 (line 2), column 'x': expected true or false, got '1'"),
        ("bool[n]", "yes", "row 1 (line 2), column 'x': expected true or false, got 'yes'"),
        ("str[n]", 'a\n"two\nlines"\n"b', "line 5: unexpected end of data"),
        ("str[n]", '"a"b', "line 2: "),
        ('int64[n] time="s"', "2026-01-01\nsoon", "row 2 (line 3), column 'x': the value is no ISO 8601 time"),
        ('int64[n] time="s"', "2026-01-01T00:00:00.5", "row 1 (line 2), column 'x': the value is finer than s"),
        ("float32[n, 2]", '"[1, 2]"\n"[3, x]"', "row 2 (line 3), column 'x': expected a JSON list: data are not valid"),
        ("float32[n, 2]", '"[1, 2]"\n""', "row 2 (line 3), column 'x': expected a JSON list"),
        ("float32[n, 2]", '"[1, 2],[3, 4]"', "row 1 (line 2), column 'x': expected a JSON list"),
        ("float32[n, k]", '"[1, 2]"\n[3]', "ragged data: list 1 has 1 elements, list 0 has 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(kind: str, fields: str, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        read(f"x\n{fields}\n", x=kind)
    assert why in refused.value.message


def test_lines_and_rows_are_counted_apart() -> None:
    with pytest.raises(Malformed, match=r"^row 3 \(line 6\), column 'x': expected INT64, got 'b'"):
        read('x,t\n1,"two\nlines"\n\n2,""\nb,c\n', x="int64[n]")


@pytest.mark.parametrize("text", [b'\xef\xbb\xbf"x",y\n1,2\n', b"\xef\xbb\xbfx\n1\n", b"x\n1\n\n\n"])
def test_a_byte_order_mark_is_no_part_of_a_name(text: bytes) -> None:
    assert column(text, x="int64[n]") == [1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        ("x\n1\n".encode("utf-16"), "the file is UTF-16, not CSV in UTF-8: save it as that"),
        ("x\n1\n".encode("utf-16-le"), "line 1 holds a NUL: the file is UTF-16"),
        (b"x\n1\n\xff\n", "line 3 is not UTF-8 text"),
        (b"PK\x03\x04", "a spreadsheet or zip"),
        (b"\xef\xbb\xbf\xef\xbb\xbfx\n1\n", r"there is no column 'x'; there are '\ufeffx'"),
        (b" x,X\n1,2\n", "there is no column 'x'; there are ' x', 'X'"),
        (b"x;y\n1;2\n", "fields must be parted by commas"),
        (b"x,x\n1,2\n", "the column 'x' is there twice"),
    ],
)
def test_files_that_are_no_csv(text: bytes, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        read(text, x="int64[n]")
    assert why in refused.value.message


def test_a_header_alone_has_no_rows() -> None:
    assert read("x\n", x="int64[n]") is None
    assert read("x", x="int64[n]") is None


def test_columns_may_be_left_out_where_inputs_may() -> None:
    found = read("x,z\n1,\n2,\n", x="int64[n]", y="float32[n] optional", z="float32[n] optional")
    assert found is not None and found.keys() == {"x"}, "a column without any value is none"
    with pytest.raises(Malformed, match=r"row 2 \(line 3\), column 'z': the value is missing"):
        read("x,z\n1,1\n2,\n", x="int64[n]", z="float32[n] optional")


def test_an_input_without_rows_has_one_value() -> None:
    found = read('x,s,w\n1,0.5,"[1,2]"\n2,0.5,"[1,2]"\n', x="int64[n]", s="float32[]", w="float32[2]")
    assert found is not None
    assert (found["s"].shape, found["w"].shape) == ((), (2,))
    with pytest.raises(Malformed, match="column 's' has no rows: its value must be the same in every row"):
        read("x,s\n1,0.5\n2,1\n", x="int64[n]", s="float32[]")


def test_long_texts_are_read_and_the_limit_is_left_as_it_was() -> None:
    import csv as library

    before = library.field_size_limit()
    assert column("x\n" + "a" * 300_000 + "\n", x="str[n]") == ["a" * 300_000]
    assert library.field_size_limit() == before


def test_an_optional_column_in_another_spelling_is_refused() -> None:
    inputs = {"age": "int64[n]", "home_country": 'str[n] default="?"'}
    with pytest.raises(Malformed, match="a column 'Home Country' and none 'home_country', which may be left out"):
        read("age,Home Country\n3,se\n", **inputs)
    for text, names in (("age,note\n3,se\n", {"age"}), ("age,home_country,HOME-COUNTRY\n3,se,de\n", {*inputs})):
        found = read(text, **inputs)
        assert found is not None and found.keys() == names
