"""How many threads one run of a numeric library may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from maitred.model.refusals import CannotLoad

VARIABLE: Final = "MAITRED_THREADS"
"""What a replica's process is told; libraries that read variables of their own (OpenMP, BLAS) get theirs there too."""
MAX_THREADS: Final = 1024
"""As in `settings.py`, so that whatever a replica may be told is a number of threads here too."""


def threads_of(options: Mapping[str, Any]) -> int:
    """The option `threads`, else what this process was told, else 1. Raises `CannotLoad` for what is no such count."""
    stated = os.environ.get(VARIABLE, "")
    threads = options.get("threads", int(stated) if stated.isdecimal() else 1)
    if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
        raise CannotLoad(f"threads must be a whole number from 1 to {MAX_THREADS}")
    return threads
