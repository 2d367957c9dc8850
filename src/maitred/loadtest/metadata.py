"""What a model takes, from what its server says of it: V2 metadata, with our notation where it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from maitred.model.signature import BadSignature, Signature
from maitred.wire.coerce import DTYPES

Wire = Literal["v2", "v1", "plain"]

_ROUTES: Final[tuple[tuple[re.Pattern[str], Wire], ...]] = (
    (re.compile(r"(?P<base>.*)/v2/models/(?P<model>[^/]+)(?P<version>/versions/[^/]+)?/infer"), "v2"),
    (re.compile(r"(?P<base>.*)/v1/models/(?P<model>[^/]+)(?P<version>/versions/[^/]+)?:predict"), "v1"),
    (re.compile(r"(?P<base>.*)/predict/(?P<model>[^/]+)(?P<version>)"), "plain"),
)


class Unknown(Exception):
    """Nothing can be made of what the server says; the message says why."""


class Route(NamedTuple):
    """What a path asks for."""

    wire: Wire
    model: str
    """As the path has it, escaped."""
    metadata: str
    """The path of the model's V2 metadata."""
    openapi: str
    """The path of the server's description, which has an example where the server is ours."""


def route_of(path: str) -> Route | None:
    """The route that a path (without its query) is; None for a path of another kind of server."""
    for pattern, wire in _ROUTES:
        found = pattern.fullmatch(path)
        if found is not None:
            base, model, version = found["base"], found["model"], found["version"] or ""
            return Route(
                wire, model, f"{base}/v2/models/{model}{version if wire == 'v2' else ''}", f"{base}/openapi.json"
            )
    return None


def signature_of(metadata: Any) -> Signature:
    """The signature of a model by its V2 metadata. Raises Unknown."""
    if not isinstance(metadata, Mapping):
        raise Unknown("they are no object")
    inputs = _side(metadata, "inputs")
    if not inputs:
        raise Unknown("they name no inputs")
    try:
        return Signature(inputs, _side(metadata, "outputs") or {"output": "float32[n]"})
    except BadSignature as error:
        raise Unknown(str(error)) from None


def _side(metadata: Mapping[str, Any], side: str) -> dict[str, str]:
    listed = metadata.get(side)
    if not isinstance(listed, list):
        return {}
    found: dict[str, str] = {}
    for number, entry in enumerate(listed):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise Unknown(f"{side} has an entry without a name")
        parameters = entry.get("parameters")
        notation = parameters.get("notation") if isinstance(parameters, Mapping) else None
        found[entry["name"]] = notation if isinstance(notation, str) else _notation(entry, number)
    return found


def _notation(entry: Mapping[str, Any], number: int) -> str:
    """Our notation of a tensor as other servers describe it: -1 is an open size, the first axis that of the rows."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    dtype = "str" if datatype == "BYTES" else DTYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise Unknown(f"{entry['name']!r} has a datatype or shape of another protocol: {datatype!r}, {shape!r}")
    sizes = [
        str(size) if size >= 0 else ("n" if axis == 0 else f"size{number}_{axis}") for axis, size in enumerate(shape)
    ]
    return f"{dtype}[{', '.join(sizes)}]"


def example_in(openapi: Any, metadata_path: str) -> dict[str, tuple[list[int], list[Any]]]:
    """Shape and flat elements of each input in the example request that a server's OpenAPI document has of a model.

    Empty where there is none that can be read.
    """
    content: Any = openapi
    for key in ("paths", f"{metadata_path}/infer", "post", "requestBody", "content", "application/json", "example"):
        content = content.get(key) if isinstance(content, Mapping) else None
    inputs = content.get("inputs") if isinstance(content, Mapping) else None
    found: dict[str, tuple[list[int], list[Any]]] = {}
    for entry in inputs if isinstance(inputs, list) else ():
        data, shape = (entry.get("data"), entry.get("shape")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(data, list) or not isinstance(shape, list) or entry.get("parameters"):
            continue
        if not any(isinstance(element, list) for element in data):
            found[str(entry.get("name"))] = shape, data
    return found
