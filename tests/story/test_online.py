"""Stories of the whole house: real sockets, real child processes, a model that answers, fails, dies and is replaced."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import socket
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from house import settings, standing, v2
from pytest import LogCaptureFixture

import maitred
from loops import run
from maitred.assemble import House
from maitred.scheduling.dispatcher import DispatchSettings
from maitred.settings import Address, ServerSettings

INFER = "/v2/models/{}/infer"


def test_a_model_is_served_from_its_description_to_its_metrics(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"scorer": "Scorer"})) as house:
            caller = house.caller()
            assert (await caller.ask("GET", "/v2/health/ready")).status == 200
            metadata = (await caller.ask("GET", "/v2/models/scorer")).json()
            assert metadata["inputs"][0]["shape"] == [-1, 4]
            reply = await caller.ask("POST", INFER.format("scorer"), v2("x", "FP32", [0.1, -0.2, 0.3, 0.4], 4, id="a"))
            assert reply.status == 200 and reply.json()["id"] == "a"
            assert "model;dur=" in reply.headers["server-timing"]
            with maitred.load(str(Path(__file__).with_name("models.py")) + ":Scorer") as embedded:
                expected = embedded.predict(x=np.array([[0.1, -0.2, 0.3, 0.4]], np.float32))["y"]
            answered = np.array(reply.json()["outputs"][0]["data"], np.float32)
            assert answered.tobytes() == expected.tobytes(), "embedded and over the wire: the same bits"
            assert (await caller.ask("GET", "/openapi.json")).json()["openapi"].startswith("3.1")
            assert b"<html" in (await caller.ask("GET", "/docs")).body.lower()
            page = (await caller.ask("GET", "/metrics")).body.decode()
            assert 'maitred_requests_total{model="scorer",version="1",outcome="ok"} 1' in page

    run(play())


def test_a_thousand_callers_at_once_get_their_own_answers(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"}, replicas=2)) as house:
            dice = random.Random(3)

            async def caller(number: int) -> None:
                line = house.caller()
                for turn in range(10):
                    rows = [number * 1000 + turn * 10 + row for row in range(dice.randint(1, 9))]
                    reply = await line.ask("POST", INFER.format("echo"), v2("x", "INT64", rows, id=f"{number}.{turn}"))
                    assert reply.status == 200, reply.body
                    answer = reply.json()
                    assert (answer["id"], answer["outputs"][0]["data"]) == (f"{number}.{turn}", rows)
                line.hang_up()

            await asyncio.gather(*(caller(number) for number in range(100)))

    run(play())


def test_a_poisoned_request_fails_alone_and_says_why(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"})) as house:

            async def ask(value: int) -> int:
                reply = await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [value]))
                if reply.status == 200:
                    assert reply.json()["outputs"][0]["data"] == [value]
                else:
                    assert "666 is not liked here" in reply.json()["error"] and "Traceback" not in reply.json()["error"]
                return reply.status

            values = [*range(100, 131), 666]
            random.Random(1).shuffle(values)
            statuses = await asyncio.gather(*(ask(value) for value in values))
            assert {value: status for value, status in zip(values, statuses, strict=True) if status != 200} == {
                666: 500
            }

    run(play())


def test_an_input_that_the_model_calls_a_mistake_is_a_400_and_its_neighbours_are_answered(
    tmp_path: Path, caplog: LogCaptureFixture
) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"})) as house:

            async def ask(*values: int) -> tuple[int, str]:
                reply = await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [*values]))
                return reply.status, reply.json().get("error", "")

            asked = [(value,) for value in range(100, 120)]
            asked[7:9] = [(400,), (13, 400)]
            found = await asyncio.gather(*(ask(*values) for values in asked))
            wrong = [answer for answer, values in zip(found, asked, strict=True) if 400 in values]
            assert wrong == [(400, "400 is none of ours")] * 2
            assert all(status == 200 for (status, _), values in zip(found, asked, strict=True) if 400 not in values)
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'maitred_requests_total{model="moody",version="1",outcome="malformed"} 2' in page
            assert 'outcome="model_fault"' not in page

    caplog.set_level("WARNING")
    run(play())
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("maitred")]


def test_a_request_that_kills_its_replica_is_found_out_and_the_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a new copy is given the time here that it takes on a busy machine."""
    monkeypatch.setattr("maitred.assemble.DispatchSettings", partial(DispatchSettings, outage_seconds=30.0))

    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"}, replicas=2)) as house:

            async def ask(value: int) -> int:
                reply = await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [value]))
                return reply.status

            values = [*range(100, 115), 999]
            statuses = await asyncio.gather(*(ask(value) for value in values))
            assert statuses[:-1] == [200] * 15
            assert statuses[-1] >= 500
            assert await ask(999) == 500, "quarantined: it is refused at the door"
            assert await ask(5) == 200

    run(play())


def test_killed_replicas_cost_nobody_an_answer(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"}, replicas=2)) as house:
            failures: list[bytes] = []
            done = False

            async def caller(number: int) -> None:
                line, turn = house.caller(), 0
                while not done:
                    turn += 1
                    reply = await line.ask("POST", INFER.format("echo"), v2("x", "INT64", [number, turn]))
                    if reply.status != 200 or reply.json()["outputs"][0]["data"] != [number, turn]:
                        failures.append(reply.body)
                line.hang_up()

            callers = [asyncio.ensure_future(caller(number)) for number in range(8)]
            for _ in range(4):
                before = house.replica_pids()
                os.kill(before[0], signal.SIGKILL)
                async with asyncio.timeout(20):
                    while len(now := house.replica_pids()) < 2 or before[0] in now or not house.router.ready():
                        await asyncio.sleep(0.01)
            done = True
            await asyncio.gather(*callers)
            assert failures == []

    run(play())


def test_a_caller_who_hangs_up_frees_the_replica(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"moody": "Moody"})) as house:
            line = house.caller()
            hanging = asyncio.ensure_future(line.ask("POST", INFER.format("moody"), v2("x", "INT64", [777])))
            async with asyncio.timeout(10):
                while not house.running_rows():
                    await asyncio.sleep(0.005)
            line.hang_up()
            reply = await house.caller().ask("POST", INFER.format("moody"), v2("x", "INT64", [7]))
            assert reply.status == 200
            hanging.cancel()
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'outcome="cancelled"} 1' in page

    run(play())


def test_an_answer_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"root": "Root"})) as house:

            async def ask(*values: float) -> int:
                reply = await house.caller().ask("POST", INFER.format("root"), v2("x", "FP64", list(values)))
                return reply.status

            many = [4.0] * 100 + [-1.0]  # more than a batch, so that it is cut and joined
            asked = [ask(4.0), ask(-1.0), ask(9.0, 9.0), ask(9.0, -9.0), ask(*many), ask(*many[:100])]
            assert await asyncio.gather(*asked) == [200, 500, 200, 500, 500, 200]
            page = (await house.caller().ask("GET", "/metrics")).body.decode()
            assert 'outcome="ok"} 3' in page
            assert 'outcome="model_fault"} 3' in page

    run(play())


def test_a_model_that_cannot_load_is_never_ready_and_says_why(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"broken": "Broken", "echo": "Echo"})) as house:
            caller = house.caller()
            assert (await caller.ask("GET", "/v2/health/ready")).status == 503
            assert (await caller.ask("GET", "/v2/health/live")).status == 200
            reply = await caller.ask("POST", INFER.format("broken"), v2("x", "INT64", [1]))
            assert reply.status == 503 and "no weights here" in reply.json()["error"]
            assert (await caller.ask("POST", INFER.format("echo"), v2("x", "INT64", [1]))).status == 200

    run(play())


def test_stopping_answers_what_was_accepted(tmp_path: Path) -> None:
    async def play() -> None:
        async with standing(settings(tmp_path, {"echo": "Echo"})) as house:

            async def ask(value: int) -> list[int]:
                reply = await house.caller().ask("POST", INFER.format("echo"), v2("x", "INT64", [value]))
                return [reply.status, *reply.json()["outputs"][0]["data"]]

            asked = [asyncio.ensure_future(ask(value)) for value in range(50)]
            async with asyncio.timeout(10):
                while not house.running_rows() and not all(one.done() for one in asked):
                    await asyncio.sleep(0)
            pids = house.replica_pids()
            await house.stop(10.0)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            accepted = [answer for answer in answers if isinstance(answer, list)]
            assert accepted == [[200, value] for value, answer in enumerate(answers) if isinstance(answer, list)]
            assert accepted, "some had been accepted"
            assert all(not Path(f"/proc/{pid}").exists() for pid in pids), "no replica outlives the server"

    run(play())


def announced(given: ServerSettings) -> tuple[int, list[str]]:
    """The exit code of a server, and what it said of itself; it is stopped once it has told its last line."""
    said: list[str] = []

    async def live() -> int:
        house = House(given)

        def announce(line: str) -> None:
            said.append(line)
            if len(said) == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return await house.live(announce)

    return run(live()), said


def test_a_server_without_any_model_that_loads_says_why_and_ends(tmp_path: Path, caplog: LogCaptureFixture) -> None:
    code, said = announced(settings(tmp_path, {"broken": "Broken", "worse": "Broken"}, "inline"))
    assert (code, len(said)) == (1, 1)
    *reasons, last = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert last == "nothing is served, for no model could be loaded"
    for name in ("broken", "worse"):
        [reason] = [line for line in reasons if f"model {name} " in line]
        assert "no weights here" in reason and "\n" not in reason


def test_one_model_that_loads_is_served_and_its_line_is_the_only_one(tmp_path: Path) -> None:
    code, said = announced(settings(tmp_path, {"broken": "Broken", "echo": "Echo"}, "inline"))
    assert code == 0
    url, line = said
    assert url.startswith("http://127.0.0.1:")
    assert line.startswith("curl ") and "/v2/models/echo" in line


@pytest.mark.parametrize("setting", ["listen", "admin_listen"])
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a..b"])
def test_an_address_that_cannot_be_listened_on_is_named(
    tmp_path: Path, caplog: LogCaptureFixture, setting: str, host: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = Address(host, busy.getsockname()[1])
        given = dataclasses.replace(settings(tmp_path, {"echo": "Echo"}, "inline"), **{setting: address})
        assert announced(given) == (1, [])
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert str(address) in error and f"--{setting.replace('_', '-')} HOST:PORT" in error and "\n" not in error
