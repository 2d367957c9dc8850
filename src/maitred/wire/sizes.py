"""From which size on JSON is read and written in another way: one table, measured by `bench/coding.py`."""

from __future__ import annotations

from typing import Final

# Measured 2026-12-01 by `make bench-coding`: msgspec 0.23, orjson 3.13, numpy 2.4, Python 3.11, AMD EPYC.

MAX_FLAT: Final = 1 << 16
"""Body up to which elements may be read by one typed call, before anything is known of their number: 4 float32 take 38
ns each that way, and 120 by way of the envelope and `from_json`."""

AT_ONCE_BYTES: Final = 1 << 16
"""Text of one tensor up to which it is decoded by one call. A million float64 take 51 ns each at once and 39 in pieces,
whose Python numbers fit the cache; 4,096 (80 KB) take 30 and 35: the price of counting them first."""

PIECE_BYTES: Final = 1 << 17
"""Text that one call of a decoder sees of anything longer: 0.3 ms during which no other thread gets a turn. Of 16 KiB
to 256 KiB none is better than another: 36 to 38 ns for each of a million float64."""

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
