"""Tensors that hurt servers elsewhere: empty, huge, ragged, cut, of another dtype, with odd bytes and odd answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from case_house import Place, Question, entry, framed, in_binary, in_json, outputs_of, refusal, serving, values_of
from case_models import FORMS, RETURNS
from hypothesis import given
from hypothesis import strategies as st

import maitred
from maitred.errors import MaitredError, Malformed, ModelFault
from maitred.settings import BatchingSettings, ModelSettings, ReplicaSettings
from maitred.wire.coerce import DATATYPES, NUMPY_TYPES
from models import DTYPES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.story

MODELS = Path(__file__).with_name("case_models.py")
FLOATS = ["float16", "bfloat16", "float32", "float64"]
WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
IN_PROCESSES = {"Wide_float32", "Flat_bytes", "Gated", "Returns", "Filter", "Drops"}
ROOMS = [
    *(f"{shape}_{dtype}" for shape in ("Flat", "Wide") for dtype in DTYPES), *FORMS,
    "Fixed", "Gated", "Filter", "Options", "Three", "Columns", "Returns", "Drops", "Repeats",
]  # fmt: skip


def setting(model: str) -> ModelSettings:
    kind: Any = "process" if model in IN_PROCESSES else "thread"
    return ModelSettings(
        name=model,
        source=f"{MODELS}:{model}",
        replicas=ReplicaSettings(kind=kind),
        batching=BatchingSettings(max_batch_rows=64),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with serving(tmp_path_factory.mktemp("home"), {model: setting(model) for model in ROOMS}) as place:
        yield place


@pytest.fixture(autouse=True)
def still_fine(place: Place) -> Iterator[None]:
    """Whatever was asked: no copy has died of it, the server is ready and answers a normal call at once."""
    pids = place.house.replica_pids()
    yield
    assert place.house.replica_pids() == pids
    assert place.get("/v2/health/ready") == {"ready": True}
    assert values_of(place.ask(in_json("Wide_float32", [entry("x", "FP32", [1, 1], [0.5])])))["y"] == [[0.5]]


@pytest.fixture(scope="module")
def embedded() -> Iterator[Any]:
    """Models in this process, by name; each is loaded once."""
    with contextlib.ExitStack() as stack:
        handles: dict[str, maitred.Handle] = {}

        def opened(model: str) -> maitred.Handle:
            if model not in handles:
                handles[model] = stack.enter_context(maitred.load(f"{MODELS}:{model}"))
            return handles[model]

        yield opened


def sample(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Different elements of a dtype."""
    count = int(np.prod(shape))
    numbers = np.arange(seed, seed + count)
    array = np.empty(count, NUMPY_TYPES[dtype])
    if dtype == "str":
        array[:] = [f"ü{number}\0" for number in numbers]
    elif dtype == "bytes":
        array[:] = [b"\xff%d\0" % number for number in numbers]
    else:
        array[:] = numbers % 2 if dtype == "bool" else numbers % 120
    return array.reshape(shape)


def bits(array: Any) -> Any:
    if array.dtype == object:
        return [item.encode() if isinstance(item, str) else item for item in array.ravel()]
    return np.ascontiguousarray(array).tobytes()


# --- nothing at all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_elements_are_answered_with_none_beside_others(place: Place, embedded: Any, dtype: str) -> None:
    """Over JSON and binary, while neighbours with rows share the server, and their answers are their own."""
    datatype = DATATYPES[dtype]
    questions: list[Question] = []
    wanted: list[Any] = []
    for seed, shape in enumerate([(0,), (0, 0), (0, 3), (2, 0), (1, 3), (2,), (3, 1)] * 2):
        model = f"{'Flat' if len(shape) == 1 else 'Wide'}_{dtype}"
        array = sample(dtype, shape, seed)
        questions.append(
            in_binary(model, {}, [raw_entry(array, datatype)]) if not array.size else in_binary(model, {"x": array})
        )
        wanted.append(array)
        if array.size == 0:
            questions += [in_json(model, [entry("x", datatype, shape, array.tolist())])]
            questions += [in_json(model, [entry("x", datatype, shape, [])])]
            wanted += [array, array]
    for reply, array in zip(place.together(questions), wanted, strict=True):
        [(name, output)] = outputs_of(reply).items()
        assert (name, output.datatype, output.shape) == ("y", datatype, array.shape)
        assert (bits(output.data) if output.binary else output.data) == (bits(array) if output.binary else [])
    for shape in ((0,), (0, 3), (2, 0)):
        y = embedded(f"{'Flat' if len(shape) == 1 else 'Wide'}_{dtype}").predict(x=sample(dtype, shape))["y"]
        assert (y.shape, y.dtype) == (shape, NUMPY_TYPES[dtype])


def raw_entry(array: Any, datatype: str) -> dict[str, Any]:
    """A binary tensor without any bytes."""
    return {"name": "x", "datatype": datatype, "shape": list(array.shape), "parameters": {"binary_data_size": 0}}


def test_no_elements_where_a_size_is_fixed(place: Place) -> None:
    [(_, output)] = outputs_of(place.ask(in_json("Fixed", [entry("x", "FP32", [0, 4], [])]))).items()
    assert (output.shape, output.data) == ((0, 4), [])
    for shape in ([2, 0], [0], [0, 0], [0, 4, 0]):
        for question in (
            in_json("Fixed", [entry("x", "FP32", shape, [])]),
            in_binary("Fixed", {}, [raw_entry(np.zeros(shape), "FP32")]),
        ):
            assert "'x'" in refusal(place.ask(question))


# --- outputs that were asked for ---------------------------------------------------------------------------------

CHOICES = [["twice"], ["pair"], ["text", "twice"], ["pair", "text", "twice"], ["twice", "pair"], None]
FORMS_OF_OUTPUTS = [None, True, False]


def wished(number: int) -> tuple[Question, list[str]]:
    """A question of one to three rows, with a choice of outputs, in JSON, binary, or some of both."""
    names, form = CHOICES[number % len(CHOICES)], FORMS_OF_OUTPUTS[number % 3]
    rows = [float(number * 10 + row) for row in range(1 + number % 3)]
    wish: dict[str, Any] = {"parameters": {} if form is None else {"binary_data_output": form}}
    if names is not None:
        wish["outputs"] = [
            {"name": name, "parameters": {"binary_data": at % 2 == 0}} if number % 4 == 3 else {"name": name}
            for at, name in enumerate(names)
        ]
    return in_json("Gated", [entry("x", "FP64", [len(rows)], rows)], **wish), names or ["twice", "pair", "text"]


def test_callers_who_want_different_outputs_share_a_batch_and_no_answer(place: Place, tmp_path: Path) -> None:
    """One call holds the only copy until all others wait, so that they are one batch for certain."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    asked = [wished(number) for number in range(20)]
    before = place.figure("maitred_batches_total", "Gated")

    async def play() -> list[Any]:
        first = place.house.caller().ask(
            "POST", "/v2/models/Gated/infer",
            {"inputs": [entry("x", "FP64", [1], [1.0]), entry("wait", "BYTES", [], [str(pipe)])]},
        )  # fmt: skip
        holding = asyncio.ensure_future(first)
        async with asyncio.timeout(20):
            while not place.house.running_rows():
                await asyncio.sleep(0)
            others = [place.house.caller().ask("POST", q.path, q.body, q.headers) for q, _ in asked]
            waiting = asyncio.gather(*others)
            page = b""
            while b'maitred_queue_requests{model="Gated",version="1",lane="normal"} 20' not in page:
                page = (await place.house.caller().ask("GET", "/metrics")).body
            with open(pipe, "w"):
                pass  # nobody writes: the model reads to the end
            assert (await holding).status == 200
            return await waiting

    for number, ((_, names), reply) in enumerate(zip(asked, place.runner.run(play()), strict=True)):
        x = [float(number * 10 + row) for row in range(1 + number % 3)]
        answer = {"twice": [2 * v for v in x], "pair": [[v, -v] for v in x], "text": [f"row {v:g}" for v in x]}
        assert [*outputs_of(reply)] == names
        assert values_of(reply) == {name: answer[name] for name in names}
    assert place.figure("maitred_batches_total", "Gated") == before + 2, (
        "the one that held the copy, and all the others"
    )


@pytest.mark.parametrize("everything", [None, True, False])
def test_each_output_is_binary_as_it_was_wished(place: Place, everything: bool | None) -> None:
    names = ["text", "pair", "twice"]
    for wishes in itertools.product([None, True, False], repeat=3):
        outputs = [
            {"name": name} if wish is None else {"name": name, "parameters": {"binary_data": wish}}
            for name, wish in zip(names, wishes, strict=True)
        ]
        more: dict[str, Any] = {} if everything is None else {"parameters": {"binary_data_output": everything}}
        reply = place.ask(in_json("Gated", [entry("x", "FP64", [2], [1.0, 2.5])], outputs=outputs, **more))
        found = outputs_of(reply)
        binary = [bool(everything) if wish is None else wish for wish in wishes]
        assert [(name, output.binary) for name, output in found.items()] == list(zip(names, binary, strict=True))
        assert ("inference-header-content-length" in reply.headers) == any(binary)
        kind = "application/octet-stream" if any(binary) else "application/json"
        assert reply.headers["content-type"] == kind
        assert values_of(reply) == {"text": ["row 1", "row 2.5"], "pair": [[1, -1], [2.5, -2.5]], "twice": [2, 5]}


def test_outputs_that_are_not_there_or_asked_twice(place: Place) -> None:
    for outputs, named in (
        ([{"name": "twise"}], "twise"), ([{"name": "text"}, {"name": "text"}], "text"), ([{"name": None}], "outputs"),
        ({"name": "text"}, "outputs"), ([{"name": "x"}], "'x'"),
    ):  # fmt: skip
        for question in (
            in_json("Gated", [entry("x", "FP64", [1], [1.0])], outputs=outputs),
            in_binary("Gated", {"x": np.ones(1)}, outputs=outputs),
        ):
            assert named in refusal(place.ask(question))


# --- bytes and text ----------------------------------------------------------------------------------------------

BLOBS = [b"\0\0", b"a\0", b"", b"\xff\xfe", b"\0", b"\0a", b"\x80", b"a\0b", bytes(range(256)), b"\0" * 1000]


def objects(values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.fixture
def client(place: Place) -> Any:
    """Calls NVIDIA's client in a thread: `client(model, array)` gives the output y."""

    def ask(model: str, array: Any, datatype: str, binary: bool = True) -> Any:
        with contextlib.closing(triton.InferenceServerClient(f"127.0.0.1:{place.house.port}")) as connection:
            x = triton.InferInput("x", list(array.shape), datatype)
            x.set_data_from_numpy(array, binary_data=binary)
            wish = triton.InferRequestedOutput("y", binary_data=binary)
            return connection.infer(model, [x], outputs=[wish]).as_numpy("y")

    return lambda *arguments: place.beside(ask, *arguments)


def test_a_client_s_blobs_come_back_to_the_last_byte(client: Any, embedded: Any) -> None:
    assert list(client("Flat_bytes", objects(BLOBS), "BYTES")) == BLOBS
    assert list(client("Wide_bytes", objects(BLOBS).reshape(5, 2), "BYTES").ravel()) == BLOBS
    assert embedded("Flat_bytes").predict(x=objects(BLOBS))["y"].tolist() == BLOBS
    assert embedded("Flat_bytes").predict(x=BLOBS)["y"].tolist() == BLOBS
    texts = ["", "\0", "a\0", "\0a", "ü\0\0", "\U0001f600"]
    assert [item.decode() for item in client("Flat_str", objects(texts), "BYTES")] == texts
    assert embedded("Flat_str").predict(x=texts)["y"].tolist() == texts


@given(st.lists(st.lists(st.binary(max_size=6) | st.sampled_from(BLOBS), max_size=4), min_size=8, max_size=8))
def test_blobs_of_many_callers_stay_whole_and_apart(place: Place, blobs: list[list[bytes]]) -> None:
    asked = [
        in_binary("Flat_bytes", {"x": objects(some)}) if some else in_json("Flat_bytes", [entry("x", "BYTES", [0], [])])
        for some in blobs
    ]
    for reply, some in zip(place.together(asked), blobs, strict=True):
        output = outputs_of(reply)["y"]
        assert output.shape == (len(some),)
        assert list(output.data) == some


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=3), min_size=4, max_size=4))
def test_texts_of_many_callers_stay_whole_and_apart(place: Place, texts: list[list[str]]) -> None:
    """As JSON escapes them, and as bytes; half a surrogate pair is no text."""
    asked = [in_json("Flat_str", [entry("x", "BYTES", [len(some)], some)]) for some in texts]
    for reply, some in zip(place.together(asked), texts, strict=True):
        if any(0xD800 <= ord(letter) < 0xE000 for text in some for letter in text):
            assert "'x'" in refusal(reply)
            continue
        assert values_of(reply) == {"y": some}
        assert values_of(place.ask(in_binary("Flat_str", {"x": objects(some)}))) == {"y": some}


def test_bytes_that_are_no_text_concern_their_own_caller_only(place: Place) -> None:
    """As text they are refused on the way in, and as JSON on the way out, while neighbours are answered."""
    bad = in_binary("Flat_str", {"x": objects([b"ok", b"\xff\xfe"])})
    good = in_json("Flat_str", [entry("x", "BYTES", [1], ["mine"])])
    replies = place.together([bad, good] * 6)
    assert all("'x'" in refusal(reply) for reply in replies[::2])
    assert all(values_of(reply) == {"y": ["mine"]} for reply in replies[1::2])
    out = in_binary("Flat_bytes", {"x": objects([b"\xff"])}, parameters={"binary_data_output": False})
    replies = place.together([out, in_json("Flat_bytes", [entry("x", "BYTES", [1], ["mine"])])] * 6)
    assert all("binary_data_output" in refusal(reply) for reply in replies[::2])
    assert all(values_of(reply) == {"y": ["mine"]} for reply in replies[1::2])


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_decimals_become_the_nearest_float_on_every_route(place: Place, embedded: Any, dtype: str) -> None:
    values = [0.96, 1.24, 0.1, 1 / 3, 1, -7, 16777217, 1e-7]
    values = values if dtype in ("float32", "float64") else values[:6]
    nearest = np.array(values, np.float64).astype(NUMPY_TYPES[dtype])
    model = f"Flat_{dtype}"
    raw = in_json(model, [entry("x", DATATYPES[dtype], [len(values)], values)], parameters={"binary_data_output": True})
    assert bits(outputs_of(place.ask(raw))["y"].data) == bits(nearest)
    shown = values_of(place.ask(in_json(model, [entry("x", DATATYPES[dtype], [len(values)], values)])))["y"]
    assert bits(np.array(shown, np.float64).astype(NUMPY_TYPES[dtype])) == bits(nearest)
    assert place.post(f"/predict/{model}", {"columns": {"x": values}}).json() == {"columns": {"y": shown}}
    assert place.post(f"/v1/models/{model}:predict", {"instances": values}).json() == {"predictions": shown}
    assert bits(embedded(model).predict(x=values)["y"]) == bits(nearest)


def everywhere(place: Place, embedded: Any, model: str, value: Any) -> list[str]:
    """How one element is refused on every route that is written in JSON, and by a direct call."""
    datatype = DATATYPES[model.split("_")[1]]
    told = [
        refusal(place.ask(in_json(model, [entry("x", datatype, [1], [value])]))),
        refusal(
            place.ask(in_json(model, [entry("x", datatype, [1], [value])], parameters={"binary_data_output": True}))
        ),
        refusal(place.post(f"/predict/{model}", {"x": value})),
        refusal(place.post(f"/predict/{model}", {"columns": {"x": [value]}})),
        refusal(place.post(f"/v1/models/{model}:predict", {"instances": [value]})),
        refusal(place.post(f"/v1/models/{model}:predict", {"inputs": {"x": [value]}})),
    ]
    if embedded is not None:
        with pytest.raises(Malformed) as refused:
            embedded(model).predict(x=[value])
        told.append(refused.value.message)
    return told


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_are_taken_within_their_range_and_nothing_else_is(
    place: Place, embedded: Any, dtype: str
) -> None:
    ends = np.iinfo(NUMPY_TYPES[dtype])
    values = [int(ends.min), int(ends.max), 0, 1]
    model = f"Flat_{dtype}"
    asked = in_json(model, [entry("x", DATATYPES[dtype], [4], values)])
    assert values_of(place.ask(asked))["y"] == values, "to the last digit"
    for value in (1.5, 1.0, ends.max + 1, ends.min - 1, 10**30, True, "1", None, [1, 2], {}):
        assert all("'x'" in told for told in everywhere(place, embedded, model, value)), value
    assert values_of(place.ask(asked))["y"] == values


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_no_number_is_refused_with_its_place_unless_declared(place: Place, embedded: Any, dtype: str) -> None:
    model = f"Flat_{dtype}"
    for value in ("NaN", "1", True, [1.0, 2.0], {}):
        assert all("'x'" in told for told in everywhere(place, embedded, model, value)), value
    for told in everywhere(place, None, model, None):
        assert "null" in told and "[0]" in told
    datatype = DATATYPES[dtype]
    head = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[2],"data":[1,%s]}}]}}'
    for token in ("NaN", "Infinity", "-Infinity", "nan", "1e400", "-1e999", "0x1", "01", "+1", ".5", "1.", "--1"):
        refusal(place.ask(Question(model, (head % token).encode())))
        refusal(place.post(f"/predict/{model}", f'{{"x":{token}}}'.encode()))
        refusal(place.post(f"/v1/models/{model}:predict", f'{{"instances":[{token}]}}'.encode()))
    assert "data[1]" in refusal(place.ask(Question(model, (head % "null").encode())))


@pytest.mark.parametrize("dtype", [*WHOLE, "bool", "str", "bytes"])
def test_null_is_refused_with_its_place_where_nothing_may_be_missing(place: Place, embedded: Any, dtype: str) -> None:
    for told in everywhere(place, embedded, f"Flat_{dtype}", None):
        assert "'x'" in told and "[0]" in told


def test_missing_numbers_where_they_are_declared(place: Place, embedded: Any) -> None:
    nan = float("nan")
    for model, data, back in (
        ("lax", [1, None, 2.5], [1, None, 2.5]),
        ("spoken", [1, None, "NaN", "Infinity", "-Infinity"], [1, "NaN", "NaN", "Infinity", "-Infinity"]),
    ):
        asked = in_json(model, [entry("x", "FP32", [len(data)], data)])
        assert values_of(place.ask(asked))["y"] == back
        raw = place.ask(
            in_json(model, [entry("x", "FP32", [len(data)], data)], parameters={"binary_data_output": True})
        )
        floats = np.array([nan if value is None else float(value) for value in data], np.float32)
        assert np.array_equal(outputs_of(raw)["y"].data, floats, equal_nan=True)
        assert place.post(f"/predict/{model}", {"columns": {"x": data}}).json() == {"columns": {"y": back}}
        assert place.post(f"/v1/models/{model}:predict", {"instances": data}).json() == {"predictions": back}
    assert np.isnan(embedded("lax").predict(x=[None])["y"]).all()
    refusal(place.post("/predict/lax", b'{"x":NaN}'))


def test_nan_that_json_cannot_show_is_an_error_of_its_own_caller(place: Place) -> None:
    """The answer's form is the caller's choice, so the same NaN is fine as bytes."""
    nan = np.array([np.nan, 1], np.float32)[:1]
    shown = in_binary("Flat_float32", {"x": nan}, parameters={"binary_data_output": False})
    raw, good = in_binary("Flat_float32", {"x": nan}), in_json("Flat_float32", [entry("x", "FP32", [1], [7.0])])
    for at, reply in enumerate(place.together([shown, raw, good] * 5)):
        if at % 3 == 0:
            assert reply.status == 500 and "'y'" in reply.json()["error"]
        elif at % 3 == 1:
            assert bits(outputs_of(reply)["y"].data) == nan.tobytes()
        else:
            assert values_of(reply)["y"] == [7.0]


@pytest.mark.parametrize("dtype", FLOATS)
@given(data=st.data())
def test_printed_floats_have_the_bits_of_binary_answers(place: Place, dtype: str, data: st.DataObject) -> None:
    kind = NUMPY_TYPES[dtype]
    size = kind.itemsize * 8
    edges = [1111111.0, 0.1, 1 / 3, 5e-324, 16777217.0, 1e-45, 3.4e38, 65504.0, -0.0, 1.1754942e-38]
    patterns = data.draw(st.lists(st.integers(0, 2**size - 1), min_size=1, max_size=8))
    array = np.array(patterns, f"uint{size}").view(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.concatenate([array, np.array(edges, np.float64).astype(kind)])
        array = array[np.isfinite(array.astype(np.float64))]
    question = in_binary(f"Flat_{dtype}", {"x": array})
    text = in_binary(f"Flat_{dtype}", {"x": array}, parameters={"binary_data_output": False})
    raw, shown = place.together([question, text])
    assert bits(outputs_of(raw)["y"].data) == bits(array)
    assert bits(np.array(outputs_of(shown)["y"].data, np.float64).astype(kind)) == bits(array)
    if dtype in ("float32", "float64"):
        for word, value in zip(shown.body.split(b'"data":[')[1].split(b"]")[0].split(b","), array, strict=True):
            digits = word.split(b"e")[0].replace(b".", b"").strip(b"-0")
            least = np.format_float_scientific(value, unique=True, trim="-").split("e")[0].replace(".", "").strip("-0")
            assert len(digits) <= len(least), "the shortest text that reads back"


# --- lengths, shapes and sizes -----------------------------------------------------------------------------------

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def head_of(question: Question) -> tuple[bytes, bytes]:
    size = int(question.headers["Inference-Header-Content-Length"])
    return question.body[:size], question.body[size:]


def test_a_length_of_the_header_that_disagrees_says_with_what(place: Place) -> None:
    question = in_binary("Fixed", {"x": X})
    head, blob = head_of(question)
    for length, said in {
        str(len(question.body)): "JSON", str(len(question.body) + 1): "Inference-Header-Content-Length",
        str(2**70): "Inference-Header-Content-Length", "-1": "Inference-Header-Content-Length",
        "abc": "Inference-Header-Content-Length", "1.0": "Inference-Header-Content-Length",
        "0": "empty", "10": "JSON", str(len(head) - 1): "JSON", str(len(head) + 1): "JSON",
        f"{len(head)}, {len(head)}": "Inference-Header-Content-Length", "+5": "Inference-Header-Content-Length",
    }.items():  # fmt: skip
        assert said in refusal(place.ask(framed("Fixed", head, blob, length))), length
    for media in ("application/octet-stream", "application/json", None):
        headers = {} if media is None else {"Content-Type": media}
        told = refusal(place.post("/v2/models/Fixed/infer", question.body, headers))
        assert "Inference-Header-Content-Length" in told or "trailing" in told
    assert bits(outputs_of(place.ask(question))["y"].data) == X.tobytes()


@pytest.mark.parametrize("size", [0, 1, 28, 31, 33, 36, 64, 2**40, 2**63, -1, -32, "32", 32.0, True, None, [32]])
def test_a_size_of_a_tensor_that_disagrees_names_the_input(place: Place, size: Any) -> None:
    head = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": size}}]}
    ).encode()
    told = refusal(place.ask(framed("Fixed", head, X.tobytes())))
    assert "'x'" in told or "add up to" in told


def test_sizes_of_several_tensors_that_disagree(place: Place) -> None:
    i, f = np.array([1, 2], np.int32), np.array([0.5, 1.5], np.float32)
    good = in_binary("Three", {"i": i, "f": f, "s": objects(["a", "bc"])})
    assert values_of(place.ask(good))["y"] == [1.5, 3.5]
    head, blobs = head_of(good)
    for sizes in ((4, 12, 11), (12, 4, 11), (8, 8, 10), (8, 8, 12), (8, 11, 8), (0, 16, 11), (8, 8, 0), (27, 0, 0)):
        asked = json.loads(head)
        for one, size in zip(asked["inputs"], sizes, strict=True):
            one["parameters"]["binary_data_size"] = size
        refusal(place.ask(framed("Three", json.dumps(asked).encode(), blobs)))
    for length in (2**32 - 1, 2**31, 3, 0):
        text = struct.pack("<I", length) + b"ab"
        told = refusal(place.ask(framed("Flat_bytes", *of_one("BYTES", [1], text))))
        assert "'x'" in told


def of_one(datatype: str, shape: list[Any], blob: bytes) -> tuple[bytes, bytes]:
    parameters = {"binary_data_size": len(blob)}
    one = {"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters}
    return json.dumps({"inputs": [one]}).encode(), blob


HUGE = 9223372036854775807
SHAPES: list[Any] = [
    [16, 1152921504606846978], [2, -5], [-1, -1], [-1], ["2"], [2.0], [True], [None], [[1]], [HUGE, HUGE], [HUGE, 2],
    [2**32, 2**32], [2**63, 2], [2**64 + 1], [10**40], [1] * 40, [1] * 400, [0, HUGE, HUGE], [0, -1], "1", 1, None, {},
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape)[:30])
def test_shapes_that_wrap_or_are_none_are_refused_by_name(place: Place, shape: Any) -> None:
    for dtype, data, blob in (
        ("float32", [1.0], b"\0\0\x80?"),
        ("bytes", ["a"], b"\1\0\0\0a"),
        ("int64", [1], bytes(8)),
    ):
        for kind in ("Flat", "Wide"):
            one = {"name": "x", "datatype": DATATYPES[dtype], "shape": shape}
            told = refusal(place.ask(in_json(f"{kind}_{dtype}", [{**one, "data": data}])))
            assert "'x'" in told or "inputs[0]" in told
            told = refusal(place.ask(framed(f"{kind}_{dtype}", *of_one(DATATYPES[dtype], shape, blob))))
            assert "'x'" in told or "inputs[0]" in told


def test_shapes_of_callers_allocate_nothing(place: Place) -> None:
    """A gigabyte that a shape promises in a thousand requests would be seen."""
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    for shape in ([16, 2**40], [2**28], [2**20, 2**8], [2**31 - 1, 4]):
        kind = "Flat" if len(shape) == 1 else "Wide"
        for dtype in ("float64", "bytes"):
            for _ in range(3):
                refusal(place.ask(in_json(f"{kind}_{dtype}", [entry("x", DATATYPES[dtype], shape, [])])))
                refusal(place.ask(framed(f"{kind}_{dtype}", *of_one(DATATYPES[dtype], shape, b""))))
    after = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    assert int(after) - int(peak) < 200_000, "kB"


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "str", "bytes"])
def test_shape_and_data_must_agree(place: Place, embedded: Any, dtype: str) -> None:
    """Six elements for [2, 3], flat or nested as the shape says; one string is one element, however long it is."""
    datatype, array = DATATYPES[dtype], sample("str" if dtype == "bytes" else dtype, (2, 3))
    flat, nested = array.ravel().tolist(), array.tolist()
    for data in (flat, nested):
        assert values_of(place.ask(in_json(f"Wide_{dtype}", [entry("x", datatype, [2, 3], data)])))["y"] == nested
    wrong = [flat[:5], [*flat, flat[0]], [nested[0], nested[1][:2]], [nested[0]], [*nested, nested[0]], [[nested]],
             [nested[0], *flat[3:]], [flat], flat[0], {"0": flat}, None, []]  # fmt: skip
    wrong.append(np.array(flat, object).reshape(3, 2).tolist())
    for data in wrong:
        told = refusal(place.ask(in_json(f"Wide_{dtype}", [entry("x", datatype, [2, 3], data)])))
        assert "'x'" in told or "inputs[0]" in told
    blob = b"".join(struct.pack("<I", 1) + b"a" for _ in flat) if dtype in ("str", "bytes") else array.tobytes()
    for shape in ([2, 2], [7], [6], [3, 3], [2, 3, 1], []):
        assert "'x'" in refusal(place.ask(framed(f"Wide_{dtype}", *of_one(datatype, shape, blob))))
    ragged = [flat[:2], flat[2:3]]
    for told in (
        refusal(place.post(f"/predict/Wide_{dtype}", {"columns": {"x": ragged}})),
        refusal(place.post(f"/predict/Wide_{dtype}", [{"x": row} for row in ragged])),
        refusal(place.post(f"/v1/models/Wide_{dtype}:predict", {"instances": ragged})),
        refusal(place.post(f"/v1/models/Wide_{dtype}:predict", {"inputs": {"x": ragged}})),
    ):
        assert "'x'" in told
    with pytest.raises(Malformed, match="'x'"):
        embedded(f"Wide_{dtype}").predict(x=ragged)


def test_one_string_is_one_element(place: Place) -> None:
    text = "one string of the length that its shape says, so and so on."
    for dtype in ("str", "bytes"):
        for shape in ([len(text)], [1, len(text)], [0], [2]):
            kind = "Flat" if len(shape) == 1 else "Wide"
            assert "'x'" in refusal(place.ask(in_json(f"{kind}_{dtype}", [entry("x", "BYTES", shape, [text])])))
            blob = struct.pack("<I", len(text)) + text.encode()
            assert "'x'" in refusal(place.ask(framed(f"{kind}_{dtype}", *of_one("BYTES", shape, blob))))
        assert values_of(place.ask(in_json(f"Flat_{dtype}", [entry("x", "BYTES", [1], [text])])))["y"] == [text]


def test_liars_among_many_callers_are_refused_alone(place: Place) -> None:
    """What is wrong with one request never moves the rows of the others in its batch."""
    questions: list[Question] = []
    wanted: list[Any] = []
    for number in range(24):
        rows = [float(number), float(number) + 0.5]
        lie = {0: [3], 1: [2, 1, 1], 2: [1]}.get(number % 6)
        questions.append(in_json("Flat_float32", [entry("x", "FP32", lie or [2], rows)]))
        wanted.append(None if lie else rows)
    for reply, rows in zip(place.together(questions), wanted, strict=True):
        if rows is None:
            assert "'x'" in refusal(reply)
        else:
            assert values_of(reply)["y"] == rows


ONE = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
HOLES: list[Any] = [
    None, {}, [], 5, "inputs", True, {"inputs": None}, {"inputs": {}}, {"inputs": []}, {"inputs": "x"},
    {"input": [ONE]}, *({"inputs": [hole]} for hole in (None, 1, "x", [], {}, {"name": "x"})),
    *({"inputs": [{**ONE, key: value}]} for key in ONE for value in (None, {}, "FP31", 2.5)),
    *({"inputs": [{name: ONE[name] for name in ONE if name != key}]} for key in ONE),
]  # fmt: skip


@pytest.mark.parametrize("body", HOLES, ids=lambda body: json.dumps(body)[:60])
def test_bodies_with_holes_are_the_caller_s_fault(place: Place, body: Any) -> None:
    refusal(place.post("/v2/models/Flat_float32/infer", body))
    text = json.dumps(body).encode()
    refusal(place.post("/v2/models/Flat_float32/infer", text, {"Inference-Header-Content-Length": str(len(text))}))


# --- other dtypes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_datatype_is_refused_by_both_names(place: Place, embedded: Any, dtype: str) -> None:
    """Nothing is narrowed or read as something else: neither in JSON nor from bytes, nor with a matching size."""
    declared = DATATYPES[dtype]
    for other in DTYPES:
        sent = DATATYPES[other]
        if sent == declared:
            continue
        array = sample(other, (2,))
        text = (
            array.tolist() if other not in ("bytes", "bfloat16") else (["a", "b"] if other == "bytes" else [0.0, 1.0])
        )
        for question in (
            in_json(f"Flat_{dtype}", [entry("x", sent, [2], text)]),
            in_binary(f"Flat_{dtype}", {"x": array}),
        ):
            told = refusal(place.ask(question))
            assert f"input 'x': expected {declared}, got {sent}" in told, told
        kinds = NUMPY_TYPES[other], NUMPY_TYPES[dtype]
        plain = not {other, dtype} & {"str", "bytes", "bfloat16"}
        if plain and not np.can_cast(*kinds, "safe"):
            with pytest.raises(Malformed, match="'x'"):
                embedded(f"Flat_{dtype}").predict(x=array)


def test_one_wrong_dtype_among_three_inputs_is_the_one_that_is_named(place: Place) -> None:
    good = {"i": np.array([1, 2], np.int32), "f": np.array([0.5, 1], np.float32), "s": objects(["a", "b"])}
    for name, array, told in (
        ("i", np.array([1, 2], np.int64), "input 'i': expected INT32, got INT64"),
        ("i", objects(["1", "2"]), "input 'i': expected INT32, got BYTES"),
        ("f", np.array([1, 2], np.float64), "input 'f': expected FP32, got FP64"),
        ("s", np.array([1, 2], np.int32), "input 's': expected BYTES, got INT32"),
    ):
        assert told in refusal(place.ask(in_binary("Three", {**good, name: array})))
        entries = [entry(key, DATATYPES["str" if value.dtype == object else str(value.dtype)], [2], value.tolist())
                   for key, value in {**good, name: array}.items()]  # fmt: skip
        assert told in refusal(place.ask(in_json("Three", entries)))
    strings = [
        entry("i", "INT32", [2], ["1", "2"]),
        entry("f", "FP32", [2], [1, 2]),
        entry("s", "BYTES", [2], ["", ""]),
    ]
    assert "'i'" in refusal(place.ask(in_json("Three", strings)))


# --- arrays of any layout ----------------------------------------------------------------------------------------


def views(array: Any) -> dict[str, Any]:
    """Views of a matrix that are no contiguous block of memory, and one that is a single row over and over."""
    return {
        "transposed": array.T, "every other": array[::2], "backwards": array[::-1], "columns": array[:, 1::2],
        "both backwards": array[::-1, ::-1], "fortran": np.asfortranarray(array),
        "broadcast": np.broadcast_to(array[:1], array.shape), "one column": array[:, :1],
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_what_their_copies_are(embedded: Any, dtype: str) -> None:
    for name, view in views(sample(dtype, (6, 4))).items():
        y = embedded(f"Wide_{dtype}").predict(x=view)["y"]
        assert y.shape == view.shape and bits(y) == bits(view.copy()), name


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in ("bfloat16", "str")])
def test_views_through_a_client_are_what_their_copies_are(client: Any, dtype: str) -> None:
    for name, view in views(sample(dtype, (6, 4))).items():
        y = client(f"Wide_{dtype}", view, DATATYPES[dtype])
        assert y.shape == view.shape and bits(y) == bits(view.copy()), name


@pytest.mark.parametrize("kind", [">f2", ">f4", ">f8", ">i2", ">i4", ">i8", ">u2", ">u4", ">u8"])
def test_byte_order_is_no_part_of_a_value(embedded: Any, client: Any, kind: str) -> None:
    array = np.array([[1, 2], [3, 300]], kind)
    dtype = str(array.dtype.newbyteorder("=")) if "f" not in kind else f"float{array.itemsize * 8}"
    same = array.astype(array.dtype.newbyteorder("="))
    y = embedded(f"Wide_{dtype}").predict(x=array)["y"]
    assert y.dtype == NUMPY_TYPES[dtype] and y.tolist() == array.tolist()
    assert np.array_equal(embedded(f"Wide_{dtype}").predict(x=array[::-1].T)["y"], array[::-1].T)
    try:
        answer = client(f"Wide_{dtype}", array, DATATYPES[dtype])
    except InferenceServerException:
        answer = client(f"Wide_{dtype}", same, DATATYPES[dtype])  # that client refuses what it cannot send as it is
    assert answer.tolist() == array.tolist()


def test_columns_may_have_an_axis_of_one_or_none(place: Place, embedded: Any) -> None:
    for a, b in itertools.product([[3], [3, 1]], [[3], [3, 1]]):
        arrays = {"a": np.array([1, 2, 3]).reshape(a), "b": objects(["x", "y", ""]).reshape(b)}
        told = [entry("a", "INT64", a, [1, 2, 3]), entry("b", "BYTES", b, ["x", "y", ""])]
        for reply in place.together([in_json("Columns", told), in_binary("Columns", arrays)] * 3):
            assert values_of(reply) == {"a": [1, 2, 3], "b": [["x"], ["y"], [""]]}
        assert embedded("Columns").predict(arrays)["b"].tolist() == [["x"], ["y"], [""]]
    for shape in ([1, 3], [3, 1, 1], [3, 3]):
        told = [entry("a", "INT64", shape, [1] * int(np.prod(shape))), entry("b", "BYTES", [3], ["", "", ""])]
        assert "'a'" in refusal(place.ask(in_json("Columns", told)))


def test_inputs_that_some_callers_leave_out(place: Place, embedded: Any) -> None:
    """Who leaves one out never gets a neighbour's, whether it has a default, is per row or for the whole batch."""
    asked: list[Question] = []
    wanted: list[Any] = []
    for number in range(24):
        x, plus = np.array([number, -number]), np.array([1000, 2000])
        times, minus = np.array([number, 2]), np.array(number % 4)
        inputs = {"x": x}
        for chosen, (name, array) in zip(
            (1, 2, 4), {"plus": plus, "times": times, "minus": minus}.items(), strict=True
        ):
            if number & chosen:
                inputs[name] = array
        y = x * inputs.get("times", np.array(3)) - inputs.get("minus", 0) + inputs.get("plus", 0)
        asked.append(
            in_binary("Options", inputs) if number % 3
            else in_json("Options", [entry(n, "INT64", a.shape, a.ravel().tolist()) for n, a in inputs.items()])
        )  # fmt: skip
        seen = ",".join(sorted({"x", "times", "minus", *inputs}))
        wanted.append({"y": y.tolist(), "seen": [seen, seen]})
        assert embedded("Options").predict(inputs)["y"].tolist() == y.tolist()
    assert [values_of(reply) for reply in place.together(asked)] == wanted
    assert "'x'" in refusal(place.ask(in_json("Options", [entry("plus", "INT64", [1], [1])])))


# --- the best classes --------------------------------------------------------------------------------------------


def best(place: Place, rows: list[float], count: Any, name: str = "pair", **more: Any) -> Any:
    outputs = [{"name": name, "parameters": {"classification": count, **more}}]
    return place.ask(in_json("Gated", [entry("x", "FP64", [len(rows)], rows)], outputs=outputs))


def test_the_best_classes_of_each_row_with_labels(place: Place) -> None:
    rows = [0.25, -2.0]
    want = [["0.25:0:plain", "-0.25:1:negative"], ["2.0:1:negative", "-2.0:0:plain"]]
    assert values_of(best(place, rows, 1)) == {"pair": [row[:1] for row in want]}
    for count in (2, 3, 1000):
        assert values_of(best(place, rows, count)) == {"pair": want}, "more than there are: all of them"
        assert values_of(best(place, rows, count, binary_data=True)) == {"pair": want}
    assert outputs_of(best(place, rows, 2))["pair"].datatype == "BYTES"
    for count in (0, -1, "3", 1.5, True, [], {}, 2**70):
        assert "'pair'" in refusal(best(place, rows, count))
    assert "'text'" in refusal(best(place, rows, 1, "text"))
    assert values_of(best(place, [], 3)) == {"pair": []}


def test_callers_who_want_classes_beside_callers_who_want_numbers(place: Place) -> None:
    """Each in its own batch position; NaN comes last, in its row only."""
    asked = []
    for number in range(20):
        rows = np.array([float(number), np.nan if number % 5 == 0 else -1.0 - number])
        outputs = [
            {"name": "pair", "parameters": {"classification": 1 + number % 2} if number % 3 else {"binary_data": True}}
        ]
        asked.append(in_binary("Gated", {"x": rows}, outputs=outputs, parameters={"binary_data_output": False}))
    for number, reply in enumerate(place.together(asked)):
        second = np.nan if number % 5 == 0 else -1.0 - number
        if number % 3 == 0:
            assert np.array_equal(
                outputs_of(reply)["pair"].data, [[number, -float(number)], [second, -second]], equal_nan=True
            )
            continue
        first, last = values_of(reply)["pair"]
        assert first[0] == f"{float(number)}:0:plain" and len(first) == 1 + number % 2
        assert last[0] == ("nan:0:plain" if number % 5 == 0 else f"{1.0 + number}:1:negative")


# --- answers without rows ----------------------------------------------------------------------------------------


def test_a_filter_that_keeps_nothing_answers_with_empty_outputs(place: Place, embedded: Any) -> None:
    """Two outputs are empty and two are not; one caller's rows are never another's."""
    names = ["count", "kept", "names", "all"]
    outputs = [{"name": name} for name in names]
    asked, wanted = [], []
    for number in range(18):
        x = [float(number), -1.0][: 1 + number % 2] if number % 3 else [-float(number) - 1, -2.0][: number % 4]
        array = np.array(x, np.float32)
        kept = [value for value in x if value > 0]
        asked.append(
            in_json("Filter", [entry("x", "FP32", [len(x)], x)], outputs=outputs) if number % 2
            else in_binary("Filter", {"x": array}, outputs=outputs)
        )  # fmt: skip
        wanted.append({"count": len(kept), "kept": kept, "names": [f"{value:g}" for value in kept], "all": x})
        found = embedded("Filter").predict(x=array)
        assert (found["kept"].tolist(), found["names"].tolist()) == (kept, wanted[-1]["names"])
    for reply, want in zip(place.together(asked), wanted, strict=True):
        found = outputs_of(reply)
        assert [*found] == names
        assert found["kept"].shape == found["names"].shape == (len(want["kept"]),)
        assert values_of(reply) == want
    only = place.ask(
        in_binary("Filter", {"x": np.array([-1], np.float32)}, outputs=[{"name": "kept"}, {"name": "names"}])
    )
    assert [(name, output.shape, len(output.data)) for name, output in outputs_of(only).items()] == [
        ("kept", (0,), 0), ("names", (0,), 0),
    ]  # fmt: skip
    columns = place.post("/predict/Filter", {"columns": {"x": [-1]}}).json()["columns"]
    assert (columns["kept"], columns["names"], columns["count"]) == ([], [], 0)


# --- what a model gives back -------------------------------------------------------------------------------------

RIGHT = list(RETURNS)[:8]
NAMED = {
    "none": "None", "generator": "generator", "own type": "_Own", "none inside": "None", "own type inside": "_Own",
    "a None among them": "label", "an output less": "label", "another shape": "half", "scalar": "float32",
    "one series": "Series", "too few rows": "2 rows", "too many rows": "2 rows", "rows of one": "label",
}  # fmt: skip


def returning(kind: str, x: list[int], binary: bool) -> Question:
    inputs = [entry("x", "INT64", [len(x)], x), entry("kind", "BYTES", [], [kind])]
    return in_json("Returns", inputs, parameters={"binary_data_output": binary})


@pytest.mark.parametrize("binary", [False, True])
def test_whatever_python_gives_becomes_outputs_or_a_named_fault(place: Place, embedded: Any, binary: bool) -> None:
    """A model's fault is a 500 that names output or type to its own callers; others are answered."""
    x = [4, 7]
    replies = place.together([returning(kind, x, binary) for kind in RETURNS])
    for kind, reply in zip(RETURNS, replies, strict=True):
        direct = {"x": x, "kind": kind}
        if kind in RIGHT:
            assert values_of(reply) == {"label": ["row 4", "row 7"], "half": [2.0, 3.5]}, kind
            assert outputs_of(reply)["half"].datatype == "FP64"
            answer = embedded("Returns").predict(direct)
            assert answer["half"].dtype == np.float64 and answer["label"].tolist() == ["row 4", "row 7"]
            continue
        assert reply.status == 500, (kind, reply.body)
        error = reply.json()["error"]
        assert NAMED[kind] in error and "Traceback" not in error and str(MODELS.parent) not in error, (kind, error)
        with pytest.raises(ModelFault, match=NAMED[kind]):
            embedded("Returns").predict(direct)


def test_a_wrong_return_is_logged_once_with_the_model_s_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replicas = ReplicaSettings(kind="thread")
    odd = ModelSettings(name="odd", source=f"{MODELS}:Returns", replicas=replicas)
    with serving(tmp_path, {"odd": odd}) as place:
        assert place.ask(returning("generator", [1], False)._replace(model="odd")).status == 500
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1 and "odd" in told[0]


def test_a_model_whose_count_of_rows_depends_on_them_is_found_while_it_warms_up(tmp_path: Path) -> None:
    unique = ModelSettings(name="unique", source=f"{MODELS}:Unique", replicas=ReplicaSettings(kind="thread"))
    with serving(tmp_path, {"unique": unique}) as place:
        [row] = place.post("/v2/repository/index", {}).json()
        assert row["state"] == "UNAVAILABLE" and "given 2 rows and returned 1" in row["reason"]
        reply = place.ask(in_json("unique", [entry("x", "INT64", [1], [1])]))
        assert reply.status == 503 and "given 2 rows" in reply.json()["error"]


@pytest.mark.parametrize("model", ["Drops", "Repeats"])
def test_a_model_that_loses_or_adds_rows_fails_and_mixes_no_callers(place: Place, embedded: Any, model: str) -> None:
    """Who sent rows that the model keeps gets just those; who sent others gets an error that counts them."""
    wrong = [-5]
    for turn in range(3):
        asked = [[1000 * turn + 10 * number, 1000 * turn + 10 * number + 1] for number in range(1, 20)]
        asked[7:7] = [wrong, [3, *wrong]]
        questions = [
            in_binary(model, {"x": np.array(x)}) if at % 2 else in_json(model, [entry("x", "INT64", [len(x)], x)])
            for at, x in enumerate(asked)
        ]
        for x, reply in zip(asked, place.together(questions), strict=True):
            if x in (wrong, [3, *wrong]):
                assert reply.status == 500 and "rows" in reply.json()["error"], reply.body
            else:
                assert values_of(reply) == {"y": x}
    with pytest.raises(MaitredError, match="rows"):
        embedded(model).predict(x=wrong)


# --- names that would forge a line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a\nERROR maitred: forged", "\x1b[2Jx", 'x"}\n{"level": "ERROR"}', "x\r\n\r\n", "\u2028x"]
)
def test_names_of_callers_are_shown_escaped_and_log_nothing(
    place: Place, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As the name of an input, an output, a model, a parameter; as an id they are given back as they came."""
    one = entry("x", "FP32", [1], [1.0])
    for told in (
        refusal(place.ask(in_json("Flat_float32", [{**one, "name": name}]))),
        refusal(place.ask(in_json("Flat_float32", [one], outputs=[{"name": name}]))),
        refusal(place.ask(in_json("Flat_float32", [{**one, "datatype": name}]))),
        refusal(place.ask(in_json("Flat_float32", [one], parameters={name: None}))),
        refusal(place.post("/predict/Flat_float32", {name: 1.0})),
        refusal(place.post("/predict/Flat_float32", {"columns": {name: [1.0]}})),
    ):
        assert told.isprintable() and name not in told
    path = f"/v2/models/{quote(name, safe='')}/infer"
    missing = place.post(path, {"inputs": [one]})
    assert 400 <= missing.status < 500 and missing.json()["error"].isprintable()
    replies = place.together([in_json("Flat_float32", [one], id=f"{name}{number}") for number in range(3)])
    for number, reply in enumerate(replies):
        assert reply.status == 400 or reply.json()["id"] == f"{name}{number}"
    assert all(record.getMessage().isprintable() for record in caplog.records)


# --- who can reach the copies ------------------------------------------------------------------------------------


def listeners(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    ports = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports[f"socket:[{fields[9]}]"] = int(fields[1].split(":")[1], 16)
    found = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(handle))
    return {port for inode, port in ports.items() if inode in found}


def test_copies_listen_on_nothing_and_the_server_on_its_two_ports(place: Place) -> None:
    assert {place.house.port, place.house.admin_port} <= listeners(os.getpid())
    assert place.house.replica_pids()
    for pid in place.house.replica_pids():
        assert not listeners(pid) & {place.house.port, place.house.admin_port} and not listeners(pid)
