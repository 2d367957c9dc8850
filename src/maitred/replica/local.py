"""What replicas inside this process have in common: batches of plain objects, and no way to be killed."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from maitred.messages import Outputs, Request, Tensor
from maitred.model.description import Description
from maitred.model.predictor import Arrays, Context
from maitred.model.source import Source
from maitred.replica.execution import Execution, Failure, Wait, failure, is_decision, open_model, why_not_loaded
from maitred.replica.lifecycle import OVER
from maitred.replica.replica import Cause, Life, Listener, ReplicaSettings
from maitred.scheduling.recovery import error_of
from maitred.wire.coerce import to_array
from maitred.wire.tensors import join


class Job(NamedTuple):
    """A batch as it was given to the replica."""

    id: int
    requests: list[Request]
    rows: int


class Phases(NamedTuple):
    """A model that is ready, and how long that took."""

    execution: Execution
    load_seconds: float
    warmup_seconds: float


class LocalReplica(Life):
    """Base of the kinds that run in this process. What it tells the listener is told on the loop."""

    def __init__(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
    ) -> None:
        super().__init__(id, loop, listener)
        self._source = source
        self._settings = settings
        self._running: set[int] = set()
        self._begun: set[int] = set()
        self._cancelled: set[int] = set()

    def cancel(self, batch_id: int) -> None:
        if batch_id in self._running:
            self._cancelled.add(batch_id)

    def kill(self, reason: str = "") -> None:
        if self.state not in OVER and self.state != "new":
            self._loop.call_soon(self._abandoned, reason or "was given up; a thread cannot be killed")

    def frozen(self) -> bool:
        return False

    # ------------------------------------------------------------------ wherever the model runs

    def _prepare(self, wait: Wait | None = None) -> Phases:
        """Load and warm up. Raises whatever the model's code raises."""
        started = time.perf_counter()
        execution = open_model(self._source, self._settings.device, isolated=False)
        loaded = time.perf_counter()
        execution.warm(self._settings.max_batch_rows, wait)
        return Phases(execution, loaded - started, time.perf_counter() - loaded)

    def _begin(self, execution: Execution, job: Job) -> tuple[Arrays, Context]:
        """A batch's inputs and context; it counts as started from here on."""
        requests = job.requests
        first = requests[0]
        wanted = first.outputs
        if wanted is not None and any(request.outputs != wanted for request in requests):
            wanted = None  # each takes its own from all of them
        members = [(r.rows, r.id, r.lane, r.parameters) for r in requests] if execution.reads_rows else None
        context = execution.context(first.parameters, wanted, members, lambda: job.id in self._cancelled)
        inputs = {name: to_array(tensor) for name, tensor in join(requests, execution.signature.shared).items()}
        self._begun.add(job.id)
        return inputs, context

    def _outputs(self, execution: Execution, job: Job, arrays: Arrays, seconds: float) -> Outputs:
        specs = execution.signature.answers
        tensors = {}
        for name, array in arrays.items():
            dtype = specs[name].dtype
            data = array.reshape(-1).tolist() if dtype in ("str", "bytes") else array
            if dtype == "str":
                "".join(data).encode()  # raises for text that no wire could carry
            tensors[name] = Tensor(dtype, array.shape, data)
        return Outputs(tensors, job.rows, seconds)

    def _run_now(self, execution: Execution, job: Job) -> Outputs | Failure:
        try:
            inputs, context = self._begin(execution, job)
            started = time.perf_counter()
            arrays = execution.run(inputs, context)
            return self._outputs(execution, job, arrays, time.perf_counter() - started)
        except BaseException as error:  # SystemExit and its like too: the batch's failure, and not the replica's
            execution.faults.raised(error)
            return failure(error)

    async def _run_async(self, execution: Execution, job: Job) -> Outputs | Failure:
        try:
            inputs, context = self._begin(execution, job)
            started = time.perf_counter()
            arrays = await execution.run_async(inputs, context)
            return self._outputs(execution, job, arrays, time.perf_counter() - started)
        except BaseException as error:  # as above, CancelledError too
            execution.faults.raised(error)
            return failure(error)

    # ------------------------------------------------------------------ on the loop

    def _prepared(self, phases: Phases) -> None:
        if self.state in OVER:
            return
        self.load_seconds, self.warmup_seconds = phases.load_seconds, phases.warmup_seconds
        self._move("loaded")
        self._move("warmed")
        if self.state == "ready":
            description: Description = phases.execution.description
            self.room = self._room(phases.execution)
            self._listener.ready(self, description)

    def _room(self, execution: Execution) -> int:
        return execution.traits.slots

    def _refused(self, error: BaseException) -> None:
        self.refused = is_decision(error)
        self._over(f"the model could not be loaded: {why_not_loaded(error)}", frozenset())

    def _settle(self, batch: int, outcome: Outputs | Failure) -> None:
        """Tell how a batch went; nobody hears that of a replica which is over."""
        if self.state in OVER:
            return
        for batches in (self._running, self._begun, self._cancelled):
            batches.discard(batch)
        if isinstance(outcome, Outputs):
            self._listener.answered(self, batch, outcome)
        else:
            self._listener.failed(self, batch, Cause(outcome.cause), error_of(Cause(outcome.cause), outcome.message))

    def _abandoned(self, reason: str) -> None:
        self._over(reason, frozenset(self._begun))
