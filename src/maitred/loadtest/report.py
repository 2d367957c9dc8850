"""The figures of a run, as a page for people and as a document with stable keys for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from maitred.loadtest.histogram import Histogram, Packed
from maitred.loadtest.plan import Step
from maitred.loadtest.tally import KINDS, Tally
from maitred.loadtest.verdict import Limit, doubts, remarks

FORMAT: Final = 1
"""Of the document: raised where a key changes its meaning or goes."""

SHARES: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999, "p99_99": 0.9999}
_SHOWN: Final = ("p50", "p90", "p99", "p99_9")
_DIFFERS: Final = 1.01
"""By how much latency from the intended and from the real moment differ before both are shown."""


class Server(NamedTuple):
    """What the server's processes used while a step was counted."""

    pid: int
    cpu_seconds: float
    answers: int
    """Of any status, in the same time."""
    seconds: float


class Done(NamedTuple):
    """A step and what came of it."""

    step: Step
    tally: Tally
    server: Server | None


class About(NamedTuple):
    """What was asked, in words and numbers."""

    url: str
    method: str
    source: str
    """Where the bodies are from."""
    bodies: int
    body_bytes: float
    """The mean."""
    workers: int
    limit: Limit


# --- for programs -----------------------------------------------------------------------------------------------


def document(about: About, done: Sequence[Done]) -> bytes:
    """JSON, with the keys of docs/load-testing.md. Durations are milliseconds; null where there is no figure."""
    record = {
        "format": FORMAT,
        "url": about.url,
        "method": about.method,
        "bodies": {"source": about.source, "count": about.bodies, "mean_bytes": round(about.body_bytes, 1)},
        "workers": about.workers,
        "passed": all(about.limit.kept(one.tally) for one in done),
        "steps": [_step(one, about.limit) for one in done],
    }
    return msgspec.json.encode(record)


def _step(one: Done, limit: Limit) -> dict[str, Any]:
    step, tally = one.step, one.tally
    usage = tally.usage
    waits = [each.waited for each in usage if each.waited is not None]
    return {
        "loop": "closed" if step.rate is None else "open",
        "connections": step.connections,
        "rate": step.rate,
        "arrivals": None if step.rate is None else step.arrivals,
        "warmup_seconds": step.warmup_seconds,
        "seconds": round(tally.seconds, 4),
        "cut_short": tally.cut_short,
        "requests": tally.good + tally.failures,
        "answered": tally.good,
        "answers_per_second": _rounded(tally.answered / tally.seconds),
        "received_bytes_per_second": _rounded(tally.received_bytes / tally.seconds),
        "sent_bytes_per_second": _rounded(tally.sent_bytes / tally.seconds),
        "connections_opened": tally.connections,
        "latency_ms": _latency(tally.latency),
        "latency_from_sending_ms": None if tally.sending is None else _latency(tally.sending),
        "refusal_latency_ms": _latency(tally.refusals),
        "errors": {"total": tally.failures, **{kind: tally.failed.get(kind, 0) for kind in KINDS}},
        "statuses": tally.statuses,
        "samples": tally.samples,
        "sample_answer": tally.sample or None,
        "compared": tally.compared,
        "passed": limit.kept(tally),
        "server_timing_ms": {name: _rounded(figures.ms) for name, figures in timings(tally).items()},
        "server_timing_shares": {name: _rounded(figures.share) for name, figures in timings(tally).items()},
        "server": None if one.server is None else _server(one.server),
        "tester": {
            "cpu": [_rounded(each.cpu) for each in usage],
            "waited": [_rounded(each) for each in waits] or None,
            "behind_ms": None if tally.behind is None else _latency(tally.behind),
            "held_up": tally.held_up,
            "doubts": doubts(tally, step),
        },
        "remarks": remarks(tally, step),
    }


def _latency(packed: Packed) -> dict[str, float | int | None]:
    whole = Histogram.unpack(packed)
    found: dict[str, float | int | None] = {"count": whole.count, "mean": _ms(whole.mean)}
    found["min"] = _ms(whole.least) if whole.count else None
    found |= {name: _ms(value) for name, value in zip(SHARES, whole.percentiles(SHARES.values()), strict=True)}
    found["max"] = _ms(whole.most) if whole.count else None
    return found


def _server(server: Server) -> dict[str, float | int | None]:
    each = server.cpu_seconds / server.answers * 1e6 if server.answers else math.nan
    cores = server.cpu_seconds / server.seconds
    return {"pid": server.pid, "cpu_us_per_answer": _rounded(each), "processors": _rounded(cores)}


def _ms(nanoseconds: float) -> float | None:
    return None if math.isnan(nanoseconds) else round(nanoseconds / 1e6, 5)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.6g}")


class Figures(NamedTuple):
    """The mean of a Server-Timing metric, and what part of the mean latency it is."""

    ms: float
    share: float


def timings(tally: Tally) -> dict[str, Figures]:
    """Of each metric, on the answers whose header was read; `elsewhere` is the rest: network, HTTP, this tester.

    A metric that lies inside another one is counted in both.
    """
    timed = tally.timed
    if not timed.count or not timed.total_ns:
        return {}
    found = {
        name: Figures(timing.total_ns / timing.count / 1e6, timing.total_ns / timed.total_ns)
        for name, timing in tally.timings.items()
    }
    rest = 1 - sum(figures.share for figures in found.values())
    if rest >= 0:
        found["elsewhere"] = Figures(rest * timed.total_ns / timed.count / 1e6, rest)
    return found


# --- for people -------------------------------------------------------------------------------------------------


def page(about: About, done: Sequence[Done]) -> str:
    """The figures as lines of text."""
    return "\n".join(_lines(about, done)) + "\n"


def _lines(about: About, done: Sequence[Done]) -> Iterator[str]:
    yield f"{about.method} {about.url}"
    if about.bodies:
        count = "1 body" if about.bodies == 1 else f"{about.bodies:,} bodies"
        yield f"{count} {about.source}, {_bytes(about.body_bytes)}{'' if about.bodies == 1 else ' on average'}"
    workers = "" if about.workers == 1 else f", {about.workers} processes"
    warmup = done[0].step.warmup_seconds
    yield f"{_pace([one.step for one in done])}{workers}; {warmup:g} s of warm-up, {_seconds(done)} counted"
    yield ""
    yield from _table(done)
    several = len(done) > 1
    for one in done:
        notes = list(_notes(one))
        if notes:
            yield ""
            if several:
                yield f"{_label(one.step)}:"
            yield from notes


def _pace(steps: Sequence[Step]) -> str:
    first = steps[0]
    if first.rate is None:
        connections = ", ".join(f"{step.connections:,}" for step in steps)
        return f"closed loop, {connections} connection{'' if connections == '1' else 's'}"
    rates = ", ".join(f"{step.rate:g}" for step in steps)
    return f"open loop, {rates} requests/s ({first.arrivals}), up to {first.connections:,} connections"


def _seconds(done: Sequence[Done]) -> str:
    return " + ".join(dict.fromkeys(f"{one.tally.seconds:.3g} s" for one in done))


def _label(step: Step) -> str:
    return f"{step.connections:,} conn." if step.rate is None else f"{step.rate:,g}/s"


def _table(done: Sequence[Done]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "answers/s", "p50", "p90", "p99", "p99.9", "max", "", "errors", "tester")]
    for one in done:
        tally = one.tally
        errors = f"{tally.failures:,}"
        cpu = f"{max(usage.cpu for usage in tally.usage):.0%} CPU"
        rate = f"{tally.answered / tally.seconds:,.0f}"
        rows.append((_label(one.step), rate, *_row(tally.latency), "ms", errors, cpu))
        if tally.sending is not None and _differ(tally):
            rows.append(("  from sending", "", *_row(tally.sending), "ms", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if at in (0, 7) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _row(packed: Packed) -> list[str]:
    whole = Histogram.unpack(packed)
    found = whole.percentiles(SHARES[name] for name in _SHOWN)
    most = float(whole.most) if whole.count else math.nan
    return [_duration(value) for value in (*found, most)]


def _duration(nanoseconds: float) -> str:
    """Milliseconds, three digits."""
    if math.isnan(nanoseconds):
        return "-"
    value = nanoseconds / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def _differ(tally: Tally) -> bool:
    """Whether the moment of sending was another than the one intended, so far as to change the figures shown."""
    if tally.sending is None or not tally.sending.counts:
        return False
    intended, real = Histogram.unpack(tally.latency), Histogram.unpack(tally.sending)
    shares = [SHARES[name] for name in _SHOWN]
    return any(a > b * _DIFFERS for a, b in zip(intended.percentiles(shares), real.percentiles(shares), strict=True))


def _notes(one: Done) -> Iterator[str]:
    tally = one.tally
    if tally.received_bytes or tally.sent_bytes:
        rates = tally.received_bytes / tally.seconds, tally.sent_bytes / tally.seconds
        yield (
            f"  traffic        {_bytes(rates[0])}/s received, {_bytes(rates[1])}/s sent, "
            f"{tally.connections:,} connection{'' if tally.connections == 1 else 's'} opened"
        )
    shares = [
        f"{name} {_duration(figures.ms * 1e6)} ms ({figures.share:.0%})" for name, figures in timings(tally).items()
    ]
    if shares:
        yield f"  server timing  {', '.join(shares)}"
    if one.server is not None:
        figures = _server(one.server)
        each = figures["cpu_us_per_answer"]
        told = "no answers" if each is None else f"{each:,.4g} µs of CPU an answer"
        yield f"  server         {told}, {figures['processors']:.3g} processors busy (pid {one.server.pid})"
    if tally.compared:
        yield f"  compared       {tally.compared:,} answers"
    for kind, count in sorted(tally.failed.items(), key=lambda item: -item[1]):
        statuses = ", ".join(f"{status}: {number:,}" for status, number in sorted(tally.statuses.items()))
        yield f"  {kind:<14} {count:,} {KINDS.get(kind, '')}" + (f" ({statuses})" if kind == "status" else "")  # type: ignore[call-overload]
        for text in tally.samples.get(kind, ()):
            if text:
                yield f"                 {text}"
    if tally.refusals.counts:
        yield f"  refusals       p50 {_duration(Histogram.unpack(tally.refusals).percentile(0.5))} ms"
    for text in remarks(tally, one.step):
        yield f"  note           {text}"
    found = doubts(tally, one.step)
    for text in found:
        yield f"  WARNING        {text}"
    if found:
        yield "                 The server may do more, and quicker, than these figures show."


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"
