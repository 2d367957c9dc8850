"""What a tester and its worker processes say to each other over pipes: a length, then MessagePack."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from maitred.loadtest.plan import Plan, Step
from maitred.loadtest.tally import Tally


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Begin the step that was prepared."""

    at: int
    """A moment of `time.monotonic_ns`, which is the same in all processes of a machine."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the step now."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The connections of the step are open."""


Order = Plan | Step | Begin | Stop
Report = Ready | Tally

read_order: Final = msgspec.msgpack.Decoder(Order).decode
read_report: Final = msgspec.msgpack.Decoder(Report).decode

_LENGTH: Final = 8


def framed(record: Any) -> bytes:
    """A record as it travels."""
    data = msgspec.msgpack.encode(record)
    return len(data).to_bytes(_LENGTH, "little") + data


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    """The next record's bytes. Raises asyncio.IncompleteReadError at the end of the pipe."""
    length = int.from_bytes(await reader.readexactly(_LENGTH), "little")
    return await reader.readexactly(length)
