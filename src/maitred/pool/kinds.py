"""Where a model runs when nobody has said so: a rule over what is known and was measured, with its reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from maitred.model.description import Description, Timing
from maitred.model.signature import Signature

Kind = Literal["process", "thread", "inline"]

INLINE_SECONDS: Final = 50e-6
"""A batch of a model that the server runs itself takes no longer, in the middle and at worst, where it is measured."""

BACK_SECONDS: Final = 200e-6
"""A batch in serving that takes longer speaks against it, ..."""
STALL_SECONDS: Final = 10e-3
"""... and one that takes longer than this weighs `_STALL_WEIGHT` times as much: everybody has waited for it."""
_STALL_WEIGHT: Final = 8
_WINDOW: Final = 64
"""Batches that are looked at together; after them it begins anew."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision is made from."""

    flavor: str
    native: bool
    """Whether a native library does its work, and nothing of what it was opened from can run or be imported."""
    trusted: bool = False
    """Whether somebody had to allow code of its own."""
    copies: int = 1
    device: str = "cpu"
    side_effects: bool = False
    slots: int = 1
    varies: str = ""
    """What of a request, besides its rows, the time of a batch depends on; empty for nothing."""
    timings: tuple[Timing, ...] = ()
    """Measured in its own process once it was warm; the least and the most rows."""


class Choice(msgspec.Struct, frozen=True):
    """Where a model runs, and why, for its operator."""

    kind: Kind
    why: str

    def __str__(self) -> str:
        return f"{PLACES[self.kind]}: {self.why}"


PLACES: Final[dict[Kind, str]] = {
    "process": "runs in a process of its own",
    "thread": "runs in a thread of the server",
    "inline": "runs in the server itself",
}


def choose(facts: Facts) -> Choice:
    """`inline` where nothing speaks against it, else `process`; never `thread`, which a process is never slower than.

    Whatever runs in the server cannot be killed or give its memory back, and a crash of it is everybody's.
    """
    reason = _unfit(facts) or _slow(facts.timings)
    if reason:
        return Choice("process", reason)
    measured = " and ".join(f"{_shown(t.median_seconds)} for {_rows(t.rows)}" for t in facts.timings)
    return Choice("inline", f"{measured}: within the limit of {_shown(INLINE_SECONDS)}")


def facts_of(description: Description, copies: int, device: str) -> Facts:
    """The facts that a model's description holds, and what was asked for."""
    traits = description.traits
    return Facts(
        flavor=description.flavor,
        native=description.native,
        trusted=bool(description.trust),
        copies=copies,
        device=device,
        side_effects=traits.side_effects,
        slots=max(traits.slots, 2 if traits.asynchronous else 1),
        varies=varies(description.signature),
        timings=description.timings,
    )


def varies(signature: Signature) -> str:
    """What of a request the time of a batch may depend on besides its rows: text, and sizes that are not fixed."""
    for spec in signature.inputs.values():
        if spec.dtype in ("str", "bytes"):
            return f"input {spec.name} is {spec.dtype}"
        rows = signature.row_symbol if signature.row_wise else None
        for size in spec.shape:
            if isinstance(size, str) and size != rows:
                return f"{size} of input {spec.name} may be any size"
    return ""


def _unfit(facts: Facts) -> str:
    """What speaks for a process without any measurement."""
    if facts.trusted:
        return "it came with code or a pickle, which somebody had to allow"
    if not facts.native:
        return f"flavor {facts.flavor} may run code that came with the model"
    if facts.copies > 1:
        return f"{facts.copies} copies were asked for"
    if facts.device != "cpu":
        return f"its device is {facts.device}"
    if facts.side_effects:
        return "it has side effects"
    if facts.slots > 1:
        return "it takes several calls at once"
    if facts.varies:
        return f"how long it takes depends on what it is asked: {facts.varies}"
    return ""


def _slow(timings: Sequence[Timing]) -> str:
    """The batch that took too long; of several the one with the most rows."""
    if not timings:
        return "it could not be measured"
    limit = f"over the limit of {_shown(INLINE_SECONDS)} for the server itself"
    for timing in reversed(timings):
        if timing.median_seconds > INLINE_SECONDS:
            return f"{_shown(timing.median_seconds)} for {_rows(timing.rows)}, {limit}"
    for timing in reversed(timings):
        if timing.slowest_seconds > INLINE_SECONDS:
            at_worst = f"{_shown(timing.slowest_seconds)} for {_rows(timing.rows)} at worst"
            return f"{at_worst} ({_shown(timing.median_seconds)} median), {limit}"
    return ""


class Overstays:
    """Watches a model that the server runs itself: are its batches longer in serving than they were when measured?

    It overstays once the weight of those that took over `BACK_SECONDS` is more than half of a `_WINDOW`. A lone
    hiccup of the machine is not enough.
    """

    __slots__ = ("_batches", "_weight", "_slowest", "reason")

    def __init__(self) -> None:
        self._batches = self._weight = 0
        self._slowest = 0.0
        self.reason = ""
        """In words; empty until it has overstayed."""

    def ran(self, seconds: float) -> bool:
        """A batch has taken so long. True once, when that was too much."""
        if self.reason:
            return False
        self._batches += 1
        if seconds > BACK_SECONDS:
            self._weight += 1 if seconds <= STALL_SECONDS else _STALL_WEIGHT
            self._slowest = max(self._slowest, seconds)
            if self._weight > _WINDOW // 2:
                limit = _shown(BACK_SECONDS)
                self.reason = f"it took over {limit} a batch in the server, {_shown(self._slowest)} at worst"
                return True
        if self._batches == _WINDOW:
            self._batches = self._weight = 0
            self._slowest = 0.0
        return False


def _shown(seconds: float) -> str:
    """`7.3 us`, `180 us`, `12 ms`."""
    if seconds >= 9.5e-3:
        return f"{seconds * 1e3:,.0f} ms"
    return f"{seconds * 1e6:,.0f} us" if seconds >= 9.5e-6 else f"{seconds * 1e6:.1f} us"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
