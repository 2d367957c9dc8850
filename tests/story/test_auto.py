"""Where a model runs is measured when it is warm: it moves into the server, and back when it gets slow, unnoticed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from house import MODELS, Caller, Standing, standing
from onnx import TensorProto

from loops import run
from maitred.replica.inline import InlineReplica
from maitred.settings import Address, ModelSettings, ReplicaSettings, ServerSettings
from maitred.testing import replicas as testing

pytestmark = pytest.mark.story

value = onnx.helper.make_tensor_value_info
node = onnx.helper.make_node


def saved(graph: Any, path: Path) -> str:
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


def quick(folder: Path, width: Any = 4) -> str:
    """Doubles four numbers a row, which takes microseconds."""
    inputs = [value("x", TensorProto.FLOAT, ["n", width])]
    outputs = [value("y", TensorProto.FLOAT, ["n", width])]
    graph = onnx.helper.make_graph([node("Add", ["x", "x"], ["y"])], "g", inputs, outputs)
    return saved(graph, folder / "quick.onnx")


def slow(folder: Path) -> str:
    """Takes milliseconds for every batch."""
    weights = onnx.numpy_helper.from_array(np.eye(1024, dtype=np.float32), "w")
    nodes = [node("MatMul", ["x" if i == 0 else f"h{i}", "w"], [f"h{i + 1}" if i < 11 else "y"]) for i in range(12)]
    inputs = [value("x", TensorProto.FLOAT, ["n", 1024])]
    outputs = [value("y", TensorProto.FLOAT, ["n", 1024])]
    return saved(onnx.helper.make_graph(nodes, "g", inputs, outputs, [weights]), folder / "slow.onnx")


def looping(folder: Path) -> str:
    """Gives its input back after as many turns of a loop as it says: quick with the numbers that are made up for it."""
    count, going = value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, [])
    body = onnx.helper.make_graph(
        [node("Identity", ["c"], ["again"]), node("Add", ["state", "zero"], ["next"])], "body",
        [count, going, value("state", TensorProto.INT64, ["n"])],
        [value("again", TensorProto.BOOL, []), value("next", TensorProto.INT64, ["n"])],
    )  # fmt: skip
    constants = [
        onnx.numpy_helper.from_array(np.array(0, np.int64), "zero"),
        onnx.numpy_helper.from_array(np.array(True), "yes"),
        onnx.numpy_helper.from_array(np.array([], np.int64), "scalar"),
    ]
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Reshape", ["most", "scalar"], ["turns"]),
        node("Loop", ["turns", "yes", "x"], ["y"], body=body),
    ]
    inputs, outputs = [value("x", TensorProto.INT64, ["n"])], [value("y", TensorProto.INT64, ["n"])]
    return saved(onnx.helper.make_graph(nodes, "g", inputs, outputs, constants), folder / "looping.onnx")


def server(home: Path, source: str, trust: str | None = None, **replicas: Any) -> ServerSettings:
    free = Address("127.0.0.1", 0)
    model = ModelSettings(name="m", source=source, replicas=ReplicaSettings(**replicas), trust=trust)
    return ServerSettings(listen=free, admin_listen=free, home=home, drain_notice_seconds=0.0, models={"m": model})


until = partial(testing.until, seconds=60.0)


async def place_of(house: Standing) -> str:
    """Where the model was found to belong, once that is settled."""
    served = house.router.get("m")
    await until(lambda: served.place)
    return served.place


def children() -> list[int]:
    """Processes of this one that have not ended."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in Path(f"/proc/self/task/{task}/children").read_text().split()]
    return found


def asked(*values: float) -> dict[str, Any]:
    rows = [[number, number + 1, number + 2, number + 3] for number in values]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": rows}]}


def counted(*values: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "INT64", "shape": [len(values)], "data": list(values)}]}


@contextlib.asynccontextmanager
async def loaded_with(house: Standing, ask: Callable[[Caller, int], Any]) -> AsyncIterator[list[Any]]:
    """Eight callers who ask and check all the time; what went wrong. Each has been answered before and after."""
    wrong: list[Any] = []
    answers = [0] * 8
    over = False

    async def call(number: int) -> None:
        caller, turn = house.caller(), 0
        while not over:
            turn += 1
            said = await ask(caller, number * 1000 + turn % 1000)
            answers[number] += 1
            if said is not None:
                wrong.append(said)

    calls = [asyncio.ensure_future(call(number)) for number in range(8)]

    async def each_again() -> None:
        seen = list(answers)
        await until(lambda: all(now > then for now, then in zip(answers, seen, strict=True)) or any(map(done, calls)))

    try:
        await each_again()
        yield wrong
        await each_again()
    finally:
        over = True
        await asyncio.gather(*calls)


def done(call: asyncio.Future[None]) -> bool:
    return call.done()


async def doubled(caller: Caller, number: int) -> str | None:
    reply = await caller.ask("POST", "/v2/models/m/infer", asked(number, number + 0.5))
    wanted = [2 * (start + step) for start in (number, number + 0.5) for step in range(4)]
    if reply.status == 200 and reply.json()["outputs"][0]["data"] == wanted:
        return None
    return f"{reply.status} {reply.body!r} for {number}"


@pytest.mark.parametrize("portable", [False, True])
def test_a_tiny_native_model_moves_into_the_server_and_no_request_notices(
    portable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if portable:
        monkeypatch.setenv("MAITRED_PORTABLE", "1")
    caplog.set_level("INFO", "maitred")
    release = threading.Event()
    prepare = InlineReplica._prepare
    monkeypatch.setattr(InlineReplica, "_prepare", lambda self, wait: release.wait(60) and prepare(self, wait))

    async def play() -> None:
        async with standing(server(tmp_path, quick(tmp_path))) as house:
            assert len(house.replica_pids()) == 1, "it starts in a process"
            async with loaded_with(house, doubled) as wrong:
                release.set()
                place = await place_of(house)
                await until(lambda: not house.replica_pids() and not children())
            assert wrong == []
            assert place.startswith("runs in the server itself: ") and "us for 64 rows" in place
            assert [record.getMessage() for record in caplog.records].count(f"model m: {place}") == 1
            [row] = (await house.caller().ask("POST", "/v2/repository/index", b"")).json()
            assert row["place"] == place
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'maitred_replicas{model="m",version="1",state="ready"} 1' in page
            assert [snapshot.restarts for snapshot in house.metrics.pools()] == [0], "a move is none"

    run(play())
    assert children() == []


@pytest.mark.parametrize(
    ("make", "replicas", "why"),
    [
        (slow, {}, "over the limit of 50 us for the server itself"),
        (lambda folder: f"{MODELS}:Scorer", {}, "flavor python may run code that came with the model"),
        (quick, {"max": 2}, "2 copies were asked for"),
        (lambda folder: quick(folder, width="w"), {}, "w of input x may be any size"),
    ],
    ids=["slow", "python", "copies", "any width"],
)
def test_others_stay_in_processes_and_say_why(
    make: Callable[[Path], str], replicas: Any, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "maitred")

    async def play() -> None:
        async with standing(server(tmp_path, make(tmp_path), **replicas)) as house:
            place = await place_of(house)
            assert place.startswith("runs in a process of its own: ") and why in place
            assert [record.getMessage() for record in caplog.records].count(f"model m: {place}") == 1
            await until(lambda: len(house.replica_pids()) == replicas.get("max", 1))

    run(play())


def test_a_pickle_that_somebody_allowed_stays_in_a_process(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    linear = pytest.importorskip("sklearn.linear_model")
    fitted = linear.LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0])
    joblib.dump(fitted, tmp_path / "m.joblib")

    async def play() -> None:
        async with standing(server(tmp_path, str(tmp_path / "m.joblib"), trust="me: mine")) as house:
            place = await place_of(house)
            assert place == "runs in a process of its own: it came with code or a pickle, which somebody had to allow"
            assert len(house.replica_pids()) == 1

    run(play())


def test_a_crash_of_a_model_in_python_costs_the_server_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(server(tmp_path, f"{MODELS}:Moody")) as house:
            assert "process of its own" in await place_of(house)
            killed = await house.caller().ask("POST", "/v2/models/m/infer", counted(999))
            assert killed.status >= 500
            caller = house.caller()
            async with asyncio.timeout(60):
                while (reply := await caller.ask("POST", "/v2/models/m/infer", counted(5))).status == 503:
                    await asyncio.sleep(0.05)
            assert reply.status == 200 and reply.json()["outputs"][0]["data"] == [5]
            assert len(house.replica_pids()) == 1, "another copy, in a process again"

    run(play())


@pytest.mark.parametrize("kind", ["process", "thread", "inline"])
def test_what_the_operator_says_wins(kind: Any, tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(server(tmp_path, slow(tmp_path) if kind == "inline" else quick(tmp_path), kind=kind)) as h:
            assert (await place_of(h)).endswith(": `replicas.kind` says so")
            assert len(h.replica_pids()) == (1 if kind == "process" else 0)

    run(play())


def test_a_model_that_gets_slow_goes_back_to_a_process_and_no_request_notices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "maitred")
    turns = 1

    async def same(caller: Caller, number: int) -> str | None:
        values = [turns, number % 7]
        reply = await caller.ask("POST", "/v2/models/m/infer", counted(*values))
        right = reply.status == 200 and reply.json()["outputs"][0]["data"] == values
        return None if right else f"{reply.status} {reply.body!r}"

    async def play() -> None:
        nonlocal turns
        async with standing(server(tmp_path, looping(tmp_path))) as house:
            assert "in the server itself" in await place_of(house)
            async with loaded_with(house, same) as wrong:
                turns = 20_000
                served = house.router.get("m")
                await until(lambda: "process of its own" in served.place)
                await until(lambda: len(house.replica_pids()) == 1)
            assert wrong == []
            assert "it took over 200 us a batch in the server" in served.place
            assert [record.getMessage() for record in caplog.records].count(f"model m: {served.place}") == 1
            turns = 1
            async with loaded_with(house, same) as wrong:
                assert len(house.replica_pids()) == 1, "it has been in the server once, and that was enough"
            assert wrong == []
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'maitred_replicas{model="m",version="1",state="ready"} 1' in page

    run(play())


def test_a_model_that_cannot_be_loaded_into_the_server_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(self: Any, wait: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(InlineReplica, "_prepare", prepare)

    async def play() -> None:
        async with standing(server(tmp_path, quick(tmp_path))) as house:
            place = await place_of(house)
            assert place.startswith("runs in a process of its own: it could not be loaded into the server: ")
            assert "MemoryError: no room" in place
            assert await doubled(house.caller(), 3) is None
            assert len(house.replica_pids()) == 1 and house.router.ready()

    run(play())


def held_move(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Holds each move into the server: the first event tells that one has begun, the second lets it go on."""
    moving, release = threading.Event(), threading.Event()
    prepare = InlineReplica._prepare

    def later(self: Any, wait: Any) -> Any:
        moving.set()
        assert release.wait(60)
        return prepare(self, wait)

    monkeypatch.setattr(InlineReplica, "_prepare", later)
    return moving, release


def test_a_process_that_dies_while_the_model_moves_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moving, release = held_move(monkeypatch)

    async def play() -> None:
        async with standing(server(tmp_path, quick(tmp_path))) as house:
            async with loaded_with(house, doubled) as wrong:
                await until(moving.is_set)
                os.kill(house.replica_pids()[0], signal.SIGKILL)
                release.set()
                await place_of(house)
                await until(lambda: not house.replica_pids() and not children())
            assert wrong == []

    run(play())


def test_stopping_while_the_model_moves_answers_what_was_accepted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, release = held_move(monkeypatch)

    async def play() -> None:
        async with standing(server(tmp_path, quick(tmp_path))) as house:
            await until(moving.is_set)
            asking = [asyncio.ensure_future(doubled(house.caller(), number)) for number in range(20)]
            async with asyncio.timeout(20):
                while not house.running_rows() and not all(one.done() for one in asking):
                    await asyncio.sleep(0)
                await house.stop(10.0)
            answers = await asyncio.gather(*asking, return_exceptions=True)
            assert None in answers
            assert all(answer is None or isinstance(answer, OSError | EOFError) for answer in answers), answers
            assert children() == []
            release.set()

    run(play())


@pytest.mark.parametrize("module", ["xgboost", "lightgbm"])
def test_other_native_libraries_are_measured_too(module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    features = np.random.default_rng(1).normal(size=(60, 3))
    target = (features[:, 0] > 0).astype(int)
    if module == "xgboost":
        import xgboost

        path = tmp_path / "m.ubj"
        xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(features, target), 2).save_model(path)
    else:
        import lightgbm

        path = tmp_path / "m.txt"
        lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(features, target), 2).save_model(path)

    async def play() -> None:
        async with standing(server(tmp_path, str(path))) as house:
            assert " us for " in await place_of(house), "whichever it is, it was measured"

    run(play())
