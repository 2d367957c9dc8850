"""Looking at a model: everything that is known of it, and nothing of it runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest

import maitred
from maitred.model.inspect import curl_line, inspect
from maitred.model.pack import pack
from maitred.model.refusals import NotFound
from maitred.model.source import Source


class Greeter(maitred.Model):
    signature = maitred.Signature({"who": "str[n]"}, {"hello": "str[n]"})
    side_effects = True

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"hello": [f"hello {who}" for who in batch["who"]]}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    pack(Greeter, tmp_path / "greeter", example={"who": ['it\'s "me" $HOME `x`', "b"]})
    return tmp_path / "greeter"


def test_a_packed_model_is_shown_whole(packed: Path) -> None:
    seen = inspect(Source(str(packed)), "http://127.0.0.1:9999")
    assert (seen.name, seen.flavor) == ("greeter", "python")
    assert re.fullmatch("sha256:[0-9a-f]{64}", seen.digest)
    assert [file.path for file in seen.files] == ["code/test_inspect.py", "example.json"]
    assert {library.name: library.saved == library.installed for library in seen.libraries} == {
        "numpy": True,
        "python": True,
    }
    assert "code/test_inspect.py" in seen.needs_trust[0]
    assert seen.problems == ("it needs trust: --trust 'WHO: WHY'",)
    text = seen.to_text()
    for part in (seen.digest, "hello  str[n]", "side_effects: True", "code/test_inspect.py", "numpy", seen.curl):
        assert part in text


def test_its_calls_can_be_pasted(packed: Path) -> None:
    seen = inspect(Source(str(packed)), "http://127.0.0.1:9999")
    words = shlex.split(seen.curl)
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:9999/v2/models/greeter/infer"]
    body = json.loads(words[-1])
    assert body["inputs"][0]["data"] == ['it\'s "me" $HOME `x`']
    compile(seen.python, "call", "exec")


def test_what_is_wrong_is_listed_not_raised(packed: Path) -> None:
    (packed / "example.json").write_text("{}")
    (packed / "code" / "test_inspect.py").write_text("raise SystemExit")
    seen = inspect(Source(str(packed)))
    assert any("'code/test_inspect.py'" in problem for problem in seen.problems)
    assert "problems" in seen.to_text()


def test_trust_that_was_recorded_is_shown(packed: Path) -> None:
    seen = inspect(Source(str(packed), trust="ann: read it"))
    assert seen.trust == "ann: read it"
    assert seen.problems == ()


def test_code_that_was_not_packed_tells_its_files_only(tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    (tmp_path / "m.py").write_text(f"open({str(marker)!r}, 'w')\n")
    seen = inspect(Source(str(tmp_path / "m.py")))
    assert seen.description is None
    assert [file.path for file in seen.files] == ["m.py"]
    assert "not known before its code runs" in seen.to_text()
    assert not marker.exists()


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        inspect(Source(str(tmp_path / "nothing.onnx")))


@pytest.mark.parametrize(
    "example",
    [
        '{"inputs": []}', """{"a": "it's $HOME `id` \\"x\\" \\\\ !! %s"}""", '{"a": "é\u2028"}', '{"a":\n"b"}',
        "{'; id; '}",
    ],
)  # fmt: skip
def test_a_shell_passes_the_example_on_as_it_is(example: str):
    line = curl_line("http://127.0.0.1:8080", "m", types.SimpleNamespace(example=example))  # type: ignore[arg-type]
    script = 'curl() { printf "%s\\0" "$@"; }\n' + line
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=30, check=True)
    found = done.stdout.decode().split("\0")[:-1]
    assert found == [
        "-s", "http://127.0.0.1:8080/v2/models/m/infer", "-H", "Content-Type: application/json", "-d", example,
    ]  # fmt: skip
    assert done.stderr == b""


def test_without_a_short_example_it_asks_what_the_model_takes():
    description = types.SimpleNamespace(example="")
    assert curl_line("http://h:1", "m", description)  # type: ignore[arg-type] == "curl -s http://h:1/v2/models/m"
