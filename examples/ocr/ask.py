"""Ask the served model to read a text that was drawn just now: `ask.py [URL]`; the exit status says if it was right.

Any client of the Open Inference Protocol will do; this one is Triton's. Bytes that are no text go as a binary tensor.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from tritonclient.http import InferenceServerClient, InferInput

TEXT = "Table for two at 19:30, please"


def drawn(text: str) -> bytes:
    """A JPEG with a text on it."""
    picture = Image.new("RGB", (800, 160), "white")
    ImageDraw.Draw(picture).text((30, 50), text, fill="black", font=ImageFont.load_default(44))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=80)
    return file.getvalue()


def read(url: str, picture: bytes) -> list[dict[str, Any]]:
    """The lines on a picture, each with its text, score and box."""
    image = InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([picture], object))
    with InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        answer = client.infer("ocr", [image])
    lines: list[dict[str, Any]] = json.loads(answer.as_numpy("lines")[0])
    return lines


def main(url: str) -> int:
    lines = read(url, drawn(TEXT))
    text = " ".join(line["text"] for line in lines)
    right = text.replace(" ", "").lower() == TEXT.replace(" ", "").lower()  # it is unsure about spaces
    scores = ", ".join(f"{line['score']:.2f}" for line in lines)
    print(f"{'right' if right else 'WRONG'}  read {text!r}, score {scores}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
