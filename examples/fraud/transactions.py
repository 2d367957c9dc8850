"""The transactions: river's Shuttle data, whose rare states stand for frauds, in the order in which they came."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from river.datasets import Shuttle

KNOWN = 34_000
"""So many transactions lie in the past: models are trained on these, and judged on those that come after."""


def load() -> tuple[pd.DataFrame, npt.NDArray[np.bool_]]:
    """The nine numbers of each transaction, and whether it was a fraud."""
    rows = list(Shuttle())
    return pd.DataFrame([numbers for numbers, _ in rows]), np.array([fraud == 1 for _, fraud in rows])
