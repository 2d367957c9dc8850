"""What a LightGBM text model says about itself, and whether its trees are whole: read here, nothing of it is run.

The library reads sizes and indices out of the file and follows them without asking, so a file is checked before it sees
one: every tree must be as long as the file says, and lead from its root to its leaves and nowhere else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from maitred.model.refusals import CannotLoad

_HEAD: Final = b"tree\n"
_NEEDED: Final = frozenset(
    "version num_class num_tree_per_iteration label_index max_feature_idx objective average_output feature_names "
    "feature_infos tree_sizes".split()
)
"""Lines of the head that tell how to predict; what follows the trees tells how they were made."""
_END: Final = b"end of trees"
_PARAMETERS: Final = b"\nparameters:\n"
_PANDAS: Final = "\npandas_categorical:"
_INFO: Final = re.compile(r"none|\[[-+.0-9einfa]+:[-+.0-9einfa]+\]|-?[0-9]+(:-?[0-9]+)*")
_MAX_LEAVES: Final = 1 << 20


class Header(NamedTuple):
    """What stands before the trees, and after them of how the model was fitted."""

    features: tuple[str, ...]
    infos: tuple[str, ...]
    """Of each feature: `[low:high]`, the codes `0:2:1` of a categorical one, or `none`."""
    classes: int
    """Values per row: more than one for several classes only."""
    objective: str
    """One word; empty for one of the caller's own."""
    tree_sizes: tuple[int, ...]
    categorical: tuple[int, ...]
    """Indices of the features that were fitted as categories."""
    pandas_categorical: tuple[tuple[Any, ...], ...]
    """The categories of each column of dtype category, in the columns' order."""

    @property
    def named(self) -> bool:
        """Whether somebody gave the features names."""
        return any(name != f"Column_{at}" for at, name in enumerate(self.features))


def read_header(path: Path) -> Header:
    """Raises `CannotLoad` for a file that is no LightGBM text model."""
    with open(path, "rb") as file:
        if file.read(len(_HEAD)) != _HEAD:
            raise CannotLoad(f"{path.name} is not a LightGBM text model, which begins with the line `tree`")
        return _header(path.name, _HEAD + file.read())


def checked_text(path: Path) -> str:
    """The model as the library may see it: the lines of the head that it needs, and the trees, all checked.

    Raises `CannotLoad` saying which tree of the file is damaged.
    """
    data = path.read_bytes()
    header = _header(path.name, data)
    start = at = _trees_at(data)
    for number, size in enumerate(header.tree_sizes):
        try:
            _check_tree(_tree_fields(data[at : at + size], number), len(header.features))
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise CannotLoad(f"{path.name} is damaged: tree {number} {_reason(error)}") from error
        at += size
    if not data[at : at + len(_END)] == _END:
        raise CannotLoad(f"{path.name} is damaged or was cut off: its trees do not end where it says")
    head = data[:start].decode().split("\n")
    kept = [line for line in head if line.partition("=")[0] in _NEEDED]
    return "\n".join(["tree", *kept, "", ""]) + (data[start:at] + _END).decode() + "\n"


def _trees_at(data: bytes) -> int:
    """Where the first tree begins, or what comes after none; 0 where neither is."""
    return data.find(b"\nTree=0\n") + 1 or data.find(b"\n" + _END) + 1


def _header(name: str, data: bytes) -> Header:
    try:
        fields = _fields(data[: _trees_at(data)])
        tail = data[max(data.rfind(_PARAMETERS), 0) :].decode()
        features = tuple(fields["feature_names"].split(" "))
        header = Header(
            features=features,
            infos=tuple(map(_info, fields["feature_infos"].split(" "))),
            classes=_count(fields, "num_tree_per_iteration"),
            objective=fields.get("objective", "").partition(" ")[0],
            tree_sizes=tuple(_integer(word) for word in fields["tree_sizes"].split()),
            categorical=_categorical(tail, len(features)),
            pandas_categorical=_pandas(tail),
        )
        counted = _integer(fields["max_feature_idx"]) + 1
        _check_range("num_class", [_count(fields, "num_class")], header.classes, header.classes + 1)
        _check_range("label_index", [_integer(fields.get("label_index", "0"))], 0, 1 << 31)
    except (KeyError, ValueError, RecursionError) as error:
        raise CannotLoad(f"{name} is not a whole LightGBM text model: its head {_reason(error)}") from error
    if tail.startswith(_PARAMETERS.decode()) and "\nend of parameters\n" not in tail:
        raise CannotLoad(f"{name} is damaged or was cut off: its parameters do not end")
    if not counted == len(header.features) == len(header.infos):
        raise CannotLoad(f"{name} is damaged: it tells of {counted} features and describes {len(header.infos)}")
    if len(header.tree_sizes) % header.classes or any(size <= 0 for size in header.tree_sizes):
        raise CannotLoad(f"{name} is damaged: the number and sizes of its trees are not possible")
    return header


def _info(word: str) -> str:
    if not _INFO.fullmatch(word):
        raise ValueError(f"{word[:80]!r} of a feature")
    return word


def _reason(error: Exception) -> str:
    return f"lacks {error}" if isinstance(error, KeyError) else f"holds what cannot be: {error}"


def _fields(data: bytes) -> dict[str, str]:
    lines = [line.split("=", 1) for line in data.decode().split("\n") if "=" in line]
    fields: dict[str, str] = dict(lines)
    if len(fields) < len(lines):
        raise ValueError("a line twice")
    return fields


def _count(fields: Mapping[str, str], key: str) -> int:
    count = _integer(fields[key])
    if not 1 <= count <= _MAX_LEAVES:
        raise ValueError(f"{key}={count}")
    return count


def _categorical(text: str, features: int) -> tuple[int, ...]:
    start = text.rfind("\n[categorical_feature: ")
    if start < 0:
        return ()
    listed = text[start + 23 : text.find("]", start)]
    indices = tuple(int(word) for word in listed.split(",") if word)
    if not all(0 <= index < features for index in indices):
        raise ValueError(f"categorical_feature {listed}")
    return indices


def _pandas(text: str) -> tuple[tuple[Any, ...], ...]:
    start = text.rfind(_PANDAS)
    lists = json.loads(text[start + len(_PANDAS) :]) if start >= 0 else None
    if lists is None:
        return ()
    if not isinstance(lists, list) or not all(isinstance(values, list) and values for values in lists):
        raise ValueError(f"pandas_categorical {lists}")
    return tuple(tuple(values) for values in lists)


# --- trees ------------------------------------------------------------------------------------------------------


_KEYS: Final = frozenset(
    "num_leaves num_cat split_feature split_gain threshold decision_type left_child right_child leaf_value leaf_weight "
    "leaf_count internal_value internal_weight internal_count cat_boundaries cat_threshold is_linear leaf_const "
    "num_features leaf_features leaf_coeff shrinkage".split()
)
_BLOCK: Final = re.compile(rb"Tree=([0-9]{1,9})\n((?:[a-z_]+=[-+.0-9a-z ]*\n)+)\n*")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


_LEAST: Final = 2.2250738585072014e-308
"""The smallest float64 of full precision."""


def _tree_fields(block: bytes, number: int) -> dict[str, str]:
    """The lines of one tree. Exactly those that the library writes: of others it would abort the whole process."""
    match = _BLOCK.fullmatch(block)
    if match is None or int(match.group(1)) != number:
        raise ValueError("lines that no tree has")
    pairs = [line.split("=") for line in match.group(2).decode().split("\n")[:-1]]
    fields: dict[str, str] = dict(pairs)
    if not fields.keys() <= _KEYS or len(fields) < len(pairs):
        raise ValueError("a line that no tree has")
    return fields


def _check_tree(fields: Mapping[str, str], features: int) -> None:
    """Raises ValueError or KeyError for a tree that could lead anywhere else than to its own leaves."""
    leaves = _count(fields, "num_leaves")
    linear = _integers(fields, "is_linear", 1) if "is_linear" in fields else [0]
    _integers(fields, "num_cat", 1)
    _numbers(fields, "leaf_value", leaves)
    if "shrinkage" in fields:
        _numbers(fields, "shrinkage", 1)
    if leaves > 1:
        _check_nodes(fields, leaves, features)
    if linear != [0]:
        _check_linear(fields, leaves, features)


def _check_nodes(fields: Mapping[str, str], leaves: int, features: int) -> None:
    nodes = leaves - 1
    _check_range("split_feature", _integers(fields, "split_feature", nodes), 0, features)
    for side in ("left_child", "right_child"):
        for node, child in enumerate(_integers(fields, side, nodes)):
            if not (node < child < nodes or -leaves <= child < 0):
                raise ValueError(f"{side} {child} of node {node}")
    thresholds, kinds = _numbers(fields, "threshold", nodes), _integers(fields, "decision_type", nodes)
    for key in ("split_gain", "internal_value", "internal_weight", "internal_count", "leaf_weight", "leaf_count"):
        if key in fields:
            _numbers(fields, key, leaves if key.startswith("leaf") else nodes)
    _check_range("decision_type", kinds, 0, 16)
    sets = int(fields["num_cat"])
    if sets:
        _check_sets(fields, sets)
    chosen = [threshold for threshold, kind in zip(thresholds, kinds, strict=True) if kind & 1]
    if not all(math.isfinite(threshold) and 0 <= threshold < sets for threshold in chosen):
        raise ValueError("a set of categories that is not there")


def _check_sets(fields: Mapping[str, str], sets: int) -> None:
    bounds = _integers(fields, "cat_boundaries", sets + 1)
    words = _integers(fields, "cat_threshold", bounds[-1])
    _check_range("cat_threshold", words, 0, 1 << 32)
    if bounds[0] != 0 or sorted(bounds) != bounds:
        raise ValueError("cat_boundaries")


def _check_linear(fields: Mapping[str, str], leaves: int, features: int) -> None:
    for word in (*_words(fields, "leaf_const", leaves), *fields["leaf_coeff"].split()):
        _check_held(word)
    counts = _integers(fields, "num_features", leaves)
    _check_range("num_features", counts, 0, features + 1)
    for key in ("leaf_features", "leaf_coeff"):  # of each leaf in turn, two spaces between
        if len(fields[key].split()) != sum(counts):
            raise ValueError(f"{len(fields[key].split())} values of {key} instead of {sum(counts)}")
    _check_range("leaf_features", [_integer(word) for word in fields["leaf_features"].split()], 0, features)


def _integers(fields: Mapping[str, str], key: str, count: int) -> list[int]:
    return [_integer(word) for word in _words(fields, key, count)]


def _integer(word: str) -> int:
    if not _INTEGER.fullmatch(word):
        raise ValueError(f"{word!r} for a whole number")
    return int(word)


def _numbers(fields: Mapping[str, str], key: str, count: int) -> list[float]:
    return [float(word) for word in _words(fields, key, count)]


def _check_held(word: str) -> None:
    """Refuse a number that no float64 holds: where the leaves of a tree are linear, the library aborts at these."""
    value = float(word)
    digits = word.partition("e")[0].strip("+-0.")
    if (math.isinf(value) and "inf" not in word) or (abs(value) < _LEAST and digits):
        raise ValueError(f"{word!r} for a number")


def _words(fields: Mapping[str, str], key: str, count: int) -> list[str]:
    words = fields[key].split(" ")
    if len(words) != count:
        raise ValueError(f"{len(words)} values of {key} instead of {count}")
    return words


def _check_range(key: str, values: list[int], low: int, high: int) -> None:
    if values and not low <= min(values) <= max(values) < high:
        raise ValueError(f"{key} {min(values)} to {max(values)}")


# --- categories -------------------------------------------------------------------------------------------------


def place_categories(
    header: Header, may_be: Callable[[str, tuple[Any, ...]], bool], stated: Iterable[str] = ()
) -> dict[str, tuple[Any, ...]]:
    """Which feature has which of the lists in `pandas_categorical`, where the file names no features.

    Those `stated`, else those that were fitted as categories, else the only features that can be meant. `may_be` says
    whether a feature may have these categories, as far as is known besides. Raises `CannotLoad` where that leaves a
    choice.
    """
    lists = header.pandas_categorical
    if not lists:
        return {}
    if chosen := {*stated}:
        names = [name for name in header.features if name in chosen]
        may_be = _anything
    else:
        names = [header.features[index] for index in sorted(header.categorical)]
    if not chosen and not _fits(header, names, may_be):
        earliest = _greedy(header, may_be, 1)
        names = earliest if earliest == _greedy(header, may_be, -1) else []
    if not _fits(header, names, may_be):
        raise CannotLoad(
            f"the model was fitted on {len(lists)} categorical columns and does not say which: pack it with an "
            "example, or name them in the option `categorical`"
        )
    return dict(zip(names, lists, strict=True))


def _anything(feature: str, values: tuple[Any, ...]) -> bool:
    return True


def _fits(header: Header, names: list[str], may_be: Callable[[str, tuple[Any, ...]], bool]) -> bool:
    if len(names) != len(header.pandas_categorical):
        return False
    pairs = zip(names, header.pandas_categorical, strict=True)
    places = {name: at for at, name in enumerate(header.features)}
    return all(_can_code(header.infos[places[name]], values) and may_be(name, values) for name, values in pairs)


def _greedy(header: Header, may_be: Callable[[str, tuple[Any, ...]], bool], step: int) -> list[str]:
    """The features of the lists, each as early (`step` 1) or as late (-1) as it can be."""
    left = list(header.pandas_categorical)[::step]
    names: list[str] = []
    for name, info in list(zip(header.features, header.infos, strict=True))[::step]:
        if left and _can_code(info, left[0]) and may_be(name, left[0]):
            names.append(name)
            left.pop(0)
    return [] if left else names[::step]


def _can_code(info: str, values: tuple[Any, ...]) -> bool:
    """Whether what the file says of a feature's values can be the codes of these categories."""
    if info == "none":
        return True
    numbers = [float(word) for word in info.strip("[]").split(":")]
    return all(number in range(-1, len(values)) for number in numbers)
