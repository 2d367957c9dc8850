"""Packing: what is written can be loaded, and what could not be served is refused before anything is left behind."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import maitred
from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model.artifact import open_artifact
from maitred.model.asking import tensor_given
from maitred.model.loading import Source, describe, load, replay, run
from maitred.model.manifest import Limits
from maitred.model.pack import pack
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused, NotFound
from maitred.model.trial import inputs_of
from maitred.model.trust import Trust, TrustStore

TRUST = "tester: it is our own"
ROW = maitred.Signature({"x": "float64[n]"}, {"y": "float64[n]"})


class Two(maitred.Model):
    signature = maitred.Signature({"a": "float64[n]", "b": "int64[n] default=1"}, {"sum": "float64[n]"})
    fixed_batch = (1, 4)
    slots = 1

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"sum": batch["a"] + batch["b"]}


class Centred(maitred.Model):
    signature = ROW

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"] - batch["x"].mean()}


class Sorting(maitred.Model):
    signature = ROW

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": np.sort(batch["x"])}


class Dice(maitred.Model):
    signature = ROW
    rolls = itertools.count()

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"] * 0 + next(self.rolls)}


class Picky(maitred.Model):
    signature = ROW

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not batch["x"].all():
            raise ValueError("zero")
        return {"y": batch["x"]}


def plain(batch: dict[str, Any]) -> Any:
    return batch["x"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "m"


def test_everything_that_was_said_is_in_the_manifest(out: Path) -> None:
    described = pack(
        Two,
        out,
        name="two",
        example={"a": [1.5, 2.5], "b": [1, 2]},
        limits=Limits(max_batch_rows=4, deadline_seconds=1.0),
    )
    manifest = open_artifact(out).manifest
    assert (manifest.name, manifest.flavor, manifest.entry) == ("two", "python", "Two")
    assert manifest.signature == Two.signature
    assert manifest.traits == Traits(fixed_batch=(1, 4))
    assert manifest.limits == Limits(max_batch_rows=4, deadline_seconds=1.0)
    assert manifest.libraries.keys() == {"python", "numpy"}
    assert described == describe(Source(str(out)))
    loaded = load(Source(str(out), trust=TRUST))
    assert loaded.example is not None
    assert loaded.example.outputs["sum"].tolist() == [2.5, 4.5]


def test_examples_come_in_every_form(out: Path) -> None:
    for example in (
        {"a": [1, 2]},
        {"a": np.array([1.0, 2.0])},
        pandas.DataFrame({"a": [1.0, 2.0], "b": [3, 4], "z": 0}),
    ):
        pack(Two, out, example=example)
        assert load(Source(str(out), trust=TRUST)).example is not None
    with pytest.raises(CannotPack, match="mapping or data frame of a, b"):
        pack(Two, out, example=[1, 2])
    with pytest.raises(CannotPack, match=r"'a'"):
        pack(Two, out, example={"a": ["one"]})
    with pytest.raises(CannotPack, match="unknown input 'c': this model takes 'a', 'b'"):
        pack(Two, out, example={"a": [1.0], "c": [1]})


def test_without_an_example_a_made_up_row_is_recorded(out: Path) -> None:
    described = pack(Two, out)
    assert not described.example_is_real
    replay(load(Source(str(out), trust=TRUST)))
    assert not pack(Picky, out).example_is_real
    assert load(Source(str(out), trust=TRUST)).example is None


@pytest.mark.parametrize("model", [Centred, Sorting])
def test_rows_that_influence_each_other_are_found(model: Any, out: Path) -> None:
    with pytest.raises(CannotPack, match=r"rows influence each other.*output 'y'"):
        pack(model, out, example={"x": [3.0, 1.0, 2.0]})
    assert os.listdir(out.parent) == []


def test_answers_that_change_are_found_and_may_be_declared(out: Path) -> None:
    with pytest.raises(CannotPack, match="repeatable=False"):
        pack(Dice, out, example={"x": [1.0]})
    pack(Dice, out, example={"x": [1.0]}, repeatable=False)
    loaded = load(Source(str(out), trust=TRUST))
    assert loaded.example is not None
    assert loaded.example.outputs == {}
    replay(loaded)


def test_a_model_that_fails_on_its_example_is_refused(out: Path) -> None:
    with pytest.raises(CannotPack, match="ValueError: zero"):
        pack(Picky, out, example={"x": [1.0, 0.0]})


def test_the_answers_are_compared_with_the_originals(out: Path) -> None:
    pack(Two, out, example={"a": [1.0, 2.0]}, expected={"sum": [2.0, 3.0]})
    with pytest.raises(CannotPack, match=r"expected answers.*1 of 2 differ.*worst at \[1\]: expected 3\.5, got 3\.0"):
        pack(Two, out, example={"a": [1.0, 2.0]}, expected={"sum": [2.0, 3.5]})


def test_a_function_gets_its_signature_and_traits_while_packing(out: Path) -> None:
    with pytest.raises(LoadRefused, match="signature"):
        pack(plain, out)
    pack(plain, out, signature=ROW, traits=Traits(side_effects=True), example=[1.0, 2.0])
    loaded = load(Source(str(out), trust=TRUST))
    assert loaded.description.traits == Traits(side_effects=True)
    assert run(loaded.predictor, {"x": np.array([5.0])})["y"].tolist() == [5.0]


def test_what_has_no_file_of_its_own_is_refused(out: Path) -> None:
    class Inside(maitred.Model):
        signature = ROW

        def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"y": batch["x"]}

    with pytest.raises(CannotPack, match="top of a file"):
        pack(Inside, out)
    with pytest.raises(CannotPack, match="top of a file"):
        pack(lambda batch: batch, out, signature=ROW)
    with pytest.raises(NotFound, match="no flavor can pack"):
        pack(object(), out)


def test_further_files_lie_beside_the_models_own(out: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "__pycache__").mkdir(parents=True)
    (tmp_path / "data" / "words.txt").write_text("a b c")
    (tmp_path / "data" / "__pycache__" / "x.pyc").touch()
    pack(Two, out, files=[tmp_path / "data"])
    assert open_artifact(out).files.keys() == {"code/test_pack.py", "data/words.txt", "example.json"}
    for wrong in (tmp_path / "nothing", tmp_path / "maitred.toml"):
        with pytest.raises(CannotPack):
            pack(Two, out, files=[wrong])
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    with pytest.raises(CannotPack, match="link"):
        pack(Two, out, files=[tmp_path / "data"])


def test_trust_given_while_packing_is_recorded_here(out: Path, home: Path) -> None:
    pack(Two, out, trust=TRUST)
    assert load(Source(str(out))).description.trust == TRUST
    recorded = TrustStore().find(open_artifact(out).version)
    assert recorded is not None
    assert not any("trust" in path.name or b"trust" in path.read_bytes() for path in out.glob("*.*"))
    pack(Two, out, trust=Trust("ann", "read it"), example={"a": [1.0]})
    assert load(Source(str(out))).description.trust == "ann: read it"


def test_packing_a_file_by_its_path(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("def predict(batch): return batch['x']\nfrom maitred import Signature\n"
                    "signature = Signature({'x': 'bool[n]'}, {'y': 'bool[n]'})\n")  # fmt: skip
    assert pack(path, out).name == "one"
    assert pack(f"{path}:predict", out).name == "predict"
    with pytest.raises(CannotPack, match="installed module"):
        pack("json:JSONDecoder", out)


def test_a_script_that_packs_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import maitred, sys\n"
        "class M(maitred.Model):\n"
        "    signature = maitred.Signature({'x': 'int8[n]'}, {'y': 'int8[n]'})\n"
        "    def predict(self, batch): return batch['x']\n"
        "maitred.pack(M, sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "o")], capture_output=True, text=True, timeout=60, check=False
    )
    assert "CannotPack" in done.stderr
    assert '__name__ == "__main__"' in done.stderr
    assert not (tmp_path / "o").exists()


def test_an_example_that_is_too_large_says_so(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "MAX_BYTES", 2000)
    with pytest.raises(CannotPack, match="fewer rows"):
        pack(Two, out, example={"a": np.full(400, 1 / 3)})


LINES = np.array([[0.25, 1, 2], [3, 4, 5], [6, 7, 8.5]])


def matrix_models() -> dict[str, Any]:
    """Models of three columns without names."""
    linear = pytest.importorskip("sklearn.linear_model", reason="the extra sklearn")
    xgboost = pytest.importorskip("xgboost", reason="the extra xgboost")
    return {
        "sklearn": linear.LinearRegression().fit(LINES, [0.0, 1.0, 2.0]),
        "xgboost": xgboost.XGBRegressor(n_estimators=2).fit(LINES, [0.0, 1.0, 2.0]),
    }


@pytest.mark.parametrize("name", ["sklearn", "xgboost"])
def test_an_example_of_another_width_is_told_in_columns(name: str, tmp_path: Path) -> None:
    model = matrix_models()[name]
    for example in (LINES[:, :2], LINES[:, :2].tolist(), {"x": LINES[:2, :2]}):
        with pytest.raises(CannotLoad, match=r"^the example has 2 columns, the model takes 3$"):
            pack(model, tmp_path / "m", example=example)
    with pytest.raises(CannotLoad, match=r"the example has the shape \[3\], the model takes 3 columns"):
        pack(model, tmp_path / "m", example=LINES[0])


@pytest.mark.parametrize("name", ["sklearn", "xgboost"])
def test_whole_numbers_are_an_example_of_a_float_matrix(name: str, tmp_path: Path) -> None:
    whole = np.arange(6).reshape(2, 3)
    frame = pandas.DataFrame({"a": [0, 3], "b": [1.0, 4.0], "c": np.array([2, 5], np.int32)})
    for example in (whole, whole.astype(np.int32), frame):
        out = tmp_path / f"m{id(example)}"
        pack(matrix_models()[name], out, example=example)
        kept = load(Source(str(out))).example
        assert kept is not None
        assert kept.inputs["x"].tolist() == whole.tolist() and kept.inputs["x"].dtype == np.float64


def test_an_examples_floats_are_rounded_to_the_inputs_and_a_callers_are_not() -> None:
    signature = maitred.Signature({"x": "float32[n, 2]", "k": "int64[n]"}, {"y": "float32[n]"})
    fine = np.array([[0.1, 0.2]])
    found = inputs_of(signature, {"x": fine, "k": np.array([1])})
    assert found["x"].dtype == np.float32 and np.array_equal(found["x"], fine.astype(np.float32))
    with pytest.raises(Malformed, match="expected FP32, got FP64"):
        tensor_given(signature.inputs["x"], fine)
    with pytest.raises(CannotPack, match="input 'k': expected INT64, got FP64"):
        inputs_of(signature, {"x": fine, "k": np.array([1.0])})
    with pytest.raises(CannotPack, match=r"input 'x'.*does not fit FP32"):
        inputs_of(signature, {"x": fine * 1e300, "k": np.array([1])})


@pytest.mark.parametrize(
    ("limits", "said"),
    [(Limits(max_batch_rows=0), "max_batch_rows"), (Limits(deadline_seconds=float("nan")), "deadline_seconds")],
)
def test_limits_that_no_manifest_may_hold_are_refused(limits: Limits, said: str, out: Path) -> None:
    with pytest.raises(CannotPack, match=said):
        pack(Two, out, limits=limits)
    assert os.listdir(out.parent) == []
