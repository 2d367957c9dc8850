"""Train a classifier on the breast cancer data that scikit-learn ships, and pack it: `breast_cancer.py FOLDER`."""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import maitred

FEATURES = ["mean radius", "mean texture", "mean smoothness", "mean concavity"]


def main(folder: str) -> None:
    data = load_breast_cancer()
    columns = [list(data.feature_names).index(name) for name in FEATURES]
    diagnosis = np.array(data.target_names)[data.target]  # "malignant" or "benign"
    train_x, test_x, train_y, test_y = train_test_split(
        data.data[:, columns], diagnosis, random_state=0, stratify=diagnosis
    )
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(train_x, train_y)

    names = [name.replace(" ", "_") for name in FEATURES]
    description = maitred.pack(
        model,
        folder,
        name="breast_cancer",
        options={"features": names},  # an input for each column, instead of one matrix
        example=dict(zip(names, test_x[:8].T, strict=True)),  # replayed, and compared, at every load
    )
    print(f"packed {folder}: {description.signature.to_text()}")
    print(f"accuracy on {len(test_y)} unseen cases: {model.score(test_x, test_y):.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(sys.argv[1])
