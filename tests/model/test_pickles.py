"""Pickles are read, never run: what they would import is listed, the worst first, however it is hidden."""

from __future__ import annotations

import collections
import copyreg
import gzip
import io
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.model import pickles
from maitred.model.pickles import MAX_NAMES, UNREAD, beyond, imports, risky


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.marker),))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "pwned"


def listed(folder: Path, data: bytes) -> tuple[str, ...]:
    path = folder / "model.pkl"
    path.write_bytes(data)
    return imports(path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_imports_are_listed_and_nothing_runs(protocol: int, marker: Path, tmp_path: Path) -> None:
    found = listed(tmp_path, pickle.dumps([Payload(marker), collections.OrderedDict()], protocol))
    assert found[0].startswith("posix")
    assert "collections.OrderedDict" in found
    assert not marker.exists()


@pytest.mark.parametrize("compress", [0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
def test_joblib_files_are_looked_into(compress: Any, marker: Path, tmp_path: Path) -> None:
    content = {"weights": np.arange(1000), "payload": Payload(marker), "more": np.arange(9)}
    joblib.dump(content, tmp_path / "m.joblib", compress=compress)
    assert any(name.startswith("posix") for name in imports(tmp_path / "m.joblib"))
    assert not marker.exists()


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    assert listed(tmp_path, zlib.compress(b"N" * (32 << 20), 1)) == (UNREAD,)


@given(st.binary(max_size=200))
def test_nonsense_lists_nothing_or_something_and_never_fails(data: bytes) -> None:
    path = Path(f"/tmp/maitred-nonsense-{id(data)}")
    path.write_bytes(data)
    try:
        imports(path)
    finally:
        path.unlink()


@given(data=st.data())
def test_a_damaged_pickle_never_fails(data: st.DataObject) -> None:
    whole = pickle.dumps([collections.OrderedDict(a=1), {"b": (Path.touch, b"x" * 30)}, "text"] * 3)
    start = data.draw(st.integers(0, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=12)) + whole[start + data.draw(st.integers(0, 9)) :]
    path = Path(f"/tmp/maitred-damaged-{id(data)}")
    path.write_bytes(damaged)
    try:
        imports(path)
        beyond(damaged, frozenset())
    finally:
        path.unlink()


# --- the worst first ------------------------------------------------------------------------------------------------


def glob(module: str, name: str) -> bytes:
    """The opcode GLOBAL."""
    return f"c{module}\n{name}\n".encode()


def test_the_worst_comes_first_however_many_names_there_are(tmp_path: Path) -> None:
    harmless = b"".join(glob("aaa", f"name{number}") + b"0" for number in range(500))
    found = listed(tmp_path, harmless + glob("posix", "system") + b"0" + glob("builtins", "eval") + b".")
    assert found[:2] == ("builtins.eval", "posix.system")
    assert len(found) == MAX_NAMES


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("os.system", True), ("posix.system", True), ("nt.system", True), ("subprocess.Popen", True),
        ("builtins.eval", True), ("__builtin__.eval", True), ("builtins.getattr", True), ("builtins.dict", False),
        ("builtins.__import__", True), ("builtins.list", False), ("operator.methodcaller", True),
        ("functools.partial", True), ("?.name", True), ("os.?", True), ("torch.storage._load_from_bytes", True),
        ("sklearn.linear_model._logistic.LogisticRegression", False), ("numpy.ndarray", False),
        ("copyreg's extension 7", True), ("osmium.thing", False), ("types.FunctionType", True),
    ],
)  # fmt: skip
def test_what_looks_bad(name: str, bad: bool) -> None:
    assert risky(name) is bad


# --- ways to hide ---------------------------------------------------------------------------------------------------


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def test_names_from_the_memo(tmp_path: Path) -> None:
    """As protocol 4 writes the second class of a module, and with texts in between that lead astray."""
    data = b"\x80\x04" + short("posix") + b"\x94" + short("system") + b"\x94" + b"00"
    data += b"h\x00" + short("decoy") + b"0" + b"h\x01" + b"\x93."
    assert listed(tmp_path, data) == ("posix.system",)


def test_names_put_and_got_by_number(tmp_path: Path) -> None:
    data = b"\x80\x04" + short("posix") + b"q\x07" + short("system") + b"r\x08\x00\x00\x00" + b"00"
    data += b"h\x07" + b"j\x08\x00\x00\x00" + b"\x93."
    assert listed(tmp_path, data) == ("posix.system",)


def test_names_twice_on_the_stack(tmp_path: Path) -> None:
    data = b"\x80\x04" + short("posix") + short("system") + b"20" + b"\x93."
    assert listed(tmp_path, data) == ("posix.system",)


def test_a_name_that_is_computed_is_said_to_be(tmp_path: Path) -> None:
    data = b"\x80\x04" + short("posix") + glob("builtins", "str") + b")R" + b"\x93."
    assert "posix.?" in listed(tmp_path, data)


def test_getattr_of_a_harmless_thing(tmp_path: Path) -> None:
    data = (
        b"\x80\x04" + glob("builtins", "getattr") + glob("collections", "OrderedDict") + short("__class__") + b"\x86R."
    )
    assert listed(tmp_path, data)[0] == "builtins.getattr"


def test_an_unknown_escape_warns_nobody(tmp_path: Path) -> None:
    data = rb"S'\:'" + b"\ncposix\nsystem\n."
    assert listed(tmp_path, data) == ("posix.system",)
    assert beyond(data, frozenset()) == ("posix.system",)


def test_the_old_opcodes(tmp_path: Path) -> None:
    assert listed(tmp_path, b"(S'x'\niposix\nsystem\n.") == ("posix.system",)
    assert listed(tmp_path, b"(cposix\nsystem\nS'x'\no.") == ("posix.system",)


def test_registered_extensions(tmp_path: Path) -> None:
    assert listed(tmp_path, b"\x80\x02\x82\x7b.") == ("copyreg's extension 123",)
    copyreg.add_extension("posix", "system", 124)
    try:
        assert listed(tmp_path, b"\x80\x02\x82\x7c.") == ("posix.system",)
    finally:
        copyreg.remove_extension("posix", "system", 124)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_inside_pickles(depth: int, protocol: int, marker: Path, tmp_path: Path) -> None:
    data = pickle.dumps(Payload(marker), protocol)
    for _ in range(depth):
        data = pickle.dumps((collections.OrderedDict(), data), 4)
    assert listed(tmp_path, data)[0].startswith("posix")


def test_pickles_inside_texts(tmp_path: Path) -> None:
    inner = pickle.dumps(os.mkdir, 0).decode()
    assert listed(tmp_path, pickle.dumps(["a", inner], 4))[0].startswith("posix")


def test_compressed_pickles_inside_pickles(marker: Path, tmp_path: Path) -> None:
    data = pickle.dumps(gzip.compress(zlib.compress(pickle.dumps(Payload(marker)))))
    assert listed(tmp_path, data)[0].startswith("posix")


def test_deeper_than_anybody_packs_is_said(marker: Path, tmp_path: Path) -> None:
    data = pickle.dumps(Payload(marker))
    for _ in range(20):
        data = zlib.compress(data)
    assert listed(tmp_path, data) == (UNREAD,)


@pytest.mark.parametrize("between", [b"", b"\x00" * 100, b"not a pickle", np.arange(100).tobytes()])
def test_pickles_behind_the_first(between: bytes, marker: Path, tmp_path: Path) -> None:
    data = pickle.dumps(1) + between + pickle.dumps(Payload(marker))
    assert listed(tmp_path, data)[0].startswith("posix")


@pytest.mark.parametrize("opcode", [b"I0x10\n", b"L0x10L\n", b"S'\xff'\n", b"F1_0\n", b"V\\ud800\n"])
def test_what_unpicklers_read_and_pickletools_do_not_is_never_nothing(opcode: bytes, tmp_path: Path) -> None:
    named = b"X\x05\x00\x00\x00posixq\x000X\x06\x00\x00\x00systemq\x010h\x00h\x01\x93."
    found = listed(tmp_path, b"\x80\x04" + opcode + b"0" + named)
    assert found[-1] in {UNREAD, "posix.system"}


@pytest.mark.parametrize("size", [b"X\x05\x00\x00\x00", b"\x8c\x05", b"\x8d\x05" + bytes(7)])
def test_texts_of_every_size_before_a_stacked_import(size: bytes, tmp_path: Path) -> None:
    found = listed(tmp_path, b"\x80\x04I0x10\n0" + size + b"posix\x94X\x06\x00\x00\x00system\x93.")
    assert found == ("posix.system", UNREAD)


def test_truncated_files(marker: Path, tmp_path: Path) -> None:
    data = pickle.dumps([Payload(marker), "x" * 1000])
    assert listed(tmp_path, data[:-1000])[0].startswith("posix")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_behind_more_opcodes_than_are_looked_at(protocol: int, marker: Path, tmp_path: Path) -> None:
    padding = b"N0" * pickles.MAX_OPCODES
    found = listed(tmp_path, padding + pickle.dumps(Payload(marker), protocol))
    assert found[0].startswith("posix")
    assert found[-1] == UNREAD


def test_behind_more_bytes_than_are_looked_at(marker: Path, tmp_path: Path) -> None:
    big = pickle.dumps(bytes(pickles.MAX_BYTES)) + pickle.dumps(Payload(marker))
    assert listed(tmp_path, big) == (UNREAD,)


# --- archives and arrays --------------------------------------------------------------------------------------------


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def object_array(marker: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(marker)], object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "make",
    [
        lambda marker: zipped(("m/data.pkl", pickle.dumps(Payload(marker), 2)), ("m/data/0", bytes(100))),
        lambda marker: zipped(("m/data/0", pickle.dumps(Payload(marker), 2))),
        lambda marker: zipped(("m/s.pt", zipped(("x/data.pkl", pickle.dumps(Payload(marker)))))),
        lambda marker: zipped(("a.npy", object_array(marker))),
        lambda marker: zipped(("x.pkl", b"cposix\nsystem\n.")),
        object_array,
        lambda marker: gzip.compress(object_array(marker)),
        lambda marker: gzip.compress(zipped(("a.npy", object_array(marker)))),
        lambda marker: zipped(("a.bin", gzip.compress(pickle.dumps(Payload(marker))))),
    ],
)  # fmt: skip
def test_archives_and_arrays_are_looked_into(make: Callable[[Path], bytes], marker: Path, tmp_path: Path) -> None:
    found = listed(tmp_path, make(marker))
    assert found[0].startswith("posix")
    assert not marker.exists()


def test_weights_in_an_archive_are_not_read(tmp_path: Path) -> None:
    """However large: only what may be a pickle is, and that comes first."""
    weights = [(f"m/data/{number}", bytes(6 << 20)) for number in range(4)]
    found = listed(tmp_path, zipped(*weights, ("m/data.pkl", pickle.dumps(collections.OrderedDict(), 2))))
    assert found == ("collections.OrderedDict",)


def test_a_broken_archive_is_said_to_be(marker: Path, tmp_path: Path) -> None:
    data = bytearray(zipped(("m/data.pkl", pickle.dumps(Payload(marker), 2))))
    data[40] ^= 0xFF
    assert listed(tmp_path, bytes(data))[-1] == UNREAD


def test_what_pytorch_saves(marker: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'maitred[torch]'")
    state = {"weight": torch.ones(3), "payload": Payload(marker)}
    for number, modern in enumerate((True, False)):
        torch.save(state, tmp_path / f"{number}.pt", _use_new_zipfile_serialization=modern)
        found = imports(tmp_path / f"{number}.pt")
        assert found[0].startswith("posix")
        assert "torch._utils._rebuild_tensor_v2" in found
    assert not marker.exists()


# --- deciding -------------------------------------------------------------------------------------------------------

ALLOWED = frozenset({"collections.OrderedDict"})


@pytest.mark.parametrize(
    "value", [None, True, 1, 1 << 70, 1.5, "text", b"bytes", [1, (2, {3: "x"})], collections.OrderedDict(a=[1])]
)
def test_plain_values_and_allowed_calls_are_harmless(value: Any) -> None:
    assert beyond(pickle.dumps(value, 2), ALLOWED | {"_codecs.encode"}) == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps(os.mkdir, 2), "posix.mkdir"),
        (pickle.dumps(collections.Counter(), 2), "collections.Counter"),
        (pickle.dumps(collections.OrderedDict(), 4), "STACK_GLOBAL"),
        (pickle.dumps(collections.OrderedDict(), 2) + b"x", "bytes after its end"),
        (pickle.dumps(1) + pickle.dumps(os.mkdir), "bytes after its end"),
        (pickle.dumps([1, 2, 3], 2)[:-1], "no pickle"),
        (b"", "no pickle"),
        (b"\xff\xff", "no pickle"),
        (b"(S'x'\niposix\nsystem\n.", "INST"),
        (b"\x80\x02\x82\x7b.", "EXT1"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81}b.", "NEWOBJ"),
        (b"\x80\x02Pid\n.", "PERSID"),
        (b"\x80\x02cposix\nsystem collections OrderedDict\n.", "posix"),
    ],
)  # fmt: skip
def test_everything_else_is_named(data: bytes, said: str) -> None:
    assert any(said in name for name in beyond(data, ALLOWED))


def test_a_name_with_a_space_is_not_taken_for_another(tmp_path: Path) -> None:
    """`module name` is how the opcode's two texts are shown; a blank inside of one must not shift them."""
    assert beyond(b"\x80\x02ca b\nc\n.", frozenset({"a.b c"})) != ()
