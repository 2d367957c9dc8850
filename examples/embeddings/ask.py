"""Ask the served model which sentences mean the same: `ask.py [URL]`; the exit status says whether it was right."""

from __future__ import annotations

import json
import sys
from urllib.request import Request, urlopen

import numpy as np
import numpy.typing as npt

PAIRS = [
    ("A man is playing a guitar.", "Someone plays guitar music."),
    ("How do I reset my password?", "I forgot my login, how can I get a new one?"),
    ("The stock market fell sharply today.", "Share prices dropped a lot this morning."),
]


def embed(url: str, texts: list[str]) -> npt.NDArray[np.float64]:
    """The vector of each text."""
    body = json.dumps({"columns": {"text": texts}}).encode()
    request = Request(f"{url}/predict/embeddings", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return np.array(json.load(answer)["columns"]["vector"])


def main(url: str) -> int:
    vectors = embed(url, [text for pair in PAIRS for text in pair])
    alike = (vectors @ vectors.T).reshape(len(PAIRS), 2, len(PAIRS), 2)
    same = min(alike[pair, 0, pair, 1] for pair in range(len(PAIRS)))
    other = max(alike[one, :, two, :].max() for one in range(len(PAIRS)) for two in range(len(PAIRS)) if one != two)
    right = bool(same > 0.5 > other)
    print(f"{'right' if right else 'WRONG'}  paraphrases at least {same:.2f} alike, others at most {other:.2f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
