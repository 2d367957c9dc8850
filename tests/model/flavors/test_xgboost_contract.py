"""XGBoost's models pass the contract that is asked of every flavor's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import xgboost

from maitred.testing.flavors import FlavorContract

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(120, 4)).astype(np.float32)
FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(18, 90, 120),
        "country": pandas.Categorical(RANDOM.choice(["de", "fr", "se"], 120)),
        "code": pandas.Categorical(RANDOM.choice([7, 10, 300], 120)),
        "income": RANDOM.normal(size=120),
        "member": RANDOM.random(120) > 0.5,
    }
)


class TestXgboostMatrix(FlavorContract):
    name = "xgboost"
    frameworks = ("xgboost",)

    def model(self) -> Any:
        return xgboost.XGBClassifier(n_estimators=3, max_depth=3).fit(ROWS, (ROWS[:, 0] > 0).astype(int))

    def example(self) -> Any:
        return ROWS[:5]


class TestXgboostFrame(FlavorContract):
    name = "xgboost"
    frameworks = ("xgboost",)

    def model(self) -> Any:
        target = FRAME["income"] + FRAME["country"].cat.codes + FRAME["member"]
        return xgboost.XGBRegressor(n_estimators=3, max_depth=3, enable_categorical=True).fit(FRAME, target)

    def example(self) -> Any:
        return FRAME[:5]


class TestXgboostBooster(FlavorContract):
    name = "xgboost"
    frameworks = ("xgboost",)

    def model(self) -> Any:
        data = xgboost.DMatrix(ROWS, RANDOM.integers(0, 3, 120), feature_names=list("abcd"))
        return xgboost.train({"objective": "multi:softprob", "num_class": 3}, data, 3)

    def example(self) -> Any:
        return {name: ROWS[:5, at] for at, name in enumerate("abcd")}
