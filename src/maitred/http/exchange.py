"""One request and its answer, whichever version of HTTP carries it."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

JSON: Final = b"application/json"

WATCHED: Final = 64
"""`Exchange.watched` of a request that may have any header."""

Pieces = tuple[Any, ...]
"""An answer's body in pieces: bytes, or views of memory that stays as it is while anybody holds them."""

INTERNAL: Final = "the server failed on this request; report it to whoever runs this server"
"""What callers are told of a defect; the log says more."""

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class Gone(Protocol):
    """Whoever works for a caller and wants to know that the caller has left."""

    def gone(self) -> None: ...


class Exchange(msgspec.Struct, eq=False, weakref=False):
    """What an application gets to see. Belongs to the loop of its connection; not thread-safe.

    Answered once: by `reply`, or by `start`, any number of `write` and `end`. What is sent after the caller has left
    is dropped; a second answer is a defect of the application and raises RuntimeError.
    """

    method: str
    path: bytes
    """As sent, before `?`; not unescaped."""
    query: bytes
    head: Any
    """The headers as `headers` gives them; or lines `Name: value` that nobody has looked at yet, or all that has come,
    from the request line on."""
    body: bytes | bytearray
    """Complete, and inflated. Where it `lies` in a place, a memoryview that dies with the answer."""
    received_at: float
    """When the last byte was read, by the server's clock."""
    gone: Any = None
    """Set by the application: a `Gone`, called once if the caller leaves before the answer is complete."""
    on_drain: Callable[[], None] | None = None
    """Set by the application: called when `write` had returned False and there is room again."""
    watched: int = WATCHED
    """At least WATCHED: headers that the application watches may be there, or a Content-Type but application/json.
    Else which of its labels are: 0 none, 1 the first, once, and 2 or more whichever."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Names in lower case."""
        head = self.head
        if type(head) is bytes:
            head = head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        if head and type(head[0]) is bytes:
            head = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in head)]
        self.head = head
        return head  # type: ignore[no-any-return]

    def header(self, name: bytes) -> bytes | None:
        """Value of the first header called `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def lies(self) -> Any:
        """The place of a body that others may read as it lies there; None where it is in private memory."""
        return None

    def reply(self, status: int, body: bytes | Pieces, content_type: bytes = JSON, extra: bytes = b"") -> None:
        """Answer at once; JSON in one piece. `extra`: complete header lines, each with its CRLF."""
        raise NotImplementedError

    def start(self, status: int, content_type: bytes = JSON, extra: bytes = b"") -> None:
        """Begin an answer whose length is not known."""
        raise NotImplementedError

    def write(self, piece: bytes) -> bool:
        """Send a piece. False: hold back until `on_drain`."""
        raise NotImplementedError

    def end(self) -> None:
        """The answer that `start` began is complete."""
        raise NotImplementedError

    def abort(self) -> None:
        """Break off an answer that `start` began, so that the caller can see that it is not whole."""
        raise NotImplementedError


class Application(Protocol):
    """Called once per request, with its whole body; answers now or later. What it raises becomes a 500.

    An application that reads few headers may have an attribute `watched`, the collection of their lower-case names:
    most exchanges then come with `watched` 0, so that it need not look. `labels` names up to two more that it needs
    now and then, so that it can tell a request that has nothing else.
    """

    def exchange(self, exchange: Exchange) -> None: ...


def error_body(message: str) -> bytes:
    """The JSON object in which every error is told."""
    return msgspec.json.encode({"error": message})
