"""ModelInferRequest and ModelInferResponse of the Open Inference Protocol as bytes, without a protobuf library."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

NUMPY = {"FP32": np.float32, "INT64": np.int64}
_PREFIX = struct.Struct(">BI")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(number: int, value: bytes) -> bytes:
    """A field that has a length: text, bytes, a message, packed numbers."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def request(model: str, id: str, inputs: Sequence[tuple[str, str, Sequence[int]]], row: Sequence[Any]) -> bytes:
    """One row as a gRPC message with its five bytes in front. Tensors travel as raw bytes."""
    body = text(1, model.encode()) + text(3, id.encode())
    for name, datatype, shape in inputs:
        dimensions = b"".join(map(varint, (1, *shape)))
        body += text(5, text(1, name.encode()) + text(2, datatype.encode()) + text(3, dimensions))
    for (_, datatype, _), value in zip(inputs, row, strict=True):
        body += text(7, np.asarray(value, NUMPY[datatype]).tobytes())
    return _PREFIX.pack(0, len(body)) + body


def messages(data: bytes) -> list[bytes]:
    """The gRPC messages in a file or a stream, their five bytes included."""
    found, at = [], 0
    while at < len(data):
        size = _PREFIX.size + _PREFIX.unpack_from(data, at)[1]
        found.append(data[at : at + size])
        at += size
    return found


def parsed(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers and bytes. Raises ValueError."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(kind) or (number() if kind == 2 else 0)
        if not size and kind != 2:
            raise ValueError(f"a field of kind {kind}")
        yield key >> 3, data[at : at + size]
        at += size


def answer(message: bytes) -> tuple[str, Any]:
    """Id and values of the first output of a ModelInferResponse, whose five bytes have been cut off."""
    id, raw, contents = "", b"", b""
    for number, value in parsed(message):
        if number == 3:
            id = value.decode()
        elif number == 5 and not contents:
            contents = next((packed for name, packed in parsed(dict(parsed(value)).get(5, b"")) if name == 6), b"")
        elif number == 6 and not raw:
            raw = value
    return id, np.frombuffer(raw or contents, np.float32)
