"""Ask the served model who will leave: `ask.py [URL]`; the exit status says whether it was right."""

from __future__ import annotations

import json
import sys
from typing import Any
from urllib.request import Request, urlopen

import customers
import numpy as np


def ask(url: str, body: Any) -> Any:
    """The answer to a row (an object), to rows (a list of them) or to columns."""
    request = Request(f"{url}/predict/churn", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main(url: str) -> int:
    _, unseen, _, leaving = customers.load()
    rows = json.loads(unseen.to_json(orient="records"))  # missing values become null
    columns = {name: [row[name] for row in rows] for name in unseen.columns}
    answers = ask(url, {"columns": columns})["columns"]
    accuracy = float(np.mean(np.array(answers["predict"]) == leaving.to_numpy()))
    first = rows[0]
    strange = {**first, "contract": "Three years", "payment_method": "Gold"}  # neither of which was there at fitting
    known, missing, unknown = ask(url, [first, {**first, "total_charges": None}, strange])
    leaves = [row["predict_proba"][1] for row in (known, missing, unknown)]
    alike = np.allclose(known["predict_proba"], answers["predict_proba"][0])
    right = bool(accuracy > 0.77 and alike and min(leaves) > 0 and max(leaves) < 1 and len(set(leaves)) == 3)
    print(
        f"{'right' if right else 'WRONG'}  {accuracy:.0%} of {len(rows)} unseen customers judged rightly; one leaves "
        f"with {leaves[0]:.2f}, {leaves[1]:.2f} if a charge is missing, {leaves[2]:.2f} if the contract is unknown"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"))
