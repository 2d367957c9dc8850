"""Models that do what a test asks of them, good and bad: for the contract suite of replicas."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import mmap
import os
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np

from maitred.messages import ITEM_BYTES
from maitred.model.predictor import Context, Model
from maitred.model.signature import Signature
from maitred.replica import channel
from maitred.wire.coerce import NUMPY_TYPES

PATIENCE_SECONDS: Final = 30.0
"""No model here waits longer than this for what a test should have done."""

_ALL: Final = (*ITEM_BYTES, "str", "bytes")


class Echo(Model):
    """Gives back every input; each may be left out, and `n` of the first one that is there counts the rows."""

    signature = Signature(
        inputs={"x": "float32[n, 2]", **{dtype: f"{dtype}[n] optional" for dtype in _ALL}},
        outputs={
            "x": "float32[n, 2]",
            "total": "float64[n]",
            **{dtype: f"{dtype}[n]" for dtype in _ALL},
        },
    )

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = len(batch["x"])
        blank: dict[str, Any] = {dtype: np.zeros(rows, NUMPY_TYPES[dtype]) for dtype in ITEM_BYTES}
        blank |= {"str": [""] * rows, "bytes": [b""] * rows}
        given = {dtype: batch.get(dtype, value) for dtype, value in blank.items()}
        return {"x": batch["x"], "total": batch["x"].sum(axis=1, dtype=np.float64), **given}


class Told(Model):
    """Says what its context told it, one row each."""

    signature = Signature(
        inputs={"x": "int64[n]"}, outputs={"said": "str[n]", "wanted": "str[n]", "who": "str[n]", "x": "int64[n]"}
    )

    def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        rows = len(batch["x"])
        return {
            "said": [repr(context.parameters)] * rows,
            "wanted": [repr(context.outputs)] * rows,
            "who": [f"{id}/{lane}" for id, lane in context.rows] or [""] * rows,
            "x": batch["x"],
        }


class EachTold(Told):
    """Takes its parameters row by row."""

    per_row_parameters = True

    def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        return {**super().predict(batch, context), "said": [repr(each) for each in context.parameters]}


class Puppet(Model):
    """Does what its first row says, and answers `done` for each row."""

    signature = Signature(inputs={"do": "str[n]", "place": "str[n]"}, outputs={"said": "str[n]"})

    def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        rows = len(batch["do"])
        if rows:
            word, _, rest = batch["do"][0].partition(":")
            if batch["place"][0]:
                Path(batch["place"][0]).write_text(str(os.getpid()))  # the test waits for this file
            said = getattr(self, f"do_{word}", self.do_nothing)(rest, context, batch)
            if said is not None:
                return {"said": said}
        return {"said": ["done"] * rows}

    def do_nothing(self, rest: str, context: Context, batch: Any) -> Any: ...

    def do_raise(self, rest: str, context: Context, batch: Any) -> Any:
        raise ValueError(rest or "as asked")

    def do_memory(self, rest: str, context: Context, batch: Any) -> Any:
        raise MemoryError

    def do_count(self, rest: str, context: Context, batch: Any) -> Any:
        return ["one too many"] * (len(batch["do"]) + 1)

    def do_kind(self, rest: str, context: Context, batch: Any) -> Any:
        return object()

    def do_surrogate(self, rest: str, context: Context, batch: Any) -> Any:
        return ["\ud800"] * len(batch["do"])

    def do_write(self, rest: str, context: Context, batch: Any) -> Any:
        batch["do"][0] = "written"

    def do_wait(self, rest: str, context: Context, batch: Any) -> Any:
        """Until nobody waits for the batch any more."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not context.cancelled():
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.001)
        return ["cancelled"] * len(batch["do"])

    def do_hang(self, rest: str, context: Context, batch: Any) -> Any:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            pass  # holds the interpreter's lock most of the time

    def do_leave(self, rest: str, context: Context, batch: Any) -> Any:
        sys.exit(3)

    def do_exit(self, rest: str, context: Context, batch: Any) -> Any:
        os._exit(int(rest))

    def do_crash(self, rest: str, context: Context, batch: Any) -> Any:
        ctypes.string_at(0)

    def do_say(self, rest: str, context: Context, batch: Any) -> Any:
        """Write messages of its own into the pipe: `kind,detail,slot,rows,batch,a,b,c,d,p,q,r,s`, or raw bytes."""
        if rest.startswith("raw"):
            os.write(pipe_to_parent(), b"x" * int(rest[3:]))
        else:
            os.write(pipe_to_parent(), channel.message(*map(int, rest.split(","))))
        time.sleep(PATIENCE_SECONDS)

    def do_scribble(self, rest: str, context: Context, batch: Any) -> Any:
        """Write nonsense into everything that it can, then answer as if nothing had happened."""
        for fd in sorted(descriptors()):
            with contextlib.suppress(OSError):
                os.pwrite(fd, b"\xff" * 4096, 0)  # memory
            with contextlib.suppress(OSError):
                os.write(fd, b"\xff" * channel.MESSAGE.size)

    def do_litter(self, rest: str, context: Context, batch: Any) -> Any:
        """Write into and close all descriptors with the numbers that programs usually have."""
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(fd, b"\xff" * channel.MESSAGE.size)
        os.closerange(3, 64)

    def do_close(self, rest: str, context: Context, batch: Any) -> Any:
        os.close(pipe_to_parent())
        time.sleep(PATIENCE_SECONDS)

    def do_child(self, rest: str, context: Context, batch: Any) -> Any:
        """A helper that would outlive this process, and holds all its pipes: Python knows nothing of it."""
        if not ctypes.PyDLL(None).fork():
            time.sleep(PATIENCE_SECONDS)
            os._exit(0)

    def do_twice(self, rest: str, context: Context, batch: Any) -> Any:
        """Come back from `predict` in two processes."""
        helper = os.fork()
        return [f"{helper}"] * len(batch["do"]) if helper else None

    def do_held(self, rest: str, context: Context, batch: Any) -> Any:
        """What a program that it runs holds besides the three usual descriptors."""
        held = "[fd for fd in os.listdir('/dev/fd') if int(fd) > 2 and os.path.exists('/dev/fd/' + fd)]"
        command = [sys.executable, "-c", f"import os; print({held})"]
        ended = subprocess.run(command, check=True, close_fds=False, stdout=subprocess.PIPE, text=True)
        return [ended.stdout.strip()] * len(batch["do"])

    def do_cancelled(self, rest: str, context: Context, batch: Any) -> Any:
        raise asyncio.CancelledError(rest)

    def do_interrupt(self, rest: str, context: Context, batch: Any) -> Any:
        raise KeyboardInterrupt(rest)

    def do_generator(self, rest: str, context: Context, batch: Any) -> Any:
        raise GeneratorExit(rest)

    def do_mute(self, rest: str, context: Context, batch: Any) -> Any:
        class Mute(Exception):
            def __str__(self) -> str:
                raise KeyboardInterrupt

        raise Mute

    def do_log(self, rest: str, context: Context, batch: Any) -> Any:
        """Have Python write of everything that it writes of by itself."""
        logging.getLogger("own").error("logged %s", rest)
        logging.error("%d", rest)
        warnings.warn(rest, stacklevel=1)
        thread = threading.Thread(target=self.do_raise, args=(rest, context, batch))
        thread.start()
        thread.join()

        class Unraisable:
            def __del__(self) -> None:
                raise ValueError(rest)

        Unraisable()

    def do_map(self, rest: str, context: Context, batch: Any) -> Any:
        """Try to write into the parent's input memory, by every descriptor there is."""
        said = []
        for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
            try:
                mmap.mmap(int(name), 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)[0] = 255
                said.append(name)
            except (OSError, ValueError):
                continue
        return [",".join(said)] * len(batch["do"])


def descriptors() -> list[int]:
    """Those of this process, but for the three usual ones."""
    return [fd for fd in map(int, os.listdir("/dev/fd")) if fd > 2]


def pipe_to_parent() -> int:
    """The one that this process writes messages to; it waits when it is full, unlike that for a crash."""
    for fd in descriptors():
        with contextlib.suppress(OSError):
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            writes = flags & os.O_ACCMODE == os.O_WRONLY and not flags & os.O_NONBLOCK
            if writes and stat.S_ISFIFO(os.fstat(fd).st_mode):
                return fd
    raise LookupError("there is no such pipe")


class Later(Model):
    """A puppet whose `predict` is a coroutine function, and which is bound to the loop it was warmed up on."""

    signature = Puppet.signature
    slots = 2
    loop: asyncio.AbstractEventLoop | None = None

    async def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("another loop")
        await asyncio.sleep(0)
        if len(batch["do"]) and batch["do"][0] == "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return Puppet().predict(batch, context)


class Choosy(Model):
    """Takes no row but the ones it likes; came without an example of them."""

    signature = Signature(inputs={"x": "int64[n]"}, outputs={"y": "int64[n]"})

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        if (batch["x"] != 7).any():
            raise ValueError("only sevens")
        return {"y": batch["x"]}


class Long(Model):
    """Answers `size` numbers for each row, the largest of the batch: more than any guess from the signature."""

    signature = Signature(inputs={"size": "int64[n]"}, outputs={"y": "float32[n, k]", "text": "str[n]"})

    def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        size = 0 if context.shadow else int(batch["size"].max(initial=0))
        rows = len(batch["size"])
        return {"y": np.arange(rows * size, dtype=np.float32).reshape(rows, size), "text": ["ü" * size] * rows}


class Whole(Model):
    """Not row-wise: the outputs have sizes of their own."""

    signature = Signature(inputs={"a": "int32[m, k]", "b": "int32[k]"}, outputs={"c": "int32[p]"})

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"c": np.concatenate([(batch["a"] @ batch["b"]).reshape(-1), batch["b"]])}


class Meeting(Model):
    """Each of three calls answers when all three are there."""

    signature = Signature(inputs={"x": "int64[n]"}, outputs={"y": "int64[n]"})
    slots = 3

    def load(self, path: str, device: str) -> None:
        self.here = 0
        self.met = asyncio.Event()

    async def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        if context.shadow:  # warm-up runs them one by one
            return {"y": batch["x"]}
        if int(batch["x"][0]) < 0:
            raise ValueError("negative")
        self.here += 1
        met = self.met
        if self.here % 3 == 0:
            met.set()
            self.met = asyncio.Event()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await met.wait()
        return {"y": batch["x"] * 2}


class Together(Model):
    """Each of two calls answers when both are there; not asynchronous."""

    signature = Signature(inputs={"x": "int64[n]"}, outputs={"y": "int64[n]"})
    slots = 2

    def load(self, path: str, device: str) -> None:
        self.barrier = threading.Barrier(2)

    def predict(self, batch: dict[str, Any], context: Context) -> dict[str, Any]:
        if not context.shadow:
            self.barrier.wait(PATIENCE_SECONDS)
        return {"y": batch["x"] * 2}


class Fixed(Model):
    """Answers how many rows it was given, which are always four."""

    signature = Signature(inputs={"x": "int64[n]"}, outputs={"rows": "int64[n]"})
    fixed_batch = (4,)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"rows": np.full(len(batch["x"]), len(batch["x"]))}


class Scribe(Model):
    """Writes into the arrays it is given, as it says that it does."""

    signature = Signature(inputs={"x": "float32[n]"}, outputs={"x": "float32[n]"})
    mutates_inputs = True

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] += 1
        return {"x": batch["x"]}


class CannotLoad(Model):
    """Fails to load."""

    signature = Signature(inputs={"x": "float32[n]"}, outputs={"x": "float32[n]"})

    def load(self, path: str, device: str) -> None:
        raise RuntimeError("the weights are not there")

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class CannotWarm(CannotLoad):
    """Loads and then answers five rows when it is given four."""

    def load(self, path: str, device: str) -> None: ...

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        if len(batch["x"]) == 4:
            return {"x": np.zeros(5, np.float32)}
        return batch


class NeverLoads(CannotLoad):
    """Loads for ever."""

    def load(self, path: str, device: str) -> None:
        time.sleep(PATIENCE_SECONDS)
