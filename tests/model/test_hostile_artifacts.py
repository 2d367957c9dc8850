"""Files and artifacts that mean harm, over every flavor there is: nothing of them runs before somebody trusts them."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytest

from maitred.model.artifact import open_artifact, seal_folder
from maitred.model.flavors import FLAVORS, Opening, named
from maitred.model.inspect import inspect
from maitred.model.loading import Source, describe, load
from maitred.model.manifest import FILE, Manifest
from maitred.model.pack import pack
from maitred.model.pickles import imports
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad, Corrupt, LoadRefused, NotAnArtifact, Untrusted
from maitred.model.signature import Signature

TRUST = "tester: on purpose"
SUFFIXES = [(name, suffix) for name in FLAVORS.names() for suffix in named(name).suffixes]
CODE = {".py"}
"""What the operator names is the operator's own word; inside an artifact it is not."""
SIGNATURE = Signature({"x": "float32[n, 2]"}, {"y": "float32[n]"})


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    return tmp_path / "pwned"


def plain(marker: Path) -> bytes:
    return pickle.dumps(Payload(marker))


def compressed(marker: Path) -> bytes:
    buffer = io.BytesIO()
    joblib.dump([Payload(marker), np.zeros(3)], buffer, compress=("zlib", 3))
    return buffer.getvalue()


def zipped(marker: Path) -> bytes:
    """As PyTorch, numpy and others zip their pickles, under every name that a reader could look for."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("m/data.pkl", "m/version", "m/constants.pkl", "m/schema.json", "m/archive_format"):
            archive.writestr(name, pickle.dumps(Payload(marker), 2))
    return buffer.getvalue()


def code(marker: Path) -> bytes:
    return f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n".encode()


def array(marker: Path) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(marker)], object), allow_pickle=True)
    return buffer.getvalue()


def _hidden(marker: Path) -> bytes:
    """A pickle that pickletools cannot read, and whose import has no look of its own: its names come from the memo."""
    names = b"".join(b"X" + len(text).to_bytes(4, "little") + text + b"q" + bytes([at]) + b"0"
                     for at, text in enumerate((b"posix", b"system")))  # fmt: skip
    command = f"touch {marker}".encode()
    return b"I0x10\n0" + names + b"h\x00h\x01\x93X" + len(command).to_bytes(4, "little") + command + b"\x85R."


def hidden(marker: Path) -> bytes:
    return b"\x80\x04" + _hidden(marker)


def disguised(marker: Path) -> bytes:
    """Besides, it imports what weights import."""
    return b"\x80\x04ccollections\nOrderedDict\n0" + _hidden(marker)


FORMS: dict[str, Callable[[Path], bytes]] = {
    "pickle": plain, "joblib": compressed, "zip": zipped, "code": code, "npy": array,
    "hidden": hidden, "disguised": disguised,
}  # fmt: skip


def look_at(source: Source) -> None:
    """Everything that shows a model to somebody."""
    for look in (describe, inspect):
        try:
            look(source)
        except LoadRefused:
            continue


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("flavor", "suffix"), SUFFIXES)
def test_a_payload_in_a_file_does_not_run(flavor: str, suffix: str, form: str, marker: Path, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(FORMS[form](marker))
    look_at(Source(str(path)))
    if suffix in CODE:
        assert not marker.exists()
        return
    for source in (Source(str(path)), Source(str(path), options={"class": "json:loads"})):
        with pytest.raises(LoadRefused):
            load(source)
    with pytest.raises(LoadRefused):
        load(Source(str(path), trust=TRUST), isolated=False)
    with pytest.raises(LoadRefused):
        pack(path, tmp_path / "packed")
    assert not marker.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("flavor", "suffix"), [pair for pair in SUFFIXES if pair[1] not in CODE])
def test_a_payload_in_a_reference_does_not_run(
    flavor: str, suffix: str, form: str, marker: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(FORMS[form](marker))
    (tmp_path / "sums.py").write_text(
        "from maitred import Signature\nsignature = Signature({'x': 'float32[n, 2]'}, {'y': 'float32[n]'})\n"
        "def predict(batch): return batch['x'].sum(axis=1)\n"
    )
    with pytest.raises(LoadRefused):
        pack(tmp_path / "sums.py", tmp_path / "packed", example={"x": [[1.0, 2.0]]}, reference=path)
    assert not marker.exists()
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize("form", ["hidden", "disguised"])
def test_the_hidden_payloads_do_run_where_they_are_unpickled(form: str, marker: Path) -> None:
    pickle.loads(FORMS[form](marker))
    assert marker.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("flavor", "suffix"), SUFFIXES)
def test_a_payload_in_an_artifact_does_not_run(
    flavor: str, suffix: str, form: str, marker: Path, tmp_path: Path
) -> None:
    folder = sealed(tmp_path / "artifact", flavor, {f"model{suffix}": FORMS[form](marker)}, f"model{suffix}")
    look_at(Source(str(folder)))
    with pytest.raises(LoadRefused):
        load(Source(str(folder)))
    with pytest.raises(LoadRefused):
        load(Source(str(folder), trust=TRUST), isolated=False)
    assert not marker.exists()


@pytest.mark.parametrize("flavor", FLAVORS.names())
def test_options_of_an_artifact_name_no_code_of_ours(flavor: str, marker: Path, tmp_path: Path) -> None:
    """Options come with the artifact: classes, weights and arguments in them are its author's word."""
    suffix = named(flavor).suffixes[0] if named(flavor).suffixes else ".bin"
    options = {"class": "pathlib:Path.touch", "arguments": {"self": str(marker)}, "weights": "../../etc/passwd"}
    for content in (b"", plain(marker), zipped(marker)):
        folder = sealed(tmp_path / "artifact", flavor, {f"model{suffix}": content}, f"model{suffix}", options)
        look_at(Source(str(folder)))
        with pytest.raises(LoadRefused):
            load(Source(str(folder)))
    assert not marker.exists()


@pytest.mark.parametrize("flavor", [name for name in FLAVORS.names() if named(name).markers])
def test_a_payload_in_a_librarys_folder_does_not_run(flavor: str, marker: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in named(flavor).markers:
        (folder / name).write_text('{"model_type": "bert", "auto_map": {"AutoModel": "evil.Evil"}}')
    (folder / "evil.py").write_bytes(code(marker))
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl", "training_args.bin"):
        (folder / name).write_bytes(zipped(marker))
    look_at(Source(str(folder)))
    with pytest.raises(LoadRefused):
        load(Source(str(folder)))
    with pytest.raises(LoadRefused):
        load(Source(str(folder), trust=TRUST), isolated=False)
    assert not marker.exists()


def sealed(
    folder: Path, flavor: str, files: dict[str, bytes], file: str, options: dict[str, Any] | None = None
) -> Path:
    """An artifact whose digests are right, as its hostile author would make it."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / FILE).unlink(missing_ok=True)
    seal_folder(
        folder,
        Manifest(
            name="evil", flavor=flavor, file=file, signature=SIGNATURE, traits=Traits(), options=options or {}
        ),
    )  # fmt: skip
    return folder


# --- payloads of real libraries -------------------------------------------------------------------------------------


def estimator(marker: Path) -> Any:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    model.classes_ = Payload(marker)
    return model


def lightgbm_wrapper(marker: Path) -> Any:
    from lightgbm import LGBMRegressor

    model = LGBMRegressor(n_estimators=1, verbose=-1)
    model.payload_ = Payload(marker)
    return model


def by_value(marker: Path) -> bytes:
    return bytes(cloudpickle.dumps(lambda: marker.touch()))


def test_what_a_pickle_of_a_library_would_import_is_listed(marker: Path, tmp_path: Path) -> None:
    joblib.dump(estimator(marker), tmp_path / "m.joblib", compress=3)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(lightgbm_wrapper(marker)))
    for file, name in (("m.joblib", "sklearn.linear_model"), ("m.pkl", "lightgbm.sklearn")):
        listed = imports(tmp_path / file)
        assert listed[0].startswith("pathlib")
        assert any(found.startswith(name) for found in listed)
        with pytest.raises(Untrusted, match=r"imports pathlib.*--trust"):
            load(Source(str(tmp_path / file)))
        with pytest.raises(Untrusted, match="process"):
            load(Source(str(tmp_path / file), trust=TRUST), isolated=False)
    assert not marker.exists()


def test_a_pickle_of_code_itself_is_listed(marker: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pkl"
    path.write_bytes(by_value(marker))
    assert any("cloudpickle" in name or "CodeType" in name or "_builtin_type" in name for name in imports(path))
    with pytest.raises(Untrusted):
        load(Source(str(path)))
    assert not marker.exists()


_CHILD = """
import sys
from maitred.model.loading import Source, load
from maitred.model.refusals import LoadRefused
try:
    load(Source(sys.argv[1], trust="tester: on purpose"))
except LoadRefused as error:
    print(error.message)
"""


def test_a_trusted_pickle_runs_in_a_process_of_its_own(marker: Path, tmp_path: Path) -> None:
    """So the payloads of this file are real: what keeps them from running is that nobody trusts them."""
    path = tmp_path / "m.pkl"
    path.write_bytes(plain(marker))
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "can neither predict" in done.stdout or "NoneType" in done.stdout
    assert marker.exists()


# --- links, escapes, bombs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flavor", "suffix"), SUFFIXES)
def test_links_and_foreign_files_are_refused(flavor: str, suffix: str, marker: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    folder = sealed(tmp_path / "artifact", flavor, {f"model{suffix}": b"secret"}, f"model{suffix}")
    (folder / f"model{suffix}").unlink()
    (folder / f"model{suffix}").symlink_to(tmp_path / "outside")
    with pytest.raises(Corrupt, match="link"):
        load(Source(str(folder), trust=TRUST))
    (folder / f"model{suffix}").unlink()
    os.mkfifo(folder / f"model{suffix}")
    with pytest.raises(Corrupt, match="link or device"):
        load(Source(str(folder), trust=TRUST))


@pytest.mark.parametrize("place", ["../outside", "/etc/passwd", "a/../../outside", "..\\outside", "C:\\x"])
@pytest.mark.parametrize("flavor", FLAVORS.names())
def test_a_manifest_that_points_outside_is_refused(flavor: str, place: str, marker: Path, tmp_path: Path) -> None:
    folder = sealed(tmp_path / "artifact", flavor, {"model.bin": b""}, place)
    with pytest.raises(NotAnArtifact, match="may not hold a file named"):
        open_artifact(folder)
    with pytest.raises(NotAnArtifact):
        load(Source(str(folder), trust=TRUST))


@pytest.mark.parametrize(("flavor", "suffix"), [pair for pair in SUFFIXES if pair[0] in {"sklearn", "torch"}])
def test_a_bomb_is_refused_before_its_library_opens_it(flavor: str, suffix: str, marker: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("m/data.pkl", "m/archive_format", "m/schema.json"):
            archive.writestr(name, b"N" * (24 << 20))
    path = tmp_path / f"model{suffix}"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(LoadRefused):
        load(Source(str(path)))


def test_a_scan_of_a_bomb_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(40):
            archive.writestr(f"{number}.pkl", b"N" * (4 << 20))
    assert "not read" in imports(path)[-1]


def test_a_danger_that_cannot_be_judged_is_a_refusal(marker: Path, tmp_path: Path) -> None:
    """`dangers` runs nothing and answers for every file of every flavor."""
    for flavor, suffix in SUFFIXES:
        for content in (b"", b"\x00" * 100, os.urandom(200)):
            (tmp_path / f"model{suffix}").write_bytes(content)
            opening = Opening(root=tmp_path, file=f"model{suffix}", packed=True)
            try:
                named(flavor).dangers(opening)
            except LoadRefused as error:
                assert str(tmp_path) not in error.message
    assert issubclass(CannotLoad, LoadRefused)
