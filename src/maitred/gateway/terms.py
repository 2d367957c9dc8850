"""What a caller says about a request besides its tensors: media type, deadline, lane, trace, parameters."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec

from maitred.errors import Malformed, UnsupportedMedia
from maitred.http.exchange import JSON
from maitred.messages import BACKGROUND, FOREVER, HIGH, NORMAL
from maitred.wire.binary import HEADER
from maitred.wire.json import shown
from maitred.wire.parameters import MAX_TEXT as MAX_TEXT
from maitred.wire.parameters import Scalar, check_count, checked, mark

WATCHED: Final = frozenset(
    (b"content-type", b"inference-header-content-length", b"maitred-timeout-ms", b"x-envoy-expected-rq-timeout-ms")
)
"""Headers that change what an infer route does."""

LABELS: Final = (b"x-request-id", b"traceparent")
"""Headers that it takes along."""
ONLY_REQUEST_ID: Final = 1
"""`Exchange.watched` where the first of them is the only one of all these."""

_MILLISECONDS: Final = re.compile(rb"\d{1,12}(\.\d{1,9})?")
_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MEDIA: Final = re.compile(r"\s*([\w.+-]+/[\w.+-]+|\*/\*)\s*((?:;[^;]*)*)\s*")
_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?([^\s\";]*)\"?", re.IGNORECASE)
_UTF8: Final = frozenset(("utf-8", "utf8", "us-ascii", "ascii"))


class Heads(msgspec.Struct, gc=False):
    """What the watched headers of one request say."""

    timeout_seconds: float = FOREVER
    trace: str = ""
    request_id: str = ""
    json_length: bytes | None = None
    """The value of Inference-Header-Content-Length."""


NO_HEADS: Final = Heads()
"""Not to be changed."""


def read_heads(headers: list[tuple[bytes, bytes]], raw: bool = False) -> Heads:
    """Raises Malformed for a deadline that is none, UnsupportedMedia for a body that is not JSON or binary tensors.

    `raw`: whether the body is taken as it is, so that its type is the model's business.
    """
    heads = Heads()
    media: list[bytes] = []
    for name, value in headers:
        if name == b"content-type":
            if value != JSON:
                media.append(value)
        elif name == b"inference-header-content-length":
            if heads.json_length is not None and heads.json_length != value:
                raise Malformed(f"{HEADER} was sent twice with different values")
            heads.json_length = value
        elif name == b"maitred-timeout-ms":
            heads.timeout_seconds = min(heads.timeout_seconds, _milliseconds("Maitred-Timeout-Ms", value))
        elif name == b"x-envoy-expected-rq-timeout-ms":
            if value.strip() != b"0":  # a proxy's way to say that it has no limit
                timeout = _milliseconds("x-envoy-expected-rq-timeout-ms", value)
                heads.timeout_seconds = min(heads.timeout_seconds, timeout)
        elif name == b"traceparent":
            if _TRACEPARENT.fullmatch(value):  # others are to be ignored, by the W3C's rule
                heads.trace = value.decode()
        elif name == b"x-request-id":
            heads.request_id = value[:128].decode("latin-1")
    for value in () if raw else media:
        check_media(value, heads.json_length is not None)
    return heads


def _milliseconds(name: str, value: bytes) -> float:
    text = value.strip()
    if not _MILLISECONDS.fullmatch(text) or float(text) == 0:
        raise Malformed(f"{name} must be a positive number of milliseconds, got {shown(value.decode('latin-1'))}")
    return float(text) / 1000.0


def is_raw(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the body is said to be neither JSON nor binary tensors, but a picture, a recording or plain bytes."""
    kinds = [value.strip().lower() for name, value in headers if name == b"content-type"]
    if len(kinds) != 1 or any(name == b"inference-header-content-length" for name, _ in headers):
        return False
    return kinds[0].startswith((b"image/", b"audio/", b"video/")) or kinds[0] == b"application/octet-stream"


def check_media(media: bytes, binary: bool) -> None:
    """Refuse a body that is not UTF-8 JSON, nor (with the header that says where JSON ends) binary tensors.

    Raises UnsupportedMedia, or Malformed for binary tensors without that header.
    """
    text = media.decode("latin-1")
    match = _MEDIA.fullmatch(text)
    kind = match[1].lower() if match else ""
    for charset in _CHARSET.findall(match[2]) if match else ():
        if charset.lower() not in _UTF8:
            raise UnsupportedMedia(f"charset {shown(charset)} is not spoken here; send UTF-8")
    if kind == "application/json":
        return
    if kind != "application/octet-stream":
        raise UnsupportedMedia(
            f"content type {shown(text)} is not spoken here; send application/json, or application/octet-stream with "
            f"{HEADER} for binary tensors"
        )
    if not binary:
        raise Malformed(f"application/octet-stream needs the header {HEADER}: the size of the JSON before the tensors")


# ---------------------------------------------------------------- V2 parameters

_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
_OURS: Final = frozenset(("binary_data_output", "timeout", "priority", *_SEQUENCE))


class Terms(msgspec.Struct, gc=False):
    """What the request's own parameters say."""

    timeout_seconds: float = FOREVER
    lane: int = NORMAL
    binary_data_output: bool = False
    custom: dict[str, Scalar] | None = None
    """For the model."""
    mark: Hashable = None
    """Equal where the custom parameters are equal in value and type."""


def read_parameters(parameters: Mapping[str, Any]) -> Terms:
    """Raises Malformed naming the parameter.

    `timeout`: microseconds; 0 is none. `priority`: 1 is the lane `high`, 0 and 2 `normal`, more `background`.
    """
    terms = Terms()
    check_count(parameters)
    timeout = parameters.get("timeout")
    if timeout is not None and _count("timeout", timeout):
        terms.timeout_seconds = timeout / 1e6
    priority = parameters.get("priority")
    if priority is not None:
        terms.lane = (NORMAL, HIGH, NORMAL, BACKGROUND)[min(_count("priority", priority), 3)]
    binary = parameters.get("binary_data_output", False)
    if type(binary) is not bool:
        raise Malformed("parameters.binary_data_output must be true or false")
    terms.binary_data_output = binary
    for name in _SEQUENCE:
        if parameters.get(name):
            raise Malformed(f"parameters.{name}: sequences are not supported; send the state with each request")
    custom = checked(parameters, _OURS)
    if custom:
        terms.custom = custom
        terms.mark = mark(custom)
    return terms


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise Malformed(f"parameters.{name} must be a whole number >= 0")
    return value


def check_id(id: str) -> str:
    """Raises Malformed for an id that is too long to be carried along, or holds NUL."""
    if len(id) > MAX_TEXT or "\0" in id:
        raise Malformed(f"id is longer than {MAX_TEXT} characters or holds NUL")
    return id
