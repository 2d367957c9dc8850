"""How far one request walks: the functions of maitred that a warm V2 JSON request enters, in all processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from house import settings, standing, v2

import maitred
from loops import run

HOUSE = str(Path(maitred.__file__).parent)
MOST_FUNCTIONS = 69
MOST_FILES = 25
MOST_LINES = 60

BY_THE_CLOCK = {("/assemble.py", "House._look"), ("/http/server.py", "Server._tick")}
"""What a timer may call while the request is on its way."""

Step = tuple[str, str, int]


def test_a_request_walks_through_few_functions_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace.json"
    monkeypatch.setenv("TRACE", str(trace))

    async def play() -> set[Step]:
        async with standing(settings(tmp_path, {"traced": "Traced"})) as house:
            caller = house.caller()
            body = v2("x", "FP32", [1.0, 2.0, 3.0, 4.0], 4, id="walk")
            for _ in range(5):
                await caller.ask("POST", "/v2/models/traced/infer", body)
            server: set[Step] = set()

            def enter(frame: FrameType, event: str, argument: Any) -> None:
                code = frame.f_code
                if event == "call" and code.co_filename.startswith(HOUSE):
                    server.add((code.co_filename[len(HOUSE) :], code.co_qualname, code.co_firstlineno))

            sys.setprofile(enter)
            try:
                reply = await caller.ask("POST", "/v2/models/traced/infer", body)
            finally:
                sys.setprofile(None)
            assert reply.status == 200
            return server

    server = run(play())
    child = {tuple(step) for step in json.loads(trace.read_text())}
    assert any(step[0] == "/replica/child.py" for step in child), "the replica's process is counted too"
    steps = {step for step in server | child if step[:2] not in BY_THE_CLOCK}
    files = {step[0] for step in steps}
    walked = "\n".join(sorted(f"{module} {name}" for module, name, _ in steps))
    assert len(steps) <= MOST_FUNCTIONS, f"{len(steps)} functions:\n{walked}"
    assert len(files) <= MOST_FILES, f"{len(files)} files: {sorted(files)}"
