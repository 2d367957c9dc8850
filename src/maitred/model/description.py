"""What is known about a model: a record that travels between processes."""

from __future__ import annotations

from typing import Any

import msgspec

from maitred.model.manifest import Limits
from maitred.model.predictor import Traits
from maitred.model.signature import Signature


class Timing(msgspec.Struct, frozen=True):
    """How long a model that is warm takes for one batch of so many rows."""

    rows: int
    median_seconds: float
    slowest_seconds: float
    """The longest of a few calls in a row, where the machine disturbed them least."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the rest of the house sees it."""

    name: str
    digest: str = ""
    """`sha256:...` over the model's files; empty where there are none (a module of an installed package)."""
    flavor: str = ""
    signature: Signature
    traits: Traits = Traits()
    limits: Limits = Limits()
    example: str = ""
    """A request of one row in the Open Inference Protocol's JSON, ready to send; empty where it would be large."""
    example_is_real: bool = False
    """Whether that row came with the model; else it was made up from the signature."""
    libraries: dict[str, str] = {}
    """What the model was saved with; for a bare file, what it is loaded with."""
    warnings: tuple[str, ...] = ()
    """What the operator should know, such as libraries of another minor version."""
    trust: str = ""
    """Who allowed the model's own code to run, and why; empty where none runs."""
    native: bool = False
    """Whether a native library does its work and nothing that it came with can run. Known once it is loaded."""
    timings: tuple[Timing, ...] = ()
    """Of the least and the most rows that it was warmed up with; empty where nobody asked, or it cannot be tried."""

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Class labels by output, in the model's own order."""
        return {name: spec.labels for name, spec in self.signature.outputs.items() if spec.labels is not None}

    def encode(self) -> bytes:
        """As MessagePack, for another process."""
        return msgspec.msgpack.encode(self, enc_hook=_plain)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Description:
        """Raises `msgspec.ValidationError` for what is no description."""
        return msgspec.msgpack.decode(data, type=cls, dec_hook=_made)


def _plain(value: Any) -> Any:
    if isinstance(value, Signature):
        return value.to_dict()
    raise NotImplementedError(f"a {type(value).__name__} cannot travel")


def _made(kind: type, value: Any) -> Any:
    if kind is Signature:
        return Signature.from_dict(value)
    raise NotImplementedError(f"a {kind.__name__} cannot travel")
