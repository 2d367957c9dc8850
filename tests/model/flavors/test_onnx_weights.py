"""ONNX weights in files beside the model: packed with it, and never read from anywhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from onnx import TensorProto
from onnx_graphs import FLOAT, graph, identity, node, stored, tensor, value, write

from maitred.model.flavors.onnx import graph as onnx_graph
from maitred.model.flavors.onnx.graph import read_graph
from maitred.model.loading import Source, describe, load, run
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused


def weights(name: str, location: str) -> Any:
    return stored(tensor(name, FLOAT, [2], [1.0, 2.0]), location)


def scaled(path: Path, *locations: str) -> Path:
    """y = x * w0 * w1 ..., each of the weights in a file of its own."""
    names = [f"w{number}" for number in range(len(locations))]
    nodes = [node("Mul", [f"x{at}" if at else "x", name], [f"x{at + 1}"]) for at, name in enumerate(names)]
    nodes.append(node("Identity", [f"x{len(names)}"], ["y"]))
    made = [weights(name, location) for name, location in zip(names, locations, strict=True)]
    return write(path, nodes, [value("x", FLOAT, ["n", 2])], [value("y", FLOAT, ["n", 2])], made)


def fill(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(np.array([number + 2, 10], np.float32).tobytes())


def test_all_files_are_packed_with_the_model(tmp_path: Path) -> None:
    names = ("weights.bin", "deep/er/weights.bin", "deep/m.onnx.data", "./dot")
    fill(tmp_path, *names)
    path = scaled(tmp_path / "m.onnx", *names, "weights.bin")
    assert describe(Source(str(path))) is not None
    pack(path, tmp_path / "p", example={"x": [[1.0, 1.0], [2.0, 2.0]]})
    for name in names:
        (tmp_path / name).unlink()
    loaded = load(Source(str(tmp_path / "p")))
    assert run(loaded.predictor, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[240.0, 100_000.0]]
    (tmp_path / "p" / "deep" / "er" / "weights.bin").write_bytes(bytes(8))
    with pytest.raises(LoadRefused, match=r"deep/er/weights\.bin"):
        load(Source(str(tmp_path / "p")))


def test_a_model_saved_by_the_library_with_its_weights_beside_it(tmp_path: Path) -> None:
    made = graph(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, ["n", 64])], [value("y", FLOAT, ["n", 64])],
        [onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32) * 3, "w")],
    )  # fmt: skip
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    pack(tmp_path / "m.onnx", tmp_path / "p", example={"x": np.ones((3, 64), np.float32)})
    predictor = load(Source(str(tmp_path / "p"))).predictor
    assert run(predictor, {"x": np.ones((1, 64), np.float32)})["y"].tolist() == [[3.0] * 64]
    with pytest.raises(LoadRefused, match=r"'m.data' are missing"):
        pack(onnx.load(tmp_path / "m.onnx", load_external_data=False), tmp_path / "q")


@pytest.mark.parametrize(
    "location", ["../w", "/etc/passwd", "a/../../w", "in/../w", "..\\w", "", "/", "..", "w\0", "."]
)
def test_weights_elsewhere_are_refused(location: str, tmp_path: Path) -> None:
    fill(tmp_path, "w", "in/w", "in/a/w")
    path = scaled(tmp_path / "in" / "m.onnx", location)
    with pytest.raises(CannotLoad):
        load(Source(str(path)))
    with pytest.raises(LoadRefused):
        pack(path, tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [("../secret", "a link that leads out of its folder"), ("/etc/passwd", "a link that leads out"), ("w", "missing")],
)
def test_links_lead_nowhere_else(target: str, message: str, tmp_path: Path) -> None:
    fill(tmp_path, "secret")
    (tmp_path / "in").mkdir()
    path = scaled(tmp_path / "in" / "m.onnx", "w")
    os.symlink(target, tmp_path / "in" / "w")
    for attempt in (lambda: load(Source(str(path))), lambda: pack(path, tmp_path / "p")):
        with pytest.raises(LoadRefused, match=message):
            attempt()


def test_a_link_inside_the_folder_is_as_good_as_a_file(tmp_path: Path) -> None:
    fill(tmp_path, "blobs/w")
    os.symlink("blobs/w", tmp_path / "w")
    path = scaled(tmp_path / "m.onnx", "w")
    pack(path, tmp_path / "p", example={"x": [[1.0, 1.0]]})
    assert not (tmp_path / "p" / "w").is_symlink()
    assert run(load(Source(str(path))).predictor, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[2.0, 10.0]]


@pytest.mark.parametrize("name", ["missing", "a" * 300, "deep/missing"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    path = scaled(tmp_path / "m.onnx", name)
    with pytest.raises(CannotLoad, match=f"'{name}' are missing: that file belongs beside the model") as refused:
        load(Source(str(path)))
    assert str(tmp_path) not in refused.value.message


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"1234")
    with pytest.raises(CannotLoad, match="w") as refused:
        load(Source(str(scaled(tmp_path / "m.onnx", "w"))))
    assert str(tmp_path) not in refused.value.message


@pytest.mark.parametrize("name", ["maitred.toml", "model.onnx", "example.json", "./maitred.toml"])
def test_weights_cannot_stand_in_for_the_artifacts_own_files(name: str, tmp_path: Path) -> None:
    fill(tmp_path, name)
    with pytest.raises(CannotPack, match="rename it"):
        pack(scaled(tmp_path / "m.onnx", name), tmp_path / "p")


def hidden_in(place: str) -> onnx.ModelProto:
    """A model with weights outside of its folder, where only a thorough look finds them."""
    ins, outs = [value("x", FLOAT, ["n", 2])], [value("y", FLOAT, ["n", 2])]
    constant = node("Constant", [], ["w"], value=weights("w", "../out"))
    multiply = node("Mul", ["x", "w"], ["y"])
    if place == "constant":
        return graph([constant, multiply], ins, outs)
    if place == "function":
        opset = [onnx.helper.make_opsetid("", 17)]
        function = onnx.helper.make_function("own", "F", ["x"], ["y"], [constant, multiply], opset)
        return graph([node("F", ["x"], ["y"], domain="own")], ins, outs, domains=["own"], functions=[function])
    if place == "default":
        opset = [onnx.helper.make_opsetid("", 17)]
        inside = [node("Constant", [], ["w"]), multiply]
        inside[0].attribute.add(name="value", ref_attr_name="w", type=onnx.AttributeProto.TENSOR)
        attribute = onnx.helper.make_attribute("w", weights("w", "../out"))
        function = onnx.helper.make_function("own", "F", ["x"], ["y"], inside, opset, attribute_protos=[attribute])
        return graph([node("F", ["x"], ["y"], domain="own")], ins, outs, domains=["own"], functions=[function])
    if place == "sparse":
        made = graph([multiply], ins, outs)
        indices = tensor("i", TensorProto.INT64, [2], [0, 1])
        made.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(weights("w", "../out"), indices, [2]))
        return made
    inner_out = [value("z", FLOAT, ["n", 2])]
    branch = onnx.helper.make_graph([node("Mul", ["x", "w"], ["z"])], "b", [], inner_out, [weights("w", "../out")])
    other = onnx.helper.make_graph([node("Identity", ["x"], ["z"])], "o", [], inner_out)
    chosen = tensor("yes", TensorProto.BOOL, [], [True])
    return graph([node("If", ["yes"], ["y"], then_branch=branch, else_branch=other)], ins, outs, [chosen])


@pytest.mark.parametrize("place", ["constant", "function", "default", "sparse", "branch"])
def test_weights_are_found_wherever_they_hide(place: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    fill(tmp_path, "out")
    path = tmp_path / "in" / "m.onnx"
    path.write_bytes(hidden_in(place).SerializeToString())
    assert read_graph(path).external == ("../out",)
    with pytest.raises(CannotLoad, match="outside its own folder"):
        load(Source(str(path)))


def test_branches_inside_branches_without_end_are_given_up(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([node("Constant", [], ["z"], value=weights("w", "../out"))], "b", [], [])
    for depth in range(30):
        path = write(tmp_path / f"{depth}.onnx", [node("If", ["c"], ["y"], then_branch=inner)], [], [])
        if depth > 20:
            with pytest.raises(CannotLoad, match="not a valid ONNX"):
                read_graph(path)
        elif depth < 15:
            assert read_graph(path).external == ("../out",)
        inner = onnx.helper.make_graph([node("If", ["c"], ["z"], then_branch=inner)], "b", [], [])


def test_a_name_that_only_looks_like_weights_does_no_harm(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("Identity", ["x"], ["location"]), node("Identity", ["location"], ["y"])],
        [value("x", FLOAT, ["n"])], [value("y", FLOAT, ["n"])],
    )  # fmt: skip
    assert read_graph(path).external == ()
    load(Source(str(path)))


def test_more_than_2_gb_go_into_files_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    with open(path, "wb") as file:
        file.truncate((1 << 31) + 1)  # a hole, not bytes on the disk
    with pytest.raises(CannotLoad, match=r"larger than 2 GB.*save_as_external_data=True"):
        read_graph(path)

    class ModelProto:
        def SerializeToString(self, deterministic: bool) -> bytes:
            raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

    with pytest.raises(CannotPack, match=r"larger than 2 GB: save it with onnx.save\(.*and pack that path"):
        pack(ModelProto(), tmp_path / "p")
    monkeypatch.setattr(onnx_graph, "MAX_FILE_BYTES", 50)
    with pytest.raises(CannotLoad, match="larger"):
        read_graph(identity(tmp_path / "s.onnx", FLOAT, ["n"]))
