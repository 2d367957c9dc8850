"""Blocks never overlap, come back, and follow the need; children cannot write or shrink what they must not."""

from __future__ import annotations

import errno
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred import host
from maitred.replica import memory
from maitred.replica.memory import SMALLEST, Arena, NoMemory, Segment, size_class


@given(st.integers(1, 1 << 40))
def test_a_size_class_is_large_enough_and_wastes_a_quarter_at_most(size: int) -> None:
    given = size_class(size)
    assert size <= given
    assert given == SMALLEST or given <= size * 1.25
    assert size_class(given) == given
    assert given % 64 == 0


@given(st.lists(st.one_of(st.integers(1, 200_000), st.integers(-50, -1)), max_size=80))
def test_blocks_in_use_never_overlap(steps: list[int]) -> None:
    """A positive step takes that many bytes, a negative one gives a block back."""
    arena = Arena(True, 1 << 16)
    out: list[memory.Block] = []
    try:
        for step in steps:
            if step > 0:
                out.append(arena.take(step))
                assert out[-1].size >= step
            elif out:
                arena.give(out.pop(step % len(out)))
            spans = sorted((b.segment.id, b.offset, b.offset + b.size) for b in out)
            for (one, _, end), (other, start, _) in itertools.pairwise(spans):
                assert one != other or end <= start
            assert all(b.offset >= 0 and b.offset + b.size <= b.segment.size for b in out)
            assert arena.used_bytes == sum(b.size for b in out)
            assert arena.reserved_bytes == sum(s.size for s in arena.segments.values())
    finally:
        arena.close()


def test_the_same_sizes_over_and_over_need_no_new_memory() -> None:
    arena = Arena(False, 1 << 16)
    for _ in range(100):
        blocks = [arena.take(size) for size in (100, 5000, 9000)]
        for block in blocks:
            arena.give(block)
    assert arena.reserved_bytes == 1 << 16
    arena.close()


def test_changing_sizes_are_cut_anew() -> None:
    arena = Arena(False, 1 << 16)
    for size in range(1, 1 << 16, 997):
        arena.give(arena.take(size))
    assert arena.reserved_bytes <= 3 << 16
    arena.close()


def test_a_block_is_given_back_once() -> None:
    arena = Arena(False)
    block = arena.take(1)
    arena.give(block)
    with pytest.raises(RuntimeError, match="twice"):
        arena.give(block)
    arena.close()


def test_long_unused_segments_are_given_back_and_told() -> None:
    arena = Arena(False, 1 << 16)
    told: list[int] = []
    arena.retired.append(told.append)
    arena.give(arena.take(1 << 22))
    large = set(arena.segments)
    for _ in range(600):
        arena.give(arena.take(10))
    assert set(told) == large
    assert arena.reserved_bytes == 1 << 16
    arena.close()


def test_an_arena_that_idles_gives_back_what_a_burst_took_at_the_second_look() -> None:
    arena = Arena(False, 1 << 16)
    told: list[int] = []
    arena.retired.append(told.append)
    arena.give(arena.take(1 << 12))
    burst = [arena.take(1 << 20) for _ in range(3)]
    arena.look()
    for block in burst:
        arena.give(block)
    arena.look()
    assert arena.reserved_bytes > 3 << 20, "as much may be needed again"
    arena.look()
    assert arena.reserved_bytes == 1 << 16 and len(told) == 3
    arena.give(arena.take(1 << 12))
    arena.close()


def test_idle_segments_make_place_for_a_larger_block_within_the_limit() -> None:
    arena = Arena(False, 1 << 16, limit_bytes=1 << 20)
    told: list[int] = []
    arena.retired.append(told.append)
    small = arena.take(1 << 12)
    arena.give(arena.take(600_000))
    assert arena.reserved_bytes + 900_000 > 1 << 20
    large = arena.take(900_000)
    assert told == [2] and arena.reserved_bytes <= 1 << 20
    with pytest.raises(NoMemory, match="over the limit"):
        arena.take(600_000)
    arena.give(large)
    arena.give(small)
    arena.give(arena.take(600_000))
    arena.close()


def test_where_nothing_else_is_left_a_larger_free_block_will_do() -> None:
    arena = Arena(False, 1 << 20, limit_bytes=1 << 20)
    small, large = arena.take(1 << 12), arena.take(900_000)
    arena.give(large)
    again = arena.take(600_000)
    assert again is large and arena.used_bytes == small.size + large.size
    arena.give(again)
    arena.give(small)
    assert arena.used_bytes == 0
    arena.close()


def test_a_system_that_refuses_is_asked_once_more_without_what_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, asked = host.reserve, []

    def poor(size: int, children_write: bool) -> host.Shared:
        asked.append(size)
        if len(asked) == 2:
            raise OSError(errno.ENOSPC, "no space")
        return reserve(size, children_write)

    monkeypatch.setattr(host, "reserve", poor)
    arena = Arena(False, 1 << 16)
    arena.give(arena.take(1 << 16))
    arena.give(arena.take(1 << 18))
    assert asked == [1 << 16, 1 << 18, 1 << 18] and arena.reserved_bytes == 1 << 18
    arena.close()


def test_the_limit_holds_and_says_so() -> None:
    arena = Arena(False, 1 << 16, limit_bytes=1 << 17)
    arena.take(1 << 16)
    with pytest.raises(NoMemory, match="over the limit of 131,072"):
        arena.take(1 << 17)
    arena.take(1 << 16)
    with pytest.raises(NoMemory):
        arena.take(1)
    arena.close()


def test_what_the_system_refuses_is_an_error_that_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, children_write: bool) -> host.Shared:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host, "reserve", refuse)
    with pytest.raises(NoMemory, match=r"4,096 bytes .*No space left"):
        Arena(False, 1 << 16).take(1)


def test_an_array_that_looks_at_a_closed_segment_keeps_its_memory() -> None:
    segment = Segment(1, 4096, children_write=False)
    segment.map[:3] = b"abc"
    view = segment.view[:3]
    segment.close()
    assert bytes(view) == b"abc"


@pytest.mark.parametrize("children_write", [False, True])
def test_reserved_memory_is_shared_zeroed_and_guarded(children_write: bool) -> None:
    shared = host.reserve(8192, children_write)
    assert shared.map[:] == bytes(8192)
    shared.map[0] = 7
    theirs = host.attach(shared.fd, 8192, children_write)
    assert theirs[0] == 7
    if children_write:
        theirs[1] = 8
        assert shared.map[1] == 8
    else:
        with pytest.raises(OSError, match=r"not permitted|denied"):
            host.attach(shared.fd, 8192, write=True)
        with pytest.raises(TypeError):
            theirs[1] = 8
    if not host.portable():
        for size in (0, 1 << 20):
            with pytest.raises(OSError, match="not permitted"):
                os.ftruncate(shared.fd, size)
    shared.map.close()
    os.close(shared.fd)


def test_a_reservation_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "write", full)
    for children_write in (False, True):
        with pytest.raises(OSError, match="No space"):
            host.reserve(1 << 20, children_write)
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
