"""A checkpoint's files are data: what names another place is not followed, and nothing of them runs without trust."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import huggingface_checkpoints as tiny
from maitred.model.artifact import is_artifact
from maitred.model.flavors.huggingface.folder import read_checkpoint, view
from maitred.model.loading import Source, describe, load, replay, run
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack, Corrupt, LoadRefused, Untrusted

pytestmark = tiny.NEEDS_LIBRARIES

TRUST = "tester: it is our own"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A checkpoint to do harm to."""
    return Path(shutil.copytree(made, tmp_path / "m"))


def answer(source: Source) -> Any:
    loaded = load(source)
    values = np.empty(2, object)
    values[:] = ["the cat sat", "a dog"]
    return run(loaded.predictor, {"text": values})["scores"]


# --- settings that name other places -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_tokenizer_gets_no_file_that_its_settings_name(folder: Path, name: str, tmp_path: Path) -> None:
    wanted = answer(Source(str(folder)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = tiny.tokenizer()
    other.add_tokens(["cat", "sat"])
    other.save_pretrained(elsewhere)
    (elsewhere / "vocab.txt").write_text("[UNK]\n")
    if not (folder / name).exists():
        tiny.write(folder / name, {})
    places = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json", "merges_file": "x", "spm_file": "x"}
    for there in (str(elsewhere), "../elsewhere"):
        tiny.change(
            folder / name,
            **{key: f"{there}/{file}" for key, file in places.items()},
            fast_tokenizer_files=[f"{there}/tokenizer.4.0.json"],
            mecab_kwargs={"mecab_option": f"-d {there}"},
            init_inputs=[f"{there}/vocab.txt"],
            name_or_path=there,
        )
        assert np.array_equal(answer(Source(str(folder))), wanted)


def test_the_library_sees_nothing_but_what_a_checkpoint_needs(folder: Path) -> None:
    tiny.change(
        folder / "config.json", auto_map={"AutoModel": "evil.Net"}, _name_or_path="/etc/passwd",
        attn_implementation="someone/kernel", _attn_implementation="someone/kernel", use_kernels=True,
    )  # fmt: skip
    for name in ("evil.py", "adapter_model.safetensors", "pytorch_model.bin", "notes.txt", "chat_template.jinja"):
        (folder / name).write_text("raise SystemExit")
    with view(read_checkpoint(folder), trusted=False) as seen:
        assert {*os.listdir(seen)} == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        config = json.loads((seen / "config.json").read_text())
        assert not {"auto_map", "_name_or_path", "attn_implementation", "_attn_implementation", "use_kernels"} & {
            *config
        }
        assert config["id2label"] == {str(at): label for at, label in tiny.MOODS.items()}
    assert not seen.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantized"),
        ({"transformers_weights": "../other.safetensors"}, "a file of weights of its own"),
        ({"backbone": "resnet50"}, "lies elsewhere"),
        ({"use_timm_backbone": True}, "another library's"),
        ({"backbone_config": {"use_pretrained_backbone": True}}, "use_pretrained_backbone"),
        ({"index_path": "/var/data"}, "index_path names a place outside"),
        ({"text_config": {"deep": ["../../x"]}}, "deep names a place outside"),
        ({"retriever": "https://example.com/x"}, "retriever names a place outside"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is beyond 1000"),
        ({"vocab_size": 10**12}, "they are not a pair"),
        ({"max_position_embeddings": 10**12}, "they are not a pair"),
        ({"intermediate_size": 33}, "have other sizes than config.json says"),
        ({"id2label": {"0": "a", "2": "b"}}, "without gaps"),
        ({"id2label": ["a"]}, "must be objects"),
        ({"model_type": 3}, "says no model_type"),
        ({"model_type": None}, "says no model_type"),
        ({"architectures": "BertModel"}, "says no model_type"),
        ({"architectures": ["WhisperForConditionalGeneration"]}, "no task is known for 'WhisperForConditional"),
        ({"architectures": None}, "names no architecture"),
    ],
)
def test_configs_that_cannot_be_served_are_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    tiny.change(folder / "config.json", **change)
    with pytest.raises(CannotLoad) as refused:
        load(Source(str(folder)))
    assert said in refused.value.message
    assert str(folder) not in refused.value.message


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b"{", b'{"model_type": "bert"', b"\xff\xfe{}", b"[" * 100_000, b'{"x":' * 30 + b"1" + b"}" * 30],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_what_is_no_settings_file_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CannotLoad, match=name):
        load(Source(str(folder)))


def test_a_tokenizer_that_would_hang_or_abort_is_refused(folder: Path) -> None:
    table = json.loads((folder / "tokenizer.json").read_text())
    for changed in (
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": []}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    ):
        tiny.write(folder / "tokenizer.json", {**table, **changed})
        with pytest.raises(CannotLoad, match=r"^tokenizer\.json"):
            load(Source(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_files_of_absurd_sizes_are_refused_unread(folder: Path, name: str) -> None:
    with open(folder / name, "r+b") as file:
        file.truncate(200 << 20)
    with pytest.raises(CannotLoad, match=f"{name} takes .* bytes, more than"):
        load(Source(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_links_are_refused(folder: Path, name: str, tmp_path: Path) -> None:
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(Corrupt if name != "config.json" else LoadRefused, match=r"link|regular"):
        load(Source(str(folder)))
    with pytest.raises(LoadRefused):
        pack(folder, tmp_path / "packed")


def test_a_folder_with_another_config_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    tiny.write(tmp_path / "m" / "config.json", {"port": 8080})
    for refused in (describe, load):
        with pytest.raises(CannotLoad, match=r"config\.json says no model_type, so this is no checkpoint"):
            refused(Source(str(tmp_path / "m")))
    with pytest.raises(CannotLoad, match="no checkpoint of transformers"):
        pack(tmp_path / "m", tmp_path / "packed")
    assert not is_artifact(tmp_path / "packed")


# --- weights -------------------------------------------------------------------------------------------------------


def sharded(folder: Path) -> Path:
    network = tiny.network("BertForSequenceClassification", id2label=tiny.MOODS)
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder, max_shard_size="10KB")
    return folder / "model.safetensors.index.json"


def test_weights_in_several_files_are_read_and_packed(folder: Path, tmp_path: Path) -> None:
    wanted = answer(Source(str(folder)))
    sharded(folder)
    assert len([*folder.glob("model-*.safetensors")]) > 1
    assert np.array_equal(answer(Source(str(folder))), wanted)
    pack(folder, tmp_path / "packed", example=tiny.LINES)
    assert np.array_equal(answer(Source(str(tmp_path / "packed"))), wanted)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("../other.safetensors", "not a .safetensors file beside it"),
        ("/etc/passwd", "not a .safetensors file beside it"),
        ("pytorch_model.bin", "not a .safetensors file beside it"),
        ("model-9.safetensors", "not in the folder"),
        (7, "not a .safetensors file beside it"),
    ],
)
def test_an_index_names_files_beside_it_only(folder: Path, place: Any, said: str) -> None:
    index = sharded(folder)
    table = json.loads(index.read_text())["weight_map"]
    tiny.change(index, weight_map={**table, next(iter(table)): place})
    with pytest.raises(CannotLoad, match=said):
        load(Source(str(folder)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"there is no model\.safetensors in the folder"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "tf_model.h5"), r"tf_model\.h5 is another fram"),
        (lambda folder: tiny.write(folder / "adapter_config.json", {}), "merge it into its base model"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "needs a tokenizer"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64), "huggingface cannot open config"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "json is not what the tokenizers library writes"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_told(folder: Path, change: Callable[[Path], Any], said: str) -> None:
    change(folder)
    with pytest.raises(CannotLoad, match=said) as refused:
        load(Source(str(folder)))
    assert str(folder) not in refused.value.message


def pickled(folder: Path) -> None:
    import torch

    network = tiny.network("BertForSequenceClassification", id2label=tiny.MOODS)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")


def test_pickled_weights_need_trust(folder: Path, tmp_path: Path) -> None:
    wanted = answer(Source(str(folder)))
    pickled(folder)
    with pytest.raises(Untrusted, match=r"the pickle pytorch_model\.bin, which imports .*OrderedDict"):
        load(Source(str(folder)))
    with pytest.raises(Untrusted):
        pack(folder, tmp_path / "packed", example=tiny.LINES)
    assert np.allclose(answer(Source(str(folder), trust=TRUST)), wanted)
    pack(folder, tmp_path / "packed", example=tiny.LINES, trust=TRUST)
    assert (tmp_path / "packed" / "pytorch_model.bin").is_file()
    replay(load(Source(str(tmp_path / "packed"))))
    os.environ.pop("MAITRED_HOME")
    with pytest.raises(Untrusted):
        load(Source(str(tmp_path / "packed"), trust_file=str(tmp_path / "none.toml")))


class Touch:
    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.place),))


def test_a_trusted_pickle_still_gets_nothing_but_weights(folder: Path, tmp_path: Path) -> None:
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({"classifier.weight": Touch(str(tmp_path / "touched"))}, folder / "pytorch_model.bin")
    with pytest.raises(Untrusted, match=r"Path"):
        load(Source(str(folder)))
    with pytest.raises(CannotLoad):
        load(Source(str(folder), trust=TRUST))
    assert not (tmp_path / "touched").exists()


# --- code ----------------------------------------------------------------------------------------------------------

CODE = """
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification

Path({place!r}).touch()


class OddConfig(BertConfig):
    model_type = "odd"


class Odd(BertForSequenceClassification):
    config_class = OddConfig
"""


def test_code_of_a_checkpoint_runs_with_trust_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    wanted = answer(Source(str(folder)))
    (folder / "odd.py").write_text(CODE.format(place=str(tmp_path / "touched")))
    code = {"AutoConfig": "odd.OddConfig", "AutoModelForSequenceClassification": "odd.Odd"}
    tiny.change(folder / "config.json", model_type="odd", auto_map=code)
    tiny.change(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    described = describe(Source(str(folder)))
    assert described is not None and described.labels["scores"] == tuple(tiny.MOODS.values())
    with pytest.raises(Untrusted, match=r"the code in odd\.py, which the settings ask for"):
        load(Source(str(folder)))
    with pytest.raises(Untrusted):
        pack(folder, tmp_path / "packed")
    assert not (tmp_path / "touched").exists()
    monkeypatch.syspath_prepend(str(tmp_path / "cache"))
    assert np.array_equal(answer(Source(str(folder), trust=TRUST)), wanted)
    assert (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    "auto_map", [{"AutoModel": "someone/model--odd.Odd"}, {"AutoModel": "gone.Odd"}, ["../odd.Odd", None]]
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_that_lies_elsewhere_is_refused_even_with_trust(folder: Path, name: str, auto_map: Any) -> None:
    tiny.change(folder / name, auto_map=auto_map)
    with pytest.raises(CannotLoad, match="asks for code that is not in the folder"):
        load(Source(str(folder), trust=TRUST))


def test_code_that_nothing_asks_for_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "modeling_bert.py").write_text("raise SystemExit")
    load(Source(str(folder)), isolated=False)
    pack(folder, tmp_path / "packed", example=tiny.LINES)
    assert not [*(tmp_path / "packed").rglob("*.py")]


def test_a_folder_without_a_config_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises((CannotPack, LoadRefused)):
        pack(tmp_path / "m", tmp_path / "packed")
