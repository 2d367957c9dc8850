"""Models that the stories serve; they run in replicas' processes."""

import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

import maitred
from maitred.testing.replica_models import Puppet

HOUSE = str(pathlib.Path(maitred.__file__).parent)


class Echo(maitred.Model):
    signature = maitred.Signature({"x": "int64[n]"}, {"y": "int64[n]"})

    def predict(self, batch):
        return {"y": batch["x"]}


class Root(maitred.Model):
    """Has no answer that JSON can show to a negative number."""

    signature = maitred.Signature({"x": "float64[n]"}, {"y": "float64[n]"})

    def predict(self, batch):
        with np.errstate(invalid="ignore"):
            return {"y": np.sqrt(batch["x"])}


DTYPES = ["bool", "float16", "float32", "float64", "bfloat16", "str", "bytes"] + [
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
]


class Every(maitred.Model):
    """Gives back a pair of every dtype, as it came."""

    signature = maitred.Signature(
        {dtype: f"{dtype}[n, 2]" + (" nan=string" if "float" in dtype else "") for dtype in DTYPES},
        {dtype: f"{dtype}[n, 2]" + (" nan=string" if "float" in dtype else "") for dtype in DTYPES},
    )

    def predict(self, batch):
        return dict(batch)


class Scorer(maitred.Model):
    """Four floats in, three probabilities out."""

    signature = maitred.Signature({"x": "float32[n, 4]"}, {"y": "float32[n, 3]"})

    def load(self, path, device):
        self.weights = np.random.default_rng(7).standard_normal((4, 3)).astype(np.float32)

    def predict(self, batch):
        scores = np.exp(batch["x"] @ self.weights)
        return {"y": scores / scores.sum(axis=-1, keepdims=True)}


class Moody(maitred.Model):
    """Echoes, except: 666 raises, 400 is a mistake, 999 kills the process, 777 waits to be cancelled."""

    signature = maitred.Signature({"x": "int64[n]"}, {"y": "int64[n]"})

    def predict(self, batch, context):
        values = batch["x"]
        if (values == 999).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (values == 666).any():
            raise ValueError("666 is not liked here")
        if (values == 400).any():
            raise maitred.InvalidInput(ValueError("400 is none of ours"))
        if (values == 777).any():
            while not context.cancelled():
                time.sleep(0.002)
        return {"y": values}


class Above(maitred.Model):
    """Not row-wise: the values above zero, their sum as a scalar, and all of them."""

    signature = maitred.Signature({"x": "float32[n]"}, {"above": "float32[m]", "sum": "float32[]", "all": "float32[n]"})

    def predict(self, batch):
        x = batch["x"]
        return {"above": x[x > 0], "sum": x.sum(), "all": x}


class Broken(maitred.Model):
    signature = maitred.Signature({"x": "int64[n]"}, {"y": "int64[n]"})

    def load(self, path, device):
        raise RuntimeError("no weights here")

    def predict(self, batch):
        return {"y": batch["x"]}


class Traced(maitred.Model):
    """Writes which functions of maitred its process entered since the call before to the file that TRACE names."""

    signature = maitred.Signature({"x": "float32[n, 4]"}, {"y": "float32[n, 3]"})

    def load(self, path, device):
        self.seen = set()

    def predict(self, batch):
        sys.setprofile(None)
        pathlib.Path(os.environ["TRACE"]).write_text(json.dumps(sorted(self.seen)))
        self.seen.clear()
        sys.setprofile(self._enter)
        return {"y": batch["x"][:, :3] * 2}

    def _enter(self, frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HOUSE):
            self.seen.add((code.co_filename[len(HOUSE) :], code.co_qualname, code.co_firstlineno))


class Missing(maitred.Model):
    """Gives back what it saw, missing elements and times included, and what kinds of arrays those were."""

    signature = maitred.Signature(
        {
            "i": "int64[n] nullable",
            "b": "bool[n, 2] nullable",
            "s": "str[n] nullable",
            "t": 'int64[n] time="ms" zone="UTC" nullable',
            "limit": "uint64[] nullable optional",
        },
        {
            "i": "int64[n] nullable",
            "b": "bool[n, 2] nullable",
            "s": "str[n] nullable",
            "t": 'int64[n] time="ms" zone="UTC" nullable',
            "kinds": "str[n]",
        },
    )

    def predict(self, batch):
        kinds = " ".join(f"{name}:{type(array).__name__}:{array.dtype}" for name, array in sorted(batch.items()))
        return {**batch, "kinds": [kinds] * len(batch["i"])}


def until_there(path: str) -> None:
    """Wait for a file, by which a test lets a model go on. Raises TimeoutError after a minute."""
    end = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.002)


class Actor(maitred.Model):
    """Answers each row with its number, its process and as many of its number as `size` says, after doing something.

    What the first row says that is done: `pause:SECONDS`, `hold:FILE` until that is there, or a word of `Puppet`
    (`scribble`). Each call is written down in the folder ACTED: a line of its numbers, in a file of its process.
    """

    signature = maitred.Signature(
        {"x": "int64[n]", "do": "str[n] optional", "size": "int64[n] optional", "load": "float32[n, w] optional"},
        {"y": "int64[n]", "pid": "int64[n]", "many": "int64[n, k]", "sum": "float64[n]"},
    )

    def predict(self, batch, context):
        x = batch["x"]
        if not context.shadow:
            with open(os.path.join(os.environ["ACTED"], str(os.getpid())), "a") as file:
                file.write(f"{x.tolist()}\n")
            word, _, rest = batch["do"][0].partition(":") if "do" in batch else ("", "", "")
            if word == "pause":
                time.sleep(float(rest))
            elif word == "hold":
                until_there(rest)
            elif word:
                getattr(Puppet(), f"do_{word}")(rest, context, batch)
        many = int(batch["size"].max()) if "size" in batch else 1
        load = batch["load"].sum(axis=1, dtype=np.float64) if "load" in batch else np.zeros(len(x))
        pids = np.full(len(x), os.getpid())
        return {"y": x, "pid": pids, "many": np.repeat(x[:, None], many, axis=1), "sum": load}


class Image(maitred.Model):
    """Tells of large rows what is in them and how they lie; one that begins with -5 waits for RELEASED, a file."""

    signature = maitred.Signature(
        {"x": "float32[n, 40000]"},
        {"low": "float32[n]", "high": "float32[n]", "address": "int64[n]", "writable": "bool[n]"},
    )

    def predict(self, batch):
        x = batch["x"]
        if (x[:, 0] == -5).any():
            until_there(os.environ["RELEASED"])
        rows = len(x)
        return {
            "low": x.min(axis=1),
            "high": x.max(axis=1),
            "address": np.full(rows, x.ctypes.data % 64),
            "writable": np.full(rows, x.flags.writeable),
        }


class Checked(Image):
    """The same for rows that are looked at before they may run, which for long ones is done in a thread."""

    signature = maitred.Signature({"x": "float32[n, 40000] max=1000"}, Image.signature.outputs)


class Same(maitred.Model):
    """Gives back rows of any length."""

    signature = maitred.Signature({"x": "float32[n, k]"}, {"y": "float32[n, k]"})

    def predict(self, batch):
        return {"y": batch["x"]}
