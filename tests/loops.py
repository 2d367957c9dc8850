"""The event loop that the suite runs on, MAITRED_LOOP=uvloop (the default) or asyncio; what need not run on both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

KINDS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
KIND = os.environ.get("MAITRED_LOOP", "uvloop")
_make = KINDS[KIND]

_TESTS = Path(__file__).parent
_WITHOUT = frozenset(
    _TESTS / name
    for name in (
        "cli", "deployment", "observe", "scheduling", "settings", "wire",
        *(f"http/test_http_{name}.py" for name in (
            "coding", "fuzz", "heads", "large", "large_crowd", "limits", "one", "oracle", "port", "shapes",
        )),
        *(f"gateway/test_{name}.py" for name in (
            "dear_bodies", "did_you_mean", "gateway_bits", "gateway_bodies", "gateway_fuzz", "gateway_paths",
            "gateway_terms", "missing_and_times", "plain", "rest", "tritonclient", "v1", "v2",
        )),
        *(f"test_{name}.py" for name in ("bench", "house", "layers", "plugins", "spelling")),
    )
)  # fmt: skip
"""Folders and files of tests that make no loop: they say the same on every one."""
_OF_MODELS = frozenset(
    _TESTS / name for name in ("model", "story/test_artifact_cases.py", "story/test_flavors.py", "test_examples.py")
)
"""Those that are about models and their files: what they need of a loop or a system, other tests ask of it too."""


def is_without(path: Path) -> bool:
    """Whether the tests of a file have to do without a loop."""
    return not _WITHOUT.isdisjoint((path, *path.parents))


def is_spared(path: Path, portable: bool) -> bool:
    """Whether a file or folder of tests would only repeat what it says on uvloop, with all that the system offers."""
    return (KIND != "uvloop" and path in _WITHOUT) or ((KIND != "uvloop" or portable) and path in _OF_MODELS)


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of the chosen kind. Raises RuntimeError in a file of tests that is said to make none."""
    if forbidden:
        raise RuntimeError(f"{forbidden} is not run on asyncio's loop: take it out of `_WITHOUT` in tests/loops.py")
    return _make()


forbidden = ""
"""The file whose tests run now, if it has to do without."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a new loop of the chosen kind."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)


def use_everywhere() -> None:
    """Have `asyncio.run` and `asyncio.new_event_loop` give the chosen kind too, so that no test escapes the choice."""
    asyncio.events.new_event_loop = new_loop
    asyncio.new_event_loop = new_loop
