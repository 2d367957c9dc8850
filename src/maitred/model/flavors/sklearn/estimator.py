"""What a fitted scikit-learn estimator tells of the columns that it was fitted on, and the jobs that it may start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from maitred.wire.elements import is_missing

_MANY: Final = ("Voting", "Stacking", "MultiOutput", "OneVs", "OutputCode")
"""Estimators whose type is called so give each of their `estimators_` the rows as they come."""


class Told(NamedTuple):
    """What the parts of an estimator that see its columns first know of them, by column name."""

    texts: dict[str, str]
    """Columns of text, each with one that was seen."""
    nones: frozenset[str]
    """Columns of text in which None is a value that was seen, which NaN is not."""
    categories: dict[str, list[Any]]
    """Columns of which every value that was not seen is a missing one."""
    by_name: bool
    """Whether a part picks its columns by name, so that the rows must come as a data frame."""


def names_of(model: Any) -> list[str] | None:
    """The columns in the order of fitting; None for an estimator that was fitted without names."""
    fitted = getattr(model, "feature_names_in_", None)
    return None if fitted is None else [str(name) for name in fitted]


def reads_texts(model: Any) -> bool:
    """Whether a row is one text, as vectorizers take it."""
    return any(_is_vectorizer(part) for part in first_parts(model))


def first_parts(model: Any) -> Iterator[Any]:
    """The estimators inside this one that get the very rows that it is given: itself, where it looks at them."""
    name = type(model).__name__
    steps = [step for _, step in getattr(model, "steps", None) or () if step not in (None, "passthrough")]
    if steps:
        yield from first_parts(steps[0])
    elif inner := _inner(model, name):
        for part in inner:
            yield from first_parts(part)
    else:
        yield model


def _inner(model: Any, name: str) -> list[Any]:
    if name.startswith(_MANY):
        return [part for part in _listed(getattr(model, "estimators_", ())) if part != "drop"]
    if name == "FeatureUnion":
        return [part for _, part in model.transformer_list if part not in ("drop", "passthrough")]
    if name == "CalibratedClassifierCV":
        return [part.estimator for part in getattr(model, "calibrated_classifiers_", ())[:1]]
    if name == "FrozenEstimator":
        return [model.estimator]
    fitted = {"TransformedTargetRegressor": "regressor_", "FixedThresholdClassifier": "estimator_"}
    fitted["TunedThresholdClassifierCV"] = "estimator_"
    part = getattr(model, fitted.get(name, "best_estimator_"), None)
    return [] if part is None else [part]


def _listed(parts: Any) -> list[Any]:
    return list(np.ravel(np.asarray(parts, object))) if isinstance(parts, np.ndarray) else list(parts)


def told_by(model: Any) -> Told:
    """What is known of the columns by name."""
    texts: dict[str, str] = {}
    nones: set[str] = set()
    categories: dict[str, list[Any]] = {}
    by_name = False
    for part in first_parts(model):
        inner = getattr(part, "_preprocessor", None)  # of histogram gradient boosting, whose unknown values are missing
        chooser = part if hasattr(part, "transformers_") else inner
        names = names_of(chooser)
        if names is None:
            continue
        by_name |= chooser is part
        for name, known, reader in _readers(chooser, names):
            if inner is not None and known is not None:
                categories.setdefault(name, [value for value in known if not is_missing(value)])
            words = [value for value in known or () if isinstance(value, str)]
            if words or _is_vectorizer(reader):
                texts.setdefault(name, words[0] if words else "")
            if known is not None and any(value is None for value in known):
                nones.add(name)
            if getattr(reader, "missing_values", 0) is None:
                nones.add(name)
    return Told(texts, frozenset(nones), {name: known for name, known in categories.items() if known}, by_name)


def _readers(chooser: Any, names: list[str]) -> Iterator[tuple[str, list[Any] | None, Any]]:
    """Each column that a ColumnTransformer hands to a part: its name, the categories known of it, and the part."""
    indices = getattr(chooser, "_transformer_to_input_indices", {})
    for title, transformer, _ in chooser.transformers_:
        parts = list(_steps(transformer))
        encoder = next((part for part in parts if hasattr(part, "categories_")), None)
        for place, index in enumerate(indices.get(title, ())):
            known = None
            if encoder is not None and place < len(encoder.categories_):
                known = np.asarray(encoder.categories_[place]).tolist()
            yield names[index], known, parts[0] if parts else None


def _steps(transformer: Any) -> Iterator[Any]:
    if isinstance(transformer, str):  # "drop", "passthrough"
        return
    steps = getattr(transformer, "steps", None)
    for part in [step for _, step in steps] if steps else [transformer]:
        yield from _steps(part) if getattr(part, "steps", None) else [part]


def _is_vectorizer(part: Any) -> bool:
    return hasattr(part, "vocabulary_") or hasattr(part, "build_analyzer")


_NAMES_MATTER: Final = ("ColumnTransformer", "FunctionTransformer")


def takes_names_or_not(model: Any) -> bool:
    """Whether a matrix is as good as a data frame of one dtype: no part looks at names except to compare them."""
    return all(
        type(part).__module__.startswith("sklearn.")
        and type(part).__name__ not in _NAMES_MATTER
        and not hasattr(part, "_sklearn_output_config")
        for part in _estimators(model)
    )


def forget_names(model: Any) -> None:
    """Let the estimators take a matrix without a warning that its columns have no names: they are in order."""
    for part in _estimators(model):
        if type(part).__module__.startswith("sklearn."):
            vars(part).pop("feature_names_in_", None)


def limit_threads(model: Any, threads: int) -> None:
    """Let no estimator inside start threads or processes of its own, and those of other libraries at most so many.

    scikit-learn's answers are the same with one job, and in one order: it adds up the trees of a forest in the order in
    which threads end.
    """
    for part in _estimators(model):
        if type(part).__module__.startswith("lightgbm."):
            part.n_jobs = threads  # without a number it takes every core, whatever the process was told
        elif type(part).__module__.startswith("xgboost."):
            part.n_jobs = threads
            if getattr(part, "_Booster", None) is not None:  # an estimator that waits inside a search is not fitted
                part.get_booster().set_param({"nthread": threads})
        elif getattr(part, "n_jobs", None) not in (None, 1):
            part.n_jobs = 1


def _estimators(model: Any) -> Iterator[Any]:
    """Every estimator inside a fitted one, fitted or not."""
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object):
            waiting.extend(_containers(value))
        elif hasattr(value, "get_params") and hasattr(value, "__dict__") and not isinstance(value, type):
            yield value
            waiting.extend(vars(value).values())
        elif type(value).__name__.startswith("_Calibrated"):
            waiting.extend(vars(value).values())


def _containers(values: Iterable[Any]) -> list[Any]:
    plain = (str, bytes, int, float, type(None))
    return [value for value in values if not isinstance(value, plain)]
