"""CatBoost's models pass the contract that is asked of every flavor's."""

from __future__ import annotations

from typing import Any

import catboost
import numpy as np
import pandas

from maitred.testing.flavors import FlavorContract

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(120, 4)).astype(np.float32)
FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(18, 90, 120),
        "country": RANDOM.choice(["de", "fr", "se"], 120),
        "income": RANDOM.normal(size=120),
        "code": RANDOM.choice([7, 10, 300], 120),
        "member": RANDOM.random(120) > 0.5,
    }
)
SMALL: dict[str, Any] = {
    "iterations": 3, "depth": 3, "verbose": False, "allow_writing_files": False, "thread_count": 1,
}  # fmt: skip


class TestCatboostMatrix(FlavorContract):
    name = "catboost"
    frameworks = ("catboost",)

    def model(self) -> Any:
        return catboost.CatBoostRegressor(**SMALL).fit(ROWS, ROWS[:, 0])

    def example(self) -> Any:
        return ROWS[:5]


class TestCatboostFrame(FlavorContract):
    name = "catboost"
    frameworks = ("catboost",)

    def model(self) -> Any:
        words = np.array(["hm", "ja", "no"])[RANDOM.integers(0, 3, 120)]
        return catboost.CatBoostClassifier(cat_features=["country", "code"], **SMALL).fit(FRAME, words)

    def example(self) -> Any:
        return FRAME[:5]


class TestCatboostBare(FlavorContract):
    name = "catboost"
    frameworks = ("catboost",)

    def model(self) -> Any:
        pool = catboost.Pool(ROWS, ROWS[:, 0] > 0, feature_names=list("abcd"))
        return catboost.train(pool, {"loss_function": "Logloss", **SMALL})

    def example(self) -> Any:
        return {name: ROWS[:5, at] for at, name in enumerate("abcd")}
