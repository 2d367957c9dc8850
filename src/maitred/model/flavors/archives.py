"""Zip archives that libraries save models in: refused where they would inflate to far more than they are."""

from __future__ import annotations

import zipfile
from typing import Final

from maitred.model.artifact import MAX_FILES
from maitred.model.refusals import CannotLoad

MAX_RATIO: Final = 100
FREE_BYTES: Final = 64 << 20
"""Archives that inflate to less are not judged by their ratio."""


def refuse_bomb(archive: zipfile.ZipFile, name: str) -> None:
    """Raises `CannotLoad` for too many members, more of them than the file has bytes for, or too much inside."""
    members = archive.infolist()
    inflated, kept = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    held = archive.fp.seek(0, 2) if archive.fp is not None else 0
    if len(members) > MAX_FILES or kept > held or inflated > max(MAX_RATIO * kept, FREE_BYTES):
        raise CannotLoad(f"{name} would inflate from {kept} to {inflated} bytes in {len(members)} files")
