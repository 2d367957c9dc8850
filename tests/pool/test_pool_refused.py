"""Models that cannot be served, with real replicas: what a decision stands against is not tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loops import run
from maitred.events import Event, ReplicaChanged
from maitred.model.description import Description
from maitred.model.manifest import FILE
from maitred.model.pack import pack
from maitred.model.source import Source
from maitred.model.trust import Trust
from maitred.pool.build import build_pool
from maitred.pool.settings import SupervisorSettings
from maitred.replica.replica import ReplicaSettings
from maitred.scheduling.dispatcher import DispatchSettings

CODE = """
import os, maitred
class Add(maitred.Model):
    signature = maitred.Signature(inputs={"x": "float32[n]"}, outputs={"x": "float32[n]"})
    def predict(self, batch):
        return {"x": batch["x"] + 1}
class Raises(Add):
    def load(self, path, device):
        raise ValueError("no weights")
class Crashes(Add):
    def load(self, path, device):
        os._exit(3)
"""


class Told:
    """What is heard of one pool until its model has failed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failed: list[str] = []
        self.over = asyncio.Event()

    def changed(self, state: str, reason: str, description: Description | None) -> None:
        if state != "loading":
            self.failed.append(reason if state == "failed" else state)
            self.over.set()

    def starts(self) -> int:
        return sum(isinstance(event, ReplicaChanged) and event.state == "loading" for event in self.events)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, ReplicaChanged) and event.state == "lost"]


def fail(source: Source, kind: Any) -> Told:
    async def play() -> Told:
        told = Told()
        pool = build_pool(
            source, "1", kind, DispatchSettings(), SupervisorSettings(restart_seconds=0.0), ReplicaSettings(),
            told, asyncio.get_running_loop(), told.events.append,
        )  # fmt: skip
        pool.launch()
        await asyncio.wait_for(told.over.wait(), 30)
        await pool.drain(0.0)
        return told

    return run(play())


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "code.py"
    file.write_text(CODE)
    return file


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_file_that_was_changed_is_read_once(kind: str, code: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack(f"{code}:Add", packed, example={"x": [1.0]})
    member = next(file for file in packed.rglob("*.py"))
    member.chmod(0o644)
    member.write_bytes(member.read_bytes().replace(b"+ 1", b"+ 2"))
    told = fail(Source(str(packed), "add", trust=Trust("the test", "it is the test's own")), kind)
    assert told.starts() == 1 and told.reasons() == [""]
    [reason] = told.failed
    assert "not as it was packed" in reason


def test_code_that_nobody_trusts_is_asked_for_once(code: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack(f"{code}:Add", packed, example={"x": [1.0]})
    (packed / FILE).touch()
    told = fail(Source(str(packed), "add", trust_file=str(tmp_path / "nobody.toml")), "process")
    assert told.starts() == 1 and len(told.failed) == 1


@pytest.mark.parametrize("kind", ["process", "inline"])
@pytest.mark.parametrize(("name", "starts"), [("Raises", 3), ("Missing", 3)])
def test_what_code_runs_into_is_tried_again(name: str, starts: int, kind: str, code: Path) -> None:
    told = fail(Source(f"{code}:{name}", "model"), kind)
    assert told.starts() == starts and len(told.failed) == 1
    assert told.reasons() == [*told.failed * (starts - 1), ""], "the last one's is told as the model's"


def test_a_signature_that_is_none_is_read_once(code: Path) -> None:
    code.write_text(CODE.replace("float32[n]", "float99[n]"))
    told = fail(Source(f"{code}:Add", "model"), "process")
    assert told.starts() == 1
    [reason] = told.failed
    assert "float99" in reason


def test_a_crash_is_tried_again(code: Path) -> None:
    told = fail(Source(f"{code}:Crashes", "model"), "process")
    assert told.starts() == 3 and told.failed == ["its process exited with code 3"]
