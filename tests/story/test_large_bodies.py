"""Stories of large bodies: over real sockets, into memory that real replicas read, and back whatever happens."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import os
import random
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import Caller, Standing, settings, standing, v2

from loops import KIND, run
from maitred import host
from maitred.assemble import inflight_bytes
from maitred.replica.inflight import InFlight
from maitred.settings import HttpSettings, ServerSettings
from maitred.testing.replicas import until
from maitred.wire.sizes import ON_LOOP_BYTES

PIXELS = 40_000
"""Of `image`: its bodies have 160 kB and a head."""
INFER = "/v2/models/{}/infer"
pytestmark = pytest.mark.timeout(60)


def tensor(*values: float) -> np.ndarray[Any, Any]:
    """A row for each value, which is in all its pixels."""
    return np.repeat(np.array(values, np.float32)[:, None], PIXELS, axis=1)


def binary(
    array: np.ndarray[Any, Any], size: int | None = None, pad: int = 0, back: bool = False
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an infer request; `size`: what it says about its bytes, `back`: ask for such an answer."""
    raw = array.tobytes()
    entry = {"name": "x", "datatype": "FP32", "shape": array.shape}
    entry["parameters"] = {"binary_data_size": len(raw) if size is None else size}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": back}}).encode() + b" " * pad
    return head + raw, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}


def raw_request(array: np.ndarray[Any, Any], extra: str = "", model: str = "image", back: bool = False) -> bytes:
    body, headers = binary(array, back=back)
    given = {"Host": "test", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {INFER.format(model)} HTTP/1.1\r\n{lines}{extra}\r\n".encode() + body


def is_empty(house: Standing) -> bool:
    """Whether nothing is held of any request."""
    arenas = [pool.memory for pool in house._pools] + outputs_of(house)
    return house.bodies.used_bytes == 0 and not any(arena and arena.used_bytes for arena in arenas)


def answered(house: Standing) -> int:
    """Requests that a model has answered."""
    return sum(
        int(float(line.split()[-1]))
        for line in house.metrics.page()[0].decode().splitlines()
        if line.startswith("maitred_requests_total{") and 'outcome="ok"' in line
    )


def outputs_of(house: Standing) -> list[Any]:
    """Where replicas write their answers."""
    replicas: list[Any] = [replica for pool in house._pools for replica in pool._replicas.values()]
    return [replica._outputs for replica in replicas]


def bounded(given: ServerSettings, max_inflight_bytes: int) -> ServerSettings:
    return dataclasses.replace(given, http=HttpSettings(max_inflight_bytes=max_inflight_bytes))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each batch with large bodies: whether it was copied."""
    seen: list[bool] = []
    point = InFlight._point

    def watch(self: InFlight, *arguments: Any) -> Any:
        pointed = point(self, *arguments)
        seen.append(pointed is None)
        return pointed

    monkeypatch.setattr(InFlight, "_point", watch)
    return seen


@pytest.mark.parametrize("pad", [0, 1, 33])
def test_a_large_tensor_is_never_copied_and_answered_right(tmp_path: Path, copied: list[bool], pad: int) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"})) as house:
            caller = house.caller()
            for value in (3.0, 7.0):
                reply = await caller.ask("POST", INFER.format("image"), *binary(tensor(value, value + 1), pad=pad))
                assert reply.status == 200, reply.body
                outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
                assert outputs["low"] == outputs["high"] == [value, value + 1]
                assert outputs["address"] == [0, 0], "aligned to 64 bytes"
                assert outputs["writable"] == [False, False]
            small = await caller.ask("POST", INFER.format("echo"), v2("x", "INT64", [1]))
            assert small.status == 404
            await until(lambda: is_empty(house))
        assert copied == [False, False]

    run(play())


def test_a_large_tensor_that_a_thread_has_checked_is_not_copied_either(tmp_path: Path, copied: list[bool]) -> None:
    values = [float(value) for value in range(10)]
    assert tensor(*values).nbytes > ON_LOOP_BYTES

    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Checked"})) as house:
            caller = house.caller()
            reply = await caller.ask("POST", INFER.format("image"), *binary(tensor(*values)))
            outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
            assert outputs["low"] == outputs["high"] == values
            reply = await caller.ask("POST", INFER.format("image"), *binary(tensor(*values, 1001)))
            assert reply.status == 400 and b"outside the range max=1000" in reply.body
            await until(lambda: is_empty(house))
        assert copied == [False]

    run(play())


def test_many_at_once_share_batches_and_get_their_own(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"}, replicas=2)) as house:

            async def one(number: int) -> None:
                caller = house.caller()
                for turn in range(6):
                    value = float(number * 10 + turn)
                    reply = await caller.ask("POST", INFER.format("image"), *binary(tensor(value)))
                    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
                    assert outputs["low"] == outputs["high"] == [value]

            await asyncio.gather(*map(one, range(12)))
            await until(lambda: is_empty(house))

    run(play())


def test_a_request_larger_than_a_batch_is_cut_where_it_lies(tmp_path: Path, copied: list[bool]) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"}, max_batch_rows=2)) as house:
            reply = await house.caller().ask("POST", INFER.format("image"), *binary(tensor(1, 2, 3, 4, 5)))
            outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
            assert outputs["low"] == outputs["high"] == [1, 2, 3, 4, 5]
            await until(lambda: is_empty(house))
        assert copied == [False] * 3

    run(play())


def test_what_is_wrong_with_a_large_body_is_told_and_leaks_nothing(tmp_path: Path) -> None:
    cases: list[tuple[bytes, dict[str, str], str]] = [
        (*binary(tensor(1.0), size=4 * PIXELS + 8), "bytes are left"),
        (*binary(tensor(1.0), size=4 * PIXELS - 8), "add up to"),
        (*binary(tensor(1.0)[:, :-2]), "expected"),
        (b"x" * 200_000, {"Inference-Header-Content-Length": "100000"}, "JSON"),
        (b"x" * 200_000, {"Inference-Header-Content-Length": "200001"}, "only 200000 bytes"),
        (b"x" * 200_000, {"Inference-Header-Content-Length": "soon"}, "count of bytes"),
        (b"x" * 200_000, {}, "JSON"),
    ]

    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"})) as house:
            caller = house.caller()
            for body, headers, says in cases:
                reply = await caller.ask("POST", INFER.format("image"), body, headers)
                assert reply.status == 400 and says in reply.json()["error"], reply.body
                await until(lambda: is_empty(house))
            large = 65 << 20
            reply = await house.caller().ask("POST", INFER.format("image"), b"x", {"Content-Length": str(large)})
            assert reply.status == 413
            reply = await caller.ask("POST", INFER.format("image"), *binary(tensor(5.0)))
            assert reply.status == 200

    run(play())


def test_a_short_body_never_shows_what_was_there_before(tmp_path: Path) -> None:
    """Blocks are not cleared: a request gets the block that another one has just left, and sees its own bytes alone."""

    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image", "same": "Same"})) as house:
            secret, own = tensor(666.0), tensor(1.0)
            for turn in range(6):
                body, headers = binary(secret)
                assert (await house.caller().ask("POST", INFER.format("same"), body, headers)).status == 200
                # hung up in the middle: nothing of it may run
                sent = raw_request(own, model="same")
                with socket.create_connection(("127.0.0.1", house.port)) as half:
                    half.sendall(sent[: 30_000 + 17_000 * turn])
                    await until(lambda: house.bodies.used_bytes > 0)
                await until(lambda: is_empty(house))
                # shorter than the block's last user, with a tensor said to be as long as that one's
                short = own[:, : PIXELS // 2]
                reply = await house.caller().ask("POST", INFER.format("same"), *binary(short, size=4 * PIXELS))
                assert reply.status == 400 and b"666" not in reply.body
                reply = await house.caller().ask("POST", INFER.format("same"), *binary(short))
                assert reply.status == 200
                assert set(reply.json()["outputs"][0]["data"]) == {1.0}
            await until(lambda: is_empty(house))
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'maitred_requests_total{model="same",version="1",outcome="ok"} 12' in page

    run(play())


def test_requests_behind_a_large_body_and_its_expectation_are_met(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image", "echo": "Echo"})) as house:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            body = json.dumps(v2("x", "INT64", [42])).encode()
            small = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
                len(body),
                body,
            )
            writer.write(raw_request(tensor(1.0)) + small + raw_request(tensor(2.0)) + small)
            read = Caller(0)._read
            for expected in (1.0, 42, 2.0, 42):
                reply = await asyncio.wait_for(read(reader), 20)
                assert reply.json()["outputs"][0]["data"] == [expected]
            first, _, rest = raw_request(tensor(3.0), "Expect: 100-continue\r\n").partition(b"\r\n\r\n")
            writer.write(first + b"\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(rest)
            assert (await asyncio.wait_for(read(reader), 20)).json()["outputs"][0]["data"] == [3.0]
            writer.close()
            await until(lambda: is_empty(house))

    run(play())


def test_chunked_and_compressed_bodies_are_answered_too(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"})) as house:
            dice = np.random.default_rng(1).integers(0, 1 << 20, (1, PIXELS)).astype(np.float32)
            dice[0, 0], dice[0, 1] = -1.0, 1 << 21
            body, headers = binary(dice)
            packed = gzip.compress(body)
            assert len(packed) > 65536
            caller = house.caller()
            reply = await caller.ask("POST", INFER.format("image"), packed, {**headers, "Content-Encoding": "gzip"})
            assert reply.json()["outputs"][0]["data"] == [-1.0]
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"POST {INFER.format('image')} HTTP/1.1\r\nHost: x\r\n{lines}Transfer-Encoding: chunked\r\n\r\n"
            pieces = [body[at : at + 9000] for at in range(0, len(body), 9000)]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            writer.write(head.encode() + chunks + b"0\r\n\r\n")
            reply = await asyncio.wait_for(Caller(0)._read(reader), 20)
            assert reply.json()["outputs"][0]["data"] == [-1.0]
            writer.close()
            await until(lambda: is_empty(house))

    run(play())


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for which a model waits that was asked for a row beginning with -5."""
    path = tmp_path / "released"
    monkeypatch.setenv("RELEASED", str(path))
    return path


def test_a_replica_that_dies_leaves_the_body_to_the_next(tmp_path: Path, released: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"}, replicas=2)) as house:
            caller = house.caller()
            slow = tensor(4.0)
            slow[0, 0] = -5.0
            asked = asyncio.ensure_future(caller.ask("POST", INFER.format("image"), *binary(slow)))
            await until(lambda: house.running_rows() == 1)
            assert house.bodies.used_bytes
            (pool,) = house._pools
            busy = next(id for id, batches in pool._running.items() if batches)
            pid = pool._replicas[busy].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            released.touch()
            reply = await asyncio.wait_for(asked, 30)
            assert reply.status == 200, reply.body
            assert reply.json()["outputs"][0]["data"] == [-5.0]
            await until(lambda: is_empty(house))

    run(play())


def test_a_caller_who_leaves_while_the_model_runs_frees_the_block_only_when_it_has_answered(
    tmp_path: Path, released: Path
) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"})) as house:
            slow = tensor(4.0)
            slow[0, 0] = -5.0
            caller = house.caller()
            asked = asyncio.ensure_future(caller.ask("POST", INFER.format("image"), *binary(slow)))
            await until(lambda: house.running_rows() == 1)
            (pool,) = house._pools
            assert pool.memory is not None
            caller.hang_up()
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asked
            await until(lambda: house._server is not None and not house._server.connections)
            assert house.running_rows() == 1 and house.bodies.used_bytes and pool.memory.used_bytes
            released.touch()
            await until(lambda: is_empty(house))
            assert house.running_rows() == 0

    run(play())


def test_the_bound_holds_back_large_bodies_and_nobody_else(tmp_path: Path) -> None:
    async def play() -> None:
        given = bounded(settings(tmp_path, {"image": "Image", "echo": "Echo"}), 600_000)
        async with standing(given) as house:
            held = []
            for _ in range(3):  # each begins and stops in the middle
                one = socket.create_connection(("127.0.0.1", house.port))
                one.sendall(raw_request(tensor(1.0))[:100_000])
                held.append(one)
            await until(lambda: house.bodies.used_bytes > 450_000)
            late = house.caller()
            asked = asyncio.ensure_future(late.ask("POST", INFER.format("image"), *binary(tensor(8.0))))
            await until(lambda: house.bodies.crowded)
            small = await house.caller().ask("POST", INFER.format("echo"), v2("x", "INT64", [1, 2]))
            assert small.status == 200 and not asked.done()
            reply = await house.caller().ask("POST", INFER.format("image"), *binary(np.zeros((5, PIXELS), np.float32)))
            assert reply.status == 413 and b"600000 bytes" in reply.body
            held[0].close()
            reply = await asyncio.wait_for(asked, 20)
            assert reply.status == 200 and reply.json()["outputs"][0]["data"] == [8.0]
            for one in held:
                one.close()
            await until(lambda: is_empty(house))

    run(play())


def test_without_memory_the_caller_is_told_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image", "echo": "Echo"})) as house:
            reserve = host.reserve

            def full(size: int, children_write: bool) -> host.Shared:
                if size > 4 << 20:
                    raise OSError(28, "No space left on device")
                return reserve(size, children_write)

            monkeypatch.setattr(host, "reserve", full)
            reply = await house.caller().ask("POST", INFER.format("image"), *binary(np.zeros((40, PIXELS), np.float32)))
            assert reply.status == 503 and reply.headers["retry-after"] == "1"
            assert "No space left on device" in reply.json()["error"]
            assert (await house.caller().ask("POST", INFER.format("echo"), v2("x", "INT64", [1]))).status == 200
            reply = await house.caller().ask("POST", INFER.format("image"), *binary(tensor(2.0)))
            assert reply.status == 200
            await until(lambda: is_empty(house))

    run(play())


def test_a_server_that_stops_in_the_middle_of_a_body_gives_it_back(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"image": "Image"})) as house:
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            sent = raw_request(tensor(6.0))
            writer.write(sent[:100_000])
            half = socket.create_connection(("127.0.0.1", house.port))
            half.sendall(sent[:50_000])
            await until(lambda: house.bodies.used_bytes > 300_000)
            stopping = asyncio.ensure_future(house.stop(2.0))
            await until(lambda: house._server is not None and house._server._shared().draining)
            writer.write(sent[100_000:])
            reply = await asyncio.wait_for(Caller(0)._read(reader), 20)
            assert reply.status == 200 and reply.headers["connection"] == "close"
            await asyncio.wait_for(stopping, 30)
            assert is_empty(house)
            half.close()
            writer.close()

    run(play())


def raw_outputs(reply: Any) -> list[np.ndarray[Any, Any]]:
    at = int(reply.headers["inference-header-content-length"])
    found = []
    for output in json.loads(reply.body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found.append(np.frombuffer(reply.body[at : at + size], np.float32).reshape(output["shape"]))
        at += size
    assert at == len(reply.body)
    return found


@pytest.mark.parametrize("accept", ["identity", "gzip"])
def test_large_raw_outputs_are_sent_from_where_they_lie(tmp_path: Path, accept: str) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"same": "Same"})) as house:
            dice = np.random.default_rng(4)

            async def one() -> None:
                caller = house.caller()
                for rows in (1, 2, 40):
                    array = dice.random((rows, PIXELS), np.float32)
                    body, headers = binary(array, back=True)
                    headers["Accept-Encoding"] = accept
                    reply = await caller.ask("POST", INFER.format("same"), body, headers)
                    if reply.headers.get("content-encoding") == "gzip":
                        reply.body = gzip.decompress(reply.body)
                    assert raw_outputs(reply)[0].tobytes() == array.tobytes()

            await asyncio.gather(one(), one(), one())
            await until(lambda: is_empty(house))
            assert not any(arena.lent_bytes for arena in outputs_of(house))

    run(play())


def test_who_reads_slowly_keeps_what_was_answered_and_who_leaves_does_not(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"same": "Same"})) as house:
            (outputs,) = outputs_of(house)
            large = np.concatenate([tensor(float(row)) for row in range(60)])
            slow = [await asyncio.open_connection("127.0.0.1", house.port, limit=1 << 16) for _ in range(2)]
            for _, writer in slow:
                writer.write(raw_request(large, model="same", back=True))
                await writer.drain()
            await until(lambda: answered(house) == 2)
            kept = outputs.lent_bytes  # by the transports; asyncio's before 3.12 makes copies of what waits
            assert kept == 2 * large.nbytes or (KIND == "asyncio" and kept == 0)
            for number in range(10):  # whose answers go into blocks of the same size
                reply = await house.caller().ask(
                    "POST", INFER.format("same"), *binary(large + np.float32(number + 100), back=True)
                )
                assert reply.status == 200
            slow[1][1].transport.abort()
            await until(lambda: outputs.lent_bytes == kept // 2)
            reply = await asyncio.wait_for(Caller(0)._read(slow[0][0]), 20)
            assert raw_outputs(reply)[0].tobytes() == large.tobytes()
            slow[0][1].close()
            await until(lambda: is_empty(house))

    run(play())


@pytest.mark.parametrize("seed", range(2))
def test_whatever_callers_do_and_whichever_copies_die_everything_comes_back(tmp_path: Path, seed: int) -> None:
    async def play() -> None:
        dice = random.Random(seed)
        statuses: list[int] = []
        given = bounded(settings(tmp_path, {"same": "Same"}, replicas=2), 3_000_000)
        async with standing(given) as house:

            async def whole(number: int) -> None:
                value, rows = float(dice.randint(1, 1 << 20)), dice.choice([1, 1, 3])
                array = np.full((rows, dice.choice([100, 20_000, PIXELS])), value, np.float32)
                body, headers = binary(array, pad=dice.randint(0, 70), back=True)
                reply = await house.caller().ask("POST", INFER.format("same"), body, headers)
                assert reply.status in (200, 503), reply.body  # no copy is ready for a moment, where both died
                statuses.append(reply.status)
                assert reply.status != 200 or raw_outputs(reply)[0].tobytes() == array.tobytes()

            async def half(number: int) -> None:
                sent = raw_request(tensor(-1.0, -2.0), model="same")
                _, writer = await asyncio.open_connection("127.0.0.1", house.port)
                writer.write(sent[: dice.randrange(len(sent))])
                await writer.drain()
                writer.transport.abort()

            async def impatient(number: int) -> None:
                _, writer = await asyncio.open_connection("127.0.0.1", house.port)
                writer.write(raw_request(tensor(-3.0, -4.0), model="same"))
                await writer.drain()
                await asyncio.sleep(0)
                writer.transport.abort()

            async def killer(number: int) -> None:
                pids = house.replica_pids()
                if pids and number % 8 == 0:
                    os.kill(dice.choice(pids), signal.SIGKILL)

            async def caller(number: int) -> None:
                for turn in range(20):
                    await dice.choice([whole, whole, whole, half, impatient, killer])(turn)

            await asyncio.wait_for(asyncio.gather(*map(caller, range(8))), 50)
            await until(lambda: len(house.replica_pids()) == 2 and is_empty(house))
            assert not house.bodies.crowded and 200 in statuses
            await whole(0)
            assert statuses[-1] == 200

    run(play())


@pytest.mark.parametrize(
    ("given", "memory", "bound"),
    [(None, None, 1 << 30), (None, 1 << 40, 1 << 30), (None, 1 << 30, 1 << 28), (123, 1 << 30, 123)],
)
def test_the_bound_follows_the_memory_unless_it_is_given(given: int | None, memory: int | None, bound: int) -> None:
    assert inflight_bytes(HttpSettings(max_inflight_bytes=given), memory) == bound
