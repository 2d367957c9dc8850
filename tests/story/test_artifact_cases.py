"""Trained models as people bring them, served: categories, labels, missing features, versions, rows that mix."""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pyarrow
import pytest
import scipy.sparse
from case_house import Place, Question, entry, in_binary, in_json, outputs_of, refusal, serving, values_of
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

import maitred
from maitred.errors import Malformed
from maitred.model.artifact import open_artifact, seal_folder
from maitred.model.refusals import CannotPack
from maitred.settings import ModelSettings, ReplicaSettings
from maitred.wire.coerce import DATATYPES

pytestmark = pytest.mark.story

MODELS = Path(__file__).with_name("case_models.py")
IRIS, SPECIES = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])
LIGHT: dict[str, Any] = {"n_estimators": 8, "num_leaves": 7, "min_child_samples": 3, "n_jobs": 1, "verbose": -1}
BOOST: dict[str, Any] = {"n_estimators": 8, "max_depth": 3, "n_jobs": 1}
CAT: dict[str, Any] = {"iterations": 8, "depth": 3, "verbose": False, "thread_count": 1, "allow_writing_files": False}

Make = Callable[[Path], None]
MAKERS: dict[str, Make] = {}
"""What packs a model into a folder, by the name under which the server of these tests has it."""

FITTED: dict[str, Any] = {}
"""The originals, to compare with."""


def model(name: str, fitted: Any, **more: Any) -> None:
    """Serve `fitted()` as `name`, packed with these arguments."""

    def make(out: Path) -> None:
        FITTED[name] = fitted()
        maitred.pack(FITTED[name], out, name=name, **{key: given(value) for key, value in more.items()})

    MAKERS[name] = make


def given(value: Any) -> Any:
    return value() if callable(value) else value


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAITRED_HOME", str(folder / "home"))
        for name, make in MAKERS.items():
            make(folder / name)
        yield folder


TRUST = "me: mine"
APART = {"hist", "hist_strict", "hist_lax"}
"""Models of types that need trust, and a process of their own with it."""


def opened(packed: Path, name: str) -> maitred.Handle:
    return maitred.load(packed / name, trust=TRUST, isolated=name in APART)


def settings(name: str, source: Path | str, kind: Any = "thread", **more: Any) -> ModelSettings:
    return ModelSettings(name=name, source=str(source), replicas=ReplicaSettings(kind=kind), **more)


@pytest.fixture(scope="module")
def place(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    models = {name: settings(name, packed / name) for name in MAKERS if name not in APART}
    models["hist"] = settings("hist", packed / "hist", "process", trust=TRUST)
    with serving(tmp_path_factory.mktemp("home"), models) as place:
        yield place


def columns(place: Place, name: str, frame: Mapping[str, Any], **more: Any) -> tuple[Question, Question]:
    """The same rows in JSON and as binary tensors; each input of the datatype that metadata tell."""
    told = {one["name"]: one["datatype"] for one in place.metadata(name)["inputs"] if one["name"] in frame}
    entries, arrays, missing = [], {}, []
    for key, datatype in told.items():
        values = [
            None if value is None or value != value else value for value in np.asarray(frame[key], object).tolist()
        ]
        entries.append(entry(key, datatype, [len(values)], values))
        if datatype == "BYTES" and None in values:
            missing.append(entries[-1])  # a text that is missing has no bytes
        elif datatype == "BYTES":
            arrays[key] = np.array(values, object)
        else:
            kind = next(dtype for dtype in DATATYPES if DATATYPES[dtype] == datatype)
            arrays[key] = np.array([np.nan if value is None else value for value in values], kind)
    return in_json(name, entries, **more), in_binary(name, arrays, missing, **more)


def told(reply: Any, name: str) -> Any:
    return np.array(values_of(reply)[name])


# --- predict, predict_proba, or both -----------------------------------------------------------------------------

LABELS = [*NAMES]
model("iris", lambda: LogisticRegression(max_iter=500).fit(load_iris(as_frame=True).data, NAMES[SPECIES]),
      example=lambda: load_iris(as_frame=True).data.iloc[::40])  # fmt: skip
model("scores", lambda: LogisticRegression(max_iter=500).fit(IRIS, SPECIES), example=lambda: IRIS[::40],
      options={"methods": ["predict", "decision_function", "predict_log_proba"]})  # fmt: skip
model("scaler", lambda: StandardScaler().fit(IRIS), example=lambda: IRIS[::40])
model("line", lambda: LinearRegression().fit(IRIS, SPECIES), example=lambda: IRIS[::40])
model("border", lambda: SVC().fit(IRIS, SPECIES), example=lambda: IRIS[::40])


def test_metadata_list_every_output_with_its_shape_and_labels(place: Place) -> None:
    metadata = place.metadata("iris")
    assert [one["name"] for one in metadata["inputs"]] == load_iris().feature_names
    label, share = metadata["outputs"]
    assert (label["name"], label["datatype"], label["shape"]) == ("predict", "BYTES", [-1])
    assert (share["name"], share["datatype"], share["shape"]) == ("predict_proba", "FP64", [-1, 3])
    assert share["parameters"]["labels"] == LABELS


def test_twenty_callers_who_want_different_outputs_get_them_from_shared_batches(place: Place) -> None:
    """Names, order, shapes and values are each caller's own, over JSON and as bytes."""
    fitted, frame = FITTED["iris"], load_iris(as_frame=True).data
    choices = [["predict"], ["predict_proba"], ["predict_proba", "predict"], ["predict", "predict_proba"], None]
    shuffle = random.Random(4)
    for turn in range(50):
        asked, wanted = [], []
        for number in range(20):
            rows = frame.iloc[shuffle.sample(range(150), 1 + number % 3)]
            names = choices[number % 5]
            more = {} if names is None else {"outputs": [{"name": name} for name in names]}
            asked.append(columns(place, "iris", rows, **more)[number % 2])
            right = {"predict": fitted.predict(rows).tolist(), "predict_proba": fitted.predict_proba(rows)}
            wanted.append({name: right[name] for name in names or right})
        for reply, right in zip(place.together(asked), wanted, strict=True):
            assert [*outputs_of(reply)] == [*right]
            for output, values in right.items():
                shown = told(reply, output)
                assert same(shown, values) if output == "predict_proba" else shown.tolist() == values
        if place.figure("maitred_batches_total", "iris") < place.figure("maitred_requests_total", "iris") and turn:
            return
    raise AssertionError("no two callers ever shared a batch")


def test_other_methods_and_what_a_model_does_not_give(place: Place) -> None:
    x, rows = IRIS[::25].tolist(), IRIS[::25]

    def ask(name: str, *outputs: str) -> Any:
        return place.ask(in_json(name, [entry("x", "FP64", [6, 4], x)], outputs=[{"name": name} for name in outputs]))

    for name, output in (
        ("scores", "decision_function"), ("scores", "predict_log_proba"), ("scaler", "transform"), ("line", "predict"),
        ("border", "decision_function"),
    ):  # fmt: skip
        assert np.allclose(told(ask(name, output), output), getattr(FITTED[name], output)(rows))
    assert [*outputs_of(ask("scores", "predict", "decision_function"))] == ["predict", "decision_function"]
    for name in ("line", "border", "scaler"):
        assert "predict_proba" in refusal(ask(name, "predict_proba"))
        gives = place.metadata(name)["outputs"]
        assert all(repr(one["name"]) in refusal(ask(name, "predict_proba")) for one in gives), "and what there is"


# --- categories --------------------------------------------------------------------------------------------------


LIKELY = {"se": 0.05, "fr": 0.95, "de": 0.35, None: 0.7}
"""How many stay of each country, and of those whose country is missing: no two are alike to a model."""


def people(rows: int = 400) -> pandas.DataFrame:
    chance = np.random.default_rng(11)
    countries = np.array([*LIKELY], object)[chance.choice(4, rows, p=[0.3, 0.3, 0.25, 0.15])]
    return pandas.DataFrame(
        {
            "age": chance.integers(18, 90, rows),
            "income": np.where(chance.random(rows) < 0.1, np.nan, chance.normal(3, 1, rows)),
            "country": pandas.Categorical(countries, categories=["se", "fr", "de"]),
            "plan": pandas.Categorical(chance.choice(["pro", "free"], rows)),
        }
    )


PEOPLE = people()
STAYS = (np.random.default_rng(5).random(len(PEOPLE)) < [LIKELY.get(c, LIKELY[None]) for c in PEOPLE.country]).astype(
    int
)
TEXTS = PEOPLE.assign(country=PEOPLE.country.astype(object).fillna("none"), plan=PEOPLE.plan.astype(str))
"""For CatBoost, which has no missing categories."""


def lightgbm_people() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(**LIGHT).fit(PEOPLE, STAYS)


def xgboost_people() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(enable_categorical=True, **BOOST).fit(PEOPLE, STAYS)


def hist_people() -> Any:
    settings = {"max_iter": 8, "min_samples_leaf": 3, "categorical_features": "from_dtype"}
    return HistGradientBoostingClassifier(**settings).fit(PEOPLE, STAYS)


def catboost_people() -> Any:
    from catboost import CatBoostClassifier

    return CatBoostClassifier(cat_features=["country", "plan"], **CAT).fit(TEXTS, STAYS)


def pipeline_people() -> Any:
    encode = OneHotEncoder(handle_unknown="ignore")
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    parts = ColumnTransformer([("n", numbers, ["age", "income"]), ("c", encode, ["country", "plan"])])
    return make_pipeline(parts, LogisticRegression()).fit(PEOPLE, STAYS)


CATEGORICAL = {
    "lightgbm": lightgbm_people, "xgboost": xgboost_people, "hist": hist_people, "catboost": catboost_people,
    "encoded": pipeline_people,
}  # fmt: skip
for _name, _make in CATEGORICAL.items():
    model(_name, _make, example=(TEXTS if _name == "catboost" else PEOPLE).head(20))


def people_of(name: str) -> pandas.DataFrame:
    return TEXTS if name == "catboost" else PEOPLE


def same(found: Any, wanted: Any) -> bool:
    """Within the tolerance that signatures declare for the floats of these models."""
    loose = wanted.dtype == np.float32
    return np.allclose(found, wanted, rtol=1e-5 if loose else 1e-9, atol=1e-6 if loose else 1e-12)


@pytest.mark.parametrize("name", CATEGORICAL)
def test_a_row_scores_the_same_alone_and_with_any_others(place: Place, name: str) -> None:
    """Whichever categories share its request or its batch, in any order of rows and inputs."""
    frame = people_of(name)
    wanted = FITTED[name].predict_proba(frame)
    for others in (0, 1, 2, 9, 100):
        for row in (0, 23):
            index = [*range(40, 40 + others)]
            index.insert(row % (others + 1), row)
            for question in columns(place, name, frame.iloc[index]):
                assert same(told(place.ask(question), "predict_proba"), wanted[index])
    order = np.random.default_rng(1).permutation(len(frame))
    shuffled = frame.iloc[order][["plan", "country", "income", "age"]]
    for question in columns(place, name, shuffled):
        assert same(told(place.ask(question), "predict_proba"), wanted[order])


@pytest.mark.parametrize("name", CATEGORICAL)
def test_rows_of_many_callers_in_one_batch_score_as_alone(place: Place, name: str) -> None:
    frame = people_of(name)
    wanted = FITTED[name].predict_proba(frame)
    before = place.figure("maitred_batches_total", name)
    for turn in range(20):
        rows = np.random.default_rng(turn).permutation(len(frame))[:40]
        asked = [columns(place, name, frame.iloc[[row]])[at % 2] for at, row in enumerate(rows)]
        for row, reply in zip(rows, place.together(asked), strict=True):
            assert same(told(reply, "predict_proba"), wanted[[row]])
        if place.figure("maitred_batches_total", name) - before < 40 * (turn + 1):
            return
    raise AssertionError("no two callers ever shared a batch")


@pytest.mark.parametrize("name", CATEGORICAL)
def test_a_category_that_nobody_fitted_is_missing_whoever_is_beside_it(place: Place, name: str) -> None:
    """Unseen and null are the same to the model, in the row that has it and nowhere else."""
    unseen, fitted = [3, 11, 12], FITTED[name]
    frame = people_of(name).head(30)
    texts = frame.astype({"country": object})
    texts.loc[unseen, "country"] = "never seen ü"
    missing = frame.copy()
    missing.loc[unseen, "country"] = None
    wanted = fitted.predict_proba(texts if name == "catboost" else missing)
    for country in ("se", "fr", "de"):
        there = frame.copy()
        there.loc[unseen, "country"] = country
        assert not np.isclose(wanted[unseen], fitted.predict_proba(there)[unseen]).any(), "or this test shows nothing"
    for question in columns(place, name, texts):
        assert same(told(place.ask(question), "predict_proba"), wanted)
    alone = [columns(place, name, texts.iloc[[row]])[row % 2] for row in range(30)]
    for row, reply in enumerate(place.together(alone)):
        assert same(told(reply, "predict_proba"), wanted[[row]])
    replies = [place.ask(question) for question in columns(place, name, missing)]
    if name == "catboost":
        assert all("'country'" in refusal(reply) for reply in replies)
    else:
        assert all(same(told(reply, "predict_proba"), wanted) for reply in replies)


@pytest.mark.parametrize("name", CATEGORICAL)
def test_columns_of_text_of_categories_and_of_a_few_categories_are_the_same(packed: Path, name: str) -> None:
    """A table's own codes mean nothing: neither those of another order nor those of the rows that are there."""
    frame = people_of(name).astype({"country": "category", "plan": "category"})
    country = frame.country.cat
    wanted = FITTED[name].predict_proba(people_of(name))
    tables = [
        frame, frame.astype({"country": object, "plan": str}), frame.astype({"country": "string"}),
        frame.assign(country=country.reorder_categories([*country.categories][::-1])),
        frame.assign(country=country.set_categories(["aa", *country.categories, "zz"])),
        pyarrow.Table.from_pandas(frame, preserve_index=False),
    ]  # fmt: skip
    with opened(packed, name) as handle:
        for table in tables:
            found = handle.predict_table(table)["predict_proba"]
            assert same(np.array([*found] if isinstance(table, pandas.DataFrame) else found.to_pylist()), wanted)
        for row in (0, 5, 8):
            few = frame.iloc[[row]]
            few = few.assign(
                country=few.country.cat.remove_unused_categories(), plan=few.plan.cat.remove_unused_categories()
            )
            assert same(np.array([*handle.predict_table(few)["predict_proba"]]), wanted[[row]])


# --- missing features --------------------------------------------------------------------------------------------

WIDE = pandas.DataFrame(np.random.default_rng(0).normal(size=(80, 30)), columns=[f"f{at}" for at in range(30)])
HOLES = WIDE.mask(np.random.default_rng(1).random(WIDE.shape) < 0.1)
TARGET = WIDE.f0 * 2 + WIDE.f1


def regressor(library: str) -> Any:
    if library == "lightgbm":
        from lightgbm import LGBMRegressor

        return LGBMRegressor(**LIGHT)
    if library == "xgboost":
        from xgboost import XGBRegressor

        return XGBRegressor(**BOOST)
    if library == "catboost":
        from catboost import CatBoostRegressor

        return CatBoostRegressor(**CAT)
    return HistGradientBoostingRegressor(max_iter=8, min_samples_leaf=3)


def filled(library: str) -> maitred.Signature:
    """Every feature but the first may be left out."""
    kinds = dict.fromkeys(WIDE, "float64[n] nullable default=NaN") | {"f0": "float64[n]"}
    return maitred.Signature(kinds, {"predict": "float32[n]" if library == "xgboost" else "float64[n]"})


LIBRARIES = ["lightgbm", "xgboost", "hist", "catboost"]
for _library in LIBRARIES:

    def _fitted(library: str = _library) -> Any:
        return regressor(library).fit(HOLES, TARGET)

    model(f"{_library}_strict", _fitted, example=HOLES.head(5))
    model(
        f"{_library}_lax", _fitted, example={"f0": [1.0, 2.0, 3.0]}, signature=lambda library=_library: filled(library)
    )


SERVED = [library for library in LIBRARIES if f"{library}_lax" not in APART]


@pytest.mark.parametrize("library", SERVED)
def test_features_that_are_not_sent_are_refused_by_name_and_never_made_up(place: Place, library: str) -> None:
    name = f"{library}_strict"
    for left in ("f0", "f17", "f29"):
        for question in columns(place, name, WIDE.head(2).drop(columns=left)):
            assert f"'{left}'" in refusal(place.ask(question))
    for question in columns(place, name, WIDE[["f0"]].head(1)):
        assert "'f1'" in refusal(place.ask(question))
    extra = in_json(name, [entry(f"f{at}", "FP64", [1], [1.0]) for at in range(31)])
    assert "'f30'" in refusal(place.ask(extra))
    for question in columns(place, name, WIDE.head(3)):
        assert same(told(place.ask(question), "predict"), FITTED[name].predict(WIDE.head(3)))


@pytest.mark.parametrize("library", SERVED)
def test_features_that_may_be_left_out_are_nan_to_the_model(place: Place, library: str) -> None:
    """Callers who leave out different ones share batches, and nobody gets a neighbour's value."""
    name = f"{library}_lax"
    asked, wanted = [], []
    for number in range(24):
        rows = WIDE.iloc[number : number + 1 + number % 2]
        sent = WIDE.columns[: [1, 30, 2, 12][number % 4]]
        asked.append(columns(place, name, rows[sent])[number // 4 % 2])
        wanted.append(FITTED[name].predict(rows[sent].reindex(columns=WIDE.columns)))
    for reply, right in zip(place.together(asked), wanted, strict=True):
        assert same(told(reply, "predict"), right)
    assert "'f0'" in refusal(place.ask(in_json(name, [entry("f1", "FP64", [1], [1.0])])))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_direct_call_leaves_out_what_callers_may_leave_out(packed: Path, library: str) -> None:
    with opened(packed, f"{library}_strict") as handle:
        with pytest.raises(Malformed, match="'f1'"):
            handle.predict(f0=[1.0])
        with pytest.raises(Malformed, match="'f17'"):
            handle.predict_table(WIDE.drop(columns="f17"))
    with opened(packed, f"{library}_lax") as handle:
        for sent in (["f0"], [*WIDE.columns[:12]], [*WIDE]):
            wanted = FITTED[f"{library}_lax"].predict(WIDE[sent].reindex(columns=WIDE.columns))
            assert same(handle.predict_table(WIDE[sent])["predict"].to_numpy(), wanted)


@pytest.mark.parametrize("name", ["scores", "line", "border"])
def test_a_matrix_of_another_width_is_refused(place: Place, name: str) -> None:
    for width in (1, 3, 5):
        rows = np.zeros((2, width))
        for question in (in_json(name, [entry("x", "FP64", [2, width], rows.tolist())]), in_binary(name, {"x": rows})):
            assert "'x'" in refusal(place.ask(question)) and "4" in refusal(place.ask(question))


# --- labels ------------------------------------------------------------------------------------------------------

SETS: dict[str, list[Any]] = {
    "ba": ["b", "a"], "10": [1, 0], "bool": [True, False], "ja": ["ja", "nein"], "three": ["zwei", "eins", "ä:1"],
    "ints": [30, -1, 7],
}  # fmt: skip


def classifier(library: str, labels: list[Any]) -> Any:
    target = np.array(labels)[SPECIES % len(labels)]
    if library == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(**LIGHT).fit(IRIS, target)
    if library == "catboost":
        from catboost import CatBoostClassifier

        return CatBoostClassifier(**CAT).fit(IRIS, target)
    if library == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(**BOOST).fit(IRIS, SPECIES % len(labels))
    return LogisticRegression(max_iter=500).fit(IRIS, target)


LABELLED = [(library, key) for library in ("sklearn", "lightgbm", "catboost", "xgboost") for key in SETS]
for _library, _key in LABELLED:
    model(
        f"{_library}_{_key}",
        lambda library=_library, key=_key: classifier(library, SETS[key]),
        example=IRIS[::40],
        **({"options": {"classes": SETS[_key]}} if _library == "xgboost" else {}),
    )


@pytest.mark.parametrize(("library", "key"), LABELLED)
def test_labels_are_in_the_model_s_own_order_in_metadata_and_answers(place: Place, library: str, key: str) -> None:
    """Which column is whose is told, never guessed from the labels; `predict` gives them as they were."""
    name, labels = f"{library}_{key}", SETS[key]
    fitted, rows = FITTED[name], IRIS[::7]
    shares = fitted.predict_proba(rows)
    order = labels if library == "xgboost" else [type(labels[0])(label) for label in plain(fitted.classes_, labels)]
    wanted = [order[at] for at in shares.argmax(axis=1)]
    outputs = {one["name"]: one for one in place.metadata(name)["outputs"]}
    assert outputs["predict_proba"]["parameters"]["labels"] == [str(label) for label in order]
    datatype = {str: "BYTES", int: "INT64", bool: "BOOL"}[type(labels[0])]
    assert outputs["predict"]["datatype"] == datatype
    for question in (in_json(name, [entry("x", kind(place, name), rows.shape, rows.tolist())]),
                     in_binary(name, {"x": rows.astype({"FP64": "f8", "FP32": "f4"}[kind(place, name)])})):  # fmt: skip
        reply = place.ask(question)
        assert values_of(reply)["predict"] == wanted
        assert np.allclose(told(reply, "predict_proba"), shares, rtol=1e-5)
    best = [{"name": "predict_proba", "parameters": {"classification": 1}}]
    reply = place.ask(in_json(name, [entry("x", kind(place, name), rows.shape, rows.tolist())], outputs=best))
    assert [row[0].split(":", 2)[2] for row in values_of(reply)["predict_proba"]] == [str(label) for label in wanted]


def plain(classes: Any, labels: list[Any]) -> list[Any]:
    """A library's classes as the labels that they were: CatBoost keeps booleans as text."""
    found = [str(label) for label in np.asarray(classes).tolist()]
    return [next(label for label in labels if str(label) == text) for text in found]


def kind(place: Place, name: str) -> str:
    return str(place.metadata(name)["inputs"][0]["datatype"])


# --- exports -----------------------------------------------------------------------------------------------------


def zipped(labels: list[Any]) -> Any:
    import skl2onnx

    FITTED[f"original of {labels}"] = fitted = LogisticRegression(max_iter=500).fit(IRIS, np.array(labels)[SPECIES])
    return skl2onnx.to_onnx(fitted, IRIS[:1].astype(np.float32))


ZIPPED = {"zip_text": ["z", "ä", "b"], "zip_ints": [10, -3, 7]}
for _name, _labels in ZIPPED.items():
    model(_name, lambda labels=_labels: zipped(labels), example=lambda: {"X": IRIS[::40].astype(np.float32)})


@pytest.mark.parametrize("name", ZIPPED)
def test_maps_of_an_export_are_a_matrix_with_labels(place: Place, name: str) -> None:
    """Label and shares each alone or both, for callers who share batches."""
    fitted = FITTED[f"original of {ZIPPED[name]}"]
    label, share = (one["name"] for one in place.metadata(name)["outputs"])
    labels = place.metadata(name)["outputs"][1]["parameters"]["labels"]
    assert labels == [str(known) for known in fitted.classes_]
    asked, wanted = [], []
    for number in range(20):
        rows = IRIS[number * 7 : number * 7 + 1 + number % 3].astype(np.float32)
        names = [[label], [share], [share, label], [label, share]][number % 4]
        outputs = [{"name": one} for one in names]
        asked.append(
            in_binary(name, {"X": rows}, outputs=outputs) if number % 3
            else in_json(name, [entry("X", "FP32", rows.shape, rows.tolist())], outputs=outputs)
        )  # fmt: skip
        wanted.append((names, rows))
    for reply, (names, rows) in zip(place.together(asked), wanted, strict=True):
        assert [*outputs_of(reply)] == names
        if label in names:
            assert values_of(reply)[label] == fitted.predict(rows).tolist()
        if share in names:
            assert np.allclose(told(reply, share), fitted.predict_proba(rows), atol=1e-5)


# --- pipelines that want a data frame ----------------------------------------------------------------------------

VISITS = pandas.DataFrame(
    {
        "age": [20, 30, 40, 50, 60, 70] * 8,
        "empty": [np.nan] * 48,
        "city": pandas.Series(["oslo", None, "rom", "oslo", None, "bern"] * 8, dtype=object),
        "kids": pandas.array([1, None, 3, 0, 2, 1] * 8, dtype="Int64"),
        "member": [True, False, True, False, False, True] * 8,
    }
)
PAYS = np.where((VISITS.age > 35) ^ (VISITS.city == "oslo"), "yes", "no")


def visits(whole: bool = True) -> Any:
    frame = VISITS if whole else VISITS.assign(age=VISITS.age.astype(float))
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    parts = ColumnTransformer(
        [("w", words, ["city"]), ("n", numbers, ["age", "empty", "kids"]), ("b", "passthrough", ["member"])]
    )
    return make_pipeline(parts, LogisticRegression()).fit(frame, PAYS)


model("pipeline", visits, example=VISITS.head(12))
model("pipeline_floats", lambda: visits(False), example=lambda: VISITS.head(12).assign(age=VISITS.age.head(12) * 1.0))


@pytest.mark.parametrize("name", ["pipeline", "pipeline_floats"])
def test_a_pipeline_gets_the_frame_that_it_was_fitted_on(place: Place, packed: Path, name: str) -> None:
    """Text with None, a column of nothing but NaN, missing integers, booleans; columns and rows in any order."""
    wanted = FITTED[name].predict_proba(VISITS)
    texts = VISITS.astype(object).where(VISITS.notna(), None)
    backwards = texts[texts.columns[::-1]]
    for frame in (texts, backwards):
        entries = [entry(key, datatype, [48], frame[key].tolist()) for key, datatype in kinds(name).items()]
        assert same(told(place.ask(in_json(name, entries)), "predict_proba"), wanted)
    rows = texts.to_dict("records")
    assert place.post(f"/predict/{name}", rows).json()[7]["predict"] == FITTED[name].predict(VISITS)[7]
    alone = [
        in_json(name, [entry(key, datatype, [1], [row[key]]) for key, datatype in kinds(name).items()]) for row in rows
    ]
    for at, reply in enumerate(place.together(alone)):
        assert same(told(reply, "predict_proba"), wanted[[at]])
    with opened(packed, name) as handle:
        table = VISITS.astype({"age": "int64" if name == "pipeline" else "float64"})
        assert same(np.array(handle.predict_table(table)["predict_proba"].tolist()), wanted)


def kinds(name: str) -> dict[str, str]:
    age = "INT64" if name == "pipeline" else "FP64"
    return {"member": "BOOL", "age": age, "city": "BYTES", "kids": "INT64", "empty": "FP64"}


def test_whole_numbers_sent_as_floats_are_taken_where_the_column_has_floats(place: Place) -> None:
    """And refused by both datatypes where it has whole numbers: nothing is narrowed."""
    texts = VISITS.head(4).astype(object).where(VISITS.head(4).notna(), None)
    for name, data in (("pipeline", [20, 30, 40, 50]), ("pipeline_floats", [20, 30, 40, 50])):
        entries = [
            entry(k, d, [4], texts[k].tolist() if k != "age" else data) for k, d in kinds("pipeline_floats").items()
        ]
        reply = place.ask(in_json(name, entries))
        if name == "pipeline":
            assert "input 'age': expected INT64, got FP64" in refusal(reply)
        else:
            assert same(told(reply, "predict_proba"), FITTED[name].predict_proba(VISITS.head(4)))
    lost = [
        entry(key, datatype, [4], texts[key].tolist()) for key, datatype in kinds("pipeline").items() if key != "city"
    ]
    assert "'city'" in refusal(place.ask(in_json("pipeline", lost)))
    none = [entry(key, datatype, [4], [None] * 4) for key, datatype in kinds("pipeline").items()]
    assert "null" in refusal(place.ask(in_json("pipeline", none)))


# --- several targets, sparse rows --------------------------------------------------------------------------------

WORDS = np.column_stack([np.array(["z", "ö", "é"])[SPECIES], np.array(["no", "yes"])[SPECIES % 2]])
THIN = scipy.sparse.csr_matrix(np.where(IRIS > 1.5, IRIS, 0.0))
model("targets", lambda: MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(IRIS, WORDS), example=IRIS[::40])
model("slopes", lambda: Ridge().fit(IRIS, IRIS[:, :2] * 2), example=IRIS[::40])
model("thin", lambda: LogisticRegression(max_iter=500).fit(THIN, SPECIES), example=lambda: THIN[::40].toarray())
model("thick", lambda: OneHotEncoder(handle_unknown="ignore").fit(IRIS[:, :1].round()), example=IRIS[::40, :1].round())


def test_several_targets_have_an_output_of_shares_each(place: Place) -> None:
    fitted = FITTED["targets"]
    outputs = {one["name"]: one for one in place.metadata("targets")["outputs"]}
    assert [outputs[f"predict_proba_{at}"]["parameters"]["labels"] for at in (0, 1)] == [["z", "é", "ö"], ["no", "yes"]]
    asked, wanted = [], []
    for number in range(16):
        rows = IRIS[number * 9 : number * 9 + 1 + number % 3]
        names = [["predict"], ["predict_proba_1"], ["predict_proba_1", "predict"], ["predict_proba_0"]][number % 4]
        more = {"outputs": [{"name": name} for name in names]}
        asked.append(
            in_binary("targets", {"x": rows}, **more) if number % 3
            else in_json("targets", [entry("x", "FP64", rows.shape, rows.tolist())], **more)
        )  # fmt: skip
        wanted.append((names, rows))
    for reply, (names, rows) in zip(place.together(asked), wanted, strict=True):
        assert [*outputs_of(reply)] == names
        for name in names:
            if name == "predict":
                assert values_of(reply)[name] == fitted.predict(rows).tolist()
            else:
                assert np.allclose(told(reply, name), fitted.predict_proba(rows)[int(name[-1])])
    reply = place.ask(in_binary("slopes", {"x": IRIS}))
    assert outputs_of(reply)["predict"].shape == (150, 2)
    assert np.allclose(told(reply, "predict"), FITTED["slopes"].predict(IRIS))


def test_sparse_rows_score_as_their_dense_twins(place: Place, packed: Path) -> None:
    wanted = FITTED["thin"].predict_proba(THIN)
    assert np.allclose(told(place.ask(in_binary("thin", {"x": THIN.toarray()})), "predict_proba"), wanted)
    with maitred.load(packed / "thin") as handle:
        for form in (THIN, THIN.tocsc(), THIN.tocoo(), THIN.toarray(), scipy.sparse.csr_array(THIN)):
            assert np.allclose(handle.predict(x=form)["predict_proba"], wanted)
    reply = place.ask(in_json("thick", [entry("x", "FP64", [3, 1], [5, 7, 99])]))
    dense = FITTED["thick"].transform([[5.0], [7.0], [99.0]]).toarray()
    assert values_of(reply)["transform"] == dense.tolist(), "and sparse answers are dense"


# --- versions ----------------------------------------------------------------------------------------------------


def older(packed: Path, name: str, out: Path, libraries: dict[str, str]) -> Path:
    """An artifact as it would be if it had been saved with these libraries."""
    folder = out / f"{name}_{len([*out.iterdir()])}"
    folder.mkdir()
    for path in sorted((packed / name).rglob("*")):
        target = folder / path.relative_to(packed / name)
        target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    manifest = open_artifact(packed / name).manifest
    seal_folder(folder, msgspec.structs.replace(manifest, libraries={**manifest.libraries, **libraries}))
    return folder


def test_models_saved_with_other_libraries_are_refused_or_told_of(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both versions are in the index and in the log; who asks whether the model is ready is told them too."""
    there = importlib.metadata.version
    cases: dict[str, tuple[str, str, str, str]] = {  # by name: artifact, library, its version then, policy
        "refused": ("scores", "scikit-learn", "0.24.2", "refuse"),
        "warned": ("scores", "scikit-learn", "0.24.2", "warn"),
        "ignored": ("scores", "scikit-learn", "0.24.2", "ignore"),
        "minor": ("scores", "scikit-learn", there("scikit-learn").split(".")[0] + ".0.999", "refuse"),
        "python": ("scores", "python", "2.7.18", "refuse"),
        "lost": ("scores", "no-such-library", "1.2.3", "refuse"),
        "lost_warned": ("scores", "no-such-library", "1.2.3", "warn"),
        "trees": ("lightgbm", "lightgbm", "99.1.0", "refuse"),
        "boosted": ("xgboost", "xgboost", "99.1.0", "refuse"),
        "cats": ("catboost", "catboost", "99.1.0", "refuse"),
        "graph": ("zip_text", "onnxruntime", "99.1.0", "refuse"),
    }
    (tmp_path / "old").mkdir()
    models = {
        name: settings(name, older(packed, base, tmp_path / "old", {library: then}), versions=policy)
        for name, (base, library, then, policy) in cases.items()
    }
    fine = {
        "refused": False,
        "python": False,
        "lost": False,
        "trees": False,
        "boosted": False,
        "cats": False,
        "graph": False,
    }
    with serving(tmp_path / "home", models) as place:
        index = {row["name"]: row for row in place.post("/v2/repository/index", {}).json()}
        for name, (_, library, then, policy) in cases.items():
            row, ready = index[name], fine.get(name, True)
            assert row["state"] == ("READY" if ready else "UNAVAILABLE"), row
            if policy == "ignore":
                assert row["reason"] == ""
                continue
            now = "none is installed" if library == "no-such-library" else installed(library)
            assert f"{library} {then}" in row["reason"] and now in row["reason"], row
            told = [record.getMessage() for record in caplog.records if f"model {name}" in record.getMessage()]
            assert any(f"{library} {then}" in line and now in line for line in told), (name, told)
            asked = place.get(f"/v2/models/{name}/ready")
            assert asked == {"ready": True} if ready else f"{library} {then}" in asked["error"], asked
        x, wanted = IRIS[::20], FITTED["scores"].predict(IRIS[::20]).tolist()
        for name in ("warned", "ignored", "minor", "lost_warned"):
            assert values_of(place.ask(in_binary(name, {"x": x})))["predict"] == wanted


def installed(library: str) -> str:
    import platform

    if library == "python":
        return platform.python_version()
    for name in (library, f"{library}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise AssertionError(f"{library} is not installed")


def test_who_calls_a_model_that_could_not_be_loaded_is_told_why(packed: Path, tmp_path: Path) -> None:
    """As for models of code: waiting and asking again helps nobody here."""
    old = older(packed, "line", tmp_path, {"scikit-learn": "0.24.2"})
    with serving(tmp_path / "home", {"old": settings("old", old)}) as place:
        reply = place.ask(in_binary("old", {"x": IRIS[:1]}))
        assert reply.status == 503 and "scikit-learn 0.24.2" in reply.json()["error"], reply.body


# --- models that do not take each row for itself -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["Sorts", "Shifts", "Swaps", "Unique", "Drops", "Repeats"])
def test_models_that_move_drop_or_repeat_rows_are_refused_when_packed(tmp_path: Path, name: str) -> None:
    """Also where the count comes out right by chance; what to declare is said."""
    example = {"x": [5, 3, 3, 9] if name != "Drops" else [5, -3, 9]}
    if name == "Repeats":
        example = {"x": [5, -3, 9]}
    with pytest.raises(CannotPack, match=r"rows influence each other.*symbol|given \d rows and returned \d"):
        maitred.pack(f"{MODELS}:{name}", tmp_path / "m", example=example, trust="me: mine")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["Sorts", "Shifts", "Swaps"])
def test_models_that_move_rows_never_mix_callers_where_they_are_served_from_their_file(
    tmp_path: Path, name: str
) -> None:
    """Packed or not, nobody gets a row that somebody else sent."""
    with serving(tmp_path, {name: settings(name, f"{MODELS}:{name}")}) as place:
        for turn in range(20):
            asked = [[number, 100 + number] for number in random.Random(turn).sample(range(100), 20)]
            replies = place.together([in_json(name, [entry("x", "INT64", [2], x)]) for x in asked])
            for x, reply in zip(asked, replies, strict=True):
                assert reply.status >= 500 or {*values_of(reply)["y"]} <= {*x}, (x, reply.body)


def test_a_model_that_declares_it_is_packed_and_shares_no_batches(tmp_path: Path) -> None:
    described = maitred.pack(f"{MODELS}:Filter", tmp_path / "m", example={"x": [1.0, -2.0, 3.0]}, trust="me: mine")
    assert not described.signature.row_wise


def test_graphs_whose_rows_influence_each_other_are_refused_when_packed(tmp_path: Path) -> None:
    import onnx.helper as graphs
    from onnx import TensorProto

    x, y = (graphs.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    node = graphs.make_node("Softmax", ["x"], ["y"], axis=0)
    graph = graphs.make_model(graphs.make_graph([node], "g", [x], [y]), opset_imports=[graphs.make_opsetid("", 17)])
    graph.ir_version = 8
    with pytest.raises(CannotPack, match=r"rows influence each other"):
        maitred.pack(graph, tmp_path / "m", example={"x": np.arange(6, dtype=np.float32).reshape(3, 2)})
