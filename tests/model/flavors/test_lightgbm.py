"""LightGBM: text models as data, categories that do not depend on the batch, labels kept, damaged files refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas
import pytest
from sklearn.datasets import load_diabetes, load_iris

import maitred
from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.flavors import for_object
from maitred.model.loading import Loaded, Source, describe, load, replay, run, warm
from maitred.model.pack import pack
from maitred.model.predictor import Arrays
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused
from maitred.testing.flavors import FlavorContract

IRIS, SPECIES = load_iris(return_X_y=True)
QUIET: dict[str, Any] = {"verbose": -1, "n_jobs": 1, "n_estimators": 5, "num_leaves": 7, "min_child_samples": 3}
PARAMS: dict[str, Any] = {"verbose": -1, "num_threads": 1, "num_leaves": 7, "min_data_in_leaf": 3, "seed": 1}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def served(model: Any, tmp_path: Path, **more: Any) -> Loaded:
    """The model, packed and loaded again."""
    pack(model, tmp_path / "m", **more)
    loaded = load(Source(str(tmp_path / "m")))
    replay(loaded)
    return loaded


def objects(values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = [None if value is None or value != value else value for value in values]
    return array


def booster(objective: str, target: Any, rows: Any = IRIS, **more: Any) -> lightgbm.Booster:
    return lightgbm.train({**PARAMS, "objective": objective, **more}, lightgbm.Dataset(rows, target), 4)


def mixed(rows: int = 400) -> pandas.DataFrame:
    chance = np.random.default_rng(7)
    return pandas.DataFrame(
        {
            "age": chance.integers(18, 80, rows),
            "country": pandas.Categorical(chance.choice(["se", "de", "fr"], rows), categories=["se", "fr", "de"]),
            "income": np.where(chance.random(rows) < 0.1, np.nan, chance.normal(size=rows)),
            "size": pandas.Categorical(chance.choice([7, 3, 5], rows)),
            "member": pandas.Categorical(chance.random(rows) < 0.5),
            "step": pandas.Categorical(chance.choice([1.5, 2.5], rows)),
            "grade": pandas.Categorical(chance.choice(["lo", "hi"], rows), categories=["lo", "hi"], ordered=True),
        }
    )


FRAME = mixed()
ANSWER = np.where(
    (FRAME.country.astype(str) == "de") ^ (FRAME["size"].astype(int) == 5) ^ FRAME.member.astype(bool), "yes", "no"
)


def columns(frame: pandas.DataFrame) -> Arrays:
    """A frame's columns as a predictor gets them."""
    as_text = {name: objects(frame[name].tolist()) for name in ("country", "grade")}
    return {
        "age": frame.age.to_numpy(), "income": frame.income.to_numpy(), **as_text,
        "size": frame["size"].to_numpy(np.int64), "member": frame.member.to_numpy(bool),
        "step": frame.step.to_numpy(np.float64),
    }  # fmt: skip


class TestMatrixContract(FlavorContract):
    name = "lightgbm"
    frameworks = ("lightgbm",)

    def model(self) -> Any:
        return booster("multiclass", SPECIES, num_class=3)

    def example(self) -> Any:
        return IRIS[::50]


class TestColumnsContract(FlavorContract):
    name = "lightgbm"
    frameworks = ("lightgbm",)

    def model(self) -> Any:
        return lightgbm.LGBMClassifier(**QUIET).fit(FRAME, ANSWER)

    def example(self) -> Any:
        return FRAME.dropna().iloc[:5]


# --- what a model tells --------------------------------------------------------------------------------------------

X4 = "x: float64[n, 4] nullable"


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (booster("binary", SPECIES > 0), f"{X4} -> predict: float64[n]"),
        (
            booster("multiclass", SPECIES, num_class=3),
            f'{X4} -> predict: float64[n, 3] labels=["0", "1", "2"]',
        ),
        (booster("regression", SPECIES), f"{X4} -> predict: float64[n]"),
        (booster("cross_entropy", SPECIES / 2), f"{X4} -> predict: float64[n]"),
        (lightgbm.LGBMRegressor(**QUIET).fit(IRIS, SPECIES), f"{X4} -> predict: float64[n]"),
        (lightgbm.LGBMRanker(**QUIET).fit(IRIS, SPECIES, group=[50, 100]), f"{X4} -> predict: float64[n]"),
        (
            lightgbm.LGBMClassifier(**QUIET).fit(IRIS, np.array(["ja", "nein"])[SPECIES % 2]),
            f'{X4} -> predict: str[n], predict_proba: float64[n, 2] labels=["ja", "nein"]',
        ),
    ],
    ids=["binary", "multiclass", "regression", "cross_entropy", "regressor", "ranker", "classifier"],
)
def test_models_tell_their_signature(model: Any, text: str, tmp_path: Path) -> None:
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert loaded.predictor.signature.to_text() == text


TOLD = """
import sys
from maitred.model.loading import Source, describe
print(describe(Source(sys.argv[1])).signature.to_text())
assert "lightgbm" not in sys.modules
"""


def test_a_file_tells_without_the_library(tmp_path: Path) -> None:
    model = lightgbm.LGBMClassifier(**QUIET).fit(FRAME, ANSWER)
    path = tmp_path / "m.txt"
    model.booster_.save_model(path)
    done = subprocess.run([sys.executable, "-c", TOLD, str(path)], capture_output=True, text=True, check=True)
    described = describe(Source(str(path)))
    assert described is not None
    assert done.stdout.strip() == described.signature.to_text()
    assert described.signature == load(Source(str(path))).predictor.signature
    assert {name: spec.to_text() for name, spec in described.signature.inputs.items()} == {
        "age": "float64[n] nullable",
        "country": 'str[n] nullable categories=["se", "fr", "de"]',
        "income": "float64[n] nullable",
        "size": "int64[n] nullable categories=[3, 5, 7]",
        "member": "bool[n] nullable",
        "step": "float64[n] nullable",
        "grade": 'str[n] nullable categories=["lo", "hi"]',
    }


def test_the_sample_tells_the_dtypes(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"i": [1, 2] * 20, "f": np.arange(40, dtype=np.float32), "b": [True, False] * 20})
    loaded = served(lightgbm.LGBMRegressor(**QUIET).fit(frame, np.arange(40)), tmp_path, example=frame)
    inputs = {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()}
    assert inputs == {"i": "int64[n]", "f": "float32[n] nullable", "b": "bool[n]"}


@pytest.mark.parametrize(
    "labels", [["b", "a"], [1, 0], [True, False], ["ja", "nein"], [2.0, -1.0], ["z", "ö", "é"], [30, 10, 20]], ids=str
)
def test_class_labels_are_kept_in_the_models_own_order(labels: list[Any], tmp_path: Path) -> None:
    model = lightgbm.LGBMClassifier(**QUIET).fit(IRIS, np.array(labels)[SPECIES % len(labels)])
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert loaded.description.labels["predict_proba"] == tuple(str(label) for label in model.classes_.tolist())
    answer = run(loaded.predictor, {"x": IRIS})
    assert answer["predict"].tolist() == model.predict(IRIS).tolist()
    assert np.array_equal(answer["predict_proba"], model.predict_proba(IRIS))


def test_a_boosters_classes_can_be_named(tmp_path: Path) -> None:
    model = booster("binary", SPECIES > 0)
    assert np.array_equal(run(served(model, tmp_path / "b").predictor, {"x": IRIS})["predict"], model.predict(IRIS))
    loaded = served(model, tmp_path, example=IRIS[::50], options={"classes": ["no", "yes"]})
    answer = run(loaded.predictor, {"x": IRIS})
    chance = model.predict(IRIS)
    assert np.array_equal(answer["predict_proba"], np.column_stack([1 - chance, chance]))
    assert answer["predict"].tolist() == np.where(chance > 0.5, "yes", "no").tolist()
    with pytest.raises(CannotLoad, match="has 2 classes, the option classes names 3"):
        pack(model, tmp_path / "n", options={"classes": ["a", "b", "c"]})
    with pytest.raises(CannotLoad, match="for classifiers, the model's objective is regression"):
        pack(booster("regression", SPECIES), tmp_path / "n", options={"classes": ["a", "b"]})


@pytest.mark.parametrize("several", [False, True])
def test_scores_leaves_and_contributions_can_be_asked_for(several: bool, tmp_path: Path) -> None:
    model = booster("multiclass", SPECIES, num_class=3) if several else booster("regression", SPECIES)
    methods = ["predict", "raw_score", "leaf", "contributions"]
    loaded = served(model, tmp_path, example=IRIS[::50], options={"methods": methods})
    answer = run(loaded.predictor, {"x": IRIS})
    assert np.array_equal(answer["raw_score"], model.predict(IRIS, raw_score=True))
    assert np.array_equal(answer["leaf"], model.predict(IRIS, pred_leaf=True))
    assert np.array_equal(answer["contributions"].reshape(150, -1), model.predict(IRIS, pred_contrib=True))
    assert answer["contributions"].shape == ((150, 3, 5) if several else (150, 5))
    assert np.allclose(answer["contributions"].sum(axis=-1), answer["raw_score"])
    assert loaded.predictor.signature.outputs["contributions"].labels == (
        "0", "1", "2", "3", "expected",
    )  # fmt: skip
    with pytest.raises(CannotLoad, match="no output 'fit'"):
        pack(model, tmp_path / "n", options={"methods": ["fit"]})


def test_an_objective_of_the_callers_own_gives_what_it_gives_by_itself(tmp_path: Path) -> None:
    def objective(predicted: Any, data: Any) -> Any:
        return predicted - data.get_label(), np.ones_like(predicted)

    model = lightgbm.train({**PARAMS, "objective": objective}, lightgbm.Dataset(IRIS, SPECIES), 3)
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert np.array_equal(run(loaded.predictor, {"x": IRIS})["predict"], model.predict(IRIS))
    own = lightgbm.LGBMClassifier(**{**QUIET, "objective": of_the_labels}).fit(IRIS, SPECIES > 0)
    scores = served(own, tmp_path / "c", example=IRIS[::50])
    assert [*scores.predictor.signature.outputs] == ["raw_score"]
    assert np.array_equal(run(scores.predictor, {"x": IRIS})["raw_score"], own.predict(IRIS, raw_score=True))
    with pytest.raises(CannotLoad, match="no output 'predict'"):
        pack(own, tmp_path / "n", options={"methods": ["predict"]})


def of_the_labels(wanted: Any, predicted: Any) -> Any:
    return predicted - wanted, np.ones_like(predicted)


def test_the_best_iteration_is_what_is_kept(tmp_path: Path) -> None:
    model = lightgbm.LGBMRegressor(**{**QUIET, "n_estimators": 200})
    stop = lightgbm.early_stopping(2, verbose=False)
    model.fit(IRIS[:100], SPECIES[:100], eval_X=(IRIS[100:],), eval_y=(SPECIES[100:],), callbacks=[stop])
    assert 0 < model.best_iteration_ < 200
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert np.array_equal(run(loaded.predictor, {"x": IRIS})["predict"], model.predict(IRIS))


@pytest.mark.parametrize("boosting", ["dart", "rf"])
@pytest.mark.parametrize("linear", [False, True])
def test_every_kind_of_boosting(boosting: str, linear: bool, tmp_path: Path) -> None:
    if linear and boosting == "rf":
        boosting = "gbdt"
    model = booster("regression", SPECIES, boosting=boosting, linear_tree=linear, bagging_fraction=0.5, bagging_freq=1)
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert np.array_equal(run(loaded.predictor, {"x": IRIS})["predict"], model.predict(IRIS))


# --- columns -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> lightgbm.LGBMClassifier:
    return lightgbm.LGBMClassifier(**{**QUIET, "n_estimators": 20}).fit(FRAME, ANSWER)


@pytest.fixture
def loaded(model: Any, tmp_path: Path) -> Loaded:
    return served(model, tmp_path, example=FRAME.iloc[:20])


def test_categories_are_scored_as_the_library_scores_them(model: Any, loaded: Loaded) -> None:
    answer = run(loaded.predictor, dict(reversed(columns(FRAME).items())))
    assert np.array_equal(answer["predict_proba"], model.predict_proba(FRAME))
    assert (answer["predict"] == ANSWER).mean() > 0.9


@pytest.mark.parametrize("neighbours", [1, 2, 100])
def test_a_row_scores_the_same_with_any_neighbours(neighbours: int, loaded: Loaded) -> None:
    """Codes come from the categories of fitting, never from those that share a batch."""
    alone = run(loaded.predictor, columns(FRAME.iloc[:1]))["predict_proba"][0]
    others = columns(FRAME.iloc[50 : 50 + neighbours])
    for order in ((0, 1), (1, 0)):
        parts = [columns(FRAME.iloc[:1]), others]
        batch = {name: np.concatenate([parts[at][name] for at in order]) for name in others}
        row = 0 if order[0] == 0 else neighbours
        assert np.array_equal(run(loaded.predictor, batch)["predict_proba"][row], alone)


def test_an_unseen_category_is_a_missing_one(model: Any, loaded: Loaded) -> None:
    rows = columns(FRAME.iloc[:50])
    unseen = run(loaded.predictor, {**rows, "country": objects(["??"] * 50), "size": np.full(50, 99)})
    missing = FRAME.iloc[:50].assign(
        country=pandas.Categorical([None] * 50, ["se", "fr", "de"]), size=pandas.Categorical([None] * 50, [3, 5, 7])
    )
    masked = np.ma.MaskedArray(np.zeros(50, np.int64), np.ones(50, bool))
    assert np.array_equal(unseen["predict_proba"], model.predict_proba(missing))
    none = run(loaded.predictor, {**rows, "country": objects([None] * 50), "size": masked})
    assert np.array_equal(none["predict_proba"], unseen["predict_proba"])


def test_an_example_of_strings_is_an_example_of_categories(model: Any, tmp_path: Path) -> None:
    texts = FRAME.iloc[:20].astype({"country": str, "grade": str, "size": int, "member": bool, "step": float})
    loaded = served(model, tmp_path, example=texts)
    answer = run(loaded.predictor, columns(FRAME))
    assert np.array_equal(answer["predict_proba"], model.predict_proba(FRAME))


def test_ordered_categories_of_a_bare_file_are_found_where_they_must_be(tmp_path: Path) -> None:
    """The file lists ordered categories but not their column: their codes' range shows it."""
    frame = FRAME[["age", "country", "income", "grade"]]
    model = lightgbm.LGBMClassifier(**QUIET).fit(frame, ANSWER)
    model.booster_.save_model(tmp_path / "m.lgb")
    loaded = load(Source(str(tmp_path / "m.lgb")))
    rows = {name: array for name, array in columns(FRAME).items() if name in frame.columns}
    chances = run(loaded.predictor, {**rows, "age": rows["age"].astype(float)})["predict"]
    assert np.array_equal(chances, model.predict_proba(frame)[:, 1])


def test_columns_that_nothing_tells_are_asked_for(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "flag": [0, 1] * 100,
            "grade": pandas.Categorical(["lo", "hi"] * 100, ["lo", "hi"], ordered=True),
            "z": range(200),
        }
    )
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame, np.arange(200) % 7)
    with pytest.raises(CannotLoad, match="option `categorical`"):
        model.booster_.save_model(tmp_path / "m.lgb")
        load(Source(str(tmp_path / "m.lgb")))
    loaded = load(Source(str(tmp_path / "m.lgb"), options={"categorical": ["grade"]}))
    assert loaded.predictor.signature.inputs["grade"].categories == ("lo", "hi")
    assert served(model, tmp_path, example=frame.iloc[:9]).predictor.signature.inputs["grade"].dtype == "str"


def test_columns_of_the_callers_choice_are_told_by_the_example(tmp_path: Path) -> None:
    """The file then lists the chosen ones as if they were the categories."""
    frame = pandas.DataFrame({"flag": [0, 1, 1] * 40, "grade": pandas.Categorical(["lo", "hi", "mid", "hi"] * 30)})
    target = (frame.grade == "hi") * 2.0 + frame.flag
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame, target, categorical_feature=["flag"])
    loaded = served(model, tmp_path, example=frame.iloc[:9])
    assert loaded.predictor.signature.inputs["grade"].categories == ("hi", "lo", "mid")
    rows = {"flag": frame.flag.to_numpy(), "grade": objects(frame.grade.tolist())}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(frame))
    foreign = maitred.Signature({"flag": "int64[n]", "grade": 'str[n] categories=["a"]'}, {"predict": "float64[n]"})
    with pytest.raises(CannotLoad, match="option `categorical`"):
        pack(model, tmp_path / "n", signature=foreign)


def test_spaces_in_names_are_the_callers(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"my age": np.arange(40.0), "b": np.arange(40.0) % 3})
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame, np.arange(40))
    loaded = served(model, tmp_path, example=frame)
    assert [*loaded.predictor.signature.inputs] == ["my age", "b"]
    rows = {name: frame[name].to_numpy() for name in ("b", "my age")}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(frame))


def test_missing_numbers_are_answered(tmp_path: Path) -> None:
    frame = load_diabetes(as_frame=True).data
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame.mask(frame > 0.05), load_diabetes().target)
    loaded = served(model, tmp_path, example=frame)
    assert all(spec.nullable for spec in loaded.predictor.signature.inputs.values())
    holes = frame.mask(frame < 0)
    rows = {name: holes[name].to_numpy() for name in holes}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(holes))


def test_fewer_features_are_refused_unless_a_default_is_declared(tmp_path: Path) -> None:
    """Nothing is filled up silently."""
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(60, 30)), columns=[f"f{i}" for i in range(30)])
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame, frame.f0)
    loaded = served(model, tmp_path, example=frame.iloc[:5])
    one = {"f0": Tensor("float64", (1,), np.array([1.0]))}
    with pytest.raises(Malformed, match="input 'f1' is missing"):
        loaded.predictor.signature.check(one)
    inputs = {name: "float64[n] nullable default=NaN" if name != "f0" else "float64[n]" for name in frame}
    signature = maitred.Signature(inputs, {"predict": "float64[n]"})
    pack(model, tmp_path / "filled", signature=signature, example={"f0": [1.0, 2.0, 3.0]})
    answer = run(
        load(Source(str(tmp_path / "filled"))).predictor, {**{n: np.full(1, np.nan) for n in frame}, "f0": np.ones(1)}
    )
    assert answer["predict"] == model.predict(frame.iloc[:1].assign(**dict.fromkeys(frame, np.nan)).assign(f0=1.0))
    matrix = served(booster("regression", SPECIES), tmp_path / "x", example=IRIS[::50])
    with pytest.raises(Malformed, match=r"expected shape \[n, 4\], got \[1, 1\]"):
        matrix.predictor.signature.check({"x": Tensor("float64", (1, 1), np.ones((1, 1)))})


def test_columns_of_a_matrix_get_names_by_an_option(tmp_path: Path) -> None:
    model = booster("regression", SPECIES)
    named = [f"c{i}" for i in range(4)]
    loaded = served(model, tmp_path, options={"features": named}, example=dict(zip(named, IRIS[::50].T, strict=True)))
    answer = run(loaded.predictor, dict(zip(named, IRIS.T, strict=True)))
    assert np.array_equal(answer["predict"], model.predict(IRIS))
    with pytest.raises(CannotLoad, match="takes 4 features, the option features names 2"):
        pack(model, tmp_path / "n", options={"features": ["a", "b"]})


def test_one_matrix_by_hand_for_named_features(tmp_path: Path) -> None:
    frame = load_iris(as_frame=True).data
    model = lightgbm.LGBMRegressor(**QUIET).fit(frame, SPECIES)
    signature = maitred.Signature({"x": "float32[n, 4]"}, {"predict": "float64[n]"})
    loaded = served(model, tmp_path, signature=signature, example=IRIS[::50].astype(np.float32))
    assert np.array_equal(run(loaded.predictor, {"x": IRIS.astype("f4")})["predict"], model.predict(frame.astype("f4")))


def test_threads_are_what_the_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    predict = lightgbm.Booster.predict

    def noted(self: Any, data: Any, num_threads: int, **more: Any) -> Any:
        asked.append(num_threads)
        return predict(self, data, num_threads=num_threads, **more)

    monkeypatch.setattr(lightgbm.Booster, "predict", noted)
    pack(booster("regression", SPECIES), tmp_path / "m", example=IRIS[::50])
    asked.clear()
    for threads in (1, 2):
        run(load(Source(str(tmp_path / "m"), options={"threads": threads})).predictor, {"x": IRIS})
    assert asked == [1, 2]


# --- claims and files ----------------------------------------------------------------------------------------------


class Odd(lightgbm.LGBMRegressor):
    """Predicts in a way of its own, which the text model does not hold."""


def test_only_the_librarys_own_estimators_are_claimed() -> None:
    assert for_object(lightgbm.LGBMClassifier()).name == "lightgbm"
    assert for_object(Odd()).name == "sklearn"
    with pytest.raises(CannotPack, match="has not been fitted"):
        pack(lightgbm.LGBMClassifier(), "nowhere")


def test_files_are_copied_and_other_text_is_not_a_model(tmp_path: Path) -> None:
    booster("regression", SPECIES).save_model(tmp_path / "m.txt")
    pack(tmp_path / "m.txt", tmp_path / "packed", example=IRIS[::50])
    assert warm(load(Source(str(tmp_path / "packed"))), 4).description.flavor == "lightgbm"
    for text in ("tree of life", "notes", "", "tree\n", "tree\nversion=v4\n"):
        (tmp_path / "notes.txt").write_text(text)
        for attempt in (load, describe):
            with pytest.raises(CannotLoad, match=r"notes\.txt is not a"):
                attempt(Source(str(tmp_path / "notes.txt")))
        with pytest.raises(LoadRefused):
            pack(tmp_path / "notes.txt", tmp_path / "other")


@pytest.fixture(scope="module")
def text() -> str:
    return lightgbm.LGBMClassifier(**QUIET).fit(FRAME, ANSWER).booster_.model_to_string()


@pytest.mark.parametrize("share", [0.05, 0.2, 0.3, 0.5, 0.6, 0.8, 0.98])
def test_a_file_that_was_cut_off_is_refused(share: float, text: str, tmp_path: Path) -> None:
    (tmp_path / "m.lgb").write_text(text[: int(len(text) * share)])
    with pytest.raises(CannotLoad, match=r"m\.lgb is"):
        load(Source(str(tmp_path / "m.lgb")))


def first(pattern: str, replacement: str) -> Any:
    return lambda text: re.sub(pattern, replacement, text, count=1, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "damage",
    [
        first(r"^left_child=-?\d+", "left_child=99999"), first(r"^right_child=-?\d+", "right_child=0"),
        first(r"^left_child=-?\d+", "left_child=-9999"), first(r"^split_feature=\d+", "split_feature=700"),
        first(r"^split_feature=\d+", "split_feature=-1"), first(r"^leaf_value=\S+ ", "leaf_value="),
        first(r"^left_child=\S+ ", "left_child="), first(r"^num_leaves=\d+", "num_leaves=500"),
        first(r"^num_leaves=\d+", "num_leaves=0"), first(r"^num_leaves=\d+", "num_leaves=9999999999"),
        first(r"^cat_boundaries=0 \d+", "cat_boundaries=0 900"), first(r"^cat_threshold=\S+", "cat_threshold=-1"),
        first(r"^num_cat=[1-9]\d*", "num_cat=1000"), first(r"^threshold=\S+ ", "threshold="),
        first(r"^decision_type=\S+", "decision_type=x"), first(r"^tree_sizes=\d+", "tree_sizes=99999999"),
        first(r"^tree_sizes=\d+", "tree_sizes=-5"), first(r"^tree_sizes=\d+ ", "tree_sizes="),
        first(r"^max_feature_idx=\d+", "max_feature_idx=3"), first(r"^Tree=0\n", "Tree=7\n"),
        first(r"^num_tree_per_iteration=1", "num_tree_per_iteration=0"),
        first(r"^num_tree_per_iteration=1", "num_tree_per_iteration=7"),
        first(r"^feature_infos=", "feature_infos=[0:1] "),
        first(r"^pandas_categorical:", "pandas_categorical:["),
        first(r"^pandas_categorical:.*$", "pandas_categorical:[3]"),
        first(r"^\[categorical_feature: ", "[categorical_feature: 99,"), first(r"^num_leaves=\d+\n", ""),
        first(r"^num_leaves=\d+\n", r"\g<0>\n"), first(r"^num_leaves=\d+\n", r"\g<0>nonsense\n"),
        first(r"^num_leaves=\d+\n", r"\g<0>\g<0>"), first(r"^num_class=1", "num_class="),
        first(r"^is_linear=0", "is_linear=1"), first(r"^end of trees", "the end"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_before_the_library_sees_it(
    damage: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = damage(text)
    assert wrong != text
    # the sizes are put right again, so that each damage is found for itself
    if "tree_sizes=" in wrong and wrong.split("tree_sizes=")[1][:20] == text.split("tree_sizes=")[1][:20]:
        wrong = with_sizes(wrong)
    (tmp_path / "m.lgb").write_text(wrong)
    monkeypatch.setattr(lightgbm, "Booster", None)
    with pytest.raises(CannotLoad, match=r"m\.lgb is|which"):
        load(Source(str(tmp_path / "m.lgb")))


def test_numbers_that_no_float_holds_are_refused_in_linear_leaves(tmp_path: Path) -> None:
    """The library would abort the whole process."""
    text = booster("regression", SPECIES, linear_tree=True).model_to_string()
    damaged = with_sizes(first(r"^leaf_const=\S+", "leaf_const=1e-99999")(text))
    (tmp_path / "m.lgb").write_text(damaged)
    with pytest.raises(CannotLoad, match=r"tree \d holds what cannot be: '1e-99999' for a number"):
        load(Source(str(tmp_path / "m.lgb")))


def test_the_library_sees_no_more_of_a_file_than_it_needs(text: str, tmp_path: Path) -> None:
    """It would follow a parameter that was cut off to wherever that leads."""
    (tmp_path / "m.lgb").write_text(text.replace("[cegb_penalty_feature_coupled: ]", "[cegb_penalty_feature_coup"))
    (tmp_path / "whole.lgb").write_text(text)
    answers = [run(load(Source(str(tmp_path / name))).predictor, floats(FRAME)) for name in ("m.lgb", "whole.lgb")]
    assert np.array_equal(answers[0]["predict"], answers[1]["predict"])


def floats(frame: pandas.DataFrame) -> Arrays:
    """As a bare file takes them: it knows no integers."""
    rows = columns(frame)
    return {**rows, "age": rows["age"].astype(float)}


def with_sizes(text: str) -> str:
    """A model whose head tells the sizes that its trees have."""
    start, end = text.find("Tree="), text.find("end of trees")
    if start < 0 or end < 0:
        return text
    sizes = [len(block) for block in re.split(r"(?=^Tree=)", text[start:end], flags=re.MULTILINE) if block]
    return re.sub(r"^tree_sizes=.*$", "tree_sizes=" + " ".join(map(str, sizes)), text, count=1, flags=re.MULTILINE)


def test_what_the_tests_damage_was_whole(text: str, tmp_path: Path) -> None:
    assert with_sizes(text) == text
    (tmp_path / "m.lgb").write_text(text)
    assert warm(load(Source(str(tmp_path / "m.lgb"))), 4).description.warnings == ()
