"""The named extension points, and how one is found, checked and opened."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class PluginError(Exception):
    """An extension that does not exist, cannot be imported or is not what its point asks for."""


class ExtensionPoint(Generic[T]):
    """A set of named things of one kind: ours by name, others by an entry point of `group`.

    Nothing is imported before it is opened, an opened extension is made once, and ours cannot be replaced. `check`
    turns what was found into the thing itself (calling it, comparing it with a protocol) and raises `TypeError` or
    `ValueError` with a reason.
    """

    def __init__(self, group: str, ours: Mapping[str, str], check: Callable[[str, object], T]) -> None:
        self.group = group
        self._ours = dict(ours)
        self._check = check
        self._opened: dict[str, T] = {}

    def names(self) -> tuple[str, ...]:
        """All names, ours first."""
        return (*self._ours, *sorted(self._others()))

    def open(self, name: str) -> T:
        """The extension of that name. Raises `PluginError` saying what is wrong and which names there are."""
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def _open(self, name: str) -> T:
        target = self._ours.get(name) or self._others().get(name)
        if target is None:
            known = ", ".join(self.names())
            raise PluginError(f"{self.group} has nothing named {name!r}; there are: {known}")
        try:
            return self._check(name, _import(target))
        except Exception as error:  # code of other people, whatever it raises
            raise PluginError(f"{self.group}: {name} ({target}) cannot be used: {error}") from error

    def _others(self) -> dict[str, str]:
        found = importlib.metadata.entry_points(group=self.group)
        return {point.name: point.value for point in found if point.name not in self._ours}


def _import(target: str) -> object:
    """What `package.module:attribute` names."""
    module, _, attribute = target.partition(":")
    found: object = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found
