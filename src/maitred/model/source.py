"""Where a model comes from: a packed folder, a bare file, or a name in Python code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maitred.model.artifact import Artifact, is_artifact, open_artifact, version_of_file, version_of_folder
from maitred.model.flavors import Flavor, Opening, for_file, for_folder, named
from maitred.model.names import check_name
from maitred.model.refusals import NotFound, Untrusted
from maitred.model.trust import Trust, TrustStore
from maitred.model.versions import Policy

_ENTRY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Source(msgspec.Struct, frozen=True):
    """What to load and how far to trust it. Travels to the replica's process."""

    path: str
    """An artifact's folder, `model.onnx`, `model.skops`, `file.py`, `file.py:Class` or `package.module:Class`."""
    name: str = ""
    """The name it is served under; empty: the manifest's name, else one made from the path."""
    trust: Trust | str | bool | None = None
    """Permission to run code that comes with the model, for this load; None: ask the operator's record."""
    versions: Policy = "refuse"
    options: dict[str, Any] = {}
    """Settings of the flavor, over those of the manifest."""
    trust_file: str = ""
    """The operator's record of trusted models; empty: `$MAITRED_HOME/trust.toml`."""


class Resolved(NamedTuple):
    """A source that was found, with nothing of it run."""

    name: str
    flavor: Flavor
    opening: Opening
    digest: str
    artifact: Artifact | None
    """None for a bare file or a module."""


def resolve(source: Source, device: str = "cpu") -> Resolved:
    """Find what the source names. Raises `NotFound`, `NotAnArtifact`, `Corrupt`, or `Malformed` for a bad name."""
    path = Path(source.path)
    if path.is_dir():
        return _folder(source, path, device)
    file, entry = split(source.path)
    if file:
        return _file(source, Path(file), entry, device)
    return _module(source, entry, device)


def split(text: str) -> tuple[str, str]:
    """`file.py:Class` -> file and entry, `package.module:Class` -> no file and the whole text.

    Raises `NotFound` for what is neither.
    """
    if Path(text).is_file():
        return text, ""
    before, colon, entry = text.rpartition(":")
    if colon and _ENTRY.fullmatch(entry):
        if Path(before).is_file():
            return before, entry
        if _ENTRY.fullmatch(before) and not before.endswith(".py"):
            return "", text
    raise NotFound(f"there is no file or folder at {before if colon and before.endswith('.py') else text}")


def trust_for(source: Source, digest: str) -> Trust | None:
    """The permission that holds for this model, if there is one.

    Raises `Untrusted` for one without a reason, `LoadRefused` if the operator's record is unreadable.
    """
    given = "stated by the caller" if source.trust is True else source.trust
    if isinstance(given, Trust):
        return given
    if isinstance(given, str):
        try:
            return Trust.stated(given)
        except ValueError as error:
            raise Untrusted(str(error)) from error
    return TrustStore(Path(source.trust_file) if source.trust_file else None).find(digest) if digest else None


def _folder(source: Source, path: Path, device: str) -> Resolved:
    if not is_artifact(path):
        return _bare_folder(source, path, device)
    artifact = open_artifact(path)
    manifest = artifact.manifest
    if manifest.file:
        artifact.path(manifest.file)
    opening = Opening(
        root=artifact.root,
        file=manifest.file,
        entry=manifest.entry,
        signature=manifest.signature,
        traits=manifest.traits,
        options={**manifest.options, **source.options},
        device=device,
        packed=True,
        closed=True,
    )
    name = check_name(source.name) if source.name else manifest.name
    return Resolved(name, named(manifest.flavor), opening, artifact.version, artifact)


def _bare_folder(source: Source, path: Path, device: str) -> Resolved:
    """A folder that a library wrote (a Hugging Face checkpoint)."""
    flavor, marker = for_folder(path)
    root = path.resolve()
    opening = Opening(root=root, file=marker, options=source.options, device=device)
    return Resolved(check_name(source.name or _name_of(root.name)), flavor, opening, version_of_folder(root), None)


def _file(source: Source, path: Path, entry: str, device: str) -> Resolved:
    place = path.resolve()
    flavor = for_file(path.name)
    opening = Opening(root=place.parent, file=place.name, entry=entry, options=source.options, device=device)
    name = check_name(source.name or _name_of(entry or path.stem))
    return Resolved(name, flavor, opening, version_of_file(place), None)


def _module(source: Source, entry: str, device: str) -> Resolved:
    opening = Opening(root=Path.cwd(), entry=entry, options=source.options, device=device)
    name = check_name(source.name or _name_of(entry.rpartition(":")[2]))
    return Resolved(name, named("python"), opening, "", None)


def _name_of(text: str) -> str:
    """A valid name made from a file's or a class's: `Churn` -> `churn`."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:128] or "model"
