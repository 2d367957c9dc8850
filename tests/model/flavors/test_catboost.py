"""CatBoost: the answers are the library's own, columns come as they were fitted, nothing is left on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import catboost
import numpy as np
import pandas
import pytest
from catboost import CatBoost, CatBoostClassifier, CatBoostRanker, CatBoostRegressor, Pool

import maitred
from maitred.errors import Malformed
from maitred.model import versions
from maitred.model.flavors import for_object
from maitred.model.loading import Loaded, Source, load, replay, run, warm
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused, WrongVersions
from maitred.model.trial import inputs_of

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(150, 3))
TWO = (X[:, 0] > 0).astype(int)
THREE = RANDOM.integers(0, 3, 150)
FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(18, 90, 150),
        "country": np.array(["de", "fr", "se", "öst"])[RANDOM.integers(0, 4, 150)],
        "income": np.where(RANDOM.random(150) < 0.2, np.nan, RANDOM.normal(size=150)),
        "code": np.array([7, 10, 300])[RANDOM.integers(0, 3, 150)],
        "flag": RANDOM.random(150) > 0.5,
        "member": RANDOM.random(150) > 0.5,
    }
)
HASHED = ["country", "code", "flag"]
TARGET = FRAME["age"] / 30 + (FRAME["country"] == "öst") * 2.0 + (FRAME["code"] == 7) * 3.0 + FRAME["flag"]
SMALL: dict[str, Any] = {
    "iterations": 5, "depth": 3, "verbose": False, "allow_writing_files": False, "thread_count": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def served(model: Any, folder: Path, **more: Any) -> Loaded:
    """The model, packed and loaded again."""
    pack(model, folder / "m", **more)
    loaded = load(Source(str(folder / "m")))
    replay(loaded)
    return loaded


def asked(loaded: Loaded, values: dict[str, Any]) -> dict[str, Any]:
    """The answer to values as a caller gives them."""
    return run(loaded.predictor, inputs_of(loaded.predictor.signature, values))


def columns(frame: pandas.DataFrame) -> dict[str, Any]:
    """A data frame's columns as arrays, text as objects."""
    return {
        str(name): values.to_numpy(values.to_numpy().dtype if values.dtype.kind in "iufb" else object)
        for name, values in frame.items()
    }


def mixed() -> Any:
    return CatBoostRegressor(cat_features=HASHED, **{**SMALL, "iterations": 30}).fit(FRAME, TARGET)


# --- signatures and answers ----------------------------------------------------------------------------------------

MATRIX = "x: float64[n, 3] nullable -> "
BOTH = 'predict_proba: float64[n, 2] labels=["0", "1"]'


@pytest.mark.parametrize(
    ("model", "target", "outputs"),
    [
        (CatBoostClassifier(), TWO, f"predict: int64[n], {BOTH}"),
        (CatBoostClassifier(), TWO > 0, 'predict: bool[n], predict_proba: float64[n, 2] labels=["False", "True"]'),
        (CatBoostClassifier(), TWO + 0.5, 'predict: float64[n], predict_proba: float64[n, 2] labels=["0.5", "1.5"]'),
        (CatBoostClassifier(), THREE, 'predict: int64[n], predict_proba: float64[n, 3] labels=["0", "1", "2"]'),
        (
            CatBoostClassifier(),
            np.array(["nej", "ja", "kanske"])[THREE],
            'predict: str[n], predict_proba: float64[n, 3] labels=["ja", "kanske", "nej"]',
        ),
        (
            CatBoostClassifier(class_names=["nej", "ja"]),
            np.array(["nej", "ja"])[TWO],
            'predict: str[n], predict_proba: float64[n, 2] labels=["nej", "ja"]',
        ),
        (CatBoostClassifier(loss_function="CrossEntropy"), TWO / 2 + 0.2, f"predict: int64[n], {BOTH}"),
        (
            CatBoostClassifier(loss_function="MultiLogloss"),
            (X[:, :2] > 0).astype(int),
            f"predict: int64[n, 2], {BOTH}",
        ),
        (CatBoostClassifier(loss_function="MultiClass"), TWO, f"predict: int64[n], {BOTH}"),
        (CatBoostRegressor(), X[:, 0], "predict: float64[n]"),
        (CatBoostRegressor(loss_function="Poisson"), np.abs(X[:, 0]), "predict: float64[n]"),
        (CatBoostRegressor(loss_function="Tweedie:variance_power=1.5"), np.abs(X[:, 0]), "predict: float64[n]"),
        (CatBoostRegressor(loss_function="MultiRMSE"), X[:, :2], "predict: float64[n, 2]"),
        (CatBoostRegressor(loss_function="RMSEWithUncertainty"), X[:, 0], "predict: float64[n, 2]"),
        (CatBoostRegressor(loss_function="MultiQuantile:alpha=0.1,0.9"), X[:, 0], "predict: float64[n, 2]"),
        (CatBoost({"loss_function": "Logloss"}), TWO, "predict: float64[n]"),
        (CatBoost({"loss_function": "Poisson"}), np.abs(X[:, 0]), "predict: float64[n]"),
    ],
)
def test_models_tell_their_signature_and_answer_as_the_library(
    model: Any, target: Any, outputs: str, tmp_path: Path
) -> None:
    model.set_params(**SMALL)
    model.fit(X, target)
    loaded = served(model, tmp_path, example=X[:4])
    assert loaded.predictor.signature.to_text() == MATRIX + outputs
    answer = run(loaded.predictor, {"x": X})
    wanted = model.predict(X)
    assert answer["predict"].tolist() == (wanted.reshape(-1) if wanted.shape == (150, 1) else wanted).tolist()
    if "predict_proba" in answer:
        assert np.array_equal(answer["predict_proba"], model.predict_proba(X))


def test_a_ranker(tmp_path: Path) -> None:
    model = CatBoostRanker(**SMALL).fit(X, TWO, group_id=np.repeat(np.arange(15), 10))
    loaded = served(model, tmp_path, example=X[:4])
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X))


def test_a_sum_of_models(tmp_path: Path) -> None:
    parts = [CatBoostRegressor(**SMALL).fit(X, X[:, at]) for at in (0, 1)]
    model = catboost.sum_models(parts)
    loaded = served(model, tmp_path, example=X[:4])
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X))


def test_the_trees_can_be_looked_into(tmp_path: Path) -> None:
    model = CatBoostClassifier(**SMALL).fit(X, THREE)
    loaded = served(model, tmp_path, example=X[:4], options={"methods": ["raw_score", "leaf", "contributions"]})
    shapes = {name: spec.shape for name, spec in loaded.predictor.signature.outputs.items()}
    assert shapes == {"raw_score": ("n", 3), "leaf": ("n", 5), "contributions": ("n", 3, 4)}
    answer = run(loaded.predictor, {"x": X})
    assert np.array_equal(answer["raw_score"], model.predict(X, prediction_type="RawFormulaVal"))
    assert np.array_equal(answer["leaf"], model.calc_leaf_indexes(X))
    assert np.allclose(answer["contributions"].sum(axis=2), answer["raw_score"])


@pytest.mark.parametrize(
    ("loss", "method"), [("RMSE", "predict_proba"), ("RMSEWithUncertainty", "contributions"), ("RMSE", "fit")]
)
def test_what_a_model_cannot_be_asked_for_is_refused(loss: str, method: str, tmp_path: Path) -> None:
    model = CatBoostRegressor(loss_function=loss, **SMALL).fit(X, X[:, 0])
    with pytest.raises(CannotLoad, match=method):
        pack(model, tmp_path / "m", options={"methods": [method]})
    with pytest.raises(CannotLoad, match=method):
        pack(model, tmp_path / "m", signature=maitred.Signature({"x": "float64[n, 3]"}, {method: "float64[n]"}))


@pytest.mark.parametrize(
    ("model", "options", "outputs"),
    [
        (CatBoostClassifier(), {}, ["predict", "predict_proba"]),
        (CatBoostClassifier(), {"estimator": "CatBoost"}, ["predict"]),
        (CatBoost({"loss_function": "Logloss"}), {}, ["predict", "predict_proba"]),
    ],
)
def test_a_file_with_classes_is_a_classifiers(
    model: Any, options: dict[str, Any], outputs: list[str], tmp_path: Path
) -> None:
    model.set_params(**SMALL)
    model.fit(X, TWO).save_model(str(tmp_path / "m.cbm"))
    loaded = load(Source(str(tmp_path / "m.cbm"), options=options))
    assert [*loaded.predictor.signature.outputs] == outputs
    assert warm(loaded, 4).description.warnings == ()
    wanted = "RawFormulaVal" if options else "Class"
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X, prediction_type=wanted))


@pytest.mark.parametrize("estimator", ["CatBoostClassifier", "Booster", 3])
def test_an_estimator_that_does_not_fit_is_refused(estimator: Any, tmp_path: Path) -> None:
    CatBoostRegressor(**SMALL).fit(X, X[:, 0]).save_model(str(tmp_path / "m.cbm"))
    with pytest.raises(CannotLoad, match=r"estimator|classes"):
        load(Source(str(tmp_path / "m.cbm"), options={"estimator": estimator}))


# --- columns of all kinds ------------------------------------------------------------------------------------------


def test_mixed_columns(tmp_path: Path) -> None:
    model = mixed()
    loaded = served(model, tmp_path, example=FRAME[:20])
    assert {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()} == {
        "age": "int64[n]",
        "country": "str[n]",
        "income": "float64[n] nullable",
        "code": "int64[n]",
        "flag": "bool[n]",
        "member": "bool[n]",
    }
    wanted = model.predict(FRAME)
    rows = columns(FRAME)
    assert np.array_equal(run(loaded.predictor, dict(reversed(rows.items())))["predict"], wanted)
    for row in range(6):
        alone = run(loaded.predictor, {name: values[row : row + 1] for name, values in rows.items()})
        assert np.array_equal(alone["predict"], wanted[row : row + 1])


def test_a_category_that_the_model_does_not_know_is_the_librarys_affair(tmp_path: Path) -> None:
    model = mixed()
    loaded = served(model, tmp_path, example=FRAME[:20])
    other = FRAME.assign(country="xx", code=8)
    assert np.array_equal(run(loaded.predictor, columns(other))["predict"], model.predict(other))


def test_a_file_alone_takes_categories_as_text(tmp_path: Path) -> None:
    model = CatBoostClassifier(cat_features=["country", "code"], **SMALL).fit(FRAME[["income", "country", "code"]], TWO)
    model.save_model(str(tmp_path / "m.cbm"))
    loaded = load(Source(str(tmp_path / "m.cbm")))
    inputs = {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()}
    assert inputs == {"income": "float64[n] nullable", "country": "str[n]", "code": "str[n]"}
    rows = columns(FRAME[["income", "country", "code"]])
    rows["code"] = rows["code"].astype(str).astype(object)
    wanted = model.predict_proba(FRAME[["income", "country", "code"]])
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], wanted)
    assert warm(loaded, 4).description.warnings == ()


def test_categories_of_a_data_frame_are_like_any_text(tmp_path: Path) -> None:
    frame = FRAME.assign(country=FRAME["country"].astype("category"), code=FRAME["code"].astype("category"))
    model = CatBoostRegressor(cat_features=HASHED, **SMALL).fit(frame, TARGET)
    loaded = served(model, tmp_path, example=frame[:5])
    inputs = loaded.predictor.signature.inputs
    assert (inputs["country"].to_text(), inputs["code"].to_text()) == ("str[n]", "int64[n]")
    assert np.array_equal(run(loaded.predictor, columns(FRAME))["predict"], model.predict(frame))


@pytest.mark.parametrize("word", ["nan", "None", ""])
def test_a_missing_category_is_the_text_of_fitting(word: str, tmp_path: Path) -> None:
    """The library takes None for no category: who fitted the model has put a text in its place."""
    holes = FRAME["country"].where(RANDOM.random(150) < 0.7, word).astype(object)
    codes = FRAME["code"].astype(str).where(RANDOM.random(150) < 0.7, word).astype(object)
    frame = pandas.DataFrame({"country": holes, "code": codes, "income": FRAME["income"]})
    model = CatBoostRegressor(cat_features=["country", "code"], **SMALL).fit(frame, TARGET)
    signature = maitred.Signature(
        {"country": "str[n] nullable", "code": "int32[n] nullable", "income": "float64[n] nullable"},
        {"predict": "float64[n]"},
    )
    loaded = served(model, tmp_path, signature=signature, options={"missing": word})
    values = {
        "country": [None if value == word else value for value in holes],
        "code": [None if value == word else int(value) for value in codes],
        "income": frame["income"].tolist(),
    }
    assert np.array_equal(asked(loaded, values)["predict"], model.predict(frame))


def test_the_option_missing_makes_categories_nullable(tmp_path: Path) -> None:
    loaded = served(mixed(), tmp_path, example=FRAME[:20], options={"missing": "nan"})
    nullable = {name for name, spec in loaded.predictor.signature.inputs.items() if spec.nullable}
    assert nullable == {"income", *HASHED}
    with pytest.raises(CannotLoad, match="missing"):
        pack(mixed(), tmp_path / "n", example=FRAME[:20], options={"missing": 3})


def test_missing_numbers(tmp_path: Path) -> None:
    ages = FRAME["age"].astype("Int64").mask(RANDOM.random(150) < 0.3)
    frame = pandas.DataFrame({"age": ages, "country": FRAME["country"]})
    model = CatBoostRegressor(cat_features=["country"], **SMALL)
    as_floats = frame.assign(age=ages.to_numpy(float, na_value=np.nan))
    model.fit(as_floats, TARGET)
    loaded = served(model, tmp_path, example=frame[:9])
    assert loaded.predictor.signature.inputs["age"].to_text() == "int64[n] nullable"
    values = {
        "age": [None if value is pandas.NA else int(value) for value in ages],
        "country": frame["country"].tolist(),
    }
    assert np.array_equal(asked(loaded, values)["predict"], model.predict(as_floats))


def test_a_model_that_forbids_nan_has_no_nullable_inputs(tmp_path: Path) -> None:
    model = CatBoostRegressor(nan_mode="Forbidden", **SMALL).fit(X, X[:, 0])
    assert served(model, tmp_path, example=X[:4]).predictor.signature.inputs["x"].nullable is False


def test_numbers_that_float32_cannot_hold(tmp_path: Path) -> None:
    model = CatBoostRegressor(**SMALL).fit(X, X[:, 0])
    loaded = served(model, tmp_path, example=X[:4])
    rows = np.array([[1e300, -1e300, np.inf], [np.nan, -np.inf, 0.0]])
    assert np.array_equal(run(loaded.predictor, {"x": rows})["predict"], model.predict(rows))


def test_names_for_a_matrix(tmp_path: Path) -> None:
    model = CatBoostRegressor(**SMALL).fit(X, X[:, 0])
    example = {name: X[:4, at] for at, name in enumerate("abc")}
    loaded = served(model, tmp_path, example=example, options={"features": ["a", "b", "c"]})
    rows = {name: X[:, at] for name, at in (("c", 2), ("a", 0), ("b", 1))}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(X))
    for names in (["a"], ["a", "b", "b"]):
        with pytest.raises(CannotLoad, match="features"):
            pack(model, tmp_path / "n", options={"features": names})


def test_texts_and_embeddings(tmp_path: Path) -> None:
    words = np.array(["good day", "bad day", "nice food here"], object)[THREE]
    vectors = RANDOM.normal(size=(150, 4)).astype(np.float32)
    frame = pandas.DataFrame({"size": X[:, 0], "say": words, "vector": list(vectors)})
    model = CatBoostClassifier(text_features=["say"], embedding_features=["vector"], **SMALL).fit(frame, TWO)
    example = {"size": X[:4, 0], "say": words[:4], "vector": vectors[:4]}
    loaded = served(model, tmp_path, example=example)
    inputs = {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()}
    assert inputs == {"size": "float64[n] nullable", "say": "str[n]", "vector": "float32[n, 4]"}
    rows = {"vector": vectors, "size": X[:, 0], "say": words}
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(frame))
    with pytest.raises(CannotLoad, match="'vector'"):
        pack(model, tmp_path / "n")


# --- wrong inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: {name: row[name] for name in row if name != "age"}, "age"),
        (lambda row: {**row, "agee": [1.0]}, "agee"),
        (lambda row: {**row, "age": ["old"]}, "age"),
        (lambda row: {**row, "code": [1.5]}, "code"),
        (lambda row: {**row, "code": ["7"]}, "code"),
        (lambda row: {**row, "country": [3]}, "country"),
        (lambda row: {**row, "country": [None]}, "country"),
        (lambda row: {**row, "income": [1.0, 2.0]}, "income"),
    ],
)
def test_wrong_inputs_are_the_callers_fault(
    change: Callable[[dict[str, Any]], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    pack(mixed(), tmp_path / "m", example=FRAME[:20])
    row = {name: values[:1].tolist() for name, values in columns(FRAME).items()}
    with maitred.load(str(tmp_path / "m")) as model:
        model.predict(row)
        with pytest.raises(Malformed, match=said):
            model.predict(change(row))


FITTING = {
    "age": "int64[n]", "country": "str[n]", "income": "float64[n]", "code": "int64[n]", "flag": "bool[n]",
    "member": "bool[n]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": "float64[n]"}, "'code' is a categorical feature"),
        ({"country": "str[n] nullable"}, "'country' is a categorical feature, of which CatBoost takes no missing"),
        ({"age": None}, "fitted on"),
        ({"more": "float64[n]"}, "fitted on"),
        ({"age": "str[n]"}, "'age' is text"),
        ({"age": "float64[n, 2]"}, "takes 1 features"),
    ],
)
def test_a_signature_of_other_features_is_refused(change: dict[str, str | None], said: str, tmp_path: Path) -> None:
    inputs: Any = {name: text for name, text in {**FITTING, **change}.items() if text is not None}
    with pytest.raises(CannotLoad, match=said):
        pack(mixed(), tmp_path / "m", signature=maitred.Signature(inputs, {"predict": "float64[n]"}))


def test_a_signature_by_hand(tmp_path: Path) -> None:
    inputs: Any = {**FITTING, "code": "str[n, 1]", "income": "float32[n, 1]"}
    model = mixed()
    loaded = served(model, tmp_path, signature=maitred.Signature(inputs, {"predict": "float64[n]"}))
    rows = columns(FRAME)
    rows["code"] = rows["code"].astype(str).astype(object)[:, None]
    rows["income"] = rows["income"].astype(np.float32)[:, None]
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(FRAME))


def test_an_example_that_does_not_fit_is_told(tmp_path: Path) -> None:
    for example in ({"y": X[:2]}, [[1.0]], 3, {"x": X[:2, :2]}, "text"):
        with pytest.raises(LoadRefused):
            pack(CatBoostRegressor(**SMALL).fit(X, X[:, 0]), tmp_path / "m", example=example)


# --- files, claims, threads ----------------------------------------------------------------------------------------


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    CatBoostRegressor(**SMALL).fit(X, X[:, 0]).save_model(str(tmp_path / "good.cbm"))
    CatBoostRegressor(**SMALL).fit(X, X[:, 0]).save_model(str(tmp_path / "good.json"), format="json")
    good = (tmp_path / "good.cbm").read_bytes()
    breaks = [good[:size] for size in range(0, len(good), len(good) // 20)]
    for content in (b"CBM1", b"nonsense", (tmp_path / "good.json").read_bytes(), *breaks):
        (tmp_path / "m.cbm").write_bytes(content)
        with pytest.raises(CannotLoad) as refused:
            load(Source(str(tmp_path / "m.cbm")))
        assert str(tmp_path) not in refused.value.message
        assert ".cpp" not in refused.value.message


def test_another_major_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(CatBoostRegressor(**SMALL).fit(X, X[:, 0]), tmp_path / "m", example=X[:4])
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda name: "99.1")
    with pytest.raises(WrongVersions, match=r"catboost .*, and 99\.1"):
        load(Source(str(tmp_path / "m")))


class Careful(CatBoostClassifier):  # type: ignore[misc]  # the library has no types
    """Predicts otherwise than its base."""


def test_a_derived_class_is_not_taken_for_its_base() -> None:
    for model in (CatBoost(), CatBoostClassifier(), CatBoostRegressor(), CatBoostRanker()):
        assert for_object(model).name == "catboost"
    with pytest.raises(LoadRefused):
        for_object(Careful())


@pytest.mark.parametrize("model", [CatBoost(), CatBoostClassifier(), CatBoostRanker()])
def test_a_model_that_was_not_fitted_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="cannot save"):
        pack(model, tmp_path / "m")


def test_a_run_uses_as_many_threads_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = CatBoostRegressor.predict

    def predict(self: Any, data: Any, **more: Any) -> Any:
        seen.append(more["thread_count"])
        return whole(self, data, **more)

    monkeypatch.setattr(CatBoostRegressor, "predict", predict)
    model = CatBoostRegressor(**SMALL).fit(X, X[:, 0])
    loaded = served(model, tmp_path, example=X[:4], options={"threads": 2})
    run(loaded.predictor, {"x": X})
    assert {*seen} == {2}


def test_several_threads_may_ask_at_once(tmp_path: Path) -> None:
    loaded = served(mixed(), tmp_path, example=FRAME[:20])
    rows = columns(FRAME)
    wanted = run(loaded.predictor, rows)["predict"]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: run(loaded.predictor, rows)["predict"], range(40)))
    assert all(np.array_equal(answer, wanted) for answer in answers)


SERVE = """
import sys
import numpy as np
from maitred.model.loading import Source, load, run
loaded = load(Source(sys.argv[1]))
run(loaded.predictor, {"x": np.zeros((3, 3))})
"""


def test_nothing_is_written_where_it_is_served(tmp_path: Path) -> None:
    pack(CatBoostRegressor(**SMALL).fit(X, X[:, 0]), tmp_path / "m", example=X[:4])
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-c", SERVE, str(tmp_path / "m")]
    subprocess.run(command, cwd=tmp_path / "here", check=True, timeout=60)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_pool_says_which_features_are_no_numbers() -> None:
    """What this file takes for granted of the library: text and whole numbers of one category have one hash."""
    model = mixed()
    rows = FRAME.to_numpy(object)
    assert np.array_equal(model.predict(Pool(rows, cat_features=[1, 3, 4])), model.predict(FRAME))
    rows[:, 3] = [str(code) for code in rows[:, 3]]
    assert np.array_equal(model.predict(Pool(rows, cat_features=[1, 3, 4])), model.predict(FRAME))
