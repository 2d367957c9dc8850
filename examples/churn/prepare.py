"""Train a pipeline on a DataFrame of mixed columns, and pack it: `prepare.py FOLDER`."""

from __future__ import annotations

import sys

import customers
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import maitred


def pipeline() -> Pipeline:
    """Columns are chosen by their names, so it takes DataFrames only."""
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), customers.NUMBERS),
        ("passthrough", customers.ANSWERS),
        (OneHotEncoder(handle_unknown="ignore"), [*customers.WORDS, "contract"]),
    )
    return make_pipeline(columns, LogisticRegression(max_iter=1000))


def main(folder: str) -> None:
    known, _, left, _ = customers.load()
    example = pd.concat([known[:7], known[known["total_charges"].isna()][:1]])
    description = maitred.pack(
        pipeline().fit(known, left),
        folder,
        name="churn",
        example=example,  # tells the columns' dtypes, categories and what may be missing; replayed at every load
    )
    print(f"packed {folder}: {description.signature.to_text()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
