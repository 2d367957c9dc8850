"""Workers killed, frozen and poisoned; servers told to stop; callers who hang up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter

from reliability.driver import (
    Answer,
    ConnectionLost,
    House,
    OpenLoop,
    Tally,
    Watch,
    Wire,
    alive,
    copies_ready,
    gather_bounded,
    message,
    model,
    nonces,
    until,
    wrong_nonce,
)
from reliability.judge import Case, Check, percentile

SLEEPER_CAPACITY = 4 * 8 / 0.0116
"""Rows a second of four replicas that run eight rows in 10 ms + 0.2 ms a row."""


FRUITLESS_DEATHS = 5
"""So many deaths of one copy without an answer in between, and its model has failed."""


async def _kill_now_and_then(house: House, kills: int, every: float) -> tuple[list[float], list[float]]:
    """Kill one worker after the other; gives the times of the kills, and how long each replacement took to load."""
    killed: list[float] = []
    back: list[float] = []
    rng = random.Random(1)
    for _ in range(kills):
        await asyncio.sleep(every)
        loads = len(house.marked("loads"))
        victims = house.workers()
        if not victims:
            continue
        os.kill(rng.choice(victims), signal.SIGKILL)
        killed.append(time.monotonic())
        took = await until(lambda loads=loads: len(house.marked("loads")) > loads, 15)  # type: ignore[misc]
        back.append(15.0 if took is None else took)
    return killed, back


async def a1(case: Case) -> None:
    kills, every = case.size("kills"), case.seconds("seconds_between")
    rate = case.limit("load_share") * SLEEPER_CAPACITY
    async with House({"sleeper": model("Sleeper", replicas=4)}) as house:
        load_seconds = house.start_seconds
        loop = OpenLoop(house, "sleeper")
        await loop.run(rate / 4, 1)
        calm = await loop.run(rate, 5)
        killing = asyncio.create_task(_kill_now_and_then(house, kills, every))
        tally = Tally()
        seconds: list[float] = []
        while not killing.done():
            part = await loop.run(rate, 5)
            _add(tally, part)
            seconds += part.seconds
        _, back = await killing
    case.none("wrong", tally.wrong)
    case.at_most("failed", tally.failed, 0)
    if tally.failed:
        kinds = Counter(f"{status} {body[:70]}" for _, status, body in tally.failures)
        case.fact(f"these: {kinds.most_common(2)}, {len(tally.lost)} lost, {tally.statuses[429]} of 429")
    case.at_most("hung", tally.hung, 0)
    case.at_most("capacity back", max(back, default=99), load_seconds + case.limit("back_seconds"), " s")
    before, during = calm.p99(), percentile(seconds, 0.99)
    case.at_most("p99", during / max(before, 1e-9), case.limit("p99_times"), "x")
    case.fact(f"{tally.sent:,} sent, {len(back)} kills")
    await _without_retry(case, max(3, kills // 4))


async def _without_retry(case: Case, kills: int) -> None:
    async with House({"once": model("OnceSleeper", replicas=4)}) as house:
        loop = OpenLoop(house, "once")
        killing = asyncio.create_task(_kill_now_and_then(house, kills, 1))
        tally, slow, other = Tally(), [], []
        while not killing.done():
            _add(tally, await loop.run(SLEEPER_CAPACITY * case.limit("load_share") / 2, 3))
        killed, _ = await killing
        for when, status, body in tally.failures:
            since = min((when - kill for kill in killed if when >= kill), default=99.0)
            slow += [f"{since:.2f} s after the kill"] if since > case.limit("failure_seconds") else []
            other += [f"{status} {body}"] if status != 503 else []
        ran = Counter(nonce for mark in house.marked("calls") for nonce in mark[3].split(","))
        del ran["0"]  # warm-up
    twice = [nonce for nonce, times in ran.items() if times > 1]
    case.none("with side effects ran twice", twice)
    case.none("wrong without retry", tally.wrong)
    case.at_most("failed without retry", tally.failed / len(killed), case.limit("batch_rows"), " a kill")
    case.none("of these not 503", other)
    case.none("of these late", slow)


def _add(total: Tally, part: Tally) -> None:
    total.sent += part.sent
    total.statuses.update(part.statuses)
    total.hung += part.hung
    total.wrong += part.wrong
    total.failures += part.failures
    total.lost += part.lost
    total.good += part.good


async def a3(case: Case) -> None:
    longest = case.limit("max_execution_seconds")
    noticed, lost = [], []
    entry = model("SlowSleeper", replicas=2, max_batch_rows=1, replicas_more={"max_execution_seconds": longest})
    async with House({"slow": entry}) as house:
        for trial in range(case.size("trials")):
            await copies_ready(house, 2, 10)
            victim = house.workers()[trial % 2]
            os.kill(victim, signal.SIGSTOP)

            async def ask(number: int) -> None:
                await asyncio.sleep(number * 0.01)
                answer = await house.client.infer("slow", nonces(number + 1), 25)
                if answer.status != 200 or wrong_nonce(answer, number + 1):
                    lost.append(f"{answer.status} {answer.body[:100]!r}")

            asked = asyncio.gather(*(ask(number) for number in range(50)))
            took = await until(lambda victim=victim: not alive(victim), 20, 0.05)  # type: ignore[misc]
            noticed.append(99.0 if took is None else took)
            await asked
        replaced = await copies_ready(house, 2, 10)
    case.at_most("noticed", max(noticed), min(case.limit("notice_seconds"), 2 * longest), " s")
    case.none("unanswered", lost)
    case.fact("replaced" if replaced else "not replaced", replaced)


async def a4(case: Case) -> None:
    models = {
        "mortal": model("Mortal", replicas=2), "looping": model("Logged"), "unlucky": model("Sleeper"),
        "echo": model("Echo"),
    }  # fmt: skip
    others: list[str] = []
    async with House(models) as house:
        done = asyncio.Event()
        watching = asyncio.create_task(_ask_on(house, "echo", done, others))
        await _killed_once(case, house)
        await _killed_each_time(case, house)
        await _never_up_again(case, house)
        done.set()
        others += [f"{answer.status} {answer.body[:100]!r}" for answer in await watching if answer.status != 200]
    case.none("failures of the other models", others)


async def _ask_on(house: House, name: str, done: asyncio.Event, wrong: list[str]) -> list[Answer]:
    """Ask a model every 20 ms, however long its answers take, until `done`; all answers."""
    answers: list[Answer] = []

    async def ask(number: int) -> None:
        answer = await house.client.infer(name, nonces(number), 10)
        answers.append(answer)
        if answer.status == 200 and wrong_nonce(answer, number):
            wrong.append(f"{name} answered {answer.body[:100]!r}")

    async with asyncio.TaskGroup() as asked:
        number = 0
        while not done.is_set():
            number += 1
            asked.create_task(ask(number))
            await asyncio.sleep(0.02)
    return answers


def _judge_outage(case: Case, kind: str, answers: list[Answer]) -> None:
    """Whoever asks while no copy is ready is served, or refused soon and told when to come again."""
    other = [f"{answer.status} {answer.body[:100]!r}" for answer in answers if answer.status not in (200, 503)]
    mute = [answer.body[:100].decode() for answer in answers if answer.status == 503 and not _retry_after(answer)]
    refused = sum(answer.status == 503 for answer in answers)
    worst = max((answer.seconds for answer in answers), default=99.0)
    case.none(f"neither served nor 503 ({kind})", other + mute)
    case.at_most(
        f"{kind}: {refused} of {len(answers)} refused, slowest of all", worst, case.limit("request_seconds"), " s"
    )


def _retry_after(answer: Answer) -> bool:
    return int(answer.headers.get("retry-after", "0")) >= 1


def _pids(house: House, kind: str) -> set[int]:
    """Processes that have begun to load a class of reliability/models.py and are alive."""
    return {int(mark[0]) for mark in house.marked("loads") if mark[2] == kind} & set(house.workers())


async def _is_ready(house: House, name: str) -> bool:
    return (await house.client.ask("GET", f"/v2/models/{name}/ready")).status == 200


async def _state(house: House, name: str) -> tuple[str, str]:
    index = (await house.client.ask("POST", "/v2/repository/index", b"{}")).json()
    entry = next(row for row in index if row["name"] == name)
    return str(entry.get("state")), str(entry.get("reason", ""))


async def _killed_once(case: Case, house: House) -> None:
    """The only copy dies by chance and is started again."""
    done, wrong = asyncio.Event(), list[str]()
    asking = asyncio.create_task(_ask_on(house, "unlucky", done, wrong))
    await asyncio.sleep(0.3)
    for pid in _pids(house, "Sleeper"):
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.2)
    until_ready = time.monotonic() + 10
    while not await _is_ready(house, "unlucky") and time.monotonic() < until_ready:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    done.set()
    _judge_outage(case, "one death", await asking)
    case.none("wrong", wrong)


async def _killed_each_time(case: Case, house: House) -> None:
    """The only copy dies each time that it is ready, before it was asked for anything."""
    started, kills = time.monotonic(), 0
    state, reason = "", ""
    while state != "UNAVAILABLE" and time.monotonic() < started + case.limit("failed_seconds"):
        if await _is_ready(house, "looping"):
            for pid in _pids(house, "Logged"):
                os.kill(pid, signal.SIGKILL)
                kills += 1
                await until(lambda pid=pid: not alive(pid), 5)  # type: ignore[misc]
        await asyncio.sleep(0.05)
        state, reason = await _state(house, "looping")
    given_up = state == "UNAVAILABLE" and "SIGKILL" in reason and kills == FRUITLESS_DEATHS
    case.fact(f"given up after {kills} deaths in {time.monotonic() - started:.1f} s ({state}: {reason[:80]})", given_up)
    answer = await house.client.infer("looping", nonces(1), 10)
    _judge_outage(case, "failed", [answer])


async def _never_up_again(case: Case, house: House) -> None:
    """All copies die, and none can be started any more."""
    house.tell("die")
    done, wrong = asyncio.Event(), list[str]()
    killed = time.monotonic()
    for pid in _pids(house, "Mortal"):
        os.kill(pid, signal.SIGKILL)
    asking = asyncio.create_task(_ask_on(house, "mortal", done, wrong))
    unready = failed = 99.0
    state, reason = "", ""
    while time.monotonic() < killed + case.limit("failed_seconds") and failed == 99.0:
        if unready == 99.0 and not await _is_ready(house, "mortal"):
            unready = time.monotonic() - killed
        state, reason = await _state(house, "mortal")
        if state == "UNAVAILABLE" and reason:
            failed = time.monotonic() - killed
        await asyncio.sleep(0.05)
    loads = len(house.marked("loads"))
    await asyncio.sleep(1.0)
    case.fact("not started again", len(house.marked("loads")) == loads)
    done.set()
    case.at_most("readiness 503 after", unready, case.limit("readiness_seconds"), " s")
    _judge_outage(case, "all dead", await asking)
    case.at_most(f"given up ({state}: {reason[:80]}) after", failed, case.limit("failed_seconds"), " s")
    case.none("wrong", wrong)


async def a5(case: Case) -> None:
    most, hurt, outcomes, open_door = 0, [], [], []
    async with House({"killer": model("Killer", replicas=4, max_batch_rows=32)}) as house:
        for trial in range(case.size("trials")):
            await copies_ready(house, 4, 10)
            before, poison = len(house.marked("loads")), -1 - trial

            async def neighbour(number: int) -> None:
                answer = await house.client.infer("killer", nonces(number + 1))
                if answer.status != 200 or wrong_nonce(answer, number + 1):
                    hurt.append(f"{answer.status} {answer.body[:100]!r}")

            asked = [neighbour(number) for number in range(31)]
            first, _ = await asyncio.gather(house.client.infer("killer", nonces(poison)), asyncio.gather(*asked))
            again = await house.client.infer("killer", nonces(poison))
            outcomes += [first.status, again.status]
            await copies_ready(house, 4, 10)
            most = max(most, len(house.marked("loads")) - before)
            open_door += [] if b"refused" in again.body else [again.body.decode()]
    case.at_most("workers lost", most, case.limit("workers"))
    case.none("neighbours hurt", hurt)
    case.fact(f"culprit got {sorted(set(outcomes))}", all(status >= 500 for status in outcomes))
    case.none("not quarantined", open_door)


async def a6(case: Case) -> None:
    grace = case.seconds("grace_seconds")
    lost: list[str] = []
    codes, orphans, slow, late_readiness = [], 0, 0.0, 0
    for _ in range(case.size("trials")):
        settings = {"drain_notice_seconds": grace, "drain_seconds": 5.0}
        async with House({"sleeper": model("Sleeper", replicas=2)}, **settings) as house:
            loop = OpenLoop(house, "sleeper")
            loading = asyncio.create_task(loop.run(0.7 * SLEEPER_CAPACITY / 2, grace + 2))
            await asyncio.sleep(1)
            workers = house.workers()
            assert house.process is not None
            house.process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            late_readiness += not await _unready_while_open(house, grace)
            await until(lambda house=house: house.process.poll() is not None, 20)  # type: ignore[misc]
            slow = max(slow, time.monotonic() - told - grace - 5.0)
            codes.append(house.process.poll())
            tally = await loading
            lost += [text for text in tally.lost if float(text.split()[-2]) > case.limit("read_seconds")]
            lost += [f"{status} {body}" for _, status, body in tally.failures if "drain" not in body]
            await until(lambda workers=workers: not any(map(alive, workers)), case.limit("orphan_seconds"))  # type: ignore[misc]
            orphans += sum(map(alive, workers))
    case.none("accepted lost", lost)
    case.fact(f"exit codes {sorted(set(codes), key=str)}", set(codes) == {0})
    case.at_most("exit over the drain limit", max(0.0, slow), case.limit("over_drain_seconds"), " s")
    case.fact("readiness fails first", late_readiness == 0)
    case.at_most("orphans", orphans, 0)
    case.at_most("second SIGTERM", await _second_term(), case.limit("second_seconds"), " s")


async def _unready_while_open(house: House, grace: float) -> bool:
    """Whether readiness says no while requests are still taken."""
    end = time.monotonic() + grace
    while time.monotonic() < end:
        try:
            if (await house.client.ask("GET", "/v2/health/ready")).status != 200:
                return (await house.client.infer("sleeper", nonces(0))).status == 200
        except (OSError, ConnectionLost):
            return False
        await asyncio.sleep(0.01)
    return False


async def _second_term() -> float:
    async with House({"told": model("Told")}, drain_notice_seconds=5.0, drain_seconds=30.0) as house:
        body = {"inputs": [*nonces(1)["inputs"], _milliseconds(20_000)]}
        running = asyncio.create_task(house.client.infer("told", body))
        await until(lambda: bool(house.marked("calls")), 5)
        assert house.process is not None
        house.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        house.process.send_signal(signal.SIGTERM)
        took = await until(lambda: house.process is not None and house.process.poll() is not None, 10)
        running.cancel()
        with contextlib.suppress(BaseException):
            await running
    return 99.0 if took is None else took


def _milliseconds(value: float) -> dict[str, object]:
    return {"name": "milliseconds", "datatype": "FP32", "shape": [1], "data": [value]}


async def a12(case: Case) -> None:
    rng = random.Random(2)
    body = b'{"inputs":[{"name":"nonce","datatype":"INT64","shape":[1],"data":[1]}]}'
    data = message("POST", "/v2/models/sleeper/infer", body)
    async with House({"sleeper": model("Sleeper", replicas=2)}) as house:

        async def hang_up(number: int) -> None:
            _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", house.port)
            whole = rng.random() < 0.7
            wire.send(data if whole else data[: rng.randrange(len(data))], lambda outcome: None)
            await asyncio.sleep(rng.random() * 0.03)
            wire.abort()

        for _ in range(2):  # the first round warms everything up
            await gather_bounded(case.size("disconnects") // 2, 50, hang_up)
            await asyncio.sleep(1)
        descriptors = house.descriptors()
        with Watch(house) as watch:
            await gather_bounded(case.size("disconnects"), 50, hang_up)
            took = await until(lambda: house.descriptors() <= descriptors, 5)
            answered = await house.client.infer("sleeper", nonces(7))
            await asyncio.sleep(0.3)
            left = house.memory() - watch.before
        waiting = [v for k, v in (await house.metrics()).items() if k.startswith("maitred_queue_rows")]
    case.at_most("descriptors back in", 99.0 if took is None else took, case.limit("free_seconds"), " s")
    case.at_most("memory kept", left / (1 << 20), case.limit("memory_bytes") / (1 << 20), " MiB")
    case.at_most("rows left waiting", sum(waiting), 0)
    case.fact("then answered", answered.status == 200 and not wrong_nonce(answered, 7))


CHECKS: dict[str, Check] = {"A1": a1, "A3": a3, "A4": a4, "A5": a5, "A6": a6, "A12": a12}
