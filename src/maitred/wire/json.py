"""JSON bodies as callers send them: decoded, bounded in depth, without duplicate keys, refused by the field's name."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final, Literal, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt

from maitred.errors import Malformed
from maitred.wire.outline import Outline, address, outline
from maitred.wire.pieces import Pause, no_pause
from maitred.wire.row_pieces import RowScan
from maitred.wire.sizes import AT_ONCE_BYTES, ON_LOOP_BYTES

MAX_DEPTH: Final = 100
MAX_KEYS: Final = 250_000
"""Keys of a body of rows, each of which names its values; also its rows, for one without keys costs no less."""

MAX_ENTRIES: Final = 4096
"""Inputs or outputs of a V2 request."""

MAX_LONG_AROUND: Final = 1 << 22
"""Bytes of any V2 body without its long arrays of elements: they are read as a whole."""

MAX_AROUND: Final = 1 << 20
"""Bytes of a body without its tensors, where it has to be looked at closely."""

Body = bytes | bytearray


class InputEntry(msgspec.Struct, gc=False):
    """One input of a V2 request; its elements are left as they came."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: msgspec.Raw = msgspec.Raw()  # `Raw | None` would read every value as null
    parameters: dict[str, Any] | None = None


class OutputEntry(msgspec.Struct, gc=False):
    """One output that a V2 request asks for."""

    name: str
    parameters: dict[str, Any] | None = None


class Envelope(msgspec.Struct, gc=False):
    """A V2 infer request around its tensors."""

    inputs: list[InputEntry]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[OutputEntry] | None = None


_skip = msgspec.json.Decoder(msgspec.Raw).decode
_decode_envelope = msgspec.json.Decoder(Envelope).decode


@functools.lru_cache(256)
def flat_decoder(name: str, datatype: str, kind: type) -> Callable[[Body], Any]:
    """What decodes an envelope with exactly this input, whose data are a flat list of `kind`, in one go.

    It looks for neither depth nor duplicate keys: what it gives may be trusted where the body has as many colons as
    FLAT_KEYS says, and one more for an id. Raises for all else, which `decode` reads or refuses.
    """
    entry = msgspec.defstruct(
        "FlatEntry",
        [
            ("name", Literal[name]), ("datatype", Literal[datatype]),
            ("shape", tuple[int, ...]), ("data", list[kind]),  # type: ignore[valid-type]
            ("parameters", dict[str, Any] | None, None),
        ],
        gc=False,
    )  # fmt: skip
    flat = msgspec.defstruct(
        "FlatEnvelope",
        [
            ("inputs", tuple[entry]), ("id", str | None, None), ("parameters", dict[str, Any] | None, None),  # type: ignore[valid-type]
            ("outputs", list[OutputEntry] | None, None),
        ],
        gc=False,
    )  # fmt: skip
    return msgspec.json.Decoder(flat).decode


FLAT_KEYS: Final = 5
"""Keys of a request with one input and nothing else."""


def decode(body: Body) -> Envelope:
    """The envelope of a V2 infer request. Raises Malformed naming the field.

    Depth and duplicate keys are only looked for where the number of colons differs from that of the keys of a plain
    request: a key too many is a colon too many, so one scan for a byte is enough for nearly all. Elements are not
    looked at here.
    """
    try:
        envelope = _decode_envelope(body)
    except (msgspec.DecodeError, RecursionError) as error:
        refuse(error, body)
    _look_closely(envelope, body)
    return envelope


def decode_long(body: Any, pause: Pause) -> Envelope:
    """As `decode`, in pieces with a `pause` between them. Elements are views of the body, which may be any buffer."""
    document = Document(body, pause, b"data")
    found = document.outline
    if len(document.text) > MAX_LONG_AROUND:
        document.read(_skip)
        raise Malformed(f"fields that are not tensors take more than {MAX_LONG_AROUND} bytes: leave them out")
    if found is not None:
        envelope: Envelope = document.read(_decode_envelope)
        values = [document.value(entry.data) for entry in envelope.inputs]
        if found.all_claimed():
            _look_closely(envelope, found.around)
            for entry, value in zip(envelope.inputs, values, strict=True):
                entry.data = value
            return envelope
    return decode(bytes(body))  # short, or long where nobody expects it


def _look_closely(envelope: Envelope, body: Body) -> None:
    """Raises Malformed for depth and duplicate keys, where there may be any."""
    colons = body.count(b":")
    if colons != 4 * len(envelope.inputs) + (1 if envelope.id is None else 2) and colons != _keys(envelope):
        around = _around(body, envelope)
        check_depth(around)
        check_keys(around)


def _keys(envelope: Envelope) -> int:
    """How many keys the understood fields of a request have; -1 where values inside parameters may hide some."""
    if len(envelope.inputs) > MAX_ENTRIES or len(envelope.outputs or ()) > MAX_ENTRIES:
        raise Malformed(f"more than {MAX_ENTRIES} inputs or outputs")
    keys = 1 + 4 * len(envelope.inputs) + (envelope.id is not None) + (envelope.outputs is not None)
    owners: list[Any] = [envelope, *envelope.inputs, *(envelope.outputs or ())]
    for owner in owners:
        if owner.parameters is not None:
            keys += 1 + len(owner.parameters)
            if any(isinstance(value, (dict, list)) for value in owner.parameters.values()):
                return -1
    missing = sum(not entry.data for entry in envelope.inputs)
    return keys - missing + len(envelope.outputs or ())


def _around(body: Body, envelope: Envelope) -> bytes:
    """The body with 0 for each tensor's elements, so that looking at it closely has a price that is bounded."""
    view = memoryview(body)
    begin = address(body)
    pieces: list[Any] = []
    at = 0
    for entry in envelope.inputs:
        start = address(entry.data) - begin if entry.data else 0
        if at < start < len(body):  # elements are views of the body
            pieces += (view[at:start], b"0")
            at = start + len(memoryview(entry.data))
    return b"".join([*pieces, view[at:]])


class Document:
    """A body as readers of rows and columns take it: a long one without its long arrays, which were checked apart."""

    __slots__ = ("text", "outline", "pause", "colons", "_body")

    def __init__(self, body: Any, pause: Pause = no_pause, key: bytes | None = None) -> None:
        """`body`: any buffer. Long ones are looked through in pieces, with a `pause` between them. `key`: of the only
        arrays that are apart."""
        self._body = body
        self.pause = pause
        self.colons = -1
        """How many keys the text has, where that is known."""
        self.outline = outline(body, pause, key) if len(body) > AT_ONCE_BYTES else None
        self.text: Body = body
        """What readers take; those of its fields that they use they pass through `value`."""
        if self.outline is not None:
            self.text = self.outline.around
        elif not isinstance(body, (bytes, bytearray)):
            self.text = bytes(body)

    def value(self, raw: Any) -> Any:
        """The text of a field."""
        return raw if self.outline is None else self.outline.value(raw)

    def check_count(self, understood: int) -> None:
        """As the function of that name, of the text."""
        if self.colons < 0:
            check_count(self.text, understood)
        elif self.colons != understood:
            check_keys(self.text)

    def read(self, way: Callable[[Body], Any]) -> Any:
        """What `way` makes of the text. Raises Malformed just as for the whole body."""
        found = self.outline
        broken = found.broken(self.pause) if found is not None else None
        text, since, behind = broken or (self.text, 0, 0)
        try:
            value = way(text)
        except (msgspec.DecodeError, RecursionError) as error:
            if found is None:
                refuse(error, self.text)
            if not isinstance(error, msgspec.ValidationError):
                self._refuse(error, text, found, since if broken else len(text) + 1, behind)
        else:
            if broken is None:
                return value
        whole = bytes(self._body)  # a mark may be called by another name than what it stands for
        try:
            return way(whole)
        except (msgspec.DecodeError, RecursionError) as error:
            refuse(error, whole)

    def _refuse(self, error: Exception, text: Body, found: Outline, since: int, behind: int) -> NoReturn:
        def moved(byte: int) -> int:
            return byte + behind if byte >= since else found.place(byte)

        refuse(error, text, "", moved, memoryview(self._body))


class Reader:
    """Decodes bodies of one type, with the same limits and the same refusals as `decode`."""

    __slots__ = ("_decode",)

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, body: Body) -> Any:
        """Raises Malformed. Duplicate keys are the caller's to find: see `check_count`."""
        return self.of(Document(body))

    def of(self, document: Document) -> Any:
        """The same of a document, whose long arrays are still to be had from it."""
        body = document.text
        for character, things in ((b":", "keys"), (b"{", "rows")):
            if body.count(character) > MAX_KEYS and count_outside_strings(body, character) > MAX_KEYS:
                raise _too_many(things)
        value = document.read(self._decode)
        check_depth(body)
        return value

    def rows(self, document: Document) -> Any:
        """As `of`, of a document that is a list of rows: a long one is read some rows at a time."""
        if document.outline is not None or len(document.text) <= ON_LOOP_BYTES:
            return self.of(document)
        scan = RowScan(memoryview(document.text), document.pause)
        for count, things in ((scan.colons, "keys"), (scan.braces, "rows")):
            if count > MAX_KEYS:
                raise _too_many(things)
        rows = scan.rows(self._decode, document.pause)
        if rows is None:
            return self.of(document)
        if scan.deepest > MAX_DEPTH:
            raise Malformed(f"the body is nested deeper than {MAX_DEPTH} levels")
        document.colons = scan.colons
        return rows

    def part(self, value: msgspec.Raw, field: str) -> Any:
        """The same for the value of a field, inside a body that was read already. Raises Malformed naming the field."""
        try:
            return self._decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            refuse(error, bytes(value), field)


def _too_many(things: str) -> Malformed:
    return Malformed(f"the body has more than {MAX_KEYS} {things}; send columns, or fewer rows at once")


# ---------------------------------------------------------------- limits


def check_depth(body: Body) -> None:
    """Refuse valid JSON nested deeper than MAX_DEPTH. Linear in the body, without recursion; raises Malformed."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    characters = outside_strings(body)
    depth = 0
    for at in range(0, len(characters), _BLOCK):
        depths = np.cumsum(_STEPS[characters[at : at + _BLOCK]], dtype=np.int32)
        if depth + depths.max(initial=0) > MAX_DEPTH:
            raise Malformed(f"the body is nested deeper than {MAX_DEPTH} levels")
        depth += int(depths[-1])


def check_keys(body: Body) -> None:
    """Refuse valid JSON in which an object has one key twice, or which is longer than MAX_AROUND. Raises Malformed."""
    if len(body) > MAX_AROUND:
        raise Malformed(
            f"a key occurs twice, or fields that are not tensors take more than {MAX_AROUND} bytes: leave them out"
        )
    try:
        json.loads(body, object_pairs_hook=_unique, parse_int=float, parse_constant=_no_constant)
    except ValueError:  # undecodable text, in a field that nobody reads
        raise Malformed("the body is not valid UTF-8 JSON") from None


def check_count(body: Body, understood: int) -> None:
    """Refuse valid JSON with more keys than the `understood` ones: some came twice, or a value holds an object."""
    if body.count(b":") != understood and count_outside_strings(body, b":") != understood:
        check_keys(body)


def count_outside_strings(body: Body, character: bytes) -> int:
    """How often one ASCII character occurs in valid JSON where it is not part of a string."""
    return int(np.count_nonzero(outside_strings(body) == ord(character)))


def outside_strings(body: Body) -> npt.NDArray[np.uint8]:
    """The characters of valid JSON that are not part of strings, but for the quotes that end them."""
    if b'"' not in body:
        return np.frombuffer(body, np.uint8)
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    characters = np.frombuffer(body, np.uint8)
    quotes = np.cumsum(characters == ord('"'), dtype=np.uint8)  # may wrap: that keeps odd and even apart
    outside: npt.NDArray[np.uint8] = characters[quotes & 1 == 0]
    return outside


def _table(values: dict[bytes, int], kind: Any) -> npt.NDArray[Any]:
    table = np.zeros(256, kind)
    for character, value in values.items():
        table[ord(character)] = value
    return table


_STEPS: Final = _table({b"[": 1, b"{": 1, b"]": -1, b"}": -1}, np.int8)
_BLOCK: Final = 1 << 16
"""Characters looked at together, so that what is made of them stays small and near."""


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise Malformed(f"the key {shown(key)} occurs twice in one object")
        seen.add(key)


def _no_constant(token: str) -> NoReturn:
    raise ValueError(token)


# ---------------------------------------------------------------- refusals

_PLACE: Final = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.DOTALL)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_KEY: Final = re.compile(rb'"([^"\\]{1,64})"\s*:')
_LONE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def refuse(
    error: Exception, body: Body, field: str = "", moved: Callable[[int], int] | None = None, whole: Any = None
) -> NoReturn:
    """Raise Malformed for what a decoder said, naming the place (inside `field`) as well as it can be known.

    Where the decoder saw a part only, `moved` tells the places of that in the `whole`.
    """
    if isinstance(error, RecursionError):
        raise Malformed(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    if isinstance(error, msgspec.ValidationError):
        match = _PLACE.match(str(error))
        said, place = (match[1], match[2]) if match else (str(error), "")
        said = said[:1].lower() + said[1:].replace("`", "")
        place = field + ("." if field and place and place[0] != "[" else "") + (place or "")
        raise Malformed(f"{place or 'the body'}: {said}") from None
    text = str(error).removeprefix("JSON is malformed: ")
    byte = _BYTE.search(text)
    end = int(byte[1]) if byte else len(body if whole is None else whole)
    if byte and moved is not None:
        end = moved(end)
        text = _BYTE.sub(f"(byte {end})", text)
    if not body.strip():
        raise Malformed("the body is empty; it must be a JSON object") from None
    if b"\\u" in body and _LONE.search(body):
        text = "a string holds a lone surrogate escape"
    elif text == "Input data was truncated":
        text = "it ends too early"
    before = max(0, end - 4096)
    keys = _KEY.findall(body, before, end) if whole is None else _KEY.findall(bytes(whole[before:end]))
    near = f", in or after {shown(keys[-1].decode('utf-8', 'replace'))}" if keys else ""
    raise Malformed(f"the body is not valid JSON: {text}{near}") from None


def shown(text: str) -> str:
    """What a caller sent, quoted for a message: escaped, and bounded in length."""
    return ascii(text if len(text) <= 128 else text[:125] + "...")
