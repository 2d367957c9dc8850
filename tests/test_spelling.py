"""Which name was meant: the closest one that is close, and nothing where looking would cost too much."""

from __future__ import annotations

import time
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.spelling import MAX_CHARACTERS, MAX_COMPARED, MAX_NAMES, did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("listn", ["listen", "admin_listen"], "listen"),
        ("irsi", ["double", "iris"], "iris"),
        ("ages", ["age", "country", "history"], "age"),
        ("Age", ["page", "age", "aged"], "age"),
        ("brest-cancr", ["breast_cancer", "iris"], "breast_cancer"),
        ("churn2", ["churn", "churn10"], "churn"),
        ("größe", ["GRÖSSE", "GRÖẞE"], "GRÖẞE"),
        ("x", ["y"], None),
        ("x1", ["x2"], None),
        ("input", ["output"], None),
        ("q", [], None),
        ("", ["a"], None),
        ("a", [""], None),
        ("", [""], None),
        ("\ud800\0age", ["\ud800\0ages"], "\ud800\0ages"),
    ],
)
def test_the_closest_name_is_found_where_one_is_close(name: str, known: list[str], meant: str | None) -> None:
    assert nearest(name, known) == meant


def test_the_end_of_a_message() -> None:
    assert did_you_mean("doubel", {"double": 1, "iris": 2}) == "; did you mean 'double'?"
    assert did_you_mean("zzz", {"double": 1}) == ""
    assert did_you_mean(5, {"5": 1}) == ""


NAMES = st.text("abcA_", max_size=8)


def in_common(one: str, other: str) -> int:
    """The longest common subsequence, by the book."""
    row = [0] * (len(other) + 1)
    for character in one:
        before = row
        row = [0]
        for at, found in enumerate(other):
            row.append(before[at] + 1 if character == found else max(before[at + 1], row[at]))
    return row[-1]


@given(NAMES, st.lists(NAMES, max_size=6))
def test_it_agrees_with_the_definition(name: str, known: list[str]) -> None:
    def ratio(other: str) -> float:
        return 2 * in_common(name.lower(), other.lower()) / ((len(name) + len(other)) or 1)

    found = nearest(name, known)
    best = max(map(ratio, known), default=0.0)
    assert (found is not None and ratio(found) == best) if best >= 0.7 and name else found is None


LONG = "ab" * (MAX_CHARACTERS // 2)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (LONG, [f"{LONG[:-3]}{number:03}" for number in range(MAX_NAMES)]),
        (LONG, [f"{LONG[:-3]}{number:03}" for number in range(MAX_COMPARED // MAX_CHARACTERS)]),
        ("feature_x", [f"feature_{number:02}" for number in range(MAX_COMPARED // 10)]),
        ("feat_x", [f"feat_{number:02}" for number in range(MAX_NAMES)]),
        ("x" * 1_000_000, ["x" * 100]),
        ("x", [f"x{number}" for number in range(100_000)]),
    ],
    ids=["long", "long_and_few", "like_features", "short", "huge", "very_many"],
)
def test_no_wrong_name_is_expensive(name: str, known: Collection[str]) -> None:
    """Bounded at 0.2 ms; the test allows for a slow and busy machine, where comparing all would take 10 ms and more."""
    took = []
    for _ in range(20):
        start = time.perf_counter()
        nearest(name, known)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.001


def test_beyond_the_bounds_nothing_is_compared() -> None:
    assert nearest("x" * (MAX_CHARACTERS + 1), ["x" * MAX_CHARACTERS]) is None
    assert nearest("name", ["names"] * (MAX_NAMES + 1)) is None
    assert nearest("name", [*["names"] * 5, *["long" * 200] * 90]) == "names", "only fitting lengths count"
    assert nearest("a" * 10, ["a" * 11] * (MAX_COMPARED // 11)) is not None
    assert nearest("a" * 10, ["a" * 11] * (MAX_COMPARED // 11 + 1)) is None
