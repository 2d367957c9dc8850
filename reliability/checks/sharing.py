"""Requests that share batches, replicas and counters, and must not notice it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import numpy as np

from reliability import parity
from reliability.driver import Answer, Client, ConnectionLost, House, gather_bounded, message, model, nonces, tensor
from reliability.judge import Case, Check


async def a13(case: Case) -> None:
    hurt, spared, rng = [], [], random.Random(3)
    async with House({"poison": model("Poison", max_batch_rows=32)}) as house:
        number = 0
        for _ in range(case.size("batches")):
            bad = rng.randrange(32)

            async def ask(place: int, nonce: int, bad: int = bad) -> None:
                values = [rng.uniform(-1e6, 1e6) for _ in range(4)]
                sent = -nonce if place == bad else nonce
                body = {
                    "id": str(nonce),
                    "inputs": [tensor("nonce", "INT64", [sent]), tensor("x", "FP32", values, [1, 4])],
                }
                answer = await house.client.infer("poison", body)
                if place == bad:
                    spared.extend([str(answer.status)] if answer.status < 400 else [])
                    return
                if answer.status != 200:
                    hurt.append(f"{answer.status} {answer.body[:120]!r}")
                    return
                outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
                echoed = np.array(outputs["x"], np.float32)
                if outputs["nonce"] != [nonce] or not np.array_equal(echoed, np.array(values, np.float32)):
                    hurt.append(f"{outputs} for {nonce} {values}")

            # one request holds the replica for a moment, so that the 32 after it form a batch
            holder = asyncio.create_task(ask(-1, 10_000_000 + number))
            await asyncio.sleep(0.0005)
            await asyncio.gather(*(ask(place, number + place + 1) for place in range(32)))
            await holder
            number += 32
    case.none("neighbours hurt", hurt)
    case.none("bad rows answered as good", spared)
    case.fact(f"{case.size('batches'):,} batches of 32")


async def a14(case: Case) -> None:
    rng = random.Random(4)
    mixed: list[str] = []
    counts = {"answered": 0, "cancelled": 0}
    async with House({"mixed": model("Mixed", replicas=2, max_batch_rows=32)}, log_level="warning") as house:
        clients = [Client(house.port) for _ in range(64)]

        async def ask(number: int) -> None:
            client = clients[number % len(clients)]
            question = _Question(rng, number)
            data = message("POST", "/v2/models/mixed/infer", *question.encoded())
            if rng.random() < 0.03:
                counts["cancelled"] += 1
                try:
                    await client.raw(data, rng.random() * 0.01)
                except (TimeoutError, ConnectionLost):
                    return
                return
            answer = await client.raw(data)
            counts["answered"] += 1
            wrong = question.wrong(answer)
            if wrong:
                mixed.append(wrong)

        await gather_bounded(case.size("requests"), 128, ask)
        for client in clients:
            client.close()
    case.none("mix-ups", mixed)
    case.fact(f"{counts['answered']:,} answers checked, {counts['cancelled']:,} cancelled")


class _Question:
    """One request of random size, shape, types, outputs, parameters and encoding, and what its answer must be."""

    NAMES = ("nonce", "twice", "text", "tag")

    def __init__(self, rng: random.Random, number: int) -> None:
        self.id = f"q-{number}"
        self.rows = rng.choice((1, 1, 1, 2, 3, 7, 40))
        self.width = rng.choice((1, 2, 5))
        self.nonces = [number * 100 + row for row in range(self.rows)]
        generator = np.random.default_rng(number)
        self.values = generator.standard_normal((self.rows, self.width)).astype(np.float32)
        self.text = [f"row {number} é {row}" for row in range(self.rows)]
        self.tag = rng.randrange(4)
        self.flag = rng.random() < 0.3
        self.outputs = rng.choice((None, rng.sample(self.NAMES, 2), ["nonce"]))
        self.binary = rng.random() < 0.3

    def encoded(self) -> tuple[bytes, dict[str, str]]:
        inputs: list[dict[str, Any]] = [
            tensor("nonce", "INT64", self.nonces),
            tensor("values", "FP32", [float(v) for v in self.values.ravel()], [self.rows, self.width]),
            tensor("text", "BYTES", self.text),
        ]
        if self.flag:
            inputs.append(tensor("flag", "BOOL", [True] * self.rows))
        tail = b""
        if self.binary:
            tail = self.values.tobytes()
            del inputs[1]["data"]
            inputs[1]["parameters"] = {"binary_data_size": len(tail)}
        body: dict[str, Any] = {"id": self.id, "inputs": inputs, "parameters": {"tag": self.tag}}
        if self.outputs is not None:
            body["outputs"] = [{"name": name} for name in self.outputs]
        head = json.dumps(body).encode()
        headers = {"Maitred-Timeout-Ms": "20000"}  # stated, so that no hang-up of others lets it be refused
        headers |= {"Inference-Header-Content-Length": str(len(head))} if self.binary else {}
        return head + tail, headers

    def wrong(self, answer: Answer) -> str | None:
        if answer.status != 200:
            return f"{answer.status} {answer.body[:160]!r}"
        found = answer.json()
        wanted = list(self.outputs or self.NAMES)
        if found.get("id") != self.id or [o["name"] for o in found["outputs"]] != wanted:
            return f"id {found.get('id')} outputs {[o['name'] for o in found['outputs']]} for {self.id} {wanted}"
        expected: dict[str, tuple[list[int], list[Any]]] = {
            "nonce": ([self.rows], self.nonces),
            "twice": ([self.rows, self.width], [float(v) for v in (self.values * np.float32(2)).ravel()]),
            "text": ([self.rows], self.text),
            "tag": ([self.rows], [self.tag] * self.rows),
        }
        for output in found["outputs"]:
            shape, data = expected[output["name"]]
            got = [float(np.float32(v)) for v in output["data"]] if output["name"] == "twice" else output["data"]
            if output["shape"] != shape or got != data:
                return f"{self.id} {output['name']}: {output['shape']} {got[:4]} for {shape} {data[:4]}"
        return None


async def a15(case: Case) -> None:
    limit, failed = 16, []
    rng = random.Random(5)
    async with House({"logged": model("Logged", replicas=2, max_batch_rows=limit)}) as house:
        start = len(house.marked("calls"))

        async def ask(number: int) -> None:
            rows = rng.choice((1, 2, 15, 16, 17, 40, 100))
            sent = [number * 1000 + row for row in range(rows)]
            answer = await house.client.infer("logged", nonces(*sent))
            if answer.status != 200 or answer.json()["outputs"][0]["data"] != sent:
                failed.append(f"{answer.status} {answer.body[:120]!r}")

        await gather_bounded(case.size("requests"), 64, ask)
        sizes = [int(mark[2]) for mark in house.marked("calls")[start:]]
    case.at_most("largest batch", max(sizes), limit, f" rows of {limit}")
    case.none("failed or wrong", failed)
    case.fact(f"{len(sizes):,} calls, {sum(sizes):,} rows")


async def a20(case: Case) -> None:
    async with House({"types": model("EveryType", max_batch_rows=16)}) as house:
        different, compared = await parity.differences(house, case.size("rounds"))
    case.none("differences", different)
    case.fact(f"{compared:,} tensors compared over 15 dtypes")


async def a22(case: Case) -> None:
    async with House({"echo": model("Echo", replicas=2)}) as house:
        sent, fell = 0, []
        before = await house.metrics()
        deaths = case.size("deaths")
        for _ in range(deaths):

            async def ask(number: int) -> None:
                await house.client.infer("echo", nonces(number + 1))

            await gather_bounded(250, 16, ask)
            sent += 250
            os.kill(house.workers()[0], signal.SIGKILL)
            await asyncio.sleep(1)
            after = await house.metrics()
            fell += [
                f"{name}: {value} to {after.get(name)}"
                for name, value in before.items()
                if _counts_up(name) and after.get(name, -1.0) < value
            ]
            before = after
        names = case.size("names")

        async def unknown(number: int) -> None:
            await house.client.infer(f"name-{number}", nonces(1))
            await house.client.ask("GET", f"/{number}/x?y={number}", headers={"User-Agent": f"agent {number}"})

        await gather_bounded(names, 32, unknown)
        await asyncio.sleep(0.2)
        after = await house.metrics()
    case.none("counters fell", fell)
    answered = sum(value for name, value in after.items() if _requests(name) and 'model="echo"' in name)
    case.fact(f"{answered:,.0f} requests counted of {sent:,} sent over {deaths} deaths", answered == sent)
    case.at_most("series", len(after), case.limit("series"))
    bounds = {_bound(name) for name in after if 'le="' in name and "seconds" in name} - {float("inf")}
    case.at_most("least bound", min(bounds, default=99), case.limit("least_bound"), " s")
    case.at_least("greatest bound", max(bounds, default=0), case.limit("greatest_bound"), " s")


def _counts_up(name: str) -> bool:
    return name.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))


def _requests(name: str) -> bool:
    return name.split("{")[0] == "maitred_requests_total"


def _bound(name: str) -> float:
    return float(name.split('le="')[1].split('"')[0])


CHECKS: dict[str, Check] = {"A13": a13, "A14": a14, "A15": a15, "A20": a20, "A22": a22}
