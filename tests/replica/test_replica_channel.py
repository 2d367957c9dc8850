"""Messages and frames: cut anywhere, and handed descriptors."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.replica import channel
from maitred.replica.channel import Broken, FrameReader


def test_a_message_is_written_whole_or_not_at_all() -> None:
    assert channel.MESSAGE.size == 64
    assert 512 % channel.MESSAGE.size == 0  # the smallest PIPE_BUF that POSIX allows


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 200))
def test_frames_may_be_cut_anywhere(payloads: list[bytes], piece: int) -> None:
    stream = b"".join(
        channel.frame(channel.READY, payload, 5, 1) + channel.message(channel.LOADED, a=99) for payload in payloads
    )
    reader = FrameReader(frozenset({channel.READY}))
    got = [frame for at in range(0, len(stream), piece) for frame in reader.feed(stream[at : at + piece])]
    assert [frame.payload for frame in got[::2]] == payloads
    assert all(frame.fields[0] == channel.LOADED and frame.payload == b"" for frame in got[1::2])
    assert all(frame.fields[1] == 1 and frame.fields[9] == 5 for frame in got[::2])


def test_a_frame_without_bounds_is_refused() -> None:
    reader = FrameReader(frozenset({channel.READY}), limit_bytes=100)
    with pytest.raises(Broken, match="4,000,000,000"):
        list(reader.feed(channel.message(channel.READY, a=4_000_000_000)))


def test_segments_are_handed_over_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files = [os.pipe() for _ in range(3)]
        for id, (reading, _) in enumerate(files):
            channel.send_segment(ours, id == 1, id, id * 4096, reading)
        for id, (reading, writing) in enumerate(files):
            handed = channel.receive_segment(theirs)
            assert handed is not None
            assert handed[:3] == (id == 1, id, id * 4096)
            os.write(writing, b"x")
            assert os.read(handed.fd, 1) == b"x"
            for fd in (reading, writing, handed.fd):
                os.close(fd)
        ours.close()
        assert channel.receive_segment(theirs) is None
