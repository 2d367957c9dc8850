"""Whether an answer of status 2xx is right: JSON where it says so, what was expected, the same as last time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

_scan = msgspec.json.Decoder(msgspec.Raw).decode

MAX_KEPT_BYTES: Final = 64 << 20
"""Of first answers, to compare later ones with; where they take more, only some bodies' answers are compared."""


def not_json(body: bytes | bytearray) -> str:
    """Why a body is no valid JSON; empty where it is. Reads it without making anything of it."""
    try:
        _scan(body)
        if not body.isascii():
            body.decode()
    except msgspec.DecodeError as error:
        return f"no valid JSON: {error}"
    except UnicodeDecodeError:
        return "no valid JSON: not UTF-8"
    except RecursionError:
        return "no valid JSON: nested too deep to be read"
    return ""


def not_binary(body: bytes | bytearray, head_length: bytes) -> str:
    """Why a body is not JSON of that length with raw tensors behind it; empty where it is."""
    text = head_length.strip()
    if not text.isdigit() or len(text) > 15 or int(text) > len(body):
        return "Inference-Header-Content-Length does not fit the body"
    return not_json(body[: int(text)])


_NEAR: Final = 1e-5
"""How far numbers are apart that arithmetic in another order may make of the same input."""


class Compared:
    """Answers beside those that were expected, or beside the first one to the same body."""

    def __init__(self, expected: Sequence[bytes], same: bool, tolerance: float) -> None:
        """`expected`: for each body in turn (one stands for all); empty for none.

        `tolerance` is how far numbers may lie from each other, relative to the larger one or to 1.
        """
        self._expected = expected
        self._first: dict[int, bytes] | None = {} if same else None
        self._kept_bytes = 0
        self._tolerance = tolerance
        self.compared = 0

    def wrong(self, index: int, body: bytes) -> str:
        """What is wrong with the answer to the body of that index; empty if nothing is."""
        if self._expected:
            self.compared += 1
            found = self._differs(self._expected[index % len(self._expected)], body)
            if found:
                return f"not what was expected: {found}"
        if self._first is None:
            return ""
        first = self._first.get(index)
        if first is None:
            if self._kept_bytes + len(body) <= MAX_KEPT_BYTES:
                self._kept_bytes += len(body)
                self._first[index] = body
            return ""
        self.compared += 1
        found = self._differs(first, body)
        return f"not the answer that the same body got before: {found}" if found else ""

    def _differs(self, wanted: bytes, got: bytes) -> str:
        if wanted == got:
            return ""
        try:
            return difference(orjson.loads(wanted), orjson.loads(got), self._tolerance)
        except (orjson.JSONDecodeError, RecursionError):
            return f"{len(got)} bytes that differ from the {len(wanted)} wanted"


def difference(wanted: Any, got: Any, tolerance: float, place: str = "") -> str:
    """The first place where two JSON values differ; empty where none does. The top's `id` is not looked at.

    A server may give each answer an id of its own, which says nothing about what it answers.
    """
    here = place or "the answer"
    if isinstance(wanted, dict) and isinstance(got, dict):
        skipped = set() if place else {"id"}
        if wanted.keys() - skipped != got.keys() - skipped:
            return f"{here} has the keys {sorted(got)}, not {sorted(wanted)}"
        found = (difference(wanted[key], got[key], tolerance, f"{place}.{key}") for key in wanted if key not in skipped)
        return next(filter(None, found), "")
    if isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) != len(got):
            return f"{here} has {len(got)} elements, not {len(wanted)}"
        pairs = enumerate(zip(wanted, got, strict=True))
        return next(filter(None, (difference(a, b, tolerance, f"{place}[{at}]") for at, (a, b) in pairs)), "")
    if _number(wanted) and _number(got):
        if wanted == got or math.isclose(wanted, got, rel_tol=tolerance, abs_tol=tolerance):
            return ""
        near = math.isclose(wanted, got, rel_tol=_NEAR, abs_tol=_NEAR)
        return f"{here} is {got}, not {wanted}" + (f" (--tolerance {_NEAR:g} lets that pass)" if near else "")
    fine = type(wanted) is type(got) and wanted == got
    return "" if fine else f"{here} is {str(got)[:60]!r}, not {str(wanted)[:60]!r}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
