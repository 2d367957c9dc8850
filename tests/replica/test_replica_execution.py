"""What failures are called, and how much of them is logged."""

from __future__ import annotations

import logging

import pytest

from maitred.errors import ModelFault
from maitred.model.predictor import WrongCount
from maitred.replica.execution import FaultLog, failure, said


class OutOfMemoryError(RuntimeError):
    """As libraries of accelerators name theirs."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "cause", "message"),
    [
        (ValueError("bad"), "raised", "ValueError: bad"),
        (ValueError(), "raised", "ValueError"),
        (MemoryError(), "out_of_memory", "MemoryError"),
        (OutOfMemoryError("device"), "out_of_memory", "OutOfMemoryError: device"),
        (WrongCount(2, 3), "wrong_count", "the model was given 2 rows and returned 3"),
        (ModelFault("output 'y': no"), "raised", "output 'y': no"),
        (Mute(), "raised", "Mute: (ValueError while it was put into words)"),
    ],
)
def test_failures_have_names(error: Exception, cause: str, message: str) -> None:
    assert failure(error) == (cause, message)


def test_words_are_few() -> None:
    assert len(said(ValueError("x" * 10_000))) == 500


def test_the_log_keeps_back_what_is_too_much(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    faults = FaultLog("m", lambda: now)
    with caplog.at_level(logging.ERROR, "maitred.model"):
        for _ in range(20):
            faults.raised(ValueError("x"))
        assert len(caplog.records) == 5
        assert caplog.records[0].exc_info is not None
        now = 11.0
        faults.raised(ValueError("x"))
    assert "15 more failures" in caplog.records[5].getMessage()
    assert len(caplog.records) == 7
