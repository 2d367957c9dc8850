"""How named tensors lie in a block: a head that names them, then their elements, each at a place that follows."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from maitred.messages import ITEM_BYTES
from maitred.wire.coerce import MAX_DIMENSIONS, NUMPY_TYPES

ALIGN: Final = 64
_MAX_TENSORS: Final = 4096

Named = tuple[str, str, tuple[int, ...]]
"""Name, dtype, shape."""

_encoder: Final = msgspec.msgpack.Encoder()
_heads: Final = msgspec.msgpack.Decoder(list[Named])
_ITEMS: Final[dict[str, Any]] = {
    "str": msgspec.msgpack.Decoder(list[str]),
    "bytes": msgspec.msgpack.Decoder(list[bytes]),
}


class Invalid(Exception):
    """What lies in a block is not what may lie there; the message says what is wrong."""


class Fixed(NamedTuple):
    """A tensor of fixed-size elements and its place."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    numpy: np.dtype[Any]
    elements: int
    start: int
    """From the end of the heads, as `stop`."""
    stop: int


class Layout(NamedTuple):
    """Where everything lies. Tensors of `str` and `bytes` come last, each behind its length in bytes."""

    head: bytes
    fixed: tuple[Fixed, ...]
    loose: tuple[Named, ...]
    end: int
    """Bytes of the fixed part."""
    start: int
    """How far from a block's start the elements begin, where there is no context."""
    size: int
    """Bytes in all, without a context and the loose tensors."""
    special: bool
    """Whether there are loose tensors, bools, or tensors without elements."""


def lay_out(tensors: Iterable[Named]) -> Layout:
    """The one layout of these tensors; both sides come to the same. Raises Invalid for impossible dtypes or shapes."""
    named = list(tensors)
    fixed, loose, end = [], [], 0
    for item in named:
        name, dtype, shape = item
        if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
            raise Invalid(f"'{name}' has an impossible shape")
        if dtype in ITEM_BYTES:
            count = math.prod(shape)
            stop = end + count * ITEM_BYTES[dtype]
            fixed.append(Fixed(name, dtype, shape, NUMPY_TYPES[dtype], count, end, stop))
            end = body(stop)
        elif dtype in _ITEMS:
            loose.append(item)
        else:
            raise Invalid(f"'{name}' has an unknown dtype")
    head = _encoder.encode(named)
    start = body(len(head))
    special = bool(loose) or any(item.dtype == "bool" or not item.elements for item in fixed)
    return Layout(head, tuple(fixed), tuple(loose), end, start, start + end, special)


def read_head(head: bytes) -> Layout:
    """The layout that a head from the other side names. Raises Invalid."""
    try:
        named = _heads.decode(head)
    except msgspec.MsgspecError as error:
        raise Invalid("the head cannot be read") from error
    if len(named) > _MAX_TENSORS or len({name for name, _, _ in named}) != len(named):
        raise Invalid("the head names a tensor twice, or too many of them")
    return lay_out(named)


def body(head_bytes: int, context_bytes: int = 0) -> int:
    """How far from a block's start the elements begin."""
    return (head_bytes + context_bytes + ALIGN - 1) & -ALIGN


def pack_items(items: Sequence[str] | Sequence[bytes]) -> bytes:
    """The elements of a `str` or `bytes` tensor with their length before them.

    Raises UnicodeEncodeError for text that is no UTF-8 and TypeError for elements that are neither.
    """
    packed = _encoder.encode(items)
    return len(packed).to_bytes(8, "little") + packed + bytes(-len(packed) % 8)


def loose_bytes(packed: Sequence[bytes]) -> int:
    return sum(map(len, packed))


def write_loose(map: mmap.mmap, at: int, packed: Sequence[bytes]) -> None:
    for piece in packed:
        map[at : at + len(piece)] = piece
        at += len(piece)


def raw(data: Any) -> Any:
    """The bytes of fixed-size elements as something that can be copied from."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return data


def read(view: memoryview, at: int, layout: Layout, end: int) -> dict[str, Any]:
    """The tensors whose elements begin at `at`: read-only arrays that look into the block, and lists of own objects.

    Raises Invalid where they would reach beyond `end`, and for elements that are not of their dtype.
    """
    if at + layout.end > end:
        raise Invalid("the tensors reach beyond their block")
    found = look(view, at, layout)
    at += layout.end
    for name, loose_dtype, shape in layout.loose:
        found[name], at = _read_items(view, at, end, name, loose_dtype, math.prod(shape))
    return found


def look(view: memoryview, at: int, layout: Layout) -> dict[str, Any]:
    """The tensors of fixed-size elements alone, where it is known that they don't reach too far."""
    found: dict[str, Any] = {}
    for name, _, shape, dtype, count, start, _ in layout.fixed:
        if count:
            array = np.frombuffer(view, dtype, count, at + start)
            found[name] = array if len(shape) == 1 else array.reshape(shape)
        else:
            found[name] = np.empty(shape, dtype)
    return found


def read_placed(
    views: Callable[[int], memoryview], places: Iterable[tuple[int, int]], layout: Layout, view: memoryview, at: int
) -> dict[str, Any]:
    """As `read`, where each tensor of fixed-size elements lies somewhere of its own: in which segment, and where there.

    Segment 0 stands for what lies in `view`, counted from `at`; the loose ones come behind that. Raises Invalid, and
    ValueError where a tensor would reach beyond its segment.
    """
    found: dict[str, Any] = {}
    end = at
    for (name, _, shape, dtype, count, begin, stop), (segment, start) in zip(layout.fixed, places, strict=True):
        if not segment:
            start += at
            end = at + body(start - at + stop - begin)
        if count:
            found[name] = np.frombuffer(views(segment) if segment else view, dtype, count, start).reshape(shape)
        else:
            found[name] = np.empty(shape, dtype)
    at = end
    for name, loose_dtype, shape in layout.loose:
        found[name], at = _read_items(view, at, len(view), name, loose_dtype, math.prod(shape))
    return found


def _read_items(view: memoryview, at: int, end: int, name: str, dtype: str, count: int) -> tuple[list[Any], int]:
    length = int.from_bytes(view[at : at + 8], "little") if at + 8 <= end else end
    at += 8
    if at + length > end:
        raise Invalid(f"'{name}' reaches beyond its block")
    own = bytes(view[at : at + length])  # nobody can change it while it is read
    try:
        items: list[Any] = _ITEMS[dtype].decode(own)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"'{name}' holds elements that are no {dtype}") from error
    if len(items) != count:
        raise Invalid(f"'{name}' holds {len(items)} elements, not {count}")
    return items, at + length + -length % 8
