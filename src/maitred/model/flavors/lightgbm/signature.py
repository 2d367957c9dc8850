"""The signature of a LightGBM model: its features as inputs, its kinds of answers as outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from maitred.model.flavors import ROWS, derived, feature_specs, spec_of, trees
from maitred.model.flavors.lightgbm.file import Header, place_categories
from maitred.model.flavors.options import Options, classes_in, features_in, methods_in, one_of, texts_in
from maitred.model.refusals import CannotLoad
from maitred.model.signature import Signature, TensorSpec
from maitred.wire.coerce import INTEGERS, Array

CLASSIFIER: Final = "LGBMClassifier"
ESTIMATORS: Final = (CLASSIFIER, "LGBMRegressor", "LGBMRanker", "LGBMModel")
_CLASSES: Final = frozenset({"binary", "multiclass", "multiclassova"})


def derive(header: Header, options: Options, sample: Any = None) -> Signature:
    """The signature, with dtypes from `sample` where there is one. Raises `CannotLoad` saying what to state by hand."""
    names = names_of(header, options, _labels_of(sample))
    if names is None:
        inputs = [feature_specs.of_matrix(len(header.features), sample, nullable=True)]
    else:
        known = categories_of(header, options, _seen(names, sample))
        inputs = [_number(spec) for spec in feature_specs.of_columns(names, sample, known, nullable=True)]
    return derived(inputs, _outputs(header, options, names))


def names_of(header: Header, options: Options, given: Collection[str]) -> list[str] | None:
    """The features by the names that callers use; None where there are none, so that they come as one matrix.

    LightGBM writes an underscore for a space: a name among those `given` that differs in that only is meant.
    """
    stated = features_in(options, len(header.features))
    if stated or not header.named:
        return stated or None
    spaced = {name.replace(" ", "_"): name for name in given}
    return [spaced.get(name, name) for name in header.features]


def categories_of(header: Header, options: Options, columns: Mapping[str, TensorSpec]) -> dict[str, Sequence[Any]]:
    """The categories of each column that was one of dtype category. `columns`: what is known of them besides."""
    names = names_of(header, options, columns) or header.features
    called = dict(zip(header.features, names, strict=True))
    features = {name: feature for feature, name in called.items()}
    stated = [features.get(name, name) for name in texts_in(options, "categorical")]
    telling = any(spec.categories is not None for spec in columns.values())

    def may_be(feature: str, values: tuple[Any, ...]) -> bool:
        spec = columns.get(called[feature])
        return not columns if spec is None else _may_hold(spec, values, telling)

    placed = place_categories(header, may_be, stated)
    return {called[feature]: values for feature, values in placed.items()}


def _may_hold(spec: TensorSpec, values: tuple[Any, ...], telling: bool) -> bool:
    """Whether a column may be one of these categories. `telling`: whether its like say theirs, so that it would too."""
    if spec.categories is not None:
        return {*spec.categories} <= {*values}
    kind = type(values[0])
    if kind is int:
        return not telling and spec.dtype in INTEGERS
    return spec.dtype == {str: "str", bool: "bool", float: "float64"}.get(kind)


def classes_of(header: Header, options: Options) -> Array | None:
    """The classes in the order of their probabilities; None for a model that is no classifier.

    A booster alone is none: it answers with its numbers, as it does by itself, until the option says its classes.
    """
    if options.get("classes") is None or not header.objective:
        return None
    if not _is_classifiers(options) and header.objective not in _CLASSES:
        raise CannotLoad(f"the option classes is for classifiers, the model's objective is {header.objective}")
    return classes_in(options, max(2, header.classes))


def _is_classifiers(options: Options) -> bool:
    return one_of(options, "estimator", ESTIMATORS) == CLASSIFIER


def _labels_of(sample: Any) -> list[str]:
    if isinstance(sample, Mapping):
        return [str(name) for name in sample]
    return [str(label) for label in sample.columns] if hasattr(sample, "columns") else []


def _seen(names: list[str], sample: Any) -> dict[str, TensorSpec]:
    """What the sample shows of the columns that it has under their names."""
    if sample is None or not _labels_of(sample):
        return {}
    shown = [name for name in names if feature_specs.column_of(sample, name, -1) is not None]
    return {spec.name: spec for spec in feature_specs.of_columns(shown, sample)}


def _number(spec: TensorSpec) -> TensorSpec:
    """Text of which the model knows no categories cannot be: it is the codes that it was fitted on."""
    if spec.dtype == "str" and spec.categories is None:
        raise CannotLoad(f"the example's column {spec.name!r} is text, of which the model knows no categories")
    return spec


def _outputs(header: Header, options: Options, names: Sequence[str] | None) -> list[TensorSpec]:
    classes = classes_of(header, options)
    usual = ["predict", "predict_proba"] if classes is not None else ["predict"]
    if _is_classifiers(options) and classes is None:
        usual = ["raw_score"]  # only the objective's own code could say what the scores mean
    offered = [*usual, *(name for name in trees.METHODS[2:] if name not in usual)]
    wanted = methods_in(options, usual)
    if missing := [method for method in wanted if method not in offered]:
        raise CannotLoad(f"the model has no output {missing[0]!r}; it has {', '.join(offered)}")
    return [_output(name, header, classes, names) for name in wanted]


def _output(method: str, header: Header, classes: Array | None, names: Sequence[str] | None) -> TensorSpec:
    several = (header.classes,) if header.classes > 1 else ()
    if method == "leaf":
        return trees.leaves(len(header.tree_sizes))
    if method == "contributions":
        return trees.contributions("float64", several, len(header.features), names)
    if classes is not None and method == "predict_proba":
        return trees.probabilities("float64", classes)
    if classes is not None and method == "predict":
        return trees.class_of(classes)
    labels = classes.tolist() if classes is not None else range(header.classes)
    return spec_of(method, "float64", (ROWS, *several), tuple(str(label) for label in labels) if several else None)
