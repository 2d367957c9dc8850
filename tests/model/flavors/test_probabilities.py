"""Probabilities add up to one, for any size of numbers and for any number of classes."""

from __future__ import annotations

import numpy as np

from maitred.model.flavors.probabilities import of_all, softmax


def test_softmax_of_large_numbers_does_not_overflow() -> None:
    shares = softmax(np.array([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], np.float32))
    assert shares.dtype == np.float32
    assert np.allclose(shares, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_the_second_of_two_classes_tells_the_first() -> None:
    chances = np.array([0.25, 1.0], np.float32)
    both = of_all(chances)
    assert both.dtype == np.float32
    assert both.tolist() == [[0.75, 0.25], [0.0, 1.0]]
    assert of_all(both) is both
