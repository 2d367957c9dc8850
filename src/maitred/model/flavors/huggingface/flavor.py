"""Checkpoints of Hugging Face transformers: safetensors and tokenizers as data, from local files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from maitred.model.flavors import Found, Opening, Saved
from maitred.model.flavors.huggingface.answers import ANSWERS, Opened
from maitred.model.flavors.huggingface.folder import CONFIG, Checkpoint, copy, dangers, read_checkpoint
from maitred.model.flavors.huggingface.network import Parts, library, quiet
from maitred.model.flavors.huggingface.tasks import Options, Plan, activation, found, labels_of, plan_of
from maitred.model.flavors.torch.modules import ready
from maitred.model.predictor import Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack

_BASES: Final = {
    ("transformers.", "PreTrainedModel"),
    ("transformers.", "Pipeline"),
    ("sentence_transformers.", "SentenceTransformer"),
}
_ABOUT_LABELS: Final = ("text-classification", "token-classification", "image-classification")


class HuggingFace:
    """Options: see `maitred.model.flavors.huggingface.tasks.Options`."""

    name = "huggingface"
    suffixes: tuple[str, ...] = ()
    markers = (CONFIG,)
    libraries = ("transformers", "tokenizers", "torch", "safetensors")
    options = Options.__struct_fields__

    def claims(self, model: object) -> bool:
        """A pipeline, a network without its tokenizer, or a SentenceTransformer."""
        return _kind(model) != ""

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """Weights that are pickles, and code that the settings ask for."""
        return dangers(_checkpoint(opening))

    def derive(self, opening: Opening) -> Found | None:
        """From `config.json` and the settings beside it; None where it does not say how wide a vector is."""
        checkpoint = _checkpoint(opening)
        return found(checkpoint, plan_of(checkpoint, opening.options))

    def save(self, model: Any, folder: Path) -> Saved:
        """The files of an object, or those of a checkpoint's folder that belong to it."""
        if isinstance(model, Path):
            copy(read_checkpoint(model), folder)
            return Saved(CONFIG)
        with quiet(library()):
            return Saved(CONFIG, options=_save(model, folder))

    def open(self, opening: Opening) -> Predictor:
        """The network, with its tokenizer or image processor. Raises `MissingExtra`, or `CannotLoad`."""
        checkpoint = _checkpoint(opening)
        plan = plan_of(checkpoint, opening.options)
        if listed := () if opening.trusted else dangers(checkpoint):
            opening.require_trust(f"the checkpoint holds {'; '.join(listed)}")
        labels = labels_of(checkpoint) if plan.base in _ABOUT_LABELS else ()
        if plan.task == "zero-shot-classification" and not any(label.lower().startswith("entail") for label in labels):
            raise CannotLoad("zero-shot-classification needs a network with a label 'entailment'")
        parts = Parts(checkpoint, plan, ready(opening, "huggingface"), opening.trusted)
        told = found(_completed(checkpoint, parts), plan) if opening.signature is None else None
        signature = opening.signature or (told.signature if told is not None else None)
        if signature is None:
            raise CannotLoad("neither config.json nor the network says how wide a vector is: pack it with a signature")
        return ANSWERS[plan.task](
            Opened(
                network=parts.network,
                texts=parts.texts,
                images=parts.images,
                plan=plan,
                labels=labels,
                activation=activation(checkpoint) if labels else "none",
                takes=parts.takes,
                tensors=parts.tensors,
                signature=signature,
                traits=opening.traits or Traits(),
            )
        )


def _checkpoint(opening: Opening) -> Checkpoint:
    return read_checkpoint(opening.path.parent)


def _completed(checkpoint: Checkpoint, parts: Parts) -> Checkpoint:
    """The checkpoint, with the width that the library knows under other names."""
    width = getattr(parts.network.config, "hidden_size", None)
    known = {"hidden_size": width, **checkpoint.config} if type(width) is int else checkpoint.config
    return checkpoint._replace(config=known)


def _kind(model: object) -> str:
    """The base class by which an object is known; its library is loaded already, and none is imported."""
    for base in type(model).__mro__:
        for module, name in _BASES:
            if base.__name__ == name and base.__module__.startswith(module):
                return name
    return ""


def _save(model: Any, folder: Path) -> dict[str, Any]:
    """Write an object's files; the options that they need to be read as meant."""
    kind = _kind(model)
    if kind == "SentenceTransformer":
        model.save(str(folder), create_model_card=False, safe_serialization=True)
        return {}
    network = model if kind == "PreTrainedModel" else model.model
    if not hasattr(network, "save_pretrained"):
        raise CannotPack(f"a {type(network).__name__} cannot be saved")
    network.save_pretrained(folder, safe_serialization=True)
    if kind == "PreTrainedModel":
        return {"task": "raw"}
    for part in (model.tokenizer, getattr(model, "image_processor", None)):
        if part is not None:
            part.save_pretrained(folder)
    return _options(model.task, read_checkpoint(folder))


def _options(task: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The pipeline's task, where the saved network does not say as much itself. Raises `CannotPack`."""
    if task == "zero-shot-classification":
        return {"task": task}  # the labels come with the options that are given to `pack`
    try:
        plan: Plan = plan_of(checkpoint, {"task": task})
    except CannotLoad as error:
        raise CannotPack(f"a pipeline for {task} cannot be packed: {error.message}") from error
    return {"task": plan.task}
