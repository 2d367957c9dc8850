"""The same tensors over every wire, alone and as one batch: every bit of the answers compared."""

from __future__ import annotations

import asyncio
import json
import math
import random
import struct
from typing import Any

import ml_dtypes
import numpy as np

import maitred
from reliability.driver import MODELS, Answer, House
from reliability.models import TYPES

WIRE = {
    "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "str": "BYTES",
    "bytes": "BYTES",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip

TEXTS = [
    "",
    "a",
    "é ü 漢字",
    'quote " backslash \\ slash /',
    "tab\tnewline\n",
    "\u2028",
    "😀",
    "nul \x00 inside",
    "x" * 300,
]


def sample(dtype: str, rng: random.Random) -> Any:
    """One row of three values: edge values as often as random ones."""
    if dtype == "str":
        return np.array([rng.choice(TEXTS) for _ in range(3)], object)
    if dtype == "bytes":
        return np.array([rng.choice([b"", b"\x00\xff", text.encode(), rng.randbytes(5)]) for text in TEXTS[:3]], object)
    if dtype == "bool":
        return np.array([rng.random() < 0.5 for _ in range(3)])
    if "float" not in dtype:
        info = np.iinfo(dtype)
        return np.array(
            [rng.choice([info.min, info.max, 0, 1, rng.randint(info.min, info.max)]) for _ in range(3)], dtype
        )
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    edges = [0.0, -0.0, float(limits.max), float(limits.min), float(limits.tiny), float(limits.smallest_subnormal),
             math.inf, -math.inf, math.nan, 0.1, 1 / 3, float(limits.eps)]  # fmt: skip
    random_bits = np.frombuffer(rng.randbytes(kind.itemsize), kind)[0]
    finite = float(random_bits) if math.isfinite(float(random_bits)) else 1.5
    return np.array([rng.choice([*edges, finite]) for _ in range(3)], kind)


def raw(array: Any) -> bytes:
    """The elements as the binary extension writes them."""
    if array.dtype == object:
        parts = [item.encode() if isinstance(item, str) else item for item in array.ravel()]
        return b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return bytes(np.ascontiguousarray(array).tobytes())


def plain(array: Any) -> list[Any]:
    """The elements as JSON writes them; bytes have to be text there."""
    if array.dtype == object:
        return [item if isinstance(item, str) else item.decode() for item in array.ravel()]
    if array.dtype == bool or array.dtype.kind in "iu":
        return list(array.ravel().tolist())
    values = [float(value) for value in array.ravel()]
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return ["NaN" if value != value else names.get(value, value) for value in values]


def from_plain(dtype: str, data: list[Any], shape: list[int]) -> Any:
    """What `plain` wrote, as an array again."""
    if dtype in ("str", "bytes"):
        return np.array([x if dtype == "str" else x.encode() for x in data], object).reshape(shape)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values = [float(value.replace("Infinity", "inf")) if isinstance(value, str) else value for value in data]
    return np.array(values, kind).reshape(shape)


def same(left: Any, right: Any) -> bool:
    """Equal bits; any not-a-number equals any other, since text has one only."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype == object:
        return bool((left == right).all())
    a, b = np.ascontiguousarray(left), np.ascontiguousarray(right)
    if a.dtype.kind in "fV" or a.dtype == ml_dtypes.bfloat16:
        a, b = (np.where(np.isnan(x.astype(np.float64)), np.array(math.nan, x.dtype), x) for x in (a, b))
    return bool(a.tobytes() == b.tobytes())


async def over_json(house: House, nonce: list[int], arrays: dict[str, Any]) -> dict[str, Any]:
    inputs = [{"name": "nonce", "datatype": "INT64", "shape": [len(nonce)], "data": nonce}]
    inputs += [
        {"name": f"in_{t}", "datatype": WIRE[t], "shape": list(a.shape), "data": plain(a)} for t, a in arrays.items()
    ]
    answer = await house.client.infer("types", {"inputs": inputs})
    return _outputs(answer, b"")


async def over_binary(house: House, nonce: list[int], arrays: dict[str, Any]) -> dict[str, Any]:
    everything = {"nonce": np.array(nonce, np.int64), **{f"in_{t}": a for t, a in arrays.items()}}
    pieces = {name: raw(array) for name, array in everything.items()}
    types = {"nonce": "INT64", **{f"in_{t}": WIRE[t] for t in arrays}}
    head = json.dumps({
        "inputs": [
            {
                "name": name,
                "datatype": types[name],
                "shape": list(everything[name].shape),
                "parameters": {"binary_data_size": len(piece)},
            }
            for name, piece in pieces.items()
        ],
        "parameters": {"binary_data_output": True},
    }).encode()  # fmt: skip
    body = head + b"".join(pieces.values())
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    answer = await house.client.ask("POST", "/v2/models/types/infer", body, headers)
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    return _outputs(answer, answer.body[length:], answer.body[:length])


def _outputs(answer: Answer, tail: bytes, head: bytes | None = None) -> dict[str, Any]:
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {answer.body[:300]!r}")
    found, at = {}, 0
    for output in json.loads(head if head is not None else answer.body)["outputs"]:
        name = output["name"].removeprefix("out_")
        dtype = "int64" if name == "nonce" else name
        if "data" in output:
            found[name] = from_plain(dtype, output["data"], output["shape"])
            continue
        size = output["parameters"]["binary_data_size"]
        found[name] = from_raw(dtype, tail[at : at + size], output["shape"])
        at += size
    return found


def from_raw(dtype: str, data: bytes, shape: list[int]) -> Any:
    """What `raw` wrote, as an array again."""
    if dtype not in ("str", "bytes"):
        return np.frombuffer(data, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).reshape(shape)
    items, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        item = data[at + 4 : at + 4 + length]
        items.append(item.decode() if dtype == "str" else item)
        at += 4 + length
    return np.array(items, object).reshape(shape)


async def differences(house: House, rounds: int) -> tuple[list[str], int]:
    """What differs between JSON, binary and a direct call, for single rows and for the same rows as one batch."""
    rng, wrong, compared = random.Random(6), [], 0
    direct = await asyncio.to_thread(maitred.load, f"{MODELS}:EveryType")
    for turn in range(rounds):
        rows = rng.choice((1, 2, 5))
        chosen = rng.sample(TYPES, 5)
        arrays = {t: np.stack([sample(t, rng) for _ in range(rows)]) for t in chosen}
        nonce = [turn * 10 + row for row in range(rows)]
        given = {"nonce": np.array(nonce, np.int64), **{f"in_{t}": a for t, a in arrays.items()}}
        called = await asyncio.to_thread(direct.predict, given)
        answers = {
            "direct": {name.removeprefix("out_"): np.asarray(value) for name, value in called.items()},
            "JSON, one row each": await _row_by_row(house, nonce, arrays, over_json),
            "binary": await over_binary(house, nonce, arrays),
        }
        text = {t: a for t, a in arrays.items() if t != "bytes" or all(_is_text(item) for item in a.ravel())}
        if len(text) == len(arrays):
            answers["JSON"] = await over_json(house, nonce, arrays)
        else:
            del answers["JSON, one row each"]
        for wire, found in answers.items():
            for dtype, array in arrays.items():
                compared += 1
                if dtype not in found or not same(found[dtype], array):
                    wrong.append(f"{wire} {dtype}: {found.get(dtype)} for {array}".replace("\n", " "))
    return wrong, compared


async def _row_by_row(house: House, nonce: list[int], arrays: dict[str, Any], wire: Any) -> dict[str, Any]:
    """Each row as a request of its own, all at once, put together again."""
    if not all(_is_text(item) for item in arrays.get("bytes", np.array([], object)).ravel()):
        return {}
    rows = [{t: a[row : row + 1] for t, a in arrays.items()} for row in range(len(nonce))]
    parts = await asyncio.gather(*(wire(house, nonce[row : row + 1], rows[row]) for row in range(len(nonce))))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _is_text(item: bytes) -> bool:
    try:
        item.decode()
    except UnicodeDecodeError:
        return False
    return True
