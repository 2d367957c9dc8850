"""The data port over HTTP: a path leads to a handler, and an infer body to a checked request and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from maitred.deployment.router import Router, Served
from maitred.errors import Forbidden, MaitredError, Malformed, TooLarge, Unknown
from maitred.events import METHOD_NOT_ALLOWED, Listener, RequestEnded, nobody
from maitred.gateway import metadata
from maitred.gateway.answers import Call, defect, log, reply_error, reply_json
from maitred.gateway.apart import Apart, Read, Work
from maitred.gateway.chain import ANONYMOUS
from maitred.gateway.paths import Asked, parse
from maitred.gateway.plain import Plain
from maitred.gateway.rows import Prediction, check_names, needed
from maitred.gateway.settings import GatewaySettings
from maitred.gateway.terms import (
    LABELS,
    MAX_TEXT,
    NO_HEADS,
    ONLY_REQUEST_ID,
    WATCHED,
    Heads,
    Terms,
    check_id,
    read_heads,
    read_parameters,
)
from maitred.gateway.v1 import Predict
from maitred.gateway.v2 import Wanted, Writer
from maitred.http.exchange import JSON, Application, Exchange
from maitred.messages import BACKGROUND, FOREVER, NORMAL, Ragged, Request, Tensor
from maitred.model.signature import Signature
from maitred.wire import binary
from maitred.wire.coerce import NOT_FLAT, checked_shape, from_json, from_raw, from_texts, json_kind, packer
from maitred.wire.json import FLAT_KEYS, Envelope, InputEntry, Reader, decode, decode_long, flat_decoder, shown
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.sizes import MAX_FLAT, ON_LOOP_BYTES

Handler = Callable[[Exchange], None]
Route = dict[str, Handler]
"""By method; ANY stands for all of them."""

ANY: Final = "*"

MAX_ROUTES: Final = 1024
MAX_SHAPES: Final = 4096
MAX_WORDS: Final = 1 << 16
"""Bytes of a body that is no prediction."""

CLOSELY: Final = 15
"""Requests that are read closely after one that had to be, before the short way is tried again."""
_TENANT: Final = ANONYMOUS.tenant
_name_of: Final = attrgetter("name")

_read_load: Final = Reader(dict[str, Any])


class Control(Protocol):
    """Who loads and unloads models when a caller of the data port may ask for it."""

    def load(self, name: str, done: Callable[[MaitredError | None], None]) -> None:
        """Start loading; `done` is called on this loop, once."""
        ...

    def unload(self, name: str, done: Callable[[MaitredError | None], None]) -> None: ...


class Rest:
    """Every route of the data port; what is not V2, V1 or plain prediction goes `aside`. An `Application`."""

    __slots__ = ("_router", "_settings", "_aside", "_control", "_listener", "_apart", "_routes", "_compiled")

    watched = WATCHED
    labels = LABELS
    """Headers that mean something to a route here; what goes `aside` may look at all of them."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        aside: Application | None = None,
        control: Control | None = None,
        listener: Listener = nobody,
        apart: Apart | None = None,
    ) -> None:
        """`listener` hears of what is refused here, before it reaches an endpoint. `apart` is where long bodies and
        answers are read and written; without it that is done on the spot."""
        self._router = router
        self._settings = settings
        self._aside = aside
        self._control = control if settings.repository_control else None
        self._listener = listener
        self._apart = apart
        if apart is not None:
            apart.again = self.exchange
        self._routes: dict[bytes, Route] = {}
        """By path, as it was spelled."""
        self._compiled: dict[tuple[str, str, str], Route] = {}
        """By protocol, action and model: what all spellings share."""
        router.keep(self._routes)
        router.keep(self._compiled)

    def exchange(self, exchange: Exchange) -> None:
        """Answer, now or when the model has; never raises."""
        handler = None
        try:
            try:
                handler = self._routes[exchange.path][exchange.method]
            except KeyError:
                route = self._routes.get(exchange.path) or self._find(exchange.path)
                handler = route.get(exchange.method) or self._other_method(exchange.method, route)
            handler(exchange)
        except MaitredError as error:
            self._refuse(exchange, handler, error)
        except Exception:
            log.exception("a request failed inside the gateway")
            self._refuse(exchange, handler, defect())

    def _refuse(self, exchange: Exchange, handler: Handler | None, error: MaitredError) -> None:
        owner = getattr(handler, "__self__", None)
        served = owner.served if isinstance(owner, (Infer, Prediction)) else None
        name, version = ("", "") if served is None else (served.name, served.version)
        self._listener(RequestEnded(name, version, error.code, 0.0))
        reply_error(exchange, error)

    def _other_method(self, method: str, route: Route) -> Handler:
        """What answers a method that the route does not name: HEAD is GET without its body, OPTIONS tells the methods,
        others get a 405."""
        if ANY in route:
            return route[ANY]
        if method == "HEAD" and "GET" in route:
            return route["GET"]
        taken = ", ".join([*route, "HEAD"] if "GET" in route else route)
        allowed = taken if "OPTIONS" in route else f"{taken}, OPTIONS"
        if method == "OPTIONS":
            return _allowing(allowed)

        def refuse(exchange: Exchange) -> None:
            self._listener(RequestEnded("", "", METHOD_NOT_ALLOWED, 0.0))
            message = f"this route takes {taken}, not {shown(method)}"
            reply_json(exchange, {"error": message}, 405, b"Allow: %s\r\n" % allowed.encode())

        return refuse

    def _find(self, path: bytes) -> Route:
        """The route of a path, kept where it leads to a model. Raises Unknown or Malformed."""
        if path == b"*":
            return {"OPTIONS": _allowing("GET, HEAD, POST, OPTIONS")}
        asked = parse(path)
        if asked is None:
            return {ANY: self._site}
        if asked.model == "" or asked.action in ("load", "unload"):
            return self._server_route(asked)
        served = self._router.get(asked.model, asked.version)
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()  # as many spellings as callers like lead to one model
        key = (asked.protocol, asked.action, served.name)
        if key not in self._compiled:
            self._compiled[key] = self._model_route(asked, served)
        self._routes[path] = self._compiled[key]
        return self._compiled[key]

    def _model_route(self, asked: Asked, served: Served) -> Route:
        seconds = self._settings.deadline_of(served.name)
        match asked.protocol, asked.action:
            case "v2", "infer":
                return {"POST": Infer(served, seconds, self._apart).answer}
            case "v1", "predict":
                return {"POST": Predict(served, seconds, self._apart).answer}
            case "predict", _:
                return {"POST": Plain(served, seconds, self._apart).answer}
            case "v2", "ready":
                return {"GET": lambda exchange: _reply_ready(exchange, *metadata.readiness(served))}
            case "v2", "config":
                return {"GET": lambda exchange: reply_json(exchange, metadata.config(served))}
            case "v1", _:
                return {"GET": lambda exchange: reply_json(exchange, metadata.v1_status(served))}
        return {"GET": lambda exchange: reply_json(exchange, metadata.model(served))}

    def _server_route(self, asked: Asked) -> Route:
        router = self._router
        match asked.action:
            case "server":
                return {"GET": lambda exchange: reply_json(exchange, metadata.server())}
            case "live":
                return {"GET": lambda exchange: reply_json(exchange, {"live": True})}
            case "ready":
                return {"GET": lambda exchange: _reply_ready(exchange, router.ready(), "see /v2/repository/index")}
            case "models":
                return {"GET": lambda exchange: reply_json(exchange, {"models": [s.name for s in router.all()]})}
            case "index":
                return {"POST": lambda exchange: reply_json(exchange, metadata.index(router, _few_words(exchange)))}
        return {"POST": lambda exchange: self._change(exchange, asked)}

    def _change(self, exchange: Exchange, asked: Asked) -> None:
        control = self._control
        if control is None:
            raise Forbidden(
                f"models cannot be {asked.action}ed on this port: start the server with --allow-repository-control"
            )
        body = _few_words(exchange)
        if body.strip() and _read_load(body).get("parameters"):
            raise Malformed("parameters: none are known for this action")

        def done(error: MaitredError | None) -> None:
            if error is not None:
                reply_error(exchange, error)
            else:
                reply_json(exchange, {})

        (control.load if asked.action == "load" else control.unload)(asked.model, done)

    def _site(self, exchange: Exchange) -> None:
        if self._aside is None:
            raise Unknown(f"there is no route {shown(exchange.path.decode('latin-1'))}")
        self._aside.exchange(exchange)


def _few_words(exchange: Exchange) -> Any:
    """The body of a request that is no prediction: it is read on the loop, so it must be short. Raises TooLarge."""
    if len(exchange.body) > MAX_WORDS:
        raise TooLarge(f"the body has {len(exchange.body)} bytes, and this route takes {MAX_WORDS}: send less")
    return exchange.body


def _allowing(methods: str) -> Handler:
    """Answers OPTIONS."""
    line = b"Allow: %s\r\n" % methods.encode()
    return lambda exchange: exchange.reply(204, b"", JSON, line)


def _reply_ready(exchange: Exchange, ready: bool, why: str) -> None:
    if ready:
        reply_json(exchange, {"ready": True})
    else:
        reply_json(exchange, {"ready": False, "error": f"not ready: {why}" if why else "not ready"}, 503)


# ---------------------------------------------------------------- infer

Reading = tuple[Envelope, dict[str, Tensor], int, Any, Ragged | None]
"""A request's envelope and what the check said of its payload: inputs, rows, group, and how they were filled up."""


def _has_long_json(heads: Heads) -> bool:
    """Whether a body longer than ON_LOOP_BYTES may have as much JSON."""
    return heads.json_length is None or len(heads.json_length) >= len(str(ON_LOOP_BYTES))


class Infer:
    """The infer route of one model, compiled from its signature: bytes become a request, its result an answer."""

    __slots__ = (
        "served", "_seconds", "_description", "_signature", "_kinds", "_per_row", "_writer", "_all", "_wanted",
        "_shapes", "_read_flat", "_flat_reader", "_not_flat", "_known", "_needed", "_apart", "_dear",
    )  # fmt: skip

    def __init__(self, served: Served, deadline_seconds: float, apart: Apart | None = None) -> None:
        """Raises NoReplica while the model has not told its signature yet."""
        self.served = served
        self._seconds = deadline_seconds
        self._apart = apart
        self._compile()

    def _compile(self) -> None:
        description = self.served.known()
        signature: Signature = description.signature
        self._description = description
        self._signature = signature
        self._kinds = {
            name: (spec.datatype, spec.dtype, spec.nullable, spec.nan, spec.clock)
            for name, spec in signature.inputs.items()
        }
        self._needed = needed(signature)
        self._per_row = description.traits.per_row_parameters
        self._writer = Writer(self.served.name, self.served.version, signature, self._apart)
        self._dear = signature.buckets is not None or any(
            spec.dtype in ("str", "bytes", "bool") or spec.masked or signature.bounds(name) is not None
            for name, spec in signature.inputs.items()
        )
        """Whether binary tensors are looked at one by one."""
        self._all = self._writer.wanted(tuple(signature.outputs))
        self._wanted: dict[tuple[str, ...], Wanted] = {}
        self._shapes: set[tuple[int, ...]] = set()
        only = next(iter(signature.inputs.values()))
        self._read_flat: Callable[[Any], Any] | None = None
        """Reads the usual request, where a check looks at nothing but the shape of the one input there is."""
        plain = signature.bounds(only.name) is None and not only.masked and signature.buckets is None
        if len(signature.inputs) == 1 and plain and not signature.shared:
            self._read_flat = flat_decoder(only.name, only.datatype, json_kind(only.dtype))
        self._not_flat = 0
        """How many requests to read closely, without `_read_flat`, for lately one was not what that takes."""
        self._flat_reader = self._read_flat
        self._known: dict[tuple[int, ...], tuple[Any, ...]] = {}
        """What is sure of requests with one input of this shape, where `_read_flat` is there: name, dtype, the shape
        that the model gets, packer and count, and the request's rows and group."""

    def answer(self, exchange: Exchange) -> None:
        """Submit what the exchange asks. Raises MaitredError for what is refused before that."""
        served = self.served
        if served.description is not self._description:
            self._compile()
        watched = exchange.watched
        heads = NO_HEADS if watched <= ONLY_REQUEST_ID else read_heads(exchange.headers)
        body = exchange.body
        size = len(body)
        tensors = ragged = lease = None
        read_flat = self._read_flat
        if read_flat is not None and size <= MAX_FLAT and heads.json_length is None:
            # What was checked once need not be checked again: this is nearly every request of a small model. The short
            # way is part of this function, and repeats what `decode` and `from_json` do, for the sake of the budget.
            try:
                envelope = read_flat(body)
                (entry,) = envelope.inputs
                data = entry.data
                name, dtype, shape, pack, count, rows, group = self._known[entry.shape]
                id = envelope.id
                if len(data) == count and body.count(b":") == (FLAT_KEYS if id is None else FLAT_KEYS + 1):
                    tensors = {name: Tensor(dtype, shape, pack(*data))}
            except (KeyError, *NOT_FLAT):
                pass
        if tensors is None:
            if (read := self._closely(exchange, heads)) is None:
                return  # it is read apart, and comes again
            envelope, tensors, rows, group, ragged = read
            id = envelope.id
            lease = exchange.lies()
        if not id and watched == ONLY_REQUEST_ID:
            heads = read_heads(exchange.headers)
        received = exchange.received_at
        request = Request(
            tensors, rows, group, received + self._seconds, NORMAL, _TENANT, id or heads.request_id, heads.trace, "",
            None, None, size, received, ragged, lease,
        )  # fmt: skip
        wanted, forms = self._all, None
        if envelope.parameters is not None or envelope.outputs is not None:
            wanted, forms = self._unusual(request, envelope, heads)
        elif heads.timeout_seconds is not FOREVER:
            request.deadline = received + heads.timeout_seconds
        if id is not None and (len(id) > MAX_TEXT or "\0" in id):
            check_id(id)
        ticket = served.endpoint.submit(request)
        call = Call(exchange, ticket, self._writer, id, wanted, forms)
        if ticket.ended or ticket.watcher is not None:
            call.follow()
        else:  # what that does, without the calls
            exchange.gone = ticket.watcher = call

    def _closely(self, exchange: Exchange, heads: Heads) -> Reading | None:
        """As `_read_closely`, for the body of an exchange; None where it is being read apart. Raises MaitredError."""
        body: Any = exchange.body
        if type(body) is Read:
            exchange.body = b""
            if body.holds_for(self._description):
                read: Reading = body.take()
                return read
            exchange.body = body = body.body  # the model's signature has changed meanwhile
        apart = self._apart
        if apart is None or len(body) <= ON_LOOP_BYTES or not (self._dear or _has_long_json(heads)):
            return self._read_closely(body, heads, no_pause)
        received = exchange.received_at

        def way(work: Work) -> Reading:
            return self._read_closely(body, heads, work, lambda seconds: work.by(received + seconds))

        deadline = received + (self._seconds if heads.timeout_seconds is FOREVER else heads.timeout_seconds)
        apart.read(exchange, self._description, deadline, way)
        return None

    def _read_closely(
        self, body: Any, heads: Heads, pause: Pause, within: Callable[[float], None] | None = None
    ) -> Reading:
        """The envelope of any request, and what the check says of its payload. Raises Malformed.

        `body` is any buffer. `within` is told of the seconds that it gives for all of this, before tensors are read.
        """
        head, rest = (body, None) if heads.json_length is None else binary.split(body, heads.json_length)
        if len(head) > ON_LOOP_BYTES:
            envelope = decode_long(head, pause)
        else:
            envelope = decode(bytes(head) if type(head) is memoryview else head)
        if within is not None and envelope.parameters is not None:
            timeout = envelope.parameters.get("timeout")
            if type(timeout) is int and 0 < timeout < 2**63:
                within(timeout / 1e6)
        names = list(map(_name_of, envelope.inputs))
        if not self._needed <= set(names) <= self._kinds.keys():
            check_names(self._signature, names)  # before elements are read, which is dear
        tensors = self._tensors(envelope, pause) if rest is None else self._binary_tensors(envelope, rest, pause)
        checked = self._signature.check(tensors)
        if self._not_flat:
            self._not_flat -= 1
            if not self._not_flat:
                self._read_flat = self._flat_reader
        elif self._read_flat is not None and len(body) <= MAX_FLAT and heads.json_length is None:
            entry = envelope.inputs[0]
            shape = entry.shape
            if shape in self._known:
                self._read_flat, self._not_flat = None, CLOSELY
            else:
                if len(self._known) >= MAX_SHAPES:
                    self._known.clear()  # callers choose shapes
                kind = self._kinds[entry.name]
                count = math.prod(shape)
                self._known[shape] = (
                    entry.name, kind[1], checked.inputs[entry.name].shape, packer(kind[1], count), count, checked.rows,
                    checked.group,
                )  # fmt: skip
        return envelope, checked.inputs, checked.rows, checked.group, checked.ragged

    def _tensors(self, envelope: Envelope, pause: Pause) -> dict[str, Tensor]:
        """The inputs of a JSON request. Raises Malformed naming the input."""
        tensors: dict[str, Tensor] = {}
        kinds = self._kinds
        shapes = self._shapes
        for entry in envelope.inputs:
            name = entry.name
            kind = kinds.get(name)
            if kind is None or kind[0] != entry.datatype or name in tensors or entry.parameters is not None:
                kind = self._kind(entry, tensors)
                binary.cut((entry,), None)
            shape = entry.shape
            if shape not in shapes:
                self._new_shape(name, shape)
            if not entry.data:
                raise Malformed(f"input {shown(name)}: data is missing")
            tensors[name] = from_json(name, kind[1], shape, entry.data, kind[2], kind[3], None, kind[4], pause)
        return tensors

    def _binary_tensors(self, envelope: Envelope, rest: memoryview, pause: Pause) -> dict[str, Tensor]:
        """The inputs of a request with binary tensors; those are views of its body. Raises Malformed."""
        tensors: dict[str, Tensor] = {}
        cuts = binary.cut(envelope.inputs, rest)
        for entry in envelope.inputs:
            name = entry.name
            kind = self._kind(entry, tensors)
            if entry.shape not in self._shapes:
                self._new_shape(name, entry.shape)
            if name in cuts and kind[0] != entry.datatype:
                tensors[name] = from_texts(name, from_raw(name, "str", entry.shape, cuts[name], pause), kind[4])
            elif name in cuts:
                tensors[name] = from_raw(name, kind[1], entry.shape, cuts[name], pause)
            elif entry.data:
                _, dtype, nullable, nan, clock = kind
                tensors[name] = from_json(name, dtype, entry.shape, entry.data, nullable, nan, None, clock, pause)
            else:
                raise Malformed(f"input {shown(name)}: neither data nor binary_data_size is there")
        return tensors

    def _kind(self, entry: InputEntry, seen: dict[str, Tensor]) -> Any:
        """What the signature says about an input that is not plain. Raises Malformed for what it does not have."""
        name = entry.name
        kind = self._kinds.get(name)
        if kind is None:
            raise self._signature.unknown_input(name)
        if kind[0] != entry.datatype and not (kind[4] is not None and entry.datatype == "BYTES"):  # times as text
            raise Malformed(f"input {name!r}: expected {kind[0]}, got {shown(entry.datatype)[1:-1]}")
        if name in seen:
            raise Malformed(f"input {name!r} is sent twice")
        if entry.parameters is not None and "shared_memory_region" in entry.parameters:
            raise Malformed(f"input {name!r}: shared memory is not supported; send data or binary_data_size")
        return kind

    def _new_shape(self, name: str, shape: tuple[int, ...]) -> None:
        checked_shape(name, shape)
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes.add(shape)

    def _unusual(self, request: Request, envelope: Envelope, heads: Heads) -> tuple[Wanted, Any]:
        """Fill in what a request says besides its tensors; the outputs wanted, and their forms where not plain JSON."""
        parameters = envelope.parameters
        terms = read_parameters(parameters) if parameters else Terms()
        request.lane = ANONYMOUS.allow(terms.lane)
        seconds = min(heads.timeout_seconds, terms.timeout_seconds)
        if seconds != FOREVER:
            request.deadline = request.received_at + seconds
        elif terms.lane == BACKGROUND:
            request.deadline = FOREVER
        if terms.custom is not None:
            request.parameters = terms.custom
            if not self._per_row and request.group is not None:
                request.group = (request.group, terms.mark)
        wanted = self._all
        if envelope.outputs:  # an empty list asks for all, as Triton's clients mean it
            names = tuple([entry.name for entry in envelope.outputs])
            wanted = self._wanted.get(names) or self._new_wanted(names)
            request.outputs = names
        return wanted, self._writer.forms(wanted, envelope.outputs, terms.binary_data_output)

    def _new_wanted(self, names: tuple[str, ...]) -> Wanted:
        wanted = self._writer.wanted(self._signature.check_outputs(names))
        if len(self._wanted) < MAX_ROUTES:
            self._wanted[names] = wanted
        return wanted
