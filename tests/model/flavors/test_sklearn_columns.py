"""scikit-learn pipelines of named, mixed columns get the data frame of fitting, whatever order inputs come in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

import maitred
from maitred.errors import Malformed
from maitred.messages import Tensor
from maitred.model.loading import Loaded, Source, load, replay, run
from maitred.model.pack import pack
from maitred.model.predictor import Arrays
from maitred.model.refusals import CannotLoad, LoadRefused
from maitred.testing.flavors import FlavorContract

TRUST = "tester: it is our own"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))


def served(model: Any, tmp_path: Path, **more: Any) -> Loaded:
    """The model, packed and loaded again."""
    pack(model, tmp_path / "m", **{"trust": TRUST, **more})
    loaded = load(Source(str(tmp_path / "m")))
    replay(loaded)
    return loaded


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = [None if value is None or value != value else value for value in values]
    return array


FRAME = pandas.DataFrame(
    {
        "age": [20, 30, 40, 50, 33] * 8,
        "country": ["fr", "de", None, "it", "de"] * 8,
        "income": [1.5, np.nan, 2.0, 3.0, -4.0] * 8,
        "plan": pandas.Categorical(["pro", "free", "free", None, "pro"] * 8, categories=["pro", "free"]),
        "empty": [np.nan] * 40,
        "kids": pandas.array([1, None, 3, 0, 2] * 8, dtype="Int64"),
    }
)
ANSWER = np.where((FRAME.age > 35) ^ (FRAME.country == "de"), "yes", "no")


def columns(frame: pandas.DataFrame) -> Arrays:
    """A frame's columns as a predictor gets them."""
    kids = frame.kids
    return {
        "age": frame.age.to_numpy(), "income": frame.income.to_numpy(), "empty": frame["empty"].to_numpy(),
        "country": objects(*frame.country.tolist()), "plan": objects(*frame.plan.tolist()),
        "kids": np.ma.MaskedArray(kids.fillna(0).to_numpy(np.int64), kids.isna().to_numpy()),
    }  # fmt: skip


def mixed() -> Pipeline:
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    prepare = ColumnTransformer(
        [
            ("words", words, ["country"]),
            ("plan", OneHotEncoder(handle_unknown="ignore"), ["plan"]),
            ("numbers", numbers, ["age", "income", "empty", "kids"]),
        ]
    )
    return make_pipeline(prepare, LogisticRegression()).fit(FRAME, ANSWER)


class TestMixedContract(FlavorContract):
    name = "sklearn"
    frameworks = ("sklearn", "skops")

    def model(self) -> Any:
        return mixed()

    def example(self) -> Any:
        return (
            FRAME[["age", "country", "income", "plan", "empty", "kids"]].fillna({"empty": 0.0, "income": 1.0}).head(5)
        )


def test_mixed_columns_come_back_as_they_were(tmp_path: Path) -> None:
    """Numbers, strings with None, a column of NaN, nullable integers, categories; in any order."""
    model = mixed()
    loaded = served(model, tmp_path, example=FRAME)
    assert {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()} == {
        "age": "int64[n]",
        "country": "str[n] nullable",
        "income": "float64[n] nullable",
        "plan": 'str[n] nullable categories=["pro", "free"]',
        "empty": "float64[n] nullable",
        "kids": "int64[n] nullable",
    }
    for order in (1, -1):
        answer = run(loaded.predictor, dict(list(columns(FRAME).items())[::order]))
        assert np.array_equal(answer["predict_proba"], model.predict_proba(FRAME))
        assert answer["predict"].tolist() == model.predict(FRAME).tolist()


def test_an_ordinary_pipeline_needs_no_trust(tmp_path: Path) -> None:
    pack(mixed(), tmp_path / "m", example=FRAME)
    replay(load(Source(str(tmp_path / "m")), isolated=False))


def test_a_bare_file_of_mixed_columns_tells_what_its_encoders_know(tmp_path: Path) -> None:
    model = mixed()
    joblib.dump(model, tmp_path / "m.joblib")
    loaded = load(Source(str(tmp_path / "m.joblib"), trust=TRUST))
    inputs = loaded.predictor.signature.inputs
    assert {name: (spec.dtype, spec.nullable) for name, spec in inputs.items()} == {
        "age": ("float64", True), "country": ("str", True), "income": ("float64", True), "plan": ("str", True),
        "empty": ("float64", True), "kids": ("float64", True),
    }  # fmt: skip
    rows = columns(FRAME)
    rows |= {"age": rows["age"].astype(float), "kids": FRAME.kids.to_numpy(float, na_value=np.nan)}
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(FRAME))


def test_integers_as_floats_where_the_signature_says_so(tmp_path: Path) -> None:
    model = mixed()
    inputs = {
        "age": "float64[n]", "country": "str[n] nullable", "income": "float64[n] nullable",
        "empty": "float64[n] nullable", "plan": "str[n] nullable", "kids": "float64[n] nullable",
    }  # fmt: skip
    signature = maitred.Signature(inputs, {"predict": "str[n]", "predict_proba": "float64[n, 2]"})
    example = {**columns(FRAME.head(5)), "age": np.array([20.0, 30.0, 40.0, 50.0, 33.0]), "kids": np.arange(5.0)}
    loaded = served(model, tmp_path, signature=signature, example=example)
    rows = {**example, "kids": FRAME.kids.head(5).to_numpy(float, na_value=np.nan)}
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(FRAME.head(5)))


@pytest.mark.parametrize("neighbours", [1, 100])
def test_a_row_is_scored_the_same_with_any_neighbours(neighbours: int, tmp_path: Path) -> None:
    loaded = served(mixed(), tmp_path, example=FRAME)
    one, others = columns(FRAME.iloc[3:4]), columns(pandas.concat([FRAME] * 3).iloc[4 : 4 + neighbours])
    batch = {name: np.concatenate([one[name], others[name]]) for name in one if name != "kids"}
    batch["kids"] = np.ma.concatenate([one["kids"], others["kids"]])
    alone = run(loaded.predictor, one)["predict_proba"]
    np.testing.assert_allclose(run(loaded.predictor, batch)["predict_proba"][:1], alone, rtol=1e-12)


def test_a_missing_or_repeated_column_is_the_callers_fault(tmp_path: Path) -> None:
    signature = served(mixed(), tmp_path, example=FRAME).predictor.signature
    with pytest.raises(Malformed, match="input 'country' is missing"):
        signature.check({"age": Tensor("int64", (1,), np.array([1]))})
    with pytest.raises(Malformed, match=r"unknown output 'score'.*'predict', 'predict_proba'"):
        signature.check_outputs(["score"])


# --- categories ----------------------------------------------------------------------------------------------------


def boosted() -> HistGradientBoostingClassifier:
    frame = FRAME[["age", "plan", "income"]]
    return HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2, categorical_features="from_dtype").fit(
        frame, FRAME.plan == "pro"
    )


@pytest.mark.parametrize("bare", [False, True])
def test_histogram_boosting_takes_unknown_categories_as_missing(bare: bool, tmp_path: Path) -> None:
    model = boosted()
    frame = FRAME[["age", "plan", "income"]]
    if bare:
        joblib.dump(model, tmp_path / "m.pkl")
        loaded = load(Source(str(tmp_path / "m.pkl"), trust=TRUST))
    else:
        loaded = served(model, tmp_path, example=frame)
    spec = loaded.predictor.signature.inputs["plan"]
    assert (spec.dtype, spec.nullable, {*(spec.categories or ())}) == ("str", True, {"pro", "free"})
    rows = {name: array for name, array in columns(FRAME).items() if name in frame}
    if bare:
        rows["age"] = rows["age"].astype(float)
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(frame))
    unseen = run(loaded.predictor, {**rows, "plan": objects(*["??"] * 40)})["predict_proba"]
    missing = frame.assign(plan=pandas.Categorical([None] * 40, ["pro", "free"]))
    assert np.array_equal(unseen, model.predict_proba(missing))
    for row in range(5):
        alone = run(loaded.predictor, {name: array[row : row + 1] for name, array in rows.items()})["predict_proba"]
        assert np.array_equal(alone[0], model.predict_proba(frame)[row])


class Noting(FunctionTransformer):
    """Keeps the frame that it was given."""

    seen: list[pandas.DataFrame] = []

    def transform(self, X: Any) -> Any:
        self.seen.append(X)
        return X[["age"]]


def test_the_frame_has_the_dtypes_of_fitting(tmp_path: Path) -> None:
    model = make_pipeline(Noting(), LogisticRegression()).fit(FRAME, ANSWER)
    loaded = served(model, tmp_path, example=FRAME)
    Noting.seen.clear()
    run(loaded.predictor, columns(FRAME))
    frame = Noting.seen[0]
    pandas.testing.assert_frame_equal(frame.astype({"country": "str"}), FRAME.astype({"country": "str"}))
    assert str(frame.dtypes.country) == "str"


def test_none_stays_none_where_an_encoder_knows_it(tmp_path: Path) -> None:
    texts = pandas.DataFrame({"a": pandas.Series(["x", None, "y", None] * 5, dtype=object), "b": range(20)})
    pick = ColumnTransformer([("a", OneHotEncoder(), ["a"])], remainder="passthrough")
    model = make_pipeline(pick, LogisticRegression()).fit(texts, np.arange(20) % 2)
    assert None in pick.named_transformers_["a"].categories_[0].tolist()
    loaded = served(model, tmp_path, example=texts)
    rows = {"a": objects(*texts.a.tolist()), "b": texts.b.to_numpy()}
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(texts))


def test_a_column_of_times(tmp_path: Path) -> None:
    when = pandas.to_datetime(["2024-01-06", "2024-01-09", "2024-02-03", "2024-02-07"] * 5).tz_localize("UTC")
    frame = pandas.DataFrame({"when": when, "a": np.arange(20.0)})
    model = make_pipeline(ColumnTransformer([("t", Weekday(), ["when"])]), LogisticRegression())
    model.fit(frame, np.arange(20) % 2)
    loaded = served(model, tmp_path, example=frame)
    assert loaded.predictor.signature.inputs["when"].to_text() == 'int64[n] time="us" zone="UTC"'
    rows = {"when": when.tz_localize(None).to_numpy("M8[us]"), "a": frame.a.to_numpy()}
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(frame))
    with pytest.raises(CannotLoad, match="zone Europe/Berlin"):
        pack(model, tmp_path / "n", example=frame.assign(when=when.tz_convert("Europe/Berlin")))


class Weekday(FunctionTransformer):
    def transform(self, X: Any) -> Any:
        return X.when.dt.day_of_week.to_frame()


# --- estimators around a pipeline ----------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["search", "voting", "union", "selector", "pandas out"])
def test_columns_are_known_through_what_is_around_them(around: str, tmp_path: Path) -> None:
    frame = FRAME[["age", "country"]].fillna({"country": "?"})
    encode = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    picked: Any = make_column_selector(dtype_include="str") if around == "selector" else ["country"]
    prepare = ColumnTransformer([("w", encode, picked)], remainder="passthrough")
    if around == "pandas out":
        prepare.set_output(transform="pandas")
    inner = make_pipeline(prepare, LogisticRegression(max_iter=1000))
    model = {
        "search": GridSearchCV(inner, {"logisticregression__C": [0.1, 1.0]}, cv=2),
        "voting": VotingClassifier([("a", inner), ("b", inner)], voting="soft"),
        "union": make_pipeline(FeatureUnion([("u", prepare)]), LogisticRegression(max_iter=1000)),
    }.get(around, inner)
    model.fit(frame, ANSWER)
    joblib.dump(model, tmp_path / "m.joblib")
    bare = load(Source(str(tmp_path / "m.joblib"), trust=TRUST))
    packed = served(model, tmp_path, example=frame.iloc[::3])
    rows = {"country": objects(*frame.country), "age": frame.age.to_numpy()}
    assert np.array_equal(run(packed.predictor, rows)["predict_proba"], model.predict_proba(frame))
    assert bare.predictor.signature.inputs["country"].dtype == "str"
    floats = {**rows, "age": rows["age"].astype(float)}
    assert np.allclose(run(bare.predictor, floats)["predict_proba"], model.predict_proba(frame))


def test_a_column_of_texts_for_a_vectorizer(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"review": ["good day", "bad day", "good food", "bad food"] * 3, "stars": range(12)})
    prepare = ColumnTransformer([("words", TfidfVectorizer(), "review"), ("stars", StandardScaler(), ["stars"])])
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, [1, 0] * 6)
    joblib.dump(model, tmp_path / "m.joblib")
    loaded = load(Source(str(tmp_path / "m.joblib"), trust=TRUST))
    assert {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()} == {
        "review": "str[n]", "stars": "float64[n]",
    }  # fmt: skip
    rows = {"review": objects(*frame.review), "stars": frame.stars.to_numpy(float)}
    assert np.array_equal(run(loaded.predictor, rows)["predict"], model.predict(frame))


def test_columns_sent_with_an_axis_of_one(tmp_path: Path) -> None:
    frame = FRAME[["age", "country"]].fillna({"country": "?"})
    prepare = ColumnTransformer([("w", OrdinalEncoder(), ["country"])], remainder="passthrough")
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, ANSWER)
    example = {"age": frame.age.to_numpy()[:5, None], "country": objects(*frame.country[:5])[:, None]}
    loaded = served(model, tmp_path, example=example)
    inputs = {name: spec.to_text() for name, spec in loaded.predictor.signature.inputs.items()}
    assert inputs == {"age": "int64[n, 1]", "country": "str[n, 1]"}
    assert np.array_equal(run(loaded.predictor, example)["predict_proba"], model.predict_proba(frame.head(5)))


def test_a_matrix_for_an_estimator_of_a_frame(tmp_path: Path) -> None:
    iris = load_iris(as_frame=True)
    model = LogisticRegression(max_iter=500).fit(iris.data, iris.target)
    signature = maitred.Signature({"x": "float32[n, 4]"}, {"predict": "int64[n]"})
    rows = iris.data.to_numpy("f4")
    loaded = served(model, tmp_path, signature=signature, example=rows[::50])
    assert run(loaded.predictor, {"x": rows})["predict"].tolist() == model.predict(iris.data.astype("f4")).tolist()
    with pytest.raises(CannotLoad, match=r"fitted on the columns .*, the signature has \['a', 'b'\]"):
        wrong = maitred.Signature({"a": "float64[n]", "b": "float64[n]"}, {"predict": "int64[n]"})
        pack(model, tmp_path / "n", signature=wrong)


WITHOUT_PANDAS = """
import importlib.abc, sys
class NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "pandas":
            raise ImportError("no pandas here")
sys.meta_path.insert(0, NoPandas())
from maitred.model.loading import Source, load
from maitred.model.refusals import MissingExtra
try:
    load(Source(sys.argv[1]))
except MissingExtra as refused:
    print(refused.message)
"""


def test_without_pandas_a_frame_is_refused_by_its_extra(tmp_path: Path) -> None:
    served(mixed(), tmp_path, example=FRAME)
    command = [sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path / "m")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "needs the library pandas, which is not installed: pip install 'maitred[pandas]'" in done.stdout


def test_a_column_that_no_input_can_hold_is_named(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [("x",), ("y",)]})
    model = make_pipeline(ColumnTransformer([("a", "passthrough", ["a"])]), LogisticRegression()).fit(frame, [0, 1])
    with pytest.raises(LoadRefused, match="'b'"):
        pack(model, tmp_path / "m", example=frame)


# --- a matrix where that says as much ------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["plain", "search", "voting"])
def test_numbers_of_one_dtype_go_as_a_matrix_of_the_same_bits(around: str, tmp_path: Path) -> None:
    iris = load_iris(as_frame=True)
    model: Any = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    if around == "search":
        model = GridSearchCV(model, {"logisticregression__C": [0.1, 1.0]}, cv=2)
    if around == "voting":
        model = VotingClassifier(
            [("a", model), ("b", StandardScaler() and LogisticRegression(max_iter=900))], voting="soft"
        )
    model.fit(iris.data, iris.target)
    wanted = model.predict_proba(iris.data)
    loaded = served(model, tmp_path, example=iris.data.iloc[::50])
    rows = {name: iris.data[name].to_numpy() for name in reversed(iris.data.columns)}
    given: list[Any] = []
    inner: Any = loaded.predictor
    inner._features, build = lambda inputs: given.append(build(inputs)) or given[-1], inner._features
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], wanted)
    assert {(type(features), features.flags.f_contiguous) for features in given} == {(np.ndarray, True)}


@pytest.mark.parametrize(
    "first",
    [FunctionTransformer(), Noting(), StandardScaler().set_output(transform="pandas")],
    ids=["function", "own", "pandas"],
)
def test_what_may_look_at_names_gets_a_frame(first: Any, tmp_path: Path) -> None:
    iris = load_iris(as_frame=True)
    model = make_pipeline(first, LogisticRegression(max_iter=500))
    data = iris.data.rename(columns={"sepal length (cm)": "age"})
    model.fit(data, iris.target)
    loaded = served(model, tmp_path, example=data.iloc[::50])
    inner: Any = loaded.predictor
    rows = {name: data[name].to_numpy() for name in data}
    assert isinstance(inner._features(rows), pandas.DataFrame)
    assert np.array_equal(run(loaded.predictor, rows)["predict_proba"], model.predict_proba(data))
