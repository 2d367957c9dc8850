"""A model in your own process: `load(path).predict(...)`, called directly or through a queue of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from maitred.bridge import CLOSED, Bridge
from maitred.clock import monotonic
from maitred.endpoint import Waiter
from maitred.errors import Cancelled, DeadlinePassed, Draining, InvalidInput, ModelFault
from maitred.events import nobody
from maitred.messages import FOREVER, Ragged, Request, Result, Tensor
from maitred.model.asking import question
from maitred.model.description import Description
from maitred.model.forms import whole
from maitred.model.loading import Loaded
from maitred.model.loading import load as load_model
from maitred.model.predictor import Context, Predictor, call, call_async
from maitred.model.ragged import cut_tensors
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.model.source import Source
from maitred.model.tables import columns, table_like
from maitred.model.versions import Policy
from maitred.pool.build import Kind, build_pool
from maitred.pool.pool import Pool, PoolState
from maitred.pool.settings import SupervisorSettings
from maitred.replica.execution import said
from maitred.replica.replica import ReplicaSettings
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.wire.coerce import to_array

Arrays = dict[str, npt.NDArray[Any]]
T = TypeVar("T")

_BUSY: Final = "the model was busy with other calls until the timeout had passed"
_LATE: Final = "the answer came after the timeout; a model that runs in this process cannot be interrupted"
_LEASED_BYTES: Final = 1 << 20
"""Arrays of an answer from this size on are not copied."""
_CLOSE_SECONDS: Final = 5.0
"""How long calls that run may take to end when the model is closed."""


class Engine(Protocol):
    """What answers a checked request: the predictor itself, or a pool behind a queue."""

    description: Description

    def predict(self, request: Request) -> dict[str, Tensor]: ...

    async def predict_async(self, request: Request) -> dict[str, Tensor]: ...

    def close(self) -> None:
        """End it and wait for that; a second call does nothing."""
        ...

    def abandon(self) -> None:
        """End it without waiting: nobody holds the handle any more. May be called in any thread, at any moment."""
        ...


class Handle:
    """A loaded model. Safe to call from several threads; close it, or use it in a `with` block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.description = engine.description
        self.signature: Signature = engine.description.signature
        weakref.finalize(self, engine.abandon).atexit = False  # at exit there is time to wait: `_close_all`
        _handles.add(self)

    def predict(
        self,
        inputs: Mapping[str, Any] | Any = None,
        /,
        *,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        **named: Any,
    ) -> Arrays:
        """Answer for rows given by name, e.g. `predict(x=[[1, 2]])` or `predict({"x": array})`.

        A model with a single input takes it as the only argument. Values are numpy arrays of any layout, lists,
        scalars, pandas Series, Arrow arrays or sparse matrices; they become the declared dtypes or raise `Malformed`
        naming the input.
        Parameters are strings, numbers, True or False. Returns an array per wanted output, which is the caller's own
        (from 1 MiB on it may be the memory to which a child process wrote it); strings and bytes are object arrays,
        times are datetime64, and a nullable output is a masked array (strings: None where one is missing).
        Raises `DeadlinePassed` if there is no answer after `timeout_seconds` (in the caller's thread the model cannot
        be interrupted: it is raised once the model has returned), `ModelFault` if the model fails, `Draining` once the
        model is closed.
        """
        request = self._request(inputs, named, outputs, parameters, timeout_seconds)
        return self._arrays(self._engine.predict(request), request)

    async def predict_async(
        self,
        inputs: Mapping[str, Any] | Any = None,
        /,
        *,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        **named: Any,
    ) -> Arrays:
        """`predict` for callers on an event loop; cancelling it cancels the request."""
        request = self._request(inputs, named, outputs, parameters, timeout_seconds)
        return self._arrays(await self._engine.predict_async(request), request)

    def predict_table(self, table: T, *, timeout_seconds: float | None = None) -> T:
        """Answer for each row of a pandas DataFrame or Arrow table: a table of the same kind with a column per output.

        Columns are found by input name; an input of shape `[n, k]` is a column of lists of k values. Further columns
        are ignored. The index of a DataFrame is kept.
        """
        answer = self.predict(columns(table, self.signature), timeout_seconds=timeout_seconds)
        return table_like(table, answer, self.signature)

    async def predict_table_async(self, table: T, *, timeout_seconds: float | None = None) -> T:
        """`predict_table` for callers on an event loop."""
        answer = await self.predict_async(columns(table, self.signature), timeout_seconds=timeout_seconds)
        return table_like(table, answer, self.signature)

    def close(self) -> None:
        """Give back the model's memory; calls that still wait fail with `Draining`, and so do later ones.

        A second call does nothing, and so does one in a process that was forked from the one that loaded the model.
        """
        self._engine.close()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request(
        self,
        inputs: Mapping[str, Any] | Any,
        named: Mapping[str, Any],
        outputs: Sequence[str] | None,
        parameters: Mapping[str, Any] | None,
        timeout_seconds: float | None,
    ) -> Request:
        traits = self.description.traits
        return question(self.signature, traits, inputs, named, outputs, parameters, timeout_seconds)

    def _arrays(self, tensors: dict[str, Tensor], request: Request) -> Arrays:
        if monotonic() > request.deadline:
            raise DeadlinePassed(_LATE)
        names = request.outputs or tuple(self.signature.outputs)
        arrays = {name: _owned_array(tensors[name]) for name in self.signature.carried(names)}
        return whole(self.signature.special_outputs, arrays) if self.signature.special_outputs else arrays


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _close_all() -> None:
    """At exit: stop the replicas and their threads while everything they need is still there."""
    for handle in tuple(_handles):
        handle.close()


def _forked() -> None:
    for handle in tuple(_handles):
        if isinstance(handle._engine, _Direct):
            handle._engine.forked()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forked)


def load(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    queue: bool = False,
    replicas: int = 1,
    kind: Kind = "process",
    max_batch_rows: int = 64,
    trust: str | None = None,
    versions: Policy = "refuse",
    options: Mapping[str, Any] | None = None,
    isolated: bool = False,
) -> Handle:
    """Load the model at `path` (an artifact folder, a model file, `file.py`, `file.py:Class`, `module:Class`).

    Without a queue the model runs in the caller's thread, one call at a time; an asynchronous one runs on a loop of
    its own. With `queue=True` the calls of all threads share one queue in front of `replicas` copies (`kind`: child
    processes, threads, or on the queue's own loop), and are answered in batches of up to `max_batch_rows` rows.
    `trust` (`WHO: WHY`) lets code or pickles inside the artifact run. That happens in child processes only, so with
    `queue=True`; or in this process if it is `isolated`: if it exists for this model alone. `versions`: what happens
    where an artifact was saved with other versions of its libraries (`refuse`, `warn`, `ignore`). `options` are
    settings of the model's flavor, over those that it was packed with. Raises `LoadRefused` with the reason for a model
    that is broken, not trusted, or fails to load; `TypeError` or `ValueError` for arguments that make no sense.
    """
    place = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(place, str):
        raise TypeError(f"path must be a string, such as 'models/churn' or 'churn.py:Churn', not {_kind(place)}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a string or None, not {_kind(name)}")
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, not {kind!r}")
    replicas, rows = _at_least_one("replicas", replicas), _at_least_one("max_batch_rows", max_batch_rows)
    if versions not in get_args(Policy):
        raise ValueError(f"versions must be one of {', '.join(map(repr, get_args(Policy)))}, not {versions!r}")
    source = Source(path=place, name=name or "", trust=trust, versions=versions, options=dict(options or {}))
    if queue:
        return Handle(_Queued(source, replicas, kind, rows))
    loaded = load_model(source, isolated=isolated)
    return Handle(_Awaited(loaded) if loaded.description.traits.asynchronous else _Direct(loaded))


# --- what answers ------------------------------------------------------------------------------------------------


class _Direct:
    """The predictor in the caller's thread, one call at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self.description = loaded.description
        self._predictor: Predictor | None = loaded.predictor
        self._lock = threading.Lock()

    def predict(self, request: Request) -> dict[str, Tensor]:
        return self._answer(request, threading.Event())

    async def predict_async(self, request: Request) -> dict[str, Tensor]:
        left = threading.Event()
        try:
            return await asyncio.to_thread(self._answer, request, left)
        except asyncio.CancelledError:
            left.set()  # nothing stops a thread; the model may look at `context.cancelled()`
            raise

    def _answer(self, request: Request, left: threading.Event) -> dict[str, Tensor]:
        endless = request.deadline == FOREVER
        if not self._lock.acquire(timeout=-1 if endless else max(0.0, request.deadline - monotonic())):
            raise DeadlinePassed(_BUSY)
        try:
            if left.is_set():
                raise Cancelled("the caller cancelled the request")
            if self._predictor is None:
                raise Draining(CLOSED)
            context = _context(request, self.description, left.is_set)
            with _Faults():
                arrays = call(self._predictor, _inputs(request), context)
                return _tensors(arrays, self.description.signature, request.ragged)
        finally:
            self._lock.release()

    def close(self) -> None:
        self._predictor = None

    abandon = close

    def forked(self) -> None:
        self._lock = threading.Lock()  # the thread that held it may not exist in this process


class _Apart(ABC):
    """An engine that works on a loop of its own. Its bridge refuses calls after `close`, and in a forked child."""

    def __init__(self, name: str) -> None:
        self._bridge = Bridge(name)

    @abstractmethod
    async def _answer(self, request: Request) -> dict[str, Tensor]: ...

    @abstractmethod
    async def _end(self, seconds: float) -> None:
        """Let running calls end within that time, and give everything back."""

    def predict(self, request: Request) -> dict[str, Tensor]:
        return self._bridge.run(lambda: self._answer(request))

    async def predict_async(self, request: Request) -> dict[str, Tensor]:
        return await self._bridge.run_async(lambda: self._answer(request))

    def close(self) -> None:
        self._bridge.close(lambda: self._end(_CLOSE_SECONDS))

    def abandon(self) -> None:
        self._bridge.close(lambda: self._end(0.0), wait=False)


class _Awaited(_Apart):
    """An asynchronous predictor on one loop of its own, to which what the model keeps between calls may belong."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__("maitred-model")
        self.description = loaded.description
        self._predictor = loaded.predictor
        self._slots = asyncio.Semaphore(loaded.description.traits.slots)

    async def _answer(self, request: Request) -> dict[str, Tensor]:
        left = threading.Event()
        why = _BUSY
        try:
            async with asyncio.timeout(None if request.deadline == FOREVER else request.deadline - monotonic()):
                async with self._slots:
                    self._bridge.check_open()
                    why = "the model took longer than the timeout"
                    context = _context(request, self.description, left.is_set)
                    with _Faults():
                        arrays = await call_async(self._predictor, _inputs(request), context)
                        return _tensors(arrays, self.description.signature, request.ragged)
        except TimeoutError:  # ours: the model's own is a ModelFault by now
            raise DeadlinePassed(why) from None
        finally:
            left.set()

    async def _end(self, seconds: float) -> None:
        await self._bridge.idle(seconds)


class _Queued(_Apart):
    """A pool on a private loop, behind its own queue."""

    def __init__(self, source: Source, replicas: int, kind: Kind, max_batch_rows: int) -> None:
        super().__init__("maitred-queue")
        self.description: Description
        self._pool: Pool | None = None
        self._settled = asyncio.Event()
        self._failure = ""
        try:
            self._bridge.run(lambda: self._start(source, replicas, kind, max_batch_rows))
        except BaseException:
            self._bridge.close(lambda: self._end(0.0))
            raise

    async def _start(self, source: Source, replicas: int, kind: Kind, max_batch_rows: int) -> None:
        loop = asyncio.get_running_loop()
        dispatch = DispatchSettings(max_batch_rows=max_batch_rows)
        copies = ReplicaSettings(max_batch_rows=max_batch_rows)
        supervise = SupervisorSettings(replicas=replicas, max_load_attempts=1)
        self._pool = build_pool(source, "1", kind, dispatch, supervise, copies, self, loop, nobody)
        self._pool.launch()
        await self._settled.wait()
        if self._failure:
            raise CannotLoad(self._failure)

    def changed(self, state: PoolState, reason: str, description: Description | None) -> None:
        """The pool tells how it is; the first copy that is ready tells what the model takes."""
        if description is not None:
            self.description = description
        if state != "loading":
            self._failure = reason if state == "failed" else ""
            self._settled.set()

    async def _answer(self, request: Request) -> dict[str, Tensor]:
        if self._pool is None:
            raise RuntimeError("a request came before the pool was started")
        answer = Waiter(asyncio.get_running_loop(), _kept)
        ticket = self._pool.submit(request)
        ticket.watch(answer)
        try:
            return await answer.future
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        except Draining:
            raise Draining(CLOSED) from None

    async def _end(self, seconds: float) -> None:
        if self._pool is not None:
            await self._pool.drain(seconds)


def _kept(result: Result) -> dict[str, Tensor]:
    """An answer's tensors in memory that stays; large ones without a copy, unless that would keep much more."""
    tensors = result.tensors()
    lease = result.batch.lease
    if lease is None:
        return {name: tensor.owned() for name, tensor in tensors.items()}
    large = {name: t for name, t in tensors.items() if not isinstance(t.data, list) and t.data.nbytes >= _LEASED_BYTES}
    if 2 * sum(tensor.data.nbytes for tensor in large.values()) < lease.size:
        large = {}  # it shared its batch with others
    return {name: _leased(tensor, lease) if name in large else tensor.owned() for name, tensor in tensors.items()}


def _leased(tensor: Tensor, lease: Any) -> Tensor:
    array: npt.NDArray[Any] = to_array(tensor)
    whole = lease.lend(array)
    return (
        tensor.owned()
        if whole is None
        else _Leased(tensor.dtype, tensor.shape, whole.view(array.dtype).reshape(array.shape))
    )


class _Leased(Tensor, frozen=True, eq=False, gc=False):
    """A tensor whose array keeps a block of the replica's memory; nobody else uses that meanwhile."""


# --- calling the model -------------------------------------------------------------------------------------------


class _Faults(contextlib.AbstractContextManager[None]):
    """Whatever a model raises is its own fault, here as on the wire, unless it says that the caller's input is;

    Ctrl-C and a cancelled call are not its doing.
    """

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (ModelFault, InvalidInput, KeyboardInterrupt, GeneratorExit)):
            return
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            return
        raise ModelFault(said(error)) from error


def _is_cancelled() -> bool:
    """Whether the task that runs here was told to end; a model can raise CancelledError without that."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _context(request: Request, description: Description, left: Callable[[], bool]) -> Context:
    given = request.parameters or {}
    parameters = [given] * request.rows if description.traits.per_row_parameters else given
    rows = [(request.id, request.lane)] * request.rows
    return Context(parameters, request.outputs, rows, False, lambda: left() or monotonic() > request.deadline)


def _inputs(request: Request) -> Arrays:
    return {name: to_array(tensor) for name, tensor in request.inputs.items()}


def _tensors(arrays: Arrays, signature: Signature, ragged: Ragged | None) -> dict[str, Tensor]:
    tensors = {}
    for name, array in arrays.items():
        dtype = signature.answers[name].dtype
        if dtype == "str":
            "".join(array.reshape(-1).tolist()).encode()  # raises for text that no wire could carry
        tensors[name] = Tensor(dtype, array.shape, array)
    return tensors if ragged is None else cut_tensors(tensors, ragged)


def _owned_array(tensor: Tensor) -> npt.NDArray[Any]:
    if type(tensor) is _Leased:
        return tensor.data  # type: ignore[no-any-return]
    array = to_array(tensor)
    return array if array.flags.owndata and array.flags.writeable else array.copy()


# --- what the caller gave ----------------------------------------------------------------------------------------


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _at_least_one(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number >= 1, not {_kind(value)}")
    if value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, not {value}")
    return int(value)
