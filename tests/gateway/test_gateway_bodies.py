"""Places for large bodies: one bound, one line, a share for each connection, and memory that fits the path."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import host
from maitred.deployment.router import Router, Served
from maitred.gateway.bodies import Bodies, Own
from maitred.http.bodies import Place, Want
from maitred.http.limits import Refused
from maitred.replica.lease import Lease
from maitred.replica.memory import Arena

INFER = b"/v2/models/image/infer"
BINARY = [(b"inference-header-content-length", b"77")]


class Caller:
    """A connection that wants places."""

    def __init__(self, told: list[Caller] | None = None) -> None:
        self.places: list[Place] = []
        self.refused: Refused | None = None
        self.told = told if told is not None else []

    def granted(self, place: Place) -> None:
        self.places.append(place)
        self.told.append(self)

    def denied(self, refused: Refused) -> None:
        self.refused = refused


class Loop:
    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        while self.soon:
            self.soon.popleft()()


class Desk:
    def __init__(self, limit: int) -> None:
        self.loop = Loop()
        self.router = Router()
        self.arena = Arena(False)
        image, inline = Served("image", "1"), Served("inline", "1")
        image.memory = lambda: self.arena
        self.router.swap({served.name: served for served in (image, inline)})
        self.bodies = Bodies(self.router, limit, self.loop)  # type: ignore[arg-type]

    def ask(self, caller: Caller, size: int, **other: Any) -> Place | None:
        want = Want("POST", INFER, BINARY, size, False)._replace(**other)
        place = self.bodies.ask(caller, want)
        if place is not None:
            caller.places.append(place)
        return place


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(1_000_000)
    yield desk
    desk.arena.close()


def test_binary_tensors_go_where_replicas_read_and_begin_where_arrays_should(desk: Desk) -> None:
    place = desk.ask(Caller(), 100_077)
    assert isinstance(place, Lease)
    assert place.arena is desk.arena and (place.start + 77) % 64 == 0 and len(place.view) == 100_077
    assert desk.bodies.used_bytes == 100_077
    place.drop()
    assert desk.bodies.used_bytes == desk.arena.used_bytes == 0


@pytest.mark.parametrize(
    "other",
    [
        {"headers": []},
        {"headers": [(b"inference-header-content-length", b"x")]},
        {"headers": [(b"inference-header-content-length", b"100001")]},
        {"headers": [(b"inference-header-content-length", b"9" * 30)]},
        {"headers": [*BINARY, (b"inference-header-content-length", b"78")]},
        {"path": b"/v2/models/inline/infer"},
        {"path": b"/v2/models/unknown/infer"},
        {"path": b"/v2/models/image"},
        {"path": b"/v1/models/image:predict"},
        {"path": b"/predict/image"},
        {"path": b"/v2/models/%zz/infer"},
        {"path": b"/elsewhere"},
        {"method": "PUT"},
    ],
)
def test_other_bodies_go_to_private_memory_of_their_size(desk: Desk, other: dict[str, Any]) -> None:
    place = desk.ask(Caller(), 100_000, **other)
    assert isinstance(place, Own)
    assert type(place.body) is bytearray and len(place.body) == 100_000 and desk.arena.used_bytes == 0
    assert desk.bodies.used_bytes == 100_000
    place.drop()
    assert desk.bodies.used_bytes == 0


def test_a_counted_body_takes_no_memory(desk: Desk) -> None:
    place = desk.ask(Caller(), 500_000, counted=True)
    assert place is not None and len(place.view) == 0
    assert desk.bodies.used_bytes == 500_000 and desk.arena.used_bytes == 0


def test_a_body_that_never_fits_is_refused_at_once(desk: Desk) -> None:
    with pytest.raises(Refused, match="larger than the 1000000 bytes") as caught:
        desk.ask(Caller(), 1_000_001)
    assert caught.value.status == 413


def test_bytes_that_are_there_are_counted_or_refused_at_once(desk: Desk) -> None:
    place = desk.bodies.count("inflated", 900_000)
    assert len(place.view) == 0 and desk.bodies.used_bytes == 900_000
    for size, status in ((100_001, 503), (1_000_001, 413)):
        with pytest.raises(Refused) as caught:
            desk.bodies.count("another", size)
        assert caught.value.status == status
    waits = Caller()
    assert desk.ask(waits, 800_000) is None
    with pytest.raises(Refused, match="no memory to spare"):
        desk.bodies.count("another", 50_000)  # others came before it
    place.drop()
    desk.loop.turn()
    assert len(waits.places) == 1 and desk.bodies.used_bytes == 800_000
    waits.places[0].drop()
    assert desk.bodies.used_bytes == 0 and not desk.bodies._held


def test_the_line_is_served_in_its_order_and_nobody_is_passed_over(desk: Desk) -> None:
    told: list[Caller] = []
    first, large, small = Caller(told), Caller(told), Caller(told)
    place = desk.ask(first, 900_000)
    assert place is not None
    assert desk.ask(large, 800_000) is None
    seen = [desk.bodies.crowded]
    assert desk.ask(small, 50_000) is None, "there is room for it, but it came later"
    place.drop()
    assert not told, "not from inside"
    desk.loop.turn()
    assert told == [large, small]
    assert [*seen, desk.bodies.crowded] == [True, False]
    assert desk.bodies.used_bytes == 850_000


def test_who_leaves_the_line_lets_the_next_one_through(desk: Desk) -> None:
    told: list[Caller] = []
    first, large, small = Caller(told), Caller(told), Caller(told)
    desk.ask(first, 900_000)
    desk.ask(large, 800_000)
    desk.ask(small, 50_000)
    desk.bodies.leave(large)
    desk.loop.turn()
    assert told == [small]
    desk.bodies.leave(large)
    desk.bodies.leave(Caller())


def test_one_connection_has_one_body_and_no_more_than_its_share_beyond(desk: Desk) -> None:
    told: list[Caller] = []
    greedy, other = Caller(told), Caller(told)
    places = [desk.ask(greedy, 100_000), desk.ask(greedy, 100_000)]
    assert all(places)
    assert desk.ask(greedy, 100_000) is None
    assert not desk.bodies.crowded, "it waits for nobody but itself"
    assert desk.ask(other, 700_000) is not None, "and holds up nobody"
    places[0].drop()  # type: ignore[union-attr]
    desk.loop.turn()
    assert told == [greedy]


def test_a_body_that_is_being_counted_goes_on_beyond_the_share(desk: Desk) -> None:
    caller = Caller()
    assert desk.ask(caller, 300_000, counted=True)
    assert desk.ask(caller, 300_000, counted=True)


def test_a_body_that_grows_beyond_the_bound_is_refused_at_once(desk: Desk) -> None:
    caller = Caller()
    assert desk.ask(caller, 900_000, counted=True)
    with pytest.raises(Refused) as caught:
        desk.ask(caller, 200_000, counted=True)
    assert caught.value.status == 413


def test_where_the_system_has_no_memory_it_says_so_and_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int, children_write: bool) -> host.Shared:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host, "reserve", full)
    with pytest.raises(Refused, match=r"got no memory for a body of 100000 bytes \(the system has no .*No space left"):
        desk.ask(Caller(), 100_000)
    assert desk.bodies.used_bytes == desk.arena.used_bytes == 0
    first, second = Caller(), Caller()
    place = desk.ask(first, 900_000, headers=[])
    assert desk.ask(second, 200_000) is None
    assert place is not None
    place.drop()
    desk.loop.turn()
    assert second.refused is not None and second.refused.status == 503
    assert second.refused.extra == b"Retry-After: 1\r\n"
    monkeypatch.undo()
    assert desk.ask(first, 100_000) is not None


def test_memory_that_python_does_not_get_is_a_refusal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(1 << 62)
    with pytest.raises(Refused, match="got no memory") as caught:
        desk.ask(Caller(), 1 << 61, headers=[])
    assert caught.value.status == 503 and desk.bodies.used_bytes == 0


@given(st.lists(st.tuples(st.sampled_from("atld"), st.integers(0, 4), st.integers(1, 700)), max_size=60))
def test_whatever_happens_what_is_used_is_what_is_held_and_nobody_waits_for_nothing(
    steps: list[tuple[str, int, int]],
) -> None:
    desk = Desk(1000)
    callers = [Caller() for _ in range(5)]
    waiting: dict[Caller, int] = {}
    for step, which, size in steps:
        caller = callers[which]
        if step == "a" and caller not in waiting:
            if desk.ask(caller, size, headers=[]) is None:
                waiting[caller] = size
        elif step == "d" and caller.places:
            caller.places.pop(size % len(caller.places)).drop()
        elif step == "l":
            desk.bodies.leave(caller)
            waiting.pop(caller, None)
        before = {caller: len(caller.places) for caller in waiting}
        desk.loop.turn()
        waiting = {caller: size for caller, size in waiting.items() if len(caller.places) == before[caller]}
        held = {caller: sum(len(place.view) for place in caller.places) for caller in callers}
        assert desk.bodies.used_bytes == sum(held.values()) <= 1000
        next_ones = [c for c, size in waiting.items() if not held[c] or held[c] + size <= 250]
        assert desk.bodies.crowded is bool(next_ones)
        if next_ones:
            assert desk.bodies.used_bytes + waiting[next_ones[0]] > 1000
