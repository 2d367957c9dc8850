"""The binary extension: where the JSON ends, and which bytes are whose."""

from __future__ import annotations

import numpy as np
import pytest

from maitred.errors import Malformed
from maitred.wire.binary import cut, join, split
from maitred.wire.json import InputEntry, decode

HEAD = b'{"inputs":[]}'


def entry(name: str, size: object = None, data: bytes = b"") -> InputEntry:
    head = b'{"inputs":[{"name":"%b","datatype":"FP32","shape":[1]' % name.encode()
    if size is not None:
        head += b',"parameters":{"binary_data_size":%b}' % str(size).encode()
    if data:
        head += b',"data":' + data
    return decode(head + b"}]}").inputs[0]


def test_split() -> None:
    head, rest = split(HEAD + b"\x01\x02", b"13")
    assert head == HEAD
    assert bytes(rest) == b"\x01\x02"
    assert split(bytearray(HEAD), b" 13 ") == (HEAD, memoryview(b""))
    body = bytearray(HEAD + b"1234")
    body_view = split(body, b"13")[1]
    assert body_view.obj is body, "tensors are views, not copies"


@pytest.mark.parametrize("value", [b"", b"-1", b"abc", b"1.5", b"0x10", b"+1", b"14", b"9" * 30, "١".encode(), b"\xb9"])
def test_a_header_that_says_nothing_sensible(value: bytes) -> None:
    with pytest.raises(Malformed, match="Inference-Header-Content-Length"):
        split(HEAD, value)


def test_each_input_gets_its_bytes_in_order() -> None:
    cuts = cut([entry("a", 2), entry("b", data=b"[1]"), entry("c", 0), entry("d", 3)], memoryview(b"12345"))
    assert {name: bytes(part) for name, part in cuts.items()} == {"a": b"12", "c": b"", "d": b"345"}
    assert cut([entry("b", data=b"[1]")], memoryview(b"")) == {}
    assert cut([entry("b", data=b"[1]")], None) == {}


@pytest.mark.parametrize(
    ("entries", "rest", "says"),
    [
        ([entry("a", 4)], b"123", "input 'a' has binary_data_size 4, and 3 bytes are left"),
        ([entry("a", 2), entry("b", 2)], b"123", "input 'b' has binary_data_size 2, and 1 bytes are left"),
        ([entry("a", 2)], b"123", "add up to 2, and 3 bytes follow"),
        ([entry("a")], b"123", "add up to 0, and 3 bytes follow"),
        ([entry("a", -1)], b"", "input 'a': binary_data_size must be a count"),
        ([entry("a", "true")], b"1", "input 'a': binary_data_size must be a count"),
        ([entry("a", "1.0")], b"1", "input 'a': binary_data_size must be a count"),
        ([entry("a", '"1"')], b"1", "input 'a': binary_data_size must be a count"),
        ([entry("a", 1, b"[1]")], b"1", "input 'a' has both"),
        ([entry("a", 1), entry("a", 1)], b"12", "input 'a' is sent twice"),
        ([entry("a", 10**19 - 1)], b"1", "input 'a' has binary_data_size"),
    ],
)
def test_sizes_that_disagree(entries: list[InputEntry], rest: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        cut(entries, memoryview(rest))


def test_a_size_without_the_header() -> None:
    with pytest.raises(Malformed, match="input 'a' has binary_data_size, and the request has no Inference-Header"):
        cut([entry("a", 4)], None)


def test_join() -> None:
    assert join(HEAD, []) == (HEAD, b"")
    body, line = join(HEAD, [b"ab", np.arange(2, dtype="<u2"), memoryview(b"")])
    assert line == b"Inference-Header-Content-Length: 13\r\n"
    assert body == HEAD + b"ab\x00\x00\x01\x00"
