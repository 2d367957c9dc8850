"""PyTorch: signatures from graphs and examples, arrays that are shared and never written into, devices, dtypes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from maitred.errors import ModelFault
from maitred.model.artifact import open_artifact
from maitred.model.loading import Source, describe, load, run
from maitred.model.pack import pack
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad, CannotPack, NotFound, Untrusted
from maitred.model.signature import Signature
from maitred.testing.flavors import as_described

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'maitred[torch]'")

import safetensors.torch  # noqa: E402
import torch_nets  # noqa: E402

TRUST = "tester: wrote it"
Dim = torch.export.Dim


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)


def program(path: Path, module: Any, example: tuple[Any, ...], shapes: Any = None) -> Path:
    exported = torch.export.export(module.eval(), example, dynamic_shapes=shapes)
    torch.export.save(exported, str(path))
    return path


def scripted(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated")
        return torch.jit.script(module.eval())


def rows(count: int = 3) -> Any:
    return np.random.default_rng(1).random((count, 4), np.float32)


class Lambda(torch.nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


# --- programs say what they take --------------------------------------------------------------------------------


def test_a_program_is_described_without_pytorch(tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("batch", max=64)}})
    told = describe(Source(str(path)))
    assert told is not None
    assert told.signature.to_text() == "x: float32[n, 4] -> output: float32[n, 3]"
    assert told.signature.row_wise
    assert told.traits.max_batch_rows == 64
    assert as_described(load(Source(str(path)))) == told


@pytest.mark.parametrize(
    ("function", "shapes", "text"),
    [
        (lambda x: (x, [x.sum(-1)]), {"x": {0: Dim("b")}}, "output_0: float32[n, 4], output_1_0: float32[n]"),
        (lambda x: {"a": x + 1, "b": {"c": x.mean(-1)}}, {"x": {0: Dim("b")}}, "a: float32[n, 4], b_c: float32[n]"),
        (lambda x: x.reshape(-1), {"x": {0: Dim("b")}}, "output: float32[output_0]"),
        (lambda x: x @ x.T, {"x": {0: Dim("b")}}, "output: float32[n, n]"),
        (lambda x: x.sum(), {"x": {0: Dim("b")}}, "output: float32[]"),
        (lambda x: x + 1, None, "output: float32[3, 4]"),
        (lambda x: (x > 0.5, x.to(torch.bfloat16), x.long()), {"x": {0: Dim("b")}},
         "output_0: bool[n, 4], output_1: bfloat16[n, 4], output_2: int64[n, 4]"),
    ],
)  # fmt: skip
def test_outputs_are_named_by_structure(function: Any, shapes: Any, text: str, tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", Lambda(function), (torch.rand(3, 4),), shapes)
    loaded = load(Source(str(path)))
    assert loaded.predictor.signature.to_text().split(" -> ")[1] == text
    assert loaded.predictor.signature.row_wise is (shapes is not None and "[n, n]" not in text and "[n" in text)
    x = rows()
    answers = run(loaded.predictor, {"x": x})
    wanted = torch.utils._pytree.tree_leaves(function(torch.from_numpy(x)))
    for got, want in zip(answers.values(), wanted, strict=True):
        assert np.array_equal(got.astype(np.float64), want.double().numpy())


def test_open_sizes_inside_a_row(tmp_path: Path) -> None:
    net, seq = torch_nets.Tokens(), Dim("seq", max=9)
    path = program(tmp_path / "m.pt2", net, (torch.ones(2, 5, dtype=torch.int64),), {"ids": {0: Dim("b"), 1: seq}})
    predictor = load(Source(str(path))).predictor
    assert predictor.signature.to_text() == "ids: int64[n, ids_1] -> output: float32[n, 6]"
    for shape in ((1, 1), (4, 9)):
        assert run(predictor, {"ids": np.ones(shape, np.int64)})["output"].shape == (shape[0], 6)
    with pytest.raises(ModelFault, match=r"not exported for these sizes.* = 10, but \w+ <= 9"):
        run(predictor, {"ids": np.ones((1, 10), np.int64)})


def test_conditions_of_a_program_hold_or_it_says_so(tmp_path: Path) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.shape[0] * x.shape[1] > 20 else x

    auto = torch.export.Dim.AUTO
    path = program(tmp_path / "m.pt2", Branch(), (torch.rand(3, 4),), {"x": {0: auto, 1: auto}})
    predictor = load(Source(str(path))).predictor
    assert np.array_equal(run(predictor, {"x": rows()})["output"], rows())
    with pytest.raises(ModelFault, match="not exported for these sizes"):
        run(predictor, {"x": rows(6)})


def test_everything_that_a_graph_takes_besides_the_inputs(tmp_path: Path) -> None:
    """Weights, buffers that are and are not saved with them, constants, and arguments that were fixed."""
    net = torch_nets.Odds()
    exported = torch.export.export(net, (torch.rand(3, 4), 2, None), dynamic_shapes=({0: Dim("b")}, None, None))
    torch.export.save(exported, str(tmp_path / "m.pt2"))
    loaded = load(Source(str(tmp_path / "m.pt2")), isolated=False)
    assert list(loaded.predictor.signature.inputs) == ["x"]
    with torch.no_grad():
        wanted = net(torch.from_numpy(rows()), 2, None).numpy()
    assert np.array_equal(run(loaded.predictor, {"x": rows()})["output"], wanted)


def test_names_and_labels_may_be_given(tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    options = {"outputs": ["probability"], "labels": {"probability": ["a", "b", "c"]}}
    told = describe(Source(str(path), options=options))
    assert told is not None
    assert told.labels == {"probability": ("a", "b", "c")}
    assert run(load(Source(str(path), options=options)).predictor, {"x": rows()}).keys() == {"probability"}
    with pytest.raises(CannotLoad, match="returns 1 tensors; the option outputs has 2 names"):
        describe(Source(str(path), options={"outputs": ["a", "b"]}))


def test_a_given_signature_names_things_anew_or_must_fit(tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    given = Signature({"row": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    pack(path, tmp_path / "p", signature=given, example=rows())
    assert run(load(Source(str(tmp_path / "p"))).predictor, {"row": rows()}).keys() == {"p"}
    wrong = Signature({"x": "float32[n, 4]", "y": "float32[n]"}, {"p": "float32[n, 3]"})
    with pytest.raises(CannotLoad, match="the program takes x; the signature has the inputs x, y"):
        pack(path, tmp_path / "q", signature=wrong)


def test_a_program_that_keeps_state_is_refused(tmp_path: Path) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            return x + self.seen

    exported = torch.export.export(Counter(), (torch.rand(3, 4),), dynamic_shapes={"x": {0: Dim("b")}})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")
        exported = exported.run_decompositions()
    torch.export.save(exported, str(tmp_path / "m.pt2"))
    with pytest.raises(CannotLoad, match="changes 'seen' while it runs"):
        describe(Source(str(tmp_path / "m.pt2")))


# --- packing ----------------------------------------------------------------------------------------------------


def test_a_module_is_exported_with_its_example_and_left_as_it_was(tmp_path: Path) -> None:
    net = torch_nets.Small()
    assert net.training
    told = pack(net, tmp_path / "p", example=rows(1))
    assert told.signature.to_text() == "x: float32[n, 4] -> output: float32[n, 3]"
    assert net.training
    assert net.norm.training
    assert (tmp_path / "p" / "model.pt2").is_file()
    answer = run(load(Source(str(tmp_path / "p"))).predictor, {"x": rows(7)})["output"]
    with torch.no_grad():
        assert np.array_equal(answer, net.eval()(torch.from_numpy(rows(7))).numpy())


def test_a_module_is_exported_as_its_signature_says(tmp_path: Path) -> None:
    given = Signature({"ids": "int64[n, seq]", "mask": "int64[n, seq]"}, {"output": "float32[n, 6]"})
    pack(torch_nets.Tokens(), tmp_path / "p", signature=given)
    predictor = load(Source(str(tmp_path / "p"))).predictor
    assert predictor.signature == given
    inputs = {"ids": np.ones((3, 11), np.int64), "mask": np.ones((3, 11), np.int64)}
    assert run(predictor, inputs)["output"].shape == (3, 6)


def test_float64_and_plain_numbers_take_the_dtype_of_the_weights(tmp_path: Path) -> None:
    told = pack(torch_nets.Small(), tmp_path / "p", example={"x": rows().astype(np.float64).tolist()})
    assert told.signature.inputs["x"].dtype == "float32"
    half = torch_nets.Small().to(torch.bfloat16)
    told = pack(half, tmp_path / "q", example=rows().tolist())
    assert told.signature.inputs["x"].dtype == "bfloat16"


def test_what_cannot_be_exported_is_told_with_a_way_out(tmp_path: Path) -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(CannotPack, match=r"cannot export this Branch .*'form': 'class'"):
        pack(Branch(), tmp_path / "p", example=rows())


def test_a_program_that_was_exported_while_training_is_found(tmp_path: Path) -> None:
    exported = torch.export.export(
        torch_nets.Small().train(), (torch.rand(3, 4),), dynamic_shapes={"x": {0: Dim("b", min=2)}}
    )
    with pytest.raises(CannotPack, match=r"rows influence each other|answers the same example differently"):
        pack(exported, tmp_path / "p", example=rows())


def test_inputs_that_it_was_exported_with_do_not_travel(tmp_path: Path) -> None:
    exported = torch.export.export(torch_nets.Small().eval(), (torch.full((3, 4), 123.5),))
    pack(exported, tmp_path / "p")
    assert exported.example_inputs is not None
    assert np.full(4, 123.5, np.float32).tobytes() not in (tmp_path / "p" / "model.pt2").read_bytes()


# --- scripts, classes, pickles ----------------------------------------------------------------------------------


def test_a_script_needs_trust_and_a_signature(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    scripted(torch_nets.Small()).save(str(path))
    assert describe(Source(str(path))) is None
    with pytest.raises(Untrusted, match=r"the TorchScript program m\.pt"):
        load(Source(str(path)))
    with pytest.raises(CannotLoad, match=r"^Small does not say what it takes: .*example= or --example.*signature="):
        load(Source(str(path), trust=TRUST))
    pack(path, tmp_path / "p", example=rows(), trust=TRUST)
    loaded = load(Source(str(tmp_path / "p")))
    assert loaded.predictor.signature.to_text() == "x: float32[n, 4] -> output: float32[n, 3]"


def test_a_named_tuple_of_a_script_gives_its_fields(tmp_path: Path) -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch_nets.Pair:
            return torch_nets.Pair(x.mean(-1), x.sum(-1))

    told = pack(scripted(Both()), tmp_path / "p", example=rows(), trust=TRUST)
    assert list(told.signature.outputs) == ["mean", "spread"]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A class and its weights beside each other, in three files: safetensors, a state dict, a checkpoint."""
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "nets.py").write_text(Path(torch_nets.__file__).read_text())
    net = torch_nets.Small(width=5).eval()
    safetensors.torch.save_model(net, str(folder / "net.safetensors"))
    torch.save(net.state_dict(), folder / "net.pt")
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, folder / "net.pth")
    return folder


@pytest.mark.parametrize("file", ["net.safetensors", "net.pt", "net.pth"])
def test_weights_and_their_class(file: str, weights: Path, tmp_path: Path) -> None:
    options = {"class": "nets.py:Small", "arguments": {"width": 5}}
    given = Signature({"x": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    with pytest.raises(CannotLoad, match="does not say what it takes"):
        load(Source(str(weights / file), options=options))
    told = pack(weights / file, tmp_path / "p", signature=given, options=options, files=[weights / "nets.py"])
    assert told.flavor == "torch"
    with pytest.raises(Untrusted, match=r"the Python code nets\.py:Small"):
        load(Source(str(tmp_path / "p")))
    loaded = load(Source(str(tmp_path / "p"), trust=TRUST))
    net = torch_nets.Small(width=5).eval()
    safetensors.torch.load_model(net, str(weights / "net.safetensors"))
    with torch.no_grad():
        assert np.array_equal(
            run(loaded.predictor, {"x": rows()})["p"], net(torch.from_numpy(rows())).numpy()
        )  # fmt: skip
    with pytest.raises(CannotLoad, match=r"does not hold the weights of Small"):
        load(Source(str(tmp_path / "p"), trust=TRUST, options={"arguments": {"width": 6}}))


def test_a_class_of_a_file_with_the_option_weights(weights: Path, tmp_path: Path) -> None:
    options = {"weights": "net.safetensors", "arguments": {"width": 5}}
    source = f"{weights / 'nets.py'}:Small"
    told = pack(source, tmp_path / "p", example=rows(), options=options, files=[weights / "net.safetensors"])
    assert told.signature.to_text() == "x: float32[n, 4] -> output: float32[n, 3]"
    assert load(Source(str(tmp_path / "p"), trust=TRUST)).predictor.signature == told.signature
    with pytest.raises(CannotLoad, match="random weights"):
        pack(source, tmp_path / "q", example=rows())
    with pytest.raises(NotFound, match=r"no file other\.pt"):
        pack(source, tmp_path / "q", example=rows(), options={"weights": "other.pt"})


@pytest.mark.parametrize("file", ["net.safetensors", "net.pt", "net.pth"])
def test_weights_alone_are_no_model_and_no_danger(file: str, weights: Path) -> None:
    with pytest.raises(CannotLoad, match=r"option class, as in --option class=model\.py:Net"):
        load(Source(str(weights / file)), isolated=False)
    with pytest.raises(CannotLoad, match=r"option class, as in --option class=model\.py:Net"):
        pack(weights / file, weights.parent / "p")


def test_a_module_that_is_packed_with_nothing_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match=r"^Small does not say what it takes: pack it with an example \(example= "):
        pack(torch_nets.Small(), tmp_path / "p")


def test_networks_and_weights_find_each_other(weights: Path, tmp_path: Path) -> None:
    """Whatever half somebody begins with, the message names the other one."""
    given = Signature({"x": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    with pytest.raises(NotFound, match=r"Small, .*as in nets\.py:Small --option weights=") as told:
        pack(weights / "nets.py", tmp_path / "p")
    assert "maitred.Model" not in str(told.value)
    for text, said in (("Smal", "did you mean 'Small'"), ("Zebra", "its networks are Small, ")):
        with pytest.raises(NotFound, match=said) as told:
            pack(
                weights / "net.pt",
                tmp_path / "p",
                signature=given,
                options={"class": f"nets.py:{text}"},
                files=[weights / "nets.py"],
            )
        assert "maitred.Model" not in str(told.value)
    with pytest.raises(NotFound, match="did you mean 'Small'"):
        pack(f"{weights / 'nets.py'}:Smal", tmp_path / "p", options={"weights": "net.pt"}, files=[weights / "net.pt"])


def test_what_is_packed_holds_all_that_it_needs(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a word about a file that lies elsewhere on the machine where it was packed."""
    given = Signature({"x": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    monkeypatch.chdir(weights)
    for file, option in (("net.pt", {"class": "nets.py:Small"}), ("nets.py:Small", {"weights": "net.pt"})):
        with pytest.raises(NotFound, match=r"no file .* pack it with files=\[\.\.\.\] \(--file PATH\)"):
            pack(file, tmp_path / "p", signature=given, options=option)
        [(name, value)] = option.items()
        with pytest.raises(CannotLoad, match=f"the option {name} names .*outside the model's own folder"):
            pack(file, tmp_path / "p", signature=given, options={name: str(weights / value)})
        assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("file", ["net.safetensors", "net.pt"])
def test_weights_of_other_sizes_are_told_on_one_line(file: str, weights: Path, tmp_path: Path) -> None:
    given = Signature({"x": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    with pytest.raises(CannotLoad, match=r"does not hold the weights of Small: .*size mismatch") as told:
        pack(
            weights / file,
            tmp_path / "p",
            signature=given,
            options={"class": "nets.py:Small"},
            files=[weights / "nets.py"],
        )
    assert not {"\n", "\t"} & {*str(told.value)}


def test_a_pickle_that_passes_for_weights_is_read_as_data_or_not_at_all(tmp_path: Path) -> None:
    """What is seen of it are the imports of weights; the one that touches a file is behind what cannot be scanned."""
    texts = b"".join(b"X" + len(text).to_bytes(4, "little") + text + b"q" + bytes([at]) + b"0"
                     for at, text in enumerate((b"posix", b"system")))  # fmt: skip
    command = f"touch {tmp_path / 'ran'}".encode()
    call = b"h\x00h\x01\x93X" + len(command).to_bytes(4, "little") + command + b"\x85R."
    path = tmp_path / "evil.pt"
    path.write_bytes(b"\x80\x02ccollections\nOrderedDict\n0I0x10\n0" + texts + call)
    for trust in (None, TRUST):
        with pytest.raises(CannotLoad, match=r"evil\.pt|model\.pt.* cannot be read as data"):
            load(Source(str(path), trust=trust))
        with pytest.raises(CannotLoad, match="cannot be read as data"):
            pack(path, tmp_path / "p", trust=trust)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("../nets.py:Small", "outside"), ("nets.py", "must be"), ("none.py:Small", "no file"), ("nets.py:None_", "no "),
        ("torch.nn:Identity", "does not hold"), ("json:dumps", "dumps"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_there(text: str, said: str, weights: Path, tmp_path: Path) -> None:
    given = Signature({"x": "float32[n, 4]"}, {"p": "float32[n, 3]"})
    options = {"class": "nets.py:Small", "arguments": {"width": 5}}
    pack(weights / "net.pt", tmp_path / "p", signature=given, options=options, files=[weights / "nets.py"])
    (tmp_path / "nets.py").write_text("raise SystemExit('outside')")
    changed = {"class": text, "arguments": {"obj": 1} if text == "json:dumps" else {}}
    with pytest.raises((CannotLoad, NotFound), match=said):
        load(Source(str(tmp_path / "p"), trust=TRUST, options=changed))


def test_a_pickled_module_needs_trust(tmp_path: Path) -> None:
    path = tmp_path / "whole.pt"
    torch.save(torch_nets.Small(), path)
    with pytest.raises(Untrusted, match=r"the pickle whole\.pt, which imports .*torch_nets\.Small"):
        load(Source(str(path)))
    pack(path, tmp_path / "p", example=rows(), trust=TRUST)
    assert load(Source(str(tmp_path / "p"))).predictor.signature.row_wise


def test_what_a_module_returns_is_named(tmp_path: Path) -> None:
    shapes = {
        "tuple": ["output_0", "output_1_0", "output_1_1"], "named": ["mean", "spread"], "dict": ["a", "nested_b"],
        "scalar": ["output"], "number": ["output"], "table": ["output"], "": ["output"],
        "sparse": ["output"],
    }  # fmt: skip
    for shape, names in shapes.items():
        options = {"form": "class", "arguments": {"shape": shape}}
        told = pack(torch_nets.Answers(shape), tmp_path / "p", example=rows(), options=options, repeatable=False)
        assert list(told.signature.outputs) == names
        predictor = load(Source(str(tmp_path / "p"), trust=TRUST)).predictor
        assert list(run(predictor, {"x": rows()})) == names
        assert predictor.signature.row_wise is (shape not in {"scalar", "number", "table"})


def test_an_optional_input_may_be_left_out(tmp_path: Path) -> None:
    given = Signature({"ids": "int64[n, seq]", "mask": "int64[n, seq] optional"}, {"output": "float32[n, 6]"})
    pack(torch_nets.Tokens(), tmp_path / "p", signature=given, options={"form": "class"})
    predictor = load(Source(str(tmp_path / "p"), trust=TRUST)).predictor
    ids = np.arange(6).reshape(2, 3)
    without = run(predictor, {"ids": ids})["output"]
    assert np.array_equal(without, run(predictor, {"ids": ids, "mask": np.ones_like(ids)})["output"])
    assert not np.array_equal(without, run(predictor, {"ids": ids, "mask": np.array([[1, 0, 0]] * 2)})["output"])


def test_an_example_may_leave_out_what_is_optional_in_the_middle(tmp_path: Path) -> None:
    example = {"ids": np.arange(6).reshape(2, 3), "shift": np.array([1, 2], np.float32)}
    told = pack(torch_nets.Tokens(), tmp_path / "p", example=example, options={"form": "class"})
    assert list(told.signature.inputs) == ["ids", "shift"]
    predictor = load(Source(str(tmp_path / "p"), trust=TRUST)).predictor
    shifted = run(predictor, {**example, "shift": example["shift"] + 1})["output"]
    assert np.allclose(shifted - run(predictor, example)["output"], 1, atol=1e-6)


# --- arrays and tensors -----------------------------------------------------------------------------------------


def packed_class(folder: Path, net: Any, example: Any, **more: Any) -> Any:
    pack(net, folder, example=example, options={"form": "class", **more.pop("options", {})}, **more)
    return load(Source(str(folder), trust=TRUST)).predictor


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("form", ["class", "export"])
def test_nobody_writes_into_the_callers_arrays(form: str, writeable: bool, tmp_path: Path) -> None:
    pack(torch_nets.Writer(), tmp_path / "p", example=rows() - 0.5, options={"form": form})
    predictor = load(Source(str(tmp_path / "p"), trust=TRUST)).predictor
    x = rows() - 0.5
    before = x.copy()
    x.flags.writeable = writeable
    for _ in range(3):
        assert np.array_equal(run(predictor, {"x": x})["output"], np.maximum(before, 0) + 1)
        assert np.array_equal(x, before)


def test_what_is_not_written_into_is_not_copied(tmp_path: Path) -> None:
    predictor = packed_class(tmp_path / "p", torch_nets.Small(), rows())
    seen: list[int] = []
    original = predictor._run

    def watched(given: Any) -> Any:
        seen.append(given["x"].data_ptr())
        return original(given)

    predictor._run = watched
    x = rows()
    x.flags.writeable = False
    for _ in range(3):
        run(predictor, {"x": x})
    assert [place == x.ctypes.data for place in seen] == [False, True, True]


def test_a_model_that_writes_only_sometimes_is_found_out(tmp_path: Path) -> None:
    predictor = packed_class(tmp_path / "p", torch_nets.Sometimes(), rows(2))
    run(predictor, {"x": rows(2)})
    with pytest.raises(ModelFault, match="mutates_inputs"):
        run(predictor, {"x": rows(6)})
    x = rows(6)
    assert np.array_equal(run(predictor, {"x": x})["output"], rows(6) * 2 + 1)
    assert np.array_equal(x, rows(6))
    declared = packed_class(
        tmp_path / "q", torch_nets.Sometimes(), rows(2), traits=Traits(mutates_inputs=True), repeatable=False
    )
    assert np.array_equal(run(declared, {"x": x})["output"], rows(6) * 2 + 1)
    assert np.array_equal(x, rows(6))


def test_the_models_own_weights_are_not_handed_out(tmp_path: Path) -> None:
    predictor = packed_class(
        tmp_path / "p", torch_nets.Answers("table"), rows(), repeatable=False, options={"arguments": {"shape": "table"}}
    )
    answer = run(predictor, {"x": rows()})["output"]
    answer[:] = 0
    assert run(predictor, {"x": rows()})["output"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"],
)
def test_every_dtype_passes_through_unchanged(dtype: Any, tmp_path: Path) -> None:
    given = Signature({"x": f"{dtype}[n, 2]"}, {"output": f"{dtype}[n, 2]"})
    path = program(
        tmp_path / "m.pt2", Lambda(lambda x: x.clone()), (torch.ones(2, 2, dtype=getattr(torch, dtype)),),
        {"x": {0: Dim("b")}},
    )  # fmt: skip
    predictor = load(Source(str(path))).predictor
    assert predictor.signature == given
    known = np.iinfo if np.dtype(dtype).kind in "iu" else np.finfo
    limits: Any = [0, 1] if dtype == "bool" else [known(dtype).min, known(dtype).max]
    x = np.array([limits, limits[::-1]], dtype)
    answer = run(predictor, {"x": x})["output"]
    assert answer.dtype == x.dtype
    assert np.array_equal(answer, x)


def test_bfloat16_keeps_every_bit(tmp_path: Path) -> None:
    path = program(
        tmp_path / "m.pt2", Lambda(lambda x: x.clone()), (torch.ones(2, 256, dtype=torch.bfloat16),),
        {"x": {0: Dim("b")}},
    )  # fmt: skip
    predictor = load(Source(str(path))).predictor
    bits = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    answer = run(predictor, {"x": bits.view(ml_dtypes.bfloat16)})["output"]
    assert np.array_equal(answer.view(np.uint16), bits)


@pytest.mark.parametrize(
    ("side", "text", "said"),
    [
        ("x", "str[n, 4]", "no tensors of str"), ("x", "int64[n, 4] nullable", "no missing int64"),
        ("x", "float32[n, 4] nullable", ""), ("output", "str[n, 3]", "no tensors of str"),
    ],
)  # fmt: skip
def test_what_no_tensor_holds_is_refused_by_name(side: str, text: str, said: str, tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    sides = {"x": "float32[n, 4]", "output": "float32[n, 3]", side: text}
    given = Signature({"x": sides["x"]}, {"output": sides["output"]})
    if not said:
        pack(path, tmp_path / "p", signature=given)
        return
    with pytest.raises(CannotLoad, match=f"'{side}': PyTorch has {said}"):
        pack(path, tmp_path / "p", signature=given)


def test_texts_in_an_example_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="input 'x': PyTorch has no tensors of"):
        pack(torch_nets.Small(), tmp_path / "p", example={"x": ["a", "b"]})


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "", "CPU", "mps", "cpu:1"])
def test_a_device_that_is_not_there_is_refused(device: str, tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    with pytest.raises(CannotLoad, match=r"no device '.*' here; it has cpu"):
        load(Source(str(path)), device)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_of_the_option(threads: int, tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    load(Source(str(path), options={"threads": threads}))
    assert torch.get_num_threads() == threads


def test_neither_gradients_nor_autocast_of_the_caller_matter(tmp_path: Path) -> None:
    predictor = packed_class(tmp_path / "p", torch_nets.Small(), rows())
    plain = run(predictor, {"x": rows()})["output"]
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert np.array_equal(run(predictor, {"x": rows()})["output"], plain)


def test_several_threads_may_ask_at_once(tmp_path: Path) -> None:
    predictor = packed_class(tmp_path / "p", torch_nets.Small(), rows())
    wanted = run(predictor, {"x": rows(8)})["output"]
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(run(predictor, {"x": rows(8)})["output"])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(np.array_equal(answer, wanted) for answer in answers)


def test_zero_rows(tmp_path: Path) -> None:
    path = program(tmp_path / "m.pt2", torch_nets.Small(), (torch.rand(3, 4),), {"x": {0: Dim("b")}})
    assert run(load(Source(str(path))).predictor, {"x": rows(0)})["output"].shape == (0, 3)


def test_the_artifact_names_its_libraries(tmp_path: Path) -> None:
    pack(torch_nets.Small(), tmp_path / "p", example=rows())
    assert open_artifact(tmp_path / "p").manifest.libraries["torch"] == torch.__version__
