"""Several accept from one socket: each gets some, nobody is left waiting, and who leaves takes no caller with him."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from loops import run
from maitred.http import accepting
from maitred.http.accepting import Accepting


class Greeter(asyncio.Protocol):
    """Says which of them has accepted."""

    def __init__(self, name: bytes, taken: list[bytes]) -> None:
        self._name = name
        self._taken = taken

    def connection_made(self, transport: Any) -> None:
        self._taken.append(self._name)
        transport.write(self._name)
        transport.close()


class Place:
    """A listening socket, and whoever accepts from it."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = self.listening.getsockname()
        self.taken: list[bytes] = []
        self.all: list[Accepting] = []

    def accept(self, name: bytes, ahead: bool = False) -> Accepting:
        loop = asyncio.get_running_loop()
        one = Accepting(loop, self.listening.dup(), lambda: Greeter(name, self.taken), lambda: ahead)
        self.all.append(one)
        return one

    async def ask(self) -> bytes:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*self.address)
            said = await reader.read()
            writer.close()
            return said

    async def close(self) -> None:
        for one in self.all:
            one.close()
            await one.settled()
        self.listening.close()


def test_who_is_ahead_leaves_callers_to_the_others() -> None:
    async def play() -> None:
        place = Place()
        place.accept(b"ahead", ahead=True)
        place.accept(b"behind")
        said = [await place.ask() for _ in range(20)]
        assert said.count(b"behind") == 20
        await place.close()

    run(play())


def test_nobody_waits_for_ever_because_everybody_is_ahead() -> None:
    async def play() -> None:
        place = Place()
        place.accept(b"alone", ahead=True)
        assert await asyncio.gather(*(place.ask() for _ in range(5))) == [b"alone"] * 5
        await place.close()

    run(play())


def test_who_comes_while_nobody_accepts_waits_and_is_answered() -> None:
    async def play() -> None:
        place = Place()
        first = place.accept(b"first")
        assert await place.ask() == b"first"
        first.close()
        waiting = [asyncio.ensure_future(place.ask()) for _ in range(20)]
        await asyncio.sleep(0)
        place.accept(b"second")
        assert await asyncio.gather(*waiting) == [b"second"] * 20
        await place.close()

    run(play())


def test_a_process_without_descriptors_says_so_and_goes_on_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "_EXHAUSTED_SECONDS", 0.01)
    refused: list[None] = []

    class Exhausted(socket.socket):
        def accept(self) -> Any:
            if len(refused) < 3:
                refused.append(None)
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def play() -> None:
        place = Place()
        listening = Exhausted(fileno=place.listening.dup().detach())
        one = Accepting(asyncio.get_running_loop(), listening, lambda: Greeter(b"here", place.taken), lambda: False)
        place.all.append(one)
        assert await place.ask() == b"here"
        await place.close()

    run(play())
    assert [record.getMessage() for record in caplog.records][:1] == [
        "no connection can be accepted now: Too many open files"
    ]
