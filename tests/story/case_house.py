"""A server that stands for a whole module of tests, asked over real sockets: one call, or many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from house import Reply, Standing, standing

import loops
from maitred.settings import Address, ModelSettings, ServerSettings
from maitred.wire.coerce import DATATYPES, from_array, from_raw, to_array, to_raw


class Question(NamedTuple):
    """One call of a model, and how it is written down."""

    model: str
    body: bytes
    headers: dict[str, str] = {}

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"


class Place:
    """The server's loop runs in the caller's thread, whenever something is asked."""

    def __init__(self, runner: asyncio.Runner, house: Standing) -> None:
        self.runner = runner
        self.house = house
        self._lines = [house.caller()]
        self._metadata: dict[str, Any] = {}

    def get(self, path: str) -> Any:
        return self.runner.run(self._lines[0].ask("GET", path)).json()

    def metadata(self, model: str) -> Any:
        """What a model says of itself, which stays as it is."""
        if model not in self._metadata:
            self._metadata[model] = self.get(f"/v2/models/{model}")
        return self._metadata[model]

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.runner.run(self._lines[0].ask("POST", path, body, headers))

    def ask(self, question: Question) -> Reply:
        return self.post(question.path, question.body, question.headers)

    def together(self, questions: Sequence[Question]) -> list[Reply]:
        """Their answers, each asked on a connection of its own, all at once."""

        async def all_of_them() -> list[Reply]:
            return await asyncio.gather(*(line.ask("POST", q.path, q.body, q.headers) for line, q in pairs))

        self._lines += [self.house.caller() for _ in range(len(questions) - len(self._lines))]
        pairs = list(zip(self._lines, questions, strict=False))
        return self.runner.run(all_of_them())

    def beside(self, function: Any, *arguments: Any) -> Any:
        """What a client that blocks gives, called in a thread while the server runs."""
        return self.runner.run(asyncio.to_thread(function, *arguments))

    def figure(self, name: str, model: str, **labels: str) -> float:
        """The sum of one metric over a model's lines that have these labels."""
        page = self.runner.run(self._lines[0].ask("GET", "/metrics")).body.decode()
        wanted = [f'model="{model}"', *(f'{label}="{value}"' for label, value in labels.items())]
        lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)
        return sum(float(value) for found, value in lines if all(part in found.split(",") for part in wanted))


@contextlib.contextmanager
def serving(home: Path, models: Mapping[str, ModelSettings]) -> Iterator[Place]:
    given = ServerSettings(
        listen=Address("127.0.0.1", 0),
        admin_listen=Address("127.0.0.1", 0),
        home=home,
        drain_notice_seconds=0.0,
        models=models,
    )
    with asyncio.Runner(loop_factory=loops.new_loop) as runner:
        house = standing(given)
        yield Place(runner, runner.run(house.__aenter__()))
        runner.run(house.__aexit__(None, None, None))


# --- requests and answers ----------------------------------------------------------------------------------------


def entry(name: str, datatype: str, shape: Sequence[Any], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


def in_json(model: str, inputs: Sequence[Mapping[str, Any]], **more: Any) -> Question:
    return Question(model, json.dumps({"inputs": list(inputs), **more}).encode())


def in_binary(model: str, arrays: Mapping[str, Any], more_inputs: Sequence[Any] = (), **more: Any) -> Question:
    """Arrays as binary tensors; all outputs come back so, unless `more` says otherwise."""
    tensors = {name: from_array(array) for name, array in arrays.items()}
    blobs = {name: bytes(to_raw(tensor)) for name, tensor in tensors.items()}
    entries = [
        {
            "name": name, "datatype": DATATYPES[tensor.dtype], "shape": list(tensor.shape),
            "parameters": {"binary_data_size": len(blobs[name])},
        }
        for name, tensor in tensors.items()
    ]  # fmt: skip
    body = {"inputs": [*entries, *more_inputs], "parameters": {"binary_data_output": True}, **more}
    return framed(model, json.dumps(body).encode(), b"".join(blobs.values()))


def framed(model: str, head: bytes, blobs: bytes, length: str | None = None) -> Question:
    headers = {"Inference-Header-Content-Length": str(len(head)) if length is None else length}
    return Question(model, head + blobs, {**headers, "Content-Type": "application/octet-stream"})


class Output(NamedTuple):
    datatype: str
    shape: tuple[int, ...]
    data: Any
    """A flat list as JSON has it, or the array that the bytes are."""
    binary: bool


def outputs_of(reply: Reply) -> dict[str, Output]:
    """Every output in the answer's own order. Fails unless the bytes are cut as the answer says."""
    assert reply.status == 200, reply.body
    line = reply.headers.get("inference-header-content-length")
    size = len(reply.body) if line is None else int(line)
    found: dict[str, Output] = {}
    at = size
    for output in json.loads(reply.body[:size])["outputs"]:
        name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
        length = output.get("parameters", {}).get("binary_data_size")
        assert name not in found and (length is None) == ("data" in output)
        data = output.get("data")
        if length is not None:
            dtype = "bytes" if datatype == "BYTES" else next(key for key in DATATYPES if DATATYPES[key] == datatype)
            data = to_array(from_raw(name, dtype, shape, reply.body[at : at + length]))
            at += length
        found[name] = Output(datatype, shape, data, length is not None)
    assert at == len(reply.body), "bytes that belong to no output"
    return found


def values_of(reply: Reply) -> dict[str, Any]:
    """Nested lists by output, whichever way they came; bytes are shown as text."""
    found = {}
    for name, output in outputs_of(reply).items():
        flat = output.data.ravel().tolist() if output.binary else output.data
        texts = [item.decode() if isinstance(item, bytes) else item for item in flat]
        array = np.empty(len(texts), object)
        array[:] = texts
        found[name] = array.reshape(output.shape).tolist()
    return found


def refusal(reply: Reply) -> str:
    """What a caller is told whose request was wrong."""
    assert reply.status == 400, (reply.status, reply.body)
    error = reply.json()["error"]
    assert isinstance(error, str) and "Traceback" not in error and "/" + "home" not in error
    return error
