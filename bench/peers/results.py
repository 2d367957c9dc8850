"""Measurements on disk: one for each row, server and run, so that a part can be measured anew; and their medians."""

from __future__ import annotations

import datetime
import json
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, str, int]
"""Row, server, run."""


@dataclass
class Results:
    """All cells of one file."""

    place: Path
    cells: dict[Key, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """Machine, and versions by name, as the last run with each of them found it."""
    stamp: dict[str, Any] = field(default_factory=dict)
    """Goes into each cell from here on: the commit and the length of an ordinary load."""

    @classmethod
    def read(cls, place: Path) -> Results:
        """What the file holds; nothing if there is none."""
        found = cls(place)
        if place.exists():
            data = json.loads(place.read_text())
            found.about = data["about"]
            for cell in data["cells"]:
                found.cells[cell["row"], cell["peer"], cell["run"]] = cell
        return found

    def write(self) -> None:
        self.place.parent.mkdir(parents=True, exist_ok=True)
        aside = self.place.with_suffix(".tmp")
        aside.write_text(json.dumps({"about": self.about, "cells": list(self.cells.values())}, indent=0))
        os.replace(aside, self.place)

    def put(self, row: str, peer: str, run: int, values: dict[str, Any]) -> None:
        """`values` may be `{"error": why}`."""
        at = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
        self.cells[row, peer, run] = {"row": row, "peer": peer, "run": run, "at": at, **self.stamp, **values}
        self.write()

    def forget(self, row: str, peer: str) -> None:
        for key in [key for key in self.cells if key[:2] == (row, peer)]:
            del self.cells[key]

    # ------------------------------------------------------------------ what they say

    def runs(self, row: str, peer: str) -> list[dict[str, Any]]:
        """The runs that ended well."""
        found = [cell for (r, p, _), cell in sorted(self.cells.items()) if (r, p) == (row, peer)]
        return [cell for cell in found if "error" not in cell]

    def error(self, row: str, peer: str) -> str:
        """Why there is no figure; empty if there is one, or if nothing was tried."""
        if self.runs(row, peer):
            return ""
        return next((c["error"] for (r, p, _), c in sorted(self.cells.items()) if (r, p) == (row, peer)), "")

    def values(self, row: str, peer: str, key: str) -> list[float]:
        return [float(cell[key]) for cell in self.runs(row, peer) if cell.get(key) is not None]

    def value(self, row: str, peer: str, key: str) -> float | None:
        """The median of the runs."""
        found = self.values(row, peer, key)
        return statistics.median(found) if found else None

    def ratio(self, row: str, peer: str, key: str, other: str | None = None) -> float | None:
        """maitred's figure over another server's: the median over the runs in which both have one.

        Where one of them was measured once only, its figure stands for all runs. `other`: that server's key, if it is
        a different one.
        """
        other = other or key
        ours = {cell["run"]: cell[key] for cell in self.runs(row, "maitred") if cell.get(key) is not None}
        theirs = {cell["run"]: cell[other] for cell in self.runs(row, peer) if cell.get(other)}
        both = sorted(ours.keys() & theirs.keys())
        if both and len(both) == min(len(ours), len(theirs)) and len(both) > 1:
            return statistics.median(ours[run] / theirs[run] for run in both)
        if ours and theirs:
            return statistics.median(ours.values()) / statistics.median(theirs.values())
        return None

    def stamps(self, key: str) -> list[Any]:
        """What the cells say of where they are from, each once."""
        return sorted({cell[key] for cell in self.cells.values() if key in cell})

    def when(self) -> tuple[str, str]:
        """From and to."""
        times = sorted(cell["at"] for cell in self.cells.values())
        return (times[0], times[-1]) if times else ("", "")
