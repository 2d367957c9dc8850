"""Frames arrive whole and in order, however they are cut on their way, and nobody keeps more than was agreed."""

from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loops import run
from maitred import host
from maitred.replica.channel import Broken
from maitred.replica.frames import BUFFER_BYTES, Clogged, FrameReader, FrameWriter

SIZES = st.lists(
    st.one_of(st.integers(0, 300), st.sampled_from([65_536, BUFFER_BYTES - 4, BUFFER_BYTES, 3_000_001])), max_size=12
)


def payload(at: int, size: int) -> bytes:
    return bytes([at % 251]) * size


@settings(max_examples=40)
@given(SIZES, st.booleans())
def test_frames_of_any_size_cross_a_pipe(sizes: list[int], wide: bool) -> None:
    async def play() -> None:
        reading, writing = os.pipe()
        if wide:
            host.widen_pipe(writing, BUFFER_BYTES)
        loop = asyncio.get_running_loop()
        writer, reader = FrameWriter(writing, loop, 1 << 30), FrameReader(reading)
        got: list[bytes] = []

        def read() -> None:
            reader.fill()
            while (view := reader.frame()) is not None:
                got.append(bytes(view))

        loop.add_reader(reading, read)
        for at, size in enumerate(sizes):
            writer.send(payload(at, size))
            if at % 3 == 2:
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while len(got) < len(sizes):
                await asyncio.sleep(0)
        assert got == [payload(at, size) for at, size in enumerate(sizes)]
        assert writer.kept_bytes == 0
        loop.remove_reader(reading)
        writer.close()
        os.close(writing)
        assert not reader.fill() and reader.ended
        os.close(reading)

    run(play())


def test_what_waits_for_a_reader_that_does_not_read_is_bounded() -> None:
    async def play() -> None:
        reading, writing = os.pipe()
        writer = FrameWriter(writing, asyncio.get_running_loop(), 1 << 20)
        with pytest.raises(Clogged, match="does not read"):
            for _ in range(100):
                writer.send(bytes(1 << 16))
        writer.close()
        os.close(writing)
        os.close(reading)

    run(play())


def test_a_reader_that_has_gone_is_no_error() -> None:
    async def play() -> None:
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        at_once, later = FrameWriter(writing, loop, 1 << 30), FrameWriter(writing, loop, 1 << 30)
        later.send(bytes(1 << 22))
        os.close(reading)
        at_once.send(b"a")
        async with asyncio.timeout(10):
            while not later.broken:
                await asyncio.sleep(0)
        assert at_once.broken and later.kept_bytes == 0
        os.close(writing)

    run(play())


def test_a_frame_that_is_too_large_is_refused_before_it_comes() -> None:
    reading, writing = os.pipe()
    reader = FrameReader(reading, 1000)
    os.write(writing, (1001).to_bytes(4, "little"))
    reader.fill()
    with pytest.raises(Broken, match="1,001 bytes"):
        reader.frame()
    os.close(writing)
    os.close(reading)
