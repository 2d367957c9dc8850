"""The text notation of one tensor: what it means, what it refuses, and that it comes back as it was."""

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.model.notation import BadSignature, Bounds, TensorSpec, checked_spec, parse
from maitred.wire.coerce import DATATYPES, FLOATS, from_array, from_json, from_python


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("float32[n, 12]", TensorSpec("x", "float32", ("n", 12))),
        ("float32[]", TensorSpec("x", "float32", ())),
        (" int64 [ n ] ", TensorSpec("x", "int64", ("n",))),
        ("FP32[n]", TensorSpec("x", "float32", ("n",))),
        ("BF16[n,seq]", TensorSpec("x", "bfloat16", ("n", "seq"))),
        ("BYTES[n]", TensorSpec("x", "bytes", ("n",))),
        ("BOOL[2]", TensorSpec("x", "bool", (2,))),
        ("str[n] optional", TensorSpec("x", "str", ("n",), optional=True)),
        ('str[n] default="a b"', TensorSpec("x", "str", ("n",), optional=True, default="a b")),
        ('bytes[n] default="a"', TensorSpec("x", "bytes", ("n",), optional=True, default=b"a")),
        ("int8[n] default=0", TensorSpec("x", "int8", ("n",), optional=True, default=0)),
        ("bool[n] default=false", TensorSpec("x", "bool", ("n",), optional=True, default=False)),
        ("float32[n] default=NaN", TensorSpec("x", "float32", ("n",), optional=True, default=math.nan)),
        ("float32[n] min=-1 max=1.5e3", TensorSpec("x", "float32", ("n",), minimum=-1, maximum=1500.0)),
        ("float32[n] nullable nan=null", TensorSpec("x", "float32", ("n",), nullable=True, nan="null")),
        ("int8[n, seq] pad=-1", TensorSpec("x", "int8", ("n", "seq"), pad=-1)),
        ("float32[n] rtol=0.1", TensorSpec("x", "float32", ("n",), tolerance=(0.1, 1e-6))),
        ("float64[n] rtol=0 atol=0", TensorSpec("x", "float64", ("n",), tolerance=(0, 0))),
    ],
)
def test_notation(text: str, wanted: TensorSpec) -> None:
    spec = parse("x", text)
    assert spec == wanted
    assert parse("x", spec.to_text()) == spec


def test_outputs_have_labels_and_tolerances() -> None:
    spec = parse("y", 'float32[n, 2] labels=["ja", "nein, danke"] atol=0.5 nan=string', output=True)
    assert spec.labels == ("ja", "nein, danke") and spec.tolerance == (1e-5, 0.5) and spec.nan == "string"
    assert parse("y", spec.to_text(), output=True) == spec


def test_default_tolerances() -> None:
    assert parse("x", "float32[n]").tolerance == (1e-5, 1e-6)
    assert parse("x", "int64[n]").tolerance == (0, 0)
    assert parse("x", "str[n]").tolerance == (0, 0)
    assert TensorSpec("x", "float32", ()).tolerance == (1e-5, 1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected dtype"),
        ("float32", "expected dtype"),
        ("float32[n", "expected dtype"),
        ("[n]", "expected dtype"),
        ("float[n]", "unknown dtype 'float'; expected one of bool, uint8"),
        ("float32[-1]", "size '-1' must be a whole number, or a symbol"),
        ("float32[n,]", "size ''"),
        ("float32[2.5]", "size '2.5'"),
        ("float32[n] foo", "cannot read 'foo'; expected optional"),
        ("float32[n] min", "cannot read 'min'"),
        ("float32[n] min=", "min= needs a number"),
        ("float32[n] min=abc", "min= needs a number"),
        ("float32[n] min=1max=2", "cannot read 'max=2'"),
        ("float32[n] min=1 min=2", "given twice"),
        ("float32[n] optional=true", "cannot read 'optional=true'"),
        ("float32[n] min=2 max=1", "min= is above max="),
        ("float32[n] min=true", "min= must be a number"),
        ("float32[n] min=NaN", "min= must be a number"),
        ("int8[n] min=0.5", "min= must be a whole number"),
        ("int8[n] max=300", "max= must be a value of dtype int8"),
        ("float16[n] max=1e9", "max= must be a value of dtype float16"),
        ("str[n] min=0", "min= needs a dtype of numbers"),
        ("bool[n] max=1", "max= needs a dtype of numbers"),
        ("bytes[n] nullable", "nullable is not for bytes"),
        ("str[n] nan=null", "nan= needs a float dtype"),
        ("float32[n] nan=zero", "nan= must be error, null or string"),
        ("float32[n] nan=", "nan= must be error, null or string"),
        ("int8[n] default=1.5", "default= must be a value of dtype int8"),
        ("int8[n] default=300", "default= must be a value of dtype int8"),
        ("str[n] default=1", "default= must be a value of dtype str"),
        ("int8[n] default=[1]", "default= must be a single value"),
        ("int8[n] default=5 max=4", "default= is outside"),
        ("int8[n] pad=false", "pad= must be a value of dtype int8"),
        ("float32[n] rtol=-2", "rtol= and atol= must be numbers >= 0"),
        ('float32[n] rtol="a"', "rtol= and atol= must be numbers >= 0"),
        ('float32[n] labels=["a"]', "labels= is for outputs only"),
        ("float32[" + ", ".join("1" * 33) + "]", "at most 32 sizes"),
        (f"float32[{10**17}, {10**17}]", "too large"),
    ],
)
def test_bad_notation_names_the_tensor_shows_the_text_and_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(BadSignature) as refused:
        parse("age", text)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"input 'age': {text!r}: ")


@pytest.mark.parametrize("option", ["optional", "nullable", "default=1", "min=1", "max=1", "pad=1"])
def test_options_of_inputs_are_refused_on_outputs(option: str) -> None:
    with pytest.raises(BadSignature, match=r"output 'y': .* is for inputs only"):
        parse("y", f"float32[n] {option}", output=True)


def test_labels_must_fit_the_last_size() -> None:
    with pytest.raises(BadSignature, match="2 labels for a last size of 3"):
        parse("y", 'float32[n, 3] labels=["a", "b"]', output=True)
    with pytest.raises(BadSignature, match="list of strings"):
        parse("y", "float32[n, 3] labels=[1, 2, 3]", output=True)


@pytest.mark.parametrize("name", ["", "a\nb", "a" * 257, 5, "columns"])
def test_bad_names(name: Any) -> None:
    with pytest.raises(BadSignature):
        parse(name, "float32[n]")


def test_specs_made_by_hand_follow_the_same_rules() -> None:
    wrong: list[Any] = [
        TensorSpec("x", "float", ("n",)),  # type: ignore[arg-type]
        TensorSpec("x", "float32", (-1,)),
        TensorSpec("x", "float32", ("a b",)),
        TensorSpec("x", "float32", (True,)),
        TensorSpec("x", "int8", ("n",), default=300),
    ]
    for spec in wrong:
        with pytest.raises(BadSignature, match="input 'x'"):
            checked_spec("x", spec)
    spec = checked_spec("other", TensorSpec("x", "float32", ["n", 2], default=np.float32(0.5)))  # type: ignore[arg-type]
    assert spec.name == "other" and spec.shape == ("n", 2) and spec.default == 0.5


SYMBOL = st.text(string.ascii_lowercase + "_", min_size=1, max_size=4)


@st.composite
def specs(draw: st.DrawFn) -> str:
    dtype = draw(st.sampled_from(sorted(DATATYPES)))
    sizes = draw(st.lists(st.integers(0, 1000).map(str) | SYMBOL, max_size=4))
    options = draw(st.permutations(["optional", "nullable", "nan=string", "min=-5", "max=7", "pad=3", "rtol=0.25"]))
    options = options[: draw(st.integers(0, 7))]
    if dtype not in FLOATS:
        options = [option for option in options if option not in ("nullable", "nan=string")]
    if dtype in ("bool", "str", "bytes") or dtype.startswith("u"):
        options = [option for option in options if option[:3] not in ("min", "max", "pad")]
    return f"{dtype}[{','.join(sizes)}] " + " ".join(options)


@given(specs())
def test_what_is_written_reads_back(text: str) -> None:
    spec = parse("x", text)
    assert parse("x", spec.to_text()) == spec


@given(st.text(max_size=30) | st.text('float32[n] minaxdefult=0.5,"', max_size=30).map(lambda t: "float32[n] " + t))
def test_junk_is_a_bad_signature_and_nothing_else(text: str) -> None:
    try:
        parse("x", text)
    except BadSignature:
        pass


# --- bounds -----------------------------------------------------------------------------------------------------


def check(text: str, tensor: Any) -> None:
    bounds = Bounds.of(parse("x", text))
    assert bounds is not None
    bounds.check(tensor)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8"])
@pytest.mark.parametrize("count", [4, 400])
def test_bounds_are_inclusive_and_name_the_place(dtype: Any, count: int) -> None:
    values = [0, 5] * (count // 2)
    check(f"{dtype}[n] min=0 max=5", from_python("x", dtype, values))
    check(f"{dtype}[n] min=0 max=5", from_array(np.array(values).astype(from_array_type(dtype))))
    values[3] = 6
    with pytest.raises(Malformed, match=r"input 'x': the value at \[3\] is outside the range min=0 max=5"):
        check(f"{dtype}[n] min=0 max=5", from_python("x", dtype, values))
    with pytest.raises(Malformed, match=r"the value at \[1\]\[1\]"):
        check(f"{dtype}[n, 2] max=5", from_python("x", dtype, [[1, 2], [3, 6]]))


def from_array_type(dtype: str) -> Any:
    from maitred.wire.coerce import NUMPY_TYPES

    return NUMPY_TYPES[dtype]


@pytest.mark.parametrize("dtype", sorted(FLOATS))
@pytest.mark.parametrize("repeat", [1, 100])
@pytest.mark.parametrize("bound", ["0.1", "0.7"])
def test_a_bound_is_what_the_dtype_makes_of_it(dtype: Any, repeat: int, bound: str) -> None:
    """0.1 as float32 is above 0.1, and must still pass `max=0.1`; 0.7 is below 0.7."""
    text = "[" + ",".join([bound] * repeat) + "]"
    check(f"{dtype}[n] min={bound} max={bound}", from_json("x", dtype, (repeat,), text.encode()))


def test_nan_passes_bounds_only_where_nullable() -> None:
    for count in (1, 100):
        tensor = from_python("x", "float32", [math.nan] * count)
        check("float32[n] min=0 nullable", tensor)
        with pytest.raises(Malformed):
            check("float32[n] min=0", tensor)
        with pytest.raises(Malformed):
            check("float32[n] max=0 nullable", from_python("x", "float32", [math.inf] * count))


def test_integer_bounds_are_exact() -> None:
    limit = 2**53
    check(f"int64[n] max={limit}", from_python("x", "int64", [limit]))
    for value in ([limit + 1], [limit + 1] * 100):
        with pytest.raises(Malformed):
            check(f"int64[n] max={limit}", from_python("x", "int64", value))
    check(f"uint64[n] min=1 max={2**64 - 1}", from_python("x", "uint64", [2**64 - 1] * 100))
    check("float32[] max=5", from_python("x", "float32", 5))
    check("float32[n] max=5", from_python("x", "float32", []))
    assert Bounds.of(parse("x", "float32[n]")) is None
