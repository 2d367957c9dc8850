"""From a source to a model: every form of a path, every refusal, the replay and the warm-up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import maitred
from maitred.errors import Malformed
from maitred.model import example as examples
from maitred.model.artifact import open_artifact, seal_folder
from maitred.model.description import Description
from maitred.model.example import Example
from maitred.model.flavors import Opening
from maitred.model.loading import (
    Loaded,
    Source,
    describe,
    load,
    opened,
    replay,
    run,
    warm,
    warmup_batches,
)
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, Corrupt, ExampleDiffers, NotAnArtifact, NotFound, Untrusted
from maitred.model.refusals import WrongVersions as Wrong
from maitred.model.trust import Trust, TrustStore

TRUST = "tester: it is our own"

CODE = """
import maitred, pathlib
pathlib.Path({marker!r}).touch()

class Add(maitred.Model):
    signature = maitred.Signature({{"x": "float64[n]"}}, {{"y": "float64[n]"}})

    def load(self, path, device):
        self.path, self.device = pathlib.Path(path), device
        weights = self.path / "weights.txt"
        self.add = float(weights.read_text()) if weights.exists() else 1.0

    def predict(self, batch):
        return {{"y": batch["x"] + self.add}}

class Quiet(Add):
    async def predict(self, batch, context):
        return {{"y": batch["x"] * 0}}

def twice(batch):
    return batch["x"] * 2

twice.signature = maitred.Signature({{"x": "int32[n]"}}, {{"y": "int32[n]"}})
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def code(tmp_path: Path, marker: Path) -> Path:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "models.py"
    path.write_text(CODE.format(marker=str(marker)))
    return path


@pytest.fixture
def packed(code: Path, tmp_path: Path, marker: Path) -> Path:
    pack(f"{code}:Add", tmp_path / "packed", example={"x": [1.0, 2.0, 4.0]})
    marker.unlink()
    return tmp_path / "packed"


# --- sources -----------------------------------------------------------------------------------------------------


def test_a_class_of_a_file_needs_no_trust(code: Path) -> None:
    loaded = load(Source(f"{code}:Add"), "cpu:0", isolated=False)
    assert loaded.description.name == "add"
    assert loaded.predictor.model.device == "cpu:0"  # type: ignore[attr-defined]
    assert loaded.predictor.model.path == code.parent  # type: ignore[attr-defined]
    assert run(loaded.predictor, {"x": np.array([1.0])})["y"].tolist() == [2.0]


def test_asynchronous_models_are_known_as_such(code: Path) -> None:
    loaded = load(Source(f"{code}:Quiet"))
    assert loaded.predictor.traits.asynchronous
    assert run(loaded.predictor, {"x": np.array([1.0])})["y"].tolist() == [0.0]


def test_a_function_of_a_file(code: Path) -> None:
    loaded = load(Source(f"{code}:twice"))
    assert run(loaded.predictor, {"x": np.array([3], np.int32)})["y"].tolist() == [6]


def test_a_file_with_several_models_asks_which(code: Path) -> None:
    with pytest.raises(NotFound, match=r"3 models; name one of Add, Quiet, twice, as in file.py:Add"):
        load(Source(str(code)))
    with pytest.raises(NotFound, match="no 'Nothing'"):
        load(Source(f"{code}:Nothing"))


def test_a_file_with_one_model_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "my model.py"
    path.write_text(
        "from maitred import Signature\n"
        "signature = Signature({'x': 'int8[n]'}, {'y': 'int8[n]'})\n"
        "def predict(batch): return batch['x']\n"
    )
    loaded = load(Source(str(path)))
    assert loaded.description.name == "my-model"
    assert describe(Source(str(path))) is None


def test_siblings_are_imported_and_leave_no_byte_code(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("FACTOR = 3\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "offset.py").write_text("OFFSET = 1\n")
    (tmp_path / "main_part.py").write_text(
        "import maitred\nfrom beside_it import FACTOR\nfrom parts.offset import OFFSET\n"
        "def predict(batch): return batch['x'] * FACTOR + OFFSET\n"
        "signature = maitred.Signature({'x': 'int64[n]'}, {'y': 'int64[n]'})\n"
    )
    before, finders = set(sys.modules), list(sys.meta_path)
    try:
        loaded = load(Source(str(tmp_path / "main_part.py")))
        assert run(loaded.predictor, {"x": np.array([2])})["y"].tolist() == [7]
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
        sys.meta_path[:] = finders
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_class_of_an_installed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Path) -> None:
    monkeypatch.syspath_prepend(str(code.parent))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    loaded = load(Source("models:Add", name="sum"), isolated=False)
    assert (loaded.description.name, loaded.description.digest) == ("sum", "")
    monkeypatch.delitem(sys.modules, "models", raising=False)


@pytest.mark.parametrize(
    "path",
    ["nothing.onnx", "nothing.py:Model", "no_such_module:Model", "no.such.module:Model", "nowhere/", "", ":x", "a b"],
)
def test_what_is_not_there_is_not_found(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NotFound, NotAnArtifact)):
        load(Source(path))


def test_an_unknown_ending_names_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "model.xyz").touch()
    with pytest.raises(NotFound, match=r"model\.xyz.*\.onnx"):
        load(Source(str(tmp_path / "model.xyz")))


def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(NotAnArtifact, match="maitred pack"):
        describe(Source(str(tmp_path)))


@pytest.mark.parametrize("name", ["..", "a/b", "a b", "é", "x" * 200, "-x"])
def test_names_are_checked_at_the_door(name: str, packed: Path) -> None:
    with pytest.raises(Malformed, match="not valid"):
        describe(Source(str(packed), name=name))


def test_code_that_fails_says_how(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("raise RuntimeError('no licence')\n")
    with pytest.raises(CannotLoad, match="RuntimeError: no licence"):
        load(Source(str(path)))
    path.write_text("import maitred\nclass M(maitred.Model): pass\n")
    with pytest.raises(CannotLoad, match="signature"):
        load(Source(str(path)))
    path.write_text("def predict(batch): return batch\n")
    with pytest.raises(NotFound, match="0 models"):
        load(Source(str(path)))
    with pytest.raises(CannotLoad, match=r"predict\.signature"):
        load(Source(f"{path}:predict"))


# --- trust -------------------------------------------------------------------------------------------------------


def test_packed_code_runs_with_trust_only(packed: Path, marker: Path) -> None:
    for attempt in (Source(str(packed)), Source(str(packed), trust=False)):
        assert describe(attempt) is not None
        with pytest.raises(Untrusted, match=r"the Python code in code/models\.py"):
            load(attempt)
    with pytest.raises(Untrusted, match="process"):
        load(Source(str(packed), trust=TRUST), isolated=False)
    assert not marker.exists()
    loaded = load(Source(str(packed), trust=Trust("tester", "it is our own")))
    assert marker.exists()
    assert loaded.description.trust == TRUST


def test_recorded_trust_holds_for_these_files_only(packed: Path) -> None:
    TrustStore().record(open_artifact(packed).version, Trust.stated(TRUST))
    assert load(Source(str(packed))).description.trust == TRUST
    with open(packed / "code" / "models.py", "a") as code:
        code.write("# changed\n")
    seal_folder(packed, open_artifact(packed).manifest)
    with pytest.raises(Untrusted):
        load(Source(str(packed)))


def test_another_record_is_not_asked(packed: Path, tmp_path: Path) -> None:
    TrustStore(tmp_path / "other.toml").record(open_artifact(packed).version, Trust("ann", "ours"))
    with pytest.raises(Untrusted):
        load(Source(str(packed)))
    assert load(Source(str(packed), trust_file=str(tmp_path / "other.toml"))).description.trust == "ann: ours"


def test_an_artifact_cannot_reach_modules_of_the_machine(packed: Path) -> None:
    manifest = msgspec.structs.replace(open_artifact(packed).manifest, file="", entry="os:system")
    seal_folder(packed, manifest)
    with pytest.raises(Untrusted):
        load(Source(str(packed)))


def test_a_damaged_artifact_runs_nothing_even_if_trusted(packed: Path, marker: Path) -> None:
    (packed / "code" / "models.py").write_text("import os\n")
    with pytest.raises(Corrupt, match=r"code/models\.py"):
        load(Source(str(packed), trust=TRUST))
    assert not marker.exists()


# --- versions ----------------------------------------------------------------------------------------------------


def _saved_with(packed: Path, libraries: dict[str, str]) -> Source:
    seal_folder(packed, msgspec.structs.replace(open_artifact(packed).manifest, libraries=libraries))
    return Source(str(packed), trust=TRUST)


def test_another_major_version_is_refused_by_default(packed: Path, marker: Path) -> None:
    source = _saved_with(packed, {"numpy": "0.9.1"})
    with pytest.raises(Wrong, match=rf"numpy 0\.9\.1, and {np.__version__} is installed"):
        load(source)
    assert not marker.exists()
    warned = load(msgspec.structs.replace(source, versions="warn")).description
    assert "numpy 0.9.1" in warned.warnings[0]
    assert load(msgspec.structs.replace(source, versions="ignore")).description.warnings == ()


def test_another_minor_version_is_told_in_the_description(packed: Path) -> None:
    major = np.__version__.split(".")[0]
    source = _saved_with(packed, {"numpy": f"{major}.999.0"})
    assert f"numpy {major}.999.0" in load(source).description.warnings[0]
    told = describe(source)
    assert told is not None
    assert told.warnings == load(source).description.warnings


class _Broken:
    """A flavor whose library raises this."""

    name = "broken"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def open(self, opening: Any) -> Any:
        raise self.error


def test_a_library_written_in_rust_that_panics_cannot_load(tmp_path: Path) -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    with pytest.raises(CannotLoad, match=r"broken cannot open m\.bin: PanicException: index out of bounds"):
        opened(_Broken(panic("index out of bounds")), Opening(root=tmp_path, file="m.bin"))  # type: ignore[arg-type]
    for error in (KeyboardInterrupt(), SystemExit(1)):
        with pytest.raises(type(error)):
            opened(_Broken(error), Opening(root=tmp_path, file="m.bin"))  # type: ignore[arg-type]


def test_a_running_loop_is_no_hindrance(code: Path) -> None:
    async def packing() -> Any:
        return run(load(Source(f"{code}:Quiet")).predictor, {"x": np.array([1.0])})["y"].tolist()

    assert asyncio.run(packing()) == [0.0]


# --- replay ------------------------------------------------------------------------------------------------------


def test_a_model_that_answers_otherwise_is_refused_with_the_worst_place(code: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.txt"
    weights.write_text("1.0")
    pack(f"{code}:Add", tmp_path / "p", example={"x": [1.0, 2.0]}, files=[weights])
    replay(load(Source(str(tmp_path / "p"), trust=TRUST)))
    (tmp_path / "p" / "weights.txt").write_text("1.5")
    seal_folder(tmp_path / "p", open_artifact(tmp_path / "p").manifest)
    loaded = load(Source(str(tmp_path / "p"), trust=TRUST))
    with pytest.raises(ExampleDiffers, match=r"output 'y': 2 of 2 differ.*worst at \[0\]: expected 2\.0, got 2\.5"):
        replay(loaded)
    with pytest.raises(ExampleDiffers):
        warm(loaded, 4)


class _Predictor:
    def __init__(self, answer: Any, **outputs: str) -> None:
        self.signature = maitred.Signature({"x": "float64[n]"}, outputs or {"y": "float64[n]"})
        self.traits = maitred.model.predictor.Traits()
        self._answer = answer

    def predict(self, inputs: Any, context: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def _loaded(answer: Any, expected: dict[str, Any] | None, **outputs: str) -> Loaded:
    predictor: Any = _Predictor(answer, **outputs)
    example = None if expected is None else Example({"x": np.zeros(2)}, expected)
    return Loaded(predictor, Description(name="m", signature=predictor.signature), example)


@pytest.mark.parametrize(
    ("expected", "got", "spec", "said"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-10], "float64[n]", ""),
        ([1.0, 2.0], [1.0, 2.1], "float64[n]", r"1 of 2 differ by more than rtol=1e-09, atol=1e-12; worst at \[1\]"),
        ([1.0, 2.0], [1.0, 2.1], "float64[n] rtol=0.1", ""),
        ([1.0, 100.0], [1.5, 90.0], "float64[n]", r"worst at \[1\]: expected 100.0, got 90.0"),
        ([np.nan, np.inf], [np.nan, np.inf], "float64[n]", ""),
        ([np.nan, 1.0], [1.0, 1.0], "float64[n]", r"expected nan, got 1.0"),
        ([1.0, np.inf], [1.0, -np.inf], "float64[n]", r"expected inf, got -inf"),
        ([1, 2], [1, 3], "int64[n]", r"1 of 2 differ; worst at \[1\]: expected 2, got 3"),
        (["a", "b"], ["a", "B"], "str[n]", r"expected 'b', got 'B'"),
        ([True, False], [True, False], "bool[n]", ""),
        ([0.1, 0.2], [0.1, 0.2], "float32[n]", ""),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 5.0]], "float32[n, 2]", r"worst at \[1, 1\]"),
    ],
)
def test_the_comparison_keeps_to_the_tolerance(expected: Any, got: Any, spec: str, said: str) -> None:
    dtype = {"str[n]": object}.get(spec, spec.partition("[")[0])
    loaded = _loaded({"y": np.array(got, dtype)}, {"y": np.array(expected, dtype)}, y=spec)
    if not said:
        replay(loaded)
        return
    with pytest.raises(ExampleDiffers, match=said):
        replay(loaded)


def test_a_model_that_raises_on_its_example_is_refused() -> None:
    with pytest.raises(ExampleDiffers, match="KeyError: 'age'"):
        replay(_loaded(KeyError("age"), {"y": np.zeros(2)}))


def test_without_an_example_there_is_nothing_to_replay() -> None:
    replay(_loaded(KeyError("age"), None))


# --- warm-up -----------------------------------------------------------------------------------------------------


def _sizes(signature: maitred.Signature, rows: int, **traits: Any) -> list[int]:
    predictor: Any = _Predictor(None)
    predictor.signature, predictor.traits = signature, maitred.model.predictor.Traits(**traits)
    loaded = Loaded(predictor, Description(name="m", signature=signature))
    return [len(inputs["x"]) for inputs in warmup_batches(loaded, rows)]


@pytest.mark.parametrize(
    ("rows", "traits", "sizes"),
    [
        (1, {}, [1]),
        (2, {}, [1, 2]),
        (6, {}, [1, 2, 4, 6]),
        (64, {}, [1, 2, 4, 8, 16, 32, 64]),
        (64, {"max_batch_rows": 3}, [1, 2, 3]),
        (64, {"fixed_batch": (8, 32)}, [8, 32]),
    ],
)
def test_the_sizes_of_the_warm_up(rows: int, traits: Any, sizes: list[int]) -> None:
    assert _sizes(maitred.Signature({"x": "float32[n, 3]"}, {"y": "float32[n]"}), rows, **traits) == sizes


def test_a_model_that_is_not_row_wise_is_warmed_once() -> None:
    assert _sizes(maitred.Signature({"x": "float32[5]"}, {"y": "float32[m]"}), 64) == [5]


def test_real_rows_are_used_over_and_over() -> None:
    loaded = _loaded(None, {"y": np.zeros(2)})
    example = Example({"x": np.array([1.0, 2.0])}, {"y": np.zeros(2)})
    batches = [inputs["x"].tolist() for inputs in warmup_batches(loaded._replace(example=example), 5)]
    assert batches == [[1.0], [1.0, 2.0], [1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0, 1.0]]


def test_refusing_made_up_rows_is_noted_and_refusing_real_ones_is_a_failure() -> None:
    warmed = warm(_loaded(ValueError("unknown category"), None), 4)
    assert "refuses made-up rows (ValueError)" in warmed.description.warnings[0]
    with pytest.raises(ExampleDiffers):
        warm(_loaded(ValueError("unknown category"), {"y": np.zeros(2)}), 4)


def test_a_wrong_number_of_rows_is_found_while_warming() -> None:
    with pytest.raises(maitred.model.predictor.WrongCount):
        warm(_loaded({"y": np.zeros(1)}, None), 4)


# --- descriptions and examples -----------------------------------------------------------------------------------


def test_a_description_travels(packed: Path) -> None:
    description = load(Source(str(packed), trust=TRUST)).description
    assert Description.decode(description.encode()) == description
    with pytest.raises(msgspec.ValidationError):
        Description.decode(msgspec.msgpack.encode({"name": "x"}))


def test_the_examples_first_row_is_a_request(packed: Path) -> None:
    description = load(Source(str(packed), trust=TRUST)).description
    assert description.example_is_real
    assert msgspec.json.decode(description.example) == {
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1.0]}]
    }


def test_examples_keep_every_dtype_and_every_value(tmp_path: Path) -> None:
    floats = {"float16": 65504, "float32": 3.4028235e38, "float64": 1.7976931348623157e308, "bfloat16": 3.3895314e38}
    texts = {f: f"{f}[n, 2]" for f in floats}
    ints = {d: np.iinfo(d) for d in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")}
    kinds = {**texts, **{d: f"{d}[n, 2]" for d in ints}, "b": "bool[n, 2]", "s": "str[n, 2]", "raw": "bytes[n, 2]"}
    signature = maitred.Signature(
        {name: text + (" nullable" if name in floats else "") for name, text in kinds.items()}, {"y": "float32[n]"}
    )
    types = maitred.wire.coerce.NUMPY_TYPES
    inputs: dict[str, Any] = {
        name: np.array([[top, -top], [np.nan, np.inf], [-np.inf, 1 / 3], [-0.0, 5e-8]], np.float64).astype(types[name])
        for name, top in floats.items()
    }
    inputs |= {name: np.array([[info.min, info.max]] * 4, name) for name, info in ints.items()}
    inputs["b"] = np.array([[True, False]] * 4)
    inputs["s"] = np.array([["", "é\0\n"], ["a", "b"], ["😀", '"'], ["\\", "null"]], object)
    inputs["raw"] = np.array([[b"", b"\0\xff"], [b"a", b"b"], [b"{", b"\x80"], [b"\n", b"x"]], object)
    example = Example(inputs, {"y": np.array([1, 2, np.nan, 0.1], np.float32)})
    examples.write(tmp_path / "e.json", example, signature)
    again = examples.read(tmp_path / "e.json", signature)
    for name, array in inputs.items():
        assert again.inputs[name].dtype == array.dtype
        if array.dtype != object:
            assert again.inputs[name].tobytes() == array.tobytes() or name in floats
        assert not examples.differences(Example({}, {}), {}, signature)
        assert [str(item) for item in again.inputs[name].reshape(-1)] == [str(item) for item in array.reshape(-1)]
    assert again.outputs["y"].tobytes() == example.outputs["y"].tobytes()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b'{"inputs":[{"name":"z","datatype":"FP64","shape":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[2],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"data":["one"]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"data":[null]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP64","shape":[-1],"data":[[1]]}]}',
        b"[" * 100000,
    ],
)  # fmt: skip
def test_an_example_that_does_not_fit_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(text)
    with pytest.raises(Corrupt, match="example"):
        examples.read(tmp_path / "e.json", maitred.Signature({"x": "float64[n]"}, {"y": "float64[n]"}))


def test_a_model_with_parameters_per_row_is_warmed_with_a_dict_for_each_row(tmp_path: Path) -> None:
    file = tmp_path / "scaled.py"
    file.write_text(
        "import maitred\n"
        "class Scaled(maitred.Model):\n"
        "    signature = maitred.Signature({'x': 'float64[n]'}, {'y': 'float64[n]'})\n"
        "    per_row_parameters = True\n"
        "    def predict(self, batch, context):\n"
        "        rows = zip(batch['x'], context.parameters, strict=True)\n"
        "        return {'y': [x * own.get('by', 1) for x, own in rows]}\n"
    )
    loaded = load(Source(str(file)))
    for inputs in warmup_batches(loaded, 4):
        assert len(run(loaded.predictor, inputs)["y"]) == len(inputs["x"])
