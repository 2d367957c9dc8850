"""What a batch costs: seconds by rows, learned from the batches that were answered."""

from __future__ import annotations

_FIRST_SAMPLES = 3
"""Of its first samples a size keeps the fastest: a cold cache only ever adds time."""
_WEIGHT = 1 / 8
_SHORTEST_SECONDS = 1e-9
_SPREAD_WEIGHT = 1 / 32
_LARGEST_RISE = 2.0
"""A sample counts as at most this multiple of what is known, so that one hiccup changes little."""
_PAYS = 1.15
"""A smaller batch must give this many times the rows a second before larger ones are avoided."""


class _Size:
    """What is known about the batches of one power of two."""

    __slots__ = ("rows", "seconds", "samples")

    def __init__(self, rows: float, seconds: float) -> None:
        self.rows = rows
        self.seconds = seconds
        self.samples = 1


class Curve:
    """Learns online from `teach`; robust against single outliers. Only answered batches may teach it.

    Batches are gathered by powers of two; between these the curve is a straight line, below the smallest it is flat,
    and above the largest it goes on with the last slope. What was never seen is judged hopefully, because only a
    batch that runs can correct the curve.
    """

    __slots__ = ("learned", "spread", "_sizes", "_known")

    def __init__(self) -> None:
        self.learned = False
        """Whether `seconds` may be used to refuse somebody."""
        self.spread = 0.0
        """How far a batch is off what was expected of it, on average, as a part of that."""
        self._sizes: list[_Size | None] = []
        self._known: list[_Size] = []

    def teach(self, rows: int, seconds: float) -> None:
        """A batch of `rows` was answered after `seconds`."""
        seconds = max(seconds, _SHORTEST_SECONDS)
        index = (rows - 1).bit_length() if rows > 1 else 0
        sizes = self._sizes
        size = sizes[index] if index < len(sizes) else None
        if size is None:
            self._open(index, rows, seconds)
            return
        size.samples += 1
        if size.samples <= _FIRST_SAMPLES:
            if seconds < size.seconds:
                size.seconds, size.rows = seconds, float(rows)
            if size.samples == _FIRST_SAMPLES:
                self.learned = True
            return
        known = size.seconds
        self.spread += (min(abs(seconds - known) / known, _LARGEST_RISE) - self.spread) * _SPREAD_WEIGHT
        if seconds > known * _LARGEST_RISE:
            seconds = known * _LARGEST_RISE
        size.seconds = known + (seconds - known) * _WEIGHT
        size.rows += (rows - size.rows) * _WEIGHT

    def _open(self, index: int, rows: int, seconds: float) -> None:
        sizes = self._sizes
        while len(sizes) <= index:
            sizes.append(None)
        sizes[index] = _Size(float(rows), seconds)
        self._known = [size for size in sizes if size is not None]

    def seconds(self, rows: float) -> float:
        """How long a batch of `rows` is expected to run; 0.0 while nothing is known."""
        known = self._known
        if not known:
            return 0.0
        above = known[-1]
        if len(known) == 1:
            return above.seconds
        below = known[-2]
        if rows < above.rows:
            below = known[0]
            if rows <= below.rows:
                return below.seconds
            for above in known:
                if rows <= above.rows:
                    break
                below = above
        span = above.rows - below.rows
        if span <= 0.0:
            return above.seconds
        slope = (above.seconds - below.seconds) / span
        return below.seconds + slope * (rows - below.rows) if slope > 0.0 else below.seconds

    def fixed_seconds(self) -> float:
        """The part of a batch's time that does not depend on its rows: what one batch less saves. 0.0 if unknown.

        The straight line that fits the known sizes best, where it meets no rows. Where all batches have had about the
        same size, nobody can tell: half of their time, or all of it if they had one row.
        """
        known = [size for size in self._known if size.samples >= _FIRST_SAMPLES and size.rows >= 1.0]
        if not known:
            return 0.0
        count = len(known)
        rows = sum(size.rows for size in known) / count
        seconds = sum(size.seconds for size in known) / count
        if count == 1:
            return seconds if rows < 2.0 else seconds / 2
        spread = sum((size.rows - rows) ** 2 for size in known)
        slope = sum((size.rows - rows) * (size.seconds - seconds) for size in known) / spread if spread else 0.0
        return max(0.0, min(seconds - slope * rows, *(size.seconds for size in known)))

    def rows_within(self, seconds: float, most: int) -> int:
        """The most rows (<= `most`) that are expected to end within `seconds`; 0 if not even one row does."""
        if self.seconds(most) <= seconds:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.seconds(middle) <= seconds:
                low = middle
            else:
                high = middle
        return low

    def best_rows(self, most: int) -> int:
        """The largest batch (<= `most`) that still pays: beyond it fewer rows a second come out, not more."""
        best: _Size | None = None
        for size in reversed(self._known):
            if size.samples < _FIRST_SAMPLES or size.rows < 1.0:
                continue
            if best is None or size.rows * best.seconds > _PAYS * best.rows * size.seconds:
                best = size
        if best is None or best is self._known[-1]:
            return most
        return min(most, round(best.rows))
