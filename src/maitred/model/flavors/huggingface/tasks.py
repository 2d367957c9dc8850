"""What a checkpoint is for, its options, and the signature that follows: read from settings, with nothing loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, cast

import msgspec

from maitred.messages import DType
from maitred.model.flavors import ROWS, Found, derived, spec_of
from maitred.model.flavors.huggingface.folder import TOKENIZER_CONFIG, Checkpoint, has_tokenizer
from maitred.model.flavors.huggingface.sentences import MODES, Pooling, is_sentences, pooling_of
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad
from maitred.model.signature import TOLERANCES, TensorSpec

TOKENS: Final = "seq"

_TOLERANCE: Final = (1e-4, 1e-5)
"""Float32 answers differ by this much with the padding and the size of the batch; measured: see docs/models.md."""
_USUAL_LENGTH: Final = 512
"""Tokens of a text, where neither the tokenizer nor the network says a limit."""
_NO_LIMIT: Final = 1 << 20
"""A tokenizer that says more than this means that it knows none."""
_SMALLEST_BUCKET: Final = 16
_SHIFTED: Final = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "xmod", "data2vec-text", "ibert",
                   "longformer", "roberta-prelayernorm", "esm"}  # fmt: skip
"""Networks that count positions from behind the padding's own number."""
_SEQUENCES: Final = {
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "longt5", "m2m_100", "marian", "mbart",
    "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet", "switch_transformers", "t5", "umt5",
}  # fmt: skip
"""Networks from text to text; others of that shape hear or see."""

_ALIASES: Final = {
    "sentiment-analysis": "text-classification", "ner": "token-classification",
    "sentence-similarity": "feature-extraction", "text-embedding": "feature-extraction",
    "image-feature-extraction": "raw",
}  # fmt: skip
_ENDINGS: Final = {
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask", "ForQuestionAnswering": "question-answering", "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation", "ForImageClassification": "image-classification",
}  # fmt: skip

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the flavor; docs/models.md says what each means."""

    task: str = ""
    max_length: Annotated[int, msgspec.Meta(ge=4, le=1 << 20)] | None = None
    truncate: bool = True
    buckets: tuple[Count, ...] = ()
    pairs: bool = False
    labels: tuple[str, ...] = ()
    hypothesis: str = "This example is {}."
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    max_new_tokens: Count = 64
    pooling: str = ""
    normalize: bool | None = None
    pad_token: str = ""
    dtype: Literal["stored", "float32", "float16", "bfloat16"] = "stored"
    threads: int | None = None


class Plan(NamedTuple):
    """What is to be made of a checkpoint."""

    task: str
    """As in `TASKS`, or `raw`."""
    base: str
    """The task whose network it is; another one than `task` for `raw` and zero-shot classification."""
    options: Options
    max_length: int
    pooling: Pooling


def plan_of(checkpoint: Checkpoint, given: Mapping[str, Any]) -> Plan:
    """Task and limits, from the options and what the files say. Raises `CannotLoad` naming an option or the task."""
    options = _options(given)
    task = _ALIASES.get(options.task, options.task) or _task_of(checkpoint)
    if task not in (*TASKS, "raw"):
        raise CannotLoad(f"the task {task[:80]!a} is not supported; there are {', '.join(TASKS)} and raw")
    base = _task_of(checkpoint) if task == "raw" else _BASES.get(task, task)
    if task not in ("raw", "image-classification") and not has_tokenizer(checkpoint):
        raise CannotLoad(f"{task} needs a tokenizer, and there is no tokenizer.json in the folder: save it there too")
    pooling = _pooling(checkpoint, options) if base == "feature-extraction" else Pooling()
    if task == "zero-shot-classification" and (not options.labels or "{}" not in options.hypothesis):
        raise CannotLoad("zero-shot-classification needs the option labels, and a hypothesis with {} in it")
    return Plan(task, base, options, _max_length(checkpoint, options, pooling), pooling)


def found(checkpoint: Checkpoint, plan: Plan) -> Found | None:
    """The signature; None where only the loaded network knows the size of its answers. Raises `CannotLoad`."""
    describe = _raw if plan.task == "raw" else TASKS[plan.task]
    sides = describe(checkpoint, plan)
    return Found(derived(*sides), Traits()) if sides is not None else None


def labels_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The classes in the network's order. Raises `CannotLoad` where their numbers have gaps."""
    table = checkpoint.config.get("id2label")
    if not table:
        count = checkpoint.config.get("num_labels", 2)
        if type(count) is not int or not 0 < count <= _NO_LIMIT:
            raise CannotLoad("config.json: num_labels must be a whole number")
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(table, dict):
        raise CannotLoad("config.json: id2label must be an object")
    named = {str(key): str(label) for key, label in table.items()}
    labels = tuple(named.get(str(index), "") for index in range(len(named)))
    if len(named) != len(table) or not all(str(index) in named for index in range(len(named))):
        raise CannotLoad("config.json: id2label must number the classes from 0 without gaps")
    return labels


def activation(checkpoint: Checkpoint) -> Literal["softmax", "sigmoid", "none"]:
    """How scores come from the network's last values, as the library's own pipelines have it."""
    problem = checkpoint.config.get("problem_type")
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or len(labels_of(checkpoint)) == 1 else "softmax"


# --- task and limits ----------------------------------------------------------------------------------------------


def _options(given: Mapping[str, Any]) -> Options:
    try:
        options = msgspec.convert(dict(given), Options)
    except msgspec.ValidationError as error:
        raise CannotLoad(f"options of the Hugging Face flavor: {error}") from error
    if list(options.buckets) != sorted(set(options.buckets)):
        raise CannotLoad("options of the Hugging Face flavor: buckets must be ascending")
    if options.pooling and options.pooling not in MODES:
        raise CannotLoad(f"options of the Hugging Face flavor: pooling must be one of {', '.join(MODES)}")
    return options


def _task_of(checkpoint: Checkpoint) -> str:
    if is_sentences(checkpoint):
        return "feature-extraction"
    name, kind = checkpoint.architecture, checkpoint.kind
    for ending, task in _ENDINGS.items():
        if name.endswith(ending):
            return task
    if kind in _SEQUENCES and (name.endswith("ForConditionalGeneration") or name == "MarianMTModel"):
        return "text2text-generation"
    if name.endswith("Model") and kind not in _SEQUENCES:
        return "feature-extraction"
    what = ascii(name[:80]) if name else f"a {kind[:80]!a} whose config.json names no architecture"
    raise CannotLoad(f"no task is known for {what}: name one with the option task: {', '.join(TASKS)}")


def _pooling(checkpoint: Checkpoint, options: Options) -> Pooling:
    pooling = pooling_of(checkpoint)
    return msgspec.structs.replace(
        pooling,
        modes=(options.pooling,) if options.pooling else pooling.modes,
        normalize=pooling.normalize if options.normalize is None else options.normalize,
    )


def _max_length(checkpoint: Checkpoint, options: Options, pooling: Pooling) -> int:
    """The most tokens of a text: what the option says, if the network has so many positions."""
    most = _positions(checkpoint)
    stated = (pooling.max_length, checkpoint.settings(TOKENIZER_CONFIG).get("model_max_length"), most)
    known = [length for length in stated if isinstance(length, (int, float)) and 0 < length < _NO_LIMIT]
    limit = int(min(known, default=_USUAL_LENGTH))
    if options.max_length is None:
        return limit
    if most is not None and options.max_length > most:
        raise CannotLoad(f"max_length is {options.max_length}, and the network has {most} positions")
    return options.max_length


def _positions(checkpoint: Checkpoint) -> int | None:
    config = checkpoint.config
    for key in ("max_position_embeddings", "n_positions"):
        count = config.get(key)
        if type(count) is int and count > 0:
            padding = config.get("pad_token_id")
            shift = (padding if type(padding) is int else 1) + 1 if checkpoint.kind in _SHIFTED else 0
            return max(1, count - shift)
    return None


def _tolerance(checkpoint: Checkpoint, plan: Plan) -> tuple[float, float]:
    stored = checkpoint.config.get("dtype", checkpoint.config.get("torch_dtype"))
    dtype = str(stored).removeprefix("torch.") if plan.options.dtype == "stored" else plan.options.dtype
    return TOLERANCES[cast(DType, dtype)] if dtype in ("float16", "bfloat16") else _TOLERANCE


# --- signatures ---------------------------------------------------------------------------------------------------

Sides = tuple[list[TensorSpec], list[TensorSpec]]


def _text(*names: str) -> list[TensorSpec]:
    return [spec_of(name, "str", (ROWS,)) for name in names]


def _floats(
    checkpoint: Checkpoint, plan: Plan, name: str, shape: tuple[int | str, ...], labels: tuple[str, ...] | None = None
) -> TensorSpec:
    tolerance = _tolerance(checkpoint, plan)
    return TensorSpec(name, "float32", (ROWS, *shape), tolerance=tolerance, labels=labels)


def _scores(checkpoint: Checkpoint, plan: Plan, labels: tuple[str, ...]) -> list[TensorSpec]:
    """The best label, its score, and all scores; the score alone where there is one class."""
    score = _floats(checkpoint, plan, "score", ())
    if len(labels) == 1:
        return [score]
    return [*_text("label"), score, _floats(checkpoint, plan, "scores", (len(labels),), labels)]


def _text_classes(checkpoint: Checkpoint, plan: Plan) -> Sides:
    names = ("text", "text_pair") if plan.options.pairs else ("text",)
    return _text(*names), _scores(checkpoint, plan, labels_of(checkpoint))


def _zero_shot(checkpoint: Checkpoint, plan: Plan) -> Sides:
    return _text("text"), _scores(checkpoint, plan, plan.options.labels)


def _image_classes(checkpoint: Checkpoint, plan: Plan) -> Sides:
    return [spec_of("image", "bytes", (ROWS,))], _scores(checkpoint, plan, labels_of(checkpoint))


def _entities(checkpoint: Checkpoint, plan: Plan) -> Sides:
    return _text("text"), [*_text("entities"), _floats(checkpoint, plan, "confidence", ())]


def _embedding(checkpoint: Checkpoint, plan: Plan) -> Sides | None:
    width = _width(checkpoint)
    if width is None:
        return None
    return _text("text"), [_floats(checkpoint, plan, "embedding", (width * len(plan.pooling.modes),))]


def _mask(checkpoint: Checkpoint, plan: Plan) -> Sides:
    count = plan.options.top_k
    tokens = spec_of("tokens", "str", (ROWS, count))
    return _text("text"), [tokens, _floats(checkpoint, plan, "scores", (count,))]


def _answer(checkpoint: Checkpoint, plan: Plan) -> Sides:
    places = [spec_of(name, "int64", (ROWS,)) for name in ("start", "end")]
    return _text("question", "context"), [*_text("answer"), _floats(checkpoint, plan, "score", ()), *places]


def _generated(checkpoint: Checkpoint, plan: Plan) -> Sides:
    return _text("text"), _text("generated")


def _raw(checkpoint: Checkpoint, plan: Plan) -> Sides | None:
    """The network's own tensors."""
    config = checkpoint.config
    if plan.base == "image-classification":
        size, channels = config.get("image_size"), config.get("num_channels", 3)
        sides: tuple[Any, ...] = (size, size) if type(size) is int else ("height", "width")
        pixels = spec_of("pixel_values", "float32", (ROWS, channels if type(channels) is int else 3, *sides))
        labels = labels_of(checkpoint)
        return [pixels], [_floats(checkpoint, plan, "logits", (len(labels),), labels)]
    output = _raw_output(checkpoint, plan)
    return (_raw_inputs(checkpoint, plan), [output]) if output is not None else None


def _raw_inputs(checkpoint: Checkpoint, plan: Plan) -> list[TensorSpec]:
    vocabulary, padding = checkpoint.config.get("vocab_size"), checkpoint.config.get("pad_token_id")
    buckets = ((TOKENS, plan.options.buckets or _powers(plan.max_length)),)
    most = vocabulary - 1 if type(vocabulary) is int and vocabulary > 0 else None
    pad = padding if type(padding) is int and padding >= 0 else 0
    ids = TensorSpec("input_ids", "int64", (ROWS, TOKENS), minimum=0, maximum=most, pad=pad, buckets=buckets)
    mask = TensorSpec("attention_mask", "int64", (ROWS, TOKENS), minimum=0, maximum=1, pad=0, buckets=buckets)
    return [ids, mask]


def _raw_output(checkpoint: Checkpoint, plan: Plan) -> TensorSpec | None:
    if plan.base == "text-classification":
        labels = labels_of(checkpoint)
        return _floats(checkpoint, plan, "logits", (len(labels),), labels)
    if plan.base == "token-classification":
        labels = labels_of(checkpoint)
        return _floats(checkpoint, plan, "logits", (TOKENS, len(labels)), labels)
    if plan.base == "fill-mask":
        size = checkpoint.config.get("vocab_size")
        return _floats(checkpoint, plan, "logits", (TOKENS, size)) if type(size) is int else None
    if plan.base == "feature-extraction":
        width = _width(checkpoint)
        return _floats(checkpoint, plan, "last_hidden_state", (TOKENS, width)) if width is not None else None
    raise CannotLoad(f"there is no raw form of {plan.base}")


def _powers(most: int) -> tuple[int, ...]:
    sizes = []
    size = _SMALLEST_BUCKET
    while size < most:
        sizes.append(size)
        size *= 2
    return (*sizes, most)


def _width(checkpoint: Checkpoint) -> int | None:
    """The size of a token's vector."""
    for key in ("hidden_size", "d_model", "n_embd", "dim"):
        size = checkpoint.config.get(key)
        if type(size) is int and size > 0:
            return size
    return None


TASKS: Final[Mapping[str, Callable[[Checkpoint, Plan], Sides | None]]] = {
    "text-classification": _text_classes,
    "token-classification": _entities,
    "feature-extraction": _embedding,
    "fill-mask": _mask,
    "question-answering": _answer,
    "zero-shot-classification": _zero_shot,
    "text-generation": _generated,
    "text2text-generation": _generated,
    "image-classification": _image_classes,
}
_BASES: Final = {"zero-shot-classification": "text-classification"}
