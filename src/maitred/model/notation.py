"""What one tensor looks like, and the text notation that says so: `float32[n, 12] min=0 max=1 nullable`.

The notation is `dtype[sizes] options`:

- dtype: bool, uint8 to uint64, int8 to int64, float16, float32, float64, bfloat16, str, bytes, or the protocol's name
  (FP32, INT64, ...; BYTES is `bytes`).
- sizes, with commas between: whole numbers, or symbols (`n`, `seq`) for open ones. `[]` is a scalar.
- options, in any order: `optional`, `nullable`, `default=`, `min=`, `max=`, `pad=`, `buckets=`, `categories=`, `time=`,
  `zone=`, `nan=error|null|string`, `rtol=`, `atol=`, `labels=`. Values are JSON (`0.5`, `true`, `"text"`, `["a"]`);
  docs/signature.md says what each means.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from maitred.errors import Malformed
from maitred.messages import ITEM_BYTES, DType, Filled, Tensor
from maitred.wire import coerce
from maitred.wire.coerce import DATATYPES, DTYPES, FLOATS, NanPolicy
from maitred.wire.missing import NAT, valid_of
from maitred.wire.times import UNITS, Clock, TimeUnit

TOLERANCES: Final[Mapping[str, tuple[float, float]]] = {
    "float16": (1e-2, 1e-3), "bfloat16": (2e-2, 1e-2), "float32": (1e-5, 1e-6), "float64": (1e-9, 1e-12),
}  # fmt: skip
"""rtol and atol of float tensors that declare none; everything else is compared exactly."""

MAX_CATEGORIES: Final = 10_000

RESERVED_INPUTS: Final = frozenset({"columns"})
"""Input names that the plain route needs for itself."""


class BadSignature(ValueError):
    """A signature's notation is wrong; the message names the tensor, shows the text and says what is expected."""


@dataclass(frozen=True)
class TensorSpec:
    """What one input or output looks like."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    optional: bool = False
    """An input that may be left out: filled with `default`, or absent from the batch where there is none."""
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    nullable: bool = False
    """Elements may be missing: NaN for floats, NaT for times, masked elements for everything else."""
    nan: NanPolicy = "error"
    """What JSON shows for NaN and infinities; the same is read back."""
    pad: Any = None
    """What fills up ragged lists; None refuses them."""
    buckets: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Open sizes inside a row, each with the sizes that it is filled up to, ascending; the last one is the most."""
    categories: tuple[str, ...] | tuple[int, ...] | None = None
    """The values that an input of `str` or integers was fitted on; tabular libraries take others as missing."""
    time: TimeUnit | None = None
    """int64 only: the elements count these units since 1970, and the model sees `datetime64`."""
    zone: str | None = None
    """UTC where the times are moments; None where they are local times of a place that nobody states."""
    tolerance: tuple[float, float] = (-1.0, -1.0)
    """rtol and atol within which two runs of the model agree; -1 stands for the dtype's default."""
    labels: tuple[str, ...] | None = None
    """Names of the classes along an output's last axis, in the model's order."""

    def __post_init__(self) -> None:
        usual = TOLERANCES.get(self.dtype, (0.0, 0.0))
        own = tuple(usual[at] if part == -1 else part for at, part in enumerate(self.tolerance))
        object.__setattr__(self, "tolerance", own)

    @property
    def datatype(self) -> str:
        """The protocol's name of the dtype."""
        return DATATYPES[self.dtype]

    @property
    def clock(self) -> Clock | None:
        """How the elements count times; None where they are none."""
        return None if self.time is None else Clock(self.time, self.zone)

    @property
    def masked(self) -> bool:
        """Whether elements may be missing that no value of the dtype stands for: see `wire/missing.py`."""
        return self.nullable and self.dtype not in FLOATS and self.time is None

    @property
    def protocol_shape(self) -> list[int]:
        """The shape as metadata show it: -1 for every open size."""
        return [-1 if isinstance(size, str) else size for size in self.shape]

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape where the symbols have these sizes; KeyError for a symbol without one."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)

    def item_count(self, sizes: Mapping[str, int]) -> int:
        """Elements of a tensor whose symbols have these sizes; KeyError for a symbol without one."""
        return math.prod(self.sized(sizes))

    def to_text(self) -> str:
        """The notation that `parse` reads back."""
        return _written(self)


def shown(shape: Iterable[int | str]) -> str:
    """A shape as messages and the notation write it: `[n, 12]`."""
    return "[" + ", ".join(map(str, shape)) + "]"


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The range of a tensor's elements, in the values that its dtype really has. Missing ones are left out of it."""

    spec: TensorSpec
    low: Any
    high: Any
    code: str | None
    """The memoryview format of the elements; None where only numpy knows them."""
    few_bytes: int
    """Up to this size a loop is quicker than numpy."""

    @staticmethod
    def of(spec: TensorSpec) -> Bounds | None:
        """The bounds that a spec declares; None where each value of its dtype is allowed (int64's least is no time)."""
        if spec.minimum is None and spec.maximum is None and spec.time is None:
            return None
        least = -math.inf if spec.time is None else NAT + 1
        low = least if spec.minimum is None else max(least, _rounded(spec, spec.minimum))
        high = math.inf if spec.maximum is None else _rounded(spec, spec.maximum)
        return Bounds(spec, low, high, _VIEW_CODES.get(spec.dtype), 32 * ITEM_BYTES[spec.dtype])

    def check(self, tensor: Tensor) -> None:
        """Raise Malformed naming the place of an element that is out of range; NaN passes only where nullable."""
        data = tensor.data
        if self.code is not None and type(data) is bytes and len(data) <= self.few_bytes:
            low, high, nullable = self.low, self.high, self.spec.nullable
            for value in memoryview(data).cast(self.code):  # type: ignore[call-overload]
                if not low <= value <= high and not (nullable and value != value):
                    break  # what is missing is looked at more closely below
            else:
                return
        array = coerce.to_array(tensor)
        bad = np.zeros(array.shape, bool)
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
            if self.low != -math.inf:
                bad |= ~(array >= self.low)
            if self.high != math.inf:
                bad |= ~(array <= self.high)
            if self.spec.nullable:
                bad &= array != NAT if self.spec.time is not None else array == array
        if isinstance(tensor, Filled):
            bad &= tensor.real
        valid = valid_of(tensor)
        if valid is not None:
            bad &= np.frombuffer(valid, bool).reshape(bad.shape)
        if bad.any():
            place = "".join(f"[{at}]" for at in np.unravel_index(int(bad.argmax()), bad.shape))
            if self.spec.time is not None and array.reshape(-1)[int(bad.argmax())] == NAT:
                raise Malformed(
                    f"input {self.spec.name!r}: the missing value{' at data' + place if place else ''} is not allowed"
                )
            raise Malformed(
                f"input {self.spec.name!r}: the value{' at ' + place if place else ''} is outside the range "
                f"{self._shown()}"
            )

    def _shown(self) -> str:
        ends = (("min", self.spec.minimum), ("max", self.spec.maximum))
        return " ".join(f"{word}={json.dumps(end)}" for word, end in ends if end is not None)


_VIEW_CODES: Final = {
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "float32": "f", "float64": "d",
}  # fmt: skip


def _rounded(spec: TensorSpec, bound: float) -> Any:
    """A bound as an element of the dtype would hold it: a float32 of 0.1 must pass `max=0.1`."""
    if spec.dtype not in FLOATS:
        return bound
    return coerce.to_array(coerce.from_python(spec.name, spec.dtype, bound)).astype(np.float64).item()


# --- reading ----------------------------------------------------------------------------------------------------

_TENSOR: Final = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*)\s*\[([^\[\]]*)\]\s*(.*)", re.DOTALL)
_SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPTION: Final = re.compile(r"([a-z]+)(=?)")
_WORD: Final = re.compile(r"[a-z]*")
_JSON: Final = json.JSONDecoder()
_FIELDS: Final = {
    "default": "default", "min": "minimum", "max": "maximum", "pad": "pad", "labels": "labels", "rtol": "rtol",
    "atol": "atol", "buckets": "buckets", "categories": "categories", "time": "time", "zone": "zone",
}  # fmt: skip
_FORM: Final = 'expected dtype[sizes] options, such as "float32[n, 12] min=0"'
_KNOWN_OPTIONS: Final = (
    "optional, nullable, default=, min=, max=, pad=, buckets=, categories=, time=, zone=, nan=, rtol=, atol= or labels="
)


def parse(name: str, text: str, output: bool = False) -> TensorSpec:
    """The spec that a text notation stands for; raises BadSignature."""
    where = _where(name, text, output)
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise BadSignature(f"{where}: {_FORM}")
    word, sizes, rest = match.groups()
    dtype: Any = DTYPES.get(word, word)
    if dtype not in DATATYPES:
        raise BadSignature(f"{where}: unknown dtype {word!r}; expected one of {', '.join(DATATYPES)}")
    options = _options(where, rest)
    options["tolerance"] = (options.pop("rtol", -1.0), options.pop("atol", -1.0))
    return _valid(TensorSpec(name, dtype, _sizes(where, sizes), **options), where, output)


def checked_spec(name: str, spec: TensorSpec, output: bool = False) -> TensorSpec:
    """A spec made by hand, held to the rules of the notation; raises BadSignature."""
    where = f"{'output' if output else 'input'} {name!r}"
    if spec.dtype not in DATATYPES:
        raise BadSignature(f"{where}: unknown dtype {spec.dtype!r}; expected one of {', '.join(DATATYPES)}")
    for size in spec.shape:
        if not (type(size) is int and size >= 0) and not (isinstance(size, str) and _SYMBOL.fullmatch(size)):
            raise BadSignature(f"{where}: size {size!r} must be a whole number >= 0, or a symbol such as n")
    return _valid(replace(spec, name=name, shape=tuple(spec.shape)), where, output)


def _where(name: str, text: str, output: bool) -> str:
    return f"{'output' if output else 'input'} {name!r}: {text!r}"


def _sizes(where: str, text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        return ()
    sizes: list[int | str] = []
    for part in parts:
        if part.isascii() and part.isdigit() and len(part) < 19:
            sizes.append(int(part))
        elif _SYMBOL.fullmatch(part):
            sizes.append(part)
        else:
            raise BadSignature(f"{where}: size {part!r} must be a whole number, or a symbol such as n for an open size")
    return tuple(sizes)


def _options(where: str, text: str) -> dict[str, Any]:
    """The options as fields of TensorSpec (and `rtol`, `atol`)."""
    options: dict[str, Any] = {}
    at = 0
    while at < len(text):
        field, value, end = _option(where, text, at)
        if field in options:
            raise BadSignature(f"{where}: {field} is given twice")
        if end < len(text) and not text[end].isspace():
            raise BadSignature(f"{where}: cannot read {text[end:]!r}; options are parted by spaces")
        options[field] = value
        at = len(text) - len(text[end:].lstrip())
    for field in ("labels", "categories"):
        if isinstance(options.get(field), list):
            options[field] = tuple(options[field])
    if "default" in options:
        options["optional"] = True
    return options


def _option(where: str, text: str, at: int) -> tuple[str, Any, int]:
    """The option that begins at `at`: its field, its value, and where it ends."""
    match = _OPTION.match(text, at)
    key, equals = match.groups() if match is not None else ("", "")
    start = at + len(key) + len(equals)
    if key in ("optional", "nullable") and not equals:
        return key, True, start
    if key == "nan" and equals:
        word = _WORD.match(text, start)
        policy = word[0] if word is not None else ""
        return key, policy, start + len(policy)
    if key not in _FIELDS or not equals:
        raise BadSignature(f"{where}: cannot read {text[at:]!r}; expected {_KNOWN_OPTIONS}")
    try:
        value, end = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        raise BadSignature(
            f"{where}: {key}= needs a number, true, false, a string in double quotes, or a list of these"
        ) from None
    return _FIELDS[key], value, end


# --- rules ------------------------------------------------------------------------------------------------------


def _valid(spec: TensorSpec, where: str, output: bool) -> TensorSpec:
    """The spec with its default and pad in the dtype's terms; raises BadSignature where it contradicts itself."""
    _check_name(spec.name, output)
    if len(spec.shape) > coerce.MAX_DIMENSIONS:
        raise BadSignature(f"{where}: at most {coerce.MAX_DIMENSIONS} sizes are allowed")
    if math.prod(size or 1 for size in spec.shape if isinstance(size, int)) >= coerce.MAX_ELEMENTS:
        raise BadSignature(f"{where}: the sizes are too large")
    if spec.nan not in ("error", "null", "string"):
        raise BadSignature(f"{where}: nan= must be error, null or string")
    _check_side(spec, where, output)
    _check_numbers(spec, where)
    _check_categories(spec, where)
    _check_time(spec, where)
    spec = replace(spec, buckets=_buckets(spec, where))
    return replace(spec, default=_element(spec, where, "default"), pad=_element(spec, where, "pad"))


def _check_name(name: object, output: bool) -> None:
    side = "output" if output else "input"
    if not isinstance(name, str) or not name or len(name) > 256 or not name.isprintable():
        raise BadSignature(f"{side} name {str(name)[:80]!a} must be 1 to 256 printable characters")
    if name in RESERVED_INPUTS and not output:
        raise BadSignature(f"input name {name!r} is reserved for the plain route; use another one")


def _check_side(spec: TensorSpec, where: str, output: bool) -> None:
    """Options that make sense on the other side only."""
    given = {
        "optional": spec.optional, "default=": spec.default is not None, "min=": spec.minimum is not None,
        "max=": spec.maximum is not None, "pad=": spec.pad is not None, "buckets=": bool(spec.buckets),
        "categories=": spec.categories is not None, "nullable of floats": spec.nullable and spec.dtype in FLOATS,
    }  # fmt: skip
    for word, is_given in given.items():
        if output and is_given:
            raise BadSignature(f"{where}: {word} is for inputs only")
    labels: Any = spec.labels
    if labels is None:
        return
    if not output:
        raise BadSignature(f"{where}: labels= is for outputs only")
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        raise BadSignature(f'{where}: labels= must be a list of strings, such as labels=["no", "yes"]')
    if spec.shape and isinstance(spec.shape[-1], int) and len(spec.shape) > 1 and spec.shape[-1] != len(labels):
        raise BadSignature(f"{where}: {len(labels)} labels for a last size of {spec.shape[-1]}")


def _check_numbers(spec: TensorSpec, where: str) -> None:
    """Options that need a dtype of numbers, and their values."""
    floats = spec.dtype in FLOATS
    if not floats and spec.nan != "error":
        raise BadSignature(f"{where}: nan= needs a float dtype")
    if spec.nullable and spec.dtype == "bytes":
        raise BadSignature(f"{where}: nullable is not for bytes")
    for word, bound in (("min", spec.minimum), ("max", spec.maximum)):
        if bound is None:
            continue
        if spec.dtype in ("bool", "str", "bytes"):
            raise BadSignature(f"{where}: {word}= needs a dtype of numbers")
        if not _is_number(bound) or not (floats or isinstance(bound, int)):
            raise BadSignature(f"{where}: {word}= must be a {'number' if floats else 'whole number'}")
        _check_fits(spec, bound, f"{where}: {word}=")
    if spec.minimum is not None and spec.maximum is not None and spec.minimum > spec.maximum:
        raise BadSignature(f"{where}: min= is above max=")
    if not all(_is_number(part) and part >= 0 for part in spec.tolerance):
        raise BadSignature(f"{where}: rtol= and atol= must be numbers >= 0")


def _check_categories(spec: TensorSpec, where: str) -> None:
    given: Any = spec.categories
    if given is None:
        return
    kind = str if spec.dtype == "str" else int if spec.dtype in coerce.INTEGERS else None
    if kind is None:
        raise BadSignature(f"{where}: categories= needs a dtype of str or integers")
    if not isinstance(given, tuple) or not given or {type(value) for value in given} != {kind}:
        raise BadSignature(f'{where}: categories= must be a list of values, such as categories=["de", "se"]')
    if len(set(given)) != len(given) or len(given) > MAX_CATEGORIES:
        raise BadSignature(f"{where}: categories= must hold different values, at most {MAX_CATEGORIES}")
    for value in given:
        _check_fits(spec, value, f"{where}: categories=")


def _check_time(spec: TensorSpec, where: str) -> None:
    if spec.time is None:
        if spec.zone is not None:
            raise BadSignature(f"{where}: zone= needs time=")
        return
    if spec.time not in UNITS or spec.dtype != "int64":
        raise BadSignature(f'{where}: time= must be "s", "ms", "us" or "ns", of an int64')
    if spec.zone not in (None, "UTC"):
        raise BadSignature(f'{where}: zone= must be "UTC"; times of other zones are converted to it')


def _buckets(spec: TensorSpec, where: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The sizes of each open inner axis that has buckets: a list for the only such axis, or lists by symbol."""
    given: Any = spec.buckets
    if not given:
        return ()
    inner = list(dict.fromkeys(size for size in spec.shape[1:] if isinstance(size, str)))
    if isinstance(given, list):
        if len(inner) != 1:
            raise BadSignature(f'{where}: buckets= must say which size is meant, such as buckets={{"seq": [16, 64]}}')
        given = {inner[0]: given}
    try:
        pairs = tuple((str(symbol), tuple(sizes)) for symbol, sizes in dict(given).items())
    except (TypeError, ValueError):
        raise BadSignature(f"{where}: buckets= must be a list of sizes, such as [16, 64, 256]") from None
    for symbol, sizes in pairs:
        if symbol not in inner or symbol == spec.shape[0]:
            raise BadSignature(f"{where}: buckets= is for open sizes inside a row, which {symbol!r} is not")
        whole = all(type(size) is int and 0 < size < coerce.MAX_ELEMENTS for size in sizes)
        if not sizes or not whole or sorted(set(sizes)) != list(sizes):
            raise BadSignature(f"{where}: buckets= must be ascending whole numbers, such as [16, 64, 256]")
    if spec.pad is None:
        raise BadSignature(f"{where}: buckets= needs pad=, the value that rows are filled up with")
    return pairs


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _check_fits(spec: TensorSpec, value: Any, where: str) -> Tensor:
    try:
        return coerce.from_python(spec.name, spec.dtype, value)
    except Malformed:
        raise BadSignature(f"{where} must be a value of dtype {spec.dtype}") from None


def _element(spec: TensorSpec, where: str, field: str) -> Any:
    """A default or pad value, proved to be an element (a default: one that the input itself would accept)."""
    value = getattr(spec, field)
    if value is None:
        return None
    if isinstance(value, (list, tuple, dict)):
        raise BadSignature(f"{where}: {field}= must be a single value")
    if isinstance(value, np.generic):
        value = value.item()
    if spec.dtype == "bytes" and isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes) and not coerce.is_text(value):
        raise BadSignature(f"{where}: {field}= must be UTF-8, for a manifest is text")
    tensor = _check_fits(spec, value, f"{where}: {field}=")
    bounds = Bounds.of(spec)
    if field == "default" and bounds is not None:
        try:
            bounds.check(tensor)
        except Malformed:
            raise BadSignature(f"{where}: default= is outside min= and max=") from None
    return math.nan if value != value else value  # the one NaN object, so that equal specs compare equal


# --- writing ----------------------------------------------------------------------------------------------------


def _written(spec: TensorSpec) -> str:
    usual = TOLERANCES.get(spec.dtype, (0.0, 0.0))
    values = {
        "default": spec.default, "min": spec.minimum, "max": spec.maximum, "pad": spec.pad,
        "buckets": {symbol: list(sizes) for symbol, sizes in spec.buckets} or None,
        "categories": None if spec.categories is None else list(spec.categories),
        "time": spec.time, "zone": spec.zone,
        "rtol": spec.tolerance[0] if spec.tolerance[0] != usual[0] else None,
        "atol": spec.tolerance[1] if spec.tolerance[1] != usual[1] else None,
        "labels": None if spec.labels is None else list(spec.labels),
    }  # fmt: skip
    words = [f"{spec.dtype}{shown(spec.shape)}"]
    words += ["optional"] if spec.optional and spec.default is None else []
    words += ["nullable"] if spec.nullable else []
    words += [f"nan={spec.nan}"] if spec.nan != "error" else []
    words += [f"{key}={_literal(value)}" for key, value in values.items() if value is not None]
    return " ".join(words)


def _literal(value: Any) -> str:
    return json.dumps(value.decode() if isinstance(value, bytes) else value, ensure_ascii=False)
