"""Metric families as text: the Prometheus format 0.0.4, and OpenMetrics 1.0 for those who ask for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

Labels = str
"""Label pairs as they stand between the braces; made once by `labels`, since a page has thousands of lines."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Sample(NamedTuple):
    """One line. `suffix` is what the family's name lacks: `_total`, `_bucket`, `_sum`, `_count` or nothing."""

    suffix: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """One metric with all its label values. The name of a counter is written without `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[Sample]


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics."""
    return any(
        part.partition(";")[0].strip() == "application/openmetrics-text" and not _refused(part)
        for part in accept.lower().split(",")
    )


def _refused(part: str) -> bool:
    weights = [piece.strip()[2:] for piece in part.split(";")[1:] if piece.strip().startswith("q=")]
    return bool(weights) and not weights[0].strip("0.")


def render(families: Iterable[Family], openmetrics: bool = False) -> bytes:
    """The page. Families without samples are left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        total = "_total" if family.kind == "counter" and not openmetrics else ""
        lines.append(f"# HELP {family.name}{total} {_escaped(family.help, quotes=openmetrics)}")
        lines.append(f"# TYPE {family.name}{total} {family.kind}")
        name = family.name
        for suffix, pairs, value in family.samples:
            text = str(value) if isinstance(value, int) else number(value)
            lines.append(f"{name}{suffix}{{{pairs}}} {text}" if pairs else f"{name}{suffix} {text}")
    if openmetrics:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def labels(*pairs: tuple[str, str], after: Labels = "") -> Labels:
    """Label pairs in the order given, behind those of `after`."""
    text = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in pairs)
    return f"{after},{text}" if after and text else after or text


def bucket_labels(bounds: Sequence[float]) -> tuple[Labels, ...]:
    """The label of each bucket of a histogram; the last one is infinity's."""
    return tuple(labels(("le", number(float(bound)))) for bound in (*bounds, math.inf))


def histogram_samples(pairs: Labels, buckets: Sequence[Labels], counts: Sequence[int], total: float) -> list[Sample]:
    """The lines of one histogram from its counts by bucket."""
    samples = []
    running = 0
    before = f"{pairs}," if pairs else ""
    for bucket, count in zip(buckets, counts, strict=True):
        running += count
        samples.append(Sample("_bucket", before + bucket, running))
    samples.append(Sample("_sum", pairs, total))
    samples.append(Sample("_count", pairs, running))
    return samples


def number(value: float) -> str:
    """A value as both formats write it; whole numbers are exact."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
