"""From what was typed to a plan: looks at the server, reads or makes up bodies, writes the requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from maitred.loadtest.answer import shown
from maitred.loadtest.ask import BadUrl, Place, Reply, Unreachable, ask, find, place_of, written
from maitred.loadtest.bodies import Bodies, Body, Examples
from maitred.loadtest.checks import not_json
from maitred.loadtest.load import tls_context
from maitred.loadtest.metadata import Route, Unknown, example_in, route_of, signature_of
from maitred.loadtest.plan import Plan, Target
from maitred.model.signature import Signature

BODIES: Final = 1024
"""Made up, unless they are large."""
MADE_BYTES: Final = 64 << 20
"""What made-up bodies take together at most; at least 2 are made."""
FILE_BYTES: Final = 256 << 20
"""The largest file of bodies."""
_ASK_SECONDS: Final = 10.0
"""How long a question before the load may take at least: making metadata may take longer than an answer."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = {"content-length", "transfer-encoding", "expect", "upgrade"}
"""Headers that say how a request is framed, or what is to follow it."""
_FOR_LATER: Final = (429, 503)
"""Statuses that say nothing against a body."""

Headers = Mapping[str, tuple[str, str]]


class Unfit(Exception):
    """What was asked for cannot be done; the message says what to do instead."""


@dataclass(frozen=True)
class Wish:
    """What to send to whom, as it was typed."""

    url: str
    body: Path | None = None
    headers: Sequence[str] = ()
    method: str = ""
    rows: int = 1
    sizes: Sequence[str] = ()
    binary: bool = False
    expect: Path | None = None
    same: bool = False
    tolerance: float = 0.0
    timeout_seconds: float = 10.0
    verify: bool = True
    seed: int = 0


class Prepared(NamedTuple):
    """A plan, and what a report says of it."""

    plan: Plan
    url: str
    method: str
    source: str
    bodies: int
    body_bytes: float


def prepare(wish: Wish) -> Prepared:
    """Raises Unfit; Unreachable where the server does not answer."""
    try:
        place = place_of(wish.url)
    except BadUrl as error:
        raise Unfit(str(error)) from None
    headers = _headers(wish.headers)
    method = wish.method.upper()
    if method and (not _TOKEN.fullmatch(method) or method in ("HEAD", "CONNECT")):
        raise Unfit(f"--method: {wish.method!r} is not one that a load can be made of")
    read = None if wish.body is None else _read(wish.body, "--body", "content-type" in headers)
    expected = [] if wish.expect is None else _read(wish.expect, "--expect", False)
    patience = max(wish.timeout_seconds, _ASK_SECONDS)
    target = find(place, wish.verify, patience)
    server = _Server(place, target, headers, patience)
    bodies, source = _bodies(wish, server, read, method)
    if expected and bodies and wish.body is None:
        raise Unfit("--expect: made-up bodies differ, and so do their answers; give bodies with --body FILE")
    method = method or ("POST" if bodies else "GET")
    requests = [written(place, method, place.path, {**_own(body), **headers}, body.data) for body in bodies] or [
        written(place, method, place.path, headers, None)
    ]
    if bodies and wish.body is None:
        server.try_out(requests[0], "ask for fewer --rows, or give" if wish.rows > 1 else "give")
    if len(expected) not in (0, 1, len(requests)):
        raise Unfit(f"--expect: {len(expected)} answers for {len(requests)} bodies; give one for each, or one for all")
    plan = Plan(target, requests, wish.timeout_seconds, expected, wish.same, wish.tolerance, wish.seed)
    mean = sum(len(body.data) for body in bodies) / len(bodies) if bodies else 0.0
    scheme = "https" if place.secure else "http"
    return Prepared(plan, f"{scheme}://{place.authority}{place.path}", method, source, len(bodies), mean)


# --- the server -------------------------------------------------------------------------------------------------


class _Server:
    """Questions before the load, with the caller's headers."""

    def __init__(self, place: Place, target: Target, headers: Headers, timeout: float) -> None:
        self.place = place
        self._target = target
        self._headers = headers
        self._timeout = timeout

    def get(self, path: str) -> Reply:
        headers = {**self._headers, "connection": ("Connection", "close")}
        return self._ask(written(self.place, "GET", path, headers, None))

    def _ask(self, request: bytes) -> Reply:
        return ask(self.place, self._target, tls_context(self._target), request, self._timeout)

    def try_out(self, request: bytes, advice: str) -> None:
        """Raise Unfit if the server does not take a made-up body; `advice` begins what to do then."""
        reply = self._ask(request)
        if 400 <= reply.status < 500 and reply.status not in _FOR_LATER:
            raise Unfit(
                f"the server does not take bodies made up from the model's metadata ({reply.status}: "
                f"{shown(reply.body)}); {advice} your own with --body"
            )


# --- bodies -----------------------------------------------------------------------------------------------------


def _bodies(wish: Wish, server: _Server, read: list[bytes] | None, method: str) -> tuple[list[Body], str]:
    """The bodies, none for requests without one; and where they are from, in words."""
    route = route_of(server.place.path.partition("?")[0])
    made_up = read is None and route is not None and method in ("", "POST")
    for said, option in ((wish.binary, "--binary"), (wish.rows != 1, "--rows"), (wish.sizes, "--size")):
        if said and not made_up:
            raise Unfit(f"{option} is for bodies that are made up from a model's metadata: see --help")
    if read is not None:
        assert wish.body is not None
        return [Body(data, ()) for data in read], f"from {wish.body.name}"
    if route is None or not made_up:
        return [], "without a body"
    if wish.binary and route.wire != "v2":
        raise Unfit("--binary: only the V2 route (/v2/models/MODEL/infer) takes binary tensors")
    signature, examples = _known(server, route)
    try:
        maker = Bodies(signature, examples, wish.rows, _sizes(wish.sizes), np.random.default_rng(wish.seed))
    except ValueError as error:
        raise Unfit(str(error)) from None
    made = list(_some(maker, route, wish.binary))
    rows = f", {wish.rows:,} row{'' if wish.rows == 1 else 's'} each" if signature.row_symbol is not None else ""
    return made, f"made up from the model's metadata{rows}"


def _known(server: _Server, route: Route) -> tuple[Signature, Examples]:
    """What the model takes, and its example where the server tells one. Raises Unfit, Unreachable."""
    reply = server.get(route.metadata)
    if reply.status in _FOR_LATER:
        raise Unreachable(f"the model is not ready ({reply.status}: {shown(reply.body)})")
    if reply.status != 200:
        raise Unfit(
            f"{route.metadata} tells nothing of the model ({reply.status}: {shown(reply.body)}); "
            f"give bodies with --body FILE"
        )
    metadata = reply.json()
    try:
        signature = signature_of(metadata)
    except Unknown as error:
        raise Unfit(f"no bodies can be made of the metadata at {route.metadata}: {error}; give --body FILE") from None
    ours = any("notation" in (entry.get("parameters") or {}) for entry in metadata["inputs"])
    description = server.get(route.openapi) if ours else None
    known = route.metadata.partition("/versions/")[0]
    return signature, {} if description is None else example_in(description.json(), known)


def _some(maker: Bodies, route: Route, binary: bool) -> Iterable[Body]:
    total = 0
    for number in range(BODIES):
        body = maker.made(route.wire, number, binary)
        yield body
        total += len(body.data)
        if total > MADE_BYTES and number:
            return


def _own(body: Body) -> dict[str, tuple[str, str]]:
    """A body's headers; those of the caller win over them."""
    found = {name.lower(): (name, value) for name, value in body.headers}
    found.setdefault("content-type", ("Content-Type", "application/json"))
    return found


# --- what was typed ---------------------------------------------------------------------------------------------


def _headers(given: Iterable[str]) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for text in given:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not _TOKEN.fullmatch(name):
            raise Unfit(f"--header: expected 'NAME: VALUE', got {text!r}")
        if name.lower() in _OURS:
            raise Unfit(f"--header: {name} is ours to write")
        if not all(" " <= c <= "~" or c == "\t" or "\xa0" <= c <= "\xff" for c in value):
            raise Unfit(f"--header: the value of {name} has characters that no header can have")
        if name.lower() in found:
            raise Unfit(f"--header: {name} is given twice")
        found[name.lower()] = name, value
    return found


def _sizes(given: Iterable[str]) -> dict[str, int]:
    found = {}
    for text in given:
        symbol, _, number = text.partition("=")
        if not number.isdecimal():
            raise Unfit(f"--size: expected SYMBOL=N, got {text!r}")
        found[symbol] = int(number)
    return found


def _read(path: Path, option: str, typed: bool) -> list[bytes]:
    """One JSON, or JSON lines; where the caller states a type of content (`typed`), also anything as it is."""
    if not path.is_file():
        raise Unfit(f"{option}: there is no file {path}")
    if path.stat().st_size > FILE_BYTES:
        raise Unfit(f"{option}: {path} has more than {FILE_BYTES >> 20} MiB, all of which would be held in memory")
    data = path.read_bytes()
    if not not_json(data):
        return [data.strip()]
    lines = [(number, line.strip()) for number, line in enumerate(data.split(b"\n"), 1)]
    filled = [(number, line) for number, line in lines if line]
    wrong = next(((number, why) for number, line in filled if (why := not_json(line))), None)
    if wrong is None and filled:
        return [line for _, line in filled]
    if typed:
        return [data]
    if wrong is None:
        raise Unfit(f"{option}: {path} is empty")
    also = "; with --header 'Content-Type: ...' it is sent as it is" if option == "--body" else ""
    raise Unfit(f"{option}: {path} is neither one JSON nor JSON lines (line {wrong[0]}: {wrong[1]}){also}")
