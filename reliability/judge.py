"""How a test's measurements become one line: `A1 met <measured> of <wanted> [scaled: ...]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["short", "nightly", "release"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What one test demands, and how big it is in each tier."""

    wanted: str
    limits: Mapping[str, float] = field(default_factory=dict)
    """Bounds; never loosened by a tier."""
    full: Mapping[str, float] = field(default_factory=dict)
    """Sizes of the whole test: counts and durations."""
    short: Mapping[str, float] = field(default_factory=dict)
    """Those of the sizes that the short tier makes smaller."""
    part: str = ""
    """What of the test is left out for now, and why."""


class Case:
    """One run of one test: its sizes and limits, and what was found. A fact that fails makes the test missed."""

    def __init__(self, id: str, figure: Figure, tier: Tier) -> None:
        self.id = id
        self.figure = figure
        self._sizes = {**figure.full, **(figure.short if tier == "short" else {})}
        self._facts: list[str] = []
        self.met = True

    def size(self, name: str) -> int:
        return int(self._sizes[name])

    def seconds(self, name: str) -> float:
        return float(self._sizes[name])

    def limit(self, name: str) -> float:
        return self.figure.limits[name]

    def fact(self, text: str, holds: bool = True) -> None:
        """Something measured; `holds` says whether it is as wanted."""
        self._facts.append(text if holds else f"{text} (!)")
        self.met = self.met and holds

    def at_most(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self.fact(f"{name} {_shown(value)}{unit}", value <= limit)

    def at_least(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self.fact(f"{name} {_shown(value)}{unit}", value >= limit)

    def none(self, name: str, found: list[str] | int) -> None:
        """`found` has to be empty; its first entry is shown if it is not."""
        count = found if isinstance(found, int) else len(found)
        example = f": {found[0][:160]}" if isinstance(found, list) and found else ""
        self.fact(f"{count} {name}{example}", count == 0)

    def line(self) -> str:
        scaled = [f"{_shown(self._sizes[k])} {k.replace('_', ' ')} of {_shown(v)}" for k, v in self.figure.full.items()
                  if self._sizes[k] != v]  # fmt: skip
        notes = [f"scaled: {', '.join(scaled)}"] if scaled else []
        notes += [f"part: {self.figure.part}"] if self.figure.part else []
        tail = "".join(f" [{note}]" for note in notes)
        return f"{self.id} {'met' if self.met else 'missed'} {'; '.join(self._facts)} of {self.figure.wanted}{tail}"


Check = Callable[[Case], Awaitable[None]]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def percentile(values: list[float], share: float) -> float:
    """The smallest value with at least `share` of the values at or below it; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
