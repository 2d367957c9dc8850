"""Bodies and answers of many megabytes, and whoever else is being served meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time

import numpy as np
import orjson

from reliability.driver import House, message, model, nonces, tensor
from reliability.judge import Case, Check, percentile

BYTES = 60_000_000
GAP_SECONDS = 0.002


def post(port: int, request: bytes) -> bytes:
    """Send a request and read its answer, in a thread of the driver's: bodies of this size would hold up its loop."""
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(request)
        received = bytearray()
        while b"\r\n\r\n" not in received:
            received += wire.recv(1 << 20)
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        pieces, left = [body], length - len(body)
        while left:
            pieces.append(wire.recv(min(left, 1 << 20)))
            left -= len(pieces[-1])
    return head.partition(b" ")[2][:3] + b"".join(pieces)


class Bystander:
    """Asks a tiny model again and again, and keeps how long each answer took."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self._over = False

    async def run(self) -> None:
        number = 0
        while not self._over:
            number += 1
            answer = await self.house.client.infer("echo", nonces(number))
            self.seconds.append(answer.seconds)
            if answer.status != 200:
                self.wrong.append(f"{answer.status} {answer.body[:100]!r}")
            await asyncio.sleep(GAP_SECONDS)

    async def beside(self, case: Case, name: str, *work: asyncio.Future[bytes], judged: bool = True) -> list[bytes]:
        """Ask while the work lasts; what came of that. `judged`: whether the worst wait has a limit."""
        self.seconds, self.wrong, self._over = [], [], False
        asking = asyncio.create_task(self.run())
        answers = list(await asyncio.gather(*work))
        self._over = True
        await asking
        case.none(f"wrong beside {name}", self.wrong)
        case.fact(f"{name}: p99 {percentile(self.seconds, 0.99) * 1e3:.1f} ms of {len(self.seconds)}")
        worst = max(self.seconds) * 1e3
        if judged:
            case.at_most(f"{name}: worst ms", worst, case.limit("worst_seconds") * 1e3)
        else:
            case.fact(f"{name}: worst ms {worst:.0f}")
        return answers


def quiet() -> bytes:
    """No work, for as long as it takes to see what the machine does by itself."""
    time.sleep(1)
    return b""


def body(seed: int, count: int) -> tuple[bytes, float]:
    """A request of BYTES bytes, and the total that it asks for."""
    numbers = np.random.default_rng(seed).standard_normal(count)
    data = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    head = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1,%d],"data":' % count
    return message("POST", "/v2/models/total/infer", head + data + b"}]}"), float(numbers.sum())


async def b11(case: Case) -> None:
    models = {"echo": model("Echo"), "total": model("Total"), "long": model("Long")}
    loop = asyncio.get_running_loop()
    requests = [body(seed, BYTES // 20) for seed in range(3)]
    async with House(models) as house:
        bystander = Bystander(house)
        await bystander.beside(case, "nothing", loop.run_in_executor(None, quiet))

        def turns(*places: int) -> bytes:
            for _ in range(case.size("turns")):
                for place in places:
                    request, total = requests[place]
                    answer = post(house.port, request)
                    found = json.loads(answer[3:])["outputs"][0]["data"][0] if answer[:3] == b"200" else None
                    if found is None or abs(found - total) > 1e-6:
                        return answer[:200]
            return b""

        for name, callers in (("bodies in turn", [(0, 1, 2)]), ("bodies at once", [(0,), (1,), (2,)])):
            work = [loop.run_in_executor(None, turns, *places) for places in callers]
            answers = await bystander.beside(case, name, *work, judged=len(callers) == 1)
            case.none(f"wrong {name}", [answer.decode() for answer in answers if answer])
        count = BYTES // 20
        asked = message("POST", "/v2/models/long/infer", json.dumps(
            {"inputs": [tensor("count", "INT64", [count])]}).encode())  # fmt: skip
        (answer,) = await bystander.beside(case, "an answer", loop.run_in_executor(None, post, house.port, asked))
        shown = json.loads(answer[3:])["outputs"][0]["data"]
        wanted = np.random.default_rng(1).standard_normal(count)
        places = random.Random(1).sample(range(count), 100)
        case.fact("the answer is whole", len(shown) == count and all(shown[at] == wanted[at] for at in places))


CHECKS: dict[str, Check] = {"B11": b11}
