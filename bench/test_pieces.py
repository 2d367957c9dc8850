"""The pieces of the benchmark that could be wrong without anybody seeing it; run by `tests/test_bench.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import figures
import flame
import grpc_messages
import ideal
import instructions
import models
import plots
import prepared
import rows
import table
from results import Results


def results(cells: dict[tuple[str, str, int], dict[str, Any]], tmp_path: Path) -> Results:
    found = Results(tmp_path / "results.json")
    for (row, peer, run), values in cells.items():
        found.put(row, peer, run, values)
    return found


# ---------------------------------------------------------------- requests and answers


@pytest.mark.parametrize("kind", prepared.KINDS)
def test_requests_differ_from_each_other(kind: str) -> None:
    requests = prepared.requests(kind, "overhead")
    assert len(set(requests.ids)) == len(requests.ids) == prepared.COUNT
    assert len(set(requests.bodies)) == prepared.COUNT


def test_a_wrong_answer_is_seen() -> None:
    requests = prepared.requests("v2", "overhead")
    right = [float(value) for value in requests.wanted(5)]
    answer = {"id": requests.ids[5], "outputs": [{"data": right}]}
    assert requests.wrong(5, json.dumps(answer).encode()) is None
    assert requests.wrong(6, json.dumps({**answer, "id": requests.ids[6]}).encode()) is not None
    assert requests.wrong(5, json.dumps({**answer, "id": requests.ids[6]}).encode()) is not None
    assert requests.wrong(5, json.dumps({"outputs": [{"data": [float("nan")] * 3}]}).encode()) is not None
    assert requests.wrong(5, json.dumps({"outputs": [{"data": right[:2]}]}).encode()) is not None


def test_grpc_requests_say_what_the_rows_hold() -> None:
    requests = prepared.requests("v2", "overhead")
    sent = grpc_messages.messages(requests.grpc_file().read_bytes())
    assert len(sent) == prepared.COUNT
    fields = list(grpc_messages.parsed(sent[7][5:]))
    assert dict(fields)[3].decode() == requests.ids[7]
    (raw,) = [value for number, value in fields if number == 7]
    assert np.frombuffer(raw, np.float32) == pytest.approx(requests.columns[0][7], rel=1e-6)
    (tensor,) = [dict(grpc_messages.parsed(value)) for number, value in fields if number == 5]
    assert (tensor[1], tensor[2], tensor[3]) == (b"x", b"FP32", b"\x01\x04")


@pytest.mark.parametrize("in_contents", [False, True])
def test_grpc_answers_are_read_in_both_forms(in_contents: bool) -> None:
    text = grpc_messages.text
    values = np.array([0.5, 0.25, 0.125], np.float32).tobytes()
    output = text(1, b"y") + (text(5, text(6, values)) if in_contents else b"")
    message = text(1, b"m") + text(3, b"some-id") + text(5, output) + (b"" if in_contents else text(6, values))
    id, found = grpc_messages.answer(message)
    assert id == "some-id"
    assert found.tolist() == [0.5, 0.25, 0.125]


# ---------------------------------------------------------------- what is made of the figures


def test_a_ratio_is_taken_within_each_run(tmp_path: Path) -> None:
    runs = {1: (10.0, 20.0), 2: (20.0, 40.0), 3: (30.0, 20.0)}
    cells = {}
    for run, (ours, theirs) in runs.items():
        cells["cpu64", "maitred", run] = {"cpu_us": ours}
        cells["cpu64", "mosec", run] = {"cpu_us": theirs}
    found = results(cells, tmp_path)
    assert found.value("cpu64", "maitred", "cpu_us") == 20.0
    assert found.ratio("cpu64", "mosec", "cpu_us") == 0.5
    assert Results.read(found.place).ratio("cpu64", "mosec", "cpu_us") == 0.5


def test_a_failed_run_is_in_no_median_and_a_failed_row_says_why(tmp_path: Path) -> None:
    found = results({
        ("cpu64", "maitred", 1): {"cpu_us": 10.0, "rps": 100.0}, ("cpu64", "maitred", 2): {"error": "gone"},
        ("cpu64", "ray", 1): {"error": "DidNotStart: not installed\nmore"},
    }, tmp_path)  # fmt: skip
    assert found.value("cpu64", "maitred", "cpu_us") == 10.0
    assert found.error("cpu64", "maitred") == ""
    page = "\n".join(table.page(found, []))
    assert "- Ray Serve: cpu64: DidNotStart: not installed" in page
    assert "failed" in page


@pytest.mark.parametrize(("cpu_us", "verdict"), [(13.0, "met"), (15.0, "**missed**")])
def test_what_is_missed_is_shown(cpu_us: float, verdict: str, tmp_path: Path) -> None:
    cells = {("cpu64", name, 1): {"cpu_us": value} for name, value in
             (("maitred", cpu_us), ("nginx", 7.0), ("mosec", 26.0), ("triton", 70.0))}  # fmt: skip
    found = results(cells, tmp_path)
    (line,) = [line for line in table.summary(found) if "CPU-µs a request" in line]
    assert line.split(" | ")[2].split("; ")[0] == verdict
    assert f"26.0 ({cpu_us / 26:.2g}×)" in line


def test_errors_and_full_load_generators_are_told(tmp_path: Path) -> None:
    found = results({
        ("cpu64", "maitred", 1): {"rps": 60000.0, "errors": 3, "client_busy": 0.5},
        ("cpu64", "nginx", 1): {"rps": 80000.0, "errors": 0, "client_busy": 0.99},
    }, tmp_path)  # fmt: skip
    (line,) = [line for line in table.summary(found) if "requests/s on one core" in line]
    assert "**60,000**, 3 errors" in line
    assert "≥ 80,000 (0.75×) |" in line


def test_every_figure_belongs_to_a_row() -> None:
    assert {figure.row for figure in figures.FIGURES} == set(rows.BY_NAME)


def test_the_page_keeps_what_is_around_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.written(["new"], page)
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"


def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    cells = {(row, name, 1): {"cpu_us": 10.0 + at, "rps": 1000.0 * (at + 1)}
             for at, name in enumerate(("maitred", "mosec")) for row in ("cpu64", "lone")}  # fmt: skip
    drawn = plots.drawn(results(cells, tmp_path), tmp_path)
    assert [place.name for _, place in drawn] == ["cpu.svg", "connections.svg"]
    assert all("maitred" in place.read_text() for _, place in drawn)


def test_the_simulated_batcher_waits_for_no_one() -> None:
    alone = (models.CURVE_SECONDS + models.CURVE_ROW_SECONDS) * 1e3
    assert ideal.work_conserving(1.0)[0] == pytest.approx(alone)
    assert ideal.work_conserving(6000.0)[0] > 2 * alone


# ---------------------------------------------------------------- instructions and flames


def test_parts_add_up_to_the_sum() -> None:
    once = {"nothing": 10, "http": 1010, "decode": 3010, "feed": 4010, "dispatch": 510, "replica": 310, "hear": 2010,
            "answer": 910}  # fmt: skip
    sums = {f"{name} {times}": value * times + 7 for name, value in once.items() for times in (1, 2)}
    parts = instructions.parts_of(sums)
    assert sum(value for name, value in parts.items() if name != "sum") == pytest.approx(parts["sum"])
    assert parts["decode"] == pytest.approx(2000 / instructions.REQUESTS)


@pytest.mark.parametrize(("total", "good"), [(1030, True), (1031, False)])
def test_more_than_three_percent_fail(total: float, good: bool) -> None:
    assert instructions.compared({"sum": total}, {"sum": 1000.0})[1] is good


def test_stacks_become_frames_that_name_no_machine() -> None:
    stacks = (
        'process 7:"python -m maitred.cli.main serve";run (/x/lib/asyncio/runners.py:1);Runner.run '
        "(asyncio/runners.py:118);Connection.data_received (/x/src/maitred/http/one.py:12);call (/x/y/z.py:3) 4\n"
        'process 7:"python -m maitred.cli.main serve";process 8:"python -m maitred.replica.child 1 2";_work '
        "(maitred/replica/child.py:9);_run (maitred/replica/child.py:3) 2"
    )
    root = flame.tree_of(stacks)
    assert root.samples == 6
    assert set(root.children) == {"the server's process", "the replica's process"}
    (received,) = root.children["the server's process"].children.values()
    assert (received.name, *received.children) == ("http/one.Connection.data_received", "z.py call")
    assert set(root.children["the replica's process"].children) == {"replica/child._run"}
