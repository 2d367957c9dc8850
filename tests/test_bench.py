"""The pieces of the benchmark, in a process of their own: its modules have names that tests use too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_pieces_of_the_benchmark_do_what_they_say() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "bench/test_pieces.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout[-4000:]
