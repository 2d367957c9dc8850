"""Pictures to the text on them: where lines are, which way up they are, and what they say, as one model."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError
from rapidocr_onnxruntime import RapidOCR

import maitred

MAX_PIXELS = 50_000_000
"""More is refused before it is decoded: a few kilobytes of PNG can hold a picture that fills the memory."""

MAX_RATIO = 50


class Reader(maitred.Model):
    signature = maitred.Signature(
        inputs={"image": "bytes[n]"},
        outputs={"text": "str[n]", "lines": "str[n]"},
    )
    max_batch_rows = 1  # pictures are read one by one: nothing is won by letting callers wait for each other

    def load(self, path: str, device: str) -> None:
        self.read = RapidOCR(
            det_model_path=f"{path}/ch_PP-OCRv4_det_infer.onnx",
            cls_model_path=f"{path}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            rec_model_path=f"{path}/ch_PP-OCRv4_rec_infer.onnx",
            det_limit_type="max",  # else a strip is made larger until its short side has 736 pixels
            det_limit_side_len=1280,
            intra_op_num_threads=int(os.environ.get("MAITRED_THREADS", "1")),  # `replicas.threads` of the settings
            inter_op_num_threads=1,
        )

    def predict(self, batch: dict[str, npt.NDArray[np.object_]]) -> dict[str, list[str]]:
        pages = [self._lines(pixels(blob)) for blob in batch["image"]]
        return {
            "text": ["\n".join(str(line["text"]) for line in lines) for lines in pages],
            "lines": [json.dumps(lines, ensure_ascii=False) for lines in pages],
        }

    def _lines(self, picture: npt.NDArray[np.uint8]) -> list[dict[str, object]]:
        """The lines from top to bottom: text, score from 0 to 1, and the four corners of where it stands."""
        found, _ = self.read(picture)
        return [{"text": text, "score": float(score), "box": box} for box, text, score in found or ()]


def pixels(blob: bytes) -> npt.NDArray[np.uint8]:
    """A picture as rows of blue, green and red. Raises InvalidInput saying what is wrong with it."""
    try:
        picture = Image.open(io.BytesIO(blob), formats=("JPEG", "PNG", "WEBP"))  # reads no more than the head
        if picture.width * picture.height > MAX_PIXELS:
            raise ValueError(f"{picture.width} x {picture.height} pixels are more than {MAX_PIXELS}")
        if max(picture.size) > MAX_RATIO * min(picture.size):
            raise ValueError(f"{picture.width} x {picture.height} pixels are a strip too thin to hold a line")
        upright = ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:  # Pillow raises some ten kinds of exception for what is no picture
        raise maitred.InvalidInput(f"the image cannot be read: {said(error)}") from error
    return np.asarray(upright)[:, :, ::-1]


def said(error: Exception) -> str:
    """The reason in words that may go to a caller."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no JPEG, PNG or WebP"
    return str(error) or type(error).__name__
