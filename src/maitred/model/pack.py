"""From a model, as an object or a file, to an artifact: saved, loaded back, tried on its example, sealed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model import versions
from maitred.model.artifact import Staging, version_of_file, version_of_folder
from maitred.model.description import Description
from maitred.model.example import Arrays, Example
from maitred.model.flavors import Flavor, Opening, Saved, for_file, for_folder, for_object
from maitred.model.flavors.python import EXECUTING
from maitred.model.loading import describe, opened, run
from maitred.model.manifest import EXAMPLE, FILE, Limits, Manifest
from maitred.model.names import check_name
from maitred.model.predictor import Predictor, Traits
from maitred.model.refusals import CannotPack, LoadRefused
from maitred.model.signature import Signature
from maitred.model.source import Source, split, trust_for
from maitred.model.trust import Trust, TrustStore, require
from maitred.wire.coerce import from_python, to_array


class _Packing(NamedTuple):
    """What goes into the artifact, and how it is opened."""

    flavor: Flavor
    saved: Saved
    opening: Opening


def pack(
    model: Any,
    out: str | Path,
    *,
    name: str = "",
    signature: Signature | None = None,
    example: Any = None,
    expected: Mapping[str, Any] | None = None,
    repeatable: bool = True,
    traits: Traits | None = None,
    limits: Limits | None = None,
    options: Mapping[str, Any] | None = None,
    files: Iterable[str | Path] = (),
    trust: Trust | str | None = None,
) -> Description:
    """Write `model` as an artifact into the folder `out`, which may hold an older artifact and nothing else.

    `model` is an object that a flavor claims (a scikit-learn estimator, a `maitred.Model` class, a function), or the
    path of a file, or `file.py:Class`. `signature` is needed only where the model does not tell. `example`: real
    inputs by name, or a data frame; the model's answers are recorded with them, and compared with `expected` where that
    is given. `repeatable=False` keeps the inputs alone, for models that answer differently each time. `files` are
    copied beside the model's own. `trust` is recorded on this machine for what was packed; a pickle cannot be packed
    without.

    Raises `CannotPack` and other `LoadRefused` saying what to change; nothing is left behind then.
    """
    if EXECUTING.get():
        raise CannotPack('pack() ran while a model\'s file was loaded: put it under if __name__ == "__main__":')
    stated = Trust.stated(trust) if isinstance(trust, str) else trust
    with Staging(Path(out)) as staging:
        packing = _saved(model, staging.root, signature, traits, dict(options or {}), example, stated)
        _copy(files, staging.root)
        predictor = opened(packing.flavor, packing.opening)
        kept = _example(predictor, example, expected, repeatable)
        if kept is not None:
            examples.write(staging.root / EXAMPLE, kept, predictor.signature)
        manifest = Manifest(
            name=check_name(name or _default_name(model, packing.saved)),
            flavor=packing.flavor.name,
            file=packing.saved.file,
            entry=packing.saved.entry,
            signature=predictor.signature,
            traits=predictor.traits,
            limits=limits or Limits(),
            options={**packing.saved.options, **dict(options or {})},
            libraries=versions.record(packing.flavor.libraries),
            example=kept is not None,
            made_up=kept is not None and example is None,
        )
        artifact = staging.publish(manifest)
    if stated is not None:
        TrustStore().record(artifact.version, stated)
    described = describe(Source(str(artifact.root)))
    assert described is not None  # an artifact always tells
    return described


def _saved(
    model: Any,
    root: Path,
    signature: Signature | None,
    traits: Traits | None,
    options: dict[str, Any],
    sample: Any,
    trust: Trust | None,
) -> _Packing:
    """The model's files in `root`. A file is judged as `load` would; an object that lives here already is trusted."""
    if isinstance(model, (str, Path)) and Path(model).is_dir():
        path = Path(model).resolve()
        flavor, marker = for_folder(path)
        bare = Opening(root=path, file=marker, options=options)
        given = trust_for(Source(str(path), trust=trust), version_of_folder(path))
        require(flavor.dangers(bare), given, isolated=True)
        saved = flavor.save(path, root)
    elif isinstance(model, (str, Path)):
        text, entry = split(str(model))
        if not text:
            raise CannotPack(f"{entry} is an installed module: serve it by name, or pack the file it is written in")
        path = Path(text).resolve()
        flavor = for_file(path.name)
        bare = Opening(root=path.parent, file=path.name, entry=entry, options=options)
        given = trust_for(Source(text, trust=trust), version_of_file(path))
        require(flavor.dangers(bare), given, isolated=True)
        saved = flavor.save(path, root)
        saved = msgspec.structs.replace(saved, entry=entry or saved.entry)
    else:
        flavor = for_object(model)
        saved = flavor.save(model, root)
    return _Packing(
        flavor,
        saved,
        Opening(
            root=root,
            file=saved.file,
            entry=saved.entry,
            signature=signature,
            traits=traits,
            options={**saved.options, **options},
            trusted=True,
            sample=sample,
        ),
    )


def _copy(files: Iterable[str | Path], root: Path) -> None:
    for given in files:
        path = Path(given)
        target = root / path.name
        if target.exists() or path.name in {FILE, EXAMPLE}:
            raise CannotPack(f"two files of the artifact would be named {path.name!r}")
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copyfile(path, target)
        else:
            raise CannotPack(f"there is no file or folder at {path}")


def _example(predictor: Predictor, given: Any, expected: Mapping[str, Any] | None, repeatable: bool) -> Example | None:
    """The example to keep: checked, run twice, and run in another order. None where none was given and none works."""
    if given is None:
        return _made_up(predictor, repeatable)
    inputs = _inputs(predictor.signature, given)
    outputs = _run(predictor, inputs)
    found = Example(inputs, outputs)
    if expected is not None:
        wanted = Example(inputs, {name: np.asarray(value) for name, value in expected.items()})
        _refuse("the model does not give the expected answers", wanted, outputs, predictor.signature)
    if not repeatable:
        return Example(inputs, {})
    again = _run(predictor, inputs)
    said = "the model answers the same example differently each time (pack it with repeatable=False)"
    _refuse(said, found, again, predictor.signature)
    _check_rows(predictor, found)
    return found


def _made_up(predictor: Predictor, repeatable: bool) -> Example | None:
    """One row made up from the signature, as a check for every later load; None if the model cannot answer it."""
    made = {name: to_array(tensor) for name, tensor in predictor.signature.example(1).items()}
    try:
        outputs = _run(predictor, made)
        example = Example(made, outputs if repeatable else {})
        if examples.differences(example, _run(predictor, made), predictor.signature):
            return None
    except CannotPack:
        return None
    return example


def _inputs(signature: Signature, given: Any) -> Arrays:
    """The example as the arrays that a request would give. Raises `CannotPack` naming the input."""
    named = _by_name(signature, given)
    try:
        tensors = {}
        for name, value in named.items():
            if name not in signature.inputs:
                raise signature.unknown_input(name)
            spec = signature.inputs[name]
            tensors[name] = from_python(name, spec.dtype, _plain(value), nullable=spec.nullable)
        checked = signature.check(tensors)
    except Malformed as error:
        raise CannotPack(f"the example does not fit the signature: {error.message}") from error
    return {name: to_array(tensor) for name, tensor in checked.inputs.items()}


def _by_name(signature: Signature, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if hasattr(given, "columns") and len(signature.inputs) > 1:
        return {str(column): given[column] for column in given.columns if str(column) in signature.inputs}
    if len(signature.inputs) == 1:
        return {next(iter(signature.inputs)): given}
    raise CannotPack(f"give the example as a mapping or data frame of {', '.join(signature.inputs)}")


def _plain(value: Any) -> Any:
    """Data frames as matrices; everything else is for the one coercion table."""
    return value.to_numpy() if hasattr(value, "columns") else value


def _run(predictor: Predictor, inputs: Arrays) -> Arrays:
    try:
        return run(predictor, inputs)
    except LoadRefused:
        raise
    except Exception as error:  # the model's own code may raise anything
        raise CannotPack(f"the model fails on its example: {type(error).__name__}: {error}") from error


def _check_rows(predictor: Predictor, example: Example) -> None:
    """Rows must not influence each other: the same rows backwards, and the first alone, must give the same answers.

    Raises `CannotPack` naming the output and the worst difference.
    """
    signature = predictor.signature
    rows = example.rows(signature)
    if not signature.row_wise or rows < 2:
        return
    for index in (np.arange(rows)[::-1], np.array([0])):
        inputs = examples.take_rows(example.inputs, signature, index)
        wanted = Example(inputs, examples.take_rows(example.outputs, signature, index))
        advice = f"another symbol than {signature.row_symbol!r} in the outputs' shapes; for rounding, a wider tolerance"
        _refuse(f"rows influence each other (if that is meant: {advice})", wanted, _run(predictor, inputs), signature)


def _refuse(what: str, wanted: Example, got: Arrays, signature: Signature) -> None:
    if differing := examples.differences(wanted, got, signature):
        raise CannotPack(f"{what}: {'; '.join(differing)}")


def _default_name(model: Any, saved: Saved) -> str:
    if isinstance(model, (str, Path)):
        place = Path(model)
        name = saved.entry or (place.resolve().name if place.is_dir() else Path(split(str(model))[0]).stem)
    else:
        name = saved.entry or type(model).__name__
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._") or "model"
