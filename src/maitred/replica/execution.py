"""A loaded model at work: made ready, called for a batch, and what its failures are called."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from maitred.errors import InvalidInput, ModelFault
from maitred.model.description import Description
from maitred.model.loading import Loaded, load, warm
from maitred.model.notation import BadSignature
from maitred.model.predictor import (
    Arrays,
    Context,
    ModelPredictor,
    Predictor,
    WrongCount,
    call,
    call_async,
    takes_context,
)
from maitred.model.refusals import (
    CannotLoad,
    Corrupt,
    LoadRefused,
    MissingExtra,
    NotAnArtifact,
    Untrusted,
    WrongVersions,
)
from maitred.model.source import Source
from maitred.model.timing import timed

log = logging.getLogger("maitred.model")

MAX_MESSAGE: Final = 500
"""Characters of a model's own words that go to callers."""
_LOG_SECONDS: Final = 10.0
_LOG_COUNT: Final = 5
"""Tracebacks of one model that are logged in that time; the others are counted."""

Member = tuple[int, str, int, dict[str, Any] | None]
"""What a model may know of one request: its rows, id, lane and parameters."""


class Failure(NamedTuple):
    """Why a batch failed: `cause` is a value of `scheduling.recovery.Cause`."""

    cause: str
    message: str


def failure(error: BaseException) -> Failure:
    """What an exception of the model is called, in a few words that callers may see."""
    if isinstance(error, WrongCount):
        return Failure("wrong_count", error.message)
    if isinstance(error, InvalidInput):
        return Failure("malformed", error.message[:MAX_MESSAGE])
    if isinstance(error, ModelFault):
        return Failure("raised", error.message[:MAX_MESSAGE])
    cause = "out_of_memory" if isinstance(error, MemoryError) or _says_memory(error) else "raised"
    return Failure(cause, said(error))


def said(error: BaseException) -> str:
    """`ValueError: its text`, cut to what callers may see."""
    try:
        text = str(error)
    except BaseException as broken:  # an exception of the model's own making may be unable to say what it is
        text = f"({type(broken).__name__} while it was put into words)"
    return f"{type(error).__name__}: {text}"[:MAX_MESSAGE] if text else type(error).__name__


def _says_memory(error: BaseException) -> bool:
    """Whether a library's own error means that memory (also a device's) has run out."""
    return any(kind.__name__ in ("OutOfMemoryError", "OutOfMemory") for kind in type(error).__mro__)


class FaultLog:
    """Logs what models raise, with its traceback, and says how much it kept back when that becomes too much."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._clock = clock
        self._since = -_LOG_SECONDS
        self._count = 0

    def raised(self, error: BaseException) -> None:
        if isinstance(error, InvalidInput):
            return  # the caller's mistake, which the caller is told of
        now = self._clock()
        if now - self._since >= _LOG_SECONDS:
            if self._count > _LOG_COUNT:
                log.error("model %s: %d more failures in those seconds", self._model, self._count - _LOG_COUNT)
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= _LOG_COUNT:
            log.error("model %s raised %s", self._model, type(error).__name__, exc_info=error)


Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end and gives back its result."""


class _Awaited:
    """An asynchronous predictor, to be called as one that isn't."""

    def __init__(self, predictor: Predictor, wait: Wait) -> None:
        self.signature = predictor.signature
        self.traits = msgspec.structs.replace(predictor.traits, asynchronous=False)
        self._predictor = predictor
        self._wait = wait

    def predict(self, inputs: Arrays, context: Context) -> Any:
        return self._wait(self._predictor.predict(inputs, context))


class Execution:
    """A model that has been loaded; `warm` makes it ready."""

    def __init__(self, loaded: Loaded, name: str) -> None:
        self.predictor = loaded.predictor
        self.description: Description = loaded.description
        self.signature = loaded.predictor.signature
        self.traits = loaded.predictor.traits
        self.asynchronous = self.traits.asynchronous
        self.reads_rows = _reads_rows(loaded)
        self.faults = FaultLog(name)
        self._loaded = loaded

    def warm(self, max_batch_rows: int, wait: Wait | None = None) -> None:
        """Replay the example, then run made-up or real rows at every size, and describe the model as it then is.

        What the model raises passes through. `wait` runs a coroutine of an asynchronous model on the loop that it will
        serve on, to which what it keeps may be bound; without it, each runs on a loop of its own, and this must not be
        called on an event loop.
        """
        loaded = self._loaded
        if wait is not None and self.asynchronous:
            loaded = loaded._replace(predictor=_Awaited(loaded.predictor, wait))
        self.description = warm(loaded, max_batch_rows).description

    def measure(self, max_batch_rows: int) -> None:
        """Time a model that is warm, and add that to its description; nothing for one whose place is settled anyway."""
        if self.description.native and not self.traits.side_effects:
            timings = timed(self._loaded, max_batch_rows)
            self.description = msgspec.structs.replace(self.description, timings=timings)

    def run(self, inputs: Arrays, context: Context) -> Arrays:
        """Call the model; an asynchronous one only through `run_async`."""
        return call(self.predictor, inputs, context)

    async def run_async(self, inputs: Arrays, context: Context) -> Arrays:
        return await call_async(self.predictor, inputs, context)

    def context(
        self,
        parameters: dict[str, Any] | None,
        wanted: tuple[str, ...] | None,
        members: Iterable[Member] | None,
        cancelled: Callable[[], bool],
    ) -> Context:
        """What the model may know of a batch; `members` where it reads rows."""
        if members is None:
            return Context(parameters, wanted, (), False, cancelled)
        members = list(members)
        rows: Sequence[tuple[str, int]] = [(id, lane) for count, id, lane, _ in members for _ in range(count)]
        if self.traits.per_row_parameters:
            each = [own or {} for count, _, _, own in members for _ in range(count)]
            return Context(each, wanted, rows, False, cancelled)
        return Context(parameters, wanted, rows, False, cancelled)


def open_model(source: Source, device: str, isolated: bool) -> Execution:
    """Load the model. Raises what loading raises: LoadRefused, or anything that the model's own code raises."""
    loaded = load(source, device, isolated)
    return Execution(loaded, source.name or loaded.description.name)


def why_not_loaded(error: BaseException) -> str:
    """The reason for people, without a traceback."""
    return error.message if isinstance(error, LoadRefused) else said(error)


_DECISIONS: Final = (Corrupt, MissingExtra, NotAnArtifact, Untrusted, WrongVersions)


def is_decision(error: BaseException) -> bool:
    """Whether a load was refused for what trying again does not change, and not by what the model's code ran into."""
    if isinstance(error, CannotLoad):
        return error.__cause__ is None or isinstance(error.__cause__, BadSignature)
    return isinstance(error, _DECISIONS)


def _reads_rows(loaded: Loaded) -> bool:
    """Whether the model may look at `context.rows`, which costs something to fill in.

    A predictor of a flavor says so with an attribute `reads_rows`; a model in Python by taking a context.
    """
    predictor = loaded.predictor
    if predictor.traits.per_row_parameters:
        return True
    if isinstance(predictor, ModelPredictor):
        return takes_context(predictor.predict)
    return bool(getattr(predictor, "reads_rows", False))


def objects(items: list[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements of a `str` or `bytes` tensor as a model gets them: a read-only array of objects."""
    array = np.empty(len(items), object)
    array[:] = items
    array = array.reshape(shape)
    array.flags.writeable = False
    return array
