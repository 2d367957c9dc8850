"""The records that travel: Tensor, Request, Batch, Outputs, Result, Chunk."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, Literal

import msgspec

HIGH: Final = 0
NORMAL: Final = 1
BACKGROUND: Final = 2
LANES: Final = ("high", "normal", "background")
"""Priority classes, best first; a lane travels as its index."""

FOREVER: Final = float("inf")

DType = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "bfloat16", "str", "bytes",
]  # fmt: skip

ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2,
}  # fmt: skip
"""Size of one element of every fixed-size dtype; `str` and `bytes` have none."""


class Tensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A named value's type, shape and elements in C order.

    `data` is, for fixed-size dtypes, raw little-endian bytes (any bytes-like object) or a C-contiguous numpy array of
    that dtype; for `str` and `bytes` a flat list of elements.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: Any
    """bytes | bytearray | memoryview | list[str] | list[bytes] | numpy.ndarray"""

    def rows(self, start: int, stop: int) -> Tensor:
        """The rows `start:stop` of the first axis, without a copy where the data allow it."""
        shape = (stop - start, *self.shape[1:])
        data = self.data
        if isinstance(data, list):
            width = _product(self.shape[1:])
            return Tensor(self.dtype, shape, data[start * width : stop * width])
        if isinstance(data, (bytes, bytearray, memoryview)):
            width = _product(self.shape[1:]) * ITEM_BYTES[self.dtype]
            return Tensor(self.dtype, shape, memoryview(data)[start * width : stop * width])
        return Tensor(self.dtype, shape, data[start:stop])

    def owned(self) -> Tensor:
        """A tensor whose memory nobody else can change or free."""
        data = self.data
        if isinstance(data, (list, bytes)):
            return self
        if isinstance(data, (bytearray, memoryview)):
            return Tensor(self.dtype, self.shape, bytes(data))
        return Tensor(self.dtype, self.shape, data.copy())


class Filled(Tensor, frozen=True, eq=False, gc=False):
    """A tensor made of lists of different lengths, which were filled up to the longest."""

    real: Any
    """A numpy array of bools in the tensor's shape: whether an element is the caller's own."""
    valid: bytes | None = None
    """Where elements are missing, a byte for each: 1 where it is there, 0 where it is missing."""


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


class Ragged(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How a request's rows were filled up to a bucket's sizes, so that it can share a batch with longer ones."""

    bucket: str
    """The sizes of the model's bucket, `seq=64`: the same for all members of a batch."""
    cuts: Mapping[str, tuple[tuple[int, int], ...]]
    """Per output that has more than belongs to this request: the axes, and this request's own size of each."""
    elements: int
    """Elements of the inputs that have rows and were filled up, as the model gets them."""
    real: int
    """How many of them are no fill."""
    by_row: tuple[int, ...] | None = None
    """The same for each row, where these are not all alike."""

    def part(self, start: int, stop: int, rows: int) -> Ragged:
        """What holds for the rows `start:stop` of `rows`."""
        real = self.real * (stop - start) // rows if self.by_row is None else sum(self.by_row[start:stop])
        by_row = self.by_row and self.by_row[start:stop]
        return Ragged(self.bucket, self.cuts, self.elements * (stop - start) // rows, real, by_row)


class Request(msgspec.Struct, eq=False, gc=False):
    """One caller's question, checked against the model's signature: everything behind the gateway may trust it."""

    inputs: dict[str, Tensor]
    rows: int
    """Size of the row axis; 1 for a model that is not row-wise."""
    group: Hashable
    """Requests with equal groups may share a batch (same per-row shapes, inputs present, parameters); None: never."""
    deadline: float
    """Absolute, on the monotonic clock of this machine; `FOREVER` where there is none."""
    lane: int = NORMAL
    tenant: str = ""
    id: str = ""
    trace: str = ""
    """W3C `traceparent`, or empty."""
    route_key: str = ""
    parameters: dict[str, Any] | None = None
    outputs: tuple[str, ...] | None = None
    """Names of the outputs wanted, in order; None for all."""
    size_bytes: int = 0
    received_at: float = 0.0
    """When its last byte was read; with the ticket's `submitted_at` this gives the time taken by decoding."""
    ragged: Ragged | None = None
    """How its rows were filled up; None for every model without buckets."""
    lease: Any = None
    """Of memory that replicas can read, where tensors are views of that: a replica's business."""


class Outputs(msgspec.Struct, eq=False, gc=False):
    """What the model returned for one batch: shared by the results of its members.

    Arrays may be views of a replica's memory: they are valid only while the tickets are being ended. `memo` keeps
    encodings that are made once for the whole batch.
    """

    tensors: dict[str, Tensor]
    rows: int
    model_seconds: float = 0.0
    batch_seconds: float = 0.0
    """From the batch's start to its end, without `model_seconds`: joining, the hop and splitting."""
    memo: dict[str, Any] = msgspec.field(default_factory=dict)
    timing: bytes = b""
    """A gateway's memo of how it tells the times."""
    unwritten: list[Any] = msgspec.field(default_factory=list)
    """A gateway's note of the tickets whose rows it could not write: they have an `error` and were no success."""
    lease: Any = None
    """Of the replica's memory in which large arrays lie: with `lend` they may be kept without a copy."""


class Result(msgspec.Struct, eq=False, gc=False):
    """The rows `start:stop` of a batch's outputs; what one caller gets."""

    batch: Outputs
    start: int
    stop: int
    whole: bool = False
    """True where the batch is this one request: its outputs are taken as they are (also those that are not
    row-aligned)."""
    queue_seconds: float = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """This caller's outputs; views of the batch's."""
        if self.whole:
            return self.batch.tensors
        return {name: tensor.rows(self.start, self.stop) for name, tensor in self.batch.tensors.items()}

    def owned(self) -> Result:
        """The same answer in memory of its own."""
        batch = self.batch
        tensors = {name: tensor.owned() for name, tensor in self.tensors().items()}
        own = Outputs(tensors, self.stop - self.start, batch.model_seconds, batch.batch_seconds)
        return Result(own, 0, self.stop - self.start, True, self.queue_seconds)


class Chunk(msgspec.Struct, eq=False, gc=False):
    """One piece of a streamed answer."""

    tensors: dict[str, Tensor]
    last: bool = False
