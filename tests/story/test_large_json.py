"""Large JSON through a whole server: in order, beside others, and to the end when the server stops."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from house import settings, standing, v2

from loops import run
from maitred.wire.sizes import ON_LOOP_BYTES

pytestmark = pytest.mark.story

COUNT = 300_000
NUMBERS = [at / 8 + 0.001 for at in range(COUNT)]
PATH = "/v2/models/above/infer"


def head(body: bytes) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode()


def test_large_bodies_are_answered_in_order_and_to_the_end(tmp_path: Path) -> None:
    large = json.dumps(v2("x", "FP32", NUMBERS, id="large", outputs=[{"name": "all"}])).encode()
    small = json.dumps(v2("x", "FP32", NUMBERS[:4], id="small", outputs=[{"name": "all"}])).encode()
    assert len(large) > 2 * ON_LOOP_BYTES

    async def play() -> None:
        async with standing(settings(tmp_path, {"above": "Above"})) as house:
            caller = house.caller()
            first = asyncio.create_task(caller.ask("POST", PATH, large))
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(head(large) + large + head(small) + small)
            for name, count in (("large", COUNT), ("small", 4)):
                reply = await asyncio.wait_for(caller._read(reader), 30)
                answer = reply.json()
                assert reply.status == 200 and answer["id"] == name
                assert len(answer["outputs"][0]["data"]) == count
            assert (await first).json()["outputs"][0]["data"][-1] == pytest.approx(NUMBERS[-1], rel=1e-6)
            writer.write(head(large) + large)
            while not house._apart._works:
                await asyncio.sleep(0)
            stopping = asyncio.create_task(house.stop(20.0))
            reply = await asyncio.wait_for(caller._read(reader), 30)
            assert reply.status == 200 and len(reply.json()["outputs"][0]["data"]) == COUNT
            writer.close()
            await stopping

    run(play())
