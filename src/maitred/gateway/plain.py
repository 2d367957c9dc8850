"""The plain route: an object becomes an object, an array of objects an array, `{"columns": …}` the same.

A picture or other bytes are one row of a model that takes just that.
"""

from __future__ import annotations

from typing import Final

from maitred.errors import Malformed
from maitred.gateway.answers import Call
from maitred.gateway.rows import Bridge, Prediction, Reading, Row, let_go, objects, read_object, read_rows
from maitred.gateway.terms import is_raw
from maitred.http.exchange import JSON, Exchange
from maitred.messages import Result, Tensor
from maitred.model.signature import raw_input
from maitred.wire.json import Document, shown
from maitred.wire.pieces import Pause

ONE: Final = "object"
ROWS: Final = "array"
COLUMNS: Final = "columns"


class Plain(Prediction):
    """The plain route of one model."""

    __slots__ = ()

    def answer(self, exchange: Exchange) -> None:
        """Submit what the exchange asks. Raises MaitredError for what is refused before that.

        An object is one row, or, for a model that is not row-wise, all of its inputs.
        """
        self.refresh()
        body = exchange.body
        if exchange.watched and is_raw(exchange.headers) and (spec := raw_input(self.bridge.signature)):
            tensors = {spec.name: Tensor("bytes", (1,), [bytes(body)])}
            self.submit(exchange, Reading(tensors, ONE), self, raw=True)
        elif (reading := self.reading(exchange)) is not None:
            if reading.tensors is None:
                exchange.reply(200, b"[]")
            else:
                self.submit(exchange, reading, self)

    def read(self, document: Document, pause: Pause) -> Reading:
        text = document.text
        if text.lstrip()[:1] == b"[":
            rows = read_rows.rows(document)
            if document.outline is not None:
                rows = [{name: document.value(value) for name, value in row.items()} for row in rows]
            tensors = self.bridge.rows(rows, pause) if rows else None
            document.check_count(sum(map(len, rows)))
            let_go(rows, pause)
            return Reading(tensors, ROWS)
        row = {name: document.value(value) for name, value in read_object.of(document).items()}
        if "columns" in row:
            return Reading(self._columns(document, row, pause), COLUMNS)
        row_wise = self.bridge.signature.row_wise
        tensors = self.bridge.rows([row], pause) if row_wise else self.bridge.columns(row, pause)
        document.check_count(len(row))
        return Reading(tensors, ONE)

    def _columns(self, document: Document, top: Row, pause: Pause) -> dict[str, Tensor]:
        if len(top) > 1:
            other = next(name for name in top if name != "columns")
            raise Malformed(f"columns must stand alone, and {shown(other)} stands beside it")
        columns = read_object.part(top["columns"], "columns")
        tensors = self.bridge.columns({name: document.value(value) for name, value in columns.items()}, pause)
        document.check_count(1 + len(columns))
        return tensors

    def write(self, call: Call, result: Result) -> tuple[bytes, bytes, bytes]:
        bridge: Bridge = call.wanted
        names = list(bridge.signature.outputs)
        if call.forms == COLUMNS or not bridge.signature.row_wise:
            body = objects(names, [[bridge.value(name, result)] for name in names])[0]
            if call.forms == COLUMNS:
                body = b'{"columns":%b}' % body
        else:
            rows = objects(names, [bridge.row_values(name, result) for name in names])
            body = rows[0] if call.forms == ONE else b"[%b]" % b",".join(rows)
        return body, JSON, b""
