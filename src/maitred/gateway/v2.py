"""Answers of the V2 protocol: exactly the wanted outputs, as JSON, raw bytes or best classes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import msgspec
import orjson

from maitred.errors import Malformed
from maitred.gateway.answers import OCTETS, Call, rows_written
from maitred.gateway.apart import Apart
from maitred.gateway.classes import check_classes, classes
from maitred.http.exchange import JSON, Pieces
from maitred.messages import Outputs, Result, Tensor
from maitred.model.forms import validity
from maitred.model.signature import Signature, TensorSpec
from maitred.wire import binary
from maitred.wire.coerce import DATATYPES, lacks_number, rows_json, to_raw, unprintable
from maitred.wire.json import OutputEntry
from maitred.wire.sizes import ON_LOOP_ELEMENTS


class OutputPlan:
    """How one output of one model is written."""

    __slots__ = ("name", "spec", "key", "prefix", "head", "row_wise", "few")

    def __init__(self, spec: TensorSpec, row_wise: bool, prefix: bytes) -> None:
        self.name = spec.name
        self.spec = spec
        self.key = f"v2 {spec.name} {prefix.decode()}"
        """Names its text in a batch's memo."""
        self.prefix = prefix
        """What an answer begins with."""
        self.head = b'{"name":%s,"datatype":"%s","shape":[' % (orjson.dumps(spec.name), spec.datatype.encode())
        self.row_wise = row_wise
        inner = [size for size in spec.shape[1:] if isinstance(size, int)]
        known = len(inner) == len(spec.shape) - 1 and spec.dtype not in ("str", "bytes")
        self.few = ON_LOOP_ELEMENTS // max(1, prod(inner)) if known else -1
        """So many rows are short to write, whatever they hold."""


Wanted = tuple[OutputPlan, ...]
Kind = tuple[bool, int | None]
"""Whether an output goes as raw bytes, and how many of its best classes are wanted (None: the output itself)."""


class Text(msgspec.Struct, gc=False):
    """The JSON of one output of a batch, made once for all its members."""

    rows: list[bytes | None]
    """The elements of each row, without brackets around them; None for a row that has no JSON."""
    head: bytes
    """From the output's beginning to the place of its count of rows."""
    middle: bytes
    """From there to the elements."""
    one: bytes
    """From the answer's beginning to the elements, for a single row of a single output."""


_NUMBERS: Final = tuple(b"%d" % number for number in range(1025))
_END: Final = b"]}]}"
_END_BEFORE_ID: Final = b']}],"id":'
_dumps: Final = orjson.dumps
_LENT_BYTES: Final = 1 << 16
"""Raw outputs of that size and more are sent from where the replica has written them."""


class Writer:
    """Writes the answers of one model. A `Form`."""

    __slots__ = ("_prefix", "_plans", "apart")

    def __init__(self, name: str, version: str, signature: Signature, apart: Apart | None = None) -> None:
        self.apart = apart
        self._prefix = b'{"model_name":%s,"model_version":%s,"outputs":[' % (orjson.dumps(name), orjson.dumps(version))
        self._plans = {
            spec.name: OutputPlan(spec, signature.row_wise, self._prefix) for spec in signature.outputs.values()
        }

    def wanted(self, names: Sequence[str]) -> Wanted:
        """Plans of outputs that the signature has."""
        return tuple([self._plans[name] for name in names])

    def forms(self, wanted: Wanted, entries: list[OutputEntry] | None, all_binary: bool) -> tuple[Kind, ...] | None:
        """The form of each wanted output; None where all are plain JSON. Raises Malformed naming the output.

        What an output says of itself wins over what the request says of all.
        """
        asked: Sequence[OutputEntry | None] = entries or [None] * len(wanted)
        forms = tuple([_form(plan, entry, all_binary) for plan, entry in zip(wanted, asked, strict=True)])
        return None if all(form == (False, None) for form in forms) else forms

    def write(self, call: Call, result: Result) -> tuple[bytes | Pieces, bytes, bytes]:
        if call.forms is not None:
            return self._write_forms(call, result)
        wanted: Wanted = call.wanted
        id = call.id
        batch = result.batch
        start = result.start
        if result.stop - start == 1 and len(wanted) == 1 and wanted[0].row_wise:
            plan = wanted[0]
            text = batch.memo.get(plan.key) or text_of(plan, batch)
            row = text.rows[start]
            if row is None:
                raise unprintable(batch.tensors[plan.name], plan.spec.nan, plan.name)
            if id is None:
                return text.one + row + _END, JSON, b""
            return b"".join((text.one, row, _END_BEFORE_ID, _dumps(id), b"}")), JSON, b""
        pieces = [self._prefix]
        for plan in wanted:
            pieces += json_pieces(plan, result)
            pieces.append(b"]},")
        pieces[-1] = _END if id is None else _END_BEFORE_ID + _dumps(id) + b"}"
        return b"".join(pieces), JSON, b""

    def check(self, call: Call, result: Result) -> None:
        for at, plan in enumerate(call.wanted):
            if call.forms is None or call.forms[at] == (False, None):
                tensor = own_rows(plan, result)
                if not plan.spec.nullable and lacks_number(tensor, plan.spec.nan):
                    raise unprintable(tensor, plan.spec.nan, plan.name)

    def _write_forms(self, call: Call, result: Result) -> tuple[bytes | Pieces, bytes, bytes]:
        """As `write`, where not every output is plain JSON: in the wanted order, raw bytes after the JSON."""
        pieces = [self._prefix]
        blobs: list[Any] = []
        for plan, (raw, best) in zip(call.wanted, call.forms, strict=True):
            if not raw and best is None:
                pieces += json_pieces(plan, result)
                pieces.append(b"]},")
                continue
            tensor = own_rows(plan, result)
            if raw and plan.spec.masked:
                check_whole(plan, result)
            if best is not None:
                tensor = classes(tensor, best, plan.spec.labels, plan.row_wise)
            pieces.append(b'{"name":%s,"datatype":"%s","shape":%s,' % _description(plan, tensor))
            if raw:
                blob = to_raw(tensor)
                blobs.append(blob)
                pieces.append(b'"parameters":{"binary_data_size":%d}},' % memoryview(blob).nbytes)
            else:
                pieces.append(b'"data":%b},' % orjson.dumps([text.decode() for text in tensor.data]))
        pieces[-1] = pieces[-1][:-1] + (b"]}" if call.id is None else b'],"id":%b}' % orjson.dumps(call.id))
        head = b"".join(pieces)
        lent = None if result.batch.lease is None else _lent(result.batch.lease, blobs)
        if lent is not None:
            return (head, *lent), OCTETS, binary.line(head)
        body, line = binary.join(head, blobs)
        return body, OCTETS if line else JSON, line


def _lent(lease: Any, blobs: list[Any]) -> Pieces | None:
    """The raw outputs as they lie in the replica's memory, for as long as it takes to send them; None to copy all."""
    pieces: list[Any] = []
    lent = False
    for blob in blobs:
        large = type(blob) is memoryview and len(blob) >= _LENT_BYTES
        array = lease.lend(blob) if large else None
        pieces.append(bytes(blob) if array is None else memoryview(array))
        lent |= array is not None
    return tuple(pieces) if lent else None


def _description(plan: OutputPlan, tensor: Tensor) -> tuple[bytes, bytes, bytes]:
    return orjson.dumps(plan.name), DATATYPES[tensor.dtype].encode(), orjson.dumps(tensor.shape)


def _form(plan: OutputPlan, entry: OutputEntry | None, all_binary: bool) -> Kind:
    if entry is None or not entry.parameters:
        return all_binary, None
    raw = entry.parameters.get("binary_data", all_binary)
    if type(raw) is not bool:
        raise Malformed(f"output {plan.name!r}: binary_data must be true or false")
    if "shared_memory_region" in entry.parameters:
        raise Malformed(f"output {plan.name!r}: shared memory is not supported")
    best = entry.parameters.get("classification")
    return raw, None if best is None else check_classes(plan.spec, best)


def own_rows(plan: OutputPlan, result: Result) -> Tensor:
    """This caller's part of an output; a view."""
    tensor = result.batch.tensors[plan.name]
    return tensor.rows(result.start, result.stop) if plan.row_wise else tensor


def check_whole(plan: OutputPlan, result: Result) -> None:
    """Raise Malformed where elements are missing in this caller's part of an output: raw bytes cannot say so."""
    valid = validity(plan.spec, result.batch.tensors)
    if valid is not None and not (valid[result.start : result.stop] if plan.row_wise else valid).all():
        raise Malformed(
            f"output {plan.name!r} has missing elements, which binary data cannot show: ask for it as JSON "
            "(binary_data: false)"
        )


def json_pieces(plan: OutputPlan, result: Result) -> tuple[bytes, ...]:
    """An output as JSON, up to the last element. Raises MaitredError where this caller's rows hold what JSON cannot."""
    tensor = result.batch.tensors[plan.name]
    if not plan.row_wise:
        flat = Tensor(tensor.dtype, (1, *tensor.shape), tensor.data)
        valid = validity(plan.spec, result.batch.tensors) if plan.spec.nullable else None
        data = joined(rows_written(result.batch, flat, plan.spec.nan, valid), plan, tensor)
        return plan.head, orjson.dumps(tensor.shape)[1:-1], b'],"data":[', data
    start, stop = result.start, result.stop
    text = result.batch.memo.get(plan.key) or text_of(plan, result.batch)
    count = stop - start
    number = _NUMBERS[count] if count < len(_NUMBERS) else b"%d" % count
    return text.head, number, text.middle, joined(text.rows[start:stop], plan, tensor)


def joined(rows: list[bytes | None], plan: OutputPlan, tensor: Tensor) -> bytes:
    """The elements of several rows. Raises MaitredError where one of them has no JSON."""
    if rows and rows[0] == b"":
        return b""  # rows without elements need no commas between them
    try:
        return b",".join(rows)  # type: ignore[arg-type]
    except TypeError:
        raise unprintable(tensor, plan.spec.nan, plan.name) from None


def text_of(plan: OutputPlan, batch: Outputs) -> Text:
    """The JSON of an output of a batch of a row-wise model, kept in the batch's memo. Raises Much where that is for a
    thread."""
    tensor = batch.tensors[plan.name]
    middle = b'%b],"data":[' % b"".join(map(b",%d".__mod__, tensor.shape[1:]))
    valid = validity(plan.spec, batch.tensors) if plan.spec.nullable else None
    if batch.rows <= plan.few:
        rows = rows_json(tensor, plan.spec.nan, valid)
    else:
        rows = rows_written(batch, tensor, plan.spec.nan, valid)
    text = Text(rows, plan.head, middle, plan.prefix + plan.head + b"1" + middle)
    batch.memo[plan.key] = text
    return text
