"""UBJSON: every kind of value is read, and what is none is refused wherever it breaks off."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from maitred.model.flavors.xgboost.ubjson import decode


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"i\xff", -1),
        (b"U\xff", 255),
        (b"I\x01\x00", 256),
        (b"l\x00\x01\x00\x00", 65536),
        (b"L" + struct.pack(">q", -(2**40)), -(2**40)),
        (b"d" + struct.pack(">f", 0.5), 0.5),
        (b"D" + struct.pack(">d", 0.1), 0.1),
        (b"T", True),
        (b"F", False),
        (b"Z", None),
        (b"Si\x03\xc3\xb6x", "öx"),
        (b"[i\x01i\x02]", [1, 2]),
        (b"[#U\x02TF", [True, False]),
        (b"{i\x01a[]U\x01b{}}", {"a": [], "b": {}}),
    ],
)
def test_values(data: bytes, value: Any) -> None:
    assert decode(data) == value


def test_lists_of_one_type_are_arrays_of_it() -> None:
    found = decode(b"{i\x01a[$d#L" + struct.pack(">qff", 2, 1.5, -2.0) + b"i\x01b[$i#i\x01\x07}")
    assert found["a"].dtype == np.dtype(">f4")
    assert found["a"].tolist() == [1.5, -2.0]
    assert found["b"].tolist() == [7]


WHOLE = b"{i\x01a[$d#L" + struct.pack(">qf", 1, 1.5) + b"i\x01bSi\x02hii\x01c[#U\x01T}"


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_value_that_breaks_off_is_refused(size: int) -> None:
    decode(WHOLE)
    with pytest.raises(ValueError, match=r".+"):
        decode(WHOLE[:size])


@pytest.mark.parametrize(
    "data",
    [
        WHOLE + b"T", b"?", b"[" * 1000, b"{i\x01a" * 1000, b"Si\xff", b"Sd\x00\x00\x00\x00", b"ST", b"Si\x01\xff",
        b"[$S#i\x01", b"[$d]", b"[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff", b"[#L\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"[#L\xff\xff\xff\xff\xff\xff\xff\xff", b"{Z",
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(data)
