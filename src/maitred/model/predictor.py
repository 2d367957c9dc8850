"""The one protocol a model fulfils, and the one way in which every mode calls it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import msgspec
import numpy as np

from maitred.errors import ModelFault
from maitred.model.answers import Arrays as Arrays
from maitred.model.answers import WrongCount as WrongCount
from maitred.model.answers import known_sizes, settled
from maitred.model.forms import whole
from maitred.model.signature import Signature
from maitred.wire import tensors as wire_tensors
from maitred.wire.coerce import NUMPY_TYPES, Array


def _never() -> bool:
    return False


class Context:
    """What a model may know about the batch it is given."""

    __slots__ = ("parameters", "outputs", "shadow", "rows", "cancelled")

    def __init__(
        self,
        parameters: Any = None,
        outputs: tuple[str, ...] | None = None,
        rows: Sequence[tuple[str, int]] = (),
        shadow: bool = False,
        cancelled: Callable[[], bool] = _never,
    ) -> None:
        self.parameters: Any = {} if parameters is None else parameters
        """A dict that holds for the whole batch; for a model with `per_row_parameters`, a list of one dict per row."""
        self.outputs = outputs
        """Names of the outputs wanted; None for all. Others need not be computed."""
        self.shadow = shadow
        """Whether the answer is thrown away: a model with side effects must then leave them out."""
        self.rows = rows
        """The request id and lane of each row."""
        self.cancelled = cancelled
        """`cancelled()` is true once nobody waits for this batch any more: a long run may stop."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says about itself besides its signature; see `Model` for each."""

    fixed_batch: tuple[int, ...] | None = None
    slots: int = 1
    mutates_inputs: bool = False
    side_effects: bool = False
    per_row_parameters: bool = False
    max_batch_rows: int | None = None
    asynchronous: bool = False
    """Whether `predict` returns something to await."""


class Model:
    """Base of models written in Python: give it a `signature` and a `predict`, which may be a coroutine function.

    `predict(batch, context)` gets read-only arrays by input name and returns arrays by output name; `context` may be
    left out of the parameters. The arrays are dead after it returns.
    """

    signature: ClassVar[Signature]
    fixed_batch: ClassVar[Sequence[int] | None] = None
    """Row counts that batches are padded to, so that answers do not depend on how full a batch was."""
    slots: ClassVar[int] = 1
    """How many calls of an async `predict` may run at once."""
    mutates_inputs: ClassVar[bool] = False
    """Whether `predict` writes into its inputs; it then gets copies."""
    side_effects: ClassVar[bool] = False
    """Whether a second run on the same rows does harm: such a model is never retried or bisected."""
    per_row_parameters: ClassVar[bool] = False
    """Whether requests with different parameters may share a batch."""
    max_batch_rows: ClassVar[int | None] = None
    """The most rows of one batch; None leaves it to the settings."""

    predict: Callable[..., Any]

    def load(self, path: str, device: str) -> None:
        """Called once per replica, in the replica's process, before any `predict`. `path` is the artifact's folder."""


@runtime_checkable
class Predictor(Protocol):
    """A loaded model, whatever its flavor."""

    signature: Signature
    traits: Traits

    def predict(self, inputs: Arrays, context: Context) -> Any:
        """Outputs by name, in any form that `settle` takes; something to await where the traits say asynchronous."""
        ...


class ModelPredictor:
    """A loaded `Model` (or anything with its attributes) as a predictor."""

    __slots__ = ("model", "signature", "traits", "predict")

    def __init__(self, model: Any) -> None:
        """Raises TypeError saying what the model lacks or declares wrongly."""
        self.model = model
        self.signature = signature_of(model)
        self.traits = traits_of(model)
        self.predict: Callable[[Arrays, Context], Any] = with_context(model.predict)


def signature_of(model: Any) -> Signature:
    """The model's signature; TypeError where it has none."""
    signature = getattr(model, "signature", None)
    if not isinstance(signature, Signature):
        raise TypeError(f"{_called(model)} needs a class attribute `signature`, a maitred.Signature")
    return signature


_DECLARED: Final = (
    "fixed_batch", "slots", "mutates_inputs", "side_effects", "per_row_parameters", "max_batch_rows"
)  # fmt: skip
"""The traits that a model class declares as attributes."""


def traits_of(model: Any) -> Traits:
    """What a model class, or one of its objects, says about itself; TypeError where that is wrong."""
    predict = getattr(model, "predict", None)
    if not callable(predict):
        raise TypeError(f"{_called(model)} needs a method predict(batch, context)")
    given = {name: getattr(model, name, getattr(Model, name)) for name in _DECLARED}
    signature = getattr(model, "signature", None)
    try:
        row_wise = not isinstance(signature, Signature) or signature.row_wise
        return checked_traits(Traits(**given, asynchronous=inspect.iscoroutinefunction(predict)), row_wise)
    except TypeError as error:
        raise TypeError(f"{_called(model)}: {error}") from None


def checked_traits(traits: Traits, row_wise: bool) -> Traits:
    """The same, with `fixed_batch` in order; TypeError naming what no model may say of itself."""
    for name in ("mutates_inputs", "side_effects", "per_row_parameters"):
        if not isinstance(getattr(traits, name), bool):
            raise TypeError(f"{name} must be True or False")
    if not _is_count(traits.slots):
        raise TypeError("slots must be a whole number >= 1")
    if traits.max_batch_rows is not None and not _is_count(traits.max_batch_rows):
        raise TypeError("max_batch_rows must be a whole number >= 1, or None")
    return msgspec.structs.replace(traits, fixed_batch=_sizes(traits.fixed_batch, row_wise))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _sizes(sizes: Any, row_wise: bool) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    if not isinstance(sizes, (list, tuple)) or not sizes or not all(map(_is_count, sizes)):
        raise TypeError("fixed_batch must be a list of row counts, such as [1, 8, 32]")
    if not row_wise:
        raise TypeError("fixed_batch needs a row-wise signature")
    return tuple(sorted(set(sizes)))


def _called(model: Any) -> str:
    return model.__name__ if isinstance(model, type) else type(model).__name__


def with_context(predict: Callable[..., Any]) -> Callable[[Arrays, Context], Any]:
    """`predict` as a function of batch and context, whether or not it wants the context."""
    if takes_context(predict):
        return predict
    return functools.wraps(predict)(lambda inputs, context: predict(inputs))


def takes_context(predict: Callable[..., Any]) -> bool:
    """Whether a (bound) predict function can be given a second argument."""
    try:
        parameters = inspect.signature(predict).parameters.values()
    except (TypeError, ValueError):
        return True
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in places]
    return len(positional) >= 2 or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


# --- calling a model --------------------------------------------------------------------------------------------


def call(predictor: Predictor, inputs: Arrays, context: Context) -> Arrays:
    """Run a batch through a model: the same bits in every mode. Arrays go in and come out in the form that travels.

    Pads to `fixed_batch`, makes the arrays read-only (or copies), settles what comes back. Zero rows of a row-wise
    model are answered without it where the outputs' sizes are known. What `predict` raises passes through; raises
    WrongCount or ModelFault for what it returned.
    """
    signature, traits = predictor.signature, predictor.traits
    rows = rows_of(signature, inputs)
    empty = _empty(signature, inputs, context.outputs) if rows == 0 else None
    if empty is not None:
        return empty
    if traits.fixed_batch is None:
        raw = predictor.predict(_given(inputs, signature, traits), context)
        return settle(raw, signature, rows, inputs, context.outputs)
    pieces = []
    for start, stop, size in _portions(rows, traits.fixed_batch):
        padded = wire_tensors.pad_rows(inputs, start, stop, size, signature.shared)
        raw = predictor.predict(_given(padded, signature, traits), _portion(context, start, stop, size))
        outputs = settle(raw, signature, size, padded, context.outputs)
        pieces.append({name: array[: stop - start] for name, array in outputs.items()})
    return wire_tensors.stacked(pieces)


async def call_async(predictor: Predictor, inputs: Arrays, context: Context) -> Arrays:
    """As `call`, for a model whose `predict` is a coroutine function."""
    signature, traits = predictor.signature, predictor.traits
    rows = rows_of(signature, inputs)
    empty = _empty(signature, inputs, context.outputs) if rows == 0 else None
    if empty is not None:
        return empty
    if traits.fixed_batch is None:
        raw = await predictor.predict(_given(inputs, signature, traits), context)
        return settle(raw, signature, rows, inputs, context.outputs)
    pieces = []
    for start, stop, size in _portions(rows, traits.fixed_batch):
        padded = wire_tensors.pad_rows(inputs, start, stop, size, signature.shared)
        raw = await predictor.predict(_given(padded, signature, traits), _portion(context, start, stop, size))
        outputs = settle(raw, signature, size, padded, context.outputs)
        pieces.append({name: array[: stop - start] for name, array in outputs.items()})
    return wire_tensors.stacked(pieces)


def rows_of(signature: Signature, inputs: Mapping[str, Array]) -> int:
    """Size of the row axis of checked inputs; 1 for a model that is not row-wise."""
    if not signature.row_wise:
        return 1
    for name, array in inputs.items():
        if name not in signature.shared:
            return len(array)
    raise ModelFault("the batch has no input with rows")


def _given(inputs: Arrays, signature: Signature, traits: Traits) -> Arrays:
    """The arrays as the model gets them: read-only, or its own copies; with what is missing, and times as such."""
    if signature.special_inputs:
        inputs = whole(signature.special_inputs, inputs)
    if traits.mutates_inputs:
        return {name: array.copy() for name, array in inputs.items()}
    given = inputs
    for name, array in inputs.items():
        if array.flags.writeable:
            if given is inputs:
                given = dict(inputs)
            given[name] = view = array.view()
            view.setflags(write=False)
    return given


def _portions(rows: int, sizes: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """How `rows` rows go through batches of these sizes: start, stop and padded size of each."""
    portions: list[tuple[int, int, int]] = []
    start = 0
    while start < rows or not portions:
        stop = min(rows, start + sizes[-1])
        portions.append((start, stop, next(size for size in sizes if size >= stop - start)))
        start = stop
    return portions


def _portion(context: Context, start: int, stop: int, size: int) -> Context:
    """The context of some of the rows; parameters given per row are padded like the rows."""
    parameters = context.parameters
    if isinstance(parameters, list):
        parameters = parameters[start:stop]
        parameters = parameters + parameters[-1:] * (size - len(parameters))
    rows = context.rows[start:stop]
    return Context(parameters, context.outputs, rows, context.shadow, context.cancelled)


def _empty(signature: Signature, inputs: Mapping[str, Array], wanted: Sequence[str] | None) -> Arrays | None:
    """The outputs for zero rows; None where a size in them is not known without the model."""
    if not signature.row_wise:
        return None
    sizes = known_sizes(signature, inputs)
    outputs: Arrays = {}
    for name in signature.carried(wanted):
        spec = signature.answers[name]
        if any(isinstance(size, str) and size not in sizes for size in spec.shape):
            return None
        outputs[name] = np.empty(spec.sized(sizes), NUMPY_TYPES[spec.dtype])
    return outputs


# --- what a model returned --------------------------------------------------------------------------------------------


def settle(
    raw: Any,
    signature: Signature,
    rows: int,
    inputs: Mapping[str, Array],
    wanted: Sequence[str] | None = None,
) -> Arrays:
    """The wanted outputs (all where None, in the signature's order) as contiguous arrays of the declared dtypes.

    Those whose elements may be missing come as they travel, as times do: see `forms.py`. `raw` may be a mapping or a
    table of outputs, a list of one dict per row, or, for a model with one output, that output alone: array, list,
    scalar, Series, sparse matrix. Arrays that share memory with an input are copied. Raises WrongCount where the row
    count differs, ModelFault naming the output (or the type) for everything else.
    """
    names = signature.output_names if wanted is None else tuple(wanted)
    if not signature.special_outputs:
        plain_outputs = _as_declared(raw, signature, names, rows, inputs)
        if plain_outputs is not None:
            return plain_outputs
    return settled(raw, signature, rows, inputs, names)


def _as_declared(
    raw: Any, signature: Signature, names: tuple[str, ...], rows: int, inputs: Mapping[str, Array]
) -> Arrays | None:
    """The outputs of a model that returned just what its signature says; None where anything needs a closer look."""
    if type(raw) is not dict:
        return None
    outputs: Arrays = {}
    for name in names:
        tail = signature.row_shapes[name]
        array = raw.get(name)
        if tail is None or type(array) is not np.ndarray or array.shape != (rows, *tail):
            return None
        if array.dtype != NUMPY_TYPES[signature.outputs[name].dtype] or array.dtype.kind == "O":
            return None
        if not array.flags.c_contiguous:
            return None
        for other in inputs.values():
            if array is other or array is other.base or (array.base is not None and np.may_share_memory(array, other)):
                return None
        outputs[name] = array
    return outputs
