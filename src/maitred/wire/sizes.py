"""From which size on JSON is read and written in another way: one table, measured by `bench/coding.py`."""

from __future__ import annotations

from typing import Final

# Measured 2026-12-01 with msgspec 0.21 and orjson 3.11 and newer, Python 3.11, one core at 2.5 to 3 GHz.

AT_ONCE_BYTES: Final = 1 << 16
"""Text of one tensor up to which it is decoded by one call. Pieces of 64 to 256 KiB take 0.7 of the time of a whole of
megabytes, whose Python numbers no longer fit the cache; below 64 KiB there is nothing to gain."""

PIECE_BYTES: Final = 1 << 17
"""Text that one call of a decoder sees of anything longer: about 0.3 ms during which no other thread gets a turn."""

LEFT_OUT_BYTES: Final = 1 << 9
"""Array that is left out of the outline of a long body: thousands of them cost less than the body's own pieces."""

ON_LOOP_BYTES: Final = 1 << 20
"""Body up to which JSON is decoded on the event loop: 2 to 3 ms. Handing over to a thread and back costs 0.1 ms, and
waits for the other bodies there."""

ON_LOOP_ELEMENTS: Final = 1 << 16
"""Numbers of a batch's output, or texts, up to which it is encoded on the event loop: 1 to 3 ms."""

ON_LOOP_CHARACTERS: Final = 1 << 20
"""Characters of all texts of a batch's output up to which it is encoded on the event loop."""

PIECE_ELEMENTS: Final = 1 << 14
"""Numbers, or texts, that one call of the encoder sees of anything longer: about 0.3 ms."""
