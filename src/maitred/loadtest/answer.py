"""Reads an answer of any shape, in as many pieces as it comes in, and says what is wrong with one that is none."""

from __future__ import annotations

from typing import Final

import httptools

MAX_BODY_BYTES: Final = 256 << 20
MAX_HEAD_BYTES: Final = 64 << 10

_UNASKED: Final = "bytes follow the answer that nobody asked for"


class BadAnswer(Exception):
    """What came is no HTTP answer, or too large; the message says what it is."""


class Reader:
    """One answer. Interim ones (1xx) before it are read and forgotten."""

    def __init__(self) -> None:
        self.done = False
        self.keep = False
        """Whether another request may follow on the connection; True only with `done`."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self._parser = httptools.HttpResponseParser(self)
        self._in_body = False
        self._head_bytes = 0
        self._more = False
        self._problem = ""

    def feed(self, data: bytes) -> None:
        """Take what came. Raises BadAnswer."""
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.done:
                raise BadAnswer(_UNASKED) from None
            raise BadAnswer(self._problem or f"no HTTP/1.1 answer ({_said(error)}): {shown(data)}") from None
        if not self._in_body and not self.done and self._head_bytes > MAX_HEAD_BYTES:
            raise BadAnswer(f"a head of more than {MAX_HEAD_BYTES} bytes")
        if self._more:
            raise BadAnswer(_UNASKED)

    def end(self) -> bool:
        """The other side closed: whether that was the end of an answer which has no length."""
        names = {name.lower() for name, _ in self.headers}
        self.done |= self._in_body and not names & {b"content-length", b"transfer-encoding"}
        return self.done

    # --- called by the parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._more = self.done

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._more:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._more:
            return
        self.status = self._parser.get_status_code()
        self._in_body = self.status >= 200
        if not self._in_body:
            self.headers = []

    def on_body(self, data: bytes) -> None:
        if self._more:
            return
        self.body += data
        if len(self.body) > MAX_BODY_BYTES:
            self._problem = f"a body of more than {MAX_BODY_BYTES} bytes"
            raise BadAnswer(self._problem)

    def on_message_complete(self) -> None:
        if self._in_body:
            self.done = True
            self.keep = self._parser.should_keep_alive()


def shown(data: bytes | bytearray, most: int = 160) -> str:
    """The beginning of what came, for people: on one line, what cannot be printed escaped."""
    text = " ".join(bytes(data[:most]).decode("utf-8", "backslashreplace").split())
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text + ("..." if len(data) > most else "")


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
