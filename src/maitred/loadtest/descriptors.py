"""Room for connections: as many open descriptors as this process may have."""

from __future__ import annotations

import contextlib
import resource


def allow(connections: int) -> None:
    """Raise this process's own limit as far as `connections` need and the system lets it.

    Where that is not enough, connections that cannot be made are errors of the run, and say so.
    """
    needed = connections + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with contextlib.suppress(OSError, ValueError):  # the system has a bound of its own below the one it tells
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
