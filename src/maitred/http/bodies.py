"""A place for bodies: what a connection asks of those above it before it takes in a large one."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from maitred.http.limits import Headers, Refused

LARGE_BYTES: Final = 64 << 10
"""Larger bodies need a place; others are private bytes, and are bounded by the queue."""
MOVING_BYTES: Final = 16 << 10
"""So much of a large body has to have come before it gets one: an announcement alone takes nothing from others."""


class Want(NamedTuple):
    """What a place is wanted for."""

    method: str
    path: bytes
    headers: Headers
    """Names in lower case."""
    size: int
    """Bytes of the body."""
    counted: bool
    """It is taken in elsewhere, by and by: these bytes of it are to be counted, and nothing more."""


class Place(Protocol):
    """Where one body goes, until it is needed no more."""

    @property
    def view(self) -> memoryview:
        """As long as the body, to be filled."""
        ...

    @property
    def body(self) -> Any:
        """What the application gets to see, once it is full: `bytes`, `bytearray` or `memoryview`."""
        ...

    def drop(self) -> None:
        """Whoever asked for it needs it no more. Others may: it is not to be touched again."""
        ...


class Asker(Protocol):
    """Whoever waits for a place. Called from the loop, never from inside `ask`."""

    def granted(self, place: Place) -> None: ...

    def denied(self, refused: Refused) -> None: ...


class Bodies(Protocol):
    """Who gives out places. Belongs to one loop."""

    crowded: bool
    """Somebody waits."""

    def ask(self, asker: Asker, want: Want) -> Place | None:
        """A place; None if there is no room now: the asker is told later. Raises Refused where there never will be."""
        ...

    def leave(self, asker: Asker) -> None:
        """It waits no longer."""
        ...

    def count(self, holder: object, size: int) -> Place:
        """Count bytes that are there already: a body which was small until it was inflated. Raises Refused where there
        is no room for them, or others wait for it."""
        ...


class Steps:
    """The places of a body whose size is not known before its end: they are only counted."""

    __slots__ = ("size", "_places")

    body = None
    """It lies in none of them."""

    def __init__(self) -> None:
        self.size = LARGE_BYTES
        """So long may the body become before it needs another one."""
        self._places: list[Place] = []

    def add(self, place: Place, size: int) -> None:
        self._places.append(place)
        self.size += size

    def __len__(self) -> int:
        return len(self._places)

    def drop(self) -> None:
        for place in self._places:
            place.drop()
        self._places.clear()
