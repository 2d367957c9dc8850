"""A pool whose kind of copies nobody has set: starts in a process, moves where the rule says, and back if it must."""

from __future__ import annotations

from collections.abc import Callable

from maitred.errors import MaitredError
from maitred.messages import Outputs
from maitred.model.description import Description
from maitred.pool.kinds import Choice, Overstays, choose, facts_of
from maitred.pool.pool import Pool, PoolState, PoolWatcher
from maitred.replica.memory import Arena
from maitred.replica.replica import Cause, Listener, Replica

Make = Callable[[int, Listener], Replica]


class Auto:
    """Stands between a pool and its watcher: the first description that a process gives of its model decides.

    A model is moved into the server at most once, and back at most once: it is then known to be too slow for it.
    """

    def __init__(
        self,
        watcher: PoolWatcher,
        placed: Callable[[Choice], None],
        process: Make,
        inline: Make,
        copies: int,
        device: str,
    ) -> None:
        """`placed` hears where the model runs, each time that this has been settled."""
        self.pool: Pool
        self._watcher = watcher
        self._placed = placed
        self._process = process
        self._inline = inline
        self._copies = copies
        self._device = device
        self._choice: Choice | None = None
        self._memory: Arena | None = None
        self._going_back = False

    def changed(self, state: PoolState, reason: str, description: Description | None) -> None:
        self._watcher.changed(state, reason, description)
        if description is None or self._choice is not None:
            return
        choice = self._choice = choose(facts_of(description, self._copies, self._device))
        if choice.kind == "inline":
            self._memory, self.pool.memory = self.pool.memory, None  # a copy in this process reads what callers sent
            self.pool.move(lambda id: self._inline(id, _Watched(self.pool, self._back)), self._moved)
        else:
            self._placed(choice)

    def _moved(self, trouble: str) -> None:
        assert self._choice is not None
        if trouble:
            self.pool.memory = self._memory
            self._placed(Choice("process", f"it could not be loaded into the server: {trouble}"))
        else:
            self._placed(self._choice)

    def _back(self, why: str) -> None:
        """The copy in the server is too slow for it: a process takes over once it is ready."""
        if self._going_back:
            return
        self._going_back = True

        def moved(trouble: str) -> None:
            if trouble:
                self._placed(Choice("inline", f"{why}, and no process could be started: {trouble}"))
            else:
                self.pool.memory = self._memory
                self._placed(Choice("process", why))

        self.pool.move(lambda id: self._process(id, self.pool), moved)


class _Watched:
    """Tells the pool what a copy in the server tells, and looks at how long its batches take."""

    def __init__(self, pool: Pool, overstayed: Callable[[str], None]) -> None:
        self._pool = pool
        self._overstayed = overstayed
        self._watch = Overstays()

    def ready(self, replica: Replica, description: Description) -> None:
        self._pool.ready(replica, description)

    def answered(self, replica: Replica, batch_id: int, outputs: Outputs) -> None:
        seconds = outputs.model_seconds
        self._pool.answered(replica, batch_id, outputs)
        if self._watch.ran(seconds):
            self._overstayed(self._watch.reason)

    def failed(self, replica: Replica, batch_id: int, cause: Cause, error: MaitredError) -> None:
        self._pool.failed(replica, batch_id, cause, error)

    def lost(self, replica: Replica, reason: str, started: frozenset[int]) -> None:
        self._pool.lost(replica, reason, started)
