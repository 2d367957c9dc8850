"""What a caller can reach, learn or forge through names, errors, listeners and log lines."""

from __future__ import annotations

import asyncio
import getpass
import itertools
import json
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from reliability.checks.artifacts import leaving_members
from reliability.checks.hostile import GOOD, broken_json, healthy, smuggled, status_of, talk
from reliability.driver import House, message, model, nonces
from reliability.judge import Case, Check

ECHO = {"echo": model("Echo")}
SECRET = "reliability-secret-content"


def traversals() -> Iterator[str]:
    """More than 500 names that try to leave a folder, as they would stand in a URL."""
    ups = [
        "..",
        "%2e%2e",
        "%252e%252e",
        ".%2e",
        "%c0%ae%c0%ae",
        "%e0%80%ae%e0%80%ae",
        "..%00",
        "....",
        "..;",
        "%uff0e%uff0e",
    ]
    slashes = ["/", "%2f", "%252f", "\\", "%5c", "%255c", "%c0%af", "%e0%80%af", "//", "%2f%2f"]
    ends = ["etc/passwd", "secret.txt", "secret"]
    for up, slash, depth, end in itertools.product(ups, slashes, (1, 3, 8), ends):
        yield (up + slash) * depth + end.replace("/", slash)
    yield from (
        "%2fetc%2fpasswd",
        "C:%5cwindows",
        "c:",
        "%5c%5chost%5cshare",
        "a" * 5000,
        "%00",
        "echo%00.txt",
        "echo%0a",
    )
    yield from (
        "ECHO",
        "Echo",
        "echo.",
        "echo%20",
        ".",
        "..",
        "...",
        "~",
        "~root",
        "$HOME",
        "%24%7bHOME%7d",
        "echo%2f..%2fecho",
    )
    yield from (
        quote(name, safe="")
        for name in ("/proc/self/environ", "file:///etc/passwd", "http://127.0.0.1/", "é", "\u202e")
    )


ROUTES = (
    "/v2/models/{}/infer", "/v2/models/{}/versions/1/infer", "/v2/models/echo/versions/{}/infer", "/v2/models/{}",
    "/v2/models/{}/ready", "/v1/models/{}:predict", "/predict/{}", "/docs/{}", "/v2/repository/models/{}/load", "/{}",
)  # fmt: skip


async def e1(case: Case) -> None:
    odd, names = [], list(traversals())
    async with House(ECHO) as house:
        for place in (house.folder, house.folder.parent / f"{house.folder.name}-outside"):
            place.mkdir(exist_ok=True)
            (place / "secret.txt").write_text(SECRET)
        for number, name in enumerate(names):
            route = ROUTES[number % len(ROUTES)]
            method = "POST" if "infer" in route or "predict" in route or "load" in route else "GET"
            answer = await house.client.ask(method, route.format(name), GOOD if method == "POST" else b"")
            leaked = SECRET.encode() in answer.body or b"root:x:" in answer.body
            if leaked or answer.status >= 500 or (answer.status < 400 and name not in ("", "echo", ".")):
                odd.append(f"{route.format(name)[:80]}: {answer.status} {answer.body[:60]!r}")
        made = sorted(path.name for path in house.folder.iterdir())
        case.fact("nothing written", set(made) <= {"marks", "home", "log", "maitred.yaml", "secret.txt"})
        (house.folder.parent / f"{house.folder.name}-outside" / "secret.txt").unlink()
        (house.folder.parent / f"{house.folder.name}-outside").rmdir()
        await healthy(case, house)
    folder = Path(tempfile.mkdtemp(prefix="reliability-members-"))
    case.none("artifacts with members outside", await leaving_members(folder))
    shutil.rmtree(folder, ignore_errors=True)
    case.none("answered or leaked", odd)
    case.at_least("names", len(names), case.limit("names"))


async def e7(case: Case) -> None:
    async with House(ECHO) as house:
        listening = _listening(house.pid)
        case.fact(f"listens on {sorted(listening)}", all(host == "127.0.0.1" for host, _ in listening))
        token_file = house.home / "admin-token"
        mode = stat.S_IMODE(token_file.stat().st_mode)
        case.fact(f"token file mode {mode:o}", mode == 0o600)
        token = token_file.read_text().strip()
        admin = f"127.0.0.1:{house.admin_port}"
        statuses = []
        for value in (None, "Bearer wrong", f"Basic {token}", f"Bearer {token[:-1]}", f"Bearer {token}x", "Bearer "):
            header = f"Authorization: {value}\r\n" if value else ""
            request = f"GET /metrics HTTP/1.1\r\nHost: {admin}\r\n{header}Connection: close\r\n\r\n".encode()
            statuses.append(status_of(await talk(house.admin_port, [request], 2)))
        case.fact(f"without the token {sorted(set(statuses))}", set(statuses) == {401})
        header = f"Authorization: Bearer {token}\r\n"
        request = f"GET /metrics HTTP/1.1\r\nHost: {admin}\r\n{header}Connection: close\r\n\r\n".encode()
        allowed = status_of(await talk(house.admin_port, [request], 2))
        case.fact(f"with it {allowed}", allowed == 200)
        in_url = f"GET /metrics?token={token} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n".encode()
        case.fact("not taken from a URL", status_of(await talk(house.admin_port, [in_url], 2)) == 401)
        changed = []
        for action in ("load", "unload"):
            answer = await house.client.ask("POST", f"/v2/repository/models/echo/{action}", b"{}")
            if answer.status != 403 or b"allow-repository-control" not in answer.body.replace(b"_", b"-"):
                changed.append(f"{action}: {answer.status} {answer.body[:100]!r}")
        case.none("state-changing routes open", changed)
        case.fact("token in no log", token not in house.log.read_text())
        await healthy(case, house)


def _listening(pid: int) -> set[tuple[str, int]]:
    """Addresses (IPv4) on which a process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    found = set()
    with open(f"/proc/{pid}/net/tcp") as table:
        for line in list(table)[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                host, port = fields[1].split(":")
                found.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


async def e8(case: Case) -> None:
    texts: list[tuple[str, str]] = []
    models = {"echo": model("Echo"), "poison": model("Poison"), "mixed": model("Mixed")}
    async with House(models) as house:
        client = house.client
        for name, body in broken_json():
            texts.append(
                (name, (await client.ask("POST", "/v2/models/echo/infer", body)).body.decode(errors="replace"))
            )
        for name, data in smuggled():
            texts.append((name, (await talk(house.port, [data], 1)).decode(errors="replace")))
        raises = {
            "inputs": [
                nonces(-1)["inputs"][0],
                {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]},
            ]
        }
        texts.append(("model raises", (await client.infer("poison", raises)).body.decode()))
        texts.append(("missing input", (await client.infer("mixed", nonces(1))).body.decode()))
        texts.append(
            ("unknown output", (await client.infer("echo", {**nonces(1), "outputs": [{"name": "q"}]})).body.decode())
        )
        for path in (
            "/v2/models/none",
            "/v2/models/echo/versions/9",
            "/nowhere",
            "/v2/models/echo/infer",
            "/docs/../x",
        ):
            answer = await client.ask("GET", path)
            texts.append((path, answer.body.decode(errors="replace")))
        texts.append(("metadata", (await client.ask("GET", "/v2/models/echo")).body.decode()))
        texts.append(("server", (await client.ask("GET", "/v2")).body.decode()))
        texts.append(("index", (await client.ask("POST", "/v2/repository/index", b"{}")).body.decode()))
    found = [f"{name}: {leak}" for name, text in texts for leak in leaks(text)]
    case.none("leaks", found)
    case.fact(f"{len(texts)} answers read")


def leaks(text: str) -> list[str]:
    """What an answer tells about the machine that it must not."""
    patterns = (
        r"Traceback",
        r'File "',
        r"line \d+, in ",
        r"\.py\b",
        r"(?<![\w:/])/(?:home|root|tmp|usr|var|opt|work|proc|dev)/[\w./-]+",
        r"memfd",
        r"psm_|/dev/shm",
        r"0x[0-9a-f]{8,}",
        r"site-packages",
        r"RELIABILITY_MARKS|MAITRED_HOME|PYTHON\w+",
    )
    names = [re.escape(name) for name in {socket.gethostname()} if len(name) > 3 and name != "localhost"]
    user = getpass.getuser()
    names += [rf"\b{re.escape(user)}\b"] if user not in ("root",) and len(user) > 3 else []
    return [match.group() for pattern in (*patterns, *names) if (match := re.search(pattern, text))]


async def e9(case: Case) -> None:
    forged = "1970-01-01 CRITICAL forged line"
    for kind in ("text", "json"):
        async with House({**ECHO, "poison": model("Poison")}, log_format=kind, log_level="debug") as house:
            for evil in (
                f"a\n{forged}",
                f"a\r\n{forged}",
                f"a\x1b[2K\x1b[1G{forged}",
                f"a\u2028{forged}",
                f"a\x85{forged}",
                f"a\x00{forged}",
            ):
                body = {**nonces(1), "id": evil}
                await house.client.infer("echo", body)
                raises = [
                    nonces(-1)["inputs"][0],
                    {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]},
                ]
                await house.client.infer("poison", {"id": evil, "inputs": raises})
                await house.client.infer(quote(evil, safe=""), nonces(1))
                await house.client.ask("POST", "/predict/" + quote(evil, safe=""), json.dumps({evil: 1}).encode())
                for header in ("X-Request-Id", "User-Agent", "traceparent"):
                    data = message(
                        "GET", "/v2/none", headers={header: evil.encode().decode("latin-1").replace("\n", "\n ")}
                    )
                    await talk(house.port, [data], 0.2)
            await asyncio.sleep(0.3)
            lines = re.split(r"[\n\r\u2028\u2029\x85\x0b\x0c]", house.log.read_bytes().decode(errors="replace"))
        found = [line for line in lines if line.strip().startswith(forged) or "\x1b" in line or "\x00" in line]
        case.none(f"forged lines ({kind})", found)


CHECKS: dict[str, Check] = {"E1": e1, "E7": e7, "E8": e8, "E9": e9}
