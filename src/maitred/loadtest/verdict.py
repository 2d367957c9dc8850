"""Whether the figures of a step can be taken at their word, and whether it went well: said plainly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from maitred.loadtest.histogram import Histogram
from maitred.loadtest.plan import Step
from maitred.loadtest.tally import Tally

BUSY: Final = 0.85
"""Of a processor: what a process of the tester may use before it is taken for the bottleneck."""

LATE_NS: Final = 1_000_000
"""How late the tester may send at p99."""

_OFTEN: Final = 0.05
"""Of the time: a wait for processors that is worth a word."""


@dataclass(frozen=True)
class Limit:
    """How many requests may fail: a number, or a share of all."""

    count: float
    share: bool = False

    @staticmethod
    def read(text: str) -> Limit:
        """`10` or `0.1%`. Raises ValueError."""
        share = text.endswith("%")
        value = float(text[:-1]) / 100 if share else float(int(text))
        if not 0 <= value < float("inf") or (share and value > 1):
            raise ValueError(text)
        return Limit(value, share)

    def kept(self, tally: Tally) -> bool:
        """Whether no more failed than may, and anything was answered at all."""
        asked = tally.good + tally.failures
        return tally.good > 0 and tally.failures <= (self.count * asked if self.share else self.count)


def doubts(tally: Tally, step: Step) -> list[str]:
    """Why the server may be better than the figures, as sentences; empty where nothing speaks against them."""
    if not tally.good and not tally.failures:
        return []  # stopped before anything was counted
    found: list[str] = []
    wanted = max(usage.wanted for usage in tally.usage)
    cpu = max(usage.cpu for usage in tally.usage)
    if cpu > BUSY:
        found.append(
            f"the tester itself was the bottleneck: a process of it used {cpu:.0%} of a processor; try more --workers"
        )
    elif wanted > BUSY:
        found.append(
            f"the tester had to wait for a processor: {wanted - cpu:.0%} of the time a process of it was ready to run "
            f"and could not; give it processors of its own"
        )
    if tally.behind is not None:
        late = Histogram.unpack(tally.behind).percentile(0.99)
        if late > LATE_NS:
            waited = max(usage.waited or 0.0 for usage in tally.usage)
            why = f"; it waited for a processor {waited:.0%} of the time" if waited > _OFTEN else ""
            found.append(
                f"the tester fell behind its schedule: 1% of the requests left {late / 1e6:.1f} ms late or more{why}"
            )
    return found


def remarks(tally: Tally, step: Step) -> list[str]:
    """What else whoever reads the figures should know."""
    found: list[str] = []
    if tally.cut_short:
        found.append("stopped before its time: only what was answered until then is counted")
    due = tally.good + tally.failures
    if tally.held_up > 0.001 * due:
        found.append(
            f"{tally.held_up:,} of {due:,} requests left late because all of {step.connections:,} connections waited "
            f"for answers; latency counts from when they were due (--connections raises the bound)"
        )
    if not tally.good and not tally.failures:
        found.append("nothing was counted")
    return found
