"""How a pool keeps its replicas alive."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Bounds for starting, watching and replacing replicas."""

    replicas: int = 1
    max_loads_at_once: int = 2
    """Loading often takes more memory than serving: copies are started this many at a time."""
    max_execution_seconds: float = 60.0
    """A batch that runs longer is taken for hung and its replica is replaced."""
    frozen_seconds: float = 5.0
    """A replica whose process was stopped this long in the middle of a batch is replaced."""
    restart_seconds: float = 0.1
    """First pause before a lost replica is started again; doubles with each loss that follows without an answer."""
    max_restart_seconds: float = 10.0
    max_fruitless_deaths: int = 5
    """So many losses of one replica within `fruitless_seconds`, without an answered batch, and the model has failed."""
    fruitless_seconds: float = 60.0
    max_load_attempts: int = 3
    """So many failed loads in a row, and the model has failed; a load that was refused by decision is not repeated."""
    stop_seconds: float = 5.0
    """How long a replica that was told to stop may take before it is killed."""
