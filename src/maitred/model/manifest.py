"""What `maitred.toml` says: the record of one packed model, and how it is read and written."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import tomli_w

from maitred.errors import Malformed
from maitred.model.names import check_name
from maitred.model.predictor import Traits, checked_traits
from maitred.model.refusals import NotAnArtifact
from maitred.model.signature import Signature

FILE: Final = "maitred.toml"
EXAMPLE: Final = "example.json"
FORMAT: Final = 1
MAX_BYTES: Final = 4 << 20
"""Bound on the manifest itself."""

_MARK: Final = b"\n[digests]\n"
_MEMBER: Final = re.compile(r"[^\x00-\x1f\x7f\\:]+")


class FileDigest(NamedTuple):
    """Size in bytes and SHA-256 (hexadecimal) of one file."""

    size: int
    sha256: str


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds that the model itself asks for; None leaves them to the server's settings."""

    max_batch_rows: int | None = None
    deadline_seconds: float | None = None


def checked_limits(limits: Limits) -> Limits:
    """The same; TypeError naming what nothing can be bounded by."""
    rows: Any = limits.max_batch_rows
    seconds: Any = limits.deadline_seconds
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise TypeError("max_batch_rows must be a whole number >= 1, or None")
    if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds < math.inf):
        raise TypeError("deadline_seconds must be a finite number of seconds > 0, or None")
    return limits


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One packed model. Everything here can be read without running or importing anything of the artifact's."""

    name: str
    flavor: str
    file: str = ""
    """The file that the flavor opens, relative to the artifact's folder."""
    entry: str = ""
    """What to take from that file, for flavors whose files hold several things."""
    signature: Signature
    traits: Traits
    limits: Limits = Limits()
    options: dict[str, Any] = {}
    """Settings of the flavor."""
    libraries: dict[str, str] = {}
    """Python and the libraries that the model was saved with."""
    example: bool = False
    made_up: bool = False
    """Whether the example's inputs were made up from the signature."""
    compared: tuple[str, ...] = ()
    """How it agreed with its reference on the example when it was packed, a line for each output."""

    def head(self) -> bytes:
        """The manifest as TOML, without its digest table."""
        table = {
            "format": FORMAT,
            "name": self.name,
            "flavor": self.flavor,
            **({"file": self.file} if self.file else {}),
            **({"entry": self.entry} if self.entry else {}),
            **({"example": EXAMPLE} if self.example else {}),
            **({"made_up": True} if self.made_up else {}),
            **({"compared": [*self.compared]} if self.compared else {}),
            "signature": self.signature.to_dict(),
            "traits": _without_none(msgspec.to_builtins(self.traits)),
            "limits": _without_none(msgspec.to_builtins(self.limits)),
            "options": self.options,
            "libraries": dict(sorted(self.libraries.items())),
        }
        return tomli_w.dumps({k: v for k, v in table.items() if v != {}}, multiline_strings=False).encode()


class _Digests(msgspec.Struct, forbid_unknown_fields=True):
    version: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    files: dict[str, dict[str, Any]] = {}


class _Tables(msgspec.Struct, forbid_unknown_fields=True):
    digests: _Digests


class Sealed(NamedTuple):
    """A manifest as it lies on disk: its head, and the digest table that covers the head and every other file."""

    head: bytes
    manifest: Manifest
    version: str
    files: dict[str, FileDigest]


def seal(head: bytes, version: str, files: dict[str, FileDigest]) -> bytes:
    """The whole text of `maitred.toml`: `head`, then the digest table (which is always last)."""
    lines = [f"version = {_quoted(version)}", "", "[digests.files]"]
    lines += [
        f"{_quoted(path)} = {{ size = {digest.size}, sha256 = {_quoted(digest.sha256)} }}"
        for path, digest in sorted(files.items())
    ]
    return head.rstrip(b"\n") + b"\n" + _MARK + "\n".join(lines).encode() + b"\n"


def read(text: bytes) -> Sealed:
    """Take `maitred.toml` apart.

    Raises `NotAnArtifact` if it is not one. Whether head and files match the digests is for `artifact.verify` to see;
    that the digest table is written exactly as `seal` writes it is checked here, so that no byte of it is free.
    """
    head, mark, tail = text.rpartition(_MARK)
    if not mark:
        raise NotAnArtifact(f"{FILE} has no digest table: pack the model with `maitred pack`")
    head += b"\n" if not head.endswith(b"\n") else b""
    try:
        table = msgspec.convert(_parse(b"[digests]\n" + tail), _Tables).digests
        version, digests = table.version, {path: FileDigest(**entry) for path, entry in table.files.items()}
    except (TypeError, ValueError) as error:
        raise NotAnArtifact(f"the digest table of {FILE} is not as it was packed") from error
    if not all(_sound(digest) for digest in digests.values()) or seal(head, version, digests) != text:
        raise NotAnArtifact(f"the digest table of {FILE} is not as it was packed")
    for path in digests:
        check_member(path)
    return Sealed(head, _manifest(_parse(head)), version, digests)


def check_member(path: str) -> str:
    """`path` if it may name a file of an artifact: relative, no `..`, no drive, no backslash, no control characters.

    Raises `NotAnArtifact`.
    """
    parts = PurePosixPath(path).parts
    plain = "/".join(parts) == path and len(path.encode(errors="surrogatepass")) <= 1024
    if not parts or not plain or path.startswith("/") or ".." in parts or not _MEMBER.fullmatch(path):
        raise NotAnArtifact(f"an artifact may not hold a file named {path!r}")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise NotAnArtifact(f"an artifact may not hold a file named {path!r}") from None
    return path


def _sound(digest: FileDigest) -> bool:
    return type(digest.size) is int and digest.size >= 0 and bool(re.fullmatch("[0-9a-f]{64}", str(digest.sha256)))


def _parse(text: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnArtifact(f"{FILE} is not valid TOML: {error}") from error


def _manifest(table: dict[str, Any]) -> Manifest:
    """The record of a parsed head. Raises `NotAnArtifact` naming the key."""
    if table.get("format") != FORMAT:
        raise NotAnArtifact(f"{FILE}: format is {table.get('format')!r}; this version of maitred reads {FORMAT}")
    known = {"format", "example", *Manifest.__struct_fields__}
    if unknown := sorted(table.keys() - known):
        raise NotAnArtifact(f"{FILE}: unknown key {unknown[0]!r}")
    signature = _value(table, "signature", Signature.from_dict)
    return Manifest(
        name=_value(table, "name", check_name),
        flavor=_value(table, "flavor", check_name),
        file=_value(table, "file", _member, ""),
        entry=_value(table, "entry", _as(str), ""),
        signature=signature,
        traits=_value(table, "traits", lambda found: checked_traits(_as(Traits)(found), signature.row_wise), {}),
        limits=_value(table, "limits", lambda found: checked_limits(_as(Limits)(found)), {}),
        options=_value(table, "options", _as(dict[str, Any]), {}),
        libraries=_value(table, "libraries", _as(dict[str, str]), {}),
        example=_value(table, "example", _as(Literal["", "example.json"]), "") == EXAMPLE,
        made_up=_value(table, "made_up", _as(bool), False),
        compared=_value(table, "compared", _as(tuple[str, ...]), ()),
    )


def _value(table: dict[str, Any], key: str, make: Callable[[Any], Any], default: Any = None) -> Any:
    """What a key stands for; without a default it must be there. Raises `NotAnArtifact` naming the key."""
    if key not in table and default is None:
        raise NotAnArtifact(f"{FILE}: the key {key!r} is missing")
    try:
        return make(table.get(key, default))
    except (Malformed, ValueError, TypeError) as error:
        raise NotAnArtifact(f"{FILE}: {key}: {error}") from error


def _as(kind: Any) -> Callable[[Any], Any]:
    return lambda found: msgspec.convert(found, kind)


def _member(found: Any) -> str:
    path: str = msgspec.convert(found, str)
    return check_member(path) if path else ""


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _quoted(text: str) -> str:
    """A TOML basic string; `check_member` keeps out what would need more than these two escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
