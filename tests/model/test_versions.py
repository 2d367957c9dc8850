"""Library versions: another major one is refused, another minor one is told, and both are named."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import pytest

from maitred.model.refusals import WrongVersions
from maitred.model.versions import Policy, compare, installed, record


@pytest.mark.parametrize(
    ("saved", "there", "policy", "outcome"),
    [
        ("1.5.0", "1.5.0", "refuse", "silent"),
        ("1.5.0", "1.5.9", "refuse", "silent"),
        ("1.5.0", "1.6.0", "refuse", "warned"),
        ("1.5", "1.5.0.post1", "refuse", "silent"),
        ("1.5.0", "2.0.0", "refuse", "refused"),
        ("2", "1.9", "refuse", "refused"),
        ("1.5.0", None, "refuse", "refused"),
        ("1.5.0", "2.0.0", "warn", "warned"),
        ("1.5.0", None, "warn", "warned"),
        ("1.5.0", "2.0.0", "ignore", "silent"),
        ("1.5.0", None, "ignore", "silent"),
        ("1.5+cpu", "1.5+cu124", "refuse", "silent"),
        ("2024.1", "2025.1", "refuse", "refused"),
    ],
)
def test_the_policy(saved: str, there: str | None, policy: Policy, outcome: str) -> None:
    if outcome == "refused":
        with pytest.raises(WrongVersions) as refused:
            compare({"lib": saved}, policy, lambda name: there)
        assert saved in refused.value.message
        assert (there or "none") in refused.value.message
        return
    warnings = compare({"lib": saved}, policy, lambda name: there)
    assert bool(warnings) == (outcome == "warned")
    for warning in warnings:
        assert saved in warning
        assert (there or "none") in warning


def test_python_and_what_is_installed_are_recorded() -> None:
    found = record(["numpy", "no-such-library"])
    assert found.keys() == {"python", "numpy"}
    assert found["python"] == platform.python_version()
    assert compare(found) == []


@pytest.mark.parametrize(
    ("there", "version"),
    [
        ({"xgboost": "3.2.0"}, "3.2.0"),
        ({"xgboost-cpu": "3.2.0"}, "3.2.0"),
        ({"xgboost": "3.2.0", "xgboost-cpu": "3.1.0"}, "3.2.0"),
        ({"xgboost-tools": "9.9"}, None),
        ({}, None),
    ],
)
def test_a_library_may_come_in_several_distributions(
    there: dict[str, str], version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", lookup)
    assert installed("xgboost") == version
    assert record(["xgboost"]).get("xgboost") == version
    if version is not None:
        assert compare({"xgboost": "3.2.0"}) == []
        return
    with pytest.raises(WrongVersions, match=r"xgboost 3\.2\.0, and none is installed"):
        compare({"xgboost": "3.2.0"})


@pytest.mark.parametrize("policy", ["refuse", "warn"])
def test_what_a_manifest_says_fits_on_one_line(policy: Any) -> None:
    """Names and versions are the artifact's own words, and come into logs."""
    saved = {"a\nERROR b": "1\x1b[31m\n2" + "9" * 100_000}
    try:
        (said,) = compare(saved, policy)
    except WrongVersions as refused:
        said = refused.message
    assert said.isprintable() and len(said) < 600
    assert r"a\nERROR b 1\x1b[31m\n2999" in said
