"""Trust: who may let a model's own code run is the operator's to say, on the operator's side."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from maitred.model.refusals import LoadRefused, Untrusted
from maitred.model.trust import Trust, TrustStore, require

VERSION = "sha256:" + "a" * 64


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "home" / "trust.toml")


def test_a_decision_is_kept_with_who_why_and_when(store: TrustStore) -> None:
    assert store.find(VERSION) is None
    store.record(VERSION, Trust("ann", 'our own "training" run\n#17'))
    found = TrustStore(store.path).find(VERSION)
    assert found is not None
    assert (found.who, found.why) == ("ann", 'our own "training" run\n#17')
    assert found.at.startswith("20")
    assert TrustStore(store.path).find("sha256:" + "b" * 64) is None


def test_a_decision_can_be_taken_back(store: TrustStore) -> None:
    store.record(VERSION, Trust("ann", "ours"))
    store.forget(VERSION)
    assert store.find(VERSION) is None


def test_writers_at_the_same_time_lose_nothing(store: TrustStore) -> None:
    threads = [
        threading.Thread(target=store.record, args=(f"sha256:{number:064d}", Trust("ann", str(number))))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {trust.why for trust in store.all().values()} == {str(number) for number in range(20)}


def test_an_unreadable_record_is_an_error_and_no_permission(store: TrustStore) -> None:
    store.path.parent.mkdir()
    store.path.write_text("not toml at all [")
    with pytest.raises(LoadRefused, match=r"trust\.toml"):
        store.find(VERSION)


@pytest.mark.parametrize(
    ("text", "who", "why"),
    [("ann: our own run", "ann", "our own run"), ("  ann :x:y ", "ann", "x:y"), ("reviewed", None, "reviewed")],
)
def test_a_stated_reason_has_an_author(text: str, who: str | None, why: str) -> None:
    trust = Trust.stated(text)
    assert trust.why == why
    assert trust.who == who if who else trust.who


@pytest.mark.parametrize("text", ["", " ", "ann:", ": because", ":"])
def test_a_permission_without_reason_or_author_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="reason"):
        Trust.stated(text)


def test_data_needs_no_trust_and_code_needs_trust_and_a_process_of_its_own() -> None:
    trust = Trust("ann", "ours")
    require((), None, isolated=False)
    require(("the pickle m.pkl",), trust, isolated=True)
    with pytest.raises(Untrusted, match=r"the pickle m\.pkl.*--trust"):
        require(("the pickle m.pkl",), None, isolated=True)
    with pytest.raises(Untrusted, match="kind process"):
        require(("the pickle m.pkl",), trust, isolated=False)
