"""Bodies are decoded, and what is wrong with them is said by name, in bounded time."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.wire.json import (
    MAX_DEPTH,
    Reader,
    check_count,
    check_depth,
    check_keys,
    count_outside_strings,
    decode,
    shown,
)

TENSOR = b'{"name":"x","datatype":"FP32","shape":[1],"data":[1.5]}'


def body(*before: bytes, tensor: bytes = TENSOR) -> bytes:
    return b"{" + b",".join([*before, b'"inputs":[' + tensor + b"]"]) + b"}"


def refusal(text: bytes | bytearray) -> str:
    with pytest.raises(Malformed) as caught:
        decode(text)
    assert len(caught.value.message) < 400
    return caught.value.message


@pytest.mark.parametrize(
    "before",
    [
        b'"id":"a"',
        b'"id":null',
        b'"id":"a:b:c"',
        b'"unknown":{"deep":{"a":1,"b":[{"a":2},{"a":3}]}}',
        b'"parameters":{}',
        b'"parameters":{"a":1,"b":"x:y"}',
        b'"outputs":[{"name":"y","parameters":{"binary_data":false}},{"name":"z"}]',
        b'"unknown":1' + b"0" * 100_000,
        b'"unknown":"\\ud83d\\ude00"',
    ],
)
def test_bodies_that_are_fine(before: bytes) -> None:
    envelope = decode(body(before))
    assert [entry.name for entry in envelope.inputs] == ["x"]
    assert bytes(envelope.inputs[0].data) == b"[1.5]"
    assert envelope.inputs[0].shape == (1,)
    assert decode(bytearray(body(before))).id == envelope.id


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"null", "the body: expected object"),
        (b"[]", "the body: expected object"),
        (b"{}", "inputs"),
        (b'{"inputs":null}', "inputs: expected array, got null"),
        (b'{"inputs":{}}', "inputs: expected array"),
        (b'{"inputs":[1]}', "inputs[0]: expected object, got int"),
        (body(tensor=TENSOR.replace(b'"x"', b"1")), "inputs[0].name: expected str, got int"),
        (body(tensor=TENSOR.replace(b"[1],", b'["2"],')), "inputs[0].shape[0]: expected int, got str"),
        (body(tensor=TENSOR.replace(b"[1],", b"[2.0],")), "inputs[0].shape[0]: expected int, got float"),
        (body(tensor=TENSOR.replace(b"[1],", b"[true],")), "inputs[0].shape[0]: expected int, got bool"),
        (body(tensor=TENSOR.replace(b'"shape":[1],', b"")), "missing required field shape"),
        (body(b'"id":7'), "id: expected"),
        (body(b'"parameters":[]'), "parameters: expected"),
        (body(b'"parameters":{"a":1e400}'), "parameters"),
        (body(b'"parameters":{"a":' + b"9" * 5000 + b"}"), "parameters"),
        (body(b'"outputs":[{}]'), "outputs[0]: object missing required field name"),
        (body()[:-1], "ends too early"),
        (body() + b"x", "trailing characters"),
        (body(b'"id":"a\x00"'), "in or after 'id'"),
        (body(b'"id":"\\ud800"'), "lone surrogate"),
        (body(b'"other":"\\udc00x"'), "lone surrogate"),
        (body(tensor=TENSOR.replace(b"1.5", b"NaN")), "in or after 'data'"),
        (body(tensor=TENSOR.replace(b"1.5", b'"\\ud800"')), "lone surrogate escape, in or after 'data'"),
        (body(tensor=TENSOR.replace(b"1.5", b'"a\x00"')), "in or after 'data'"),
        (b"\xef\xbb\xbf" + body(), "not valid JSON"),
        (body().decode().encode("utf-16"), "not valid JSON"),
    ],
)
def test_refusals_name_the_field(text: bytes, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (body(b'"id":"a"', b'"id":"b"'), "id"),
        (body(b'"inputs":[]'), "inputs"),
        (body(b'"u":{"k":1,"k":2}'), "k"),
        (body(b'"parameters":{"k":1,"k":2}'), "k"),
        (body(b'"parameters":{"k":{"j":1,"j":2}}'), "j"),
        (body(b'"id":"a"', tensor=TENSOR.replace(b'"name"', b'"name":"y","name"')), "name"),
        (body(tensor=TENSOR.replace(b'"data"', b'"data":[2],"data"')), "data"),
        (body(b'"outputs":[{"name":"a","name":"b"}]'), "name"),
        (body(b'"k":[1,2,3]', b'"\\u006b":2'), "k"),
    ],
)
def test_a_key_that_comes_twice_is_named(text: bytes, key: str) -> None:
    assert refusal(text) == f"the key '{key}' occurs twice in one object"


def test_a_key_that_hides_a_missing_field_is_not_overlooked() -> None:
    """Two wrongs must not add up to the right number of colons."""
    binary = TENSOR.replace(b',"data":[1.5]', b',"parameters":{"binary_data_size":4}')
    assert "twice" in refusal(body(tensor=binary.replace(b'"name"', b'"name":"y","name"')))
    assert not decode(body(tensor=TENSOR.replace(b',"data":[1.5]', b',"name":"x"'))).inputs[0].data


@pytest.mark.parametrize("depth", [101, 120, 900, 250_000])
@pytest.mark.parametrize("place", ["unknown", "parameters", "open", "objects"])
def test_depth_is_limited_wherever_it_is(depth: int, place: str) -> None:
    nest = b"[" * depth + b"]" * depth
    text = {
        "unknown": body(b'"u":' + nest),
        "parameters": body(b'"parameters":{"a":' + nest + b"}"),
        "open": body(b'"u":' + b"[" * depth),
        "objects": body(b'"u":' + b'{"a":' * depth + b"1" + b"}" * depth),
    }[place]
    said = refusal(text)
    assert "deeper than 100" in said or place == "open"


def test_depth_of_exactly_the_limit_passes() -> None:
    check_depth(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    check_depth(b"[" + b",".join([b"[[]]"] * 1000) + b"]")
    check_depth(b'["' + b"[" * 500 + b'","\\"[[' + b"{" * 500 + b'"]')
    with pytest.raises(Malformed):
        check_depth(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b",".join(b'"a%d":1' % i for i in range(1_000_000)) + b',"inputs":[]}',
        body(b'"u":' + b"9" * 1_000_000),
        body(b'"u":' + b"9" * 1_000_000, b'"u":1'),
        body(b'"u":' + b"[" * 250_000 + b"]" * 250_000),
        body(b'"u":"' + b"\\\\" * 500_000 + b'"'),
        body(b'"u":[' + b"[[]]," * 2_000_000 + b"1]"),
        body(b'"u":' + b'{"a":' * 99 + b"1" + b"}" * 99, tensor=b'{"name":' + b"[[]]," * 2_000_000 + b"1}"),
        body(b'"parameters":{' + b",".join(b'"a%d":1' % i for i in range(500_000)) + b"}"),
        body(b'"u":[' + b'"",' * 300_000 + b"1]"),
        b'{"inputs":[' + b'{"name":' * 100_000,
    ],
    ids="keys,digits,digits twice,depth,escapes,brackets,no name,parameters,strings,objects".split(","),
)
def test_hostile_bodies_take_less_than_a_second(text: bytes) -> None:
    start = time.process_time()
    try:
        decode(text)
    except Malformed:
        pass
    assert time.process_time() - start < 1.0


def test_a_million_keys_are_refused() -> None:
    keys = b",".join(b'"a%d":1' % i for i in range(1_000_000))
    assert "take more than 1048576 bytes" in refusal(b"{" + keys + b',"inputs":[]}')
    with pytest.raises(Malformed, match="more than 250000 keys"):
        Reader(dict[str, msgspec.Raw])(b"{" + keys + b"}")


def test_tensors_do_not_count_as_what_is_around_them() -> None:
    for kind in (bytes, bytearray):
        for data in (b"[" + b"1," * 1_000_000 + b"1]", b"[" + b'"a:b\\":",' * 300_000 + b'""]'):
            decode(kind(body(b'"u":{"a":1}', tensor=TENSOR.replace(b"[1.5]", data))))
            assert "'a' occurs twice" in refusal(
                kind(body(b'"u":{"a":1,"a":2}', tensor=TENSOR.replace(b"[1.5]", data)))
            )
    assert "take more than" in refusal(body(b'"u":{"a":"' + b"x" * 2_000_000 + b'"}'))
    decode(body(b'"id":"' + b"x" * 2_000_000 + b'"'))


def test_inputs_without_end() -> None:
    many = b",".join([TENSOR] * 5000)
    assert "more than 4096 inputs" in refusal(body(b'"u":1', tensor=many))
    decode(body(tensor=many))


@given(st.text(), st.text(), st.booleans())
def test_only_what_is_outside_strings_counts(one: str, two: str, ascii: bool) -> None:
    text = json.dumps({one: [two, {two: 1}]}, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    assert count_outside_strings(text, b":") == 2
    assert count_outside_strings(text, b"[") == 1


def test_strings_with_colons_are_not_keys() -> None:
    text = b'["' + b'","'.join([b"a:b\\\\:"] * 20_000) + b'"]'
    decode(body(tensor=TENSOR.replace(b"[1.5]", text).replace(b"FP32", b"BYTES")))


def test_values_that_nobody_reads_may_be_of_any_size() -> None:
    decode(body(b'"u":"\\u0000"', b'"w":-1e999', b'"v":[' + b"0," * 1000 + b"1]"))


def test_reader_of_other_bodies() -> None:
    read = Reader(dict[str, msgspec.Raw])
    assert {name: bytes(value) for name, value in read(b'{"a":[1, 2],"b":{}}').items()} == {"a": b"[1, 2]", "b": b"{}"}
    for text, says in ((b"{", "ends too early"), (b"[]", "the body: expected object"), (b"", "empty")):
        with pytest.raises(Malformed, match=says):
            read(text)
    with pytest.raises(Malformed, match="deeper"):
        read(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}")
    part = read(b'{"a":{"b":1},"c":[1]}')
    assert list(read.part(part["a"], "a")) == ["b"]
    with pytest.raises(Malformed, match=r"^c: expected object, got array"):
        read.part(part["c"], "c")
    with pytest.raises(Malformed, match=r"^c\[1\]: expected"):
        Reader(list[int]).part(read(b'{"c":[1,"a"]}')["c"], "c")


def test_check_count() -> None:
    check_count(b'{"a":"x:y","b":1}', 2)
    check_count(b'{"a":{"c":"x:y"},"b":1}', 2)
    with pytest.raises(Malformed, match="'a' occurs twice"):
        check_count(b'{"a":"x:y","b":1,"a":2}', 2)


def test_what_callers_sent_is_escaped_and_bounded() -> None:
    assert shown("a\nb\x1b[31m") == "'a\\nb\\x1b[31m'"
    assert len(shown("x" * 10_000)) < 140
    assert shown("é\ud800").isascii()


SCALARS = st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(-1e300, 1e300) | st.text()
JSON: Any = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


@given(JSON, st.integers(0, 110), st.booleans())
def test_depth_is_counted_as_a_parser_counts(value: Any, around: int, ascii: bool) -> None:
    for _ in range(around):
        value = [value]
    text = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    if depth(value) > MAX_DEPTH:
        with pytest.raises(Malformed):
            check_depth(text)
    else:
        check_depth(text)


@given(st.lists(st.tuples(st.text(max_size=3), JSON), max_size=6), st.booleans())
def test_duplicates_are_found_wherever_there_are_some(pairs: list[tuple[str, Any]], ascii: bool) -> None:
    members = ",".join(f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=ascii)}" for key, value in pairs)
    text = ('{"inputs":[],"u":[{' + members + "}]}").encode("utf-8", "replace")
    twice = len({key.encode("utf-8", "replace") for key, _ in pairs}) < len(pairs)
    try:
        check_keys(text)
        decode(text)
        assert not twice
    except Malformed as error:
        surrogate = any("\ud800" <= character <= "\udfff" for character in text.decode())
        assert twice or "occurs twice" not in error.message or surrogate
