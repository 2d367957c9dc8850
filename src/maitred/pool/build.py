"""Builds a pool from settings: which kind of replica it has, and where their memory lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import msgspec

from maitred.clock import Clock, monotonic
from maitred.events import Listener as EventListener
from maitred.model.source import Source
from maitred.pool.auto import Auto
from maitred.pool.kinds import Choice
from maitred.pool.kinds import Kind as Kind
from maitred.pool.pool import Pool, PoolWatcher
from maitred.pool.settings import SupervisorSettings
from maitred.replica.inline import InlineReplica
from maitred.replica.memory import Arena
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import Listener, Replica, ReplicaSettings
from maitred.replica.thread import ThreadReplica
from maitred.scheduling.dispatcher import DispatchSettings


def _nowhere(choice: Choice) -> None:
    """For whoever has chosen the kind and need not be told."""


def build_pool(
    source: Source,
    version: str,
    kind: Kind | Literal["auto"],
    dispatch: DispatchSettings,
    supervise: SupervisorSettings,
    replica: ReplicaSettings,
    watcher: PoolWatcher,
    loop: asyncio.AbstractEventLoop,
    listener: EventListener,
    clock: Clock = monotonic,
    placed: Callable[[Choice], None] = _nowhere,
) -> Pool:
    """A pool of `supervise.replicas` copies of `source`, not started yet.

    With `auto` it starts with processes, and `placed` hears where the model stays: see `kinds.py`.
    """
    apart = kind in ("process", "auto")
    arena = Arena(False, replica.segment_bytes, replica.limit_bytes) if apart else None
    timed = replace(replica, measure=kind == "auto")

    def process(id: int, told: Listener) -> Replica:
        return ProcessReplica(id, source, timed, loop, told, arena)

    def inline(id: int, told: Listener) -> Replica:
        # One thread has microseconds of work for itself, and would wake others of the server's process in vain.
        return InlineReplica(id, _with_threads(source, 1 if kind == "auto" else replica.threads), replica, loop, told)

    def make(id: int, pool: Pool) -> Replica:
        if apart:
            return process(id, pool)
        if kind == "thread":
            return ThreadReplica(id, _with_threads(source, replica.threads), replica, loop, pool)
        return inline(id, pool)

    close = None if arena is None else arena.close
    name = source.name
    if kind != "auto":
        placed(Choice(kind, "`replicas.kind` says so"))
        pool = Pool(name, version, dispatch, supervise, make, watcher, loop, clock, listener, close=close)
    else:
        auto = Auto(watcher, placed, process, inline, supervise.replicas, replica.device)
        pool = auto.pool = Pool(name, version, dispatch, supervise, make, auto, loop, clock, listener, close=close)
    pool.memory = arena
    return pool


def _with_threads(source: Source, threads: int | None) -> Source:
    """For a copy in this process: a child is told by its environment, here only the model's own library may be."""
    if threads is None:
        return source
    return msgspec.structs.replace(source, options={"threads": threads, **source.options})
