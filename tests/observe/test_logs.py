"""The log: one line per record whatever is in it, nothing forged, no payload, no flood."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.clock import ManualClock
from maitred.errors import TABLE, ModelFault
from maitred.events import BatchEnded, ReplicaChanged, RequestEnded
from maitred.logline import (
    MAX_CHARACTERS,
    Format,
    JsonFormatter,
    Style,
    TextFormatter,
    escaped,
    style_in_use,
)
from maitred.observe.logs import REPEAT_SECONDS, EventLog, set_up

HOSTILE = [
    "a\nb", "a\r\nb", "a\x0bb", "a\x0cb", "a\x1cb\x1db\x1eb", "a\x85b", "a\u2028b\u2029", "\x1b[2J\x1b[31mred",
    "\x9b31m", "a\x00b", "a\x7fb", "a\u202eb", "\u2066a", "a\u200bb", "\ufeffa", "\ud800", "a\\nb", '"quoted" a=b',
    "2026-01-01T00:00:00.000Z ERROR maitred: forged", '{"level": "ERROR"}', "x" * 100_000,
]  # fmt: skip


def record(message: str, fields: dict[str, Any] | None = None, exc_info: Any = None) -> logging.LogRecord:
    made = logging.LogRecord("maitred.x", logging.INFO, __file__, 1, "%s", (message,), exc_info)
    made.created = 1796061600.5
    if fields is not None:
        made.fields = fields
    return made


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter(), TextFormatter(True), JsonFormatter(True)])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_makes_a_second_line_or_reaches_the_terminal(formatter, text):
    try:
        raise ModelFault(text)
    except ModelFault:
        error = sys.exc_info()
    line = formatter.format(record(text, {"value": text, text: 1}, error))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 5 * (MAX_CHARACTERS + 200)


@given(st.text(st.characters(codec=None), max_size=40))
def test_escaping_can_be_undone_and_leaves_nothing_harmful(text):
    safe = escaped(text)
    assert len(safe.splitlines()) <= 1
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", safe)

    def undo(found: re.Match[str]) -> str:
        short = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
        return short.get(found[1]) or chr(int(found[1][1:], 16))

    assert re.sub(r"\\(n|r|t|\\|x[0-9a-f]{2}|u[0-9a-f]{4})", undo, safe) == text


@given(st.text(st.characters(codec=None), max_size=40), st.dictionaries(st.text(max_size=8), st.text(max_size=20)))
def test_a_json_line_gives_back_what_was_logged(message, fields):
    line = JsonFormatter().format(record(message, fields))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    reserved = {"time", "level", "logger", "message"}
    assert found == {**fields, "time": "2026-11-30T18:00:00.500Z", "level": "INFO", "logger": "maitred.x",
                     "message": message}  # fmt: skip
    assert reserved <= found.keys()


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "it is"),
        ({"model": "churn", "replica": 1, "at": "127.0.0.1:80"}, "it is model=churn replica=1 at=127.0.0.1:80"),
        ({"reason": "signal 9"}, 'it is reason="signal 9"'),
        ({"reason": 'a"b\nc'}, 'it is reason="a\\"b\\nc"'),
        ({"reason": "", "n": None, "f": 0.5}, 'it is reason="" n=None f=0.5'),
    ],
)
def test_a_text_line(fields, end):
    line = TextFormatter().format(record("it is", fields))
    assert line == f"2026-11-30T18:00:00.500Z INFO maitred.x: {end}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), ["a"], b"x", 2**70])
def test_a_json_line_is_json_whatever_a_field_is(value):
    json.loads(JsonFormatter().format(record("m", {"field": value})), parse_constant=pytest.fail)


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_text_of_a_foreign_exception_may_be_a_payload_and_is_not_shown(format: Format, logged):
    lines = logged(format)
    for error in (ValueError("card 4111-1111"), ModelFault("the model raised ValueError")):
        try:
            raise error
        except Exception:
            logging.getLogger("maitred.pool").exception("it failed")
    first, second = lines()
    assert "4111" not in first and "ValueError" in first and "test_logs.py" in first
    assert "the model raised ValueError" in second and "ModelFault" in second


@pytest.fixture
def logged() -> Iterator[Callable[..., Callable[[], list[str]]]]:
    """`logged(format, ...)` sets the log up and returns what reads its lines."""
    undos = []

    def begin(format: Format = "text", **more: Any) -> Callable[[], list[str]]:
        stream = io.StringIO()
        undos.append(set_up(format=format, stream=stream, **more))
        return lambda: stream.getvalue().splitlines()

    yield begin
    for undo in undos:
        undo()


def test_payloads_can_be_switched_on(logged):
    lines = logged(payloads=True)
    try:
        raise ValueError("card 4111-1111")
    except ValueError:
        logging.getLogger("maitred").exception("it failed")
    assert 'error_text="card 4111-1111"' in lines()[0]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("debug", ["debug", "info", "warning", "error"]), ("info", ["info", "warning", "error"]), ("error", ["error"])],
)
def test_levels_are_ours_and_others_are_heard_when_they_warn(logged, level, wanted):
    lines = logged(level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("maitred.any"), name)(name)
    assert [line.rpartition(" ")[2] for line in lines()] == wanted
    logging.getLogger("starlette").info("unheard")
    logging.getLogger("starlette").warning("heard")
    assert lines()[-1].endswith("WARNING starlette: heard") and "unheard" not in "".join(lines())


def test_python_warnings_are_lines_too(logged):
    lines = logged()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("first\nsecond", stacklevel=1)
    [line] = lines()
    assert "py.warnings" in line and "first\\nsecond" in line


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_style_in_use_is_known_so_that_children_can_follow_it(logged, format, level):
    logged(format, level=level, payloads=True)
    assert style_in_use() == Style(format, level, True)


def test_a_record_whose_arguments_do_not_fit_is_still_one_line():
    wrong = record("")
    wrong.msg, wrong.args = "%d pieces\n", ("many",)
    assert json.loads(JsonFormatter().format(wrong))["message"] == "%d pieces\n (cannot be filled in: TypeError)"


def test_taking_it_back_leaves_logging_as_it_was():
    root = logging.getLogger()
    before = list(root.handlers), root.level, logging.getLogger("maitred").level
    set_up("debug", "json", io.StringIO())()
    assert (list(root.handlers), root.level, logging.getLogger("maitred").level) == before


class TestEventLog:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(0.0)

    @pytest.fixture
    def log(self, clock, logged):
        lines = logged("json")
        return EventLog(logging.getLogger("maitred.events"), clock), lambda: [json.loads(line) for line in lines()]

    @pytest.mark.parametrize(
        ("state", "level"),
        [("loading", "INFO"), ("ready", "INFO"), ("stopped", "INFO"), ("lost", "WARNING"), ("hung", "WARNING")],
    )
    def test_each_change_of_a_replica_is_a_line(self, log, state, level):
        listener, lines = log
        listener(ReplicaChanged("churn", "1", 7, state, "signal 9"))
        [line] = lines()
        assert (line["level"], line["message"]) == (level, f"replica is {state}")
        assert (line["model"], line["version"], line["replica"], line["reason"]) == ("churn", "1", 7, "signal 9")

    def test_what_went_well_and_what_callers_did_is_not_logged(self, log):
        listener, lines = log
        listener(BatchEnded("m", "1", 1, 1, 1, "ok", 1, [0.0], [0.0], 0.0, 0.0, 0.0, 0.0))
        for error in TABLE:
            if error.fault == "caller":
                listener(RequestEnded("m", "1", error.code, 0.0))
        assert lines() == []

    @pytest.mark.parametrize("code", [error.code for error in TABLE if error.fault != "caller"])
    def test_trouble_is_told_once_in_a_while_with_a_count(self, log, clock, code):
        listener, lines = log
        for _ in range(1000):
            listener(RequestEnded("m", "1", code, 0.0))
        assert [(line["cause"], line["times"]) for line in lines()] == [(code, 1)]
        listener(RequestEnded("other", "1", code, 0.0))
        assert len(lines()) == 2
        clock.advance(REPEAT_SECONDS)
        listener(RequestEnded("m", "1", code, 0.0))
        assert [line["times"] for line in lines()] == [1, 1, 1000]

    def test_a_failed_batch_is_told_of_by_its_outcome(self, log):
        listener, lines = log
        for outcome in ("raised", "lost", "raised"):
            listener(BatchEnded("m", "1", 1, 4, 4, outcome, 0, [], [], 0.0, 0.1, 0.1, 0.0))
        assert [line["cause"] for line in lines()] == ["raised", "lost"]
