"""Who is owed a turn: guaranteed shares of the lanes, and fair shares of the tenants."""

from __future__ import annotations

from typing import Final

from maitred.messages import BACKGROUND, HIGH, LANES, NORMAL


class Shares:
    """A deficit counter per lane: a lane that waits while others are served is owed `share` of their rows.

    A lane that is owed rows leads the next batch and pays for what it takes. A lane that does not wait saves up
    nothing. The best lane needs no guarantee.
    """

    __slots__ = ("owed", "_share", "_most")

    def __init__(self, share: float, most: float) -> None:
        self.owed = [0.0] * len(LANES)
        self._share = share
        self._most = most
        """What a lane may be owed, and may owe, in rows."""

    def lead(self, high: int, normal: int, background: int) -> int:
        """The lane that leads the next batch, from the rows that wait in each."""
        owed = self.owed
        if owed[NORMAL] > 0.0 and normal:
            return NORMAL
        if owed[BACKGROUND] > 0.0 and background:
            return BACKGROUND
        return HIGH if high else NORMAL if normal else BACKGROUND

    def is_owed(self, lane: int) -> bool:
        return self.owed[lane] > 0.0

    def charge(self, lane: int, rows: int, taken: int, waits: bool) -> None:
        """A batch of `rows` was started, of which `taken` came from `lane`; `waits`: more of that lane is left."""
        if waits:
            owed = self.owed[lane] + self._share * rows - taken
            self.owed[lane] = max(-self._most, min(owed, self._most))
        else:
            self.owed[lane] = 0.0


_FORGET_SECONDS: Final = 10.0
_MOST_TENANTS: Final = 1024
_TOLERANCE: Final = 1.25
"""How far above its fair share a tenant may be: equals would otherwise be over it by turns."""


class Tenants:
    """Rows that each tenant was lately admitted with; halved every ten seconds, at most 1,024 tenants remembered."""

    __slots__ = ("_rows", "_total", "_forget_at")

    def __init__(self) -> None:
        self._rows: dict[str, float] = {}
        self._total = 0.0
        self._forget_at = 0.0

    def over(self, tenant: str, rows: int, now: float) -> bool:
        """Count `rows` for a tenant and say whether it has more than its fair share: a part for each that is active.

        A tenant that is alone is never over. Only the tenants with the most rows are sure to be remembered.
        """
        if now >= self._forget_at:
            self._forget(now)
        if len(self._rows) >= _MOST_TENANTS and tenant not in self._rows:
            self._make_place()
        own = self._rows[tenant] = self._rows.get(tenant, 0.0) + rows
        self._total += rows
        return own * len(self._rows) > _TOLERANCE * self._total

    def _forget(self, now: float) -> None:
        self._forget_at = now + _FORGET_SECONDS
        self._rows = {tenant: rows / 2 for tenant, rows in self._rows.items() if rows >= 1.0}
        self._total = sum(self._rows.values())

    def _make_place(self) -> None:
        """Forget the smaller half."""
        largest = sorted(self._rows.items(), key=_rows, reverse=True)[: _MOST_TENANTS // 2]
        self._rows = dict(largest)
        self._total = sum(self._rows.values())


def _rows(entry: tuple[str, float]) -> float:
    return entry[1]
