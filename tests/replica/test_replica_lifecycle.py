"""The table of a replica's life."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from maitred.replica.lifecycle import OVER, TABLE, IllegalMove, Move, State, after

STATES: tuple[State, ...] = get_args(State)
MOVES: tuple[Move, ...] = get_args(Move)


@pytest.mark.parametrize(
    ("moves", "end"),
    [
        (["launch", "loaded", "warmed", "stop", "ended"], "stopped"),
        (["launch", "loaded", "warmed", "lost"], "failed"),
        (["launch", "lost"], "failed"),
        (["launch", "loaded", "lost"], "failed"),
        (["stop"], "stopped"),
        (["launch", "stop", "loaded", "warmed", "stop", "ended"], "stopped"),
    ],
)
def test_lives(moves: list[Move], end: State) -> None:
    state: State = "new"
    for move in moves:
        state = after(state, move)
    assert state == end


def test_every_other_move_is_illegal() -> None:
    for state, move in product(STATES, MOVES):
        if (state, move) not in TABLE:
            with pytest.raises(IllegalMove, match=f"{state} cannot meet '{move}'"):
                after(state, move)


def test_what_is_over_stays_so_and_all_else_can_end() -> None:
    assert not [state for state, _ in TABLE if state in OVER]
    reached: set[State] = {"new"}
    for _ in STATES:
        reached |= {after for (before, _), after in TABLE.items() if before in reached}
    assert reached == set(STATES)
    for state in set(STATES) - OVER:
        assert {after for (before, _), after in TABLE.items() if before == state} & {"failed", "stopped", "draining",
                                                                                     "loading", "warming"}  # fmt: skip
