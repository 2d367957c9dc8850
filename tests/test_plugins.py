"""Extension points: ours by name, others by entry point, checked before they are used."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from maitred.plugins import ExtensionPoint, PluginError


class Tool:
    made = 0

    def __init__(self) -> None:
        Tool.made += 1


class NoTool:
    pass


def _broken() -> None:
    raise RuntimeError("broken")


def _check(name: str, found: Any) -> Tool:
    made = found()
    if not isinstance(made, Tool):
        raise TypeError("it is no tool")
    return made


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> ExtensionPoint[Tool]:
    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        assert group == "some.tools"
        others = {"theirs": "test_plugins:Tool", "ours": "test_plugins:NoTool", "wrong": "test_plugins:NoTool",
                  "gone": "no_such_module:Tool", "broken": "test_plugins:_broken"}  # fmt: skip
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in others.items()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    return ExtensionPoint("some.tools", {"ours": "test_plugins:Tool"}, _check)


def test_names_are_known_before_anything_is_imported(point: ExtensionPoint[Tool]) -> None:
    assert point.names() == ("ours", "broken", "gone", "theirs", "wrong")


def test_ours_cannot_be_replaced_and_each_is_made_once(point: ExtensionPoint[Tool]) -> None:
    tool = point.open("ours")
    assert type(tool).__name__ == "Tool"
    assert point.open("ours") is tool
    assert point.open("theirs") is not tool


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", r"nothing named .nothing.; there are: ours, broken, gone, theirs, wrong"),
        ("wrong", "it is no tool"),
        ("gone", "no_such_module"),
        ("broken", "broken"),
    ],
)
def test_what_cannot_be_used_says_why(point: ExtensionPoint[Tool], name: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        point.open(name)
