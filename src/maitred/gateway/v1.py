"""The V1 protocol's `:predict`: `instances` (rows) or `inputs` (columns) become `predictions`."""

from __future__ import annotations

import re
from typing import Any, Final

from maitred.errors import Malformed
from maitred.gateway.answers import Call
from maitred.gateway.rows import Bridge, Prediction, Reading, objects, read_object, read_rows
from maitred.http.exchange import JSON, Exchange
from maitred.messages import Result, Tensor
from maitred.wire.json import Document, check_count
from maitred.wire.pieces import Pause

ROWS: Final = "rows"
COLUMNS: Final = "columns"

_FIRST: Final = re.compile(rb"\[\s*(.)", re.DOTALL)


class Predict(Prediction):
    """The predict route of one model."""

    __slots__ = ()

    def answer(self, exchange: Exchange) -> None:
        """Submit what the exchange asks. Raises MaitredError for what is refused before that."""
        self.refresh()
        reading = self.reading(exchange)
        if reading is None:
            return
        if reading.tensors is None:
            exchange.reply(200, b'{"predictions":[]}')
        else:
            self.submit(exchange, reading, self)

    def read(self, document: Document, pause: Pause) -> Reading:
        top = read_object.of(document)
        instances, inputs = top.get("instances"), top.get("inputs")
        if (instances is None) == (inputs is None):
            raise Malformed("the body must have either instances (a list of rows) or inputs (whole columns)")
        if instances is None:
            return Reading(self._columns(document, document.value(inputs), len(top), pause), COLUMNS)
        return Reading(self._instances(document, document.value(instances), len(top), pause), ROWS)

    def _instances(self, document: Document, instances: Any, keys: int, pause: Pause) -> dict[str, Tensor] | None:
        """None for no rows. What does not begin with an object is the rows of a single input."""
        text = document.text
        start = _FIRST.match(memoryview(instances))
        if start is None or start[1] == b"{":
            rows = read_rows.part(instances, "instances")
            if document.outline is not None:
                rows = [{name: document.value(value) for name, value in row.items()} for row in rows]
            tensors = self.bridge.rows(rows, pause)
            check_count(text, keys + sum(map(len, rows)))
            return tensors
        check_count(text, keys)
        if start[1] == b"]":
            return None
        self.bridge.check_row_wise()
        return self.bridge.columns({self.bridge.only().name: instances}, pause)

    def _columns(self, document: Document, inputs: Any, keys: int, pause: Pause) -> dict[str, Tensor]:
        text = document.text
        if memoryview(inputs)[0] != ord("{"):
            check_count(text, keys)
            return self.bridge.columns({self.bridge.only().name: inputs}, pause)
        columns = read_object.part(inputs, "inputs")
        tensors = self.bridge.columns({name: document.value(value) for name, value in columns.items()}, pause)
        check_count(text, keys + len(columns))
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
