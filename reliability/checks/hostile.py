"""Slow, oversized, compressed, malformed and smuggled input: always an answer of the caller's fault, never harm."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reliability.checks import slow
from reliability.driver import (
    Answer,
    Client,
    ConnectionLost,
    House,
    OpenLoop,
    Watch,
    cpu_seconds,
    gather_bounded,
    message,
    model,
    nonces,
    wrong_nonce,
)
from reliability.judge import Case, Check

INFER = "/v2/models/echo/infer"
GOOD = b'{"inputs":[{"name":"nonce","datatype":"INT64","shape":[1],"data":[1]}]}'
ECHO = {"echo": model("Echo", max_batch_rows=64)}
MIB = 1 << 20


async def healthy(case: Case, house: House) -> None:
    """A normal call succeeds at once, and the server is ready."""
    answer = await house.client.infer("echo", nonces(77), 5)
    ready = await house.client.ask("GET", "/v2/health/ready", seconds=5)
    fine = answer.status == 200 and not wrong_nonce(answer, 77) and ready.status == 200
    case.fact("then healthy", fine)


async def talk(port: int, pieces: list[bytes], seconds: float = 5.0) -> bytes:
    """Everything that the server says to these bytes until it closes, or falls silent for `seconds`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        while True:
            got = await asyncio.wait_for(reader.read(65536), seconds)
            if not got:
                return said + b"<closed>"
            said += got
    except TimeoutError:
        return said
    except OSError:
        return said + b"<closed>"
    finally:
        writer.transport.abort()


def status_of(said: bytes) -> int:
    return int(said[9:12]) if said.startswith(b"HTTP/1.1 ") else 0


async def b1(case: Case) -> None:
    limit, window = case.seconds("header_seconds"), case.seconds("body_seconds")
    http = {"header_seconds": limit, "first_byte_seconds": limit}
    kinds = {
        slow.HEAD: case.size("slow_heads"),
        slow.BODY: case.size("slow_bodies"),
        slow.SILENT: case.size("silent_connections"),
    }
    async with House({"sleeper": model("Sleeper", replicas=2)}, http=http) as house:
        loop = OpenLoop(house, "sleeper")
        await loop.run(100, 1)
        calm = await loop.run(200, 4)
        bounds = dict.fromkeys(kinds, limit + case.limit("grace_seconds"))
        bounds[slow.BODY] = window + case.limit("body_grace_seconds")
        longest = max(bounds[kind] for kind, count in kinds.items() if count)
        attacker = await slow.start(house.port, longest + 5, kinds)
        during = await loop.run(200, longest)
        found = await slow.result(attacker)
    case.at_least("other traffic ok", 100 * during.good / during.sent, 100 * case.limit("ok_share"), " %")
    times = during.p99() / max(calm.p99(), 0.02)
    case.at_most(
        f"p99 {1000 * during.p99():.1f} ms, calm {1000 * calm.p99():.1f} ms", times, case.limit("p99_times"), "x"
    )
    for kind, seconds in found["last_closed"].items():
        case.at_most(f"last {kind} closed after", seconds, bounds[kind], " s")
    case.at_most("never closed", found["left"], 0)
    case.at_most("attacker behind its pace by", found["lag_seconds"], 1, " s")


async def b3(case: Case) -> None:
    limit = 4 * MIB
    async with House(ECHO, http={"max_body_bytes": limit}) as house:
        sent, started = 0, time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        writer.write(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 30}\r\n\r\n".encode())
        said = await asyncio.wait_for(reader.read(65536), 5)
        took = time.monotonic() - started
        with contextlib.suppress(OSError):
            for _ in range(64):  # a client that goes on sending
                writer.write(bytes(65536))
                await asyncio.wait_for(writer.drain(), 0.5)
                sent += 65536
        writer.transport.abort()
        case.fact(f"status {status_of(said)}", status_of(said) == 413)
        case.at_most("answered in", 1000 * took, 1000 * case.limit("answer_seconds"), " ms")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        statuses: list[int] = []

        async def endless(_: int) -> None:
            said = await talk(house.port, [head, *[chunk] * (2 * limit // 0x10000)])
            statuses.append(status_of(said) if said != b"<closed>" else 413)

        await endless(0)
        at_once = case.size("at_once")
        with Watch(house) as watch:
            await asyncio.gather(*(endless(number) for number in range(at_once)))
        await healthy(case, house)
    case.fact(f"chunked statuses {sorted(set(statuses))}", set(statuses) == {413})
    allowed = limit * at_once + case.limit("slack_bytes")
    case.at_most(f"RSS with {at_once} at once", watch.growth / MIB, allowed / MIB, " MiB")


def own_memory(pid: int, name: str) -> int:
    """`VmRSS` or `VmHWM` of a process: the kernel notes a peak that a look ten times a second would miss."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


async def b4(case: Case) -> None:
    limit = 8 * MIB
    zeros = bytes(MIB)
    packer = zlib.compressobj(9)
    deflated = b"".join(packer.compress(zeros) for _ in range(512)) + packer.flush()
    zipped = gzip.compress(bytes(256 * MIB), 9)
    bombs = [
        ("gzip", zipped),
        ("deflate", deflated),
        ("gzip", gzip.compress(zipped, 9)),
        ("gzip, gzip", gzip.compress(zipped)),
    ]
    bombs += [
        ("gzip", zipped[:-20]),
        ("gzip", b"\x1f\x8b" + bytes(50)),
        ("deflate", b"\xff" * 64),
        ("zstd", zipped[:99]),
    ]
    statuses, most_cpu = [], 0.0
    async with House(ECHO, http={"max_body_bytes": limit}) as house:
        for body in (GOOD, GOOD + b" " * (limit // 8)):  # buffers for bodies as long as the bombs are there already
            await house.client.ask("POST", INFER, body)
            await house.client.ask("POST", INFER, gzip.compress(body, 0), {"Content-Encoding": "gzip"})
        memory = own_memory(house.pid, "VmRSS")
        peak = 0
        for coding, bomb in bombs * 3:
            Path(f"/proc/{house.pid}/clear_refs").write_text("5")  # the peak begins anew
            before = cpu_seconds(house.pid)
            answer = await house.client.ask("POST", INFER, bomb, {"Content-Encoding": coding})
            statuses.append(answer.status)
            most_cpu = max(most_cpu, cpu_seconds(house.pid) - before)
            peak = max(peak, own_memory(house.pid, "VmHWM"))
        kept = own_memory(house.pid, "VmRSS") - memory
        await healthy(case, house)
    statuses, again = statuses[: len(bombs)], statuses[len(bombs) :]
    case.fact("the same every time", again == statuses * 2)
    case.fact(f"statuses {statuses}", all(400 <= status < 500 for status in statuses) and statuses[:2] == [413, 413])
    allowed = case.limit("memory_times") * limit
    case.at_most("RSS", (peak - memory) / MIB, allowed / MIB, f" MiB at a limit of {limit // MIB}")
    case.at_most("kept", kept / MIB, allowed / MIB - limit / MIB, " MiB")
    case.at_most("CPU", most_cpu, case.limit("cpu_seconds"), " s")


async def b5(case: Case) -> None:
    chunks = case.size("chunks")
    piece = b"1\r\n \r\n" * 10_000
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    tail = f"{len(GOOD):x}\r\n".encode() + GOOD + b"\r\n0\r\n\r\n"
    statuses: list[int] = []
    async with House(ECHO) as house:

        async def trickle(_: int) -> None:
            said = await talk(house.port, [head, *[piece] * (chunks // 10_000), tail], 0.5)
            statuses.append(status_of(said))

        await trickle(0)
        await trickle(0)
        with Watch(house) as watch:
            await gather_bounded(case.size("requests"), 1, trickle)
        await healthy(case, house)
    case.fact(f"statuses {sorted(set(statuses))}", set(statuses) <= {200, 413})
    case.at_most("RSS growth", watch.growth / MIB, case.limit("memory_bytes") / MIB, " MiB")


def broken_json() -> Iterator[tuple[str, bytes]]:
    """Bodies that are JSON bombs, or valid text that cannot be meant."""
    inputs = '{"inputs":[{"name":"nonce","datatype":"INT64","shape":[1],"data":%s}]}'
    yield "deep list", (inputs % ("[" * 250_000 + "1" + "]" * 250_000)).encode()
    yield "deep object", ('{"a":' * 250_000 + "1" + "}" * 250_000).encode()
    yield "deep and ignored", ('{"ignored":' + "[" * 250_000 + "]" * 250_000 + "," + GOOD.decode()[1:]).encode()
    yield "deep parameters", (f'{{"parameters":{{"x":{"[" * 120}{"]" * 120}}},' + GOOD.decode()[1:]).encode()
    yield "long number", (inputs % ("[" + "9" * 1_000_000 + "]")).encode()
    yield "overflow", (inputs % "[1e400]").encode()
    yield "many keys", ("{" + ",".join(f'"k{n}":{n}' for n in range(1_000_000)) + "}").encode()
    yield "lone surrogate", b'{"id":"\\ud800",' + GOOD[1:]
    yield "half a pair", b'{"id":"\\udc00\\ud800",' + GOOD[1:]
    yield "bad UTF-8", b'{"id":"\xff\xfe",' + GOOD[1:]
    yield "NUL byte", b'{"id":"a\x00b",' + GOOD[1:]
    yield "NaN literal", (inputs % "[NaN]").encode()
    yield "not an object", b"[1,2,3]"
    yield "empty", b""
    yield "truncated", GOOD[:-3]
    yield "more behind it", GOOD + b"{}"
    yield "comment", b"/* */" + GOOD
    yield "bare string", b'"inputs"'


async def b6(case: Case) -> None:
    odd, slowest = [], 0.0
    async with House(ECHO) as house:
        for name, body in broken_json():
            answer = await house.client.ask("POST", INFER, body)
            slowest = max(slowest, answer.seconds)
            odd += [] if answer.status == 400 else [f"{name}: {answer.status} {answer.body[:100]!r}"]
        twice = await house.client.ask("POST", INFER, GOOD[:-1] + b"," + GOOD[1:])
        odd += [] if twice.status in (200, 400) else [f"duplicate keys: {twice.status}"]
        await healthy(case, house)
    case.none("not answered 400", odd)
    case.at_most("slowest", slowest, case.limit("answer_seconds"), " s")


async def b8(case: Case) -> None:
    rng = random.Random(8)
    bad: list[str] = []
    made = {"bytes": fuzz_bytes, "json": fuzz_json, "binary": fuzz_binary}
    async with House(ECHO, log_level="error") as house:

        async def throw(number: int) -> None:
            kind = ("bytes", "json", "json", "binary")[number % 4]
            data, complete = made[kind](rng)
            started = time.monotonic()
            try:
                answer = await clients[number % len(clients)].raw(data, 8 if complete else 0.002)
                if answer.status >= 500:
                    bad.append(f"{answer.status} {answer.body[:80]!r} to {data[:300]!r}")
            except TimeoutError:
                if complete and time.monotonic() - started > case.limit("hang_seconds"):
                    bad.append(f"no answer to {data[:300]!r}")
            except (ConnectionLost, OSError):
                pass

        clients = [Client(house.port) for _ in range(32)]
        await gather_bounded(2_000, 64, throw)
        with Watch(house) as watch:
            await gather_bounded(case.size("inputs"), 64, throw)
        for client in clients:
            client.close()
        case.fact("no worker lost", len(house.marked("loads")) == 1)
        await healthy(case, house)
    case.none("5xx or hangs", bad)
    case.at_most("RSS growth", watch.growth / MIB, case.limit("memory_bytes") / MIB, " MiB")


def mangled(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, lost, repeated or swapped for troublemakers."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at : at + rng.randint(1, 8)]
            case 2:
                out[at:at] = out[at : at + rng.randint(1, 16)]
            case 3:
                out[at:at] = rng.choice(
                    (b"\r\n", b"\x00", b"\n", b":", b" ", b"\xff", b"-1", b"9" * 20, b'"', b"{", b"]")
                )
            case 4:
                out[at:at] = rng.choice(
                    (b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"\t", b"%00", b"%2f")
                )
    return bytes(out)


def fuzz_bytes(rng: random.Random) -> tuple[bytes, bool]:
    head = message(rng.choice(("POST", "GET", "PUT", "HEAD", "OPTIONS", "POST")), INFER, GOOD, {"X-Request-Id": "a"})
    return (mangled(rng, head), False) if rng.random() < 0.9 else (rng.randbytes(rng.randrange(1, 200)), False)


def fuzz_json(rng: random.Random) -> tuple[bytes, bool]:
    if rng.random() < 0.4:
        return message("POST", INFER, mangled(rng, GOOD)), True
    return message("POST", INFER, json.dumps(_odd_request(rng)).encode()), True


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**63, -(2**63), 2**64, 10**30, 1e308, "", "x", "NaN", "nonce", "é", [], {}, [[]], [1],
    ["a"], [[1], [2, 3]], {"a": 1}, "INT64", "FP32", "BYTES", [0], [-1], [2**62, 4], [1] * 40, [True], [None], [1.0],
    [2**63 - 1],
)  # fmt: skip


def _odd_request(rng: random.Random) -> Any:
    request: dict[str, Any] = {"id": "f", "inputs": [{"name": "nonce", "datatype": "INT64", "shape": [1], "data": [1]}]}
    for _ in range(rng.randint(1, 3)):
        target: dict[str, Any] = rng.choice((request, request["inputs"][0] if _has_input(request) else request))
        key = rng.choice(("id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "other"))
        if rng.random() < 0.2:
            target.pop(key, None)
        else:
            target[key] = rng.choice(VALUES)
    return request


def _has_input(request: dict[str, Any]) -> bool:
    inputs = request.get("inputs")
    return isinstance(inputs, list) and bool(inputs) and isinstance(inputs[0], dict)


def fuzz_binary(rng: random.Random) -> tuple[bytes, bool]:
    size = rng.choice((8, 8, 7, 0, 16, -1, 2**40, "8", None))
    entry = {
        "name": "nonce",
        "datatype": rng.choice(("INT64", "BYTES", "FP16")),
        "shape": rng.choice(([1], [2], [0])),
        "parameters": {"binary_data_size": size},
    }
    asked = rng.choice(({}, {"binary_data_output": True}, {"binary_data_output": 3}))
    head = json.dumps({"inputs": [entry], "parameters": asked}).encode()
    stated = rng.choice((len(head), len(head), len(head) - 1, len(head) + 8, 0, -5, "x", 10**12))
    body = head + rng.randbytes(rng.choice((8, 8, 8, 0, 7, 9)))
    if rng.random() < 0.3:
        body = mangled(rng, body)
    return message("POST", INFER, body, {"Inference-Header-Content-Length": str(stated)}), True


def smuggled() -> Iterator[tuple[str, bytes]]:
    """Requests whose end two servers could see in different places; each carries a second request inside."""
    inner = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    post = b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: x\r\n"
    size = str(len(inner)).encode()
    yield "CL and TE", post + b"Content-Length: " + size + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
    yield "TE and CL", post + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + inner
    yield "two CLs", post + b"Content-Length: 0\r\nContent-Length: " + size + b"\r\n\r\n" + inner
    yield "CL list", post + b"Content-Length: 0, " + size + b"\r\n\r\n" + inner
    yield "signed CL", post + b"Content-Length: +" + size + b"\r\n\r\n" + inner
    yield "hex CL", post + b"Content-Length: 0x10\r\n\r\n" + inner
    yield "two TEs", post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner
    yield "xchunked", post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner
    yield "TE not last", post + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + inner
    yield "TE on 1.0", post.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
    yield "obs-fold", post + b"X-A: b\r\n  folded\r\nContent-Length: 0\r\n\r\n" + inner
    yield "LF only", post.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n" + inner
    yield "space before colon", post + b"Content-Length : 0\r\n\r\n" + inner
    yield "NUL in value", post + b"X-A: b\x00c\r\nContent-Length: 0\r\n\r\n" + inner
    yield "CR in value", post + b"X-A: b\rc\r\nContent-Length: 0\r\n\r\n" + inner
    yield "bad chunk size", post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n" + inner
    yield "negative chunk", post + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + inner
    yield "huge chunk", post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + inner
    yield "chunk without CRLF", post + b"Transfer-Encoding: chunked\r\n\r\n1\r\naX0\r\n\r\n" + inner
    yield "no host", b"GET /v2 HTTP/1.1\r\n\r\n" + inner
    yield "two hosts", b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + inner
    yield "HTTP/0.9", b"GET /v2\r\n\r\n" + inner
    yield "HTTP/2.0", b"GET /v2 HTTP/2.0\r\nHost: x\r\n\r\n" + inner


async def b9(case: Case) -> None:
    accepted, left_open, desynced = [], [], []
    async with House(ECHO) as house:
        for name, data in smuggled():
            said = await talk(house.port, [data], 1)
            accepted += [f"{name}: {said[:60]!r}"] if 200 <= status_of(said) < 400 else []
            left_open += [] if said.endswith(b"<closed>") else [name]
            desynced += [name] if b"smuggled" in said or len(re.findall(rb"HTTP/1\.1 \d\d\d ", said)) > 1 else []
        await healthy(case, house)
    case.none("accepted", accepted)
    case.none("left open", left_open)
    case.none("desync", desynced)


SHAPES: tuple[Any, ...] = (
    [2**64 + 1], [2**63], [4294967296, 4294967296], [2**32, 2**31, 2, 1], [-1], [1, -1], [-1, -1], [1] * 33, [1] * 1000,
    [2], [0], [1, 2], [1.5], ["1"], [None], [True], "1", 1, None, {}, [[1]], [10**30], [3, 3], [1, 0], [2**40],
)  # fmt: skip


async def b10(case: Case) -> None:
    odd: list[str] = []
    async with House(ECHO) as house:
        for shape in SHAPES:
            entry = {"name": "nonce", "datatype": "INT64", "shape": shape, "data": [1]}
            odd += _not_named(await house.client.infer("echo", {"inputs": [entry]}), shape)
            head = json.dumps({"inputs": [{**entry, "data": None, "parameters": {"binary_data_size": 8}}]})
            head = head.replace(', "data": null', "")
            headers = {"Inference-Header-Content-Length": str(len(head))}
            answer = await house.client.ask("POST", INFER, head.encode() + bytes(8), headers)
            odd += _not_named(answer, f"{shape} binary")
        await healthy(case, house)
    case.none("not 400 with the input's name", odd)
    case.fact(f"{2 * len(SHAPES)} shapes")


def _not_named(answer: Answer, shape: Any) -> list[str]:
    fine = answer.status == 400 and (b"nonce" in answer.body or b"inputs[0]" in answer.body)
    return [] if fine else [f"{str(shape)[:40]}: {answer.status} {answer.body[:120]!r}"]


CHECKS: dict[str, Check] = {
    "B1": b1, "B3": b3, "B4": b4, "B5": b5, "B6": b6, "B8": b8, "B9": b9, "B10": b10,
}  # fmt: skip
