"""The varied requests that every server under test is sent, and the answers that the model itself gives to them.

Values, ids and one header differ from request to request, so that nothing can be answered from a cache by luck. Where
a server's protocol has no id, the header alone carries it. A file of requests has one line each: id, tab, JSON body.
"""
import json
import random

import models
import numpy as np

COUNT = 2048
CLOSE = {"overhead": 1e-5, "slow": 1e-5, "minilm": 0.02}
"""How far an answer may be from the model's own: int8 arithmetic depends on what else is in the batch."""


def values_of(model, count=COUNT, seed=11):
    """One tuple of input arrays with `count` rows."""
    rng = random.Random(seed)
    if model == "minilm":
        ids = np.zeros((count, models.SEQ), np.int64)
        for row in ids:
            words = rng.randint(6, models.SEQ - 2)
            row[0], row[words + 1] = 101, 102
            row[1:words + 1] = [rng.randint(1000, 20000) for _ in range(words)]
        return ids, (ids != 0).astype(np.int64)
    return (np.array([[round(rng.gauss(0, 1), rng.randint(1, 4)) for _ in range(4)] for _ in range(count)], np.float64),)


def native(model, row, id):
    """One flat object: what the servers with a handler of one's own take."""
    return {name: value.tolist() for (name, _, _), value in zip(models.inputs_of(model)[0], row)}


def v2(model, row, id):
    """The Open Inference Protocol."""
    return {"id": id, "inputs": [{"name": name, "shape": [1, *shape], "datatype": dtype, "data": value.tolist()}
                                 for (name, dtype, shape), value in zip(models.inputs_of(model)[0], row)]}


def bento(model, row, id):
    """One argument with a leading batch axis."""
    return {"v": [[value.tolist() for value in row] if len(row) > 1 else row[0].tolist()]}


KINDS = {"native": native, "v2": v2, "bento": bento}


class Requests:
    """All requests for one model in one protocol, with the answers to expect."""

    def __init__(self, kind, model, count=COUNT):
        self.model = model
        columns = values_of(model, count)
        self.ids = [f"r-{i:05d}-{random.Random(i).getrandbits(32):08x}" for i in range(count)]
        self.bodies = [json.dumps(KINDS[kind](model, row, id), separators=(",", ":"))
                       for row, id in zip(zip(*columns), self.ids)]
        self.columns = columns
        self._wanted = {}

    def wanted(self, i):
        """The model's own answer to request `i`."""
        if i not in self._wanted:
            if "model" not in self._wanted:
                self._wanted["model"] = models.load("overhead" if self.model == "slow" else self.model)
            self._wanted[i] = self._wanted["model"](*(c[i:i + 1] for c in self.columns))[0]
        return self._wanted[i]

    def wrong(self, i, reply):
        """What is wrong with the reply (bytes) to request `i`, or None."""
        answer = json.loads(reply)
        if isinstance(answer, dict) and answer.get("id", self.ids[i]) != self.ids[i]:
            return f"the id of another request: {answer['id']} for {self.ids[i]}"
        got, want = np.array(floats(answer), np.float32).ravel(), self.wanted(i)
        if got.shape != want.shape or not np.abs(got - want).max() <= CLOSE[self.model]:
            return f"request {i}: got {got.tolist()[:8]}, the model says {want.tolist()[:8]}"
        return None

    def write(self, path):
        with open(path, "w") as f:
            f.writelines(f"{id}\t{body}\n" for id, body in zip(self.ids, self.bodies))


def floats(reply):
    """The numbers of the one answer in a reply, whatever its envelope."""
    if isinstance(reply, dict):
        if "outputs" in reply:
            return reply["outputs"][0]["data"]
        return floats(next(iter(reply.values())))
    while isinstance(reply, list) and reply and isinstance(reply[0], list):
        reply = reply[0]
    return reply
