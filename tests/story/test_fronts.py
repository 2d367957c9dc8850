"""Stories of a house with several fronts: they answer as one does, and whoever dies costs nobody else an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from house import MODELS, Caller, Reply, Standing, settings, standing, v2

from loops import run
from maitred.assemble import House
from maitred.gateway.fronts import FrontsSettings
from maitred.settings import BatchingSettings
from maitred.testing import replicas as testing

pytestmark = pytest.mark.timeout(60)

INFER = "/v2/models/{}/infer"
LOST = (ConnectionError, asyncio.IncompleteReadError)


def same(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """A reply without what differs from one run to the next."""
    headers = {name: value for name, value in reply.headers.items() if name not in ("date", "server-timing")}
    return reply.status, headers, reply.body


def binary(values: list[float]) -> tuple[bytes, dict[str, str]]:
    raw = np.array(values, np.float32).tobytes()
    shape = [len(values) // 4, 4]
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}


def questions() -> list[tuple[Any, ...]]:
    """Every route, every form of answer, and every kind of mistake."""
    row = [0.1, -0.2, 0.3, 0.4]
    scorer = INFER.format("scorer")
    return [
        ("POST", scorer, v2("x", "FP32", row, 4, id="a")),
        ("POST", scorer, v2("x", "FP32", row * 100, 4)),
        ("POST", scorer, *binary(row)),
        ("POST", scorer, *binary(row * 40_000)),
        ("POST", scorer, v2("x", "FP32", row, 4, outputs=[{"name": "y", "parameters": {"classification": 2}}])),
        ("POST", scorer, v2("x", "FP32", row, 4, parameters={"temperature": 0.5})),
        ("POST", scorer, v2("x", "FP32", row, 3)),
        ("POST", scorer, v2("z", "FP32", row, 4)),
        ("POST", scorer, b"{"),
        ("POST", scorer, v2("x", "FP32", row, 4), {"Accept-Encoding": "gzip"}),
        ("GET", scorer),
        ("OPTIONS", scorer),
        ("POST", INFER.format("scorrer"), v2("x", "FP32", row, 4)),
        ("POST", "/v1/models/scorer:predict", {"instances": [row, row]}),
        ("POST", "/v1/models/scorer:predict", {"inputs": [row]}),
        ("POST", "/predict/scorer", {"x": row}),
        ("POST", "/predict/scorer", [{"x": row}, {"x": row}]),
        ("POST", "/predict/scorer", {"columns": {"x": [row]}}),
        ("POST", "/predict/root", {"x": -1.0}),
        ("POST", "/predict/root", {"x": 4.0}),
        ("POST", INFER.format("moody"), v2("x", "INT64", [666])),
        ("POST", INFER.format("moody"), v2("x", "INT64", [400])),
        ("POST", INFER.format("above"), v2("x", "FP32", [1.0, -1.0, 2.0])),
        ("POST", INFER.format("missing"), {"inputs": [
            {"name": name, "datatype": kind, "shape": [1, *more], "data": [None] * (2 if more else 1)}
            for name, kind, more in (("i", "INT64", ()), ("b", "BOOL", (2,)), ("s", "BYTES", ()), ("t", "INT64", ()))
        ]}),
        *(("GET", path) for path in (
            "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/scorer", "/v2/models/scorer/config",
            "/v2/models/scorer/ready", "/v1/models/scorer", "/", "/docs", "/docs/docs.js", "/openapi.json", "/nothing",
        )),
        ("POST", "/v2/repository/index", {}),
        ("POST", "/v2/repository/models/scorer/unload", {}),
    ]  # fmt: skip


SERVED = {"scorer": "Scorer", "moody": "Moody", "root": "Root", "above": "Above", "missing": "Missing"}


async def everything(house: Standing) -> list[tuple[int, dict[str, str], bytes]]:
    caller, found = house.caller(), []
    for question in questions():
        found.append(same(await caller.ask(*question)))
    return found


def test_two_fronts_answer_every_route_as_one_process_does(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, SERVED)) as alone:
            expected = await everything(alone)
        async with standing(settings(tmp_path, SERVED, fronts=2)) as house:
            assert len(house.front_pids()) == 2
            for found in await asyncio.gather(*(everything(house) for _ in range(4))):
                for question, one, other in zip(questions(), expected, found, strict=True):
                    assert one == other, question[:2]
            for _ in range(4):
                page = (await house.caller().ask("GET", "/metrics")).body.decode()
                assert "maitred_fronts 2" in page

    run(play())


# ---------------------------------------------------------------------- counts


def numbers(page: str, family: str) -> Counter[str]:
    """Values of a family's samples that are not 0, by their labels."""
    found = re.findall(rf"^{family}(?:{{(.*)}})? ([0-9.e+]+)$", page, re.MULTILINE)
    return Counter({labels: int(float(value)) for labels, value in found if float(value)})


def test_what_is_counted_is_what_was_sent(tmp_path: Path) -> None:
    asked = [
        ("echo", [1, 2], 200, "ok"),
        ("echo", ["no number"], 400, "malformed"),
        ("root", [4.0], 200, "ok"),
        ("root", [-4.0], 500, "model_fault"),
        ("moody", [400], 400, "malformed"),
        ("moody", [666], 500, "model_fault"),
    ]
    kinds = {"echo": "INT64", "root": "FP64", "moody": "INT64"}

    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo", "root": "Root", "moody": "Moody"}, fronts=2)) as house:
            sent: Counter[str] = Counter()
            refused: Counter[str] = Counter()

            async def caller(number: int) -> None:
                line = house.caller()
                for turn in range(30):
                    model, data, status, outcome = asked[(number + turn) % len(asked)]
                    reply = await line.ask("POST", INFER.format(model), v2("x", kinds[model], data))
                    assert reply.status == status, reply.body
                    sent[f'model="{model}",version="1",outcome="{outcome}"'] += 1
                for path, status in (("/v2/models/none", 404), (INFER.format("echo"), 405)):
                    assert (await line.ask("GET", path)).status == status
                    refused[f'status="{status}"'] += 1
                with socket.create_connection(("127.0.0.1", house.port)) as broken:
                    broken.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n")
                    assert await asyncio.to_thread(broken.recv, 100)
                refused['status="400"'] += 1
                page = (await line.ask("GET", "/metrics")).body.decode()
                assert numbers(page, "maitred_requests_total").total() >= 30, "what was answered has been counted"

            await asyncio.gather(*(caller(number) for number in range(12)))
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert numbers(page, "maitred_requests_total") == sent
            assert numbers(page, "maitred_http_errors_total") == refused

    run(play())


def test_the_bound_on_what_waits_holds_for_all_fronts_together(tmp_path: Path) -> None:
    async def play() -> None:
        given = settings(tmp_path, {"moody": "Moody"}, fronts=2)
        model = given.models["moody"]
        object.__setattr__(model, "batching", BatchingSettings(max_batch_rows=1, max_waiting_rows=10))
        async with standing(given) as house:
            lines = [house.caller() for _ in range(40)]
            first = asyncio.ensure_future(lines[0].ask("POST", INFER.format("moody"), v2("x", "INT64", [777])))
            async with asyncio.timeout(10):
                while not house.running_rows():
                    await asyncio.sleep(0.005)
            others = [
                asyncio.ensure_future(line.ask("POST", INFER.format("moody"), v2("x", "INT64", [at])))
                for at, line in enumerate(lines[1:])
            ]
            async with asyncio.timeout(10):
                while sum(one.done() for one in others) < 29:
                    await asyncio.sleep(0.005)
            assert {one.result().status for one in others if one.done()} == {429}
            lines[0].hang_up()
            replies = await asyncio.gather(*others)
            assert Counter(reply.status for reply in replies) == {429: 29, 200: 10}, (
                "ten wait, whichever front has them"
            )
            for at, reply in enumerate(replies):
                assert reply.status == 429 or reply.json()["outputs"][0]["data"] == [at]
            first.cancel()

    run(play())


# ---------------------------------------------------------------------- deaths


class Load:
    """Callers that ask all the time, and know what the answer has to be; those who lose their connection come again."""

    def __init__(self, house: Standing, callers: int = 16) -> None:
        self.answered = self.lost = 0
        self.wrong: list[bytes] = []
        self._house = house
        self._done = False
        self._callers = [asyncio.ensure_future(self._call(number)) for number in range(callers)]

    async def _call(self, number: int) -> None:
        line, turn = self._house.caller(), 0
        while not self._done:
            turn += 1
            question = v2("x", "INT64", [number, turn])
            try:
                async with asyncio.timeout(20):
                    reply = await line.ask("POST", INFER.format("echo"), question)
            except LOST:
                self.lost += 1
                line.hang_up()
                line = self._house.caller()
                continue
            self.answered += 1
            if reply.status != 200 or reply.json()["outputs"][0]["data"] != [number, turn]:
                self.wrong.append(reply.body)
        line.hang_up()

    async def more(self, answers: int) -> None:
        """Wait until so many more answers have come."""
        wanted = self.answered + answers
        async with asyncio.timeout(30):
            while self.answered < wanted:
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        self._done = True
        await asyncio.gather(*self._callers)


until = partial(testing.until, seconds=30.0)


@contextlib.asynccontextmanager
async def loaded(home: Path, **more: Any) -> AsyncIterator[tuple[Standing, Load]]:
    async with standing(settings(home, {"echo": "Echo"}, fronts=2, **more)) as house:
        load = Load(house)
        try:
            await load.more(200)
            yield house, load
        finally:
            await load.end()
        assert load.wrong == []


async def replaced(house: Standing, gone: int) -> None:
    """Wait until another front serves in the place of this one."""
    assert house._fronts is not None
    await until(lambda: gone not in house.front_pids() and house._fronts.standing() == 2)  # type: ignore[union-attr]


def test_a_front_that_is_killed_costs_its_own_callers_a_connection_and_others_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        async with loaded(tmp_path) as (house, load):
            killed = house.front_pids()[0]
            os.kill(killed, signal.SIGKILL)
            await replaced(house, killed)
            await load.more(200)
            assert 0 < load.lost < 16, "the callers of one front, and no others"
            answered = load.answered
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            counted = numbers(page, "maitred_requests_total")
            assert counted['model="echo",version="1",outcome="ok"'] >= answered

    run(play())


def test_a_front_whose_end_is_seen_before_that_of_its_pipe_costs_no_other_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maitred.gateway.fronts._EOF_SECONDS", 0.15)  # before any successor can be ready

    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"}, fronts=2)) as house:
            assert house._fronts is not None
            link = house._fronts._links()[0]
            asyncio.get_running_loop().remove_reader(link._reading)
            killed = house.front_pids()[0]
            os.kill(killed, signal.SIGKILL)
            await replaced(house, killed)
            assert house._fronts.restarts == 1

    run(play())


def test_a_front_that_hangs_is_found_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maitred.assemble.FrontsSettings", partial(FrontsSettings, silent_pings=2))

    async def play() -> None:
        async with loaded(tmp_path) as (house, load):
            hung = house.front_pids()[1]
            os.kill(hung, signal.SIGSTOP)
            await replaced(house, hung)
            await load.more(200)
            assert 0 < load.lost < 16

    run(play())


def test_a_replica_that_is_killed_costs_no_caller_of_any_front_an_answer(tmp_path: Path) -> None:
    async def play() -> None:
        async with loaded(tmp_path, replicas=2) as (house, load):
            killed = house.replica_pids()[0]
            os.kill(killed, signal.SIGKILL)
            await until(lambda: killed not in house.replica_pids() and len(house.replica_pids()) == 2)
            await load.more(200)
            assert load.lost == 0

    run(play())


def test_a_caller_of_a_front_who_hangs_up_frees_the_replica(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"}, fronts=2)) as house:
            line = house.caller()
            hanging = asyncio.ensure_future(line.ask("POST", INFER.format("moody"), v2("x", "INT64", [777])))
            await until(lambda: house.running_rows() > 0)
            line.hang_up()
            assert (await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [7]))).status == 200
            hanging.cancel()
            await until(lambda: 'outcome="cancelled"} 1' in house.metrics.page()[0].decode())

    run(play())


def test_what_a_killed_front_had_asked_is_cancelled_and_its_replica_is_free(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"}, fronts=2)) as house:
            hanging = asyncio.ensure_future(house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [777])))
            await until(lambda: house.running_rows() > 0)
            for pid in house.front_pids():
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not house.running_rows())
            with pytest.raises(LOST):
                await hanging
            reply = await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [7]))
            assert reply.status == 200, "who comes while there is no front waits in the backlog, and is answered"

    run(play())


def test_connections_are_shared_out_among_the_fronts(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"}, fronts=2)) as house:
            callers = [house.caller() for _ in range(60)]
            for caller in callers:
                assert (await caller.ask("GET", "/v2/health/live")).status == 200
            assert house._fronts is not None
            await until(lambda: sum(house._fronts.counts()) == 60)  # type: ignore[union-attr]
            assert min(house._fronts.counts()) >= 15

    run(play())


# ---------------------------------------------------------------------- start and end


def test_stopping_answers_what_the_fronts_had_taken(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"}, fronts=2)) as house:

            async def ask(value: int) -> list[int]:
                reply = await house.caller().ask("POST", INFER.format("echo"), v2("x", "INT64", [value]))
                return [reply.status, *reply.json()["outputs"][0]["data"]]

            asked = [asyncio.ensure_future(ask(value)) for value in range(50)]
            await until(lambda: any(one.done() for one in asked))
            pids = [*house.replica_pids(), *house.front_pids()]
            await house.stop(10.0)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            accepted = [answer for answer in answers if isinstance(answer, list)]
            assert accepted == [[200, value] for value, answer in enumerate(answers) if isinstance(answer, list)]
            assert accepted, "some had been accepted"
            assert not any(map(alive, pids)), "no process outlives the server"

    run(play())


def test_a_front_that_cannot_start_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("maitred.assemble.FrontsSettings", partial(FrontsSettings, module="maitred.no_such_module"))

    async def live() -> int:
        return await House(settings(tmp_path, {"echo": "Echo"}, fronts=2)).live(lambda line: None)

    assert run(live()) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["cannot start: a front did not start: its process exited with code 1"]


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


class Server(NamedTuple):
    process: subprocess.Popen[str]
    port: int
    lines: list[str]
    family: list[int]
    """The processes that it has started."""

    async def gone(self, seconds: float) -> None:
        await until(lambda: not any(map(alive, self.family)), seconds=seconds)


@contextlib.contextmanager
def serving(home: Path, *more: str) -> Iterator[Server]:
    """`maitred serve` in a session of its own, ready."""
    command = [
        sys.executable, "-m", "maitred.cli.main", "serve", f"moody={MODELS}:Moody", "--fronts", "2", "--listen",
        "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--home", str(home), *more,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().strip(), process.stdout.readline().strip()]
        family = children(process.pid)
        assert len(family) == 3, "two fronts and a replica"
        yield Server(process, int(lines[0].rpartition(":")[2]), lines, family)
    finally:
        process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_serve_prints_two_lines_and_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert server.lines[0] == f"http://127.0.0.1:{server.port}" and server.lines[1].startswith("curl -s http://")
        answer = subprocess.run(server.lines[1], shell=True, capture_output=True, text=True, timeout=10, check=True)
        assert json.loads(answer.stdout)["model_name"] == "moody"
        os.killpg(server.process.pid, signal.SIGINT)  # as a terminal does it
        assert server.process.wait(20) == 0
        assert not any(map(alive, server.family))


@contextlib.asynccontextmanager
async def calling(server: Server) -> AsyncIterator[Callable[[], Caller]]:
    """Makes callers of a server, and hangs up for them at the end."""
    callers: list[Caller] = []

    def caller() -> Caller:
        callers.append(Caller(server.port))
        return callers[-1]

    try:
        yield caller
    finally:
        for one in callers:
            one.hang_up()


async def running(caller: Caller) -> None:
    """Wait until a replica runs something."""
    async with asyncio.timeout(10):
        while not numbers((await caller.ask("GET", "/metrics")).body.decode(), "maitred_running_rows"):
            await asyncio.sleep(0.01)


def test_the_death_of_the_core_is_told_to_those_who_wait_and_leaves_no_process(tmp_path: Path) -> None:
    async def play() -> None:
        with serving(tmp_path) as server:
            async with calling(server) as caller:
                question = v2("x", "INT64", [777])
                asked = [asyncio.ensure_future(caller().ask("POST", INFER.format("moody"), question)) for _ in range(6)]
                await running(caller())
                server.process.kill()
                async with asyncio.timeout(5):
                    replies = await asyncio.gather(*asked, return_exceptions=True)
                statuses = [reply.status for reply in replies if isinstance(reply, Reply)]
                assert statuses == [503] * 6, replies
                await server.gone(10)

    run(play())


def test_a_second_signal_hurries_the_fronts_too(tmp_path: Path) -> None:
    async def play() -> None:
        with serving(tmp_path) as server:
            async with calling(server) as caller:
                asked = asyncio.ensure_future(caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [777])))
                await running(caller())
                server.process.send_signal(signal.SIGTERM)
                ready = caller()
                async with asyncio.timeout(10):
                    while (reply := await ready.ask("GET", "/v2/health/ready")).status == 200:
                        await asyncio.sleep(0.01)
                assert reply.headers["connection"] == "close", "who is still served hears that it is the last time"
                server.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(server.process.wait, 20) == 0
                assert not any(map(alive, server.family))
                with pytest.raises(LOST):
                    await asked

    run(play())
