"""Every kind of model: packed, described without running it, served and embedded with the same answers, wrong input."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import Caller, settings, standing
from zoo import KINDS

import maitred
from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model.artifact import open_artifact
from maitred.model.example import Example
from maitred.model.inspect import inspect
from maitred.model.manifest import EXAMPLE
from maitred.model.source import Source
from maitred.settings import ModelSettings
from maitred.wire.coerce import from_array, from_raw, to_array, to_raw

pytestmark = pytest.mark.story


class Kept:
    """A packed model with its example."""

    def __init__(self, kind: str, folder: Path) -> None:
        animal = KINDS[kind].make(folder)
        self.path = folder / kind
        self.description = maitred.pack(animal.model, self.path, name=kind, example=animal.example, **animal.more)
        self.signature = self.description.signature
        self.example: Example = examples.read(open_artifact(self.path).path(EXAMPLE), self.signature)
        self.url = f"/v2/models/{kind}/infer"


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    kind = request.param
    for module in KINDS[kind].needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    return Kept(kind, tmp_path)


def body(kept: Kept, inputs: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(examples.request_text(inputs, kept.signature))
    return request


async def ask_binary(caller: Caller, kept: Kept) -> dict[str, Any]:
    """The example's answers by binary tensors both ways, as arrays by output."""
    blobs, entries = [], []
    for name, array in kept.example.inputs.items():
        tensor = from_array(array)
        blob = bytes(to_raw(tensor))
        blobs.append(blob)
        datatype = kept.signature.inputs[name].datatype
        parameters = {"binary_data_size": len(blob)}
        entries.append({"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": parameters})
    head = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    reply = await caller.ask("POST", kept.url, head + b"".join(blobs), headers)
    assert reply.status == 200, reply.body
    size = int(reply.headers["inference-header-content-length"])
    at, found = size, {}
    for entry in json.loads(reply.body[:size])["outputs"]:
        end = at + entry["parameters"]["binary_data_size"]
        spec = kept.signature.outputs[entry["name"]]
        found[spec.name] = to_array(from_raw(spec.name, spec.dtype, tuple(entry["shape"]), reply.body[at:end]))
        at = end
    return found


async def ask_json(caller: Caller, kept: Kept, outputs: list[str] | None = None) -> dict[str, Any]:
    asked = body(kept, kept.example.inputs)
    if outputs is not None:
        asked["outputs"] = [{"name": name} for name in outputs]
    reply = await caller.ask("POST", kept.url, asked)
    assert reply.status == 200, reply.body
    return {entry["name"]: entry for entry in reply.json()["outputs"]}


@pytest.mark.parametrize("kept", KINDS, indirect=True)
def test_packed_described_served_and_embedded(kept: Kept, run: Any) -> None:
    looked = inspect(Source(str(kept.path)))
    assert looked.sound and looked.curl and looked.python, "a call to paste in both languages"
    assert looked.description is not None and looked.description["signature"] == kept.signature.to_dict()
    trusted = {"trust": "me: mine"} if looked.needs_trust else {}
    with maitred.load(kept.path, queue=True, **trusted) as model:
        wrong_values(model, kept)
        embedded = model.predict(kept.example.inputs)
    assert not examples.differences(kept.example, embedded, kept.signature)
    run(served(kept, embedded))


async def served(kept: Kept, embedded: dict[str, Any]) -> None:
    name = kept.path.name
    given = settings(kept.path.parent / "home", {})
    model = ModelSettings(name=name, source=str(kept.path), trust="me: mine")
    async with standing(dataclasses.replace(given, models={name: model})) as house:
        caller = house.caller()
        metadata = (await caller.ask("GET", f"/v2/models/{name}")).json()
        assert [entry["name"] for entry in metadata["outputs"]] == [*kept.signature.outputs]
        binary = await ask_binary(caller, kept)
        assert binary.keys() == embedded.keys()
        for output, array in embedded.items():
            assert np.array_equal(binary[output], array, equal_nan=array.dtype.kind == "f"), output
        everything = await ask_json(caller, kept)
        for output in embedded:
            alone = await ask_json(caller, kept, [output])
            assert alone == {output: everything[output]}, "one output alone is what it is among all"
            flat = embedded[output].reshape(-1).tolist()
            assert everything[output]["data"] == (flat if embedded[output].dtype.kind != "f" else pytest.approx(flat))
        await wrong(caller, kept)
        assert (await ask_json(caller, kept)) == everything, "after wrong requests a right one is answered"


async def wrong(caller: Caller, kept: Kept) -> None:
    """Every wrong request is a 400 that names what is wrong."""
    good = body(kept, kept.example.inputs)
    first = good["inputs"][0]
    other = "INT8" if first["datatype"] != "INT8" else "FP64"
    values: list[Any] = [1] * len(first["data"])
    cases = [
        ({"inputs": [*good["inputs"], {**first, "name": "stranger"}]}, "stranger"),
        ({"inputs": [{**first, "datatype": other, "data": values}, *good["inputs"][1:]]}, first["name"]),
        ({"inputs": [{**first, "shape": [*first["shape"], 7, 7]}, *good["inputs"][1:]]}, first["name"]),
        ({**good, "outputs": [{"name": "no_such"}]}, "no_such"),
    ]
    required = [spec.name for spec in kept.signature.inputs.values() if not spec.optional]
    if required:
        rest = [entry for entry in good["inputs"] if entry["name"] != required[0]]
        cases.append(({"inputs": rest}, required[0] if rest else "input"))
    for request, named in cases:
        reply = await caller.ask("POST", kept.url, request)
        assert reply.status == 400, (request, reply.body)
        assert named in reply.json()["error"]


def wrong_values(model: maitred.Handle, kept: Kept) -> None:
    """A value of the wrong kind in a direct call names its input."""
    for name, spec in kept.signature.inputs.items():
        odd: Any = ["text"] if spec.dtype != "str" else [b"\xff"]
        with pytest.raises(Malformed, match=name):
            model.predict({**kept.example.inputs, name: odd * len(kept.example.inputs[name])})
