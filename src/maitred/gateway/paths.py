"""What a path asks for: which protocol, which model and version, which action."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from maitred.errors import Malformed, Unknown
from maitred.wire.json import shown

MAX_PATH: Final = 2048

PROTOCOLS: Final = frozenset(("v2", "v1", "predict"))
"""First parts of the paths that are answered on the inference loop; all others belong to the site."""

_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Asked(msgspec.Struct, frozen=True, gc=False):
    """`server` actions have no model."""

    protocol: str
    action: str
    model: str = ""
    version: str | None = None


def parse(path: bytes) -> Asked | None:
    """What `path` asks for; None where it is the site's. Raises Unknown or Malformed.

    Escapes are undone once, in each part by itself, so that an escaped slash separates nothing and an escaped colon is
    a colon. One slash at the end is tolerated.
    """
    if len(path) > MAX_PATH:
        raise Unknown("there is no such route: the path is too long")
    raw = path.removeprefix(b"/").removesuffix(b"/").split(b"/")
    if unquote_to_bytes(raw[0]).decode("latin-1") not in PROTOCOLS:
        return None
    if b"" in raw:
        raise Unknown(f"there is no route {_route(path)}: it has an empty part (a double slash)")
    if _BAD_ESCAPE.search(path):
        raise Malformed("the path holds a % that begins no escape")
    try:
        parts = [unquote_to_bytes(part).decode() for part in raw]
    except UnicodeDecodeError:
        raise Malformed("the path is not UTF-8") from None
    asked = _ROUTES[parts[0]](parts[1:])
    if asked is None:
        raise Unknown(f"there is no route {_route(path)}; /docs lists the routes of this server")
    return asked


def _route(path: bytes) -> str:
    return shown(path.decode("latin-1"))


def _v2(parts: list[str]) -> Asked | None:
    match parts:
        case []:
            return Asked("v2", "server")
        case ["health", "live" | "ready" as what]:
            return Asked("v2", what)
        case ["models"]:
            return Asked("v2", "models")
        case ["repository", "index"]:
            return Asked("v2", "index")
        case ["repository", "models", name, "load" | "unload" as what]:
            return Asked("v2", what, name)
        case ["models", name, *rest]:
            name, version, rest = _versioned(name, rest)
            if len(rest) > 1:
                return None
            action = rest[0] if rest else "metadata"
            return _known(Asked("v2", action, name, version), ("metadata", "ready", "infer", "config"))
    return None


def _v1(parts: list[str]) -> Asked | None:
    match parts:
        case ["models"]:
            return Asked("v1", "models")
        case ["models", *rest] if rest:
            rest[-1], colon, action = rest[-1].partition(":")
            name, version, rest = _versioned(rest[0], rest[1:])
            if rest:
                return None
            return _known(Asked("v1", action if colon else "status", name, version), ("status", "predict"))
    return None


def _plain(parts: list[str]) -> Asked | None:
    if len(parts) != 1:
        return None
    name, colon, action = parts[0].partition(":")
    return _known(Asked("predict", action if colon else "predict", name), ("predict",))


def _versioned(name: str, rest: list[str]) -> tuple[str, str | None, list[str]]:
    if len(rest) >= 2 and rest[0] == "versions":
        return name, rest[1], rest[2:]
    return name, None, rest


def _known(asked: Asked, actions: tuple[str, ...]) -> Asked:
    action = asked.action
    if not asked.model:
        raise Unknown("the path names no model; GET /v2/models lists the models that are served")
    if ":" in asked.model:
        action = asked.model.partition(":")[2]
    elif action in actions:
        return asked
    raise Unknown(
        f"there is no action {shown(action)} on the models of /{asked.protocol}; there are: {', '.join(actions)}"
    )


_ROUTES: Final = {"v2": _v2, "v1": _v1, "predict": _plain}
