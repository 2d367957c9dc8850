"""A folder with a manifest and digests: how it is written, opened and verified; nothing of it is run here."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple

from maitred.model.manifest import FILE, MAX_BYTES, FileDigest, Manifest, check_member, read, seal
from maitred.model.refusals import CannotPack, Corrupt, NotAnArtifact, NotFound

MAX_FILES: Final = 10_000
MAX_DEPTH: Final = 32
"""Folders inside folders."""


class Artifact(NamedTuple):
    """An opened artifact. `verify` says whether its files are those that were packed."""

    root: Path
    manifest: Manifest
    head: bytes
    version: str
    """`sha256:` and the digest of all its files, the manifest counted without its digest table."""
    files: Mapping[str, FileDigest]

    def path(self, member: str) -> Path:
        """Where a file of the digest table lies. Raises `Corrupt` for a name that the table does not hold."""
        if member not in self.files:
            raise Corrupt(f"the artifact holds no file named {member!r}")
        return self.root / member


def is_artifact(folder: Path) -> bool:
    """Whether `folder` has a manifest, good or bad."""
    return (folder / FILE).is_file()


def open_artifact(folder: Path) -> Artifact:
    """Read the manifest of `folder`; looks at no other file. Raises `NotFound` or `NotAnArtifact`."""
    root = folder.resolve()
    if not root.is_dir():
        raise NotFound(f"there is no folder at {folder}")
    try:
        with _open_regular(root / FILE) as manifest:
            text = manifest.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotAnArtifact(f"{folder} holds no {FILE}: pack the model with `maitred pack`") from None
    except OSError as error:
        raise Corrupt(f"{FILE} cannot be read as a regular file: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise NotAnArtifact(f"{FILE} is larger than {MAX_BYTES} bytes")
    sealed = read(text)
    if len(sealed.files) > MAX_FILES:
        raise Corrupt(f"the artifact lists more than {MAX_FILES} files")
    return Artifact(root, sealed.manifest, sealed.head, sealed.version, sealed.files)


def verify(artifact: Artifact) -> None:
    """Compare every file with the digest table. Raises `Corrupt` naming the first file that differs."""
    found = dict(_members(artifact.root))
    found.pop(FILE, None)
    if extra := sorted(found.keys() - artifact.files.keys()):
        raise Corrupt(f"the file {extra[0]!r} is not in the digest table; remove it, or pack the model again")
    if missing := sorted(artifact.files.keys() - found.keys()):
        raise Corrupt(f"the file {missing[0]!r} is missing")
    if version_of(artifact.head, artifact.files) != artifact.version:
        raise Corrupt(f"{FILE} is not as it was packed: its content does not match its version digest")
    for member, digest in sorted(artifact.files.items()):
        if found[member] != digest.size:
            raise Corrupt(f"the file {member!r} has {found[member]} bytes, not the {digest.size} that were packed")
    for member, digest in sorted(artifact.files.items()):
        if digest_of(artifact.root / member) != digest:
            raise Corrupt(f"the file {member!r} is not as it was packed: its SHA-256 differs")


def version_of(head: bytes, files: Mapping[str, FileDigest]) -> str:
    """The version digest: SHA-256 over the sorted list of path, size and SHA-256 of all files."""
    counted = {**files, FILE: FileDigest(len(head), hashlib.sha256(head).hexdigest())}
    lines = (f"{path}\0{digest.size}\0{digest.sha256}\n" for path, digest in sorted(counted.items()))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def version_of_file(path: Path) -> str:
    """The version digest of a model that is one bare file. Raises `NotFound`."""
    try:
        return version_of(b"", {path.name: digest_of(path.resolve())})
    except OSError as error:
        raise NotFound(f"{path.name} cannot be read: {error.strerror}") from error


def version_of_folder(root: Path) -> str:
    """The version digest of a model that is a folder without a manifest. Raises `Corrupt` for links and devices."""
    return version_of(b"", files_of(root))


def files_of(root: Path) -> dict[str, FileDigest]:
    """Every file below `root` with its size and SHA-256. Raises `Corrupt` for links, devices or too many files."""
    return {member: digest_of(root / member) for member, _ in _members(root)}


def digest_of(path: Path) -> FileDigest:
    """Size and SHA-256 of a regular file. Raises `Corrupt` for anything else (links and devices included)."""
    with _open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileDigest(file.tell(), digest.hexdigest())


def seal_folder(root: Path, manifest: Manifest) -> str:
    """Write `maitred.toml` with the digests of what lies in `root`, and return the version digest.

    Raises `CannotPack` naming a file that no artifact may hold.
    """
    try:
        members = [member for member, _ in _members(root) if member != FILE]
        files = {member: digest_of(root / member) for member in members}
        for member in members:
            check_member(member)
    except (Corrupt, NotAnArtifact) as error:
        raise CannotPack(error.message) from error
    head = manifest.head()
    version = version_of(head, files)
    (root / FILE).write_bytes(seal(head, version, files))
    return version


class Staging:
    """A new artifact in the making beside its final place; `publish` puts it there in one step."""

    def __init__(self, target: Path) -> None:
        self.target = Path(os.path.abspath(target))
        if self.target.exists() and not self._replaceable():
            raise CannotPack(f"{target} exists and is not an artifact; choose another place")
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.root = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def publish(self, manifest: Manifest) -> Artifact:
        """Seal the files and move them to the target; an artifact that was there is replaced."""
        seal_folder(self.root, manifest)
        self.root.chmod(0o755)
        if not self.target.exists():
            os.rename(self.root, self.target)
            return open_artifact(self.target)
        aside = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
        os.rename(self.target, aside / "old")
        try:
            os.rename(self.root, self.target)
        except OSError:
            os.rename(aside / "old", self.target)
            raise
        finally:
            shutil.rmtree(aside)
        return open_artifact(self.target)

    def _replaceable(self) -> bool:
        return self.target.is_dir() and (is_artifact(self.target) or not any(self.target.iterdir()))


def _members(root: Path) -> Iterator[tuple[str, int]]:
    """Path and size of every file below `root`. Raises `Corrupt` for links, devices, too many files or folders."""
    count = 0
    folders = [(root, "", 0)]
    while folders:
        folder, prefix, depth = folders.pop()
        if depth > MAX_DEPTH:
            raise Corrupt(f"the folder {prefix!r} lies deeper than {MAX_DEPTH} folders")
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > MAX_FILES + 1:  # the manifest is one of them
                    raise Corrupt(f"the artifact holds more than {MAX_FILES} files and folders")
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append((Path(entry.path), f"{prefix}{entry.name}/", depth + 1))
                elif stat.S_ISREG(status.st_mode):
                    yield prefix + entry.name, status.st_size
                else:
                    raise Corrupt(f"{prefix + entry.name!r} is a link or device; an artifact holds regular files only")


def _open_regular(path: Path) -> BufferedReader:
    """The open file; never follows a link, never waits on a pipe. Raises `Corrupt` for what is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Corrupt(f"{path.name!r} is a link; an artifact holds regular files only") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Corrupt(f"{path.name!r} is not a regular file")
    return os.fdopen(descriptor, "rb")
