"""A caller of ASGI applications, without a server."""

from __future__ import annotations

from typing import Any

import loops


class Page:
    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = {name.decode().lower(): value.decode() for name, value in headers}
        self.body = body
        self.text = body.decode()


def visit(app: Any, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Page:
    """One request to `app`, and its whole answer."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    loops.run(app(scope, receive, send))
    start = sent[0]
    return Page(start["status"], start["headers"], b"".join(message.get("body", b"") for message in sent[1:]))
