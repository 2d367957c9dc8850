"""Hugging Face checkpoints pass the contract that is asked of every flavor."""

from __future__ import annotations

from typing import Any

import huggingface_checkpoints as tiny
from maitred.testing.flavors import FlavorContract

pytestmark = tiny.NEEDS_LIBRARIES

FRAMEWORKS = ("torch", "transformers", "tokenizers", "safetensors")


class TestTextClassification(FlavorContract):
    name = "huggingface"
    frameworks = FRAMEWORKS

    def model(self) -> Any:
        import transformers

        network = tiny.network("BertForSequenceClassification", id2label=tiny.MOODS)
        return transformers.pipeline("text-classification", model=network, tokenizer=tiny.tokenizer(), device="cpu")

    def example(self) -> Any:
        return tiny.LINES


class TestEmbeddings(FlavorContract):
    name = "huggingface"
    frameworks = FRAMEWORKS

    def model(self) -> Any:
        import transformers

        network = tiny.network("BertModel")
        return transformers.pipeline("feature-extraction", model=network, tokenizer=tiny.tokenizer(), device="cpu")

    def example(self) -> Any:
        return tiny.LINES
