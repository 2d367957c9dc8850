"""Long JSON lists of different lengths: where their elements are once the lists are filled up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from maitred.messages import ITEM_BYTES, Filled, Tensor
from maitred.wire.dtypes import Array
from maitred.wire.elements import Target, check_fill, ragged, tensor_of
from maitred.wire.json_store import Store
from maitred.wire.missing import Partial
from maitred.wire.nesting import structure
from maitred.wire.pieces import Pause, pieces
from maitred.wire.sizes import PIECE_ELEMENTS

Lengths = list[Array]
"""For each depth, how many elements or lists each list has."""

_SPACE = b" \t\r\n"
_OPEN, _CLOSE, _COMMA = b"[],"


def lengths_of(text: memoryview, quoted: bool, depth: int, pause: Pause) -> Lengths | None:
    """How long the lists of valid JSON are, nested `depth` deep throughout; None where one is deeper or empty, or there
    are elements beside lists."""
    counts: list[list[Array]] = [[] for _ in range(depth)]
    before = [0] * depth
    level = 0
    for at, piece in pieces(text, quoted):
        brackets = structure(piece)
        if b"[]" in brackets and b"[]" in piece.translate(None, _SPACE):
            return None
        marks = np.frombuffer((b"," if at else b"") + brackets, np.uint8)
        opens, closes, commas = marks == _OPEN, marks == _CLOSE, marks == _COMMA
        levels = np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int64) + level
        outer = (levels < depth) & (opens | commas)
        if levels.max(initial=0) > depth or outer[-1:].any() or not opens[1:][outer[:-1]].all():
            return None
        level = int(levels[-1]) if len(levels) else level
        for axis in range(depth):
            seen = np.cumsum(commas & (levels == axis + 1)) + before[axis]
            counts[axis].append(seen[closes & (levels == axis)])
            before[axis] = int(seen[-1]) if len(seen) else before[axis]
        pause()
    return [np.diff(np.concatenate(found), prepend=0) + 1 for found in counts]  # the first follows no comma


def spread(target: Target, store: Store, lengths: Lengths, pad: Any, pause: Pause) -> Tensor:
    """The tensor of lists that were read into the store. Raises Malformed where they are uneven and there is no `pad`,
    or too much would have to be filled up."""
    name = target.name
    dims = [int(lengths[0][0])]
    places = np.arange(dims[0])
    uneven = False
    for inner in lengths[1:]:
        width = int(inner.max())
        if (inner != inner[0]).any():
            if pad is None:
                raise ragged(name, inner.tolist())
            uneven = True
        check_fill(name, math.prod(dims) * width - int(inner.sum()))
        if inner is not lengths[-1]:
            places = _children(places, inner, width)
        dims.append(width)
    shape = tuple(dims)
    if not uneven:
        return store.tensor(shape)
    full = np.zeros(math.prod(dims[:-1]), np.int64)
    full[places] = lengths[-1]
    real = (np.arange(dims[-1]) < full[:, None]).reshape(shape)
    filler = tensor_of(target, [pad], (1,), (1,)).data
    read = store.tensor((store.count,))

    def laid(elements: Any, between: Any) -> Any:
        return _laid(elements, between, places, lengths[-1], dims, pause)

    size = ITEM_BYTES.get(target.dtype)
    if size is None:
        kept = np.array(read.data, object)
        data: Any = laid(kept, filler[0]).tolist()
    else:
        kind = np.dtype(f"u{size}")
        data = memoryview(laid(np.frombuffer(read.data, kind), np.frombuffer(filler, kind)[0]).view(np.uint8))
    valid = laid(np.frombuffer(read.valid, np.uint8), 1).tobytes() if isinstance(read, Partial) else None
    return Filled(target.dtype, shape, data, real, valid)


def _children(places: Array, lengths: Array, width: int) -> Array:
    """Where the members of lists are, each list being `width` long, given where the lists are."""
    ends = np.cumsum(lengths)
    firsts = np.repeat(places * width - (ends - lengths), lengths)
    moved: Array = firsts + np.arange(len(firsts))
    return moved


def _laid(read: Array, filler: Any, places: Array, lengths: Array, dims: list[int], pause: Pause) -> Array:
    """The elements laid out in lists of the last of `dims`, `filler` between them."""
    laid: Array = np.full(math.prod(dims), filler, read.dtype)
    start = 0
    step = max(1, PIECE_ELEMENTS // max(1, dims[-1]))
    for at in range(0, len(places), step):
        some = lengths[at : at + step]
        stop = start + int(some.sum())
        laid[_children(places[at : at + step], some, dims[-1])] = read[start:stop]
        start = stop
        pause()
    return laid
