"""The varied requests that every server under test is sent, and the answers that the model itself gives to them.

Values, ids and one header differ from request to request, so that nothing can be answered from a cache by luck. Where
a server's protocol has no id, the header alone carries it. A file of requests has one line each: id, tab, JSON body.
"""

from __future__ import annotations

import atexit
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import grpc_messages
import models

COUNT = 2048
SAMPLED = [k * 37 % COUNT for k in range(64)]
"""Requests whose answers are compared: the model's own are computed before any load begins."""
CLOSE = {"minilm": 0.02}
"""How far an answer may be from the model's own: int8 arithmetic depends on what else is in the batch."""

Row = tuple[Any, ...]


@functools.cache
def values_of(model: str) -> Row:
    """One tuple of input arrays with `COUNT` rows."""
    rng = random.Random(11)
    if model == "minilm":
        ids = np.zeros((COUNT, models.SEQ), np.int64)
        for row in ids:
            words = rng.randint(6, models.SEQ - 2)
            row[0], row[words + 1] = 101, 102
            row[1 : words + 1] = [rng.randint(1000, 20000) for _ in range(words)]
        return ids, (ids != 0).astype(np.int64)
    rows = [[round(rng.gauss(0, 1), rng.randint(1, 4)) for _ in range(4)] for _ in range(COUNT)]
    return (np.array(rows, np.float64),)


def native(model: str, row: Row, id: str) -> dict[str, Any]:
    """One flat object: what the servers with a handler of one's own take."""
    return {name: value.tolist() for (name, _, _), value in zip(models.inputs_of(model)[0], row, strict=True)}


def v2(model: str, row: Row, id: str) -> dict[str, Any]:
    """The Open Inference Protocol."""
    named = zip(models.inputs_of(model)[0], row, strict=True)
    inputs = [
        {"name": name, "shape": [1, *shape], "datatype": dtype, "data": value.tolist()}
        for (name, dtype, shape), value in named
    ]
    return {"id": id, "inputs": inputs}


def bento(model: str, row: Row, id: str) -> dict[str, Any]:
    """One argument with a leading batch axis."""
    return {"v": [[value.tolist() for value in row] if len(row) > 1 else row[0].tolist()]}


KINDS: dict[str, Callable[[str, Row, str], dict[str, Any]]] = {"native": native, "v2": v2, "bento": bento}


@functools.cache
def _folder() -> Path:
    """Where the files of requests are, until this process ends."""
    place = Path(tempfile.mkdtemp(prefix="bench-requests-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@functools.cache
def _loaded(model: str) -> Any:
    return models.load(model if model == "minilm" else "overhead")  # slow and curve answer as overhead does


@functools.cache
def requests(kind: str, model: str) -> Requests:
    return Requests(kind, model)


class Requests:
    """All requests for one model in one protocol, with the answers to expect."""

    def __init__(self, kind: str, model: str) -> None:
        self.kind, self.model = kind, model
        self.columns = values_of(model)
        self.ids = [f"r-{i:05d}-{random.Random(i).getrandbits(32):08x}" for i in range(COUNT)]
        write = KINDS[kind]
        self.bodies = [
            json.dumps(write(model, row, id), separators=(",", ":"))
            for row, id in zip(zip(*self.columns, strict=True), self.ids, strict=True)
        ]
        self._wanted: dict[int, Any] = {}

    def know(self, numbers: Iterable[int]) -> None:
        """Compute the model's own answers to these requests now, and not while a load runs."""
        for number in numbers:
            self.wanted(number)

    def wanted(self, number: int) -> Any:
        """The model's own answer to a request."""
        if number not in self._wanted:
            self._wanted[number] = _loaded(self.model)(*(column[number : number + 1] for column in self.columns))[0]
        return self._wanted[number]

    def wrong(self, number: int, reply: bytes) -> str | None:
        """What is wrong with the JSON reply to a request; None if nothing is."""
        answer = json.loads(reply)
        id = answer.get("id", self.ids[number]) if isinstance(answer, dict) else self.ids[number]
        return self.wrong_values(number, id, floats(answer))

    def wrong_values(self, number: int, id: str, values: Any) -> str | None:
        if id != self.ids[number]:
            return f"the id of another request: {id} for {self.ids[number]}"
        got, want = np.array(values, np.float32).ravel(), self.wanted(number)
        if got.shape != want.shape or not np.abs(got - want).max() <= CLOSE.get(self.model, 1e-5):
            return f"request {number}: got {got.tolist()[:8]}, the model says {want.tolist()[:8]}"
        return None

    def file(self, count: int = COUNT) -> Path:
        """The first `count` of them as lines of id, tab, body."""
        place = _folder() / f"{self.kind}-{self.model}-{count}.tsv"
        if not place.exists():
            pairs = zip(self.ids[:count], self.bodies[:count], strict=True)
            place.write_text("".join(f"{id}\t{body}\n" for id, body in pairs))
        return place

    def grpc_file(self) -> Path:
        """All of them as gRPC messages, each behind its length."""
        place = _folder() / f"{self.model}.grpc"
        if not place.exists():
            inputs = models.inputs_of(self.model)[0]
            rows = zip(zip(*self.columns, strict=True), self.ids, strict=True)
            place.write_bytes(b"".join(grpc_messages.request(self.model, id, inputs, row) for row, id in rows))
        return place


def floats(reply: Any) -> Any:
    """The numbers of the one answer in a reply, whatever its envelope."""
    if isinstance(reply, dict):
        if "outputs" in reply:
            return reply["outputs"][0]["data"]
        return floats(next(iter(reply.values())))
    while isinstance(reply, list) and reply and isinstance(reply[0], list):
        reply = reply[0]
    return reply
