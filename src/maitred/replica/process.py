"""A replica in a child process: spawned, watched, spoken to over pipes, and killed if need be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

import maitred
from maitred import host
from maitred.logline import style_in_use
from maitred.messages import Request
from maitred.model.description import Description
from maitred.model.source import Source
from maitred.replica import channel
from maitred.replica.greeting import Hello
from maitred.replica.inflight import MAX_ROOM, PAGE_BYTES, InFlight, Scribbled
from maitred.replica.lifecycle import OVER
from maitred.replica.memory import Arena, NoMemory, Segment
from maitred.replica.replica import Cause, Life, Listener, ReplicaSettings
from maitred.scheduling.recovery import error_of

log = logging.getLogger("maitred.replica")

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS", "MAITRED_THREADS",
)  # fmt: skip
"""What numeric libraries read before they start their threads; the last one is for libraries with settings instead."""
_WAITING: Final = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""Idle OpenMP threads sleep: ones that spin take the processor from the server, and on a busy machine from each other
(a batch then takes a thousand times as long)."""
_EOF_SECONDS: Final = 1.0
"""A child that has closed its pipe and not ended after this time is killed."""
_TIDY_SECONDS: Final = 10.0
"""Between two looks at which segments are no longer needed: a copy that idles must not keep a burst's memory."""
_READ_BYTES: Final = 64 * channel.MESSAGE.size


class ProcessReplica(Life):
    """One copy in a fresh interpreter. The loop's thread must be the one that calls `launch`.

    `arena`: where its batches' inputs lie; shared by the replicas of a pool. It must outlive them.
    """

    def __init__(
        self,
        id: int,
        source: Source,
        settings: ReplicaSettings,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        arena: Arena | None = None,
    ) -> None:
        super().__init__(id, loop, listener)
        self._source = source
        self._settings = settings
        self._own_arena = arena is None
        self._inputs = arena or Arena(False, settings.segment_bytes, settings.limit_bytes)
        self._outputs = Arena(True, settings.output_bytes, settings.limit_bytes)
        self._reason = ""
        self._pipe = self._answers = -1
        self._reading = False
        self._suspects: frozenset[int] = frozenset()
        self._owned = contextlib.ExitStack()
        """Gives back pipes, pages and blocks."""
        self._timers: list[asyncio.TimerHandle] = []
        self._next_tidy: asyncio.TimerHandle | None = None
        self._frames: channel.FrameReader | None = channel.FrameReader(frozenset({channel.READY, channel.REFUSED}))

    # ------------------------------------------------------------------ what it can be asked

    def launch(self) -> None:
        self._move("launch")
        try:
            self._spawn()
        except (OSError, NoMemory) as error:
            self._close()
            self._loop.call_soon(self._over, f"could not be started: {error}", frozenset())

    def run(self, batch_id: int, requests: list[Request], rows: int) -> None:
        try:
            message = self._in_flight.run(batch_id, requests, rows)
        except NoMemory as error:
            self._loop.call_soon(self._fail, batch_id, Cause.OUT_OF_MEMORY, str(error))
            return
        except (ValueError, TypeError, OverflowError, IndexError, BufferError) as error:
            log.error("a batch could not be laid out", exc_info=error)
            self._loop.call_soon(self._fail, batch_id, Cause.RAISED, "the requests of this batch do not fit together")
            return
        self._send(message)

    def cancel(self, batch_id: int) -> None:
        if self.state not in OVER:
            self._in_flight.cancel(batch_id)

    def stop(self) -> None:
        before = self._asked_to_stop()
        if before is None:
            return
        self._send(channel.message(channel.STOP))
        grace = self._settings.stop_seconds if before == "ready" else 0.0  # nothing runs while it loads
        self._after(grace, self._signal, signal.SIGTERM)
        self._after(grace + self._settings.stop_seconds, self._signal, signal.SIGKILL)

    def kill(self, reason: str = "") -> None:
        if self.pid is not None and self.state not in OVER:
            self._reason = self._reason or reason
            self._watch.kill(signal.SIGKILL)

    def frozen(self) -> bool:
        return self.pid is not None and self._watch.stopped()

    # ------------------------------------------------------------------ its start

    def _spawn(self) -> None:
        with contextlib.ExitStack() as childs:
            theirs = self._channels(childs)
            at_thread_end = threading.current_thread() is threading.main_thread()
            arguments = (*theirs, os.getpid(), int(at_thread_end))
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "maitred.replica.child", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=theirs,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            self._watch = host.watch_child(self._loop, process.pid, self._exited)
        except OSError:
            process.kill()
            process.wait()
            raise
        self._process = process
        self.pid = process.pid
        self._loop.add_reader(self._answers, self._read)
        self._reading = True
        self._load_timer = self._after(self._settings.load_seconds, self._too_slow)
        given = self._settings
        hello = Hello(self._source, given.device, given.max_batch_rows, sys.path, given.measure, style_in_use())
        self._send(channel.frame(channel.HELLO, hello.encode()))

    def _channels(self, childs: contextlib.ExitStack) -> tuple[int, int, int, int]:
        """Open what joins the two: our ends are closed with this replica, the child's, returned, with `childs`."""
        owned = self._owned
        reading, self._pipe = os.pipe()
        childs.callback(os.close, reading)
        owned.callback(os.close, self._pipe)
        self._answers, writing = os.pipe()
        childs.callback(os.close, writing)
        owned.callback(os.close, self._answers)
        self._last_words, crash = os.pipe()
        childs.callback(os.close, crash)
        owned.callback(os.close, self._last_words)
        self._control, control = socket.socketpair()
        childs.enter_context(control)
        owned.enter_context(self._control)
        os.set_blocking(self._pipe, False)
        os.set_blocking(self._answers, False)
        os.set_blocking(self._last_words, False)
        os.set_blocking(crash, False)  # a crash must not wait for us to read of it
        self._control.setblocking(False)
        flags = Segment(0, PAGE_BYTES, children_write=False)
        owned.callback(flags.close)
        started = Segment(0, PAGE_BYTES, children_write=True)
        owned.callback(started.close)
        self._share(flags, False)
        self._share(started, True)
        self._in_flight = InFlight(self._inputs, self._outputs, flags, started, self._share)
        self._inputs.retired.append(self._input_retired)
        owned.callback(self._inputs.retired.remove, self._input_retired)
        self._outputs.retired.append(self._output_retired)
        owned.callback(self._in_flight.abandon)
        return reading, writing, control.fileno(), crash

    def _environment(self) -> dict[str, str]:
        environment = {**_WAITING, **os.environ}
        threads = self._settings.threads
        for name in _THREAD_VARIABLES:
            if threads is not None:
                environment[name] = str(threads)
            else:
                environment.setdefault(name, "1")
        root = str(Path(maitred.__file__).parent.parent)
        if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            known = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = root if not known else os.pathsep.join((root, known))
        return {**environment, **self._settings.environment}

    def _share(self, segment: Segment, outputs: bool) -> None:
        with contextlib.suppress(OSError):  # it has gone, which the watch will tell
            channel.send_segment(self._control, outputs, segment.id, segment.size, segment.fd)

    def _too_slow(self) -> None:
        if self.state in ("loading", "warming"):
            self.kill(f"was killed: it was not ready after {self._settings.load_seconds:g} s")

    # ------------------------------------------------------------------ what it hears

    def _read(self) -> bool:
        """Hear what the child has said by now. False if that is nothing."""
        try:
            data = os.read(self._answers, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._stop_reading()  # a hint only: the watch tells when it has ended
            self._after(_EOF_SECONDS, self.kill, "was killed: it had closed its pipe")
            return False
        try:
            if self._frames is not None:
                for frame in self._frames.feed(data):
                    self._introduced(frame)
            elif len(data) % channel.MESSAGE.size:
                raise Scribbled("sent a piece of a message")
            else:
                for fields in channel.MESSAGE.iter_unpack(data):
                    self._heard(fields)
        except (Scribbled, channel.Broken) as error:
            self._stop_reading()
            self._suspects = self._in_flight.given()  # any may be why, and what it says of that is worth nothing
            self.kill(f"was killed: it {error}")
            return False
        return True

    def _introduced(self, frame: channel.Frame) -> None:
        kind = frame.fields[0]
        if kind == channel.LOADED and self.state in ("loading", "draining"):
            self.load_seconds = frame.fields[9] * 1e-9
            self._move("loaded")
        elif kind == channel.READY and self.state in ("warming", "draining"):
            self._frames = None
            self._ready(frame)
        elif kind == channel.REFUSED:
            self._stop_reading()
            self.refused = bool(frame.fields[1])
            self.kill("the model could not be loaded: " + frame.payload.decode("utf-8", "replace"))
        else:
            raise Scribbled(f"sent a message of kind {kind} while it was {self.state}")

    def _ready(self, frame: channel.Frame) -> None:
        self.warmup_seconds = frame.fields[9] * 1e-9
        try:
            description = Description.decode(frame.payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Scribbled(f"described its model in a way that cannot be read: {error}") from error
        self._load_timer.cancel()
        self._move("warmed")
        if self.state == "draining":
            return
        room = max(1, min(description.traits.slots, MAX_ROOM))
        self._in_flight.open(description.signature, room, bool(frame.fields[1]))
        self.room = room
        self._next_tidy = self._loop.call_later(_TIDY_SECONDS, self._tidy)
        self._listener.ready(self, description)

    def _heard(self, fields: tuple[Any, ...]) -> None:
        kind = fields[0]
        if kind == channel.ANSWERED:
            work, outputs = self._in_flight.answered(fields)
            try:
                self._listener.answered(self, work.batch, outputs)
            except Exception as error:  # a defect of the listener's; what else the child has said must be heard
                self._loop.call_exception_handler({"message": "a replica's listener raised", "exception": error})
            finally:
                self._in_flight.ended(work)
        elif kind == channel.FAILED:
            work, text = self._in_flight.failed(fields)
            self._in_flight.ended(work)
            self._fail(work.batch, Cause(channel.CAUSES[fields[1]]), text)
        elif kind == channel.NEED:
            try:
                self._send(self._in_flight.grow(fields))
            except NoMemory:
                self._send(self._in_flight.refuse(fields))
        else:
            raise Scribbled(f"sent a message of the unknown kind {kind}")

    def _fail(self, batch: int, cause: Cause, text: str) -> None:
        if self.state not in OVER:
            self._listener.failed(self, batch, cause, error_of(cause, text))

    # ------------------------------------------------------------------ what it says

    def _send(self, message: bytes) -> None:
        try:
            if os.write(self._pipe, message) != len(message):
                self.kill("was killed: it does not read what it is sent")
        except BlockingIOError:
            self.kill("was killed: it does not read what it is sent")
        except BrokenPipeError:
            pass  # it has gone, which the watch will tell

    def _tidy(self) -> None:
        self._outputs.look()
        self._inputs.look()
        self._next_tidy = self._loop.call_later(_TIDY_SECONDS, self._tidy)

    def _input_retired(self, segment: int) -> None:
        self._retired(False, segment)

    def _output_retired(self, segment: int) -> None:
        self._retired(True, segment)

    def _retired(self, outputs: bool, segment: int) -> None:
        message = self._in_flight.retired(outputs, segment)
        if message is not None:
            self._send(message)

    # ------------------------------------------------------------------ its end

    def _after(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        timer = self._loop.call_later(seconds, call, *arguments)
        self._timers.append(timer)
        return timer

    def _signal(self, number: int) -> None:
        self._watch.kill(number)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._answers)

    def _exited(self, code: int | None) -> None:
        while self._reading and self._read():
            pass  # what it said before it ended still counts
        self._process.returncode = code or 0
        started = self._in_flight.started() | self._suspects
        self._tell_last_words()
        self._close()
        ended = host.end_of(code)
        if self.state == "draining":
            self._over("stopped" if code == 0 else f"stopped; its process {ended}", started)
        else:
            self._over(self._reason or f"its process {ended}", started)

    def _tell_last_words(self) -> None:
        """Log where the child was when it crashed, if it could still say so."""
        with contextlib.suppress(BlockingIOError):  # it said nothing, and a helper of its own holds the pipe
            words = os.read(self._last_words, 1 << 16).decode("utf-8", "replace")
            if words:
                trace = " > ".join(filter(None, map(str.strip, words.splitlines())))
                fields = {"model": self._source.name, "replica": self.id, "pid": self.pid, "trace": trace}
                log.error("a replica's process crashed", extra={"fields": fields})

    def _close(self) -> None:
        """Give back all that it held here."""
        self._stop_reading()
        for timer in self._timers:
            timer.cancel()
        if self._next_tidy is not None:
            self._next_tidy.cancel()
        self._owned.close()
        self._outputs.close()
        if self._own_arena:
            self._inputs.close()
