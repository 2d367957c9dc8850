"""Counts of durations in buckets whose width grows with them: three significant digits from a nanosecond to an hour.

The layout is that of the HDR histogram: durations below 2048 ns have a bucket each; above, each doubling is cut into
1024 equal buckets, so a bucket is at most 1/1024 as wide as what lies in it, and its middle is at most 0.05 % away.
Adding two histograms loses nothing, which percentiles of percentiles would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

_DIGITS: Final = 10
_TOP: Final = 42
LONGEST: Final = (1 << _TOP) - 1
"""Nanoseconds; longer durations (73 minutes) share the last bucket, and only `most` tells them apart."""
_SIZE: Final = (_TOP - _DIGITS + 1) << _DIGITS


class Packed(msgspec.Struct, array_like=True, gc=False):
    """A histogram that travels: bucket and count for each bucket that has any, and what is known exactly."""

    buckets: list[int]
    counts: list[int]
    total: int
    least: int
    most: int


class Histogram:
    """Durations in whole nanoseconds, 0 or more."""

    __slots__ = ("_counts", "count", "total", "least", "most")

    def __init__(self) -> None:
        self._counts = np.zeros(_SIZE, np.int64)
        self.count = 0
        self.total = 0
        """The sum of all, exact."""
        self.least = LONGEST
        self.most = 0
        """The longest one, exact; 0 where there is none."""

    def record(self, durations: Sequence[int]) -> None:
        """Add durations; negative ones count as 0."""
        if not durations:
            return
        values = np.maximum(np.array(durations, np.int64), 0)
        self.count += len(values)
        self.total += int(values.sum())
        self.least = min(self.least, int(values.min()))
        self.most = max(self.most, int(values.max()))
        self._counts += np.bincount(_buckets(values), minlength=_SIZE)

    def add(self, other: Histogram) -> None:
        """Add what another one holds."""
        self._counts += other._counts
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)

    def percentile(self, share: float) -> float:
        """The duration that `share` (0 to 1) of all do not exceed, by rank; NaN where there is none."""
        return next(self.percentiles((share,)))

    def percentiles(self, shares: Iterable[float]) -> Iterator[float]:
        """As `percentile`, for each."""
        ranks = np.cumsum(self._counts)
        for share in shares:
            if not self.count:
                yield math.nan
                continue
            # the subtraction keeps 0.99 of 100 at the 99th, where the product is a hair more
            rank = min(self.count, max(1, math.ceil(share * self.count - 1e-9 * self.count)))
            at = int(np.searchsorted(ranks, rank))
            yield float(self.most) if rank == self.count else min(max(_middle(at), self.least), self.most)

    @property
    def mean(self) -> float:
        """NaN where there is none."""
        return self.total / self.count if self.count else math.nan

    def pack(self) -> Packed:
        """What another process needs to add it."""
        buckets = np.flatnonzero(self._counts)
        return Packed(buckets.tolist(), self._counts[buckets].tolist(), self.total, self.least, self.most)

    @staticmethod
    def unpack(packed: Packed) -> Histogram:
        """What `pack` gave."""
        made = Histogram()
        made._counts[packed.buckets] = packed.counts
        made.count = sum(packed.counts)
        made.total, made.least, made.most = packed.total, packed.least, packed.most
        return made


def _buckets(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    values = np.minimum(values, LONGEST)
    bits = np.frexp(values.astype(np.float64))[1]  # the length in bits: exact below 2**53
    shifts = np.maximum(bits.astype(np.int64) - (_DIGITS + 1), 0)
    return (shifts << _DIGITS) + (values >> shifts)


def _middle(bucket: int) -> float:
    """The middle of a bucket; of one that holds a single duration, that one."""
    shift = max(0, (bucket >> _DIGITS) - 1)
    low = (bucket - (shift << _DIGITS)) << shift
    return low + ((1 << shift) - 1) / 2
