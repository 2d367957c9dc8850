"""The results as small pictures: bars and lines in SVG, written as text."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import peers
from figures import OURS
from results import Results

WIDTH, LEFT, BAR, GAP = 640, 130, 16, 6
INK, OWN, OTHER, GRID = "#24292f", "#0a7d5a", "#9aa5b1", "#d9dee3"
FONT = 'font-family="system-ui, sans-serif" font-size="12"'
LINES = ("#0a7d5a", "#24292f", "#c2410c", "#2563eb", "#7c3aed", "#be185d", "#a16207", "#0e7490", "#65a30d", "#9aa5b1")
CONNECTIONS = (("lone", 1), ("c16", 16), ("cpu64", 64), ("c128", 128), ("c256", 256))


def picture(height: float, title: str, inside: list[str]) -> str:
    """A whole SVG on white: pages may be dark."""
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    look = f'{FONT} fill="{INK}" role="img" aria-label="{escape(title)}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>',
        f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-weight="600">{escape(title)}</text>',
        *inside, "</svg>", "",
    ])  # fmt: skip


def bars(title: str, values: list[tuple[str, float, str]], logarithmic: bool = False) -> str:
    """Horizontal bars of (name, value, text beside it), maitred's in its own colour."""
    room = WIDTH - LEFT - 90
    most = max(value for _, value, _ in values)
    floor = min(value for _, value, _ in values) / 2 if logarithmic else 0.0
    inside = []
    for number, (name, value, text) in enumerate(values):
        y = 34 + number * (BAR + GAP)
        share = math.log(value / floor) / math.log(most / floor) if logarithmic else value / most
        colour = OWN if name == peers.PEERS[OURS].title else OTHER
        inside += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{max(1.0, room * share):.1f}" height="{BAR}" fill="{colour}"/>',
            f'<text x="{LEFT + max(1.0, room * share) + 6:.1f}" y="{y + 12}">{escape(text)}</text>',
        ]
    return picture(44 + len(values) * (BAR + GAP), title, inside)


def lines(title: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """Both axes logarithmic: (x, y) by name."""
    points = [point for line in series.values() for point in line]
    least = 10 ** math.floor(math.log10(min(y for _, y in points)))
    most = 10 ** math.ceil(math.log10(max(y for _, y in points)))
    steps = [x for _, x in CONNECTIONS]
    right, top, bottom = WIDTH - 110, 34, 300

    def across(x: float) -> float:
        return 60 + (right - 60) * math.log(x) / math.log(steps[-1])

    def up(y: float) -> float:
        return bottom - (bottom - top) * math.log(y / least) / math.log(most / least)

    inside = []
    mark = least
    while mark <= most:
        inside.append(f'<path d="M60 {up(mark):.1f}H{right}" stroke="{GRID}"/>')
        inside.append(f'<text x="54" y="{up(mark) + 4:.1f}" text-anchor="end">{mark:,.0f}</text>')
        mark *= 10
    inside += [f'<text x="{across(x):.1f}" y="318" text-anchor="middle">{x}</text>' for x in steps]
    ends: list[float] = []
    for (name, line), colour in sorted(zip(series.items(), LINES, strict=False), key=lambda each: -each[0][1][-1][1]):
        path = "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line)
        inside.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{3 if colour == OWN else 1.5}"/>')
        y = max(up(line[-1][1]) + 4, ends[-1] + 13 if ends else 0)
        ends.append(y)
        inside.append(f'<text x="{right + 6}" y="{y:.1f}" fill="{colour}">{escape(name)}</text>')
    return picture(328, title, inside)


def drawn(results: Results, folder: Path) -> list[tuple[str, Path]]:
    """Draw what there is, into the folder; title and file of each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in peers.DEFAULT if any(peer == name for _, peer, _ in results.cells)]

    def ranked(
        row: str, key: str, text: str, scale: float = 1.0, falling: bool = False
    ) -> list[tuple[str, float, str]]:
        found = [(peers.PEERS[name].title, value * scale, text.format(value * scale))
                 for name in names if (value := results.value(row, name, key)) is not None]  # fmt: skip
        return sorted(found, key=lambda each: -each[1] if falling else each[1])

    pictures = []
    if cpu := ranked("cpu64", "cpu_us", "{:,.1f} µs"):
        title = "CPU time a request, tiny model over HTTP and JSON, 64 connections (logarithmic)"
        pictures.append(("cpu.svg", title, bars(title, cpu, logarithmic=True)))
    by_name: dict[str, list[tuple[float, float]]] = {
        peers.PEERS[name].title: [(x, y) for row, x in CONNECTIONS if (y := results.value(row, name, "rps"))]
        for name in names
    }
    if series := {name: line for name, line in by_name.items() if len(line) > 1}:
        title = "Requests a second on one core by number of connections (logarithmic)"
        pictures.append(("connections.svg", title, lines(title, series)))
    if slow := ranked("slow128", "rps", "{:,.0f}", falling=True):
        title = "Requests a second, a model that takes 5 ms a call, 128 clients (ideal 12,800)"
        pictures.append(("slow.svg", title, bars(title, slow)))
    if good := ranked("overload", "good_share", "{:,.0f} %", 100, falling=True):
        title = "Good answers at four times the capacity, percent of the capacity"
        pictures.append(("overload.svg", title, bars(title, good)))
    for file, _, text in pictures:
        (folder / file).write_text(text)
    return [(title, folder / file) for file, title, _ in pictures]
