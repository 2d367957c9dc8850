"""Media types, deadlines, parameters: what is understood, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from maitred.errors import Forbidden, Malformed, UnsupportedMedia
from maitred.gateway.chain import ANONYMOUS, Identity
from maitred.gateway.terms import MAX_TEXT, check_id, check_media, read_heads, read_parameters
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "media",
    [
        b"application/json",
        b"APPLICATION/JSON",
        b"application/json; charset=utf-8",
        b'application/json;charset="UTF-8"',
        b"application/json; charset=utf8; x=y",
        b"application/json; charset=us-ascii",
        b"  application/json ; profile=a",
    ],
)
def test_json_however_it_is_labelled(media: bytes) -> None:
    check_media(media, False)
    check_media(media, True)


@pytest.mark.parametrize(
    "media",
    [
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"application/json; charset=utf-16",
        b"application/json; charset=latin-1",
        b"application/json; charset=utf-8; charset=utf-16",
        b"application/json; charset=utf-16; charset=utf-8",
        b'application/json; x=y; CHARSET="UTF-8"; z; charset = utf-16',
        b"application/octet-stream; charset=utf-16",
        b"application/vnd.bentoml+pickle",
        b"application/x-pickle",
        b"application/python-pickle",
        b"multipart/form-data; boundary=x",
        b"application/jsonp",
        b"json",
        b";",
        b"\xff\xff/\xff",
        b"application/json, application/json",
        b"application/xml" * 1000,
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_other_media_are_refused(media: bytes, binary: bool) -> None:
    with pytest.raises(UnsupportedMedia) as caught:
        check_media(media, binary)
    assert len(caught.value.message) < 400


def test_binary_needs_its_header() -> None:
    check_media(b"application/octet-stream", True)
    with pytest.raises(Malformed, match="Inference-Header-Content-Length"):
        check_media(b"application/octet-stream", False)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], FOREVER),
        ([(b"maitred-timeout-ms", b"250")], 0.25),
        ([(b"maitred-timeout-ms", b" 0.5 ")], 0.0005),
        ([(b"x-envoy-expected-rq-timeout-ms", b"100")], 0.1),
        ([(b"x-envoy-expected-rq-timeout-ms", b"0")], FOREVER),
        ([(b"maitred-timeout-ms", b"250"), (b"x-envoy-expected-rq-timeout-ms", b"100")], 0.1),
        ([(b"maitred-timeout-ms", b"50"), (b"x-envoy-expected-rq-timeout-ms", b"100")], 0.05),
        ([(b"maitred-timeout-ms", b"250"), (b"maitred-timeout-ms", b"70")], 0.07),
    ],
)
def test_the_earliest_deadline_wins(headers: list[tuple[bytes, bytes]], seconds: float) -> None:
    assert read_heads(headers).timeout_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["maitred-timeout-ms", "x-envoy-expected-rq-timeout-ms"])
@pytest.mark.parametrize(
    "value", [b"", b"-1", b"abc", b"1e3", b"nan", b"inf", b"1" * 13, b"0.0", b"1,5", b"\xff", b"1 2"]
)
def test_deadlines_that_are_none_are_refused_by_name(name: str, value: bytes) -> None:
    with pytest.raises(Malformed, match=f"(?i){name}"):
        read_heads([(name.encode(), value)])


def test_a_deadline_of_zero_is_none() -> None:
    with pytest.raises(Malformed, match="Maitred-Timeout-Ms"):
        read_heads([(b"maitred-timeout-ms", b"0")])


def test_traces_and_ids() -> None:
    heads = read_heads([(b"traceparent", TRACE.encode()), (b"x-request-id", b"abc"), (b"other", b"\xff")])
    assert (heads.trace, heads.request_id) == (TRACE, "abc")
    assert read_heads([(b"traceparent", TRACE.upper().encode())]).trace == ""
    for wrong in ("ff" + TRACE[2:], f"00-{'0' * 32}-{TRACE[36:]}", TRACE[:36] + "0" * 16 + TRACE[52:]):
        assert len(wrong) == len(TRACE) and read_heads([(b"traceparent", wrong.encode())]).trace == ""
    assert len(read_heads([(b"x-request-id", b"a" * 10_000)]).request_id) == 128


def test_two_lengths_of_the_json() -> None:
    same = (b"inference-header-content-length", b"5")
    assert read_heads([same, same]).json_length == b"5"
    with pytest.raises(Malformed, match="twice"):
        read_heads([same, (b"inference-header-content-length", b"6")])


@pytest.mark.parametrize(
    ("priority", "lane"), [(0, NORMAL), (1, HIGH), (2, NORMAL), (3, BACKGROUND), (2**62, BACKGROUND)]
)
def test_priorities(priority: int, lane: int) -> None:
    assert read_parameters({"priority": priority}).lane == lane


def test_parameters() -> None:
    terms = read_parameters({"timeout": 1500, "binary_data_output": True, "k": 0.5, "s": "x", "b": True, "i": 2**63})
    assert terms.timeout_seconds == pytest.approx(0.0015)
    assert terms.binary_data_output
    assert terms.custom == {"k": 0.5, "s": "x", "b": True, "i": 2**63}
    plain = read_parameters({"timeout": 0, "priority": None, "sequence_id": 0, "sequence_start": False})
    assert (plain.timeout_seconds, plain.custom, plain.mark) == (FOREVER, None, None)


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": True},
        {"timeout": "100"},
        {"timeout": 2**63},
        {"priority": -1},
        {"priority": "high"},
        {"priority": False},
        {"binary_data_output": 1},
        {"binary_data_output": "true"},
        {"binary_data_output": None},
        {"sequence_id": 5},
        {"sequence_id": "a"},
        {"sequence_start": True},
        {"sequence_end": True},
        {"k": None},
        {"k": []},
        {"k": {"a": 1}},
        {"k": 2**64},
        {"k": "x" * (MAX_TEXT + 1)},
        {"k": "a\0"},
    ],
)
def test_parameters_that_are_refused_are_named(parameters: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=f"parameters.{next(iter(parameters))}"):
        read_parameters(parameters)


@pytest.mark.parametrize("parameters", [{"": 1}, {"a\0": 1}, {"x" * 129: 1}, {f"k{i}": 1 for i in range(65)}])
def test_names_and_counts_of_parameters_are_bounded(parameters: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=r"^parameters"):
        read_parameters(parameters)


def test_marks_tell_types_apart() -> None:
    """1, 1.0 and true are equal for Python; a model may see the difference."""
    marks = [read_parameters({"k": value}).mark for value in (1, 1.0, True, "1", 0.0, -0.0, "True")]
    assert len(set(marks)) == len(marks)
    assert read_parameters({"a": 1, "b": 2}).mark == read_parameters({"b": 2, "a": 1}).mark


def test_ids_are_bounded() -> None:
    assert check_id("x" * MAX_TEXT)
    for id in ("x" * (MAX_TEXT + 1), "a\0b"):
        with pytest.raises(Malformed, match=r"^id "):
            check_id(id)


def test_lanes_are_allowed_by_identity() -> None:
    assert ANONYMOUS.allow(HIGH) == HIGH
    with pytest.raises(Forbidden, match="'high'"):
        Identity("t", frozenset({NORMAL})).allow(HIGH)
