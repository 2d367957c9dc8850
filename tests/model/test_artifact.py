"""Artifacts: what is written is what is opened, and everything else is refused by name."""

from __future__ import annotations

import hashlib
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import maitred
from maitred.model import artifact as artifacts
from maitred.model.artifact import Staging, open_artifact, verify, version_of
from maitred.model.manifest import FILE, FileDigest, Limits, Manifest, check_member, read, seal
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotPack, Corrupt, LoadRefused, NotAnArtifact, NotFound

MANIFEST = Manifest(
    name="churn",
    flavor="python",
    file="code/churn.py",
    entry="Churn",
    signature=maitred.Signature(
        {"age": "int64[n] min=0", "country": 'str[n] default="é\\"x"', "history": "float32[n, 12] nullable"},
        {"score": "float32[n] rtol=0.001", "kind": 'float64[n, 2] labels=["no", "yes"]'},
    ),
    traits=Traits(fixed_batch=(1, 8), slots=2, side_effects=True, max_batch_rows=8),
    limits=Limits(max_batch_rows=8, deadline_seconds=0.5),
    options={"threads": 2, "names": ["a", "b"], "nested": {"x": 1.5}},
    libraries={"python": "3.11.7", "numpy": "2.1.0"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Staging(tmp_path / "churn") as staging:
        (staging.root / "code").mkdir()
        (staging.root / "code" / "churn.py").write_text("print('never')\n")
        (staging.root / "weights.bin").write_bytes(bytes(range(256)))
        staging.publish(MANIFEST)
    return tmp_path / "churn"


def test_what_was_packed_is_what_is_opened(folder: Path) -> None:
    opened = open_artifact(folder)
    assert opened.manifest == MANIFEST
    assert opened.files.keys() == {"code/churn.py", "weights.bin"}
    assert opened.files["weights.bin"] == FileDigest(256, hashlib.sha256(bytes(range(256))).hexdigest())
    verify(opened)


def test_the_version_is_the_digest_of_paths_sizes_and_digests(folder: Path) -> None:
    opened = open_artifact(folder)
    head = (folder / FILE).read_bytes().partition(b"\n[digests]\n")[0]
    counted = {**opened.files, FILE: FileDigest(len(head), hashlib.sha256(head).hexdigest())}
    lines = "".join(f"{path}\0{size}\0{sha256}\n" for path, (size, sha256) in sorted(counted.items()))
    assert opened.version == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def test_the_same_content_has_the_same_version_anywhere(folder: Path, tmp_path: Path) -> None:
    with Staging(tmp_path / "elsewhere") as staging:
        (staging.root / "weights.bin").write_bytes(bytes(range(256)))
        (staging.root / "code").mkdir()
        (staging.root / "code" / "churn.py").write_text("print('never')\n")
        other = staging.publish(MANIFEST)
    assert other.version == open_artifact(folder).version


def test_every_byte_counts(folder: Path) -> None:
    """One flipped bit anywhere, the manifest's digest table included: refused."""
    for path in (folder / FILE, folder / "weights.bin"):
        good = path.read_bytes()
        for place in range(len(good)):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(LoadRefused):
                verify(open_artifact(folder))
        path.write_bytes(good)
    verify(open_artifact(folder))


def test_refusals_name_the_file(folder: Path) -> None:
    weights = folder / "weights.bin"
    weights.write_bytes(bytes(255))
    with pytest.raises(Corrupt, match=r"'weights.bin' has 255 bytes, not the 256"):
        verify(open_artifact(folder))
    weights.unlink()
    with pytest.raises(Corrupt, match=r"'weights.bin' is missing"):
        verify(open_artifact(folder))
    weights.write_bytes(bytes(256))
    with pytest.raises(Corrupt, match=r"'weights.bin' is not as it was packed"):
        verify(open_artifact(folder))
    weights.write_bytes(bytes(range(256)))
    (folder / "code" / "extra.py").touch()
    with pytest.raises(Corrupt, match=r"'code/extra.py' is not in the digest table"):
        verify(open_artifact(folder))


def test_links_and_devices_are_refused(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(range(256)))
    weights = folder / "weights.bin"
    weights.unlink()
    weights.symlink_to(outside)
    with pytest.raises(Corrupt, match=r"'weights.bin' is a link"):
        verify(open_artifact(folder))
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(Corrupt, match=r"'weights.bin' is a link or device"):
        verify(open_artifact(folder))


def test_a_linked_folder_or_manifest_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "code").rename(tmp_path / "code")
    (folder / "code").symlink_to(tmp_path / "code")
    with pytest.raises(Corrupt, match="'code' is a link"):
        verify(open_artifact(folder))
    (folder / FILE).rename(tmp_path / "manifest")
    (folder / FILE).symlink_to(tmp_path / "manifest")
    with pytest.raises(Corrupt, match="is a link"):
        open_artifact(folder)


def test_a_link_to_the_whole_artifact_is_the_operators(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(folder)
    verify(open_artifact(tmp_path / "current"))


def test_too_many_files_and_folders_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 4)
    verify(open_artifact(folder))
    (folder / "one").touch()
    (folder / "two").touch()
    with pytest.raises(Corrupt, match="more than 4 files"):
        verify(open_artifact(folder))


def test_deep_folders_are_refused(folder: Path) -> None:
    (folder / "/".join("d" * 40)).mkdir(parents=True)
    with pytest.raises(Corrupt, match="deeper than 32"):
        verify(open_artifact(folder))


def test_no_artifact_is_told_from_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_artifact(tmp_path / "nothing")
    with pytest.raises(NotAnArtifact, match="maitred pack"):
        open_artifact(tmp_path)
    (tmp_path / FILE).write_text("name = 'half copied'\n")
    with pytest.raises(NotAnArtifact, match="digest table"):
        open_artifact(tmp_path)


# --- members -----------------------------------------------------------------------------------------------------

OUTSIDE = [
    "", ".", "..", "/", "/etc/passwd", "../x", "a/../x", "a/..", "./a", "a//b", "a/", "~/../x/..", "a\\..\\b",
    "\\\\host\\x",
    "C:/x", "c:x", "a:stream", "a\0b", "a\nb", "a\x7f", "\x1b[0m", "a/./b", "//host/x", "x" * 1025, "..\x00/a", "/..",
    "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_members_that_point_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(NotAnArtifact):
        check_member(path)


@given(st.lists(st.sampled_from(["..", ".", "a", "b c", "%2e%2e", "é", "", "\\", "..%2f", "CON"]), max_size=5))
def test_a_member_never_leaves_the_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        check_member(path)
    except NotAnArtifact:
        return
    root = Path("/root/of/artifact")
    assert Path(os.path.normpath(root / path)).is_relative_to(root)
    assert os.path.normpath(root / path) == f"{root}/{path}"


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a\\b", "a/../../b"])
def test_a_digest_table_cannot_point_elsewhere(path: str) -> None:
    head = MANIFEST.head()
    files = {path: FileDigest(1, "0" * 64)}
    with pytest.raises(NotAnArtifact):
        read(seal(head, version_of(head, files), files))


def test_the_models_file_must_be_in_the_table(tmp_path: Path) -> None:
    with Staging(tmp_path / "churn") as staging:
        (staging.root / "other.py").touch()
        opened = staging.publish(MANIFEST)
    with pytest.raises(Corrupt, match=r"no file named 'code/churn.py'"):
        opened.path(opened.manifest.file)


# --- the manifest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "format is 2"),
        ('name = "churn"', 'name = "../churn"', "not valid"),
        ('name = "churn"', "name = 3", "name: .*not valid"),
        ('flavor = "python"', "", "'flavor' is missing"),
        ('file = "code/churn.py"', 'file = "/etc/passwd"', "may not hold"),
        ("format = 1", "format = 1\nextra = 1", "unknown key 'extra'"),
        ("int64[n] min=0", "int65[n]", "unknown dtype 'int65'"),
        ("slots = 2", 'slots = "two"', "slots"),
        ("max_batch_rows = 8\ndeadline", "max_rows = 8\ndeadline", "max_rows"),
        ('python = "3.11.7"', "python = 3", "libraries"),
        ("[options]", "[options", "not valid TOML"),
    ],
)
def test_a_bad_manifest_is_refused_by_its_key(old: str, new: str, said: str) -> None:
    head = MANIFEST.head()
    assert old.encode() in head
    bad = head.replace(old.encode(), new.encode())
    with pytest.raises(NotAnArtifact, match=said):
        read(seal(bad, version_of(bad, {}), {}))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_refusal_and_nothing_else(text: bytes) -> None:
    for whole in (text, b"format = 1\n\n[digests]\n" + text, MANIFEST.head() + b"\n[digests]\n" + text):
        with pytest.raises(NotAnArtifact):
            read(whole)


def test_reading_a_huge_manifest_stops(folder: Path) -> None:
    with open(folder / FILE, "ab") as manifest:
        manifest.truncate(8 << 20)
    with pytest.raises(NotAnArtifact, match="larger than"):
        open_artifact(folder)


# --- publishing --------------------------------------------------------------------------------------------------


def test_an_older_artifact_is_replaced_and_nothing_is_left_behind(folder: Path) -> None:
    with Staging(folder) as staging:
        (staging.root / "code").mkdir()
        (staging.root / "code" / "churn.py").write_text("new\n")
        staging.publish(MANIFEST)
    verify(open_artifact(folder))
    assert not (folder / "weights.bin").exists()
    assert os.listdir(folder.parent) == ["churn"]


def test_a_folder_that_is_no_artifact_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").touch()
    with pytest.raises(CannotPack, match="not an artifact"):
        Staging(tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_a_failure_leaves_the_older_artifact_and_no_rest(folder: Path) -> None:
    before = open_artifact(folder).version

    def fail() -> None:
        with Staging(folder) as staging:
            (staging.root / "link").symlink_to("/etc/passwd")
            staging.publish(MANIFEST)

    with pytest.raises(CannotPack, match="link"):
        fail()
    assert open_artifact(folder).version == before
    assert os.listdir(folder.parent) == ["churn"]


@pytest.mark.parametrize(
    ("key", "table", "said"),
    [
        ("traits", {"slots": -5}, "slots must be a whole number >= 1"),
        ("traits", {"slots": True}, "slots|int"),
        ("traits", {"max_batch_rows": 0}, "max_batch_rows must be a whole number >= 1"),
        ("traits", {"fixed_batch": [0, -1]}, "fixed_batch must be a list of row counts"),
        ("traits", {"fixed_batch": []}, "fixed_batch must be a list of row counts"),
        ("limits", {"max_batch_rows": -1}, "max_batch_rows must be a whole number >= 1"),
        ("limits", {"deadline_seconds": float("nan")}, "deadline_seconds must be a finite number"),
        ("limits", {"deadline_seconds": float("inf")}, "deadline_seconds must be a finite number"),
        ("limits", {"deadline_seconds": -1.0}, "deadline_seconds must be a finite number"),
    ],
)
def test_traits_and_limits_that_no_model_can_have_are_refused(key: str, table: dict[str, Any], said: str) -> None:
    head = tomllib.loads(MANIFEST.head().decode()) | {key: table}
    with pytest.raises(NotAnArtifact, match=rf"{key}: .*({said})"):
        read(seal(tomli_w.dumps(head).encode(), "sha256:" + "0" * 64, {}))


def test_fixed_batch_needs_rows_in_a_manifest_too() -> None:
    head = tomllib.loads(MANIFEST.head().decode())
    head["signature"] = {"inputs": {"x": "float32[4]"}, "outputs": {"y": "float32[4]"}}
    with pytest.raises(NotAnArtifact, match="traits: fixed_batch needs a row-wise signature"):
        read(seal(tomli_w.dumps(head).encode(), "sha256:" + "0" * 64, {}))
