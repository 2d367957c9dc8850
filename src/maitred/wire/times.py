"""Times as counts of one unit since 1970: read from ISO 8601 text, Python's and numpy's times, and written as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from fractions import Fraction
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from maitred.wire.dtypes import Array
from maitred.wire.missing import NAT
from maitred.wire.timetexts import read

TimeUnit = Literal["s", "ms", "us", "ns"]
UNITS: Final = get_args(TimeUnit)


class Clock(NamedTuple):
    """How a tensor counts times."""

    unit: TimeUnit
    zone: str | None
    """UTC where the times are moments; None where they are local times of a place that nobody states."""


class NoTime(ValueError):
    """What was given is no time that a clock can count; says why, to follow `the value at ...`."""

    def __init__(self, why: str, index: int = 0) -> None:
        super().__init__(why)
        self.index = index
        """Of the element, in C order."""


_TEXT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,18}))?)?([Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)
_MANY: Final = 64
"""Values from which on arrays are quicker."""
_QUICK: Final = frozenset({str, int, NoneType})
"""What arrays can count."""
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS: Final = {
    "W": Fraction(604_800), "D": Fraction(86_400), "h": Fraction(3600), "m": Fraction(60), "s": Fraction(1),
    "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9), "ps": Fraction(1, 10**12),
    "fs": Fraction(1, 10**15), "as": Fraction(1, 10**18),
}  # fmt: skip
"""Numpy's units of a fixed length."""
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_NO_ZONE: Final = "says no zone: end it with Z or an offset such as +02:00"
_HAS_ZONE: Final = "says a zone, and this takes local times without one"


def count(value: Any, clock: Clock) -> int:
    """One time as a count: a whole number is one already; text is ISO 8601; times of Python or numpy. Raises NoTime."""
    if isinstance(value, str):
        return _of_text(value, clock)
    if isinstance(value, np.datetime64):
        return int(counts(np.asarray(value), clock))
    if isinstance(value, datetime):
        return _of_datetime(value, clock)
    if isinstance(value, date):
        _check_zone(False, clock)
        return _counted((value.toordinal() - _EPOCH_DAY) * 86_400, 0, 0, clock)
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int:
        raise NoTime(f"is no time: {type(value).__name__}")
    if not NAT < value < 2**63:
        raise NoTime("does not fit INT64")
    return value


def _of_text(text: str, clock: Clock) -> int:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise NoTime("is no ISO 8601 time, such as 2026-01-31T12:00:00Z")
    day, minute, second, fraction, offset = match.groups()
    _check_zone(offset is not None, clock)
    try:
        whole = datetime.fromisoformat(f"{day} {minute or '00:00'}:{second or '00'}")
    except ValueError:
        raise NoTime("is a time that no calendar has") from None
    seconds = _seconds(whole) - (_offset_seconds(offset) if offset is not None else 0)
    return _counted(seconds, int(fraction or 0), len(fraction or ""), clock)


def _of_datetime(value: datetime, clock: Clock) -> int:
    offset = value.utcoffset()
    _check_zone(offset is not None, clock)
    seconds = _seconds(value)
    nanoseconds = value.microsecond * 1000 + int(getattr(value, "nanosecond", 0))  # pandas' own are finer
    if offset is not None:
        seconds -= offset.days * 86_400 + offset.seconds
        nanoseconds -= offset.microseconds * 1000
    return _counted(seconds, nanoseconds, 9, clock)


def _check_zone(stated: bool, clock: Clock) -> None:
    if stated != (clock.zone is not None):
        raise NoTime(_HAS_ZONE if stated else _NO_ZONE)


def _seconds(whole: datetime) -> int:
    days = whole.toordinal() - _EPOCH_DAY
    return days * 86_400 + whole.hour * 3600 + whole.minute * 60 + whole.second


def _offset_seconds(offset: str) -> int:
    if offset in "Zz":
        return 0
    seconds = int(offset[1:3]) * 3600 + int(offset[3:].removeprefix(":") or 0) * 60
    return -seconds if offset[0] == "-" else seconds


def _counted(seconds: int, fraction: int, digits: int, clock: Clock) -> int:
    """The count of seconds and a decimal fraction of one, given as a whole number of so many digits."""
    per_second = _PER_SECOND[clock.unit]
    parts: int = 10**digits
    fine, rest = divmod(fraction * per_second, parts)
    if rest:
        raise NoTime(f"is finer than {clock.unit}, the unit of these times")
    whole = seconds * per_second + fine
    if not NAT < whole < 2**63:
        raise NoTime(f"does not fit an int64 of {clock.unit}")
    return whole


def all_counts(values: Sequence[Any], clock: Clock) -> Array:
    """As `count` says of each, and NAT for None. Raises NoTime with the index of one that is none."""
    array = np.full(len(values), NAT, np.int64)
    one_by_one: Iterable[int] = range(len(values))
    if len(values) >= _MANY:
        one_by_one = _quickly(values, array, clock)
    for index in one_by_one:
        if values[index] is None:
            continue
        try:
            array[index] = count(values[index], clock)
        except NoTime as error:
            raise NoTime(str(error), index) from None
    return array


def _quickly(values: Sequence[Any], array: Array, clock: Clock) -> list[int]:
    """Fill in those of the values that arrays can count; the places that are left."""
    per_second, zoned = _PER_SECOND[clock.unit], clock.zone is not None
    kinds = set(map(type, values))
    if kinds == {str}:
        array[:], sure = read(values, per_second, zoned)
        return np.flatnonzero(~sure).tolist()
    left = [at for at, value in enumerate(values) if type(value) not in _QUICK]
    if str in kinds:
        written = np.array([at for at, value in enumerate(values) if type(value) is str])
        array[written], sure = read([value for value in values if type(value) is str], per_second, zoned)
        left += written[~sure].tolist()
    if int in kinds:
        whole = np.array([at for at, value in enumerate(values) if type(value) is int])
        try:
            array[whole] = np.array([value for value in values if type(value) is int], np.int64)
        except OverflowError:
            left += whole.tolist()
        else:
            left += whole[array[whole] == NAT].tolist()
    return sorted(left)


def counts(array: Array, clock: Clock) -> Array:
    """A datetime64 array of any unit as int64 counts, NaT as NAT; none is rounded or wraps. Raises NoTime.

    Such arrays know no zone: they are taken as the clock's.
    """
    unit, step = np.datetime_data(array.dtype)
    if unit not in _SECONDS:
        raise NoTime(f"is a datetime64 of {unit!r}, which has no fixed length")
    ticks = array.astype(array.dtype.newbyteorder("="), order="C").view(np.int64)
    ratio = step * _SECONDS[unit] * _PER_SECOND[clock.unit]
    if ratio == 1:
        return ticks
    there = ticks != NAT
    if (finer := there & (ticks % ratio.denominator != 0)).any():
        raise NoTime(f"is finer than {clock.unit}, the unit of these times", int(finer.argmax()))
    whole = ticks // ratio.denominator
    most = (2**63 - 1) // ratio.numerator
    if (far := there & ((whole > most) | (whole < -most))).any():
        raise NoTime(f"does not fit an int64 of {clock.unit}", int(far.argmax()))
    return np.where(there, np.where(there, whole, 0) * ratio.numerator, NAT)


def texts(array: Array, clock: Clock) -> list[str | None]:
    """Counts in ISO 8601, `2026-01-31T12:00:00.000Z`; None for those that are not writable, as NAT is not."""
    there = writable(array, clock).reshape(-1)
    flat = np.where(there, array.reshape(-1), 0).view(f"datetime64[{clock.unit}]")
    zone = "Z" if clock.zone else ""
    written = np.datetime_as_string(flat).tolist()
    return [text + zone if one else None for text, one in zip(written, there.tolist(), strict=True)]


def writable(array: Array, clock: Clock) -> Array:
    """Which counts are times of the years 1 to 9999."""
    per_second = _PER_SECOND[clock.unit]
    first, last = (date(year, 1, 1).toordinal() - _EPOCH_DAY for year in (1, 9999))
    beyond = (last + 365) * 86_400 * per_second
    fits: Array = (array >= max(first * 86_400 * per_second, NAT + 1)) & (array <= min(beyond - 1, 2**63 - 1))
    return fits
