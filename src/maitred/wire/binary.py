"""The binary tensor extension: a JSON head and, right behind it, the raw tensors in the order of the head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from maitred.errors import Malformed
from maitred.wire.json import Body, InputEntry, shown

HEADER: Final = "Inference-Header-Content-Length"
MAX_DIGITS: Final = 18


def split(body: Body | memoryview, header_length: bytes) -> tuple[bytes, memoryview]:
    """The JSON head and a view of the tensors behind it. `header_length` is the header's value. Raises Malformed."""
    text = header_length.strip()
    if not text.isdigit() or len(text) > MAX_DIGITS:
        raise Malformed(f"{HEADER} must be a count of bytes, got {shown(text.decode('latin-1'))}")
    length = int(text)
    if length > len(body):
        raise Malformed(f"{HEADER} is {length}, and the body has only {len(body)} bytes")
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


def cut(entries: Iterable[InputEntry], tensors: memoryview | None) -> dict[str, memoryview]:
    """The raw bytes of each input that has `binary_data_size`, without a copy.

    `tensors` is what follows the head; None for a request without the header. Raises Malformed naming the input where
    sizes are not counts, do not add up to what was sent, or come twice or with JSON elements too.
    """
    cuts: dict[str, memoryview] = {}
    start = 0
    available = 0 if tensors is None else len(tensors)
    for entry in entries:
        size = _size(entry)
        if size is None:
            continue
        if tensors is None:
            raise Malformed(f"input {shown(entry.name)} has binary_data_size, and the request has no {HEADER} header")
        if entry.data:
            raise Malformed(f"input {shown(entry.name)} has both data and binary_data_size; send one of them")
        if entry.name in cuts:
            raise Malformed(f"input {shown(entry.name)} is sent twice")
        if size > available - start:
            raise Malformed(
                f"input {shown(entry.name)} has binary_data_size {size}, and {available - start} bytes are left "
                f"of the {available} behind the JSON of the size that {HEADER} says"
            )
        cuts[entry.name] = tensors[start : start + size]
        start += size
    if start != available:
        raise Malformed(
            f"the binary_data_size of all inputs add up to {start}, and {available} bytes follow the JSON of the size "
            f"that {HEADER} says"
        )
    return cuts


def _size(entry: InputEntry) -> int | None:
    size = None if entry.parameters is None else entry.parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise Malformed(f"input {shown(entry.name)}: binary_data_size must be a count of bytes")
    return size


def join(head: bytes, tensors: Sequence[Any]) -> tuple[bytes, bytes]:
    """A body of `head` and the raw `tensors`, and the header line that says where one ends and the others begin.

    Without tensors the body is the head alone and there is no header line.
    """
    if not tensors:
        return head, b""
    return b"".join((head, *tensors)), line(head)


def line(head: bytes) -> bytes:
    """The header line that says where the JSON ends and the tensors begin."""
    return b"%s: %d\r\n" % (HEADER.encode(), len(head))
