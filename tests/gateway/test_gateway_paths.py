"""Paths: escapes undone once, one slash at the end, colons however they are written, nothing else."""

from __future__ import annotations

import pytest

from maitred.errors import MaitredError, Malformed, Unknown
from maitred.gateway.paths import Asked, parse


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (b"/v2", Asked("v2", "server")),
        (b"/v2/", Asked("v2", "server")),
        (b"/v2/health/live", Asked("v2", "live")),
        (b"/v2/health/ready/", Asked("v2", "ready")),
        (b"/v2/models", Asked("v2", "models")),
        (b"/v2/repository/index", Asked("v2", "index")),
        (b"/v2/repository/models/m/load", Asked("v2", "load", "m")),
        (b"/v2/repository/models/m/unload", Asked("v2", "unload", "m")),
        (b"/v2/models/m", Asked("v2", "metadata", "m")),
        (b"/v2/models/m/ready", Asked("v2", "ready", "m")),
        (b"/v2/models/m/infer", Asked("v2", "infer", "m")),
        (b"/v2/models/m/infer/", Asked("v2", "infer", "m")),
        (b"/v2/models/m/config", Asked("v2", "config", "m")),
        (b"/v2/models/m/versions/3", Asked("v2", "metadata", "m", "3")),
        (b"/v2/models/m/versions/3/infer", Asked("v2", "infer", "m", "3")),
        (b"/v2/models/m/versions/3/ready", Asked("v2", "ready", "m", "3")),
        (b"/%762/models/%6D/infe%72", Asked("v2", "infer", "m")),
        (b"/v2/models/a%2Fb/infer", Asked("v2", "infer", "a/b")),
        (b"/v2/models/a%252Fb/infer", Asked("v2", "infer", "a%2Fb")),
        (b"/v2/models/caf%C3%A9/infer", Asked("v2", "infer", "café")),
        ("/v2/models/café/infer".encode(), Asked("v2", "infer", "café")),
        (b"/v1/models", Asked("v1", "models")),
        (b"/v1/models/m", Asked("v1", "status", "m")),
        (b"/v1/models/m:predict", Asked("v1", "predict", "m")),
        (b"/v1/models/m%3Apredict", Asked("v1", "predict", "m")),
        (b"/v1/models/m%3apredict/", Asked("v1", "predict", "m")),
        (b"/v1/models/m/versions/2", Asked("v1", "status", "m", "2")),
        (b"/v1/models/m/versions/2:predict", Asked("v1", "predict", "m", "2")),
        (b"/predict/m", Asked("predict", "predict", "m")),
        (b"/predict/m/", Asked("predict", "predict", "m")),
        (b"/", None),
        (b"/docs", None),
        (b"/openapi.json", None),
        (b"/metrics", None),
        (b"/v3/models", None),
        (b"//", None),
    ],
)
def test_routes(path: bytes, asked: Asked | None) -> None:
    assert parse(path) == asked


@pytest.mark.parametrize(
    "path",
    [
        b"/v2//models/m",
        b"/v2/models//infer",
        b"/v2/models/m//",
        b"/v2/models/m/infer//",
        b"/v2/health",
        b"/v2/health/fine",
        b"/v2/models/m/infer/more",
        b"/v2/models/m/versions/1/infer/more",
        b"/v2/repository",
        b"/v2/repository/models/m",
        b"/v2/repository/models/m/reload",
        b"/v1",
        b"/v1/models/m/predict",
        b"/v1/models/m/versions",
        b"/predict",
        b"/predict/a/b",
        b"/predict/:predict",
        b"/predict/:",
        b"/v1/models/:predict",
        b"/v1/models/%3Apredict",
        b"/v1/models/:",
        b"/v1/models/:load",
        b"/v2/" + b"x" * 5000,
    ],
)
def test_what_is_no_route(path: bytes) -> None:
    with pytest.raises(Unknown):
        parse(path)


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (b"/v1/models/m:classify", "classify"),
        (b"/v1/models/m%3Aexplain", "explain"),
        (b"/v1/models/m:", "''"),
        (b"/v1/models/m/versions/1:regress", "regress"),
        (b"/v2/models/m:predict", "predict"),
        (b"/v2/models/m:predict/infer", "predict"),
        (b"/v2/models/m/generate", "generate"),
        (b"/predict/m:explain", "explain"),
    ],
)
def test_an_unknown_action_is_named(path: bytes, action: str) -> None:
    with pytest.raises(Unknown, match=f"no action '?{action}"):
        parse(path)


@pytest.mark.parametrize("path", [b"/v2/models/%", b"/v2/models/%zz/infer", b"/v2/models/%ff/infer", b"/v2/\xc0\xaf"])
def test_escapes_that_are_none(path: bytes) -> None:
    with pytest.raises(Malformed):
        parse(path)


def test_strange_paths_are_refused_and_shown_harmlessly() -> None:
    parts = [*".. . %2e%2e %252e %00 \\ %5c.. C: ~ %0a%0d %1b[31m %e0%80%af".split(), "a" * 3000, " "]
    for prefix in ("/v2/models/", "/v1/models/", "/predict/", "/v2/repository/models/"):
        for first in parts:
            for second in (*parts, "", "infer", "load"):
                try:
                    parse(f"{prefix}{first}/{second}".encode())
                except MaitredError as error:
                    assert error.http_status in (400, 404)
                    assert error.message.isprintable()
                    assert len(error.message) < 300
