"""What is said of a run: the page, the document, the doubts, and whether it passed."""

from __future__ import annotations

import json

import msgspec
import pytest

from maitred.loadtest.histogram import Histogram
from maitred.loadtest.plan import Step
from maitred.loadtest.report import About, Done, Server, document, page, timings
from maitred.loadtest.tally import KINDS, Tally, Timing, Usage, keep_sample, merged
from maitred.loadtest.verdict import Limit, doubts, remarks

MS = 1_000_000
CLOSED = Step(32, 10.0, 1.0)
OPEN = Step(64, 10.0, 1.0, rate=100.0)


def packed(*durations):
    made = Histogram()
    made.record(list(durations))
    return made.pack()


def tally(**more):
    usual = {
        "seconds": 10.0, "answered": 1000, "good": 1000, "failed": {}, "statuses": {},
        "latency": packed(*[MS] * 990, *[20 * MS] * 10), "sending": None, "refusals": packed(), "behind": None,
        "held_up": 0, "connections": 32, "received_bytes": 329_000, "sent_bytes": 250_000, "timings": {},
        "timed": Timing(0, 0), "compared": 0, "samples": {}, "sample": "", "usage": [Usage(0.3, 0.01)],
    }  # fmt: skip
    return Tally(**{**usual, **more})


ABOUT = About("http://h/x", "POST", "made up", 1024, 113.0, 1, Limit(0))


class TestVerdict:
    @pytest.mark.parametrize(("usage", "said"), [
        (Usage(0.84, None), ""), (Usage(0.86, 0.0), "the tester itself was the bottleneck"),
        (Usage(0.5, 0.4), "had to wait for a processor: 40%"), (Usage(0.5, 0.3), ""),
    ])  # fmt: skip
    def test_a_tester_that_is_busy_says_so(self, usage, said):
        found = doubts(tally(usage=[Usage(0.1), usage]), CLOSED)
        assert bool(found) == bool(said) and (not said or said in found[0])

    @pytest.mark.parametrize(("late", "said"), [(MS // 2, False), (3 * MS, True)])
    def test_a_tester_that_is_late_says_so(self, late, said):
        found = doubts(tally(behind=packed(*[1000] * 98, late, late)), OPEN)
        assert bool(found) is said
        assert not said or "1% of the requests left 3.0 ms late or more" in found[0]

    def test_why_it_was_late(self):
        found = doubts(tally(behind=packed(5 * MS), usage=[Usage(0.2, 0.25)]), OPEN)
        assert "it waited for a processor 25% of the time" in found[0]

    def test_too_few_connections_are_no_fault_of_the_tester(self):
        held_up = tally(held_up=300, behind=packed(1000))
        assert doubts(held_up, OPEN) == []
        assert "300 of 1,000 requests left late because all of 64 connections" in remarks(held_up, OPEN)[0]

    @pytest.mark.parametrize(("text", "failed", "kept"), [
        ("0", 0, True), ("0", 1, False), ("5", 5, True), ("5", 6, False), ("1%", 10, True), ("1%", 11, False),
        ("100%", 5000, True),
    ])  # fmt: skip
    def test_the_limit(self, text, failed, kept):
        assert (
            Limit.read(text).kept(tally(good=1000 - failed if failed < 900 else 1, failed={"status": failed})) is kept
        )

    def test_nothing_answered_is_never_fine(self):
        assert not Limit.read("100%").kept(tally(good=0))

    @pytest.mark.parametrize("text", ["", "x", "-1", "101%", "1.5", "nan%", "%", "inf"])
    def test_a_limit_that_is_none(self, text):
        with pytest.raises(ValueError):
            Limit.read(text)


class TestPage:
    def test_a_run_without_troubles(self):
        lines = page(ABOUT, [Done(CLOSED, tally(), None)]).splitlines()
        assert lines[:3] == [
            "POST http://h/x",
            "1,024 bodies made up, 113 B on average",
            "closed loop, 32 connections; 1 s of warm-up, 10 s counted",
        ]
        assert lines[4].split() == ["answers/s", "p50", "p90", "p99", "p99.9", "max", "errors", "tester"]
        assert lines[5].split() == ["32", "conn.", "100", "1", "1", "1", "20", "20", "ms", "0", "30%", "CPU"]
        assert lines[7] == "  traffic        32.9 kB/s received, 25 kB/s sent, 32 connections opened"
        assert "WARNING" not in "".join(lines)

    def test_a_run_with_troubles(self):
        bad = tally(
            failed={"status": 90, "timeout": 10}, statuses={"503": 30, "429": 60}, refusals=packed(MS // 10),
            samples={"status": ["429: busy"], "timeout": ["no whole answer in 1 s"]}, cut_short=True, compared=7,
            usage=[Usage(0.95, 0.0)],
        )  # fmt: skip
        text = page(ABOUT, [Done(CLOSED, bad, None)])
        for said in (
            "90 answered with another status than 2xx (429: 60, 503: 30)", "429: busy", "10 no whole answer in time",
            "refusals       p50 0.1", "7 answers", "stopped before its time", "WARNING        the tester itself",
            "The server may do more, and quicker",
        ):  # fmt: skip
            assert said in text, text

    def test_both_latencies_only_where_they_differ(self):
        alike = Done(OPEN, tally(sending=packed(*[MS] * 990, *[20 * MS] * 10), behind=packed(1000)), None)
        other = Done(OPEN, tally(sending=packed(*[MS] * 1000), behind=packed(1000)), None)
        assert "from sending" not in page(ABOUT, [alike])
        assert "from sending" in page(ABOUT, [other])

    def test_steps_have_a_line_each(self):
        text = page(ABOUT, [Done(OPEN, tally(), None), Done(msgspec.structs.replace(OPEN, rate=200.0), tally(), None)])
        assert "open loop, 100, 200 requests/s (poisson), up to 64 connections" in text
        assert "\n100/s:" in text and "\n200/s:" in text

    def test_the_server(self):
        text = page(ABOUT, [Done(CLOSED, tally(), Server(7, 2.0, 1000, 10.0))])
        assert "2,000 µs of CPU an answer, 0.2 processors busy (pid 7)" in text

    def test_nothing_at_all(self):
        empty = tally(answered=0, good=0, latency=packed(), received_bytes=0, sent_bytes=0)
        assert "nothing was counted" in page(ABOUT, [Done(CLOSED, empty, None)])

    def test_what_was_stopped_before_it_counted_raises_no_doubts(self):
        stopped = tally(answered=0, good=0, latency=packed(), cut_short=True, usage=[Usage(0.98, 0.0)])
        assert doubts(stopped, CLOSED) == [] and "WARNING" not in page(ABOUT, [Done(CLOSED, stopped, None)])

    def test_short_times_of_the_server_are_plain_numbers(self):
        timed = tally(timings={"queue": Timing(1000, 17_000)}, timed=Timing(1000, 1000 * MS))
        text = page(ABOUT, [Done(CLOSED, timed, None)])
        assert "server timing  queue 0.000 ms (0%), elsewhere 1.000 ms (100%)" in text

    def test_one_body_has_its_size_and_several_their_mean(self):
        one = page(ABOUT._replace(bodies=1, source="from a.json"), [Done(CLOSED, tally(), None)])
        assert one.splitlines()[1] == "1 body from a.json, 113 B"


class TestDocument:
    KEYS = """loop connections rate arrivals warmup_seconds seconds cut_short requests answered answers_per_second
        received_bytes_per_second sent_bytes_per_second connections_opened latency_ms latency_from_sending_ms
        refusal_latency_ms errors statuses samples sample_answer compared passed server_timing_ms
        server_timing_shares server tester remarks""".split()

    def test_its_keys_are_those_that_are_promised(self):
        record = json.loads(document(ABOUT, [Done(CLOSED, tally(), None)]))
        assert list(record) == ["format", "url", "method", "bodies", "workers", "passed", "steps"]
        [step] = record["steps"]
        assert list(step) == self.KEYS
        latency = "count mean min p50 p75 p90 p95 p99 p99_9 p99_99 max".split()
        assert list(step["latency_ms"]) == list(step["refusal_latency_ms"]) == latency
        assert list(step["errors"]) == ["total", *KINDS]
        assert list(step["tester"]) == ["cpu", "waited", "behind_ms", "held_up", "doubts"]

    def test_its_figures(self):
        done = Done(OPEN, tally(failed={"timeout": 10}, behind=packed(MS)), Server(7, 2.0, 1000, 10.0))
        record = json.loads(document(ABOUT, [done]))
        [step] = record["steps"]
        assert record["passed"] is step["passed"] is False
        assert (step["loop"], step["rate"], step["answers_per_second"], step["requests"]) == ("open", 100.0, 100, 1010)
        assert step["latency_ms"]["count"] == 1000 and step["latency_ms"]["p50"] == pytest.approx(1.0, rel=0.001)
        assert step["latency_ms"]["max"] == 20 and step["errors"]["timeout"] == step["errors"]["total"] == 10
        assert step["server"] == {"pid": 7, "cpu_us_per_answer": 2000, "processors": 0.2}

    def test_what_is_not_known_is_null(self):
        empty = tally(answered=0, good=0, latency=packed(), usage=[Usage(0.0)])
        [step] = json.loads(document(ABOUT, [Done(CLOSED, empty, Server(1, 0.0, 0, 1.0))]))["steps"]
        assert step["latency_ms"]["p50"] is step["latency_ms"]["mean"] is step["latency_ms"]["min"] is None
        assert step["server"]["cpu_us_per_answer"] is step["tester"]["waited"] is None


def test_the_shares_of_the_server():
    found = timings(
        tally(timings={"queue": Timing(10, 10 * MS), "model": Timing(10, 5 * MS)}, timed=Timing(10, 20 * MS))
    )
    assert found == {"queue": (1.0, 0.5), "model": (0.5, 0.25), "elsewhere": (0.5, 0.25)}
    within = timings(tally(timings={"total": Timing(10, 20 * MS), "db": Timing(10, 5 * MS)}, timed=Timing(10, 20 * MS)))
    assert list(within) == ["total", "db"]  # they overlap: there is no rest
    assert timings(tally()) == {}


def test_samples_differ_by_more_than_numbers():
    kept: list[str] = []
    for text in ("429: try in 3 s", "429: try in 17 s", "500: broken", "429: gone", "429: more"):
        keep_sample(kept, text)
    assert kept == ["429: try in 3 s", "500: broken", "429: gone"]


def test_what_workers_counted_adds_up():
    one = tally(failed={"timeout": 1}, statuses={"429": 2}, samples={"timeout": ["a"]}, timings={"q": Timing(1, 5)})
    samples = {"timeout": ["a", "b", "c", "d"]}
    failed = {"timeout": 2, "reset": 1}
    other = tally(failed=failed, samples=samples, timings={"q": Timing(2, 6)}, cut_short=True)
    both = merged([one, other])
    assert (both.answered, both.good, both.seconds) == (2000, 2000, 10.0)
    assert both.failed == {"timeout": 3, "reset": 1} and both.failures == 4
    assert both.samples == {"timeout": ["a", "b", "c"]} and both.cut_short
    assert both.timings == {"q": Timing(3, 11)} and len(both.usage) == 2
    assert sum(both.latency.counts) == 2000
    assert merged([one]) == one
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(both), type=Tally)
    assert travelled == both
