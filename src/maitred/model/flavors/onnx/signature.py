"""What an ONNX graph means as a signature: its inputs, the axis that is the rows, and what cannot be served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from maitred.model.flavors import ROWS, Found, derived, spec_of, symbol_of
from maitred.model.flavors.onnx.graph import Graph, Value
from maitred.model.flavors.options import Options, labels_in
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import FLOATS

MAPS: Final = "sequence of maps"
ROW_NAMES: Final = (ROWS, "rows", "batch", "maitred_rows")
"""What the row axis is called where the model leaves it unnamed: the first that it does not use for another axis."""
MAX_DEFAULT_ELEMENTS: Final = 64
"""A value in the graph with more elements than this is a weight, not the default of an input."""

FIRST_OVERRIDING: Final = 4
"""The version of the format from which on a value in the graph is an input's default, and not its value."""

_MADE_UP: Final = re.compile(r".*_dynamic_axes_\d+|unk__\d+|(p2o\.)?DynamicDimension\.\d+")
"""Names that exporters invent for open axes: such a first axis has another name in each tensor, and is unnamed."""
_ADVICE: Final = {
    "sequence": "stack it into one tensor inside the model (ConcatFromSequence with new_axis=1)",
    "map": "export the model without the DictVectorizer or the maps around it, so that it takes and gives tensors",
    "optional": "make it a plain tensor; an input may have a default value in the graph (an initializer of its name)",
    "sparse tensor": "make it a dense tensor inside the model",
}


def found_in(graph: Graph, options: Options) -> Found | None:
    """The signature that a graph states, None where it leaves out a rank. Raises `CannotLoad` for what no one serves.

    Options: `labels` ({output: [label, ...]}), `optional` ([input, ...]: which of those with a value in the graph are
    inputs) and `rows` (the size at which the row axis is fixed in the graph).
    """
    needed = [value for value in graph.inputs if value.name not in graph.defaults]
    optional = _chosen(graph, options.get("optional"))
    inputs = [value for value in graph.inputs if value in needed or value in optional]
    for value in (*inputs, *(value for value in graph.outputs if value.kind != MAPS)):
        _check_kind(value)
    if any(value.shape is None for value in (*inputs, *graph.outputs) if value.kind == "tensor"):
        return None
    fixed = _fixed_rows(needed, graph.outputs, rows_in(options))
    stated = tuple(map(_of_rows, graph.outputs)) if graph.class_labels and not fixed else graph.outputs
    axes = _Axes(inputs, stated, fixed)
    labels = {**graph.class_labels, **labels_in(options)}
    specs = [replace(_spec(value, axes, value in needed), optional=value in optional) for value in inputs]
    outputs = [_output(value, axes, bool(fixed), labels) for value in stated]
    return Found(derived(specs, outputs), Traits(fixed_batch=(fixed,) if fixed else None))


def rows_in(options: Options, key: str = "rows") -> int:
    """`rows`: the size at which the row axis is fixed. Raises `CannotLoad`."""
    size = options.get(key, 1)
    if type(size) is not int or size < 0:
        raise CannotLoad(f"the option {key} must be the size of the row axis in the graph, or 0 if it has none")
    return size


def settled(graph: Graph, signature: Signature, stated: Traits | None) -> Traits:
    """The traits of a graph served by this signature: with the one batch size that a graph of fixed rows takes.

    Raises `CannotLoad` naming the tensor where the two contradict each other.
    """
    _check_names(graph, signature)
    fixed: set[int] = set()
    for value in graph.inputs:
        spec = signature.inputs.get(value.name)
        if spec is not None:
            _check_input(value, spec, value.name in graph.defaults)
            rows = signature.row_symbol if signature.row_wise else None
            fixed |= _fixed_axes(value, spec, rows)
    for value in graph.outputs:
        if value.name in signature.outputs:
            _check_output(value, signature.outputs[value.name])
    traits = stated or Traits()
    if not fixed:
        return traits
    sizes = tuple(fixed)
    if len(sizes) > 1 or traits.fixed_batch not in (None, sizes):
        raise CannotLoad(
            f"the graph fixes its rows at {' and '.join(map(str, sorted(sizes)))}: fixed_batch must be that"
        )
    return msgspec.structs.replace(traits, fixed_batch=sizes)


def _check_names(graph: Graph, signature: Signature) -> None:
    """Raises `CannotLoad` naming what the signature has and the graph has not, or the other way round."""
    able = {value.name for value in graph.inputs} - ({*graph.defaults} if graph.version < FIRST_OVERRIDING else set())
    needed = {value.name for value in graph.inputs} - {*graph.defaults}
    if wrong := sorted((signature.inputs.keys() - able) | (needed - signature.inputs.keys())):
        raise CannotLoad(f"the input {wrong[0]!r} is in only one of graph and signature")
    outputs = {value.name for value in graph.outputs}
    if wrong := sorted(signature.outputs.keys() - outputs):
        raise CannotLoad(f"the signature's output {wrong[0]!r} is not in the graph, which has {sorted(outputs)}")


def _check_input(value: Value, spec: TensorSpec, has_default: bool) -> None:
    _check_kind(value)
    if value.dtype != spec.dtype:
        raise CannotLoad(f"the input {spec.name!r} is {value.dtype} in the graph and {spec.dtype} in the signature")
    if spec.optional and spec.default is None and not has_default:
        raise CannotLoad(f"the input {spec.name!r} cannot be optional without a default: the graph has no value for it")
    if (spec.nullable and spec.dtype not in FLOATS) or spec.categories is not None:
        word = "nullable" if spec.nullable else "categories="
        raise CannotLoad(f"the input {spec.name!r}: {word} is not for ONNX, which knows no missing {spec.dtype}")
    if value.shape is not None and len(value.shape) != len(spec.shape):
        raise CannotLoad(
            f"the input {spec.name!r} has {len(value.shape)} axes in the graph and {len(spec.shape)} in the signature"
        )


def _fixed_axes(value: Value, spec: TensorSpec, rows: str | None) -> set[int]:
    """The size at which the graph fixes the rows of an input. Raises `CannotLoad` for any other size that differs."""
    fixed: set[int] = set()
    for axis, (size, wanted) in enumerate(zip(value.shape or (), spec.shape, strict=False)):
        if isinstance(size, str) or size == wanted:
            continue
        if axis or wanted != rows or size == 0:
            raise CannotLoad(
                f"axis {axis} of the input {spec.name!r} is {size} in the graph: the signature must say so"
            )
        fixed.add(size)
    return fixed


def _check_output(value: Value, spec: TensorSpec) -> None:
    if value.kind != MAPS:
        _check_kind(value)
    elif not spec.labels:
        raise CannotLoad(_unlabelled(value.name))
    if value.dtype == "str" and spec.dtype != "str":
        raise CannotLoad(f"the output {spec.name!r} is str in the graph and {spec.dtype} in the signature")


def _chosen(graph: Graph, named: Any) -> list[Value]:
    """The inputs that may be left out."""
    able = (
        [value for value in graph.inputs if value.name in graph.defaults] if graph.version >= FIRST_OVERRIDING else []
    )
    if named is None:
        weights = any(graph.defaults[value.name] > MAX_DEFAULT_ELEMENTS for value in able)
        return [] if weights else able  # exporters that list weights as inputs list all of them
    if not isinstance(named, (list, tuple)) or not all(isinstance(name, str) for name in named):
        raise CannotLoad("the option optional must be a list of inputs that have a value in the graph")
    known = {value.name: value for value in able}
    if wrong := [name for name in named if name not in known]:
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none that may be changed"
        raise CannotLoad(f"{wrong[0]!r} is no input with a value in the graph: {has}")
    return [value for value in able if value.name in named]


def _check_kind(value: Value) -> None:
    if value.kind in _ADVICE:
        raise CannotLoad(f"{value.name!r} is a {value.kind}, which cannot be served: {_ADVICE[value.kind]}")
    if value.kind == "tensor" and not value.dtype:
        raise CannotLoad(f"{value.name!r} has elements of a type that cannot be served: cast it inside the model")


def _fixed_rows(inputs: Iterable[Value], outputs: Iterable[Value], size: int) -> int:
    """The size at which the graph fixes the number of rows; 0 where it does not, or where that is not sure.

    Sure is: some input and all outputs begin with it, and no input begins with an open axis. With the usual size, 1,
    each row is then a call of its own, which is right whatever the graph computes.
    """
    firsts = [value.shape[0] for value in inputs if value.shape]
    aligned = all(value.kind == MAPS or (value.shape and value.shape[0] == size) for value in outputs)
    if size and size in firsts and aligned and not any(isinstance(first, str) for first in firsts):
        return size
    return 0


def _spec(value: Value, axes: _Axes, by_rows: bool, labels: tuple[str, ...] | None = None) -> TensorSpec:
    return spec_of(value.name, value.dtype, axes.of(value, by_rows), labels)


def _output(value: Value, axes: _Axes, by_rows: bool, labels: Mapping[str, tuple[str, ...]]) -> TensorSpec:
    if value.kind == MAPS:
        known = labels.get(value.name, ())
        if not known:
            raise CannotLoad(_unlabelled(value.name))
        return spec_of(value.name, "float32", (axes.rows, len(known)), known)
    last = value.shape[-1] if value.shape else None
    sets = {found for found in labels.values() if len(found) == last}
    fitting = labels.get(value.name, next(iter(sets)) if len(sets) == 1 and value.dtype in FLOATS else None)
    return _spec(value, axes, by_rows, fitting if fitting is not None and len(fitting) == last else None)


def _unlabelled(name: str) -> str:
    return (
        f"the output {name!r} is a sequence of maps without known labels: export the model with "
        "skl2onnx.to_onnx(model, sample, options={'zipmap': False})"
    )


def _of_rows(value: Value) -> Value:
    """A classifier's label of every row, of which some exporters (LightGBM's) say that there is one."""
    one_label = value.shape == (1,) and value.dtype in ("int64", "str")
    return value._replace(shape=("",)) if one_label else value


class _Axes:
    """Names the axes of a graph: one name in it is one symbol, and two names are two."""

    def __init__(self, inputs: Iterable[Value], outputs: Iterable[Value], fixed: int) -> None:
        self._fixed = fixed
        self._symbols: dict[str, str] = {}
        for value in (*inputs, *outputs):
            for name in value.shape or ():
                if isinstance(name, str) and name:
                    self._symbol(name)
        firsts = [value.shape[0] for value in inputs if value.shape]
        named = next((self._symbol(first) for first in firsts if isinstance(first, str) and not _unnamed(first)), "")
        self.rows = named or next(name for name in ROW_NAMES if name not in self._symbols.values())

    def of(self, value: Value, by_rows: bool) -> tuple[int | str, ...]:
        """The shape of a tensor. `by_rows`: its first axis is the rows, if the graph fixes it at their number."""
        shape: list[int | str] = []
        for axis, size in enumerate(value.shape or ()):
            if axis == 0 and ((by_rows and size == self._fixed) or (isinstance(size, str) and _unnamed(size))):
                shape.append(self.rows)
            elif isinstance(size, int):
                shape.append(size)
            else:
                shape.append(self._symbol(size or f"{value.name}_{axis}"))
        return tuple(shape)

    def _symbol(self, name: str) -> str:
        if name not in self._symbols:
            word = symbol_of(name)
            while word in self._symbols.values():
                word += "_"
            self._symbols[name] = word
        return self._symbols[name]


def _unnamed(axis: str) -> bool:
    return not axis or _MADE_UP.fullmatch(axis) is not None
