"""Where large bodies go: within one bound for the whole server, and binary tensors where the model's replicas read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from maitred.deployment.router import Router
from maitred.errors import MaitredError
from maitred.gateway.paths import parse
from maitred.http.bodies import Asker, Place, Want
from maitred.http.limits import WAIT_A_MOMENT, Headers, Refused, no_room
from maitred.replica.lease import Lease
from maitred.replica.memory import Arena, NoMemory
from maitred.wire.binary import HEADER, MAX_DIGITS

_SHARE: Final = 4
"""One connection's bodies may hold a part of the bound as large as this divides it into, and always one body."""
_JSON_LENGTH: Final = HEADER.lower().encode()


class Own:
    """A place in private memory; or, with no bytes, none: then the body is only counted."""

    __slots__ = ("body", "view", "_ended")

    def __init__(self, size: int, ended: Callable[[], None]) -> None:
        """Raises MemoryError."""
        self.body = bytearray(size)
        self.view = memoryview(self.body)
        self._ended = ended

    def drop(self) -> None:
        self._ended()


class Bodies:
    """Bytes of bodies that are being received, wait or run, and the line of those who wait for more to be free."""

    def __init__(self, router: Router, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.crowded = False
        """Somebody waits for others' bytes."""
        self._router = router
        self._loop = loop
        self._line: dict[Asker, Want] = {}
        self._held: dict[object, int] = {}
        """Bytes by connection, or by the exchange whose body was inflated."""
        self._scheduled = False

    def ask(self, asker: Asker, want: Want) -> Place | None:
        """A place now, or None: `asker.granted` or `denied` follows. Raises Refused where there is none to be had."""
        begun = self._held.get(asker, 0) if want.counted else 0
        if begun + want.size > self.limit_bytes:
            raise self._never()
        free = self._fits(want) and self._is_next(asker, want)
        if free and not any(self._is_next(*waiting) for waiting in self._line.items()):
            return self._give(asker, want)
        self._line[asker] = want
        self._look()
        return None

    def leave(self, asker: Asker) -> None:
        if self._line.pop(asker, None) is not None:
            self._see_to_line()

    def count(self, holder: object, size: int) -> Place:
        """Bytes that are there already. Raises Refused: only who holds nothing yet may wait in line."""
        if size > self.limit_bytes:
            raise self._never()
        if self.crowded or self.used_bytes + size > self.limit_bytes:
            raise no_room(size)
        place = Own(0, partial(self._returned, holder, size))
        self._hold(holder, size)
        return place

    def _never(self) -> Refused:
        message = f"the body is larger than the {self.limit_bytes} bytes that this server takes in at once; send less"
        return Refused(413, message)

    def _hold(self, holder: object, size: int) -> None:
        self.used_bytes += size
        self._held[holder] = self._held.get(holder, 0) + size

    def _fits(self, want: Want) -> bool:
        return self.used_bytes + want.size <= self.limit_bytes

    def _is_next(self, asker: Asker, want: Want) -> bool:
        """Whether nothing but others' bytes can be in its way. A body that has begun to be counted goes on."""
        held = self._held.get(asker, 0)
        return want.counted or not held or held + want.size <= self.limit_bytes // _SHARE

    def _give(self, asker: Asker, want: Want) -> Place:
        """Raises Refused where the system has no memory."""
        ended = partial(self._returned, asker, want.size)
        memory = None if want.counted else self._memory(want)
        place: Place
        try:
            if memory is None:
                place = Own(0 if want.counted else want.size, ended)
            else:
                arena, head_bytes = memory
                place = Lease.of_body(arena, want.size, head_bytes, ended)
        except (NoMemory, MemoryError) as error:
            why = f" ({error})" if str(error) else ""
            message = f"this server got no memory for a body of {want.size} bytes{why}; send it again later"
            raise Refused(503, message, WAIT_A_MOMENT) from None
        self._hold(asker, want.size)
        return place

    def _memory(self, want: Want) -> tuple[Arena, int] | None:
        """The memory that the replicas of the path's model read, and the bytes before the tensors; None where a body
        would not be read as it lies there: JSON, other routes, models that run in this process."""
        head_bytes = _json_length(want.headers)
        if head_bytes is None or head_bytes > want.size:
            return None
        try:
            asked = parse(want.path)
        except MaitredError:
            return None  # which the application tells the caller
        if asked is None or (asked.protocol, asked.action) != ("v2", "infer") or want.method != "POST":
            return None
        served = self._router.names.get(asked.model)
        memory = None if served is None else served.memory()
        return None if memory is None else (memory, head_bytes)

    def _returned(self, holder: object, size: int) -> None:
        self.used_bytes -= size
        left = self._held[holder] - size
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]
        self._see_to_line()

    def _see_to_line(self) -> None:
        """Not at once: who gives back may be inside a callback in which nothing may be submitted."""
        if self._line and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._advance)
        self._look()

    def _advance(self) -> None:
        """Give to those who wait, in their order: none is passed over for being large."""
        self._scheduled = False
        for asker, want in tuple(self._line.items()):
            if self._line.get(asker) is not want or not self._is_next(asker, want):
                continue
            if not self._fits(want):
                break
            del self._line[asker]
            try:
                place = self._give(asker, want)
            except Refused as refused:
                asker.denied(refused)
            else:
                asker.granted(place)
        self._look()

    def _look(self) -> None:
        self.crowded = any(self._is_next(*waiting) for waiting in self._line.items())


def _json_length(headers: Headers) -> int | None:
    """The size of the JSON before binary tensors; None without a single plausible one."""
    found = {value.strip() for name, value in headers if name == _JSON_LENGTH}
    text = found.pop() if len(found) == 1 else b""
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else None
