#!/usr/bin/env python3
"""Serve the same two models in several model servers and measure each. See README.md."""
import argparse
import contextlib
import fcntl
import http.client
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from urllib.parse import urlsplit

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import models  # noqa: E402
from prepared import KINDS, Requests  # noqa: E402

VENVS = os.environ.get("BENCH_VENVS", "/tmp/peers")
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- the peers
# name -> (environment, server file, request path, kind of body, extra args). A name may carry
# variants: "mosec", "mosec:nobatch", "litserve:fast_queue". OWN: the Python that runs this file.
OWN = None
PEERS = {
    "triton": ("triton", "triton_server.py", "/v2/models/{m}/infer", "v2", []),
    "pytriton": ("triton", "pytriton_server.py", "/v2/models/{m}/infer", "v2", []),
    "mosec": ("mosec", "mosec_server.py", "/inference", "native", []),
    "litserve": ("litserve", "litserve_server.py", "/predict", "native", []),
    "bentoml": ("bentoml", "bentoml_server.py", "/predict", "bento", []),
    "ray": ("ray", "ray_server.py", "/", "native", []),
    "mlserver": ("mlserver", "mlserver_server.py", "/v2/models/{m}/infer", "v2", []),
    "fastapi": ("fastapi", "fastapi_server.py", "/predict", "native", []),
    "kserve": ("kserve", "kserve_server.py", "/v2/models/{m}/infer", "v2", []),
    "torchserve": ("torchserve", "torchserve_server.py", "/predictions/{m}", "native", []),
    "maitred": (OWN, "maitred_server.py", "/v2/models/{m}/infer", "v2", []),
    "nginx": (OWN, "nginx_server.py", "/predict", "native", []),
}


# ------------------------------------------------------------- process trees
def tree(tag, root):
    """Every process that carries the tag in its environment, or descends from root."""
    pids, parent = set(), {}
    for e in os.listdir("/proc"):
        if not e.isdigit():
            continue
        pid = int(e)
        with contextlib.suppress(OSError, ValueError):
            parent[pid] = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
            if tag and tag.encode() in open(f"/proc/{pid}/environ", "rb").read():
                pids.add(pid)
    if root:
        pids.add(root)
    grew = True
    while grew:
        more = {p for p, q in parent.items() if q in pids} - pids
        pids |= more
        grew = bool(more)
    return {p for p in pids if p in parent and p != os.getpid()}


def cpu_s(pids):
    total = 0
    for p in pids:
        with contextlib.suppress(OSError):
            f = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
            total += sum(map(int, f[11:15]))
    return total / TICK


def rss_mb(pids):
    """(sum of RSS, sum of PSS) in MB"""
    rss = pss = 0
    for p in pids:
        with contextlib.suppress(OSError):
            for line in open(f"/proc/{p}/smaps_rollup"):
                if line.startswith("Rss:"):
                    rss += int(line.split()[1])
                elif line.startswith("Pss:"):
                    pss += int(line.split()[1])
    return round(rss / 1024), round(pss / 1024)


class Counter:
    def __init__(self, path):
        self.path = path

    def read(self):
        try:
            b = open(self.path, "rb").read(16)
            return struct.unpack("<QQ", b) if len(b) == 16 else (0, 0)
        except OSError:
            return (0, 0)


# ------------------------------------------------------------------- servers
class Server:
    def __init__(self, name, model, pin, o):
        self.name, self.model, self.pin, self.o = name, model, pin, o
        base, *variants = name.split(":")
        self.base = base
        self.tag = f"BENCH_TAG={uuid.uuid4().hex}"
        self.tmp = tempfile.mkdtemp(prefix="bench-run-")
        self.counter = Counter(os.path.join(self.tmp, "counter"))
        self.grpc_port = o.port + 1
        self.root = None
        self.proc = None
        if base in o.extras:
            x = o.extras[base]
            self.url = x["url"].format(m=model)
            kind, self.cmd, self.root = x.get("body", "v2"), x.get("cmd"), x.get("pid")
            if self.cmd:
                self.cmd = ["sh", "-c", "exec " + self.cmd.format(m=model, port=o.port)]
        else:
            venv, file, path, kind, extra = PEERS[base]
            served = "overhead" if model == "slow" and base in ("nginx",) else model
            self.url = f"http://127.0.0.1:{o.port}" + path.format(m=served)
            self.cmd = [os.path.join(VENVS, venv, "bin", "python") if venv else sys.executable,
                        os.path.join(HERE, "servers", file), "--port", str(o.port),
                        "--grpc-port", str(o.port + 1), "--aux-port", str(o.port + 2),
                        "--model", model, "--max-wait-ms", str(o.max_wait_ms), *extra]
            for v in variants:
                self.cmd += ["--batch", "off"] if v == "nobatch" else ["--opt", v]
        self.requests = Requests(kind, model)
        self.requests_file = os.path.join(self.tmp, "requests.tsv")
        self.requests.write(self.requests_file)
        self.checked, self.wrong = 0, []

    def ask(self, timeout=5, i=0, connection=None):
        u = urlsplit(self.url)
        c = connection or http.client.HTTPConnection(u.hostname, u.port, timeout=timeout)
        try:
            c.request("POST", u.path, self.requests.bodies[i],
                      {"Content-Type": "application/json", "X-Request-Id": self.requests.ids[i]})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            if connection is None:
                c.close()

    def check(self, count=48, threads=8):
        """Ask varied requests, several at once so that they share batches; raise if an answer is not the model's."""
        if self.base == "nginx":
            return

        def some(first):
            for i in range(first, count, threads):
                self._sample(i * 37 % len(self.requests.bodies))

        workers = [threading.Thread(target=some, args=(k,)) for k in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        self.raise_wrong()

    def raise_wrong(self):
        if self.wrong:
            raise RuntimeError(f"{self.name}: {len(self.wrong)} of {self.checked} answers wrong: {self.wrong[:3]}")

    def _sample(self, i):
        try:
            status, data = self.ask(30, i)
            wrong = self.requests.wrong(i, data) if status == 200 else f"request {i}: status {status}"
        except Exception as e:
            wrong = f"request {i}: {e!r}"
        self.checked += 1
        if wrong:
            self.wrong.append(wrong)

    @contextlib.contextmanager
    def sampled(self, every_s=0.05):
        """While a load runs, check some 20 answers a second."""
        if self.base == "nginx":
            yield
            return
        stop = threading.Event()

        def sample():
            i = 0
            while not stop.wait(every_s):
                i += 1
                self._sample(i * 101 % len(self.requests.bodies))

        t = threading.Thread(target=sample)
        t.start()
        try:
            yield
        finally:
            stop.set()
            t.join()
        self.raise_wrong()

    def __enter__(self):
        t0 = time.time()
        if self.cmd:
            env = dict(os.environ, BENCH_COUNTER=self.counter.path, PYTHONUNBUFFERED="1",
                       OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
            k, v = self.tag.split("=")
            env[k] = v
            cmd = self.cmd
            if self.pin:
                cmd = ["taskset", "-c", self.o.server_core, *cmd]
            self.log = open(os.path.join(self.tmp, "log"), "wb")
            self.proc = subprocess.Popen(cmd, env=env, stdout=self.log, stderr=self.log,
                                         stdin=subprocess.DEVNULL, start_new_session=True)
            self.root = self.proc.pid
        last = None
        while True:
            try:
                status, data = self.ask()
                if status == 200:
                    break
                last = (status, data[:300])
            except OSError as e:
                last = e
            except http.client.HTTPException as e:
                last = e
            if self.proc and self.proc.poll() is not None or time.time() - t0 > self.o.start_timeout:
                self.stop()
                tail = open(os.path.join(self.tmp, "log"), "rb").read()[-3000:].decode(errors="replace")
                raise RuntimeError(f"{self.name} did not come up: {last}\n{tail}")
            time.sleep(0.02)
        self.start_s = round(time.time() - t0, 2)
        self.check()
        self.reply_bytes = len(data)
        return self

    def pids(self):
        return tree(self.tag if self.cmd else None, self.root)

    def stop(self):
        if not self.cmd:
            return
        with contextlib.suppress(OSError):
            os.kill(self.proc.pid, signal.SIGTERM)
        end = time.time() + 5
        while time.time() < end and self.proc.poll() is None:
            time.sleep(0.05)
        for _ in range(3):
            for p in self.pids():
                with contextlib.suppress(OSError):
                    os.kill(p, signal.SIGKILL)
            time.sleep(0.1)
        self.proc.wait()

    def __exit__(self, *exc):
        self.stop()


# --------------------------------------------------------------------- loads
def wrk(s, conc, seconds, pin, o):
    cmd = ["wrk", "-t1", f"-c{conc}", f"-d{seconds}s", "--timeout", "30s", "-s",
           os.path.join(HERE, "load", "post.lua"), s.url, "--", s.requests_file, "application/json"]
    if pin:
        cmd = ["taskset", "-c", o.client_core, *cmd]
    out = subprocess.run(cmd, capture_output=True, text=True).stdout
    r = json.loads(next(x for x in out.splitlines() if x.startswith("RESULT"))[7:])
    errors = sum(r[k] for k in r if k.startswith("err_"))
    return {"requests": r["requests"], "seconds": r["duration_us"] / 1e6,
            "p50_ms": r["p50"] / 1e3, "p90_ms": r["p90"] / 1e3, "p99_ms": r["p99"] / 1e3,
            "errors": errors, "ok": r["requests"] - r["err_status"]}


def h2(s, conc, seconds, warm, pin, o):
    body = os.path.join(s.tmp, "body.grpc")
    if not os.path.exists(body):
        subprocess.check_call([sys.executable, os.path.join(HERE, "load", "grpc_body.py"), s.model, body])
    logf = os.path.join(s.tmp, "h2.log")
    with contextlib.suppress(OSError):
        os.unlink(logf)
    conns = min(4, conc)
    cmd = ["h2load", "-t1", f"-c{conns}", f"-m{conc // conns}", "-D", str(seconds),
           f"--warm-up-time={warm}", "-d", body, "--log-file", logf,
           "-H", "content-type: application/grpc", "-H", "te: trailers",
           f"http://127.0.0.1:{s.grpc_port}/inference.GRPCInferenceService/ModelInfer"]
    if pin:
        cmd = ["taskset", "-c", o.client_core, *cmd]
    t_cpu = {}
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
    time.sleep(warm)
    t_cpu[0] = cpu_s(s.pids())
    p.communicate()
    t_cpu[1] = cpu_s(s.pids())
    us = sorted(int(x.split("\t")[2]) for x in open(logf))
    n = len(us)
    bad = sum(x.split("\t")[1] != "200" for x in open(logf))
    q = lambda f: us[min(n - 1, int(f * n))] / 1e3  # noqa: E731
    return {"requests": n, "seconds": seconds, "p50_ms": q(.5), "p90_ms": q(.9), "p99_ms": q(.99),
            "errors": bad, "ok": n - bad}, t_cpu[1] - t_cpu[0]


@contextlib.contextmanager
def locked(o):
    """Hold the machine's lock for the test; keep it between tests for up to --hold seconds."""
    if not o.lock:
        yield
        return
    if o.lock_file is None:
        o.lock_file = open(o.lock, "a")
        fcntl.flock(o.lock_file, fcntl.LOCK_EX)
        o.lock_since = time.time()
    try:
        yield
    finally:
        if time.time() - o.lock_since > o.hold:
            o.lock_file.close()  # closing gives it up
            o.lock_file = None


def save(o, rec):
    o.results.append(rec)
    with open(o.lock_out, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        try:
            old = json.load(open(o.out))
        except (OSError, ValueError):
            old = []
        key = lambda r: tuple(r.get(k) for k in ("kind", "peer", "model", "pin", "proto", "conc"))  # noqa: E731
        for r in old:  # of repeated load runs the fastest is kept: the box is noisy
            if key(r) == key(rec) and rec["kind"] == "load":
                rec["runs"] = r.get("runs", 1) + 1
                if r["rps"] > rec["rps"]:
                    rec = r | {"runs": rec["runs"]}
        old = [r for r in old if key(r) != key(rec)] + [rec]
        tmp = o.out + ".tmp"
        json.dump(old, open(tmp, "w"), indent=0)
        os.replace(tmp, o.out)


def load_test(name, model, pin, o):
    concs = [c for c in o.conc if model == "overhead" or c <= 64]
    with locked(o), Server(name, model, pin, o) as s:
        time.sleep(15 if s.base == "ray" else 0.3)  # Ray's daemons go on starting for a while
        pids = s.pids()
        rss, pss = rss_mb(pids)
        save(o, {"kind": "footprint", "peer": name, "model": model, "pin": pin, "start_s": s.start_s,
                 "rss_mb": rss, "pss_mb": pss, "processes": len(pids), "reply_bytes": s.reply_bytes})
        for proto in o.proto:
            for i, c in enumerate(concs):
                if proto == "http":  # the full warm-up once; a short one for each further level
                    wrk(s, c, o.warmup if i == 0 else min(1, o.warmup), pin, o)
                    n0, k0 = s.counter.read()
                    c0 = cpu_s(s.pids())
                    with s.sampled():
                        r = wrk(s, c, o.seconds, pin, o)
                    used = cpu_s(s.pids()) - c0
                    n1, k1 = s.counter.read()
                else:
                    if s.base not in ("triton", "pytriton", "mlserver", "kserve"):
                        continue
                    n0, k0 = s.counter.read()
                    r, used = h2(s, c, o.seconds, o.warmup, pin, o)
                    n1, k1 = s.counter.read()
                rec = {"kind": "load", "peer": name, "model": model, "pin": pin, "proto": proto, "conc": c,
                       "rps": round(r["ok"] / r["seconds"], 1), "p50_ms": round(r["p50_ms"], 3),
                       "p90_ms": round(r["p90_ms"], 3), "p99_ms": round(r["p99_ms"], 3),
                       "errors": r["errors"], "cpu_us": round(used * 1e6 / max(1, r["requests"]), 1),
                       "busy": round(used / r["seconds"], 2),
                       "mean_batch": round((n1 - n0) / (k1 - k0), 1) if k1 > k0 else None}
                save(o, rec)
                print("%-22s %-8s %-4s %-4s c=%-4d %9.1f/s p50 %8.2f p90 %8.2f p99 %8.2f ms  cpu %7.1f us/req  busy %.2f  batch %s  err %d" % (
                    name, model, "pin" if pin else "free", proto, c, rec["rps"], rec["p50_ms"], rec["p90_ms"],
                    rec["p99_ms"], rec["cpu_us"], rec["busy"], rec["mean_batch"], rec["errors"]), flush=True)
        s.check()


def openloop(s, o, *extra):
    cmd = ["taskset", "-c", o.client_core, sys.executable, os.path.join(HERE, "load", "openloop.py"),
           s.url, s.requests_file, *map(str, extra)]
    out = subprocess.run(cmd, capture_output=True, text=True)
    line = [x for x in out.stdout.splitlines() if x.startswith("RESULT")]
    if not line:
        raise RuntimeError(out.stderr[-2000:])
    return json.loads(line[0][7:])


def settle(s, quiet=1.0, limit=40):
    """Wait until the model computes no more rows; returns (seconds, rows)."""
    t0 = last = time.time()
    n0 = n = s.counter.read()[0]
    while time.time() - last < quiet and time.time() - t0 < limit:
        time.sleep(0.05)
        m = s.counter.read()[0]
        if m != n:
            n, last = m, time.time()
    return round(last - t0, 2), n - n0


def overload_test(name, model, o):
    with locked(o), Server(name, model, True, o) as s:
        wrk(s, 64, 3, True, o)
        cap = wrk(s, 64, 4, True, o)
        cap = cap["ok"] / cap["seconds"]
        settle(s)
        rate = o.rate or min(4 * cap, 8000)
        rss0 = rss_mb(s.pids())[0]
        n0 = s.counter.read()[0]
        r = openloop(s, o, "--rate", rate, "--seconds", 10, "--timeout", 1)
        n1 = s.counter.read()[0]
        rss1 = rss_mb(s.pids())[0]
        drain, late = settle(s)
        # is it well again? a plain request, then normal load
        t0 = time.time()
        try:
            st = s.ask(30)[0]
        except OSError as e:
            st = repr(e)
        heal = round(time.time() - t0, 2)
        after = wrk(s, 16, 3, True, o)
        rec = {"kind": "overload", "peer": name, "model": model, "capacity": round(cap, 1), **r,
               "rows_computed": n1 + late - n0, "rows_wasted": n1 + late - n0 - r["ok"],
               "drain_s": drain, "rows_after_stop": late, "rss_before_mb": rss0, "rss_after_mb": rss1,
               "first_after": [st, heal], "after_rps_c16": round(after["ok"] / after["seconds"], 1)}
        save(o, rec)
        print("OVERLOAD " + json.dumps(rec), flush=True)


def disconnect_test(name, model, o):
    """128 clients ask at once and hang up after 50 ms: how many rows does the server still compute?"""
    with locked(o), Server(name, model, True, o) as s:
        wrk(s, 16, 2, True, o)
        settle(s)
        n0 = s.counter.read()[0]
        r = openloop(s, o, "--burst", 128, "--timeout", 0.05)
        n1 = s.counter.read()[0]
        drain, late = settle(s)
        rec = {"kind": "disconnect", "peer": name, "model": model, "sent": 128, "answered": r["ok"],
               "outcomes": r["outcomes"], "rows_computed": n1 + late - n0, "drain_s": drain}
        save(o, rec)
        print("DISCONNECT " + json.dumps(rec), flush=True)


def bare(o):
    """The compute limit: the model in this process."""
    for model in o.models:
        m = models.load(model)
        for n in (1, 8, 64):
            x = models.tokens(n) if model == "minilm" else (models.features(n),)
            with locked(o):
                end = time.process_time() + 0.5
                while time.process_time() < end:
                    m(*x)
                t0, c0, k = time.perf_counter(), time.process_time(), 0
                while time.perf_counter() - t0 < 4:
                    m(*x)
                    k += 1
                dt, cpu = time.perf_counter() - t0, time.process_time() - c0
            rec = {"kind": "bare", "peer": "bare", "model": model, "conc": n,
                   "rows_per_s": round(k * n / dt, 1), "call_us": round(dt / k * 1e6, 1),
                   "cpu_us_per_row": round(cpu / k / n * 1e6, 2)}
            save(o, rec)
            print("BARE " + json.dumps(rec), flush=True)


def table(o):
    """Markdown: one table per model, pin, protocol and concurrency."""
    rs = [r for r in json.load(open(o.out)) if r["kind"] == "load"]
    groups = sorted({(r["model"], not r["pin"], r["proto"], r["conc"]) for r in rs})
    for model, free, proto, conc in groups:
        print(f"\n**{model}, {proto}, concurrency {conc}, {'unpinned' if free else 'server on one core'}**\n")
        print("| server | req/s | p50 ms | p90 ms | p99 ms | server CPU us/req | cores busy | mean batch | errors |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        g = [r for r in rs if (r["model"], not r["pin"], r["proto"], r["conc"]) == (model, free, proto, conc)]
        for r in sorted(g, key=lambda r: -r["rps"]):
            print("| %s | %.0f | %.2f | %.2f | %.2f | %.0f | %.2f | %s | %d |" % (
                r["peer"], r["rps"], r["p50_ms"], r["p90_ms"], r["p99_ms"], r["cpu_us"], r["busy"],
                r["mean_batch"] or "", r["errors"]))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("what", choices=["load", "overload", "disconnect", "bare", "table", "check", "bodies"])
    p.add_argument("--peers", default="triton,mosec")
    p.add_argument("--models", default="overhead,minilm")
    p.add_argument("--conc", default="1,16,64,256")
    p.add_argument("--proto", default="http", help="http, grpc or http,grpc")
    p.add_argument("--pin", default="pin", choices=["pin", "free", "both"])
    p.add_argument("--seconds", type=int, default=8)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--max-wait-ms", type=float, default=2.0)
    p.add_argument("--rate", type=float, default=0, help="overload: requests/s (default 4x the measured capacity)")
    p.add_argument("--port", type=int, default=18000)
    p.add_argument("--server-core", default="0")
    p.add_argument("--client-core", default="1")
    p.add_argument("--start-timeout", type=float, default=120)
    p.add_argument("--lock", default=os.environ.get("BENCH_LOCK", "/tmp/bench.lock"), help="'' for none")
    p.add_argument("--hold", type=float, default=90, help="seconds to keep the lock across tests")
    p.add_argument("--out", default=os.environ.get("BENCH_OUT", os.path.join(HERE, "results.json")))
    p.add_argument("--out-dir", default="bodies", help="bodies: where to write them")
    p.add_argument("--extra", action="append", default=[], metavar="NAME=URL",
                   help="one more server; {m} in the URL is the model's name")
    p.add_argument("--extra-body", action="append", default=[], metavar="NAME=KIND",
                   help="v2 (the default), native or bento")
    p.add_argument("--extra-cmd", action="append", default=[], metavar="NAME=COMMAND",
                   help="how to start it; {m} and {port} are filled in")
    p.add_argument("--extra-pid", action="append", default=[], metavar="NAME=PID",
                   help="or the pid of one that runs already")
    o = p.parse_args()
    o.conc = [int(c) for c in o.conc.split(",")]
    o.proto = o.proto.split(",")
    o.models = o.models.split(",")
    o.results = []
    o.lock_file = None
    o.lock_out = o.out + ".lock"
    o.extras = {}
    for key, vals in (("url", o.extra), ("body", o.extra_body), ("cmd", o.extra_cmd), ("pid", o.extra_pid)):
        for v in vals:
            n, _, x = v.partition("=")
            o.extras.setdefault(n, {})[key] = int(x) if key == "pid" else x
    peers = [x for x in o.peers.split(",") if x] + [n for n in o.extras if n not in o.peers.split(",")]
    if o.what == "bodies":
        os.makedirs(o.out_dir, exist_ok=True)
        for m in o.models:
            for kind in KINDS:
                Requests(kind, m).write(os.path.join(o.out_dir, f"{kind}-{m}.tsv"))
        return None
    if o.what == "table":
        return table(o)
    if o.what == "bare":
        return bare(o)
    os.environ.setdefault("BENCH_SLOW_S", "0.2")
    for model in o.models:
        for peer in peers:
            try:
                if o.what == "check":
                    with Server(peer, model, False, o) as s:
                        print(f"{peer} {model} up in {s.start_s}s, {s.checked} answers right, "
                              f"{len(s.pids())} processes, rss/pss {rss_mb(s.pids())} MB, reply {s.reply_bytes} B", flush=True)
                elif o.what == "load":
                    for pin in {"pin": [True], "free": [False], "both": [True, False]}[o.pin]:
                        load_test(peer, model, pin, o)
                elif o.what == "overload":
                    overload_test(peer, model, o)
                else:
                    disconnect_test(peer, model, o)
            except Exception as e:
                print(f"FAILED {peer} {model}: {e}", flush=True)
                if not isinstance(e, (RuntimeError, AssertionError, OSError)):
                    import traceback
                    traceback.print_exc()


if __name__ == "__main__":
    main()
