"""Who is refused at the door, and what the refused are told."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from maitred.errors import DeadlinePassed, MaitredError, NoReplica, QueueFull, TooLarge, WouldBeLate
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL, Request
from maitred.scheduling.admission import LaneLimits, Load, decide
from maitred.scheduling.batching import Batch
from maitred.scheduling.curve import Curve
from maitred.scheduling.outage import Outage
from maitred.scheduling.patience import Patience
from maitred.scheduling.queue import Lane

NOW = 100.0
LIMITS = LaneLimits(max_waiting_rows=1000, max_waiting_bytes=10_000)


@dataclass
class Case:
    """One pool: ten rows a batch, a tenth of a second each, unless it says otherwise."""

    why: str
    verdict: type[MaitredError] | None
    waiting: tuple[int, int, int] = (0, 0, 0)
    rows: int = 1
    lane: int = NORMAL
    seconds: float = 30.0
    size_bytes: int = 0
    slots: int = 1
    room: int = 0
    expected: int = 0
    learned: bool = True
    patience: Patience = field(default_factory=Patience)

    def load(self) -> Load:
        lanes = (Lane(), Lane(), Lane())
        for lane, rows in zip(lanes, self.waiting, strict=True):
            lane.rows, lane.size_bytes = rows, rows * 10
        curve = Curve()
        if self.learned:
            for _ in range(10):
                curve.teach(10, 0.1)
        outage = Outage(0.8)
        outage.expected = self.expected
        running = [Batch(n, n, [], 10, NOW, FOREVER, ends_at=NOW + 0.1) for n in range(self.slots - self.room)]
        load = Load(lanes, curve, running, 10, self.patience, 29.0, outage)
        load.slots, load.room = self.slots, self.room
        load.learn(10, LIMITS.max_waiting_rows)
        return load


def leaving_after(seconds: float) -> Patience:
    patience = Patience()
    for turn in range(50):
        patience.hung_up(seconds, turn * 0.1)
    return patience


CASES = [
    Case("nothing waits", None),
    Case("no replica", NoReplica, slots=0),
    Case("a replica is starting", None, slots=0, expected=1),
    Case("the last row that fits", None, waiting=(0, 999, 0)),
    Case("one row too many", QueueFull, waiting=(0, 1000, 0)),
    Case("an empty request weighs one row", QueueFull, waiting=(0, 1000, 0), rows=0),
    Case("the bound is per lane", None, waiting=(0, 1000, 1000), lane=HIGH),
    Case("larger than the queue", TooLarge, rows=1001),
    Case("the bytes that fit", None, size_bytes=10_000),
    Case("more bytes than fit now", QueueFull, waiting=(0, 1, 0), size_bytes=10_000),
    Case("more bytes than ever fit", TooLarge, size_bytes=10_001),
    Case("the deadline is over", DeadlinePassed, seconds=0.0),
    Case("the deadline was over before", DeadlinePassed, seconds=-1.0, learned=False),
    Case("running 0.1 s, four batches before, its own", None, waiting=(0, 40, 0), seconds=0.61),
    Case("a moment too late", WouldBeLate, waiting=(0, 40, 0), seconds=0.59),
    Case("two slots take half the time for what waits", None, waiting=(0, 40, 0), seconds=0.41, slots=2),
    Case("better lanes go first", WouldBeLate, waiting=(40, 0, 0), seconds=0.59),
    Case("lower lanes do not", None, waiting=(0, 0, 900), seconds=0.21),
    Case("a backlog never refuses a better lane", None, waiting=(0, 900, 900), seconds=0.21, lane=HIGH),
    Case("nothing is known yet", None, waiting=(0, 900, 0), seconds=0.001, learned=False),
    Case("an idle pool tries", None, seconds=0.001, room=1),
    Case("not if others go first", WouldBeLate, seconds=0.05, room=1, waiting=(0, 10, 0)),
    Case("within half of the callers' patience", None, waiting=(0, 40, 0), patience=leaving_after(1.01)),
    Case("beyond it", WouldBeLate, waiting=(0, 40, 0), patience=leaving_after(0.9)),
    Case("a stated deadline is believed", None, waiting=(0, 40, 0), seconds=20.0, patience=leaving_after(0.9)),
    Case("background waits", None, waiting=(0, 40, 0), lane=BACKGROUND, patience=leaving_after(0.9)),
    Case("an idle pool tries the impatient", None, room=1, patience=leaving_after(0.01)),
    Case("no deadline, no lateness", None, waiting=(900, 900, 900), seconds=FOREVER, lane=BACKGROUND),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_table(case: Case) -> None:
    request = Request({}, case.rows, "g", NOW + case.seconds, lane=case.lane, size_bytes=case.size_bytes)
    error = decide(request, case.load(), LIMITS, NOW)
    assert type(error) is (case.verdict or type(None))
    if isinstance(error, (QueueFull, WouldBeLate, NoReplica)):
        assert error.retry_after_seconds is not None and error.retry_after_seconds > 0


def test_a_slot_is_free_when_its_batch_is_expected_to_end() -> None:
    """Three slots: two end now, the third in 0.1 s. What goes then takes 0.1 s for every turn of the three."""
    load = Case("", None, slots=3).load()
    for batch, ends_at in zip(load.running, (NOW, NOW, NOW + 0.1), strict=True):
        batch.ends_at = ends_at
    assert [load.start_of(turn, NOW) - NOW for turn in range(7)] == pytest.approx([0, 0, 0.1, 0.1, 0.1, 0.2, 0.2])
    load.room = 1
    load.running = list(load.running)[1:]
    assert load.start_of(0, NOW) == NOW, "there is a free one"
    assert load.start_of(1, NOW) == NOW
    assert load.start_of(2, NOW) == pytest.approx(NOW + 0.1)
    assert load.start_of(3, NOW) == pytest.approx(NOW + 0.1), "after the one that the free slot is about to start"
    assert load.start_of(0, NOW + 1.0) == load.start_of(2, NOW + 1.0) == NOW + 1.0, "overdue is about to end"


def test_caution_asks_for_a_margin() -> None:
    """Forty rows wait: 0.6 s; what has been late lately makes it more, up to a third of what could be waited."""
    load = Case("", None, waiting=(0, 40, 0)).load()
    load.caution.admitted(NOW - 10.0)
    load.caution.late(NOW - 9.0, NOW - 1.0)
    assert load.caution.seconds == pytest.approx(0.05)
    for seconds, verdict in ((0.64, WouldBeLate), (0.66, type(None))):
        assert type(decide(Request({}, 1, "g", NOW + seconds), load, LIMITS, NOW)) is verdict
    for moment in range(20):
        load.caution.late(NOW - 9.0, NOW + moment)
    assert load.caution.seconds == pytest.approx(0.8)
    for seconds, verdict in ((0.84, WouldBeLate), (0.86, type(None))):
        assert type(decide(Request({}, 1, "g", NOW + seconds), load, LIMITS, NOW)) is verdict


def test_retry_after_follows_the_drain_rate() -> None:
    """A full queue of 1,000 rows drains 100 rows a second: a quarter of it in 2.5 s; two slots need half of that."""
    request = Request({}, 1, "g", FOREVER)
    for slots, seconds in ((1, 2.5), (2, 1.25)):
        error = decide(request, Case("full", None, waiting=(0, 1000, 0), slots=slots).load(), LIMITS, NOW)
        assert error is not None and error.retry_after_seconds == pytest.approx(seconds)


def test_the_late_are_told_when_it_would_work() -> None:
    load = Case("", None, waiting=(0, 100, 0)).load()
    error = decide(Request({}, 1, "g", NOW + 0.5), load, LIMITS, NOW)
    assert isinstance(error, WouldBeLate)
    assert error.retry_after_seconds == pytest.approx(0.7)


def test_what_was_learned_later_counts() -> None:
    """`longest_seconds` is a shortcut: it must never hide a refusal."""
    for waiting in range(0, 1000, 37):
        load = Case("", None, waiting=(waiting, waiting, waiting)).load()
        for lane in (HIGH, NORMAL, BACKGROUND):
            for milliseconds in range(50, 40_000, 950):
                request = Request({}, 1, "g", NOW + milliseconds / 1000, lane=lane)
                quick = decide(request, load, LIMITS, NOW)
                shortcut, load.longest_seconds = load.longest_seconds, FOREVER
                assert type(quick) is type(decide(request, load, LIMITS, NOW))
                load.longest_seconds = shortcut
