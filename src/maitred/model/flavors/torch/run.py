"""PyTorch models as predictors: arrays in, arrays out, with nothing copied that need not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.errors import ModelFault
from maitred.model.flavors.torch.tensors import DTYPES, Tensors
from maitred.model.predictor import Context, Traits
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.wire.coerce import FLOATS, Array

if TYPE_CHECKING:
    import torch

Leaves = Callable[[Any], Mapping[str, Any]]
"""What a model returned -> its tensors and numbers by name."""

ALONE: Final = "output"
"""The name of an output that is a tensor by itself."""


class TorchPredictor:
    """A module, script or graph. Safe to call from several threads.

    A tensor on the CPU shares its array's memory, which may be the caller's, or not writable at all. So the first run
    works on copies and looks whether they were written into; a model that does that always works on copies. (A model
    that writes only sometimes has to say `mutates_inputs`.)
    """

    def __init__(
        self,
        run: Callable[[dict[str, torch.Tensor]], Any],
        leaves: Leaves,
        signature: Signature,
        traits: Traits,
        tensors: Tensors,
        owned: Sequence[torch.Tensor],
        steady: bool = False,
    ) -> None:
        """`owned`: the model's weights. `steady`: it does the same at each run, so that one look at it is enough.

        Raises `CannotLoad` for a signature that tensors cannot hold.
        """
        self.signature = signature
        self.traits = traits
        self._run = run
        self._leaves = leaves
        self._tensors = tensors
        self._device = tensors.device.type
        self._owned = frozenset(_place(weight) for weight in owned if weight.layout is tensors.torch.strided)
        self._steady = steady
        self._tried = False
        self._copies = True
        self._plain = False
        """Whether its outputs are arrays as they are."""
        _check_dtypes(signature)

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name; only the wanted ones leave the device."""
        torch = self._tensors.torch
        if torch.is_autocast_enabled(self._device):  # by the thread that calls, for itself
            with torch.autocast(self._device, enabled=False):
                return self._predict(inputs, context.outputs)
        return self._predict(inputs, context.outputs)

    def _predict(self, inputs: dict[str, Any], wanted: Sequence[str] | None) -> dict[str, Any]:
        # Each line here runs with cold caches behind the model's: it is written for few steps.
        given = self._given(inputs)  # outside of inference mode, so that the tensors count who writes into them
        with self._tensors.torch.inference_mode():
            found = self._leaves(self._run(given))
        if not self._tried:
            self._look(inputs, given, found)
        elif not self._steady and not self._copies:
            self._check_untouched(given)
        names = wanted or found
        if self._plain:
            return {name: found[name].numpy() for name in names}
        return {name: self._array(found[name]) for name in names if name in found}

    def _given(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        make = self._tensors.tensor
        if self._copies and not self.traits.mutates_inputs:
            return {name: make(array.copy()) for name, array in inputs.items()}
        return {name: make(array) for name, array in inputs.items()}

    def _look(self, inputs: dict[str, Any], given: dict[str, torch.Tensor], found: Mapping[str, Any]) -> None:
        """After the first run, which was on copies: whether these are as they were."""
        if self._device == "cpu" and not self.traits.mutates_inputs:
            self._copies = any(
                tensor._version or self._tensors.array(tensor).tobytes() != inputs[name].tobytes()
                for name, tensor in given.items()
            )
            self._plain = self._steady and all(map(self._is_plain, found.values()))
        else:
            self._copies, self._steady = False, True
        self._tried = True

    def _check_untouched(self, given: dict[str, torch.Tensor]) -> None:
        for tensor in given.values():
            if tensor._version:
                self._copies = True
                raise ModelFault("the model wrote into its inputs: pack it with Traits(mutates_inputs=True)")

    def _is_plain(self, value: Any) -> bool:
        torch = self._tensors.torch
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.is_contiguous():
            return False
        return value.dtype is not torch.bfloat16 and not value.requires_grad and _place(value) not in self._owned

    def _array(self, value: Any) -> Any:
        try:
            owned = value.untyped_storage().data_ptr() in self._owned
        except AttributeError:  # a number, as a module may return it
            return value
        except NotImplementedError:  # a sparse tensor
            owned = False
        array = self._tensors.array(value)
        return array.copy() if owned else array


class ProgramRun:
    """A graph of torch.export, called with its weights and tensors in a row: no structures are taken apart."""

    def __init__(self, program: Any, names: Sequence[str], conditions: Sequence[str], symbols: Symbols) -> None:
        """`program`: an ExportedProgram on its device. Raises `CannotLoad` for one with inputs of unknown kinds."""
        self._forward = program.graph_module.forward
        self._row: list[Any] = []
        self._places: list[tuple[int, str]] = []
        waiting = iter(names)
        for place, spec in enumerate(program.graph_signature.input_specs):
            kind = spec.kind.name
            self._row.append(_constant(program, spec) if kind != "USER_INPUT" else getattr(spec.arg, "value", None))
            if kind == "USER_INPUT" and not hasattr(spec.arg, "value"):
                self._places.append((place, next(waiting)))
        self.weights = [value for value in self._row if hasattr(value, "untyped_storage")]
        self._conditions = [(text, compile(text, "<condition>", "eval")) for text in conditions]
        self._symbols = symbols

    def __call__(self, given: dict[str, torch.Tensor]) -> Any:
        """The graph's outputs, flat. Raises `ModelFault` for sizes that it was not exported for."""
        if self._conditions:
            self._check(given)
        row = list(self._row)
        for place, name in self._places:
            row[place] = given[name]
        return self._forward(*row)

    def _check(self, given: dict[str, torch.Tensor]) -> None:
        sizes: dict[str, Any] = {symbol: given[name].shape[axis] for symbol, (name, axis) in self._symbols.items()}
        for text, code in self._conditions:
            if not eval(code, {"__builtins__": {}}, sizes):  # written by `expressions.condition` from sizes alone
                told = ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items())
                raise ModelFault(f"the program was not exported for these sizes: {told}, but {text}")


Symbols = Mapping[str, tuple[str, int]]
"""Where a program's symbol is seen: the input and its axis."""


def _constant(program: Any, spec: Any) -> Any:
    """What a graph takes besides the caller's tensors: weights, buffers, constants."""
    if spec.kind.name in {"PARAMETER", "BUFFER"} and spec.target in program.state_dict:
        return program.state_dict[spec.target].detach()
    if spec.kind.name in {"BUFFER", "CONSTANT_TENSOR"}:
        return program.constants[spec.target].detach()
    raise CannotLoad(f"the program takes {spec.arg.name!r}, which is no tensor: export it with plain tensors alone")


def leaves_by_place(names: Sequence[str]) -> Leaves:
    """For a flat row of outputs: its tensors under these names, those without a name left out."""
    if len(names) == 1 and names[0]:
        only = names[0]
        return lambda raw: {only: raw[0]}
    return lambda raw: {name: value for name, value in zip(names, raw, strict=True) if name}


def leaves_by_structure(declared: Sequence[str] = (), ordered: Sequence[str] = ()) -> Leaves:
    """For what a module returns: keys and fields by name, places as `output_0`, a tensor alone as `output`.

    `ordered`: names for all of them, in order; `declared`: the same where none of the model's own names is among them.
    """

    chosen = ordered or declared
    alone = chosen[0] if len(chosen) == 1 else ALONE

    def leaves(raw: Any) -> Mapping[str, Any]:
        if hasattr(raw, "untyped_storage") and len(ordered) <= 1:
            return {alone: raw}
        found = dict(_named(raw, ""))
        if ordered and len(ordered) != len(found):
            raise ModelFault(f"the model returns {', '.join(found)}; the option outputs has {len(ordered)} names")
        if ordered or (declared and len(declared) == len(found) and not found.keys() & set(declared)):
            return dict(zip(chosen, found.values(), strict=True))
        return found

    return leaves


def _named(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        parts = [(str(place) if name else f"{ALONE}_{place}", part) for place, part in enumerate(value)]
    elif hasattr(value, "__dataclass_fields__"):
        parts = [(field, getattr(value, field)) for field in value.__dataclass_fields__]
    else:
        return [] if value is None else [(name or ALONE, value)]
    return [leaf for key, part in parts for leaf in _named(part, f"{name}_{key}" if name else key)]


def _place(tensor: Any) -> int:
    """Where a tensor's memory lies."""
    return int(tensor.untyped_storage().data_ptr())


def _check_dtypes(signature: Signature) -> None:
    for name, spec in signature.inputs.items():
        if spec.dtype not in DTYPES:
            raise CannotLoad(f"input {name!r}: PyTorch has no tensors of {spec.dtype}; encode it as numbers")
        if spec.nullable and spec.dtype not in FLOATS:
            raise CannotLoad(f"input {name!r}: PyTorch has no missing {spec.dtype}: only floats may be nullable")
    for name, spec in signature.outputs.items():
        if spec.dtype not in DTYPES:
            raise CannotLoad(f"output {name!r}: PyTorch has no tensors of {spec.dtype}")


def row_count(arrays: Mapping[str, Array]) -> int:
    """The first size of the first input that has any."""
    return next((int(array.shape[0]) for array in arrays.values() if array.ndim), 0)


def tiled(array: Array, axis: int, size: int) -> Array:
    """The array with its content repeated along an axis until it has `size` places there."""
    if not array.shape[axis]:
        raise CannotLoad("the example has no rows: give at least one")
    index = np.arange(size) % array.shape[axis]
    repeated: Array = np.take(array, index, axis)
    return repeated
