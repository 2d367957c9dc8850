"""What the gateway's owner decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    deadline_seconds: float = 30.0
    """For callers who state no deadline, counted from the last byte of the request."""

    deadlines: Mapping[str, float] = field(default_factory=dict)
    """The same, in seconds, for single models by name."""

    repository_control: bool = False
    """Whether models may be loaded and unloaded on the data port (`--allow-repository-control`)."""

    def deadline_of(self, model: str) -> float:
        return self.deadlines.get(model, self.deadline_seconds)
