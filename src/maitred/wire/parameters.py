"""What a parameter of a request may be: one set of rules for every wire, and for callers in Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from maitred.errors import Malformed
from maitred.wire.json import shown

Scalar = str | int | float | bool

MAX_PARAMETERS: Final = 64
MAX_NAME: Final = 128
MAX_TEXT: Final = 4096
"""Characters of a name, and of a string."""


def from_mapping(given: Any) -> dict[str, Scalar] | None:
    """What a caller in Python gives, numpy's scalars in Python's own types; None where that is nothing.

    Raises Malformed naming the parameter.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise Malformed(f"parameters must be a mapping of names to values, not {_kind(given)}")
    check_count(given)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    return checked(plain) or None


def check_count(given: Mapping[Any, Any]) -> None:
    """Raises Malformed where there are too many."""
    if len(given) > MAX_PARAMETERS:
        raise Malformed(f"parameters: more than {MAX_PARAMETERS} of them")


def checked(given: Mapping[Any, Any], without: Collection[str] = ()) -> dict[str, Scalar]:
    """The parameters but for those of the names `without`: every wire could carry each name and value.

    Raises Malformed naming the parameter.
    """
    parameters = {}
    for name, value in given.items():
        if name not in without:
            if type(name) is not str or not 0 < len(name) <= MAX_NAME or not (name.isprintable() or _is_text(name)):
                name = _checked_name(name)
            kind = type(value)
            if kind is not float and kind is not bool:
                _check_value(name, value)
            parameters[name] = value
    return parameters


def mark(parameters: Mapping[str, Scalar]) -> str:
    """Equal where the parameters are equal in value and type: 1, 1.0 and True are equal for Python, a model may see
    the difference."""
    return repr(sorted(parameters.items()))


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise Malformed(f"parameters: a name must be a string, not {_kind(name)}")
    if not name or len(name) > MAX_NAME or not _is_text(name):
        raise Malformed(f"parameters: a name is empty, longer than {MAX_NAME} characters or no text: {shown(name)}")
    return str(name)


def _check_value(name: str, value: Any) -> None:
    """Raises Malformed for what is neither float nor bool, nor a string or whole number that may be a parameter."""
    kind = type(value)
    if kind is str:
        if len(value) > MAX_TEXT or not (value.isprintable() or _is_text(value)):
            raise Malformed(
                f"{_place(name)} is longer than {MAX_TEXT} characters or no text: it holds NUL or a lone surrogate"
            )
    elif kind is not int:
        raise Malformed(f"{_place(name)} must be a string, a number or a boolean, not {_kind(value)}")
    elif not -(2**63) <= value < 2**64:
        raise Malformed(f"{_place(name)} does not fit 64 bits")


def _is_text(text: str) -> bool:
    """Whether every wire could carry it; true of all that is printable."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _place(name: str) -> str:
    return f"parameters.{shown(name)[1:-1]}"


def _kind(value: object) -> str:
    return _KINDS.get(type(value)) or f"a value of type {type(value).__name__}"


_KINDS: Final = {type(None): "null", list: "a list", dict: "a mapping"}
