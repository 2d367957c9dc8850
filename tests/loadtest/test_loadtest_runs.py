"""Loads over real sockets: what becomes of every way in which the other side can answer, or not."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest
from odd_server import OK, Odd, odd, says

from maitred.loadtest.connection import Connection, now_ns
from maitred.loadtest.crew import Crew
from maitred.loadtest.histogram import Histogram
from maitred.loadtest.loops import load_of
from maitred.loadtest.plan import Plan, Step, Target
from maitred.loadtest.tally import Tally

SECOND = 1_000_000_000
POST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"


def request(body: bytes) -> bytes:
    return POST % (len(body), body)


def plan_for(port: int, **more) -> Plan:
    return Plan(Target("127.0.0.1", port), more.pop("requests", [request(b"1")]), more.pop("timeout", 20.0), **more)


async def loaded(plan: Plan, step: Step) -> Tally:
    load = load_of(plan, step)
    await load.prepare()
    return await asyncio.wait_for(load.run(now_ns()), 40)


def closed(requests: int, connections: int = 2) -> Step:
    return Step(connections, 0.0, 0.0, requests=requests)


def opened(requests: int, rate: float = 500.0, connections: int = 64, **more) -> Step:
    return Step(connections, 0.0, 0.0, rate=rate, requests=requests, **more)


STEPS = pytest.mark.parametrize("step", [closed(20), opened(20)], ids=["closed", "open"])


class Late:
    """A loop that tells of a new connection only when the other side has closed it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    async def create_connection(self, *arguments, **named):
        transport, connection = await self._loop.create_connection(*arguments, **named)
        while not connection.closing:
            await asyncio.sleep(0.001)
        return transport, connection


class TestAnswers:
    @STEPS
    @pytest.mark.parametrize("behave", [
        says(OK), says(*[OK[at : at + 1] for at in range(len(OK))]), says(b"HTTP/1.1 100 Continue\r\n\r\n", OK),
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
        says(b"HTTP/1.1 204 No Content\r\n\r\n"),
        says(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), close=True),
        says(b"HTTP/1.1 200 OK\r\n\r\n", b"a body without a length", close=True),
        says(OK.replace(b"Length: 2", b"Length: 200004").replace(b"{}", b'["'), b"x" * 200_000, b'"]'),
    ], ids=["plain", "in bytes", "interim", "chunked", "empty", "closing", "no length", "large"])  # fmt: skip
    def test_good_ones(self, run, step, behave):
        async def work():
            async with odd(behave) as server:
                tally = await loaded(plan_for(server.port), step)
                assert (tally.good, tally.failed) == (20, {}), tally.samples
                assert len(server.asked) == 20 and sum(tally.latency.counts) == 20

        run(work())

    @STEPS
    @pytest.mark.parametrize(("behave", "kind", "said"), [
        (says(b"hello\r\n\r\n"), "malformed", "no HTTP/1.1 answer"),
        (says(OK + b"more"), "malformed", "bytes follow"),
        (says(OK[:-1] + b"x"), "content", "no valid JSON"),
        (says(OK.replace(b"{}", b"[["), b""), "content", "no valid JSON"),
        (says(close=True), "closed", "the other side closed the connection"),
        (says(OK[:-1], close=True), "closed", "after HTTP/1.1 200 OK"),
        (says(b"HTTP/1.1 503 Later\r\nContent-Length: 4\r\n\r\nbusy"), "status", "503: busy"),
        (says(b"HTTP/1.1 404 No\r\n\r\nnothing", close=True), "status", "404: nothing"),
        (says(b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n"), "status", "302: "),
    ])  # fmt: skip
    def test_bad_ones(self, run, step, behave, kind, said):
        async def work():
            async with odd(behave) as server:
                tally = await loaded(plan_for(server.port), step)
                assert (tally.good, tally.failed) == (0, {kind: 20}), tally.samples
                assert said in tally.samples[kind][0] and len(tally.samples[kind]) <= 3
                assert sum(tally.latency.counts) == 0
                if kind == "status":
                    assert sum(tally.statuses.values()) == sum(tally.refusals.counts) == 20

        run(work())

    @STEPS
    def test_a_reset(self, run, step):
        async def behave(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            raw = writer.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

        async def work():
            async with odd(behave) as server:
                tally = await loaded(plan_for(server.port), step)
                assert tally.good == 0 and tally.failed.get("reset", 0) + tally.failed.get("closed", 0) == 20

        run(work())

    @STEPS
    def test_connections_that_are_closed_at_once(self, run, step):
        """However early it happens, each request is told of once, and no caller is lost or asks twice."""

        async def work():
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                load = load_of(plan_for(server.sockets[0].getsockname()[1]), step)
                load.loop = Late(load.loop)  # type: ignore[assignment]
                await load.prepare()
                tally = await asyncio.wait_for(load.run(now_ns()), 40)
                assert tally.good == 0 and tally.failed == {"refused": 20}
                assert "closed it at once" in tally.samples["refused"][0]

        run(work())

    @STEPS
    def test_nobody_listens(self, run, step):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and does not listen

            tally = run(loaded(plan_for(taken.getsockname()[1]), step))
        assert (tally.good, tally.failed) == (0, {"refused": 20})
        assert "refused" in tally.samples["refused"][0].lower()

    def test_one_of_several_kinds(self, run):
        """Every third answer is a refusal, every fifth connection breaks: each request is told of once."""
        count = 0

        async def behave(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal count
            count += 1
            if count % 5 == 0:
                writer.close()
            elif count % 3 == 0:
                writer.write(b"HTTP/1.1 429 Slow\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n" % count)
            else:
                writer.write(OK)

        async def work():
            async with odd(behave) as server:
                tally = await loaded(plan_for(server.port), closed(300, 8))
                assert tally.good + tally.failures == 300
                assert tally.failed == {"closed": 60, "status": 80} and tally.good == 160

        run(work())

    def test_bytes_that_nobody_asked_for_end_the_connection(self):
        """They could be taken for the answer to the next request."""

        class Transport:
            ended = False

            def abort(self) -> None:
                self.ended = True

        connection = Connection(None)  # type: ignore[arg-type]  # nothing is told to the owner
        transport = Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(OK)
        assert transport.ended and connection.closing and connection.answers == 0


class TestPatience:
    def test_a_server_that_never_answers(self, run):
        async def never(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)

        async def work():
            async with odd(never) as server:
                tally = await loaded(plan_for(server.port, timeout=0.2), closed(4))
                assert tally.failed == {"timeout": 4} and "no whole answer in 0.2 s" in tally.samples["timeout"]
                latency = Histogram.unpack(tally.latency)
                assert latency.count == 4 and latency.least >= 0.2 * SECOND  # they belong to what callers met

        run(work())

    def test_one_that_drips_for_ever(self, run):
        async def drip(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

        async def work():
            async with odd(drip) as server:
                tally = await loaded(plan_for(server.port, timeout=0.2), closed(2))
                assert tally.failed == {"timeout": 2}

        run(work())

    def test_requests_that_find_no_connection_are_not_left_out(self, run):
        """Two connections, a server that hangs: who is due then gives up, and counts as having waited so long."""

        async def never(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(60)

        async def work():
            async with odd(never) as server:
                tally = await loaded(plan_for(server.port, timeout=0.3), opened(50, rate=1000.0, connections=2))
                assert tally.good == 0 and tally.failures == 50 and set(tally.failed) <= {"timeout", "unsent"}
                assert tally.failed["unsent"] >= 40
                latency = Histogram.unpack(tally.latency)
                assert latency.count == 50 and latency.least >= 0.3 * SECOND

        run(work())

    def test_a_second_in_which_the_server_stands_still_shows(self, run):
        """The open loop's latency has the second for all who were due in it; that from the sending only for two."""
        asked = 0

        async def stall(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            if asked == 50:
                gate.clear()
                asyncio.get_running_loop().call_later(1.0, gate.set)
            await gate.wait()
            writer.write(OK)

        async def work():
            async with odd(stall) as server:
                step = opened(300, rate=200.0, connections=2, arrivals="constant")
                tally = await loaded(plan_for(server.port), step)
                assert tally.good == 300 and tally.sending is not None
                assert Histogram.unpack(tally.latency).percentile(0.9) > 0.5 * SECOND
                assert tally.held_up > 100
                shown = Histogram.unpack(tally.sending)
                assert shown.most >= 0.9 * SECOND

        gate = asyncio.Event()
        gate.set()
        run(work())


class TestPace:
    def test_bodies_go_in_turn_and_each_connection_asks_one_thing_at_a_time(self, run):
        async def work():
            async with odd(says(OK)) as server:
                bodies = [b"%d" % number for number in range(7)]
                await loaded(plan_for(server.port, requests=[request(body) for body in bodies]), closed(20, 1))
                assert server.asked == [request(bodies[number % 7]) for number in range(20)]
                assert server.connections == 1

        run(work())

    def test_a_closed_loop_has_as_many_callers_as_it_says(self, run):
        async def slow(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            while server.most_at_once < 5:
                await asyncio.sleep(0.001)
            writer.write(OK)

        async def work():
            async with odd(slow) as server:
                assert (await loaded(plan_for(server.port), closed(50, 5))).good == 50
                assert server.most_at_once == 5 == server.connections

        run(work())

    def test_an_open_loop_asks_whether_or_not_it_was_answered(self, run):
        async def late(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            while len(server.asked) < 40:
                await asyncio.sleep(0.001)
            writer.write(OK)

        async def work():
            async with odd(late) as server:
                assert (await loaded(plan_for(server.port), opened(40, connections=100))).good == 40

        run(work())

    def test_no_request_leaves_before_its_moment(self, run):
        async def work():
            async with odd(says(OK)) as server:
                tally = await loaded(plan_for(server.port), opened(30, rate=300.0, arrivals="constant"))
                assert tally.behind is not None and Histogram.unpack(tally.behind).least >= 0
                assert tally.seconds >= 29 / 300

        run(work())

    def test_what_is_sent_to_warm_up_is_not_counted(self, run):
        async def work():
            async with odd(says(OK)) as server:
                tally = await loaded(plan_for(server.port), Step(2, 0.0, 0.2, requests=10))
                assert tally.good == 10 and len(server.asked) > 10

        run(work())

    def test_it_ends_in_time(self, run):
        async def work():
            async with odd(says(OK)) as server:
                for step in (Step(2, 0.3, 0.1), Step(8, 0.3, 0.1, rate=200.0)):
                    tally = await loaded(plan_for(server.port), step)
                    assert tally.good > 0 and not tally.failed and tally.seconds >= 0.2

        run(work())

    def test_it_can_be_cut_short(self, run):
        async def work():
            async with odd(says(OK)) as server:
                crew = Crew(plan_for(server.port))
                told = []
                steps = [Step(2, 60.0, 0.0), Step(2, 60.0, 0.0)]
                running = asyncio.create_task(crew.run(steps, told.append))
                while len(server.asked) < 50:
                    await asyncio.sleep(0.001)
                crew.stop()
                [done] = await asyncio.wait_for(running, 10)
                assert done.tally.cut_short and done.tally.good >= 40 and not done.tally.failed
                assert told == steps[:1]

        run(work())

    def test_it_leaves_nothing_behind(self, run):
        async def work():
            async with odd(says(OK)) as server:
                await loaded(plan_for(server.port), closed(50, 4))
                await loaded(plan_for(server.port), opened(50, connections=4))
                while server.now:
                    await asyncio.sleep(0.001)
                assert {task.get_coro().__qualname__ for task in asyncio.all_tasks()} <= {
                    "run.<locals>.work",
                    "odd.<locals>.serve",
                    type(self).test_it_leaves_nothing_behind.__qualname__ + ".<locals>.work",
                }

        run(work())
        gc.collect()  # a socket left open would be a warning, and so an error


class TestBeginning:
    @STEPS
    def test_a_beginning_that_lies_ahead_is_waited_for(self, run, step):
        async def work():
            async with odd(says(OK)) as server:
                load = load_of(plan_for(server.port), step)
                await load.prepare()
                at = now_ns() + SECOND // 4
                tally = await asyncio.wait_for(load.run(at), 40)
                assert tally.good == 20 and now_ns() >= at

        run(work())


class TestChecked:
    def test_what_was_expected(self, run):
        async def echo(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(OK.replace(b"{}", b"%02d" % (int(body) + (int(body) == 13))))

        async def work():
            async with odd(echo) as server:
                requests = [request(b"%d" % n) for n in range(10, 20)]
                plan = plan_for(server.port, requests=requests, expected=[b"%d" % n for n in range(10, 20)])
                tally = await loaded(plan, closed(100))
                assert (tally.good, tally.failed, tally.compared) == (90, {"content": 10}, 100)
                assert "the answer is 14, not 13" in tally.samples["content"][0]

        run(work())

    @pytest.mark.parametrize(("tolerance", "wrong"), [(0.0, True), (0.5, False)])
    def test_the_same_body_must_get_the_same_answer(self, run, tolerance, wrong):
        async def varies(server: Odd, body: bytes, writer: asyncio.StreamWriter) -> None:
            answer = json.dumps({"id": len(server.asked), "y": 1 if len(server.asked) < 50 else 1.4}).encode()
            writer.write(OK.replace(b": 2", b": %d" % len(answer)).replace(b"{}", answer))

        async def work():
            async with odd(varies) as server:
                plan = plan_for(server.port, same=True, tolerance=tolerance)
                tally = await loaded(plan, closed(60, 1))
                assert bool(tally.failed) is wrong and tally.compared == 59
                assert tally.failed.get("content", 0) == (11 if wrong else 0)

        run(work())

    def test_server_timing_is_read(self, run):
        async def work():
            told = OK.replace(b"\r\n\r\n", b"\r\nServer-Timing: queue;dur=0.25, model;dur=0.5\r\n\r\n")
            async with odd(says(told)) as server:
                tally = await loaded(plan_for(server.port), closed(1064, 10))
                assert tally.timings["queue"].total_ns == tally.timings["queue"].count * 250_000
                assert tally.timed.count == tally.timings["model"].count == 1004  # then one of sixteen

        run(work())


class TestWorkers:
    @pytest.mark.parametrize("step", [closed(100, 4), opened(100, connections=8)], ids=["closed", "open"])
    def test_they_share_the_work_and_add_up(self, run, step):
        async def work():
            async with odd(says(OK)) as server:
                requests = [request(b"%d" % number) for number in range(50)]
                crew = Crew(plan_for(server.port, requests=requests), workers=2)
                [one, other] = await crew.run([step, step], lambda step: None)
                for done in (one, other):
                    assert (done.tally.good, done.tally.failed) == (100, {}), done.tally.samples
                    assert len(done.tally.usage) == 2 and sum(done.tally.latency.counts) == 100
                assert sorted(server.asked) == sorted(requests * 4)

        run(work())

    def test_they_can_be_cut_short(self, run):
        async def work():
            async with odd(says(OK)) as server:
                crew = Crew(plan_for(server.port), workers=2)
                running = asyncio.create_task(crew.run([Step(2, 60.0, 0.0)], lambda step: None))
                while len(server.asked) < 50 and not running.done():
                    await asyncio.sleep(0.001)
                crew.stop()
                [done] = await asyncio.wait_for(running, 20)
                assert done.tally.cut_short and not done.tally.failed and done.tally.good > 0

        run(work())
