"""Every kind of scikit-learn estimator: what it offers, that it answers as it does itself, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse
import threadpoolctl
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN, KMeans, MiniBatchKMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)  # fmt: skip
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from maitred.errors import Malformed
from maitred.model.loading import Loaded, Source, load, replay, run
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack

TRUST = "tester: it is our own"
IRIS, SPECIES = load_iris(return_X_y=True)
SUGAR, PROGRESS = load_diabetes(return_X_y=True)
WORDS = ["good day", "bad day", "good food", "bad food", "good mood"]
MOODS = np.array(["+", "-", "+", "-", "+"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def bare(model: Any, tmp_path: Path, **options: Any) -> Loaded:
    """The model from a file of its own."""
    joblib.dump(model, tmp_path / "m.joblib")
    return load(Source(str(tmp_path / "m.joblib"), trust=TRUST, options=options))


def outputs(loaded: Loaded) -> dict[str, str]:
    return {name: spec.to_text() for name, spec in loaded.predictor.signature.outputs.items()}


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=2), ["predict", "predict_proba"]),
        (CalibratedClassifierCV(LinearSVC(), cv=2), ["predict", "predict_proba"]),
        (VotingClassifier([("a", LogisticRegression(max_iter=500))], voting="soft"), ["predict", "predict_proba"]),
        (VotingClassifier([("a", LogisticRegression(max_iter=500))]), ["predict"]),
        (StackingClassifier([("a", LogisticRegression(max_iter=500))], cv=2), ["predict", "predict_proba"]),
        (OneVsRestClassifier(LogisticRegression(max_iter=500)), ["predict", "predict_proba"]),
        (SVC(), ["predict", "decision_function"]),
        (KNeighborsClassifier(3), ["predict", "predict_proba"]),
        (Ridge(), ["predict"]),
        (TransformedTargetRegressor(Ridge(), transformer=MinMaxScaler()), ["predict"]),
        (KMeans(2, n_init=1), ["predict"]),
        (MiniBatchKMeans(2, n_init=1), ["predict"]),
        (GaussianMixture(2), ["predict", "predict_proba"]),
        (IsolationForest(n_estimators=5), ["predict", "decision_function"]),
        (LocalOutlierFactor(novelty=True), ["predict", "decision_function"]),
        (StandardScaler().set_output(transform="pandas"), ["transform"]),
        (PCA(2), ["transform"]),
        (make_pipeline(StandardScaler(), TruncatedSVD(2)), ["transform"]),
        (RandomForestClassifier(3, n_jobs=2), ["predict", "predict_proba"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_an_estimator_answers_as_it_does_itself(model: Any, methods: list[str], tmp_path: Path) -> None:
    model.fit(IRIS, SPECIES)
    loaded = bare(model, tmp_path)
    assert [*loaded.predictor.signature.outputs] == methods
    answer = run(loaded.predictor, {"x": IRIS[:40]})
    for method in methods:
        wanted = np.asarray(getattr(model, method)(IRIS[:40]))
        assert np.array_equal(answer[method], wanted)
        assert answer[method].dtype == wanted.dtype


@pytest.mark.parametrize(
    ("model", "method", "text"),
    [
        (LogisticRegression(max_iter=500), "predict_log_proba", 'float64[n, 3] labels=["0", "1", "2"]'),
        (LogisticRegression(max_iter=500), "decision_function", 'float64[n, 3] labels=["0", "1", "2"]'),
        (IsolationForest(n_estimators=5), "score_samples", "float64[n]"),
        (RandomForestRegressor(3), "apply", "int64[n, 3]"),
        (KMeans(2, n_init=1), "transform", "float64[n, 2]"),
    ],
)
def test_other_methods_are_offered_where_they_are_asked_for(model: Any, method: str, text: str, tmp_path: Path) -> None:
    model.fit(IRIS, SPECIES)
    loaded = bare(model, tmp_path, methods=[method])
    assert outputs(loaded) == {method: text}
    assert np.array_equal(run(loaded.predictor, {"x": IRIS})[method], getattr(model, method)(IRIS))


def test_what_a_regressor_does_not_give_is_told_with_what_it_gives(tmp_path: Path) -> None:
    loaded = bare(LinearRegression().fit(IRIS, SPECIES), tmp_path)
    with pytest.raises(Malformed, match="unknown output 'predict_proba': this model gives 'predict'"):
        loaded.predictor.signature.check_outputs(["predict_proba"])


# --- several targets -----------------------------------------------------------------------------------------------

TARGETS = np.column_stack([SPECIES, SPECIES % 2])


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (MultiOutputClassifier(LogisticRegression(max_iter=500)), ["predict", "predict_proba_0", "predict_proba_1"]),
        (KNeighborsClassifier(3), ["predict", "predict_proba_0", "predict_proba_1"]),
        (RandomForestClassifier(3), ["predict", "predict_proba_0", "predict_proba_1"]),
        (MultiOutputRegressor(Ridge()), ["predict"]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_several_targets(model: Any, names: list[str], tmp_path: Path) -> None:
    model.fit(IRIS, TARGETS)
    loaded = bare(model, tmp_path)
    assert [*loaded.predictor.signature.outputs] == names
    answer = run(loaded.predictor, {"x": IRIS})
    assert np.array_equal(answer["predict"], model.predict(IRIS))
    for at, name in enumerate(names[1:]):
        assert np.array_equal(answer[name], model.predict_proba(IRIS)[at])
        assert loaded.description.labels[name] == tuple(str(label) for label in model.classes_[at])


def test_targets_of_text_and_a_chain(tmp_path: Path) -> None:
    words = np.column_stack([np.array(["z", "ö", "é"])[SPECIES], np.array(["no", "yes"])[SPECIES % 2]])
    model = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(IRIS, words)
    loaded = bare(model, tmp_path)
    assert loaded.description.labels == {"predict_proba_0": ("z", "é", "ö"), "predict_proba_1": ("no", "yes")}
    assert run(loaded.predictor, {"x": IRIS})["predict"].tolist() == model.predict(IRIS).tolist()
    chain = ClassifierChain(LogisticRegression(max_iter=500)).fit(IRIS, TARGETS[:, 1:])
    assert outputs(bare(chain, tmp_path))["predict_proba"] == "float64[n, 1]"


# --- sparse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LogisticRegression(max_iter=500), SVC(), KNeighborsClassifier(3), Ridge()], ids=str)
def test_what_was_fitted_on_sparse_rows_scores_their_dense_twins(model: Any, tmp_path: Path) -> None:
    sparse = scipy.sparse.csr_matrix(np.where(IRIS > 1.5, IRIS, 0.0))
    model.fit(sparse, SPECIES)
    answer = run(bare(model, tmp_path).predictor, {"x": sparse.toarray()})
    assert np.allclose(answer["predict"], model.predict(sparse))


def test_sparse_answers_are_dense(tmp_path: Path) -> None:
    model = OneHotEncoder(handle_unknown="ignore").fit(SPECIES[:, None])
    loaded = bare(model, tmp_path)
    rows = SPECIES[:, None].astype(float)
    assert np.array_equal(run(loaded.predictor, {"x": rows})["transform"], model.transform(rows).toarray())


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(TfidfVectorizer(), MultinomialNB()),
        make_pipeline(HashingVectorizer(n_features=64), LinearSVC()),
        GridSearchCV(make_pipeline(TfidfVectorizer(), LogisticRegression()), {"logisticregression__C": [1.0]}, cv=2),
    ],
    ids=["tfidf", "hashing", "search"],
)
def test_pipelines_of_text(model: Any, tmp_path: Path) -> None:
    model.fit(WORDS, MOODS)
    loaded = bare(model, tmp_path)
    assert loaded.predictor.signature.inputs["x"].to_text() == "str[n]"
    texts = np.array([*WORDS, "", "good bad"], object)
    assert run(loaded.predictor, {"x": texts})["predict"].tolist() == model.predict([*texts]).tolist()


def test_a_matrix_of_text(tmp_path: Path) -> None:
    rows = np.array([["a", "x"], ["b", "y"], ["a", "y"]], object)
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(rows, [0, 1, 1])
    pack(model, tmp_path / "m", example=rows)
    loaded = load(Source(str(tmp_path / "m")))
    assert loaded.predictor.signature.inputs["x"].to_text() == "str[n, 2]"
    assert np.array_equal(run(loaded.predictor, {"x": rows})["predict_proba"], model.predict_proba(rows))


# --- missing values ------------------------------------------------------------------------------------------------


def test_missing_values_are_taken_where_the_estimator_takes_them(tmp_path: Path) -> None:
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(IRIS, SPECIES)
    assert not bare(scaled, tmp_path).predictor.signature.inputs["x"].nullable
    forest = RandomForestClassifier(3).fit(IRIS, SPECIES)
    assert bare(forest, tmp_path).predictor.signature.inputs["x"].nullable


# --- rows that influence each other --------------------------------------------------------------------------------


def test_what_depends_on_the_neighbours_is_refused(tmp_path: Path) -> None:
    sorting = FunctionTransformer(np.sort, kw_args={"axis": 0}).fit(IRIS)
    ranking = FunctionTransformer(in_units_of_the_batch).fit(IRIS)
    for model in (sorting, ranking, make_pipeline(ranking, LinearRegression()).fit(IRIS, SPECIES)):
        with pytest.raises(CannotPack, match="rows influence each other"):
            pack(model, tmp_path / "m", example=IRIS[::40], trust=TRUST)
        assert not (tmp_path / "m").exists()
    with pytest.raises(CannotLoad, match="can neither predict nor transform"):
        bare(DBSCAN().fit(IRIS), tmp_path)


def in_units_of_the_batch(rows: Any) -> Any:
    return rows / rows.max(axis=0)


# --- threads -------------------------------------------------------------------------------------------------------


def test_no_estimator_inside_starts_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voting = VotingClassifier([("f", RandomForestClassifier(3)), ("k", KNeighborsClassifier())], voting="soft")
    model = GridSearchCV(make_pipeline(StandardScaler(), voting), {"votingclassifier__weights": [None]}, cv=2)
    model.fit(IRIS, SPECIES)
    fitted = model.best_estimator_[-1]
    for part in (fitted, *fitted.estimators_):
        part.n_jobs = -1
    loaded = bare(model, tmp_path)
    inner: Any = loaded.predictor
    voter = inner.model.best_estimator_[-1]
    assert [voter.n_jobs, *(part.n_jobs for part in voter.estimators_)] == [1, 1, 1]
    asked: list[Any] = []
    parallel = joblib.Parallel.__init__

    def noted(self: Any, n_jobs: Any = None, **more: Any) -> None:
        asked.append(n_jobs)
        parallel(self, n_jobs=n_jobs, **more)

    monkeypatch.setattr(joblib.Parallel, "__init__", noted)
    answer = run(loaded.predictor, {"x": IRIS})
    assert asked
    assert set(asked) <= {None, 1}
    assert len(answer["predict"]) == 150


def test_the_option_threads_holds_for_the_process(tmp_path: Path) -> None:
    with threadpoolctl.threadpool_limits(2):
        bare(LinearRegression().fit(IRIS, SPECIES), tmp_path)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {2}
        bare(LinearRegression().fit(IRIS, SPECIES), tmp_path, threads=1)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {1}
    with pytest.raises(CannotLoad, match="threads must be a whole number"):
        bare(LinearRegression().fit(IRIS, SPECIES), tmp_path, threads=0)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosters_in_a_pipeline_use_the_threads_that_are_allowed(library: str, tmp_path: Path) -> None:
    module = pytest.importorskip(library)
    quiet = {"verbose": -1} if library == "lightgbm" else {}
    booster = {"lightgbm": "LGBMRegressor", "xgboost": "XGBRegressor"}[library]
    inner = make_pipeline(StandardScaler(), getattr(module, booster)(n_estimators=2, **quiet))
    model = GridSearchCV(inner, {f"{booster.lower()}__n_estimators": [2]}, cv=2).fit(SUGAR, PROGRESS)
    loaded = bare(model, tmp_path, threads=1)
    served: Any = loaded.predictor
    assert served.model.best_estimator_[-1].n_jobs == 1
    assert np.array_equal(run(loaded.predictor, {"x": SUGAR})["predict"], model.predict(SUGAR))


def test_an_example_is_replayed(tmp_path: Path) -> None:
    pack(PCA(2).fit(IRIS), tmp_path / "m", example=IRIS[::50])
    replay(load(Source(str(tmp_path / "m"))))
