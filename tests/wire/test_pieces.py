"""What is read in pieces is what would be read as a whole: values, types and refusals, wherever the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maitred.wire.json as bodies
from maitred.errors import Malformed
from maitred.messages import Filled, Tensor
from maitred.wire import json_pieces, json_tensors, json_uneven, nesting, outline, pieces, sizes
from maitred.wire.coerce import DATATYPES, from_json, rows_in_pieces, rows_json, to_raw
from maitred.wire.json import Document, Reader, check_count, decode, decode_long
from maitred.wire.json_decoders import check_number
from maitred.wire.missing import Partial
from maitred.wire.pieces import no_pause
from maitred.wire.times import Clock

read_rows = Reader(list[dict[str, msgspec.Raw]])
read_object = Reader(dict[str, msgspec.Raw])

ROOMS = (json_pieces, json_tensors, json_uneven, nesting, outline, pieces, bodies)
CUTS = st.sampled_from([1, 2, 3, 5, 8, 13, 40])
"""Bytes of a piece."""


def resized(at_once: int, piece: int) -> pytest.MonkeyPatch:
    """Other thresholds in every file that knows them."""
    patch = pytest.MonkeyPatch()
    for room in ROOMS:
        for name, value in (
            ("AT_ONCE_BYTES", at_once),
            ("LEFT_OUT_BYTES", at_once),
            ("PIECE_BYTES", piece),
            ("PIECE_ELEMENTS", piece),
        ):
            if hasattr(room, name) and not (room is json_pieces and name == "PIECE_BYTES"):
                patch.setattr(room, name, value)
    return patch


def outcome(way: Callable[[], Any]) -> Any:
    try:
        return way()
    except Malformed as error:
        return error.message


def both(way: Callable[[], Any], cut: int) -> tuple[Any, Any]:
    """What comes of it as a whole, and in pieces of `cut` bytes."""
    with_all = resized(1 << 30, 1 << 30)
    with_all.setattr(json_tensors, "from_pieces", not_in_pieces)
    with_all.setattr(json_tensors, "AT_ONCE_BYTES", 0)
    try:
        whole = outcome(way)
    finally:
        with_all.undo()
    in_pieces = resized(0, cut)
    try:
        return whole, outcome(way)
    finally:
        in_pieces.undo()


def not_in_pieces(target: Any, shape: Any, text: memoryview, pad: Any, pause: Any) -> None:
    """What long text is held to before its elements are read; these are left to the whole."""
    texts = target.dtype in ("str", "bytes")
    if shape is not None:
        check_number(target.name, shape, pieces.commas(text, texts, pause))


# ---------------------------------------------------------------- elements

EDGES = [
    "0", "-0", "1", "-1", "127", "128", "-129", "255", "256", "65536", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1.0", "0.1",
    "-2.5e-3", "1E5", "3.4028235e38", "3.5e38", "1e39", "1e400", "65504", "65520", "5e-324", "1e-400",
    "0.30000001192092896", "16777217", "9007199254740993", "123456789012345678901234567890",
]  # fmt: skip
"""Numbers as text, at the ends of what dtypes hold."""

FINE = {
    "bool": ["true", "false"], "int64": [*EDGES[:5], "9223372036854775807", "-9223372036854775808"],
    "uint64": ["0", "1", "18446744073709551615"], "str": ['"a"', '""', '"[,\\"]"', '"\\\\"', '"\u00e9{}"', '"\\u00e9"'],
    "bytes": ['"a"', '"],["'],
}  # fmt: skip
OTHERS = ["null", "true", '"NaN"', '"-Infinity"', '"x,y"', "[]", "[1]", '"2026-01-31"', '"2026-01-31T12:00"', "1.5"]


def elements(dtype: str) -> st.SearchStrategy[str]:
    fine = st.sampled_from(FINE.get(dtype) or EDGES[:5])
    return st.one_of(fine, fine, fine, st.sampled_from(EDGES), st.sampled_from(OTHERS))


def uneven(depth: int, one: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Lists of any lengths, nested so deep."""
    for _ in range(depth):
        one = st.lists(one, min_size=1, max_size=3)  # type: ignore[assignment]
    return one


def json_of(nest: Any) -> str:
    return nest if isinstance(nest, str) else "[" + ",".join(map(json_of, nest)) + "]"


@st.composite
def nests(draw: st.DrawFn, dtype: str) -> tuple[str, tuple[int, ...] | None]:
    """Data as text, and the shape that is stated."""
    dims = draw(st.lists(st.integers(0, 4) if draw(st.booleans()) else st.integers(1, 4), min_size=1, max_size=4))
    count = int(np.prod(dims))
    one = elements(dtype) if draw(st.booleans()) else st.sampled_from(FINE.get(dtype) or EDGES[:5])
    values = draw(st.lists(one, min_size=count, max_size=count))
    space = draw(st.sampled_from(["", " ", "\n  "]))

    def nested(at: int, flat: list[str]) -> str:
        if at == len(dims):
            return flat[0]
        width = len(flat) // dims[at] if dims[at] else 0
        parts = [nested(at + 1, flat[i * width : (i + 1) * width]) for i in range(dims[at])]
        return "[" + space + f"{space},".join(parts) + "]"

    text = nested(0, values)
    if draw(st.integers(0, 2)) == 0:
        text = json_of(draw(uneven(len(dims), one)))
    if draw(st.integers(0, 3)) == 0:  # uneven, or no JSON
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["[", "]", ",", ",1", "[1],", " ", '"', "[]"])) + text[at:]
    shape = draw(st.sampled_from([None, tuple(dims), (count,), tuple(dims[::-1]), (*dims, 1)]))
    return text, shape


def is_json(text: str) -> bool:
    """Bodies are checked before their elements are read."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def shown(tensor: Tensor) -> Any:
    return (
        tensor.dtype, tensor.shape, bytes(to_raw(tensor)), getattr(tensor, "valid", None),
        tensor.real.tolist() if isinstance(tensor, Filled) else None,
        tensor.data if isinstance(tensor.data, list) else None,
    )  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(DATATYPES)), CUTS)
def test_elements_in_pieces_are_those_of_the_whole(data: st.DataObject, dtype: Any, cut: int) -> None:
    text, shape = data.draw(nests(dtype))
    nullable = dtype != "bytes" and data.draw(st.booleans())  # bytes never are
    nan: Any = data.draw(st.sampled_from(["error", "null", "string"]))
    clock = Clock("ms", None) if dtype == "int64" and data.draw(st.booleans()) else None
    pad = data.draw(st.sampled_from([None, "" if dtype in ("str", "bytes") else 0]))
    assume(is_json(text))

    def way() -> Any:
        return shown(from_json("x", dtype, shape, text.encode(), nullable, nan, pad, clock))

    whole, in_pieces = both(way, cut)
    assert in_pieces == whole


def test_numbers_in_real_pieces_are_those_of_the_whole() -> None:
    random = np.random.default_rng(4)
    for array in (
        random.integers(-(2**63), 2**63 - 1, 40_000), random.integers(0, 2**64 - 1, 40_000, np.uint64),
        np.frombuffer(random.bytes(400_000), np.float64), np.frombuffer(random.bytes(200_000), np.float32),
    ):  # fmt: skip
        array = np.where(np.isfinite(array), array, 0).astype(array.dtype)[: len(array) // 12 * 12]
        for shape in ((len(array),), (len(array) // 4, 4), (2, len(array) // 12, 6)):
            text = orjson.dumps(array.reshape(shape), option=orjson.OPT_SERIALIZE_NUMPY)
            assert len(text) > 3 * sizes.PIECE_BYTES
            dtype: Any = array.dtype.name
            tensor = from_json("x", dtype, shape, text)
            assert bytes(tensor.data) == array.tobytes() and tensor.shape == shape


def test_a_missing_element_far_on_is_the_one_that_is_missing() -> None:
    text = b"[" + b"1," * 100_000 + b"null" + b",2" * 50_000 + b"]"
    tensor = from_json("x", "int32", (150_001,), text, nullable=True)
    assert isinstance(tensor, Partial) and tensor.valid.index(0) == 100_000 and tensor.valid.count(0) == 1


def test_times_a_list_deep_are_read_by_columns() -> None:
    texts = np.datetime_as_string(np.arange(60_000).astype("datetime64[s]"))
    nested = b"[" + b",".join(b'["%b"]' % text.encode() for text in texts.tolist()) + b"]"
    tensor = from_json("t", "int64", (60_000, 1), nested, clock=Clock("s", None))
    assert np.frombuffer(tensor.data, np.int64).tolist() == list(range(60_000))
    bad = nested.replace(texts[50_000].encode(), b"2026-13-01T00:00:00")
    with pytest.raises(Malformed, match=r"the value at data\[50000\]\[0\] is a time that no calendar has"):
        from_json("t", "int64", (60_000, 1), bad, clock=Clock("s", None))


# ---------------------------------------------------------------- how much one call sees


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of the text of each call of a decoder."""
    calls: list[int] = []

    def noting(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(text: Any) -> Any:
            calls.append(len(text))
            return way(text)

        return noted

    class Noted:
        def __init__(self, decoder: Any) -> None:
            self.decode = noting(decoder.decode)

    for room in (json_pieces, json_tensors):
        decoder = room.decoder
        monkeypatch.setattr(room, "decoder", lambda *arguments, way=decoder: Noted(way(*arguments)))
    monkeypatch.setattr(pieces, "_skip", noting(pieces._skip))
    monkeypatch.setattr(bodies, "_decode_envelope", noting(bodies._decode_envelope))
    yield calls


NUMBERS = orjson.dumps(np.random.default_rng(1).standard_normal(120_000), option=orjson.OPT_SERIALIZE_NUMPY)
DATA = {
    "flat": ("FP64", [120_000], NUMBERS),
    "bools": ("BOOL", [400_000], b"[" + b"true," * 399_999 + b"false]"),
    "texts": ("BYTES", [40_000], json.dumps(["a,b[" * 10] * 40_000).encode()),
}
_values = NUMBERS[1:-1].split(b",")
DATA["nested"] = (
    "FP64", [60_000, 2], b"[" + b",".join(b"[%b,%b]" % pair for pair in zip(*[iter(_values)] * 2, strict=True)) + b"]",
)  # fmt: skip
DTYPES: dict[str, Any] = {"FP64": "float64", "BOOL": "bool", "BYTES": "str"}


@pytest.mark.parametrize("kind", DATA)
def test_no_call_sees_more_than_a_piece(kind: str, seen: list[int]) -> None:
    datatype, shape, text = DATA[kind]
    head = b'{"inputs":[{"name":"x","datatype":"%b","shape":%b,"data":' % (
        datatype.encode(),
        json.dumps(shape).encode(),
    )
    pauses: list[int] = []
    envelope = decode_long(memoryview(head + text + b"}]}"), lambda: pauses.append(1))
    tensor = from_json(
        "x",
        DTYPES[datatype],
        tuple(shape),
        envelope.inputs[0].data,
        pause=lambda: pauses.append(1),
    )
    assert tensor.shape == tuple(shape)
    assert len(text) > 1_000_000
    assert max(seen) <= sizes.PIECE_BYTES + 64 and len(seen) >= 2 * len(text) // sizes.PIECE_BYTES
    assert len(pauses) >= len(seen) - 4


# ---------------------------------------------------------------- bodies

VALUES = st.sampled_from([
    "1", "[1]", "[1,2.5,-3e4]", "[[1,2],[3,4]]", "[[1],[2,3]]", "[]", '["a","b,]"]', '["\\"","\\\\"]', "[true,null]",
    '[{"a":1}]', '"text"', "{}", '[["x"],["y"]]', "[1 , 2 ,\n3]",
])  # fmt: skip
ENTRIES = st.builds(
    '{{"name":{},"datatype":"FP32","shape":{},"data":{}{}}}'.format, st.sampled_from(['"x"', '"data"', "7"]),
    st.sampled_from(["[1]", "[2,2]", "[1,2,3,4]", '["a"]']), VALUES,
    st.sampled_from(["", ',"parameters":{"data":[1,2,3]}', ',"data":[1,2,3]', ',"parameters":{"a":1,"a":2}']),
)  # fmt: skip
V2 = st.builds(
    '{{{}"inputs":[{}]{}}}'.format, st.sampled_from(["", '"id":"[1,2,3]",', '"more":[1,2,3],', '"data":[1,2],']),
    st.lists(ENTRIES, min_size=1, max_size=3).map(",".join),
    st.sampled_from(["", ',"parameters":{"x":1}', ',"outputs":[{"name":"y"}]', ',"id":"i"', ',"id":7']),
)  # fmt: skip


@st.composite
def spoilt(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """A body, most often with something wrong in it."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        more = draw(st.sampled_from(["", "[", "]", "{", "}", ",", '"', "1", " ", ":", "\\", "x", "\x00", ",,", "[0]"]))
        text = text[:at] + more + text[at + draw(st.integers(0, 3)) :]
    return text.encode()


@settings(max_examples=500, deadline=None)
@given(spoilt(V2), CUTS)
def test_a_long_envelope_is_that_of_the_whole(body: bytes, cut: int) -> None:
    def read(way: Callable[[], Any]) -> Any:
        envelope = way()
        entries = [(e.name, e.datatype, e.shape, bytes(e.data), e.parameters) for e in envelope.inputs]
        return entries, envelope.id, envelope.parameters, [output.name for output in envelope.outputs or ()]

    whole, _ = both(lambda: read(lambda: decode(body)), cut)
    _, in_pieces = both(lambda: read(lambda: decode_long(memoryview(body), no_pause)), cut)
    assert in_pieces == whole


OBJECTS = st.one_of(
    st.builds('{{"x":{},"y":{}}}'.format, VALUES, VALUES), st.builds('{{"columns":{{"x":{}}}}}'.format, VALUES),
    st.builds('[{{"x":{}}},{{"x":{}}}]'.format, VALUES, VALUES), VALUES,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(spoilt(OBJECTS), CUTS, st.booleans())
def test_a_long_document_is_that_of_the_whole(body: bytes, cut: int, rows: bool) -> None:
    reader = read_rows if rows else read_object

    def way() -> Any:
        document = Document(body)

        def shown(value: Any) -> Any:
            text = document.value(value)
            if bytes(text[:1] if isinstance(text, memoryview) else memoryview(text)[:1]) != b"{":
                return bytes(text)
            return {name: shown(one) for name, one in read_object.part(text, "inner").items()}

        found = reader.of(document)
        fields = [{name: shown(value) for name, value in one.items()} for one in (found if rows else [found])]
        check_count(document.text, sum(map(len, fields)))
        return fields

    whole, in_pieces = both(way, cut)
    assert in_pieces == whole


ROW = st.builds('{{"x":{},"y":{}}}'.format, VALUES, VALUES)
ROWS = st.lists(ROW, min_size=1, max_size=4).map(lambda rows: "[" + " ,".join(rows) + "]")


@settings(max_examples=300, deadline=None)
@given(spoilt(ROWS), CUTS)
def test_rows_in_pieces_are_those_of_the_whole(body: bytes, cut: int) -> None:
    def way() -> Any:
        document = Document(body)
        rows = read_rows.rows(document)
        fields = [{name: bytes(document.value(value)) for name, value in row.items()} for row in rows]
        document.check_count(sum(map(len, fields)))
        return fields

    whole, _ = both(way, cut)
    patch = resized(1 << 30, cut)  # no outline: rows have no long arrays
    patch.setattr(bodies, "ON_LOOP_BYTES", 0)
    try:
        assert outcome(way) == whole
    finally:
        patch.undo()


# ---------------------------------------------------------------- answers

ARRAYS = st.builds(
    lambda dtype, shape, seed: _array(dtype, shape, seed), st.sampled_from(sorted(DATATYPES)),
    st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(0, 1 << 30),
)  # fmt: skip


def _array(dtype: Any, shape: list[int], seed: int) -> Tensor:
    random = np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype in ("str", "bytes"):
        texts: list[Any] = random.choice(np.array(["", 'a",', "],[", "\u00e9"], object), count).tolist()
        return Tensor(dtype, tuple(shape), texts if dtype == "str" else [text.encode() for text in texts])
    item = {"bool": 1, "bfloat16": 2}.get(dtype) or np.dtype(dtype).itemsize
    data = bytes(random.integers(0, 2, count, np.uint8)) if dtype == "bool" else random.bytes(count * item)
    return Tensor(dtype, tuple(shape), data)


@settings(max_examples=150, deadline=None)
@given(ARRAYS, st.sampled_from(["error", "null", "string"]), st.booleans(), CUTS)
def test_rows_written_in_pieces_are_those_of_the_whole(tensor: Tensor, nan: Any, partly: bool, cut: int) -> None:
    valid = np.arange(int(np.prod(tensor.shape))).reshape(tensor.shape) % 3 > 0 if partly else None
    whole = rows_json(tensor, nan, valid)
    patch = resized(0, cut)
    try:
        assert rows_in_pieces(tensor, nan, valid, None, no_pause) == whole
    finally:
        patch.undo()
