"""The OpenAPI 3.1 description of the data port, made from the signatures of the models that are served."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from maitred import __version__
from maitred.deployment.router import Served
from maitred.gateway.metadata import MAX_CATEGORIES, notation
from maitred.model.signature import Signature, TensorSpec, raw_input
from maitred.wire.coerce import FLOATS

Schema = dict[str, Any]

_REF: Final = "#/components/schemas/"
_BITS: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64, "int8": 8, "int16": 16, "int32": 32, "int64": 64}


def openapi(models: Iterable[Served]) -> dict[str, Any]:
    """The whole document. Models that have not told their signature yet are left out."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Schema] = {"Error": _object({"error": {"type": "string"}}, ["error"]), **_GENERAL}
    for path, method, id, summary, schema in _SERVER_ROUTES:
        paths[path] = {method: _operation(id, summary, "server", schema)}
    known = [served for served in models if served.description is not None]
    for served, identifier in zip(known, identifiers([served.name for served in known]), strict=True):
        _add_model(served, identifier, paths, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "maitred",
            "version": __version__,
            "description": "Models served over the Open Inference Protocol V2, V1 `:predict` and a plain route.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


_GENERAL: Final[dict[str, Schema]] = {
    "Parameters": {
        "type": "object",
        "description": "`timeout` in microseconds, `priority` (1 high, 0 and 2 normal, more background), "
        "`binary_data_output`; all others are the model's own.",
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    },
    "Metadata": {"type": "object"},
}

_SERVER_ROUTES: Final = (
    ("/v2", "get", "server", "What this server is", "Metadata"),
    ("/v2/health/live", "get", "server_live", "Whether the server is alive", "Metadata"),
    ("/v2/health/ready", "get", "server_ready", "Whether every model is ready", "Metadata"),
    ("/v2/models", "get", "server_models", "The names of the models", "Metadata"),
    ("/v2/repository/index", "post", "server_index", "The models and their states", "Metadata"),
    ("/v1/models", "get", "v1_models", "The names of the models", "Metadata"),
)


def identifiers(names: Collection[str]) -> list[str]:
    """For each name one that can be part of an identifier in any language; all differ where the names do.

    Generators of clients name their functions by these.
    """
    taken = {name for name in names if _NO_LETTER.search(name) is None}
    made = []
    for name in names:
        identifier = name
        if name not in taken:
            plain = identifier = _NO_LETTER.sub("_", name)
            count = 1
            while identifier in taken:
                count += 1
                identifier = f"{plain}_{count}"
            taken.add(identifier)
        made.append(identifier)
    return made


_NO_LETTER: Final = re.compile("[^A-Za-z0-9_]")


def _add_model(served: Served, identifier: str, paths: dict[str, Any], schemas: dict[str, Schema]) -> None:
    """Its routes and schemas. No operation's name here begins with that of another, so that all are unique."""
    name, signature = served.name, served.signature
    example = _example(served.known().example)
    schemas[f"{name}.InferRequest"] = _infer_request(signature)
    schemas[f"{name}.InferResponse"] = _infer_response(signature)
    schemas[f"{name}.Row"] = _row(signature.inputs.values(), signature, whole=not signature.row_wise)
    schemas[f"{name}.Prediction"] = _row(signature.outputs.values(), signature, whole=not signature.row_wise)
    schemas[f"{name}.Columns"] = _row(signature.inputs.values(), signature, whole=True)
    schemas[f"{name}.ColumnPredictions"] = _row(signature.outputs.values(), signature, whole=True)
    schemas[f"{name}.PlainRequest"] = _plain(f"{name}.Row", f"{name}.Columns")
    schemas[f"{name}.PlainResponse"] = _plain(f"{name}.Prediction", f"{name}.ColumnPredictions")
    schemas[f"{name}.V1Request"] = _v1_request(name, signature)
    schemas[f"{name}.V1Response"] = _object({"predictions": {}}, ["predictions"])
    v2 = f"/v2/models/{name}"
    paths[v2] = {"get": _operation(f"metadata_{identifier}", "Inputs and outputs", name, "Metadata")}
    paths[f"{v2}/ready"] = {"get": _operation(f"ready_{identifier}", "Whether it is ready", name, "Metadata")}
    routes = (
        (f"/predict/{name}", "predict", "Predict (plain JSON)", "Plain", None),
        (f"{v2}/infer", "infer", "Infer (Open Inference Protocol V2)", "Infer", example),
        (f"/v1/models/{name}:predict", "v1_predict", "Predict (V1)", "V1", None),
    )
    for path, action, summary, kind, shown in routes:
        operation = _operation(f"{action}_{identifier}", summary, name, f"{name}.{kind}Response")
        content: dict[str, Any] = {"schema": {"$ref": f"{_REF}{name}.{kind}Request"}}
        made = shown if kind == "Infer" else _rows_example(example, kind)
        if made is not None:
            content["example"] = made
        body = {"application/json": content}
        if kind == "Plain" and raw_input(signature) is not None:
            body["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": body}
        paths[path] = {"post": operation}


def _operation(id: str, summary: str, tag: str, schema: str) -> dict[str, Any]:
    def answer(text: str, name: str) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": {"$ref": _REF + name}}}}

    return {
        "operationId": id,
        "summary": summary,
        "tags": [tag],
        "responses": {"200": answer("The answer", schema), "default": answer("Why there is none", "Error")},
    }


# ---------------------------------------------------------------- schemas


def _object(properties: dict[str, Schema], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _infer_request(signature: Signature) -> Schema:
    inputs = {"type": "array", "items": {"oneOf": [_tensor(spec) for spec in signature.inputs.values()]}}
    output = _object({"name": {"enum": list(signature.outputs)}, "parameters": {"$ref": _REF + "Parameters"}}, ["name"])
    return _object(
        {
            "id": {"type": "string"},
            "parameters": {"$ref": _REF + "Parameters"},
            "inputs": inputs,
            "outputs": {"type": "array", "items": output},
        },
        ["inputs"],
    )


def _infer_response(signature: Signature) -> Schema:
    text: Schema = {"type": "string"}
    outputs = {"type": "array", "items": {"oneOf": [_tensor(spec) for spec in signature.outputs.values()]}}
    return _object(
        {"model_name": text, "model_version": text, "id": text, "outputs": outputs},
        ["model_name", "model_version", "outputs"],
    )


def _tensor(spec: TensorSpec) -> Schema:
    """A V2 tensor: its elements flat, or nested as the shape says."""
    sizes = [{"type": "integer", "minimum": 0} if isinstance(size, str) else {"const": size} for size in spec.shape]
    shape: Schema = {"type": "array", "minItems": len(sizes), "maxItems": len(sizes)}
    if sizes:
        shape["prefixItems"] = sizes
    data: Schema = {"type": "array", "description": f"{notation(spec)}: the elements flat, or nested as the shape says"}
    if len(spec.shape) <= 1:
        data["items"] = element(spec)
    return _object(
        {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype} if spec.time is None else {"enum": [spec.datatype, "BYTES"]},
            "shape": shape,
            "data": data,
            "parameters": {"$ref": _REF + "Parameters"},
        },
        ["name", "datatype", "shape"],
    )


def _row(specs: Iterable[TensorSpec], signature: Signature, whole: bool) -> Schema:
    """An object of values: one row's, or (`whole`) all rows'."""
    listed = list(specs)
    properties = {
        spec.name: _value(spec, spec.shape if whole or spec.name in signature.shared else spec.shape[1:])
        for spec in listed
    }
    return _object(properties, [spec.name for spec in listed if not spec.optional])


def _value(spec: TensorSpec, shape: tuple[int | str, ...]) -> Schema:
    schema = element(spec)
    for size in reversed(shape):
        schema = {"type": "array", "items": schema}
        if isinstance(size, int):
            schema |= {"minItems": size, "maxItems": size}
    schema["description"] = notation(spec)
    return schema


def element(spec: TensorSpec) -> Schema:
    """The JSON of one element."""
    schema: Schema
    if spec.dtype == "bool":
        schema = {"type": "boolean"}
    elif spec.dtype in ("str", "bytes"):
        schema = {"type": "string"}
    elif spec.dtype in FLOATS:
        schema = {"type": "number"}
    else:
        bits = _BITS[spec.dtype]
        unsigned = spec.dtype.startswith("u")
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        schema = {"type": "integer", "minimum": low, "maximum": high}
    if spec.minimum is not None:
        schema["minimum"] = spec.minimum
    if spec.maximum is not None:
        schema["maximum"] = spec.maximum
    if spec.categories is not None:
        schema["examples"] = list(spec.categories[:MAX_CATEGORIES])  # others are taken too, as missing
    others: list[Schema] = []
    if spec.time is not None:
        others.append({"type": "string", "format": "date-time"} if spec.zone else {"type": "string"})
    if spec.nullable or spec.nan == "null":
        others.append({"type": "null"})
    if spec.nan == "string":
        others.append({"enum": ["NaN", "Infinity", "-Infinity"]})
    return {"anyOf": [schema, *others]} if others else schema


def _plain(row: str, columns: str) -> Schema:
    one = {"$ref": _REF + row}
    return {
        "anyOf": [one, {"type": "array", "items": one}, _object({"columns": {"$ref": _REF + columns}}, ["columns"])]
    }


def _v1_request(name: str, signature: Signature) -> Schema:
    row: Schema = {"$ref": f"{_REF}{name}.Row"}
    columns: Schema = {"$ref": f"{_REF}{name}.Columns"}
    if len(signature.inputs) == 1:
        spec = next(iter(signature.inputs.values()))
        row = {"anyOf": [_value(spec, spec.shape[1:]), row]}
        columns = {"anyOf": [_value(spec, spec.shape), columns]}
    return {
        "type": "object",
        "properties": {"instances": {"type": "array", "items": row}, "inputs": columns},
        "anyOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    }


# ---------------------------------------------------------------- examples


def _example(text: str) -> Any:
    """A description's example request; None where it has none."""
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None


def _rows_example(example: Any, kind: str) -> Any:
    """A V2 example of one row as V1 or plain columns; None where there is none to turn."""
    if example is None:
        return None
    columns = {entry["name"]: _shaped(entry["data"], entry["shape"]) for entry in example["inputs"]}
    return {"inputs": columns} if kind == "V1" else {"columns": columns}


def _shaped(data: list[Any], shape: list[int]) -> Any:
    """Flat elements nested as a shape says; nested ones as they are."""
    if not shape:
        return data[0]
    if data and isinstance(data[0], list):
        return data
    for size in reversed(shape[1:]):
        data = [data[at : at + size] for at in range(0, len(data), size)] if size else []
    return data
