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
from maitred.model.asking import question
from maitred.model.forms import whole
from maitred.model.inspect import curl_line, inspect, python_call
from maitred.model.pack import pack
from maitred.model.predictor import Traits
from maitred.model.refusals import NotFound
from maitred.model.source import Source
from maitred.model.trial import inputs_of
from maitred.wire.coerce import to_array


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
    line = curl_line("http://127.0.0.1:8080", "m", types.SimpleNamespace(example=example, signature=Greeter.signature))  # type: ignore[arg-type]
    script = 'curl() { printf "%s\\0" "$@"; }\n' + line
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=30, check=True)
    found = done.stdout.decode().split("\0")[:-1]
    assert found == [
        "-s", "http://127.0.0.1:8080/v2/models/m/infer", "-H", "Content-Type: application/json", "-d", example,
    ]  # fmt: skip
    assert done.stderr == b""


def test_without_a_short_example_it_asks_what_the_model_takes():
    description = types.SimpleNamespace(example="", signature=Greeter.signature)
    assert curl_line("http://h:1", "m", description)  # type: ignore[arg-type] == "curl -s http://h:1/v2/models/m"


DTYPES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32"]
DTYPES += ["float64", "bfloat16", "str", "bytes"]
TIMES = [f'int64[n] time="{unit}"{zone}{nullable}' for unit in ("s", "ms", "us", "ns") for zone in ("", ' zone="UTC"')
         for nullable in ("", " nullable")]  # fmt: skip
NOTATIONS = [f"{dtype}[n{inner}]" for dtype in DTYPES for inner in ("", ", 2")]
NOTATIONS += [f"{dtype}[n{inner}] nullable" for dtype in DTYPES[:-1] for inner in ("", ", 2")] + TIMES


def executed(text: str, signature: maitred.Signature, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a model of this signature would be asked by the lines."""
    asked: list[Any] = []
    model = types.SimpleNamespace(predict=asked.append)
    monkeypatch.setattr(maitred, "load", lambda path, **options: model)
    exec(compile(text, "printed", "exec"), {})
    (inputs,) = asked
    return question(signature, Traits(), inputs, {}, None, None, None).inputs


@pytest.mark.parametrize("notation", NOTATIONS)
def test_the_printed_lines_run_for_made_up_rows(notation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = maitred.Signature({"x": notation}, {"y": "float32[n]"})
    row = {name: to_array(tensor) for name, tensor in signature.example(1).items()}
    for seen in (row, whole(signature.special_inputs, row)):
        given = executed(python_call("m", signature, seen), signature, monkeypatch)
        assert to_array(given["x"]).tolist() == row["x"].tolist()


@pytest.mark.parametrize(
    ("notation", "value", "printed"),
    [
        ('int64[n] time="s" zone="UTC"', ["2026-01-31T12:00:00Z"], "['2026-01-31T12:00:00Z']"),
        ('int64[n] time="ms"', ["2026-01-31T12:00:00.25"], "['2026-01-31T12:00:00.250']"),
        ('int64[n] time="ns" nullable', [None], "[None]"), ('int64[n] time="s"', [10**15], "[1000000000000000]"),
        ('int64[n, 2] time="s"', [["2026-01-31T12:00:00", "1969-12-31"]],
         "[['2026-01-31T12:00:00', '1969-12-31T00:00:00']]"),
        ("int64[n] nullable", [None], "[None]"), ("str[n, 2] nullable", [[None, "it's"]], '[[None, "it\'s"]]'),
        ("float32[n] nullable", [None], "[None]"), ("float64[n]", [float("nan")], "[float('nan')]"),
        ("float32[n, 2]", [[float("inf"), 0.5]], "[[float('inf'), 0.5]]"),
        ("bytes[n]", [b"\xff\x00'"], '[b"\\xff\\x00\'"]'),
    ],
)  # fmt: skip
def test_the_printed_lines_ask_the_same(
    notation: str, value: Any, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = maitred.Signature({"x": notation}, {"y": "float32[n]"})
    text = python_call("m", signature, inputs_of(signature, {"x": value}))
    assert f"predict({{'x': {printed}}})" in text
    again = executed(text, signature, monkeypatch)
    wanted = question(signature, Traits(), {"x": value}, {}, None, None, None).inputs
    assert {name: repr(to_array(tensor)) for name, tensor in again.items()} == {
        name: repr(to_array(tensor)) for name, tensor in wanted.items()
    }


def test_a_model_whose_rows_are_files_is_sent_one() -> None:
    signature = maitred.Signature({"image": "bytes[n]", "top": "int64[n] optional"}, {"y": "str[n]"})
    described = types.SimpleNamespace(example="{}", signature=signature)
    assert curl_line("http://h:1", "m", described) == (  # type: ignore[arg-type]
        "curl -s http://h:1/predict/m -H 'Content-Type: application/octet-stream' --data-binary @FILE"
    )
    two = maitred.Signature({"image": "bytes[n]", "other": "bytes[n]"}, {"y": "str[n]"})
    described = types.SimpleNamespace(example="{}", signature=two)
    assert "/v2/models/m/infer" in curl_line("http://h:1", "m", described)  # type: ignore[arg-type]
