"""Which endpoint a name leads to: one map, swapped whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from maitred.endpoint import Endpoint
from maitred.errors import NoReplica, Unknown
from maitred.spelling import did_you_mean

if TYPE_CHECKING:
    from maitred.model.description import Description
    from maitred.model.signature import Signature
    from maitred.replica.memory import Arena

State = Literal["loading", "ready", "failed", "draining"]


class Served:
    """A model under the name that callers use: its endpoint, and what is known about it."""

    __slots__ = ("name", "version", "endpoint", "state", "reason", "description", "place", "noticed", "memory")

    endpoint: Endpoint

    def __init__(self, name: str, version: str, description: Description | None = None) -> None:
        """`endpoint` is set by who builds it, before the router shows this to anyone."""
        self.name = name
        self.version = version
        self.state: State = "loading"
        self.reason = ""
        """Why it is not ready, for people; empty when it is."""
        self.description = description
        """None until it is known: code has to run before a Python model can say what it takes."""
        self.place = ""
        """Where it runs, and why there, for its operator; empty until that is settled."""
        self.memory: Callable[[], Arena | None] = lambda: None
        """What its replicas can read as it lies there; None where they run in this process."""
        self.noticed: Callable[[], None] = lambda: None
        """Called after each change of state."""

    def changed(self, state: State, reason: str, description: Description | None) -> None:
        """The pool behind this name has become something else."""
        self.state, self.reason = state, reason
        if description is not None:
            self.description = description
        self.noticed()

    @property
    def signature(self) -> Signature:
        """Raises NoReplica while the model has not told it yet."""
        return self.known().signature

    def known(self) -> Description:
        """What is known about the model. Raises NoReplica while it has not told it yet."""
        if self.description is None:
            raise NoReplica(f"model '{self.name}' is {self.state}" + (f": {self.reason}" if self.reason else ""))
        return self.description


class Router:
    """All deployments by name."""

    def __init__(self) -> None:
        self.names: Mapping[str, Served] = {}
        self.draining = False
        self._kept: list[dict[Any, Any]] = []

    def keep(self, routes: dict[Any, Any]) -> None:
        """Clear `routes`, which were compiled from names, with every swap."""
        self._kept.append(routes)

    def swap(self, names: Mapping[str, Served]) -> None:
        """Replace the whole map: a request sees the old one or the new one, never a mixture."""
        self.names = dict(names)
        for routes in self._kept:
            routes.clear()

    def get(self, name: str, version: str | None = None) -> Served:
        """The model of this name (and version). Raises Unknown."""
        served = self.names.get(name)
        if served is None:
            raise Unknown(
                f"there is no model named {_shown(name)}; GET /v2/models lists the models that are served"
                f"{did_you_mean(name, self.names)}"
            )
        if version is not None and version != served.version:
            raise Unknown(f"model '{served.name}' has no version {_shown(version)}; version {served.version} is served")
        return served

    def all(self) -> list[Served]:
        return list(self.names.values())

    def ready(self) -> bool:
        """Whether every configured model has loaded and warmed up. Never true for a server without models."""
        return bool(self.names) and not self.draining and all(s.state == "ready" for s in self.names.values())


def _shown(text: str) -> str:
    return repr(text if len(text) <= 128 else text[:125] + "...")
