"""More load than there is capacity, deadlines that cannot be met, and a model that blocks everything it can reach."""

from __future__ import annotations

import asyncio
import json
import time

from reliability.driver import (
    SLO_SECONDS,
    Answer,
    House,
    Liveness,
    LoadWire,
    OpenLoop,
    Tally,
    Watch,
    message,
    model,
    nonces,
    tensor,
    until,
)
from reliability.judge import Case, Check, percentile

REPLICAS = 2
CLIENTS = 64
LIKELY_CAPACITY = REPLICAS * 8 / 0.0416
"""Rows a second of the replicas, which run eight rows in 40 ms + 0.2 ms a row, if nothing came between.

Ten times as many requests are what one process can send and another can read and refuse where two cores do both: the
test is about what becomes of requests, not about how many a machine can move.
"""


class ClosedLoop(OpenLoop):
    """Clients that each ask again as soon as they are answered."""

    _end = 0.0

    async def capacity(self, clients: int, seconds: float) -> tuple[float, Tally]:
        """Right answers a second in so long, and all that came of so many clients."""
        tally = self.tally = Tally()
        self._end = time.monotonic() + seconds
        for _ in range(clients):
            self._fire(tally)
        await asyncio.sleep(seconds)
        rate = tally.good / seconds
        while tally.waiting:
            await asyncio.sleep(0.01)
        return rate, tally

    def answered(self, wire: LoadWire, nonce: int, head: bytes, body: bytes, seconds: float) -> None:
        super().answered(wire, nonce, head, body, seconds)
        if time.monotonic() < self._end:
            self._fire(self.tally)


async def a8(case: Case) -> None:
    seconds, step = case.seconds("seconds"), case.seconds("step_seconds")
    entry = model("SlowSleeper", replicas=REPLICAS, slo={"p99_seconds": SLO_SECONDS})
    async with House({"slow": entry}) as house:
        loop = OpenLoop(house, "slow", SLO_SECONDS, deadline=True)
        await loop.run(LIKELY_CAPACITY / 4, 2)
        calm = await loop.run(LIKELY_CAPACITY / 2, 3)
        capacity, tally = await ClosedLoop(house, "slow").capacity(CLIENTS, step)
        case.at_least("C", capacity, 1.0, "/s")
        case.none("failed while C was measured", tally.failed)
        with Watch(house) as watch:
            for times in (2, 10):
                async with Liveness(house) as live:
                    tally = await loop.run(times * capacity, seconds)
                goodput = tally.good / seconds / max(capacity, 1e-9)
                case.at_least(f"{times}x: goodput", goodput * 100, 100 * case.limit(f"goodput_{times}x"), " % of C")
                case.at_most("accepted p99", 1000 * tally.p99(), 1000 * case.limit("accepted_seconds"), " ms")
                refusals = percentile(tally.refusal_seconds, 0.99)
                case.at_most("refusals p99", 1000 * refusals, 1000 * case.limit("refusal_seconds"), " ms")
                case.at_most("without Retry-After", tally.without_retry_after, 0)
                case.none("wrong", tally.wrong)
                offered = (tally.sent + tally.not_offered) / seconds
                case.fact(f"{tally.sent / seconds:,.0f} sent of {offered:,.0f}/s")
                case.fact(f"driver's own lag {1000 * tally.driver_lag_seconds:.0f} ms")
                other = [f"{status} {body}" for _, status, body in tally.failures if status not in (503, 504)]
                case.none("other failures", other + tally.lost)
                case.at_most("liveness p99", 1000 * live.p99(), 1000 * case.limit("liveness_seconds"), " ms")
            growth = watch.growth / watch.before
        started = time.monotonic()
        back = case.limit("back_seconds") + 1
        while time.monotonic() < started + case.limit("back_seconds"):
            tally = await loop.run(LIKELY_CAPACITY / 2, 1)
            if tally.failed == 0 and tally.p99() <= 1.5 * calm.p99() + 0.01:
                back = time.monotonic() - started
                break
        case.at_most("RSS", 100 * growth, 100 * case.limit("memory_growth"), " %")
        case.at_most("p99 back in", back, case.limit("back_seconds"), " s")


async def a11(case: Case) -> None:
    """Rounds in which one request holds the only replica for longer than the deadline of all that come after it."""
    each, deadline, held = 200, 0.1, 0.3
    rounds = case.size("requests") // each
    late: list[float] = []
    expires: dict[int, float] = {}
    statuses: dict[int, int] = {}
    async with House({"told": model("Told", max_batch_rows=64)}, log_level="warning") as house:
        for number in range(20):  # the curve learns that a batch is short
            await house.client.infer("told", _told(10_000_000 + number, 1))
        wires = [await house.client.wire() for _ in range(each)]
        for turn in range(rounds):
            calls = len(house.marked("calls"))
            holder = asyncio.create_task(house.client.infer("told", _told(20_000_000 + turn, held * 1000)))
            await until(lambda calls=calls: len(house.marked("calls")) > calls, 1, 0.005)  # type: ignore[misc]
            nonces = range(turn * each + 1, (turn + 1) * each + 1)
            headers = {"Maitred-Timeout-Ms": f"{deadline * 1000:.0f}"}
            path = "/v2/models/told/infer"
            sent = [message("POST", path, json.dumps(_told(nonce, 0)).encode(), headers) for nonce in nonces]
            answers = [asyncio.get_running_loop().create_future() for _ in nonces]
            for wire, data, answer in zip(wires, sent, answers, strict=True):
                wire.send(data, answer.set_result)
            started = time.monotonic()
            for nonce, outcome in zip(nonces, await asyncio.wait_for(asyncio.gather(*answers), 10), strict=True):
                status = outcome.status if isinstance(outcome, Answer) else 0
                statuses[status] = statuses.get(status, 0) + 1
                if status == 504:
                    expires[nonce] = started + deadline
                    late += [outcome.seconds - deadline]
            await holder
        await asyncio.sleep(0.3)
        run = {int(n): float(mark[1]) for mark in house.marked("calls") for n in mark[3].split(",")}
    case.fact(f"{len(expires):,} expired of {rounds * each:,} ({_counts(statuses)})", len(expires) > 0)
    case.at_most("latest", 1000 * max(late, default=0), 1000 * case.limit("late_seconds"), " ms after its deadline")
    case.at_most("run after expiry", sum(run.get(nonce, 0) > at for nonce, at in expires.items()), 0)
    case.fact("429 and 504 only", set(statuses) <= {429, 504})


def _told(nonce: int, milliseconds: float) -> dict[str, object]:
    return {"inputs": [tensor("nonce", "INT64", [nonce]), tensor("milliseconds", "FP32", [milliseconds])]}


def _counts(statuses: dict[int, int]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))


async def a18(case: Case) -> None:
    blocked = case.size("blocked_seconds")
    async with House({"blocker": model("Blocker")}) as house:
        async with Liveness(house) as live:
            await asyncio.sleep(0.5)
            answer = await house.client.infer("blocker", nonces(-blocked), blocked + 20)
        case.at_most("liveness p99", 1000 * live.p99(), 1000 * case.limit("liveness_seconds"), " ms")
        case.at_most("liveness failures", live.failed, 0)
        case.fact(f"the blocking call took {answer.seconds:.1f} s", answer.status == 200)


CHECKS: dict[str, Check] = {"A8": a8, "A11": a11, "A18": a18}
