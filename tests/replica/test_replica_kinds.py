"""Every kind of replica against the contract suite."""

from __future__ import annotations

import asyncio
from pathlib import Path

from maitred.model.source import Source
from maitred.replica.inline import InlineReplica
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import Listener, Replica, ReplicaSettings
from maitred.replica.thread import ThreadReplica
from maitred.testing.replicas import ReplicaContract


class TestProcess(ReplicaContract):
    def make(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
    ) -> Replica:
        return ProcessReplica(id, source, settings, loop, listener)


class TestThread(ReplicaContract):
    def make(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
    ) -> Replica:
        return ThreadReplica(id, source, settings, loop, listener)


class TestInline(ReplicaContract):
    def make(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
    ) -> Replica:
        return InlineReplica(id, source, settings, loop, listener)

    def place(self, path: Path) -> Path | None:
        return None
