"""Named, typed inputs and outputs: what a model takes and gives, checked for every request.

The notation of one tensor is in `notation.py`. Together they mean: a symbol is the same size wherever it occurs; the
first symbol of the inputs is the row axis, if it is the first size of the input in which it occurs first. A model is
row-wise if that symbol leads every input that has it and every output: its requests may be merged and split by rows.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

import msgspec

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, Filled, Ragged, Tensor
from maitred.model.forms import fitted, special, travelling
from maitred.model.notation import TOLERANCES as TOLERANCES
from maitred.model.notation import BadSignature as BadSignature
from maitred.model.notation import Bounds, checked_spec, parse
from maitred.model.notation import TensorSpec as TensorSpec
from maitred.model.notation import shown as shown
from maitred.model.ragged import Buckets, check_extents, default_of, extents
from maitred.spelling import did_you_mean
from maitred.wire import coerce
from maitred.wire.coerce import DATATYPES, FLOATS
from maitred.wire.missing import companion, parts

SAME_GROUP: Final[tuple[()]] = ()
"""The group of every payload whose rows have the one shape that the signature gives, and all inputs."""

_MAX_LISTED: Final = 600
"""Characters of names in a message."""


class Checked(msgspec.Struct, gc=False):
    """A payload that fits the signature."""

    inputs: dict[str, Tensor]
    """In the signature's order, defaults filled in; optional inputs that were left out are absent."""
    rows: int
    """Size of the row axis; 1 where the model is not row-wise."""
    group: Hashable
    """Payloads with equal groups may be joined into one batch; None: never."""
    ragged: Ragged | None = None
    """How rows were filled up; None where the signature has no buckets."""


class Signature:
    """Named, typed inputs and outputs. Immutable, and safe to share between threads."""

    def __init__(self, inputs: Mapping[str, str | TensorSpec], outputs: Mapping[str, str | TensorSpec]) -> None:
        """Values are text notations or specs. Raises BadSignature."""
        self.inputs = {name: _spec(name, value, False) for name, value in inputs.items()}
        self.outputs = {name: _spec(name, value, True) for name, value in outputs.items()}
        if not self.inputs or not self.outputs:
            raise BadSignature("a signature needs at least one input and at least one output")
        specs = tuple(self.inputs.values())
        self.row_symbol = _row_symbol(specs)
        """The symbol of the row axis; None where the inputs have none."""
        self.row_wise = self.row_symbol is not None and _aligned(self.row_symbol, specs, self.outputs.values())
        """Whether requests may be merged, split and padded by rows."""
        self.special_inputs, self.special_outputs = special(specs), special(self.outputs.values())
        """What models and callers in Python see in another form than it travels in: see `forms.py`."""
        self.answers = travelling(self.outputs)
        """The outputs as they travel: with a tensor more for each whose elements may be missing."""
        whole = tuple(travelling(self.inputs).values())
        self.shared = frozenset(spec.name for spec in whole if self.row_wise and self.row_symbol not in spec.shape)
        """Inputs of a row-wise model that have no rows: all requests of a batch have the same value of each."""
        self.output_names = tuple(self.outputs)
        self.row_shapes = {name: self._row_shape(spec) for name, spec in self.answers.items()}
        """Per output, the shape of one row; None where it is not fixed."""
        self._expected = tuple((spec.name, spec.dtype, spec.shape[1:]) for spec in specs)
        self._bounds = {spec.name: bounds for spec in specs if (bounds := Bounds.of(spec)) is not None}
        self._masked = tuple(spec.name for spec in specs if spec.masked)
        one_shape = all(_one_row_shape(spec) for spec in specs)
        self._simple = self.row_wise and one_shape and not self.shared and not self._masked
        self.buckets = Buckets.of(specs, whole, tuple(self.answers.values()), self.row_symbol, self.row_wise)
        """The sizes to which rows are filled up; None where no input has buckets."""

    def _row_shape(self, spec: TensorSpec) -> tuple[int, ...] | None:
        rest = tuple(size for size in spec.shape[1:] if isinstance(size, int))
        return rest if self.row_wise and len(rest) == len(spec.shape) - 1 else None

    def __eq__(self, other: object) -> bool:
        """Equal inputs and outputs, in the same order."""
        return isinstance(other, Signature) and self._items() == other._items()

    def _items(self) -> tuple[list[Any], list[Any]]:
        return list(self.inputs.items()), list(self.outputs.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Signature({self.to_text()})"

    # --- requests -----------------------------------------------------------------------------------------------

    def check(self, tensors: dict[str, Tensor]) -> Checked:
        """The payload in the signature's order, its rows and its group; raises Malformed naming the input."""
        if self._simple and len(tensors) == len(self._expected):
            leading: tuple[int, ...] = ()
            for name, dtype, rest in self._expected:
                tensor = tensors.get(name)
                if tensor is None or tensor.dtype != dtype:
                    return _check(self, tensors)
                shape = tensor.shape
                if not leading:
                    leading = shape[:1]
                if shape != leading + rest or not shape:
                    return _check(self, tensors)
            for name, bounds in self._bounds.items():
                bounds.check(tensors[name])
            if len(tensors) > 1:
                tensors = {entry[0]: tensors[entry[0]] for entry in self._expected}
            return Checked(tensors, leading[0], SAME_GROUP)
        return _check(self, tensors)

    def check_outputs(self, names: Iterable[str]) -> tuple[str, ...]:
        """The wanted outputs, in the caller's order; raises Malformed naming an unknown or repeated one."""
        wanted = tuple(names)
        for name in wanted:
            if name not in self.outputs:
                gives = _listed(self.outputs) + did_you_mean(name, self.outputs)
                raise Malformed(f"unknown output {_quoted(name)}: this model gives {gives}")
            if wanted.count(name) > 1:
                raise Malformed(f"output {name!r} is asked for twice")
        return wanted

    def carried(self, outputs: Iterable[str] | None) -> tuple[str, ...]:
        """The tensors as which these outputs (None: all) travel."""
        if outputs is None or not self.special_outputs:
            return tuple(self.answers if outputs is None else outputs)
        both = (part for name in outputs for part in (name, companion(name)))
        return tuple(name for name in both if name in self.answers)

    def unknown_input(self, name: object) -> Malformed:
        """The refusal of an input that this model does not have: names it, those it has, and the one closest to it."""
        takes = _listed(self.inputs) + did_you_mean(name, self.inputs)
        return Malformed(f"unknown input {_quoted(name)}: this model takes {takes}")

    def bounds(self, name: str) -> Bounds | None:
        """The range that input `name` declares; None where it declares none."""
        return self._bounds.get(name)

    def fit(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of `check`, as long as they came: nothing is filled up to a bucket. Raises Malformed."""
        return _bound(self, tensors)[0]

    def fill(
        self, inputs: Mapping[str, Tensor], to: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Tensor], Ragged | None]:
        """What `fit` gave, filled up as `check` does it, or to these sizes."""
        if self.buckets is None:
            return dict(inputs), None
        return self.buckets.fill(inputs, self.sizes_of({name: inputs[name].shape for name in inputs}), to)

    def sizes_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """What each symbol is in inputs of these shapes, which fit."""
        return {
            symbol: size
            for name, shape in shapes.items()
            if name in self.inputs
            for symbol, size in zip(self.inputs[name].shape, shape, strict=True)
            if isinstance(symbol, str)
        }

    # --- made-up values and sizes -------------------------------------------------------------------------------

    def example(self, rows: int, sizes: Mapping[str, int] | None = None) -> dict[str, Tensor]:
        """Made-up inputs that `check` accepts: the default, or the allowed value nearest to zero.

        Open sizes are 1 where `sizes` does not say otherwise.
        """
        all_sizes = {size: 1 for spec in self.inputs.values() for size in spec.shape if isinstance(size, str)}
        all_sizes.update(sizes or {})
        if self.row_symbol is not None:
            all_sizes[self.row_symbol] = rows
        return {name: _filled(spec, all_sizes) for name, spec in self.inputs.items()}

    def row_bytes(self, output: str) -> int | None:
        """Bytes that one row of an output takes; None where that is not known before it is there."""
        item, shape = ITEM_BYTES.get(self.answers[output].dtype), self.row_shapes[output]
        return None if item is None or shape is None else item * math.prod(shape)

    # --- text ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, dict[str, str]]:
        """The manifest's form; `from_dict` gives an equal signature."""
        return {
            "inputs": {name: spec.to_text() for name, spec in self.inputs.items()},
            "outputs": {name: spec.to_text() for name, spec in self.outputs.items()},
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Signature:
        """A signature from what `to_dict` gave; raises BadSignature."""
        sides: list[Mapping[str, str]] = []
        for side in ("inputs", "outputs"):
            value = record.get(side)
            if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
                raise BadSignature(f'signature: {side} must be a table of name = notation, such as x = "float32[n, 4]"')
            sides.append(value)
        return cls(sides[0], sides[1])

    def to_text(self) -> str:
        """One line to read: `x: float32[n, 4], ... -> y: float32[n]`."""
        sides = (self.inputs, self.outputs)
        return " -> ".join(", ".join(f"{name}: {spec.to_text()}" for name, spec in side.items()) for side in sides)


# --- checking a payload that is not plain -----------------------------------------------------------------------


def raw_input(signature: Signature) -> TensorSpec | None:
    """The input that a body of plain bytes stands for: the only one that a row has to have; None if there is none."""
    needed = [spec for spec in signature.inputs.values() if not spec.optional]
    fits = signature.row_wise and len(needed) == 1 and needed[0].dtype == "bytes" and len(needed[0].shape) == 1
    return needed[0] if fits else None


def _check(signature: Signature, tensors: dict[str, Tensor]) -> Checked:
    """As `Signature.check`, for every payload: fills in defaults, fills up rows, builds the group."""
    inputs, sizes = _bound(signature, tensors)
    if signature._masked:
        inputs = _parted(signature, inputs)
    ragged = None
    if signature.buckets is not None:
        inputs, ragged = signature.buckets.fill(inputs, sizes)
        sizes = signature.buckets.raised(sizes)
    if not signature.row_wise or signature.row_symbol is None:
        return Checked(inputs, 1, None, ragged)
    return Checked(inputs, sizes[signature.row_symbol], _group(signature, inputs, sizes), ragged)


def _bound(signature: Signature, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A payload with its defaults filled in, and the size of each symbol; Malformed says what is wrong with it."""
    specs = signature.inputs
    buckets = signature.buckets
    for name in tensors:
        if name not in specs:
            raise signature.unknown_input(name)
    sizes: dict[str, int] = {}
    inputs: dict[str, Tensor] = {}
    for name, spec in specs.items():
        tensor = tensors.get(name)
        if tensor is None:
            if not spec.optional:
                raise Malformed(f"input {name!r} is missing: this model takes {_listed(specs)}")
            continue
        inputs[name] = _typed(spec, tensor)
        _bind(spec, inputs[name].shape, sizes, inputs, specs)
        if buckets is not None:
            buckets.check(name, spec, inputs[name].shape)
        bounds = signature.bounds(name)
        if bounds is not None:
            bounds.check(inputs[name])
    inputs = _with_defaults(signature, inputs, sizes)
    if signature.row_wise and signature.row_symbol not in sizes:
        raise Malformed(f"at least one input with rows is needed, of {_listed(specs)}")
    return inputs, sizes


def _parted(signature: Signature, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs as they travel: each whose elements may be missing as two, whether or not some are."""
    plain: dict[str, Tensor] = {}
    for name, tensor in inputs.items():
        plain.update(parts(name, tensor) if name in signature._masked else {name: tensor})
    return plain


def _typed(spec: TensorSpec, tensor: Tensor) -> Tensor:
    """The tensor in the declared dtype; only BYTES, which stands for two, is ever converted."""
    if len(tensor.shape) != len(spec.shape):
        tensor = fitted(spec, tensor)
    if tensor.dtype == spec.dtype:
        return tensor
    if DATATYPES[tensor.dtype] != spec.datatype:
        raise Malformed(f"input {spec.name!r}: expected {spec.datatype}, got {DATATYPES[tensor.dtype]}")
    if spec.dtype == "str":
        return Tensor("str", tensor.shape, coerce.decoded(spec.name, tensor.data))
    return Tensor("bytes", tensor.shape, [element.encode() for element in tensor.data])


def _bind(
    spec: TensorSpec,
    shape: tuple[int, ...],
    sizes: dict[str, int],
    seen: Iterable[str],
    specs: Mapping[str, TensorSpec],
) -> None:
    """Note the sizes of this tensor's symbols; Malformed where they or its fixed sizes disagree."""
    fits = len(shape) == len(spec.shape)
    for size, wanted in zip(shape, spec.shape, strict=False):
        if isinstance(wanted, int):
            fits &= size == wanted
        elif fits and sizes.setdefault(wanted, size) != size:
            other = next(name for name in seen if wanted in specs[name].shape)
            as_in = f" as in input {other!r}" if other != spec.name else ""
            raise Malformed(
                f"input {spec.name!r}: expected shape {shown(spec.shape)} with {wanted} = {sizes[wanted]}{as_in}, "
                f"got {shown(shape)}"
            )
    if not fits:
        raise Malformed(f"input {spec.name!r}: expected shape {shown(spec.shape)}, got {shown(shape)}")


def _with_defaults(signature: Signature, inputs: dict[str, Tensor], sizes: dict[str, int]) -> dict[str, Tensor]:
    """All inputs in the signature's order, those left out filled in where they have a default."""
    filled: dict[str, Tensor] = {}
    lengths = _lengths(signature, inputs) if Filled in map(type, inputs.values()) else None
    for name, spec in signature.inputs.items():
        if name in inputs:
            filled[name] = inputs[name]
        elif spec.default is not None:
            unknown = [size for size in spec.shape if isinstance(size, str) and size not in sizes]
            if unknown:
                raise Malformed(
                    f"input {name!r} is missing, and no other input tells its size {unknown[0]}: this model takes "
                    f"{_listed(signature.inputs)}"
                )
            between = None if lengths is None else default_of(spec, sizes, lengths)
            filled[name] = _filled(spec, sizes) if between is None else between
    return filled


def _lengths(signature: Signature, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Per size inside a row, how long each row was where they differ; Malformed where two inputs disagree."""
    lengths: dict[str, Any] = {}
    first = ""
    for name, tensor in inputs.items():
        spec = signature.inputs[name]
        if isinstance(tensor, Filled) and spec.shape[0] == signature.row_symbol:
            own = extents(spec, tensor)
            check_extents(spec, own, lengths, first)
            lengths, first = own | lengths, first or name
    return lengths


def _group(signature: Signature, inputs: dict[str, Tensor], sizes: dict[str, int]) -> Hashable:
    """What payloads must have in common to share a batch: sizes inside a row, inputs left out, shared values."""
    inner = tuple((symbol, size) for symbol, size in sorted(sizes.items()) if symbol != signature.row_symbol)
    absent = tuple(name for name in signature.inputs if name not in inputs)
    shared = tuple((name, _frozen(inputs[name])) for name in sorted(signature.shared) if name in inputs)
    return (inner, absent, shared) if inner or absent or shared else SAME_GROUP


def _frozen(tensor: Tensor) -> Hashable:
    data = tensor.data
    return (tensor.shape, tuple(data) if isinstance(data, list) else bytes(coerce.to_raw(tensor)))


def _filled(spec: TensorSpec, sizes: Mapping[str, int]) -> Tensor:
    """A tensor that holds one allowed value throughout."""
    value = spec.default if spec.default is not None else _allowed_value(spec)
    one = coerce.from_python(spec.name, spec.dtype, value)
    return Tensor(spec.dtype, spec.sized(sizes), one.data * spec.item_count(sizes))


def _allowed_value(spec: TensorSpec) -> Any:
    """The allowed value nearest to zero."""
    if spec.dtype in ("str", "bytes"):
        return "" if spec.dtype == "str" else b""
    if spec.dtype == "bool":
        return False
    value = max(0, spec.minimum if spec.minimum is not None else 0)
    value = min(value, spec.maximum) if spec.maximum is not None else value
    return float(value) if spec.dtype in FLOATS else value


def _listed(names: Iterable[str]) -> str:
    """Names for a message, as many as leave room in it for the rest."""
    listed = ", ".join(map(repr, names))
    return listed if len(listed) <= _MAX_LISTED else listed[:_MAX_LISTED].rpartition(", ")[0] + ", ..."


def _quoted(name: object) -> str:
    """What a caller called it, escaped and cut to a bearable length."""
    text = name if isinstance(name, str) else str(name)
    return ascii(text if len(text) <= 64 else text[:64] + "...")


# --- what the specs mean together -------------------------------------------------------------------------------


def _spec(name: str, value: str | TensorSpec, output: bool) -> TensorSpec:
    if isinstance(value, TensorSpec):
        return checked_spec(name, value, output)
    if isinstance(value, str):
        return parse(name, value, output)
    raise BadSignature(f'{"output" if output else "input"} {name!r}: expected a notation such as "float32[n, 12]"')


def _row_symbol(inputs: Iterable[TensorSpec]) -> str | None:
    """The first symbol of the inputs, where it is the first size of the input in which it occurs first."""
    for spec in inputs:
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str):
                return size if axis == 0 else None
    return None


def _aligned(symbol: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> bool:
    """Whether the symbol leads wherever inputs have it, and leads every output."""
    return all(symbol not in spec.shape[1:] for spec in inputs) and all(
        spec.shape[:1] == (symbol,) and symbol not in spec.shape[1:] for spec in outputs
    )


def _one_row_shape(spec: TensorSpec) -> bool:
    return all(isinstance(size, int) for size in spec.shape[1:])
