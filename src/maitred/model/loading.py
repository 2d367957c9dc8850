"""From a source to a model that is ready to predict: verified, permitted, opened, tried."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import msgspec
import numpy as np

from maitred.clock import Clock, monotonic
from maitred.errors import MaitredError
from maitred.model import example as examples
from maitred.model import versions
from maitred.model.artifact import verify
from maitred.model.description import Description
from maitred.model.example import Arrays, Example
from maitred.model.flavors import Flavor, Opening, check_options, is_native
from maitred.model.flavors.libraries import words_of
from maitred.model.forms import parted, whole
from maitred.model.manifest import EXAMPLE, Limits
from maitred.model.mixing import check_apart
from maitred.model.predictor import Context, Predictor, Traits, WrongCount, call, call_async, rows_of
from maitred.model.ragged import cut_arrays
from maitred.model.refusals import CannotLoad, Corrupt, ExampleDiffers, LoadRefused
from maitred.model.signature import Signature
from maitred.model.source import Resolved, Source, resolve, trust_for
from maitred.model.trust import Trust, require
from maitred.wire.coerce import from_array, to_array

_MAX_EXAMPLE_CHARACTERS = 4096

_RUST: Final = "pyo3_runtime"
"""Where libraries written in Rust have their PanicException from, which is no Exception."""

MAX_WARMUPS: Final = 128
"""Runs of a warm-up, where counts of rows times buckets would be more."""


class Loaded(NamedTuple):
    """A model in this process."""

    predictor: Predictor
    description: Description
    example: Example | None = None
    """What came with the model; None where nothing did."""


def describe(source: Source) -> Description | None:
    """What is known without running or importing anything that the source brings; None if it has to be opened first.

    Reads the manifest (or an ONNX file's graph) and the example; does not compare digests, which `load` does.
    Raises `LoadRefused`, or `Malformed` for a bad name.
    """
    found = resolve(source)
    check_options(found.flavor, found.opening.options)
    if found.artifact is not None:
        manifest = found.artifact.manifest
        warned = versions.compare(manifest.libraries, "ignore" if source.versions == "ignore" else "warn")
        return _description(found, manifest.signature, manifest.traits, manifest.limits, _example(found), warned, None)
    derived = found.flavor.derive(found.opening)
    if derived is None:
        return None
    return _description(found, derived.signature, derived.traits, Limits(), None, [], None)


def load(source: Source, device: str = "cpu", isolated: bool = True) -> Loaded:
    """The model, in this process, its files verified; nothing of it ran if this raises before the flavor opens it.

    `isolated`: whether this process exists for this model alone; code that comes with a model runs in no other.
    Raises `LoadRefused` with its reason, or `Malformed` for a bad name.
    """
    found = resolve(source, device)
    warned: list[str] = []
    if found.artifact is not None:
        verify(found.artifact)
        warned = versions.compare(found.artifact.manifest.libraries, source.versions)
    dangers = found.flavor.dangers(found.opening)
    trust = trust_for(source, found.digest) if dangers else None
    require(dangers, trust, isolated)
    example = _example(found)
    predictor = _opened(found, trust)
    limits = found.artifact.manifest.limits if found.artifact is not None else Limits()
    known = _description(found, predictor.signature, predictor.traits, limits, example, warned, trust)
    native = not dangers and is_native(found.flavor, found.opening)
    return Loaded(predictor, msgspec.structs.replace(known, native=native), example)


def replay(loaded: Loaded) -> None:
    """Run the example that came with the model and compare. Does nothing without one.

    Raises `ExampleDiffers` naming the output and the worst difference, or with what the model raised.
    """
    example = loaded.example
    if example is None:
        return
    try:
        got = run(loaded.predictor, example.inputs)
    except Exception as error:  # the model's own code may raise anything
        raise ExampleDiffers(f"the model fails on its own example: {type(error).__name__}: {error}") from error
    if differing := examples.differences(example, got, loaded.predictor.signature):
        raise ExampleDiffers(f"the model does not repeat its example: {'; '.join(differing)}")


def warm(loaded: Loaded, max_batch_rows: int, clock: Clock = monotonic) -> Loaded:
    """Replay the example and run every warm-up batch; what is known of the model, with what was found out.

    A model that was not packed with several rows has to show here that it takes each for itself: see `mixing.py`.

    A model that came without an example may refuse rows made up from its signature: that is noted, not held against
    it. Everything else that it raises passes through.
    """
    replay(loaded)
    for inputs in warmup_batches(loaded, max_batch_rows):
        try:
            run(loaded.predictor, inputs)
        except Exception as error:  # the model's own code may raise anything
            if loaded.example is not None or isinstance(error, WrongCount):
                raise
            return _noted(
                loaded, f"not warmed up: it refuses made-up rows ({type(error).__name__}); pack it with an example"
            )
    if _was_checked(loaded):
        return loaded
    note = check_apart(loaded.predictor, functools.partial(run, loaded.predictor), max_batch_rows, clock)
    return _noted(loaded, note) if note else loaded


def _was_checked(loaded: Loaded) -> bool:
    """Whether the model was packed with rows that showed that it takes each for itself: see `trial.py`."""
    example = loaded.example
    return example is not None and bool(example.outputs) and example.rows(loaded.predictor.signature) > 1


def _noted(loaded: Loaded, note: str) -> Loaded:
    known = msgspec.structs.replace(loaded.description, warnings=(*loaded.description.warnings, note))
    return loaded._replace(description=known)


def run(predictor: Predictor, inputs: Arrays, outputs: tuple[str, ...] | None = None) -> Arrays:
    """One call outside of any queue, its answer thrown away or compared: a model with side effects leaves them out.

    Rows are filled up to their bucket, and answers cut back. An asynchronous model gets an event loop of its own, in a
    thread of its own where the caller's has one already.
    """
    signature = predictor.signature
    if signature.buckets is None:
        return run_as_is(predictor, inputs, outputs)
    plain = parted(signature.special_inputs, inputs)
    filled, ragged = signature.fill({name: from_array(array, name) for name, array in plain.items()})
    answer = run_as_is(predictor, {name: to_array(tensor) for name, tensor in filled.items()}, outputs)
    return answer if ragged is None else cut_arrays(answer, ragged)


def run_as_is(predictor: Predictor, inputs: Arrays, outputs: tuple[str, ...] | None = None) -> Arrays:
    """`run` without filling up. Inputs may also be in the form that travels."""
    inputs = parted(predictor.signature.special_inputs, inputs)
    context = Context(outputs=outputs, shadow=True)
    if predictor.traits.per_row_parameters:
        context.parameters = [{} for _ in range(rows_of(predictor.signature, inputs))]
    if not predictor.traits.asynchronous:
        return _seen(predictor, call(predictor, inputs, context))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _seen(predictor, asyncio.run(call_async(predictor, inputs, context)))
    with ThreadPoolExecutor(1) as thread:
        return _seen(predictor, thread.submit(asyncio.run, call_async(predictor, inputs, context)).result())


def _seen(predictor: Predictor, answer: Arrays) -> Arrays:
    return whole(predictor.signature.special_outputs, answer)


def warmup_batches(loaded: Loaded, max_batch_rows: int) -> Iterator[Arrays]:
    """Inputs to run before a replica is ready: 1, 2, 4 ... `max_batch_rows` rows, or each size of `fixed_batch`.

    Real rows where an example came with the model, over and over; else rows made up from the signature. One batch for
    a model that is not row-wise. Where the signature has buckets, all of these in each of them (`_shapes`). The arrays
    are read-only.
    """
    signature = loaded.predictor.signature
    counts = _sizes(signature, loaded.predictor.traits, max_batch_rows)
    for rows, sizes in _shapes(signature, counts):
        yield _rows(signature, loaded.example, rows, sizes)


def _shapes(signature: Signature, counts: list[int]) -> list[tuple[int, dict[str, int]]]:
    """The batches to warm up with: how many rows, and the sizes of their bucket.

    Every count in every combination of buckets; beyond MAX_WARMUPS runs only the least and the most rows, and beyond
    that each bucket only beside the largest ones of other sizes.
    """
    buckets = signature.buckets
    if buckets is None:
        return [(rows, {}) for rows in counts]
    combinations = list(buckets.combinations())
    if len(combinations) * len(counts) > MAX_WARMUPS:
        counts = sorted({counts[0], counts[-1]})
    if len(combinations) * len(counts) > MAX_WARMUPS:
        combinations = list(buckets.edges())
    return [(rows, sizes) for sizes in combinations for rows in counts]


def _sizes(signature: Signature, traits: Traits, max_batch_rows: int) -> list[int]:
    if not signature.row_wise:
        return [1]
    if traits.fixed_batch is not None:
        return list(traits.fixed_batch)
    limit = min(max_batch_rows, traits.max_batch_rows or max_batch_rows)
    powers = itertools.takewhile(lambda size: size < limit, (1 << power for power in itertools.count()))
    return [*powers, limit]


def _rows(signature: Signature, example: Example | None, rows: int, sizes: Mapping[str, int] | None = None) -> Arrays:
    """So many rows: the example's, made as long as `sizes` say, or made up."""
    present = example.rows(signature) if example is not None else 0
    if example is None or present == 0:
        return {name: to_array(tensor) for name, tensor in signature.example(rows, sizes).items()}
    batch = examples.take_rows(example.inputs, signature, np.arange(rows) % present)
    if sizes and signature.buckets is not None:
        batch = signature.buckets.stretched(batch, sizes)
    for array in batch.values():
        array.flags.writeable = False
    return batch


def opened(flavor: Flavor, opening: Opening) -> Predictor:
    """The flavor's predictor. Raises `LoadRefused`, whatever the framework raised; exits and interrupts pass."""
    check_options(flavor, opening.options)
    try:
        return flavor.open(opening)
    except LoadRefused:
        raise
    except BaseException as error:  # a framework's own errors, which have no common class
        if not isinstance(error, Exception) and type(error).__module__ != _RUST:
            raise
        what = opening.file or opening.entry
        reason = words_of(error, opening.root)
        raise CannotLoad(f"{flavor.name} cannot open {what}: {type(error).__name__}: {reason}") from error


def _opened(found: Resolved, trust: Trust | None) -> Predictor:
    if not found.opening.file and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `maitred serve module:Class` means a module here, as `python -m` does
    return opened(found.flavor, msgspec.structs.replace(found.opening, trusted=trust is not None))


def _example(found: Resolved) -> Example | None:
    """The example of an artifact. Raises `Corrupt`."""
    if found.artifact is None or not found.artifact.manifest.example:
        return None
    return examples.read(found.artifact.path(EXAMPLE), found.artifact.manifest.signature)


def _description(
    found: Resolved,
    signature: Signature,
    traits: Traits,
    limits: Limits,
    example: Example | None,
    warned: list[str],
    trust: Trust | None,
) -> Description:
    saved = found.artifact.manifest.libraries if found.artifact is not None else versions.record(found.flavor.libraries)
    return Description(
        name=found.name,
        digest=found.digest,
        flavor=found.flavor.name,
        signature=signature,
        traits=traits,
        limits=limits,
        example=_one_row(signature, example),
        example_is_real=found.artifact is not None and example is not None and not found.artifact.manifest.made_up,
        libraries=saved,
        warnings=tuple(warned),
        trust=f"{trust.who}: {trust.why}" if trust is not None else "",
    )


def example_row(found: Resolved, signature: Signature) -> Arrays:
    """One row that the model accepts, its own example's first where there is one; nothing where none can be made."""
    try:
        return _rows(signature, _example(found), 1)
    except (MaitredError, Corrupt):
        return {}


def _one_row(signature: Signature, example: Example | None) -> str:
    """A request to copy; empty where it would be longer than anybody copies."""
    try:
        text = examples.request_text(_rows(signature, example, 1), signature)
    except MaitredError:
        return ""
    return text if len(text) <= _MAX_EXAMPLE_CHARACTERS else ""


__all__ = ["Description", "Loaded", "Source", "describe", "load", "replay", "run", "warm", "warmup_batches"]
