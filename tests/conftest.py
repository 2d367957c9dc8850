"""What every test stands on: the chosen event loop, deterministic properties, and no silent skips in CI."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import loops

PORTABLE = bool(os.environ.get("MAITRED_PORTABLE"))
CI = os.environ.get("CI", "").lower() in {"1", "true"}

hypothesis.settings.register_profile("local", deadline=None, max_examples=60)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=100, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if CI else "local")
loops.use_everywhere()


@pytest.fixture
def run() -> Callable[..., Any]:
    """`run(coroutine)` on a new event loop of the kind that MAITRED_LOOP names."""
    return loops.run


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """What earlier files have imported and left is not looked at by every collection of this one's."""
    gc.collect()
    gc.freeze()


_LARGE = {"flavors", "story"}
"""Folders whose tests start processes and import frameworks, some of which take 20 seconds on a busy machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _LARGE & set(item.path.parts) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(240))


def pytest_report_header() -> str:
    return f"event loop: {loops.KIND}{' portable' if PORTABLE else ''}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return loops.is_spared(collection_path, PORTABLE) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    loops.forbidden = item.path.name if loops.is_without(item.path) else ""
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _no_skip((yield))


def _no_skip(report: Any) -> Any:
    """In CI a skipped test is a failed one: what is not run there is run nowhere."""
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
