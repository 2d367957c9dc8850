"""Judge transactions one by one, each within 100 ms: `ask.py [URL]`; the exit status says whether it was right."""

from __future__ import annotations

import json
import sys
import time
from http.client import HTTPConnection

import numpy as np
import transactions

CALLS = 3_000
HEADERS = {"Content-Type": "application/json", "Maitred-Timeout-Ms": "100"}


def judge(bank: HTTPConnection, transaction: dict[str, int]) -> bool | None:
    """Whether it is a fraud; None where no answer came in time."""
    bank.request("POST", "/predict/fraud", json.dumps(transaction), HEADERS)
    with bank.getresponse() as answer:
        body = json.load(answer)
    if answer.status in (429, 504):  # it would have been late, or was
        return None
    if answer.status != 200:
        raise RuntimeError(body["error"])
    return bool(body["predict_proba"][1] > 0.5)


def main(url: str) -> int:
    numbers, fraud = transactions.load()
    coming = slice(transactions.KNOWN, transactions.KNOWN + CALLS)
    bank = HTTPConnection(url.removeprefix("http://"), timeout=10)
    answers: list[bool | None] = []
    took: list[float] = []
    for transaction in numbers[coming].to_dict("records"):
        began = time.perf_counter()
        answers.append(judge(bank, transaction))
        took.append(1000 * (time.perf_counter() - began))
    bank.close()

    found = np.array([answer is True for answer in answers])
    late = answers.count(None) + sum(each > 100 for each in took)
    hits = int((found & fraud[coming]).sum())
    recall, precision = hits / int(fraud[coming].sum()), hits / max(1, int(found.sum()))
    right = recall > 0.95 and precision > 0.95 and late <= CALLS / 100
    print(
        f"{'right' if right else 'WRONG'}  recall {recall:.3f}, precision {precision:.3f} on {CALLS} transactions, "
        f"p50 {np.percentile(took, 50):.1f} ms, p99 {np.percentile(took, 99):.1f} ms, {late} later than 100 ms"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
