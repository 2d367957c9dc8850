"""Many times in ISO 8601 at once: read column by column, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from maitred.wire.dtypes import Array
from maitred.wire.missing import NAT

AT_ONCE: Final = 1 << 14
"""Texts laid out side by side: few enough that the arrays of each step stay near."""

_DAY, _MINUTE, _SECOND, _LONGEST = 10, 16, 19, 38
"""Characters of a time up to its day, minute, second and last possible digit."""
_ZONES: Final = (0, 1, 3, 5, 6)
"""Characters of a zone: none, Z, +02, +0200, +02:00."""
_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_BEFORE: Final = np.cumsum(_DAYS) - _DAYS
"""Days of the year before each month's first."""
_EPOCH: Final = 719_162
"""Days from 0001-01-01 to 1970-01-01."""

Flags = npt.NDArray[np.bool_]


def read(texts: Sequence[str], per_second: int, zoned: bool) -> tuple[Array, Flags]:
    """The count of each text, and whether it is sure: where it is not, one by one is the way to read or refuse it."""
    found, sure = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    for start in range(0, len(texts), AT_ONCE):
        some = texts[start : start + AT_ONCE]
        lengths = list(map(len, some))
        for length in set(lengths):
            if _DAY <= length <= _LONGEST + _ZONES[-1]:
                places = np.flatnonzero(np.array(lengths) == length)
                same = some if len(places) == len(some) else [some[place] for place in places.tolist()]
                counts = _of_length(_matrix(same, length), per_second, zoned)
                found[start + places], sure[start + places] = counts
    return found, sure


def _matrix(texts: Sequence[str], length: int) -> Array:
    """Texts of one length below one another, each character that ASCII has not replaced by one that no time has."""
    return np.frombuffer("".join(texts).encode("ascii", "replace"), np.uint8).reshape(-1, length)


def _of_length(matrix: Array, per_second: int, zoned: bool) -> tuple[Array, Flags]:
    """As `read`, for texts of one length: each kind of zone that they end with on its own."""
    zones = _zones(matrix)
    kinds = [size for size in _ZONES if (zones == size).any()]
    if len(kinds) == 1:
        return _alike(matrix, kinds[0], per_second, zoned)
    found, sure = np.zeros(len(matrix), np.int64), np.zeros(len(matrix), bool)
    for zone in kinds:
        places = np.flatnonzero(zones == zone)
        found[places], sure[places] = _alike(matrix[places], zone, per_second, zoned)
    return found, sure


def _zones(matrix: Array) -> Array:
    """How many characters of each text are its zone."""
    length = matrix.shape[1]
    zones = _among(matrix[:, -1], b"Zz").astype(np.int64)
    for size in _ZONES[2:]:
        if length - size >= _MINUTE:
            zones[_among(matrix[:, -size], b"+-")] = size
    return zones


def _among(column: Array, characters: bytes) -> Flags:
    """Where one of a few characters stands."""
    found = np.zeros(len(column), bool)
    for character in characters:
        found |= column == character
    return found


def _alike(matrix: Array, zone: int, per_second: int, zoned: bool) -> tuple[Array, Flags]:
    """As `read`, for texts of one layout."""
    columns = np.ascontiguousarray(matrix.T)
    end = len(columns) - zone
    layout = end in (_MINUTE, _SECOND) or _SECOND + 1 < end <= _LONGEST or (end == _DAY and not zone)
    if (zone > 0) != zoned or not layout:
        return np.zeros(len(matrix), np.int64), np.zeros(len(matrix), bool)
    sure = np.ones(len(matrix), bool)
    days = _days(columns, sure)
    seconds = days * 86_400
    fine = np.zeros(len(matrix), np.int64)
    if end > _DAY:
        sure &= _among(columns[_DAY], b"Tt ")
        seconds += _clock(columns[_DAY + 1 :], end >= _SECOND, sure)
    if end > _SECOND:
        sure &= columns[_SECOND] == ord(".")
        fine = _fraction(columns[_SECOND + 1 : end], per_second, sure)
    if zone > 1:
        seconds -= _offset(columns[end:], sure)
    return _counted(seconds, fine, per_second, sure)


def _number(columns: Array, sure: Flags) -> Array:
    """The number that columns of digits write; where others stand among them, that is not `sure`."""
    value = np.zeros(columns.shape[1], np.int64)
    for column in columns:
        digit = column - np.uint8(ord("0"))  # wraps to a large one for what comes before it
        sure &= digit <= 9
        value *= 10
        value += digit
    return value


def _days(columns: Array, sure: Flags) -> Array:
    """Days since 1970 of columns of `2026-01-31`."""
    year, month, day = (_number(columns[a:b], sure) for a, b in ((0, 4), (5, 7), (8, 10)))
    sure &= (columns[4] == ord("-")) & (columns[7] == ord("-"))
    sure &= (year > 0) & (month > 0) & (month <= 12)
    month = np.where(sure, month, 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    sure &= (day > 0) & (day <= _DAYS[month] + (leap & (month == 2)))
    past = year - 1
    days: Array = past * 365 + past // 4 - past // 100 + past // 400 - _EPOCH
    days += _BEFORE[month] + (leap & (month > 2)) + day - 1
    return days


def _clock(columns: Array, with_seconds: bool, sure: Flags) -> Array:
    """Seconds since midnight of columns of `12:00` or `12:00:00`."""
    hour, minute = _number(columns[0:2], sure), _number(columns[3:5], sure)
    sure &= (hour < 24) & (minute < 60) & (columns[2] == ord(":"))
    seconds: Array = hour * 3600 + minute * 60
    if with_seconds:
        second = _number(columns[6:8], sure)
        sure &= (second < 60) & (columns[5] == ord(":"))
        seconds += second
    return seconds


def _offset(columns: Array, sure: Flags) -> Array:
    """Seconds by which zones such as `+02`, `+0200` or `+02:00` are ahead."""
    hour = _number(columns[1:3], sure)
    sure &= hour < 24
    seconds = hour * 3600
    if len(columns) > 3:
        minute = _number(columns[-2:], sure)
        sure &= minute < 60
        seconds += minute * 60
    if len(columns) == _ZONES[-1]:
        sure &= columns[3] == ord(":")
    ahead: Array = np.where(columns[0] == ord("-"), -seconds, seconds)
    return ahead


def _fraction(columns: Array, per_second: int, sure: Flags) -> Array:
    """Columns of digits after the decimal point, in the unit; not `sure` where they are finer than it."""
    value = _number(columns, sure)
    parts = 10 ** len(columns)
    if parts <= per_second:
        value *= per_second // parts
        return value
    fine, rest = np.divmod(value, parts // per_second)
    sure &= rest == 0
    return fine


def _counted(seconds: Array, fine: Array, per_second: int, sure: Flags) -> tuple[Array, Flags]:
    """The counts; not `sure` where int64 does not hold them."""
    most = (2**63 - 1) // per_second
    sure &= np.abs(seconds) - 1 <= most  # what is beyond int64 then wraps only once, so that its sign tells
    counts = seconds * per_second + fine
    sure &= ((counts < 0) == (seconds < 0)) & (counts != NAT)
    return counts, sure
