"""Pickles are read, never run: what they would import is listed."""

from __future__ import annotations

import collections
import pickle
import zlib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.model.pickles import imports


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_imports_are_listed_and_nothing_runs(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps([Payload(marker), collections.OrderedDict()], protocol))
    found = imports(path)
    assert any(name.startswith("pathlib") for name in found)
    assert "collections.OrderedDict" in found
    assert not marker.exists()


@pytest.mark.parametrize("compress", [0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
def test_joblib_files_are_looked_into(compress: Any, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    joblib.dump({"payload": Payload(marker), "weights": np.arange(1000)}, tmp_path / "m.joblib", compress=compress)
    assert any(name.startswith("pathlib") for name in imports(tmp_path / "m.joblib"))
    assert not marker.exists()


def test_a_bomb_is_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pkl"
    path.write_bytes(zlib.compress(b"N" * (32 << 20), 1))
    assert imports(path) == ()


@given(st.binary(max_size=200))
def test_nonsense_lists_nothing_or_something_and_never_fails(data: bytes) -> None:
    path = Path(f"/tmp/maitred-nonsense-{id(data)}")
    path.write_bytes(data)
    try:
        imports(path)
    finally:
        path.unlink()
