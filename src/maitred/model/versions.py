"""The libraries a model was saved with against those that are installed: refuse, warn or say nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from maitred.model.refusals import WrongVersions

Policy = Literal["refuse", "warn", "ignore"]
"""`refuse`: another major version is refused, another minor one warned of; `warn`: both are warned of; `ignore`."""


def installed(name: str) -> str | None:
    """The installed version of a distribution (or of `python`), None where it is missing."""
    if name == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def record(libraries: Iterable[str]) -> dict[str, str]:
    """Python's and these libraries' installed versions; those that are not installed are left out."""
    found = {name: installed(name) for name in ("python", *libraries)}
    return {name: version for name, version in found.items() if version is not None}


def compare(
    saved: Mapping[str, str], policy: Policy = "refuse", present: Callable[[str], str | None] = installed
) -> list[str]:
    """Warnings, one per library that differs, each naming both versions.

    Raises `WrongVersions` where the policy refuses: naming both versions, or the library that is missing.
    """
    warnings: list[str] = []
    if policy == "ignore":
        return warnings
    for name, version in sorted(saved.items()):
        there = present(name)
        said = f"the model was saved with {name} {version}, and {there or 'none'} is installed"
        if there is None or _part(there, 0) != _part(version, 0):
            if policy == "refuse":
                raise WrongVersions(f"{said}: install {name}=={version}, save it again, or load it with versions=warn")
            warnings.append(said)
        elif _part(there, 1) != _part(version, 1):
            warnings.append(said)
    return warnings


def _part(version: str, index: int) -> str:
    """The major (0) or minor (1) part of a version; what is no number counts as a part too."""
    parts = re.split(r"[.+!-]", version)
    return parts[index] if index < len(parts) else "0"
