"""Every check on a request's head and every bound in time and size: rules without I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection and one port may ask for."""

    head_bytes: int = 64 << 10
    headers: int = 100
    body_bytes: int = 64 << 20
    """Of the body as the application sees it, after inflating."""
    framing_bytes: int = 64 << 10
    """Chunk extensions and trailers in a row without a byte of body."""
    first_byte_seconds: float = 30.0
    header_seconds: float = 30.0
    """From a head's first byte to its last, whatever arrives in between."""
    idle_seconds: float = 75.0
    """Longer than the pools of common clients keep a connection."""
    body_bytes_per_second: int = 1024
    body_window_seconds: float = 30.0
    """A body that brings less than `body_bytes_per_second` over a window is given up, and so is one that has waited for
    a place as long."""
    contested_seconds: float = 10.0
    """While others wait for a place, a body that has had one for so long, and needs as long again, gives it up."""
    stalled_seconds: float = 60.0
    """A caller who takes nothing of an answer for so long is cut off."""
    linger_seconds: float = 2.0
    """How long a refused caller may go on sending before the connection is reset, so that the answer gets through."""
    linger_bytes: int = 512 << 10
    pipelined: int = 64
    """Requests of one connection that are with the application at once, and those of one slice of input beyond."""
    buffered_bytes: int = 128 << 10
    """Answer bytes that wait for a slow caller before streams are told to pause."""
    connections: int = 10_000
    compress_from_bytes: int = 1024
    offload_bytes: int = 256 << 10
    """Compressing or inflating more than this happens in a thread."""


class Refused(Exception):
    """A request that is answered with `status` by the HTTP layer itself; the connection is closed after it."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


CHUNKED: Final = -1
"""In place of a length: the body's end is found in the body."""

_ONCE: Final = {
    b"host": "Host", b"content-length": "Content-Length", b"transfer-encoding": "Transfer-Encoding",
}  # fmt: skip
_NOTED: Final = frozenset((*_ONCE, b"expect", b"content-encoding", b"accept-encoding", b"upgrade"))

Head = tuple[int, bool, bytes | None, bytes | None, bool]
"""Length of the body or CHUNKED; expects 100-continue; Content-Encoding; Accept-Encoding; has an Upgrade header."""

_DIGITS: Final = 20
"""Of a Content-Length, after its leading zeros: more than that is too much anyway."""
_BAD_HOST: Final = re.compile(rb"[^A-Za-z0-9._~!$&'()*+;=%:\[\]-]")


def check_head(headers: Headers, old: bool, limits: Limits) -> Head:
    """What the head says about the body. `old`: the request is HTTP/1.0. Raises Refused."""
    if len(headers) > limits.headers:
        raise Refused(431, f"the request has more than {limits.headers} headers; send fewer")
    noted: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _NOTED:
            if name in noted:
                if name in _ONCE:
                    raise Refused(400, f"the request has more than one {_ONCE[name]} header; send exactly one")
                value = noted[name] + b"," + value
            noted[name] = value
    _check_host(noted.get(b"host"), old)
    size = 0
    length = noted.get(b"content-length")
    if length is not None:
        if not length.isdigit():
            raise Refused(400, "the Content-Length is not a number; send the body's size in bytes")
        size = int(length.lstrip(b"0")[:_DIGITS] or b"0")
        if size > limits.body_bytes:
            raise Refused(413, f"the body is larger than the limit of {limits.body_bytes} bytes; send less at once")
    transfer = noted.get(b"transfer-encoding")
    if transfer is not None:
        size = _transfer(transfer, length is not None, old)
    expect = noted.get(b"expect")
    expects = expect is not None and _expects(expect, old)
    return size, expects, noted.get(b"content-encoding"), noted.get(b"accept-encoding"), b"upgrade" in noted


def _check_host(host: bytes | None, old: bool) -> None:
    if host is None:
        if not old:
            raise Refused(400, "the request has no Host header; send one")
    elif _BAD_HOST.search(host):
        raise Refused(400, "the Host header is not a host name with an optional port; correct it")


def _transfer(transfer: bytes, with_length: bool, old: bool) -> int:
    if old:
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding; send a Content-Length")
    if with_length:
        raise Refused(400, "the request has both Content-Length and Transfer-Encoding; send one of them")
    if transfer.strip().lower() != b"chunked":
        raise Refused(400, "the only Transfer-Encoding spoken here is chunked; use it alone or send a Content-Length")
    return CHUNKED


def _expects(expect: bytes, old: bool) -> bool:
    if old:
        return False  # RFC 9110, 10.1.1: to be ignored in HTTP/1.0
    if expect.strip().lower() != b"100-continue":
        raise Refused(417, "the only expectation met here is 100-continue; leave the Expect header out")
    return True


def check_version(version: str) -> bool:
    """Whether the request is HTTP/1.0. Raises Refused for all but 1.0 and 1.1."""
    if version == "1.1":
        return False
    if version == "1.0":
        return True
    raise Refused(400, "this port speaks HTTP/1.1 and HTTP/1.0; use one of them")


_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
_BAD_TARGET: Final = re.compile(rb"[^\x21-\x7e]")


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target, not unescaped. Raises Refused for what is no path of this server."""
    if _BAD_TARGET.search(target):
        raise Refused(400, "the request target holds bytes that must be percent-escaped; escape them")
    if not target.startswith(b"/") and target != b"*":
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise Refused(400, "the request target is neither a path nor an http:// address; correct it")
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    path, _, query = target.partition(b"?")
    return path, query


def head_bytes(target: bytes, headers: Headers) -> int:
    """Size of a head without its method and version."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def too_large_head(limits: Limits) -> Refused:
    return Refused(431, f"the request's head is larger than {limits.head_bytes} bytes; send fewer or shorter headers")


def too_large_body(limits: Limits) -> Refused:
    return Refused(413, f"the body is larger than the limit of {limits.body_bytes} bytes; send less at once")


_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]*)[ \t]*(?:;.*)?\r?\n", re.DOTALL)
_SIZE_BYTES: Final = 24
"""Kept of a line after its leading zeros: more than the digits of 64 bits. What follows these does not matter."""


class ChunkSizes:
    """Reads the sizes of chunks as they are announced, beside a parser that keeps them to itself.

    The parser has taken the lines for good; this only finds the one before the chunk that is open.
    """

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = b""
        """What of a size's line earlier slices have brought, as far as it matters."""

    def announced(self, piece: bytes, brought: int) -> int:
        """The size of the chunk that began in this slice of input, whose last `brought` bytes are of the chunk.

        0 where it was the last chunk, behind which there may be trailers.
        """
        text = self._begun + piece[: len(piece) - brought]
        self._begun = b""
        line = _SIZE_LINE.fullmatch(text, text.rfind(b"\n", 0, -1) + 1)
        return int(line[1] or b"0", 16) if line is not None else 0

    def between(self, piece: bytes) -> None:
        """A slice of input has ended outside of a chunk: the next one's size may have begun."""
        begun = self._begun + piece
        self._begun = begun[begun.rfind(b"\n") + 1 :].lstrip(b"0")[:_SIZE_BYTES]


def check_framing(raw_bytes: int, body_bytes: int, barren_bytes: int, trailers: int, limits: Limits) -> None:
    """Bound what a chunked body spends on anything but the body. Raises Refused.

    `raw_bytes` were read since the head and brought `body_bytes`; the last `barren_bytes` of them brought none. A body
    of one-byte chunks takes 6 bytes a byte, which is allowed.
    """
    if body_bytes > limits.body_bytes:
        raise too_large_body(limits)
    if barren_bytes > limits.framing_bytes or raw_bytes > limits.framing_bytes + 8 * body_bytes:
        raise Refused(400, "the chunked body is nearly all chunk extensions or trailers; send fewer")
    if trailers > limits.headers:
        raise Refused(400, f"the body ends in more than {limits.headers} trailers; send fewer")


FIRST_BYTE: Final = 1
"""Nothing has come on this connection yet."""
IDLE: Final = 2
HEAD: Final = 3
BODY: Final = 4
BUSY: Final = 5
"""Requests are with the application: they take as long as they take."""
CLOSING: Final = 6
ROOM: Final = 7
"""A large body waits for its place."""

SWEEP_SECONDS: Final = 1.0
SLICES: Final = 200
"""In which a round over as many connections as there may be is cut."""
_SLICE: Final = 50
"""Connections that are looked at in one go at least. To end as many takes a few milliseconds."""


def slice_size(limits: Limits) -> int:
    """How many connections a sweep looks at before others have their turn."""
    return max(_SLICE, -(-limits.connections // SLICES))


def overdue(phase: int, seconds: float, limits: Limits) -> bool:
    """Whether a connection seen for `seconds` in one phase has had its time.

    Phases are noticed by a sweep up to `SWEEP_SECONDS` after they began and ended by another: bounds that protect the
    server are drawn in by both, bounds that callers rely on (idle) are never shortened.
    """
    early = 2 * SWEEP_SECONDS
    if phase == IDLE:
        return seconds >= limits.idle_seconds
    if phase == FIRST_BYTE:
        return seconds >= limits.first_byte_seconds - early
    if phase == HEAD:
        return seconds >= limits.header_seconds - early
    if phase == ROOM:
        return seconds >= limits.body_window_seconds - early
    return phase == CLOSING and seconds >= limits.linger_seconds


def too_slow(gained_bytes: int, seconds: float, limits: Limits) -> bool:
    """Whether a body that gained so much in a full window is too slow."""
    return gained_bytes < limits.body_bytes_per_second * seconds


def outstays(came: int, size: int, seconds: float, limits: Limits) -> bool:
    """Whether a body that has brought `came` of `size` bytes in its place should leave that to those who wait."""
    if seconds < limits.contested_seconds:
        return False
    return (size - came) * seconds > came * limits.contested_seconds


WAIT_A_MOMENT: Final = b"Retry-After: 1\r\n"
"""The header of a refusal that may be over in a second."""


def no_room(size: int) -> Refused:
    """A large body waited for a place until its time was up."""
    what = f"a body of {size} bytes" if size > 0 else "so large a body"
    return Refused(503, f"this server has no memory to spare for {what} now; send it again later", WAIT_A_MOMENT)


def outstayed() -> Refused:
    message = "the body came too slowly for a server that is short of memory; send it again later, or faster"
    return Refused(503, message, WAIT_A_MOMENT)
