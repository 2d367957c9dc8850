"""The results as Markdown: one line a figure with aim, verdict and ratios; then the details of every row."""

from __future__ import annotations

from pathlib import Path

import peers
from figures import FIGURES, OURS, Figure
from results import Results
from rows import ROWS, Row

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
CLIENT_FULL = 0.95
"""A load generator that uses this share of its core may itself be what limits the figure."""
DETAILS = (
    ("rps", "requests/s", 0), ("p50_ms", "p50 ms", 2), ("p90_ms", "p90 ms", 2), ("p99_ms", "p99 ms", 2),
    ("cpu_us", "CPU-µs a request", 1), ("busy", "cores", 2), ("batch", "rows a batch", 1),
    ("client_busy", "client's core", 2), ("rate", "offered/s", 0), ("ideal_p50_ms", "simulated p50", 2),
    ("ideal_p99_ms", "simulated p99", 2), ("sent_late_p99_ms", "sent late p99 ms", 2), ("capacity", "capacity/s", 0),
    ("good_share", "good share", 3), ("refused", "refused", 0), ("refused_p50_ms", "refusal p50 ms", 2),
    ("drain_s", "drain s", 2), ("drained_rows", "rows after", 0), ("wasted_share", "rows for nobody", 2),
    ("abandoned", "rows for nobody", 0), ("ready_s", "ready s", 2), ("after_import_s", "after import s", 2),
    ("pss_mb", "PSS MB", 0), ("processes", "processes", 0), ("cpu_us_idle", "client's core idle", 1),
    ("errors", "errors", 0),
)  # fmt: skip


def shown(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def names_in(results: Results) -> list[str]:
    """The servers that the results hold, in the usual order; not the model alone."""
    found = {peer for _, peer, _ in results.cells} - {"bare"}
    return [name for name in peers.DEFAULT if name in found] + sorted(found - set(peers.DEFAULT))


def title_of(name: str) -> str:
    base, colon, variant = name.partition(":")
    if base == "bare":
        return "the model alone"
    return peers.PEERS[base].title + (f" ({variant})" if colon else "")


def times(ratio: float) -> str:
    """Two digits that count."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"


# ---------------------------------------------------------------- the summary


def ours(results: Results, figure: Figure) -> str:
    if figure.row == "grpc" and not peers.PEERS[OURS].grpc:
        return "not yet"
    if results.error(figure.row, OURS):
        return "**failed**"
    text = told(results, figure, OURS)
    return f"**{text}**{troubles(results, figure, OURS)}" if text else ""


def theirs(results: Results, figure: Figure, name: str) -> str:
    """A peer's figure, and in brackets how many times it maitred's is."""
    if results.error(figure.row, name):
        return "failed"
    text = told(results, figure, name)
    ratio = results.ratio(figure.row, name, figure.key) if figure.ratios and text else None
    return text + ("" if ratio is None else f" ({times(ratio)}×)") + troubles(results, figure, name)


def told(results: Results, figure: Figure, name: str) -> str:
    """A figure; requests a second that the load generator itself may have bounded are told as at least so many."""
    value = results.value(figure.row, name, figure.key)
    if value is None:
        return ""
    bounded = figure.key == "rps" and (results.value(figure.row, name, "client_busy") or 0.0) > CLIENT_FULL
    return ("≥ " if bounded else "") + shown(value * figure.scale, figure.digits)


def troubles(results: Results, figure: Figure, name: str) -> str:
    """Requests that were not answered well, which nobody may overlook."""
    failed = sum(results.values(figure.row, name, "errors"))
    return f", {failed:,.0f} errors" if failed else ""


def verdict(results: Results, figure: Figure) -> str:
    """Met or missed, for each aim where there are several."""
    if not figure.aims:
        return ""
    words = {True: "met", False: "**missed**", None: "?"}
    found = [words[aim.holds(results)] for aim in figure.aims]
    if figure.row == "grpc" and not peers.PEERS[OURS].grpc:
        return "not yet"
    return found[0] if len(set(found)) == 1 else "; ".join(found)


def summary(results: Results) -> list[str]:
    names = [name for name in names_in(results) if name != OURS]
    measured = {row for row, _, _ in results.cells}
    lines = [
        "| figure | aim | met / missed | maitred | " + " | ".join(map(title_of, names)) + " |",
        "| --- | --- | --- | ---: |" + " ---: |" * len(names),
    ]
    for figure in FIGURES:
        if figure.row in measured:
            aims = "; ".join(aim.text for aim in figure.aims)
            cells = [figure.title, aims, verdict(results, figure), ours(results, figure)]
            lines.append("| " + " | ".join([*cells, *(theirs(results, figure, name) for name in names)]) + " |")
    return lines


def counted(results: Results) -> str:
    """How many aims are met."""
    measured = {row for row, peer, _ in results.cells if peer == OURS}
    held = [aim.holds(results) for figure in FIGURES if figure.row in measured for aim in figure.aims]
    unknown = held.count(None)
    text = f"Of {len(held)} aims {held.count(True)} are met and {held.count(False)} missed"
    return text + (f"; {unknown} could not be judged." if unknown else ".")


def failures(results: Results) -> list[str]:
    """What could not be measured, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for row, peer, _ in results.cells:
        if error := results.error(row, peer):
            found.setdefault((peer, error.strip().splitlines()[0][:160] if error.strip() else "?"), []).append(row)
    return [f"- {title_of(peer)}: {', '.join(rows)}: {why}" for (peer, why), rows in found.items()]


# ---------------------------------------------------------------- the details


def details(results: Results, row: Row) -> list[str]:
    names = [name for name in [*names_in(results), "bare"] if results.runs(row.name, name)]
    columns = [c for c in DETAILS if any(results.values(row.name, name, c[0]) for name in names)]
    if not names:
        return []
    lines = ["", f"**{row.title}** (`{row.name}`)", "", "| server | " + " | ".join(c[1] for c in columns) + " | runs |"]
    lines.append("| --- |" + " ---: |" * (len(columns) + 1))
    for name in names:
        cells = [spread(results, row.name, name, key, digits) for key, _, digits in columns]
        bold = "**" if name == OURS else ""
        runs = len(results.runs(row.name, name))
        lines.append(f"| {bold}{title_of(name)}{bold} | " + " | ".join(cells) + f" | {runs} |")
    return lines


def spread(results: Results, row: str, name: str, key: str, digits: int) -> str:
    """The median, and from where to where the runs went if that is more than a tenth."""
    found = results.values(row, name, key)
    if not found:
        return ""
    text = shown(results.value(row, name, key), digits)
    if key == "client_busy" and max(found) > CLIENT_FULL:
        return f"{text} (full)"
    if key in ("rps", "p50_ms", "p99_ms", "cpu_us") and max(found) - min(found) > 0.1 * max(found):
        return f"{text} ({shown(min(found), digits)}–{shown(max(found), digits)})"
    return text


# ---------------------------------------------------------------- the page


def page(results: Results, pictures: list[tuple[str, str]]) -> list[str]:
    """What stands between the markers. `pictures`: title and path of each."""
    about, (since, until) = results.about, results.when()
    runs = max((run for _, _, run in results.cells), default=0)
    seconds = " or ".join(map(str, results.stamps("length")))
    how = f"Medians of {runs} runs in which the servers took turns, {seconds} s an ordinary load."
    if len(commits := results.stamps("commit")) > 1:
        how += f" **Not one run: parts are of the commits {', '.join(commits)}.**"
    lines = [
        f"Measured from {since} to {until}: {about.get('machine', '')}. {how}",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()) + ".",
        "",
        counted(results) + " In brackets: maitred's figure over that server's, the median over the runs.",
        "",
        *summary(results),
    ]
    if failed := failures(results):
        lines += ["", "Not measured:", "", *failed]
    for title, place in pictures:
        lines += ["", f"![{title}]({place})"]
    lines += ["", "<details><summary>Every row in full</summary>"]
    for row in ROWS:
        lines += details(results, row)
    return [*lines, "", "</details>"]


def written(lines: list[str], place: Path) -> None:
    """Put the lines between the markers of a file."""
    before, found, rest = place.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{place} lacks the lines {BEGIN} and {END}")
    place.write_text("\n".join([before + BEGIN, "", *lines, "", END]) + after)
