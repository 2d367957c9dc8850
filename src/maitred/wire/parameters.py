"""The parameters of a request as a Python caller gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from maitred.errors import Malformed

MAX_PARAMETERS: Final = 64
MAX_NAME: Final = 128
MAX_TEXT: Final = 4096
"""Characters of a name, and of a string."""


def from_mapping(given: Any) -> dict[str, str | int | float | bool] | None:
    """The parameters in Python's own types, by the rules of the wire: the model gets the same in every mode.

    Raises Malformed naming the parameter.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise Malformed(f"parameters must be a mapping of names to values, not {_type_name(given)}")
    if len(given) > MAX_PARAMETERS:
        raise Malformed(f"parameters: more than {MAX_PARAMETERS} of them")
    return {_checked_name(name): _scalar(name, value) for name, value in given.items()} or None


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise Malformed(f"parameters: a name must be a string, not {_type_name(name)}")
    if not name or len(name) > MAX_NAME or not _is_text(name):
        raise Malformed(f"parameters: a name is empty, longer than {MAX_NAME} characters or no text: {name[:40]!a}")
    return str(name)


def _scalar(name: object, value: object) -> str | int | float | bool:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is str:
        if len(value) > MAX_TEXT or not _is_text(value):
            raise Malformed(f"parameters.{name} is longer than {MAX_TEXT} characters or holds NUL or a lone surrogate")
        return value
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise Malformed(f"parameters.{name} does not fit 64 bits")
    if type(value) is int or type(value) is float or type(value) is bool:
        return value
    raise Malformed(f"parameters.{name} must be a string, a number, True or False, not {_type_name(value)}")


def _is_text(text: str) -> bool:
    """Whether every wire could carry it."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _type_name(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
