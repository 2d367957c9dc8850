"""A copy of a model as its pool sees it: what it can be asked, what it tells, and how far along it is."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from maitred.errors import MaitredError
from maitred.messages import Outputs, Request
from maitred.model.description import Description
from maitred.replica.lifecycle import OVER, Move, State, after
from maitred.scheduling.recovery import Cause as Cause


class Listener(Protocol):
    """Whoever gives a replica its work. Called on the loop, never from inside a call to the replica; must not raise."""

    def ready(self, replica: Replica, description: Description) -> None:
        """It has loaded and warmed up, and has `replica.room`."""
        ...

    def answered(self, replica: Replica, batch_id: int, outputs: Outputs) -> None:
        """A batch's answer. Arrays in it are views that die when this returns."""
        ...

    def failed(self, replica: Replica, batch_id: int, cause: Cause, error: MaitredError) -> None:
        """The model failed on a batch and can go on."""
        ...

    def lost(self, replica: Replica, reason: str, started: frozenset[int]) -> None:
        """It is over, asked for or not: the last call about this replica, and the only one of its kind.

        `started`: the batches that it had begun and not answered; other ones that it was given never ran.
        """
        ...


class Replica(Protocol):
    """One loaded copy. Belongs to one event loop; none of its methods wait or raise for what the model does."""

    id: int
    state: State
    room: int
    """Batches that it takes at once; 0 until it is ready."""
    pid: int | None
    """Its own process; None where it lives in this one."""
    load_seconds: float
    warmup_seconds: float
    refused: bool
    """Whether it was lost because its model was refused for what trying again does not change."""

    def launch(self) -> None:
        """Begin to load; `ready` or `lost` follows. Raises IllegalMove the second time."""
        ...

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        """Run one batch. Only when ready and while fewer than `room` run; requests have equal groups."""
        ...

    def cancel(self, batch_id: int) -> None:
        """Nobody waits for this batch any more: tells a model that asks. The batch is still answered."""
        ...

    def stop(self) -> None:
        """End what runs, then be gone; with force where that takes longer than the settings allow."""
        ...

    def kill(self, reason: str = "") -> None:
        """Be gone at once. A thread cannot be killed: it is left alone and never heard again."""
        ...

    def frozen(self) -> bool:
        """Whether its process is stopped from outside."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How one copy lives."""

    device: str = "cpu"
    max_batch_rows: int = 64
    """The largest batch that it will be given: warm-up goes up to it."""
    threads: int | None = None
    """Threads of the numeric libraries (OpenMP, BLAS); None: 1, unless the environment says otherwise."""
    measure: bool = False
    """Whether a process times its model once it is warm, where a native library does the work: see `timings`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the child's environment, e.g. CUDA_VISIBLE_DEVICES."""
    load_seconds: float = 600.0
    """A copy that is not ready after this time is killed."""
    stop_seconds: float = 5.0
    """From `stop` to the first signal, and from that to the last one."""
    segment_bytes: int = 1 << 20
    """Size of a pool's first input segment."""
    output_bytes: int = 1 << 18
    """Size of a process's first output segment."""
    limit_bytes: int = 8 << 30
    """Bound on the bytes of batches in flight, each way."""


class Life(ABC):
    """The state of a replica and its one farewell: the base of all kinds."""

    def __init__(self, id: int, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self.id = id
        self.state: State = "new"
        self.room = 0
        self.pid: int | None = None
        self.load_seconds = 0.0
        self.warmup_seconds = 0.0
        self.refused = False
        self._loop = loop
        self._listener = listener

    @abstractmethod
    def launch(self) -> None: ...

    @abstractmethod
    def run(self, batch_id: int, requests: list[Request], rows: int) -> None: ...

    @abstractmethod
    def cancel(self, batch_id: int) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def kill(self, reason: str = "") -> None: ...

    @abstractmethod
    def frozen(self) -> bool: ...

    def _move(self, move: Move) -> None:
        self.state = after(self.state, move)

    def _asked_to_stop(self) -> State | None:
        """Begin to stop: the state before, or None where there is nothing (more) to do."""
        before = self.state
        if before in OVER or before == "draining":
            return None
        self._move("stop")
        if before == "new":
            self._loop.call_soon(self._listener.lost, self, "stopped", frozenset())
            return None
        return before

    def _over(self, reason: str, started: frozenset[int]) -> None:
        """Say that it is gone, once."""
        if self.state in OVER:
            return
        self.room = 0
        self._move("ended" if self.state == "draining" else "lost")
        self._listener.lost(self, reason, started)
