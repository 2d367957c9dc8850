"""What a front may claim of its requests: no shape, size or name is believed that the signature does not allow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from maitred.gateway import hop
from maitred.gateway.hop import Form, Rare
from maitred.messages import ITEM_BYTES, LANES, Outputs, Ragged, Tensor
from maitred.model.description import Description
from maitred.model.forms import travelling
from maitred.model.notation import TensorSpec
from maitred.model.signature import Signature
from maitred.wire.coerce import FLOATS, to_array
from maitred.wire.missing import companion

_MOST_ELEMENTS: Final = 1 << 40

View = Callable[[hop.Place], memoryview]
"""Where a place of the front's memory lies here. Raises Scribbled."""


class Scribbled(Exception):
    """A front said what cannot be true; it is no longer to be believed. The message ends `the front ...`."""


class Input:
    """One input of a kind."""

    __slots__ = ("name", "dtype", "shape", "size", "count")

    def __init__(self, name: str, dtype: Any, shape: tuple[int, ...]) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.count = math.prod(shape)
        self.size = self.count * ITEM_BYTES.get(dtype, 0)
        """Bytes; 0 for texts, which have no fixed size."""


class Kind:
    """A form that was found to fit the signature, ready to make requests of."""

    __slots__ = ("inputs", "rows", "group", "sizes", "plain", "terms")

    def __init__(self, inputs: list[Input], form: Form, group: bytes | None, sizes: dict[str, int]) -> None:
        self.inputs = inputs
        self.rows = form.rows
        self.group = group
        self.sizes = sizes
        self.terms = (form.lane, form.tenant, form.outputs)
        only = inputs[0]
        plain = len(inputs) == 1 and only.size > 0 and only.dtype != "bool"
        self.plain = (only.size if plain else -1, only.name, only.dtype, only.shape, form.rows, *self.terms)
        """All that is needed where the only input is plain numbers; else it begins with -1, and `inputs` is read."""


class Claims:
    """What holds for one model with one description."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.signature: Signature = description.signature
        self.shared = self.signature.shared
        self._per_row = description.traits.per_row_parameters
        self._travel = travelling(self.signature.inputs)
        self._groups: dict[bytes, bytes] = {}
        self._finite, self._ascii, self._always = _doubts(self.signature)

    # ------------------------------------------------------------------ requests

    def kind(self, form: Form) -> Kind:
        """Raises Scribbled."""
        signature = self.signature
        sizes: dict[str, int] = {}
        inputs = []
        for name, dtype, shape in form.tensors:
            spec = self._travel.get(name)
            if spec is None or spec.dtype != dtype or len(shape) != len(spec.shape):
                raise Scribbled(f"sent an input that its model does not have: {name[:100]!r}")
            for size, declared in zip(shape, spec.shape, strict=True):
                known = sizes.setdefault(declared, size) if isinstance(declared, str) else declared
                if size != known or size < 0:
                    raise Scribbled(f"sent an input of an impossible shape: {name[:100]!r}")
            inputs.append(Input(name, dtype, shape))
            if inputs[-1].count > _MOST_ELEMENTS:
                raise Scribbled(f"sent an input of an impossible size: {name[:100]!r}")
        self._check_names([item.name for item in inputs])
        rows = sizes.get(str(signature.row_symbol), -1) if signature.row_wise else 1
        if form.rows != rows or not 0 <= form.lane < len(LANES) or (form.merges and not signature.row_wise):
            raise Scribbled("sent a request whose rows or lane cannot be")
        if form.outputs is not None and (
            len(set(form.outputs)) != len(form.outputs) or not set(form.outputs) <= signature.outputs.keys()
        ):
            raise Scribbled("asked for outputs that its model does not have")
        group = hop.encode([(item.name, item.shape[1:]) for item in inputs]) if form.merges else None
        if group is not None:
            group = self._groups.setdefault(group, group)  # one object: equal groups are told at a glance
        return Kind(inputs, form, group, sizes)

    def _check_names(self, names: list[str]) -> None:
        given = set(names)
        for name, spec in self.signature.inputs.items():
            if name not in given and not spec.optional:
                raise Scribbled(f"left out an input that its model needs: {name!r}")
            if spec.masked and (name in given) != (companion(name) in given):
                raise Scribbled(f"sent half of an input: {name!r}")
        if len(given) != len(names) or not given:
            raise Scribbled("sent an input twice, or none at all")

    def tensor(self, item: Input, data: Any, view: View) -> Tensor:
        """One input's elements, which may lie in the front's memory. Raises Scribbled."""
        if item.dtype in ("str", "bytes"):
            return Tensor(item.dtype, item.shape, _texts(item, data, view))
        if type(data) is not bytes:
            try:
                data = view(hop.Place.read(data))
            except ValueError as error:
                raise Scribbled(f"sent {error}") from None
        if len(data) != item.size:
            raise Scribbled(f"sent {len(data)} bytes for an input of {item.size}")
        if item.dtype == "bool" and item.size and np.frombuffer(data, np.uint8).max() > 1:
            raise Scribbled("sent a bool that is neither true nor false")
        return Tensor(item.dtype, item.shape, data)

    def group(self, kind: Kind, inputs: dict[str, Tensor], rare: Rare | None) -> bytes | None:
        """The group of a request of which shapes do not say everything: values that a batch has in common."""
        if kind.group is None:
            return None
        parts: list[bytes] = [kind.group]
        for name in sorted(self.shared & inputs.keys()):
            data = inputs[name].data
            raw: Any = hop.encode(data) if isinstance(data, list) else data
            parts.append(hashlib.blake2b(raw, digest_size=16).digest())
        if rare is not None and rare.parameters and not self._per_row:
            parts.append(hop.encode(sorted(rare.parameters.items())))
        return kind.group if len(parts) == 1 else hop.encode(parts)

    def ragged(self, kind: Kind, rare: Rare) -> Ragged | None:
        """How rows were filled up. Raises Scribbled."""
        if rare.ragged is None:
            return None
        bucket, cuts, elements, real, by_row = rare.ragged
        buckets = self.signature.buckets
        filled = [] if buckets is None else [symbol for symbol in sorted(buckets.sizes) if symbol in kind.sizes]
        fits = buckets is not None and all(kind.sizes[symbol] in buckets.sizes[symbol] for symbol in filled)
        if not fits or bucket != ",".join(f"{symbol}={kind.sizes[symbol]}" for symbol in filled):
            raise Scribbled("sent a request for a bucket that its model does not have")
        if not 0 <= real <= elements <= sum(item.count for item in kind.inputs):
            raise Scribbled("sent a request with more elements than it holds")
        if by_row is not None and (len(by_row) != kind.rows or sum(by_row) != real or min(by_row, default=0) < 0):
            raise Scribbled("sent a request whose rows do not add up")
        for name, axes in cuts.items():
            spec = self.signature.answers.get(name)
            if spec is None or any(not 0 <= axis < len(spec.shape) or size < 0 for axis, size in axes):
                raise Scribbled("wants an answer cut where there is nothing to cut")
        return Ragged(bucket, cuts, elements, real, by_row)

    # ------------------------------------------------------------------ answers

    def doubtful(self, outputs: Outputs) -> bool:
        """Whether one of these outputs may hold what some form of answer cannot show; never False where it does."""
        if self._always:
            return True
        tensors = outputs.tensors
        for name in self._ascii:
            if name in tensors and not b"".join(tensors[name].data).isascii():
                return True
        return any(name in tensors and not _finite(tensors[name]) for name in self._finite)


def _texts(item: Input, data: Any, view: View) -> list[Any]:
    """Raises Scribbled."""
    if type(data) is not list:
        try:
            data = hop.read_items[item.dtype](bytes(view(hop.Place.read(data))))
        except (ValueError, UnicodeDecodeError, msgspec.MsgspecError):
            raise Scribbled("sent texts that are none") from None
    kind = str if item.dtype == "str" else bytes
    if len(data) != item.count or not all(type(element) is kind for element in data):
        raise Scribbled("sent texts that are none, or too many of them")
    return data  # type: ignore[no-any-return]


def _doubts(signature: Signature) -> tuple[list[str], list[str], bool]:
    """The outputs to be looked at for numbers that JSON has not, and for bytes that are no text; or whether all are
    doubtful, for their elements may be missing or are times."""
    specs: list[TensorSpec] = list(signature.outputs.values())
    finite = [spec.name for spec in specs if spec.dtype in FLOATS and spec.nan == "error"]
    texts = [spec.name for spec in specs if spec.dtype == "bytes"]
    return finite, texts, any(spec.nullable or spec.time is not None for spec in specs)


def _finite(tensor: Tensor) -> bool:
    """Whether there is no NaN or infinity."""
    data = tensor.data
    return bool(np.isfinite(data if type(data) is np.ndarray else to_array(tensor)).all())
