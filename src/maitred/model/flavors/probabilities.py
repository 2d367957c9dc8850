"""Probabilities of classes, from the numbers that libraries give in their place."""

from __future__ import annotations

import numpy as np

from maitred.wire.coerce import Array


def softmax(values: Array) -> Array:
    """Along the last axis."""
    raised: Array = np.exp(values - values.max(axis=-1, keepdims=True))
    shares: Array = raised / raised.sum(axis=-1, keepdims=True)
    return shares


def of_all(chances: Array) -> Array:
    """Of every class, where of two the library gives only the second one's."""
    if chances.ndim == 2:
        return chances
    both = np.empty((len(chances), 2), chances.dtype)
    both[:, 1] = chances
    np.subtract(1.0, chances, out=both[:, 0])
    return both
