"""Many times at once are read as they are one by one, and none of them needs that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.wire import times
from maitred.wire.coerce import from_json, to_array
from maitred.wire.missing import NAT
from maitred.wire.times import UNITS, Clock, NoTime, all_counts, count
from maitred.wire.timetexts import AT_ONCE, read

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The values that were counted one by one."""
    seen: list[Any] = []

    def noted(value: Any, clock: Clock) -> int:
        seen.append(value)
        return count(value, clock)

    monkeypatch.setattr(times, "count", noted)
    return seen


@st.composite
def written(draw: st.DrawFn) -> str:
    """A text that is a time, or nearly."""

    def digits(last: int, width: int = 2) -> str:
        return f"{draw(st.integers(0, last)):0{width}d}"

    text = draw(st.sampled_from(["1677-09-21", "2262-04-11", "2000-02-29", "1900-02-29", "0000-01-01", "9999-12-31"]))
    if draw(st.booleans()):
        text = f"{digits(9999, 4)}-{digits(13)}-{digits(32)}"
    if draw(st.integers(0, 9)):
        text += draw(st.sampled_from("TTTTt x")) + f"{digits(24)}:{digits(60)}"
        if draw(st.integers(0, 9)):
            text += f":{digits(60)}"
            if draw(st.booleans()):
                text += "." + draw(st.text("0123456789", max_size=19)) + "0" * draw(st.integers(0, 3))
    text += draw(st.sampled_from(["", "", "Z", "z", "+01", "-23", "+0530", "-05:30", "+24:00", "+00:60", "-00"]))
    if not draw(st.integers(0, 9)):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from(":-+ZT. \n/\u0663\u00e9")) + text[at + 1 :]
    return text


@given(st.lists(written(), min_size=1, max_size=40), st.sampled_from(UNITS), st.booleans())
def test_reading_many_is_reading_each(texts: list[str], unit: Any, zoned: bool) -> None:
    clock = Clock(unit, "UTC" if zoned else None)
    found, sure = read(texts, PER_SECOND[unit], zoned)
    for text, own, one in zip(texts, found.tolist(), sure.tolist(), strict=True):
        try:
            assert (own, one) == (count(text, clock), True)
        except NoTime:
            assert not one, text


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("2262-04-11T23:47:16.854775807", True), ("2262-04-11T23:47:16.854775808", False),
        ("1677-09-21T00:12:43.145224193", True), ("1677-09-21T00:12:43.145224192", False),
        ("9999-12-31", False), ("0001-01-01", False), ("2026-01-01T00:00:00.1234567890", True),
        ("2026-01-01T00:00:00.1234567891", False),
    ],
)  # fmt: skip
def test_none_is_rounded_or_wraps(text: str, fits: bool) -> None:
    found, sure = read([text], 10**9, False)
    assert sure.tolist() == [fits]
    assert not fits or found.tolist() == [count(text, Clock("ns", None))]


def test_many_times_are_read_without_looking_at_each(asked: list[Any]) -> None:
    forms = [
        "2026-01-31T12:00:00.123+05:30", "2026-01-31 12:00Z", "2026-01-31t12:00:00-0530",
        "1969-12-31T23:59:59.9990000z", "0001-01-01T00:00:00+00", "9999-12-31T23:59:59.999Z",
    ]  # fmt: skip
    clock = Clock("ms", "UTC")
    many = [*forms, 12, None, -1] * (AT_ONCE // 4)
    wanted = [*(count(form, clock) for form in forms), 12, NAT, -1]
    assert all_counts(many, clock).tolist() == wanted * (AT_ONCE // 4)
    assert all_counts(forms * AT_ONCE, clock).tolist() == wanted[:6] * AT_ONCE
    text = b"[" + b",".join([b'"2026-01-31T12:00:00Z"'] * AT_ONCE) + b"]"
    assert np.unique(to_array(from_json("t", "int64", (AT_ONCE,), text, clock=clock))).size == 1
    assert asked == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('"2026-02-30T00:00:00Z"', "is a time that no calendar has"),
        ('"2026-01-31T12:00:00"', "says no zone"),
        ('"2026-01-31T12:00:00.0001Z"', "is finer than ms"),
        (str(NAT), "does not fit INT64"),
        (str(2**63), "does not fit INT64"),
    ],
)
@pytest.mark.parametrize("other", ['"2026-01-31T12:00:00Z"', "5"])
def test_the_one_that_is_none_is_named(wrong: str, why: str, other: str, asked: list[Any]) -> None:
    text = f"[{','.join([other] * 500)},{wrong},{other}]".encode()
    with pytest.raises(Malformed, match=rf"^input 't': the value at data\[500\] {why}"):
        from_json("t", "int64", None, text, clock=Clock("ms", "UTC"))
    assert len(asked) <= 502
