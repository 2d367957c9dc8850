"""Calling a model: what it is given, what it may return, padding, and the same bits in every way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import ModelFault
from maitred.model import forms
from maitred.model.predictor import (
    Context,
    Model,
    ModelPredictor,
    Predictor,
    Traits,
    WrongCount,
    call,
    call_async,
    settle,
    takes_context,
    traits_of,
)
from maitred.model.signature import Signature
from maitred.wire.coerce import DATATYPES, NUMPY_TYPES, to_array

ONE = Signature({"x": "float32[n]"}, {"y": "float32[n]"})
TWO = Signature({"x": "float32[n]"}, {"label": "str[n]", "score": "float64[n]"})
X = np.arange(3, dtype=np.float32)


def settled(raw: Any, signature: Signature = ONE, rows: int = 3, wanted: Any = None) -> dict[str, Any]:
    return settle(raw, signature, rows, {"x": X[:rows] if rows <= 3 else np.zeros(rows, np.float32)}, wanted)


def output(dtype: str, value: Any, shape: str = "n") -> Any:
    signature = Signature({"x": "float32[n]"}, {"y": f"{dtype}[{shape}]"})
    return settled({"y": value}, signature)["y"]


def predictor(predict: Callable[..., Any], signature: Signature = ONE, **traits: Any) -> ModelPredictor:
    body = {"signature": signature, "predict": predict, **traits}
    return ModelPredictor(type("Made", (Model,), body)())


# --- what a model may return ------------------------------------------------------------------------------------


def test_arrays_as_declared_are_taken_as_they_are() -> None:
    y = np.ones(3, np.float32)
    assert settled({"y": y})["y"] is y


@pytest.mark.parametrize(
    "raw",
    [
        {"y": [1, 2, 3]}, {"y": (1.0, 2, 3)}, {"y": [np.float32(1), np.int64(2), 3]}, {"y": np.array([1, 2, 3])},
        {"y": np.array([1, 2, 3], object)}, {"y": np.array([1, 2, 3], ">f8")}, {"y": np.array([1, 2, 3], np.float16)},
        [1, 2, 3], np.array([1.0, 2, 3]), [{"y": 1}, {"y": 2.0}, {"y": np.float64(3)}],
        {"y": [1, 2, 3], "more": None}, np.array([1, 2, 3, 9])[:3], np.array([3, 2, 1])[::-1],
    ],
)  # fmt: skip
def test_forms_of_one_output(raw: Any) -> None:
    y = settled(raw)["y"]
    assert y.dtype == np.float32 and y.tolist() == [1, 2, 3] and y.flags.c_contiguous


def test_tables_of_outputs() -> None:
    pd = pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"label": ["a", "b", "c"], "score": [0.5, 1, 2], "more": [1, 2, 3]})
    for raw in (frame, pa.Table.from_pandas(frame), frame.to_dict("records"), frame.to_dict("list"),
                {"label": frame["label"], "score": frame["score"]}):  # fmt: skip
        got = settled(raw, TWO)
        assert list(got) == ["label", "score"]
        assert got["label"].tolist() == ["a", "b", "c"] and got["label"].dtype == object
        assert got["score"].tolist() == [0.5, 1, 2] and got["score"].dtype == np.float64
    assert settled(pd.Series([1, 2, 3]))["y"].tolist() == [1, 2, 3]
    assert settled(pd.DataFrame({"other": [1, 2, 3]}))["y"].tolist() == [1, 2, 3]
    wide = Signature({"x": "float32[n]"}, {"y": "float64[n, 2]"})
    assert settled(pd.DataFrame({0: [1, 2, 3], 1: [4, 5, 6]}), wide)["y"].tolist() == [[1, 4], [2, 5], [3, 6]]


def test_only_the_wanted_outputs_in_the_wanted_order() -> None:
    raw = {"label": ["a", "b", "c"], "score": [1, 2, 3]}
    assert list(settled(raw, TWO)) == ["label", "score"]
    assert list(settled(raw, TWO, wanted=("score", "label"))) == ["score", "label"]
    assert list(settled({"score": [1, 2, 3]}, TWO, wanted=("score",))) == ["score"]
    assert settled(raw, TWO, wanted=()) == {}


def generator() -> Any:
    yield 1


async def coroutine() -> None:
    pass


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "the model returned None; expected a dict with 'y'"),
        (generator(), "the model returned a value of type generator"),
        ({"y": None}, "output 'y': the model returned None"),
        ({"y": generator()}, "output 'y': the model returned a value of type generator"),
        ({}, "the model did not return output 'y'; it returned nothing"),
        ({"z": [1, 2, 3]}, "the model did not return output 'y'; it returned 'z'"),
        ([{"y": 1}, {"z": 1}, {"y": 1}], "the model did not return output 'y' for row 1"),
        ({"y": ["a", "b", "c"]}, "output 'y': expected float32, the model returned str"),
        ({"y": [1, {}, 3]}, "output 'y': expected float32, the model returned dict, float|dict, int"),
        ({"y": [[1], [2, 3], [4]]}, "output 'y': .*list could not be made an array"),
        ({"y": object()}, "output 'y': expected float32, the model returned object"),
        ({"y": {"a": 1}}, "output 'y': expected float32, the model returned dict"),
        ({"y": np.array([1, 2, 3], np.complex64)}, "expected float32, the model returned complex64"),
        ({"y": np.array([True, False, True])}, "expected float32, the model returned bool"),
        ({"y": np.zeros((3, 1), np.float32)}, r"output 'y': expected shape \[n\], n = 3; the model returned \[3, 1\]"),
        ({"y": np.float32(1)}, r"expected shape \[n\], n = 3; the model returned \[\]"),
        ("abc", "expected float32, the model returned str"),
    ],
)
def test_what_a_model_may_not_return(raw: Any, message: str) -> None:
    with pytest.raises(ModelFault, match=message) as refused:
        settled(raw)
    assert not isinstance(refused.value, WrongCount)


def test_a_forgotten_await_names_the_type() -> None:
    raw = coroutine()
    with pytest.raises(ModelFault, match="a value of type coroutine"):
        settled(raw)
    raw.close()


@pytest.mark.parametrize("raw", [{"y": [1, 2]}, [1, 2, 3, 4], np.zeros(0), [{"y": 1}], []])
def test_wrong_counts(raw: Any) -> None:
    with pytest.raises(WrongCount, match="the model was given 3 rows and returned") as refused:
        settled(raw)
    assert (refused.value.expected, refused.value.got) == (3, len(raw["y"] if isinstance(raw, dict) else raw))


def test_no_records_for_several_outputs_is_a_wrong_count() -> None:
    with pytest.raises(WrongCount):
        settled([], TWO)


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        ("int8", np.array([1, 2, 127]), [1, 2, 127]),
        ("int64", np.array([1, 2, 3], np.uint8), [1, 2, 3]),
        ("int64", np.array([True, False, True]), [1, 0, 1]),
        ("int64", [2**63 - 1, -(2**63), 0], [2**63 - 1, -(2**63), 0]),
        ("uint64", [2**64 - 1, 0, 1], [2**64 - 1, 0, 1]),
        ("uint64", np.array([1, 2, 3]), [1, 2, 3]),
        ("bool", [True, False, True], [True, False, True]),
        ("float32", [1e39, 0, -1e39], [np.inf, 0, -np.inf]),
        ("str", np.array(["a", "b", "c"]), ["a", "b", "c"]),
        ("str", [np.str_("a"), "b", "c"], ["a", "b", "c"]),
        ("bytes", [b"a\0", b"", bytearray(b"c")], [b"a\0", b"", b"c"]),
        ("bytes", ["é", b"b", b"c"], ["é".encode(), b"b", b"c"]),
    ],
)
def test_conversions_that_lose_nothing_declared(dtype: str, value: Any, wanted: list[Any]) -> None:
    got = output(dtype, value)
    assert got.dtype == NUMPY_TYPES[dtype] and got.tolist() == wanted
    assert dtype != "str" or {type(element) for element in got} == {str}


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int8", np.array([1, 2, 128]), "int64 values that do not fit int8"),
        ("int8", [1, 2, -129], "do not fit int8"),
        ("uint64", np.array([1, 2, -1]), "do not fit uint64"),
        ("int64", [2**63, 0, -1], "do not fit int64"),
        ("int64", np.array([2**63, 0, 1], np.uint64), "do not fit int64"),
        ("int64", [1.0, 2.0, 3.0], "expected int64, the model returned float"),
        ("int64", np.array([1.0, 2, 3]), "expected int64, the model returned float64"),
        ("bool", [1, 0, 1], "expected bool, the model returned int64"),
        ("str", [1, 2, 3], "expected str, the model returned int"),
        ("str", [b"a", b"b", b"c"], "expected str, the model returned bytes"),
        ("str", ["a", None, "c"], r"missing value at \[1\], and the signature does not say nullable"),
        ("bytes", [1, 2, 3], "expected bytes, the model returned int"),
    ],
)
def test_conversions_that_are_refused(dtype: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFault, match=f"output 'y': .*{message}"):
        output(dtype, value)


def test_texts_in_rows_and_columns() -> None:
    assert output("str", [["a", "b"]] * 3, "n, 2").tolist() == [["a", "b"]] * 3
    assert output("bytes", [[b"a\0"]] * 3, "n, 1").tolist() == [[b"a\0"]] * 3
    with pytest.raises(ModelFault, match=r"ragged|could not be made an array"):
        output("str", [["a"], ["a", "b"], ["c"]], "n, 1")


def test_strided_outputs_are_made_contiguous() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    got = output("float32", x.T, "n, 4")
    assert got.flags.c_contiguous and got.tobytes() == x.T.copy().tobytes()


def test_equal_symbols_of_outputs_and_inputs() -> None:
    signature = Signature({"x": "float32[n, seq]"}, {"y": "float32[n, seq]", "z": "float32[n, k]", "w": "int8[n, k]"})
    inputs = {"x": np.zeros((2, 5), np.float32)}
    good = {"y": np.zeros((2, 5)), "z": np.zeros((2, 3)), "w": np.zeros((2, 3), np.int8)}
    assert settle(good, signature, 2, inputs)["z"].shape == (2, 3)
    with pytest.raises(ModelFault, match=r"output 'y': expected shape \[n, seq\], n = 2, seq = 5"):
        settle({**good, "y": np.zeros((2, 4))}, signature, 2, inputs)
    with pytest.raises(ModelFault, match=r"output 'w': expected shape \[n, k\], n = 2, k = 3"):
        settle({**good, "w": np.zeros((2, 4), np.int8)}, signature, 2, inputs)


def test_outputs_that_are_not_rows() -> None:
    signature = Signature({"x": "float32[n]"}, {"kept": "float32[m]", "total": "float64[]", "same": "float32[n]"})
    inputs = {"x": X}
    got = settle({"kept": [], "total": np.float32(3), "same": X + 1}, signature, 1, inputs)
    assert got["kept"].shape == (0,) and got["total"].shape == () and got["total"].dtype == np.float64
    with pytest.raises(ModelFault, match=r"output 'same': expected shape \[n\], n = 3"):
        settle({"kept": [], "total": 1, "same": X[:2].copy()}, signature, 1, inputs)


# --- whose memory it is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [lambda x: x, lambda x: x[:], lambda x: x.reshape(3, 1)[:, 0], lambda x: x.base if x.base is not None else x,
     lambda x: np.asarray(x), lambda x: x.view(np.int32).view(np.float32),
     lambda x: np.lib.stride_tricks.as_strided(x)],
)  # fmt: skip
def test_outputs_never_alias_inputs(form: Callable[[Any], Any]) -> None:
    given_x = np.arange(3, dtype=np.float32)
    got = call(predictor(lambda self, batch: {"y": form(batch["x"])}), {"x": given_x}, Context())
    assert not np.shares_memory(got["y"], given_x)
    given_x[:] = -1
    assert got["y"].tolist() == [0, 1, 2]


def test_the_array_behind_an_input_is_an_input_too() -> None:
    behind = np.arange(3, dtype=np.float32)
    got = call(predictor(lambda self, batch: {"y": behind}), {"x": behind.view()}, Context())
    assert not np.shares_memory(got["y"], behind)


def test_inputs_are_read_only_but_the_callers_array_stays_as_it_was() -> None:
    def predict(self: Any, batch: Any) -> Any:
        batch["x"] += 1
        return {"y": batch["x"]}

    given_x = np.arange(3, dtype=np.float32)
    with pytest.raises(ValueError, match="read-only"):
        call(predictor(predict), {"x": given_x}, Context())
    assert given_x.flags.writeable
    got = call(predictor(predict, mutates_inputs=True), {"x": given_x}, Context())
    assert got["y"].tolist() == [1, 2, 3] and given_x.tolist() == [0, 1, 2]


# --- calling ----------------------------------------------------------------------------------------------------


def test_context_is_given_to_those_who_want_it() -> None:
    seen = []
    context = Context({"a": 1}, ("y",), [("id", 1)], True, lambda: True)

    def with_it(self: Any, batch: Any, context: Any) -> Any:
        seen.append(context)
        return batch["x"] + 1

    def with_default(self: Any, batch: Any, context: Any = None) -> Any:
        return with_it(self, batch, context)

    def with_any(self: Any, *arguments: Any) -> Any:
        return with_it(self, *arguments)

    for predict in (with_it, with_default, with_any, lambda self, batch: batch["x"] + 1):
        assert call(predictor(predict), {"x": X}, context)["y"].tolist() == [1, 2, 3]
    assert seen == [context] * 3
    assert context.cancelled() and not Context().cancelled() and Context().parameters == {}


def test_whether_a_function_takes_the_context() -> None:
    assert takes_context(lambda batch, context: None)
    assert not takes_context(lambda batch: None)
    assert not takes_context(lambda batch, *, context=None: None)
    assert takes_context(np.add)  # no signature to read: as the protocol says


def test_what_a_model_raises_passes_through() -> None:
    def predict(self: Any, batch: Any) -> Any:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        call(predictor(predict), {"x": X}, Context())


def test_no_rows_are_answered_without_the_model() -> None:
    calls = []
    signature = Signature({"x": "float32[n, k]"}, {"a": "float32[n, 2]", "b": "str[n]", "c": "bfloat16[n, k]"})
    made = predictor(lambda self, batch: calls.append(1), signature)
    got = call(made, {"x": np.zeros((0, 7), np.float32)}, Context())
    assert [(name, array.shape) for name, array in got.items()] == [("a", (0, 2)), ("b", (0,)), ("c", (0, 7))]
    assert got["c"].dtype == ml_dtypes.bfloat16 and calls == []
    assert list(call(made, {"x": np.zeros((0, 7), np.float32)}, Context(outputs=("b",)))) == ["b"]
    unknown = Signature({"x": "float32[n]"}, {"y": "float32[n, k]"})
    made = predictor(lambda self, batch: np.zeros((len(batch["x"]), 4)), unknown)
    assert call(made, {"x": X[:0]}, Context())["y"].shape == (0, 4)


def test_async_models_give_the_same() -> None:
    async def predict(self: Any, batch: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return {"y": batch["x"] + 1}

    for traits in ({}, {"fixed_batch": [2]}):
        made = predictor(predict, **traits)
        assert made.traits.asynchronous and isinstance(made, Predictor)
        assert asyncio.run(call_async(made, {"x": X}, Context()))["y"].tolist() == [1, 2, 3]
        assert asyncio.run(call_async(made, {"x": X[:0]}, Context()))["y"].shape == (0,)


@pytest.mark.parametrize("dtype", sorted(DATATYPES))
def test_every_dtype_comes_back_as_it_went(dtype: Any) -> None:
    signature = Signature({"x": f"{dtype}[n, 2]"}, {"y": f"{dtype}[n, 2]"})
    inputs = {name: to_array(tensor) for name, tensor in signature.example(4).items()}
    got = call(predictor(lambda self, batch: {"y": batch["x"]}, signature), inputs, Context())["y"]
    assert got.dtype == NUMPY_TYPES[dtype] and got.tolist() == inputs["x"].tolist() and got is not inputs["x"]


def test_nothing_is_kept_of_a_batch() -> None:
    made = predictor(lambda self, batch: batch["x"] + 1)
    array = np.arange(3, dtype=np.float32)
    referrers = len(gc.get_referrers(array))
    call(made, {"x": array}, Context())
    assert len(gc.get_referrers(array)) == referrers


# --- fixed batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "sizes", "seen"),
    [(1, [4], [4]), (4, [4], [4]), (5, [4], [4, 4]), (9, [4], [4, 4, 4]), (1, [8, 2, 4], [2]), (3, [2, 4, 8], [4]),
     (8, [2, 4, 8], [8]), (11, [2, 4, 8], [8, 4]), (0, [4], [])],
)  # fmt: skip
def test_fixed_batches(rows: int, sizes: list[int], seen: list[int]) -> None:
    got_sizes: list[int] = []

    def predict(self: Any, batch: Any) -> Any:
        got_sizes.append(len(batch["x"]))
        return {"y": batch["x"] * 2}

    x = np.arange(rows, dtype=np.float32)
    got = call(predictor(predict, fixed_batch=sizes), {"x": x}, Context())
    assert got["y"].tolist() == (x * 2).tolist() and got_sizes == seen


@given(st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_with_one_size_neighbours_change_no_bit(rows: int, sizes: list[int], seed: int) -> None:
    """A model whose arithmetic depends on its batch's size, but not on what else is in it."""
    weights = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    signature = Signature({"x": "float32[n, 5]"}, {"y": "float32[n, 3]"})
    made = predictor(lambda self, batch: batch["x"] @ weights, signature, fixed_batch=sizes[:1])
    x = np.random.default_rng(seed).standard_normal((rows, 5)).astype(np.float32)
    whole = call(made, {"x": x}, Context())["y"]
    alone = [call(made, {"x": x[at : at + 1]}, Context())["y"] for at in range(rows)]
    assert np.concatenate(alone).tobytes() == whole.tobytes()


def test_padding_leaves_shared_inputs_and_pads_parameters_of_rows() -> None:
    signature = Signature({"x": "float32[n]", "t": "float32[3]"}, {"y": "float32[n]"})
    seen = []

    def predict(self: Any, batch: Any, context: Context) -> Any:
        seen.append((batch["t"].shape, context.parameters, context.rows))
        return batch["x"] + batch["t"][0]

    made = predictor(predict, signature, fixed_batch=(2,), per_row_parameters=True)
    rows = [("a", 0), ("b", 1), ("c", 2)]
    context = Context([{"k": 1}, {"k": 2}, {"k": 3}], rows=rows)
    got = call(made, {"x": X, "t": np.full(3, 10, np.float32)}, context)
    assert got["y"].tolist() == [10, 11, 12]
    assert seen == [((3,), [{"k": 1}, {"k": 2}], rows[:2]), ((3,), [{"k": 3}, {"k": 3}], rows[2:])]


def test_a_wrong_count_of_padded_rows_is_seen() -> None:
    made = predictor(lambda self, batch: batch["x"][:1] + 1, fixed_batch=[4])
    with pytest.raises(WrongCount):
        call(made, {"x": X[:1]}, Context())


# --- what a model class declares --------------------------------------------------------------------------------


def test_traits_of_a_plain_model() -> None:
    class Plain(Model):
        signature = ONE

        def predict(self, batch: Any) -> Any:
            return batch["x"]

    assert traits_of(Plain) == traits_of(Plain()) == Traits()
    assert Plain().load("path", "cpu") is None  # type: ignore[func-returns-value]


def test_declared_traits() -> None:
    class Declared(Model):
        signature = ONE
        fixed_batch = [8, 1, 8]
        slots = 4
        side_effects = True
        max_batch_rows = 16

        async def predict(self, batch: Any) -> Any:
            return batch["x"]

    wanted = Traits(fixed_batch=(1, 8), slots=4, side_effects=True, max_batch_rows=16, asynchronous=True)
    assert traits_of(Declared) == wanted


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("slots", 0, "slots must be a whole number >= 1"),
        ("slots", True, "slots must be"),
        ("max_batch_rows", 0.5, "max_batch_rows must be"),
        ("fixed_batch", [], "fixed_batch must be a list of row counts"),
        ("fixed_batch", 8, "fixed_batch must be"),
        ("fixed_batch", [0], "fixed_batch must be"),
        ("side_effects", 1, "side_effects must be True or False"),
        ("signature", None, "needs a class attribute `signature`"),
        ("predict", None, "needs a method predict"),
    ],
)
def test_wrong_declarations(name: str, value: Any, message: str) -> None:
    body = {"signature": ONE, "predict": lambda self, batch: None, name: value}
    with pytest.raises(TypeError, match=f"Made.*{message}"):
        ModelPredictor(type("Made", (Model,), body)())


def test_fixed_batch_needs_rows() -> None:
    with pytest.raises(TypeError, match="row-wise"):
        predictor(lambda self, batch: None, Signature({"x": "float32[n]"}, {"y": "float32[]"}), fixed_batch=[4])


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize(
    ("dtype", "there"), [("int64", 1), ("bool", True), ("str", "a"), ("float32", 1.5), ('int64[n] time="s"', 5)]
)
def test_numpys_masked_element_is_missing_wherever_it_stands(dtype: str, there: Any, records: bool) -> None:
    """As None is; numpy would make NaN of it, and a number of that."""
    masked, notation = np.ma.masked, dtype if "[" in dtype else f"{dtype}[n]"
    values = [there, masked, None]
    raw: Any = [{"y": value} for value in values] if records else {"y": values}
    if dtype == "float32":
        assert np.isnan(settled(raw, Signature({"x": "float32[n]"}, {"y": notation}))["y"]).tolist() == [0, 1, 1]
        return
    nullable = Signature({"x": "float32[n]"}, {"y": f"{notation} nullable"})
    got = forms.whole(nullable.special_outputs, settled(raw, nullable))["y"]
    assert got.tolist()[1:] == [None, None] and got.tolist()[0] is not None
    with pytest.raises(ModelFault, match=r"output 'y': the model returned a missing value at \[1\]"):
        settled(raw, Signature({"x": "float32[n]"}, {"y": notation}))


def test_masked_elements_inside_a_row_are_missing_too() -> None:
    signature = Signature({"x": "float32[n]"}, {"y": "int8[n, 2] nullable"})
    got = settled([{"y": [1, np.ma.masked]}] * 3, signature)
    assert got["y\0valid"].tolist() == [[True, False]] * 3
