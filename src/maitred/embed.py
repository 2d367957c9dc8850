"""A model in your own process: `load(path).predict(...)`, called directly or through a queue of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from maitred.clock import monotonic
from maitred.errors import DeadlinePassed, Draining, MaitredError, Malformed, ModelFault
from maitred.events import nobody
from maitred.messages import FOREVER, NORMAL, Request, Result, Tensor
from maitred.model.description import Description
from maitred.model.loading import load as load_model
from maitred.model.predictor import Context, Predictor, call, call_async
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.model.source import Source
from maitred.pool.build import Kind, build_pool
from maitred.pool.pool import PoolState
from maitred.pool.settings import SupervisorSettings
from maitred.replica.replica import ReplicaSettings
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.wire.coerce import from_python, to_array

Arrays = dict[str, npt.NDArray[Any]]
T = TypeVar("T")


class Engine(Protocol):
    """What answers a checked request: the predictor itself, or a pool behind a queue."""

    description: Description

    def predict(self, request: Request) -> dict[str, Tensor]: ...

    async def predict_async(self, request: Request) -> dict[str, Tensor]: ...

    def close(self) -> None: ...


class Handle:
    """A loaded model. Safe to call from several threads; close it, or use it in a `with` block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.description = engine.description
        self.signature: Signature = engine.description.signature

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
        scalars, pandas Series or Arrow arrays; they become the declared dtypes or raise `Malformed` naming the input.
        Returns an array per wanted output, with memory of its own; strings and bytes are object arrays.
        Raises `DeadlinePassed` after `timeout_seconds`, `ModelFault` if the model fails.
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
        answer = self.predict(_columns(table, self.signature), timeout_seconds=timeout_seconds)
        return _table_like(table, answer)

    async def predict_table_async(self, table: T, *, timeout_seconds: float | None = None) -> T:
        """`predict_table` for callers on an event loop."""
        answer = await self.predict_async(_columns(table, self.signature), timeout_seconds=timeout_seconds)
        return _table_like(table, answer)

    def close(self) -> None:
        """Give back the model's memory; calls that still wait fail with `Draining`."""
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
        signature = self.signature
        tensors = {}
        for name, value in self._by_name(inputs, named).items():
            spec = signature.inputs.get(name)
            if spec is None:
                raise Malformed(f"the model has no input '{name}'; its inputs are: {', '.join(signature.inputs)}")
            tensors[name] = from_python(name, spec.dtype, value, spec.nullable, spec.nan, spec.pad)
        checked = signature.check(tensors)
        wanted = None if outputs is None else signature.check_outputs(outputs)
        chosen = dict(parameters) if parameters else None
        group = checked.group
        if chosen and group is not None and not self.description.traits.per_row_parameters:
            group = (group, tuple(sorted(chosen.items())))
        deadline = FOREVER if timeout_seconds is None else monotonic() + timeout_seconds
        return Request(checked.inputs, checked.rows, group, deadline, NORMAL, parameters=chosen, outputs=wanted)

    def _by_name(self, inputs: Mapping[str, Any] | Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
        if inputs is None:
            return named
        if named:
            raise Malformed("give the inputs either as one argument or by name, not both")
        if isinstance(inputs, Mapping):
            return inputs
        if len(self.signature.inputs) == 1:
            return {next(iter(self.signature.inputs)): inputs}
        raise Malformed(f"this model has several inputs; give them by name: {', '.join(self.signature.inputs)}")

    def _arrays(self, tensors: dict[str, Tensor], request: Request) -> Arrays:
        names = request.outputs or tuple(self.signature.outputs)
        return {name: _owned_array(tensors[name]) for name in names}


def load(
    path: str,
    *,
    name: str | None = None,
    queue: bool = False,
    replicas: int = 1,
    kind: Kind = "process",
    max_batch_rows: int = 64,
    trust: str | None = None,
    isolated: bool = False,
) -> Handle:
    """Load the model at `path` (an artifact folder, a model file, `file.py`, `file.py:Class`, `module:Class`).

    Without a queue the model runs in the caller's thread, one call at a time. With `queue=True` the calls of all
    threads share one queue in front of `replicas` copies (`kind`: child processes, threads, or on the queue's own
    loop), and are answered in batches of up to `max_batch_rows` rows. `trust` (`WHO: WHY`) lets code or pickles inside
    the artifact run. That happens in child processes only, so with `queue=True`; or in this process if it is
    `isolated`: if it exists for this model alone. Raises `LoadRefused` with the reason for
    a model that is broken, not trusted, or fails to load.
    """
    source = Source(path=path, name=name or "", trust=trust)
    if not queue:
        return Handle(_Direct(source, isolated))
    return Handle(_Queued(source, replicas, kind, max_batch_rows))


class _Direct:
    """The predictor in the caller's thread."""

    def __init__(self, source: Source, isolated: bool) -> None:
        loaded = load_model(source, isolated=isolated)
        self.description = loaded.description
        self._predictor: Predictor | None = loaded.predictor
        self._lock = threading.Lock()

    def predict(self, request: Request) -> dict[str, Tensor]:
        arrays = {name: to_array(tensor) for name, tensor in request.inputs.items()}
        context = Context(parameters=request.parameters or {}, outputs=request.outputs)
        with self._lock:
            if monotonic() > request.deadline:
                raise DeadlinePassed("the model was busy with other calls until the timeout had passed")
            answer = self._called(arrays, context)
        specs = self.description.signature.outputs
        return {name: Tensor(specs[name].dtype, array.shape, array) for name, array in answer.items()}

    def _called(self, arrays: Arrays, context: Context) -> Arrays:
        if self._predictor is None:
            raise Draining("this model was closed; load it again")
        try:
            if self.description.traits.asynchronous:
                return asyncio.run(call_async(self._predictor, arrays, context))
            return call(self._predictor, arrays, context)
        except MaitredError:
            raise
        except Exception as error:  # whatever a model raises is its own fault, here as on the wire
            raise ModelFault(f"{type(error).__name__}: {error}") from error

    async def predict_async(self, request: Request) -> dict[str, Tensor]:
        return await asyncio.to_thread(self.predict, request)

    def close(self) -> None:
        self._predictor = None


class _Bridge:
    """A loop on a thread of its own, asked from other threads and loops."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="maitred-queue", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Call `work` on the loop and await there what it returns. Returns or raises what that does."""

        async def there() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result()

    async def run_async(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def there() -> Any:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Queued:
    """A pool on a private loop, behind its own queue."""

    def __init__(self, source: Source, replicas: int, kind: Kind, max_batch_rows: int) -> None:
        self.description: Description
        self._bridge = _Bridge()
        self._settled: asyncio.Event
        self._failure = ""
        try:
            self._bridge.run(lambda: self._start(source, replicas, kind, max_batch_rows))
        except BaseException:
            self._bridge.close()
            raise

    async def _start(self, source: Source, replicas: int, kind: Kind, max_batch_rows: int) -> None:
        self._settled = asyncio.Event()
        loop = asyncio.get_running_loop()
        dispatch = DispatchSettings(max_batch_rows=max_batch_rows)
        copies = ReplicaSettings(max_batch_rows=max_batch_rows)
        supervise = SupervisorSettings(replicas=replicas, max_load_attempts=1)
        self._pool = build_pool(source, "1", kind, dispatch, supervise, copies, self, loop, nobody)
        self._pool.launch()
        await self._settled.wait()
        if self._failure:
            await self._pool.drain(0.0)
            raise CannotLoad(self._failure)

    def changed(self, state: PoolState, reason: str, description: Description | None) -> None:
        """The pool tells how it is; the first copy that is ready tells what the model takes."""
        if description is not None:
            self.description = description
        if state != "loading":
            self._failure = reason if state == "failed" else ""
            self._settled.set()

    def predict(self, request: Request) -> dict[str, Tensor]:
        result: Result = self._bridge.run(lambda: self._pool.submit(request))
        return result.tensors()

    async def predict_async(self, request: Request) -> dict[str, Tensor]:
        result: Result = await self._bridge.run_async(lambda: self._pool.submit(request))
        return result.tensors()

    def close(self) -> None:
        self._bridge.run(lambda: self._pool.drain(5.0))
        self._bridge.close()


def _owned_array(tensor: Tensor) -> npt.NDArray[Any]:
    array = to_array(tensor)
    return array if array.flags.owndata and array.flags.writeable else array.copy()


def _columns(table: Any, signature: Signature) -> dict[str, Any]:
    """The table's columns that the model reads, as values that `from_python` takes."""
    names = set(_column_names(table))
    missing = [name for name, spec in signature.inputs.items() if name not in names and not spec.optional]
    if missing:
        raise Malformed(f"the table lacks the columns {', '.join(map(repr, missing))}; it has: {', '.join(names)}")
    return {name: table[name] for name in signature.inputs if name in names}


def _column_names(table: Any) -> list[str]:
    if hasattr(table, "column_names"):
        return list(table.column_names)
    if hasattr(table, "columns"):
        return [str(name) for name in table.columns]
    raise Malformed(f"a table is a pandas DataFrame or an Arrow table, not {type(table).__name__}")


def _table_like(table: T, answer: Arrays) -> T:
    columns = {name: array if array.ndim == 1 else list(array) for name, array in answer.items()}
    if hasattr(table, "column_names"):
        import pyarrow

        flat = {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}
        made: Any = pyarrow.table({name: pyarrow.array(column) for name, column in flat.items()})
        return made  # type: ignore[no-any-return]
    import pandas

    frame: Any = pandas.DataFrame(columns, index=table.index)  # type: ignore[attr-defined]
    return frame  # type: ignore[no-any-return]
