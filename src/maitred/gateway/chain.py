"""Who asks: a caller's identity, the tenant that pays for it, and the lanes it may use."""

from __future__ import annotations

from typing import Final

import msgspec

from maitred.errors import Forbidden
from maitred.messages import LANES


class Identity(msgspec.Struct, frozen=True, gc=False):
    tenant: str = ""
    lanes: frozenset[int] = frozenset(range(len(LANES)))

    def allow(self, lane: int) -> int:
        """`lane`, where this caller may use it. Raises Forbidden."""
        if lane not in self.lanes:
            raise Forbidden(f"this caller may not use the lane '{LANES[lane]}'")
        return lane


ANONYMOUS: Final = Identity()
"""Every caller, as long as there are no keys: nobody in particular, with all lanes."""
