"""ONNX as other libraries export it: labels, maps, both outputs or one, and how far it is from the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
import skl2onnx
from onnx import TensorProto
from onnx_graphs import node, value, write
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from maitred.errors import Malformed
from maitred.model.flavors.onnx.flavor import _matrix
from maitred.model.loading import Source, describe, load, run, warm
from maitred.model.pack import pack
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.testing.flavors import as_described


def exported(path: Path, labels: Any, zipmap: bool) -> tuple[Path, Any, Any]:
    features, target = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    model = LogisticRegression(max_iter=1000).fit(features, np.array(labels)[target])
    options = None if zipmap else {"zipmap": False}
    path.write_bytes(skl2onnx.to_onnx(model, features[:1], options=options).SerializeToString())
    return path, model, features[::30]


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("labels", [[0, 1, 2], [10, -3, 7], ["ja", "nein", "vielleicht ö"], ["b", "a", "10"]])
def test_classifiers_give_probabilities_with_their_labels(labels: Any, zipmap: bool, tmp_path: Path) -> None:
    path, model, rows = exported(tmp_path / "m.onnx", labels, zipmap)
    told = describe(Source(str(path)))
    assert told is not None
    label, probability = told.signature.outputs
    assert told.labels == {probability: tuple(str(known) for known in model.classes_)}
    predictor = load(Source(str(path))).predictor
    out = run(predictor, {"X": rows})
    assert out[label].tolist() == model.predict(rows).tolist()
    assert np.allclose(out[probability], model.predict_proba(rows), atol=1e-5)
    assert run(predictor, {"X": rows}, (label,)).keys() == {label}
    assert run(predictor, {"X": rows}, (probability,)).keys() == {probability}
    with pytest.raises(Malformed, match="unknown output 'predict_proba'"):
        predictor.signature.check_outputs(["predict_proba"])


def test_maps_come_in_the_order_of_the_labels() -> None:
    rows = [{"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 4.0, "b": 5.0, "c": 6.0}]
    assert _matrix(rows, ("c", "a", "b")).tolist() == [[3.0, 1.0, 2.0], [6.0, 4.0, 5.0]]
    assert _matrix([{-1: 0.5, 2: 0.25}], ("2", "-1")).tolist() == [[0.25, 0.5]]
    assert _matrix([], ("a", "b")).shape == (0, 2)
    assert _matrix(rows, ("c", "a", "b")).flags.c_contiguous, "or every answer is copied once more"


def test_maps_without_labels_are_refused_with_the_fix(tmp_path: Path) -> None:
    maps = onnx.helper.make_sequence_type_proto(
        onnx.helper.make_map_type_proto(TensorProto.INT64, onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    path = write(
        tmp_path / "m.onnx", [node("Mystery", ["x"], ["scores"])], [value("x", TensorProto.FLOAT, ["n", 2])],
        [onnx.helper.make_value_info("scores", maps)],
    )  # fmt: skip
    with pytest.raises(CannotLoad, match=r"'scores' is a sequence of maps.*options=\{'zipmap': False\}"):
        describe(Source(str(path)))
    told = describe(Source(str(path), options={"labels": {"scores": ["no", "yes"]}}))
    assert told is not None
    assert told.signature.outputs["scores"].to_text() == 'float32[n, 2] labels=["no", "yes"]'
    with pytest.raises(CannotLoad, match="option labels"):
        describe(Source(str(path), options={"labels": ["no", "yes"]}))


def test_several_targets_at_once_are_refused_with_the_fix(tmp_path: Path) -> None:
    """Their probabilities are a sequence with a tensor for each target."""
    features, target = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    model = MultiOutputClassifier(LogisticRegression(max_iter=1000)).fit(features, np.stack([target, target > 0], 1))
    options = {"zipmap": False}
    path = tmp_path / "m.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, features[:1], options=options).SerializeToString())
    with pytest.raises(CannotLoad, match="'probabilities' is a sequence, which cannot be served: stack it"):
        describe(Source(str(path)))


# --- boosted trees --------------------------------------------------------------------------------------------------


def boosted(library: str, kind: str, path: Path) -> tuple[Any, Any, bool]:
    """A small model exported to `path`, rows for it, and whether it classifies."""
    features, target = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    wanted = {"binary": (target > 0).astype(int), "three": target, "regression": features[:, 0] * 2}[kind]
    classifies = kind != "regression"
    if library == "xgboost":
        import xgboost
        from onnxmltools.convert import convert_xgboost as convert

        maker: Any = xgboost.XGBClassifier if classifies else xgboost.XGBRegressor
        model = maker(n_estimators=3, max_depth=2, n_jobs=1).fit(features, wanted)
    else:
        import lightgbm
        from onnxmltools.convert import convert_lightgbm as convert

        maker = lightgbm.LGBMClassifier if classifies else lightgbm.LGBMRegressor
        model = maker(n_estimators=3, num_leaves=4, n_jobs=1, verbose=-1).fit(features, wanted)
    from onnxmltools.convert.common.data_types import FloatTensorType

    path.write_bytes(convert(model, initial_types=[("x", FloatTensorType([None, 4]))]).SerializeToString())
    return model, features[::20], classifies


@pytest.mark.filterwarnings("ignore")  # of the converters, which are behind their libraries
@pytest.mark.parametrize("kind", ["binary", "three", "regression"])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_boosted_trees_through_onnxmltools(library: str, kind: str, tmp_path: Path) -> None:
    model, rows, classifies = boosted(library, kind, tmp_path / "m.onnx")
    loaded = load(Source(str(tmp_path / "m.onnx")))
    assert describe(Source(str(tmp_path / "m.onnx"))) == as_described(loaded)
    assert loaded.predictor.signature.row_wise
    out = run(loaded.predictor, {"x": rows})
    names = list(out)
    if not classifies:
        assert np.allclose(out[names[0]].ravel(), model.predict(rows), atol=1e-4)
        return
    assert loaded.description.labels == {names[1]: tuple(map(str, range(2 if kind == "binary" else 3)))}
    assert out[names[0]].tolist() == model.predict(rows).tolist()
    assert np.allclose(out[names[1]], model.predict_proba(rows), atol=1e-4)
    assert run(loaded.predictor, {"x": rows}, (names[0],)).keys() == {names[0]}
    warm(loaded, 4)


@pytest.mark.filterwarnings("ignore")  # of the library
@pytest.mark.parametrize("labels", [["ja", "nein", "ö"], [3, 1, 2]])
def test_catboost(labels: Any, tmp_path: Path) -> None:
    catboost = pytest.importorskip("catboost", reason="catboost is not installed")
    features, target = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    model = catboost.CatBoostClassifier(iterations=3, depth=2, verbose=False, thread_count=1, allow_writing_files=False)
    model.fit(features, np.array(labels)[target])
    model.save_model(str(tmp_path / "m.onnx"), format="onnx")
    loaded = load(Source(str(tmp_path / "m.onnx")))
    rows = features[::20]
    out = run(loaded.predictor, {"features": rows})
    assert loaded.description.labels == {"probabilities": tuple(map(str, model.classes_))}
    assert out["label"].tolist() == model.predict(rows).ravel().tolist()
    assert np.allclose(out["probabilities"], model.predict_proba(rows), atol=1e-5)


# --- against the original -------------------------------------------------------------------------------------------


def test_packing_compares_with_the_original(tmp_path: Path) -> None:
    path, model, rows = exported(tmp_path / "m.onnx", ["a", "b", "c"], False)
    good = {"label": model.predict(rows), "probabilities": model.predict_proba(rows)}
    pack(path, tmp_path / "p", example={"X": rows}, expected=good)
    with pytest.raises(CannotPack, match=r"'probabilities'.*worst at"):
        pack(path, tmp_path / "p", example={"X": rows}, expected={**good, "probabilities": good["probabilities"] + 0.1})


def test_a_forest_behind_a_scaler_of_large_ranges_is_found_out(tmp_path: Path) -> None:
    """The export scales in float32, which puts some rows on the other side of a split, and far off."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 3)) * [1.0, 1e3, 1e6] + [0.0, 1e6, 1e10]
    target = features[:, 2] - features[:, 2].mean() + 1e6 * np.sign(features[:, 1] - 1e6)
    model = make_pipeline(StandardScaler(), RandomForestRegressor(20, random_state=0, n_jobs=1)).fit(features, target)
    rows = features.astype(np.float32)
    path = tmp_path / "m.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, rows[:1]).SerializeToString())
    original = model.predict(rows.astype(np.float64))
    got = run(load(Source(str(path))).predictor, {"X": rows})["variable"].ravel()
    apart = np.abs(got - original) > 1e-3 * np.abs(original)
    assert apart.any(), "the rows of this test are no trap any more"
    with pytest.raises(CannotPack, match=r"'variable'.*worst at") as refused:
        pack(path, tmp_path / "p", example={"X": rows}, expected={"variable": original[:, None]})
    assert not (tmp_path / "p").exists()
    assert "worst at" in refused.value.message


def test_a_forest_of_modest_ranges_agrees_with_its_export(tmp_path: Path) -> None:
    features, target = make_classification(200, 5, random_state=0)
    features = features.astype(np.float32)
    model = RandomForestClassifier(10, random_state=0, n_jobs=1).fit(features, target)
    path = tmp_path / "m.onnx"
    path.write_bytes(skl2onnx.to_onnx(model, features[:1], options={"zipmap": False}).SerializeToString())
    expected = {"label": model.predict(features), "probabilities": model.predict_proba(features)}
    pack(path, tmp_path / "p", example={"X": features}, expected=expected)
