"""The event loop that the suite runs on: MAITRED_LOOP=uvloop (the default) or asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

KINDS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}
KIND = os.environ.get("MAITRED_LOOP", "uvloop")
new_loop = KINDS[KIND]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a new loop of the chosen kind."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(coroutine)


def use_everywhere() -> None:
    """Have `asyncio.run` and `asyncio.new_event_loop` give the chosen kind too, so that no test escapes the choice."""
    asyncio.events.new_event_loop = new_loop
    asyncio.new_event_loop = new_loop
