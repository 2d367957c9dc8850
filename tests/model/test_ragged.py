"""Rows of different lengths: what they are filled up with, what they share, and that answers come back cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.messages import FOREVER, Filled, Outputs, Request, Result, Tensor
from maitred.model.notation import BadSignature, TensorSpec
from maitred.model.predictor import Context, ModelPredictor, call
from maitred.model.ragged import FREE_FILL_BYTES, MAX_BUCKETS, cut_back
from maitred.model.signature import SAME_GROUP, Checked, Signature
from maitred.pool.cut import cut
from maitred.wire.coerce import DATATYPES, NUMPY_TYPES, from_array, from_json, from_python, to_array
from maitred.wire.tensors import join

TEXTS = Signature(
    inputs={"ids": "int64[n, seq] min=0 pad=-1 buckets=[3, 8]", "mask": "int64[n, seq] default=1 pad=0"},
    outputs={"saw": "int64[n, seq]", "pairs": "float32[n, seq, seq]", "total": "int64[n]", "words": "str[n, seq]"},
)
PICTURES = Signature(
    inputs={"image": 'uint8[n, h, w, 2] pad=9 buckets={"h": [2, 4], "w": [3, 6]}', "size": "int32[n, 2] optional"},
    outputs={"saw": "uint8[n, h, w, 2]", "edge": "uint8[n, w]"},
)


class Reader:
    """Answers with what it saw; the sum of what is not masked does not depend on the fill."""

    signature = TEXTS

    def predict(self, batch: Any) -> dict[str, Any]:
        ids, mask = batch["ids"], batch["mask"]
        words = ids.astype(str).astype(object)
        pairs = (ids[:, :, None] * 100 + ids[:, None, :]).astype(np.float32)
        return {"saw": ids, "pairs": pairs, "total": (ids * mask).sum(axis=1), "words": words}


def ids(value: Any) -> Tensor:
    return from_python("ids", "int64", value, pad=-1)


def arrays(checked: Checked) -> dict[str, list[Any]]:
    return {name: to_array(tensor).tolist() for name, tensor in checked.inputs.items()}


def asked(checked: Checked) -> Request:
    return Request(checked.inputs, checked.rows, checked.group, FOREVER, ragged=checked.ragged)


def answered(signature: Signature, model: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """What each request of one batch is given, as a pool does it."""
    joined = join(requests, signature.shared)
    raw = call(ModelPredictor(model), {name: to_array(tensor) for name, tensor in joined.items()}, Context())
    tensors = {name: from_array(array) for name, array in raw.items()}
    outputs = Outputs(tensors, sum(request.rows for request in requests), 0.25)
    found, start = [], 0
    for request in requests:
        result = cut_back(Result(outputs, start, start + request.rows, len(requests) == 1, 0.5), request)
        assert (result.queue_seconds, result.batch.model_seconds) == (0.5, 0.25)
        assert result.batch.unwritten is outputs.unwritten
        found.append({name: to_array(tensor) for name, tensor in result.tensors().items()})
        start += request.rows
    return found


# --- what a signature may say -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"a": "int64[n, seq] pad=0 buckets=[4]", "b": "str[n, 2, seq]"},
            r"input 'b' needs pad=, the value that it is filled up with: its size seq has buckets \(said at",
        ),
        (
            {"a": "int64[n, seq] pad=0 buckets=[4]", "b": "int64[n, seq] pad=0 buckets=[4, 8]"},
            r"input 'b': seq has the buckets \[4, 8\], and \[4\] in input 'a'; say it once",
        ),
        ({"a": "int64[n]", "b": "int64[2, n] pad=0 buckets=[4]"}, "input 'b': buckets= is for sizes inside a row; n"),
        (
            {"a": f"int64[n, h, w] pad=0 buckets={{\"h\": {list(range(1, 18))}, \"w\": {list(range(1, 18))}}}"},
            f"the buckets of h, w make 289 shapes; at most {MAX_BUCKETS} are allowed",
        ),
    ],
)  # fmt: skip
def test_buckets_that_make_no_sense(inputs: dict[str, str], message: str) -> None:
    with pytest.raises(BadSignature, match=message):
        Signature(inputs, {"y": "float32[n]"})


def test_the_same_buckets_may_be_said_twice_and_are_written_down() -> None:
    signature = Signature(
        {"a": "int64[n, seq] pad=0 buckets=[4, 8]", "b": "bool[n, seq] pad=false buckets=[4, 8]"}, {"y": "float32[n]"}
    )
    assert signature.buckets is not None and signature.buckets.sizes == {"seq": (4, 8)}
    assert Signature.from_dict(signature.to_dict()) == signature


def test_specs_made_by_hand_have_buckets_too() -> None:
    spec = TensorSpec("a", "int64", ("n", "seq"), pad=0, buckets=(("seq", (4,)),))
    assert Signature({"a": spec}, {"y": "float32[n]"}).check({"a": ids([[1]])}).group == ((("seq", 4),), (), ())


def test_a_signature_without_buckets_is_not_touched() -> None:
    signature = Signature({"x": "int64[n, seq]"}, {"y": "int64[n, seq]"})
    given = ids([[1, 2]])
    checked = signature.check({"x": given})
    assert signature.buckets is None and checked.ragged is None
    assert checked.inputs["x"] is given and checked.group == ((("seq", 2),), (), ())


# --- filling up -------------------------------------------------------------------------------------------------


def test_a_row_is_filled_up_to_the_smallest_bucket_that_holds_it() -> None:
    short, exact, long = (TEXTS.check({"ids": ids([list(range(size))])}) for size in (2, 3, 4))
    assert arrays(short) == {"ids": [[0, 1, -1]], "mask": [[1, 1, 0]]}
    assert arrays(exact) == {"ids": [[0, 1, 2]], "mask": [[1, 1, 1]]}
    assert arrays(long) == {"ids": [[0, 1, 2, 3, -1, -1, -1, -1]], "mask": [[1, 1, 1, 1, 0, 0, 0, 0]]}
    assert short.group == exact.group != long.group
    assert [c.ragged and (c.ragged.bucket, c.ragged.real, c.ragged.elements) for c in (short, exact, long)] == [
        ("seq=3", 4, 6), ("seq=3", 6, 6), ("seq=8", 8, 16),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (0, 2), (0, 0)])
def test_sizes_of_zero(shape: tuple[int, int]) -> None:
    checked = TEXTS.check({"ids": from_array(np.zeros(shape, np.int64))})
    assert checked.rows == shape[0]
    assert to_array(checked.inputs["ids"]).tolist() == [[-1] * 3] * shape[0] if shape[1] == 0 else True
    assert checked.inputs["ids"].shape == checked.inputs["mask"].shape == (shape[0], 3)
    [answer] = answered(TEXTS, Reader(), [asked(checked)])
    assert answer["saw"].shape == shape and answer["pairs"].shape == (*shape, shape[1])


def test_what_is_longer_than_the_last_bucket_is_refused() -> None:
    with pytest.raises(Malformed, match=r"input 'ids': seq = 9 is more than this model takes: at most 8, got \[2, 9\]"):
        TEXTS.check({"ids": ids([[1] * 9] * 2)})
    with pytest.raises(Malformed, match="input 'image': w = 7 is more than this model takes: at most 6"):
        PICTURES.check({"image": from_array(np.zeros((1, 2, 7, 2), np.uint8))})


def test_two_sizes_are_filled_up_each_on_its_own() -> None:
    image = np.arange(2 * 1 * 4 * 2, dtype=np.uint8).reshape(2, 1, 4, 2)
    checked = PICTURES.check({"image": from_array(image)})
    whole = to_array(checked.inputs["image"])
    assert whole.shape == (2, 2, 6, 2)
    assert (whole[:, :1, :4] == image).all() and (whole[:, 1:] == 9).all() and (whole[:, :, 4:] == 9).all()
    assert checked.ragged is not None and checked.ragged.bucket == "h=2,w=6"
    assert (checked.ragged.real, checked.ragged.elements) == (16, 48)
    assert checked.ragged.cuts == {"saw": ((1, 1), (2, 4)), "edge": ((1, 4),)}


PADS = {"str": "☃", "bytes": "\0x", "bool": True, "bfloat16": 0.1, "float16": 0.1, "float32": math.nan}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", sorted(DATATYPES))
def test_every_dtype_to_the_last_bit(dtype: Any, rows: int) -> None:
    spec = TensorSpec("x", dtype, ("n", "seq", 2), pad=PADS.get(dtype, 1), buckets=(("seq", (4,)),))
    signature = Signature({"x": spec}, {"y": "int8[n]"})
    values = np.array([b"\0\1", b""] * 3 * rows if dtype == "bytes" else ["a", "ü"] * 3 * rows, object)
    if dtype not in ("str", "bytes"):
        values = np.array(np.arange(6 * rows) % 2, NUMPY_TYPES[dtype])
    given = from_array(values.reshape(rows, 3, 2))
    checked = signature.check({"x": Tensor(dtype, given.shape, given.data)})
    filled = to_array(checked.inputs["x"])
    pad = from_python("x", dtype, signature.inputs["x"].pad)
    wanted = np.full((rows, 4, 2), to_array(pad), NUMPY_TYPES[dtype])
    wanted[:, :3] = values.reshape(rows, 3, 2)
    assert checked.inputs["x"].dtype == dtype and filled.shape == (rows, 4, 2)
    same = filled.tolist() == wanted.tolist() if wanted.dtype == object else filled.tobytes() == wanted.tobytes()
    assert same


def test_inputs_that_a_batch_shares_are_filled_up_and_not_counted() -> None:
    signature = Signature(
        {"ids": "int64[n, seq] pad=0 buckets=[4]", "places": "int64[seq] pad=-1", "scale": "float32[]"},
        {"y": "int64[n, seq]"},
    )
    given = {"ids": ids([[1, 2], [3, 4]]), "places": ids([7, 8]), "scale": from_python("scale", "float32", 2.0)}
    checked = signature.check(given)
    assert arrays(checked)["places"] == [7, 8, -1, -1]
    assert checked.ragged is not None and (checked.ragged.real, checked.ragged.elements) == (4, 8)
    assert checked.group == signature.check(given).group


def test_a_model_that_is_not_row_wise_is_filled_up_all_the_same() -> None:
    signature = Signature({"x": "int64[n, seq] pad=0 buckets=[4]"}, {"sum": "int64[]", "saw": "int64[n, seq]"})

    class Summing:
        def predict(self, batch: Any) -> dict[str, Any]:
            return {"sum": batch["x"].sum(), "saw": batch["x"]}

    Summing.signature = signature  # type: ignore[attr-defined]
    checked = signature.check({"x": ids([[1, 2, 3], [4, 5, 6]])})
    assert (checked.rows, checked.group, checked.inputs["x"].shape) == (1, None, (2, 4))
    assert checked.ragged is not None and (checked.ragged.real, checked.ragged.elements) == (6, 8)
    [answer] = answered(signature, Summing(), [asked(checked)])
    assert (answer["sum"], answer["saw"].tolist()) == (21, [[1, 2, 3], [4, 5, 6]])


def test_where_no_input_with_the_size_is_there_nothing_is_filled_up() -> None:
    signature = Signature(
        {"x": "int64[n]", "history": "int64[n, past] optional pad=0 buckets=[2, 4]"}, {"y": "int64[n]"}
    )
    one = from_python("x", "int64", [1, 2])
    without = signature.check({"x": one})
    assert without.ragged is None and without.group == ((), ("history",), ())
    with_it = signature.check({"x": one, "history": ids([[1], [2]])})
    assert with_it.ragged is not None and with_it.ragged.bucket == "past=2"
    assert len({without.group, with_it.group, SAME_GROUP}) == 3


def test_few_rows_must_not_become_gigabytes() -> None:
    most = 8 * FREE_FILL_BYTES
    signature = Signature({"x": f"uint8[n, seq] pad=0 buckets=[{most}]"}, {"y": "int8[n]"})
    with pytest.raises(Malformed, match=r"input 'x': \[1, 1\] would be filled up to .* send fewer rows at once"):
        signature.check({"x": from_array(np.zeros((1, 1), np.uint8))})


# --- lists of different lengths in one request --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["python", "json"])
def test_ragged_lists_are_filled_up_counted_by_row_and_masked_by_default(how: str) -> None:
    text, values = b"[[5,6],[7],[],[8,9,1,2]]", [[5, 6], [7], [], [8, 9, 1, 2]]
    tensor = ids(values) if how == "python" else from_json("ids", "int64", None, text, pad=-1)
    assert isinstance(tensor, Filled)
    checked = TEXTS.check({"ids": tensor})
    assert arrays(checked)["ids"] == [row + [-1] * (8 - len(row)) for row in values]
    assert arrays(checked)["mask"] == [[1] * len(row) + [0] * (8 - len(row)) for row in values]
    assert checked.ragged is not None
    assert (checked.ragged.real, checked.ragged.elements, checked.ragged.by_row) == (14, 64, (4, 2, 0, 8))
    [answer] = answered(TEXTS, Reader(), [asked(checked)])
    assert answer["total"].tolist() == [11, 7, 0, 20] and answer["saw"].shape == (4, 4)


def test_a_default_is_masked_without_buckets_too() -> None:
    signature = Signature(
        {"x": "int64[n, seq] pad=0", "mask": "int64[n, seq] default=1 pad=0", "bias": "int64[n, seq] default=3"},
        {"y": "int64[n]"},
    )
    checked = signature.check({"x": ids([[1, 2], [3]])})
    assert arrays(checked)["mask"] == [[1, 1], [1, 0]] and arrays(checked)["bias"] == [[3, 3], [3, 3]]
    assert checked.ragged is None


def test_inputs_whose_rows_differ_in_length_must_agree() -> None:
    given = {"ids": ids([[1, 2, 3], [4]]), "mask": from_python("mask", "int64", [[1, 1, 1], [1, 1]], pad=0)}
    with pytest.raises(Malformed, match="input 'mask': row 1 has seq = 2, and 1 in input 'ids'"):
        TEXTS.check(given)
    filled_by_the_caller = {**given, "mask": from_python("mask", "int64", [[1, 1, 1], [1, 0, 0]])}
    assert arrays(TEXTS.check(filled_by_the_caller))["mask"] == [[1, 1, 1], [1, 0, 0]]


def test_ragged_pictures() -> None:
    nested = [[[[1, 1], [2, 2]], [[3, 3]]], [[[4, 4]]]]
    checked = PICTURES.check({"image": from_python("image", "uint8", nested, pad=9)})
    assert checked.ragged is not None and checked.ragged.by_row == (6, 2)
    whole = to_array(checked.inputs["image"])
    assert whole[0, 1, :2].tolist() == [[3, 3], [9, 9]] and whole[1, 0, :2].tolist() == [[4, 4], [9, 9]]


def test_the_fill_need_not_be_in_the_range_that_callers_must_keep() -> None:
    TEXTS.check({"ids": ids([[1, 2], [3]])})
    with pytest.raises(Malformed, match=r"input 'ids': the value at \[1\]\[0\] is outside the range min=0"):
        TEXTS.check({"ids": ids([[1, 2], [-3]])})


# --- whoever shares a batch ---------------------------------------------------------------------------------------


@st.composite
def payloads(draw: st.DrawFn) -> list[list[list[int]]]:
    """Requests of some rows each, of the same length or not."""
    number = st.integers(0, 99)
    sizes = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
    found = []
    for size, rows, uneven in sizes:
        row = st.lists(number, min_size=0 if uneven else size, max_size=size)
        found.append(draw(st.lists(row, min_size=rows, max_size=rows)))
    return found


def alone(rows: list[list[int]]) -> dict[str, Any]:
    """What rows get that never met anything else, without any of this file's subject."""
    longest = max(map(len, rows))
    filled = np.array([row + [-1] * (longest - len(row)) for row in rows], np.int64).reshape(len(rows), longest)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows]).reshape(len(rows), longest)
    return Reader().predict({"ids": filled, "mask": mask})


@given(payloads(), st.integers(1, 5))
def test_every_request_gets_what_its_own_rows_get_alone(requests: list[list[list[int]]], part_rows: int) -> None:
    checked = [TEXTS.check({"ids": ids(rows)}) for rows in requests]
    groups: dict[Any, list[int]] = {}
    for index, one in enumerate(checked):
        groups.setdefault(one.group, []).append(index)
    assert len(groups) <= 2, "there are as many shapes as buckets"
    for members in groups.values():
        asking = [asked(checked[index]) for index in members]
        for index, answer in zip(members, answered(TEXTS, Reader(), asking), strict=True):
            wanted = alone(requests[index])
            for name, array in wanted.items():
                assert answer[name].shape == array.shape and answer[name].tolist() == array.tolist()
        for request, index in zip(asking, members, strict=True):
            parts = cut(request, part_rows, TEXTS.shared)
            told = [part.ragged for part in parts if part.ragged is not None]
            assert request.ragged is not None and len(told) == len(parts)
            assert sum(part.real for part in told) == request.ragged.real == 2 * sum(map(len, requests[index]))
            assert sum(part.elements for part in told) == request.ragged.elements


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=5))
def test_pictures_of_all_sizes_come_back_as_they_went(sizes: list[tuple[int, int, int]]) -> None:
    class Looking:
        signature = PICTURES

        def predict(self, batch: Any) -> dict[str, Any]:
            return {"saw": batch["image"], "edge": batch["image"][:, 0, :, 0]}

    images = [np.arange(n * h * w * 2, dtype=np.uint8).reshape(n, h, w, 2) for n, h, w in sizes]
    checked = [PICTURES.check({"image": from_array(image)}) for image in images]
    for group in {one.group for one in checked}:
        members = [index for index, one in enumerate(checked) if one.group == group]
        answers = answered(PICTURES, Looking(), [asked(checked[index]) for index in members])
        for index, answer in zip(members, answers, strict=True):
            assert answer["saw"].shape == images[index].shape and answer["saw"].tolist() == images[index].tolist()
            if images[index].shape[1]:
                assert answer["edge"].tolist() == images[index][:, 0, :, 0].tolist()


def test_missing_elements_are_told_from_fill_and_fill_is_there() -> None:
    signature = Signature(
        {"x": "int64[n, seq] nullable pad=7 buckets=[4]", "t": 'int64[n, seq] time="s" pad=0'}, {"y": "int8[n]"}
    )

    class Seen:
        def predict(self, batch: Any) -> Any:
            self.batch = batch
            return {"y": np.zeros(len(batch["x"]), np.int8)}

    Seen.signature = signature  # type: ignore[attr-defined]
    tensor = from_json("x", "int64", None, b"[[1,null],[3]]", nullable=True, pad=7)
    checked = signature.check({"x": tensor, "t": from_python("t", "int64", [[1, 2], [3]], pad=0)})
    assert checked.ragged is not None and (checked.ragged.real, checked.ragged.elements) == (6, 16)
    assert {one.shape for one in checked.inputs.values()} == {(2, 4)}
    model = Seen()
    answered(signature, model, [asked(checked)])
    assert model.batch["x"].mask.tolist() == [[False, True, False, False], [False] * 4]
    assert model.batch["x"].filled(-1).tolist() == [[1, -1, 7, 7], [3, 7, 7, 7]]
    assert model.batch["t"].astype(np.int64).tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
