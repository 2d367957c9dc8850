"""What is written in a block is read from it, and nothing that lies outside."""

from __future__ import annotations

import math
import mmap
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maitred.messages import ITEM_BYTES
from maitred.replica.layout import Invalid, body, lay_out, loose_bytes, pack_items, raw, read, read_head, write_loose
from maitred.wire.coerce import NUMPY_TYPES

SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...], Any]]:
    """By name: dtype, shape, and raw bytes or elements."""
    made: dict[str, tuple[str, tuple[int, ...], Any]] = {}
    for name in draw(st.lists(st.text(max_size=5), unique=True, max_size=5)):
        dtype = draw(st.sampled_from([*ITEM_BYTES, "str", "bytes"]))
        shape = draw(SHAPES)
        count = math.prod(shape)
        if dtype in ITEM_BYTES:
            size = count * ITEM_BYTES[dtype]
            made[name] = (dtype, shape, draw(st.binary(min_size=size, max_size=size)))
        else:
            items = TEXTS if dtype == "str" else st.binary(max_size=9)
            made[name] = (dtype, shape, draw(st.lists(items, min_size=count, max_size=count)))
    return made


def write(block: mmap.mmap, at: int, given: dict[str, tuple[str, tuple[int, ...], Any]]) -> tuple[bytes, int]:
    """The head, and where the block's content ends."""
    layout = lay_out((name, dtype, shape) for name, (dtype, shape, _) in given.items())
    start = at + body(len(layout.head))
    block[at : at + len(layout.head)] = layout.head
    for fixed in layout.fixed:
        block[start + fixed.start : start + fixed.stop] = given[fixed.name][2]
    packed = [pack_items(given[name][2]) for name, _, _ in layout.loose]
    write_loose(block, start + layout.end, packed)
    return layout.head, start + layout.end + loose_bytes(packed)


@given(tensors(), st.integers(0, 3))
def test_all_dtypes_and_shapes_come_back(given: dict[str, tuple[str, tuple[int, ...], Any]], page: int) -> None:
    block = mmap.mmap(-1, 1 << 17)
    at = page * 4096
    head, end = write(block, at, given)
    layout = read_head(head)
    found = read(memoryview(block).toreadonly(), at + layout.start, layout, end)
    assert found.keys() == given.keys()
    for name, (dtype, shape, data) in given.items():
        if dtype in ITEM_BYTES:
            assert (found[name].dtype, found[name].shape) == (NUMPY_TYPES[dtype], shape)
            assert found[name].tobytes() == data
            assert not found[name].size or not found[name].flags.writeable
            assert not found[name].size or found[name].ctypes.data % 64 == 0
        else:
            assert found[name] == data
    if end > at + layout.start:
        with pytest.raises(Invalid):
            read(memoryview(block), at + layout.start, layout, at + layout.start - 1)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_head_whatever_leads_outside(head: bytes, room: int) -> None:
    block = memoryview(b"\xff" * 64 + bytes(range(200)))
    try:
        layout = read_head(head)
        found = read(block, 64, layout, 64 + room)
    except Invalid:
        return
    for value in found.values():
        assert isinstance(value, list) or value.nbytes <= room


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ([["x", "float31", [1]]], "unknown dtype"),
        ([["x", "float32", [-1]]], "impossible shape"),
        ([["x", "float32", [1] * 33]], "impossible shape"),
        ([["x", "float32", [1]], ["x", "int8", [1]]], "twice"),
        ([["x", "float32", [2**62, 2**62]]], "beyond"),
        ([["x", "float32", [1.5]]], "cannot be read"),
        ([["x", "float32"]], "cannot be read"),
        ({"x": 1}, "cannot be read"),
    ],
)
def test_heads_that_lie_are_invalid(named: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        read(memoryview(bytes(4096)), 0, read_head(msgspec.msgpack.encode(named)), 4096)


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        ((1 << 60).to_bytes(8, "little"), "beyond"),
        ((2**64 - 8).to_bytes(8, "little"), "beyond"),
        (b"\1\0\0\0\0\0\0\0\xc1", "no str"),
        (pack_items(["a"]), "holds 1 elements, not 2"),
        (pack_items([b"\xff", b"a"]), "no str"),
        (pack_items(["a", "b"]).replace(b"b", b"\xff"), "no str"),
        (b"", "beyond"),
    ],
)
def test_elements_that_lie_are_invalid(packed: bytes, says: str) -> None:
    layout = lay_out([("x", "str", (2,))])
    with pytest.raises(Invalid, match=says):
        read(memoryview(packed + bytes(1)), 0, layout, len(packed))


def test_text_that_is_no_unicode_cannot_be_packed() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack_items(["\ud800"])


def test_raw_takes_any_layout_of_memory() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for some in (array, array.T, array[::2], array.astype(NUMPY_TYPES["bfloat16"]), np.float32(3).reshape(())):
        assert bytes(raw(some)) == some.tobytes()
    assert raw(b"abc") == b"abc"
