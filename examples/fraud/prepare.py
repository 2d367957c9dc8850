"""Train boosted trees on the transactions of the past, and pack them: `prepare.py FOLDER`."""

from __future__ import annotations

import sys

import transactions
from lightgbm import LGBMClassifier

import maitred


def main(folder: str) -> None:
    numbers, fraud = transactions.load()
    past = numbers[: transactions.KNOWN]
    model = LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1).fit(past, fraud[: transactions.KNOWN])
    description = maitred.pack(
        model,
        folder,
        name="fraud",
        example=past[:16],  # tells the columns' dtypes; replayed, and compared, at every load
    )
    print(f"packed {folder}: {description.signature.to_text()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
