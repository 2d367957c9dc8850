"""dtype x shape x encoding: the same elements become the same tensor on every way in, or are refused on all of them."""

from __future__ import annotations

import csv as library
import io
import json
import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, Tensor
from maitred.model.forms import tensors_of, validity, whole_tensor
from maitred.model.notation import TensorSpec
from maitred.wire import arrow, csv
from maitred.wire.coerce import (
    DATATYPES,
    FLOATS,
    INTEGERS,
    NUMPY_TYPES,
    from_json,
    from_python,
    from_raw,
    from_texts,
    rows_json,
    to_array,
    to_raw,
)
from maitred.wire.missing import NAT, Partial
from maitred.wire.times import UNITS, texts, writable

SYMBOLS = ("n", "k", "m")
TIME = " time"
ARROW = sorted(DATATYPES.keys() - {"bfloat16"})


class Drawn(NamedTuple):
    """Elements, of which some may be missing, and the input that takes them."""

    spec: TensorSpec
    array: Any
    """0 (times: NAT, floats: NaN) where one is missing."""
    valid: Any

    @property
    def whole(self) -> bool:
        return bool(self.valid.all())

    def nested(self) -> Any:
        """Python's own values, None where one is missing."""
        values = self.array
        if self.spec.dtype in ("float16", "bfloat16"):
            values = values.astype(np.float32)
        listed: Any = np.where(self.valid, values.astype(object), np.array(None, object)).tolist()
        return listed


@st.composite
def elements(draw: st.DrawFn, dtype: str) -> Any:
    if dtype == "bool":
        return draw(st.booleans())
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        edges = [info.min, info.max, 0, 1, max(info.min, -1), min(info.max, 2**53 + 1)]
        return draw(st.sampled_from([int(edge) for edge in edges]) | st.integers(int(info.min), int(info.max)))
    if dtype in FLOATS:
        size = ITEM_BYTES[dtype]
        bits = draw(st.integers(0, 256**size - 1) | st.sampled_from([0, 1, 1 << (8 * size - 1)]))  # 0, subnormal, -0.0
        return np.frombuffer(bits.to_bytes(size, "little"), NUMPY_TYPES[dtype])[0]
    if dtype == "str":
        return draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["\0", "a\0", ""]))
    return draw(st.binary(max_size=6) | st.sampled_from([b"\0", b"a\0\0", b"", b"\xff\xfe"]))


@st.composite
def drawn(draw: st.DrawFn, dtypes: Collection[str] = DATATYPES, least: int = 0, axes: int = 3) -> Drawn:
    """`int64 time` among the dtypes stands for times, and is what half of the int64 are anyway."""
    kind = draw(st.sampled_from(sorted(dtypes)))
    dtype: Any = kind.removesuffix(TIME)
    shape = (draw(st.integers(least, 4)), *draw(st.lists(st.integers(least, 3), max_size=axes - 1)))
    nullable = dtype != "bytes" and draw(st.booleans())
    time = draw(st.sampled_from(UNITS)) if kind != dtype or (dtype == "int64" and draw(st.booleans())) else None
    zone = draw(st.sampled_from(["UTC", None])) if time else None
    nan: Any = "string" if dtype in FLOATS else "error"
    spec = TensorSpec("x", dtype, SYMBOLS[: len(shape)], nullable=nullable, time=time, zone=zone, nan=nan)
    count = math.prod(shape)
    values = draw(st.lists(elements(dtype), min_size=count, max_size=count))
    if time:
        values = [value if value != NAT else 0 for value in values]
    there = draw(st.lists(st.booleans(), min_size=count, max_size=count)) if nullable else [True] * count
    blank: Any = math.nan if dtype in FLOATS else NAT if time else "" if dtype == "str" else 0
    array = np.empty(count, NUMPY_TYPES[dtype])
    array[:] = [value if one else blank for value, one in zip(values, there, strict=True)]
    if dtype in FLOATS and nullable:
        there = [bool(one) for one in ~np.isnan(array.astype(np.float64))]  # NaN is how floats are missing
    return Drawn(spec, array.reshape(shape), np.array(there, bool).reshape(shape))


def given_to(spec: TensorSpec, value: Any) -> Tensor:
    return from_python("x", spec.dtype, value, spec.nullable, spec.nan, spec.pad, spec.clock)


def read(spec: TensorSpec, shape: tuple[int, ...] | None, text: bytes) -> Tensor:
    return from_json("x", spec.dtype, shape, text, spec.nullable, spec.nan, spec.pad, spec.clock)


def check(tensor: Tensor, of: Drawn, bits: bool = False) -> None:
    """The tensor holds just these elements; `bits`: also NaN's."""
    assert (tensor.dtype, tensor.shape) == (of.spec.dtype, of.array.shape)
    array = to_array(tensor)
    assert array.dtype == of.array.dtype
    if of.spec.dtype in ("str", "bytes"):
        assert array.tolist() == of.array.tolist()
    elif bits:
        assert array.tobytes() == of.array.tobytes()
    else:
        assert clean(array) == clean(of.array)
    valid = tensor.valid if isinstance(tensor, Partial) else b"\1" * array.size
    expected = of.valid if of.spec.masked else np.ones(of.array.shape, bool)
    assert valid == expected.tobytes()


def clean(array: Any) -> bytes:
    """The bits, NaNs without what text and Python's floats do not carry."""
    if array.dtype.kind in "biu":
        return bytes(array.tobytes())
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
        wide = array.astype(np.float64)
    return bytes(np.where(np.isnan(wide), np.nan, wide).tobytes())


def json_of(value: Any) -> bytes:
    """JSON by the standard library, NaN and infinities as strings."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(part) for part in value]
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        return value.decode("latin-1") if isinstance(value, bytes) else value

    return json.dumps(plain(value)).encode()


def flat(value: Any, depth: int) -> list[Any]:
    return [value] if depth == 0 else [leaf for part in value for leaf in flat(part, depth - 1)]


# --- in ---------------------------------------------------------------------------------------------------------


@given(drawn())
def test_json(of: Drawn) -> None:
    if of.spec.dtype == "bytes":  # JSON has text only
        assume(all(is_ascii(item) for item in of.array.reshape(-1)))
    nested, shape = of.nested(), of.array.shape
    check(read(of.spec, shape, json_of(flat(nested, len(shape)))), of)
    check(read(of.spec, shape, json_of(nested)), of)
    if of.array.size:
        check(read(of.spec, None, json_of(nested)), of)


def is_ascii(item: bytes) -> bool:
    return item.isascii()


@given(drawn())
def test_raw_bytes(of: Drawn) -> None:
    assume(of.whole or not of.spec.masked)
    raw = b"".join(to_bytes(of))
    check(from_raw("x", of.spec.dtype, of.array.shape, raw), of, bits=True)


def to_bytes(of: Drawn) -> list[bytes]:
    if of.array.dtype.kind != "O":
        return [of.array.tobytes()]
    items = [item.encode() if isinstance(item, str) else item for item in of.array.reshape(-1)]
    return [len(item).to_bytes(4, "little") + item for item in items]


@given(drawn(least=1))
def test_python_values(of: Drawn) -> None:
    nested = of.nested()
    check(given_to(of.spec, nested), of)
    check(given_to(of.spec, tuple(nested)), of)
    objects = np.empty(of.array.size, object)
    objects[:] = flat(nested, of.array.ndim)
    check(given_to(of.spec, objects.reshape(of.array.shape)), of)


@given(drawn(), st.sampled_from(["as it is", "strided", "reversed", "transposed", "big-endian", "read-only", "listed"]))
def test_arrays(of: Drawn, layout: str) -> None:
    seen = laid_out(of.array, layout)
    if of.spec.time and layout != "big-endian":
        seen = seen.view(f"datetime64[{of.spec.time}]")
    missing = ~of.valid
    if of.spec.masked and of.spec.dtype == "str":
        seen = np.where(missing, np.array(None, object), seen)
    elif of.spec.masked:
        seen = np.ma.MaskedArray(seen, missing)
    if layout == "listed" and of.array.size:
        seen = list(seen)
    check(given_to(of.spec, seen), of, bits=not (layout == "listed" and of.array.ndim == 1))


def laid_out(array: Any, layout: str) -> Any:
    if layout == "strided":
        return np.repeat(array, 2, axis=0)[::2]
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "transposed":
        return np.asfortranarray(array)
    if layout == "big-endian" and array.dtype.kind in "iuf" and array.dtype.name != "bfloat16":
        return array.astype(array.dtype.newbyteorder(">"))
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


@given(drawn(ARROW, axes=1), st.sampled_from(["own", "object", "category", "arrow"]))
def test_pandas(of: Drawn, kind: str) -> None:
    values = flat(of.nested(), 1)
    if kind == "own":
        series = pandas_own(of, values)
    elif kind == "object":
        assume(values)
        series = pd.Series(values, dtype=object)
    elif kind == "category":
        assume(len(set(map(repr, values))) == len(set(values)) and of.spec.dtype != "float16")  # -0.0 is 0.0 there
        series = pd.Series(pandas_own(of, values), dtype="category")
    else:
        assume(of.spec.dtype not in ("bytes", "float16"))
        series = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([arrow_own(of)])))
    check(given_to(of.spec, series), of)


def pandas_own(of: Drawn, values: list[Any]) -> Any:
    """A Series of the type that pandas has for it."""
    spec = of.spec
    if spec.time:
        series = pd.Series(of.array.view(f"datetime64[{spec.time}]"))
        return series.dt.tz_localize("UTC").dt.tz_convert("Asia/Kolkata") if spec.zone else series
    if spec.dtype == "str":
        return pd.Series(values, dtype="string")
    if spec.masked:
        kind = "boolean" if spec.dtype == "bool" else spec.dtype.replace("i", "I").replace("u", "U")
        return pd.Series(pd.array(values, dtype=kind))
    return pd.Series(of.array if of.array.dtype.kind != "O" else pd.array(values, dtype=object))


def arrow_own(of: Drawn) -> Any:
    """An Arrow array of the type that Arrow has for it, lists for the axes after the first."""
    seen = whole_tensor(of.spec, partial_of(of))
    return arrow.made(seen, of.spec.dtype, "Asia/Kolkata" if of.spec.zone else None)


def partial_of(of: Drawn) -> Tensor:
    data = of.array.reshape(-1).tolist() if of.array.dtype.kind == "O" else of.array
    if of.spec.masked and not of.whole:
        return Partial(of.spec.dtype, of.array.shape, data, of.valid.tobytes())
    return Tensor(of.spec.dtype, of.array.shape, data)


@given(drawn(ARROW), st.sampled_from(["one", "chunks", "sliced", "dictionary", "large", "fixed lists"]))
def test_arrow(of: Drawn, form: str) -> None:
    assume(0 not in of.array.shape[1:])
    column = arrow_own(of)
    if form == "chunks":
        half = len(column) // 2
        column = pa.chunked_array([column[:half], column[half:], column[:0]], column.type)
    elif form == "sliced":
        column = pa.concat_arrays([column, column]).slice(len(column))
    elif form == "dictionary":
        assume(of.array.ndim == 1 and of.spec.dtype not in ("float16", "float32", "float64"))  # -0.0 is 0.0 there
        column = pa.chunked_array([column.dictionary_encode(), column[:0].dictionary_encode()])
    elif form == "large":
        assume(of.array.ndim == 1 and of.spec.dtype in ("str", "bytes"))
        column = column.cast(pa.large_string() if of.spec.dtype == "str" else pa.large_binary())
    elif form == "fixed lists":
        assume(of.array.ndim == 2)
        column = pa.FixedSizeListArray.from_arrays(column.flatten(), of.array.shape[1])
    if of.array.ndim > 1 and not len(column):
        return  # lists that are not there do not say how long they would have been
    check(given_to(of.spec, column), of, bits=True)


@given(drawn(DATATYPES.keys() - {"bytes"}, least=1))
def test_csv_files(of: Drawn) -> None:
    rows = of.nested()
    if of.array.ndim == 1:
        assume(not (of.spec.masked and "" in [row for row in rows if row is not None]))  # an empty field is missing
        fields = [field(row) for row in rows]
    else:
        fields = [json_of(row).decode() for row in rows]
    assume(not any("\0" in text for text in fields))
    out = io.StringIO(newline="")
    library.writer(out, quoting=library.QUOTE_ALL).writerows([["other", "x"], *(["", text] for text in fields)])
    found = csv.tensors(out.getvalue().encode(), {"x": of.spec})
    assert found is not None
    check(found["x"], of)


def field(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json_of(value).decode().strip('"')


@given(drawn(["int64 time"], least=1))
def test_times_as_text(of: Drawn) -> None:
    clock: Any = of.spec.clock
    array = np.where(writable(of.array, clock) | ~of.valid, of.array, 0)
    of = of._replace(array=array)
    written = texts(of.array, clock)
    check(read(of.spec, of.array.shape, orjson.dumps(written)), of)
    listed = np.array(written, object).reshape(of.array.shape).tolist()
    check(given_to(of.spec, listed), of)
    if of.whole:
        check(from_texts("x", Tensor("str", of.array.shape, written), clock), of)
    if of.array.ndim == 1:
        check(given_to(of.spec, pa.array(written).dictionary_encode()), of)
        check(given_to(of.spec, pd.Series(written)), of)


# --- refused ----------------------------------------------------------------------------------------------------

JSON_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.sampled_from([2**63, -(2**63) - 1, 2**64, 256, 128, -129, 65_536])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1e39, 65_520.0, 0.1, 1.0, -0.0, 5e-324])
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=3)
    | st.sampled_from(["NaN", "Infinity", "2026-01-01", "2026-01-01T00:00:00Z", "", "1", "true"])
)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    dtype: Any = draw(st.sampled_from(sorted(DATATYPES)))
    time = draw(st.sampled_from(UNITS)) if dtype == "int64" and draw(st.booleans()) else None
    zone = draw(st.sampled_from(["UTC", None])) if time else None
    nan: Any = draw(st.sampled_from(["error", "null", "string"])) if dtype in FLOATS else "error"
    nullable = dtype != "bytes" and draw(st.booleans())
    return TensorSpec("x", dtype, ("n",), nullable=nullable, time=time, zone=zone, nan=nan)


@given(specs(), st.lists(JSON_VALUES, min_size=1, max_size=3))
def test_the_same_values_are_taken_or_refused_on_every_way(spec: TensorSpec, values: list[Any]) -> None:
    def outcome(way: Any) -> Any:
        try:
            tensor = way()
        except Malformed as error:
            assert error.message.startswith("input 'x': ")
            return "refused"
        valid = tensor.valid if isinstance(tensor, Partial) else None
        return (
            tensor.shape,
            valid,
            to_array(tensor).tolist() if isinstance(tensor.data, list) else clean(to_array(tensor)),
        )

    text = json.dumps(values).encode()
    objects = np.empty(len(values), object)
    objects[:] = values
    assume(not any(isinstance(value, int) and abs(value) >= 2**64 for value in values) or spec.dtype not in FLOATS)
    outcomes = [
        outcome(way)
        for way in (
            lambda: read(spec, (len(values),), text),
            lambda: read(spec, None, text),
            lambda: given_to(spec, values),
            lambda: given_to(spec, objects),
            lambda: given_to(spec, pd.Series(objects, dtype=object)),
        )
    ]
    assert all(other == outcomes[0] for other in outcomes), outcomes


@given(drawn(["bool", "uint8", "int64", "uint64", "str", "int64 time"], least=1))
def test_missing_elements_are_refused_on_every_way_where_they_are_not_allowed(of: Drawn) -> None:
    assume(not of.whole)
    spec = TensorSpec("x", of.spec.dtype, of.spec.shape, time=of.spec.time, zone=of.spec.zone)
    nested = of.nested()
    ways: list[Any] = [
        lambda: read(spec, of.array.shape, json_of(nested)),
        lambda: given_to(spec, nested),
        lambda: given_to(spec, whole_tensor(of.spec, partial_of(of))),
        lambda: given_to(spec, arrow_own(of)),
    ]
    for way in ways:
        with pytest.raises(Malformed, match=r"(missing value|null) at data"):
            way()


# --- out --------------------------------------------------------------------------------------------------------


@given(drawn())
def test_every_way_out_reads_back(of: Drawn) -> None:
    spec, tensor = of.spec, partial_of(of)
    seen = whole_tensor(spec, tensor)
    check(given_to(spec, seen), of, bits=True)
    plain = tensors_of({"x": spec}, {"x": seen})
    if spec.masked:
        assert len(plain) == 2
    if spec.dtype != "bytes":
        valid = validity(spec, plain) if spec.nullable else None
        rows = rows_json(plain["x"], spec.nan, valid)
        assert None not in rows
        text = b"[%b]" % b",".join([row for row in rows if row])
        check(read(spec, of.array.shape, text), of)
    if of.whole or not spec.masked:
        check(from_raw("x", spec.dtype, of.array.shape, bytes(to_raw(plain["x"]))), of, bits=True)
    if spec.dtype != "bfloat16" and of.array.size:
        check(given_to(spec, arrow.made(seen, spec.dtype, spec.zone)), of, bits=True)
