"""Every figure that the tests are judged by, and every size that a tier changes: the one place to look for a bound.

`limits` have no scale and no tier loosens them; `full` is the test as it is meant, `short` what the tier for every
change makes of it. Tests that are not run yet stand in NOT_YET with their reason.
"""

from __future__ import annotations

from typing import Final

from reliability.judge import Figure

FIGURES: Final[dict[str, Figure]] = {
    # ------------------------------------------------------------------ A: online serving under damage
    "A1": Figure(
        "0 failed, 0 wrong, 0 hung with retry; without: <= the running batch, each 503 <= 1 s; capacity back <= load + 2 s; p99 <= 2x",
        limits={"failure_seconds": 1.0, "back_seconds": 2.0, "batch_rows": 8, "p99_times": 2.0, "load_share": 0.7},
        full={"kills": 200, "seconds_between": 5},
        short={"kills": 20, "seconds_between": 1},
        part="REST unary; gRPC comes with its own capability",
    ),
    "A3": Figure(
        "noticed <= min(10 s, 2x longest execution), replaced, its requests answered",
        limits={"notice_seconds": 10.0, "max_execution_seconds": 3.0},
        full={"trials": 10},
        short={"trials": 2},
    ),
    "A4": Figure(
        "readiness 503 <= 2 s; requests 503 <= 1 s; model failed with its reason; other models untouched",
        limits={"readiness_seconds": 2.0, "request_seconds": 1.0, "failed_seconds": 60.0},
    ),
    "A5": Figure(
        "<= 2 workers lost per poisonous request, then refused; neighbours answered",
        limits={"workers": 2},
        full={"trials": 20},
        short={"trials": 3},
    ),
    "A6": Figure(
        "0 accepted lost; readiness fails first; exit 0 <= drain limit + 2 s; second SIGTERM <= 4 s; 0 orphans after 10 s",
        limits={"over_drain_seconds": 2.0, "second_seconds": 4.0, "orphan_seconds": 10.0, "read_seconds": 0.05},
        full={"trials": 100, "grace_seconds": 5},
        short={"trials": 3, "grace_seconds": 1},
        part="REST unary; streams and jobs come with their capabilities",
    ),
    "A8": Figure(
        "goodput >= 90 % of C at 10x and >= 95 % at 2x; accepted p99 <= 250 ms; refusals p99 <= 50 ms with Retry-After; "
        "liveness p99 <= 100 ms; RSS <= +20 %; p99 back <= 10 s",
        limits={
            "goodput_10x": 0.90,
            "goodput_2x": 0.95,
            "accepted_seconds": 0.25,
            "refusal_seconds": 0.05,
            "liveness_seconds": 0.1,
            "memory_growth": 0.20,
            "back_seconds": 10.0,
        },
        full={"seconds": 300, "step_seconds": 60},
        short={"seconds": 30, "step_seconds": 5},
    ),
    "A11": Figure(
        "expired answer <= deadline + 50 ms; 0 run after expiry; 504",
        limits={"late_seconds": 0.05},
        full={"requests": 10_000},
    ),
    "A12": Figure(
        "slots and memory free <= 1 s; 0 leaked",
        limits={"free_seconds": 1.0, "memory_bytes": 8 << 20},
        full={"disconnects": 1_000},
        part="unary; streams come with a later capability",
    ),
    "A13": Figure(
        "the 31 others succeed with their own values; the bad one gets 4xx/5xx",
        full={"batches": 1_000},
    ),
    "A14": Figure(
        "0 answers with another request's nonce, id, shape or parameters",
        full={"requests": 100_000},
        short={"requests": 20_000},
    ),
    "A15": Figure("rows per execution never > max_batch_rows", full={"requests": 1_000}),
    "A18": Figure("liveness p99 <= 100 ms", limits={"liveness_seconds": 0.1}, full={"blocked_seconds": 5}),
    "A20": Figure(
        "bit-exact on every wire, alone and as one batch",
        full={"rounds": 200},
        short={"rounds": 40},
        part="REST JSON, REST binary and direct; gRPC comes with its own capability",
    ),
    "A22": Figure(
        "counters never fall; sum = requests sent; series <= 2,000; histograms cover 1 ms to 600 s",
        limits={"series": 2_000, "least_bound": 0.001, "greatest_bound": 600.0},
        full={"names": 5_000, "deaths": 20},
        short={"names": 1_000, "deaths": 4},
    ),
    # ------------------------------------------------------------------ M: many, through several replicas
    "M1": Figure(
        "0 mix-ups, 0 failed, memory flat: processes and segments each grow <= 8 MiB from a fifth of it to its end",
        limits={"growth_mib": 8, "cancel_share": 0.003},
        full={"requests": 1_000_000},
        short={"requests": 30_000},
        part="REST JSON and binary; gRPC comes with its own capability",
    ),
    # ------------------------------------------------------------------ B: hostile or broken input
    "B1": Figure(
        "other traffic >= 99.9 % ok, p99 <= 2x; each slow or silent connection closed in time",
        limits={"ok_share": 0.999, "p99_times": 2.0, "grace_seconds": 2.0, "body_grace_seconds": 3.0},
        full={
            "slow_heads": 2_500,
            "slow_bodies": 2_500,
            "silent_connections": 1_000,
            "header_seconds": 30,
            "body_seconds": 30,
        },
        short={"slow_heads": 500, "slow_bodies": 0, "silent_connections": 100, "header_seconds": 3},
    ),
    "B3": Figure(
        "413 <= 100 ms with <= 1 MiB read; chunked cut at the limit; RSS <= limit x in flight + 64 MiB",
        limits={"answer_seconds": 0.1, "read_bytes": 1 << 20, "slack_bytes": 64 << 20},
        full={"at_once": 100},
    ),
    "B4": Figure(
        "stopped at the limit while inflating; RSS <= 1.2x limit; <= 1 s CPU each",
        limits={"memory_times": 1.2, "cpu_seconds": 1.0},
        part="gzip and deflate bodies; artifacts are folders here, Parquet comes with batch",
    ),
    "B5": Figure(
        "RSS growth <= 8 MiB after warm-up",
        limits={"memory_bytes": 8 << 20},
        full={"requests": 100, "chunks": 1_000_000},
        short={"requests": 10, "chunks": 100_000},
    ),
    "B6": Figure("400 <= 1 s", limits={"answer_seconds": 1.0}),
    "B8": Figure(
        "0 crashes, 0 hangs, 0 malformed -> 5xx, RSS growth <= 32 MiB",
        limits={"memory_bytes": 32 << 20, "hang_seconds": 5.0},
        full={"inputs": 5_000_000},
        short={"inputs": 50_000},
        part="HTTP, V2 JSON and the binary extension; the other targets come with their capabilities",
    ),
    "B11": Figure(
        "beside JSON bodies and answers of 60 MB a tiny model's worst answer <= 100 ms",
        limits={"worst_seconds": 0.1},
        full={"turns": 10},
        short={"turns": 3},
    ),
    "B9": Figure("refused and connection closed; 0 desync"),
    "B10": Figure("400 naming the input"),
    # ------------------------------------------------------------------ E: security
    "E1": Figure(
        "0 reads or writes outside the root over >= 500 names",
        limits={"names": 500},
        part="model and version names, artifact members; jobs and files come with their capabilities",
    ),
    "E3": Figure("refused without recorded trust; nothing runs; no request body is unpickled"),
    "E7": Figure("admin on loopback with its token always; 0 state-changing routes on the data port"),
    "E8": Figure("0 stack traces, absolute paths, hostnames, shared-memory names, environment names"),
    "E9": Figure("0 forged lines", full={"formats": 2}),
    "E13": Figure("one flipped byte -> refused"),
}

_GRPC = "gRPC comes with its own capability"
_STREAMS = "response streams come with a later capability"
_JOBS = "jobs come with a later capability"
_BATCH = "batch runs come with a later capability"
_KAFKA = "stream processing comes with a later capability"
_ROLLOUT = "the registry and rollouts come with a later capability"
_TENANTS = "authentication and tenants come with a later capability"

NOT_YET: Final[dict[str, str]] = {
    "A2": _STREAMS,
    "A7": "a rolling restart behind a proxy belongs to the release tier, which has no check yet",
    "A9": "nightly; clients that retry come with the client library",
    "A10": "nightly; its check comes with overload control for callers who hang up",
    "A16": "priority lanes cannot be asked for over HTTP before callers have identities",
    "A17": _TENANTS,
    "A19": "24 hours; belongs to the release tier, which has no check yet",
    "A21": "nightly; its check is not written yet",
    "B2": _STREAMS,
    "B7": _GRPC,
    **dict.fromkeys(("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13"), _JOBS),
    **dict.fromkeys(("C14", "C15", "C16"), _BATCH),
    **dict.fromkeys(("C17", "C18", "C19", "C20", "C21"), _KAFKA),
    **dict.fromkeys(("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D10", "D11", "D12"), _ROLLOUT),
    "D13": "scaling comes with a later capability",
    "E2": "nothing here opens an outbound connection yet",
    "E4": "its check comes with authentication: there are no secrets but the admin token yet (see E7, E8)",
    "E5": _TENANTS,
    "E6": _TENANTS,
    "E10": _TENANTS,
    "E11": _TENANTS,
    "E12": "belongs to the release tier, which has no check yet",
}

EVERY: Final = (
    *(f"A{n}" for n in range(1, 23)), *(f"B{n}" for n in range(1, 12)), *(f"C{n}" for n in range(1, 22)),
    *(f"D{n}" for n in range(1, 14)), *(f"E{n}" for n in range(1, 14)), "M1",
)  # fmt: skip
