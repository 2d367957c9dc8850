"""Options that several flavors share are read the same way in each, and what is none is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maitred.model.flavors import FLAVORS, Opening, check_options, named
from maitred.model.flavors.options import classes_in, features_in, labels_in, methods_in, one_of, texts_in
from maitred.model.loading import Source, describe, load
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, NotFound


@pytest.mark.parametrize("given", ["ab", 3, None, {"a": 1}, ["a", "a"]])
def test_what_is_no_list_of_different_names_is_refused(given: Any) -> None:
    with pytest.raises(CannotLoad, match="the option outputs"):
        texts_in({"outputs": given}, "outputs")


def test_names_are_texts_in_their_order() -> None:
    assert texts_in({"outputs": ["b", 1]}, "outputs") == ["b", "1"]
    assert texts_in({}, "outputs") == []
    assert methods_in({"methods": ["leaf"]}, ["predict"]) == ["leaf"]
    assert methods_in({}, ("predict",)) == ["predict"]


def test_features_are_as_many_as_the_model_takes() -> None:
    assert features_in({"features": ["a", "b"]}, 2) == ["a", "b"]
    assert features_in({}, 2) == []
    with pytest.raises(CannotLoad, match="takes 2 features, the option features names 3"):
        features_in({"features": ["a", "b", "c"]}, 2)
    with pytest.raises(CannotLoad, match="twice"):  # two names, of which one would be lost
        features_in({"features": ["a", "b", "b"]}, 2)


@pytest.mark.parametrize(
    ("given", "kind"), [(["no", "yes"], "O"), ([3, 5], "i"), ([False, True], "b"), ([0.5, 1.5], "f")]
)
def test_classes_are_an_array_of_one_type(given: list[Any], kind: str) -> None:
    classes = classes_in({"classes": given}, 2)
    assert classes is not None
    assert classes.dtype.kind == kind
    assert classes.tolist() == given
    assert classes_in({}, 2) is None


@pytest.mark.parametrize(
    "given", ["ab", ["a", "a"], ["a", 1], [1, True], [[1], [2]], [None, None], ["a", "b", "c"], [2**70, 1]]
)
def test_classes_that_no_model_has_are_refused(given: Any) -> None:
    with pytest.raises(CannotLoad, match="option classes"):
        classes_in({"classes": given}, 2)


def test_labels_are_lists_by_output() -> None:
    assert labels_in({"labels": {"y": ["no", 1]}}) == {"y": ("no", "1")}
    assert labels_in({}) == {}
    for given in (["no", "yes"], {"y": "no"}, {"y": 3}, None):
        with pytest.raises(CannotLoad, match="option labels"):
            labels_in({"labels": given})


def test_a_word_is_one_of_those_known() -> None:
    assert one_of({"form": "class"}, "form", ("export", "class")) == "class"
    assert one_of({}, "form", ("export", "class")) == ""
    for given in ("script", 3, ["class"]):
        with pytest.raises(CannotLoad, match="form must be one of export, class"):
            one_of({"form": given}, "form", ("export", "class"))


@pytest.mark.parametrize("name", FLAVORS.names())
def test_every_flavor_has_threads_and_refuses_what_it_does_not_have(name: str) -> None:
    flavor = named(name)
    check_options(flavor, {"threads": 2})
    with pytest.raises(CannotLoad, match=rf"flavor {name} has no option 'thread'.*did you mean 'threads'"):
        check_options(flavor, {"thread": 2})


@pytest.mark.parametrize(
    ("name", "option", "given"),
    [
        ("lightgbm", "features", 5), ("lightgbm", "classes", "no,yes"), ("lightgbm", "estimator", "Forest"),
        ("lightgbm", "categorical", {"a": 1}), ("xgboost", "base_margin", "no"), ("xgboost", "missing", "x"),
        ("xgboost", "rounds", -1), ("xgboost", "rounds", "all"), ("xgboost", "methods", 5), ("sklearn", "methods", 5),
        ("sklearn", "features", "ab"), ("catboost", "missing", -999), ("catboost", "estimator", 3),
        ("onnx", "labels", 5), ("onnx", "labels", []), ("onnx", "rows", "x"), ("onnx", "rows", True),
        ("onnx", "optional", 3), ("torch", "outputs", 5), ("torch", "labels", []), ("torch", "form", "script"),
        ("torch", "class", 5), ("torch", "arguments", [8]), ("python", "weights", 5), ("python", "arguments", 5),
        ("python", "threads", 0), ("huggingface", "threads", "many"),
    ],
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_refused_by_name(name: str, option: str, given: Any) -> None:
    with pytest.raises(CannotLoad, match=rf"{option}.* must"):
        check_options(named(name), {option: given})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lightgbm", {"features": ["a"], "classes": [3, 5], "estimator": "LGBMRegressor"}),
        ("xgboost", {"base_margin": True, "missing": -999, "rounds": "best"}), ("xgboost", {"rounds": 0}),
        ("catboost", {"missing": "nan", "estimator": "CatBoost"}), ("onnx", {"rows": 0, "optional": []}),
        ("torch", {"class": "net.py:Net", "arguments": {"width": 8}, "labels": {"y": ["a"]}}),
    ],
)  # fmt: skip
def test_options_of_the_right_kind_pass(name: str, options: dict[str, Any]) -> None:
    check_options(named(name), options)


def test_a_packed_model_with_a_signature_of_its_own_does_not_overlook_wrong_options(tmp_path: Any) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model", reason="the extra sklearn")
    pack(sklearn.LogisticRegression().fit([[0.0], [1.0]], [0, 1]), tmp_path / "m", example=np.zeros((1, 1)))
    for see in (load, describe):
        with pytest.raises(CannotLoad, match="the option features must be a list"):
            see(Source(str(tmp_path / "m"), options={"features": 5}))
        with pytest.raises(CannotLoad, match=r"no option 'feature'.*did you mean 'features'"):
            see(Source(str(tmp_path / "m"), options={"feature": ["a"]}))


def test_a_python_model_that_is_no_torch_module_has_no_weights(tmp_path: Any) -> None:
    (tmp_path / "f.py").write_text(
        "import maitred\n"
        "signature = maitred.Signature({'x': 'float32[n]'}, {'y': 'float32[n]'})\n"
        "def predict(batch):\n    return {'y': batch['x']}\n"
    )
    load(Source(str(tmp_path / "f.py"), options={"threads": 1}))
    with pytest.raises(CannotLoad, match=r"option weights is for a torch\.nn\.Module"):
        load(Source(str(tmp_path / "f.py"), options={"weights": "w.pt"}))


def test_a_flavor_of_another_package_may_leave_its_options_open() -> None:
    class Foreign:
        name = "foreign"

    check_options(Foreign(), {"anything": 1})  # type: ignore[arg-type]


def test_an_option_that_is_misspelt_is_refused_wherever_it_is_given(tmp_path: Any) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model", reason="the extra sklearn")
    model = sklearn.LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(CannotLoad, match=r"no option 'method'.*did you mean 'methods'"):
        pack(model, tmp_path / "m", options={"method": ["predict"]})
    assert not (tmp_path / "m").exists()
    pack(model, tmp_path / "m", example=np.zeros((1, 1)))
    with pytest.raises(CannotLoad, match="no option 'method'"):
        load(Source(str(tmp_path / "m"), options={"method": ["predict"]}))
    (tmp_path / "f.py").write_text("")
    with pytest.raises(CannotLoad, match="no option 'weight'"):
        describe(Source(str(tmp_path / "f.py"), options={"weight": "w.pt"}))


def test_an_option_names_files_of_the_model_alone_where_it_is_packed(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "w.pt").write_text("w")
    monkeypatch.chdir(tmp_path)
    bare = Opening(root=tmp_path / "model")
    assert bare.beside("weights", "w.pt") == tmp_path / "w.pt"  # below the working folder
    assert bare.beside("weights", "../w.pt") == tmp_path / "w.pt"
    packed = Opening(root=tmp_path / "model", packed=True, closed=True)
    with pytest.raises(CannotLoad, match="outside the model's own folder"):
        packed.beside("weights", "../w.pt")
    with pytest.raises(NotFound, match=r"no file w\.pt for the option weights"):
        packed.beside("weights", "w.pt")
