"""Rows of different lengths: filled up to the sizes of a bucket at the door, and cut back where an answer is given.

A signature that says `buckets` for a size inside a row has few shapes instead of one per length: payloads whose lengths
fall into the same bucket have the same shape, and share batches like any others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, Filled, Outputs, Ragged, Request, Result, Tensor
from maitred.model.notation import BadSignature, TensorSpec, shown
from maitred.wire import coerce
from maitred.wire.coerce import Array

MAX_BUCKETS: Final = 256
"""Combinations of sizes of one signature: each is a shape to be warmed up, and a series of the metrics."""

FREE_FILL_BYTES: Final = 64 << 20
MOST_FILL: Final = 16
"""How much may be filled up in one input of one request: so many bytes, or so many times what the caller sent."""

_POINTER_BYTES: Final = 8
_MAX_PLANS: Final = 1024
"""Combinations of real sizes of which is kept what happens to them."""

Sizes = Mapping[str, int]
Cuts = Mapping[str, tuple[tuple[int, int], ...]]


class _Filler(NamedTuple):
    """How one input is filled up."""

    name: str
    shape: tuple[int | str, ...]
    pad: Array
    """Of no dimensions."""
    raw: bytes | None
    """The pad's bytes; None for texts."""
    lead: int | None
    """The axes before those of a row; None where its elements are not counted, for it is no request's own."""


class _Plan(NamedTuple):
    """What happens to inputs of certain sizes."""

    raised: dict[str, int]
    """The sizes that have buckets, as the model gets them."""
    bucket: str
    cuts: Cuts


class Buckets:
    """The sizes to which a signature's inputs are filled up. Safe to share between threads."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, ...]],
        inputs: Sequence[TensorSpec],
        travelling: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        rows: str | None,
    ) -> None:
        """`rows`: the symbol of the row axis, for a row-wise model. `travelling`, `outputs`: as in `forms.py`."""
        self.sizes = dict(sizes)
        """Per symbol, ascending."""
        self._order = sorted(sizes)
        self._rows = rows
        self._plans: dict[tuple[int | None, ...], _Plan] = {}
        names = {spec.name for spec in inputs}
        self._fillers = [_filler(spec, rows, spec.name in names) for spec in travelling if self._has(spec)]
        self._outputs = [spec for spec in outputs if self._has(spec)]

    def _has(self, spec: TensorSpec) -> bool:
        return any(size in self.sizes for size in spec.shape)

    @staticmethod
    def of(
        inputs: Sequence[TensorSpec],
        travelling: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        row_symbol: str | None,
        row_wise: bool,
    ) -> Buckets | None:
        """What the inputs say; None where none of them has buckets. Raises BadSignature where they disagree."""
        found: dict[str, tuple[int, ...]] = {}
        said: dict[str, str] = {}
        for spec in inputs:
            for symbol, sizes in spec.buckets:
                if symbol == row_symbol:
                    raise BadSignature(f"input {spec.name!r}: buckets= is for sizes inside a row; {symbol} counts rows")
                if found.setdefault(symbol, sizes) != sizes:
                    raise BadSignature(
                        f"input {spec.name!r}: {symbol} has the buckets {list(sizes)}, and {list(found[symbol])} in "
                        f"input {said[symbol]!r}; say it once"
                    )
                said.setdefault(symbol, spec.name)
        for spec in inputs:
            lacking = next((size for size in spec.shape if size in found and spec.pad is None), None)
            if lacking is not None:
                raise BadSignature(
                    f"input {spec.name!r} needs pad=, the value that it is filled up with: its size {lacking} has "
                    f"buckets (said at input {said[str(lacking)]!r})"
                )
        count = math.prod(map(len, found.values()))
        if count > MAX_BUCKETS:
            listed = ", ".join(found)
            raise BadSignature(f"the buckets of {listed} make {count} shapes; at most {MAX_BUCKETS} are allowed")
        return Buckets(found, inputs, travelling, outputs, row_symbol if row_wise else None) if found else None

    # --- payloads -----------------------------------------------------------------------------------------------

    def check(self, name: str, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        """Raise Malformed where an input is longer than the last bucket. Its rank is the spec's."""
        for size, symbol in zip(shape, spec.shape, strict=True):
            if symbol in self.sizes and size > self.sizes[str(symbol)][-1]:
                raise Malformed(
                    f"input {name!r}: {symbol} = {size} is more than this model takes: at most "
                    f"{self.sizes[str(symbol)][-1]}, got {shown(shape)}"
                )

    def raised(self, sizes: Sizes) -> dict[str, int]:
        """The sizes with those that have buckets raised to the smallest one that holds them. None is too large."""
        return {**sizes, **self._plan(sizes).raised}

    def _plan(self, sizes: Sizes) -> _Plan:
        key = tuple(map(sizes.get, self._order))
        plan = self._plans.get(key)
        if plan is None:
            known = {symbol: sizes[symbol] for symbol in self._order if symbol in sizes}
            raised = {symbol: min(to for to in self.sizes[symbol] if to >= size) for symbol, size in known.items()}
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()  # callers choose sizes
            plan = self._plans[key] = self._planned(known, raised)
        return plan

    def _planned(self, own: Sizes, raised: dict[str, int]) -> _Plan:
        larger = {symbol for symbol, size in own.items() if raised[symbol] != size}
        cuts = {
            spec.name: tuple((axis, own[str(symbol)]) for axis, symbol in enumerate(spec.shape) if symbol in larger)
            for spec in self._outputs
            if not larger.isdisjoint(spec.shape)
        }
        return _Plan(raised, ",".join([f"{symbol}={size}" for symbol, size in raised.items()]), cuts)

    def fill(
        self, inputs: Mapping[str, Tensor], sizes: Sizes, to: Sizes | None = None
    ) -> tuple[dict[str, Tensor], Ragged | None]:
        """The inputs (whose symbols have these `sizes`, none too large) filled up, and what was done to them.

        None where no input that has a bucket's size is there. `to`: other sizes than those of the smallest bucket.
        """
        plan = self._plan(sizes)
        if not plan.raised:
            return dict(inputs), None
        if to is not None:
            plan = self._planned({symbol: sizes[symbol] for symbol in plan.raised}, plan.raised | dict(to))
        raised = {**sizes, **plan.raised}
        filled = dict(inputs)
        rows = 1 if self._rows is None else sizes[self._rows]
        elements = alike = 0
        differing: Array | None = None
        for filler in self._fillers:
            tensor = inputs.get(filler.name)
            if tensor is None:
                continue
            shape = tuple([raised[size] if isinstance(size, str) else size for size in filler.shape])
            filled[filler.name] = _filled(tensor, filler, shape)
            if filler.lead is None:
                continue
            elements += math.prod(shape)
            if isinstance(tensor, Filled):
                own = tensor.real.reshape(rows, -1).sum(axis=1)  # lists of different lengths are rows
                differing = own if differing is None else differing + own
            else:
                alike += math.prod(tensor.shape[filler.lead :])
        by_row = None if differing is None else tuple((differing + alike).tolist())
        real = alike * rows if by_row is None else sum(by_row)
        return filled, Ragged(plan.bucket, plan.cuts, elements, real, by_row)

    def stretched(self, arrays: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
        """Rows made to have these `sizes`: the elements of each axis over and over, or only the first of them."""
        made = dict(arrays)
        for filler in self._fillers:
            if filler.name in made:
                made[filler.name] = _stretched(made[filler.name], filler, sizes)
        return made

    # --- what there is ------------------------------------------------------------------------------------------

    def combinations(self) -> Iterator[dict[str, int]]:
        """Every combination of sizes, the smallest first."""
        for sizes in itertools.product(*(self.sizes[symbol] for symbol in self._order)):
            yield dict(zip(self._order, sizes, strict=True))

    def edges(self) -> Iterator[dict[str, int]]:
        """Each size of each symbol at least once: beside the largest ones of the others."""
        largest = {symbol: self.sizes[symbol][-1] for symbol in self._order}
        for symbol in self._order:
            for size in self.sizes[symbol][:-1]:
                yield {**largest, symbol: size}
        yield largest


def _filler(spec: TensorSpec, rows: str | None, counts: bool) -> _Filler:
    lead = 0 if rows is None else 1 if spec.shape[0] == rows else None
    one = coerce.from_python(spec.name, spec.dtype, spec.pad)
    raw = None if isinstance(one.data, list) else bytes(one.data)
    return _Filler(spec.name, spec.shape, coerce.to_array(one), raw, lead if counts else None)


def _filled(tensor: Tensor, filler: _Filler, shape: tuple[int, ...]) -> Tensor:
    """The tensor in a larger shape, its own elements at the beginning of each axis. A plain one, never `Filled`."""
    own = tensor.shape
    if own == shape:
        return Tensor(tensor.dtype, own, tensor.data) if isinstance(tensor, Filled) else tensor
    _check_fill(tensor, filler.name, shape)
    if filler.raw is not None and own[:1] == (1,) == shape[:1] and own[2:] == shape[2:] and len(own) > 1:
        more = filler.raw * ((shape[1] - own[1]) * math.prod(shape[2:]))  # one row: what is filled up is its end
        return Tensor(tensor.dtype, shape, b"".join((coerce.to_raw(tensor), more)))
    whole = np.full(shape, filler.pad, filler.pad.dtype)
    whole[tuple(map(slice, own))] = coerce.to_array(tensor)
    return Tensor(tensor.dtype, shape, whole.reshape(-1).tolist() if filler.raw is None else whole.tobytes())


def _stretched(array: Array, filler: _Filler, sizes: Sizes) -> Array:
    for axis, symbol in enumerate(filler.shape):
        wanted = sizes.get(symbol) if isinstance(symbol, str) else None
        size = array.shape[axis]
        if wanted is None or wanted == size:
            continue
        if size:
            array = np.take(array, np.arange(wanted) % size, axis=axis)
        else:
            array = np.full((*array.shape[:axis], wanted, *array.shape[axis + 1 :]), filler.pad, filler.pad.dtype)
    return array


def _check_fill(tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
    """Raise Malformed where a small request would become a huge one."""
    item = ITEM_BYTES.get(tensor.dtype, _POINTER_BYTES)
    size, more = math.prod(tensor.shape) * item, (math.prod(shape) - math.prod(tensor.shape)) * item
    if more > FREE_FILL_BYTES and more > MOST_FILL * size:
        raise Malformed(
            f"input {name!r}: {shown(tensor.shape)} would be filled up to {shown(shape)}, {more} bytes more; "
            "send fewer rows at once"
        )


# --- lists of different lengths inside a request ----------------------------------------------------------------


def extents(spec: TensorSpec, tensor: Filled) -> dict[str, Array]:
    """Per open size inside a row of an input that was filled up: how much of it each row has of its own."""
    found = {}
    axes = range(1, len(spec.shape))
    for axis in axes:
        symbol = spec.shape[axis]
        if isinstance(symbol, str):
            others = tuple(other for other in axes if other != axis)
            found[symbol] = tensor.real.any(axis=others).sum(axis=1)
    return found


def check_extents(spec: TensorSpec, own: Mapping[str, Array], seen: Mapping[str, Array], other: str) -> None:
    """Raise Malformed where rows of an input are as long as those of another input are not."""
    for symbol, lengths in own.items():
        before = seen.get(symbol)
        if before is not None and not np.array_equal(before, lengths):
            row = int(np.flatnonzero(before != lengths)[0])
            raise Malformed(
                f"input {spec.name!r}: row {row} has {symbol} = {lengths[row]}, and {before[row]} in input {other!r}"
            )


def default_of(spec: TensorSpec, sizes: Sizes, lengths: Mapping[str, Array]) -> Tensor | None:
    """An input that was left out beside rows of different `lengths`: its default where a row has an element, else pad.

    None where none of those lengths is a size of this input, or it has no pad.
    """
    shape = spec.sized(sizes)
    if spec.pad is None or not any(size in lengths for size in spec.shape[1:]):
        return None
    real = np.ones(shape, bool)
    for axis, symbol in enumerate(spec.shape[1:], 1):
        if symbol in lengths:
            mine = np.arange(shape[axis]) < lengths[str(symbol)][:, None]
            real &= mine.reshape([size if at in (0, axis) else 1 for at, size in enumerate(shape)])
    default, pad = (coerce.from_python(spec.name, spec.dtype, value) for value in (spec.default, spec.pad))
    array = np.where(real, coerce.to_array(default), coerce.to_array(pad))
    data = array.reshape(-1).tolist() if isinstance(default.data, list) else array.tobytes()
    return Filled(spec.dtype, shape, data, real)


# --- answers ----------------------------------------------------------------------------------------------------


def cut_back(result: Result, request: Request) -> Result:
    """A caller's part of a batch's outputs without what belongs to the fill; as it is where nothing has to be cut."""
    ragged = request.ragged
    if ragged is None or not ragged.cuts:
        return result
    batch, rows = result.batch, result.stop - result.start
    tensors = cut_tensors(result.tensors(), ragged)
    own = Outputs(tensors, rows, batch.model_seconds, batch.batch_seconds, unwritten=batch.unwritten)
    return Result(own, 0, rows, True, result.queue_seconds)


def cut_tensors(tensors: Mapping[str, Tensor], ragged: Ragged) -> dict[str, Tensor]:
    """The same for outputs that are all this caller's own."""
    cuts = ragged.cuts
    return {name: _cut(tensor, cuts[name]) if name in cuts else tensor for name, tensor in tensors.items()}


def _cut(tensor: Tensor, axes: Iterable[tuple[int, int]]) -> Tensor:
    part = np.ascontiguousarray(_beginning(coerce.to_array(tensor), axes))
    data: Any = part.reshape(-1).tolist() if isinstance(tensor.data, list) else part
    return Tensor(tensor.dtype, part.shape, data)


def cut_arrays(arrays: Mapping[str, Array], ragged: Ragged) -> dict[str, Array]:
    """The same for arrays."""
    cuts = ragged.cuts
    return {name: _beginning(array, cuts[name]) if name in cuts else array for name, array in arrays.items()}


def _beginning(array: Array, axes: Iterable[tuple[int, int]]) -> Array:
    """A view of the beginning of some axes."""
    index = [slice(None)] * array.ndim
    for axis, size in axes:
        index[axis] = slice(size)
    return array[tuple(index)]
