"""From a model, as an object or a file, to an artifact: saved, loaded back, tried on its example, sealed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maitred.model import example as examples
from maitred.model import versions
from maitred.model.artifact import Staging, version_of_file, version_of_folder
from maitred.model.description import Description
from maitred.model.flavors import Flavor, Opening, Saved, for_file, for_folder, for_object, prepared
from maitred.model.flavors.python import EXECUTING
from maitred.model.loading import describe, opened
from maitred.model.manifest import EXAMPLE, FILE, Limits, Manifest, checked_limits
from maitred.model.names import check_name
from maitred.model.predictor import Predictor, Traits, checked_traits
from maitred.model.reference import compare, restated
from maitred.model.refusals import CannotPack
from maitred.model.signature import Signature
from maitred.model.source import Source, split, trust_for
from maitred.model.trial import answers, inputs_of, tried
from maitred.model.trust import Trust, TrustStore, require


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
    libraries: Iterable[str] = (),
    reference: Any = None,
    accept_differences: bool = False,
    trust: Trust | str | None = None,
) -> Description:
    """Write `model` as an artifact into the folder `out`, which may hold an older artifact and nothing else.

    `model` is an object that a flavor claims (a scikit-learn estimator, a `maitred.Model` class, a function), or the
    path of a file or folder, or `file.py:Class`. `signature` is needed only where the model does not tell. `example`:
    real inputs by name, or a data frame; the model's answers are recorded with them, and compared with `expected` where
    that is given. `repeatable=False` keeps the inputs alone, for models that answer differently each time. `files` are
    copied beside the model's own. `libraries`: distributions that the model's own code uses, to be recorded with their
    versions beside those of its framework. `reference`: another form of the same model, as an object or a path (what it
    was exported from); both must agree on the example within the tolerances of the signature, unless
    `accept_differences`, and how far they do is recorded. `trust` is recorded on this machine for what was packed; a
    pickle cannot be packed without.

    Raises `CannotPack` and other `LoadRefused` saying what to change; nothing is left behind then.
    """
    if EXECUTING.get():
        raise CannotPack('pack() ran while a model\'s file was loaded: put it under if __name__ == "__main__":')
    stated = Trust.stated(trust) if isinstance(trust, str) else trust
    with Staging(Path(out)) as staging:
        packing = _saved(model, staging.root, signature, traits, dict(options or {}), example, stated)
        _copy(files, staging.root)
        predictor = opened(packing.flavor, packing.opening)
        own, bounds = _said(predictor, limits or Limits())
        kept = tried(predictor, example, expected, repeatable)
        compared = [] if reference is None else _compared(predictor, reference, example, stated, accept_differences)
        if kept is not None:
            examples.write(staging.root / EXAMPLE, kept, predictor.signature)
        manifest = Manifest(
            name=check_name(name or _default_name(model, packing.saved)),
            flavor=packing.flavor.name,
            file=packing.saved.file,
            entry=packing.saved.entry,
            signature=predictor.signature,
            traits=own,
            limits=bounds,
            options=packing.opening.options,
            libraries=versions.record((*packing.flavor.libraries, *_installed(libraries))),
            example=kept is not None,
            made_up=kept is not None and example is None,
            compared=tuple(compared),
        )
        artifact = staging.publish(manifest)
    if stated is not None:
        TrustStore().record(artifact.version, stated)
    described = describe(Source(str(artifact.root)))
    assert described is not None  # an artifact always tells
    return described


def _said(predictor: Predictor, limits: Limits) -> tuple[Traits, Limits]:
    """What the manifest says of the model. Raises `CannotPack` for what no artifact may say."""
    try:
        return checked_traits(predictor.traits, predictor.signature.row_wise), checked_limits(limits)
    except TypeError as error:
        raise CannotPack(f"the model cannot be packed: {error}") from error


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
    trusted = True
    if isinstance(model, (str, Path)):
        flavor, saved, trusted = _copied(str(model), root, options, trust)
    else:
        flavor = for_object(model)
        given = Opening(root=root, signature=signature, options=options, sample=sample)
        saved = flavor.save(prepared(flavor, model, given), root)
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
            trusted=trusted,
            closed=True,
            sample=sample,
        ),
    )


def _copied(model: str, root: Path, options: dict[str, Any], trust: Trust | None) -> tuple[Flavor, Saved, bool]:
    """A file's or folder's copy in `root`, and whether somebody has said that what it holds may run.

    What is judged to be data is opened as data: a judgement that is wrong lets nothing run. Raises `Untrusted` where it
    could run code and nobody has allowed that.
    """
    if Path(model).is_dir():
        path, entry = Path(model).resolve(), ""
        flavor, marker = for_folder(path)
        bare, version = Opening(root=path, file=marker, options=options), version_of_folder(path)
    else:
        text, entry = split(model)
        if not text:
            raise CannotPack(f"{entry} is an installed module: serve it by name, or pack the file it is written in")
        path = Path(text).resolve()
        flavor = for_file(path.name)
        bare = Opening(root=path.parent, file=path.name, entry=entry, options=options)
        version = version_of_file(path)
    dangers = flavor.dangers(bare)
    known = trust_for(Source(str(path), trust=trust), version) if dangers else None
    require(dangers, known, isolated=True)
    saved = flavor.save(path, root)
    return flavor, msgspec.structs.replace(saved, entry=entry or saved.entry), known is not None


def _compared(predictor: Predictor, reference: Any, sample: Any, trust: Trust | None, accept: bool) -> list[str]:
    """How the model agrees with its reference on the example, a line for each output. Raises `CannotPack`."""
    if sample is None:
        raise CannotPack("a comparison with a reference needs an example: real rows, the more the better")
    with tempfile.TemporaryDirectory() as folder:
        packing = _saved(reference, Path(folder), None, None, {}, sample, trust)
        other = opened(packing.flavor, packing.opening)
        found = compare(
            predictor.signature,
            answers(predictor, inputs_of(predictor.signature, sample)),
            other.signature,
            answers(other, inputs_of(other.signature, restated(sample, other.signature))),
        )
    differing = [agreement.to_text() for agreement in found if agreement.over]
    if differing and not accept:
        raise CannotPack(
            f"the model does not agree with its reference: {'; '.join(differing)}. Widen the tolerance (rtol=, atol= "
            "in the signature), export it in another way, or accept the differences (--accept-differences)"
        )
    return [agreement.to_text() for agreement in found]


def _installed(libraries: Iterable[str]) -> list[str]:
    """Raises `CannotPack` naming one that is not installed here."""
    named = list(libraries)
    for name in named:
        if versions.installed(name) is None:
            raise CannotPack(f"no distribution named {name!r} is installed here, so its version cannot be recorded")
    return named


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


def _default_name(model: Any, saved: Saved) -> str:
    if isinstance(model, (str, Path)):
        place = Path(model)
        name = saved.entry or (place.resolve().name if place.is_dir() else Path(split(str(model))[0]).stem)
    else:
        name = saved.entry or type(model).__name__
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name.lower()).strip("-._") or "model"
