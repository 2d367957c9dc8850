"""What gateway tests stand on: an exchange that remembers its answer, models that are functions, and a data port."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from maitred.deployment.router import Router, Served
from maitred.endpoint import Ticket
from maitred.errors import MaitredError
from maitred.events import Event
from maitred.gateway.rest import Rest
from maitred.gateway.settings import GatewaySettings
from maitred.http.exchange import JSON, WATCHED, Exchange
from maitred.http.heads import WATCHED_BITS, WATCHED_SHIFT, Heads, Unusual
from maitred.messages import Outputs, Request, Result, Tensor
from maitred.model.description import Description
from maitred.model.predictor import Traits
from maitred.model.signature import Signature
from maitred.wire.coerce import to_array

Function = Callable[[dict[str, Any]], dict[str, Any]]


class FakeExchange(Exchange):
    """Keeps what it is answered; a second answer fails the test."""

    answer: tuple[int, bytes, bytes, bytes] | None = None

    def reply(self, status: int, body: Any, content_type: bytes = JSON, extra: bytes = b"") -> None:
        assert self.answer is None, "answered twice"
        self.answer = (status, bytes(body), content_type, extra)


class Answer:
    def __init__(self, exchange: FakeExchange) -> None:
        assert exchange.answer is not None, "not answered"
        self.status, self.body, self.content_type, extra = exchange.answer
        self.headers = {
            name.decode().lower(): value.decode()
            for name, _, value in (line.partition(b": ") for line in extra.split(b"\r\n") if line)
        }

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda token: 1 / 0)

    @property
    def error(self) -> str:
        return str(self.json["error"])

    def tensor(self, name: str) -> dict[str, Any]:
        return next(output for output in self.json["outputs"] if output["name"] == name)


class FakeEndpoint:
    """Keeps what it is sent; answers at once with `function`, or when told to."""

    def __init__(self, function: Function | None, signature: Signature) -> None:
        self.function = function
        self.signature = signature
        self.tickets: list[Ticket] = []
        self.cancels: list[Ticket] = []
        self.refusal: MaitredError | None = None

    @property
    def request(self) -> Request:
        return self.tickets[-1].request

    def submit(self, request: Request) -> Ticket:
        ticket = Ticket(request, self)
        self.tickets.append(ticket)
        if self.refusal is not None:
            ticket.fail(self.refusal)
        elif self.function is not None:
            arrays = self.function({name: to_array(tensor) for name, tensor in request.inputs.items()})
            ticket.end(Result(self.outputs(arrays, request.rows), 0, request.rows, True, 0.00012))
        return ticket

    def outputs(self, arrays: dict[str, Any], rows: int) -> Outputs:
        tensors = {}
        for name, value in arrays.items():
            dtype = self.signature.answers[name].dtype
            array = np.ascontiguousarray(value)
            data = array.reshape(-1).tolist() if dtype in ("str", "bytes") else array
            tensors[name] = Tensor(dtype, np.shape(value), data)
        return Outputs(tensors, rows, 0.001, 0.0005)

    def room(self, lane: int) -> int:
        return 4096

    def cancelled(self, ticket: Ticket) -> None:
        self.cancels.append(ticket)


class Port:
    """A data port with models that are functions."""

    def __init__(self, **settings: Any) -> None:
        self.router = Router()
        self.settings = GatewaySettings(**settings)
        self.events: list[Event] = []
        self.rest = Rest(self.router, self.settings, listener=self.events.append)
        self.endpoints: dict[str, FakeEndpoint] = {}
        self._heads = Heads(1 << 30, self.rest.watched, self.rest.labels)

    def add(
        self,
        name: str,
        inputs: dict[str, str],
        outputs: dict[str, str],
        function: Function | None = None,
        **traits: Any,
    ) -> FakeEndpoint:
        signature = Signature(inputs, outputs)
        endpoint = FakeEndpoint(function, signature)
        description = Description(name=name, signature=signature, flavor="test", traits=Traits(**traits))
        served = Served(name, "1")
        served.endpoint = endpoint
        served.description = description
        served.state = "ready"
        self.endpoints[name] = endpoint
        self.router.swap({**self.router.names, name: served})
        return endpoint

    def send(
        self, method: str, path: str | bytes, body: Any = b"", headers: dict[str, str] | None = None
    ) -> FakeExchange:
        if not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
        raw = path if isinstance(path, bytes) else path.encode()
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        watched = self._weigh(headers or {})
        exchange = FakeExchange(method, raw, b"", pairs, body, 50.0, None, None, watched)
        self.rest.exchange(exchange)
        return exchange

    def _weigh(self, headers: dict[str, str]) -> int:
        """An exchange's `watched`, as the HTTP/1 lane finds it."""
        lines = [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
        try:
            return sum(map(self._heads.weights.__getitem__, lines)) >> WATCHED_SHIFT & WATCHED_BITS
        except Unusual:
            return WATCHED

    def ask(self, method: str, path: str | bytes, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
        return Answer(self.send(method, path, body, headers))

    def infer(self, name: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("POST", f"/v2/models/{name}/infer", body, headers)


def tensor(name: str, datatype: str, shape: list[int], data: Any, **parameters: Any) -> dict[str, Any]:
    entry = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return {**entry, "parameters": parameters} if parameters else entry


def iris_port() -> Port:
    """Two models of four floats: scores and labels, as a classifier has them."""
    port = Port()
    port.add("iris", {"x": "float32[n, 4]"}, {"p": 'float32[n, 3] labels=["a","b","c"]', "label": "str[n]"}, classify)
    return port


def classify(inputs: dict[str, Any]) -> dict[str, Any]:
    x = inputs["x"]
    p = x[:, :3] * np.float32(2)
    return {"p": p, "label": np.array([f"r{row}" for row in range(len(x))], object)}
