"""Several replicas behind one queue: work is shared, and the death, sleep or nonsense of one is nobody else's."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house import Caller, Reply, Standing, settings, standing

from loops import run
from maitred import assemble
from maitred.replica import process
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import ReplicaSettings
from maitred.testing import replicas as testing

pytestmark = pytest.mark.story


@pytest.fixture
def acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models write down what they ran."""
    folder = tmp_path / "acted"
    folder.mkdir()
    monkeypatch.setenv("ACTED", str(folder))
    return folder


until = partial(testing.until, seconds=40.0)


def body(*values: int, do: str = "", size: int = 0, load: Any = None) -> dict[str, Any]:
    rows = len(values)
    inputs: list[dict[str, Any]] = [{"name": "x", "datatype": "INT64", "shape": [rows], "data": list(values)}]
    if do:
        inputs.append({"name": "do", "datatype": "BYTES", "shape": [rows], "data": [do] * rows})
    if size:
        inputs.append({"name": "size", "datatype": "INT64", "shape": [rows], "data": [size] * rows})
    if load is not None:
        inputs.append({"name": "load", "datatype": "FP32", "shape": list(load.shape), "data": load.ravel().tolist()})
    return {"inputs": inputs}


async def ask(caller: Caller, *values: int, **more: Any) -> Reply:
    return await caller.ask("POST", "/v2/models/m/infer", body(*values, **more))


def outputs(reply: Reply) -> dict[str, list[Any]]:
    assert reply.status == 200, reply.body
    return {output["name"]: output["data"] for output in reply.json()["outputs"]}


def error(reply: Reply) -> str:
    return str(reply.json()["error"])


def ran(folder: Path, pid: int) -> list[str]:
    """What a process wrote down: the numbers of each batch."""
    path = folder / str(pid)
    return path.read_text().splitlines() if path.exists() else []


def many(found: list[int], values: list[int]) -> bool:
    """Whether each value comes as often as the others, and they in their order."""
    times = len(found) // len(values)
    return times >= 3 and found == [number for number in values for _ in range(times)]


class Load:
    """Callers who ask with different rows all the time and check what they get; use it as an async context."""

    def __init__(self, house: Standing, callers: int = 6) -> None:
        self.house = house
        self.wrong: list[str] = []
        self.answers = [0] * callers
        self._over = False

    async def _call(self, number: int) -> None:
        caller, turn = self.house.caller(), 0
        while not self._over:
            turn += 1
            values = [number * 1_000_000 + turn * 10 + row for row in range(1 + turn % 3)]
            reply = await ask(caller, *values, size=3)
            self.answers[number] += 1
            if reply.status != 200 or outputs(reply)["y"] != values or not many(outputs(reply)["many"], values):
                self.wrong.append(f"{reply.status} {reply.body[:200]!r} for {values}")

    async def turn(self) -> None:
        """Every caller has been answered again, or has given up."""
        seen = list(self.answers)
        await until(lambda: all(now > then + 1 for now, then in zip(self.answers, seen, strict=True)) or self._failed())

    def _failed(self) -> bool:
        return any(call.done() for call in self._calls)

    async def __aenter__(self) -> Load:
        self._calls = [asyncio.ensure_future(self._call(number)) for number in range(len(self.answers))]
        await self.turn()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if exception[0] is None:
            await self.turn()
        self._over = True
        await asyncio.gather(*self._calls)


async def copies(house: Standing, count: int, *gone: int) -> None:
    """So many replicas are ready, none of them one of those."""
    await until(lambda: len(house.replica_pids()) == count and not {*gone} & {*house.replica_pids()})


def test_requests_are_spread_over_the_copies_and_each_runs_once(tmp_path: Path, acted: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3, max_batch_rows=4)) as house:
            await copies(house, 3)
            replies = await asyncio.gather(*(ask(house.caller(), n, do="pause:0.02") for n in range(60)))
            assert [outputs(reply)["y"] for reply in replies] == [[n] for n in range(60)]
            pids = house.replica_pids()
            shares = Counter(outputs(reply)["pid"][0] for reply in replies)
            assert set(shares) == set(pids) and min(shares.values()) >= 5, shares
            lines = [line for pid in pids for line in ran(acted, pid)]
            assert sum(len(line.split(",")) for line in lines) == 60

    run(play())


def test_a_copy_killed_in_the_middle_costs_its_batch_a_second_run_and_nobody_an_answer(
    tmp_path: Path, acted: Path
) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3, max_batch_rows=4)) as house:
            await copies(house, 3)
            before = house.replica_pids()
            released = tmp_path / "released"
            asking = [asyncio.ensure_future(ask(house.caller(), n, do=f"hold:{released}")) for n in range(18)]
            await until(lambda: all(ran(acted, pid) for pid in before))
            victim = before[1]
            begun = ran(acted, victim)
            os.kill(victim, signal.SIGKILL)
            released.touch()
            replies = await asyncio.gather(*asking)
            assert [outputs(reply)["y"] for reply in replies] == [[n] for n in range(18)]
            await copies(house, 3, victim)
            runs = Counter(
                number
                for path in acted.iterdir()
                for line in path.read_text().splitlines()
                for number in map(int, line.strip("[]").split(","))
            )
            again = {int(number) for line in begun[-1:] for number in line.strip("[]").split(",")}
            assert {number for number, count in runs.items() if count == 2} == again
            assert set(runs) == set(range(18)) and max(runs.values()) == 2
            assert victim not in {outputs(reply)["pid"][0] for n, reply in enumerate(replies) if n in again}

    run(play())


def test_a_copy_that_is_stopped_from_outside_is_replaced_and_the_others_serve_meanwhile(
    tmp_path: Path, acted: Path
) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3, max_batch_rows=4)) as house:
            await copies(house, 3)
            caller = house.caller()
            released = tmp_path / "released"
            held = asyncio.ensure_future(ask(caller, 7, do=f"hold:{released}"))
            await until(lambda: any(ran(acted, pid) for pid in house.replica_pids()))
            [victim] = [pid for pid in house.replica_pids() if ran(acted, pid)]
            os.kill(victim, signal.SIGSTOP)
            released.touch()
            async with Load(house) as load:
                await load.turn()
                assert not held.done() and victim in house.replica_pids(), "it is not known yet"
                assert outputs(await held)["y"] == [7]
                await copies(house, 3, victim)
            assert load.wrong == []
            assert not Path(f"/proc/{victim}").exists()

    run(play())


def test_a_copy_that_writes_nonsense_is_killed_and_no_answer_is_anothers(tmp_path: Path, acted: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3)) as house:
            await copies(house, 3)
            first = house.replica_pids()
            async with Load(house) as load:
                for number in range(2):
                    before = house.replica_pids()
                    reply = await ask(house.caller(), 42 + number, do="scribble")
                    assert reply.status >= 500 and "refused for a while" in error(reply), reply.body
                    gone = [pid for pid in before if not Path(f"/proc/{pid}").exists()]
                    assert gone, "it was killed"
                    await copies(house, 3, *gone)
                    await load.turn()
            assert load.wrong == []
            assert len({*first} & {*house.replica_pids()}) <= 2

    run(play())


# ---------------------------------------------------------------------- memory that runs out


def held(house: Standing) -> tuple[int, int, int]:
    """Bytes reserved for inputs and for outputs, and bytes in use of both, by all copies of the one pool."""
    [pool] = house._pools
    here = [replica for replica in pool._supervisor.replicas() if isinstance(replica, ProcessReplica)]
    inputs = {id(replica._inputs): replica._inputs for replica in here}.values()
    every = [*inputs, *(replica._outputs for replica in here)]
    return (
        sum(arena.reserved_bytes for arena in inputs),
        sum(replica._outputs.reserved_bytes for replica in here),
        sum(arena.used_bytes for arena in every),
    )


@pytest.fixture(autouse=True)
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at ten times a second."""
    monkeypatch.setattr(process, "_TIDY_SECONDS", 0.1)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches in flight may take a mebibyte each way."""
    bounds = {"segment_bytes": 1 << 16, "output_bytes": 1 << 16, "limit_bytes": 1 << 20}
    monkeypatch.setattr(assemble, "ReplicaSettings", functools.partial(ReplicaSettings, **bounds))


@pytest.fixture
def poor() -> Iterator[Callable[[], None]]:
    """Once called, the system has no more than two mebibytes for a piece of shared memory, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def given_back(house: Standing) -> None:
    """Nothing is in use, and no more is reserved than what each begins with, though segments may be cut otherwise."""
    [pool] = house._pools
    here = [replica for replica in pool._supervisor.replicas() if isinstance(replica, ProcessReplica)]
    bounds = here[0]._settings
    await until(
        lambda: (
            held(house)[2] == 0
            and held(house)[0] <= 2 * bounds.segment_bytes
            and held(house)[1] <= 2 * bounds.output_bytes * len(here)
        )
    )


LIMIT = "over the limit of 1,048,576 for batches in flight"
OUTPUTS = "the outputs of this batch need more memory than batches may take"


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("large", ["answers", "requests"])
def test_what_is_beyond_the_limit_fails_alone_and_its_memory_comes_back(
    large: str, tmp_path: Path, acted: Path
) -> None:
    def more(size: int) -> dict[str, Any]:
        return {"size": size} if large == "answers" else {"load": np.ones((1, 2 * size), np.float32)}

    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3)) as house:
            await copies(house, 3)
            pids = house.replica_pids()
            async with Load(house) as load:
                for size in (500_000, 10_000, 500_000, 20_000):
                    reply = await ask(house.caller(), 5, **more(size))
                    if size == 500_000:
                        assert reply.status == 500
                        assert (OUTPUTS if large == "answers" else LIMIT) in error(reply)
                    else:
                        found = outputs(reply)
                        assert found["many"] == [5] * size if large == "answers" else found["sum"] == [2.0 * size]
                most = [await ask(house.caller(), number, **more(20_000)) for number in range(3)]
                assert [reply.body[:200] for reply in most if reply.status != 200] == []
            assert load.wrong == []
            assert house.replica_pids() == pids, "nobody has died of it"
            await given_back(house)

    run(play())


@pytest.mark.usefixtures("tight")
def test_many_large_requests_at_once_are_answered_or_told_that_there_is_no_room(tmp_path: Path, acted: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3, max_batch_rows=2)) as house:
            await copies(house, 3)
            load = np.ones((1, 100_000), np.float32)  # 448 KiB each: two of three copies can have one at a time
            replies = await asyncio.gather(
                *(ask(house.caller(), number, do="pause:0.02", load=load) for number in range(12))
            )
            statuses = Counter(reply.status for reply in replies)
            assert set(statuses) <= {200, 500} and statuses[200] >= 1, statuses
            for number, reply in enumerate(replies):
                if reply.status == 200:
                    assert outputs(reply)["y"] == [number] and outputs(reply)["sum"] == [100_000.0]
                else:
                    assert LIMIT in error(reply)
            await given_back(house)
            assert outputs(await ask(house.caller(), 1))["y"] == [1]

    run(play())


@pytest.mark.parametrize("portable", [False, True])
def test_memory_that_the_system_refuses_fails_one_request_and_the_server_goes_on(
    portable: bool, tmp_path: Path, acted: Path, poor: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if portable:
        monkeypatch.setenv("MAITRED_PORTABLE", "1")

    async def play() -> None:
        async with standing(settings(tmp_path, {"m": "Actor"}, replicas=3)) as house:
            await copies(house, 3)
            poor()
            async with Load(house) as load:
                for _ in range(3):
                    reply = await ask(house.caller(), 5, load=np.ones((1, 600_000), np.float32))
                    assert reply.status == 500 and "the system has no 2,621,440 bytes" in error(reply)
                    reply = await ask(house.caller(), 5, size=400_000)
                    assert reply.status == 500 and OUTPUTS in error(reply)
                    assert outputs(await ask(house.caller(), 5, size=30_000))["many"] == [5] * 30_000
            assert load.wrong == []
            await given_back(house)

    run(play())
