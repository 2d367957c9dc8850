"""Row and column JSON, as V1 and the plain route speak it: values become tensors, results become values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from maitred.deployment.router import Served
from maitred.errors import Malformed
from maitred.gateway.answers import Call, Form, rows_written
from maitred.gateway.apart import Apart, Read, Work
from maitred.gateway.chain import ANONYMOUS
from maitred.gateway.terms import NO_HEADS, read_heads
from maitred.http.exchange import Exchange
from maitred.messages import FOREVER, NORMAL, Outputs, Request, Result, Tensor
from maitred.model.forms import validity
from maitred.model.signature import Checked, Signature, TensorSpec
from maitred.wire.coerce import Array, from_json, lacks_number, unprintable
from maitred.wire.elements import MAX_FILL
from maitred.wire.json import Document, Reader
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.sizes import ON_LOOP_BYTES, PIECE_ELEMENTS
from maitred.wire.times import Clock

Value = msgspec.Raw
Row = dict[str, msgspec.Raw]

read_rows: Final = Reader(list[Row])
read_object: Final = Reader(Row)


class Bridge:
    """Between JSON values and one model's tensors."""

    __slots__ = ("signature", "specs", "_needed")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.specs = signature.inputs
        self._needed = needed(signature)

    def columns(self, columns: Mapping[str, Value], pause: Pause = no_pause) -> dict[str, Tensor]:
        """Inputs that are given whole. Raises Malformed naming the input: for its name before any is read."""
        specs = list(map(self.spec, columns))
        if not self._needed <= columns.keys():
            check_names(self.signature, columns)
        return {spec.name: self._tensor(spec, columns[spec.name], None, pause) for spec in specs}

    def rows(self, rows: Sequence[Row], pause: Pause = no_pause) -> dict[str, Tensor]:
        """Inputs that are given row by row, at least one. Raises Malformed naming the input: for its name first."""
        self.check_row_wise()
        names = dict.fromkeys(name for row in rows for name in row)
        specs = list(map(self.spec, names))
        if not self._needed <= names.keys():
            check_names(self.signature, names)
        if len(rows) > 1 and (more := len(rows) * len(names) - sum(map(len, rows))) > MAX_FILL:
            raise Malformed(f"{more} values are left out of the rows; send columns, or fewer rows at once")
        return {spec.name: self._gathered(spec, rows, pause) for spec in specs}

    def check_row_wise(self) -> None:
        """Raises Malformed where the model does not work row by row."""
        if not self.signature.row_wise:
            raise Malformed("this model does not work row by row: send its inputs as columns")

    def only(self) -> TensorSpec:
        """The model's single input. Raises Malformed where there are several."""
        if len(self.specs) != 1:
            raise Malformed(f"this model takes several inputs; name them: {', '.join(map(repr, self.specs))}")
        return next(iter(self.specs.values()))

    def spec(self, name: str) -> TensorSpec:
        spec = self.specs.get(name)
        if spec is None:
            raise self.signature.unknown_input(name)
        return spec

    def _gathered(self, spec: TensorSpec, rows: Sequence[Row], pause: Pause) -> Tensor:
        name = spec.name
        values: list[Any] = [row.get(name) for row in rows]
        if None in values:
            filler = _filler(spec)
            if filler is None:
                raise Malformed(f"input {name!r}: row {values.index(None)} has none, and others have")
            values = [filler if value is None else value for value in values]
        if name in self.signature.shared:
            if len({bytes(value) for value in values}) > 1:
                raise Malformed(f"input {name!r} has no rows: its value must be the same in every row")
            return self._tensor(spec, values[0], None, pause)
        values[0] = b"[%b" % bytes(values[0])
        values[-1] = b"%b]" % bytes(values[-1])
        text = b",".join(values)
        return self._tensor(spec, text, len(rows), pause)

    def _tensor(self, spec: TensorSpec, value: Any, rows: int | None, pause: Pause) -> Tensor:
        inner: Any = spec.shape[1:]
        shape = None
        if rows is not None and all(isinstance(size, int) for size in inner):
            shape = (rows, *inner)
        tensor = from_json(spec.name, spec.dtype, shape, value, spec.nullable, spec.nan, spec.pad, spec.clock, pause)
        if tensor.shape == (0,) and all(isinstance(size, int) for size in inner):
            return Tensor(tensor.dtype, (0, *inner), tensor.data)  # `[]` says nothing about what its rows would hold
        return tensor

    # ------------------------------------------------------------ results

    def row_values(self, name: str, result: Result) -> list[bytes]:
        """The value of each of this caller's rows of an output, as JSON. Raises MaitredError naming the output."""
        memo = result.batch.memo
        key = f"rows {name}"
        values = memo.get(key)
        spec = self.signature.outputs[name]
        if values is None:
            valid = validity(spec, result.batch.tensors) if spec.nullable else None
            values = memo[key] = nested(result.batch, result.batch.tensors[name], spec.nan, valid, spec.clock)
        own: list[Any] = values[result.start : result.stop]
        if None in own:
            raise unprintable(result.batch.tensors[name], spec.nan, name)
        return own

    def value(self, name: str, result: Result) -> bytes:
        """The whole of an output, as JSON: all of this caller's rows, or what a model without rows gave."""
        if self.signature.row_wise:
            return b"[%b]" % b",".join(self.row_values(name, result))
        tensor = result.batch.tensors[name]
        spec = self.signature.outputs[name]
        valid = validity(spec, result.batch.tensors) if spec.nullable else None
        whole = Tensor(tensor.dtype, (1, *tensor.shape), tensor.data)
        value = nested(result.batch, whole, spec.nan, valid, spec.clock)[0]
        if value is None:
            raise unprintable(tensor, spec.nan, name)
        return value


def let_go(rows: list[Row], pause: Pause) -> None:
    """Forget rows that have been read, some at a time: so many objects are dear to end at once."""
    while len(rows) > PIECE_ELEMENTS:
        del rows[-PIECE_ELEMENTS:]
        pause()


def needed(signature: Signature) -> frozenset[str]:
    """The inputs that no request may leave out."""
    return frozenset(name for name, spec in signature.inputs.items() if not spec.optional)


def check_names(signature: Signature, names: Iterable[str]) -> None:
    """Raises Malformed where inputs of these names are not what the model takes, whatever they hold.

    What the signature says of made-up inputs of the same names it would say of the caller's, after they were read.
    """
    for name in names:
        if name not in signature.inputs:
            raise signature.unknown_input(name)
    made_up = signature.example(1)
    signature.fit({name: made_up[name] for name in names})


def _filler(spec: TensorSpec) -> bytes | None:
    """What stands for a value that a row leaves out; None where nothing can."""
    if len(spec.shape) != 1:
        return None
    if spec.default is not None:
        default = spec.default
        return orjson.dumps(default.decode() if isinstance(default, bytes) else default)
    return b"null" if spec.nullable and spec.optional else None


def nested(batch: Outputs, tensor: Tensor, nan: Any, valid: Array | None, clock: Clock | None) -> list[bytes | None]:
    """Each row of the first axis of a batch's output as JSON, nested as its shape says; None for one that JSON cannot
    show. Raises Much where that is for a thread."""
    rows, *inner = tensor.shape
    if not inner:
        return rows_written(batch, tensor, nan, valid, clock)
    if rows == 0:
        return []
    lists = rows
    for size in inner[:-1]:
        lists *= size
    parts: list[bytes | None] = []
    if lists:
        flat = Tensor(tensor.dtype, (lists, inner[-1]), tensor.data)
        parts = [None if part is None else b"[%b]" % part for part in rows_written(batch, flat, nan, valid, clock)]
    count = lists
    for axis in range(len(inner) - 2, -1, -1):
        size = inner[axis]
        count = count // size if size else _product(rows, inner[:axis])
        parts = [_list(parts[at * size : (at + 1) * size]) for at in range(count)]
    return parts


def _list(parts: list[bytes | None]) -> bytes | None:
    return None if None in parts else b"[%b]" % b",".join(parts)  # type: ignore[arg-type]


def _product(rows: int, sizes: Sequence[int]) -> int:
    for size in sizes:
        rows *= size
    return rows


def objects(names: Sequence[str], columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """JSON objects, one for each place in the columns, whose keys are the names."""
    keys = [orjson.dumps(name) for name in names]
    return [
        b"{%b}" % b",".join([b"%b:%b" % pair for pair in zip(keys, values, strict=True)])
        for values in zip(*columns, strict=True)
    ]


class Reading(NamedTuple):
    """What a body of rows or columns holds."""

    tensors: dict[str, Tensor] | None
    """None for a list of no rows."""
    how: Any
    """How it is to be answered."""
    checked: Checked | None = None
    """What the signature says of the tensors, where it was asked."""


class Prediction:
    """What the V1 and plain routes of one model share: the signature it has now, and the way into its endpoint."""

    __slots__ = ("served", "_seconds", "_description", "bridge", "apart")

    def __init__(self, served: Served, deadline_seconds: float, apart: Apart | None = None) -> None:
        """Raises NoReplica while the model has not told its signature yet."""
        self.served = served
        self._seconds = deadline_seconds
        self._description = served.known()
        self.bridge = Bridge(served.signature)
        self.apart = apart

    def refresh(self) -> None:
        if self.served.description is not self._description:
            self._description = self.served.known()
            self.bridge = Bridge(self.served.signature)

    def read(self, document: Document, pause: Pause) -> Reading:
        """What the body of a request holds. Raises Malformed."""
        raise NotImplementedError

    def reading(self, exchange: Exchange) -> Reading | None:
        """The same for the body of an exchange; None where it is being read apart. Raises MaitredError."""
        body: Any = exchange.body
        if type(body) is Read:
            if body.holds_for(self._description):
                read: Reading = body.take()
                return read
            exchange.body = body = body.body  # the model's signature has changed meanwhile
        if self.apart is None or len(body) <= ON_LOOP_BYTES:
            return self.read(Document(body), no_pause)
        heads = read_heads(exchange.headers) if exchange.watched else NO_HEADS
        signature = self.bridge.signature

        def way(work: Work) -> Reading:
            read = self.read(Document(body, work), work)
            return read if read.tensors is None else read._replace(checked=signature.check(read.tensors))

        seconds = self._seconds if heads.timeout_seconds == FOREVER else heads.timeout_seconds
        self.apart.read(exchange, self._description, exchange.received_at + seconds, way)
        return None

    def check(self, call: Call, result: Result) -> None:
        for name, spec in self.bridge.signature.outputs.items():
            tensor = result.batch.tensors[name]
            own = tensor.rows(result.start, result.stop) if self.bridge.signature.row_wise else tensor
            if not spec.nullable and lacks_number(own, spec.nan):
                raise unprintable(own, spec.nan, name)

    def submit(self, exchange: Exchange, reading: Reading, form: Form, raw: bool = False) -> None:
        """Have the model answer in `form`, which finds `how` as the call's `forms`. Raises MaitredError.

        `raw`: whether the body was no JSON.
        """
        heads = read_heads(exchange.headers, raw) if exchange.watched else NO_HEADS
        checked = reading.checked or self.bridge.signature.check(reading.tensors or {})
        received = exchange.received_at
        seconds = self._seconds if heads.timeout_seconds == FOREVER else heads.timeout_seconds
        request = Request(
            checked.inputs, checked.rows, checked.group, received + seconds, NORMAL, ANONYMOUS.tenant,
            heads.request_id, heads.trace, "", None, None, len(exchange.body), received, checked.ragged,
        )  # fmt: skip
        body: Any = exchange.body
        if type(body) is Read:
            exchange.body = b""  # nobody needs it any more
        Call(exchange, self.served.endpoint.submit(request), form, None, self.bridge, reading.how).follow()
