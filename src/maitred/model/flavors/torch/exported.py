"""Programs of torch.export: made of a module and its example, described by their own graph, run as that graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from maitred.model.flavors import ROWS, Found, Opening, derived, spec_of, symbol_of
from maitred.model.flavors.options import Options, labels_in, texts_in
from maitred.model.flavors.torch.learned import arrays_of, parameters
from maitred.model.flavors.torch.modules import ready
from maitred.model.flavors.torch.program import Program, Value, dangers_of, read_program
from maitred.model.flavors.torch.run import (
    ProgramRun,
    Symbols,
    TorchPredictor,
    leaves_by_place,
    row_count,
    tiled,
)
from maitred.model.predictor import Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.wire.coerce import Array, to_array

_FEWEST: Final = 2
"""Sizes of 0 and 1 mean something else to torch.export than any size: an example needs more."""


def exported(module: Any, opening: Opening) -> Any:
    """The module as an ExportedProgram whose sizes are open where the signature has symbols, else in the rows.

    Raises `CannotPack` with what torch.export cannot do.
    """
    tensors = ready(opening)
    torch = tensors.torch
    signature = opening.signature
    arrays = _example(module, opening.sample, signature)
    shapes = _open_sizes(torch, arrays, signature)
    given = {name: tensors.tensor(array.copy()) for name, array in arrays.items()}
    leading = [name for name, place in zip(given, parameters(module), strict=False) if name == place]
    positional = leading if list(given)[: len(leading)] == leading else []
    arguments = tuple(given[name] for name in positional)
    named = {name: tensor for name, tensor in given.items() if name not in positional}
    with _evaluating(module), torch.no_grad():
        try:
            return torch.export.export(module, arguments, named, dynamic_shapes=shapes)
        except Exception as error:  # whatever of the module cannot be traced
            reason = str(error).strip().split("\n\n")[0][:500]
            raise CannotPack(
                f"torch.export cannot export this {type(module).__name__} ({type(error).__name__}: {reason}): change "
                "it, or pack its class and weights with options={'form': 'class'}"
            ) from error


def found_in(program: Program, options: Options) -> Found:
    """The program's own signature. Raises `CannotLoad` for what of it cannot be served."""
    seen = symbols_of(program.inputs)
    written = {symbol: symbol_of(f"{name}_{axis}") for symbol, (name, axis) in seen.items()}
    first = next(iter(seen), "")
    rows = first if first and seen[first][1] == 0 else ""
    if rows:
        written[rows] = ROWS
    labels = labels_in(options)
    named = output_names(program, options)
    given = [value._replace(name=name) for value, name in zip(program.outputs, named, strict=True) if value]
    inputs = [_spec(value, written, None) for value in program.inputs]
    signature = derived(inputs, [_spec(value, written, labels.get(value.name)) for value in given])
    least, most = program.ranges.get(rows, (0, None))
    if least > _FEWEST:
        raise CannotLoad(f"the program takes no fewer than {least} rows: export it with torch.export.Dim('n', min=1)")
    return Found(signature, Traits(max_batch_rows=most if signature.row_wise else None))


def output_names(program: Program, options: Options) -> list[str]:
    """A name for every output, the option `outputs` first; empty for those that are no tensors."""
    own = [value.name if value else "" for value in program.outputs]
    wanted = texts_in(options, "outputs")
    count = sum(map(bool, own))
    if wanted and len(wanted) != count:
        raise CannotLoad(f"the program returns {count} tensors; the option outputs has {len(wanted)} names")
    names = iter(wanted)
    return [next(names) if name and wanted else name for name in own]


def symbols_of(inputs: Sequence[Value]) -> Symbols:
    """Where each symbol is seen first, in the order in which they are seen."""
    seen: dict[str, tuple[str, int]] = {}
    for value in inputs:
        for axis, size in enumerate(value.sizes):
            if isinstance(size, str) and size:
                seen.setdefault(size, (value.name, axis))
    return seen


def open_program(opening: Opening) -> Predictor:
    """The graph, with its weights on the device. Raises `CannotLoad`, `MissingExtra`."""
    tensors = ready(opening)
    if dangers := () if opening.trusted else dangers_of(opening.path):
        opening.require_trust(f"{opening.file} holds {dangers[0]}")
    program = read_program(opening.path)
    found = found_in(program, opening.options)
    signature = opening.signature or found.signature
    names = [value.name for value in program.inputs]
    given = _names_of(signature, names)
    loaded = tensors.torch.export.load(str(opening.path))
    if tensors.device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        loaded = move_to_device_pass(loaded, tensors.device)
    seen = {symbol: (given[names.index(name)], axis) for symbol, (name, axis) in symbols_of(program.inputs).items()}
    run = ProgramRun(loaded, given, _conditions(program, seen), seen)
    outputs = _outputs_of(signature, output_names(program, opening.options))
    traits = opening.traits or found.traits
    return TorchPredictor(run, leaves_by_place(outputs), signature, traits, tensors, run.weights, steady=True)


def _conditions(program: Program, seen: Symbols) -> list[str]:
    """All that must hold of the symbols; that there may be no and one row is understood."""
    conditions = list(program.conditions)
    for symbol, (least, most) in program.ranges.items():
        if symbol in seen:
            conditions += [f"{symbol} >= {int(least)}"] if least > _FEWEST else []
            conditions += [f"{symbol} <= {int(most)}"] if most is not None else []
    return conditions


def _names_of(signature: Signature, names: list[str]) -> list[str]:
    """The signature's name of each of the program's inputs: its own, or by place where it has other ones."""
    given = list(signature.inputs)
    if set(given) == set(names):
        return names
    if len(given) != len(names) or set(given) & set(names):
        raise CannotLoad(f"the program takes {', '.join(names)}; the signature has the inputs {', '.join(given)}")
    return given


def _outputs_of(signature: Signature, names: list[str]) -> list[str]:
    given, own = list(signature.outputs), [name for name in names if name]
    if set(given) <= set(own):
        return names
    if len(given) != len(own) or set(given) & set(own):
        raise CannotLoad(f"the program returns {', '.join(own)}; the signature has the outputs {', '.join(given)}")
    ordered = iter(given)
    return [next(ordered) if name else "" for name in names]


def _spec(value: Value, written: Mapping[str, str], labels: tuple[str, ...] | None) -> Any:
    if not value.dtype:
        raise CannotLoad(f"{value.name!r} has elements of a type that cannot be served: cast it inside the model")
    sizes = (
        size if isinstance(size, int) else written.get(size) or symbol_of(f"{value.name}_{axis}")
        for axis, size in enumerate(value.sizes)
    )
    return spec_of(value.name, value.dtype, tuple(sizes), labels)


# --- exporting ------------------------------------------------------------------------------------------------------


def _example(module: Any, sample: Any, signature: Signature | None) -> dict[str, Array]:
    """Arrays with more than one place along each axis that is to be open."""
    if sample is None and signature is not None:
        made = {name: to_array(tensor) for name, tensor in signature.example(_FEWEST).items()}
        sample = {name: made[name] for name in signature.inputs}
    arrays = arrays_of(module, sample, signature)
    sizes: dict[str, int] = {}
    for name, axis, symbol in _places(arrays, signature):
        sizes[symbol] = max(sizes.get(symbol, 0), arrays[name].shape[axis], _FEWEST + len(sizes) * (sample is None))
    for name, axis, symbol in _places(arrays, signature):
        arrays[name] = tiled(arrays[name], axis, sizes[symbol])
    return arrays


def _places(arrays: Mapping[str, Array], signature: Signature | None) -> Iterator[tuple[str, int, str]]:
    """Input, axis and symbol of every open size; without a signature these are the rows."""
    rows = row_count(arrays)
    for name, array in arrays.items():
        if signature is None:
            if array.ndim and len(array) == rows:
                yield name, 0, ROWS
        else:
            yield from (
                (name, axis, size) for axis, size in enumerate(signature.inputs[name].shape) if isinstance(size, str)
            )


def _open_sizes(torch: Any, arrays: Mapping[str, Array], signature: Signature | None) -> dict[str, Any]:
    dims: dict[str, Any] = {}
    shapes: dict[str, dict[int, Any]] = {name: {} for name in arrays}
    for name, axis, symbol in list(_places(arrays, signature)):
        shapes[name][axis] = dims.setdefault(symbol, torch.export.Dim(symbol))
    return shapes


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """The module as it predicts (no dropout, no statistics of the batch), then as it was."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
