"""What a plain work-conserving batcher would do with Poisson arrivals, if it and its clients cost nothing.

A free replica takes at once whatever waits, at most 64 rows. The latencies of this simulation are what a server under
the same load is compared with.
"""

from __future__ import annotations

import random

import models

MOST_ROWS = 64
ARRIVALS = 60_000


def work_conserving(rate: float) -> tuple[float, float]:
    """p50 and p99 in milliseconds for the `curve` model at `rate` requests a second."""
    rng = random.Random(9)
    clock, arrivals = 0.0, []
    for _ in range(ARRIVALS):
        clock += rng.expovariate(rate)
        arrivals.append(clock)
    times: list[float] = []
    free, at = 0.0, 0
    while at < len(arrivals):
        start = max(free, arrivals[at])
        stop = at
        while stop < len(arrivals) and stop - at < MOST_ROWS and arrivals[stop] <= start:
            stop += 1
        free = start + models.CURVE_SECONDS + models.CURVE_ROW_SECONDS * (stop - at)
        times += [free - arrival for arrival in arrivals[at:stop]]
        at = stop
    times.sort()
    return times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3
