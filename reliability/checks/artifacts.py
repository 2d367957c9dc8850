"""Model files that were tampered with, or that would run code of a stranger."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from maitred.model.manifest import FILE, read, seal
from reliability.driver import ROOT, ConnectionLost, House, model
from reliability.judge import Case, Check

ECHO = {"echo": model("Echo")}


class Payload:
    """Unpickling this leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


async def maitred(*arguments: str, home: Path, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """One call of the command line, ended after so many seconds."""
    environment = {
        **os.environ,
        "MAITRED_HOME": str(home),
        "MAITRED_LISTEN": "127.0.0.1:0",
        "MAITRED_ADMIN_LISTEN": "127.0.0.1:0",
    }

    def call() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "maitred.cli.main", *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, env=environment, input="{}", check=False
            )
        except subprocess.TimeoutExpired as error:
            return subprocess.CompletedProcess(command, 0, "", f"still running: {error}")

    return await asyncio.to_thread(call)


async def example(folder: Path) -> Path:
    """The packed model of the example that the project ships."""
    target = folder / "breast_cancer"
    command = [sys.executable, str(ROOT / "examples" / "breast_cancer.py"), str(target)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=60)
    return target


async def e3(case: Case) -> None:
    folder = Path(tempfile.mkdtemp(prefix="reliability-trust-"))
    marker, wrong = folder / "it-ran", []
    evil = folder / "model.pkl"
    evil.write_bytes(pickle.dumps(Payload(marker)))
    shutil.copy(evil, folder / "model.joblib")
    for file in (evil, folder / "model.joblib"):
        if not await refusal(file):
            wrong.append(f"served {file.suffix}")
        for arguments in (("inspect", str(file)), ("predict", str(file), "--input", "-")):
            done = await maitred(*arguments, home=folder / "home")
            if arguments[0] != "inspect" and done.returncode == 0:
                wrong.append(f"{arguments[0]} {file.suffix} went through: {done.stdout[:80]}{done.stderr[:80]}")
            if "Traceback" in done.stderr:
                wrong.append(f"{arguments[0]} {file.suffix}: a stack trace instead of a reason")
    await _packed_code(folder, marker, wrong)
    async with House(ECHO) as house:
        body = pickle.dumps(Payload(marker))
        for kind in (
            "application/x-pickle",
            "application/python-pickle",
            "application/octet-stream",
            "application/json",
        ):
            answer = await house.client.ask("POST", "/v2/models/echo/infer", body, {"Content-Type": kind})
            if not 400 <= answer.status < 500:
                wrong.append(f"body of {kind}: {answer.status}")
    case.none("let through", wrong)
    case.fact("nothing ran", not marker.exists())
    shutil.rmtree(folder, ignore_errors=True)


async def _packed_code(folder: Path, marker: Path, wrong: list[str]) -> None:
    """Python code inside an artifact: runs for its packer, and for nobody else without trust."""
    source = folder / "mine.py"
    source.write_text(
        "import pathlib, maitred\n"
        f"pathlib.Path({str(folder / 'imported')!r}).touch()\n"
        "class Mine(maitred.Model):\n"
        "    signature = maitred.Signature(inputs={'x': 'int64[n]'}, outputs={'x': 'int64[n]'})\n"
        "    def predict(self, batch):\n"
        "        return {'x': batch['x']}\n"
    )
    packed = folder / "packed"
    done = await maitred("pack", f"{source}:Mine", "--out", str(packed), home=folder / "packer")
    if done.returncode != 0:
        wrong.append(f"pack failed: {done.stderr[-200:]}")
        return
    (folder / "imported").unlink(missing_ok=True)
    if not await refusal(packed):
        wrong.append("served packed code")
    if reason := await refusal(packed, trust="the test: to see that it would be served"):
        wrong.append(f"not served with trust either: {reason}")
    (folder / "imported").unlink(missing_ok=True)
    for arguments in (("inspect", str(packed)), ("predict", str(packed), "--input", "-")):
        done = await maitred(*arguments, home=folder / "home")
        if arguments[0] != "inspect" and done.returncode == 0:
            wrong.append(f"{arguments[0]} of packed code went through")
        if (folder / "imported").exists():
            wrong.append(f"{arguments[0]} ran the packed code")
            (folder / "imported").unlink()


async def e13(case: Case) -> None:
    folder = Path(tempfile.mkdtemp(prefix="reliability-flip-"))
    packed = await example(folder)
    files = [path for path in sorted(packed.rglob("*")) if path.is_file()]
    accepted = []
    for file in files:
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(packed, copy)
        target = copy / file.relative_to(packed)
        data = bytearray(target.read_bytes())
        data[len(data) // 2] ^= 1
        target.chmod(0o644)
        target.write_bytes(data)
        reason = await refusal(copy)
        if not reason or "stack trace" in reason:
            accepted.append(f"{file.name}: {reason}")
    case.none("accepted", accepted)
    case.fact(f"a byte flipped in each of {len(files)} files; the whole one is served", not await refusal(packed))
    shutil.rmtree(folder, ignore_errors=True)


async def leaving_members(folder: Path) -> list[str]:
    """Artifacts whose members lie outside of their folder: those that were not refused."""
    packed, accepted = await example(folder), []
    outside = folder / "outside.bin"
    outside.write_bytes(b"outside")
    sealed = read((packed / FILE).read_bytes())
    first = next(iter(sealed.files))
    for member in (
        "../outside.bin",
        str(outside),
        "a/../../outside.bin",
        "..\\outside.bin",
        "./../outside.bin",
        "\x00",
    ):
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(packed, copy)
        files = {**sealed.files, member: sealed.files[first]}
        (copy / FILE).write_bytes(seal(sealed.head, sealed.version, files))
        accepted += [] if await refusal(copy) else [member]
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(packed, copy)
    (copy / first).unlink()
    shutil.copy(packed / first, outside)
    (copy / first).symlink_to(outside)
    return accepted + ([] if await refusal(copy) else [f"{first} as a link"])


async def refusal(source: Path, **more: Any) -> str:
    """Why a server does not serve this model; empty if it does."""
    house = House({"m": {"source": str(source), "replicas": {"kind": "process", "min": 1, "max": 1}, **more}})
    house.launch()
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            assert house.process is not None
            if house.process.poll() is not None:
                said = house.log.read_text()
                return "a stack trace" if "Traceback" in said else said.strip()[-200:]
            with contextlib.suppress(OSError, ConnectionLost):
                (row,) = (await house.client.ask("POST", "/v2/repository/index", b"{}")).json()
                if row["state"] == "READY":
                    return ""
                if row.get("reason"):
                    return str(row["reason"])
            await asyncio.sleep(0.1)
        return ""
    finally:
        house.client.close()
        house.end()


CHECKS: dict[str, Check] = {"E3": e3, "E13": e13}
