"""Waiting for callers who return at once: what is learned of them, when it is done, and what it brings."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random

import pytest

from maitred.endpoint import Ticket
from maitred.messages import BACKGROUND, FOREVER, NORMAL, Chunk, Request
from maitred.scheduling.dispatcher import Batch, DispatchSettings
from maitred.scheduling.returning import Returning
from maitred.testing.dispatch import ManualPool, outcome
from maitred.testing.front import FrontedPool

TURNAROUND = (0.0001, 0.0003)
"""What a client on the same machine takes from an answer to its next request."""
CYCLE = 0.004


def curve_model(rows: int) -> float:
    return 0.002 + 0.0001 * rows


def slow_model(rows: int) -> float:
    return 0.005


# ---------------------------------------------------------------------- the rule by itself


class Answers:
    """Tells a rule of batches that are answered one after the other, and of arrivals between them."""

    def __init__(self, fixed_seconds: float = 0.002) -> None:
        self.rule = Returning()
        self.rule.learn(fixed_seconds)
        self.now = 100.0
        self.arrived = 0

    def batch(self, rows: int, *arrivals: tuple[float, int], seconds: float = CYCLE, group: Hashable = "g") -> None:
        """A batch is answered; so many rows come so long after, and the next batch ends after `seconds`."""
        begun = self.now
        self.rule.written(rows, rows, group, self.arrived, begun)
        for after, came in arrivals:
            self.arrived += came
            self.rule.look(self.arrived, begun + after)
        self.now = begun + seconds


def test_it_takes_a_few_batches_to_believe_that_callers_return_and_fewer_to_see_that_they_ceased() -> None:
    answers = Answers()
    shares = []
    for _ in range(12):
        answers.batch(16, (0.0003, 16))
        shares.append(answers.rule.share)
    believed = next(number for number, share in enumerate(shares) if share > 0.6)
    assert 2 <= believed <= 6
    assert shares[-1] > 0.9
    for _ in range(4):
        answers.batch(16)
    assert answers.rule.share < 0.6


def test_arrivals_that_do_not_care_about_answers_teach_nothing() -> None:
    answers = Answers()
    for _ in range(200):
        answers.batch(8, *[(0.0002 * step, 1) for step in range(1, 20)])
    assert answers.rule.share < 0.1


def test_who_returns_later_than_anybody_would_wait_for_is_not_waited_for() -> None:
    answers = Answers()
    for _ in range(50):
        answers.batch(16, (0.0012, 8), (0.0016, 8))
    assert answers.rule.share < 0.1


def test_the_wait_ends_with_the_part_in_which_they_come() -> None:
    answers = Answers()
    for _ in range(50):
        answers.batch(16, (0.0002, 13))
    assert answers.rule.share == pytest.approx(13 / 16, abs=0.05)
    assert answers.rule.wait_seconds == pytest.approx(0.00025)
    for _ in range(50):
        answers.batch(16, (0.0002, 10), (0.0006, 4))
    assert answers.rule.wait_seconds == pytest.approx(0.00075)


def test_a_burst_after_one_answer_is_not_that_many_callers_who_returned() -> None:
    answers = Answers()
    answers.batch(2, (0.0003, 60))
    answers.batch(60)
    answers.batch(2)
    assert answers.rule.share < 0.3


def test_until_when() -> None:
    answers = Answers()
    for _ in range(30):
        answers.batch(16, (0.0003, 16))
    rule, now = answers.rule, answers.now
    rule.written(16, 16, "g", answers.arrived, now)
    assert rule.until("g", now) == pytest.approx(now + 0.0005)
    assert rule.until("other", now) == 0.0
    assert rule.until("g", now + 0.0006) == 0.0
    rule.look(answers.arrived + 15, now + 0.0001)
    assert rule.until("g", now + 0.0001) > 0.0
    rule.look(answers.arrived + 16, now + 0.0002)
    assert rule.until("g", now + 0.0002) == 0.0, "all are there"


def test_callers_of_all_batches_that_ended_lately_are_waited_for() -> None:
    answers = Answers()
    for _ in range(30):
        answers.batch(16, (0.0003, 16))
    rule, now = answers.rule, answers.now
    rule.written(16, 16, "g", answers.arrived, now)
    rule.look(answers.arrived + 10, now + 0.0002)
    rule.written(8, 8, "g", answers.arrived + 10, now + 0.0002)
    assert rule.missing == 14
    rule.written(8, 8, "h", answers.arrived + 10, now + 0.0003)
    assert rule.until("g", now + 0.0003) == rule.until("h", now + 0.0003) == 0.0, "these could not share a batch"


def test_where_batches_cost_little_by_themselves_nothing_is_waited_for() -> None:
    rule = Returning()
    rule.learn(0.00015)
    assert rule.seconds == 0.0
    rule.learn(0.003)
    assert rule.seconds == pytest.approx(0.0015)
    rule.learn(1.0)
    assert rule.seconds == 0.002, "and never for longer than this"
    rule.share = 0.9
    rule.learn(0.0001)
    assert rule.seconds == rule.share == 0.0


@pytest.mark.parametrize(
    "waiting, before, most, after, wanted",
    [
        (1, 0, 64, 0.0, True), (32, 31, 64, 0.0, True), (32, 32, 64, 0.0, False), (64, 32, 64, 0.0, False),
        (70, 0, 64, 0.0, False), (32, 0, 64, 0.01, False),
    ],
)  # fmt: skip
def test_when_the_loop_turns_once_more(waiting: int, before: int, most: int, after: float, wanted: bool) -> None:
    rule = Returning()
    rule.answered(2, 100.0)
    rule.gathered = before
    assert rule.gathers(waiting, most, 100.0 + after) is wanted
    assert rule.turns == (3 if wanted else 0)


# ---------------------------------------------------------------------- the dispatcher's decision


class Sure(ManualPool):
    """A pool that has learned that callers return, whose replicas answer when the test says so."""

    def __init__(self, **more: int) -> None:
        super().__init__(DispatchSettings(max_batch_rows=8), seconds=lambda rows: 1000.0, **more)
        for _ in range(5):
            for rows in (1, 2, 4, 8):
                self.dispatcher.curve.teach(rows, curve_model(rows))
        self.dispatcher.load.learn(8, 4096)
        self.rule = self.dispatcher.returning
        self.rule.learn(0.002)
        self.holds: list[float] = []
        self.answered_at = 0.0

    def answer(self) -> Batch:
        """The oldest batch that runs is answered; its callers are sure to return, within half a millisecond."""
        batch = next(iter(self.running.values()))
        del self.running[batch.id]
        self.now = max(self.now, batch.started_at + curve_model(batch.rows))
        self.answered_at = self.now
        self._answer(batch)
        self.rule.share, self.rule.wait_seconds = 1.0, 0.0005
        return batch

    def hold(self, until: float) -> None:
        self.holds.append(until)
        super().hold(until)

    def sizes(self) -> list[int]:
        """Rows of all batches so far, once the loop has turned."""
        self.run(0.0)
        return [batch.rows for batch in self.started]

    def crowd(self, rows: int, **more: object) -> list[Ticket]:
        return [self.send(**more) for _ in range(rows)]


def served(pool: Sure, rows: int, left: int) -> Sure:
    """A batch of `rows` has just been answered while `left` more waited."""
    pool.crowd(rows)
    pool.tick()
    pool.crowd(left)
    pool.answer()
    pool.run(0.0)
    return pool


def test_a_batch_waits_for_those_who_were_just_answered() -> None:
    pool = served(Sure(), 3, 2)
    assert pool.sizes() == [3]
    pool.run(0.0002)
    pool.crowd(2)
    pool.run(0.0001)
    assert pool.sizes() == [3], "one is missing"
    pool.crowd(1)
    pool.tick()
    assert pool.sizes() == [3, 5]
    assert pool.holds[-1] == FOREVER


def test_and_goes_without_them_when_they_do_not_come() -> None:
    pool = served(Sure(), 3, 2)
    pool.run(0.0004)
    assert pool.sizes() == [3]
    pool.run(0.0002)
    assert pool.sizes() == [3, 2]
    assert pool.started[1].started_at == pytest.approx(pool.answered_at + 0.0005)


def test_a_timer_that_rings_a_little_early_ends_the_wait_too() -> None:
    pool = served(Sure(), 3, 2)
    pool.now += 0.0004
    pool.dispatcher.waited()
    pool.tick()
    assert pool.sizes() == [3, 2]


def test_a_full_batch_never_waits() -> None:
    assert served(Sure(), 3, 8).sizes() == [3, 8]
    pool = served(Sure(), 8, 2)
    pool.crowd(6)
    pool.tick()
    assert pool.sizes() == [8, 8], "nor until more have come than fit"


def test_a_lone_caller_never_waits() -> None:
    pool = Sure()
    for round in range(5):
        pool.crowd(1)
        pool.tick()
        assert len(pool.started) == round + 1
        pool.now += 0.002
        pool.answer()
        pool.now += 0.0002
    assert pool.holds == []


@pytest.mark.parametrize("more", [{"replicas": 2}, {"room": 2}])
def test_a_replica_never_waits_while_another_or_another_slot_has_room(more: dict[str, int]) -> None:
    pool = Sure(**more)
    pool.crowd(3)
    pool.tick()
    pool.crowd(2)
    assert pool.sizes() == [3, 2], "the second was free"
    pool.answer()
    pool.crowd(1)
    assert pool.sizes() == [3, 2], "the first waits: the second is busy"
    pool.answer()
    assert pool.sizes() == [3, 2, 1], "now both have room"


@pytest.mark.parametrize(("slack", "waited"), [(0.0002, 0.0002), (0.002, 0.0005), (-0.0001, 0.0)])
def test_never_so_long_that_a_deadline_would_be_missed(slack: float, waited: float) -> None:
    pool = Sure()
    pool.crowd(3)
    pool.tick()
    run = pool.dispatcher.curve.seconds(5)  # two that wait, three that are waited for
    pool.crowd(1, deadline_seconds=curve_model(3) + slack + run)
    pool.crowd(1)
    pool.answer()
    pool.run(0.001)
    assert pool.started[1].started_at - pool.answered_at == pytest.approx(waited, abs=2e-5)


def test_a_request_in_a_hurry_that_comes_meanwhile_ends_the_wait_earlier() -> None:
    pool = served(Sure(), 3, 1)
    pool.run(0.0001)
    pool.crowd(1, deadline_seconds=pool.dispatcher.curve.seconds(4) + 0.0001)
    pool.run(0.001)
    assert pool.started[1].started_at - pool.answered_at == pytest.approx(0.0002, abs=2e-5)


def test_what_could_not_join_does_not_wait() -> None:
    pool = Sure()
    pool.crowd(3)
    pool.tick()
    pool.crowd(2, group="other")
    pool.answer()
    assert pool.sizes() == [3, 2], "another group"
    pool.answer()
    pool.crowd(1, group=None)
    pool.tick()
    assert pool.sizes() == [3, 2, 1], "no group"


def test_several_groups_that_wait_take_their_turns_at_once() -> None:
    pool = Sure()
    pool.crowd(3)
    pool.tick()
    pool.crowd(2)
    pool.crowd(2, group="other")
    pool.answer()
    assert pool.sizes() == [3, 2]


def test_background_is_held_back_for_online_callers_who_are_about_to_return() -> None:
    pool = Sure()
    pool.crowd(3)
    pool.tick()
    pool.crowd(1, lane=BACKGROUND)
    pool.answer()
    pool.run(0.0001)
    pool.crowd(3)
    pool.tick()
    assert [[ticket.request.lane for ticket in batch.tickets] for batch in pool.started[1:]] == [
        [NORMAL] * 3 + [BACKGROUND]
    ]


def test_nothing_waits_where_it_is_switched_off() -> None:
    pool = ManualPool(DispatchSettings(wait_seconds=0.0), seconds=slow_model)
    pool.dispatcher.returning.learn(1.0)
    assert pool.dispatcher.returning.seconds == 0.0


# ---------------------------------------------------------------------- what it brings, by simulation


class Crowd:
    """Callers of one kind at a simulated server, and how long they waited."""

    def __init__(
        self, pool: FrontedPool, *, clients: int = 0, rate: float = 0.0, turnaround: tuple[float, float] = TURNAROUND,
        seconds: float = 2.5, settling: float = 0.5, burst: int = 1, group: str = "g", deadline_seconds: float = 30.0,
        start: float = 0.0, seed: int = 5,
    ) -> None:  # fmt: skip
        self.pool = pool
        self.chance = Random(seed)
        self.rate, self.burst = rate, burst
        self.turnaround = turnaround
        self.group = group
        self.deadline_seconds = deadline_seconds
        self.since, self.end = pool.now + start + settling, pool.now + start + seconds
        self.waits: list[float] = []
        self.failed = 0
        for _ in range(clients):
            pool.call_at(pool.now + start + self.chance.uniform(0.0, 0.001), Caller(self, True).ask)
        if rate:
            pool.call_at(pool.now + start + self.chance.expovariate(rate), self._arrive)

    def _arrive(self) -> object:
        if self.pool.now < self.end:
            self.pool.call_at(self.pool.now + self.chance.expovariate(self.rate), self._arrive)
        for _ in range(self.burst):
            done = Caller(self, False).ask()
        return done

    def per_second(self) -> float:
        return len(self.waits) / (self.end - self.since)

    def quantile(self, part: float) -> float:
        return sorted(self.waits)[int(part * len(self.waits))]

    def mean(self) -> float:
        return sum(self.waits) / len(self.waits)


class Caller:
    """Asks, and where it is a client in a closed loop asks again once it is answered."""

    def __init__(self, crowd: Crowd, again: bool) -> None:
        self.crowd, self.again = crowd, again
        self.asked_at = 0.0

    def ask(self) -> object:
        self.asked_at = self.crowd.pool.now
        return self.crowd.pool.receive(self._send)

    def _send(self) -> None:
        crowd = self.crowd
        pool = crowd.pool
        ticket = Ticket(Request({}, 1, crowd.group, self.asked_at + crowd.deadline_seconds), pool, pool.now)
        ticket.watch(self)
        pool.submit(ticket)

    def piece(self, ticket: Ticket, chunk: Chunk) -> None:
        raise AssertionError("the dispatcher sends no pieces")

    def ended(self, ticket: Ticket) -> None:
        crowd = self.crowd
        now = crowd.pool.now
        if crowd.since <= self.asked_at and now < crowd.end:
            crowd.waits.append(now - self.asked_at)
            crowd.failed += outcome(ticket) != "ok"
        if self.again and now < crowd.end:
            crowd.pool.call_at(now + crowd.chance.uniform(*crowd.turnaround), self.ask)


def simulate(
    model: Callable[[int], float], *crowds: dict[str, object], plain: bool = False, noise: float = 0.0, **more: int
) -> tuple[FrontedPool, list[Crowd]]:
    """One server and its callers; `plain`: whatever waits is taken at once. Same seeds, same arrivals."""
    chance = Random(9)
    settings = DispatchSettings(wait_seconds=0.0) if plain else DispatchSettings()
    pool = FrontedPool(settings, seconds=lambda rows: model(rows) * (1 + abs(chance.gauss(0.0, noise))), **more)
    made = [Crowd(pool, **{"seed": 5 + number, **crowd}) for number, crowd in enumerate(crowds)]  # type: ignore[arg-type]
    pool.run()
    return pool, made


@pytest.mark.parametrize(
    ("model", "clients", "least", "rows"),
    [
        (curve_model, 1, 430, 1.0), (curve_model, 2, 800, 1.9), (curve_model, 16, 3900, 15.0),
        (curve_model, 64, 6500, 62.0), (curve_model, 128, 7500, 63.0), (slow_model, 16, 2900, 15.0),
        (slow_model, 64, 10200, 62.0), (slow_model, 128, 12000, 63.0),
    ],
)  # fmt: skip
def test_clients_in_a_closed_loop_share_full_batches(
    model: Callable[[int], float], clients: int, least: float, rows: float
) -> None:
    pool, (crowd,) = simulate(model, {"clients": clients})
    assert crowd.per_second() >= least
    late = [batch.rows for batch in pool.started if crowd.since < batch.started_at < crowd.end]
    assert sum(late) / len(late) >= rows


@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize(("clients", "gain"), [(4, 1.4), (16, 1.3), (32, 1.15)])
def test_also_where_batches_take_now_longer_now_shorter(clients: int, gain: float, noise: float) -> None:
    waits, plain = (
        simulate(curve_model, {"clients": clients}, plain=plain, noise=noise)[1][0].per_second()
        for plain in (False, True)
    )
    assert waits > gain * plain


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("load", [0.0525, 0.2, 0.5, 0.8])  # the first is 400 a second at one replica
@pytest.mark.parametrize("model", [curve_model, slow_model])
def test_open_load_waits_no_longer_than_where_whatever_waits_is_taken(
    model: Callable[[int], float], load: float, replicas: int
) -> None:
    rate = load * replicas * 64 / model(64)
    seconds = 0.5 + 8000 / rate
    (_, (waits,)), (_, (plain,)) = (
        simulate(model, {"rate": rate, "seconds": seconds}, plain=plain, replicas=replicas) for plain in (False, True)
    )
    assert waits.failed == plain.failed == 0
    assert waits.quantile(0.5) <= 1.01 * plain.quantile(0.5)
    assert waits.quantile(0.99) <= 1.02 * plain.quantile(0.99)


@pytest.mark.parametrize("burst", [4, 20, 100])
def test_bursts_wait_no_longer(burst: int) -> None:
    crowd = {"rate": 3800 / burst, "burst": burst, "seconds": 4.0}
    (_, (waits,)), (_, (plain,)) = (simulate(curve_model, crowd, plain=plain) for plain in (False, True))
    assert waits.quantile(0.5) <= 1.01 * plain.quantile(0.5)
    assert waits.quantile(0.99) <= 1.02 * plain.quantile(0.99)


@pytest.mark.parametrize("clients", [4, 16, 64])
def test_clients_who_are_far_away_lose_nothing(clients: int) -> None:
    crowd = {"clients": clients, "turnaround": (0.003, 0.008)}
    (_, (waits,)), (_, (plain,)) = (simulate(curve_model, crowd, plain=plain) for plain in (False, True))
    assert waits.per_second() >= 0.99 * plain.per_second()
    assert waits.quantile(0.99) <= 1.02 * plain.quantile(0.99)


def test_clients_who_become_slow_are_waited_for_a_few_times_more_only() -> None:
    holds = []

    class Watched(FrontedPool):
        def hold(self, until: float) -> None:
            if until not in (0.0, FOREVER):
                holds.append((self.now, until))
            super().hold(until)

    pool = Watched(seconds=curve_model)
    crowd = Crowd(pool, clients=16, seconds=4.0)
    slow_from = pool.now + 2.0
    pool.call_at(slow_from, setattr, crowd, "turnaround", (0.003, 0.006))
    pool.run()
    assert sum(at < slow_from for at, _ in holds) > 300
    after = [(at, until) for at, until in holds if at > slow_from]
    assert sum(until - at for at, until in after) < 0.01
    assert len([at for at, _ in after if at > slow_from + 0.05]) == 0


def test_who_returns_at_once_and_who_comes_anyhow_share_one_model() -> None:
    crowds = {"clients": 16, "seconds": 4.0}, {"rate": 1000.0, "seconds": 4.0}
    (_, waits), (_, plain) = (simulate(curve_model, *crowds, plain=plain) for plain in (False, True))
    assert waits[0].per_second() > 1.2 * plain[0].per_second()
    together = [sum(sum(crowd.waits) for crowd in made) / sum(len(c.waits) for c in made) for made in (waits, plain)]
    assert together[0] < 0.9 * together[1]
    assert waits[1].quantile(0.99) < 1.5 * plain[1].quantile(0.99), "their batches are larger, and theirs to share"


@pytest.mark.parametrize(("replicas", "clients"), [(2, 32), (2, 96), (4, 64), (4, 192)])
def test_several_replicas_do_no_worse(replicas: int, clients: int) -> None:
    (_, (waits,)), (_, (plain,)) = (
        simulate(curve_model, {"clients": clients}, plain=plain, replicas=replicas) for plain in (False, True)
    )
    assert waits.per_second() >= 0.99 * plain.per_second()
    assert waits.mean() <= 1.01 * plain.mean()


def test_two_groups_of_clients_are_both_served() -> None:
    _, crowds = simulate(curve_model, {"clients": 16, "group": "a"}, {"clients": 16, "group": "b"})
    assert min(crowd.per_second() for crowd in crowds) > 2000
    assert max(crowd.quantile(0.99) for crowd in crowds) < 0.009


def test_deadlines_that_leave_no_time_to_wait_are_met() -> None:
    _, crowds = simulate(
        curve_model, {"clients": 16}, {"rate": 50.0, "deadline_seconds": 0.0095, "seed": 8}, noise=0.02
    )
    assert crowds[1].failed == 0
    assert len(crowds[1].waits) > 80


def test_after_a_crowd_has_left_a_lone_client_waits_for_nobody() -> None:
    pool = FrontedPool(seconds=curve_model)
    Crowd(pool, clients=16, seconds=1.0)
    lone = Crowd(pool, clients=1, seconds=1.0, settling=0.0, start=1.002)
    pool.run()
    assert lone.quantile(0.5) == pytest.approx(curve_model(1), rel=0.01)
    assert max(lone.waits) < curve_model(16) + curve_model(1) + 0.002
