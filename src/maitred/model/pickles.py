"""What a pickle would import, read without running it."""

from __future__ import annotations

import bz2
import contextlib
import copyreg
import gzip
import io
import lzma
import pickletools
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

MAX_BYTES: Final = 16 << 20
MAX_OPCODES: Final = 200_000
"""How much of the (inflated) file is looked at opcode by opcode: a fraction of a second's work."""
MAX_NAMES: Final = 40
MAX_MEMBERS: Final = 10_000
UNREAD: Final = "(and whatever lies in the part that was not read)"
"""The last name of a list that may lack some."""

_MAX_FOUND: Final = 2_000
_MAX_DEPTH: Final = 6
"""Containers inside containers: compressed archives of compressed pickles in pickles."""

_FAILURES: Final = (
    ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, IndexError, KeyError, MemoryError, OverflowError,
    RecursionError, NotImplementedError, RuntimeError, zipfile.BadZipFile,
)  # fmt: skip
"""What the readers of hostile or damaged bytes raise."""

_TEXTS: Final = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_BYTES: Final = {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_GETS: Final = {"GET", "BINGET", "LONG_BINGET"}
_PUTS: Final = {"PUT", "BINPUT", "LONG_BINPUT"}
_EXTENSIONS: Final = {"EXT1", "EXT2", "EXT4"}

_RISKY_MODULES: Final = frozenset(
    "asyncio bdb cProfile cffi code codeop commands concurrent ctypes dill distutils doctest ftplib http idlelib imp "
    "importlib inspect io lib2to3 logging marshal mmap multiprocessing nt numexpr os pathlib pdb pickle pip pkgutil "
    "platform popen2 posix profile pty pydoc requests resource runpy setuptools shelve shutil signal site smtplib "
    "socket socketserver sqlite3 ssl subprocess sys sysconfig tempfile test threading timeit trace types urllib uuid "
    "venv webbrowser weakref xmlrpc zipimport _io _pickle _posixsubprocess _thread _winapi".split()
)
_RISKY_BUILTINS: Final = frozenset(
    "eval exec compile open getattr setattr delattr globals locals vars dir apply execfile file input raw_input "
    "breakpoint memoryview object type super map filter __import__ __build_class__ __loader__ __dict__".split()
)
_RISKY_NAMES: Final = frozenset(
    "operator.attrgetter operator.methodcaller operator.itemgetter operator.call _operator.attrgetter "
    "_operator.methodcaller functools.partial functools.reduce joblib.load torch.load torch.hub.load torch.jit.load "
    "torch.serialization.load torch.storage._load_from_bytes numpy.load pandas.read_pickle cloudpickle.loads "
    "cloudpickle.cloudpickle.loads numpy.testing._private.utils.runstring".split()
)

_NAME: Final = rb"[A-Za-z_][A-Za-z0-9_.]{0,200}"
_GLOBAL: Final = re.compile(rb"[ci](" + _NAME + rb")\n(" + _NAME + rb")\n")
_PUT: Final = rb"(?:\x94|q.|r.{4})?"
_SIZE: Final = rb"(?:\x8c(?P<%b>.)|X(?P<%b>.{4})|\x8d(?P<%b>.{8}))"
_STACKED: Final = re.compile(
    _SIZE % (b"m1", b"m4", b"m8") + rb"(?P<module>" + _NAME + rb"?)" + _PUT
    + _SIZE % (b"n1", b"n4", b"n8") + rb"(?P<name>" + _NAME + rb"?)" + _PUT + rb"\x93",
    re.DOTALL,
)  # fmt: skip
"""Two texts, each behind its size, that STACK_GLOBAL takes."""
_MAGIC_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_MAGIC_NPY: Final = b"\x93NUMPY"
_INFLATERS: Final[dict[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file), b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile, b"\x5d\x00\x00": lzma.LZMAFile,
}  # fmt: skip


def imports(path: Path) -> tuple[str, ...]:
    """Names, `module.name`, that unpickling the file would import: those that can do most harm first, then sorted.

    Looks into compressed files, into zip archives (PyTorch's, numpy's) and into pickles inside pickles. At most
    `MAX_NAMES`; ends in `UNREAD` where a bound cut the reading short. Best effort: a hostile or damaged pickle can hide
    some, so the list explains a refusal and never grants anything.
    """
    scan = _Scan()
    try:
        with open(path, "rb") as file:
            scan.file(file)
    except _FAILURES:
        scan.cut = True
    return scan.listed()


def danger(path: Path, names: tuple[str, ...] | None = None) -> str:
    """What there is to say of a file that would be unpickled. `names`: its imports, where they are known already."""
    listed = imports(path) if names is None else names
    return f"the pickle {path.name}, which imports {', '.join(listed) or 'nothing that could be read'}"


def beyond(data: bytes, allowed: frozenset[str]) -> tuple[str, ...]:
    """What a pickle holds besides plain values and calls of the `allowed` names; none if it is harmless.

    For deciding, unlike `imports`: whatever is not known to be harmless is named, damage and trailing bytes too.
    """
    found: list[str] = []
    length = 0
    try:
        with _unwarned():
            for opcode, argument, position in pickletools.genops(data):
                length = cast(int, position) + 1
                name = str(argument).replace(" ", ".", 1) if opcode.name == "GLOBAL" else ""
                if opcode.name not in _HARMLESS or (name and (name not in allowed or " " in name)):
                    found.append(name or f"the opcode {opcode.name}")
    except _FAILURES as error:
        return (*found, f"bytes that are no pickle ({type(error).__name__})")
    return tuple(dict.fromkeys(found)) if length == len(data) else (*found, "bytes after its end")


_HARMLESS: Final = _GETS | _PUTS | _TEXTS | {
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "MEMOIZE", "FRAME", "NONE", "NEWTRUE", "NEWFALSE", "INT",
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "SHORT_BINBYTES", "BINBYTES",
}  # fmt: skip
"""Opcodes that make plain values, or call what a GLOBAL named."""


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Python warns of unknown escapes in texts: where warnings are errors, that would end a look at a hostile file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class _Scan:
    """One look through a file, within bounds that hold for all of it."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.cut = False
        self.opcodes_left = MAX_OPCODES
        self.bytes_left = MAX_BYTES

    def listed(self) -> tuple[str, ...]:
        names = sorted(self.found, key=lambda name: (not risky(name), name))[:MAX_NAMES]
        return (*names, UNREAD) if self.cut else tuple(names)

    def file(self, file: IO[bytes]) -> None:
        """A file of any kind that may hold a pickle; archives are read member by member."""
        start = file.read(4)
        file.seek(0)
        if start.startswith(_MAGIC_ZIP):
            self.archive(file, 0)
        else:
            self.data(self.read(file), 0)

    def data(self, data: bytes, depth: int) -> None:
        """What was read of a file, a member, or bytes inside a pickle."""
        if depth > _MAX_DEPTH:
            self.cut = True
            return
        inflate = next((make for magic, make in _INFLATERS.items() if data.startswith(magic)), None)
        if data.startswith(_MAGIC_ZIP):
            self.archive(io.BytesIO(data), depth)
        elif inflate is not None:
            self.data(self.read(inflate(io.BytesIO(data))), depth + 1)
        elif data[:1] == b"\x78" and data[1:2] in b"\x01\x5e\x9c\xda":
            self.data(self.read(cast(IO[bytes], _ZlibFile(data))), depth + 1)
        else:
            self.pickles(data, _npy_header(data) if data.startswith(_MAGIC_NPY) else 0, depth)

    def read(self, file: IO[bytes]) -> bytes:
        """As much of the file as is left to look at; what can be read of a damaged one."""
        pieces: list[bytes] = []
        try:
            while self.bytes_left > 0 and (piece := file.read(min(self.bytes_left, 1 << 20))):
                pieces.append(piece)
                self.bytes_left -= len(piece)
            self.cut = self.cut or (self.bytes_left <= 0 and bool(file.read(1)))
        except _FAILURES:
            self.cut = True
        return b"".join(pieces)

    def archive(self, file: IO[bytes], depth: int) -> None:
        """Every member that may hold a pickle; of numbers alone only the beginning is read."""
        try:
            with zipfile.ZipFile(file) as archive:
                members = sorted(archive.infolist(), key=lambda member: not _named_pickle(member.filename))
                self.cut = self.cut or len(members) > MAX_MEMBERS
                for member in members[:MAX_MEMBERS]:
                    self.member(archive, member, depth)
        except _FAILURES:
            self.cut = True

    def member(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, depth: int) -> None:
        try:
            with archive.open(member) as opened:
                start = opened.read(8)
            if _named_pickle(member.filename) or _may_be_pickle(start):
                with archive.open(member) as opened:
                    self.data(self.read(opened), depth + 1)
        except _FAILURES:
            self.cut = True

    def pickles(self, data: bytes, start: int, depth: int) -> None:
        """Pickles one after the other, and whatever looks like an import in bytes that are none."""
        while start < len(data):
            stopped = self.one(data, start, depth)
            if stopped is None:
                self.sweep(data, start)
                return
            start = stopped

    def one(self, data: bytes, start: int, depth: int) -> int | None:
        """One pickle; where it ends, or None where it breaks off.

        It may break off only here: an unpickler reads some numbers and texts that pickletools does not.
        """
        machine = _Machine(self, depth)
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            with _unwarned():
                for opcode, argument, _ in pickletools.genops(stream):
                    self.opcodes_left -= 1
                    if self.opcodes_left < 0:
                        self.cut = True
                        return None
                    machine.step(opcode, argument)
        except _FAILURES:
            self.cut = self.cut or stream.tell() > start + 1  # one byte that is no opcode begins no pickle
            return None
        return stream.tell()

    def sweep(self, data: bytes, start: int) -> None:
        """Imports by their looks: behind a limit, raw numbers or damage the opcodes cannot be told apart."""
        for match in _GLOBAL.finditer(data, start):
            self.add(_joined(*match.groups()))
        for match in _STACKED.finditer(data, start):
            sizes = [match["m1"] or match["m4"] or match["m8"], match["n1"] or match["n4"] or match["n8"]]
            if [int.from_bytes(size, "little") for size in sizes] == [len(match["module"]), len(match["name"])]:
                self.add(_joined(match["module"], match["name"]))

    def add(self, name: str) -> None:
        if len(self.found) < _MAX_FOUND:
            self.found.add(name[:200])
        else:
            self.cut = True


class _ZlibFile(io.RawIOBase):
    """The inflated content of bytes that zlib wrote, piece by piece."""

    def __init__(self, data: bytes) -> None:
        self.inflater = zlib.decompressobj()
        self.rest = data

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; none at the end."""
        piece = self.inflater.decompress(self.rest, size)
        self.rest = self.inflater.unconsumed_tail
        return piece


class _Machine:
    """The stack and the memo of an unpickler, holding texts and nothing else."""

    def __init__(self, scan: _Scan, depth: int) -> None:
        self.scan = scan
        self.depth = depth
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name in {"GLOBAL", "INST"}:
            self.scan.add(str(argument).replace(" ", ".", 1))
        elif name == "STACK_GLOBAL":
            module, attribute = ([None, None, *self.stack])[-2:]
            self.scan.add(f"{_text(module)}.{_text(attribute)}")
        elif name in _EXTENSIONS:
            registered: Any = copyreg._inverted_registry.get(argument)  # type: ignore[attr-defined]
            self.scan.add(".".join(registered) if registered else f"copyreg's extension {argument}")
        if name in _TEXTS or name in _BYTES:
            self.nested(argument)
        self.move(name, opcode, argument)

    def move(self, name: str, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """What the opcode does to stack and memo."""
        if name in _GETS:
            self.stack.append(self.memo.get(argument))
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1] if self.stack else None
        elif name in _PUTS:
            self.memo[argument] = self.stack[-1] if self.stack else None
        elif name == "DUP":
            self.stack.append(self.stack[-1] if self.stack else None)
        elif name in _TEXTS:
            self.stack.append(argument)
        else:
            self.pop(opcode)
            self.stack += [_MARK if name == "MARK" else None] * len(opcode.stack_after)

    def pop(self, opcode: pickletools.OpcodeInfo) -> None:
        before = opcode.stack_before
        if pickletools.markobject in before:
            while self.stack and self.stack.pop() is not _MARK:
                continue
            before = before[: before.index(pickletools.markobject)]
        del self.stack[max(0, len(self.stack) - len(before)) :]

    def nested(self, content: Any) -> None:
        """A pickle inside a text or bytes of the pickle."""
        data = content.encode("latin-1", "replace") if isinstance(content, str) else bytes(content)
        if len(data) >= 6 and self.depth < _MAX_DEPTH and (data[:1] in b"\x80c(" or _may_be_pickle(data[:8])):
            self.scan.data(data, self.depth + 1)


_MARK: Final = object()


def risky(name: str) -> bool:
    """Whether an import reaches files, processes, the network or code, by its name alone."""
    module, _, rest = name.partition(".")
    if module in {"builtins", "__builtin__"}:  # the latter in pickles that Python 2 can read
        return rest.partition(".")[0] in _RISKY_BUILTINS
    return module in _RISKY_MODULES or name in _RISKY_NAMES or "?" in name or " " in name


def _named_pickle(name: str) -> bool:
    return name.lower().endswith((".pkl", ".pickle", ".npy"))


def _may_be_pickle(start: bytes) -> bool:
    """Whether these first bytes of a member could be a pickle's, or a container's that may hold one."""
    known = (*_MAGIC_ZIP, _MAGIC_NPY, b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", *_INFLATERS)
    return start.startswith(known) or (start[:1] == b"\x80" and start[1:2] in b"\x01\x02\x03\x04\x05")


def _npy_header(data: bytes) -> int:
    """Where the content of numpy's file begins."""
    wide = data[6:7] in {b"\x02", b"\x03"}
    size = 4 if wide else 2
    return 8 + size + int.from_bytes(data[8 : 8 + size], "little")


def _text(part: Any) -> str:
    return part if isinstance(part, str) else "?"


def _joined(module: bytes, name: bytes) -> str:
    return f"{module.decode()}.{name.decode()}"
