"""Missing elements and times: what models see of them, what travels, and what models may give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse

from maitred.errors import Malformed, ModelFault
from maitred.messages import Filled, Tensor
from maitred.model.asking import question, tensor_given
from maitred.model.forms import fitted, parted, tensors_of, travelling, validity, whole, whole_tensor
from maitred.model.notation import BadSignature, TensorSpec
from maitred.model.predictor import Context, Traits, WrongCount, call
from maitred.model.signature import SAME_GROUP, Signature
from maitred.wire.coerce import from_json, from_raw, to_array
from maitred.wire.missing import NAT, Partial, companion

EVERY = {
    "i": "int64[n] nullable",
    "b": "bool[n, 2] nullable",
    "s": "str[n] nullable",
    "t": 'int64[n] time="ms" zone="UTC" nullable',
}
ROWS: dict[str, Any] = {
    "i": [2**63 - 1, None, 0],
    "b": [[True, None], [False, False], [None, None]],
    "s": ["a\0", None, ""],
    "t": ["2026-01-01T00:00:00Z", None, 0],
}


class Echo:
    """Gives back what it saw; remembers it."""

    def __init__(self, signature: Signature, **traits: Any) -> None:
        self.signature = signature
        self.traits = Traits(**traits)
        self.seen: list[dict[str, Any]] = []

    def predict(self, inputs: dict[str, Any], context: Context) -> Any:
        self.seen.append(dict(inputs))
        return dict(inputs)


def asked(signature: Signature, rows: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a request, as they travel."""
    request = question(signature, Traits(), rows, {}, None, None, None)
    return {name: to_array(tensor) for name, tensor in request.inputs.items()}


def lists(signature: Signature, arrays: dict[str, Any]) -> dict[str, Any]:
    seen = whole(signature.special_outputs, arrays)
    return {name: array.tolist() for name, array in seen.items()}


# --- what travels -----------------------------------------------------------------------------------------------


def test_missing_elements_travel_beside_the_values() -> None:
    signature = Signature(EVERY, {"y": "float32[n]"})
    arrays = asked(signature, ROWS)
    assert list(arrays) == ["i", companion("i"), "b", companion("b"), "s", companion("s"), "t"]
    assert arrays["i"].tolist() == [2**63 - 1, 0, 0] and arrays[companion("i")].tolist() == [True, False, True]
    assert arrays["s"].tolist() == ["a\0", "", ""] and arrays[companion("s")].tolist() == [True, False, True]
    assert arrays["t"].tolist() == [1_767_225_600_000, NAT, 0]


def test_the_group_does_not_depend_on_what_is_missing() -> None:
    signature = Signature(EVERY, {"y": "float32[n]"})
    all_there: dict[str, Any] = {"i": [1], "b": [[True, True]], "s": ["a"], "t": [0]}
    some_not: dict[str, Any] = {"i": [None], "b": [[None, True]], "s": [None], "t": [None]}
    requests = [question(signature, Traits(), rows, {}, None, None, None) for rows in (all_there, some_not)]
    assert requests[0].group == requests[1].group == SAME_GROUP
    assert list(requests[0].inputs) == list(requests[1].inputs)


def test_a_shared_input_groups_by_what_is_missing_too() -> None:
    signature = Signature({"x": "int64[n]", "limit": "int64[] nullable"}, {"y": "float32[n]"})
    assert signature.shared == {"limit", companion("limit")}
    groups = [question(signature, Traits(), {"x": [1], "limit": v}, {}, None, None, None).group for v in (0, None, 0)]
    assert groups[0] == groups[2] != groups[1]


def test_nobody_can_name_the_tensor_of_what_is_there() -> None:
    signature = Signature({"x": "int64[n] nullable"}, {"y": "float32[n]"})
    tensors = {"x": Tensor("int64", (1,), bytes(8)), companion("x"): Tensor("bool", (1,), b"\0")}
    with pytest.raises(Malformed, match="unknown input"):
        signature.check(tensors)
    with pytest.raises(BadSignature):
        Signature({companion("x"): "bool[n]"}, {"y": "float32[n]"})


def test_ranges_leave_out_what_is_missing() -> None:
    signature = Signature({"x": "int64[n] min=5 nullable"}, {"y": "float32[n]"})
    assert asked(signature, {"x": [None, 5]})["x"].tolist() == [0, 5]
    for rows in ([None, 4], list(range(4, 100))):
        with pytest.raises(Malformed, match="outside the range min=5"):
            asked(signature, {"x": rows})


def test_the_least_count_is_no_time() -> None:
    for text, fine in (('int64[n] time="s"', False), ('int64[n] time="s" nullable', True)):
        signature = Signature({"t": text}, {"y": "float32[n]"})
        for data in (NAT.to_bytes(8, "little", signed=True), bytes(800) + NAT.to_bytes(8, "little", signed=True)):
            tensor = from_raw("t", "int64", (len(data) // 8,), data)
            if fine:
                assert signature.check({"t": tensor}).rows == len(data) // 8
            else:
                with pytest.raises(Malformed, match=r"the missing value at data\[\d+\] is not allowed"):
                    signature.check({"t": tensor})


def test_times_have_ranges() -> None:
    signature = Signature({"t": 'int64[n] time="s" min=0 max=9 nullable'}, {"y": "float32[n]"})
    assert asked(signature, {"t": [0, 9, None]})["t"].tolist() == [0, 9, NAT]
    with pytest.raises(Malformed, match="outside the range"):
        asked(signature, {"t": ["1969-12-31"]})


# --- what a model sees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutates", [False, True])
def test_a_model_sees_masked_arrays_and_times(mutates: bool) -> None:
    echo = Echo(Signature(EVERY, EVERY), mutates_inputs=mutates)
    answer = call(echo, asked(echo.signature, ROWS), Context())
    [seen] = echo.seen
    assert list(seen) == list(EVERY)
    assert isinstance(seen["i"], np.ma.MaskedArray) and seen["i"].mask.tolist() == [False, True, False]
    assert isinstance(seen["b"], np.ma.MaskedArray) and seen["b"].dtype == bool
    assert seen["s"].dtype == object and seen["s"].tolist() == ["a\0", None, ""]
    assert seen["t"].dtype == "M8[ms]" and np.isnat(seen["t"]).tolist() == [False, True, False]
    assert all(array.flags.writeable == mutates for array in seen.values())
    times = np.array(["2026-01-01", "NaT", 0], "M8[ms]").tolist()
    assert lists(echo.signature, answer) == {**ROWS, "t": times}


def test_a_mask_is_always_an_array_of_the_shape() -> None:
    echo = Echo(Signature({"i": "int64[n] nullable"}, {"i": "int64[n] nullable"}))
    call(echo, asked(echo.signature, {"i": [1, 2]}), Context())
    call(echo, {"i": np.array([1, 2])}, Context())  # nothing says what is there
    assert [seen["i"].mask.tolist() for seen in echo.seen] == [[False, False]] * 2


def test_read_only_arrays_refuse_to_be_written() -> None:
    class Writer(Echo):
        def predict(self, inputs: dict[str, Any], context: Context) -> Any:
            inputs["i"][0] = 9
            return inputs

    signature = Signature({"i": "int64[n] nullable"}, {"i": "int64[n] nullable"})
    arrays = asked(signature, {"i": [1, None]})
    with pytest.raises(ValueError, match="read-only"):
        call(Writer(signature), arrays, Context())
    changed = call(Writer(signature, mutates_inputs=True), arrays, Context())
    assert lists(signature, changed) == {"i": [9, None]} and arrays["i"].tolist() == [1, 0]


def test_padding_to_a_fixed_batch_repeats_what_is_missing() -> None:
    echo = Echo(Signature(EVERY, EVERY), fixed_batch=(4,))
    answer = call(echo, asked(echo.signature, ROWS), Context())
    [seen] = echo.seen
    assert seen["b"].mask[3].all() and seen["i"].tolist() == [2**63 - 1, None, 0, 0]
    assert lists(echo.signature, answer)["s"] == ROWS["s"]


def test_zero_rows_are_answered_without_the_model() -> None:
    echo = Echo(Signature(EVERY, EVERY))
    empty: dict[str, Any] = {name: [] for name in EVERY} | {"b": np.empty((0, 2), bool)}
    answer = call(echo, asked(echo.signature, empty), Context())
    assert not echo.seen and list(answer) == list(travelling(echo.signature.outputs))
    assert lists(echo.signature, answer) == {name: [] for name in EVERY}


def test_wanted_outputs_come_with_what_says_what_is_missing() -> None:
    echo = Echo(Signature(EVERY, EVERY))
    answer = call(echo, asked(echo.signature, ROWS), Context(outputs=("t", "s")))
    assert list(answer) == ["t", "s", companion("s")]
    assert echo.signature.carried(("t", "s")) == ("t", "s", companion("s"))
    assert set(echo.signature.carried(None)) == {*EVERY, *map(companion, "ibs")}


# --- what a model may give back ---------------------------------------------------------------------------------

BIG = 2**62 + 1


def settled(kind: str, raw: Any) -> Any:
    """What callers see of an output `y` of three rows that a model gave as `raw`."""
    signature = Signature({"x": "int64[n]"}, {"y": kind})

    class Giver(Echo):
        def predict(self, inputs: dict[str, Any], context: Context) -> Any:
            return raw

    answer = call(Giver(signature), {"x": np.arange(3)}, Context())
    assert all(array.flags.c_contiguous for array in answer.values())
    [seen] = lists(signature, answer).values()
    return seen


GIVEN: list[tuple[str, Any, list[Any]]] = [
    ("int64[n] nullable", {"y": [BIG, None, 3]}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": np.array([BIG, None, 3], object)}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": np.ma.array([BIG, 2, 3], mask=[0, 1, 0])}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": pd.array([BIG, None, 3], "Int64")}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": pd.Series([BIG, None, 3], dtype="Int64")}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": pa.array([BIG, None, 3])}, [BIG, None, 3]),
    ("int64[n] nullable", {"y": pd.Series([1, None, 3], dtype="Int8")}, [1, None, 3]),
    ("int64[n] nullable", {"y": np.array([1, 2, 3])}, [1, 2, 3]),
    ("int64[n] nullable", pd.DataFrame({"y": pd.array([BIG, None, 3], "Int64")}), [BIG, None, 3]),
    ("int64[n] nullable", pa.table({"y": [BIG, None, 3]}), [BIG, None, 3]),
    ("int64[n] nullable", [{"y": BIG}, {"y": None}, {"y": 3}], [BIG, None, 3]),
    ("int8[n] nullable", {"y": [1, pd.NA, 3]}, [1, None, 3]),
    ("bool[n] nullable", {"y": [True, None, False]}, [True, None, False]),
    ("bool[n] nullable", {"y": pd.Series([True, None, False], dtype="boolean")}, [True, None, False]),
    ("bool[n] nullable", {"y": pa.array([True, None, False])}, [True, None, False]),
    ("str[n] nullable", {"y": ["a\0", None, ""]}, ["a\0", None, ""]),
    ("str[n] nullable", {"y": pd.Series(["a", None, "b"])}, ["a", None, "b"]),
    ("str[n] nullable", {"y": pd.Series(["a", None, "b"], dtype="string")}, ["a", None, "b"]),
    ("str[n] nullable", {"y": pd.Series(["a", None, "a"], dtype="category")}, ["a", None, "a"]),
    ("str[n] nullable", {"y": pa.array(["a", None, "b"]).dictionary_encode()}, ["a", None, "b"]),
    ("str[n]", {"y": pd.Categorical(["b", "a", "b"])}, ["b", "a", "b"]),
    ("int64[n]", {"y": pd.Categorical([30, 10, 30])}, [30, 10, 30]),
    ("int64[n]", {"y": pd.Series([1, 2, 3], dtype="Int64")}, [1, 2, 3]),
    ("float32[n, 2]", {"y": scipy.sparse.csr_array(np.eye(3, 2, dtype=np.float32))}, [[1, 0], [0, 1], [0, 0]]),
    ("float32[n, 2]", scipy.sparse.coo_matrix(np.eye(3, 2)), [[1, 0], [0, 1], [0, 0]]),
    ("float64[n]", {"y": pd.Series([0.5, 1, 2], dtype="Float64")}, [0.5, 1.0, 2.0]),
    ("bytes[n]", {"y": pa.array([b"a\0", b"", b"\xff"])}, [b"a\0", b"", b"\xff"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "raw", "wanted"), GIVEN)
def test_what_a_model_may_return(kind: str, raw: Any, wanted: list[Any]) -> None:
    assert settled(kind, raw) == wanted


@pytest.mark.parametrize(("kind", "raw"), [(kind, raw) for kind, raw, wanted in GIVEN if None in wanted])
def test_missing_elements_need_a_nullable_output(kind: str, raw: Any) -> None:
    with pytest.raises(ModelFault, match=r"output 'y': the model returned a missing value at \[1\], and the signature"):
        settled(kind.removesuffix(" nullable"), raw)


@pytest.mark.parametrize(
    "raw",
    [
        [0.5, None, 1.0], np.ma.array([0.5, 9, 1], mask=[0, 1, 0]), pd.Series([0.5, None, 1], dtype="Float64"),
        pa.array([0.5, None, 1.0]), pd.Series([0.5, None, 1.0]), np.array([0.5, None, 1.0], object),
    ],
    ids=lambda raw: type(raw).__name__,
)  # fmt: skip
def test_missing_floats_become_nan(raw: Any) -> None:
    assert np.array_equal(settled("float32[n]", {"y": raw}), [0.5, np.nan, 1.0], equal_nan=True)


TIMES = np.array(["2026-01-01", "2026-01-01T00:00:00.500", 0], "M8[ms]")
ZONED = pd.DatetimeIndex(["2026-01-01 09:00", "2026-01-01 09:00:00.5", "1970-01-01 09:00"], tz="Asia/Tokyo")


@pytest.mark.parametrize(
    "raw",
    [
        TIMES, TIMES.astype("M8[ns]"), TIMES.astype(">M8[us]"), TIMES.view(np.int64), TIMES.tolist(), pd.Series(TIMES),
        ZONED, pd.Series(ZONED), pa.array(ZONED), TIMES.astype(object), list(ZONED.to_pydatetime()),
        ["2026-01-01T00:00:00Z", "2026-01-01T05:30:00.5+05:30", 0],
    ],
    ids=lambda raw: type(raw).__name__,
)  # fmt: skip
def test_times_that_a_model_may_return(raw: Any) -> None:
    assert settled('int64[n] time="ms" zone="UTC"', {"y": raw}) == TIMES.tolist()


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        ('int64[n] time="s"', TIMES, "finer than s"),
        ('int64[n] time="ms"', ZONED, "times with a zone; the signature says no zone="),
        ('int64[n] time="ms"', [None, 1, 2], r"missing value at \[0\]"),
        ('int64[n] time="ms"', np.array(["NaT"] * 3, "M8[ms]"), r"missing value at \[0\]"),
        ('int64[n] time="ms"', np.array([0, NAT, 1]), r"missing value at \[1\]"),
        ('int64[n] time="ms"', [0.5, 1.5, 2.5], "no time: float"),
        ('int64[n] time="ms"', np.array([0.5, 1.5, 2.5]), "expected int64, the model returned float64"),
        ('int64[n] time="ns"', np.array([2**60] * 3, "M8[s]"), "does not fit"),
        ("int64[n]", TIMES, r"expected int64, the model returned datetime64\[ms\]"),
        ("int64[n] nullable", [1.0, None, 3.0], "expected int64, the model returned float64"),
        ("int64[n] nullable", pd.Series([1, None, 3]), "expected int64, the model returned float64"),
        ("int8[n] nullable", {"y": [1, None, 300]}, "values that do not fit int8"),
        ("str[n] nullable", {"y": ["a", None, 3]}, "expected str, the model returned int"),
        ("float32[n]", scipy.sparse.coo_array((10**6, 10**6)), "could not be made an array"),
        ("float32[n]", pa.array([{"a": 1}] * 3), "could not be made an array"),
    ],
)
def test_what_a_model_may_not_return(kind: str, raw: Any, why: str) -> None:
    with pytest.raises(ModelFault, match=f"^output 'y': .*{why}"):
        settled(kind, raw if isinstance(raw, dict) else {"y": raw})


def test_too_few_rows_are_counted_in_every_form() -> None:
    for kind, raw in (
        ("int64[n] nullable", pd.Series([1, None], dtype="Int64")),
        ("int64[n] nullable", np.ma.array([1], mask=[1])),
        ('int64[n] time="ms"', TIMES[:2]),
        ("float32[n, 2]", scipy.sparse.csr_array(np.eye(2))),
    ):
        with pytest.raises(WrongCount, match="given 3 rows and returned"):
            settled(kind, {"y": raw})


def test_an_echoed_input_is_copied() -> None:
    echo = Echo(Signature({"t": 'int64[n] time="s"'}, {"t": 'int64[n] time="s"'}))
    arrays = {"t": np.arange(3)}
    assert not np.may_share_memory(call(echo, arrays, Context())["t"], arrays["t"])


# --- between the forms ------------------------------------------------------------------------------------------


def test_parted_and_whole_are_each_other_s_inverse() -> None:
    signature = Signature(EVERY, EVERY)
    arrays = asked(signature, ROWS)
    seen = whole(signature.special_inputs, arrays)
    assert list(seen) == list(EVERY)
    again = parted(signature.special_inputs, seen)
    assert again.keys() == arrays.keys()
    assert all(np.array_equal(again[name], arrays[name]) for name in arrays)
    tensors = tensors_of(signature.inputs, seen)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        name: spec.dtype for name, spec in travelling(signature.inputs).items()
    }
    assert isinstance(tensors["s"].data, list)


def test_whole_tensors_and_validity() -> None:
    signature = Signature({"i": "int64[n] nullable", "x": "int64[n]"}, {"y": "float32[n]"})
    tensor = tensor_given(signature.inputs["i"], [1, None])
    assert isinstance(tensor, Partial) and whole_tensor(signature.inputs["i"], tensor).tolist() == [1, None]
    assert whole_tensor(signature.inputs["x"], Tensor("int64", (1,), bytes(8))).tolist() == [0]
    tensors = signature.check({"i": tensor, "x": Tensor("int64", (2,), bytes(16))}).inputs
    valid = validity(signature.inputs["i"], tensors)
    assert valid is not None and valid.tolist() == [True, False]
    assert validity(signature.inputs["x"], tensors) is None


def make(shape: tuple[int, ...], **more: Any) -> Tensor:
    return Tensor("int64", shape, np.arange(int(np.prod(shape))).reshape(shape))


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("int64[n]", (3, 1), (3,)), ("int64[n]", (0, 1), (0,)), ("int64[n, 1]", (3,), (3, 1)),
        ("int64[n]", (3, 2), (3, 2)), ("int64[n]", (3, 1, 1), (3, 1, 1)), ("int64[n, 2]", (2,), (2,)),
        ("int64[n, k]", (3,), (3,)), ("int64[]", (1, 1), (1, 1)), ("int64[n]", (3,), (3,)),
    ],
)  # fmt: skip
def test_columns_of_one_fit_whether_or_not_they_say_so(
    kind: str, given: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    spec: TensorSpec = Signature({"x": kind}, {"y": "float32[m]"}).inputs["x"]
    for tensor in (make(given), from_raw("x", "int64", given, np.asarray(make(given).data).tobytes())):
        found = fitted(spec, tensor)
        assert found.shape == wanted and to_array(found).shape == wanted
    assert fitted(spec, Partial("int64", given, make(given).data, bytes(int(np.prod(given))))).shape == wanted


def test_filled_up_lists_are_no_columns() -> None:
    ragged = from_json("x", "int64", None, b"[[1],[]]", pad=0)
    assert isinstance(ragged, Filled)
    signature = Signature({"x": "int64[n] pad=0"}, {"y": "float32[n]"})
    with pytest.raises(Malformed, match=r"expected shape \[n\], got \[2, 1\]"):
        signature.check({"x": ragged})


def test_a_sparse_input_is_refused_by_its_shape_before_it_is_made_dense() -> None:
    spec = Signature({"x": "float32[n, 3]"}, {"y": "float32[n]"}).inputs["x"]
    with pytest.raises(Malformed, match=r"expected shape \[n, 3\], got \[1000000, 1000000\]"):
        tensor_given(spec, scipy.sparse.coo_array((10**6, 10**6), dtype=np.float32))
    dense = np.array([[0, 1, 0], [2, 0, 0]], np.float32)
    twin: Callable[[Any], list[Any]] = lambda value: to_array(tensor_given(spec, value)).tolist()  # noqa: E731
    assert twin(scipy.sparse.csr_matrix(dense)) == twin(dense)
