"""ONNX: what a graph says is read without its weights, and every dtype is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skl2onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnx_graphs import identity, node, value, write
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from maitred.model.flavors.onnx import graph as onnx_graph
from maitred.model.flavors.onnx.graph import read_graph
from maitred.model.loading import Source, describe, load, run, warm
from maitred.model.refusals import CannotLoad
from maitred.testing.flavors import as_described
from maitred.wire.coerce import NUMPY_TYPES


@pytest.mark.parametrize(
    ("shape", "out", "text", "row_wise"),
    [
        (["batch", 3], ["batch", 3], "x: float32[batch, 3] -> y: float32[batch, 3]", True),
        ([None, 3], [None, 3], "x: float32[n, 3] -> y: float32[n, 3]", True),
        (["N", "seq len"], ["N", "seq len"], "x: float32[N, seq_len] -> y: float32[N, seq_len]", True),
        (["N", None], ["N", None], "x: float32[N, x_1] -> y: float32[N, y_1]", True),
        ([1, 3], [1, 3], "x: float32[n, 3] -> y: float32[n, 3]", True),
        ([2, 3], [2, 3], "x: float32[2, 3] -> y: float32[2, 3]", False),
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
    assert as_described(load(Source(str(path)))) == told


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.FLOAT, "float32"), (TensorProto.DOUBLE, "float64"), (TensorProto.FLOAT16, "float16"),
        (TensorProto.BOOL, "bool"), (TensorProto.STRING, "str"), (TensorProto.INT8, "int8"),
        (TensorProto.INT16, "int16"), (TensorProto.INT32, "int32"), (TensorProto.INT64, "int64"),
        (TensorProto.UINT8, "uint8"), (TensorProto.UINT16, "uint16"), (TensorProto.UINT32, "uint32"),
        (TensorProto.UINT64, "uint64"), (TensorProto.BFLOAT16, "bfloat16"),
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
    settings = session._session.get_session_options()
    assert settings.intra_op_num_threads == threads
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("kind", [TensorProto.COMPLEX64, TensorProto.FLOAT8E5M2, TensorProto.INT4])
def test_types_without_a_name_of_ours_are_refused_with_the_fix(kind: int, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", kind, ["n"])
    with pytest.raises(CannotLoad, match=r"'x'.*cannot be served: cast it inside the model"):
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
    features, target = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=1000).fit(features, target)
    exported: bytes = skl2onnx.to_onnx(model, features[:1].astype(np.float32)).SerializeToString()
    return exported


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
