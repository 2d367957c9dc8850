"""Run as a program: inflates the same body five times, and prints what memory that took the process each time.

    python http_resident.py bomb|body THREADS

Each time it is done in so many threads, one after the other. A line has the most memory over what there was before,
what of that is left, and the sizes of the coded body and of the plain one, 0 if that was refused; in bytes.
"""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

from maitred.errors import TooLarge
from maitred.http.coding import Inflation

LIMIT = 16 << 20


def memory(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def inflate(source: bytearray, sum: int) -> int:
    inflation = Inflation(b"gzip", source, LIMIT)
    try:
        assert inflation.run()
    except TooLarge:
        return 0
    assert zlib.crc32(inflation.plain) == sum
    return len(inflation.plain)


def main(kind: str, threads: int) -> None:
    rng = random.Random(4)
    plain = bytes(100 << 20) if kind == "bomb" else b",".join(b"%.17f" % rng.random() for _ in range(400_000))
    source, sum = gzip.compress(plain), zlib.crc32(plain)
    del plain
    executors = [ThreadPoolExecutor(1) for _ in range(threads)]
    for executor in executors:
        executor.submit(inflate, bytearray(gzip.compress(b"small")), zlib.crc32(b"small")).result()
    for _ in range(5):
        sources = [bytearray(source) for _ in executors]
        before = memory("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins anew
        sizes = [executor.submit(inflate, sources.pop(), sum).result() for executor in executors]
        print(memory("VmHWM") - before, memory("VmRSS") - before, len(source), sizes[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
