"""XGBoost: the answers are the library's own, columns and categories come from the file, and damage is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import xgboost
from xgboost import Booster, DMatrix, XGBClassifier, XGBRanker, XGBRegressor, XGBRFClassifier

import maitred
from maitred.errors import Malformed, ModelFault
from maitred.model import versions
from maitred.model.flavors import FLAVORS, Opening, for_object
from maitred.model.loading import Loaded, Source, describe, load, replay, run, warm
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused, NotFound, WrongVersions
from maitred.model.trial import inputs_of

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(150, 3)).astype(np.float32)
TWO = (X[:, 0] > 0).astype(int)
THREE = RANDOM.integers(0, 3, 150)
COUNTRIES = np.array(["de", "fr", "se", "us"])[RANDOM.integers(0, 4, 150)]
FRAME = pandas.DataFrame(
    {
        "age": RANDOM.integers(18, 90, 150),
        "country": pandas.Categorical(COUNTRIES),
        "income": np.where(RANDOM.random(150) < 0.2, np.nan, RANDOM.normal(size=150)),
        "code": pandas.Categorical(np.array([7, 10, 300])[RANDOM.integers(0, 3, 150)]),
        "member": RANDOM.random(150) > 0.5,
    }
)
TARGET = FRAME["age"] / 30 + FRAME["country"].cat.codes.to_numpy() % 3 + FRAME["code"].cat.codes.to_numpy() * 2.0
SMALL: dict[str, Any] = {"n_estimators": 4, "max_depth": 3, "n_jobs": 1}


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
    """A data frame's columns as arrays of plain values."""
    return {
        str(name): values.to_numpy(object if isinstance(values.dtype.categories[0], str) else np.int64)
        if hasattr(values.dtype, "categories")
        else values.to_numpy()
        for name, values in frame.items()
    }


def categorical() -> XGBRegressor:
    return XGBRegressor(enable_categorical=True, **{**SMALL, "n_estimators": 12}).fit(FRAME, TARGET)


# --- signatures and answers ----------------------------------------------------------------------------------------

MATRIX = "x: float32[n, 3] nullable -> "
BOTH = 'predict_proba: float32[n, 2] labels=["0", "1"]'
SHARES = 'predict_proba: float32[n, 3] labels=["0", "1", "2"]'


@pytest.mark.parametrize(
    ("model", "target", "outputs"),
    [
        (XGBClassifier(), TWO, f"predict: int64[n], {BOTH}"),
        (XGBClassifier(), THREE, f"predict: int64[n], {SHARES}"),
        (XGBClassifier(objective="multi:softmax"), THREE, f"predict: int64[n], {SHARES}"),
        (XGBClassifier(objective="binary:hinge"), TWO, f"predict: int64[n], {BOTH}"),
        (XGBClassifier(objective="binary:logitraw"), TWO, "predict: int64[n]"),
        (XGBClassifier(), (X[:, :2] > 0).astype(int), "predict: int64[n, 2], predict_proba: float32[n, 2]"),
        (XGBRFClassifier(), THREE, f"predict: int64[n], {SHARES}"),
        (XGBClassifier(booster="dart", rate_drop=0.5), THREE, f"predict: int64[n], {SHARES}"),
        (XGBClassifier(booster="gblinear"), THREE, f"predict: int64[n], {SHARES}"),
        (XGBRegressor(), X[:, 0], "predict: float32[n]"),
        (XGBRegressor(booster="gblinear"), X[:, 0], "predict: float32[n]"),
        (XGBRegressor(objective="count:poisson"), TWO, "predict: float32[n]"),
        (XGBRegressor(), X[:, :2], "predict: float32[n, 2]"),
        (XGBRegressor(multi_strategy="multi_output_tree"), X[:, :2], "predict: float32[n, 2]"),
        (XGBRegressor(objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]), X[:, 0], "predict: float32[n, 2]"),
    ],
)  # fmt: skip
def test_estimators_tell_their_signature_and_answer_as_the_library(
    model: Any, target: Any, outputs: str, tmp_path: Path
) -> None:
    model.set_params(**({} if model.booster == "gblinear" else SMALL))
    model.fit(X, target)
    loaded = served(model, tmp_path, example=X[:4])
    assert loaded.predictor.signature.to_text() == MATRIX + outputs
    answer = run(loaded.predictor, {"x": X})
    assert np.array_equal(answer["predict"], model.predict(X))
    if "predict_proba" in answer:
        assert np.array_equal(answer["predict_proba"], model.predict_proba(X))


def test_a_ranker(tmp_path: Path) -> None:
    model = XGBRanker(**SMALL).fit(X, TWO, qid=np.repeat(np.arange(15), 10))
    loaded = served(model, tmp_path, example=X[:4])
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X))


@pytest.mark.parametrize(
    ("settings", "target", "outputs"),
    [
        ({"objective": "binary:logistic"}, TWO, "predict: float32[n]"),
        ({"objective": "multi:softprob", "num_class": 3}, THREE, "predict: float32[n, 3]"),
        ({"objective": "multi:softmax", "num_class": 3}, THREE, "predict: float32[n]"),
        ({"objective": "rank:pairwise"}, TWO, "predict: float32[n]"),
    ],
)
def test_a_booster_answers_as_its_own_predict(
    settings: dict[str, Any], target: Any, outputs: str, tmp_path: Path
) -> None:
    booster = xgboost.train({"nthread": 1, **settings}, DMatrix(X, target, feature_names=["a", "b", "c"]), 4)
    example = {name: X[:4, at] for at, name in enumerate("abc")}
    loaded = served(booster, tmp_path, example=example)
    inputs = "a: float32[n] nullable, b: float32[n] nullable, c: float32[n] nullable -> "
    assert loaded.predictor.signature.to_text() == inputs + outputs
    answer = run(loaded.predictor, {name: X[:, at] for at, name in enumerate("cba"[::-1])})
    assert np.array_equal(answer["predict"], booster.predict(DMatrix(X, feature_names=["a", "b", "c"])))


@pytest.mark.parametrize(("classes", "dtype"), [(["nej", "ja"], "str"), ([7, 3], "int64"), ([True, False], "bool")])
def test_the_classes_of_a_booster_can_be_named(classes: list[Any], dtype: str, tmp_path: Path) -> None:
    booster = xgboost.train({"objective": "binary:logistic"}, DMatrix(X, TWO), 4)
    loaded = served(booster, tmp_path, example=X[:4], options={"classes": classes})
    outputs = loaded.predictor.signature.outputs
    assert outputs["predict"].dtype == dtype
    assert outputs["predict_proba"].labels == tuple(str(name) for name in classes)
    chance = booster.predict(DMatrix(X))
    answer = run(loaded.predictor, {"x": X})
    assert answer["predict"].tolist() == [classes[int(value > 0.5)] for value in chance]
    assert np.array_equal(answer["predict_proba"][:, 1], chance)


@pytest.mark.parametrize("classes", [["a"], ["a", "a"], ["a", 1], "ab", ["a", "b", "c"], [None, "a"]])
def test_classes_that_do_not_fit_are_refused(classes: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="classes"):
        pack(XGBClassifier(**SMALL).fit(X, TWO), tmp_path / "m", options={"classes": classes})


def test_the_trees_can_be_looked_into(tmp_path: Path) -> None:
    model = XGBClassifier(**SMALL).fit(X, THREE)
    methods = ["raw_score", "leaf", "contributions", "predict_proba"]
    loaded = served(model, tmp_path, example=X[:4], options={"methods": methods})
    shapes = {name: spec.shape for name, spec in loaded.predictor.signature.outputs.items()}
    assert shapes == {"raw_score": ("n", 3), "leaf": ("n", 12), "contributions": ("n", 3, 4), "predict_proba": ("n", 3)}
    answer = run(loaded.predictor, {"x": X})
    assert np.array_equal(answer["raw_score"], model.predict(X, output_margin=True))
    assert np.array_equal(answer["leaf"], model.apply(X))
    assert np.allclose(answer["contributions"].sum(axis=2), answer["raw_score"], atol=1e-5)


@pytest.mark.parametrize(
    ("model", "target", "method"),
    [
        (XGBRegressor(), X[:, 0], "predict_proba"),
        (XGBRegressor(booster="gblinear"), X[:, 0], "leaf"),
        (XGBRegressor(multi_strategy="multi_output_tree"), X[:, :2], "contributions"),
        (XGBRegressor(), X[:, 0], "fit"),
    ],
)
def test_what_a_model_cannot_be_asked_for_is_refused(model: Any, target: Any, method: str, tmp_path: Path) -> None:
    model.fit(X, target)
    with pytest.raises(CannotLoad, match=method if method != "leaf" else "leaves"):
        pack(model, tmp_path / "m", options={"methods": [method]})
    with pytest.raises(CannotLoad):
        pack(model, tmp_path / "m", signature=maitred.Signature({"x": "float64[n, 3]"}, {method: "float32[n]"}))


def test_an_estimator_stops_after_its_best_round_and_a_booster_does_not(tmp_path: Path) -> None:
    model = XGBRegressor(n_estimators=40, early_stopping_rounds=3, max_depth=6, n_jobs=1)
    model.fit(X[:100], X[:100, 0], eval_set=[(X[100:], X[100:, 0] + RANDOM.normal(size=50))], verbose=False)
    booster = model.get_booster()
    assert model.best_iteration + 1 < booster.num_boosted_rounds()
    every = booster.predict(DMatrix(X))
    best = model.predict(X)
    assert not np.array_equal(every, best)
    for wanted, source, options in [
        (best, model, {}), (every, booster, {}), (every, model, {"rounds": 0}), (best, booster, {"rounds": "best"}),
        (booster.predict(DMatrix(X), iteration_range=(0, 2)), model, {"rounds": 2}),
    ]:  # fmt: skip
        loaded = served(source, tmp_path, example=X[:4], options=options)
        assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], wanted)
    with pytest.raises(CannotLoad, match="rounds"):
        pack(model, tmp_path / "m", options={"rounds": 41})


def test_a_base_margin_is_an_optional_input(tmp_path: Path) -> None:
    model = XGBRegressor(**SMALL).fit(X, X[:, 0])
    loaded = served(model, tmp_path, example={"x": X[:4]}, options={"base_margin": True})
    margin = np.linspace(-3, 3, len(X), dtype=np.float32)
    answer = run(loaded.predictor, {"x": X, "base_margin": margin})
    assert np.array_equal(answer["predict"], model.predict(X, base_margin=margin))
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X))


# --- missing values and categories ---------------------------------------------------------------------------------


def test_missing_values(tmp_path: Path) -> None:
    holes = X.copy()
    holes[::3, 0] = np.nan
    model = XGBRegressor(**SMALL).fit(holes, X[:, 0])
    loaded = served(model, tmp_path, example=holes[:4])
    assert np.array_equal(asked(loaded, {"x": holes.tolist()})["predict"], model.predict(holes))


def test_a_number_that_means_missing_is_remembered(tmp_path: Path) -> None:
    holes = X.copy()
    holes[::3, 0] = -999
    model = XGBRegressor(missing=-999, **SMALL).fit(holes, X[:, 0])
    loaded = served(model, tmp_path, example=holes[:4])
    assert np.array_equal(run(loaded.predictor, {"x": holes})["predict"], model.predict(holes))
    as_nan = np.where(holes == -999, np.nan, holes)
    assert np.array_equal(run(loaded.predictor, {"x": as_nan})["predict"], model.predict(holes))


def test_columns_and_categories_are_the_models_own(tmp_path: Path) -> None:
    """A category has the code of fitting, whichever rows share its batch."""
    model = categorical()
    loaded = served(model, tmp_path, example=FRAME[:5])
    assert {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()} == {
        "age": "int64[n]",
        "country": 'str[n] nullable categories=["de", "fr", "se", "us"]',
        "income": "float64[n] nullable",
        "code": "int64[n] nullable categories=[7, 10, 300]",
        "member": "bool[n]",
    }
    wanted = model.predict(FRAME)
    rows = columns(FRAME)
    assert np.array_equal(run(loaded.predictor, dict(reversed(rows.items())))["predict"], wanted)
    for row in range(6):
        alone = run(loaded.predictor, {name: values[row : row + 1] for name, values in rows.items()})
        assert np.array_equal(alone["predict"], wanted[row : row + 1])


def test_a_category_that_the_model_does_not_know_is_missing(tmp_path: Path) -> None:
    model = categorical()
    loaded = served(model, tmp_path, example=FRAME[:5])
    rows = {name: values[:20].tolist() for name, values in columns(FRAME).items()}
    missing = FRAME[:20].assign(country=pandas.Categorical([None] * 20, categories=FRAME["country"].cat.categories))
    wanted = model.predict(missing)
    assert not np.array_equal(wanted, model.predict(FRAME[:20]))
    for value in (None, "xx", ""):
        assert np.array_equal(asked(loaded, {**rows, "country": [value] * 20})["predict"], wanted)
    unknown = asked(loaded, {**rows, "code": [8] * 20})["predict"]
    assert np.array_equal(unknown, asked(loaded, {**rows, "code": [None] * 20})["predict"])


def test_a_file_alone_tells_columns_and_categories(tmp_path: Path) -> None:
    model = categorical()
    model.save_model(tmp_path / "m.ubj")
    loaded = load(Source(str(tmp_path / "m.ubj")))
    told = describe(Source(str(tmp_path / "m.ubj")))
    assert told is not None
    assert told.signature == loaded.predictor.signature
    assert [spec.dtype for spec in told.signature.inputs.values()] == ["int64", "str", "float64", "int64", "bool"]
    assert np.array_equal(run(loaded.predictor, columns(FRAME))["predict"], model.predict(FRAME))
    assert warm(loaded, 4).description.warnings == ()


def test_codes_where_nobody_knows_the_categories(tmp_path: Path) -> None:
    codes = np.column_stack([FRAME["country"].cat.codes, X[:, 0]])
    model = XGBRegressor(enable_categorical=True, feature_types=["c", "q"], **SMALL).fit(codes, TARGET)
    loaded = served(model, tmp_path, options={"features": ["country", "size"]})
    assert loaded.predictor.signature.inputs["country"].to_text() == "int64[n]"
    rows = {"country": codes[:, 0].astype(np.int64), "size": codes[:, 1]}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(codes))


def test_contributions_of_a_model_with_categories(tmp_path: Path) -> None:
    model = categorical()
    loaded = served(model, tmp_path, example=FRAME[:5], options={"methods": ["contributions"]})
    wanted = model.get_booster().predict(DMatrix(FRAME, enable_categorical=True), pred_contribs=True)
    assert np.array_equal(run(loaded.predictor, columns(FRAME))["contributions"], wanted)


def test_categories_that_the_file_has_cut_come_from_the_example(tmp_path: Path) -> None:
    """XGBoost before 3.4 measures text in letters and cuts it in bytes: `öab` is kept as `öa`."""
    names = np.array(["öab", "x", "åäö", "ü"])
    frame = pandas.DataFrame({"where": pandas.Categorical(names[RANDOM.integers(0, 4, 150)]), "size": X[:, 0]})
    target = frame["where"].cat.codes * 2.0 + X[:, 0]
    model = XGBRegressor(enable_categorical=True, **SMALL).fit(frame, target)
    loaded = served(model, tmp_path, example=frame[:5])
    assert loaded.predictor.signature.inputs["where"].categories == ("x", "åäö", "öab", "ü")
    wanted = model.get_booster().inplace_predict(
        np.column_stack([frame["where"].cat.codes, X[:, 0]]), validate_features=False
    )
    assert np.array_equal(run(loaded.predictor, columns(frame))["predict"], wanted)
    model.save_model(tmp_path / "m.ubj")
    if json.loads(model.get_booster().save_config())["version"] < [3, 4]:
        with pytest.raises(CannotLoad, match="'where'"):
            load(Source(str(tmp_path / "m.ubj")))


# --- wrong inputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: {name: row[name] for name in row if name != "age"}, "age"),
        (lambda row: {**row, "agee": [1.0]}, "agee"),
        (lambda row: {**row, "age": ["old"]}, "age"),
        (lambda row: {**row, "age": [1.5]}, "age"),
        (lambda row: {**row, "country": [3]}, "country"),
        (lambda row: {**row, "income": [1.0, 2.0]}, "income"),
        (lambda row: {**row, "member": [None]}, "member"),
    ],
)
def test_wrong_inputs_are_the_callers_fault(
    change: Callable[[dict[str, Any]], dict[str, Any]], said: str, tmp_path: Path
) -> None:
    pack(categorical(), tmp_path / "m", example=FRAME[:5])
    row = {name: values[:1].tolist() for name, values in columns(FRAME).items()}
    with maitred.load(str(tmp_path / "m")) as model:
        model.predict(row)
        with pytest.raises(Malformed, match=said):
            model.predict(change(row))


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": "float32[n, 2]"},
        {"x": "float32[n, 4]"},
        {"a": "float32[n]", "b": "float32[n]"},
        {"x": "float32[n, 3, 1]"},
        {"x": "str[n, 3]"},
    ],
)
def test_a_signature_of_other_features_is_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    model = XGBRegressor(**SMALL).fit(X, X[:, 0])
    with pytest.raises(CannotLoad):
        pack(model, tmp_path / "m", signature=maitred.Signature(inputs, {"predict": "float32[n]"}))


@pytest.mark.parametrize("text", ['str[n] categories=["fr", "de", "se", "us"]', 'str[n] categories=["de"]'])
def test_a_signature_of_other_categories_is_refused(text: str, tmp_path: Path) -> None:
    inputs = {"age": "int64[n]", "country": text, "income": "float64[n]", "code": "int64[n]", "member": "bool[n]"}
    with pytest.raises(CannotLoad, match="'country'"):
        pack(categorical(), tmp_path / "m", signature=maitred.Signature(inputs, {"predict": "float32[n]"}))
    matrix = maitred.Signature({"x": "float32[n, 5]"}, {"predict": "float32[n]"})
    with pytest.raises(CannotLoad, match="an input of its own"):
        pack(categorical(), tmp_path / "m", signature=matrix)


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "name"),
    [("m.ubj", "m.ubj"), ("m.ubj", "m.xgb"), ("m.json", "m.xgb"), ("m.json", "m.xgb.json"), ("m.json", "m.ubj")],
)
def test_files_are_known_by_their_content(saved: str, name: str, tmp_path: Path) -> None:
    model = XGBClassifier(**SMALL).fit(X, THREE)
    (tmp_path / "from").mkdir()
    model.save_model(tmp_path / "from" / saved)
    (tmp_path / "from" / saved).rename(tmp_path / name)
    loaded = served(tmp_path / name, tmp_path, example=X[:4])
    assert np.array_equal(run(loaded.predictor, {"x": X})["predict"], model.predict(X))
    with pytest.raises(NotFound):
        load(Source(str((tmp_path / name).rename(tmp_path / "other.json"))))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"{", b"binf\x00\x00", b'{"learner": 3}', b'{"learner": {}}', b'{"learner": {"objective": 1}}',
        b'{"model_info": {}, "oblivious_trees": []}', b"[" * 100_000, b'{"a":' * 100_000, b"{" + b"L\x00" * 20,
        b"{L\x7f\xff\xff\xff\xff\xff\xff\xff", b"{i\x01a[$d#L\x7f\xff\xff\xff\xff\xff\xff\xff", b"{i\x01a" * 1000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["m.ubj", "m.xgb.json"])
def test_what_is_no_model_is_refused(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    for attempt in (lambda: load(Source(str(tmp_path / name))), lambda: pack(tmp_path / name, tmp_path / "out")):
        with pytest.raises(CannotLoad) as refused:
            attempt()
        assert str(tmp_path) not in refused.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("left_children", 0), ("left_children", -1), ("left_children", 99), ("left_children", -7), ("left_children", 5),
        ("right_children", 10**12), ("split_indices", 3), ("split_indices", -1), ("parents", 0),
    ],
)  # fmt: skip
def test_a_damaged_tree_never_reaches_the_library(
    where: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would follow such a number out of its arrays and end the process."""
    monkeypatch.setattr(Booster, "load_model", lambda *_: pytest.fail("the library was given a damaged file"))
    XGBRegressor(**SMALL).fit(X, X[:, 0]).save_model(tmp_path / "good.json")
    document = json.loads((tmp_path / "good.json").read_bytes())
    document["learner"]["gradient_booster"]["model"]["trees"][1][where][0] = value
    (tmp_path / "m.xgb.json").write_text(json.dumps(document))
    with pytest.raises(CannotLoad, match="tree 1"):
        load(Source(str(tmp_path / "m.xgb.json")))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gradient_booster", "model", "tree_info"), [9, 0, 0, 0]),
        (("gradient_booster", "model", "tree_info"), [-1, 0, 0, 0]),
        (("gradient_booster", "model", "tree_info"), [0]),
        (("gradient_booster", "model", "iteration_indptr"), [0, 1, 2, 3, 9]),
        (("gradient_booster", "model", "gbtree_model_param", "num_trees"), "5"),
        (("gradient_booster", "name"), "forest"),
        (("learner_model_param", "num_feature"), "2"),
        (("learner_model_param", "num_feature"), "many"),
        (("feature_names",), ["a"]),
    ],
)
def test_a_damaged_forest_never_reaches_the_library(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    XGBRegressor(**SMALL).fit(X, X[:, 0]).save_model(tmp_path / "good.json")
    document = json.loads((tmp_path / "good.json").read_bytes())
    place = document["learner"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "m.xgb.json").write_text(json.dumps(document))
    with pytest.raises(CannotLoad, match="no sound XGBoost model"):
        load(Source(str(tmp_path / "m.xgb.json")))


def test_trees_of_several_targets_that_the_library_cannot_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their form changed with XGBoost 3.2, which ends the process over the old one."""
    XGBRegressor(multi_strategy="multi_output_tree", **SMALL).fit(X, X[:, :2]).save_model(tmp_path / "m.xgb.json")
    document = json.loads((tmp_path / "m.xgb.json").read_bytes())
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    old = "leaf_weights" not in trees[0]
    for version, fits in (("3.1.3", old), ("3.2.0", not old), ("4.0.0rc1", not old)):
        monkeypatch.setattr(xgboost, "__version__", version)
        if fits:
            load(Source(str(tmp_path / "m.xgb.json")))
            continue
        with pytest.raises(CannotLoad, match=r"XGBoost 3\.2"):
            load(Source(str(tmp_path / "m.xgb.json")))
    for tree in trees:
        tree.pop("leaf_weights", None)
        tree["right_children"] = [
            right if left != -1 else -1
            for left, right in zip(tree["left_children"], tree["right_children"], strict=True)
        ]
    (tmp_path / "m.xgb.json").write_text(json.dumps(document))
    monkeypatch.setattr(xgboost, "__version__", "3.2.0")
    with pytest.raises(CannotLoad, match=r"before XGBoost 3\.2"):
        load(Source(str(tmp_path / "m.xgb.json")))


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    XGBRegressor(**SMALL).fit(X, X[:, 0]).save_model(tmp_path / "good.ubj")
    content = (tmp_path / "good.ubj").read_bytes()
    for size in range(0, len(content), 97):
        (tmp_path / "m.ubj").write_bytes(content[:size])
        with pytest.raises(CannotLoad):
            FLAVORS.open("xgboost").derive(Opening(root=tmp_path, file="m.ubj"))


def test_a_file_is_described_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    categorical().save_model(tmp_path / "m.ubj")
    monkeypatch.setitem(sys.modules, "xgboost", None)
    told = describe(Source(str(tmp_path / "m.ubj")))
    assert told is not None
    assert told.signature.inputs["country"].categories == ("de", "fr", "se", "us")


def test_another_major_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(XGBRegressor(**SMALL).fit(X, X[:, 0]), tmp_path / "m", example=X[:4])
    here = versions.installed("xgboost")
    assert here is not None
    other = f"{int(here.partition('.')[0]) + 1}.0.0"
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda name: other)
    with pytest.raises(WrongVersions, match=f"xgboost {here}, and {other}"):
        load(Source(str(tmp_path / "m")))


# --- what is claimed, threads --------------------------------------------------------------------------------------


class Careful(XGBClassifier):
    """Predicts otherwise than its base."""


def test_a_derived_class_is_not_taken_for_its_base() -> None:
    assert for_object(XGBClassifier()).name == "xgboost"
    assert for_object(Booster()).name == "xgboost"
    assert for_object(Careful()).name == "sklearn"


@pytest.mark.parametrize("model", [XGBClassifier(), XGBRegressor(), XGBRanker()])
def test_an_estimator_that_was_not_fitted_is_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="cannot save"):
        pack(model, tmp_path / "m")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_uses_as_many_threads_as_it_may(threads: int, tmp_path: Path) -> None:
    loaded = served(XGBRegressor(**SMALL).fit(X, X[:, 0]), tmp_path, example=X[:4], options={"threads": threads})
    predictor: Any = loaded.predictor
    assert json.loads(predictor._booster.save_config())["learner"]["generic_param"]["nthread"] == str(threads)


@pytest.mark.parametrize("booster", ["gbtree", "gblinear"])
def test_several_threads_may_ask_at_once(booster: str, tmp_path: Path) -> None:
    loaded = served(XGBRegressor(booster=booster, n_estimators=4, n_jobs=1).fit(X, X[:, 0]), tmp_path, example=X[:4])
    wanted = run(loaded.predictor, {"x": X})["predict"]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: run(loaded.predictor, {"x": X})["predict"], range(40)))
    assert all(np.array_equal(answer, wanted) for answer in answers)


def test_what_the_library_says_carries_no_path(tmp_path: Path) -> None:
    loaded = served(
        XGBRegressor(**SMALL).fit(X, X[:, 0]), tmp_path, example={"x": X[:4]}, options={"base_margin": True}
    )
    with pytest.raises(ModelFault, match="base_margin") as fault:
        run(loaded.predictor, {"x": X, "base_margin": np.zeros(3, np.float32)})
    assert "/" not in fault.value.message
    assert "Stack" not in fault.value.message


def test_an_example_that_does_not_fit_is_told(tmp_path: Path) -> None:
    for example in ({"y": X[:2]}, [[1.0]], 3, {"x": X[:2, :2]}, "text"):
        with pytest.raises(LoadRefused):
            pack(XGBRegressor(**SMALL).fit(X, X[:, 0]), tmp_path / "m", example=example)


ARRAYS = ("split_conditions", "default_left", "loss_changes", "sum_hessian", "base_weights", "parents")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("key", "multi"), [(key, multi) for key in ARRAYS for multi in (False, True)] + [("leaf_weights", True)]
)
def test_a_tree_that_lacks_an_array_never_reaches_the_library(
    key: str, at: int, multi: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library looks for some of them at address zero."""
    more = {"multi_strategy": "multi_output_tree"} if multi else {}
    XGBRegressor(**SMALL, **more).fit(X, X[:, :2] if multi else X[:, 0]).save_model(tmp_path / "m.xgb.json")
    document = json.loads((tmp_path / "m.xgb.json").read_bytes())
    del document["learner"]["gradient_booster"]["model"]["trees"][at][key]
    (tmp_path / "m.xgb.json").write_text(json.dumps(document))
    monkeypatch.setattr(Booster, "load_model", lambda *_: pytest.fail("the library was given a damaged file"))
    with pytest.raises(CannotLoad, match="no sound XGBoost model"):
        load(Source(str(tmp_path / "m.xgb.json")))
