"""Photos to what they show: decoding, EfficientNet-lite0 and the names of its classes as one model."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image, ImageOps, UnidentifiedImageError

import maitred

BEST = 5
SIDE = 224
MAX_PIXELS = 50_000_000
"""More is refused before it is decoded: a few kilobytes of PNG can hold a picture that fills the memory."""


class Photos(maitred.Model):
    signature = maitred.Signature(
        inputs={"image": "bytes[n]"},
        outputs={"label": f"str[n, {BEST}]", "probability": f"float32[n, {BEST}]"},
    )
    max_batch_rows = 16

    def load(self, path: str, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("MAITRED_THREADS", "1"))  # `replicas.threads` of the settings
        self.session = onnxruntime.InferenceSession(f"{path}/model.onnx", options)
        self.names = np.array(json.loads(Path(path, "labels.json").read_text()), object)

    def predict(self, batch: dict[str, npt.NDArray[np.object_]]) -> dict[str, npt.NDArray[Any]]:
        (logits,) = self.session.run(["logits"], {"image": np.stack([pixels(blob) for blob in batch["image"]])})
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        best = np.argsort(-scores, axis=1)[:, :BEST]
        return {"label": self.names[best], "probability": np.take_along_axis(scores, best, axis=1)}


def pixels(blob: bytes) -> npt.NDArray[np.float32]:
    """The middle of a picture, as the network was trained on it. Raises InvalidInput saying what is wrong with it."""
    try:
        picture = Image.open(io.BytesIO(blob), formats=("JPEG", "PNG", "WEBP"))  # reads no more than the head
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError(f"{picture.width} x {picture.height} pixels are more than {MAX_PIXELS}")
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:  # Pillow raises some ten kinds of exception for what is no picture
        raise maitred.InvalidInput(f"the image cannot be read: {said(error)}") from error
    middle = ImageOps.fit(upright, (SIDE, SIDE), Image.Resampling.BICUBIC, bleed=1 / 16)
    scaled: npt.NDArray[np.float32] = (np.asarray(middle, np.float32) - np.float32(127)) / np.float32(128)
    return scaled.transpose(2, 0, 1)


def said(error: Exception) -> str:
    """The reason in words that may go to a caller."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no JPEG, PNG or WebP"
    return str(error) or type(error).__name__
