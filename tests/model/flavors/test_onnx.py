"""ONNX: what a graph says is read without its weights, every dtype is served, and labels are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
import skl2onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from maitred.model.flavors import onnx_graph
from maitred.model.flavors.onnx_graph import read_graph
from maitred.model.loading import Source, describe, load, run, warm
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.wire.coerce import NUMPY_TYPES

value = onnx.helper.make_tensor_value_info
node = onnx.helper.make_node


def write(path: Path, nodes: Any, inputs: Any, outputs: Any, weights: Any = ()) -> Path:
    graph = onnx.helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def identity(path: Path, kind: int, shape: Any, out: Any = None) -> Path:
    return write(path, [node("Identity", ["x"], ["y"])], [value("x", kind, shape)], [value("y", kind, out or shape)])


@pytest.mark.parametrize(
    ("shape", "out", "text", "row_wise"),
    [
        (["batch", 3], ["batch", 3], "x: float32[batch, 3] -> y: float32[batch, 3]", True),
        ([None, 3], [None, 3], "x: float32[n, 3] -> y: float32[n, 3]", True),
        (["N", "seq len"], ["N", "seq len"], "x: float32[N, seq_len] -> y: float32[N, seq_len]", True),
        (["N", None], ["N", None], "x: float32[N, x_1] -> y: float32[N, y_1]", True),
        ([1, 3], [1, 3], "x: float32[1, 3] -> y: float32[1, 3]", False),
        (["2n"], ["2n"], "x: float32[_2n] -> y: float32[_2n]", True),
        ([3, "k"], [3, "k"], "x: float32[3, k] -> y: float32[3, k]", False),
    ],
)
def test_axes_become_symbols(shape: Any, out: Any, text: str, row_wise: bool, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", TensorProto.FLOAT, shape, out)
    told = describe(Source(str(path)))
    assert told is not None
    assert told.signature.to_text() == text
    assert told.signature.row_wise is row_wise
    assert load(Source(str(path))).description == told


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, "float32"), (TensorProto.DOUBLE, "float64"), (TensorProto.FLOAT16, "float16"),
        (TensorProto.BOOL, "bool"), (TensorProto.STRING, "str"), (TensorProto.INT8, "int8"),
        (TensorProto.INT16, "int16"), (TensorProto.INT32, "int32"), (TensorProto.INT64, "int64"),
        (TensorProto.UINT8, "uint8"), (TensorProto.UINT16, "uint16"), (TensorProto.UINT32, "uint32"),
        (TensorProto.UINT64, "uint64"),
    ],
)  # fmt: skip
def test_every_dtype_passes_through_unchanged(kind: int, dtype: Any, tmp_path: Path) -> None:
    loaded = load(Source(str(identity(tmp_path / "m.onnx", kind, ["n", 2]))))
    assert loaded.predictor.signature.inputs["x"].dtype == dtype
    if dtype == "str":
        array: Any = np.array([["é", ""], ["a\nb", "c"]], object)
    else:
        array = np.array([[0, 1], [1, 100]]).astype(NUMPY_TYPES[dtype])
    out = run(loaded.predictor, {"x": array})["y"]
    assert out.dtype == array.dtype
    assert out.tolist() == array.tolist()


def test_initializers_among_the_inputs_are_not_asked_for(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [node("Add", ["x", "bias"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n"]), value("bias", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, ["n"])],
        [onnx.helper.make_tensor("bias", TensorProto.FLOAT, [1], [1.0])],
    )
    loaded = load(Source(str(path)))
    assert [*loaded.predictor.signature.inputs] == ["x"]
    assert run(loaded.predictor, {"x": np.array([1], np.float32)})["y"].tolist() == [2]


# --- scikit-learn's exports ----------------------------------------------------------------------------------------


def exported(path: Path, labels: Any, zipmap: bool) -> tuple[Path, Any, Any]:
    features, target = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    model = LogisticRegression(max_iter=1000).fit(features, np.array(labels)[target])
    options = None if zipmap else {"zipmap": False}
    path.write_bytes(skl2onnx.to_onnx(model, features[:1], options=options).SerializeToString())
    return path, model, features[::30]


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("labels", [[0, 1, 2], [10, -3, 7], ["ja", "nein", "vielleicht ö"]])
def test_classifiers_give_probabilities_with_their_labels(labels: Any, zipmap: bool, tmp_path: Path) -> None:
    path, model, rows = exported(tmp_path / "m.onnx", labels, zipmap)
    told = describe(Source(str(path)))
    assert told is not None
    label, probability = told.signature.outputs
    assert told.labels == {probability: tuple(str(known) for known in model.classes_)}
    predictor = load(Source(str(path))).predictor
    out = run(predictor, {"X": rows})
    assert out[label].tolist() == model.predict(rows).tolist()
    assert np.allclose(out[probability], model.predict_proba(rows), atol=1e-5)
    assert run(predictor, {"X": rows}, (label,)).keys() == {label}


def test_maps_without_labels_are_refused_with_the_fix(tmp_path: Path) -> None:
    maps = onnx.helper.make_sequence_type_proto(
        onnx.helper.make_map_type_proto(TensorProto.INT64, onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    path = write(
        tmp_path / "m.onnx", [node("Mystery", ["x"], ["scores"])], [value("x", TensorProto.FLOAT, ["n", 2])],
        [onnx.helper.make_value_info("scores", maps)],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match=r"'scores' is a sequence of maps.*options=\{'zipmap': False\}"):
        describe(Source(str(path)))


def test_packing_compares_with_the_original(tmp_path: Path) -> None:
    path, model, rows = exported(tmp_path / "m.onnx", ["a", "b", "c"], False)
    good = {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}
    pack(path, tmp_path / "p", example={"X": rows}, expected=good)
    with pytest.raises(CannotPack, match=r"'probabilities'.*worst at"):
        pack(path, tmp_path / "p", example={"X": rows}, expected={**good, "probabilities": good["probabilities"] + 0.1})


# --- weights beside the model --------------------------------------------------------------------------------------


def external(path: Path, location: str) -> Path:
    weights = onnx.helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", "0"), ("length", "8")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, text
    return write(
        path, [node("Mul", ["x", "w"], ["y"])], [value("x", TensorProto.FLOAT, ["n", 2])],
        [value("y", TensorProto.FLOAT, ["n", 2])], [weights],
    )  # fmt: skip


def test_weights_beside_the_model_are_packed_with_it(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.array([3, 4], np.float32).tobytes())
    path = external(tmp_path / "m.onnx", "weights.bin")
    pack(path, tmp_path / "p", example={"x": [[1.0, 1.0], [2.0, 2.0]]})
    loaded = load(Source(str(tmp_path / "p")))
    assert run(loaded.predictor, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../w", "..\\w", ""])
def test_weights_elsewhere_are_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    (tmp_path / "in").mkdir()
    path = external(tmp_path / "in" / "m.onnx", location)
    with pytest.raises(CannotLoad):
        load(Source(str(path)))


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["tpu", "cuda:0", "", "CPU"])
def test_a_device_that_is_not_there_is_refused(device: str, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", TensorProto.FLOAT, ["n"])
    with pytest.raises(CannotLoad, match="CPUExecutionProvider"):
        load(Source(str(path)), device)


@pytest.mark.parametrize("threads", [0, -1, 10**9, "2", 1.5])
def test_threads_are_bounded(threads: Any, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", TensorProto.FLOAT, ["n"])
    with pytest.raises(CannotLoad, match="threads"):
        load(Source(str(path), options={"threads": threads}))


@pytest.mark.parametrize(
    ("stated", "option", "threads"), [(None, {}, 1), ("3", {}, 3), ("many", {}, 1), ("3", {"threads": 2}, 2)]
)
def test_threads_are_those_of_the_replica(
    stated: str | None, option: Any, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAITRED_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("MAITRED_THREADS", stated)
    path = identity(tmp_path / "m.onnx", TensorProto.FLOAT, ["n"])
    session: Any = load(Source(str(path), options=option)).predictor
    assert session._session.get_session_options().intra_op_num_threads == threads


@pytest.mark.parametrize("kind", [TensorProto.COMPLEX64, TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2])
def test_types_that_numpy_lacks_are_refused(kind: int, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", kind, ["n"])
    with pytest.raises(CannotLoad, match=r"'x'.*cannot be served"):
        describe(Source(str(path)))


def test_rows_of_another_count_are_found_while_warming(tmp_path: Path) -> None:
    """An unnamed first axis that is not the rows."""
    path = write(
        tmp_path / "m.onnx", [node("NonZero", ["x"], ["y"])], [value("x", TensorProto.FLOAT, [None])],
        [value("y", TensorProto.INT64, [None, None])],
    )  # fmt: skip
    with pytest.raises(Exception, match=r"rows"):
        warm(load(Source(str(path))), 4)


def test_a_file_of_nothing_but_fields_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "_MAX_FIELDS", 1000)
    path = identity(tmp_path / "m.onnx", TensorProto.FLOAT, ["n"])
    read_graph(path)
    path.write_bytes(b"\x08\x01" * 2000 + path.read_bytes())
    with pytest.raises(CannotLoad, match="not a valid ONNX"):
        read_graph(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path, _, _ = exported(tmp_path_factory.mktemp("onnx") / "m.onnx", ["a", "b", "c"], True)
    return path.read_bytes()


@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_and_nothing_else(data: st.DataObject, whole: bytes) -> None:
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    path = Path(f"/tmp/maitred-damaged-{id(data)}.onnx")
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=20)) + whole[stop:])
    try:
        read_graph(path)
    except CannotLoad:
        pass
    finally:
        path.unlink()
