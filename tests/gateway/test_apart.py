"""Long bodies and answers are read and written apart: as short ones are, while the loop serves others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gates import FakeEndpoint, FakeExchange, Port, tensor

from loops import run
from maitred.endpoint import Ticket
from maitred.gateway import rest, rows
from maitred.gateway.apart import THREADS, Apart, Read
from maitred.gateway.rest import Rest
from maitred.http.exchange import JSON
from maitred.messages import Result, Tensor
from maitred.wire.sizes import ON_LOOP_BYTES, ON_LOOP_ELEMENTS

BOUND_SECONDS = 30.0
MANY = 150_000
NUMBERS = [round(0.5 + at / 7, 3) for at in range(MANY)]


class Awaited(FakeExchange):
    """Can be waited for."""

    done: Any = None

    def reply(self, status: int, body: bytes, content_type: bytes = JSON, extra: bytes = b"") -> None:
        super().reply(status, body, content_type, extra)
        self.done.set()


class Bench:
    """A data port that reads and writes apart, and one that does it on the spot."""

    def __init__(self) -> None:
        self.here, self.there = Port(), Port()
        self.apart = Apart(lambda: 50.0)  # when every exchange was received
        self.there.rest = Rest(
            self.there.router, self.there.settings, listener=self.there.events.append, apart=self.apart
        )

    def add(self, name: str, *arguments: Any, **more: Any) -> FakeEndpoint:
        self.here.add(name, *arguments, **more)
        return self.there.add(name, *arguments, **more)

    def send(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Awaited:
        text = body if isinstance(body, (bytes, memoryview)) else json.dumps(body).encode()
        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        exchange = Awaited("POST", path.encode(), b"", pairs, text, 50.0, None, None, 64 if headers else 0)
        exchange.done = asyncio.Event()
        self.there.rest.exchange(exchange)
        return exchange

    async def ask(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        exchange = self.send(path, body, headers)
        await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
        return exchange.answer


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.add("twice", {"x": "float64[n]"}, {"y": "float64[n]"}, lambda inputs: {"y": inputs["x"] * 2})
    bench.add("wide", {"x": "float64[n, 3]"}, {"y": "float64[n, 3]"}, lambda inputs: {"y": inputs["x"]})
    bench.add("names", {"s": "str[n]"}, {"n": "int64[n]"}, lambda inputs: {"n": np.array([*map(len, inputs["s"])])})
    bench.add("grow", {"n": "int64[1]"}, {"y": "float64[m]"}, lambda inputs: {"y": np.arange(inputs["n"][0]) / 3})
    return bench


def nested(values: list[float], width: int) -> list[list[float]]:
    return [values[at : at + width] for at in range(0, len(values), width)]


TEXTS = ["a,b]" * 4] * 60_000
BODIES = {
    "V2": ("/v2/models/twice/infer", {"id": "i", "inputs": [tensor("x", "FP64", [MANY], NUMBERS)]}),
    "V2 nested": ("/v2/models/wide/infer", {"inputs": [tensor("x", "FP64", [MANY // 3, 3], nested(NUMBERS, 3))]}),
    "V2 texts": ("/v2/models/names/infer", {"inputs": [tensor("s", "BYTES", [len(TEXTS)], TEXTS)]}),
    "V1": ("/v1/models/twice:predict", {"instances": NUMBERS}),
    "V1 rows": ("/v1/models/wide:predict", {"instances": [{"x": row} for row in nested(NUMBERS, 3)]}),
    "V1 columns": ("/v1/models/twice:predict", {"inputs": {"x": NUMBERS}}),
    "plain": ("/predict/twice", [{"x": number} for number in NUMBERS]),
    "plain columns": ("/predict/wide", {"columns": {"x": nested(NUMBERS, 3)}}),
    "wrong": ("/v2/models/twice/infer", {"inputs": [tensor("x", "FP64", [MANY + 1], [*NUMBERS, "a"])]}),
    "wrong number": ("/v2/models/twice/infer", {"inputs": [tensor("x", "FP64", [MANY - 1], NUMBERS)]}),
    "wrong name": ("/predict/twice", {"columns": {"z": NUMBERS}}),
    "wrong rows": ("/predict/twice", [{"x": number} for number in NUMBERS] + [{"x": None}]),
    "unknown parameter": (
        "/v2/models/twice/infer", {"inputs": [tensor("x", "FP64", [MANY], NUMBERS)], "parameters": {"priority": "a"}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
def test_a_long_body_is_answered_as_on_the_spot(bench: Bench, kind: str) -> None:
    path, body = BODIES[kind]
    text = json.dumps(body).encode()
    assert len(text) > ON_LOOP_BYTES
    wanted = bench.here.ask("POST", path, text, {})

    async def play() -> None:
        status, answer, content_type, _ = await bench.ask(path, memoryview(text))
        assert (status, answer, content_type) == (wanted.status, wanted.body, wanted.content_type)

    run(play())
    assert [vars_of(event) for event in bench.there.events] == [vars_of(event) for event in bench.here.events]


def vars_of(event: Any) -> Any:
    return type(event).__name__, getattr(event, "code", None), getattr(event, "model", None)


@pytest.mark.parametrize("cut", [MANY // 2, -3])
def test_a_long_body_that_is_no_json_is_refused_as_on_the_spot(bench: Bench, cut: int) -> None:
    path, body = BODIES["V2"]
    text = json.dumps(body).encode()
    broken = text[:cut] + b"x" + text[cut:]
    wanted = bench.here.ask("POST", path, broken, {})
    assert wanted.status == 400 and "is not valid JSON" in wanted.error

    async def play() -> None:
        assert (await bench.ask(path, broken))[:2] == (400, wanted.body)

    run(play())


class Gate:
    """Holds up whoever reads elements, in the thread of the reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self.paused = 0
        for module in (rest, rows):
            from_json: Any = vars(module)["from_json"]

            def held(*arguments: Any, way: Callable[..., Any] = from_json) -> Any:
                if len(arguments[3]) > ON_LOOP_BYTES // 2:
                    self.reached.set()
                    assert self.open.wait(BOUND_SECONDS)
                return way(*arguments)

            monkeypatch.setattr(module, "from_json", held)

    async def wait(self) -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, self.reached.wait, BOUND_SECONDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


SMALL = {"inputs": [tensor("x", "FP64", [2], [1.0, 2.0])]}


@pytest.mark.parametrize("kind", ["V2", "V1", "plain columns"])
def test_others_are_served_while_a_long_body_is_read(bench: Bench, gate: Gate, kind: str) -> None:
    path, body = BODIES[kind]

    async def play() -> None:
        exchange = bench.send(path, body)
        await gate.wait()
        assert exchange.answer is None
        assert (await bench.ask("/v2/models/twice/infer", SMALL))[0] == 200
        gate.open.set()
        await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
        assert exchange.answer is not None and exchange.answer[0] == 200
        assert exchange.body == b"", "nothing keeps a body that has been read"

    run(play())


def test_a_body_whose_caller_has_left_is_not_read_on(bench: Bench, gate: Gate) -> None:
    path, body = BODIES["V2"]
    endpoint = bench.there.endpoints["twice"]

    async def play() -> None:
        exchange = bench.send(path, body)
        await gate.wait()
        (work,) = bench.apart._works
        exchange.gone.gone()
        gate.open.set()
        await idle(bench.apart)
        assert work.stopped and exchange.answer is None and endpoint.tickets == []

    run(play())


def test_bodies_that_nobody_wants_any_more_are_not_kept_for_a_thread(bench: Bench, gate: Gate) -> None:
    """The threads may be busy for seconds, and callers come and go: what waits there would be bounded by nothing."""
    path, body = BODIES["V2"]
    text = json.dumps(body).encode()
    late = {"Maitred-Timeout-Ms": "20"}

    async def play() -> None:
        first = [bench.send(path, body) for _ in range(THREADS)]
        await gate.wait()
        arrays = [np.frombuffer(text, np.uint8).copy() for _ in range(2)]
        kept = [weakref.ref(array) for array in arrays]
        left, expired = bench.send(path, memoryview(arrays[0])), bench.send(path, memoryview(arrays[1]), late)
        del arrays
        left.gone.gone()
        await asyncio.wait_for(expired.done.wait(), BOUND_SECONDS)
        assert expired.answer is not None and expired.answer[0] == 504
        left.body = expired.body = b""
        del left, expired
        gc.collect()
        assert [ref() for ref in kept] == [None, None]
        gate.open.set()
        for exchange in first:
            await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
            assert exchange.answer is not None and exchange.answer[0] == 200
        await idle(bench.apart)

    run(play())


async def idle(apart: Apart) -> None:
    """Wait until nothing is being read or written."""

    async def wait() -> None:
        while apart._works:
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), BOUND_SECONDS)


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [({"Maitred-Timeout-Ms": "20"}, {}), (None, {"timeout": 20_000}), ({"Maitred-Timeout-Ms": "9000"}, {"timeout": 1})],
)
def test_a_deadline_that_passes_while_a_body_is_read_is_a_504_at_once(
    bench: Bench, gate: Gate, headers: dict[str, str] | None, parameters: dict[str, int]
) -> None:
    path, body = BODIES["V2"]

    async def play() -> None:
        status, answer, _, _ = await bench.ask(path, {**body, "parameters": parameters}, headers)
        assert not gate.open.is_set(), "the answer did not wait for the reading"
        assert status == 504 and b"while the body was read" in answer
        gate.open.set()
        await idle(bench.apart)
        assert bench.there.endpoints["twice"].tickets == []

    run(play())
    assert [event.code for event in bench.there.events] == ["deadline_passed"]  # type: ignore[union-attr]


def test_a_body_is_read_anew_where_the_model_has_changed_meanwhile(bench: Bench, gate: Gate) -> None:
    path, body = BODIES["V2"]

    async def play() -> None:
        exchange = bench.send(path, body)
        await gate.wait()
        changed = bench.there.add(
            "other", {"x": "float64[n]", "z": "int64[n] default=1"}, {"y": "float64[n]"}, lambda i: {"y": -i["x"]}
        )
        served = bench.there.router.get("twice")
        served.description = bench.there.router.get("other").description
        served.endpoint = changed
        gate.open.set()
        await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
        assert set(changed.request.inputs) == {"x", "z"}

    run(play())


def test_closing_stops_what_is_under_way(bench: Bench, gate: Gate) -> None:
    path, body = BODIES["V2"]

    async def play() -> None:
        exchanges = [bench.send(path, body) for _ in range(4)]  # more than there are threads
        await gate.wait()
        bench.apart.close()
        gate.open.set()
        await idle(bench.apart)
        assert [exchange.answer for exchange in exchanges] == [None] * 4

    run(play())


def test_what_was_read_is_as_long_as_the_body() -> None:
    async def play() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(7)
        read = Read(b"abc", "key", future)
        assert len(read) == 3 and read.take() == 7 and read.holds_for("key") and not read.holds_for("other")

    run(play())


# ---------------------------------------------------------------- answers

COUNT = ON_LOOP_ELEMENTS + 5


@pytest.mark.parametrize("kind", ["V2", "V2 nested", "V1", "V1 columns", "plain columns"])
def test_a_long_answer_is_that_of_the_spot(bench: Bench, kind: str) -> None:
    path, body = BODIES[kind]
    wanted = bench.here.ask("POST", path, json.dumps(body).encode(), {})
    assert wanted.status == 200 and len(wanted.body) > ON_LOOP_ELEMENTS

    async def play() -> None:
        status, answer, _, extra = await bench.ask(path, body)
        assert (status, answer) == (200, wanted.body)
        assert extra.startswith(b"Server-Timing: queue;dur=0.12, batch;dur=0.500, model;dur=1.000\r\n")

    run(play())


def test_a_long_answer_is_not_written_on_the_loop(bench: Bench) -> None:
    threads: list[str] = []

    async def play() -> None:
        write = bench.apart.write

        def noted(way: Callable[[Any], Any], done: Any) -> Any:
            def noting(pause: Any) -> Any:
                threads.append(threading.current_thread().name)
                return way(pause)

            return write(noting, done)

        bench.apart.write = noted  # type: ignore[method-assign]
        await bench.ask("/v2/models/grow/infer", {"inputs": [tensor("n", "INT64", [1], [COUNT])]})
        await bench.ask("/v2/models/grow/infer", {"inputs": [tensor("n", "INT64", [1], [100])]})

    run(play())
    assert len(threads) == 1 and threads[0].startswith("maitred-apart")


def test_each_caller_of_a_long_batch_gets_its_own_rows(bench: Bench) -> None:
    width = 3
    endpoint = bench.there.endpoints["wide"]
    endpoint.function = None
    each = COUNT // 4

    async def play() -> None:
        exchanges = [
            bench.send("/v2/models/wide/infer", {"inputs": [tensor("x", "FP64", [each, width], [0.0] * each * width)]})
            for _ in range(4)
        ]
        array = np.arange(4 * each * width, dtype=np.float64).reshape(-1, width)
        array[each + 1, 0] = np.nan  # the second caller's
        batch = endpoint.outputs({"y": array}, len(array))
        for at, ticket in enumerate(endpoint.tickets):
            ticket.end(Result(batch, at * each, (at + 1) * each, False, 0.0))
        array[:] = -1.0  # the memory is somebody else's from now on
        assert [ticket.error is not None for ticket in batch.unwritten] == [True]
        for at, exchange in enumerate(exchanges):
            await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
            assert exchange.answer is not None
            status, body = exchange.answer[:2]
            if at == 1:
                assert status == 500 and b"NaN" in body
            else:
                data = json.loads(body)["outputs"][0]["data"]
                assert status == 200 and data == list(range(at * each * width, (at + 1) * each * width))

    run(play())


def test_an_answer_whose_caller_has_left_is_not_written_on(bench: Bench) -> None:
    async def play() -> None:
        exchange = bench.send("/v2/models/grow/infer", {"inputs": [tensor("n", "INT64", [1], [COUNT])]})
        (work,) = bench.apart._works
        exchange.gone.gone()
        await idle(bench.apart)
        assert work.stopped and exchange.answer is None

    run(play())


def test_nothing_keeps_an_answer_that_was_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are not looked at by the garbage collector, so a circle of them would stay for ever."""
    kept: list[weakref.ref[Any]] = []
    owned = Result.owned

    def watched(self: Result) -> Result:
        own = owned(self)
        kept.extend(weakref.ref(tensor.data) for tensor in own.batch.tensors.values())
        return own

    monkeypatch.setattr(Result, "owned", watched)

    async def play() -> None:
        body = {"inputs": [tensor("n", "INT64", [1], [COUNT])]}
        assert (await bench.ask("/v2/models/grow/infer", body))[0] == 200
        await idle(bench.apart)

    run(play())
    gc.collect()
    assert kept[-1]() is None, "the copy that was written; the endpoint here has one of its own"


@pytest.mark.parametrize("count", [3, COUNT])
def test_nothing_keeps_an_answer_that_could_not_be_written(bench: Bench, count: int) -> None:
    kept: list[weakref.ref[Any]] = []

    def broken(inputs: dict[str, Any]) -> dict[str, Any]:
        array = np.full(count, np.nan)
        kept.append(weakref.ref(array))
        return {"y": array}

    async def play() -> None:
        endpoint = bench.add("broken", {"n": "int64[1]"}, {"y": "float64[m]"}, broken)
        endpoint.function = None
        for _ in range(2):
            exchange = bench.send("/v2/models/broken/infer", {"inputs": [tensor("n", "INT64", [1], [1])]})
            (ticket,) = endpoint.tickets
            ticket.end(Result(endpoint.outputs(broken({}), 1), 0, 1, True))
            ticket.result = None  # as the pool does
            assert exchange.answer is not None and exchange.answer[0] == 500
            endpoint.tickets.clear()
            del ticket, exchange

    run(play())
    gc.collect()
    assert [ref() for ref in kept] == [None, None]


def test_texts_of_a_long_answer(bench: Bench) -> None:
    endpoint = bench.add("echo", {"s": "str[n]"}, {"s": "str[n]"})
    texts = ["\u00e9" * 1000, 'a",'] * 1100

    async def play() -> None:
        exchange = bench.send("/v2/models/echo/infer", {"inputs": [tensor("s", "BYTES", [1], ["a"])]})
        (ticket,) = endpoint.tickets
        assert isinstance(ticket, Ticket)
        outputs = endpoint.outputs({}, len(texts))
        outputs.tensors["s"] = Tensor("str", (len(texts),), texts)
        ticket.end(Result(outputs, 0, len(texts), True, 0.0))
        assert exchange.answer is None
        await asyncio.wait_for(exchange.done.wait(), BOUND_SECONDS)
        assert exchange.answer is not None
        assert json.loads(exchange.answer[1])["outputs"][0]["data"] == texts

    run(play())
