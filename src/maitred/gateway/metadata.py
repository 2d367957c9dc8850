"""What the server and its models are, in the words of the V2 and V1 protocols."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from maitred import __version__
from maitred.deployment.router import Router, Served
from maitred.errors import Malformed
from maitred.gateway.answers import discreet
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.json import Body, Reader

EXTENSIONS: Final = (
    "binary_tensor_data", "classification", "model_repository", "model_configuration", "parameters", "schedule_policy",
)  # fmt: skip

MAX_CATEGORIES: Final = 100
"""How many of an input's categories metadata list."""

_read_filter: Final = Reader(dict[str, Any])


def server() -> dict[str, Any]:
    return {"name": "maitred", "version": __version__, "extensions": list(EXTENSIONS)}


def model(served: Served) -> dict[str, Any]:
    """V2 model metadata. Raises NoReplica while the model has not told its signature yet."""
    signature = served.signature
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": platform(served),
        "inputs": [tensor(spec, _buckets(spec, signature)) for spec in signature.inputs.values()],
        "outputs": [tensor(spec) for spec in signature.outputs.values()],
    }


def platform(served: Served) -> str:
    return served.known().flavor


def _buckets(spec: TensorSpec, signature: Signature) -> dict[str, list[int]]:
    """The sizes to which an input is filled up, also where another input says so."""
    sizes = {} if signature.buckets is None else signature.buckets.sizes
    return {symbol: list(sizes[symbol]) for symbol in dict.fromkeys(spec.shape) if symbol in sizes}


def tensor(spec: TensorSpec, buckets: dict[str, list[int]] | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"notation": notation(spec), **_meaning(spec)}
    if buckets:
        parameters["buckets"] = buckets
    if spec.labels:
        parameters["labels"] = list(spec.labels)
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.protocol_shape, "parameters": parameters}


def notation(spec: TensorSpec) -> str:
    """What the signature says of a tensor, without categories where these are many."""
    many = spec.categories is not None and len(spec.categories) > MAX_CATEGORIES
    return replace(spec, categories=None).to_text() if many else spec.to_text()


def _meaning(spec: TensorSpec) -> dict[str, Any]:
    """What elements may be, besides numbers and text: categories (the first of many), times, missing."""
    said: dict[str, Any] = {}
    if spec.categories is not None:
        said |= {"categories": list(spec.categories[:MAX_CATEGORIES]), "categories_count": len(spec.categories)}
    if spec.time is not None:
        said |= {"time": spec.time, "zone": spec.zone}
    if spec.nullable:
        said["nullable"] = True
    return said


def config(served: Served) -> dict[str, Any]:
    """The model configuration that Triton's clients ask for; shapes include the row axis, so `max_batch_size` is 0."""
    signature = served.signature

    def entry(spec: TensorSpec) -> dict[str, Any]:
        name = "STRING" if spec.datatype == "BYTES" else spec.datatype
        return {"name": spec.name, "data_type": f"TYPE_{name}", "dims": spec.protocol_shape}

    return {
        "name": served.name,
        "platform": platform(served),
        "backend": "maitred",
        "version_policy": {"specific": {"versions": [int(served.version)] if served.version.isdigit() else []}},
        "max_batch_size": 0,
        "input": [
            {**entry(spec), **({"optional": True} if spec.optional else {})} for spec in signature.inputs.values()
        ],
        "output": [entry(spec) for spec in signature.outputs.values()],
    }


def index(router: Router, body: Body) -> list[dict[str, str]]:
    """The repository's index, of all models or (`{"ready": true}`) of the ready ones. Raises Malformed."""
    only_ready: object = False
    if body.strip():
        only_ready = _read_filter(body).get("ready", False)
        if type(only_ready) is not bool:
            raise Malformed("ready must be true or false")
    rows = [_indexed(served) for served in router.all()]
    return [row for row in rows if row["state"] == "READY" or not only_ready]


def _indexed(served: Served) -> dict[str, str]:
    state = _STATES.get(served.state, "UNAVAILABLE")
    row = {"name": served.name, "version": served.version, "state": state, "reason": reason(served)}
    return {**row, "place": discreet(served.place)[:500]} if served.place else row


_STATES: Final = {"loading": "LOADING", "ready": "READY", "failed": "UNAVAILABLE", "draining": "UNLOADING"}


def reason(served: Served) -> str:
    """Why a model is not ready, or what its operator should know of one that is; fit for callers' eyes."""
    why = served.reason
    if not why and served.state == "ready":
        why = "; ".join(served.known().warnings)
    return discreet(why)[:500]


def readiness(served: Served) -> tuple[bool, str]:
    """Whether a model is ready, and why not."""
    return served.state == "ready", reason(served)


def v1_status(served: Served) -> dict[str, Any]:
    """A model's state as both families of V1 clients read it."""
    ready = served.state == "ready"
    state = {"ready": "AVAILABLE", "loading": "LOADING", "draining": "UNLOADING"}.get(served.state, "END")
    status = {"error_code": "OK" if served.state != "failed" else "UNKNOWN", "error_message": reason(served)}
    return {
        "name": served.name,
        "ready": ready,
        "model_version_status": [{"version": served.version, "state": state, "status": status}],
    }
