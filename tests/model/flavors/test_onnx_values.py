"""ONNX values pass through unchanged: text to its last byte, integers over their whole range, half floats, times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_graphs import FLOAT, identity, node, tensor, value, write

import maitred
from maitred.errors import Malformed, ModelFault
from maitred.messages import Tensor
from maitred.model.loading import Source, load, run, warm
from maitred.model.pack import pack
from maitred.model.predictor import Predictor
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature
from maitred.wire.coerce import to_array


def echo(folder: Path, kind: int, shape: Any = ("n",)) -> Predictor:
    return load(Source(str(identity(folder / f"{kind}.onnx", kind, list(shape))))).predictor


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return echo(tmp_path_factory.mktemp("text"), TensorProto.STRING)


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), min_size=1, max_size=5))
def test_text_is_kept_to_the_last_byte(text: Predictor, words: list[str]) -> None:
    out = run(text, {"x": np.array(words, object)})["y"]
    assert out.tolist() == words


def test_text_of_every_troublesome_kind(text: Predictor) -> None:
    words = ["", "\0", "a\0", "\0a", "a\0b\0\0", "é", "\U0001f600", " ", "\n", "x" * 1_000_000, "b'a'", "None"]
    assert run(text, {"x": np.array(words, object)})["y"].tolist() == words


def test_bytes_that_are_no_text_are_refused_before_the_model(text: Predictor) -> None:
    signature = text.signature
    with pytest.raises(Malformed, match=r"'x'.*UTF-8"):
        signature.check({"x": Tensor("bytes", (2,), [b"ok", b"\xff\xfe"])})
    kept = signature.check({"x": Tensor("bytes", (3,), [b"a\0", b"", "é".encode()])}).inputs["x"]
    assert run(text, {"x": to_array(kept)})["y"].tolist() == ["a\0", "", "é"]


def test_an_answer_that_is_no_text_is_the_models_fault(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("StringConcat", ["x", "raw"], ["y"])], [value("x", TensorProto.STRING, ["n"])],
        [value("y", TensorProto.STRING, ["n"])], [tensor("raw", TensorProto.STRING, [1], [b"\xff"])], opset=20,
    )  # fmt: skip
    with maitred.load(path) as model, pytest.raises(ModelFault, match="utf-8"):
        model.predict(x=["a"])


@pytest.mark.parametrize("shape", [(), (2, 2), (0,), (1, 0, 3)])
def test_text_of_any_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    predictor = echo(tmp_path, TensorProto.STRING, [f"k{axis}" for axis in range(len(shape))])
    array = np.full(shape, "a\0", object)
    out = run(predictor, {"x": array})["y"]
    assert (out.shape, out.tolist()) == (shape, array.tolist())


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"])
def test_integers_over_their_whole_range(kind: str, tmp_path: Path) -> None:
    limits = np.iinfo(kind.lower())
    values = [limits.min, limits.min + 1, 0, limits.max - 1, limits.max]
    path = identity(tmp_path / "m.onnx", TensorProto.DataType.Value(kind), ["n"])
    with maitred.load(path) as model:
        assert model.predict(x=values)["y"].tolist() == values
        with pytest.raises(Malformed, match=rf"'x'.*{kind}"):
            model.predict(x=[limits.max + 1])


def test_bools(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Not", ["x"], ["y"])], [value("x", TensorProto.BOOL, ["n"])],
        [value("y", TensorProto.BOOL, ["n"])],
    )  # fmt: skip
    with maitred.load(path) as model:
        assert model.predict(x=[True, False])["y"].tolist() == [False, True]
        with pytest.raises(Malformed, match=r"'x'.*BOOL"):
            model.predict(x=np.array([1, 0]))


def test_half_floats(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = run(echo(tmp_path, TensorProto.FLOAT16), {"x": bits.view(np.float16)})["y"]
    assert (out.dtype, out.view(np.uint16).tolist()) == (np.float16, bits.tolist())


# --- bfloat16 -------------------------------------------------------------------------------------------------------


def cast(path: Path, source: int, target: int, shape: Any = ("n", 2)) -> Path:
    ins, outs = value("x", source, shape), value("y", target, shape)
    return write(path, [node("Cast", ["x"], ["y"], to=target)], [ins], [outs])


@pytest.mark.parametrize(("source", "target"), [("BFLOAT16", "FLOAT"), ("FLOAT", "BFLOAT16"), ("BFLOAT16", "BFLOAT16")])
def test_bfloat16_goes_in_and_out(source: str, target: str, tmp_path: Path) -> None:
    types = {"FLOAT": np.dtype(np.float32), "BFLOAT16": np.dtype(ml_dtypes.bfloat16)}
    kinds = [TensorProto.DataType.Value(name) for name in (source, target)]
    path = cast(tmp_path / "m.onnx", *kinds)
    predictor = load(Source(str(path))).predictor
    wide = np.array([[1.5, -0.0], [3.0e38, 1e-40], [np.inf, np.nan]], np.float32)
    given_rows = wide.astype(types[source])
    out = run(predictor, {"x": given_rows[::-1]})["y"][::-1]  # a view that is not contiguous
    wanted = given_rows.astype(types[target])
    assert out.dtype == types[target]
    assert out.view(f"u{out.itemsize}").tolist() == wanted.view(f"u{out.itemsize}").tolist()
    pack(path, tmp_path / "p", example={"x": given_rows[:1]})
    warm(load(Source(str(tmp_path / "p"))), 4)


def test_every_bfloat16_passes_through(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = run(echo(tmp_path, TensorProto.BFLOAT16), {"x": bits.view(ml_dtypes.bfloat16)})["y"]
    assert out.view(np.uint16).tolist() == bits.tolist()


def test_zero_rows_and_scalars_of_bfloat16(tmp_path: Path) -> None:
    predictor = load(
        Source(str(cast(tmp_path / "m.onnx", TensorProto.BFLOAT16, TensorProto.BFLOAT16, ["k", "j"])))
    ).predictor
    assert run(predictor, {"x": np.zeros((0, 2), ml_dtypes.bfloat16)})["y"].shape == (0, 2)
    predictor = load(Source(str(cast(tmp_path / "s.onnx", TensorProto.BFLOAT16, TensorProto.BFLOAT16, [])))).predictor
    assert run(predictor, {"x": np.array(1.5, ml_dtypes.bfloat16)})["y"].item() == 1.5


def test_bfloat16_beside_text_is_refused_with_the_fix(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Identity", ["x"], ["y"]), node("Identity", ["s"], ["t"])],
        [value("x", TensorProto.BFLOAT16, ["n"]), value("s", TensorProto.STRING, ["n"])],
        [value("y", TensorProto.BFLOAT16, ["n"]), value("t", TensorProto.STRING, ["n"])],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match="cast to float32 inside the model"):
        load(Source(str(path)))


def test_bfloat16_in_an_older_runtime_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type")
    with pytest.raises(CannotLoad, match="update it, or cast to float32"):
        echo(tmp_path, TensorProto.BFLOAT16)


# --- times ----------------------------------------------------------------------------------------------------------


def test_times_are_the_integers_that_the_graph_knows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Add", ["when", "wait"], ["due"])],
        [value("when", TensorProto.INT64, ["n"]), value("wait", TensorProto.INT64, ["n"])],
        [value("due", TensorProto.INT64, ["n"])],
    )  # fmt: skip
    signature = Signature({"when": 'int64[n] time="s"', "wait": "int64[n]"}, {"due": "int64[n]"})
    pack(path, tmp_path / "p", signature=signature, example={"when": [1_700_000_000], "wait": [60]})
    predictor = load(Source(str(tmp_path / "p"))).predictor
    given_times = {"when": np.array([5, 6], "datetime64[s]"), "wait": np.array([1, 1])}
    assert predictor.predict(given_times, maitred.Context())["due"].tolist() == [6, 7]


# --- what the runtime objects to ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ir": 99}, r"written in version 99 of the format and this runtime reads up to \d+: update onnxruntime"),
        ({"opset": 99}, r"needs opset 99 of ai.onnx and this runtime has up to \d+: update onnxruntime"),
    ],
)
def test_a_format_that_is_too_new_is_told_plainly(more: Any, message: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Identity", ["x"], ["y"])], [value("x", FLOAT, ["n"])], [value("y", FLOAT, ["n"])],
        **more,
    )  # fmt: skip
    with pytest.raises(CannotLoad, match=message):
        load(Source(str(path)))


@pytest.mark.parametrize(
    ("made", "domains", "message"),
    [
        (("Foo", "com.acme"), ["com.acme"], "the operator Foo of com.acme, which ONNX Runtime does not have.*are code"),
        (("Foo", "com.acme"), [], "domain 'com.acme' without saying which version"),
        (("Foo", ""), [], "the operator Foo, which opset 17 does not have"),
    ],
)
def test_operators_that_the_runtime_lacks_are_named(made: Any, domains: Any, message: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node(made[0], ["x"], ["y"], domain=made[1])], [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["n"])], domains=domains,
    )  # fmt: skip
    with pytest.raises(CannotLoad, match=message):
        load(Source(str(path)))


def test_an_operator_without_an_implementation_is_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Add", ["x", "x"], ["y"])], [value("x", TensorProto.BFLOAT16, ["n"])],
        [value("y", TensorProto.BFLOAT16, ["n"])],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match=r"no Add \(opset 14\) for the type of its elements: cast to float32"):
        load(Source(str(path)))


def test_other_reasons_name_no_place_of_this_machine(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [node("MatMul", ["x", "x"], ["y"])],
        [value("x", FLOAT, [2, 3])],
        [value("y", FLOAT, [2, 3])],
    )
    with pytest.raises(CannotLoad, match="MatMul") as refused:
        load(Source(str(path)))
    assert str(tmp_path) not in refused.value.message
    assert "onnxruntime_src" not in refused.value.message
    with pytest.raises((CannotLoad, CannotPack)):
        pack(path, tmp_path / "p")
