"""Models of trees have the same outputs under the same names, whichever library made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from maitred.model.flavors import trees
from maitred.model.loading import Source, load, run
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad

FRAME = pandas.DataFrame(np.random.default_rng(1).normal(size=(60, 3)), columns=["a", "b", "c"])
TARGET = (FRAME["a"] + FRAME["b"] > 0).to_numpy().astype(int)
COLUMNS = {name: FRAME[name].to_numpy() for name in FRAME}


def lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=4, num_leaves=4, min_child_samples=5, n_jobs=1, verbose=-1)


def xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=4, max_depth=2, n_jobs=1)


def catboost() -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(iterations=4, depth=2, verbose=False, thread_count=1, allow_writing_files=False)


@pytest.mark.parametrize("make", [lightgbm, xgboost, catboost])
@pytest.mark.parametrize("named", [True, False])
def test_all_three_libraries_give_the_same_outputs(make: Any, named: bool, tmp_path: Path) -> None:
    rows = FRAME if named else FRAME.to_numpy()
    model = make().fit(rows, TARGET)
    pack(model, tmp_path / "m", example=rows[:5], options={"methods": [*trees.METHODS]})
    predictor = load(Source(str(tmp_path / "m"))).predictor
    outputs = predictor.signature.outputs
    assert tuple(outputs) == trees.METHODS
    assert outputs["predict_proba"].labels == ("0", "1")
    assert outputs["leaf"].to_text() == "int32[n, 4]"
    assert outputs["contributions"].labels == ((*"abc", "expected") if named else (*"012", "expected"))
    answer = run(predictor, COLUMNS if named else {"x": rows})
    assert np.allclose(answer["contributions"].sum(axis=1), answer["raw_score"], atol=1e-5)
    assert np.allclose(1 / (1 + np.exp(-answer["raw_score"])), answer["predict_proba"][:, 1], atol=1e-5)
    assert np.array_equal(answer["predict"], model.predict(rows))


def test_other_names_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(CannotLoad, match=r"no output 'margin': outputs are predict, .*contributions"):
        trees.check_known(["predict", "margin"])
