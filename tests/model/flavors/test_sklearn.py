"""scikit-learn: estimators tell their own signature, methods are outputs, pickles run with trust only."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
import skops.io
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import maitred
from maitred.model.artifact import open_artifact, seal_folder
from maitred.model.inspect import inspect
from maitred.model.loading import Loaded, Source, describe, load, replay, run, warm
from maitred.model.manifest import Manifest
from maitred.model.pack import pack
from maitred.model.predictor import Traits
from maitred.model.refusals import CannotLoad, LoadRefused, Untrusted

TRUST = "tester: it is our own"
IRIS, SPECIES = load_iris(return_X_y=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def served(model: Any, tmp_path: Path, **more: Any) -> Loaded:
    """The model, packed and loaded again."""
    pack(model, tmp_path / "m", **more)
    loaded = load(Source(str(tmp_path / "m")))
    replay(loaded)
    return loaded


class Touch(BaseEstimator):
    """Makes a file when it is unpickled."""

    def __init__(self, marker: str = "") -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.marker),))


# --- signatures ----------------------------------------------------------------------------------------------------


THREE = 'float64[n, 3] labels=["0", "1", "2"]'


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (LogisticRegression(max_iter=500), f"x: float64[n, 4] -> predict: int64[n], predict_proba: {THREE}"),
        (SVC(), f"x: float64[n, 4] -> predict: int64[n], decision_function: {THREE}"),
        (LinearRegression(), "x: float64[n, 4] -> predict: float64[n]"),
        (PCA(2), "x: float64[n, 4] -> transform: float64[n, 2]"),
        (KMeans(2, n_init=1), "x: float64[n, 4] -> predict: int32[n]"),
        (
            HistGradientBoostingClassifier(max_iter=2),
            f"x: float64[n, 4] nullable -> predict: int64[n], predict_proba: {THREE}",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
def test_estimators_tell_their_signature(model: Any, text: str, tmp_path: Path) -> None:
    loaded = served(model.fit(IRIS, SPECIES), tmp_path, example=IRIS[::50], trust=TRUST)
    assert loaded.predictor.signature.to_text() == text


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (["b", "a"], "str"), ([1, 0], "int64"), ([True, False], "bool"), (["ja", "nein"], "str"),
        ([1.0, -2.0], "float64"), (["z", "ö", "é"], "str"),
    ],
)  # fmt: skip
def test_class_labels_are_in_the_models_own_order(labels: Any, dtype: str, tmp_path: Path) -> None:
    target = np.array(labels)[SPECIES % len(labels)]
    model = LogisticRegression(max_iter=500).fit(IRIS, target)
    loaded = served(model, tmp_path, example=IRIS[::50])
    outputs = loaded.predictor.signature.outputs
    assert outputs["predict"].dtype == dtype
    assert outputs["predict_proba"].labels == tuple(str(label) for label in model.classes_)
    answer = run(loaded.predictor, {"x": IRIS})
    assert answer["predict"].tolist() == model.predict(IRIS).tolist()
    assert np.array_equal(answer["predict_proba"], model.predict_proba(IRIS))


def test_methods_can_be_chosen(tmp_path: Path) -> None:
    model = LogisticRegression(max_iter=500).fit(IRIS, SPECIES)
    methods = ["predict_proba", "decision_function"]
    loaded = served(model, tmp_path, example=IRIS[::50], options={"methods": methods})
    assert [*loaded.predictor.signature.outputs] == methods
    with pytest.raises(CannotLoad, match="'predict_proba'"):
        pack(LinearRegression().fit(IRIS, SPECIES), tmp_path / "n", options={"methods": ["predict_proba"]})
    with pytest.raises(CannotLoad, match="'fit'"):
        pack(model, tmp_path / "n", options={"methods": ["fit"]})


def test_only_the_wanted_methods_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = served(LogisticRegression(max_iter=500).fit(IRIS, SPECIES), tmp_path, example=IRIS[::50])

    def never(self: Any, features: Any) -> Any:
        raise AssertionError("nobody asked for this")

    monkeypatch.setattr(LogisticRegression, "predict_proba", never)
    assert run(loaded.predictor, {"x": IRIS[:2]}, ("predict",))["predict"].tolist() == [0, 0]
    with pytest.raises(AssertionError):
        run(loaded.predictor, {"x": IRIS[:2]}, ("predict_proba",))


def test_several_targets_have_outputs_and_labels_of_their_own(tmp_path: Path) -> None:
    targets = np.column_stack([np.array(["a", "b", "c"])[SPECIES], np.array(["no", "yes"])[SPECIES % 2]])
    model = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(IRIS, targets)
    loaded = served(model, tmp_path, example=IRIS[::50])
    assert loaded.description.labels == {"predict_proba_0": ("a", "b", "c"), "predict_proba_1": ("no", "yes")}
    answer = run(loaded.predictor, {"x": IRIS})
    assert answer["predict"].tolist() == model.predict(IRIS).tolist()
    assert np.array_equal(answer["predict_proba_1"], model.predict_proba(IRIS)[1])


def test_a_forest_of_several_targets(tmp_path: Path) -> None:
    model = RandomForestClassifier(3, random_state=0).fit(IRIS, np.column_stack([SPECIES, SPECIES % 2]))
    with pytest.raises(Untrusted, match=r"sklearn\.tree\._tree\.Tree"):  # skops: a forged tree could read other memory
        served(model, tmp_path, example=IRIS[::50])
    loaded = served(model, tmp_path, example=IRIS[::50], trust=TRUST)
    assert [*loaded.predictor.signature.outputs] == ["predict", "predict_proba_0", "predict_proba_1"]


def test_regressors_of_several_targets(tmp_path: Path) -> None:
    features, target = load_diabetes(return_X_y=True)
    loaded = served(
        LinearRegression().fit(features, np.column_stack([target, -target])), tmp_path, example=features[:3]
    )
    assert loaded.predictor.signature.outputs["predict"].shape == ("n", 2)


# --- columns -------------------------------------------------------------------------------------------------------

FRAME = pandas.DataFrame(
    {"age": [20, 30, 40, 50] * 5, "country": ["fr", "de", "it", "de"] * 5, "income": [1.5, -4.0, 2.0, 3.0] * 5}
)


def columns_model() -> Any:
    prepare = ColumnTransformer(
        [
            ("words", OneHotEncoder(handle_unknown="ignore"), ["country"]),
            ("numbers", StandardScaler(), ["age", "income"]),
        ]
    )
    return make_pipeline(prepare, LogisticRegression()).fit(FRAME, np.where(FRAME.age > 35, "yes", "no"))


def test_named_mixed_columns(tmp_path: Path) -> None:
    """The pipeline gets a data frame of the right names, order and dtypes."""
    model = columns_model()
    loaded = served(model, tmp_path, example=FRAME)
    inputs = loaded.predictor.signature.inputs
    assert {name: spec.dtype for name, spec in inputs.items()} == {
        "age": "int64",
        "country": "str",
        "income": "float64",
    }
    rows = {name: FRAME[name].to_numpy() for name in reversed(FRAME.columns)}
    rows["country"] = rows["country"].astype(object)
    answer = run(loaded.predictor, rows)
    assert np.array_equal(answer["predict_proba"], model.predict_proba(FRAME))
    unknown = run(loaded.predictor, {**{k: v[:1] for k, v in rows.items()}, "country": np.array(["??"], object)})
    assert unknown["predict"].tolist() in (["no"], ["yes"])


def test_columns_of_text_are_known_without_an_example(tmp_path: Path) -> None:
    skops.io.dump(columns_model(), tmp_path / "m.skops")
    loaded = load(Source(str(tmp_path / "m.skops")))
    assert loaded.predictor.signature.inputs["country"].dtype == "str"
    assert warm(loaded, 4).description.warnings == ()


def test_a_column_gets_a_name_by_an_option(tmp_path: Path) -> None:
    model = LogisticRegression(max_iter=500).fit(IRIS[:, :2], SPECIES)
    example = {"b": IRIS[::50, 1], "a": IRIS[::50, 0]}
    loaded = served(model, tmp_path, options={"features": ["a", "b"]}, example=example)
    assert [*loaded.predictor.signature.inputs] == ["a", "b"]
    answer = run(loaded.predictor, {"b": IRIS[:, 1], "a": IRIS[:, 0]})
    assert np.array_equal(answer["predict_proba"], model.predict_proba(IRIS[:, :2]))
    with pytest.raises(CannotLoad, match="takes 2 features, the option features names 3"):
        pack(model, tmp_path / "n", options={"features": ["a", "b", "c"]})


WITHOUT_PANDAS = """
import importlib.abc, sys
class NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "pandas":
            raise ImportError("no pandas here")
sys.meta_path.insert(0, NoPandas())
from maitred.model.loading import Source, load, replay
replay(load(Source(sys.argv[1])))
"""


def test_without_pandas_columns_go_as_a_matrix(tmp_path: Path) -> None:
    frame = load_iris(as_frame=True).data
    model = LogisticRegression(max_iter=500).fit(frame, SPECIES)
    pack(model, tmp_path / "m", example=frame.iloc[::50])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_PANDAS, str(tmp_path / "m")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_frame_for_an_estimator_of_a_matrix(tmp_path: Path) -> None:
    frame = load_iris(as_frame=True).data
    loaded = served(LogisticRegression(max_iter=500).fit(IRIS, SPECIES), tmp_path, example=frame.iloc[::50])
    assert [*loaded.predictor.signature.inputs] == ["x"]


@pytest.mark.parametrize("example", [{"y": IRIS[:2]}, {"x": "nonsense"}, [[1.0]], 3, {"x": IRIS[:2, :3]}])
def test_an_example_that_does_not_fit_is_told(example: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadRefused):
        pack(LogisticRegression(max_iter=500).fit(IRIS, SPECIES), tmp_path / "m", example=example)


def test_texts(tmp_path: Path) -> None:
    words = ["good day", "bad day", "good food", "bad food"]
    model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(words, ["+", "-", "+", "-"])
    loaded = served(model, tmp_path, example=words)
    assert loaded.predictor.signature.inputs["x"].to_text() == "str[n]"
    assert run(loaded.predictor, {"x": np.array(["good"], object)})["predict"].tolist() == ["+"]


def test_an_estimator_that_was_not_fitted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="how many features"):
        pack(LogisticRegression(), tmp_path / "m")
    with pytest.raises(CannotLoad, match="neither predict nor transform"):
        skops.io.dump({"a": 1}, tmp_path / "d.skops")
        load(Source(str(tmp_path / "d.skops")))


@pytest.mark.parametrize("outputs", [{"fit": "float64[n]"}, {"set_params": "str[n]"}, {"__class__": "str[n]"}])
def test_a_manifest_cannot_name_other_methods(outputs: Mapping[str, str], tmp_path: Path) -> None:
    pack(LogisticRegression(max_iter=500).fit(IRIS, SPECIES), tmp_path / "m", example=IRIS[::50])
    manifest: Manifest = open_artifact(tmp_path / "m").manifest
    hostile = Manifest(
        name="m", flavor="sklearn", file=manifest.file, traits=Traits(),
        signature=maitred.Signature(manifest.signature.inputs, outputs),
    )  # fmt: skip
    (tmp_path / "m" / "example.json").unlink()
    seal_folder(tmp_path / "m", hostile)
    with pytest.raises(CannotLoad, match="outputs are methods"):
        load(Source(str(tmp_path / "m")))


# --- trust ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["pkl", "pickle", "joblib", "JOBLIB"])
def test_pickles_are_never_opened_without_trust(suffix: str, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    path = tmp_path / f"m.{suffix}"
    if suffix.lower() == "joblib":
        joblib.dump(Touch(str(marker)), path)
    else:
        path.write_bytes(pickle.dumps(Touch(str(marker))))
    for attempt in (lambda: load(Source(str(path))), lambda: pack(path, tmp_path / "packed")):
        with pytest.raises(Untrusted, match=r"which imports .*pathlib"):
            attempt()
    with pytest.raises(Untrusted, match="process"):
        load(Source(str(path), trust=TRUST), isolated=False)
    assert describe(Source(str(path))) is None
    assert "pathlib" in inspect(Source(str(path))).needs_trust[0]
    assert not marker.exists()
    assert not (tmp_path / "packed").exists()
    with pytest.raises(CannotLoad):
        load(Source(str(path), trust=TRUST))
    assert marker.exists()


def test_a_trusted_pickle_serves(tmp_path: Path) -> None:
    model = LogisticRegression(max_iter=500).fit(IRIS, SPECIES)
    joblib.dump(model, tmp_path / "m.joblib")
    pack(tmp_path / "m.joblib", tmp_path / "packed", example=IRIS[::50], trust=TRUST)
    loaded = load(Source(str(tmp_path / "packed")))
    assert loaded.description.trust == TRUST
    assert np.array_equal(run(loaded.predictor, {"x": IRIS})["predict"], model.predict(IRIS))


class Odd(LogisticRegression):
    """A type that skops does not know."""


def test_types_that_skops_does_not_know_are_listed(tmp_path: Path) -> None:
    model = Odd(max_iter=500).fit(IRIS, SPECIES)
    pack(model, tmp_path / "m", example=IRIS[::50])
    with pytest.raises(Untrusted, match=r"the type test_sklearn\.Odd in model\.skops"):
        load(Source(str(tmp_path / "m")))
    replay(load(Source(str(tmp_path / "m"), trust=TRUST)))


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("schema.json", b"0" * (70 << 20))
    with pytest.raises(CannotLoad, match="would inflate"):
        load(Source(str(tmp_path / "m.skops")))
