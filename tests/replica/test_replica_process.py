"""What only a process can do: crash, hang, lie, be frozen, be killed, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maitred import host
from maitred.logline import Format
from maitred.model.source import Source
from maitred.observe.logs import set_up
from maitred.replica import channel, process
from maitred.replica.memory import Arena
from maitred.replica.process import ProcessReplica
from maitred.replica.replica import Cause, Listener, ReplicaSettings
from maitred.testing.replica_models import (
    CannotLoad,
    CannotWarm,
    Echo,
    Later,
    Long,
    Meeting,
    NeverLoads,
    Puppet,
    Told,
)
from maitred.testing.replicas import PATIENCE_SECONDS, Recorder, Stage, request, until

SETTINGS = ReplicaSettings(max_batch_rows=4, stop_seconds=0.5)


def stage(model: type, settings: ReplicaSettings = SETTINGS, arena: Arena | None = None, id: int = 1) -> Stage:
    def make(
        id: int, source: Source, settings: ReplicaSettings, loop: asyncio.AbstractEventLoop, listener: Listener
    ) -> ProcessReplica:
        return ProcessReplica(id, source, settings, loop, listener, arena)

    return Stage(make, model, settings, id)


def perform(
    model: type,
    play: Callable[[Stage], Awaitable[None]],
    settings: ReplicaSettings = SETTINGS,
    arena: Arena | None = None,
) -> None:
    async def whole() -> None:
        async with stage(model, settings, arena) as made:
            await made.ready()
            await play(made)

    asyncio.run(whole())


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("exit:7", "exited with code 7"),
        ("exit:0", "exited with code 0"),
        ("crash", "SIGSEGV"),
        ("close", "closed its pipe"),
    ],
)
def test_a_death_costs_the_running_batch_and_says_how(word: str, says: str) -> None:
    async def play(stage: Stage) -> None:
        batch = await stage.puppet(word, "mate")
        reason, started = await stage.recorder.next("lost")
        assert says in reason
        assert started == {batch}
        assert stage.replica.state == "failed"
        stage.replica.kill()
        stage.replica.cancel(batch)
        assert not stage.replica.frozen()

    perform(Puppet, play)


def test_a_hung_model_is_killed(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        batch = await stage.puppet("hang", place=tmp_path / "started")
        stage.replica.kill("ran for too long")
        assert await stage.recorder.next("lost") == ("ran for too long", {batch})

    perform(Puppet, play)


def test_stopping_a_hung_model_takes_force(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        batch = await stage.puppet("hang", place=tmp_path / "started")
        stage.replica.stop()
        reason, started = await stage.recorder.next("lost")
        assert "SIGTERM" in reason
        assert started == {batch}
        assert stage.replica.state == "stopped"

    perform(Puppet, play, replace(SETTINGS, stop_seconds=0.05))


def test_a_frozen_process_is_seen_and_what_it_had_not_begun_is_told() -> None:
    async def play(stage: Stage) -> None:
        pid = stage.replica.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(stage.replica.frozen)
        stage.give({"x": [1]})
        os.kill(pid, signal.SIGCONT)
        await until(lambda: not stage.replica.frozen())
        await stage.recorder.next("answered")
        os.kill(pid, signal.SIGSTOP)
        await until(stage.replica.frozen)
        stage.give({"x": [1]})
        stage.replica.kill("frozen")
        assert await stage.recorder.next("lost") == ("frozen", frozenset())

    perform(Told, play)


def test_only_batches_that_had_begun_count_as_started(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        begun = [stage.give({"x": [i]}) for i in range(2)]  # they wait for a third
        gauge = stage.replica._in_flight.started  # type: ignore[attr-defined]
        await until(lambda: gauge() == set(begun))
        os.kill(stage.replica.pid or 0, signal.SIGSTOP)
        await until(stage.replica.frozen)
        stage.give({"x": [2]})
        stage.replica.kill("enough")
        assert await stage.recorder.next("lost") == ("enough", set(begun))

    perform(Meeting, play)


def test_what_it_answered_before_it_died_counts() -> None:
    async def play(stage: Stage) -> None:
        os.kill(stage.replica.pid or 0, signal.SIGSTOP)
        await until(stage.replica.frozen)
        batch = stage.give({"x": [[1, 2]]})
        os.kill(stage.replica.pid or 0, signal.SIGCONT)
        answers = stage.replica._answers  # type: ignore[attr-defined]
        # The loop stands still meanwhile, so that it finds the answer and the death at once.
        assert select.select([answers], [], [], PATIENCE_SECONDS)[0]
        os.kill(stage.replica.pid or 0, signal.SIGKILL)
        arrays = await stage.answer(batch)
        assert arrays["total"].tolist() == [3]
        reason, started = await stage.recorder.next("lost")
        assert "SIGKILL" in reason
        assert started == frozenset()

    perform(Echo, play)


# ---------------------------------------------------------------------- lies

RUNNING = 1


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("raw13", "piece of a message"),
        ("99,0,0,0,1,0,0,0,0,0,0,0,0", "unknown kind 99"),
        (f"{channel.READY},0,0,0,1,0,0,0,0,0,0,0,0", "unknown kind"),
        (f"{channel.ANSWERED},0,0,0,77,40,0,0,0,400,0,0,0", "not running"),
        (f"{channel.ANSWERED},0,5,0,1,40,0,0,0,400,0,0,0", "not running"),
        (f"{channel.ANSWERED},0,0,0,1,40,0,0,0,{1 << 40},0,0,0", "outside the block"),
        (f"{channel.ANSWERED},0,0,0,1,4000000000,0,0,0,400,0,0,0", "outside the block"),
        (f"{channel.ANSWERED},0,0,0,1,0,0,0,0,400,0,0,0", "outside the block"),
        (f"{channel.ANSWERED},0,0,0,1,40,0,0,0,400,0,0,0", "does not allow"),
        (f"{channel.FAILED},0,0,0,1,{1 << 31},0,0,0,0,0,0,0", "outside the block"),
        (f"{channel.FAILED},9,0,0,1,4,0,0,0,0,0,0,0", "outside the block"),
        (f"{channel.NEED},0,0,0,1,0,0,0,0,1,0,0,0", "impossible amount"),
        (f"{channel.NEED},0,0,0,1,0,0,0,0,{1 << 62},0,0,0", "impossible amount"),
    ],
)
def test_nonsense_kills_the_one_who_says_it(message: str, says: str) -> None:
    async def play(stage: Stage) -> None:
        batch = await stage.puppet(f"say:{message}")
        assert batch == RUNNING
        reason, started = await stage.recorder.next("lost")
        assert reason.startswith("was killed: it ")
        assert says in reason
        assert started == {batch}

    perform(Puppet, play)


def test_of_one_who_scribbled_nothing_that_it_had_counts_as_untouched() -> None:
    """It could say of itself that it had not begun, and be given to one replica after the other."""

    async def play(stage: Stage) -> None:
        batch = await stage.puppet("scribble")
        reason, started = await stage.recorder.next("lost")
        assert "unknown kind 255" in reason
        assert started == {batch}

    perform(Puppet, play)


def test_a_page_of_nonsense_does_not_say_that_a_batch_was_not_begun() -> None:
    async def play(stage: Stage) -> None:
        in_flight = stage.replica._in_flight  # type: ignore[attr-defined]
        batch = await stage.puppet("wait")
        await until(lambda: in_flight.started() == {batch})
        in_flight._started.map[:8] = b"\xff" * 8
        stage.replica.kill("enough")
        assert await stage.recorder.next("lost") == ("enough", {batch})

    perform(Puppet, play)


def test_low_descriptors_are_not_ours() -> None:
    async def play(stage: Stage) -> None:
        for word in ("litter", "nothing"):
            arrays = await stage.answer(await stage.puppet(word))
            assert arrays["said"].tolist() == ["done"]

    perform(Puppet, play)


def test_what_a_model_starts_holds_nothing_of_ours() -> None:
    async def play(stage: Stage) -> None:
        arrays = await stage.answer(await stage.puppet("held"))
        assert arrays["said"].tolist() == ["[]"]

    perform(Puppet, play)


def test_a_copy_that_comes_back_from_predict_is_not_heard(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        arrays = await stage.answer(await stage.puppet("twice"))
        copy = int(arrays["said"][0])
        await until(lambda: not alive(copy))
        arrays = await stage.answer(await stage.puppet("nothing"))
        assert arrays["said"].tolist() == ["done"]

    perform(Puppet, play)


# ---------------------------------------------------------------------- its log

FORGED = '{"level": "ERROR"}\n{"message": "forged"}\x1b[31m\u2028'


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("model", [Puppet, Later])
@pytest.mark.parametrize("word", ["raise", "log", "cancelled"])
def test_a_child_logs_in_the_parents_style_and_nothing_that_callers_wrote(
    format: Format, model: type, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def play(stage: Stage) -> None:
        await stage.puppet(f"{word}:{FORGED}")
        await stage.recorder.heard.get()
        stage.replica.stop()
        await stage.recorder.next("lost")

    undo = set_up("info", format)
    try:
        perform(model, play)
    finally:
        undo()
    lines = written(capfd)
    assert lines
    for line in lines:
        assert line.isprintable(), line
        if format == "json":
            assert json.loads(line)["level"] in ("ERROR", "WARNING"), line
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT\S+ (ERROR|WARNING) [\w.]+: ", line), line
    if word == "log":
        assert len(lines) == 5
        assert sum("forged" in line for line in lines) == 2  # what its own code logs and warns of
    else:
        [line] = lines
        assert "forged" not in line
        assert "replica_models.py:" in line
        assert " do_" in line


@pytest.mark.parametrize("model", [CannotLoad, CannotWarm, Echo])
@pytest.mark.parametrize("format", ["json", "text"])
def test_a_start_is_logged_in_lines_too(format: Format, model: type, capfd: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        async with stage(model) as made:
            made.replica.launch()
            await made.recorder.heard.get()

    undo = set_up("info", format)
    try:
        asyncio.run(play())
    finally:
        undo()
    lines = written(capfd)
    assert len(lines) == (model is not Echo)
    assert all(line.startswith("{" if format == "json" else "20") for line in lines)
    if model is CannotLoad:
        assert "the weights are not there" not in lines[0], "the reason is told by whoever is told that it was lost"
        assert "RuntimeError" in lines[0]
        assert "replica_models.py:" in lines[0]


def test_where_a_crash_happened_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    async def play(stage: Stage) -> None:
        await stage.puppet("crash")
        await stage.recorder.next("lost")

    undo = set_up("info", "json")
    try:
        perform(Puppet, play)
    finally:
        undo()
    [line] = written(capfd)
    found = json.loads(line)
    assert found["message"] == "a replica's process crashed"
    assert found["trace"].startswith("Fatal Python error: Segmentation fault > ")
    assert "in do_crash" in found["trace"]


def written(capfd: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capfd.readouterr()
    assert out == ""
    return [line for line in err.split("\n") if line]


# ---------------------------------------------------------------------- neighbours


def test_a_liar_harms_no_other_replica_of_the_pool(tmp_path: Path) -> None:
    arena = Arena(False)

    async def play() -> None:
        async with stage(Puppet, arena=arena, id=1) as liar, stage(Puppet, arena=arena, id=2) as other:
            await liar.ready()
            await other.ready()
            working = await other.puppet("wait", place=tmp_path / "works")
            await liar.puppet(f"say:{channel.ANSWERED},0,0,0,1,40,0,0,0,{1 << 40},0,0,0")
            await liar.recorder.next("lost")
            other.replica.cancel(working)
            assert (await other.answer(working))["said"].tolist() == ["cancelled"]
            other.replica.stop()
            await other.recorder.next("lost")
        assert arena.used_bytes == 0
        assert arena.retired == []

    asyncio.run(play())
    arena.close()


def test_a_child_cannot_write_where_inputs_lie() -> None:
    arena = Arena(False)

    async def play(stage: Stage) -> None:
        arrays = await stage.answer(await stage.puppet("map"))
        assert arrays["said"][0]  # its own output memory it can write into
        for segment in arena.segments.values():
            assert segment.map[0] != 255
        assert stage.replica._in_flight._flags[0] == 0  # type: ignore[attr-defined]

    perform(Puppet, play, arena=arena)
    arena.close()


# ---------------------------------------------------------------------- memory


def test_too_large_a_batch_fails_and_the_next_one_runs() -> None:
    async def play(stage: Stage) -> None:
        large = stage.give({"x": np.zeros((100_000, 2))})
        cause, message = await stage.failure(large)
        assert cause == Cause.OUT_OF_MEMORY
        assert "limit" in message
        await stage.answer(stage.give({"x": [[1, 2]]}))

    perform(Echo, play, replace(SETTINGS, limit_bytes=1 << 19, segment_bytes=1 << 16, output_bytes=1 << 16))


def test_too_large_an_answer_fails_and_the_next_one_comes() -> None:
    async def play(stage: Stage) -> None:
        cause, message = await stage.failure(stage.give({"size": [1_000_000]}))
        assert cause == Cause.OUT_OF_MEMORY
        assert "outputs" in message
        await stage.answer(stage.give({"size": [10]}))

    perform(Long, play, replace(SETTINGS, limit_bytes=1 << 19, segment_bytes=1 << 16, output_bytes=1 << 16))


def test_segments_come_and_go_with_the_size_of_batches() -> None:
    arena = Arena(False, 1 << 16)

    async def play(stage: Stage) -> None:
        for rows in [*range(1, 40_000, 1500), *[1] * 600]:
            x = np.full((rows, 2), rows, np.float32)
            arrays = await stage.answer(stage.give({"x": x}, outputs=("x",)))
            assert np.array_equal(arrays["x"], x)
        assert arena.reserved_bytes <= 1 << 18

    perform(Echo, play, arena=arena)
    arena.close()


def test_requests_that_contradict_each_other_fail_alone() -> None:
    async def play(stage: Stage) -> None:
        requests = [request(stage.signature, {"x": [[1, 2]]}) for _ in range(2)]
        requests[1].rows = 7
        cause, _ = await stage.failure(stage.run(requests))
        assert cause == Cause.RAISED
        await stage.answer(stage.give({"x": [[1, 2]]}))

    perform(Echo, play)


# ---------------------------------------------------------------------- starting and leaving nothing behind


def test_a_load_that_takes_too_long_is_ended() -> None:
    async def play() -> None:
        async with stage(NeverLoads, replace(SETTINGS, load_seconds=0.5)) as made:
            made.replica.launch()
            reason, _ = await made.recorder.next("lost")
            assert "not ready after 0.5 s" in reason

    asyncio.run(play())


def test_a_process_that_cannot_be_started_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "executable", "/nowhere/python")

    async def play() -> None:
        async with stage(Echo) as made:
            made.replica.launch()
            reason, started = await made.recorder.next("lost")
            assert reason.startswith("could not be started")
            assert started == frozenset()
            made.replica.stop()
            made.replica.kill()
            made.replica.cancel(1)

    before = descriptors()
    asyncio.run(play())
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_replicas_that_ended_in_any_way() -> None:
    async def play(word: str) -> None:
        async with stage(Puppet) as made:
            await made.ready()
            if word == "stop":
                made.replica.stop()
            else:
                await made.puppet(word)
            await made.recorder.next("lost")

    asyncio.run(play("stop"))
    before = descriptors()
    for word in ("stop", "exit:1", "raise", "crash"):
        with contextlib.suppress(AssertionError):  # `raise` is no end: the stage kills it
            asyncio.run(play(word))
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_death_is_noticed_though_a_helper_holds_the_pipe_and_the_helper_dies_too(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.answer(await stage.puppet("child"))
        group = stage.replica.pid or 0
        helpers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if group_of(pid) == group]
        assert len(helpers) == 2
        await stage.puppet("exit:1")
        began = time.monotonic()
        await stage.recorder.next("lost")
        assert time.monotonic() - began < 2
        await until(lambda: not any(map(alive, helpers)))

    perform(Puppet, play)


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("busy", [False, True])
def test_children_die_with_their_parent(thread: str, busy: bool, tmp_path: Path) -> None:
    script = f"""
        import asyncio, sys, threading, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_replica_process import Puppet, stage
        async def play():
            async with stage(Puppet) as made:
                await made.ready()
                if {busy}:
                    await made.puppet("wait", place=Path({str(tmp_path / "started")!r}))
                print(made.replica.pid, flush=True)
                await asyncio.sleep(60)
        if {thread == "main"}:
            asyncio.run(play())
        else:
            thread = threading.Thread(target=lambda: asyncio.run(play()))
            thread.start()
            thread.join()
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + PATIENCE_SECONDS
    while alive(pid):
        assert time.monotonic() < end, "the child outlived its parent"
        time.sleep(0.01)


def test_what_a_model_prints_goes_to_standard_error_and_threads_are_few(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "talker.py").write_text(
        textwrap.dedent("""
            import os
            import maitred
            class Talker(maitred.Model):
                signature = maitred.Signature(inputs={"x": "int64[n]"}, outputs={"threads": "str[n]"})
                def predict(self, batch):
                    print("words of the model")
                    told = [os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GIVEN")]
                    return {"threads": [" ".join(told)] * len(batch["x"])}
        """)
    )

    async def play(settings: ReplicaSettings) -> str:
        recorder = Recorder()
        loop = asyncio.get_running_loop()
        replica = ProcessReplica(1, Source(path=str(tmp_path / "talker.py")), settings, loop, recorder)
        replica.launch()
        (description,) = await recorder.next("ready")
        replica.run(1, [request(description.signature, {"x": [1]})], 1)
        _, arrays = await recorder.next("answered")
        replica.stop()
        await recorder.next("lost")
        return str(arrays["threads"][0])

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert asyncio.run(play(SETTINGS)) == "1 passive "
    assert asyncio.run(play(replace(SETTINGS, threads=3, environment={"GIVEN": "!"}))) == "3 passive !"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert asyncio.run(play(SETTINGS)) == "2 active "
    out, err = capfd.readouterr()
    assert out == ""
    assert "words of the model" in err


def test_memory_of_an_idle_replica_is_small() -> None:
    async def play(stage: Stage) -> None:
        held = host.memory_of(stage.replica.pid or 0)
        assert held is not None
        if held.pss is not None:
            assert held.pss < 45 << 20, f"{held.pss / 2**20:.1f} MiB"

    perform(Told, play)
