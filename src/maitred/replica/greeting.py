"""What the parent tells a new child: which model to load, and how."""

from __future__ import annotations

import msgspec

from maitred.logline import Style
from maitred.model.source import Source


class Hello(msgspec.Struct, frozen=True):
    """The parent's first words; the child answers them with a description of the model, or why there is none."""

    source: Source
    device: str
    max_batch_rows: int
    path: list[str]
    """Where the parent looks for modules: the model's may be among them."""
    measure: bool = False
    """Whether to time the model once it is warm, if it is one that might run elsewhere."""
    log: Style = Style()
    """How the parent writes its log."""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        """Raises msgspec.ValidationError."""
        return msgspec.msgpack.decode(data, type=cls)
