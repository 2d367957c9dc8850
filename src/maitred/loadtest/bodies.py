"""Bodies made up from a model's signature: of the right shapes and dtypes, each with an id and values of its own.

Values keep the ranges and categories that the signature tells, and stay near those of an example where there is one.
Equal bodies would be answered from caches, and would let a server reuse what it learned from the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from maitred.loadtest.metadata import Wire
from maitred.messages import ITEM_BYTES, Tensor
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.binary import HEADER, join
from maitred.wire.coerce import FLOATS, NUMPY_TYPES, to_raw

OPEN_SIZE: Final = 8
"""What an open size inside a row is, where nobody says."""

_WORDS: Final = (
    "amber birch cedar delta ember fjord grove heath inlet juniper kelp lagoon maple north ochre pine".split()
)
_INTEGERS: Final = 100
"""Integers without a range lie below it: most codes and vocabularies have as many."""

_DIGITS: Final = 5
"""Of the largest number of a tensor, as people write them."""

_TICKS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FROM, _TO = 1577836800, 1767225600  # 2020 to 2026, in seconds

Examples = Mapping[str, tuple[Sequence[int], Sequence[Any]]]


class Body(NamedTuple):
    """One request's content."""

    data: bytes
    headers: tuple[tuple[str, str], ...]
    """That belong to it, besides its length."""


class Bodies:
    """Makes bodies for one model."""

    def __init__(
        self, signature: Signature, examples: Examples, rows: int, sizes: Mapping[str, int], random: np.random.Generator
    ) -> None:
        """`examples`: shape and flat elements by input. `sizes`: of open sizes inside a row. Raises ValueError."""
        self._signature = signature
        self._random = random
        self._rows = rows
        self._examples = {name: data for name, (_, data) in examples.items() if name in signature.inputs and data}
        symbols = {size for spec in signature.inputs.values() for size in spec.shape if isinstance(size, str)}
        if unknown := sizes.keys() - symbols:
            raise ValueError(
                f"the model has no size {sorted(unknown)[0]!r}; it has {', '.join(sorted(symbols)) or 'none'}"
            )
        if signature.row_symbol is None and rows != 1:
            raise ValueError("the model has no row axis: its requests have no number of rows")
        self._sizes = {symbol: self._size(symbol, examples) for symbol in symbols} | dict(sizes)
        if signature.row_symbol is not None:
            self._rows = self._sizes[signature.row_symbol] = sizes.get(signature.row_symbol, rows)
        self._whole = not signature.row_wise or bool(signature.shared)

    def made(self, wire: Wire, number: int, binary: bool = False) -> Body:
        """The body of that number."""
        values = {name: self._values(spec) for name, spec in self._signature.inputs.items()}
        if wire != "v2":
            return Body(self._plain(wire, values), (("Content-Type", "application/json"),))
        return self._binary(number, values) if binary else self._json(number, values)

    # --- forms --------------------------------------------------------------------------------------------------

    def _head(self, name: str) -> dict[str, Any]:
        spec = self._signature.inputs[name]
        return {"name": name, "datatype": spec.datatype, "shape": list(spec.sized(self._sizes))}

    def _json(self, number: int, values: Mapping[str, list[Any]]) -> Body:
        inputs = [{**self._head(name), "data": flat} for name, flat in values.items()]
        body = orjson.dumps({"id": _id(number), "inputs": inputs})
        return Body(body, (("Content-Type", "application/json"),))

    def _binary(self, number: int, values: Mapping[str, list[Any]]) -> Body:
        inputs, blobs = [], []
        for name, flat in values.items():
            spec = self._signature.inputs[name]
            data = [element.encode() for element in flat] if spec.dtype == "bytes" else flat
            array = data if spec.dtype not in ITEM_BYTES else np.array(data, NUMPY_TYPES[spec.dtype])
            blobs.append(bytes(to_raw(Tensor(spec.dtype, spec.sized(self._sizes), array))))
            inputs.append({**self._head(name), "parameters": {"binary_data_size": len(blobs[-1])}})
        head = orjson.dumps({"id": _id(number), "inputs": inputs, "parameters": {"binary_data_output": True}})
        return Body(join(head, blobs)[0], (("Content-Type", "application/octet-stream"), (HEADER, str(len(head)))))

    def _plain(self, wire: Wire, values: Mapping[str, list[Any]]) -> bytes:
        shaped = {name: _nested(flat, self._signature.inputs[name].sized(self._sizes)) for name, flat in values.items()}
        if self._whole:
            return orjson.dumps({"inputs" if wire == "v1" else "columns": shaped})
        rows = [{name: column[row] for name, column in shaped.items()} for row in range(self._rows)]
        if wire == "v1":
            return orjson.dumps({"instances": rows})
        return orjson.dumps(rows[0] if self._rows == 1 else rows)

    # --- values -------------------------------------------------------------------------------------------------

    def _size(self, symbol: str, examples: Examples) -> int:
        for name, spec in self._signature.inputs.items():
            if symbol in spec.shape and name in examples:
                shape = examples[name][0]
                if len(shape) == len(spec.shape) and isinstance(size := shape[spec.shape.index(symbol)], int):
                    return size
        buckets = self._signature.buckets
        if buckets is not None and symbol in buckets.sizes:
            return buckets.sizes[symbol][0]
        return OPEN_SIZE

    def _values(self, spec: TensorSpec) -> list[Any]:
        """Elements of an input, flat."""
        count = spec.item_count(self._sizes)
        example = [value for value in self._examples.get(spec.name, ()) if value is not None]
        if spec.categories:
            return self._chosen(spec.categories, count)
        if spec.time is not None:
            return self._integers(spec, count, _FROM * _TICKS[spec.time], _TO * _TICKS[spec.time])
        if spec.dtype == "bool":
            return self._chosen((False, True), count)
        if spec.dtype in ("str", "bytes"):
            return self._chosen([text for text in example if isinstance(text, str) and text] or _WORDS, count)
        if spec.dtype in FLOATS:
            return self._floats(spec, [value for value in example if isinstance(value, (int, float))], count)
        whole = [value for value in example if isinstance(value, int)]
        return self._integers(spec, count, min([0, *whole]), max(whole, default=0) or _INTEGERS - 1)

    def _chosen(self, values: Sequence[Any], count: int) -> list[Any]:
        return [values[at] for at in self._random.integers(0, len(values), count).tolist()]

    def _integers(self, spec: TensorSpec, count: int, low: int, high: int) -> list[Any]:
        low = low if spec.minimum is None else math.ceil(spec.minimum)
        high = max(high, low) if spec.maximum is None else min(int(spec.maximum), 2**63 - 1)
        drawn: list[Any] = self._random.integers(min(low, high), high, count, np.int64, endpoint=True).tolist()
        return drawn

    def _floats(self, spec: TensorSpec, example: Sequence[float], count: int) -> list[Any]:
        random = self._random
        if spec.minimum is not None and spec.maximum is not None:
            drawn = random.uniform(spec.minimum, spec.maximum, count)
        elif any(example):
            drawn = np.resize(np.array(example, np.float64), count) * random.uniform(0.9, 1.1, count)
        else:
            drawn = random.standard_normal(count)
        largest = float(np.abs(drawn).max(initial=0.0))
        digits = _DIGITS - (math.ceil(math.log10(largest)) if 0 < largest < math.inf else 0)
        low = -np.inf if spec.minimum is None else spec.minimum
        high = np.inf if spec.maximum is None else spec.maximum
        kept: list[Any] = np.clip(np.round(drawn, digits), low, high).tolist()
        return kept


def _id(number: int) -> str:
    return f"bench-{number}"


def _nested(flat: list[Any], shape: Sequence[int]) -> Any:
    """Flat elements as lists of the shape's sizes."""
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        flat = [flat[at : at + size] for at in range(0, len(flat), size)] if size else [[] for _ in range(shape[0])]
    return flat
