"""Long JSON arrays of elements as tensors: read a piece at a time, so that no list of all their elements is made."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.wire.dtypes import MAX_DIMENSIONS
from maitred.wire.elements import Target, Within, place, tensor_of
from maitred.wire.json_decoders import check_number, decoder, depth_of, explained
from maitred.wire.json_store import Store
from maitred.wire.json_uneven import lengths_of, spread
from maitred.wire.nesting import are_even, check_uneven_lists, flat, sizes
from maitred.wire.pieces import Pause, commas, has_quotes, pieces
from maitred.wire.sizes import PIECE_BYTES


def from_pieces(
    target: Target, shape: tuple[int, ...] | None, text: memoryview, pad: Any, pause: Pause
) -> Tensor | None:
    """As `from_json`, for lists that hold something; None where that is not sure, for another to see to it.

    Says of each mistake what `from_json` says of it in short text. Raises Malformed, and what `pause` does.
    """
    quoted = has_quotes(text)
    texts = target.dtype in ("str", "bytes")
    count = commas(text, quoted and texts, pause) + 1
    if shape is not None:
        check_number(target.name, shape, count - 1)
    head = bytes(text[:PIECE_BYTES])
    depth = depth_of(head if head.strip(b"[ \t\r\n") else bytes(text))
    if not 0 < depth <= MAX_DIMENSIONS or (shape is not None and not math.prod(shape)):
        return None
    dims: tuple[int, ...] | None = (count,)
    lengths = None
    if depth > 1:
        dims = shape if shape is not None else sizes(text, quoted, depth, count, pause)
        if dims is None or len(dims) != depth or not are_even(text, quoted, dims, pause):
            dims, lengths = None, lengths_of(text, quoted, depth, pause)
            if lengths is None:
                return None
            check_uneven_lists(target.name, sum(map(len, lengths)))
    store = Store(target.dtype, count)
    if not _read(target, dims, text, quoted, store, pause):
        return None
    if lengths is not None:
        tensor = spread(target, store, lengths, pad if shape is None else None, pause)
        return tensor if shape is None else None  # even lists, but others than `shape` says
    return store.tensor(shape or dims or ())


def _read(
    target: Target, dims: tuple[int, ...] | None, text: memoryview, quoted: bool, store: Store, pause: Pause
) -> bool:
    """Whether all elements went into the store. Without `dims` it cannot be said where one is that did not."""
    decode = decoder(target.dtype, 1, target.nulls, target.names, target.clock is not None).decode
    strip = _all_brackets if dims is None or len(dims) > 1 else _outer_brackets
    unfit: Malformed | None = None
    for at, piece in pieces(text, quoted):
        within = Within.of(dims or (), store.size)
        try:
            values = decode(strip(piece, at == 0, at + len(piece) == len(text)))
        except msgspec.ValidationError as error:
            if dims is None:
                return False
            if len(dims) > 1:
                check_uneven_lists(target.name, sum(math.prod(dims[:axis]) for axis in range(len(dims))))
            raise Malformed(f"input {target.name!r}: {explained(target, _moved(str(error), within))}") from None
        except ValueError:  # text that is not UTF-8, or lists of nothing
            return False
        if store.size + len(values) > store.count:
            return False
        try:
            store.add(tensor_of(target, values, within, (len(values),)))
        except Malformed as error:  # elements of another type are told of first, wherever they are
            if dims is None:
                return False
            unfit = unfit or error
            store.size += len(values)
        pause()
    if store.size == store.count and unfit is not None:
        raise unfit
    return store.size == store.count


def _moved(message: str, within: Within) -> str:
    """A decoder's complaint with the place in the whole."""
    return _PLACE.sub(lambda found: "$" + place(int(found[1]), within).removeprefix(" at data"), message)


_PLACE: Final = re.compile(r"\$\[(\d+)\]")


def _all_brackets(piece: bytes, first: bool, last: bool) -> bytes:
    return flat(piece)


def _outer_brackets(piece: bytes, first: bool, last: bool) -> bytes:
    """A piece of a flat list as a list."""
    return b"%b%b%b" % (b"" if first else b"[", piece, b"" if last else b"]")
