"""The admin port: who holds the token may look and, later, change; an ASGI application."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from maitred.gateway.site import METRICS_TYPE

TOKEN_FILE: Final = "admin-token"
MIN_CHARACTERS: Final = 16


class Token:
    """A secret that shows itself nowhere, and is compared in a time that tells nothing about it."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def __repr__(self) -> str:
        return "Token(...)"

    def fits(self, authorization: bytes) -> bool:
        """Whether the value of an `Authorization` header is `Bearer` and this token."""
        scheme, _, given = authorization.partition(b" ")
        return hmac.compare_digest(given.strip(), self._secret) and scheme.lower() == b"bearer"


class BadToken(Exception):
    """The token file cannot be used. The message names the file and says what to do."""


def ensure_token(home: Path) -> Token:
    """The admin token in `home`, made (with a file of mode 600) where there is none. Raises BadToken."""
    path = home / TOKEN_FILE
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = secrets.token_urlsafe(32)
    temporary = home / f".{TOKEN_FILE}.{secrets.token_hex(8)}"
    if not path.exists():
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret + "\n")
        try:
            os.link(temporary, path)  # whole or not at all, and the first of two servers wins
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return _read(path)


def _read(path: Path) -> Token:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise BadToken(f"{path} can be read by others (mode {mode:o}): delete it, or `chmod 600` it")
        secret = file.read(4096).strip()
    if len(secret) < MIN_CHARACTERS or not secret.isascii() or not secret.isprintable():
        raise BadToken(f"{path} holds no usable token: delete it, and the next start makes one")
    return Token(secret)


def admin(token: Token, metrics_text: Callable[[], str]) -> ASGIApp:
    """The application of the admin port. Without the token every path answers 401, also those that do not exist."""

    async def metrics(request: Request) -> Response:
        return Response(metrics_text(), media_type=METRICS_TYPE)

    async def other(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "there is no such route on the admin port"}, 404)

    routes = Starlette(routes=[Route("/metrics", metrics)], exception_handlers={404: other})

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not token.fits(given[0]):
                refusal = JSONResponse(
                    {"error": "this port needs the admin token: Authorization: Bearer <token>"},
                    401,
                    {"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await routes(scope, receive, send)

    return guarded
