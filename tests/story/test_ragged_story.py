"""Texts of different lengths from many callers: they share batches, and everybody is answered for their own length."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import Reply, Standing, settings, standing
from prometheus_client.parser import text_string_to_metric_families as parse
from ragged_models import GATE

from loops import run
from maitred.settings import ServerSettings

MODELS = Path(__file__).with_name("ragged_models.py")
INFER, PLAIN = "/v2/models/tokens/infer", "/predict/tokens"
CALLERS = 24


def given(home: Path, name: str = "tokens", model: str = "Tokens") -> ServerSettings:
    plain = settings(home, {name: model})
    return dataclasses.replace(
        plain, models={name: dataclasses.replace(plain.models[name], source=f"{MODELS}:{model}")}
    )


async def figures(house: Standing) -> dict[tuple[str, str, str], float]:
    """Counters by name, bucket and kind (or the lane of a gauge)."""
    page = (await house.caller().ask("GET", "/metrics")).body.decode()
    return {
        (sample.name, sample.labels.get("bucket", ""), sample.labels.get("kind", sample.labels.get("lane", ""))):
            sample.value
        for family in parse(page)
        for sample in family.samples
        if family.name.startswith(("maitred_bucket", "maitred_queue_requests", "maitred_batches", "maitred_requests"))
    }  # fmt: skip


def as_json(ids: np.ndarray[Any, Any], tag: str) -> tuple[bytes, dict[str, str]]:
    entry = {"name": "ids", "datatype": "INT64", "shape": list(ids.shape), "data": ids.ravel().tolist()}
    return json.dumps({"id": tag, "inputs": [entry]}).encode(), {}


def as_binary(ids: np.ndarray[Any, Any], tag: str) -> tuple[bytes, dict[str, str]]:
    entries = [
        {"name": name, "datatype": "INT64", "shape": list(ids.shape), "parameters": {"binary_data_size": ids.nbytes}}
        for name in ("ids", "mask")
    ]
    asked = {"id": tag, "inputs": entries, "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    body = head + ids.tobytes() + np.ones_like(ids).tobytes()
    return body, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}


def read(reply: Reply) -> dict[str, np.ndarray[Any, Any]]:
    assert reply.status == 200, reply.body
    size = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    head, rest = json.loads(reply.body[:size]), reply.body[size:]
    found = {}
    for output in head["outputs"]:
        kind: Any = np.float32 if output["datatype"] == "FP32" else np.int64
        if "data" in output:
            array = np.array(output["data"], kind)
        else:
            taken = output["parameters"]["binary_data_size"]
            array, rest = np.frombuffer(rest[:taken], kind), rest[taken:]
        found[output["name"]] = array.reshape(output["shape"])
    return found


def test_texts_of_all_lengths_share_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "open"
    monkeypatch.setenv("GATE", str(gate))
    chance = random.Random(5)
    asked = [
        np.array([[chance.randint(1, 99) for _ in range(chance.randint(1, 16))]], np.int64) for _ in range(CALLERS)
    ]

    async def play() -> None:
        async with standing(given(tmp_path)) as house:
            busy = asyncio.create_task(house.caller().ask("POST", INFER, as_json(np.array([[GATE]]), "gate")[0]))
            async with asyncio.timeout(20):
                while not house._pools[0]._dispatcher.running_rows():
                    await asyncio.sleep(0.005)
            calls = []
            for number, ids in enumerate(asked):
                body, headers = (as_json, as_binary)[number % 2](ids, str(number))
                calls.append(asyncio.create_task(house.caller().ask("POST", INFER, body, headers)))
            async with asyncio.timeout(20):
                while (await figures(house))["maitred_queue_requests", "", "normal"] < CALLERS:
                    await asyncio.sleep(0.005)
            gate.touch()
            answers = [read(await call) for call in calls]
            await busy
            for ids, answer in zip(asked, answers, strict=True):
                length = ids.shape[1]
                assert answer["each"].tolist() == [[[2.0 * token, 1.0] for token in ids[0]]]
                assert answer["total"].tolist() == [ids.sum()]
                assert answer["width"].tolist() == [next(size for size in (4, 8, 16) if size >= length)]
            assert max(int(answer["lengths"][0]) for answer in answers) > 1, "a batch held different lengths"
            check(await figures(house))

    def check(found: dict[tuple[str, str, str], float]) -> None:
        """One batch for the gate and one for each bucket, and what each of these wasted."""
        lengths = [ids.shape[1] for ids in asked]
        used = {size: [n for n in lengths if size / 2 < n <= size or n <= size == 4] for size in (4, 8, 16)}
        assert all(len(set(members)) > 1 for members in used.values())
        batches = sum(value for (name, _, _), value in found.items() if name == "maitred_batches_total")
        assert batches == 1 + 3
        for size, members in used.items():
            extra = 1 if size == 4 else 0  # the gate's own
            requests = len(members) + extra
            real = 2 * (sum(members) + extra)
            assert found["maitred_bucket_requests_total", f"seq={size}", ""] == requests
            assert found["maitred_bucket_elements_total", f"seq={size}", "real"] == real
            assert found["maitred_bucket_elements_total", f"seq={size}", "pad"] == 2 * size * requests - real

    run(play())


def test_every_way_in_takes_rows_of_different_lengths(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(given(tmp_path)) as house:
            caller = house.caller()
            rows = [{"ids": [1, 2, 3]}, {"ids": [4]}, {"ids": [5, 6, 7, 8, 9]}]
            plain = (await caller.ask("POST", PLAIN, rows)).json()
            assert [(row["total"], row["width"]) for row in plain] == [(6, 8), (4, 8), (35, 8)]
            assert plain[1]["each"] == [[8.0, 1.0]] + [[0.0, 0.0]] * 4, "as long as the longest of its request"
            one = (await caller.ask("POST", PLAIN, {"ids": [4]})).json()
            assert (one["total"], one["width"], one["each"]) == (4, 4, [[8.0, 1.0]])
            columns = (await caller.ask("POST", PLAIN, {"columns": {"ids": [[1, 2], [3]]}})).json()
            assert columns["columns"]["total"] == [3, 3]
            v1 = (await caller.ask("POST", "/v1/models/tokens:predict", {"instances": rows})).json()
            assert [row["total"] for row in v1["predictions"]] == [6, 4, 35]
            long = await caller.ask("POST", INFER, as_json(np.ones((1, 17), np.int64), "long")[0])
            assert long.status == 400 and "seq = 17 is more than this model takes: at most 16" in long.json()["error"]
            many = np.arange(70 * 3).reshape(70, 3) % 7
            answer = read(await caller.ask("POST", INFER, as_json(many, "many")[0]))
            assert answer["total"].tolist() == many.sum(axis=1).tolist() and answer["each"].shape == (70, 3, 2)
            inputs = (await caller.ask("GET", "/v2/models/tokens")).json()["inputs"]
            assert [entry["parameters"]["buckets"] for entry in inputs] == [{"seq": [4, 8, 16]}] * 2

    run(play())


def test_a_lone_input_is_filled_up_however_often_its_shape_has_come(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(given(tmp_path, "lone", "Lone")) as house:
            caller = house.caller()
            for _ in range(4):
                for data in ([1, 2], [3, 4, 5, 6], [7]):
                    body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, len(data)], "data": data}]}
                    answer = read(await caller.ask("POST", "/v2/models/lone/infer", body))
                    assert (answer["saw"].tolist(), answer["width"].tolist()) == ([data], [4])

    run(play())
