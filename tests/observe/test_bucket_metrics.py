"""What filling up rows costs, by bucket: on the page, for strict parsers, and only where there are buckets."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from maitred.events import BatchEnded
from maitred.observe.metrics import Metrics


def batch(bucket: str, elements: int, real: int, outcome: str = "ok", requests: int = 2) -> BatchEnded:
    times = [1.0] * requests
    return BatchEnded(
        "m", "1", 1, 4, requests, outcome, requests, times, times, 2.0, 3.0, 0.5, 0.1, bucket, elements, real
    )


@pytest.mark.parametrize(
    ("accept", "parse"), [("application/openmetrics-text", parse_openmetrics), ("text/plain", parse_prometheus)]
)
def test_waste_can_be_computed_per_bucket(accept, parse):
    metrics = Metrics()
    for event in (
        batch("seq=16", 64, 40), batch("seq=16", 32, 32), batch("h=2,w=3", 12, 6, requests=1),
        batch("seq=16", 64, 10, "raised"), batch("", 0, 0),
    ):  # fmt: skip
        metrics(event)
    found = {
        (sample.name, sample.labels["bucket"], sample.labels.get("kind")): sample.value
        for family in parse(metrics.page(accept)[0].decode())
        for sample in family.samples
        if "bucket" in sample.labels
    }
    elements, requests = "maitred_bucket_elements_total", "maitred_bucket_requests_total"
    assert found == {
        (requests, "seq=16", None): 4, (elements, "seq=16", "real"): 72, (elements, "seq=16", "pad"): 24,
        (requests, "h=2,w=3", None): 1, (elements, "h=2,w=3", "real"): 6, (elements, "h=2,w=3", "pad"): 6,
    }  # fmt: skip


def test_models_without_buckets_show_none():
    metrics = Metrics()
    metrics(batch("", 0, 0))
    assert b"bucket_elements" not in metrics.page()[0] and b"bucket_requests" not in metrics.page()[0]
