"""Answers: whole or in pieces, of known shapes and unknown ones, right and wrong."""

from __future__ import annotations

import pytest

from maitred.loadtest.answer import MAX_HEAD_BYTES, BadAnswer, Reader, shown
from maitred.loadtest.checks import Compared, difference, not_binary, not_json
from maitred.loadtest.heads import UNKNOWN, Heads, is_json
from maitred.loadtest.timing import durations

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def read(*pieces: bytes) -> Reader:
    reader = Reader()
    for piece in pieces:
        reader.feed(piece)
    return reader


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;a=b\r\n}\r\n0\r\nTrailer: x\r\n\r\n"


class TestReader:
    @pytest.mark.parametrize(
        "answer", [OK, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"HTTP/1.1 103 E\r\nA: b\r\n\r\n" + OK]
    )
    @pytest.mark.parametrize("cut", [lambda data: [data], in_bytes])
    def test_a_whole_answer(self, answer, cut):
        reader = read(*cut(answer))
        assert (reader.done, reader.keep, reader.status, bytes(reader.body)) == (True, True, 200, b"{}")
        assert (b"A", b"b") not in reader.headers

    def test_it_is_not_done_before_its_last_byte(self):
        for answer in (OK, CHUNKED):
            for end in range(len(answer)):
                reader = read(answer[:end])
                assert not reader.done, answer[:end]
                assert not reader.end(), answer[:end]

    @pytest.mark.parametrize("answer", [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ])  # fmt: skip
    def test_after_which_the_connection_closes(self, answer):
        reader = read(answer)
        assert (reader.done, reader.keep) == (True, False)

    def test_one_that_ends_with_the_connection(self):
        reader = read(b"HTTP/1.1 200 OK\r\n\r\n", b"{", b"}")
        assert not reader.done
        assert reader.end() and (reader.done, reader.keep, bytes(reader.body)) == (True, False, b"{}")

    def test_one_without_a_body(self):
        reader = read(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert (reader.done, reader.keep, reader.status) == (True, True, 204)

    @pytest.mark.parametrize(("data", "said"), [
        (b"hello\r\n\r\n", "no HTTP/1.1 answer"),
        (b"\x16\x03\x01\x02\x00", "no HTTP/1.1 answer"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "no HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", "no HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no HTTP/1.1 answer"),
        (OK + OK, "bytes follow the answer"),
    ])  # fmt: skip
    def test_what_is_none(self, data, said):
        with pytest.raises(BadAnswer, match=said):
            read(data)

    def test_a_head_without_end(self):
        reader = read(b"HTTP/1.1 200 OK\r\n")
        with pytest.raises(BadAnswer, match="head"):
            for number in range(MAX_HEAD_BYTES):
                reader.feed(b"A%d: %b\r\n" % (number, b"x" * 100))

    def test_a_body_without_end(self, monkeypatch):
        monkeypatch.setattr("maitred.loadtest.answer.MAX_BODY_BYTES", 1000)
        reader = read(b"HTTP/1.1 200 OK\r\n\r\n")
        with pytest.raises(BadAnswer, match="a body of more than 1000 bytes"):
            for _ in range(20):
                reader.feed(b"x" * 100)
        assert len(reader.body) <= 1100

    def test_what_is_shown_of_it_moves_no_cursor(self):
        assert shown(b"a\x1b[2J\r\n \x00\xff\r\n") == r"a\x1b[2J \x00\xff"
        assert shown(b"x" * 500, 10) == "x" * 10 + "..."


def learned(*answers: bytes) -> Heads:
    heads = Heads()
    for answer in answers:
        reader = read(answer)
        heads.learn(answer, reader.status, reader.headers)
    return heads


TIMED = (
    b"HTTP/1.1 200 OK\r\nDate: Tue, 01 Dec 2026 09:32:25 GMT\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    b"Server-Timing: queue;dur=0.07, model;dur=0.061\r\n\r\n{}"
)


class TestHeads:
    def test_values_without_meaning_may_differ(self):
        heads = learned(TIMED)
        other = TIMED.replace(b"09:32:25", b"10:00:00").replace(b"0.07", b"12.5").replace(b"h: 2", b"h: 17")
        shape, found = heads.find(other)
        assert found is not None and (shape.status, shape.good, shape.json, shape.timed) == (200, True, True, True)
        assert (found["length"], found["timing"]) == (b"17", b" queue;dur=12.5, model;dur=0.061")
        assert other[found.end() :] == b"{}"

    @pytest.mark.parametrize("change", [
        (b"200 OK", b"503 OK"),
        (b"200 OK", b"200 Fine"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Content-Length", b"content-length"),
        (b"Content-Length: 2", b"Content-Length: +2"),
        (b"Content-Length: 2", b"Content-Length: 2, 2"),
        (b"Content-Length: 2", b"Transfer-Encoding: chunked"),
        (b"application/json", b"text/plain"),
        (b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        (b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"),
        (b"0.07", b"0.07\nTransfer-Encoding: chunked"),
        (b"\r\n\r\n", b"\r\n"),
    ])  # fmt: skip
    def test_what_has_a_meaning_may_not(self, change):
        assert change[0] in TIMED
        assert learned(TIMED).find(TIMED.replace(*change)) == (UNKNOWN, None)

    @pytest.mark.parametrize("answer", [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        CHUNKED,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ])  # fmt: skip
    def test_what_is_not_learned(self, answer):
        assert learned(answer).find(answer) == (UNKNOWN, None)

    def test_several_shapes(self):
        refusal = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"
        heads = learned(TIMED, refusal, OK)
        assert [heads.find(data)[0].status for data in (OK, refusal, TIMED)] == [200, 429, 200]
        assert not heads.find(refusal)[0].good and heads.find(OK)[0].json

    def test_a_server_that_varies_its_heads_fills_no_memory(self):
        heads = learned(*(OK.replace(b"\r\n\r\n", b"\r\nX-%d: 1\r\n\r\n" % number) for number in range(50)))
        assert len(heads._shapes) == 16

    @pytest.mark.parametrize(("headers", "wanted"), [
        ([(b"content-type", b"application/json")], True),
        ([(b"Content-Type", b"Application/JSON; charset=utf-8")], True),
        ([(b"Content-Type", b"application/problem+json")], True),
        ([(b"Content-Type", b"text/plain")], False),
        ([(b"Content-Type", b"application/json"), (b"Content-Encoding", b"gzip")], False),
        ([], False),
    ])  # fmt: skip
    def test_what_has_to_be_json(self, headers, wanted):
        assert is_json(headers) is wanted


class TestChecks:
    @pytest.mark.parametrize("body", [b"{}", b"[1, 2.5e3, null]", b' "\xc3\xa9" ', b"0"])
    def test_json(self, body):
        assert not_json(body) == "" and not_json(bytearray(body)) == ""

    @pytest.mark.parametrize("body", [b"", b"{", b"{}x", b"[1,]", b"NaN", b'"\xff"', b"{'a': 1}", b"[" * 100_000])
    def test_no_json(self, body):
        assert not_json(body).startswith("no valid JSON")

    @pytest.mark.parametrize(("body", "length", "fine"), [
        (b"{}\x00\x01", b"2", True), (b"{}\x00\x01", b" 2 ", True), (b"{}", b"3", False), (b"{x\x00", b"2", False),
        (b"{}", b"two", False), (b"{}", b"", False),
    ])  # fmt: skip
    def test_binary(self, body, length, fine):
        assert (not_binary(body, length) == "") is fine

    @pytest.mark.parametrize(("wanted", "got", "tolerance", "said"), [
        ({"a": [1, 2]}, {"a": [1, 2]}, 0.0, ""),
        ({"id": "x", "a": 1}, {"id": "y", "a": 1}, 0.0, ""),
        ({"a": 1}, {"id": "y", "a": 1}, 0.0, ""),
        ({"a": {"id": 1}}, {"a": {"id": 2}}, 0.0, "a.id is 2, not 1"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}, 0.0, ".a[1] is 2.1, not 2.0"),
        ([0.5], [0.5000000001], 0.0, "[0] is 0.5000000001, not 0.5 (--tolerance 1e-05 lets that pass)"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0000001]}, 1e-6, ""),
        ({"a": [1]}, {"a": [1, 2]}, 0.0, "2 elements"),
        ({"a": 1}, {"b": 1}, 0.0, "keys ['b'], not ['a']"),
        ({"a": 1}, {"a": True}, 0.5, "'True', not '1'"),
        ({"a": "1"}, {"a": 1}, 0.0, "'1', not '1'"),
        ([1], {"a": 1}, 0.0, "the answer is"),
        (1, 1.0, 0.0, ""),
        (None, None, 0.0, ""),
    ])  # fmt: skip
    def test_where_answers_differ(self, wanted, got, tolerance, said):
        found = difference(wanted, got, tolerance)
        assert said in found and bool(said) == bool(found)

    def test_what_was_expected(self):
        compared = Compared([b'{"y": 1}', b'{"y": 2}'], False, 0.0)
        assert compared.wrong(0, b'{"y": 1}') == compared.wrong(1, b'{"y":2, "id": "a"}') == ""
        assert "not what was expected" in compared.wrong(0, b'{"y": 2}')
        assert "5 bytes that differ" in compared.wrong(0, b"plain")
        assert Compared([b"1"], False, 0.0).wrong(17, b"1") == ""
        assert compared.compared == 4

    def test_the_same_as_before(self):
        compared = Compared([], True, 0.0)
        assert [compared.wrong(0, b"[1]"), compared.wrong(1, b"[2]"), compared.wrong(0, b"[1]")] == ["", "", ""]
        assert "got before" in compared.wrong(1, b"[1]")
        assert compared.compared == 2

    def test_first_answers_fill_no_memory(self, monkeypatch):
        monkeypatch.setattr("maitred.loadtest.checks.MAX_KEPT_BYTES", 10)
        compared = Compared([], True, 0.0)
        for index in range(100):
            assert compared.wrong(index, b'"%d"' % (1000 + index)) == ""
        assert compared.wrong(0, b'"other"') and not compared.wrong(5, b'"other"')


@pytest.mark.parametrize(("value", "wanted"), [
    (b" queue;dur=0.41, batch;dur=0.120, model;dur=0.030", [("queue", 410_000), ("batch", 120_000), ("model", 30_000)]),
    (b'db;desc="x";dur=1', [("db", 1_000_000)]),
    (b'cache;desc="hit", app; dur="2.5"', [("app", 2_500_000)]),
    (b"a;dur=x, ;dur=1, b;dur=-1", []),
    (b"", []),
    (b"a;dur=" + b"9" * 40, []),
])  # fmt: skip
def test_server_timing(value, wanted):
    assert list(durations(value)) == wanted
