"""What lists would cost is seen in their text, before they are read; even ones are read without a list of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.wire import json_pieces, json_tensors, nesting
from maitred.wire.coerce import from_json, to_array
from maitred.wire.nesting import (
    MAX_EMPTY_LISTS,
    MAX_UNEVEN_LISTS,
    Evenness,
    are_even,
    check_empty_lists,
    flat,
    sizes,
    structure,
)
from maitred.wire.pieces import no_pause

LONG = 1 << 16
"""Bytes beyond which text is looked at before it is read."""


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How deep the lists were that decoders were asked for."""
    seen: list[int] = []
    decoder = json_tensors.decoder

    def noted(dtype: Any, depth: int, *rest: Any) -> Any:
        seen.append(depth)
        return decoder(dtype, depth, *rest)

    monkeypatch.setattr(json_tensors, "decoder", noted)
    monkeypatch.setattr(json_pieces, "decoder", noted)
    return seen


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (b"[" + b"[]," * (2 * MAX_EMPTY_LISTS) + b"[]]", 0),
        (b"[" + b"[ \n]," * (2 * MAX_EMPTY_LISTS) + b"[1]]", 1),
        (b"[" * 31 + b"[]," * (2 * MAX_EMPTY_LISTS) + b"[]" + b"]" * 31, 0),
        (b"[" + b"[],[[]]," * MAX_EMPTY_LISTS + b"[]]", 0),
        (b"[" + b'["[],"],[],[],' * MAX_EMPTY_LISTS + b"[]]", MAX_EMPTY_LISTS),
    ],
)
@pytest.mark.parametrize("shape", [None, (2 * MAX_EMPTY_LISTS + 1,)])
def test_lists_that_hold_nothing_are_refused_unread(text: bytes, elements: int, shape: Any, depths: list[int]) -> None:
    with pytest.raises(Malformed, match=f"^input 'x': [0-9]+ empty lists beside {elements} elements"):
        json_tensors._from_json(json_tensors.Target.of("x", "str", False, "error", None), shape, text, "")
    assert depths == []


def test_empty_lists_among_as_many_elements_are_fine() -> None:
    check_empty_lists("x", b"[" + b"[]," * (MAX_EMPTY_LISTS - 1) + b"[]]")
    check_empty_lists("x", b"[" + b"[],[1]," * (2 * MAX_EMPTY_LISTS) + b"[2]]")
    check_empty_lists("x", b"[" + b'["[]","[ ]"],' * (2 * MAX_EMPTY_LISTS) + b"[]]")
    tensor = from_json("x", "int64", None, b"[" + b"[],[1,2]," * (LONG // 8) + b"[]]", pad=0)
    assert tensor.shape == (LONG // 4 + 1, 2) and int(to_array(tensor).sum()) == 3 * (LONG // 8)


def test_more_uneven_lists_than_may_be_read_are_refused_unread(depths: list[int]) -> None:
    text = b"[" + b"[1]," * MAX_UNEVEN_LISTS + b"[1,2]]"
    with pytest.raises(Malformed, match=r"^input 'x': 1048578 lists, and they are not all alike"):
        from_json("x", "int64", None, text, pad=0)
    assert depths == []


@pytest.mark.parametrize(("dtype", "element"), [("int64", b"7"), ("float32", b"0.5"), ("str", b'"[\\"],\\\\"')])
def test_even_lists_are_read_as_one(dtype: Any, element: bytes, depths: list[int]) -> None:
    text = b"[" + b",".join([b"[[%b, %b]\n,[%b,%b]]" % ((element,) * 4)] * LONG) + b"]"
    for shape in (None, (LONG, 2, 2)):
        tensor = from_json("x", dtype, shape, text)
        assert tensor.shape == (LONG, 2, 2)
        assert set(to_array(tensor).reshape(-1).tolist()) == {json.loads(element)}
    assert 3 not in depths


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b'["a"]', r"got a string at data\[65536\]\[0\]"),
        (b"1", r"got an integer at data\[65536\]"),
        (b"[[1]]", r"got a list at data\[65536\]\[0\]"),
        (b"[null]", r"null at data\[65536\]\[0\]"),
        (b"[1,2]", "ragged data: list 65536 has 2 elements, list 0 has 1"),
        (b"[]", "ragged data: list 65536 has 0 elements, list 0 has 1"),
        (b"[9223372036854775808]", r"at data\[65536\]\[0\] does not fit INT64"),
    ],
)
def test_what_is_wrong_in_a_long_text_is_still_said(wrong: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        from_json("x", "int64", None, b"[" + b"[1]," * LONG + wrong + b"]")


def test_a_long_text_of_another_shape_than_it_says_is_refused() -> None:
    with pytest.raises(Malformed, match=r"shape is \[65536, 2\], data are nested as \[131072, 1\]"):
        from_json("x", "int64", (LONG, 2), b"[" + b",".join([b"[1]"] * (2 * LONG)) + b"]")


ELEMENTS = st.integers(-5, 5) | st.sampled_from(["", "[", '"]', "a,b", "\\", '\\"['])


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data(), st.booleans())
def test_sizes_and_elements_are_those_of_the_lists(dims: list[int], data: st.DataObject, spaced: bool) -> None:
    count = int(np.prod(dims))
    elements = data.draw(st.lists(ELEMENTS, min_size=count, max_size=count))
    nest = np.array(elements, object).reshape(dims).tolist()
    text = json.dumps(nest, separators=(" , ", ":") if spaced else (",", ":")).encode()
    assert _sizes(text, len(dims), count) == tuple(dims)
    assert json.loads(flat(text)) == elements


NESTS: Any = st.recursive(st.just(0), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=12)


@given(st.lists(NESTS, min_size=1, max_size=3))
def test_only_even_lists_have_sizes(nest: list[Any]) -> None:
    try:
        wanted: Any = np.array(nest).shape
    except ValueError:
        wanted = None
    text = json.dumps(nest).encode()
    depth = len(text) - len(text.lstrip(b"["))
    assert _sizes(text, depth, text.count(b",") + 1) == wanted


def _sizes(text: bytes, depth: int, count: int) -> tuple[int, ...] | None:
    view = memoryview(text)
    dims = sizes(view, b'"' in text, depth, count, no_pause)
    return dims if dims is not None and are_even(view, b'"' in text, dims, no_pause) else None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data(), st.sampled_from([1, 3, 8, 1 << 17]))
def test_any_part_of_an_even_structure_is_that_of_the_whole(dims: list[int], data: st.DataObject, size: int) -> None:
    text = json.dumps(np.zeros(dims, int).tolist(), separators=(",", ":")).encode()
    whole = structure(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "PIECE_BYTES", size)
        even = Evenness(tuple(dims))
        assert even.length == len(whole)
        for _ in range(8):
            start = data.draw(st.integers(0, len(whole)))
            stop = data.draw(st.integers(start, len(whole)))
            assert even.part(start, stop) == whole[start:stop]
