"""The contract suite of replicas: what every kind must do, as tests to inherit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest

from maitred.errors import MaitredError
from maitred.messages import HIGH, ITEM_BYTES, NORMAL, Outputs, Request, Tensor
from maitred.model.description import Description
from maitred.model.signature import Signature
from maitred.model.source import Source
from maitred.replica.lifecycle import IllegalMove
from maitred.replica.replica import Cause, Listener, Replica, ReplicaSettings
from maitred.testing import replica_models
from maitred.wire.coerce import NUMPY_TYPES, to_array

PATIENCE_SECONDS: Final = 20.0
"""How long an expected event may take before the test fails."""

FAILURES: Final = [
    ("raise:it is so", Cause.RAISED, "ValueError: it is so"),
    ("raise:" + "long " * 1000, Cause.RAISED, "ValueError: long"),
    ("raise:ünï", Cause.RAISED, "ValueError: ünï"),
    ("memory", Cause.OUT_OF_MEMORY, "MemoryError"),
    ("count", Cause.WRONG_COUNT, "given 2 rows and returned 3"),
    ("kind", Cause.RAISED, "object"),
    ("surrogate", Cause.RAISED, "UnicodeEncodeError"),
    ("leave", Cause.RAISED, "SystemExit: 3"),
    ("interrupt", Cause.RAISED, "KeyboardInterrupt"),
    ("cancelled:own", Cause.RAISED, "CancelledError: own"),
    ("generator", Cause.RAISED, "GeneratorExit"),
    ("mute", Cause.RAISED, "Mute"),
]
"""Words for a puppet, the cause of the failure, and what it says."""

Make = Callable[[int, Source, ReplicaSettings, asyncio.AbstractEventLoop, Listener], Replica]
Answer = dict[str, Any]


def source(model: type) -> Source:
    """Where a replica finds a model of `replica_models`."""
    return Source(path=f"{replica_models.__name__}:{model.__name__}")


def request(signature: Signature, values: Mapping[str, Any], **more: Any) -> Request:
    """A checked request of these values: arrays as raw bytes, texts as lists."""
    tensors = {}
    for name, value in values.items():
        dtype = signature.inputs[name].dtype
        array = np.asarray(value, NUMPY_TYPES[dtype])
        data = array.reshape(-1).tolist() if dtype in ("str", "bytes") else array.tobytes()
        tensors[name] = Tensor(dtype, array.shape, data)
    checked = signature.check(tensors)
    return Request(checked.inputs, checked.rows, checked.group, float("inf"), ragged=checked.ragged, **more)


class Recorder:
    """A listener that keeps what it hears, with copies of all arrays."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.losses = 0

    def ready(self, replica: Replica, description: Description) -> None:
        self.heard.put_nowait(("ready", description))

    def answered(self, replica: Replica, batch_id: int, outputs: Outputs) -> None:
        arrays = {name: to_array(tensor).copy() for name, tensor in outputs.tensors.items()}
        shapes = all(tensor.shape == arrays[name].shape for name, tensor in outputs.tensors.items())
        assert shapes
        assert outputs.model_seconds >= 0
        self.heard.put_nowait(("answered", batch_id, arrays))

    def failed(self, replica: Replica, batch_id: int, cause: Cause, error: MaitredError) -> None:
        self.heard.put_nowait(("failed", batch_id, cause, error.message))

    def lost(self, replica: Replica, reason: str, started: frozenset[int]) -> None:
        self.losses += 1
        self.heard.put_nowait(("lost", reason, started))

    async def next(self, kind: str) -> tuple[Any, ...]:
        """The next event, which must be of this kind."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            event = await self.heard.get()
        assert event[0] == kind, f"expected {kind}, heard {event}"
        return event[1:]


class Stage:
    """One replica and its listener, gone when the block ends."""

    def __init__(self, make: Make, model: type, settings: ReplicaSettings, id: int = 1) -> None:
        self.recorder = Recorder()
        self.signature: Signature = model.signature  # type: ignore[attr-defined]
        self._make = make
        self._model = model
        self._settings = settings
        self._id = id
        self._batches = 0

    async def __aenter__(self) -> Stage:
        loop = asyncio.get_running_loop()
        self.replica = self._make(self._id, source(self._model), self._settings, loop, self.recorder)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self.recorder.losses == 0 and self.replica.state != "new":
            self.replica.kill()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (await self.recorder.heard.get())[0] != "lost":
                    continue
        assert self.recorder.losses <= 1

    async def ready(self) -> Description:
        self.replica.launch()
        (description,) = await self.recorder.next("ready")
        assert isinstance(description, Description)
        return description

    def give(self, *members: Mapping[str, Any], **more: Any) -> int:
        """Run one batch of a request for each of `members`."""
        return self.run([request(self.signature, member, **more) for member in members])

    def run(self, requests: list[Request]) -> int:
        self._batches += 1
        self.replica.run(self._batches, requests, sum(each.rows for each in requests))
        return self._batches

    async def answer(self, batch: int) -> Answer:
        answered, arrays = await self.recorder.next("answered")
        assert answered == batch
        assert isinstance(arrays, dict)
        return arrays

    async def failure(self, batch: int) -> tuple[Cause, str]:
        failed, cause, message = await self.recorder.next("failed")
        assert failed == batch
        return cause, message

    async def puppet(self, *words: str, place: Path | None = None) -> int:
        """Give a `Puppet` its words, a request each; with `place`, wait until it runs."""
        batch = self.give(*({"do": [word], "place": [str(place or "")]} for word in words))
        if place is not None:
            await until(place.exists)
        return batch


async def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition that nothing announces; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  it is nobody's to announce
            await asyncio.sleep(0.005)


class ReplicaContract:
    """Inherit from this, say how a replica is made, and have its tests collected."""

    settings: ClassVar[ReplicaSettings] = ReplicaSettings(max_batch_rows=8, stop_seconds=2.0)

    def make(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
    ) -> Replica:
        raise NotImplementedError

    def stage(self, model: type, settings: ReplicaSettings | None = None) -> Stage:
        return Stage(self.make, model, settings or self.settings)

    def perform(self, model: type, play: Callable[[Stage], Awaitable[None]]) -> None:
        """Run `play` with a replica of `model` that is ready."""

        async def whole() -> None:
            async with self.stage(model) as stage:
                await stage.ready()
                await play(stage)

        asyncio.run(whole())

    # ------------------------------------------------------------------ answers

    def test_it_tells_what_it_is_and_has_room_only_when_ready(self) -> None:
        async def play() -> None:
            async with self.stage(replica_models.Echo) as stage:
                assert stage.replica.room == 0
                description = await stage.ready()
                assert stage.replica.state == "ready"
                assert stage.replica.room == 1
                assert stage.replica.load_seconds > 0
                assert stage.replica.warmup_seconds > 0
                assert not stage.replica.frozen()
                assert description.signature == replica_models.Echo.signature
                with pytest.raises(IllegalMove):
                    stage.replica.launch()

        asyncio.run(play())

    def test_rows_of_a_batch_come_back_in_order_and_batches_one_after_the_other(self) -> None:
        async def play(stage: Stage) -> None:
            for start in range(0, 50, 5):
                members = [{"x": [[start + i, i]]} for i in range(3)] + [{"x": [[start, 3], [start, 4]]}]
                arrays = await stage.answer(stage.give(*members))
                assert arrays["total"].tolist() == [start, start + 2, start + 4, start + 3, start + 4]

        self.perform(replica_models.Echo, play)

    def test_every_dtype_keeps_its_bits(self) -> None:
        edges = {dtype: np.frombuffer(bytes(range(256)), NUMPY_TYPES[dtype]) for dtype in ITEM_BYTES if dtype != "bool"}
        edges["bool"] = np.arange(256) % 3 == 0
        texts = ["", "a\0b\0", "ü", "漢字😀", "\ufffd", "x" * 300, "\u0000", "'\"\n"]
        raws = [b"", b"\0", b"\0a\0\0", b"\xff\xfe\x80", bytes(range(256)), b"text", b"\r\n", b"\xed\xa0\x80"]

        async def play(stage: Stage) -> None:
            for split in (1, 4):
                size = 8 // split
                members: list[dict[str, Any]] = []
                for start in range(0, 8, size):
                    rows = slice(start, start + size)
                    member: dict[str, Any] = {"x": np.zeros((size, 2)), "str": texts[rows], "bytes": raws[rows]}
                    members.append(member | {dtype: edges[dtype][rows] for dtype in ITEM_BYTES})
                arrays = await stage.answer(stage.give(*members))
                for dtype in ITEM_BYTES:
                    assert arrays[dtype].dtype == NUMPY_TYPES[dtype]
                    assert arrays[dtype].tobytes() == edges[dtype][:8].tobytes(), dtype
                assert arrays["str"].tolist() == texts
                assert arrays["bytes"].tolist() == raws

        self.perform(replica_models.Echo, play)

    def test_arrays_are_taken_as_well_as_bytes(self) -> None:
        async def play(stage: Stage) -> None:
            def member(start: float) -> Request:
                made = request(stage.signature, {"x": np.zeros((2, 2)), "bfloat16": np.zeros(2), "bool": [True, False]})
                x = np.arange(start, start + 4, dtype=np.float32).reshape(2, 2)
                half = np.array([start, -start], NUMPY_TYPES["bfloat16"])
                made.inputs["x"] = Tensor("float32", (2, 2), x)
                made.inputs["bfloat16"] = Tensor("bfloat16", (2,), half)
                return made

            for starts in ([1.0], [1.0, 2.0]):
                arrays = await stage.answer(stage.run([member(start) for start in starts]))
                assert arrays["x"].reshape(-1).tolist() == [start + i for start in starts for i in range(4)]
                assert arrays["bfloat16"].tolist() == [sign * start for start in starts for sign in (1, -1)]

        self.perform(replica_models.Echo, play)

    def test_no_rows_are_an_answer_too(self) -> None:
        async def play(stage: Stage) -> None:
            arrays = await stage.answer(stage.give({"x": np.zeros((0, 2)), "str": []}))
            assert arrays["x"].shape == (0, 2)
            assert arrays["str"].shape == (0,)

        self.perform(replica_models.Echo, play)

    def test_only_wanted_outputs_come_and_in_that_order(self) -> None:
        async def play(stage: Stage) -> None:
            arrays = await stage.answer(stage.give({"x": [[1, 2]]}, outputs=("str", "total")))
            assert list(arrays) == ["str", "total"]
            x = [request(stage.signature, {"x": [[1, 2]]}, outputs=(name,)) for name in ("x", "total")]
            arrays = await stage.answer(stage.run(x))
            assert {"x", "total"} <= set(arrays)

        self.perform(replica_models.Echo, play)

    def test_the_context_tells_parameters_outputs_and_whose_rows(self) -> None:
        async def play(stage: Stage) -> None:
            parameters = {"k": 1, "deep": [{"x": None, "y": "ü"}], "big": 2**63}
            requests = [
                request(stage.signature, {"x": [1, 2]}, id="a", lane=HIGH, parameters=parameters),
                request(stage.signature, {"x": [3]}, id="b", lane=NORMAL, parameters=parameters),
            ]
            arrays = await stage.answer(stage.run(requests))
            assert arrays["said"].tolist() == [repr(parameters)] * 3
            assert arrays["who"].tolist() == ["a/0", "a/0", "b/1"]
            assert arrays["wanted"].tolist() == ["None"] * 3
            arrays = await stage.answer(stage.give({"x": [1]}, outputs=("wanted", "said")))
            assert arrays["wanted"].tolist() == ["('wanted', 'said')"]
            assert arrays["said"].tolist() == ["{}"]

        self.perform(replica_models.Told, play)

    def test_parameters_may_go_row_by_row(self) -> None:
        async def play(stage: Stage) -> None:
            requests = [
                request(stage.signature, {"x": [1, 2]}, parameters={"t": 1}),
                request(stage.signature, {"x": [3]}),
            ]
            arrays = await stage.answer(stage.run(requests))
            assert arrays["said"].tolist() == ["{'t': 1}", "{'t': 1}", "{}"]

        self.perform(replica_models.EachTold, play)

    def test_answers_may_be_larger_than_anybody_guessed(self) -> None:
        async def play(stage: Stage) -> None:
            for size in (3, 50_000, 1, 800_000, 100_000):
                arrays = await stage.answer(stage.give({"size": [size]}, {"size": [0]}))
                assert arrays["y"].shape == (2, size)
                assert arrays["y"][1, -1] == 2 * size - 1
                assert arrays["text"].tolist() == ["ü" * size] * 2

        self.perform(replica_models.Long, play)

    def test_requests_may_be_larger_than_any_segment(self) -> None:
        async def play(stage: Stage) -> None:
            for rows in (1, 200_000, 10, 400_000):
                x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
                arrays = await stage.answer(stage.give({"x": x}, {"x": -x}, outputs=("x",)))
                assert np.array_equal(arrays["x"], np.concatenate([x, -x]))

        self.perform(replica_models.Echo, play)

    def test_a_model_without_rows_gets_its_one_request(self) -> None:
        async def play(stage: Stage) -> None:
            arrays = await stage.answer(stage.give({"a": [[1, 2], [3, 4], [5, 6]], "b": [10, 1]}))
            assert arrays["c"].tolist() == [12, 34, 56, 10, 1]
            arrays = await stage.answer(stage.give({"a": np.zeros((0, 1)), "b": [7]}))
            assert arrays["c"].tolist() == [7]

        self.perform(replica_models.Whole, play)

    def test_a_fixed_batch_is_padded_and_cut(self) -> None:
        async def play(stage: Stage) -> None:
            arrays = await stage.answer(stage.give({"x": [1]}, {"x": [2, 3, 4, 5]}))
            assert arrays["rows"].tolist() == [4] * 5

        self.perform(replica_models.Fixed, play)

    # ------------------------------------------------------------------ inputs

    def test_inputs_are_read_only(self) -> None:
        async def play(stage: Stage) -> None:
            cause, message = await stage.failure(await stage.puppet("write"))
            assert cause == Cause.RAISED
            assert "read-only" in message

        self.perform(replica_models.Puppet, play)

    def test_a_model_that_writes_into_its_inputs_gets_copies(self) -> None:
        async def play(stage: Stage) -> None:
            x = np.array([1, 2], np.float32)
            made = request(stage.signature, {"x": x})
            made.inputs["x"] = Tensor("float32", (2,), x)
            for _ in range(2):
                arrays = await stage.answer(stage.run([made]))
                assert arrays["x"].tolist() == [2, 3]
            assert x.tolist() == [1, 2]

        self.perform(replica_models.Scribe, play)

    # ------------------------------------------------------------------ failures

    @pytest.mark.parametrize("model", [replica_models.Puppet, replica_models.Later])
    def test_a_failure_says_what_it_is_and_the_next_batch_runs(self, model: type) -> None:
        async def play(stage: Stage) -> None:
            for word, cause, says in FAILURES:
                for _ in range(stage.replica.room + 1):  # fewer could be lost unseen
                    got, message = await stage.failure(await stage.puppet(word, "second"))
                    assert got == cause, word
                    assert says in message
                    assert len(message) <= 500
                    assert "Traceback" not in message
                arrays = await stage.answer(await stage.puppet("nothing"))
                assert arrays["said"].tolist() == ["done"]
                assert stage.replica.state == "ready"

        self.perform(model, play)

    def test_an_asynchronous_model_that_cancels_itself_fails_and_goes_on(self) -> None:
        async def play(stage: Stage) -> None:
            for _ in range(stage.replica.room + 1):
                cause, message = await stage.failure(await stage.puppet("cancel"))
                assert (cause, message) == (Cause.RAISED, "CancelledError")
            arrays = await stage.answer(await stage.puppet("nothing"))
            assert arrays["said"].tolist() == ["done"]

        self.perform(replica_models.Later, play)

    def test_a_model_without_an_example_may_refuse_made_up_rows(self) -> None:
        async def play() -> None:
            async with self.stage(replica_models.Choosy) as stage:
                description = await stage.ready()
                [warning] = description.warnings
                assert "not warmed up" in warning
                arrays = await stage.answer(stage.give({"x": [7]}))
                assert arrays["y"].tolist() == [7]

        asyncio.run(play())

    def test_cancelling_tells_the_model_and_nobody_else(self, tmp_path: Path) -> None:
        async def play(stage: Stage) -> None:
            batch = await stage.puppet("wait", "mate", place=self.place(tmp_path / "started"))
            stage.replica.cancel(batch + 17)
            stage.replica.cancel(batch)
            stage.replica.cancel(batch)
            arrays = await stage.answer(batch)
            assert arrays["said"].tolist() == ["cancelled", "cancelled"]
            arrays = await stage.answer(await stage.puppet("nothing"))
            assert arrays["said"].tolist() == ["done"]

        self.perform(replica_models.Puppet, play)

    def place(self, path: Path) -> Path | None:
        """Where a puppet says that it runs; None for kinds where a test cannot look meanwhile."""
        return path

    def test_a_model_that_cannot_load_says_why(self) -> None:
        for model, says in (
            (replica_models.CannotLoad, "RuntimeError: the weights are not there"),
            (replica_models.CannotWarm, "given 4 rows and returned 5"),
        ):
            self.perform_loss(model, says)

    def perform_loss(self, model: type, says: str) -> None:
        async def play() -> None:
            async with self.stage(model) as stage:
                stage.replica.launch()
                reason, started = await stage.recorder.next("lost")
                assert says in reason
                assert started == frozenset()
                assert stage.replica.state == "failed"
                assert stage.replica.room == 0

        asyncio.run(play())

    # ------------------------------------------------------------------ several at once

    def test_an_asynchronous_model_has_several_batches_in_hand(self) -> None:
        async def play(stage: Stage) -> None:
            assert stage.replica.room == 3
            for _ in range(3):
                batches = [stage.give({"x": [i]}, {"x": [i + 1]}) for i in range(3)]
                got = dict([await stage.recorder.next("answered") for _ in batches])
                assert [got[batch]["y"].tolist() for batch in batches] == [[2 * i, 2 * i + 2] for i in range(3)]
            cause, message = await stage.failure(stage.give({"x": [-1]}))
            assert (cause, message) == (Cause.RAISED, "ValueError: negative")

        self.perform(replica_models.Meeting, play)

    def test_slots_of_a_plain_model_are_threads(self) -> None:
        async def play(stage: Stage) -> None:
            if stage.replica.room == 1:
                return  # on the loop there is but one
            for _ in range(3):
                batches = [stage.give({"x": [i]}) for i in range(stage.replica.room)]
                got = dict([await stage.recorder.next("answered") for _ in batches])
                assert [got[batch]["y"].tolist() for batch in batches] == [[0], [2]]
            stage.replica.stop()
            assert (await stage.recorder.next("lost"))[0] == "stopped"

        self.perform(replica_models.Together, play)

    # ------------------------------------------------------------------ the end

    def test_stop_lets_what_runs_end_and_says_so_once(self) -> None:
        async def play(stage: Stage) -> None:
            batch = stage.give({"x": [[1, 2]]})
            stage.replica.stop()
            stage.replica.stop()
            await stage.answer(batch)
            reason, started = await stage.recorder.next("lost")
            assert reason == "stopped"
            assert started == frozenset()
            assert stage.replica.state == "stopped"
            stage.replica.stop()
            stage.replica.kill()
            stage.replica.cancel(batch)

        self.perform(replica_models.Echo, play)

    def test_stop_before_and_during_the_load(self) -> None:
        async def play() -> None:
            for model in (None, replica_models.Echo, replica_models.Meeting, replica_models.Together):
                async with self.stage(model or replica_models.Echo) as stage:
                    if model:
                        stage.replica.launch()
                    stage.replica.stop()
                    reason, started = await stage.recorder.next("lost")
                    assert "stopped" in reason
                    assert started == frozenset()
                    assert stage.replica.state == "stopped"

        asyncio.run(play())

    def test_kill_ends_it_with_the_reason_given(self) -> None:
        async def play(stage: Stage) -> None:
            stage.replica.kill("it is the test's wish")
            reason, started = await stage.recorder.next("lost")
            assert reason == "it is the test's wish"
            assert started == frozenset()
            assert stage.replica.state == "failed"

        self.perform(replica_models.Echo, play)


__all__: Sequence[str] = ["Recorder", "ReplicaContract", "Stage", "request", "source", "until"]
