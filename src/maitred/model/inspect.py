"""What `maitred inspect` shows of a model, without running anything of it: a record, and that record as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from maitred.model import versions
from maitred.model.artifact import digest_of, files_of, verify
from maitred.model.description import Description
from maitred.model.forms import whole
from maitred.model.loading import describe, example_row
from maitred.model.refusals import LoadRefused
from maitred.model.signature import Signature, TensorSpec, raw_input
from maitred.model.source import Resolved, Source, resolve, trust_for
from maitred.wire.coerce import Array
from maitred.wire.missing import NAT
from maitred.wire.times import texts

BASE_URL: Final = "http://127.0.0.1:8080"
_MAX_CALL_CHARACTERS: Final = 2000
NEEDS_TRUST: Final = "it needs trust: --trust 'WHO: WHY'"


class File(msgspec.Struct, frozen=True):
    """One file of the model."""

    path: str
    size_bytes: int
    sha256: str


class Library(msgspec.Struct, frozen=True):
    """A library that the model was saved with; `installed` is empty where it is missing."""

    name: str
    saved: str
    installed: str


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """A model from outside."""

    source: str
    name: str
    flavor: str
    digest: str
    description: dict[str, Any] | None
    """None where only running the model's code would tell."""
    files: tuple[File, ...] = ()
    libraries: tuple[Library, ...] = ()
    needs_trust: tuple[str, ...] = ()
    """What of the model would run at load because it comes with it; empty for pure data."""
    trust: str = ""
    """Who has allowed that, and why."""
    compared: tuple[str, ...] = ()
    """How it agreed with another form of the model when it was packed."""
    problems: tuple[str, ...] = ()
    """Why it would not load as things are; empty if nothing is known against it."""
    curl: str = ""
    python: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it: that somebody has yet to say that its code may run is no fault."""
        return all(problem == NEEDS_TRUST for problem in self.problems)

    def summary(self) -> list[str]:
        """What the model takes and gives, in lines to read."""
        return [] if self.description is None else _described_lines(self.description, self.compared)

    def to_text(self) -> str:
        """For people: a few lines, ready to paste from."""
        return "\n".join(_lines(self)) + "\n"


def inspect(source: Source, base_url: str = BASE_URL) -> Inspection:
    """Look at a model. Raises `LoadRefused` (or `Malformed`) if there is nothing that can be looked at."""
    found = resolve(source)
    problems: list[str] = []
    artifact = found.artifact
    if artifact is not None:
        _note(problems, lambda: verify(artifact))
    described = _described(source, problems)
    libraries = _libraries(described)
    _note(problems, lambda: versions.compare(described.libraries if described else {}, source.versions))
    dangers: list[str] = []
    _note(problems, lambda: dangers.extend(found.flavor.dangers(found.opening)))
    trust = trust_for(source, found.digest) if dangers else None
    if dangers and trust is None:
        problems.append(NEEDS_TRUST)
    row = example_row(found, described.signature) if described else {}
    return Inspection(
        source=source.path,
        name=found.name,
        flavor=found.flavor.name,
        digest=found.digest,
        description=_plain(described) if described else None,
        files=_files(found),
        libraries=libraries,
        needs_trust=tuple(dangers),
        trust=f"{trust.who}: {trust.why}" if trust else "",
        compared=() if artifact is None else artifact.manifest.compared,
        problems=tuple(problems),
        curl=curl_line(base_url, found.name, described) if described else "",
        python=python_call(source.path, described.signature, row, bool(dangers)) if described else "",
    )


def curl_line(base_url: str, name: str, description: Description) -> str:
    """A command that asks the served model for an answer, ready to paste into a shell.

    A model whose rows are files is sent one. Where no example is known, or only a long one, it asks what it takes.
    """
    if raw_input(description.signature) is not None:
        url = shlex.quote(f"{base_url}/predict/{name}")
        return f"curl -s {url} -H 'Content-Type: application/octet-stream' --data-binary @FILE"
    url = shlex.quote(f"{base_url}/v2/models/{name}")
    if not description.example:
        return f"curl -s {url}"
    url = shlex.quote(f"{base_url}/v2/models/{name}/infer")
    return f"curl -s {url} -H 'Content-Type: application/json' -d {shlex.quote(description.example)}"


def python_call(path: str, signature: Signature, row: Mapping[str, Any], needs_trust: bool = False) -> str:
    """Lines of Python that load the model and call it with one row; empty where these would be long."""
    permission = ", trust='WHO: WHY', queue=True" if needs_trust else ""
    seen = whole(signature.special_inputs, row)
    values = ", ".join(
        f"{name!r}: {_literal(spec, seen[name])}" for name, spec in signature.inputs.items() if name in row
    )
    text = f"import maitred\n\nmodel = maitred.load({path!r}{permission})\nprint(model.predict({{{values}}}))"
    return text if row and len(text) <= _MAX_CALL_CHARACTERS else ""


def _literal(spec: TensorSpec, array: Array) -> str:
    """An array as Python that gives its values again: times as text, None for what is missing."""
    if spec.clock is not None:
        counts = array.view(np.int64)
        shown = zip(texts(counts, spec.clock), counts.reshape(-1).tolist(), strict=True)
        flat = np.array([None if item == NAT else text or item for text, item in shown], object)
        return repr(flat.reshape(array.shape).tolist())
    return _written(array.tolist(), spec.nullable)


def _written(value: Any, nullable: bool) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_written(item, nullable) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "None" if nullable and math.isnan(value) else f"float({str(value)!r})"
    return repr(value)


def _described(source: Source, problems: list[str]) -> Description | None:
    try:
        return describe(source)
    except LoadRefused as error:
        if error.message not in problems:
            problems.append(error.message)
        return None


def _note(problems: list[str], check: Callable[[], object]) -> None:
    try:
        check()
    except LoadRefused as error:
        problems.append(error.message)


def _libraries(described: Description | None) -> tuple[Library, ...]:
    saved = described.libraries if described else {}
    return tuple(Library(name, version, versions.installed(name) or "") for name, version in sorted(saved.items()))


def _files(found: Resolved) -> tuple[File, ...]:
    if found.artifact is not None:
        return tuple(File(path, digest.size, digest.sha256) for path, digest in sorted(found.artifact.files.items()))
    if not found.opening.file:
        return ()
    opening = found.opening
    whole = opening.file in found.flavor.markers
    files = files_of(opening.root) if whole else {opening.file: digest_of(opening.path)}
    return tuple(File(path, digest.size, digest.sha256) for path, digest in sorted(files.items()))


def _plain(described: Description) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.msgpack.decode(described.encode())
    return record


def _lines(shown: Inspection) -> list[str]:
    lines = [f"model      {shown.name}", f"flavor     {shown.flavor}", f"source     {shown.source}"]
    lines += [f"version    {shown.digest}"] if shown.digest else []
    if shown.description is None:
        lines.append("signature  not known before its code runs: start it with `maitred serve`, or pack it")
    lines += shown.summary()
    lines += _table(
        "files", [f"{file.size_bytes:>12,} bytes  {file.sha256[:16]}…  {file.path}" for file in shown.files]
    )
    lines += _table("libraries", [_library_line(library) for library in shown.libraries])
    lines += _table("needs trust for", list(shown.needs_trust))
    lines += [f"trusted by {shown.trust}"] if shown.trust else []
    lines += _table("problems", list(shown.problems))
    lines += ["", "Ask it while it is served:", f"  {shown.curl}"] if shown.curl else []
    if shown.python:
        lines += ["", "Ask it from Python:", *(f"  {line}".rstrip() for line in shown.python.split("\n"))]
    return lines


def _described_lines(description: Mapping[str, Any], compared: Sequence[str]) -> list[str]:
    signature = description["signature"]
    example = "none"
    if description["example"]:
        example = "its own" if description["example_is_real"] else "made up from the signature"
    return [
        *_signature_lines("inputs", signature["inputs"]),
        *_signature_lines("outputs", signature["outputs"]),
        *_trait_lines(description["traits"]),
        f"example    {example}",
        *_table("compared with its reference", list(compared)),
    ]


def _signature_lines(title: str, tensors: Mapping[str, str]) -> list[str]:
    width = max(map(len, tensors))
    return _table(title, [f"{name:<{width}}  {text}" for name, text in tensors.items()])


def _trait_lines(traits: Mapping[str, Any]) -> list[str]:
    told = {key: value for key, value in traits.items() if value and (key, value) != ("slots", 1)}
    return _table("traits", [f"{key}: {value}" for key, value in told.items()])


def _library_line(library: Library) -> str:
    same = library.installed == library.saved
    there = "" if same else f" (installed: {library.installed or 'none'})"
    return f"{library.name} {library.saved}{there}"


def _table(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
