"""Batches of rows: joined from requests, cut, padded and stacked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from maitred.messages import Request, Tensor
from maitred.wire.coerce import NUMPY_TYPES, Array


def join(requests: Sequence[Request], shared: Collection[str] = ()) -> dict[str, Tensor]:
    """The inputs of one batch: the rows of all requests, in their order.

    The requests must be of one group. `shared` names the inputs that have no rows (`Signature.shared`): they are equal
    in all requests, and the first one's are taken.
    """
    first = requests[0].inputs
    if len(requests) == 1:
        return first
    rows = 0
    for request in requests:
        rows += request.rows
    joined: dict[str, Tensor] = {}
    for name, tensor in first.items():
        joined[name] = tensor if name in shared else _joined([request.inputs[name] for request in requests], rows)
    return joined


def _joined(parts: Sequence[Tensor], rows: int) -> Tensor:
    head = parts[0]
    shape = (rows, *head.shape[1:])
    if isinstance(head.data, list):
        return Tensor(head.dtype, shape, [element for part in parts for element in part.data])
    return Tensor(head.dtype, shape, b"".join([part.data for part in parts]))


def sealed(tensor: Tensor) -> Tensor:
    """The same memory, in an array that nobody can make writable: it may be the caller's own."""
    data = tensor.data
    if not isinstance(data, np.ndarray) or not data.size:
        return tensor
    octets: Any = data.reshape(-1).view(np.uint8)
    raw = memoryview(octets).toreadonly()
    return Tensor(tensor.dtype, tensor.shape, np.frombuffer(raw, data.dtype).reshape(data.shape))


def pad_rows(
    inputs: Mapping[str, Array], start: int, stop: int, size: int, shared: Collection[str] = ()
) -> dict[str, Array]:
    """The rows `start:stop`, made up to `size` rows by repeating the last of them; `shared` inputs are left alone.

    No rows at all are made up with zeros or empty texts.
    """
    padded: dict[str, Array] = {}
    for name, array in inputs.items():
        if name in shared or (start == 0 and stop == size == len(array)):
            padded[name] = array
            continue
        whole = np.empty((size, *array.shape[1:]), array.dtype)
        whole[: stop - start] = array[start:stop]
        whole[stop - start :] = array[stop - 1] if stop > start else _blank(array)
        padded[name] = whole
    return padded


def _blank(array: Array) -> object:
    return "" if array.dtype == NUMPY_TYPES["str"] else 0


def stacked(pieces: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The outputs of several runs over parts of a batch, one after the other."""
    if len(pieces) == 1:
        return dict(pieces[0])
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
