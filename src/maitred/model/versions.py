"""The libraries a model was saved with against those that are installed: refuse, warn or say nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from maitred.model.refusals import WrongVersions

Policy = Literal["refuse", "warn", "ignore"]
"""`refuse`: another major version is refused, another minor one warned of; `warn`: both are warned of; `ignore`."""

_OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "xgboost": ("xgboost-cpu",),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-rocm", "onnxruntime-directml"),
}
"""Distributions that bring the same module, built for other devices: a model saved with one loads with another."""

_MAX_SHOWN: Final = 100
"""Characters of a library's name, or of its version, in a message."""


def installed(name: str) -> str | None:
    """The installed version of a library (or of `python`), by whichever distribution; None where it is missing."""
    if name == "python":
        return platform.python_version()
    for distribution in (name, *_OTHER_NAMES.get(name, ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
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
        library, saved_with = _quotable(name), _quotable(version)
        said = f"the model was saved with {library} {saved_with}, and {there or 'none'} is installed"
        if there is None or _part(there, 0) != _part(version, 0):
            if policy == "refuse":
                fix = f"install {library}=={saved_with}, save it again, or load it with versions=warn"
                raise WrongVersions(f"{said}: {fix}")
            warnings.append(said)
        elif _part(there, 1) != _part(version, 1):
            warnings.append(said)
    return warnings


def _quotable(text: str) -> str:
    """What a manifest says, for a line of a log or a terminal: on that line, and of a bearable length."""
    plain = text if text.isprintable() else text.encode("unicode_escape").decode()
    return plain if len(plain) <= _MAX_SHOWN else plain[:_MAX_SHOWN] + "..."


def _part(version: str, index: int) -> str:
    """The major (0) or minor (1) part of a version; what is no number counts as a part too."""
    parts = re.split(r"[.+!-]", version)
    return parts[index] if index < len(parts) else "0"
