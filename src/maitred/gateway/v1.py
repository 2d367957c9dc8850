"""The V1 protocol's `:predict`: `instances` (rows) or `inputs` (columns) become `predictions`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from maitred.errors import Malformed
from maitred.gateway.answers import Call
from maitred.gateway.rows import Bridge, Prediction, objects, read_object, read_rows
from maitred.http.exchange import JSON, Exchange
from maitred.messages import Result, Tensor
from maitred.wire.json import Body, check_count

ROWS: Final = "rows"
COLUMNS: Final = "columns"

_FIRST: Final = re.compile(rb"\[\s*(.)", re.DOTALL)


class Predict(Prediction):
    """The predict route of one model."""

    __slots__ = ()

    def answer(self, exchange: Exchange) -> None:
        """Submit what the exchange asks. Raises MaitredError for what is refused before that."""
        self.refresh()
        body = exchange.body
        top = read_object(body)
        instances, inputs = top.get("instances"), top.get("inputs")
        if (instances is None) == (inputs is None):
            raise Malformed("the body must have either instances (a list of rows) or inputs (whole columns)")
        if instances is None:
            self.submit(exchange, self._columns(body, inputs, len(top)), self, COLUMNS)
            return
        tensors = self._instances(body, instances, len(top))
        if tensors is None:
            exchange.reply(200, b'{"predictions":[]}')
        else:
            self.submit(exchange, tensors, self, ROWS)

    def _instances(self, body: Body, instances: msgspec.Raw, keys: int) -> dict[str, Tensor] | None:
        """None for no rows. What does not begin with an object is the rows of a single input."""
        start = _FIRST.match(memoryview(instances))
        if start is None or start[1] == b"{":
            rows = read_rows.part(instances, "instances")
            tensors = self.bridge.rows(rows)
            check_count(body, keys + sum(map(len, rows)))
            return tensors
        check_count(body, keys)
        if start[1] == b"]":
            return None
        self.bridge.check_row_wise()
        return self.bridge.columns({self.bridge.only().name: instances})

    def _columns(self, body: Body, inputs: msgspec.Raw, keys: int) -> dict[str, Tensor]:
        if memoryview(inputs)[0] != ord("{"):
            check_count(body, keys)
            return self.bridge.columns({self.bridge.only().name: inputs})
        columns = read_object.part(inputs, "inputs")
        tensors = self.bridge.columns(columns)
        check_count(body, keys + len(columns))
        return tensors

    def write(self, call: Call, result: Result) -> tuple[bytes, bytes, bytes]:
        bridge: Bridge = call.wanted
        names = list(bridge.signature.outputs)
        if call.forms == COLUMNS:
            values = [bridge.value(name, result) for name in names]
            predictions = values[0] if len(names) == 1 else objects(names, [[value] for value in values])[0]
        else:
            columns = [bridge.row_values(name, result) for name in names]
            predictions = b"[%b]" % b",".join(columns[0] if len(names) == 1 else objects(names, columns))
        return b'{"predictions":%b}' % predictions, JSON, b""
