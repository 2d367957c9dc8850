"""The figures of the table: which number of which row, and what maitred aims at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import peers
from results import Results

OURS = "maitred"
CLIENT_LATE_MS = 2.0


@dataclass(frozen=True)
class Aim:
    """A demand. `holds`: None where what it needs was not measured."""

    text: str
    holds: Callable[[Results], bool | None]


@dataclass(frozen=True)
class Figure:
    row: str
    key: str
    title: str
    digits: int = 0
    aims: tuple[Aim, ...] = ()
    ratios: bool = True
    """Whether a quotient of two servers' figures says something."""
    scale: float = 1.0


def at_most(row: str, key: str, limit: float, text: str) -> Aim:
    return Aim(f"≤ {text}", lambda results: judged(results.value(row, OURS, key), lambda value: value <= limit))


def at_least(row: str, key: str, limit: float, text: str) -> Aim:
    return Aim(f"≥ {text}", lambda results: judged(results.value(row, OURS, key), lambda value: value >= limit))


def times(row: str, key: str, limit: float, peer: str, title: str, other: str | None = None) -> Aim:
    """At most `limit` times another server's figure."""
    text = f"≤ {limit:g} × {title}"
    return Aim(text, lambda results: judged(results.ratio(row, peer, key, other), lambda value: value <= limit))


def best(row: str, key: str) -> Aim:
    """No more than the best of the others."""

    def holds(results: Results) -> bool | None:
        ours = results.value(row, OURS, key)
        theirs = [v for name in peers.DEFAULT if name != OURS and (v := results.value(row, name, key)) is not None]
        return None if ours is None or not theirs else ours <= min(theirs)

    return Aim("≤ the best", holds)


def as_simulated(row: str, key: str, ideal: str) -> Aim:
    """No worse than a plain work-conserving batcher that costs nothing, but for what any server and client cost."""

    def holds(results: Results) -> bool | None:
        ours, limit = results.value(row, OURS, key), results.value(row, OURS, ideal)
        if (results.value(row, OURS, "sent_late_p99_ms") or 0.0) > CLIENT_LATE_MS:
            return None  # the load generator was held up itself: its latencies say nothing
        return None if ours is None or limit is None else ours <= 1.1 * limit + 0.5

    return Aim("≤ 1.1 × plain work-conserving, simulated, + 0.5 ms", holds)


def judged(value: float | None, good: Callable[[float], bool]) -> bool | None:
    return None if value is None else good(value)


FIGURES = (
    Figure("cpu64", "cpu_us", "tiny model, HTTP JSON, 64 connections: CPU-µs a request", 1, (
        at_most("cpu64", "cpu_us", 14, "14"), times("cpu64", "cpu_us", 2, "nginx", "nginx"),
        times("cpu64", "cpu_us", 0.55, "mosec", "mosec"), times("cpu64", "cpu_us", 0.2, "triton", "Triton"),
    )),
    Figure("cpu64", "rps", "the same: requests/s on one core", 0, (at_least("cpu64", "rps", 70_000, "70,000"),)),
    Figure("cpu64", "p99_ms", "the same: p99, ms", 2),
    Figure("lone", "p50_ms", "one lone client: p50, ms", 3, (at_most("lone", "p50_ms", 0.15, "0.15"),)),
    Figure("c16", "rps", "16 connections: requests/s", 0, (at_least("c16", "rps", 40_000, "40,000"),)),
    Figure("c128", "rps", "128 connections: requests/s"),
    Figure("c128", "cpu_us", "128 connections: CPU-µs a request", 1),
    Figure("c256", "rps", "256 connections: requests/s"),
    Figure("c256", "cpu_us", "256 connections: CPU-µs a request", 1),
    Figure("c256", "p99_ms", "256 connections: p99, ms", 2),
    Figure("same", "cpu_us", "one identical request, 64 connections: CPU-µs", 1),
    Figure("grpc", "rps", "gRPC unary, 8 connections × 8 streams: requests/s", 0, (
        at_least("grpc", "rps", 60_000, "60,000"),
    )),
    Figure("grpc", "cpu_us", "the same: CPU-µs a request", 1, (at_most("grpc", "cpu_us", 16, "16"),)),
    Figure("slow64", "rps", "5 ms a call, 64 clients: requests/s (ideal 12,800)", 0, (
        at_least("slow64", "rps", 10_200, "10,200"),
    )),
    Figure("slow128", "rps", "5 ms a call, 128 clients: requests/s (ideal 12,800)", 0, (
        at_least("slow128", "rps", 12_000, "12,000"),
    )),
    Figure("curve16", "rps", "2 ms + 0.1 ms a row, 16 clients: requests/s (ideal 4,400)", 0, (
        at_least("curve16", "rps", 3_900, "3,900"),
    )),
    Figure("curve64", "rps", "2 ms + 0.1 ms a row, 64 clients: requests/s (ideal 7,600)", 0, (
        at_least("curve64", "rps", 6_500, "6,500"),
    )),
    Figure("curve50", "p50_ms", "the same, open load at 50 % of each one's own capacity: p50, ms", 2, (
        as_simulated("curve50", "p50_ms", "ideal_p50_ms"),
    )),
    Figure("curve50", "p99_ms", "the same: p99, ms", 2, (as_simulated("curve50", "p99_ms", "ideal_p99_ms"),)),
    Figure("curve80", "p50_ms", "open load at 80 %: p50, ms", 2, (
        as_simulated("curve80", "p50_ms", "ideal_p50_ms"),
    )),
    Figure("curve80", "p99_ms", "the same: p99, ms", 2, (as_simulated("curve80", "p99_ms", "ideal_p99_ms"),)),
    Figure("minilm64", "cpu_us", "MiniLM, 64 clients: CPU-µs a row", 0, (
        times("minilm64", "cpu_us", 1.03, "bare", "the model alone, at the same batch"),
    )),
    Figure("minilm64", "p99_ms", "the same: p99, ms", 0, (best("minilm64", "p99_ms"),)),
    Figure("overload", "good_share", "4× overload, callers hang up after 1 s: good answers, % of capacity", 0, (
        at_least("overload", "good_share", 0.95, "95"),
    ), ratios=False, scale=100),
    Figure("overload", "refused_p50_ms", "the same: time to a refusal, ms", 2, (
        at_most("overload", "refused_p50_ms", 1, "1"),
    ), ratios=False),
    Figure("overload", "drained_rows", "the same: rows computed after the last caller left", 0, (
        at_most("overload", "drained_rows", 64, "one batch"),
    ), ratios=False),
    Figure("hangup", "abandoned", "128 callers hang up after 50 ms: rows computed for nobody", 0, (
        at_most("hangup", "abandoned", 64, "the batch that ran (64)"),
    ), ratios=False),
    Figure("start", "ready_s", "start to the first answer, s", 2, (
        Aim("≤ 0.7 after import", lambda results: judged(
            results.value("start", OURS, "after_import_s"), lambda value: value <= 0.7
        )),
    )),
    Figure("start", "pss_mb", "idle memory (PSS), MB", 0, (at_most("start", "pss_mb", 90, "90"),)),
)  # fmt: skip
