"""The options that several flavors take, under one name and with one check each; see docs/models.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from maitred.model.refusals import CannotLoad
from maitred.wire.coerce import Array, dtype_of

Options = Mapping[str, Any]

Check = Callable[[Options, str], object]
"""Raises `CannotLoad` where the option of that name is of another kind than it must be."""

_CLASSES: Final = frozenset({str, bool, int, float})


def texts_in(options: Options, key: str) -> list[str]:
    """A list of different texts; empty where nothing is said. Raises `CannotLoad`."""
    given = options.get(key, ())
    if not isinstance(given, (list, tuple)):
        raise CannotLoad(f'the option {key} must be a list, such as ["a", "b"]')
    texts = [str(text) for text in given]
    if len(set(texts)) < len(texts):
        raise CannotLoad(f"the option {key} names something twice")
    return texts


def one_of(options: Options, key: str, known: Sequence[str]) -> str:
    """A word among those known; empty where nothing is said. Raises `CannotLoad`."""
    given = options.get(key, "")
    if given and given not in known:
        raise CannotLoad(f"the option {key} must be one of {', '.join(known)}")
    return str(given)


def features_in(options: Options, count: int | None) -> list[str]:
    """`features`: names for the columns of a model that knows none, or other ones; empty where nothing is said."""
    names = texts_in(options, "features")
    if names and len(names) != count:
        raise CannotLoad(f"the model takes {count} features, the option features names {len(names)}")
    return names


def methods_in(options: Options, usual: Iterable[str]) -> list[str]:
    """`methods`: what of the model becomes an output, as far as is said; else the `usual` ones."""
    return texts_in(options, "methods") or list(usual)


def classes_in(options: Options, count: int) -> Array | None:
    """`classes`: what the classes 0, 1, 2 ... stand for, as an array; None where nothing is said."""
    given = options.get("classes")
    if given is None:
        return None
    values = list(given) if isinstance(given, (list, tuple)) else []
    if len(values) != count:
        raise CannotLoad(f"the model has {count} classes, the option classes names {len(values)}")
    kinds = {type(value) for value in values}
    classes = np.array(values, object if kinds == {str} else None) if len(kinds) == 1 and kinds < _CLASSES else None
    if classes is None or dtype_of(classes) is None or len(set(values)) != count:
        raise CannotLoad("the option classes must list different texts, numbers or booleans, all of one type")
    return classes


def flag_in(options: Options, key: str) -> bool:
    """True or false; false where nothing is said. Raises `CannotLoad`."""
    given = options.get(key, False)
    if not isinstance(given, bool):
        raise CannotLoad(f"the option {key} must be true or false")
    return given


def text_in(options: Options, key: str) -> str:
    """A text; empty where nothing is said. Raises `CannotLoad`."""
    given = options.get(key, "")
    if not isinstance(given, str):
        raise CannotLoad(f"the option {key} must be a text")
    return given


def among(*known: str) -> Check:
    """A check for a word among those known."""
    return lambda options, key: one_of(options, key, known)


def table_in(options: Options, key: str) -> Mapping[str, Any]:
    """Values by name; none where nothing is said. Raises `CannotLoad`."""
    given = options.get(key, {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise CannotLoad(f'the option {key} must be values by name, such as {{"width": 8}}')
    return given


def some_in(options: Options, key: str) -> object:
    """A list, whose length and elements only the model can judge. Raises `CannotLoad`."""
    given = options.get(key)
    if given is not None and not isinstance(given, (list, tuple)):
        raise CannotLoad(f"the option {key} must be a list of texts, numbers or booleans")
    return given


def labels_in(options: Options, key: str = "labels") -> dict[str, tuple[str, ...]]:
    """`labels`: by output, what the places along its last axis stand for. Raises `CannotLoad`."""
    given = options.get(key, {})
    if not isinstance(given, Mapping) or not all(isinstance(labels, (list, tuple)) for labels in given.values()):
        raise CannotLoad(f'the option {key} must be lists by output, such as {{"probabilities": ["no", "yes"]}}')
    return {str(name): tuple(map(str, labels)) for name, labels in given.items()}
