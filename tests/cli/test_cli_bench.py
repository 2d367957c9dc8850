"""`maitred bench`: against a server of ours, with every way to say what to send, and with arguments that are wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from maitred.cli.main import run

MODEL = """
import maitred

class Double(maitred.Model):
    signature = maitred.Signature(
        inputs={"x": "float32[n, 2] min=-1 max=1", "kind": 'str[n] categories=["a", "b"]'},
        outputs={"y": "float32[n, 2]", "label": "str[n]"},
    )

    def predict(self, batch):
        return {"y": batch["x"] * 2, "label": batch["kind"]}

class Even(maitred.Model):
    signature = maitred.Signature(inputs={"x": "int64[n]"}, outputs={"y": "int64[n]"})

    def predict(self, batch):
        if (batch["x"] % 2).any():
            raise maitred.InvalidInput("an odd number")
        return {"y": batch["x"]}
"""

QUICK = ("--warmup", "0", "-n", "60", "-c", "3")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def step(self) -> dict:
        [step] = json.loads(self.out)["steps"]
        return step


class Served(NamedTuple):
    url: str
    pid: int


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; fails after half a minute."""
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def ready(url: str) -> bool:
    """Whether the server answers for all its models."""
    try:
        with urllib.request.urlopen(url + "/v2/health/ready", timeout=10) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of ours in a process of its own, with both models."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "models.py").write_text(MODEL)
    command = [
        sys.executable, "-m", "maitred.cli.main", "serve", "double=models.py:Double", "even=models.py:Even",
        "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--home", str(folder / "home"),
    ]  # fmt: skip
    environment = {**os.environ, "MAITRED_LOG_LEVEL": "warning"}
    server = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://"), url
        until(lambda: ready(url))
        yield Served(url, server.pid)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)
        assert server.stdout is not None
        server.stdout.close()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    def bench(*arguments: str) -> Ran:
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "utf-8", write_through=True))
        code = run(["bench", *arguments])
        sys.stdout.flush()
        return Ran(code, out.getvalue().decode(), capsys.readouterr().err)

    return bench


class TestOurServer:
    @pytest.mark.parametrize("route", ["/v2/models/double/infer", "/predict/double", "/v1/models/double:predict"])
    @pytest.mark.parametrize("rows", ["1", "3"])
    def test_bodies_are_made_up_from_metadata(self, bench, served, route, rows):
        ran = bench(served.url + route, *QUICK, "--rows", rows, "--json")
        assert (ran.code, ran.err) == (0, ""), ran.out
        assert ran.step["answered"] == 60 and ran.step["errors"]["total"] == 0
        bodies = json.loads(ran.out)["bodies"]
        assert bodies["count"] == 1024 and "metadata" in bodies["source"]
        assert set(ran.step["server_timing_ms"]) >= {"queue", "batch", "model"}

    def test_binary_tensors(self, bench, served):
        ran = bench(served.url + "/v2/models/double/infer", *QUICK, "--binary", "--rows", "20", "--json", "--same")
        assert (ran.code, ran.step["answered"]) == (0, 60), ran.out

    def test_an_open_loop_in_steps_by_several_processes(self, bench, served):
        ran = bench(
            served.url + "/v2/models/double/infer", "--rate", "200,400", "--workers", "2", "-n", "60", "--warmup", "0",
            "--json", "--arrivals", "constant",
        )  # fmt: skip
        record = json.loads(ran.out)
        assert ran.code == 0 and [step["rate"] for step in record["steps"]] == [200, 400]
        assert [step["answered"] for step in record["steps"]] == [60, 60] and record["workers"] == 2
        assert all(step["tester"]["behind_ms"]["count"] + step["tester"]["held_up"] == 60 for step in record["steps"])

    @pytest.mark.skipif(sys.platform != "linux", reason="CPU times of other processes are read in /proc")
    def test_the_servers_use_of_processors(self, bench, served):
        paced = ("-s", "0.5", "--warmup", "0.1", "-c", "4")
        ran = bench(served.url + "/v2/models/double/infer", *paced, "--pid", str(served.pid), "--json")
        assert ran.code == 0 and ran.step["server"]["pid"] == served.pid
        assert ran.step["server"]["processors"] >= 0

    def test_the_page(self, bench, served):
        ran = bench(served.url + "/v2/models/double/infer", *QUICK)
        assert ran.code == 0 and ran.err == ""
        lines = ran.out.splitlines()
        assert lines[0] == f"POST {served.url}/v2/models/double/infer"
        assert lines[1].startswith("1,024 bodies made up from the model's metadata, 1 row each, ")
        assert re.search(r"server timing  queue [\d.]+ ms \(\d+%\), batch", ran.out)

    def test_a_file_of_bodies_and_expected_answers(self, bench, served, place):
        (place / "bodies.jsonl").write_text('{"x": 2}\n\n{"x": 4}\n')
        (place / "answers.jsonl").write_text('{"y": 2}\n{"y": 4}\n')
        arguments = (
            served.url + "/predict/even",
            *QUICK,
            "--body",
            "bodies.jsonl",
            "--expect",
            "answers.jsonl",
            "--json",
        )
        ran = bench(*arguments)
        assert ran.code == 0 and ran.step["compared"] == 60 and json.loads(ran.out)["bodies"]["count"] == 2
        (place / "answers.jsonl").write_text('{"y": 2}\n{"y": 5}\n')
        ran = bench(*arguments)
        assert ran.code == 1 and ran.step["errors"]["content"] == 30
        assert "y is 4, not 5" in ran.step["samples"]["content"][0]

    def test_expected_answers_need_bodies_that_are_known(self, bench, served, place):
        (place / "answer.json").write_text('{"y": 2}')
        ran = bench(served.url + "/predict/double", *QUICK, "--expect", "answer.json")
        assert (ran.code, ran.out) == (2, "") and "--expect: made-up bodies differ" in ran.err

    def test_a_caller_without_patience_still_hears_what_the_model_takes(self, bench, served):
        ran = bench(served.url + "/v2/models/double/infer", *QUICK, "--timeout", "1e-6")
        assert ran.code == 1 and "metadata" in ran.out and " no whole answer in time" in ran.out

    def test_answers_that_fail(self, bench, served, place):
        (place / "bodies.jsonl").write_text('{"x": 2}\n{"x": 3}\n')
        arguments = (served.url + "/predict/even", *QUICK, "--body", "bodies.jsonl")
        ran = bench(*arguments)
        assert ran.code == 1 and "an odd number" in ran.out and "(400: 30)" in ran.out
        assert bench(*arguments, "--max-errors", "30").code == 0
        assert bench(*arguments, "--max-errors", "49%").code == 1
        assert bench(*arguments, "--max-errors", "50%").code == 0

    def test_made_up_bodies_that_the_model_refuses(self, bench, served):
        ran = bench(served.url + "/predict/even", *QUICK)
        if ran.code == 2:  # the first one happened to be odd
            assert "an odd number" in ran.err and "--body" in ran.err and ran.out == ""
        else:
            assert ran.code == 1 and "an odd number" in ran.out

    def test_more_rows_than_the_server_takes(self, bench, served):
        ran = bench(served.url + "/predict/double", *QUICK, "--rows", "5000")
        assert (ran.code, ran.out) == (2, "") and "(413: " in ran.err and "ask for fewer --rows" in ran.err

    @pytest.mark.parametrize(("path", "said"), [
        ("/v2/models/dubble/infer", "404"), ("/predict/double", "no size 'k'"),
    ])  # fmt: skip
    def test_what_cannot_be_made_up(self, bench, served, path, said):
        ran = bench(served.url + path, *QUICK, *(["--size", "k=3"] if "size" in said else []))
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1 and ran.out == ""


class Plain(BaseHTTPRequestHandler):
    """Another server: what it is sent, and how."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


seen: list[tuple[str, str, dict[str, str], bytes]] = []


@contextlib.contextmanager
def other(secured: ssl.SSLContext | None = None) -> Iterator[str]:
    seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        server.daemon_threads = True
        if secured is not None:
            server.socket = secured.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


PAIR = """\
-----BEGIN CERTIFICATE-----
MIIBfjCCASWgAwIBAgIUHwV7mPGKvY52QY/OSBhOmND2f8IwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTIwMTEwMTMyOFoYDzIxMjYxMTA3
MTAxMzI4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATYSRJgIvVOOTdCHln4jQc+SjtavWn4VoK0zmiger0FprEgSIvURnIQ
BbidMRanmgeWHao2E6u++OkBCcl+bkiBo1MwUTAdBgNVHQ4EFgQUxVX3c9OfY0kp
nm2gye40/qNHKNgwHwYDVR0jBBgwFoAUxVX3c9OfY0kpnm2gye40/qNHKNgwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiBMCyT35NEQDFNX1csiXRuB
3niXMI5yUFskloiRPi58PwIgT5QR1CdvEBDD9QrA3TMFpkdR1V2nP2oRQSPWicJB
t54=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEehcc2TxN03Le92Y
OiaXQ6UclkrpFlAhQPAQUFgLA7ShRANCAATYSRJgIvVOOTdCHln4jQc+SjtavWn4
VoK0zmiger0FprEgSIvURnIQBbidMRanmgeWHao2E6u++OkBCcl+bkiB
-----END PRIVATE KEY-----
"""
"""A certificate that nobody has signed, for localhost and for this test alone, and its key."""


class TestOtherServers:
    def test_a_plain_url(self, bench):
        with other() as address:
            ran = bench(f"{address}/a?b=1", *QUICK)
        assert ran.code == 0, ran.out + ran.err
        assert ran.out.startswith(f"GET http://{address}/a?b=1\n") and len(seen) == 60
        method, path, headers, body = seen[0]
        assert (method, path, body) == ("GET", "/a?b=1", b"")
        assert headers == {"Host": address, "User-Agent": "maitred-bench"}

    def test_headers_and_a_body_of_any_kind(self, bench, place):
        (place / "body").write_bytes(b"\x00raw\n\xff")
        with other() as address:
            ran = bench(f"http://{address}/", *QUICK, "--body", "body", "-H", "content-type: image/png", "-H",
                        "X-Key: a b", "-H", "Host: other", "--method", "put")  # fmt: skip
        assert ran.code == 0, ran.err
        method, _, headers, body = seen[-1]
        assert (method, body, headers["X-Key"], headers["Host"]) == ("PUT", b"\x00raw\n\xff", "a b", "other")
        assert headers["content-type"] == "image/png"

    def test_ctrl_c_prints_what_was_measured(self):
        command = [sys.executable, "-m", "maitred.cli.main", "bench"]
        with other() as address:
            paced = [f"http://{address}/", "-s", "60", "--warmup", "0", "-c", "2", "--workers", "2"]
            with subprocess.Popen(command + paced, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tester:
                until(lambda: len(seen) > 50)
                tester.send_signal(signal.SIGINT)
                out, err = tester.communicate(timeout=30)
        assert tester.returncode == 130, err
        assert "stopped before its time" in out and "2 conn." in out and err == ""

    def test_tls(self, bench, place):
        (place / "pair.pem").write_text(PAIR)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain("pair.pem")
        with other(context) as address:
            ran = bench(f"https://{address}/", "--warmup", "0", "-n", "10", "-c", "2", "--insecure")
            assert ran.code == 0, ran.out + ran.err
            ran = bench(f"https://{address}/", "--warmup", "0", "-n", "4", "-c", "2", "--timeout", "5")
        assert ran.code == 1 and "TLS: CERTIFICATE_VERIFY_FAILED (--insecure accepts any certificate)" in ran.out

    def test_plain_http_where_tls_was_expected(self, bench):
        with other() as address:
            ran = bench(f"https://{address}/", "--warmup", "0", "-n", "2", "-c", "1", "--timeout", "5")
            asked = bench(f"https://{address}/v2/models/m/infer", "--warmup", "0", "-n", "2", "-c", "1")
        assert ran.code == 1 and "(does it speak plain http:// there?)" in ran.out
        assert asked.code == 1 and "(does it speak plain http:// there?)" in asked.err and asked.out == ""

    def test_nobody_is_there(self, bench):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            ran = bench(f"http://127.0.0.1:{port}/", *QUICK)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"maitred: 127.0.0.1:{port}: Connection refused\n"


URL = "http://127.0.0.1:1/v2/models/m/infer"


class TestWrongArguments:
    @pytest.mark.parametrize(("arguments", "said"), [
        ([], "Missing argument 'URL'"),
        (["grpc://h:1/x"], "gRPC is not supported yet"),
        (["ftp://h/x"], "expected http://HOST:PORT/PATH"),
        (["http://h:99999999/"], "ort"),
        (["http://u:p@h/"], "--header"),
        (["http://h/ä"], "escape"),
        ([URL, "--rate", "x"], "--rate: expected numbers"),
        ([URL, "--rate", "0"], "--rate: expected numbers"),
        ([URL, "--rate", "1", "--arrivals", "odd"], "--arrivals"),
        ([URL, "--rate", "1,2", "-c", "1,2"], "--connections: give one number with --rate"),
        ([URL, "--arrivals", "constant"], "--arrivals is for an open loop"),
        ([URL, "-c", "1.5"], "--connections: whole numbers"),
        ([URL, "-c", "2", "--workers", "3"], "at least one for each of --workers"),
        ([URL, "-n", "1", "--workers", "2"], "--requests: at least one for each"),
        ([URL, "-n", "0"], "--requests: at least 1"),
        ([URL, "-s", "0"], "--seconds"),
        ([URL, "-s", "nan"], "--seconds"),
        ([URL, "--warmup", "-1"], "--warmup"),
        ([URL, "--timeout", "0"], "--timeout"),
        ([URL, "--workers", "0"], "--workers"),
        ([URL, "--rows", "0"], "--rows"),
        ([URL, "--tolerance", "-1"], "--tolerance"),
        ([URL, "--tolerance", "nan"], "--tolerance"),
        ([URL, "--max-errors", "x"], "--max-errors"),
        ([URL, "--pid", "999999999"], "no process 999999999"),
        ([URL, "-H", "nothing"], "--header: expected 'NAME: VALUE'"),
        ([URL, "-H", "a b: c"], "--header: expected 'NAME: VALUE'"),
        ([URL, "-H", "A: b\r\nC: d"], "no header can have"),
        ([URL, "-H", "Content-Length: 3"], "ours to write"),
        ([URL, "-H", "A: b", "-H", "a: c"], "given twice"),
        ([URL, "--method", "HEAD"], "--method"),
        ([URL, "--method", "GET /"], "--method"),
        ([URL, "--body", "nothing.json"], "--body: there is no file"),
        ([URL, "--body", "empty"], "is empty"),
        ([URL, "--body", "bad.jsonl"], "neither one JSON nor JSON lines (line 2: no valid JSON"),
        ([URL, "--body", "bad.jsonl"], "with --header 'Content-Type: ...' it is sent as it is"),
        ([URL, "--expect", "nothing.json"], "--expect: there is no file"),
    ])  # fmt: skip
    def test_one_line_says_what_is_wrong(self, bench, place, arguments, said):
        (place / "empty").write_bytes(b" \n\n")
        (place / "bad.jsonl").write_text('{"x": 1}\n{"x": \n')
        ran = bench(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err and ran.err.count("\n") == 1 and ran.err.startswith("maitred: ")

    @pytest.mark.parametrize(("option", "more"), [("--binary", []), ("--rows", ["2"]), ("--size", ["k=2"])])
    def test_options_for_made_up_bodies_need_some(self, bench, place, option, more):
        with other() as address:
            ran = bench(f"http://{address}/x", option, *more)
        assert ran.code == 2 and f"{option} is for bodies that are made up" in ran.err
