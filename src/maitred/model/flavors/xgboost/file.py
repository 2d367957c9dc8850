"""What an XGBoost file says about its model, read and checked without the library.

The library follows the numbers in a file wherever they point: a damaged one can end the process. So a file is walked
through here before the library gets to see it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from maitred.model.flavors.xgboost import ubjson
from maitred.model.refusals import CannotLoad
from maitred.wire.coerce import Array

CATEGORICAL: Final = "c"
"""The feature type of categories; `float`, `int`, `q` and `i` (of booleans) are numbers."""

_WHOLE_TEXTS: Final = (3, 4)
"""The first version that writes categories whole; before it, those with letters outside of ASCII are cut."""
_NO_PARENT: Final = 2**31 - 1
_SPLITS: Final = ("split_conditions", "default_left")
_STATISTICS: Final = ("loss_changes", "sum_hessian")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """An XGBoost model, but for its trees."""

    booster: str
    """`gbtree`, `dart` or `gblinear`."""
    objective: str
    features: int
    groups: int
    """Margins of a row: one for each class or target."""
    classes: int
    """Of a multi-class objective, else 0."""
    targets: int
    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    categories: tuple[tuple[Any, ...] | None, ...] = ()
    """Of each feature where the file keeps any, None for numbers; empty where it does not know."""
    cut: bool = False
    """Whether texts among the categories may not be what the model was fitted on."""
    estimator: str = ""
    """`classifier`, `regressor` or `ranker` where a scikit-learn estimator wrote it, else empty: a `Booster`."""
    best_iteration: int | None = None
    trees_until: tuple[int, ...] = ()
    """How many trees there are before each round, and in the end in all; empty where the file does not say."""
    vectors: Literal["", "at nodes", "apart"] = ""
    """Where trees that give a value for every target keep these; empty for trees of one value."""


def read(path: Path) -> Header:
    """The header of a file whose every part was checked. Raises `CannotLoad`."""
    return header(path.read_bytes(), path.name)


def header(content: bytes, name: str) -> Header:
    """As `read`, of a file's bytes."""
    document = _document(content, name)
    try:
        found = _header(document)
        _check(document["learner"]["gradient_booster"], found)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CannotLoad(f"{name} is no sound XGBoost model: {type(error).__name__}: {error}") from error
    return found


def _document(content: bytes, name: str) -> Mapping[str, Any]:
    """The file as one record, whichever of the two formats it has."""
    start = content[:64].lstrip()
    if not start.startswith(b"{"):
        raise CannotLoad(
            f"{name} is no XGBoost model in UBJSON or JSON. A file in the old binary format has to be saved again: "
            "load it with XGBoost before 3.1 and call save_model('model.ubj')"
        )
    try:
        # JSON has a quote (or nothing) after the brace, UBJSON the mark of a length
        found = json.loads(content) if start[1:].lstrip()[:1] in (b'"', b"}") else ubjson.decode(content)
    except (ValueError, RecursionError) as error:
        raise CannotLoad(f"{name} is no XGBoost model: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("learner"), dict):
        raise CannotLoad(f"{name} is no XGBoost model: it has no learner")
    return found


def _header(document: Mapping[str, Any]) -> Header:
    learner = document["learner"]
    numbers, attributes = learner["learner_model_param"], learner.get("attributes", {})
    written = json.loads(attributes.get("scikit_learn", "{}"))
    features, classes, targets = (int(numbers.get(key, 0)) for key in ("num_feature", "num_class", "num_target"))
    if features < 1 or classes < 0 or targets < 0:
        raise ValueError("it has no features")
    version = tuple(int(part) for part in document.get("version", ()))
    model = _model(learner["gradient_booster"])
    categories = tuple(_categories(encoding) for encoding in model.get("cats", {}).get("enc", ()))
    texts = [text for values in categories for text in values or () if isinstance(text, str)]
    best = attributes.get("best_iteration")
    found = Header(
        booster=str(learner["gradient_booster"]["name"]),
        objective=str(learner["objective"]["name"]),
        features=features,
        groups=max(classes, targets, 1),
        classes=classes,
        targets=max(targets, 1),
        names=tuple(str(name) for name in learner.get("feature_names", ())),
        types=tuple(str(kind) for kind in learner.get("feature_types", ())),
        categories=categories,
        cut=version < _WHOLE_TEXTS and not all(text.isascii() for text in texts),
        estimator=str(written.get("_estimator_type", "")) if isinstance(written, dict) else "",
        best_iteration=None if best is None else int(best),
        trees_until=tuple(int(count) for count in model.get("iteration_indptr", ())),
        vectors=_vectors(model.get("trees", ())),
    )
    for what in (found.names, found.types, found.categories):
        if what and len(what) != features:
            raise ValueError(f"it describes {len(what)} features and has {features}")
    return found


def _model(booster: Mapping[str, Any]) -> Mapping[str, Any]:
    inner: Mapping[str, Any] = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
    return inner


def _vectors(trees: Sequence[Mapping[str, Any]]) -> Literal["", "at nodes", "apart"]:
    several = [tree for tree in trees if int(tree["tree_param"].get("size_leaf_vector", 1)) > 1]
    if not several:
        return ""
    return "apart" if "leaf_weights" in several[0] else "at nodes"


def _categories(encoding: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The categories of one feature in the order of their codes; None for a number. What is no text is replaced."""
    values = np.asarray(encoding["values"])
    if "offsets" not in encoding:
        return tuple(values.tolist())
    offsets = np.asarray(encoding["offsets"]).tolist()
    raw = (values.astype(np.int64) & 0xFF).astype(np.uint8).tobytes()
    if not offsets:
        return None
    if offsets[0] != 0 or offsets[-1] != len(raw) or sorted(offsets) != offsets:
        raise ValueError("its categories overlap")
    return tuple(raw[start:stop].decode(errors="replace") for start, stop in itertools.pairwise(offsets))


# --- the trees --------------------------------------------------------------------------------------------------


def _check(booster: Mapping[str, Any], found: Header) -> None:
    """Raise ValueError (or what a wrong type raises) where the library would read or write outside of its arrays."""
    model = _model(booster)
    if found.booster == "gblinear":
        if len(model["weights"]) != (found.features + 1) * found.groups:
            raise ValueError("it has another number of weights than of features")
        return
    if found.booster not in ("gbtree", "dart"):
        raise ValueError(f"there is no booster {found.booster!r}")
    trees, groups = model["trees"], np.asarray(model["tree_info"], np.int64)
    if not len(trees) == len(groups) == int(model["gbtree_model_param"]["num_trees"]):
        raise ValueError("its trees are not all there")
    if len(groups) and not (groups.min() >= 0 and groups.max() < found.groups):
        raise ValueError("a tree is of no class")
    if found.booster == "dart" and len(booster["weight_drop"]) != len(trees):
        raise ValueError("it has another number of weights than of trees")
    until = found.trees_until
    if until and not (until[0] == 0 and until[-1] == len(trees) and sorted(until) == list(until)):
        raise ValueError("its rounds are not its trees")
    for at, tree in enumerate(trees):
        try:
            _check_tree(tree, found)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"tree {at}: {error}") from error


def _check_tree(tree: Mapping[str, Any], found: Header) -> None:
    """That it is a tree: whoever starts at its root comes to a leaf, and meets only features that there are."""
    size = int(tree["tree_param"]["num_nodes"])
    width = max(1, int(tree["tree_param"].get("size_leaf_vector", 1)))
    left, right, parents, features = (
        _whole(tree, key, size) for key in ("left_children", "right_children", "parents", "split_indices")
    )
    if size < 1 or int(tree["tree_param"]["num_feature"]) != found.features:
        raise ValueError("it is of other features")
    if width > 1 and width != found.groups:
        raise ValueError("its leaves are of other classes")
    inner = left != -1
    _check_leaves(tree, right[~inner], size, width, found.vectors)
    nodes = np.flatnonzero(inner)
    for children in (left[inner], right[inner]):
        if len(nodes) and not (children.min() >= 1 and children.max() < size):
            raise ValueError("a child is none of its nodes")
        if not np.array_equal(parents[children], nodes):
            raise ValueError("a node is nobody's child, or two nodes'")
    if parents[0] not in (-1, _NO_PARENT):
        raise ValueError("its root is a child")
    if len(nodes) and not (features[inner].min() >= 0 and features[inner].max() < found.features):
        raise ValueError("a split is by a feature that there is not")
    # before 3.2, trees with several values at their nodes came without statistics; the library follows all others
    needed = _SPLITS if width > 1 and "leaf_weights" not in tree else (*_SPLITS, *_STATISTICS)
    for key in (*_SPLITS, *_STATISTICS, "split_type"):
        if key in needed and key not in tree:
            raise ValueError(f"{key} is missing")
        if key in tree and len(tree[key]) != size:
            raise ValueError(f"{key} is not of its size")
    if "categories_nodes" in tree:
        _check_splits(tree, size)


def _check_leaves(tree: Mapping[str, Any], right: Array, size: int, width: int, vectors: str) -> None:
    """Leaves of one value hold it themselves; of several they tell its place or, before 3.2, have that of the node."""
    apart = width > 1 and "leaf_weights" in tree
    if width > 1 and apart != (vectors == "apart"):
        raise ValueError("its leaves have their weights elsewhere than those of other trees")
    places = len(tree["leaf_weights"]) // width if apart else 0
    if apart and not places:
        raise ValueError("its leaves have no weights")
    if places and not (right.min() >= 0 and right.max() < places):
        raise ValueError("a leaf has no weight")
    if not places and np.any(right != -1):
        raise ValueError("a node has one child")
    if len(tree["base_weights"]) != size * width:
        raise ValueError("base_weights is not of its size")


def _check_splits(tree: Mapping[str, Any], size: int) -> None:
    """The sets of categories that nodes split by."""
    nodes = _whole(tree, "categories_nodes", None)
    starts, counts = (_whole(tree, f"categories_{key}", len(nodes)) for key in ("segments", "sizes"))
    values = _whole(tree, "categories", None)
    if len(nodes) and not (nodes.min() >= 0 and nodes.max() < size and np.all(np.diff(nodes) > 0)):
        raise ValueError("its categories are of other nodes")
    if len(nodes) and not (starts.min() >= 0 and counts.min() >= 0 and (starts + counts).max() <= len(values)):
        raise ValueError("its categories are not all there")
    if len(values) and not (values.min() >= 0 and values.max() < 2**24):
        raise ValueError("a category is no code")
    if "split_type" in tree and not np.array_equal(np.flatnonzero(np.asarray(tree["split_type"])), nodes):
        raise ValueError("a split by category has none")


def _whole(tree: Mapping[str, Any], key: str, size: int | None) -> Array:
    values: Sequence[Any] | Array = tree[key]
    array: Array = np.asarray(values)
    if array.ndim != 1 or (size is not None and len(array) != size) or (len(array) and array.dtype.kind not in "iu"):
        raise ValueError(f"{key} is not of its size")
    return array.astype(np.int64)
