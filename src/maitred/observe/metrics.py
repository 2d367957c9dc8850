"""Counters, histograms and gauges, aggregated once a batch from events.

The parent process counts, so totals survive the death of any replica. Labels are names that the operator chose and
codes of closed tables; nothing that a caller sent becomes one.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import sub
from pathlib import Path
from typing import Any, Final, Protocol

from maitred.clock import Clock, monotonic
from maitred.errors import TABLE
from maitred.events import METHOD_NOT_ALLOWED, BatchEnded, Event, ReplicaChanged, RequestEnded
from maitred.messages import LANES
from maitred.observe.exposition import (
    OPENMETRICS,
    PROMETHEUS,
    Family,
    Labels,
    Sample,
    bucket_labels,
    histogram_samples,
    labels,
    render,
    wants_openmetrics,
)

LONG_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
)  # fmt: skip
SHORT_BOUNDS: Final = (0.00001, 0.000025, 0.00005, *LONG_BOUNDS)
"""For what often takes microseconds: decoding, encoding, the model and the hop."""
ROW_BOUNDS: Final = tuple(float(2**power) for power in range(13))
LONG: Final = (LONG_BOUNDS, bucket_labels(LONG_BOUNDS))
SHORT: Final = (SHORT_BOUNDS, bucket_labels(SHORT_BOUNDS))
ROWS: Final = (ROW_BOUNDS, bucket_labels(ROW_BOUNDS))

OUTCOMES: Final = frozenset({"ok", *(error.code for error in TABLE)})
BATCH_OUTCOMES: Final = frozenset({"ok", "raised", "malformed", "wrong_count", "out_of_memory", "lost"})
REPLICA_STATES: Final = frozenset(
    {"new", "loading", "warming", "ready", "draining", "stopped", "failed", "lost", "hung"}
)  # fmt: skip
STATUSES: Final = frozenset({400, 401, 403, 404, 405, 406, 408, 410, 411, 412, 413, 414, 415, 417, 421, 422, 429, 431,
                             499, 500, 501, 503, 504, 505})  # fmt: skip
STATUS_OF: Final[Mapping[str, int]] = {METHOD_NOT_ALLOWED: 405, **{error.code: error.http_status for error in TABLE}}
OTHER: Final = "other"
"""The label value into which everything else is folded."""

MAX_VERSIONS: Final = 200
"""So many versions have series of their own; those that come later share one."""


class PoolSnapshot(Protocol):
    """A pool's gauges at one moment."""

    model: str
    version: str
    waiting_rows: list[int]
    """By lane."""
    waiting_requests: list[int]
    running_rows: int
    replicas: dict[str, int]
    """By state."""
    submitted_rows: int
    """Rows that were ever submitted, refused ones too."""
    best_rows_per_second: float
    """What the ready replicas could do with batches of the best size; 0 while unknown."""


class Histogram:
    """Counts by bucket and a sum. Changed by one thread; another may read it."""

    __slots__ = ("bounds", "buckets", "counts", "total")

    def __init__(self, bounds: Sequence[float], buckets: Sequence[Labels]) -> None:
        self.bounds = bounds
        self.buckets = buckets
        """The label of each bucket."""
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_all(self, values: Sequence[float]) -> None:
        """Count a batch's values. Most batches fall into one bucket, which their extremes tell."""
        if values:
            self.total += sum(values)
            self._count(values, min(values), max(values))

    def observe_since(self, moments: Sequence[float], end: float) -> None:
        """Count how long it was from each moment to `end`."""
        if moments:
            self.total += max(len(moments) * end - sum(moments), 0.0)
            shortest, longest = end - max(moments), end - min(moments)
            bucket = bisect_left(self.bounds, longest)
            if bisect_left(self.bounds, shortest) == bucket:
                self.counts[bucket] += len(moments)
            else:
                self._count([end - moment for moment in moments], shortest, longest)

    def _count(self, values: Sequence[float], least: float, most: float) -> None:
        bounds, counts = self.bounds, self.counts
        if bisect_left(bounds, least) == bisect_left(bounds, most):
            counts[bisect_left(bounds, most)] += len(values)
            return
        ordered = sorted(values)
        size, position = len(ordered), 0
        while position < size:
            bucket = bisect_left(bounds, ordered[position])
            after = size if bucket == len(bounds) else bisect_right(ordered, bounds[bucket], position)
            counts[bucket] += after - position
            position = after

    def samples(self, pairs: Labels) -> list[Sample]:
        return histogram_samples(pairs, self.buckets, list(self.counts), self.total)


class _Filled:
    """What was filled up to one bucket's sizes."""

    __slots__ = ("requests", "real", "pad")

    def __init__(self) -> None:
        self.requests = 0
        self.real = 0
        self.pad = 0


class _Version:
    """Everything that is counted for one version of a model."""

    __slots__ = ("labels", "requests", "batches", "replica_changes", "rows", "queue", "batch", "model", "decode",
                 "encode", "answered", "failed", "batch_rows", "arrivals", "buckets")  # fmt: skip

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.requests: dict[str, int] = {"ok": 0}
        self.batches: dict[str, int] = {"ok": 0}
        self.replica_changes: dict[str, int] = {}
        self.rows = 0
        self.queue = Histogram(*LONG)
        self.batch = Histogram(*SHORT)
        self.model = Histogram(*SHORT)
        self.decode = Histogram(*SHORT)
        self.encode = Histogram(*SHORT)
        self.answered = Histogram(*LONG)
        self.failed = Histogram(*LONG)
        self.batch_rows = Histogram(*ROWS)
        self.arrivals = Arrivals()
        self.buckets: dict[str, _Filled] = {}
        """By the sizes of a bucket, of which a signature has only so many."""

    def fill(self, event: BatchEnded) -> None:
        """Count what a batch of rows of different lengths was filled up with."""
        filled = self.buckets.get(event.bucket)
        if filled is None:
            filled = self.buckets[event.bucket] = _Filled()
        filled.requests += event.requests
        filled.real += event.real
        filled.pad += event.elements - event.real


class Arrivals:
    """How many rows arrive per second, from now and then a look at a counter."""

    WINDOW_SECONDS: Final = 10.0
    STALE_SECONDS: Final = 60.0
    """A look that is older says nothing about now."""

    def __init__(self) -> None:
        self.total = 0
        """Rows seen to arrive; goes on when the counter starts anew with a new pool."""
        self._last = 0
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, now: float, counter: int) -> None:
        self.total += counter - self._last if counter >= self._last else counter
        self._last = counter
        looks = self._looks
        looks.append((now, self.total))
        while len(looks) > 1 and (looks[1][0] <= now - self.WINDOW_SECONDS or looks[0][0] < now - self.STALE_SECONDS):
            looks.popleft()

    def rows_per_second(self) -> float | None:
        """Over the last ten seconds, or since the first look; None while there was only one."""
        (first, before), (last, after) = self._looks[0], self._looks[-1]
        return (after - before) / (last - first) if last > first else None


class Metrics:
    """A listener of events and the page that `/metrics` shows. Belongs to the loop that owns the pools.

    `pools` gives a snapshot of each pool there is. Call `look` about once a second, so that the load is that of the
    last ten seconds; without it, it is that since the last scrape.
    """

    def __init__(self, pools: Callable[[], Iterable[PoolSnapshot]] = tuple, clock: Clock = monotonic) -> None:
        self.pools = pools
        self._clock = clock
        self._versions: dict[tuple[str, str], _Version] = {}
        self._http_errors: dict[str, int] = {}
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._started_at = time.time()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if not isinstance(event, BatchEnded):
            self._count_other(event)
            return
        version = self._versions.get((event.model, event.version)) or self._version(event.model, event.version)
        if event.outcome != "ok":
            _add(version.batches, event.outcome, BATCH_OUTCOMES)
            return  # its members are told of once they have ended
        version.batches["ok"] += 1
        version.requests["ok"] += event.ok
        version.rows += event.rows
        version.batch_rows.observe(event.rows)
        version.batch.observe(max(event.ended_at - event.started_at - event.model_seconds, 0.0))
        version.model.observe(event.model_seconds)
        version.encode.observe(event.encode_seconds)
        received, submitted = event.received_at, event.submitted_at
        if event.bucket:
            version.fill(event)
        if 0.0 in received:
            received = [moment or other for moment, other in zip(received, submitted, strict=True)]
        version.decode.observe_all(list(map(sub, submitted, received)))
        version.queue.observe_since(submitted, event.started_at)
        version.answered.observe_since(received, event.ended_at)

    def _count_other(self, event: Event) -> None:
        if isinstance(event, RequestEnded):
            self._request_ended(event)
        elif isinstance(event, ReplicaChanged):
            _add(self._version(event.model, event.version).replica_changes, event.state, REPLICA_STATES)

    def refused(self, status: int, count: int = 1) -> None:
        """Count requests that HTTP refused before it could be known which model they were for."""
        self._refused(str(status) if status in STATUSES else OTHER, count)

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show a value that somebody else keeps, such as the number of connections."""
        self._gauges[name] = (text, read)

    def look(self) -> None:
        """Take note of how much work has arrived by now."""
        self._look()

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text, and its content type: OpenMetrics where `Accept` asks for it."""
        openmetrics = wants_openmetrics(accept)
        return render(self.families(), openmetrics), OPENMETRICS if openmetrics else PROMETHEUS

    def families(self) -> list[Family]:
        """Everything that is shown."""
        snapshots = self._look()
        versions = list(self._versions.values())
        return [
            *_counters(versions),
            *_bucket_counters(versions),
            *_histograms(versions),
            *_pool_gauges(snapshots),
            _http_errors(self._http_errors),
            *(Family(name, "gauge", text, [Sample("", "", read())]) for name, (text, read) in self._gauges.items()),
            *process_families(self._started_at),
        ]

    def _request_ended(self, event: RequestEnded) -> None:
        if not event.model:
            self._refused(str(STATUS_OF.get(event.code, OTHER)), event.count)
            return
        version = self._version(event.model, event.version)
        _add(version.requests, event.code, OUTCOMES, event.count)
        (version.answered if event.code == "ok" else version.failed).observe(event.waited_seconds, event.count)

    def _refused(self, status: str, count: int = 1) -> None:
        self._http_errors[status] = self._http_errors.get(status, 0) + count

    def _version(self, model: str, version: str) -> _Version:
        found = self._versions.get((model, version))
        if found is None:
            if len(self._versions) >= MAX_VERSIONS:
                model = version = OTHER
            pairs = labels(("model", model), ("version", version))
            found = self._versions.setdefault((model, version), _Version(pairs))
        return found

    def _look(self) -> list[tuple[_Version, PoolSnapshot]]:
        now = self._clock()
        snapshots = [(self._version(snapshot.model, snapshot.version), snapshot) for snapshot in self.pools()]
        for version, snapshot in snapshots:
            version.arrivals.look(now, snapshot.submitted_rows)
        return snapshots


def _add(counts: dict[str, int], key: str, known: frozenset[str], count: int = 1) -> None:
    if key not in known:
        key = OTHER
    counts[key] = counts.get(key, 0) + count


def _counters(versions: Sequence[_Version]) -> list[Family]:
    def by(label: str, counts: Callable[[_Version], dict[str, int]]) -> list[Sample]:
        return [
            Sample("_total", labels((label, key), after=version.labels), count)
            for version in versions
            for key, count in list(counts(version).items())
        ]

    def plain(count: Callable[[_Version], int]) -> list[Sample]:
        return [Sample("_total", version.labels, count(version)) for version in versions]

    return [
        Family("maitred_requests", "counter", "Requests that have ended, by outcome: ok or the error's code.",
               by("outcome", lambda version: version.requests)),
        Family("maitred_batches", "counter", "Batches that replicas were given, by outcome.",
               by("outcome", lambda version: version.batches)),
        Family("maitred_rows", "counter", "Rows in batches that were answered.", plain(lambda version: version.rows)),
        Family("maitred_arrived_rows", "counter", "Rows that were submitted, refused ones too.",
               plain(lambda version: version.arrivals.total)),
        Family("maitred_replica_changes", "counter", "Changes of replicas, by the state that was reached.",
               by("state", lambda version: version.replica_changes)),
    ]  # fmt: skip


def _bucket_counters(versions: Sequence[_Version]) -> list[Family]:
    """What rows of different lengths cost: the waste of a bucket is its `pad` elements divided by all of them."""
    requests: list[Sample] = []
    elements: list[Sample] = []
    for version in versions:
        for bucket, filled in list(version.buckets.items()):
            pairs = labels(("bucket", bucket), after=version.labels)
            requests.append(Sample("_total", pairs, filled.requests))
            for kind, count in (("real", filled.real), ("pad", filled.pad)):
                elements.append(Sample("_total", labels(("kind", kind), after=pairs), count))
    return [
        Family("maitred_bucket_requests", "counter", "Requests in batches that were answered, by bucket.", requests),
        Family("maitred_bucket_elements", "counter", "Elements of their inputs: real ones, and what filled up rows.",
               elements),
    ]  # fmt: skip


def _histograms(versions: Sequence[_Version]) -> list[Family]:
    def samples(pick: Callable[[_Version], Histogram], *more: tuple[str, str]) -> list[Sample]:
        return [sample for version in versions for sample in pick(version).samples(labels(*more, after=version.labels))]

    total = [
        *samples(lambda version: version.answered, ("outcome", "ok")),
        *samples(lambda version: version.failed, ("outcome", "error")),
    ]
    table: list[tuple[str, str, list[Sample]]] = [
        ("request_seconds", "A request's last byte to its end.", total),
        ("decode_seconds", "A request's last byte to its submission.", samples(lambda version: version.decode)),
        ("queue_seconds", "A request's submission to its batch's start.", samples(lambda version: version.queue)),
        ("batch_seconds", "A batch's joining, hop and splitting: its time without the model's.",
         samples(lambda version: version.batch)),
        ("model_seconds", "The model's own time for a batch.", samples(lambda version: version.model)),
        ("encode_seconds", "Writing a batch's answers.", samples(lambda version: version.encode)),
        ("batch_rows", "Rows in a batch.", samples(lambda version: version.batch_rows)),
    ]  # fmt: skip
    return [Family(f"maitred_{name}", "histogram", text, lines) for name, text, lines in table]


def _pool_gauges(snapshots: Sequence[tuple[_Version, PoolSnapshot]]) -> list[Family]:
    lanes: dict[str, list[Sample]] = {"rows": [], "requests": []}
    replicas: list[Sample] = []
    running: list[Sample] = []
    capacity: list[Sample] = []
    load: list[Sample] = []
    for version, snapshot in snapshots:
        pairs = version.labels
        for what, waiting in (("rows", snapshot.waiting_rows), ("requests", snapshot.waiting_requests)):
            by_lane = zip(LANES, waiting, strict=True)
            lanes[what] += [Sample("", labels(("lane", lane), after=pairs), rows) for lane, rows in by_lane]
        states = snapshot.replicas.items()
        replicas += [Sample("", labels(("state", state), after=pairs), count) for state, count in states]
        running.append(Sample("", pairs, snapshot.running_rows))
        best, rate = snapshot.best_rows_per_second, version.arrivals.rows_per_second()
        if best > 0:
            capacity.append(Sample("", pairs, best))
            if rate is not None:
                load.append(Sample("", pairs, rate / best))
    return [
        Family("maitred_queue_rows", "gauge", "Rows that wait, by lane.", lanes["rows"]),
        Family("maitred_queue_requests", "gauge", "Requests that wait, by lane.", lanes["requests"]),
        Family("maitred_running_rows", "gauge", "Rows in batches that run.", running),
        Family("maitred_replicas", "gauge", "Replicas by state.", replicas),
        Family("maitred_capacity_rows_per_second", "gauge", "What the ready replicas could do at the best batch size.",
               capacity),
        Family("maitred_load", "gauge", "Work arriving, divided by the capacity at the best batch size.", load),
    ]  # fmt: skip


def _http_errors(counts: dict[str, int]) -> Family:
    samples = [Sample("_total", labels(("status", status)), count) for status, count in sorted(counts.items())]
    text = "Requests that were refused before it was known which model they were for, by HTTP status."
    return Family("maitred_http_errors", "counter", text, samples)


def process_families(started_at: float, proc: Path = Path("/proc/self")) -> list[Family]:
    """This process' own use of CPU and memory; memory and files where the system has a `/proc`."""
    families = [
        _process("cpu_seconds", "counter", "CPU time of this process, without its replicas'.", time.process_time()),
        _process("start_time_seconds", "gauge", "When this process began to count, in Unix time.", started_at),
    ]
    try:
        resident = int((proc / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGESIZE")
        open_files = len(os.listdir(proc / "fd"))
    except OSError:  # no such file system here
        return families
    return [
        *families,
        _process("resident_memory_bytes", "gauge", "Memory of this process, without its replicas'.", resident),
        _process("open_fds", "gauge", "Open file descriptors of this process.", open_files),
    ]


def _process(name: str, kind: Any, text: str, value: float) -> Family:
    return Family(f"process_{name}", kind, text, [Sample("_total" if kind == "counter" else "", "", value)])
