"""ONNX graphs as signatures: optional inputs, rows fixed in the graph, names of axes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from onnx import TensorProto
from onnx_graphs import FLOAT, identity, node, tensor, value, write

import maitred
from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.loading import Source, describe, load, run, warm
from maitred.model.pack import pack
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature
from maitred.testing.flavors import as_described


def told(path: Path, **options: Any) -> str:
    found = describe(Source(str(path), options=options))
    assert found is not None
    return found.signature.to_text()


# --- optional inputs ------------------------------------------------------------------------------------------------


def with_default(path: Path, count: int = 1, ir: int = 8) -> Path:
    """y = x * scale, where the graph holds a value of `scale`."""
    return write(
        path, [node("Mul", ["x", "scale"], ["y"])], [value("x", FLOAT, ["n", count]), value("scale", FLOAT, [count])],
        [value("y", FLOAT, ["n", count])], [tensor("scale", FLOAT, [count], [2.0] * count)], ir=ir,
    )  # fmt: skip


def test_an_input_with_a_value_in_the_graph_is_optional(tmp_path: Path) -> None:
    path = with_default(tmp_path / "m.onnx")
    assert told(path) == "x: float32[n, 1], scale: float32[1] optional -> y: float32[n, 1]"
    with maitred.load(path) as model:
        assert model.predict(x=[[3.0]])["y"].tolist() == [[6.0]]
        assert model.predict(x=[[3.0]], scale=[5.0])["y"].tolist() == [[15.0]]
        with pytest.raises(Malformed, match=r"input 'scale': expected shape \[1\]"):
            model.predict(x=[[3.0]], scale=[5.0, 6.0])


def test_requests_with_different_optional_values_share_no_batch(tmp_path: Path) -> None:
    signature = load(Source(str(with_default(tmp_path / "m.onnx")))).predictor.signature
    x = Tensor("float32", (1, 1), np.float32(1).tobytes())
    groups = [signature.check({"x": x}).group]
    groups += [
        signature.check({"x": x, "scale": Tensor("float32", (1,), np.float32(scale).tobytes())}).group
        for scale in (2, 2, 3)
    ]
    assert groups[1] == groups[2]
    assert len(set(groups)) == 3


@pytest.mark.parametrize(("count", "ir", "inputs"), [(64, 8, 2), (65, 8, 1), (1, 4, 2), (1, 3, 1)])
def test_weights_among_the_inputs_are_not_asked_for(count: int, ir: int, inputs: int, tmp_path: Path) -> None:
    """Exporters of old list every weight as an input; before version 4 of the format none of them can be given."""
    predictor = load(Source(str(with_default(tmp_path / "m.onnx", count, ir)))).predictor
    assert len(predictor.signature.inputs) == inputs
    out = run(predictor, {"x": np.ones((2, count), np.float32)})["y"]
    assert out.tolist() == [[2.0] * count] * 2


def test_the_optional_inputs_can_be_named(tmp_path: Path) -> None:
    path = with_default(tmp_path / "m.onnx", 65)
    assert "scale: float32[65] optional" in told(path, optional=["scale"])
    assert "scale" not in told(with_default(tmp_path / "k.onnx"), optional=[])
    pack(path, tmp_path / "p", example={"x": np.ones((2, 65), np.float32)}, options={"optional": ["scale"]})
    assert [*load(Source(str(tmp_path / "p"))).predictor.signature.inputs] == ["x", "scale"]
    for wrong, message in (
        (["x"], "'x' is no input with a value"), (["z"], "it has 'scale'"), ("scale", "optional must be a list"),
    ):  # fmt: skip
        with pytest.raises(CannotLoad, match=message):
            told(path, optional=wrong)
    with pytest.raises(CannotLoad, match="none that may be changed"):
        told(with_default(tmp_path / "o.onnx", ir=3), optional=["scale"])


# --- rows that the graph fixes --------------------------------------------------------------------------------------


def affine(path: Path, size: Any, out: Any = None) -> Path:
    return write(
        path, [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)], [value("x", FLOAT, [size, 3])],
        [value("y", FLOAT, [size if out is None else out])], [tensor("axes", TensorProto.INT64, [1], [1])],
    )  # fmt: skip


def test_a_graph_of_one_row_serves_any_number_of_rows(tmp_path: Path) -> None:
    path = affine(tmp_path / "m.onnx", 1)
    assert told(path) == "x: float32[n, 3] -> y: float32[n]"
    loaded = load(Source(str(path)))
    assert loaded.predictor.traits.fixed_batch == (1,)
    assert as_described(loaded) == describe(Source(str(path)))
    with maitred.load(path) as model:
        assert model.predict(x=[[1.0, 2.0, 3.0]])["y"].tolist() == [6.0]
        assert model.predict(x=np.arange(12, dtype=np.float32).reshape(4, 3))["y"].tolist() == [3.0, 12.0, 21.0, 30.0]
        assert model.predict(x=np.zeros((0, 3), np.float32))["y"].tolist() == []
    pack(path, tmp_path / "p", example={"x": np.eye(3, dtype=np.float32)}, traits=Traits(max_batch_rows=8))
    traits = load(Source(str(tmp_path / "p"))).predictor.traits
    assert (traits.fixed_batch, traits.max_batch_rows) == ((1,), 8)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ([[1, 3], [1, 2]], [[1, 3]], "a: float32[n, 3], b: float32[n, 2] -> y: float32[n, 3]"),
        ([[1, 3], [4, 2]], [[1, 3]], "a: float32[n, 3], b: float32[4, 2] -> y: float32[n, 3]"),
        ([[1, 3], []], [[1, 3]], "a: float32[n, 3], b: float32[] -> y: float32[n, 3]"),
        ([[1, "n"]], [[1, "n"]], "a: float32[rows, n] -> y: float32[rows, n]"),
        ([[1, 3]], [["k", 3]], "a: float32[1, 3] -> y: float32[k, 3]"),
        ([[1, 3]], [[1, 3], [2, 3]], "a: float32[1, 3] -> y: float32[1, 3], z: float32[2, 3]"),
        ([[1, 3]], [[]], "a: float32[1, 3] -> y: float32[]"),
        ([[1, 3], ["k", 3]], [[1, 3]], "a: float32[1, 3], b: float32[k, 3] -> y: float32[1, 3]"),
        ([[8, 3]], [[8, 3]], "a: float32[8, 3] -> y: float32[8, 3]"),
    ],
)
def test_rows_are_what_all_sides_begin_with(inputs: Any, outputs: Any, text: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Unknown", ["a"], ["y"])],
        [value(name, FLOAT, shape) for name, shape in zip("ab", inputs, strict=False)],
        [value(name, FLOAT, shape) for name, shape in zip("yz", outputs, strict=False)],
    )  # fmt: skip
    assert told(path) == text


def test_a_graph_of_k_rows_is_filled_up(tmp_path: Path) -> None:
    path = affine(tmp_path / "m.onnx", 4)
    rows = np.arange(18, dtype=np.float32).reshape(6, 3)
    by_option = load(Source(str(path), options={"rows": 4})).predictor
    assert by_option.traits.fixed_batch == (4,)
    assert run(by_option, {"x": rows})["y"].tolist() == rows.sum(1).tolist()
    pack(path, tmp_path / "p", signature=Signature({"x": "float32[n, 3]"}, {"y": "float32[n]"}), example={"x": rows})
    by_signature = load(Source(str(tmp_path / "p"))).predictor
    assert by_signature.traits.fixed_batch == (4,)
    assert run(by_signature, {"x": rows})["y"].tolist() == rows.sum(1).tolist()
    assert told(path, rows=0) == told(path) == "x: float32[4, 3] -> y: float32[4]"
    assert told(affine(tmp_path / "one.onnx", 1), rows=0) == "x: float32[1, 3] -> y: float32[1]"
    for wrong in (-1, 1.0, True, "4"):
        with pytest.raises(CannotLoad, match="option rows"):
            told(path, rows=wrong)


# --- axes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "out", "text"),
    [
        (["b", "s"], ["b", "s"], ["b", 2], "a: float32[b, s], b: float32[b, s] -> y: float32[b, 2]"),
        ([None, "s"], ["b", 3], ["b", 2], "a: float32[b, s], b: float32[b, 3] -> y: float32[b, 2]"),
        ([-1, 3], [-1, -1], [-1, 2], "a: float32[n, 3], b: float32[n, b_1] -> y: float32[n, 2]"),
        (["unk__1", 3], ["unk__2", "unk__9"], ["unk__3"], "a: float32[n, 3], b: float32[n, unk__9] -> y: float32[n]"),
        (["a_dynamic_axes_1", 1], [2], ["y_dynamic_axes_1"], "a: float32[n, 1], b: float32[2] -> y: float32[n]"),
        (["DynamicDimension.0", 3], [2], ["DynamicDimension.1"], "a: float32[n, 3], b: float32[2] -> y: float32[n]"),
        (["p2o.DynamicDimension.0"], [2], ["p2o.DynamicDimension.9"], "a: float32[n], b: float32[2] -> y: float32[n]"),
        (["?", "?", "?"], [2], ["?"], "a: float32[n, a_1, a_2], b: float32[2] -> y: float32[n]"),
        (["N", "seq len"], ["N", "seq_len"], ["N"], "a: float32[N, seq_len], b: float32[N, seq_len_] -> y: float32[N]"),
        ([None, "n"], [None, "rows"], [None], "a: float32[batch, n], b: float32[batch, rows] -> y: float32[batch]"),
        (["N"], ["N", 0], ["N + 1"], "a: float32[N], b: float32[N, 0] -> y: float32[N___1]"),
    ],
)  # fmt: skip
def test_axes_of_several_inputs(first: Any, second: Any, out: Any, text: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Unknown", ["a", "b"], ["y"])],
        [value("a", FLOAT, first), value("b", FLOAT, second)], [value("y", FLOAT, out)],
    )  # fmt: skip
    assert told(path) == text


def test_scalars_and_axes_of_one_name_are_held_to_it(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Add", ["a", "b"], ["s"]), node("Mul", ["s", "k"], ["y"])],
        [value("a", FLOAT, ["n", "s"]), value("b", FLOAT, ["n", "s"]), value("k", FLOAT, [])],
        [value("y", FLOAT, ["n", "s"])],
    )  # fmt: skip
    with maitred.load(path) as model:
        assert model.predict(a=[[1.0, 2.0]], b=[[3.0, 4.0]], k=10.0)["y"].tolist() == [[40.0, 60.0]]
        with pytest.raises(Malformed, match=r"input 'b': expected shape \[n, s\] with s = 2 as in input 'a'"):
            model.predict(a=[[1.0, 2.0]], b=[[3.0]], k=10.0)


def test_an_output_without_axes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("ReduceSum", ["x"], ["y"], keepdims=0)], [value("x", FLOAT, ["k", 2])],
        [value("y", FLOAT, [])],
    )  # fmt: skip
    with maitred.load(path) as model:
        assert model.signature.to_text() == "x: float32[k, 2] -> y: float32[]"
        assert not model.signature.row_wise
        out = model.predict(x=[[1.0, 2.0], [3.0, 4.0]])["y"]
        assert (out.shape, out.dtype, out.item()) == ((), np.float32, 10.0)


# --- what the file leaves out ---------------------------------------------------------------------------------------


def reshaped(data: str, out: str) -> list[Any]:
    """Nodes that give `data` the shape it has, in a way that hides its rank from every analysis."""
    size, where, flat, to = (f"{out}_{part}" for part in ("size", "where", "flat", "to"))
    return [
        node("Shape", [data], [size]), node("NonZero", [size], [where]), node("Squeeze", [where, "axis"], [flat]),
        node("Gather", [size, flat], [to]), node("Reshape", [data, to], [out]),
    ]  # fmt: skip


def test_missing_ranks_are_found_out_by_a_trial(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [*reshaped("x", "y"), *reshaped("y_size", "z"), node("Size", ["x"], ["count"]),
         node("Reshape", ["count", "none"], ["s"])],
        [value("x", FLOAT, ["n", 2])],
        [value("y", FLOAT, None), value("z", TensorProto.INT64, None), value("s", TensorProto.INT64, None)],
        [tensor("axis", TensorProto.INT64, [1], [0]), tensor("none", TensorProto.INT64, [0], [])],
    )  # fmt: skip
    assert describe(Source(str(path))) is None
    signature = load(Source(str(path))).predictor.signature
    assert {name: spec.shape for name, spec in signature.outputs.items()} == {"y": ("n", "y_1"), "z": ("z_0",), "s": ()}


def test_a_rank_that_cannot_be_found_out_has_to_be_stated(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Reshape", ["x", "to"], ["y"])],
        [value("x", FLOAT, ["k", 4]), value("to", TensorProto.INT64, ["r"])], [value("y", FLOAT, None)],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match="does not say the rank of every tensor: pack it with a signature"):
        load(Source(str(path)))  # made-up rows do not fit into the made-up shape
    signature = Signature({"x": "float32[k, 4]", "to": "int64[2]"}, {"y": "float32[r, c]"})
    pack(path, tmp_path / "p", signature=signature, example={"x": [[1.0, 2.0, 3.0, 4.0]], "to": [2, 2]})
    assert load(Source(str(tmp_path / "p"))).predictor.signature == signature


def test_an_input_without_a_rank_has_to_be_stated(tmp_path: Path) -> None:
    ins, outs = value("x", FLOAT, None), value("y", FLOAT, None)
    path = write(tmp_path / "m.onnx", [node("Identity", ["x"], ["y"])], [ins], [outs])
    with pytest.raises(CannotLoad, match="does not say the rank of every tensor: pack it with a signature"):
        load(Source(str(path)))
    pack(path, tmp_path / "p", signature=Signature({"x": "float32[n]"}, {"y": "float32[n]"}), example={"x": [1.0, 2.0]})
    warm(load(Source(str(tmp_path / "p"))), 4)


# --- kinds of values ------------------------------------------------------------------------------------------------

_TENSOR = onnx.helper.make_tensor_type_proto(FLOAT, ["n"])
_KINDS = {
    "sequence": (onnx.helper.make_sequence_type_proto(_TENSOR), "ConcatFromSequence with new_axis=1"),
    "map": (onnx.helper.make_map_type_proto(TensorProto.STRING, _TENSOR), "without the DictVectorizer"),
    "optional": (onnx.helper.make_optional_type_proto(_TENSOR), "an initializer of its name"),
    "sparse tensor": (onnx.helper.make_sparse_tensor_type_proto(FLOAT, ["n"]), "make it a dense tensor"),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("side", ["input", "output"])
def test_what_is_no_tensor_is_refused_with_the_fix(kind: str, side: str, tmp_path: Path) -> None:
    proto, fix = _KINDS[kind]
    odd = onnx.helper.make_value_info("odd", proto)
    inputs, outputs = ([odd], [value("y", FLOAT, ["n"])]) if side == "input" else ([value("x", FLOAT, ["n"])], [odd])
    path = write(tmp_path / "m.onnx", [node("Unknown", [inputs[0].name], [outputs[0].name])], inputs, outputs)
    with pytest.raises(CannotLoad, match=f"'odd' is a {kind}, which cannot be served: .*{fix}"):
        describe(Source(str(path)))


def test_an_output_that_cannot_be_served_may_be_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Identity", ["x"], ["y"]), node("SplitToSequence", ["x"], ["parts"], axis=0)],
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["n"]), onnx.helper.make_value_info("parts", _KINDS["sequence"][0])],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match="'parts' is a sequence"):
        load(Source(str(path)))
    pack(path, tmp_path / "p", signature=Signature({"x": "float32[n]"}, {"y": "float32[n]"}), example={"x": [1.0, 2.0]})
    assert load(Source(str(tmp_path / "p"))).predictor.signature.output_names == ("y",)


# --- a signature that is stated -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x": "float64[n, 3]"}, {"y": "float32[n, 3]"}, "'x' is float32 in the graph and float64 in the signature"),
        ({"x": "float32[n]"}, {"y": "float32[n, 3]"}, "'x' has 2 axes in the graph and 1 in the signature"),
        ({"x": "float32[n, 4]"}, {"y": "float32[n, 3]"}, "axis 1 of the input 'x' is 3 in the graph"),
        ({"x": "float32[n, k]"}, {"y": "float32[n, k]"}, "axis 1 of the input 'x' is 3 in the graph"),
        ({"x": "float32[n, 3] optional"}, {"y": "float32[n, 3]"}, "cannot be optional without a default"),
        ({"z": "float32[n, 3]"}, {"y": "float32[n, 3]"}, "'x' is in only one of graph and signature"),
        ({"x": "float32[n, 3]"}, {"q": "float32[n, 3]"}, r"output 'q' is not in the graph, which has \['y'\]"),
    ],
)
def test_a_signature_that_contradicts_the_graph_is_refused(
    inputs: Any, outputs: Any, message: str, tmp_path: Path
) -> None:
    path = identity(tmp_path / "m.onnx", FLOAT, ["n", 3])
    with pytest.raises(CannotLoad, match=message):
        pack(path, tmp_path / "p", signature=Signature(inputs, outputs))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (TensorProto.INT64, "int64[n] nullable", "nullable is not for ONNX"),
        (TensorProto.STRING, "str[n] nullable", "nullable is not for ONNX"),
        (TensorProto.STRING, 'str[n] categories=["a"]', "categories= is not for ONNX"),
        (TensorProto.STRING, "bytes[n]", "is str in the graph and bytes in the signature"),
    ],
)
def test_what_a_graph_would_take_for_something_else_is_refused(
    kind: int, text: str, message: str, tmp_path: Path
) -> None:
    """The runtime would see a number under the mask, the text None, and the text b'...'."""
    path = identity(tmp_path / "m.onnx", kind, ["n"])
    output = text.split("[")[0]
    with pytest.raises(CannotLoad, match=message):
        pack(path, tmp_path / "p", signature=Signature({"x": text}, {"y": f"{output}[n]"}))


def test_a_fixed_batch_that_contradicts_the_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="fixes its rows at 4: fixed_batch must be that"):
        pack(
            affine(tmp_path / "m.onnx", 4), tmp_path / "p", traits=Traits(fixed_batch=(1, 4)),
            signature=Signature({"x": "float32[n, 3]"}, {"y": "float32[n]"}),
        )  # fmt: skip


# --- callers --------------------------------------------------------------------------------------------------------


def test_another_dtype_is_the_callers_fault_and_named(tmp_path: Path) -> None:
    """Three inputs, one of them wrong."""
    names, kinds = ("a", "b", "c"), (FLOAT, TensorProto.INT32, TensorProto.INT64)
    path = write(
        tmp_path / "m.onnx",
        [node("Cast", [name], [f"f{name}"], to=FLOAT) for name in names] + [node("Sum", ["fa", "fb", "fc"], ["y"])],
        [value(name, kind, ["n"]) for name, kind in zip(names, kinds, strict=True)], [value("y", FLOAT, ["n"])],
    )  # fmt: skip
    good = {"a": np.float32([1]), "b": np.int32([2]), "c": np.int64([3])}
    with maitred.load(path) as model:
        assert model.predict(good)["y"].tolist() == [6.0]
        for name, wrong, message in (
            ("b", np.int64([2]), "input 'b': expected INT32, got INT64"),
            ("c", np.float64([3]), "input 'c': expected INT64, got FP64"),
            ("a", np.array(["1"]), "input 'a': expected FP32, got BYTES"),
        ):
            with pytest.raises(Malformed, match=message):
                model.predict({**good, name: wrong})
