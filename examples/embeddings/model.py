"""Sentences to vectors: a tokenizer and MiniLM as one model."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

import maitred

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Embeddings(maitred.Model):
    signature = maitred.Signature(
        inputs={"text": "str[n]"},
        outputs={"vector": "float32[n, 384]"},
    )

    def load(self, path: str, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("MAITRED_THREADS", "1"))  # `replicas.threads` of the settings
        self.session = onnxruntime.InferenceSession(f"{path}/model.onnx", options)
        self.tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
        self.tokenizer.enable_truncation(256)  # what the model was trained for; longer texts count by their beginning
        self.tokenizer.enable_padding()  # to the longest text of the batch

    def predict(self, batch: dict[str, npt.NDArray[np.object_]]) -> dict[str, Floats]:
        encoded = self.tokenizer.encode_batch(batch["text"].tolist())
        tokens = np.array([text.ids for text in encoded])
        mask = np.array([text.attention_mask for text in encoded])
        vectors = np.empty((len(encoded), 384), np.float32)
        lengths = mask.sum(axis=1)
        sizes = np.ceil(
            np.log2(lengths)
        )  # texts of like length run together, so that none waits for a long one's padding
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            longest = lengths[rows].max()
            vectors[rows] = self._embed(tokens[rows, :longest], mask[rows, :longest])
        return {"vector": vectors}

    def _embed(self, tokens: Ints, mask: Ints) -> Floats:
        """The mean over each text's tokens, as a vector of length 1."""
        given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        (hidden,) = self.session.run(["last_hidden_state"], given)
        sums: Floats = (hidden * mask[:, :, None].astype(np.float32)).sum(axis=1)
        vectors: Floats = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors
