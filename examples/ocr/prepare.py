"""Pack the reader with the three networks that rapidocr-onnxruntime brings: `prepare.py FOLDER`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import rapidocr_onnxruntime
from PIL import Image, ImageDraw, ImageFont

import maitred
from model import Reader


def drawn(text: str) -> bytes:
    """A PNG with a text on it."""
    picture = Image.new("RGB", (320, 120), "white")
    ImageDraw.Draw(picture).text((20, 30), text, fill="black", font=ImageFont.load_default(44))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def main(folder: str) -> None:
    networks = sorted(Path(rapidocr_onnxruntime.__file__).with_name("models").glob("*.onnx"))
    description = maitred.pack(
        Reader,
        folder,
        name="ocr",
        files=networks,
        example={"image": [drawn("maitred")]},
        repeatable=False,  # scores and corners differ in the last digits between machines, and are inside a text here
    )
    print(f"packed {folder}: {description.signature.to_text()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
