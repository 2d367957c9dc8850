"""Content codings both ways: gzip and deflate, within bounds."""

from __future__ import annotations

import io
import mmap
import zlib
from typing import Final, NamedTuple

from maitred.errors import MaitredError, Malformed, TooLarge, UnsupportedMedia

ACCEPTED: Final = b"gzip, deflate"
"""What request bodies may be coded in."""

LEVEL: Final = 1

_GZIP: Final = 31
_ZLIB: Final = 15
_RAW: Final = -15

_PIECE_BYTES: Final = 16 << 10
_STEP_BYTES: Final = 64 << 10
_APART_FROM: Final = 256 << 10
"""More than this of a plain body is kept in pages of its own until it is whole."""
_MOVE_BYTES: Final = 256 << 10
_RATIO: Final = 1032
"""Deflate makes no more of a byte: 258 for two bits."""
_MEMBERS: Final = 16_384
"""Members of one gzip body: what block compressors make of the largest body, and few enough to be quick."""


class Choice(NamedTuple):
    """What an Accept-Encoding header allows."""

    coding: bytes | None
    """The compressing coding to use for bodies worth it: `gzip`, `deflate` or None."""
    identity: bool
    """Whether a body may go out as it is."""


ANYTHING: Final = Choice(None, True)


def choose(accept: bytes | None) -> Choice:
    """The best coding for an Accept-Encoding header: the highest q, gzip before deflate before none at equal ones."""
    if accept is None:
        return ANYTHING
    weights: dict[bytes, float] = {}
    for entry in accept[:1024].lower().split(b","):
        coding, _, parameters = entry.partition(b";")
        weight = _weight(parameters)
        if weight is not None and coding.strip():
            name = coding.strip()
            weights[b"gzip" if name == b"x-gzip" else name] = weight
    others = weights.get(b"*")
    identity = weights.get(b"identity", others)
    best, best_weight = None, 0.0
    for coding in (b"gzip", b"deflate"):
        weight = weights.get(coding, others)
        if weight is not None and weight > best_weight:
            best, best_weight = coding, weight
    if best is not None and b"identity" in weights and weights[b"identity"] > best_weight:
        best = None  # the caller would rather have it plain
    return Choice(best, identity is None or identity > 0)


def _weight(parameters: bytes) -> float | None:
    """The q of `;q=0.5`, 1 where there is none, None where it cannot be read."""
    text = parameters.strip()
    if not text:
        return 1.0
    name, _, value = text.partition(b"=")
    if name.strip() != b"q":
        return None
    try:
        weight = float(value)
    except ValueError:
        return None
    return weight if 0 <= weight <= 1 else None


def compress(body: bytes, coding: bytes) -> bytes:
    """`body` in `gzip` or `deflate` (the zlib format, as RFC 9110 has it)."""
    engine = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP if coding == b"gzip" else _ZLIB)
    return engine.compress(body) + engine.flush()


def check_coding(header: bytes) -> bytes | None:
    """`gzip`, `deflate` or, for a body that is plain, None. Raises UnsupportedMedia."""
    coding = header.strip().lower()
    if coding in (b"", b"identity"):
        return None
    if coding in (b"gzip", b"x-gzip"):
        return b"gzip"
    if coding == b"deflate":
        return coding
    raise UnsupportedMedia("this Content-Encoding is not spoken here; use gzip, deflate or none, once")


class _Pages(io.RawIOBase):
    """Bytes in memory that goes back to the system as soon as it is not needed: written once, then read once.

    An allocator keeps what it once had for a large body, as much again for each thread that inflates.
    """

    def __init__(self, most: int) -> None:
        self.size = 0
        self._read = 0
        self._pages = mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # real once they are written

    def add(self, piece: bytes | bytearray) -> None:
        end = self.size + len(piece)
        self._pages[self.size : end] = piece
        self.size = end

    def take(self) -> bytes:
        """All of it, which is never there twice: a page goes when it has been read, and the bytes are not zeroed."""
        with io.BufferedReader(self) as reader:
            return reader.read(self.size)

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        start = self._read
        end = min(start + len(into), start + _MOVE_BYTES, self.size)
        with memoryview(self._pages) as pages:
            into[: end - start] = pages[start:end]
        if end - start == _MOVE_BYTES:
            self._pages.madvise(mmap.MADV_DONTNEED, start, _MOVE_BYTES)
        self._read = end
        return end - start

    def close(self) -> None:
        self._pages.close()
        super().close()


class Inflation:
    """One coded body on its way to plain bytes, a bounded amount of work at a time.

    Consumes `source`. Memory is that of the plain body, which ends at `limit`, and of what is left of the source; that
    of a body which is refused goes back to the system at once.
    """

    __slots__ = (
        "plain", "stopped", "_coding", "_source", "_limit", "_most", "_pages", "_members", "_engine", "_taken", "_rest",
    )  # fmt: skip

    def __init__(self, coding: bytes, source: bytearray, limit: int) -> None:
        self.plain: bytes | bytearray = bytearray()
        """The body, once `run` has said that it is whole."""
        self.stopped = False
        """Set by another thread to have `run` return early."""
        self._coding = coding
        self._source = source
        self._limit = limit
        self._most = min(limit, _RATIO * len(source))
        self._pages: _Pages | None = None
        """In place of `plain` if there are more than `_APART_FROM`, until they are whole."""
        self._members = 0
        self._engine = self._new_engine()
        self._taken = 0
        self._rest = b""

    def _new_engine(self) -> zlib._Decompress:
        self._members += 1
        if self._members > _MEMBERS:
            raise Malformed(f"the gzip body has more than {_MEMBERS} members; compress it as one")
        if self._coding == b"gzip":
            return zlib.decompressobj(_GZIP)
        return zlib.decompressobj(_ZLIB if _has_zlib_header(self._source) else _RAW)

    def run(self, budget_bytes: float = float("inf")) -> bool:
        """Go on for about `budget_bytes` in and out; True when `plain` is whole. Raises Malformed, TooLarge."""
        try:
            while budget_bytes > 0 and not self.stopped:
                if not self._engine.eof:
                    budget_bytes -= self._step()
                elif self._ended():
                    if self._pages is not None:
                        self.plain = self._pages.take()
                    return True
        except zlib.error:
            self._drop()
            raise Malformed(f"the body is not valid {self._coding.decode()}; check its Content-Encoding") from None
        except MaitredError:
            self._drop()
            raise
        return False

    def _drop(self) -> None:
        """Let go of what there is of a refused body, whoever still has the error in hand."""
        self.plain = bytearray()
        if self._pages is not None:
            self._pages.close()

    def _step(self) -> int:
        """Inflate a little; how many bytes went in and out."""
        piece = self._rest or self._next_piece()
        made = self._engine.decompress(piece, _STEP_BYTES)
        self._rest = self._engine.unconsumed_tail
        if not made and not piece and not self._engine.eof:
            raise Malformed(f"the {self._coding.decode()} body ends too early; send all of it")
        self._keep(made)
        return len(piece) + len(made)

    def _keep(self, made: bytes) -> None:
        pages = self._pages
        size = len(self.plain) + len(made) + (pages.size if pages is not None else 0)
        if size > self._limit:
            raise TooLarge(f"the inflated body is larger than the limit of {self._limit} bytes; send less at once")
        if pages is not None:
            pages.add(made)
        elif size <= _APART_FROM:
            self.plain += made
        else:
            self._pages = _Pages(self._most)
            self._pages.add(self.plain)
            self._pages.add(made)
            self.plain = bytearray()

    def _next_piece(self) -> bytes:
        piece = bytes(self._source[self._taken : self._taken + _PIECE_BYTES])
        self._taken += len(piece)
        if self._taken >= 1 << 20:
            del self._source[: self._taken]
            self._taken = 0
        return piece

    def _ended(self) -> bool:
        """One member is complete: True if it was the last, else the next one is begun."""
        self._rest = self._engine.unused_data or self._next_piece()
        if not self._rest:
            return True
        if self._coding != b"gzip":
            raise Malformed("the deflate body goes on after its end; send one stream")
        self._engine = self._new_engine()
        return False


def _has_zlib_header(source: bytearray) -> bool:
    """Whether a `deflate` body is in the zlib format; some senders leave its header out."""
    return len(source) >= 2 and source[0] & 0x0F == 8 and (source[0] << 8 | source[1]) % 31 == 0
