"""Ask the served model what is on a photo: `ask.py [URL [FILE]]`; the exit status says whether it was right.

Any client of the Open Inference Protocol will do; this one is Triton's. Bytes that are no text go as a binary tensor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import sklearn.datasets
from tritonclient.http import InferenceServerClient, InferInput

DAISY = Path(sklearn.datasets.__file__).with_name("images") / "flower.jpg"


def classify(url: str, picture: bytes) -> tuple[str, float]:
    """The likeliest label, and how likely it is."""
    image = InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([picture], object))
    with InferenceServerClient(url.removeprefix("http://")) as client:
        answer = client.infer("image", [image])
    return answer.as_numpy("label")[0, 0].decode(), float(answer.as_numpy("probability")[0, 0])


def main(url: str, file: Path) -> int:
    label, probability = classify(url, file.read_bytes())
    right = file != DAISY or label == "daisy"
    print(f"{'right' if right else 'WRONG'}  {file.name} shows a {label} ({probability:.2f})")
    return 0 if right else 1


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(main(given.get(1, "http://127.0.0.1:8080"), Path(given.get(2, DAISY))))
