"""The child process of a replica: load the model, then read a batch, run it and answer, until told to stop."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import Final

from maitred import host
from maitred.logline import take_over
from maitred.model.predictor import call
from maitred.model.refusals import LoadRefused
from maitred.replica import channel, child_loop
from maitred.replica.execution import Execution, Wait, is_decision, open_model, why_not_loaded
from maitred.replica.greeting import Hello
from maitred.replica.station import Station, leave

log = logging.getLogger("maitred.replica")

_HIGH: Final = 100
"""Descriptors from here on are seldom among those that code closes, or writes to, by number."""


def main(arguments: list[str]) -> int:
    """Arguments: the pipe to read, the pipe to write, the socket for segments, the pipe for the last words of a crash,
    the parent, whether to die with its thread."""
    *channels, parent, at_thread_end = map(int, arguments)
    del sys.argv[1:]  # the model's code has no use for them
    host.die_with_parent(parent, bool(at_thread_end))
    reading, writing, control, crash = _out_of_reach(channels)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a KeyboardInterrupt in here is then one that the model raised
    faulthandler.enable(crash)
    _print_to_stderr()
    station = Station(reading, writing, socket.socket(fileno=control))
    hello = _hello(reading)
    take_over(hello.log)
    execution = _load(station, hello)
    if execution is None:
        return 1
    if not execution.asynchronous:
        if not _warm(station, hello, execution, None):
            return 1
        _serve(station, execution)
        return 0
    with child_loop.runner() as runner:
        if not _warm(station, hello, execution, runner.run):
            return 1
        child_loop.serve(station, execution, runner)
    return 0


def _out_of_reach(channels: list[int]) -> list[int]:
    """Move descriptors away from those that a model may close or write to by mistake, and from its own children."""
    moved = [_moved(fd) for fd in channels]
    null = _moved(os.open(os.devnull, os.O_RDWR))

    def forked() -> None:
        for fd in moved:
            os.dup2(null, fd, inheritable=False)

    os.register_at_fork(after_in_child=forked)
    return moved


def _moved(fd: int) -> int:
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # this process may not have so many
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return high


def _print_to_stderr() -> None:
    """What a model prints must not mix with what the parent writes to its standard output."""
    try:
        os.dup2(2, 1)
    except OSError:  # the parent has no standard error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)


def _hello(reading: int) -> Hello:
    frames = channel.FrameReader(frozenset({channel.HELLO}))
    while True:
        data = os.read(reading, 4096 * channel.MESSAGE.size)
        if not data:
            leave()
        for frame in frames.feed(data):
            return Hello.decode(frame.payload)


def _load(station: Station, hello: Hello) -> Execution | None:
    """Load, and tell the parent how that went."""
    sys.path += [place for place in hello.path if place not in sys.path]
    started = time.perf_counter_ns()
    try:
        execution = open_model(hello.source, hello.device, True)
    except BaseException as error:  # a model's own code may raise anything
        _refuse(station, error)
        return None
    station.say(channel.message(channel.LOADED, p=time.perf_counter_ns() - started))
    return execution


def _warm(station: Station, hello: Hello, execution: Execution, wait: Wait | None) -> bool:
    """Warm up, and tell the parent that the model is ready, or why it isn't."""
    started = time.perf_counter_ns()
    try:
        execution.warm(hello.max_batch_rows, wait)
        if hello.measure:
            execution.measure(hello.max_batch_rows)
    except BaseException as error:  # as above
        _refuse(station, error)
        return False
    station.open(execution)
    warmed = time.perf_counter_ns() - started
    gc.collect()
    gc.freeze()
    station.say(channel.frame(channel.READY, execution.description.encode(), warmed, execution.reads_rows))
    return True


def _refuse(station: Station, error: BaseException) -> None:
    where = error.__cause__ if isinstance(error, LoadRefused) else error
    if where is not None:  # the reason in words is the parent's to tell, with the model's name
        log.error("the model could not be loaded", exc_info=where)
    reason = why_not_loaded(error).encode("utf-8", "replace")
    station.say(channel.frame(channel.REFUSED, reason, detail=is_decision(error)))


def _serve(station: Station, execution: Execution) -> None:
    """One thread for each slot: whichever is free takes the next message, for a read of a pipe cannot tear one."""
    busy = [threading.Lock() for _ in range(execution.traits.slots)]
    for lock in busy[1:]:
        threading.Thread(target=_work, args=(station, execution, lock, busy), daemon=True).start()
    _work(station, execution, busy[0], busy)


def _work(station: Station, execution: Execution, lock: threading.Lock, busy: list[threading.Lock]) -> None:
    size, unpack = channel.MESSAGE.size, channel.MESSAGE.unpack
    reading = station.reading
    while True:
        data = os.read(reading, size)
        if len(data) != size:
            leave()
        fields = unpack(data)
        kind = fields[0]
        if kind == channel.RUN:
            with lock:
                _run(station, execution, fields)
        elif kind == channel.ROOM:
            station.room(fields)
        elif kind == channel.RETIRE:
            station.retire(fields)
        elif kind == channel.STOP:
            _stop(lock, busy)
            return


def _run(station: Station, execution: Execution, fields: tuple[int, ...]) -> None:
    try:
        inputs, context = station.begin(fields, execution)
        started = time.perf_counter_ns()
        outputs = call(execution.predictor, inputs, context)
        station.answer(fields, outputs, time.perf_counter_ns() - started)
    except BaseException as error:  # SystemExit and its like too: the batch's failure, and not the replica's
        station.failed(fields, error, execution)


def _stop(lock: threading.Lock, busy: list[threading.Lock]) -> None:
    """Wait for what runs in the other threads; then, where this isn't the main thread, end the process."""
    for other in busy:
        if other is not lock:
            other.acquire()
    if lock is not busy[0]:
        leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
