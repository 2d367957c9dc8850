"""The child process of a replica: load the model, then read a batch, run it and answer, until told to stop."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
import time
import traceback

from maitred import host
from maitred.model.refusals import LoadRefused
from maitred.replica import channel, child_loop
from maitred.replica.execution import Execution, open_model, why_not_loaded
from maitred.replica.greeting import Hello
from maitred.replica.station import Station, leave

log = logging.getLogger("maitred.replica")


def main(arguments: list[str]) -> int:
    """Arguments: the pipe to read, the pipe to write, the socket for segments, the parent, whether to die with its
    thread."""
    reading, writing, control, parent, at_thread_end = map(int, arguments)
    host.die_with_parent(parent, bool(at_thread_end))
    faulthandler.enable()
    _print_to_stderr()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    station = Station(reading, writing, socket.socket(fileno=control))
    execution = _load(station, _hello(reading))
    if execution is None:
        return 1
    gc.collect()
    gc.freeze()
    if execution.asynchronous:
        child_loop.serve(station, execution)
    else:
        _serve(station, execution)
    return 0


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
    """Load and warm up, and tell the parent how that went."""
    sys.path += [place for place in hello.path if place not in sys.path]
    started = time.perf_counter_ns()
    try:
        execution = open_model(hello.source, hello.device, True)
        loaded = time.perf_counter_ns()
        station.say(channel.message(channel.LOADED, p=loaded - started))
        execution.warm(hello.max_batch_rows)
    except (Exception, SystemExit) as error:  # a model's own code may raise anything
        log.error("the model could not be loaded: %s", why_not_loaded(error),
                  exc_info=None if isinstance(error, LoadRefused) else error)  # fmt: skip
        station.say(channel.frame(channel.REFUSED, why_not_loaded(error).encode("utf-8", "replace")))
        return None
    station.open(execution)
    warmed = time.perf_counter_ns() - loaded
    station.say(channel.frame(channel.READY, execution.description.encode(), warmed, execution.reads_rows))
    return execution


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
        outputs = execution.run(inputs, context)
        station.answer(fields, outputs, time.perf_counter_ns() - started)
    except Exception as error:  # whatever the model raises is the batch's failure, and not the replica's
        station.failed(fields, error, execution)
    except BaseException:  # it wants to exit, perhaps from a thread that could not
        traceback.print_exc()
        leave(1)


def _stop(lock: threading.Lock, busy: list[threading.Lock]) -> None:
    """Wait for what runs in the other threads; then, where this isn't the main thread, end the process."""
    for other in busy:
        if other is not lock:
            other.acquire()
    if lock is not busy[0]:
        leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
