"""Runs the tests of a tier and prints one line for each: `A1 met|missed|not-run <measured> of <wanted> [scaled: ...]`.

    python -m reliability.run --tier short
    python -m reliability.run --only A1,B3

The exit status is 0 whatever was missed: the lines are the result. With --strict it is 1 if a test was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import sys
import time
import traceback

import uvloop

from reliability.checks import artifacts, damage, door, hostile, large, million, overload, sharing
from reliability.figures import EVERY, FIGURES, NOT_YET
from reliability.judge import Case, Check, Tier

CHECKS: dict[str, Check] = {
    **damage.CHECKS, **overload.CHECKS, **sharing.CHECKS, **hostile.CHECKS, **door.CHECKS, **artifacts.CHECKS,
    **large.CHECKS, **million.CHECKS,
}  # fmt: skip

LIMIT_SECONDS = {"short": 180.0, "nightly": 7200.0, "release": 7200.0}
"""A check that takes longer than this has hung, and counts as missed."""


def run_one(id: str, tier: Tier) -> tuple[str, bool]:
    """The line of one test, and whether it was missed."""
    if id not in CHECKS:
        return f"{id} not-run {NOT_YET[id]}", False
    case = Case(id, FIGURES[id], tier)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(CHECKS[id](case), LIMIT_SECONDS[tier]))
    except Exception as error:  # a check that cannot finish has missed; the others still run
        last = (str(error).strip().splitlines() or [""])[-1][:200]
        case.fact(f"the check stopped: {type(error).__name__}: {last}", False)
        traceback.print_exc(file=sys.stderr)
    return case.line(), not case.met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tier", choices=["short", "nightly", "release"], default="short")
    parser.add_argument("--only", default="", metavar="ID,ID", help="run these tests only")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a test was missed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended on the way out
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    chosen = [id for id in options.only.upper().split(",") if id] or list(EVERY)
    started, missed = time.monotonic(), 0
    for id in chosen:
        began = time.monotonic()
        line, bad = run_one(id, options.tier)
        missed += bad
        print(line, flush=True)
        print(f"{id}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print(f"{len(chosen)} tests, {missed} missed, {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
