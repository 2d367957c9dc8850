"""A model in the caller's process: the same answers with and without a queue, clear refusals, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maitred
import maitred.model.refusals
from embed_models import ERRORS, Bound, Gate
from maitred.errors import DeadlinePassed, Draining, MaitredError, Malformed, ModelFault
from maitred.gateway.terms import read_parameters
from maitred.model.tables import table_like
from maitred.wire.coerce import NUMPY_TYPES
from maitred.wire.parameters import from_mapping

HERE = str(pathlib.Path(__file__).with_name("embed_models.py"))
WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "process": {"queue": True, "kind": "process"},
    "thread": {"queue": True, "kind": "thread"},
    "inline": {"queue": True, "kind": "inline"},
}


def opened(name: str, **options: Any) -> maitred.Handle:
    """In this process the models are those of the module that the test sees."""
    place = HERE if options.get("kind") == "process" else "embed_models"
    return maitred.load(f"{place}:{name}", **options)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


QUICK = pytest.mark.parametrize("way", [WAYS["direct"], WAYS["inline"]], ids=["direct", "inline"])
IN_PROCESS = pytest.mark.parametrize("way", [WAYS[k] for k in ("direct", "thread", "inline")], ids=str)

# ---------------------------------------------------------------- asking


def test_all_ways_give_the_same_bits(way: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((200, 2)).astype(np.float32), rng.integers(-9, 9, 200)
    with opened("Two") as direct, opened("Two", max_batch_rows=16, **way) as handle:
        expected, answer = direct.predict(a=a, b=b), handle.predict({"a": a, "b": b})
    assert list(answer) == ["total", "pair", "text"]
    for name in expected:
        assert answer[name].dtype == expected[name].dtype
        assert answer[name].tolist() == expected[name].tolist()
        assert answer[name].flags.owndata and answer[name].flags.writeable


@QUICK
def test_inputs_by_name_by_mapping_and_by_place(way: dict[str, Any]) -> None:
    with opened("One", **way) as handle:
        for answer in (
            handle.predict([1, 2]), handle.predict({"x": [1, 2]}), handle.predict(x=(1, 2)),
            handle.predict(np.array([1, 2])), handle.predict(np.array([1, 9, 2])[::2]),
            handle.predict(pd.Series([1, 2])), handle.predict(pa.array([1, 2])),
            handle.predict(np.array([1, 2], ">i8")),
        ):  # fmt: skip
            assert answer["y"].tolist() == [2, 3]
        with pytest.raises(Malformed, match="either as one argument or by name"):
            handle.predict([1], x=[1])
        with pytest.raises(Malformed, match=r"unknown input 'q': this model takes 'x'$"):
            handle.predict(q=[1])
        with pytest.raises(Malformed, match=r"this model takes 'x'; did you mean 'x'\?$"):
            handle.predict(X=[1])
        with pytest.raises(Malformed, match="x"):
            handle.predict()
    with opened("Two", **way) as handle:
        assert handle.predict(a=[[1, 2]])["total"].tolist() == [4.0]
        with pytest.raises(Malformed, match="several inputs; give them by name: a, b"):
            handle.predict([[1, 2]])


def test_some_outputs_in_the_order_asked(way: dict[str, Any]) -> None:
    with opened("One", **way) as handle:
        assert list(handle.predict([1])) == ["y", "z"]
        assert list(handle.predict([1], outputs=["z", "y"])) == ["z", "y"]
        answer = handle.predict([1], outputs=("z",))
        assert list(answer) == ["z"] and answer["z"].tolist() == [2]
        assert list(handle.predict([1], outputs=np.array(["z"]))) == ["z"]


def test_wrong_outputs_are_refused_and_hurt_nobody(way: dict[str, Any]) -> None:
    with opened("One", **way) as handle:
        for outputs, words in (
            ([], "outputs is empty: leave it out for all, or name some of: y, z"),
            ((), "is empty"), (iter(()), "is empty"),
            (["y", "y"], "asked for twice"), (["q"], "unknown output 'q': this model gives 'y', 'z'$"),
            (["Y"], r"did you mean 'y'\?$"), ("y", "list of output names"),
            (5, "list of output names"), ([None], "list of output names"), ([["y"]], "list of output names"),
            ({"y": 1}, "list of output names"),
        ):  # fmt: skip
            with pytest.raises(Malformed, match=words):
                handle.predict([1], outputs=outputs)
            with pytest.raises(Malformed, match=words):
                asyncio.run(handle.predict_async([1], outputs=outputs if outputs != () else []))
        assert handle.predict([1])["y"].tolist() == [2]


def test_bfloat16_shares_batches() -> None:
    values = np.arange(4, dtype=np.float32).astype(NUMPY_TYPES["bfloat16"])
    with opened("Halves", queue=True, kind="thread") as handle, ThreadPoolExecutor(4) as threads:
        for answer in threads.map(lambda _: handle.predict(values), range(40)):
            assert answer["y"].tolist() == values.tolist()


# ---------------------------------------------------------------- parameters


def test_parameters_reach_the_model_in_pythons_types(way: dict[str, Any]) -> None:
    given = {"a": "x", "b": np.int32(3), "c": np.float32(0.5), "d": np.bool_(True), "e": np.str_("s"), "f": 2**64 - 1}
    said = "[('a', 'x'), ('b', 3), ('c', 0.5), ('d', True), ('e', 's'), ('f', 18446744073709551615)]"
    with opened("Told", **way) as handle:
        assert handle.predict([1], parameters=given)["said"].tolist() == [said]
        assert handle.predict([1], parameters={})["said"].tolist() == ["[]"]


def test_a_model_with_parameters_per_row_gets_them_per_row(way: dict[str, Any]) -> None:
    with opened("ToldEach", **way) as handle:
        answer = handle.predict([1, 2], parameters={"k": 1})["said"].tolist()
        assert answer == [repr(({"k": 1}, ("", 1)))] * 2


WRONG_PARAMETERS: list[tuple[Any, str]] = [
    ({"k": None}, r"parameters\.k must be"), ({"k": [1]}, r"parameters\.k must be"), ({"k": {}}, r"parameters\.k must"),
    ({"k": b"x"}, r"parameters\.k"), ({"k": np.array([1])}, r"parameters\.k"), ({"k": 1j}, r"parameters\.k"),
    ({"k": np.datetime64("2020")}, r"parameters\.k"), ({"k": object()}, r"parameters\.k"),
    ({"k": 2**64}, r"parameters\.k does not fit 64 bits"), ({"k": -(2**63) - 1}, r"parameters\.k does not fit"),
    ({"k": "\ud800"}, r"parameters\.k"), ({"k": "x" * 4097}, r"parameters\.k"), ({"k": "\0"}, r"parameters\.k"),
    ({1: 1}, "name must be a string"), ({None: 1}, "name must be a string"), ({"": 1}, "a name is empty"),
    ({"x" * 129: 1}, "a name is"), ({"\ud800": 1}, "a name is"),
    ({f"k{i}": 1 for i in range(65)}, "more than 64"), ([("k", 1)], "must be a mapping"), ("k", "must be a mapping"),
    (5, "must be a mapping"), ([], "must be a mapping"),
]  # fmt: skip


def test_wrong_parameters_are_refused_the_same_in_every_way(way: dict[str, Any]) -> None:
    with opened("Told", **way) as handle:
        for wrong, words in WRONG_PARAMETERS:
            with pytest.raises(Malformed, match=words):
                handle.predict([1], parameters=wrong)
        assert handle.predict([1])["said"].tolist() == ["[]"]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=4), SCALARS, max_size=3))
def test_python_and_wire_have_the_same_rules_for_parameters(given: dict[str, Any]) -> None:
    """Names that the protocol keeps for itself apart."""
    results = []
    for check in (from_mapping, lambda found: read_parameters(found).custom):
        try:
            results.append(repr(check(given)))
        except Malformed as error:
            results.append(error.message)
    assert results[0] == results[1]


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("wrong", [wrong for wrong, _ in WRONG_PARAMETERS if isinstance(wrong, dict)], ids=repr)
def test_python_and_wire_refuse_parameters_in_the_same_words(wrong: dict[Any, Any]) -> None:
    with pytest.raises(Malformed) as python:
        from_mapping(wrong)
    with pytest.raises(Malformed) as wire:
        read_parameters({name: plain(value) for name, value in wrong.items()})
    assert python.value.message == wire.value.message


def test_equal_values_of_different_types_share_no_batch() -> None:
    values = [1, 1.0, True, "1", 0.0, -0.0, float("nan")]
    with opened("One") as handle:
        groups = [handle._request([1], {}, None, {"k": value}, None).group for value in values]
        again = [handle._request([1], {}, None, {"k": value}, None).group for value in values]
        assert len(set(groups)) == len(values) and groups == again
        both = [handle._request([1], {}, None, order, None).group for order in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
        assert both[0] == both[1]


# ---------------------------------------------------------------- arguments of load


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"replicas": 0}, ValueError, "replicas must be"), ({"replicas": -1}, ValueError, "replicas must be"),
        ({"replicas": 1.5}, TypeError, "replicas must be"), ({"replicas": True}, TypeError, "replicas must be"),
        ({"replicas": None}, TypeError, "replicas must be"), ({"max_batch_rows": 0}, ValueError, "max_batch_rows must"),
        ({"max_batch_rows": "8"}, TypeError, "max_batch_rows must"),
        ({"kind": "fork"}, ValueError, "kind must be one of"),
        ({"kind": None}, ValueError, "kind must be one of"), ({"kind": []}, ValueError, "kind must be one of"),
        ({"name": 5}, TypeError, "name must be"), ({"path": None}, TypeError, "path must be a string"),
        ({"path": 5}, TypeError, "path must be"), ({"path": b"m.py"}, TypeError, "path must be"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_before_anything_starts(
    queue: bool, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    threads = threading.active_count()
    with pytest.raises(error, match=words):
        maitred.load(**{"path": f"{HERE}:One", "queue": queue, **wrong})
    assert threading.active_count() == threads


def test_a_path_object_is_a_path(tmp_path: pathlib.Path) -> None:
    with pytest.raises(maitred.model.refusals.LoadRefused):
        maitred.load(tmp_path / "nothing")


def test_a_queue_in_front_of_a_broken_model_leaves_nothing(way: dict[str, Any]) -> None:
    before = threading.active_count()
    with pytest.raises((maitred.model.refusals.LoadRefused, TypeError)):
        opened("Nobody", **way)
    until(lambda: threading.active_count() == before)


# ---------------------------------------------------------------- closed and dropped


@pytest.mark.parametrize("name", ["One", "Bound"])
def test_a_closed_model_says_so(way: dict[str, Any], name: str) -> None:
    handle = opened(name, **way)
    handle.predict([1])
    handle.close()
    handle.close()
    for _ in range(2):
        with pytest.raises(Draining, match="this model was closed; load it again"):
            handle.predict([1])
        with pytest.raises(Draining, match="this model was closed; load it again"):
            asyncio.run(handle.predict_async([1]))
        with pytest.raises(Draining, match="this model was closed; load it again"):
            handle.predict_table(pd.DataFrame({"x": [1]}))
    gc.collect()  # a coroutine that nobody awaited would warn now


def _ours(strangers: set[threading.Thread]) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("maitred") and t not in strangers]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("end", ["close", "drop", "drop in a cycle"])
@pytest.mark.parametrize("name", ["One", "Bound"])
def test_nothing_is_left_of_a_model_that_is_closed_or_dropped(way: dict[str, Any], name: str, end: str) -> None:
    strangers = set(threading.enumerate())  # other tests leave threads of models that cannot be ended
    opened(name, **way).close()  # what is made once for the whole process
    gc.collect()
    until(lambda: not _ours(strangers))
    descriptors = _descriptors()
    handle: Any = opened(name, **way)
    handle.predict([1])
    pids = handle._engine._pool.pids() if way else []
    assert len(pids) == (way.get("kind") == "process")
    gone = weakref.ref(handle)
    if end == "close":
        handle.close()
    if end == "drop in a cycle":
        handle.itself = handle
    del handle
    gc.collect()
    assert gone() is None
    until(lambda: not _ours(strangers))
    until(lambda: _descriptors() <= descriptors)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_a_program_that_forgets_to_close_ends_cleanly(way: dict[str, Any]) -> None:
    text = f"""
    import maitred
    handle = maitred.load({HERE + ":One"!r}, **{way!r})
    print(handle.predict([1])["y"].tolist())
    """
    assert script(text) == "[2]\n"


def script(text: str) -> str:
    """What a program prints; it must end well and say nothing on its error output."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=50
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


FORKED = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import maitred
handle = maitred.load({model!r}, **{way!r})
handle.predict([1])
if {hold!r}:
    engine = handle._engine
    engine._lock.acquire()  # another thread runs the model at the moment of the fork
pid = os.fork()
if pid == 0:
    try:
        print(handle.predict([1])["y"].tolist())
    except Exception as error:
        print(type(error).__name__, error)
    handle.close()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
if {hold!r}:
    engine._lock.release()
print(handle.predict([1])["y"].tolist())
handle.close()
"""


@pytest.mark.parametrize(
    ("name", "way"),
    [("One", WAYS["process"]), ("One", WAYS["thread"]), ("One", WAYS["inline"]), ("Bound", {})],
    ids=str,
)
def test_a_forked_child_is_told_to_load_the_model_again(name: str, way: dict[str, Any]) -> None:
    said, after = script(FORKED.format(model=f"{HERE}:{name}", way=way, hold=False)).splitlines()
    assert said == "RuntimeError this model was loaded before the process was forked; load it again in the child"
    assert after == ("[2]" if name == "One" else "[1]")


@pytest.mark.parametrize("hold", [False, True])
def test_a_forked_child_can_use_a_model_without_a_queue(hold: bool) -> None:
    assert script(FORKED.format(model=f"{HERE}:One", way={}, hold=hold)) == "[2]\n[2]\n"


# ---------------------------------------------------------------- timeouts


WRONG_TIMEOUTS = [0, 0.0, -1, -0.0, float("nan"), float("inf"), float("-inf"), "1", True, [], 1j]


def test_a_timeout_that_is_none_is_refused(way: dict[str, Any]) -> None:
    with opened("One", **way) as handle:
        for wrong in [*WRONG_TIMEOUTS, 10**400, 10**5000]:
            with pytest.raises(Malformed, match="timeout_seconds must be a positive, finite number"):
                handle.predict([1], timeout_seconds=wrong)
            with pytest.raises(Malformed, match="timeout_seconds must be a positive, finite number"):
                handle.predict_table(pd.DataFrame({"x": [1]}), timeout_seconds=wrong)
        for fine in (30, 30.0, np.float32(30), np.int64(30), 1e12, 1e300, None):
            assert handle.predict([1], timeout_seconds=fine)["y"].tolist() == [2]


@pytest.fixture
def gate() -> Iterator[type[Gate]]:
    Gate.entered.clear()
    Gate.opened.clear()
    yield Gate
    Gate.opened.set()


@IN_PROCESS
def test_an_answer_after_the_timeout_is_none(way: dict[str, Any], gate: type[Gate]) -> None:
    with opened("Gate", **way) as handle, ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        call = threads.submit(handle.predict, [7], timeout_seconds=0.3)
        assert gate.entered.wait(20)
        until(lambda: time.monotonic() > began + 0.4)
        gate.opened.set()
        with pytest.raises(DeadlinePassed):
            call.result(20)
        assert handle.predict([1], timeout_seconds=20)["y"].tolist() == [1]


def test_who_waits_for_a_busy_model_is_late_too(gate: type[Gate]) -> None:
    with opened("Gate") as handle, ThreadPoolExecutor(1) as threads:
        first = threads.submit(handle.predict, [7])
        assert gate.entered.wait(20)
        with pytest.raises(DeadlinePassed, match="busy with other calls"):
            handle.predict([1], timeout_seconds=0.01)
        with pytest.raises(DeadlinePassed, match="busy with other calls"):
            asyncio.run(handle.predict_async([1], timeout_seconds=0.01))
        gate.opened.set()
        assert first.result(20)["y"].tolist() == [7]


def test_an_asynchronous_model_is_interrupted() -> None:
    with opened("Bound") as handle:
        with pytest.raises(DeadlinePassed, match="longer than the timeout"):
            handle.predict([7], timeout_seconds=0.02)
        assert Bound.running == 0


# ---------------------------------------------------------------- asynchronous models and callers


def test_an_asynchronous_model_keeps_its_loop_and_is_called_from_everywhere() -> None:
    with opened("Bound") as handle:

        async def ask() -> None:
            assert handle.predict([1])["y"].tolist() == [1]  # blocks this loop, and works
            many = await asyncio.gather(*(handle.predict_async([i]) for i in range(11, 19)))
            assert [int(answer["y"][0]) for answer in many] == [*range(11, 19)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle.predict_async([7]), 0.02)

        asyncio.run(ask())
        asyncio.run(ask())
        assert handle.predict([2])["y"].tolist() == [2]
        assert Bound.most == 2, "its slots"
        until(lambda: Bound.running == 0)


def test_a_model_in_use_by_many_threads_and_a_loop(way: dict[str, Any]) -> None:
    with opened("One", **way) as handle, ThreadPoolExecutor(8) as threads:

        async def ask() -> list[Any]:
            return await asyncio.gather(*(handle.predict_async([i]) for i in range(40)))

        calls = [threads.submit(handle.predict, [i]) for i in range(40)]
        assert [int(answer["y"][0]) for answer in asyncio.run(ask())] == [*range(1, 41)]
        assert [int(call.result(20)["y"][0]) for call in calls] == [*range(1, 41)]


@pytest.mark.parametrize("name", ["One", "Bound"])
def test_every_call_ends_while_the_model_is_closed(way: dict[str, Any], name: str) -> None:
    handle = opened(name, **way)
    enough = threading.Event()

    def ask() -> str:
        while True:
            try:
                handle.predict([1])
                enough.set()
            except Draining as error:
                return error.message

    async def ask_async() -> str:
        while True:
            try:
                await asyncio.gather(*(handle.predict_async([1]) for _ in range(4)))
            except Draining as error:
                return error.message

    with ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(ask) for _ in range(4)] + [threads.submit(lambda: asyncio.run(ask_async()))]
        assert enough.wait(20)
        closers = [threading.Thread(target=handle.close) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join(20)
        assert {call.result(20) for call in calls} == {"this model was closed; load it again"}


def test_closing_ends_calls_that_would_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maitred.embed._CLOSE_SECONDS", 0.01)
    handle = opened("Bound")
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(handle.predict, [7]) for _ in range(4)]  # two run, two wait for a slot
        until(lambda: Bound.running == 2)
        handle.close()
        for call in calls:
            with pytest.raises(Draining, match="was closed"):
                call.result(20)


# ---------------------------------------------------------------- models that misbehave


@IN_PROCESS
def test_a_model_cannot_write_into_the_callers_arrays(way: dict[str, Any]) -> None:
    x, t = np.ones((3, 2), np.float32), np.ones(3, bool)
    readonly = x.view()
    readonly.flags.writeable = False
    with opened("Writer", **way) as handle:
        for array in (x, readonly, x[:2], x[::2]):
            with pytest.raises(ModelFault, match="ValueError"):
                handle.predict(x=array, t=t[: len(array)])
        for array in (pd.DataFrame(x), pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)):
            with pytest.raises(ModelFault, match="ValueError"):
                handle.predict(x=array)
        assert handle.predict(x=np.empty((0, 2), np.float32))["y"].shape == (0, 2)
    assert x.all() and t.all()


@pytest.mark.parametrize("name", ["Exits", "ExitsAsync"])
@pytest.mark.parametrize("queue", [False, True])
def test_a_model_may_say_that_an_input_is_the_callers_mistake(name: str, queue: bool) -> None:
    with opened(name, queue=queue) as handle:
        with pytest.raises(Malformed, match=r"^said so$"):
            handle.predict([1], parameters={"error": "InvalidInput"})
        with pytest.raises(Malformed, match=r"^said so$"):
            asyncio.run(handle.predict_async([1], parameters={"error": "InvalidInput"}))
        assert handle.predict([1])["y"].tolist() == [1]


@pytest.mark.parametrize("name", ["Exits", "ExitsAsync"])
@pytest.mark.parametrize("error", sorted(set(ERRORS) - {"KeyboardInterrupt", "InvalidInput"}))
def test_what_a_model_raises_is_its_fault(name: str, error: str) -> None:
    if (name, error) == ("ExitsAsync", "StopIteration"):
        error_words = "RuntimeError: coroutine raised StopIteration"
    else:
        error_words = f"^{error}: said so"
    with opened(name) as handle:
        with pytest.raises(ModelFault, match=error_words):
            handle.predict([1], parameters={"error": error})
        with pytest.raises(ModelFault, match=error_words):
            asyncio.run(handle.predict_async([1], parameters={"error": error}))
        assert handle.predict([1])["y"].tolist() == [1]


@pytest.mark.parametrize("name", ["Exits", "ExitsAsync"])
@pytest.mark.parametrize("error", ["SystemExit", "CancelledError", "ValueError"])
@pytest.mark.parametrize("kind", ["thread", "inline"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_call_ends_when_a_model_exits_behind_a_queue(kind: str, error: str, name: str) -> None:
    with opened(name, queue=True, kind=kind) as handle, ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(handle.predict, [1], parameters={"error": error}) for _ in range(4)]
        for call in calls:
            with pytest.raises(MaitredError):
                call.result(20)


@pytest.mark.parametrize("name", ["Exits", "ExitsAsync"])
def test_ctrl_c_passes_through(name: str) -> None:
    with opened(name) as handle:
        with pytest.raises(KeyboardInterrupt):
            handle.predict([1], parameters={"error": "KeyboardInterrupt"})
        assert handle.predict([1])["y"].tolist() == [1]


# ---------------------------------------------------------------- tables


FRAME = pd.DataFrame({"q": ["extra", "column"], "b": [10, 20], "a": [[1.0, 2.0], [3.0, 4.0]]}, index=["r1", "r2"])


@QUICK
def test_a_data_frame_keeps_its_index(way: dict[str, Any]) -> None:
    with opened("Two", **way) as handle:
        answer = handle.predict_table(FRAME)
        again = asyncio.run(handle.predict_table_async(FRAME))
    assert list(answer.columns) == ["total", "pair", "text"] and list(answer.index) == ["r1", "r2"]
    assert answer["total"].tolist() == [13.0, 27.0] and answer["text"].tolist() == ["13.0", "27.0"]
    assert [row.tolist() for row in answer["pair"]] == [[2.0, 4.0], [6.0, 8.0]]
    assert again["total"].tolist() == [13.0, 27.0]


@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatch])
@QUICK
def test_an_arrow_table_becomes_one_with_the_declared_types(way: dict[str, Any], kind: Any) -> None:
    schema = pa.schema({"q": pa.string(), "b": pa.int64(), "a": pa.list_(pa.float32())})
    table = kind.from_pydict({name: FRAME[name].tolist() for name in schema.names}, schema)
    with opened("Two", **way) as handle:
        answer = handle.predict_table(table)
    assert isinstance(answer, kind)
    assert answer.to_pydict() == {"total": [13.0, 27.0], "pair": [[2.0, 4.0], [6.0, 8.0]], "text": ["13.0", "27.0"]}
    assert answer.schema.types == [pa.float64(), pa.list_(pa.float32()), pa.string()]


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 1, 1), (0, 3)])
def test_every_dtype_fits_into_an_arrow_table(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.empty(shape, NUMPY_TYPES[dtype])
    array[...] = {"str": "x", "bytes": b"x"}.get(dtype, 1)
    signature = maitred.Signature({"x": "int64[n]"}, {"y": f"{dtype}{['n', *shape[1:]]}".replace("'", "")})
    kind = table_like(pa.table({"x": [1]}), {"y": array}, signature)["y"].type
    for _ in shape[1:]:
        kind = kind.value_type
    assert kind == pa.type_for_alias({"str": "string", "bytes": "binary", "bfloat16": "float32"}.get(dtype, dtype))


@pytest.mark.parametrize("table", [FRAME.iloc[:0], pa.Table.from_pandas(FRAME).slice(0, 0)], ids=["frame", "arrow"])
def test_a_table_without_rows(table: Any) -> None:
    with opened("Two") as handle:
        answer = handle.predict_table(table)
    assert len(answer) == 0 and list(answer.to_pandas() if isinstance(answer, pa.Table) else answer) == [
        "total", "pair", "text",
    ]  # fmt: skip


def test_tables_that_do_not_fit_are_refused_by_name() -> None:
    with opened("Two") as handle:
        for table in (FRAME[["b"]], pa.table({"b": [1]})):
            with pytest.raises(Malformed, match="lacks the columns 'a'; it has: b"):
                handle.predict_table(table)
        assert handle.predict_table(FRAME[["a"]])["total"].tolist() == [4.0, 8.0]  # `b` is optional
        for wrong in ("B", " b_"):  # its default would be used, and nobody would know
            with pytest.raises(Malformed, match=f"a column '{wrong}' and none 'b', which may be left out"):
                handle.predict_table(FRAME[["a"]].assign(**{wrong: 3}))
        assert handle.predict_table(FRAME.assign(B=3, c=4)).equals(handle.predict_table(FRAME))
        for thing in ([1], {"a": 1}, np.ones((1, 2)), None):
            with pytest.raises(Malformed, match="a table is a pandas DataFrame or an Arrow table"):
                handle.predict_table(thing)
        with pytest.raises(Malformed, match="'a'"):
            handle.predict_table(pd.DataFrame({0: [1.0], 1: [2.0]}))


def test_versions_and_options_of_an_artifact_may_be_stated() -> None:
    with pytest.raises(ValueError, match="versions must be one of 'refuse', 'warn', 'ignore', not 'never'"):
        maitred.load("embed_models:Two", versions="never")  # type: ignore[arg-type]
    with maitred.load("embed_models:Two", versions="warn", options={}) as handle:
        assert handle.predict_table(FRAME).shape[0] == 2
