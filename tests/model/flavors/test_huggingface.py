"""Hugging Face checkpoints answer as the library's own pipelines do, whoever shares the batch."""

from __future__ import annotations

import io
import json
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import huggingface_checkpoints as tiny
from maitred.errors import InvalidInput
from maitred.model.loading import Loaded, Source, describe, load, replay, run
from maitred.model.pack import pack
from maitred.model.predictor import Context, call
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused

pytestmark = tiny.NEEDS_LIBRARIES

LONG = " ".join(tiny.LINES * 4)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def opened(folder: Path, **options: Any) -> Loaded:
    return load(Source(str(folder), name="tiny", options=options))


def texts(values: list[str]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def answer(loaded: Loaded, values: list[str]) -> dict[str, Any]:
    return run(loaded.predictor, {"text": texts(values)})


def pipeline(task: str, folder: Path, **more: Any) -> Any:
    import transformers

    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu", **more)


# --- text classification -------------------------------------------------------------------------------------------


def test_a_folder_tells_its_signature_without_being_loaded(tmp_path: Path) -> None:
    told = describe(Source(str(tiny.checkpoint(tmp_path / "moods"))))
    assert told is not None
    assert (told.name, told.flavor) == ("moods", "huggingface")
    assert told.signature.to_text() == (
        "text: str[n] -> label: str[n], score: float32[n] rtol=0.0001 atol=1e-05, "
        'scores: float32[n, 3] rtol=0.0001 atol=1e-05 labels=["sad", "glad", "so-so"]'
    )


@pytest.mark.parametrize("problem", [None, "single_label_classification", "multi_label_classification", "regression"])
def test_texts_are_classified_as_by_the_pipeline(problem: str | None, tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "BertForSequenceClassification", id2label=tiny.MOODS, problem_type=problem)
    got = answer(opened(folder), [*tiny.LINES, ""])
    theirs = pipeline("text-classification", folder)([*tiny.LINES, ""], top_k=None)
    for row, scores in enumerate(theirs):
        wanted = {line["label"]: line["score"] for line in scores}
        assert got["label"][row] == scores[0]["label"]
        assert got["score"][row] == pytest.approx(scores[0]["score"], abs=1e-5)
        assert got["scores"][row] == pytest.approx([wanted[label] for label in tiny.MOODS.values()], abs=1e-5)


def test_a_network_with_one_class_gives_its_score_alone(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "BertForSequenceClassification", num_labels=1)
    loaded = opened(folder, pairs=True)
    assert [*loaded.predictor.signature.outputs] == ["score"]
    pairs = {"text": texts(tiny.LINES), "text_pair": texts(tiny.LINES[::-1])}
    theirs = pipeline("text-classification", folder)
    wanted = [theirs({"text": a, "text_pair": b})["score"] for a, b in zip(tiny.LINES, tiny.LINES[::-1], strict=True)]
    assert run(loaded.predictor, pairs)["score"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("buckets", [[], [8, 16, 32]])
def test_answers_do_not_depend_on_the_neighbours(buckets: list[int], tmp_path: Path) -> None:
    loaded = opened(tiny.checkpoint(tmp_path / "m"), buckets=buckets)
    values = [*tiny.LINES, LONG, "", "cat"] * 5
    together = answer(loaded, values)["scores"]
    for row in range(9):
        alone = answer(loaded, values[row : row + 1])["scores"][0]
        assert np.allclose(together[row], alone, rtol=1e-4, atol=1e-5)
        assert np.array_equal(together[row].argmax(), alone.argmax())
    backwards = answer(loaded, values[::-1])["scores"][::-1]
    assert np.allclose(together, backwards, rtol=1e-4, atol=1e-5)


def test_long_texts_are_cut_or_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m")
    cut = opened(folder, max_length=8)
    same = answer(cut, ["the cat sat on the mat", "the cat sat on the mat and the dog", "the cat sat on the mat" * 9])
    assert np.allclose(same["scores"][0], same["scores"][1], atol=1e-5)
    strict = opened(folder, max_length=8, truncate=False)
    answer(strict, ["the cat sat on the mat"])
    for text in ("the cat sat on the mat and", "a" * 10_000):
        with pytest.raises(InvalidInput, match=r"row 1: .* more than the 8 tokens"):
            answer(strict, ["the cat", text])


def test_long_texts_do_not_make_short_ones_long(tmp_path: Path) -> None:
    loaded = opened(tiny.checkpoint(tmp_path / "m"))
    shapes: list[tuple[int, ...]] = []
    network = loaded.predictor._opened.network  # type: ignore[attr-defined]
    network.register_forward_pre_hook(
        lambda _, args, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    answer(loaded, [LONG, *["cat"] * 20, LONG])
    assert shapes == [(20, 3), (2, 64)]
    shapes.clear()
    answer(loaded, [*tiny.LINES, *tiny.LINES])
    assert len(shapes) == 1
    shapes.clear()
    answer(loaded, ["cat"] * 130)
    assert [rows for rows, _ in shapes] == [64, 64, 2]


def test_a_tokenizer_that_adds_nothing_gets_a_token_for_an_empty_text(tmp_path: Path) -> None:
    import tokenizers

    folder = tiny.checkpoint(tmp_path / "m")
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.post_processor = tokenizers.processors.Sequence([])
    plain.save(str(folder / "tokenizer.json"))
    tiny.change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    tiny.change(folder / "config.json", model_type="bert", tokenizer_class="PreTrainedTokenizerFast")
    loaded = opened(folder)
    assert loaded.predictor._texts.backend.encode("").ids == []  # type: ignore[attr-defined]
    got = answer(loaded, ["", "the cat"])["scores"]
    assert np.isfinite(got).all()


def test_megabytes_are_not_tokenized_to_keep_a_few_tokens(tmp_path: Path) -> None:
    loaded = opened(tiny.checkpoint(tmp_path / "m"))
    seen: list[int] = []
    texts_of = loaded.predictor._texts  # type: ignore[attr-defined]
    encoded = texts_of._encoded
    texts_of._encoded = lambda rows, *rest: seen.extend(map(len, rows)) or encoded(rows, *rest)
    answer(loaded, ["the cat " * 1_000_000])
    assert seen == [64 * 200]


# --- sentence vectors ----------------------------------------------------------------------------------------------


def reference(folder: Path, values: list[str], mode: str, normalize: bool) -> Any:
    """Each text alone through the library, pooled by hand."""
    import torch
    import transformers

    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    vectors = []
    for value in values:
        with torch.no_grad():
            tokens = network(**tokenizer(value, return_tensors="pt", truncation=True)).last_hidden_state[0].numpy()
        places = np.arange(1, len(tokens) + 1)[:, None]
        vector = {
            "cls": tokens[0],
            "lasttoken": tokens[-1],
            "max": tokens.max(0),
            "mean": tokens.mean(0),
            "mean_sqrt_len_tokens": tokens.sum(0) / np.sqrt(len(tokens)),
            "weightedmean": (tokens * places).sum(0) / places.sum(),
        }[mode]
        vectors.append(vector / np.linalg.norm(vector) if normalize else vector)
    return np.array(vectors)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode": ["lasttoken"]}, "lasttoken"),
    ],
)
def test_sentence_vectors_are_pooled_as_the_files_say(
    pooling: dict[str, Any], mode: str, normalize: bool, tmp_path: Path
) -> None:
    folder = tiny.sentences(tmp_path / "m", pooling=pooling, normalize=normalize)
    got = answer(opened(folder), [*tiny.LINES, "cat"])["embedding"]
    assert np.allclose(got, reference(folder, [*tiny.LINES, "cat"], mode, normalize), atol=1e-5)


def test_several_poolings_lie_side_by_side(tmp_path: Path) -> None:
    pooling = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    folder = tiny.sentences(tmp_path / "m", pooling=pooling, normalize=False)
    loaded = opened(folder)
    assert loaded.predictor.signature.outputs["embedding"].shape == ("n", 32)
    both = [reference(folder, tiny.LINES, mode, False) for mode in ("cls", "mean")]
    assert np.allclose(answer(loaded, tiny.LINES)["embedding"], np.hstack(both), atol=1e-5)


def test_limits_prompts_and_case_of_sentence_transformers_hold(tmp_path: Path) -> None:
    folder = tiny.sentences(
        tmp_path / "m",
        pooling={"pooling_mode_mean_tokens": True},
        sentence_bert_config={"max_seq_length": 8, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "who ate ", "doc": ""}, "default_prompt_name": "query"},
    )
    loaded = opened(folder)
    got = answer(loaded, ["the cat", "THE CAT", "the cat" + " sat on the mat" * 9])["embedding"]
    assert np.allclose(got[0], got[1])
    assert np.allclose(got[:1], reference(folder, ["who ate the cat"], "mean", True), atol=1e-5)
    named = call(loaded.predictor, {"text": texts(["the cat"])}, Context({"prompt": "query"}))["embedding"]
    assert np.allclose(named[0], got[0])
    with pytest.raises(InvalidInput, match="no prompt has that name; this model has query"):
        call(loaded.predictor, {"text": texts(["the cat"])}, Context({"prompt": "other"}))
    with pytest.raises(CannotLoad, match="max_length is 65, and the network has 64"):
        opened(folder, max_length=65)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("modules.json", [{"type": "x.Dense", "path": "2_Dense"}, {"type": "x.Pooling", "path": "1_Pooling"}], "Dense"),
        ("modules.json", [{"type": "x.Pooling", "path": "../elsewhere"}], "names a place"),
        ("modules.json", [{"type": "x.Pooling", "path": "/etc"}], "names a place"),
        ("modules.json", {"type": "x.Pooling"}, "list of objects"),
        ("1_Pooling/config.json", {"pooling_mode": "best"}, "pooling_mode must be of"),
    ],
)
def test_modules_that_are_not_understood_are_refused(name: str, change: Any, said: str, tmp_path: Path) -> None:
    folder = tiny.sentences(tmp_path / "m", pooling={})
    tiny.write(folder / name, change)
    with pytest.raises(CannotLoad, match=said):
        describe(Source(str(folder)))


# --- other tasks about texts ---------------------------------------------------------------------------------------


def test_names_are_found_as_by_the_pipeline(tmp_path: Path) -> None:
    kinds = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
    folder = tiny.checkpoint(tmp_path / "m", "BertForTokenClassification", id2label=kinds)
    got = answer(opened(folder), tiny.LINES)
    theirs = pipeline("token-classification", folder, aggregation_strategy="simple")(tiny.LINES)
    assert sum(map(len, theirs)) > 3
    for row, wanted in enumerate(theirs):
        assert json.loads(got["entities"][row]) == [
            {"label": line["entity_group"], "start": line["start"], "end": line["end"],
             "text": tiny.LINES[row][line["start"] : line["end"]]} for line in wanted
        ]  # fmt: skip
        assert got["confidence"][row] == pytest.approx(min((line["score"] for line in wanted), default=1.0), abs=1e-5)


def test_masks_are_filled_as_by_the_pipeline(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "BertForMaskedLM")
    loaded = opened(folder, top_k=3)
    values = ["the [MASK] sat on the mat", "[MASK] is a city in France, and Rome one in Italy"]
    got = answer(loaded, values)
    for row, wanted in enumerate(pipeline("fill-mask", folder)(values, top_k=3)):
        assert got["tokens"][row].tolist() == [line["token_str"] for line in wanted]
        assert got["scores"][row] == pytest.approx([line["score"] for line in wanted], abs=1e-5)
    for bad in ("the cat", "[MASK] and [MASK]"):
        with pytest.raises(InvalidInput, match=r"row 1: the text must hold \[MASK\] once"):
            answer(loaded, [values[0], bad])


def test_answers_are_cut_out_of_the_context(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "BertForQuestionAnswering")
    loaded = opened(folder)
    contexts = [tiny.LINES[3], LONG, "cat", ""]
    questions = ["who ate the cake?"] * 4
    got = run(loaded.predictor, {"question": texts(questions), "context": texts(contexts)})
    for row, context in enumerate(contexts):
        start, end = got["start"][row], got["end"][row]
        assert 0 <= start <= end <= len(context)
        assert got["answer"][row] == context[start:end]
        alone = run(loaded.predictor, {"question": texts(questions[:1]), "context": texts([context])})
        assert alone["answer"][0] == got["answer"][row]
        assert alone["score"][0] == pytest.approx(got["score"][row], rel=1e-3)
    assert got["answer"][2] == "cat"
    assert got["score"][3] == 0
    with pytest.raises(InvalidInput, match="row 0: the question leaves no room"):
        run(loaded.predictor, {"question": texts([LONG]), "context": texts(["cat"])})


def test_labels_that_nobody_trained_are_scored_as_by_the_pipeline(tmp_path: Path) -> None:
    kinds = {0: "contradiction", 1: "neutral", 2: "entailment"}
    folder = tiny.checkpoint(tmp_path / "m", "BertForSequenceClassification", id2label=kinds,
                             label2id={label: at for at, label in kinds.items()})  # fmt: skip
    labels = ["cat", "city", "cake"]
    loaded = opened(folder, task="zero-shot-classification", labels=labels)
    got = answer(loaded, tiny.LINES)
    assert loaded.predictor.signature.outputs["scores"].labels == tuple(labels)
    for row, wanted in enumerate(pipeline("zero-shot-classification", folder)(tiny.LINES, labels)):
        scores = dict(zip(wanted["labels"], wanted["scores"], strict=True))
        assert got["scores"][row] == pytest.approx([scores[label] for label in labels], abs=1e-5)
        assert got["label"][row] == wanted["labels"][0]
    with pytest.raises(CannotLoad, match="needs the option labels"):
        opened(folder, task="zero-shot-classification")
    with pytest.raises(CannotLoad, match="a label 'entailment'"):
        opened(tiny.checkpoint(tmp_path / "o"), task="zero-shot-classification", labels=labels)


def generator(folder: Path, kind: str) -> Path:
    import torch
    import transformers

    torch.manual_seed(3)
    if kind == "GPT2LMHeadModel":
        config: Any = transformers.GPT2Config(
            vocab_size=tiny.SIZE, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=2, eos_token_id=3
        )
    else:
        config = transformers.T5Config(
            vocab_size=tiny.SIZE, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0,
            eos_token_id=3, decoder_start_token_id=0, initializer_factor=5.0,
        )  # fmt: skip
    getattr(transformers, kind)(config).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_text_is_generated_always_the_same_way(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import torch
    import transformers

    folder = generator(tmp_path / "m", kind)
    loaded = opened(folder, max_new_tokens=6)
    capfd.readouterr()
    got = answer(loaded, [*tiny.LINES[:3], ""])["generated"]
    assert capfd.readouterr() == ("", "")
    assert got[:3].tolist() == [answer(loaded, [line])["generated"][0] for line in tiny.LINES[:3]]
    auto = transformers.AutoModelForCausalLM if kind.startswith("GPT2") else transformers.AutoModelForSeq2SeqLM
    network, tokenizer = auto.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(tiny.LINES[0], return_tensors="pt", return_token_type_ids=kind.startswith("GPT2"))
    with torch.no_grad():
        made = network.generate(**given, max_new_tokens=6, do_sample=False, pad_token_id=0)[0]
    start = given["input_ids"].shape[1] if kind.startswith("GPT2") else 0
    assert got[0] == tokenizer.decode(made[start:], skip_special_tokens=True) != ""
    one = call(loaded.predictor, {"text": texts(tiny.LINES[:1])}, Context({"max_new_tokens": 1}))["generated"][0]
    assert got[0].startswith(one) and len(one) < len(got[0])
    for wrong in (0, 7, True, "6"):
        with pytest.raises(InvalidInput, match="whole number from 1 to 6"):
            call(loaded.predictor, {"text": texts(["cat"])}, Context({"max_new_tokens": wrong}))
    asked = Context({}, cancelled=lambda: True)
    assert len(call(loaded.predictor, {"text": texts(tiny.LINES[:1])}, asked)["generated"][0]) < len(got[0])


# --- images and tensors --------------------------------------------------------------------------------------------


def pictures(folder: Path) -> Path:
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        id2label={0: "daisy", 1: "rose"}, label2id={"daisy": 0, "rose": 1}, initializer_range=0.5,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    tiny.write(
        folder / "preprocessor_config.json",
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_normalize": True,
         "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_rescale": True, "do_resize": True},
    )  # fmt: skip
    return folder


def photo(kind: str, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> bytes:
    import PIL.Image

    noise = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(noise).convert(mode).save(file, kind)
    return file.getvalue()


def test_images_are_classified_as_by_the_pipeline(tmp_path: Path) -> None:
    import PIL.Image
    import transformers

    folder = pictures(tmp_path / "m")
    loaded = opened(folder)
    images = [photo("PNG"), photo("JPEG", (64, 64)), photo("PNG", (31, 7), "L"), photo("GIF"), photo("PNG", mode="LA")]
    got = run(loaded.predictor, {"image": texts(images)})  # type: ignore[arg-type]
    theirs = transformers.pipeline("image-classification", model=str(folder), device="cpu")
    for row, data in enumerate(images):
        wanted = {line["label"]: line["score"] for line in theirs(PIL.Image.open(io.BytesIO(data)))}
        assert got["scores"][row] == pytest.approx([wanted["daisy"], wanted["rose"]], abs=1e-5)


def test_what_is_no_image_is_refused_by_its_row(tmp_path: Path) -> None:
    loaded = opened(pictures(tmp_path / "m"))
    good = photo("PNG")
    for bad in (b"", b"GIF89a", good[:-40], b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", bomb()):
        with pytest.raises(InvalidInput, match="row 1: "):
            run(loaded.predictor, {"image": texts([good, bad])})  # type: ignore[list-item]


def bomb() -> bytes:
    """A small file of a picture with 400 million pixels."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.new("1", (20_000, 20_000)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [
        ("BertForSequenceClassification", "logits: float32[n, 3]"),
        ("BertForTokenClassification", "logits: float32[n, seq, 2]"),
        ("BertForMaskedLM", f"logits: float32[n, seq, {tiny.SIZE}]"),
        ("BertModel", "last_hidden_state: float32[n, seq, 16]"),
    ],
)
def test_raw_tensors_go_in_and_out(kind: str, outputs: str, tmp_path: Path) -> None:
    loaded = opened(tiny.checkpoint(tmp_path / "m", kind), task="raw")
    said = loaded.predictor.signature.to_text()
    bounds = 'pad=0 buckets={"seq": [16, 32, 64]}'
    assert said.startswith(
        f"input_ids: int64[n, seq] min=0 max={tiny.SIZE - 1} {bounds}, attention_mask: int64[n, seq] min=0"
    )
    assert outputs in said
    tokens = np.array([[2, 7, 9, 3], [2, 8, 3, 0]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    (name,) = loaded.predictor.signature.outputs
    both = run(loaded.predictor, {"input_ids": tokens, "attention_mask": mask})[name]
    alone = run(loaded.predictor, {"input_ids": tokens[1:, :3], "attention_mask": mask[1:, :3]})[name]
    assert np.allclose(both[1] if both.ndim == 2 else both[1, :3], alone[0], atol=1e-5)


def test_a_network_alone_is_packed_for_its_tensors(tmp_path: Path) -> None:
    import torch

    network = tiny.network("BertForSequenceClassification", id2label=tiny.MOODS)
    rows = {"input_ids": [[2, 7, 3], [2, 9, 3]], "attention_mask": [[1, 1, 1], [1, 1, 1]]}
    pack(network, tmp_path / "m", example=rows)
    loaded = load(Source(str(tmp_path / "m")))
    replay(loaded)
    with torch.no_grad():
        wanted = network(input_ids=torch.tensor(rows["input_ids"])).logits.numpy()
    ids = {name: np.array(values) for name, values in rows.items()}
    assert np.allclose(run(loaded.predictor, ids)["logits"], wanted, atol=1e-5)


# --- loading -------------------------------------------------------------------------------------------------------


def test_nothing_reaches_for_the_network_or_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = [tiny.checkpoint(tmp_path / "m"), pictures(tmp_path / "p"), generator(tmp_path / "g", "GPT2LMHeadModel")]
    capfd.readouterr()

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("something reached for the network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    for folder in folders:
        loaded = opened(folder, max_new_tokens=4)
        run(loaded.predictor, {name: texts(["cat"]) for name in loaded.predictor.signature.inputs if name == "text"}
            or {"image": texts([photo("PNG")])})  # type: ignore[list-item]  # fmt: skip
    assert capfd.readouterr() == ("", "")


def test_progress_bars_and_warnings_are_left_as_they_were(tmp_path: Path) -> None:
    import transformers

    folder = tiny.checkpoint(tmp_path / "m")
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    opened(folder)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_head_that_the_weights_lack_is_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", "BertModel")
    with pytest.raises(CannotLoad, match=r"the weights lack 'classifier\.bias' and 1 more that text-classification"):
        opened(folder, task="text-classification")
    masked = tiny.checkpoint(tmp_path / "o", "BertForMaskedLM")
    assert opened(masked, task="feature-extraction").predictor.signature.outputs["embedding"].shape == ("n", 16)


def test_a_tokenizer_of_another_network_is_refused(tmp_path: Path) -> None:
    folder = tiny.checkpoint(tmp_path / "m", id2label=tiny.MOODS)
    tiny.network("BertForSequenceClassification", id2label=tiny.MOODS).save_pretrained(folder)
    small = tiny.settings(id2label=tiny.MOODS)
    small.vocab_size = 50
    import transformers

    transformers.BertForSequenceClassification(small).save_pretrained(folder)
    with pytest.raises(CannotLoad, match="they are not a pair"):
        opened(folder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_run_as_stored_or_widened(dtype: str, tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "m"
    tiny.checkpoint(folder)
    wide = answer(opened(folder), tiny.LINES)["scores"]
    network = tiny.network("BertForSequenceClassification", id2label=tiny.MOODS).to(getattr(torch, dtype))
    network.save_pretrained(folder)
    stored, widened = opened(folder), opened(folder, dtype="float32")
    assert stored.predictor.signature.outputs["scores"].dtype == "float32"
    assert stored.predictor.signature.outputs["scores"].tolerance[0] >= 1e-2
    assert widened.predictor.signature.outputs["scores"].tolerance == (1e-4, 1e-5)
    assert np.allclose(answer(stored, tiny.LINES)["scores"], wide, atol=0.1)
    assert np.allclose(answer(widened, tiny.LINES)["scores"], wide, atol=0.05)


def test_threads_are_those_of_the_option(tmp_path: Path) -> None:
    import torch

    opened(tiny.checkpoint(tmp_path / "m"), threads=2)
    assert torch.get_num_threads() == 2
    opened(tmp_path / "m")
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "speech"}, "the task 'speech' is not supported; there are text-classification"),
        ({"max_lenght": 3}, "max_lenght"),
        ({"buckets": [32, 16]}, "ascending"),
        ({"pooling": "best"}, "pooling must be one of cls"),
        ({"threads": 0}, "threads"),
        ({"dtype": "float8"}, "dtype"),
        ({"pad_token": "[NONE]"}, "pad_token names no token"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match=said):
        opened(tiny.checkpoint(tmp_path / "m"), **options)


def test_a_device_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadRefused, match="no device 'cuda:7'"):
        load(Source(str(tiny.checkpoint(tmp_path / "m"))), device="cuda:7")


# --- packing -------------------------------------------------------------------------------------------------------


def test_a_folder_is_packed_with_what_belongs_to_it_alone(tmp_path: Path) -> None:
    folder = tiny.sentences(tmp_path / "m", pooling={"pooling_mode_mean_tokens": True})
    for extra in ("pytorch_model.bin", "notes.txt", "training_args.bin", "tool.py", "LICENSE"):
        (folder / extra).write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    pack(folder, tmp_path / "packed", name="embed", example=tiny.LINES)
    held = {str(path.relative_to(tmp_path / "packed")) for path in (tmp_path / "packed").rglob("*") if path.is_file()}
    assert held == {
        "1_Pooling/config.json", "LICENSE", "config.json", "example.json", "maitred.toml", "model.safetensors",
        "modules.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    loaded = load(Source(str(tmp_path / "packed")), isolated=False)
    replay(loaded)
    assert np.allclose(answer(loaded, tiny.LINES)["embedding"], answer(opened(folder), tiny.LINES)["embedding"])


def test_pipelines_are_packed_with_their_task(tmp_path: Path) -> None:
    masked = pipeline("fill-mask", tiny.checkpoint(tmp_path / "m", "BertForMaskedLM"))
    told = pack(masked, tmp_path / "packed", example=["the [MASK] sat"], options={"top_k": 2})
    assert told.signature.outputs["tokens"].shape == ("n", 2)
    images = pack_images(tmp_path)
    assert [*images.signature.inputs] == ["image"]


def pack_images(tmp_path: Path) -> Any:
    import transformers

    made = transformers.pipeline("image-classification", model=str(pictures(tmp_path / "p")), device="cpu")
    return pack(made, tmp_path / "images", example={"image": [photo("PNG"), photo("JPEG")]})


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed")
def test_what_sentence_transformers_made_is_packed(tmp_path: Path) -> None:
    import sentence_transformers

    folder = tiny.sentences(tmp_path / "m", pooling={"pooling_mode_mean_tokens": True})
    made = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    pack(made, tmp_path / "packed", name="embed", example=tiny.LINES)
    got = answer(load(Source(str(tmp_path / "packed"))), tiny.LINES)["embedding"]
    assert np.allclose(got, made.encode(tiny.LINES, show_progress_bar=False), atol=1e-5)


def test_a_pipeline_for_something_else_cannot_be_packed(tmp_path: Path) -> None:
    made = pipeline("text-classification", tiny.checkpoint(tmp_path / "m"))
    made.task = "video-classification"
    with pytest.raises(CannotPack, match="a pipeline for video-classification cannot be packed"):
        pack(made, tmp_path / "packed")
