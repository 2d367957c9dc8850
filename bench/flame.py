"""A flame graph of the HTTP JSON lane: where server and replica spend their time with 64 callers of a tiny model.

py-spy looks at both processes some 200 times a second while wrk asks; the picture is drawn here, so that it is small and the
same everywhere. Needs py-spy (in any environment: `--py-spy PATH`), wrk and taskset, and the right to look at other
processes of the same user.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import loads
from server import Server, Stand

WIDTH, BAR, LEAST = 1200, 17, 0.002
"""Pixels, and the share below which a frame is left out."""
CHARACTER = 6.2
"""Pixels of one at this size."""
ROOMS = {
    "http": "#7cc4a4", "gateway": "#f2b872", "wire": "#e8938a", "pool": "#8fb4e3", "scheduling": "#b9a3e3",
    "replica": "#e3c878", "model": "#d7a1c4", "observe": "#a8c5b0", "": "#d5d9de",
}  # fmt: skip
"""Colour by room of maitred; the last is for what is not maitred's."""
BEGINNINGS = {"runners.py Runner.run", "__init__.py run", "replica/child._work", "replica/child._serve"}
"""The loops from which all work is called."""
_FRAME = re.compile(r"^(?P<name>.*) \((?P<file>[^()]*)\)$")
_PROCESS = re.compile(r"^process \d+:")


@dataclass
class Frame:
    """A function under its caller, with the samples in which it was on the stack."""

    name: str
    samples: int = 0
    children: dict[str, Frame] = field(default_factory=dict)

    def depth(self, least: float) -> int:
        below = [child.depth(least) for child in self.children.values() if child.samples >= least]
        return 1 + max(below, default=0)


def tree_of(stacks: str) -> Frame:
    """From py-spy's raw form: frames between semicolons, a space, a count."""
    root = Frame("all")
    for line in stacks.splitlines():
        frames, _, count = line.rpartition(" ")
        root.samples += int(count)
        at = root
        for name in path_of([*filter(None, map(spoken, frames.split(";")))]):
            at = at.children.setdefault(name, Frame(name))
            at.samples += int(count)
    return root


def path_of(names: list[str]) -> list[str]:
    """A stack from its own process on, without what every stack of it begins with."""
    processes = [at for at, name in enumerate(names) if name.endswith(" process")]
    begun = [at + 1 for at, name in enumerate(names) if name in BEGINNINGS]
    own = max(processes, default=-1)
    return (names[own : own + 1] if processes else []) + names[max([own + 1, *begun]) :]


def spoken(frame: str) -> str:
    """A frame's name without anything that differs between machines; empty for what is of no interest."""
    if _PROCESS.match(frame):
        return "the replica's process" if "maitred.replica.child" in frame else "the server's process"
    found = _FRAME.match(frame)
    if found is None or found["name"].startswith(("_run_module_as_main", "_run_code")):
        return ""
    name, file = found["name"], found["file"].rpartition(":")[0] or found["file"]
    if "maitred/" in file:
        return f"{file.rpartition('maitred/')[2].removesuffix('.py')}.{name}"
    return f"{file.rpartition('/')[2]} {name}"


def drawn(root: Frame, title: str) -> str:
    """An SVG, callers below what they call."""
    least = LEAST * root.samples
    height = (root.depth(least) + 2) * BAR + 20
    size = f'viewBox="0 0 {WIDTH} {height}" font-size="11" font-family="ui-monospace, monospace"'
    inside = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="13" fill="#24292f">{escape(title)}</text>',
    ]
    inside += rectangles(root, 0.0, height - BAR, WIDTH / root.samples, least, root.samples)
    return "\n".join([*inside, "</svg>", ""])


def rectangles(frame: Frame, x: float, y: float, scale: float, least: float, whole: int) -> Iterator[str]:
    width = frame.samples * scale
    room = frame.name.partition("/")[0] if "/" in frame.name else frame.name.partition(".")[0]
    text = frame.name[: int((width - 6) / CHARACTER)] if width > 5 * CHARACTER else ""
    label = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(text)}</text>' if text else ""
    yield (
        f'<g><title>{escape(frame.name)}: {frame.samples / whole:.1%}</title><rect x="{x:.1f}" y="{y}" '
        f'width="{max(0.3, width - 0.4):.1f}" height="{BAR - 1}" fill="{ROOMS.get(room, ROOMS[""])}"/>{label}</g>'
    )
    for child in sorted(frame.children.values(), key=lambda each: each.name):
        if child.samples >= least:
            yield from rectangles(child, x, y - BAR, scale, least, whole)
            x += child.samples * scale


def watched(options: argparse.Namespace) -> str:
    """The stacks of a server under load. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder, Server("maitred", "overhead", Stand(options.port)) as server:
        out = Path(folder) / "stacks"
        loads.warm_up(server, 64, 2)
        assert server._process is not None
        command = [options.py_spy, "record", "--pid", str(server._process.pid), "--subprocesses", "--format", "raw"]
        command += ["--rate", "200", "--duration", str(options.seconds), "--output", str(out), "--gil"]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        loads.wrk(server, 64, options.seconds + 1)
        said, _ = watching.communicate()
        if not out.exists():
            raise SystemExit(f"py-spy gave nothing: {said[-500:]}")
        return out.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--port", type=int, default=18900)
    parser.add_argument("--py-spy", default=shutil.which("py-spy") or "py-spy")
    parser.add_argument("--write", type=Path, default=Path("docs/benchmarks/lane.svg"))
    options = parser.parse_args()
    if shutil.which(options.py_spy) is None:
        print("py-spy is not here: pip install py-spy into an environment of your own, and give --py-spy PATH")
        return 2
    root = tree_of(watched(options))
    options.write.parent.mkdir(parents=True, exist_ok=True)
    title = f"The HTTP JSON lane under 64 callers: {root.samples:,} samples of server and replica; hover for shares"
    options.write.write_text(drawn(root, title))
    print(f"{options.write}: {options.write.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
