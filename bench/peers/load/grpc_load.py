"""gRPC load over HTTP/2: prepared ModelInferRequests, whose ids and tensors vary, on many streams of some connections.

Runs with hpack and uvloop (the harness's environment). Closed loop: a stream that has been answered is followed by the
next one. Frames are written and read here; the server is told to keep no header table, so that equal trailers are
equal bytes, which are decoded once. A call is good if its grpc-status is 0. Prints one JSON line; with --keep, writes
some of the answers to a file for the harness to compare: number of the request, length, message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
from pathlib import Path
from time import perf_counter

from hpack import Decoder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpc_messages import messages

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK, PADDED = 1, 4, 1, 8
BIG = (1 << 31) - 1
HEAD = struct.Struct(">HHBI").unpack_from
"""A frame's head; the second number is the length's last byte and the kind."""
PATH = b"/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that enters no table."""
    assert len(name) < 127
    assert len(value) < 127
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


class Call:
    """One call that waits for its answer."""

    __slots__ = ("number", "started", "answer")

    def __init__(self, number: int, started: float) -> None:
        self.number, self.started, self.answer = number, started, b""


class Tally:
    """What all connections count together."""

    def __init__(self, bodies: list[bytes], keep: set[int], keep_most: int) -> None:
        self.bodies = bodies
        self.next = 0
        self.measuring = False
        self.stopping = False
        self.times: list[float] = []
        self.failed: dict[str, int] = {}
        self.keep, self.keep_most = keep, keep_most
        self.kept: list[tuple[int, bytes]] = []
        self.trailers: dict[bytes, str] = {}

    def fail(self, why: str) -> None:
        self.failed[why] = self.failed.get(why, 0) + 1

    def status(self, block: bytes) -> str:
        """The grpc-status of a block of headers; empty if it has none."""
        known = self.trailers.get(block)
        if known is None:
            headers = {str(name): str(value) for name, value in Decoder().decode(block)}
            known = self.trailers[block] = headers.get("grpc-status", "")
        return known


class Connection(asyncio.Protocol):
    """One connection and its streams. Calls and answers are on the path of a busy core: few functions, few copies."""

    def __init__(self, tally: Tally, authority: bytes, streams: int) -> None:
        self.tally = tally
        self.streams = streams
        self.stream = 1
        self.open: dict[int, Call] = {}
        self.window, self.stream_window = 65535, 65535
        self.received = 0
        self.buffer = b""
        block = (
            b"\x83\x86"  # :method POST, :scheme http
            + literal(b":path", PATH)
            + literal(b":authority", authority)
            + literal(b"content-type", b"application/grpc")
            + literal(b"te", b"trailers")
            + literal(b"x-request-id", b"%016x" % 0)[:-16]
        )
        self.block = block
        self.headers = (len(block) + 16).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
        self.data = [len(body).to_bytes(3, "big") + bytes((DATA, END_STREAM)) for body in tally.bodies]

    def connection_made(self, transport) -> None:
        self.transport = transport
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, BIG)  # no header table, no pushes, streams without a window
        more = frame(WINDOW, 0, 0, (BIG - 65535).to_bytes(4, "big"))
        transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + more)
        transport.write(b"".join(self.call() for _ in range(self.streams)))

    def call(self) -> bytes:
        """The frames of the next call; nothing where the server's window is spent: its update will ask again."""
        tally = self.tally
        at = tally.next
        number = at % len(tally.bodies)
        body = tally.bodies[number]
        if tally.stopping or len(body) > self.window or len(body) > self.stream_window:
            return b""
        tally.next = at + 1
        self.window -= len(body)
        stream = self.stream
        self.stream = stream + 2
        self.open[stream] = Call(number, perf_counter())
        id = stream.to_bytes(4, "big")
        return b"".join((self.headers, id, self.block, b"%016x" % at, self.data[number], id, body))

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data if self.buffer else data
        at, out, size, open, tally = 0, [], len(data), self.open, self.tally
        while size - at >= 9:
            length, kind, flags, stream = HEAD(data, at)
            length = length << 8 | kind >> 8
            kind &= 255
            start = at + 9
            end = start + length
            if end > size:
                break
            at = end
            call = open.get(stream)
            if kind == HEADERS and call is not None and not flags & END_STREAM:
                continue
            if kind == DATA and call is not None and not flags & (END_STREAM | PADDED):
                self.received += length
                call.answer += data[start:end]
            elif kind == HEADERS and call is not None and flags & END_HEADERS:
                self.ended(stream, tally.trailers.get(data[start:end]) or tally.status(data[start:end]), out)
            else:
                self.take(kind, flags, stream, data[start:end], out)
        self.buffer = data[at:]
        if self.received > 1 << 29:
            out.append(frame(WINDOW, 0, 0, self.received.to_bytes(4, "big")))
            self.received = 0
        if out:
            self.transport.write(b"".join(out))

    def take(self, kind: int, flags: int, stream: int, payload: bytes, out: list[bytes]) -> None:
        """Any other frame."""
        if kind == DATA:
            self.received += len(payload)
            if stream in self.open:
                self.open[stream].answer += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
                if flags & END_STREAM:
                    self.ended(stream, "no trailers", out)
        elif kind == HEADERS and stream in self.open:
            self.ended(stream, "continued trailers", out)
        elif kind == SETTINGS and not flags & ACK:
            self.stream_window = dict(struct.iter_unpack(">HI", payload)).get(4, self.stream_window)
            out.append(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            out.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW and stream == 0:
            self.window += int.from_bytes(payload, "big")
            out.extend(self.call() for _ in range(self.streams - len(self.open)))
        elif kind == RESET and stream in self.open:
            self.ended(stream, f"reset {int.from_bytes(payload, 'big')}", out)
        elif kind == GOAWAY:
            self.tally.fail(f"goaway {payload[8:80]!r}")
            self.transport.close()

    def ended(self, stream: int, status: str, out: list[bytes]) -> None:
        tally = self.tally
        call = self.open.pop(stream)
        if status != "0":
            tally.fail(status)
        elif tally.measuring:
            tally.times.append(perf_counter() - call.started)
            if call.number in tally.keep and len(tally.kept) < tally.keep_most:
                tally.kept.append((call.number, call.answer[5:]))
        out.append(self.call())

    def connection_lost(self, error: Exception | None) -> None:
        if not self.tally.stopping:
            self.tally.fail("connection lost")


async def main(options: argparse.Namespace) -> None:
    bodies = messages(Path(options.requests).read_bytes())
    tally = Tally(bodies, set(json.loads(options.keep_numbers)), 500)
    loop = asyncio.get_running_loop()
    authority = b"127.0.0.1:%d" % options.port
    connections = [
        (await loop.create_connection(lambda: Connection(tally, authority, options.streams), "127.0.0.1", options.port))
        for _ in range(options.connections)
    ]
    await asyncio.sleep(options.warmup)
    tally.measuring, tally.failed, started = True, {}, perf_counter()
    print("MEASURING", flush=True)
    await asyncio.sleep(options.seconds)
    spent = perf_counter() - started
    tally.measuring, tally.stopping = False, True
    print("MEASURED", flush=True)
    for transport, _ in connections:
        transport.abort()
    times = sorted(tally.times)
    if options.keep:
        with open(options.keep, "wb") as file:
            for number, message in tally.kept:
                file.write(struct.pack("<II", number, len(message)) + message)
    at = {name: times[min(len(times) - 1, int(share * len(times)))] * 1e3 if times else 0.0
          for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))}  # fmt: skip
    failed = sum(tally.failed.values())
    print("RESULT " + json.dumps({"ok": len(times), "seconds": spent, "errors": failed, "why": tally.failed, **at}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("requests", help="gRPC messages, one after the other")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--keep", default="", metavar="FILE")
    parser.add_argument("--keep-numbers", default="[]")
    chosen = parser.parse_args()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(chosen))
    else:
        uvloop.run(main(chosen))
