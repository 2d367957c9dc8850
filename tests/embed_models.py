"""Models for tests of `maitred.load`. Light: replicas' processes import this file."""

import asyncio
import threading

import numpy as np

import maitred
from maitred.errors import Draining, InvalidInput, Malformed

INPUT = {"x": "int64[n]"}


class Two(maitred.Model):
    """Two inputs, three outputs."""

    signature = maitred.Signature(
        {"a": "float32[n, 2]", "b": "int64[n] optional default=1"},
        {"total": "float64[n]", "pair": "float32[n, 2]", "text": "str[n]"},
    )

    def predict(self, batch):
        total = batch["a"].sum(axis=1, dtype=np.float64) + batch["b"]
        return {"total": total, "pair": batch["a"] * 2, "text": np.array([f"{t:.1f}" for t in total], object)}


class One(maitred.Model):
    signature = maitred.Signature(INPUT, {"y": "int64[n]", "z": "int64[n]"})

    def predict(self, batch):
        return {"y": batch["x"] + 1, "z": batch["x"] * 2}


class Halves(maitred.Model):
    """bfloat16, which numpy itself does not know."""

    signature = maitred.Signature({"x": "bfloat16[n]"}, {"y": "bfloat16[n]"})

    def predict(self, batch):
        return {"y": batch["x"]}


class Told(maitred.Model):
    """Says what it was told, and with how many rows."""

    signature = maitred.Signature(INPUT, {"said": "str[n]"})

    def predict(self, batch, context):
        return {"said": [repr(sorted(context.parameters.items()))] * len(batch["x"])}


class ToldEach(maitred.Model):
    signature = maitred.Signature(INPUT, {"said": "str[n]"})
    per_row_parameters = True

    def predict(self, batch, context):
        return {
            "said": [repr((own, row)) for own, row in zip(context.parameters, context.rows, strict=True)]
            or [""] * len(batch["x"])
        }


class Writer(maitred.Model):
    """Makes its input writable, and writes."""

    signature = maitred.Signature({"x": "float32[n, 2]", "t": "bool[n] optional"}, {"y": "float32[n, 2]"})

    def predict(self, batch):
        for array in batch.values():
            array.flags.writeable = True
            array[...] = 0
        return {"y": batch["x"]}


class Exits(maitred.Model):
    """Raises the exception whose name comes as a parameter."""

    signature = maitred.Signature(INPUT, {"y": "int64[n]"})

    def predict(self, batch, context):
        if "error" in context.parameters:
            raise ERRORS[context.parameters["error"]]("said so")
        return {"y": batch["x"]}


class ExitsAsync(Exits):
    async def predict(self, batch, context):
        await asyncio.sleep(0)
        return Exits.predict(self, batch, context)


ERRORS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        SystemExit, KeyboardInterrupt, ValueError, InvalidInput, Malformed, Draining, TimeoutError, StopIteration,
        asyncio.CancelledError,
    )
}  # fmt: skip


class Gate(maitred.Model):
    """7 waits until the test opens the gate (of this process); all others pass."""

    signature = maitred.Signature(INPUT, {"y": "int64[n]"})
    entered = threading.Event()
    opened = threading.Event()

    def predict(self, batch, context):
        if (batch["x"] == 7).any():
            Gate.entered.set()
            assert Gate.opened.wait(30)
        return {"y": batch["x"]}


class Bound(maitred.Model):
    """Keeps something that belongs to the loop of its first call, and fails on another."""

    signature = maitred.Signature(INPUT, {"y": "int64[n]"})
    slots = 2
    most = 0
    running = 0

    def load(self, path, device):
        self.loop = None
        self.ready = asyncio.Event()

    async def predict(self, batch, context):
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()
        Bound.running += 1
        Bound.most = max(Bound.most, Bound.running)
        try:
            if batch["x"][0] == 7:
                await asyncio.get_running_loop().create_future()
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            Bound.running -= 1
        return {"y": batch["x"]}


class Wide(maitred.Model):
    """Large rows: 1.2 MB each of `y`, and 40 kB of `z`; a negative one ends its process."""

    signature = maitred.Signature(
        INPUT, {"y": "float64[n, 150000]", "z": "int32[n, 10000]", "flag": "bool[n, 1100000]"}
    )

    def predict(self, batch):
        import os

        x = batch["x"]
        if (x < 0).any():
            os._exit(3)
        return {
            "y": np.repeat(x[:, None], 150_000, axis=1).astype(np.float64),
            "z": np.repeat(x[:, None], 10_000, axis=1).astype(np.int32),
            "flag": np.repeat(x[:, None] % 2 == 1, 1_100_000, axis=1),
        }
