"""Times: text, Python's, numpy's and pandas' own become the same counts, or are refused by what is wrong with them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.wire.coerce import from_json, from_python, rows_json, to_array
from maitred.wire.missing import NAT
from maitred.wire.times import UNITS, Clock, NoTime, TimeUnit, count, counts, texts, writable

LOCAL = {unit: Clock(unit, None) for unit in UNITS}
MOMENTS = {unit: Clock(unit, "UTC") for unit in UNITS}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
INDIA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [
        ("1970-01-01", "s", 0),
        ("1970-01-01T00:00", "s", 0),
        ("1970-01-01 00:00:01", "s", 1),
        ("1969-12-31T23:59:59", "s", -1),
        ("0001-01-01", "s", -62_135_596_800),
        ("9999-12-31T23:59:59", "s", 253_402_300_799),
        ("2000-02-29t12:00:00", "s", 951_825_600),
    ],
)
def test_local_text(text: str, unit: TimeUnit, seconds: int) -> None:
    assert count(text, LOCAL[unit]) == seconds
    assert count(text, LOCAL["ms"]) == seconds * 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00z", 0),
        ("1970-01-01T05:30:00+05:30", 0),
        ("1970-01-01T05:30:00+0530", 0),
        ("1969-12-31T18:30:00-05:30", 0),
        ("1970-01-01T00:00:00-00", 0),
        ("2021-03-28T02:30:00+01:00", 1_616_895_000),  # in the gap of Central Europe's clocks: an offset says it all
    ],
)
def test_moments_in_text(text: str, seconds: int) -> None:
    assert count(text, MOMENTS["s"]) == seconds
    assert count(text, MOMENTS["us"]) == seconds * 10**6


@pytest.mark.parametrize(
    ("value", "clock", "why"),
    [
        ("yesterday", LOCAL["s"], "no ISO 8601 time"),
        ("", LOCAL["s"], "no ISO 8601 time"),
        ("2026-1-1", LOCAL["s"], "no ISO 8601 time"),
        ("20260101", LOCAL["s"], "no ISO 8601 time"),
        ("2026-01-01T00:00:00Z\n", MOMENTS["s"], "no ISO 8601 time"),
        ("\u0662\u0660\u0662\u0666-01-01", LOCAL["s"], "no ISO 8601 time"),
        ("2026-02-29", LOCAL["s"], "no calendar has"),
        ("2026-01-01T24:00:00", LOCAL["s"], "no calendar has"),
        ("2016-12-31T23:59:60Z", MOMENTS["s"], "no calendar has"),
        ("2026-01-01T00:00:00Z", LOCAL["s"], "says a zone"),
        ("2026-01-01T00:00:00", MOMENTS["s"], "says no zone"),
        ("2026-01-01", MOMENTS["s"], "says no zone"),
        ("2026-01-01T00:00:00.5", LOCAL["s"], "finer than s"),
        ("2026-01-01T00:00:00.0001", LOCAL["ms"], "finer than ms"),
        ("2026-01-01T00:00:00.0000000001", LOCAL["ns"], "finer than ns"),
        ("9999-12-31", LOCAL["ns"], "does not fit an int64 of ns"),
        ("0001-01-01", LOCAL["ns"], "does not fit an int64 of ns"),
        (2**63, LOCAL["s"], "does not fit INT64"),
        (NAT, LOCAL["s"], "does not fit INT64"),
        (True, LOCAL["s"], "no time: bool"),
        (1.0, LOCAL["s"], "no time: float"),
        (datetime(2026, 1, 1), MOMENTS["s"], "says no zone"),
        (datetime(2026, 1, 1, tzinfo=INDIA), LOCAL["s"], "says a zone"),
        (date(2026, 1, 1), MOMENTS["s"], "says no zone"),
        (datetime(2026, 1, 1, microsecond=1), LOCAL["ms"], "finer than ms"),
        (np.datetime64("2026-01"), LOCAL["s"], "no fixed length"),
        (np.datetime64("2026-01-01T00:00:00.5"), LOCAL["s"], "finer than s"),
    ],
)
def test_what_is_no_time_is_refused(value: Any, clock: Clock, why: str) -> None:
    with pytest.raises(NoTime, match=why):
        count(value, clock)


def test_trailing_zeros_of_a_fraction_are_not_finer() -> None:
    assert count("1970-01-01T00:00:01.500000000000", LOCAL["ms"]) == 1500
    assert count("1970-01-01T00:00:01.000", LOCAL["s"]) == 1


@given(st.datetimes(), st.sampled_from(UNITS))
def test_python_times_and_their_text_are_one(moment: datetime, unit: TimeUnit) -> None:
    def way(value: Any, clock: Clock) -> int | str:
        try:
            return count(value, clock)
        except NoTime as error:
            return str(error)

    assert way(moment, LOCAL[unit]) == way(moment.isoformat(), LOCAL[unit])
    aware = moment.replace(tzinfo=INDIA)
    assert way(aware, MOMENTS[unit]) == way(aware.isoformat(), MOMENTS[unit])


@given(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), st.sampled_from(["Europe/Berlin", "Asia/Kolkata"]))
def test_zones_are_converted_as_python_does(moment: datetime, zone: str) -> None:
    aware = moment.replace(tzinfo=ZoneInfo(zone))
    wanted = (aware.astimezone(UTC).replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert count(aware, MOMENTS["us"]) == wanted
    assert count(pd.Timestamp(aware), MOMENTS["us"]) == wanted


ALL_UNITS = ["W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]


@given(
    st.integers(NAT, 2**63 - 1) | st.integers(-(10**6), 10**6) | st.integers(-50, 50).map(lambda n: n * 10**15),
    st.sampled_from(ALL_UNITS), st.sampled_from(UNITS), st.sampled_from(["<", ">"]),
)  # fmt: skip
def test_arrays_of_another_unit_convert_exactly_or_not_at_all(tick: int, own: str, unit: TimeUnit, order: str) -> None:
    array = np.array([0, tick, NAT], f"{order}i8").view(f"{order}M8[{own}]")
    seconds = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}
    exact = 10**18 // 1000 ** (ALL_UNITS.index(own) - 4) if own not in seconds else seconds[own] * 10**18
    whole, rest = divmod(tick * exact, 10**18 // PER_SECOND[unit])
    try:
        found = counts(array, LOCAL[unit]).tolist()
    except NoTime as error:
        assert tick != NAT and (rest or not NAT < whole < 2**63)
        assert error.index == 1 and ("finer" in str(error)) == bool(rest)
    else:
        assert found == [0, NAT if tick == NAT else whole, NAT]


@given(st.lists(st.integers(NAT, 2**63 - 1), min_size=1, max_size=4), st.sampled_from(UNITS), st.booleans())
def test_text_reads_back_to_the_same_count(values: list[int], unit: TimeUnit, zoned: bool) -> None:
    clock = (MOMENTS if zoned else LOCAL)[unit]
    array = np.array(values, np.int64)
    there = writable(array, clock).tolist()
    for value, text, one in zip(values, texts(array, clock), there, strict=True):
        assert (text is not None) == one
        if text is not None:
            assert count(text, clock) == value


def test_the_first_and_last_years_are_written() -> None:
    for unit in ("s", "ms", "us"):
        for text in ("0001-01-01", "9999-12-31"):
            value = count(text, LOCAL[cast(TimeUnit, unit)])
            assert writable(np.array([value]), LOCAL[cast(TimeUnit, unit)]).all()
    assert not writable(np.array([count("0001-01-01", LOCAL["s"]) - 1, NAT]), LOCAL["s"]).any()
    assert not writable(np.array([count("9999-12-31T23:59:59", LOCAL["s"]) + 1]), LOCAL["s"]).any()


# --- through the table ------------------------------------------------------------------------------------------

WANTED = [1_767_225_600_000, NAT, 1_767_225_600_500]


@pytest.mark.parametrize(
    "value",
    [
        ["2026-01-01T00:00:00Z", None, "2026-01-01T05:30:00.5+05:30"],
        [1_767_225_600_000, None, 1_767_225_600_500],
        [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(2026, 1, 1, 5, 30, 0, 500_000, tzinfo=INDIA)],
        np.array(["2026-01-01", "NaT", "2026-01-01T00:00:00.500"], "M8[ns]"),
        np.array(["2026-01-01", "NaT", "2026-01-01T00:00:00.500"], ">M8[us]"),
        pd.Series(pd.to_datetime(["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00.5Z"], format="ISO8601")),
        pd.Series(["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00.5Z"]),
        pd.Series(["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00.5Z"], dtype="category"),
        pd.DatetimeIndex(["2026-01-01 09:00", None, "2026-01-01 09:00:00.5"], tz="Asia/Tokyo"),
        pd.Series([1_767_225_600_000, None, 1_767_225_600_500], dtype="Int64"),
        pa.array([1_767_225_600_000, None, 1_767_225_600_500]),
        pa.array([1_767_225_600_000, None, 1_767_225_600_500], pa.timestamp("ms", "Europe/Berlin")),
        pa.chunked_array([[1_767_225_600_000_000, None], [1_767_225_600_500_000]], pa.timestamp("us", "UTC")),
        pa.array(["2026-01-01T00:00:00Z", None, "2026-01-01T00:00:00.5Z"]).dictionary_encode(),
        np.ma.array([1_767_225_600_000, 0, 1_767_225_600_500], mask=[0, 1, 0]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_kind_of_time_becomes_the_same_counts(value: Any) -> None:
    assert to_array(from_python("t", "int64", value, True, clock=MOMENTS["ms"])).tolist() == WANTED
    with pytest.raises(Malformed, match=r"^input 't': the missing value at data\[1\] is not allowed$"):
        from_python("t", "int64", value, False, clock=MOMENTS["ms"])


@pytest.mark.parametrize(
    ("value", "clock", "why"),
    [
        (pd.Series(pd.to_datetime(["2026-01-01"])), MOMENTS["ns"], "have no zone"),
        (pd.Series(pd.to_datetime(["2026-01-01T00:00Z"])), LOCAL["ns"], "have a zone"),
        (pa.array([1], pa.timestamp("s")), MOMENTS["s"], "have no zone"),
        (pa.array([1], pa.timestamp("s", "UTC")), LOCAL["s"], "have a zone"),
        (pa.array([date(2026, 1, 1)]), MOMENTS["s"], "have no zone"),
        (np.array([[0, 1]], "M8[us]"), LOCAL["ms"], r"the value at data\[0\]\[1\] is finer than ms"),
        (np.array([2**60], "M8[s]"), LOCAL["ns"], r"the value at data\[0\] does not fit an int64 of ns"),
        (np.array([1], "m8[s]"), LOCAL["s"], r"expected times, got timedelta64\[s\]"),
        (np.array([1.0]), LOCAL["s"], "expected times, got FP64"),
        ([1.5], LOCAL["s"], r"expected times, got float at data\[0\]"),
        ([["2026-01-01"], ["2026-13-01"]], LOCAL["s"], r"the value at data\[1\]\[0\] is a time that no calendar has"),
    ],
)
def test_times_that_do_not_fit_say_where_and_why(value: Any, clock: Clock, why: str) -> None:
    with pytest.raises(Malformed, match=f"^input 't': .*{why}"):
        from_python("t", "int64", value, True, clock=clock)


def test_days_and_naive_columns_are_local_times() -> None:
    for value in (pa.array([date(1970, 1, 2)]), pd.Series(pd.to_datetime(["1970-01-02"])), [date(1970, 1, 2)]):
        assert to_array(from_python("t", "int64", value, clock=LOCAL["s"])).tolist() == [86_400]


def test_times_in_json_there_and_back() -> None:
    text = b'[["2026-01-01T00:00:00Z", null], [0, -1]]'
    tensor = from_json("t", "int64", (2, 2), text, True, clock=MOMENTS["ms"])
    assert to_array(tensor).tolist() == [[1_767_225_600_000, NAT], [0, -1]]
    written = rows_json(tensor, clock=MOMENTS["ms"])
    assert written == [
        b'"2026-01-01T00:00:00.000Z",null', b'"1970-01-01T00:00:00.000Z","1969-12-31T23:59:59.999Z"',
    ]  # fmt: skip
    again = from_json("t", "int64", (2, 2), b"[[%b],[%b]]" % tuple(written), True, clock=MOMENTS["ms"])  # type: ignore[arg-type]
    assert bytes(again.data) == bytes(tensor.data)
    far = from_json("t", "int64", (2,), b"[253402300800, 0]", clock=LOCAL["s"])
    assert rows_json(far, clock=LOCAL["s"]) == [None, b'"1970-01-01T00:00:00"']
    for wrong, why in ((b"[1.5]", "decimal number"), (b"[true]", "true or false"), (b"[null]", "null at data")):
        with pytest.raises(Malformed, match=why):
            from_json("t", "int64", (1,), wrong, clock=LOCAL["s"])
