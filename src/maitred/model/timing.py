"""How long a model that is warm takes for a batch, measured where nobody waits for it."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Final

from maitred.clock import Clock, monotonic
from maitred.model.description import Timing
from maitred.model.loading import Loaded, run, warmup_batches
from maitred.model.predictor import Arrays, rows_of

_CALLS: Final = 6
"""In a row: the slowest of them is what the model does by itself now and then."""
_ROUNDS: Final = 10
"""Of these the calmest counts: what else the machine does only ever adds time."""
_ENOUGH_SECONDS: Final = 0.02
"""No round begins after this time: whoever is slow is known to be."""
_HOPELESS_SECONDS: Final = 1e-3
"""Who takes this long with the least rows is not asked about the most."""


def timed(loaded: Loaded, max_batch_rows: int, clock: Clock = monotonic) -> tuple[Timing, ...]:
    """Seconds of a batch with the least and with the most rows of those that the model was warmed up with.

    None for a model that answers later than it returns, or refuses rows made up for it.
    """
    if loaded.predictor.traits.asynchronous:
        return ()
    ends: list[Arrays] = []
    for inputs in warmup_batches(loaded, max_batch_rows):
        ends[1:] = [inputs]
    timings: dict[int, Timing] = {}
    for inputs in ends:
        rows = rows_of(loaded.predictor.signature, inputs)
        try:
            timings[rows] = _timing(rows, functools.partial(run, loaded.predictor, inputs), clock)
        except Exception:  # what the model's own code raises was told of when it was warmed up
            return ()
        if timings[rows].median_seconds > _HOPELESS_SECONDS:
            break
    return tuple(timings.values())


def _timing(rows: int, call: Callable[[], object], clock: Clock) -> Timing:
    begun = clock()
    call()
    seconds = [clock() - begun]
    if seconds[0] > _ENOUGH_SECONDS:
        return Timing(rows, seconds[0], seconds[0])
    seconds.clear()
    slowest: list[float] = []
    for _ in range(_ROUNDS):
        for _ in range(_CALLS):
            started = clock()
            call()
            seconds.append(clock() - started)
        slowest.append(max(seconds[-_CALLS:]))
        if clock() - begun > _ENOUGH_SECONDS:
            break
    return Timing(rows, statistics.median(seconds), min(slowest))
