"""The plain route: an object becomes an object, an array of objects an array, `{"columns": …}` the same.

A picture or other bytes are one row of a model that takes just that.
"""

from __future__ import annotations

from typing import Final

from maitred.errors import Malformed
from maitred.gateway.answers import Call
from maitred.gateway.rows import Bridge, Prediction, Row, objects, read_object, read_rows
from maitred.gateway.terms import is_raw
from maitred.http.exchange import JSON, Exchange
from maitred.messages import Result, Tensor
from maitred.model.signature import raw_input
from maitred.wire.json import Body, check_count, shown

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
            self.submit(exchange, {spec.name: Tensor("bytes", (1,), [bytes(body)])}, self, ONE, raw=True)
            return
        if body.lstrip()[:1] == b"[":
            rows = read_rows(body)
            tensors = self.bridge.rows(rows) if rows else {}
            check_count(body, sum(map(len, rows)))
            if not rows:
                exchange.reply(200, b"[]")
                return
            self.submit(exchange, tensors, self, ROWS)
            return
        row = read_object(body)
        if "columns" in row:
            self.submit(exchange, self._columns(body, row), self, COLUMNS)
            return
        tensors = self.bridge.rows([row]) if self.bridge.signature.row_wise else self.bridge.columns(row)
        check_count(body, len(row))
        self.submit(exchange, tensors, self, ONE)

    def _columns(self, body: Body, top: Row) -> dict[str, Tensor]:
        if len(top) > 1:
            other = next(name for name in top if name != "columns")
            raise Malformed(f"columns must stand alone, and {shown(other)} stands beside it")
        columns = read_object.part(top["columns"], "columns")
        tensors = self.bridge.columns(columns)
        check_count(body, 1 + len(columns))
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
