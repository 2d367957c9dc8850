"""`maitred bench`: load a server over HTTP at a chosen pace, and tell how it went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.failure import CommandFailed

if TYPE_CHECKING:
    from maitred.loadtest.plan import Plan, Step
    from maitred.loadtest.prepare import Wish
    from maitred.loadtest.report import Done

_OPEN_CONNECTIONS = 1024
_CLOSED_CONNECTIONS = 32
_LONGEST_SECONDS = 1e6

Connections = Annotated[
    str,
    typer.Option(
        "--connections", "-c", metavar="N[,N...]", show_default=False,
        help="Callers, each of which asks again when it is answered. With --rate: how many connections may be open. "
        "[default: 32; with --rate 1024]",
    ),
]  # fmt: skip
Rate = Annotated[
    str,
    typer.Option(
        metavar="R[,R...]",
        show_default=False,
        help="Requests a second, sent whether or not earlier ones are answered (an open loop).",
    ),
]


def bench(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="What to load, such as http://127.0.0.1:8080/v2/models/churn/infer.")
    ],
    body: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What to send: one JSON, or JSON lines (a body a line, sent in turn)."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="'NAME: VALUE'", help="A header of every request; may be repeated."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="The HTTP method. [default: POST with bodies, else GET]", show_default=False)
    ] = "",
    rows: Annotated[int, typer.Option(help="Rows of each body that is made up.")] = 1,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYMBOL=N", help="What an open size of the signature is in made-up bodies; may be repeated."
        ),
    ] = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Made-up bodies and answers as binary tensors (V2).")
    ] = False,
    connections: Connections = "",
    rate: Rate = "",
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="poisson|constant",
            show_default=False,
            help="With --rate: how far apart requests are sent. [default: poisson]",
        ),
    ] = "",
    seconds: Annotated[float, typer.Option("--seconds", "-s", help="How long each step is measured.")] = 10.0,
    warmup: Annotated[float, typer.Option(help="Seconds of load before each step, which are not counted.")] = 1.0,
    requests: Annotated[
        int | None,
        typer.Option("--requests", "-n", help="How many requests of each step are measured, instead of --seconds."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which a caller gives up.")] = 10.0,
    workers: Annotated[int, typer.Option(help="Processes that make the load.")] = 1,
    pid: Annotated[
        int | None, typer.Option(help="The server's process (Linux): shows its CPU time per answer.")
    ] = None,
    expect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The right answer, or JSON lines: one for each body of --body.")
    ] = None,
    same: Annotated[
        bool, typer.Option("--same", help="Count an answer as wrong if it differs from the first to the same body.")
    ] = False,
    tolerance: Annotated[float, typer.Option(help="How far numbers may be apart with --expect and --same.")] = 0.0,
    max_errors: Annotated[
        str, typer.Option(metavar="N|P%", help="Failed requests (a number or a share) up to which the exit code is 0.")
    ] = "0",
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept any TLS certificate.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of made-up bodies and Poisson arrivals.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document, with stable keys, for programs.")
    ] = False,
) -> int:
    """Load a server over HTTP, and show throughput, latency and errors.

    Without --body, bodies are made up from the model's metadata (V2, V1 and plain routes of the Open Inference
    Protocol). Exits with 1 where more requests failed than --max-errors allows, with 130 after Ctrl-C.
    """
    from maitred.loadtest.prepare import Wish

    if not 0 < timeout <= _LONGEST_SECONDS:
        raise CommandFailed(f"--timeout: {timeout:g} s is no time to wait")
    if not 0 <= tolerance < 1:
        raise CommandFailed("--tolerance: expected a number from 0 to 1, such as 1e-5")
    if rows < 1:
        raise CommandFailed("--rows: at least 1 is needed")
    steps = read_steps(connections, rate, arrivals, seconds, warmup, requests, workers)
    wish = Wish(
        url, body, header or (), method, rows, size or (), binary, expect, same, tolerance, timeout, not insecure, seed
    )
    return _bench(wish, steps, workers, pid, max_errors, as_json)


def _bench(wish: Wish, steps: list[Step], workers: int, pid: int | None, max_errors: str, as_json: bool) -> int:
    from maitred.loadtest.ask import Unreachable
    from maitred.loadtest.hands import WorkerLost
    from maitred.loadtest.prepare import Unfit, prepare
    from maitred.loadtest.report import About, document, page
    from maitred.loadtest.usage import NoProcess, family_cpu_seconds
    from maitred.loadtest.verdict import Limit

    try:
        limit = Limit.read(max_errors)
    except ValueError:
        raise CommandFailed(f"--max-errors: expected a number or a share such as 0.1%, got {max_errors!r}") from None
    try:
        if pid is not None:
            family_cpu_seconds(pid)
        ready = prepare(wish)
        done, stopped = _run(ready.plan, steps, workers, pid)
    except (Unfit, NoProcess) as error:
        raise CommandFailed(str(error)) from None
    except (Unreachable, WorkerLost) as error:
        raise CommandFailed(str(error), 1) from None
    if not done:
        return 130
    about = About(ready.url, ready.method, ready.source, ready.bodies, ready.body_bytes, workers, limit)
    if as_json:
        sys.stdout.buffer.write(document(about, done) + b"\n")
        sys.stdout.buffer.flush()
    else:
        typer.echo(page(about, done), nl=False)
    if stopped:
        return 130
    return 0 if all(limit.kept(one.tally) for one in done) else 1


def _run(plan: Plan, steps: list[Step], workers: int, pid: int | None) -> tuple[list[Done], bool]:
    """What came of the steps, and whether Ctrl-C ended them."""
    import asyncio
    import signal

    from maitred.loadtest.crew import Crew
    from maitred.loop import run

    async def work() -> tuple[list[Done], bool]:
        crew = Crew(plan, workers, pid)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            crew.stop()
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends it without a report

        loop.add_signal_handler(signal.SIGINT, stop)
        return await crew.run(steps, _say), crew.stopped

    return run(work())


def _say(step: Step) -> None:
    """On a terminal, what is going on."""
    if sys.stderr.isatty():
        pace = f"{step.connections} connections" if step.rate is None else f"{step.rate:g} requests/s"
        until = f"{step.seconds:g} s" if step.requests is None else f"{step.requests} requests"
        print(f"{pace}: {step.warmup_seconds:g} s to warm up, then {until}", file=sys.stderr, flush=True)


def read_steps(
    connections: str, rate: str, arrivals: str, seconds: float, warmup: float, requests: int | None, workers: int
) -> list[Step]:
    """The steps that the options ask for. Raises CommandFailed naming the option that is wrong."""
    from maitred.loadtest.plan import Step

    if arrivals and not rate:
        raise CommandFailed("--arrivals is for an open loop: give --rate too")
    if arrivals not in ("", "poisson", "constant"):
        raise CommandFailed(f"--arrivals: expected poisson or constant, got {arrivals!r}")
    for option, value, fine in (("--seconds", seconds, seconds > 0), ("--warmup", warmup, warmup >= 0)):
        if not fine or value > _LONGEST_SECONDS:
            raise CommandFailed(f"{option}: {value:g} is no time to measure for")
    if requests is not None and requests < 1:
        raise CommandFailed("--requests: at least 1 is needed")
    if workers < 1:
        raise CommandFailed("--workers: at least 1 is needed")
    rates = _numbers(rate, "--rate")
    counts = _numbers(connections, "--connections") or [_OPEN_CONNECTIONS if rates else _CLOSED_CONNECTIONS]
    if rates and len(counts) > 1:
        raise CommandFailed("--connections: give one number with --rate; it bounds how many are open")
    if any(count != int(count) or count < workers for count in counts):
        raise CommandFailed("--connections: whole numbers, and at least one for each of --workers")
    if requests is not None and requests < workers:
        raise CommandFailed("--requests: at least one for each of --workers")
    paces: list[tuple[int, float | None]] = [(int(counts[0]), one) for one in rates]
    paces = paces or [(int(count), None) for count in counts]
    return [Step(count, seconds, warmup, one, arrivals or "poisson", requests) for count, one in paces]  # type: ignore[arg-type]


def _numbers(text: str, option: str) -> list[float]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1e7:
            raise CommandFailed(f"{option}: expected numbers above 0 with commas between, got {text!r}")
        found.append(value)
    return found
