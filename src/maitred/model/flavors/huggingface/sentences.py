"""Sentence vectors: how the vectors of a text's tokens become one, as sentence-transformers' own files say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.model.flavors.huggingface.folder import (
    CONFIG,
    MODULES,
    Checkpoint,
    module_folders,
    read_json,
    read_table,
)
from maitred.model.refusals import CannotLoad

if TYPE_CHECKING:
    import torch

MODES: Final = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""In the order in which several are put side by side."""

_SWITCHES: Final = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
_SMALLEST: Final = 1e-9


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """From token vectors to a sentence's."""

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    lower_case: bool = False
    prompts: dict[str, str] = {}
    default_prompt: str = ""
    """What is put before every text whose request names no other prompt."""


def is_sentences(checkpoint: Checkpoint) -> bool:
    """Whether sentence-transformers' files say how to make sentence vectors."""
    return MODULES in checkpoint.names and any(kind == "Pooling" for kind, _ in _modules(checkpoint))


def pooling_of(checkpoint: Checkpoint) -> Pooling:
    """As the folder's files say; the mean of the tokens where they say nothing. Raises `CannotLoad`."""
    modes: tuple[str, ...] = ()
    normalize = include_prompt = False
    for kind, place in _modules(checkpoint) if MODULES in checkpoint.names else ():
        if kind == "Pooling":
            table = read_table(checkpoint.root / place / CONFIG)
            modes = _modes(table)
            include_prompt = table.get("include_prompt", True) is not False
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer" or place:
            raise CannotLoad(f"{MODULES} has a module of the kind {kind[:40]!a}, which is not supported")
    limits = checkpoint.settings("sentence_bert_config.json")
    prompts = _prompts(checkpoint)
    if modes and not include_prompt and prompts.prompts:
        raise CannotLoad("prompts that are left out of the pooling (include_prompt) are not supported")
    length = limits.get("max_seq_length")
    return msgspec.structs.replace(
        prompts,
        modes=modes or ("mean",),
        normalize=normalize,
        max_length=length if type(length) is int and length > 0 else None,
        lower_case=limits.get("do_lower_case") is True,
    )


def pooled(tokens: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Vectors [rows, width] from [rows, tokens, width], padding left out; float32."""
    import torch

    tokens = tokens.float()
    weights = mask.unsqueeze(-1).to(tokens.dtype)
    vectors = [_pooled(tokens, mask, weights, mode) for mode in pooling.modes]
    joined = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)
    return torch.nn.functional.normalize(joined, dim=-1) if pooling.normalize else joined


def _pooled(tokens: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor, mode: str) -> torch.Tensor:
    import torch

    rows = torch.arange(len(tokens), device=tokens.device)
    if mode == "cls":
        return tokens[rows, mask.argmax(dim=1)]
    if mode == "lasttoken":
        places = torch.arange(mask.shape[1], device=mask.device)
        return tokens[rows, (mask * places).argmax(dim=1)]
    if mode == "max":
        return tokens.masked_fill(weights == 0, float("-inf")).amax(dim=1)
    if mode == "weightedmean":
        weights = weights * mask.cumsum(dim=1).unsqueeze(-1)
    count = weights.sum(dim=1).clamp(min=_SMALLEST)
    return (tokens * weights).sum(dim=1) / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)


def _modules(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Kind and folder of each module: the last word of its class, which is never imported."""
    module_folders(checkpoint)
    modules = read_json(checkpoint.root / MODULES)
    return [(str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]


def _modes(table: dict[str, Any]) -> tuple[str, ...]:
    given = table.get("pooling_mode")
    if given is None:
        return tuple(mode for mode in MODES if table.get(_SWITCHES[mode]) is True) or ("mean",)
    modes = tuple(given) if isinstance(given, list) else (given,)
    if not modes or not all(mode in MODES for mode in modes):
        raise CannotLoad(f"pooling_mode must be of {', '.join(MODES)}")
    return modes


def _prompts(checkpoint: Checkpoint) -> Pooling:
    table = checkpoint.settings("config_sentence_transformers.json")
    given = table.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise CannotLoad("config_sentence_transformers.json: prompts must be an object of texts")
    name = table.get("default_prompt_name")
    if name is not None and name not in given:
        raise CannotLoad("config_sentence_transformers.json: default_prompt_name is not one of the prompts")
    known = {str(key): text for key, text in given.items() if text}
    return Pooling(prompts=known, default_prompt=known.get(str(name), "") if name is not None else "")
