"""The zip archives that PyTorch writes: what one is, read and judged without PyTorch and without running any of it."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Literal

from maitred.model import pickles
from maitred.model.flavors.archives import refuse_bomb
from maitred.model.refusals import CannotLoad

Kind = Literal["program", "script", "pickle", "tensors"]
"""A graph of torch.export, TorchScript, a pickle of anything, or safetensors."""

MAX_MEMBER_BYTES: Final = 256 << 20
"""Bound on a member that is read whole: a graph, a table, sample inputs."""

_LOCAL_BYTES: Final = 30
"""What stands before a member's name, at least."""
_END: Final = struct.Struct("<4s4H2LH")
_STORAGES: Final = "Double Float Half BFloat16 Long Int Short Char Byte Bool".split()
_DTYPES: Final = "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 bfloat16 float16 float32 float64 int64 int32".split()

TENSORS: Final = frozenset(
    {
        "collections.OrderedDict", "torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3", "torch.Size", "torch.storage.UntypedStorage",
        *(f"torch.{name}Storage" for name in _STORAGES), *(f"torch.{name}" for name in _DTYPES),
    }
)  # fmt: skip
"""What the pickle of nothing but tensors imports."""


class TorchArchive:
    """An opened archive that is sound: PyTorch would see the same members in it."""

    def __init__(self, file: Path | IO[bytes], name: str) -> None:
        """Raises `CannotLoad` for what is damaged, a bomb, or could be read in two ways."""
        self.name = name
        try:
            self._zip = zipfile.ZipFile(file)
            self.sizes = _members(self._zip, name)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise CannotLoad(f"{name} is not an archive that PyTorch wrote: {error}") from error

    def __enter__(self) -> TorchArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    @property
    def kind(self) -> Kind:
        """What the members say it is."""
        if "archive_format" in self.sizes or "serialized_exported_program.json" in self.sizes:
            return "program"
        return "script" if any(member.startswith("code/") for member in self.sizes) else "pickle"

    def read(self, member: str) -> bytes:
        """A whole member. Raises `CannotLoad`."""
        if member not in self.sizes:
            raise CannotLoad(f"{self.name} holds no {member}")
        if self.sizes[member] > MAX_MEMBER_BYTES:
            raise CannotLoad(f"{self.name}: {member} has {self.sizes[member]} bytes, more than {MAX_MEMBER_BYTES}")
        try:
            return self._zip.read(self._top + member)
        except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
            raise CannotLoad(f"{self.name}: {member} is damaged: {error}") from error

    @property
    def _top(self) -> str:
        return self._zip.infolist()[0].filename.partition("/")[0] + "/"


def kind_of(path: Path) -> Kind:
    """What a file with one of PyTorch's endings really is. Raises `CannotLoad` for unsound archives."""
    if path.name.lower().endswith(".safetensors"):
        return "tensors"
    with _readable(path) as file:
        start = file.read(4)
    if start != b"PK\x03\x04":
        if path.name.lower().endswith((".pt", ".pth")) and start:
            return "pickle"  # what PyTorch wrote before 1.6
        raise CannotLoad(f"{path.name} is not an archive that PyTorch wrote")
    with TorchArchive(path, path.name) as archive:
        return archive.kind


def beyond_tensors(archive: TorchArchive) -> tuple[str, ...]:
    """What an archive of `torch.save` would import or do besides making tensors; none if it is pure data."""
    return pickles.beyond(archive.read("data.pkl"), TENSORS)


@contextmanager
def _readable(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise CannotLoad(f"{path.name} cannot be read: {error.strerror}") from error


def _members(archive: zipfile.ZipFile, name: str) -> dict[str, int]:
    """Inflated size by member, the common folder left out of the names.

    Raises ValueError for what two readers could see differently, or what would inflate to far more than it is.
    """
    members = archive.infolist()
    if not members:
        raise ValueError("it holds nothing")
    refuse_bomb(archive, name)
    _check_frame(archive)
    top = members[0].filename.partition("/")[0] + "/"
    sizes: dict[str, int] = {}
    folded: set[str] = set()
    for count, member in enumerate(members):
        path = _plain(member, top)
        folded.add(path.lower())  # PyTorch's reader looks members up without regard to case
        sizes[path] = member.file_size
        if len(folded) <= count:
            raise ValueError(f"two members are named {path!r}")
    return sizes


def _plain(member: zipfile.ZipInfo, top: str) -> str:
    """A member's name below the archive's one folder. Raises ValueError for any other, and for links."""
    name, path = member.filename, member.filename.removeprefix(top)
    if member.orig_filename != name or not name.startswith(top) or not path or path.endswith("/"):
        raise ValueError(f"the member {name[:100]!r} lies outside its folder")
    parts = name.split("/")
    if not re.fullmatch(r"[\w.\-+ /]+", path, re.ASCII) or {"", ".", ".."} & {*parts} or not top[:-1].isprintable():
        raise ValueError(f"no member may be named {name[:100]!r}")
    if stat.S_IFMT(member.external_attr >> 16) not in {0, stat.S_IFREG} or member.flag_bits & 0x41:
        raise ValueError(f"the member {name[:100]!r} is a link or encrypted")
    return path


def _check_frame(archive: zipfile.ZipFile) -> None:
    """One member after the other, nothing before the first and nothing behind the table.

    So there is no second archive for another reader to find. Raises ValueError.
    """
    file = archive.fp
    assert file is not None
    file.seek(0)
    starts = file.read(4) == b"PK\x03\x04" and min(member.header_offset for member in archive.infolist()) == 0
    file.seek(-_END.size, 2)
    magic, *_, comment_length = _END.unpack(file.read(_END.size))
    if not starts or magic != b"PK\x05\x06" or comment_length:
        raise ValueError("bytes lie before or behind it")
    at = 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        if member.header_offset < at:
            raise ValueError(f"the member {member.filename[:100]!r} overlaps another")
        at = member.header_offset + _LOCAL_BYTES + len(member.filename) + member.compress_size
