"""The rules about heads, framing and time, as tables."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.http.limits import (
    BODY,
    BUSY,
    CHUNKED,
    CLOSING,
    FIRST_BYTE,
    HEAD,
    IDLE,
    ROOM,
    ChunkSizes,
    Headers,
    Limits,
    Refused,
    check_framing,
    check_head,
    check_version,
    head_bytes,
    outstays,
    overdue,
    split_target,
    too_slow,
)

LIMITS = Limits(head_bytes=1000, headers=5, body_bytes=100, framing_bytes=50)
HOST = (b"host", b"x")


@pytest.mark.parametrize(
    ("headers", "length", "expects", "coding", "accept", "upgrade"),
    [
        ([HOST], 0, False, None, None, False),
        ([HOST, (b"content-length", b"100")], 100, False, None, None, False),
        ([HOST, (b"content-length", b"0" * 5000 + b"100")], 100, False, None, None, False),
        ([HOST, (b"content-length", b"0" * 5000)], 0, False, None, None, False),
        ([HOST, (b"transfer-encoding", b"Chunked")], CHUNKED, False, None, None, False),
        ([HOST, (b"expect", b"100-Continue")], 0, True, None, None, False),
        ([HOST, (b"accept-encoding", b"a"), (b"accept-encoding", b"b")], 0, False, None, b"a,b", False),
        ([HOST, (b"content-encoding", b"gzip"), (b"content-encoding", b"gzip")], 0, False, b"gzip,gzip", None, False),
        ([HOST, (b"upgrade", b"h2c")], 0, False, None, None, True),
    ],
)
def test_what_a_head_says(
    headers: Headers, length: int, expects: bool, coding: bytes | None, accept: bytes | None, upgrade: bool
) -> None:
    assert check_head(headers, False, LIMITS) == (length, expects, coding, accept, upgrade)


@pytest.mark.parametrize(
    ("headers", "old", "status", "named"),
    [
        ([], False, 400, "Host"),
        ([HOST, HOST], True, 400, "Host"),
        ([(b"host", b"a b")], False, 400, "Host"),
        ([HOST, (b"content-length", b"101")], False, 413, "100"),
        ([HOST, (b"content-length", b"9" * 5000)], False, 413, "100"),
        ([HOST, (b"content-length", b"0" * 20 + b"101")], False, 413, "100"),
        ([HOST, (b"content-length", b"0" * 5000 + b"9" * 5000)], False, 413, "100"),
        ([HOST, (b"content-length", b"")], False, 400, "Content-Length"),
        ([HOST, (b"content-length", b"\xb2")], False, 400, "Content-Length"),
        ([HOST, (b"content-length", b"1"), (b"content-length", b"1")], False, 400, "Content-Length"),
        ([HOST, (b"content-length", b"1"), (b"transfer-encoding", b"chunked")], False, 400, "both"),
        ([HOST, (b"transfer-encoding", b"chunked")], True, 400, "HTTP/1.0"),
        ([HOST, (b"transfer-encoding", b"gzip, chunked")], False, 400, "chunked"),
        ([HOST, (b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")], False, 400, "more than one"),
        ([HOST, (b"expect", b"tea")], False, 417, "Expect"),
        ([HOST] + [(b"a", b"b")] * 5, False, 431, "5"),
    ],
)
def test_what_a_head_may_not_say(headers: Headers, old: bool, status: int, named: str) -> None:
    with pytest.raises(Refused) as caught:
        check_head(headers, old, LIMITS)
    assert caught.value.status == status
    assert named in caught.value.message


def test_http_1_0_needs_no_host_and_knows_no_expectations() -> None:
    assert check_head([(b"expect", b"tea")], True, LIMITS) == (0, False, None, None, False)


@given(st.text(max_size=8))
def test_two_versions_are_spoken(version: str) -> None:
    assert check_version("1.1") is False
    assert check_version("1.0") is True
    if version not in ("1.0", "1.1"):
        with pytest.raises(Refused):
            check_version(version)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"/a%2Fb?c=d?e", b"/a%2Fb", b"c=d?e"),
        (b"/?", b"/", b""),
        (b"*", b"*", b""),
        (b"HTTP://host:80/a?b", b"/a", b"b"),
        (b"https://host", b"/", b""),
        (b"http://host?q", b"/", b"q"),
        (b"//double", b"//double", b""),
    ],
)
def test_targets_are_taken_apart(target: bytes, path: bytes, query: bytes) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize(
    "target", [b"", b"a", b"host:80", b"http:/x", b"http://", b"?q", b"/a b", b"/\xe9", b"/\x00", b"**"]
)
def test_other_targets_are_refused(target: bytes) -> None:
    with pytest.raises(Refused):
        split_target(target)


def test_a_head_is_counted_with_its_separators() -> None:
    assert head_bytes(b"/abc", [(b"a", b"b"), (b"cd", b"")]) == 4 + 6 + 6


@pytest.mark.parametrize(
    ("raw", "body", "barren", "trailers", "status"),
    [
        (0, 0, 0, 0, None),
        (50, 0, 50, 0, None),
        (51, 0, 51, 0, 400),
        (600, 100, 0, 0, None),
        (851, 100, 0, 0, 400),
        (600, 100, 51, 0, 400),
        (110, 101, 0, 0, 413),
        (600, 100, 0, 5, None),
        (600, 100, 0, 6, 400),
    ],
)
def test_framing_is_bounded(raw: int, body: int, barren: int, trailers: int, status: int | None) -> None:
    if status is None:
        check_framing(raw, body, barren, trailers, LIMITS)
        return
    with pytest.raises(Refused) as caught:
        check_framing(raw, body, barren, trailers, LIMITS)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("phase", "lives", "ends"),
    [
        (FIRST_BYTE, 27.9, 28),
        (HEAD, 27.9, 28),
        (IDLE, 74.9, 75),
        (CLOSING, 1.9, 2),
        (BUSY, 1e9, None),
        (BODY, 1e9, None),
        (ROOM, 27.9, 28),
    ],
)
def test_each_phase_has_its_time(phase: int, lives: float, ends: float | None) -> None:
    assert not overdue(phase, lives, Limits())
    assert ends is None or overdue(phase, ends, Limits())


@pytest.mark.parametrize(
    ("came", "size", "seconds", "stays"),
    [
        (0, 1000, 9.9, True),
        (0, 1000, 10, False),
        (499, 1000, 10, False),
        (500, 1000, 10, True),
        (660, 1000, 20, False),
        (670, 1000, 20, True),
        (999, 1000, 9_000, True),
    ],
)
def test_who_would_need_long_leaves_its_place_to_those_who_wait(
    came: int, size: int, seconds: float, stays: bool
) -> None:
    assert outstays(came, size, seconds, Limits()) is not stays


def test_a_body_has_a_least_rate() -> None:
    assert too_slow(30 * 1024 - 1, 30, Limits())
    assert not too_slow(30 * 1024, 30, Limits())


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 40),
    st.sampled_from([b"", b";a", b';a="b c"', b" ;deadbeef", b";" + b"f" * 100]),
    st.data(),
)
def test_the_size_of_a_chunk_is_known_however_its_line_was_cut(
    size: int, zeros: int, extension: bytes, data: st.DataObject
) -> None:
    line = b"0" * zeros + b"%X" % size + extension + b"\r\n"
    brought = data.draw(st.binary(max_size=20))
    before = data.draw(
        st.sampled_from([b"", b"POST / HTTP/1.1\r\nX: y\r\n\r\n", b"3\r\nabc\r\n", b"F\r\nfed\nfeedfeedfed\r\n"])
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(line) - 1), max_size=6)))
    text = before + line
    places = [0, *(len(before) + at for at in cuts)]
    sizes = ChunkSizes()
    for start, stop in itertools.pairwise(places):
        sizes.between(text[start:stop])
    assert sizes.announced(text[places[-1] :] + brought, len(brought)) == size


@pytest.mark.parametrize("trailers", [b"FFFFFFFFFFFFFFFF: x\r\n", b"F: ;\r\n", b"A: b\r\nFFFFFF", b"A: b\r\nFFFFFF:"])
def test_trailers_are_no_sizes(trailers: bytes) -> None:
    assert ChunkSizes().announced(b"3\r\nabc\r\n0\r\n" + trailers, 0) == 0
