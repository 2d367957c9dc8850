"""What hang-ups teach."""

from __future__ import annotations

from random import Random

import pytest

from maitred.endpoint import Ticket
from maitred.messages import FOREVER
from maitred.scheduling.patience import Patience
from maitred.testing.dispatch import ManualPool, hang_up, outcome


def test_nothing_is_believed_at_first() -> None:
    patience = Patience()
    for turn in range(7):
        patience.hung_up(1.0, turn * 0.1)
    assert patience.seconds == FOREVER
    for turn in range(7, 25):
        patience.hung_up(1.0, turn * 0.1)
    assert patience.seconds == pytest.approx(1.0)


def test_few_who_leave_early_teach_nothing() -> None:
    chance = Random(1)
    patience = Patience()
    for turn in range(10_000):
        if chance.random() < 0.05:
            patience.hung_up(chance.uniform(0, 0.01), turn * 0.01)
        else:
            patience.answered(0.02, 1)
        assert patience.seconds == FOREVER


def test_those_who_stay_longer_correct_it() -> None:
    patience = Patience()
    for turn in range(100):
        patience.hung_up(0.8, turn * 0.1)
    patience.answered(0.05, 64)
    assert patience.seconds == pytest.approx(0.8), "an answer in time says nothing"
    patience.answered(2.0, 64)
    assert patience.seconds == FOREVER


@pytest.mark.parametrize("run_seconds", [0.016, 0.064])
def test_overload_by_callers_who_state_no_deadline(run_seconds: float) -> None:
    """Four times capacity, everybody leaves after a second, nothing is set for it."""
    chance = Random(1)
    pool = ManualPool(seconds=lambda rows: run_seconds)
    capacity = 64 / run_seconds
    tickets: list[Ticket] = []
    end = pool.now + 8.0

    def arrive() -> None:
        ticket = pool.send(deadline_seconds=30.0)
        tickets.append(ticket)
        if not ticket.ended:
            pool.call_at(pool.now + 1.0, hang_up, ticket)
        if pool.now < end:
            pool.call_at(pool.now + chance.expovariate(4 * capacity), arrive)

    pool.call_at(pool.now, arrive)
    pool.run()
    steady = [ticket for ticket in tickets if 1003.0 <= ticket.submitted_at < 1007.0]
    answered = sum(outcome(ticket) == "ok" for ticket in steady)
    assert answered / 4.0 / capacity >= 0.95
    assert sum(outcome(ticket) == "cancelled" for ticket in steady) <= 0.02 * len(steady)
    assert pool.dispatcher.patience.seconds == pytest.approx(1.0, rel=0.1)


def test_few_hasty_callers_get_nobody_else_refused() -> None:
    patience = Patience()
    for turn in range(200):
        patience.answered(0.01, 32)
        patience.hung_up(0.2, turn * 0.1)
    assert patience.seconds == FOREVER, "three in a hundred left, and nobody else had to wait as long as they did"
    for turn in range(200, 264):
        patience.hung_up(0.2, turn * 0.1)
    assert patience.seconds == 0.5, "now it is most of them; but nobody is refused for a wait that short"


def test_many_who_leave_at_once_were_not_impatient() -> None:
    patience = Patience()
    for end in range(20):
        for client in range(256):
            patience.hung_up(0.02, end * 10.0 + client * 0.0001)
        assert patience.seconds == FOREVER, "a program has ended, and with it all its clients"
        patience.answered(0.01, 1)
