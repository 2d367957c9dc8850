"""What waiting for returning callers does, seen for real: closed clients and open load, with it and without.

Serves `curve` (2 ms + 0.1 ms a row), `slow` (5 ms) and, where asked, `tiny`, each from a server of its own with default
settings, and drives closed clients with wrk and Poisson arrivals with a client of its own; the rules take turns. Prints
for each load: answers a second, p50 and p99 in ms, rows a batch and CPU-us a request of the server's process tree.

    python bench/batching.py [--models curve,slow,tiny] [--rules waits,plain] [--seconds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLASSES = {"curve": "Curve", "slow": "Slow", "tiny": "Tiny"}
BEST = {"curve": 64 / 0.0084, "slow": 64 / 0.005, "tiny": 10000.0}
"""Rows a second of full batches, back to back; for `tiny` about what the open load's client can send."""
PREPARED = 1024
MOST_LINKS = 900
"""Connections of the open load; an arrival beyond is counted as an error."""
TICK = os.sysconf("SC_CLK_TCK")
POST = """
local prepared, at = {}, 0
function init(args)
  for line in io.lines(args[1]) do
    prepared[#prepared + 1] = wrk.format("POST", nil, {["Content-Type"] = "application/json"}, line)
  end
end
function request()
  at = at % #prepared + 1
  return prepared[at]
end
function done(s, l, r)
  local bad = s.errors.connect + s.errors.read + s.errors.write + s.errors.status + s.errors.timeout
  io.write(string.format('RESULT {"rate":%.1f,"p50":%.3f,"p99":%.3f,"errors":%d}\\n',
    s.requests / s.duration * 1e6, l:percentile(50) / 1e3, l:percentile(99) / 1e3, bad))
end
"""


def serve(arguments: list[str], plain: bool) -> None:
    """Become the server; `plain`: one that takes whatever waits, at once."""
    from maitred.cli.main import main
    from maitred.scheduling.returning import Returning

    if plain:
        Returning.learn = lambda self, fixed_seconds: None  # type: ignore[method-assign]
    sys.argv[1:] = arguments
    main()


class Server:
    """One model behind maitred on a port of its own."""

    def __init__(self, model: str, rule: str, port: int, core: str) -> None:
        self.model, self.port = model, port
        self.home = tempfile.mkdtemp(prefix="bench-batching-")
        command = [
            sys.executable, str(Path(__file__).resolve()), "--serve", rule, "serve",
            f"{model}={HERE}/batching_models.py:{CLASSES[model]}", "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        if core:
            command = ["taskset", "-c", core, *command]
        environment = {
            **os.environ, "MAITRED_HOME": self.home, "MAITRED_ADMIN_LISTEN": f"127.0.0.1:{port + 1}",
            "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        self.log = Path(self.home, "log")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self.log.open("w"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/models/{self.model}/ready", timeout=1).close()
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server did not come up:\n{self.log.read_text()[-2000:]}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def cpu_seconds(self) -> float:
        """User and system time of the server and its replicas."""
        total = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(entry.name) == self.process.pid or int(fields[1]) == self.process.pid:
                        total += int(fields[11]) + int(fields[12])
        return total / TICK

    def batches(self) -> tuple[float, float]:
        """Rows and batches so far."""
        token = Path(self.home, "admin-token").read_text().strip()
        url, headers = f"http://127.0.0.1:{self.port + 1}/metrics", {"Authorization": f"Bearer {token}"}
        text = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5).read().decode()
        found = [re.search(rf"^maitred_batch_rows_{end}{{[^}}]*}} (\S+)", text, re.M) for end in ("sum", "count")]
        rows, count = (float(match.group(1)) if match else 0.0 for match in found)
        return rows, count


def body(seed: int) -> bytes:
    values = [round(random.Random(seed).uniform(-1, 1), 4) for _ in range(4)]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": values}
    return json.dumps({"id": f"request-{seed}", "inputs": [tensor]}).encode()


def closed(server: Server, clients: int, seconds: float, core: str) -> dict[str, Any]:
    requests, script = Path(server.home, "requests"), Path(server.home, "post.lua")
    requests.write_bytes(b"\n".join(body(seed) for seed in range(PREPARED)) + b"\n")
    script.write_text(POST)
    url = f"http://127.0.0.1:{server.port}/v2/models/{server.model}/infer"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "-s", str(script), url, "--", str(requests)]
    if core:
        command = ["taskset", "-c", core, *command]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in told.splitlines() if line.startswith("RESULT"))
    return json.loads(line.removeprefix("RESULT"))


def poisson(port: int, model: str, rate: float, seconds: float) -> None:
    """Drive Poisson arrivals; a request's time counts from when it was due. Prints one JSON line."""
    chance = random.Random(11)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    messages = [f"{head}Content-Length: {len(body(n))}\r\n\r\n".encode() + body(n) for n in range(PREPARED)]
    poll, idle, due_of, sockets = select.epoll(), [], {}, {}
    waits, errors, sent = [], 0, 0
    begun = time.perf_counter()
    end, due = begun + seconds, begun + chance.expovariate(rate)
    while True:
        now = time.perf_counter()
        while due <= now and due < end:
            if idle:
                link = idle.pop()
            elif len(sockets) >= MOST_LINKS:
                errors, due = errors + 1, due + chance.expovariate(rate)
                continue
            else:
                link = socket.create_connection(("127.0.0.1", port))
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets[link.fileno()] = link
                poll.register(link, select.EPOLLIN)
            due_of[link.fileno()] = due
            link.sendall(messages[sent % PREPARED])
            sent += 1
            due += chance.expovariate(rate)
            now = time.perf_counter()
        if due >= end and (not due_of or now > end + 5):
            break
        for number, _ in poll.poll(0 if due - now < 0.001 else 0.001):
            link = sockets[number]
            answer = link.recv(65536)  # a small answer to the one request under way comes in one piece
            if not answer:
                poll.unregister(number)
                sockets.pop(number).close()
                errors += due_of.pop(number, None) is not None
            elif number in due_of:
                errors += not answer.startswith(b"HTTP/1.1 200")
                waits.append(time.perf_counter() - due_of.pop(number))
                idle.append(link)
    waits.sort()
    p50, p99 = (waits[int(part * len(waits))] * 1e3 for part in (0.5, 0.99))
    print("RESULT", json.dumps({"rate": len(waits) / seconds, "p50": p50, "p99": p99, "errors": errors + len(due_of)}))


def opened(server: Server, rate: float, seconds: float, core: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--poisson", f"{server.port},{server.model},{rate},{seconds}"]
    if core:
        command = ["taskset", "-c", core, *command]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(told.removeprefix("RESULT"))


def loads(model: str, seconds: float, core: str) -> Iterator[tuple[str, Any]]:
    for clients in (1, 16, 64, 128):
        yield f"closed {clients}", lambda server, clients=clients: closed(server, clients, seconds, core)
    for part in (0.05, 0.5, 0.8):
        rate = BEST[model] * part
        yield f"poisson {part:.0%}", lambda server, rate=rate: opened(server, rate, seconds, core)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="curve,slow")
    parser.add_argument("--rules", default="waits,plain")
    parser.add_argument("--only", default="", help="loads that begin so, such as 'closed'")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one run")
    parser.add_argument("--port", type=int, default=18700)
    parser.add_argument("--server-core", default="", help="as taskset takes it")
    parser.add_argument("--client-core", default="")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("this needs wrk, which is not here; on Debian: apt-get install wrk")
        return 2
    errors = 0
    for model in options.models.split(","):
        servers: dict[str, Server] = {}
        try:
            for number, rule in enumerate(options.rules.split(",")):
                servers[rule] = Server(model, rule, options.port + 2 * number, options.server_core)
            for server in servers.values():
                server.wait()
            for name, drive in loads(model, options.seconds, options.client_core):
                for rule, server in servers.items() if name.startswith(options.only) else ():
                    rows, batches = server.batches()
                    cpu = server.cpu_seconds()
                    told = drive(server)
                    used = server.cpu_seconds() - cpu
                    more, count = server.batches()
                    answers = told["rate"] * options.seconds
                    errors += told["errors"]
                    print(
                        f"{model:6s} {name:12s} {rule:6s} {told['rate']:8.0f}/s  p50 {told['p50']:6.2f}  "
                        f"p99 {told['p99']:6.2f}  rows {(more - rows) / max(1.0, count - batches):5.1f}  "
                        f"cpu-us {used / max(1.0, answers) * 1e6:6.1f}  errors {told['errors']}",
                        flush=True,
                    )
        finally:
            for server in servers.values():
                server.close()
    return 1 if errors else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[3:], sys.argv[2] == "plain")
    elif sys.argv[1:2] == ["--poisson"]:
        at, name, rate, seconds = sys.argv[2].split(",")
        poisson(int(at), name, float(rate), float(seconds))
    else:
        sys.exit(main())
