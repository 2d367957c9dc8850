"""Builds a pool from settings: which kind of replica it has, and where their memory lies."""

from __future__ import annotations

import asyncio
from typing import Literal

from maitred.clock import Clock, monotonic
from maitred.events import Listener
from maitred.model.source import Source
from maitred.pool.pool import Pool, PoolWatcher
from maitred.pool.settings import SupervisorSettings
from maitred.replica.inline import InlineReplica
from maitred.replica.memory import Arena
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import Replica, ReplicaSettings
from maitred.replica.thread import ThreadReplica
from maitred.scheduling.dispatcher import DispatchSettings

Kind = Literal["process", "thread", "inline"]


def build_pool(
    source: Source,
    version: str,
    kind: Kind,
    dispatch: DispatchSettings,
    supervise: SupervisorSettings,
    replica: ReplicaSettings,
    watcher: PoolWatcher,
    loop: asyncio.AbstractEventLoop,
    listener: Listener,
    clock: Clock = monotonic,
) -> Pool:
    """A pool of `supervise.replicas` copies of `source`, not started yet."""
    arena = Arena(False, replica.segment_bytes, replica.limit_bytes) if kind == "process" else None

    def make(id: int, pool: Pool) -> Replica:
        if kind == "process":
            return ProcessReplica(id, source, replica, loop, pool, arena)
        if kind == "thread":
            return ThreadReplica(id, source, replica, loop, pool)
        return InlineReplica(id, source, replica, loop, pool)

    close = None if arena is None else arena.close
    pool = Pool(source.name, version, dispatch, supervise, make, watcher, loop, clock, listener, close=close)
    pool.memory = arena
    return pool
