"""The models that the tests serve: each gives back the nonce it was sent, and misbehaves in one known way.

What a model did is told to the tests through the folder that RELIABILITY_MARKS names: one line per call in `calls`
(pid, monotonic time, rows, nonces), one per load in `loads`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import maitred

Arrays = dict[str, Any]

NONCE = maitred.Signature(inputs={"nonce": "int64[n]"}, outputs={"nonce": "int64[n]"})


def mark(kind: str, text: str) -> None:
    """Append a line to a file that the test reads; short appends from several processes do not mix."""
    folder = os.environ.get("RELIABILITY_MARKS")
    if folder:
        with open(Path(folder) / kind, "a") as file:
            file.write(f"{os.getpid()} {time.monotonic():.6f} {text}\n")


def wanted(kind: str) -> bool:
    """Whether the test has put a file of this name into the folder."""
    folder = os.environ.get("RELIABILITY_MARKS")
    return bool(folder) and (Path(folder or "") / kind).exists()


class Echo(maitred.Model):
    """Gives the nonce back at once."""

    signature = NONCE

    def load(self, path: str, device: str) -> None:
        mark("loads", type(self).__name__)

    def predict(self, batch: Arrays) -> Arrays:
        return {"nonce": batch["nonce"]}


class Logged(Echo):
    """Writes down what it runs."""

    def predict(self, batch: Arrays) -> Arrays:
        nonces = batch["nonce"].tolist()
        mark("calls", f"{len(nonces)} {','.join(map(str, nonces))}")
        return {"nonce": batch["nonce"]}


class Sleeper(Echo):
    """10 ms + 0.2 ms a row: the reference model."""

    base = 0.010

    def predict(self, batch: Arrays) -> Arrays:
        time.sleep(self.base + 0.0002 * len(batch["nonce"]))
        return {"nonce": batch["nonce"]}


class SlowSleeper(Sleeper):
    """Four replicas with batches of 8 serve less than 1,000 rows a second."""

    base = 0.040


class OnceSleeper(Sleeper):
    """Declared as having side effects: nothing may run twice."""

    side_effects = True

    def predict(self, batch: Arrays) -> Arrays:
        nonces = batch["nonce"].tolist()
        mark("calls", f"{len(nonces)} {','.join(map(str, nonces))}")
        return super().predict(batch)


class Told(maitred.Model):
    """Sleeps as long as the rows of the batch say, the longest of them; writes down what it runs."""

    signature = maitred.Signature(
        inputs={"nonce": "int64[n]", "milliseconds": "float32[n]"}, outputs={"nonce": "int64[n]"}
    )

    def predict(self, batch: Arrays) -> Arrays:
        nonces = batch["nonce"].tolist()
        mark("calls", f"{len(nonces)} {','.join(map(str, nonces))}")
        time.sleep(max(0.0, float(batch["milliseconds"].max())) / 1000)
        return {"nonce": batch["nonce"]}


class Total(maitred.Model):
    """Adds up each row, however long."""

    signature = maitred.Signature(inputs={"x": "float64[n, m]"}, outputs={"total": "float64[n]"})

    def predict(self, batch: Arrays) -> Arrays:
        return {"total": batch["x"].sum(axis=1)}


class Long(maitred.Model):
    """Gives back as many numbers as it is asked for."""

    signature = maitred.Signature(inputs={"count": "int64[1]"}, outputs={"y": "float64[m]"})

    def predict(self, batch: Arrays) -> Arrays:
        return {"y": np.random.default_rng(1).standard_normal(int(batch["count"][0]))}


class Poison(maitred.Model):
    """Raises on a negative nonce; sleeps 2 ms so that requests gather."""

    signature = maitred.Signature(
        inputs={"nonce": "int64[n]", "x": "float32[n, 4]"}, outputs={"nonce": "int64[n]", "x": "float32[n, 4]"}
    )

    def predict(self, batch: Arrays) -> Arrays:
        time.sleep(0.002)
        if (batch["nonce"] < 0).any():
            raise ValueError("a row that this model cannot take")
        return {"nonce": batch["nonce"], "x": batch["x"]}


class Killer(Echo):
    """A negative nonce ends its process as a crash in native code would."""

    def predict(self, batch: Arrays) -> Arrays:
        time.sleep(0.002)
        if (batch["nonce"] < 0).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return {"nonce": batch["nonce"]}


class Mortal(Echo):
    """Cannot be started any more once the test says so."""

    def load(self, path: str, device: str) -> None:
        super().load(path, device)
        if wanted("die"):
            os._exit(3)


class Blocker(Echo):
    """Holds the interpreter's lock for as many seconds as the nonce says when it is negative."""

    def predict(self, batch: Arrays) -> Arrays:
        seconds = -int(batch["nonce"].min())
        if seconds > 0:
            ctypes.PyDLL(None).usleep(seconds * 1_000_000)
        return {"nonce": batch["nonce"]}


class Mixed(maitred.Model):
    """Echoes rows of several types and shapes, tagged with the request's own parameter."""

    signature = maitred.Signature(
        inputs={"nonce": "int64[n]", "values": "float32[n, width]", "text": "str[n]", "flag": "bool[n] optional"},
        outputs={"nonce": "int64[n]", "twice": "float32[n, width]", "text": "str[n]", "tag": "int64[n]"},
    )

    def predict(self, batch: Arrays, context: maitred.Context) -> Arrays:
        nonces = batch["nonce"]
        return {
            "nonce": nonces,
            "twice": batch["values"] * np.float32(2),
            "text": batch["text"],
            "tag": np.full(len(nonces), int((context.parameters or {}).get("tag", -1)), np.int64),
        }


class Numbers(maitred.Model):
    """Turns numbers of several types round, and proves of each row that they and the nonce have stayed together."""

    signature = maitred.Signature(
        inputs={
            "nonce": "int64[n]", "octets": "uint8[n, 16]", "real": "float64[n]", "flags": "bool[n, 3]",
            "short": "int16[n, width]",
        },
        outputs={
            "octets": "uint8[n, 16]", "real": "float64[n]", "flags": "bool[n, 3]", "short": "int16[n, width]",
            "proof": "int64[n]",
        },
    )  # fmt: skip

    def predict(self, batch: Arrays) -> Arrays:
        octets, flags = batch["octets"], batch["flags"]
        proof = batch["nonce"] + 1000 * (octets.sum(axis=1, dtype=np.int64) + flags.sum(axis=1))
        return {
            "octets": 255 - octets, "real": batch["real"] + 1, "flags": ~flags, "short": -batch["short"],
            "proof": proof,
        }  # fmt: skip


TYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "str", "bytes",
)  # fmt: skip


def _noted(dtype: str, also: str = "") -> str:
    """The text notation of a row of three values; floats may be no number, and travel in JSON as strings then."""
    return f"{dtype}[n, 3]{also}" + (" nan=string" if "float" in dtype else "")


class EveryType(maitred.Model):
    """One input and one output of every dtype; outputs of inputs that were not sent are empty."""

    signature = maitred.Signature(
        inputs={"nonce": "int64[n]", **{f"in_{dtype}": _noted(dtype, " optional") for dtype in TYPES}},
        outputs={"nonce": "int64[n]", **{f"out_{dtype}": _noted(dtype) for dtype in TYPES}},
    )

    def predict(self, batch: Arrays) -> Arrays:
        rows = len(batch["nonce"])
        outputs = {f"out_{dtype}": batch.get(f"in_{dtype}", _empty(dtype, rows)) for dtype in TYPES}
        return {"nonce": batch["nonce"], **outputs}


def _empty(dtype: str, rows: int) -> Any:
    if dtype in ("str", "bytes"):
        return np.full((rows, 3), "" if dtype == "str" else b"", object)
    return np.zeros((rows, 3), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
