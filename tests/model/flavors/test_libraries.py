"""A library that is missing is named with its extra, and one that objects is quoted without places and traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.model.flavors.libraries import needs, words_of
from maitred.model.refusals import MissingExtra


@pytest.mark.parametrize(
    ("extra", "told"),
    [(None, r"pip install 'maitred\[odd\]'"), ("more", r"pip install 'maitred\[more\]'"), ("", "pip install absent")],
)
def test_a_missing_library_is_named_with_what_brings_it(extra: str | None, told: str) -> None:
    with pytest.raises(MissingExtra, match=told), needs("odd", "absent", extra):
        import absent_library  # type: ignore[import-not-found]  # noqa: F401


def test_other_errors_of_an_import_pass_through() -> None:
    with pytest.raises(ValueError, match="mine"), needs("odd", "absent"):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[12:00:01] /workspace/src/learner.cc:42: Check failed: x\nStack trace:\n  [bt] (0) /lib/x.so",
            "Check failed: x",
        ),
        ("[12:00:01] /workspace/src/learner.cc:42: Check failed: x\n\nStack trace:\n  [bt]", "Check failed: x"),
        ("catboost/libs/model/model.cpp:1140: Incorrect model file", "Incorrect model file"),
        ("features.cpp has no line", "features.cpp has no line"),
        ("two\n\tlines", "two lines"),
        ("cannot read /somewhere/model/w.bin", "cannot read /w.bin"),
        ("", "ValueError"),
        ("x" * 9000, "x" * 500),
    ],
)
def test_a_library_is_quoted_without_its_places(said: str, told: str) -> None:
    assert words_of(ValueError(said), Path("/somewhere/model")) == told
