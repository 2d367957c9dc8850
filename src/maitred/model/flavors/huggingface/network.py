"""Checkpoints made into networks by transformers: from local files only, quietly, and whole or not at all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maitred.model.flavors.huggingface.answers import WINDOW
from maitred.model.flavors.huggingface.folder import Checkpoint, code_of, view, weights_of
from maitred.model.flavors.huggingface.tasks import Plan
from maitred.model.flavors.huggingface.texts import Strategy, Texts
from maitred.model.flavors.libraries import needs
from maitred.model.flavors.torch.tensors import Tensors
from maitred.model.refusals import CannotLoad

if TYPE_CHECKING:
    from types import ModuleType

_NETWORKS: Final = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "question-answering": "AutoModelForQuestionAnswering",
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
}
_ENCODERS: Final = {"t5", "mt5", "umt5"}
"""Networks of two halves, of which sentence vectors take the first."""
_UNUSED: Final = ("pooler.", ".pooler.")
"""Weights that `feature-extraction` can do without: it has a pooling of its own."""
_FREE_VALUES: Final = 16 << 20
"""Values that a network may have beyond the bytes of its weights: tables that are computed, parts that are shared."""
_STRATEGIES: Final[dict[str, Strategy]] = {
    "zero-shot-classification": "only_first",
    "question-answering": "only_second",
}
_OFFSETS: Final = ("token-classification", "question-answering")


def library() -> ModuleType:
    """transformers. Raises `MissingExtra`."""
    with needs("huggingface", "transformers"):
        import transformers
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no advice on standard error, which is the server's log."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class Parts:
    """What a checkpoint consists of once it is loaded."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, tensors: Tensors, trusted: bool) -> None:
        """Raises `MissingExtra`, or `CannotLoad` for weights that are not all there."""
        self.tensors = tensors
        transformers = library()
        self._trusted = trusted and bool(code_of(checkpoint))
        with quiet(transformers), view(checkpoint, trusted) as folder:
            self.network = self._network(transformers, checkpoint, plan, folder).to(self.tensors.device)
            self.takes = frozenset(inspect.signature(self.network.forward).parameters)
            self.images = self._images(transformers, folder) if plan.task == "image-classification" else None
            about_texts = plan.task not in ("image-classification", "raw")
            self.texts = self._texts(transformers, folder, plan) if about_texts else None
        if plan.task.endswith("generation"):
            _settle_generation(self.network, self.texts)

    def _network(self, transformers: Any, checkpoint: Checkpoint, plan: Plan, folder: Path) -> Any:
        encoder = plan.base == "feature-extraction" and checkpoint.kind in _ENCODERS
        kind = getattr(transformers, "AutoModelForTextEncoding" if encoder else _NETWORKS[plan.base])
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": self._trusted}
        config = transformers.AutoConfig.from_pretrained(folder, **local)
        weights = weights_of(checkpoint)
        self._check_size(kind, config, sum((folder / name).stat().st_size for name in weights.files))
        network, told = kind.from_pretrained(
            folder,
            config=config,
            dtype="auto" if plan.options.dtype == "stored" else plan.options.dtype,
            use_safetensors=not weights.pickled,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # those are refused below, by name
            **local,
        )
        _check_whole(told, plan)
        return network.eval()

    def _check_size(self, kind: Any, config: Any, held_bytes: int) -> None:
        """A config may say any size, and all of it would be allocated before the weights turn out to be smaller."""
        with self.tensors.torch.device("meta"):
            sketch = kind.from_config(config, trust_remote_code=self._trusted)
        described = sum(values.numel() for part in (sketch.parameters(), sketch.buffers()) for values in part)
        if described > held_bytes + _FREE_VALUES:
            raise CannotLoad(
                f"config.json describes a network of {described} values, and the weights take {held_bytes} bytes: "
                "they are not a pair"
            )

    def _images(self, transformers: Any, folder: Path) -> Any:
        with needs("huggingface", "pillow", extra=""):
            import PIL.Image  # noqa: F401  the processor needs it; better to hear so by name
        return transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=self._trusted
        )

    def _texts(self, transformers: Any, folder: Path, plan: Plan) -> Texts:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=self._trusted
        )
        if plan.options.pad_token:
            if plan.options.pad_token not in tokenizer.get_vocab():
                raise CannotLoad("the option pad_token names no token of the tokenizer")
            tokenizer.pad_token = plan.options.pad_token
            self.network.config.pad_token_id = tokenizer.pad_token_id
        limit = plan.max_length - (plan.options.max_new_tokens if plan.base == "text-generation" else 0)
        if limit < 1:
            raise CannotLoad(f"max_new_tokens leaves no room for a text in the model's {plan.max_length} tokens")
        texts = Texts(
            tokenizer,
            limit=limit,
            truncate=plan.options.truncate or plan.task == "question-answering",
            buckets=plan.options.buckets,
            takes=self.takes,
            strategy=_STRATEGIES.get(plan.task, "longest_first"),
            window=min(WINDOW, limit // 4) if plan.task == "question-answering" else 0,
            tensors=self.tensors,
        )
        if not texts.can_pad and not plan.task.endswith("generation"):
            raise CannotLoad("the tokenizer has no pad token: name one with the option pad_token")
        if plan.task in _OFFSETS and texts.backend is None:
            raise CannotLoad(f"{plan.task} needs a tokenizer that knows places in the text, with a tokenizer.json")
        self._check_vocabulary(tokenizer)
        return texts

    def _check_vocabulary(self, tokenizer: Any) -> None:
        rows = getattr(self.network.get_input_embeddings(), "num_embeddings", None)
        most = max(tokenizer.get_vocab().values(), default=0)
        if rows is not None and most >= rows:
            raise CannotLoad(f"the tokenizer has tokens up to {most}, the network {rows}: they are not a pair")


def _check_whole(told: dict[str, Any], plan: Plan) -> None:
    """Raises `CannotLoad` for weights that would have been made up."""
    if told["mismatched_keys"]:
        name = sorted(str(key[0] if isinstance(key, tuple) else key) for key in told["mismatched_keys"])[0]
        raise CannotLoad(f"the weights of {name!r} have other sizes than config.json says: they are not a pair")
    unused = _UNUSED if plan.base == "feature-extraction" else ()
    missing = sorted(
        name
        for name in told["missing_keys"]
        if not any(name.startswith(part) or (part[0] == "." and part in name) for part in unused)
    )
    if missing:
        raise CannotLoad(
            f"the weights lack {missing[0]!r} and {len(missing) - 1} more that {plan.base} needs: this checkpoint was "
            "saved for another task"
        )


def _settle_generation(network: Any, texts: Texts | None) -> None:
    """Always the likeliest token, whatever the checkpoint's own habits are."""
    assert texts is not None  # generation is about texts
    config = network.generation_config
    pad = texts.tokenizer.pad_token_id
    for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "max_length", "min_length", "max_time"):
        setattr(config, name, None)
    config.do_sample, config.num_beams = False, 1
    if pad is None:
        pad = texts.tokenizer.eos_token_id
    if config.pad_token_id is None:
        config.pad_token_id = pad if pad is not None else 0
