"""Where the elements of a long JSON array go, piece by piece."""

from __future__ import annotations

from typing import Any

import numpy as np

from maitred.messages import ITEM_BYTES, DType, Tensor
from maitred.wire.missing import Partial


class Store:
    """Where the elements of a tensor go, in their order."""

    def __init__(self, dtype: DType, count: int) -> None:
        self.count = count
        self.size = 0
        """Elements that are there."""
        self._dtype = dtype
        self._item = ITEM_BYTES.get(dtype, 0)
        self._listed: list[Any] = []
        octets: Any = np.empty(count * self._item, np.uint8)  # not zeroed, unlike a bytearray
        self._bytes: Any = memoryview(octets)
        self._valid: Any = None

    def add(self, part: Tensor) -> None:
        """Take the next elements; there must be room for them."""
        start, self.size = self.size, self.size + part.shape[0]
        if self._item:
            self._bytes[start * self._item : self.size * self._item] = part.data
        else:
            self._listed += part.data
        if isinstance(part, Partial):
            if self._valid is None:
                self._valid = np.ones(self.count, np.uint8)
            self._valid[start : self.size] = np.frombuffer(part.valid, np.uint8)

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        data = self._bytes if self._item else self._listed
        if self._valid is None:
            return Tensor(self._dtype, shape, data)
        return Partial(self._dtype, shape, data, self._valid.tobytes())
