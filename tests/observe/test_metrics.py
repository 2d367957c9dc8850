"""Metrics: strict parsers accept the page, totals are exact whatever dies, and series stay few."""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_left
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from maitred import errors
from maitred.clock import ManualClock
from maitred.events import BatchEnded, Event, ReplicaChanged, RequestEnded
from maitred.observe.exposition import Family, Sample, labels, render, wants_openmetrics
from maitred.observe.metrics import (
    LONG,
    LONG_BOUNDS,
    MAX_VERSIONS,
    ROWS,
    SHORT,
    SHORT_BOUNDS,
    Arrivals,
    Histogram,
    Metrics,
    process_families,
)

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def batch(outcome: str = "ok", seconds: tuple[float, ...] = (0.002, 0.003), model: str = "m") -> BatchEnded:
    """Each member waits for as long as `seconds` says, but for the last 1.1 ms: the model's own time and 0.1 ms."""
    size, end = len(seconds), 50.0
    arrivals = [end - waited for waited in seconds]
    ok = size if outcome == "ok" else 0
    return BatchEnded(
        model, "1", 1, size, size, outcome, ok, arrivals, [arrival + 1e-6 for arrival in arrivals], end - 0.0011, end,
        0.001, 0.0002,
    )  # fmt: skip


def pool(best_rows_per_second: float = 1000.0) -> SimpleNamespace:
    return SimpleNamespace(
        model="m",
        version="1",
        waiting_rows=[0, 5, 7],
        waiting_requests=[0, 2, 1],
        running_rows=64,
        replicas={"ready": 2, "loading": 1},
        submitted_rows=0,
        best_rows_per_second=best_rows_per_second,
    )


def values(metrics: Metrics, accept: str = OPENMETRICS) -> dict[str, float]:
    """Every sample of the page as the strict parser reads it: `name{label="value"}` -> value."""
    body, kind = metrics.page(accept)
    parse = parse_openmetrics if kind.startswith("application") else parse_prometheus
    return {
        sample.name + ("{" + ",".join(f'{k}="{v}"' for k, v in sample.labels.items()) + "}" if sample.labels else ""):
            sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }  # fmt: skip


def used() -> Metrics:
    snapshot = pool()
    clock = ManualClock()
    metrics = Metrics(lambda: [snapshot], clock)
    metrics.add_gauge("maitred_http_connections", "Open connections.", lambda: 3)
    events: list[Event] = [
        batch(), batch("lost"), batch("raised"), RequestEnded("m", "1", "queue_full", 0.0),
        RequestEnded("m", "1", "deadline_passed", 30.0), RequestEnded("", "", "unknown", 0.0),
        ReplicaChanged("m", "1", 1, "ready", ""), ReplicaChanged("m", "1", 1, "lost", "signal 9"),
    ]  # fmt: skip
    for event in events:
        metrics(event)
    metrics.look()
    snapshot.submitted_rows = 2000
    clock.advance(4)
    return metrics


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain"])
def test_strict_parsers_accept_a_page_with_everything_on_it(accept):
    found = values(used(), accept)
    pairs = 'model="m",version="1"'
    wanted = {
        f'maitred_requests_total{{{pairs},outcome="ok"}}': 2,
        f'maitred_requests_total{{{pairs},outcome="queue_full"}}': 1,
        f'maitred_requests_total{{{pairs},outcome="deadline_passed"}}': 1,
        f'maitred_batches_total{{{pairs},outcome="lost"}}': 1,
        f"maitred_rows_total{{{pairs}}}": 2,
        f"maitred_arrived_rows_total{{{pairs}}}": 2000,
        f"maitred_queue_seconds_count{{{pairs}}}": 2,
        f'maitred_queue_seconds_bucket{{{pairs},le="0.0005"}}': 0,
        f'maitred_queue_seconds_bucket{{{pairs},le="0.001"}}': 1,
        f'maitred_queue_seconds_bucket{{{pairs},le="+Inf"}}': 2,
        f"maitred_queue_seconds_sum{{{pairs}}}": 0.0028 - 2e-6,
        f'maitred_batch_seconds_bucket{{{pairs},le="0.00025"}}': 1,
        f"maitred_batch_seconds_count{{{pairs}}}": 1,
        f"maitred_batch_seconds_sum{{{pairs}}}": 0.0001,
        f"maitred_model_seconds_sum{{{pairs}}}": 0.001,
        f"maitred_decode_seconds_count{{{pairs}}}": 2,
        f"maitred_decode_seconds_sum{{{pairs}}}": 2e-6,
        f"maitred_encode_seconds_count{{{pairs}}}": 1,
        f'maitred_request_seconds_count{{{pairs},outcome="ok"}}': 2,
        f'maitred_request_seconds_sum{{{pairs},outcome="ok"}}': 0.005,
        f'maitred_request_seconds_count{{{pairs},outcome="error"}}': 2,
        f'maitred_batch_rows_bucket{{{pairs},le="1.0"}}': 0,
        f'maitred_batch_rows_bucket{{{pairs},le="2.0"}}': 1,
        f'maitred_queue_rows{{{pairs},lane="normal"}}': 5,
        f'maitred_queue_requests{{{pairs},lane="background"}}': 1,
        f"maitred_running_rows{{{pairs}}}": 64,
        f'maitred_replicas{{{pairs},state="ready"}}': 2,
        f'maitred_replica_changes_total{{{pairs},state="lost"}}': 1,
        f"maitred_load{{{pairs}}}": 0.5,  # 2,000 rows in 4 seconds, of 1,000 a second
        'maitred_http_errors_total{status="404"}': 1,
        "maitred_http_connections": 3,
    }
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert found["process_cpu_seconds_total"] > 0 and found["process_start_time_seconds"] > 1e9


def test_every_family_says_what_it_is():
    body, kind = used().page()
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    text = body.decode()
    families = list(parse_prometheus(text))
    assert all(family.documentation and family.type in {"counter", "gauge", "histogram"} for family in families)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert "# TYPE maitred_requests_total counter" in text


def test_an_unused_server_has_a_valid_page():
    assert values(Metrics())["process_cpu_seconds_total"] >= 0


def test_series_are_there_before_the_first_request():
    found = values(Metrics(lambda: [pool()]))
    assert found['maitred_requests_total{model="m",version="1",outcome="ok"}'] == 0


@pytest.mark.parametrize("bounds", [LONG_BOUNDS, SHORT_BOUNDS])
def test_histograms_cover_a_millisecond_to_ten_minutes(bounds):
    assert list(bounds) == sorted(set(bounds))
    assert min(bounds) <= 0.001 and max(bounds) >= 600
    inside = [bound for bound in bounds if 0.001 <= bound <= 600]
    assert all(high / low <= 3.01 for low, high in pairwise(inside))


@given(
    st.lists(st.one_of(st.floats(-1, 1000), st.sampled_from(SHORT_BOUNDS), st.floats(0, 0.001)), max_size=200),
    st.sampled_from([LONG, SHORT, ROWS]),
)
def test_counting_a_batch_at_once_is_counting_each_value(many, scale):
    at_once, singly = Histogram(*scale), Histogram(*scale)
    at_once.observe_all(many)
    for value in many:
        singly.observe(value)
        assert value <= (*scale[0], math.inf)[bisect_left(scale[0], value)]
    assert at_once.counts == singly.counts and sum(at_once.counts) == len(many)
    assert at_once.total == pytest.approx(singly.total)


@given(st.lists(st.floats(0, 1000), max_size=100), st.sampled_from([LONG, SHORT, ROWS]))
def test_counting_moments_is_counting_how_long_ago_they_are(many, scale):
    since, singly = Histogram(*scale), Histogram(*scale)
    since.observe_since(many, 1000.0)
    for moment in many:
        singly.observe(1000.0 - moment)
    assert since.counts == singly.counts
    assert since.total == pytest.approx(singly.total)


def test_members_without_a_wire_took_no_time_to_decode():
    metrics = Metrics()
    for _ in range(1000):
        metrics(BatchEnded("m", "1", 1, 2, 2, "ok", 2, [0.0, 9.0], [10.0, 10.0], 11.0, 12.0, 0.5, 0.0))
    found = values(metrics)
    pairs = 'model="m",version="1"'
    assert found[f"maitred_decode_seconds_sum{{{pairs}}}"] == 1000
    assert found[f'maitred_request_seconds_sum{{{pairs},outcome="ok"}}'] == 5000
    assert found[f"maitred_queue_seconds_sum{{{pairs}}}"] == 2000
    assert found[f"maitred_batch_seconds_sum{{{pairs}}}"] == 500


@given(st.lists(st.sampled_from(["batch", "lost", "raised", "refused", "http"]), max_size=20), st.randoms())
def test_every_request_is_counted_once_and_no_counter_falls(steps, chance: random.Random):
    """Whatever replicas do: requests of lost and failed batches are counted when they end, not before."""
    metrics = Metrics()
    sent = 0
    before: dict[tuple[str, str, str], float] = {}
    for step in steps:
        size = chance.randint(1, 64)
        if step == "batch":
            metrics(batch(seconds=(0.001,) * size))
            sent += size
        elif step in ("lost", "raised"):  # its members then end one by one
            metrics(batch(step, seconds=(0.001,) * size))
            metrics(ReplicaChanged("m", "1", chance.randint(1, 1000), "lost", ""))
            for _ in range(size):
                metrics(RequestEnded("m", "1", chance.choice(["model_fault", "replica_lost", "ok"]), 0.1))
            sent += size
        elif step == "refused":
            metrics(RequestEnded("m", "1", chance.choice(errors.TABLE).code, 0.0))
            sent += 1
        else:
            metrics.refused(400)
            sent += 1
        counters = {
            (family.name, sample.suffix, sample.labels): sample.value
            for family in metrics.families()
            for sample in family.samples
            if family.kind != "gauge"
        }
        assert all(counters[name] >= value for name, value in before.items())
        before = counters
    found = values(metrics)
    asked = sum(value for name, value in found.items() if name.startswith("maitred_requests_total"))
    assert asked + found.get('maitred_http_errors_total{status="400"}', 0) == sent
    timed = sum(value for name, value in found.items() if name.startswith("maitred_request_seconds_count"))
    assert timed == asked


def test_what_callers_make_up_adds_no_series():
    metrics = used()
    few = len(values(metrics))
    for number in range(10_000):
        metrics(RequestEnded("", "", "unknown", 0.0))
        metrics(RequestEnded("", "", f"made up {number}", 0.0))
        metrics(RequestEnded("m", "1", f"made up {number}", 0.0))
        metrics(batch(f"made up {number}"))
        metrics(ReplicaChanged("m", "1", number, f"made up {number}", ""))
        metrics.refused(number)
    found = values(metrics)
    assert len(found) < few + 30 < 2000
    assert found['maitred_requests_total{model="m",version="1",outcome="other"}'] == 10_000
    assert found['maitred_http_errors_total{status="404"}'] == 1 + 10_000 + 1
    assert found['maitred_http_errors_total{status="other"}'] >= 19_000


def test_a_thousand_replicas_that_come_and_go_leave_the_page_as_long_as_it_was():
    metrics = used()
    for state in ("loading", "ready", "lost"):
        metrics(ReplicaChanged("m", "1", 0, state, ""))
    length = metrics.page()[0].count(b"\n")
    for replica in range(1000):
        for state in ("loading", "ready", "lost"):
            metrics(ReplicaChanged("m", "1", replica, state, ""))
    assert metrics.page()[0].count(b"\n") == length


def test_versions_beyond_the_bound_share_series():
    metrics = Metrics()
    for number in range(MAX_VERSIONS + 50):
        metrics(batch(model=f"m{number}"))
    found = values(metrics)
    totals = [value for name, value in found.items() if name.startswith("maitred_rows_total")]
    assert len(totals) == MAX_VERSIONS + 1
    assert found['maitred_rows_total{model="other",version="other"}'] == 2 * 50


def test_every_code_of_the_closed_table_is_an_outcome_of_its_own():
    metrics = Metrics()
    for error in errors.TABLE:
        metrics(RequestEnded("m", "1", error.code, 0.0))
        metrics(RequestEnded("", "", error.code, 0.0))
    found = values(metrics)
    for error in errors.TABLE:
        assert found[f'maitred_requests_total{{model="m",version="1",outcome="{error.code}"}}'] == 1
        assert found[f'maitred_http_errors_total{{status="{error.http_status}"}}'] >= 1
    assert not any("other" in name for name in found)


class TestArrivals:
    def test_none_before_two_looks(self):
        arrivals = Arrivals()
        arrivals.look(0, 100)
        assert arrivals.rows_per_second() is None

    def test_the_last_ten_seconds_count(self):
        arrivals = Arrivals()
        for second in range(100):
            arrivals.look(second, 0 if second < 50 else (second - 50) * 100)
        assert arrivals.rows_per_second() == pytest.approx(100)
        for second in range(100, 115):
            arrivals.look(second, 4900)
        assert arrivals.rows_per_second() == 0

    def test_rare_looks_use_the_whole_time_between_them(self):
        arrivals = Arrivals()
        arrivals.look(0, 0)
        arrivals.look(30, 600)
        assert arrivals.rows_per_second() == 20

    def test_a_look_of_an_hour_ago_says_nothing_about_now(self):
        arrivals = Arrivals()
        arrivals.look(0, 0)
        arrivals.look(3600, 600)
        assert arrivals.rows_per_second() is None
        arrivals.look(3601, 700)
        assert arrivals.rows_per_second() == 100

    def test_a_counter_that_starts_anew_never_lets_the_total_fall(self):
        arrivals = Arrivals()
        for second, counter in enumerate([0, 100, 250, 20, 30]):
            arrivals.look(second, counter)
        assert arrivals.total == 280


def test_no_load_is_shown_while_the_capacity_is_unknown():
    metrics = Metrics(lambda: [pool(best_rows_per_second=0.0)], ManualClock())
    assert not any(name.startswith(("maitred_load", "maitred_capacity")) for name in values(metrics))


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75", True),
        ("text/html, Application/OpenMetrics-Text; q=0.5", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text; q=0.0, text/plain", False),
        ("application/openmetrics-text-x", False),
    ],
)
def test_the_format_is_the_callers_choice(accept, wanted):
    assert wants_openmetrics(accept) is wanted


@given(st.text(max_size=30), st.text(max_size=30))
def test_label_values_and_help_cannot_break_out_of_their_line(value, text):
    body = render([Family("x", "gauge", f"a{text}", [Sample("", labels(("l", value)), 1)])]).decode()
    assert body.count("\n") == 3
    [line] = [line for line in body.split("\n") if line and not line.startswith("#")]
    inside = line.removeprefix('x{l="').removesuffix('"} 1')
    assert re.fullmatch(r'([^"\\\n]|\\["\\n])*', inside)
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), inside) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (2**63, "9223372036854775808"), (1e-05, "1e-05")],
)
def test_numbers(value, text):
    assert render([Family("x", "gauge", "a", [Sample("", "", value)])]).decode().splitlines()[-1] == f"x {text}"


def test_a_system_without_proc_shows_what_it_can(tmp_path):
    names = {family.name for family in process_families(0.0, tmp_path)}
    assert names == {"process_cpu_seconds", "process_start_time_seconds"}
