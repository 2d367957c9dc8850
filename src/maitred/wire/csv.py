"""CSV files as tensors: a header of names, and below each name values by the rules of JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from maitred.errors import Malformed
from maitred.messages import DType, Tensor
from maitred.wire.direct import from_python
from maitred.wire.dtypes import DATATYPES, FLOATS, INTEGERS, NAN_NAMES, NanPolicy
from maitred.wire.headings import check_spelling
from maitred.wire.json_tensors import from_json
from maitred.wire.times import Clock

MAX_FIELD: Final = 1 << 26
"""Characters of one field."""
_MAX_NAMES: Final = 20
"""Names of a header that an error shows."""

_WHOLE: Final = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_DIGITS: Final = 20
"""Characters of a whole number of 64 bits."""
_BOOLS: Final = {"true": True, "false": False}
_BEGINNINGS: Final = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK": "a spreadsheet or zip"}


class Declared(Protocol):
    """What a signature says of an input."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...
    @property
    def optional(self) -> bool: ...
    @property
    def default(self) -> Any: ...
    @property
    def nullable(self) -> bool: ...
    @property
    def nan(self) -> NanPolicy: ...
    @property
    def pad(self) -> Any: ...
    @property
    def clock(self) -> Clock | None: ...


class Row(NamedTuple):
    """One row of a file."""

    number: int
    """From 1, without the header."""
    line: int
    """On which it ends."""
    fields: list[str]

    def __str__(self) -> str:
        return f"row {self.number} (line {self.line})"


def tensors(data: bytes, inputs: Mapping[str, Declared], shared: Collection[str] = ()) -> dict[str, Tensor] | None:
    """The inputs in the columns of their names, other columns left alone; None where there are no rows.

    `shared` names inputs without rows: each must have one value throughout. An empty field is a missing value, or the
    empty text where nothing may be missing. Fields of inputs with sizes inside a row hold JSON lists. Raises Malformed
    naming row, line and column.
    """
    lines = _Lines(_text(data))
    header = next(lines, None)
    if header is None:
        raise Malformed("the file is empty: its first line must name the columns")
    places = _places(header, inputs)
    rows = list(_rows(lines, len(header)))
    if not rows:
        return None
    found = {name: _column(inputs[name], rows, place, name in shared) for name, place in places.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _text(data: bytes) -> str:
    for beginning, what in _BEGINNINGS.items():
        if data.startswith(beginning):
            raise Malformed(f"the file is {what}, not CSV in UTF-8: save it as that")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Malformed(f"line {line} is not UTF-8 text: save the file as CSV in UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Malformed(f"line {line} holds a NUL: the file is UTF-16 or no text; save it as CSV in UTF-8")
    return text


class _Lines:
    """A file's records, and the line on which the latest one ended."""

    def __init__(self, text: str) -> None:
        self._reader = csv.reader(io.StringIO(text, newline=""), strict=True)

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        before = csv.field_size_limit(MAX_FIELD)
        try:
            return next(self._reader)
        except csv.Error as error:
            raise Malformed(f"line {self.line}: {error}") from None
        finally:
            csv.field_size_limit(before)

    @property
    def line(self) -> int:
        return self._reader.line_num


def _rows(lines: _Lines, width: int) -> Iterator[Row]:
    """The rows below the header; empty lines are none. Raises Malformed for one of another width."""
    number = 0
    for fields in lines:
        if not fields:
            continue
        number += 1
        row = Row(number, lines.line, fields)
        if len(fields) != width:
            raise Malformed(f"{row} has {len(fields)} fields, the header has {width}")
        yield row


def _places(header: list[str], inputs: Mapping[str, Declared]) -> dict[str, int]:
    """Where the columns of the inputs are. Raises Malformed."""
    shown = ", ".join(map(ascii, header[:_MAX_NAMES])) + (", ..." if len(header) > _MAX_NAMES else "")
    for name in inputs:
        if header.count(name) > 1:
            raise Malformed(f"the column {name!r} is there twice")
        if name not in header and not inputs[name].optional:
            advice = "; fields must be parted by commas" if len(header) == 1 and re.search("[;\t|]", header[0]) else ""
            raise Malformed(f"there is no column {name!r}; there are {shown}{advice}")
    check_spelling(header, inputs)
    return {name: header.index(name) for name in inputs if name in header}


def _column(spec: Declared, rows: list[Row], place: int, shared: bool) -> Tensor | None:
    """The values of one column; None where an input that may be left out has none."""
    if spec.optional and spec.default is None and not spec.nullable and not any(row.fields[place] for row in rows):
        return None
    if shared:
        if any(row.fields[place] != rows[0].fields[place] for row in rows):
            raise Malformed(f"column {spec.name!r} has no rows: its value must be the same in every row")
        rows = rows[:1]
    if len(spec.shape) > (0 if shared else 1):
        return _lists(spec, rows, place, shared)
    values = [_value(spec, row, row.fields[place]) for row in rows]
    try:
        return _packed(spec, values[0] if shared else values)
    except Malformed:
        for row, value in zip(rows, values, strict=True):
            try:
                _packed(spec, [value])
            except Malformed as error:
                raise _wrong(spec, row, error.message.partition(": ")[2].replace(" at data[0]", "")) from None
        raise


def _packed(spec: Declared, value: Any) -> Tensor:
    return from_python(spec.name, spec.dtype, value, spec.nullable, spec.nan, spec.pad, spec.clock)


def _value(spec: Declared, row: Row, text: str) -> Any:
    """A field as Python's own value. Raises Malformed."""
    if text == "" and (spec.nullable or spec.default is not None or spec.dtype not in ("str", "bytes")):
        if spec.nullable or (spec.dtype in FLOATS and spec.nan == "null"):
            return None
        if spec.default is None:
            raise _wrong(spec, row, "the value is missing")
        return spec.default
    if spec.dtype in ("str", "bytes"):
        return text
    return _element(spec, row, text.strip())


def _element(spec: Declared, row: Row, text: str) -> Any:
    if spec.dtype == "bool":
        if text.lower() in _BOOLS:
            return _BOOLS[text.lower()]
        raise _wrong(spec, row, f"expected true or false, got {_shown(text)}")
    if spec.clock is not None:
        return int(text) if _WHOLE.fullmatch(text) and len(text) <= _MAX_DIGITS else text
    if spec.dtype in INTEGERS and _WHOLE.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    if spec.dtype in FLOATS and _DECIMAL.fullmatch(text):
        return float(text)
    if spec.dtype in FLOATS and spec.nan == "string" and text in NAN_NAMES:
        return NAN_NAMES[text]
    raise _wrong(spec, row, f"expected {DATATYPES[spec.dtype]}, got {_shown(text)}")


def _lists(spec: Declared, rows: list[Row], place: int, shared: bool) -> Tensor:
    """The values of an input with sizes inside a row, which are JSON lists."""
    texts = [row.fields[place].encode() for row in rows]
    try:
        whole = _of_json(spec, texts[0] if shared else b"[%b]" % b",".join(texts))
        if shared or whole.shape[:1] == (len(rows),):
            return whole
    except Malformed:
        pass  # some row is to blame, or they differ from each other
    for row, text in zip(rows, texts, strict=True):
        try:
            _of_json(spec, text)
        except Malformed as error:
            raise _wrong(spec, row, f"expected a JSON list: {error.message.partition(': ')[2]}") from None
    return _of_json(spec, b"[%b]" % b",".join(texts))


def _of_json(spec: Declared, text: bytes) -> Tensor:
    return from_json(spec.name, spec.dtype, None, text, spec.nullable, spec.nan, spec.pad, spec.clock)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 64 else text[:61] + "...")


def _wrong(spec: Declared, row: Row, why: str) -> Malformed:
    return Malformed(f"{row}, column {spec.name!r}: {why}")
