"""A model against what it was exported from: outputs pair by name or by kind, and the worst difference is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maitred.model.inspect import inspect
from maitred.model.pack import pack
from maitred.model.reference import Agreement, compare
from maitred.model.refusals import CannotPack
from maitred.model.signature import Signature
from maitred.model.source import Source

ONE = Signature({"x": "float32[n]"}, {"y": "float32[n]", "label": "str[n]"})


def numbers(*values: float) -> Any:
    return np.array(values, np.float32)


def texts(*values: str) -> Any:
    return np.array(values, object)


def test_outputs_pair_by_name_and_else_by_kind_and_shape() -> None:
    other = Signature({"x": "float32[n]"}, {"names": "str[n]", "extra": "float64[n, 2]", "score": "float64[n]"})
    reference = {"names": texts("a", "b"), "extra": np.zeros((2, 2)), "score": np.array([1.0, 2.5])}
    score, label = compare(ONE, {"y": numbers(1, 2), "label": texts("a", "b")}, other, reference)
    assert score == Agreement("y", "score", 2, 1, 0.5, " at [1]: 2.0, there 2.5")
    assert label == Agreement("label", "names", 2, 0, None, "")
    assert score.to_text() == (
        "y (there score): 1 of 2 elements differ by more than the tolerance, the worst by 0.5 at [1]: 2.0, there 2.5"
    )


def test_differences_within_the_tolerance_are_told_too() -> None:
    got = {"y": numbers(1, 2), "label": texts("a", "b")}
    reference = {"y": np.array([1.0, 2.00001]), "label": texts("a", "c")}
    score, label = compare(ONE, got, ONE, reference)
    assert score.over == 0 and score.worst == pytest.approx(1e-5) and "[1]" in score.place
    assert (label.over, label.worst, label.place) == (1, None, " at [1]: 'b', there 'c'")
    assert label.to_text() == "label: 1 of 2 elements differ, first at [1]: 'b', there 'c'"
    assert label._replace(over=0, place="").to_text() == "label: all 2 elements agree"


def test_nan_agrees_with_nan_and_with_nothing_else() -> None:
    got = {"y": numbers(np.nan, np.nan), "label": texts("a", "b")}
    score, _ = compare(ONE, got, ONE, {**got, "y": numbers(np.nan, 1)})
    assert (score.over, score.worst) == (1, np.inf)


def test_whole_numbers_and_what_is_missing_are_compared_exactly() -> None:
    """As floats, the two numbers would be one."""
    both = Signature({"x": "float32[n]"}, {"id": "int64[n] nullable"})
    large = 2**53
    [agreement] = compare(both, {"id": np.array([large, 7])}, both, {"id": np.array([large + 1, 7])})
    assert (agreement.elements, agreement.over, agreement.worst) == (2, 1, None)
    assert agreement.place == f" at [0]: {large}, there {large + 1}"
    missing = np.ma.MaskedArray([large, 0], [False, True])
    [agreement] = compare(both, {"id": missing}, both, {"id": missing})
    assert agreement.over == 0
    [agreement] = compare(both, {"id": missing}, both, {"id": np.array([large, 0])})
    assert agreement.over == 1, "0 is not missing"


def test_infinities_agree_with_themselves() -> None:
    got = {"y": numbers(np.inf, -np.inf), "label": texts("a", "b")}
    score, _ = compare(ONE, got, ONE, got)
    assert (score.over, score.worst, score.place) == (0, 0.0, "")


def test_what_cannot_be_compared_says_so() -> None:
    other = Signature({"x": "float32[n]"}, {"z": "float32[n, 3]"})
    got = {"y": numbers(1), "label": texts("a")}
    with pytest.raises(CannotPack, match="the model gives y, label, the reference z"):
        compare(ONE, got, other, {"z": np.zeros((1, 3), np.float32)})
    with pytest.raises(CannotPack, match=r"output 'y': shape \[1\], the reference's is \[2\]"):
        compare(ONE, got, ONE, {**got, "y": numbers(1, 2)})


def exported_forest() -> tuple[Any, Any, Any]:
    """A forest on features of large ranges, its export in float32, and rows on both sides of its splits."""
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(7)
    rows = generator.normal(1e7, 1.0, (400, 4))
    target = (rows[:, 0] > 1e7).astype(int)
    model = make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0)).fit(rows, target)
    export = skl2onnx.to_onnx(model, rows[:1].astype(np.float32), options={"zipmap": False})
    return model, export, rows


def test_an_export_that_flips_splits_is_refused_with_the_worst_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    model, export, rows = exported_forest()
    example = {"X": rows[:100].tolist()}  # values: each form rounds them to its own dtype
    with pytest.raises(CannotPack, match=r"does not agree with its reference: .*probabilities \(there predict_proba\)"):
        pack(export, tmp_path / "packed", example=example, reference=model)
    assert not (tmp_path / "packed").exists()
    pack(export, tmp_path / "packed", example=example, reference=model, accept_differences=True)
    told = inspect(Source(str(tmp_path / "packed"))).compared
    assert len(told) == 2 and "the worst by" in told[1]


def test_an_export_that_agrees_is_packed_and_says_how_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    rows = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    model = LogisticRegression().fit(rows, rows[:, 0] > 0)
    export = skl2onnx.to_onnx(model, rows[:1], options={"zipmap": False})
    pack(export, tmp_path / "packed", example={"X": rows[:50]}, reference=model)
    shown = inspect(Source(str(tmp_path / "packed"))).to_text()
    assert "compared with its reference" in shown and "all 100 elements agree" in shown
