"""Open-loop HTTP load with a client timeout (standard library only).

Requests are sent at a fixed rate whatever the server does. One that is not
answered within the timeout is abandoned: its connection is closed, as a real
client would. Idle connections are reused, new ones opened as needed. Requests come
from a file of prepared ones (id, tab, body on each line), one after the other.
Prints one JSON line. --burst N sends N at once and hangs up after --timeout.
"""
import argparse
import asyncio
import itertools
import json
import time
from collections import Counter
from urllib.parse import urlsplit

p = argparse.ArgumentParser()
p.add_argument("url")
p.add_argument("requests")
p.add_argument("--rate", type=float, default=1000)
p.add_argument("--seconds", type=float, default=10)
p.add_argument("--timeout", type=float, default=1.0)
p.add_argument("--burst", type=int, default=0)
p.add_argument("--max-open", type=int, default=8000)
a = p.parse_args()
u = urlsplit(a.url)


def message(line):
    id, _, body = line.rstrip("\n").partition("\t")
    return (f"POST {u.path} HTTP/1.1\r\nHost: {u.netloc}\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {id}\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode()


with open(a.requests) as f:
    messages = itertools.cycle([message(line) for line in f])
res = Counter()
lat = []
late_err = []
idle = []
open_now = 0


class Conn(asyncio.Protocol):
    def __init__(self):
        self.buf = b""
        self.t0 = None
        self.alive = False

    def connection_made(self, tr):
        global open_now
        self.tr = tr
        self.alive = True

    def send(self, t0):
        self.t0 = t0
        self.buf = b""
        self.tr.write(next(messages))

    def data_received(self, data):
        if self.t0 is None:
            return
        self.buf += data
        head, sep, rest = self.buf.partition(b"\r\n\r\n")
        if not sep:
            return
        low = head.lower()
        if b"content-length:" in low:
            n = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(rest) < n:
                return
        elif b"chunked" in low and not rest.endswith(b"0\r\n\r\n"):
            return
        status = int(head[9:12])
        dt = time.perf_counter() - self.t0
        self.t0 = None
        if dt > a.timeout:  # the timer was late, not the answer in time
            res["timeout"] += 1
            self.tr.abort()
            return
        res[status] += 1
        if status == 200:
            lat.append(dt)
        else:
            late_err.append(dt)
        if b"connection: close" in low:
            self.tr.close()
        else:
            idle.append(self)

    def connection_lost(self, exc):
        global open_now
        open_now -= 1
        self.alive = False
        if self.t0 is not None:
            self.t0 = None
            res["reset"] += 1

    def expire(self, t0):
        if self.t0 == t0:
            self.t0 = None
            res["timeout"] += 1
            self.tr.abort()


async def fresh(loop, t0):
    global open_now
    try:
        _, c = await asyncio.wait_for(loop.create_connection(Conn, u.hostname, u.port), a.timeout)
    except (OSError, asyncio.TimeoutError) as e:
        open_now -= 1
        res["connect_" + type(e).__name__] += 1
        return
    left = t0 + a.timeout - time.perf_counter()
    if left <= 0:
        res["timeout"] += 1
        c.tr.abort()
        return
    c.send(t0)
    loop.call_later(left, c.expire, t0)


def fire(loop):
    global open_now
    t0 = time.perf_counter()
    while idle:
        c = idle.pop()
        if c.alive and not c.tr.is_closing():
            c.send(t0)
            loop.call_later(a.timeout, c.expire, t0)
            return
    if open_now >= a.max_open:
        res["client_full"] += 1
        return
    open_now += 1
    loop.create_task(fresh(loop, t0))


async def main():
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    sent = 0
    if a.burst:
        for _ in range(a.burst):
            fire(loop)
        sent = a.burst
    else:
        while (now := time.perf_counter()) < start + a.seconds:
            due = int((now - start) * a.rate)
            while sent < due:
                fire(loop)
                sent += 1
            await asyncio.sleep(0.001)
    await asyncio.sleep(a.timeout + 0.2)
    dur = a.seconds if not a.burst else a.timeout
    lat.sort()
    late_err.sort()

    def q(v, f):
        return round(v[min(len(v) - 1, int(f * len(v)))] * 1000, 1) if v else None

    print("RESULT " + json.dumps({
        "sent": sent, "offered_per_s": round(sent / dur, 1), "ok": res[200],
        "goodput_per_s": round(res[200] / dur, 1), "ok_p50_ms": q(lat, .5), "ok_p99_ms": q(lat, .99),
        "reject_p50_ms": q(late_err, .5), "reject_p99_ms": q(late_err, .99),
        "outcomes": {str(k): v for k, v in res.items()}}))


try:
    import uvloop
    uvloop.run(main())
except ImportError:
    asyncio.run(main())
