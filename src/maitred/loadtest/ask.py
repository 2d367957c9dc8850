"""Asks a server a few questions before the load: where it is, what a model takes, whether it takes a body."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from maitred.loadtest.plan import Target, Tls

MAX_BYTES: Final = 16 << 20


class Unreachable(Exception):
    """Nobody answers there; the message says why."""


class Place(NamedTuple):
    """A URL, taken apart."""

    secure: bool
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class BadUrl(ValueError):
    """No URL that can be asked."""


def place_of(url: str) -> Place:
    """Raises BadUrl, with the reason."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(f"{url}: {error}") from None
    if parts.scheme in ("grpc", "grpcs"):
        raise BadUrl(f"{url}: gRPC is not supported yet; give the URL of the HTTP route")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadUrl(f"{url}: expected http://HOST:PORT/PATH or https://...")
    if parts.username is not None:
        raise BadUrl("a name and password in the URL are not sent; use --header 'Authorization: Basic ...'")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise BadUrl(f"{url}: escape what is no plain ASCII in the path (%20 for a space)")
    secure = parts.scheme == "https"
    return Place(secure, parts.hostname, (443 if secure else 80) if port is None else port, path)


def find(place: Place, verify: bool, timeout: float) -> Target:
    """The address at which the place can be reached: the first that takes a connection. Raises Unreachable."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{place.host}: there is no such host ({error})") from None
    said = "no address"
    for _, _, _, _, address in found:
        host, port = str(address[0]), int(address[1])
        try:
            socket.create_connection((host, port), timeout).close()
        except OSError as error:
            said = f"{error.strerror or error}" + ("" if host == place.host else f" ({host})")
            continue
        return Target(host, port, Tls(place.host, verify) if place.secure else None)
    raise Unreachable(f"{place.authority}: {said}")


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The value; None for a body that is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


def ask(place: Place, target: Target, context: ssl.SSLContext | None, request: bytes, timeout: float) -> Reply:
    """Send one whole request on a connection of its own. Raises Unreachable where no whole answer comes."""
    try:
        with socket.create_connection((target.host, target.port), timeout) as plain:
            wire = plain if context is None else context.wrap_socket(plain, server_hostname=place.host)
            with wire:
                wire.sendall(request)
                answer = http.client.HTTPResponse(wire, method=request.split(b" ", 1)[0].decode("ascii"))
                answer.begin()
                body = answer.read(MAX_BYTES)
                return Reply(answer.status, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"{place.authority}: no answer: {_said(error)}") from None


def untrusted(error: ssl.SSLError) -> str:
    """Why TLS could not be spoken, with what to do about it where that is known."""
    reason = str(error.reason or error)
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"TLS: {reason} (--insecure accepts any certificate)"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return f"TLS: {reason} (does it speak plain http:// there?)"
    return f"TLS: {reason}"


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return untrusted(error)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]


def written(place: Place, method: str, path: str, headers: Mapping[str, tuple[str, str]], body: bytes | None) -> bytes:
    """A whole request. `headers`: name and value by the name in small letters; Host and length are added."""
    lines = [f"{method} {path} HTTP/1.1"]
    if "host" not in headers:
        lines.append(f"Host: {place.authority}")
    if "user-agent" not in headers:
        lines.append("User-Agent: maitred-bench")
    lines += [f"{name}: {value}" for name, value in headers.values()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")
