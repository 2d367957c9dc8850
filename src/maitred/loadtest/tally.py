"""What was counted in one step: the record that workers hand back, and how several become one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from maitred.loadtest.histogram import Histogram, Packed

Kind = Literal["status", "refused", "reset", "closed", "timeout", "unsent", "malformed", "content", "other"]
"""Why a request got no good answer: see KINDS."""

KINDS: Final[dict[Kind, str]] = {
    "status": "answered with another status than 2xx",
    "refused": "no connection could be made",
    "reset": "the connection was reset while an answer was due",
    "closed": "the connection was closed before the answer was whole",
    "timeout": "no whole answer in time",
    "unsent": "no connection was free in time to send it",
    "malformed": "what came was no HTTP answer",
    "content": "the answer was not valid JSON, or not the one that was wanted",
    "other": "another failure of the system or of TLS",
}

MAX_SAMPLES: Final = 3
"""Examples kept of each kind of error."""

_NUMBERS: Final = re.compile("[0-9]+")

MAX_TIMINGS: Final = 8
"""Names of Server-Timing that are followed."""


class Usage(msgspec.Struct, frozen=True):
    """What one process of the tester used of a processor, in parts of a whole one."""

    cpu: float
    waited: float | None = None
    """Ready to run, and not running because others did; None where the system doesn't tell."""

    @property
    def wanted(self) -> float:
        """What it would have used of a processor of its own."""
        return self.cpu + (self.waited or 0.0)


class Timing(msgspec.Struct):
    """What a server says of itself, by one name of Server-Timing."""

    count: int
    total_ns: int


class Tally(msgspec.Struct, tag="tally"):
    """Requests that were due in the counted time, and what became of them."""

    seconds: float
    """The counted time."""
    answered: int
    """Good answers that came in the counted time, also to requests from before: the throughput."""
    good: int
    """Requests of the counted time that got a good answer, in it or after it."""
    failed: dict[str, int]
    """How many did not, by kind."""
    statuses: dict[str, int]
    """Answers of another status than 2xx, by status."""
    latency: Packed
    """From the moment at which a request was due to its good answer; of those that nobody answered in time, as long
    as they waited."""
    sending: Packed | None
    """Open loop: the same from the moment at which it was sent; None in a closed loop, where both are one."""
    refusals: Packed
    """Latency of answers of another status than 2xx."""
    behind: Packed | None
    """Open loop: how late requests left though a connection was free, which is the tester's own fault."""
    held_up: int
    """Open loop: requests that left late because every connection waited for an answer."""
    connections: int
    """Opened in all."""
    received_bytes: int
    sent_bytes: int
    timings: dict[str, Timing]
    timed: Timing
    """Latency from the sending of those answers whose Server-Timing was read."""
    compared: int
    samples: dict[str, list[str]]
    """What was said, by kind of error."""
    sample: str
    """How the first good answer begins."""
    usage: list[Usage]
    """One for each process."""
    cut_short: bool = False
    """Whether somebody ended the step before its time."""

    @property
    def failures(self) -> int:
        """Requests without a good answer."""
        return sum(self.failed.values())


def merged(parts: Sequence[Tally]) -> Tally:
    """What several workers counted at the same time, as one."""
    first = parts[0]
    return Tally(
        seconds=sum(part.seconds for part in parts) / len(parts),
        answered=round(
            sum(part.answered / part.seconds for part in parts) * sum(p.seconds for p in parts) / len(parts)
        ),
        good=sum(part.good for part in parts),
        failed=_sums([part.failed for part in parts]),
        statuses=_sums([part.statuses for part in parts]),
        latency=_together([part.latency for part in parts]),
        sending=None if first.sending is None else _together([p.sending for p in parts if p.sending is not None]),
        refusals=_together([part.refusals for part in parts]),
        behind=None if first.behind is None else _together([p.behind for p in parts if p.behind is not None]),
        held_up=sum(part.held_up for part in parts),
        connections=sum(part.connections for part in parts),
        received_bytes=sum(part.received_bytes for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
        timings=_timings(parts),
        timed=Timing(sum(part.timed.count for part in parts), sum(part.timed.total_ns for part in parts)),
        compared=sum(part.compared for part in parts),
        samples=_samples(parts),
        sample=first.sample,
        usage=[usage for part in parts for usage in part.usage],
        cut_short=any(part.cut_short for part in parts),
    )


def keep_sample(kept: list[str], text: str) -> None:
    """Keep what was said unless there are enough, or it was said before with other numbers."""
    if len(kept) < MAX_SAMPLES and all(_NUMBERS.sub("", text) != _NUMBERS.sub("", other) for other in kept):
        kept.append(text)


def _sums(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def _together(parts: Sequence[Packed]) -> Packed:
    whole = Histogram()
    for part in parts:
        whole.add(Histogram.unpack(part))
    return whole.pack()


def _timings(parts: Sequence[Tally]) -> dict[str, Timing]:
    found: dict[str, Timing] = {}
    for part in parts:
        for name, timing in part.timings.items():
            whole = found.setdefault(name, Timing(0, 0))
            whole.count += timing.count
            whole.total_ns += timing.total_ns
    return found


def _samples(parts: Sequence[Tally]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        for kind, said in part.samples.items():
            for text in said:
                keep_sample(found.setdefault(kind, []), text)
    return found
