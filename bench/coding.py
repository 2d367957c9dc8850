"""What reading and writing tensors as JSON costs, by dtype, size and way: the table behind `maitred/wire/sizes.py`.

CPU time of this process, the least of several runs: nanoseconds an element. A way that cannot do a dtype, or whose
values differ from the tensor's, is shown as such. The columns with a name in brackets are what maitred uses.
"""

from __future__ import annotations

import argparse
import importlib
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import orjson

from maitred.messages import Tensor
from maitred.wire import json_pieces, pieces
from maitred.wire.coerce import from_json, is_long, rows_in_pieces, rows_json, to_raw
from maitred.wire.pieces import no_pause
from maitred.wire.sizes import PIECE_BYTES

SIZES = [4, 64, 1024, 4096, 65_536, 1_000_000, 15_000_000]
DTYPES = ["float32", "float64", "int64", "bool", "str"]
CODES = {"float32": "f", "float64": "d", "int64": "q", "bool": "?"}
PIECES = [1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 20]


def values(dtype: str, count: int) -> Any:
    random = np.random.default_rng(count)
    if dtype == "int64":
        return random.integers(-(2**63), 2**63 - 1, count)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype == "str":
        return [f"text {number}" for number in range(count)]
    return random.standard_normal(count).astype(dtype)


def text_of(array: Any) -> bytes:
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def least(way: Callable[[], Any], seconds: float) -> float:
    """CPU seconds of one call."""
    best, spent = float("inf"), 0.0
    calls = 1
    while spent < seconds or best == float("inf"):
        started = time.process_time()
        for _ in range(calls):
            way()
        took = time.process_time() - started
        if took < 1e-3:  # too short for the clock
            calls *= 4
            continue
        best, spent = min(best, took / calls), spent + took
    return best


# ---------------------------------------------------------------- ways in


def typed(dtype: str, text: bytes, count: int) -> Any:
    kind = {"bool": bool, "str": str, "int64": int}.get(dtype, float)
    decode = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]
    if dtype == "str":
        return lambda: decode(text)
    pack = struct.Struct(f"<{count}{CODES[dtype]}").pack
    return lambda: pack(*decode(text))


def loaded(dtype: str, text: bytes, count: int) -> Any:
    if dtype == "str":
        return lambda: orjson.loads(text)
    return lambda: np.array(orjson.loads(text), dtype).tobytes()


def from_text(dtype: str, text: bytes, count: int) -> Any:
    if dtype in ("bool", "str"):
        return None
    return lambda: np.fromstring(text[1:-1].decode(), dtype, sep=",").tobytes()


def simd(dtype: str, text: bytes, count: int) -> Any:
    try:
        parser: Any = importlib.import_module("simdjson").Parser()
    except ImportError:
        return None
    if dtype not in ("float32", "float64", "int64"):
        return None
    kind, wide = ("i", np.int64) if dtype == "int64" else ("d", np.float64)
    return lambda: np.frombuffer(parser.parse(text).as_buffer(of_type=kind), wide).astype(dtype).tobytes()


def ours(dtype: str, text: bytes, count: int) -> Any:
    def way() -> Any:
        data = from_json("x", dtype, (count,), text).data  # type: ignore[arg-type]
        return data if isinstance(data, list) else bytes(data)

    return way


IN = {"msgspec": typed, "orjson": loaded, "numpy": from_text, "simdjson": simd, "[from_json]": ours}

# ---------------------------------------------------------------- ways out


def tensor_of(dtype: str, array: Any) -> Tensor:
    return Tensor(dtype, (1, len(array)), array)  # type: ignore[arg-type]


def listed(dtype: str, array: Any) -> Any:
    return lambda: orjson.dumps(array if isinstance(array, list) else array.tolist())


def as_numpy(dtype: str, array: Any) -> Any:
    return None if isinstance(array, list) else lambda: text_of(array)


def encoded(dtype: str, array: Any) -> Any:
    encode = msgspec.json.Encoder().encode
    return lambda: encode(array if isinstance(array, list) else array.tolist())


def written(dtype: str, array: Any) -> Any:
    tensor = tensor_of(dtype, array)
    if is_long(tensor):
        return lambda: rows_in_pieces(tensor, "error", None, None, no_pause)
    return lambda: rows_json(tensor)


OUT = {"msgspec": encoded, "orjson list": listed, "orjson numpy": as_numpy, "[rows]": written}


def row(name: str, cells: list[str]) -> None:
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def nanoseconds(way: Any, count: int, wanted: Any, seconds: float) -> str:
    if way is None:
        return "–"
    try:
        found = way()
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        return type(error).__name__
    if wanted is not None and found != wanted:
        return "differs"
    return f"{least(way, seconds) / count * 1e9:.1f}"


def table(dtypes: list[str], most: int, seconds: float) -> None:
    print("\n## In: ns an element\n")
    row("dtype, elements", list(IN))
    row("---", ["---"] * len(IN))
    for dtype in dtypes:
        for count in (size for size in SIZES if size <= most):
            array = values(dtype, count)
            text = text_of(array)
            wanted = array if isinstance(array, list) else bytes(to_raw(tensor_of(dtype, array)))
            row(
                f"{dtype} {count:,}",
                [nanoseconds(way(dtype, text, count), count, wanted, seconds) for way in IN.values()],
            )
    print("\n## Out: ns an element\n")
    row("dtype, elements", list(OUT))
    row("---", ["---"] * len(OUT))
    for dtype in dtypes:
        for count in (size for size in SIZES if size <= most):
            array = values(dtype, count)
            cells = [nanoseconds(way(dtype, array), count, None, seconds) for way in OUT.values()]
            row(f"{dtype} {count:,}", cells)


def set_piece(size: int) -> None:
    for room in (pieces, json_pieces):
        vars(room)["PIECE_BYTES"] = size


def piece_sizes(seconds: float) -> None:
    print("\n## One million elements in pieces of other sizes: ns an element\n")
    row("dtype", [f"{size >> 10} KiB" for size in PIECES])
    row("---", ["---"] * len(PIECES))
    for dtype in DTYPES:
        text = text_of(values(dtype, 1_000_000))
        cells = []
        for size in PIECES:
            set_piece(size)
            cells.append(nanoseconds(ours(dtype, text, 1_000_000), 1_000_000, None, seconds))
        set_piece(PIECE_BYTES)
        row(dtype, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--most", type=int, default=SIZES[-1], help="elements of the largest tensor")
    parser.add_argument("--seconds", type=float, default=0.2, help="CPU time of one cell")
    options = parser.parse_args()
    table(options.dtypes.split(","), options.most, options.seconds)
    piece_sizes(options.seconds)


if __name__ == "__main__":
    main()
