"""Copies replaced by others of another kind: there is always one that serves, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest
from test_supervisor import Copy, House


class Moving(House):
    """A supervisor with copies that are ready, told to move."""

    def __init__(self, replicas: int = 1, **settings: Any) -> None:
        super().__init__(replicas=replicas, **settings)
        self.leaving: list[int] = []
        self.charge.leaving = lambda replica: self.leaving.append(replica.id)  # type: ignore[method-assign]
        self.ends: list[str] = []
        self.supervisor.start()
        for index in range(replicas):
            self.ready(index)
        self.moved: list[Copy] = []
        self.supervisor.move(self.make_elsewhere, self.ends.append)

    def make_elsewhere(self, id: int) -> Any:
        self.moved.append(self.make(id))
        return self.moved[-1]

    def index(self, copy: Copy) -> int:
        return self.copies.index(copy)


def test_the_old_copy_leaves_once_the_new_one_is_ready() -> None:
    house = Moving()
    [new] = house.moved
    assert house.charge.serving == [0] and house.leaving == [] and new.calls == ["launch"]
    house.ready(house.index(new))
    assert house.charge.serving == [0, 1], "both, until the old one has ended what it runs"
    assert house.leaving == [0] and house.copies[0].calls[-1] == "stop"
    assert house.ends == [""]
    house.lose(0, "stopped")
    assert house.charge.serving == [1]
    assert house.supervisor.ready_count() == 1 and house.supervisor.loading_count() == 0
    assert house.supervisor.starts == 1, "a move is no restart"
    house.loop.advance(60.0)
    assert len(house.copies) == 2


def test_lost_after_the_move_a_copy_is_made_where_the_others_are() -> None:
    house = Moving()
    house.ready(1)
    house.lose(0, "stopped")
    house.lose(1)
    house.loop.advance(0.0)
    assert len(house.moved) == 2 and house.moved[1] is house.copies[2]


def test_a_new_copy_that_cannot_load_leaves_the_old_one_as_it_was() -> None:
    house = Moving()
    house.lose(1, "the model could not be loaded: no")
    assert house.ends == ["the model could not be loaded: no"]
    assert house.charge.serving == [0] and house.leaving == []
    assert house.charge.states == [("ready", "")]
    house.lose(0)
    house.loop.advance(0.0)
    assert len(house.copies) == 3 and house.copies[2] not in house.moved


def test_an_old_copy_that_dies_meanwhile_is_replaced_by_whichever_is_ready_first() -> None:
    house = Moving()
    house.lose(0)
    house.loop.advance(0.0)
    assert len(house.copies) == 3, "another of the old kind is on its way"
    house.ready(1)
    assert house.charge.serving == [1] and house.copies[2].calls[-1] == "stop"
    assert house.charge.states[-1] == ("ready", "")
    house.lose(2, "stopped")
    assert house.charge.serving == [1] and house.ends == [""]


def test_a_pause_before_a_restart_ends_with_the_move() -> None:
    house = Moving(restart_seconds=5.0, max_fruitless_deaths=100)
    house.lose(0)
    house.loop.advance(0.0)
    house.ready(2)
    house.lose(2)
    house.ready(1)
    house.loop.advance(60.0)
    assert len(house.copies) == 3


def test_every_copy_is_moved_and_the_end_is_told_once() -> None:
    house = Moving(replicas=3, max_loads_at_once=3)
    assert len(house.moved) == 3
    for new in house.moved:
        assert house.ends == []
        house.ready(house.index(new))
    assert house.ends == [""]
    assert house.leaving == [0, 1, 2]


def test_where_one_cannot_be_moved_the_others_on_their_way_are_given_up() -> None:
    house = Moving(replicas=2)
    house.lose(house.index(house.moved[0]), "no memory")
    assert house.moved[1].calls[-1].startswith("kill")
    house.lose(house.index(house.moved[1]), "was given up")
    assert house.ends == ["no memory"] and house.charge.serving == [0, 1]


@pytest.mark.parametrize("ready", [False, True])
def test_stopping_in_the_middle_of_a_move_waits_for_every_copy(ready: bool) -> None:
    house = Moving()
    if ready:
        house.ready(1)
    house.supervisor.stop()
    assert [copy.calls[-1] for copy in house.copies] == ["stop", "stop"]
    house.lose(1, "stopped")
    assert not house.supervisor.emptied.is_set()
    house.lose(0, "stopped")
    assert house.supervisor.emptied.is_set()
    assert house.ends == ([""] if ready else []), "whoever stops the pool does not hear of the move"


def test_killing_in_the_middle_of_a_move_ends_every_copy() -> None:
    house = Moving()
    house.supervisor.kill()
    assert all(copy.calls[-1].startswith("kill") for copy in house.copies)


def test_a_model_that_fails_meanwhile_does_not_come_back_by_the_move() -> None:
    house = Moving(max_fruitless_deaths=1)
    house.lose(0)
    assert house.charge.states[-1][0] == "failed"
    assert house.moved[0].calls[-1].startswith("kill")
    house.ready(1)
    house.lose(1, "was killed: the model has failed")
    assert house.charge.serving == [] and house.charge.states[-1][0] == "failed" and house.ends == []


def test_one_move_at_a_time_and_none_while_stopping() -> None:
    house = Moving()
    with pytest.raises(RuntimeError, match="moved already"):
        house.supervisor.move(house.make_elsewhere, house.ends.append)
    house.ready(1)
    house.supervisor.move(house.make_elsewhere, house.ends.append)
    house.ready(2)
    assert house.ends == ["", ""]
    house.supervisor.stop()
    house.supervisor.move(house.make_elsewhere, house.ends.append)
    assert len(house.moved) == 2
