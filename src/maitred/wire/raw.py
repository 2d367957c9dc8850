"""Tensors as the raw bytes of the binary extension, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, DType, Tensor
from maitred.wire.dtypes import DATATYPES, decoded
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.sizes import PIECE_BYTES, PIECE_ELEMENTS


def from_raw(name: str, dtype: DType, shape: tuple[int, ...], buffer: Any, pause: Pause = no_pause) -> Tensor:
    """The tensor in a binary body: little-endian elements, or for `str` and `bytes` a u32 length before each.

    Numbers are not copied. A `pause` comes between pieces of what must be looked at. Raises Malformed where the length
    disagrees with the (checked) shape, a bool is not 0 or 1, or a `str` is not UTF-8.
    """
    count = math.prod(shape)
    if dtype in ("str", "bytes"):
        return Tensor(dtype, shape, _strings(name, dtype, count, memoryview(buffer).cast("B"), pause))
    size = len(buffer) if isinstance(buffer, (bytes, bytearray)) else memoryview(buffer).nbytes
    if size != count * ITEM_BYTES[dtype]:
        raise Malformed(
            f"input {name!r}: {DATATYPES[dtype]} {list(shape)} takes {count * ITEM_BYTES[dtype]} bytes, got {size}"
        )
    if dtype == "bool":
        view = memoryview(buffer).cast("B")
        for at in range(0, size, PIECE_BYTES):
            if bytes(view[at : at + PIECE_BYTES]).translate(None, b"\0\1"):
                raise Malformed(f"input {name!r}: BOOL elements must be bytes of value 0 or 1")
            pause()
    return Tensor(dtype, shape, buffer)


def _strings(name: str, dtype: DType, count: int, buffer: memoryview, pause: Pause) -> list[Any]:
    if count > len(buffer) // 4:
        raise Malformed(f"input {name!r}: {len(buffer)} bytes cannot hold {count} BYTES elements")
    elements: list[Any] = []
    whole = bytes(buffer)
    at = 0
    for index in range(count):
        start = at + 4
        at = start + int.from_bytes(whole[at:start], "little")
        if start > len(whole) or at > len(whole):
            raise Malformed(f"input {name!r}: element {index} runs past the end of the data")
        elements.append(whole[start:at])
        if index % PIECE_ELEMENTS == 0:
            pause()
    if at != len(whole):
        raise Malformed(f"input {name!r}: {len(whole) - at} bytes follow the last of {count} elements")
    return decoded(name, elements) if dtype == "str" else elements


def to_raw(tensor: Tensor) -> Any:
    """The tensor's bytes as the binary extension carries them; a view of its data where these are numbers."""
    data = tensor.data
    if isinstance(data, list):
        return b"".join(_prefixed(data))
    if isinstance(data, np.ndarray):
        octets: Any = data.reshape(-1).view(np.uint8)
        return memoryview(octets)
    return data


def _prefixed(elements: list[Any]) -> Iterator[bytes]:
    for element in elements:
        piece = element.encode() if isinstance(element, str) else element
        yield len(piece).to_bytes(4, "little")
        yield piece
