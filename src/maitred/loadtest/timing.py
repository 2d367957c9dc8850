"""What a server tells of its own time in the header Server-Timing: `queue;dur=0.41, model;dur=0.03`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_METRIC: Final = re.compile(
    rb"""\s*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,40})\s*;(?:[^,]*;)?\s*dur\s*=\s*"?([0-9]{1,12}(?:\.[0-9]{0,12})?)(?![0-9.])"?"""
)


def durations(value: bytes) -> Iterator[tuple[str, int]]:
    """Name and nanoseconds of each metric that has a duration. What is not understood is left out."""
    for part in value.split(b","):
        found = _METRIC.match(part)
        if found is not None:
            yield found[1].decode("ascii"), round(float(found[2]) * 1e6)
