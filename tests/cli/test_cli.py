"""The command line: help is quick, answers are right, and whatever is wrong is one line and exit code 2."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from maitred.cli.failure import CommandFailed, told
from maitred.cli.inspect import harmless
from maitred.cli.main import run
from maitred.cli.serve import named
from maitred.errors import TABLE, ModelFault
from maitred.settings import ENVIRONMENT, ServerSettings

MODEL = """
import maitred

class Double(maitred.Model):
    signature = maitred.Signature(
        inputs={"x": "float32[n, 2]", "name": 'str[n] default="none"'},
        outputs={"y": "float32[n, 2]", "label": "str[n]"},
    )

    def predict(self, batch, context):
        if (batch["x"] == 13).any():
            raise ValueError("thirteen")
        return {"y": batch["x"] * 2, "label": batch["name"]}

class Total(maitred.Model):
    signature = maitred.Signature(inputs={"x": "float64[k]"}, outputs={"total": "float64[1]", "big": "int64[2, 2]"})

    def predict(self, batch, context):
        return {"total": [batch["x"].sum()], "big": [[1, 2], [3, 2**60]]}
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a model file, and a home of its own."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("MAITRED_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("MAITRED_HOME", str(tmp_path / "home"))
    (tmp_path / "double.py").write_text(MODEL)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    def cli(*arguments: str, stdin: str | bytes = "") -> Ran:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code = run(arguments)
        return Ran(code, *capsys.readouterr())

    return cli


def refused(ran: Ran) -> str:
    """The one line of a refusal."""
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1 and ran.err.startswith("maitred: ") and "Traceback" not in ran.err
    return ran.err


class TestMain:
    def test_help_imports_nothing_heavy(self):
        script = (
            "import sys; from maitred.cli.main import run; code = run(['--help']);"
            "heavy = {'numpy', 'msgspec', 'yaml', 'rich', 'asyncio', 'httptools', 'starlette'} & set(sys.modules);"
            "print(code, sorted(heavy))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines()[-1] == "0 []"

    @pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], []])
    def test_help(self, cli, arguments):
        ran = cli(*arguments)
        assert ran.code == 0 and "Usage: maitred" in ran.out and ran.err == ""

    @pytest.mark.parametrize("arguments", [["version"], ["--version"]])
    def test_version(self, cli, arguments):
        from maitred import __version__

        assert cli(*arguments) == Ran(0, f"maitred {__version__}\n", "")

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["srve"], "maitred: No such command 'srve'. Did you mean 'serve'?"),
            (["serve", "--lisen", "x"], "No such option: --lisen"),
            (["serve", "--replicas", "two"], "Invalid value for '--replicas'"),
            (["predict", "double.py"], "Missing option '--input'"),
            (["predict"], "Missing argument 'MODEL'"),
        ],
    )
    def test_wrong_arguments(self, cli, arguments, line):
        assert line in refused(cli(*arguments))

    @pytest.mark.parametrize(
        ("script", "code"),
        [
            ("import sys; from maitred.cli.main import run; sys.exit(run(['version']))", 1),
            ("from maitred.cli.serve import announce; announce('a'); announce('b'); print('c')", 0),  # it serves on
        ],
    )
    def test_a_reader_that_leaves_is_no_news(self, script, code):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=30, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (code, b"")

    def test_as_a_module(self):
        command = f"{sys.executable} -m maitred.cli.main version; echo $?; {sys.executable} -m maitred.cli.main nope"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2
        assert done.stdout.splitlines()[1] == "0" and done.stderr.startswith("maitred: No such command")

    @pytest.mark.parametrize("error", TABLE)
    def test_who_can_mend_it_decides_the_exit_code(self, error):
        found = told(error("it is so"))
        assert found == ("maitred: it is so", 2 if error.fault == "caller" else 1)

    def test_a_message_cannot_forge_a_second_line(self):
        found = told(CommandFailed("a\nmaitred: forged\x1b[2J"))
        assert found is not None and found.line == r"maitred: a\nmaitred: forged\x1b[2J"

    @pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), RuntimeError("x"), OSError("no errno")])
    def test_a_defect_is_not_explained_away(self, error):
        assert told(error) is None

    def test_a_system_error_names_the_file(self):
        assert told(FileNotFoundError(2, "No such file or directory", "x")) == (
            "maitred: No such file or directory: x",
            2,
        )


class TestPredict:
    @pytest.mark.parametrize(
        ("given", "wanted"),
        [
            ('{"x": [1, 2.5], "name": "a"}', {"y": [2, 5], "label": "a"}),
            ('{"x": [1, 2.5]}', {"y": [2, 5], "label": "none"}),
            ('[{"x": [1, 2], "name": "a"}, {"x": [3, 4]}]',
             [{"y": [2, 4], "label": "a"}, {"y": [6, 8], "label": "none"}]),
            ('{"columns": {"x": [[1, 2], [3, 4]], "name": ["a", "é"]}}',
             {"columns": {"y": [[2, 4], [6, 8]], "label": ["a", "é"]}}),
            ("[]", []),
        ],
    )  # fmt: skip
    def test_the_answer_has_the_form_of_the_question(self, cli, given, wanted):
        ran = cli("predict", "double.py:Double", "--input", "-", stdin=given)
        assert (ran.code, ran.err) == (0, "") and json.loads(ran.out) == wanted

    def test_floats_are_the_shortest_that_read_back(self, cli):
        ran = cli("predict", "double.py:Double", "-i", "-", stdin='{"x": [0.05, 1e-3]}')
        assert ran.out == '{"y":[0.1,0.002],"label":"none"}\n'

    def test_an_answer_that_json_cannot_show_is_not_held_against_the_input(self, cli, place):
        source = (
            "import maitred\ndef predict(batch):\n    return {'y': [b'\\xff'] * len(batch['x'])}\n"
            "predict.signature = maitred.Signature({'x': 'int8[n]'}, {'y': 'bytes[n]'})\n"
        )
        (place / "raw.py").write_text(source)
        line = refused(cli("predict", "raw.py:predict", "--input", "-", stdin='{"x": 1}'))
        assert line.startswith("maitred: output 'y' holds bytes that are not UTF-8 text")

    def test_a_model_that_is_not_row_wise(self, cli):
        ran = cli("predict", "double.py:Total", "-i", "-", stdin='{"x": [1, 2, 4.5]}')
        assert json.loads(ran.out) == {"total": [7.5], "big": [[1, 2], [3, 2**60]]}

    @pytest.mark.parametrize(
        ("name", "text", "wanted"),
        [
            ("rows.json", '[{"x": [1, 2]}]', [{"y": [2, 4], "label": "none"}]),
            ("rows.txt", '{"x": [1, 2]}', {"y": [2, 4], "label": "none"}),
        ],
    )
    def test_a_file_of_json(self, cli, place, name, text, wanted):
        (place / name).write_text(text)
        assert json.loads(cli("predict", "double.py:Double", "--input", name).out) == wanted

    def test_a_csv_file_is_read_as_the_signature_says(self, cli, place):
        source = (
            "import maitred\ndef predict(batch):\n    return {'out': batch['a'] + batch['b'], 't': batch['t']}\n"
            "predict.signature = maitred.Signature({'a': 'float32[n]', 'b': 'int8[n]', 't': 'str[n]'},"
            " {'out': 'float32[n]', 't': 'str[n]'})\n"
        )
        (place / "add.py").write_text(source)
        (place / "rows.csv").write_text("a,b,t,unused\n1,2,007,x\n0.5,3,8,y\n")
        ran = cli("predict", "add.py:predict", "--input", "rows.csv")
        assert json.loads(ran.out) == [{"out": 3, "t": "007"}, {"out": 3.5, "t": "8"}]

    def test_a_csv_file_with_missing_values_and_times(self, cli, place):
        source = (
            "import maitred\nkinds = {'i': 'int64[n] nullable', 's': 'str[n] nullable', 't': 'int64[n] time=\"s\"'}\n"
            "def predict(batch):\n    return dict(batch)\n"
            "predict.signature = maitred.Signature(kinds, kinds)\n"
        )
        (place / "echo.py").write_text(source)
        (place / "rows.csv").write_bytes(b'\xef\xbb\xbf"i",s,t\r\n9007199254740993,a,2026-01-31\r\n,,5\r\n')
        wanted = [
            {"i": 9007199254740993, "s": "a", "t": "2026-01-31T00:00:00"},
            {"i": None, "s": None, "t": "1970-01-01T00:00:05"},
        ]
        assert json.loads(cli("predict", "echo.py:predict", "--input", "rows.csv").out) == wanted
        assert json.loads(cli("predict", "echo.py:predict", "--input", "-", stdin=json.dumps(wanted)).out) == wanted
        (place / "rows.csv").write_text("i,s,t\n1,a,2026-01-31\n1.5,b,0\n")
        line = refused(cli("predict", "echo.py:predict", "--input", "rows.csv"))
        assert "--input: rows.csv: row 2 (line 3), column 'i': expected INT64, got '1.5'" in line
        (place / "rows.csv").write_text("i,s,t\n")
        assert json.loads(cli("predict", "echo.py:predict", "--input", "rows.csv").out) == []

    def test_a_parquet_file_with_missing_values_and_times(self, cli, place):
        import pyarrow
        import pyarrow.parquet

        source = (
            "import maitred\nkinds = {'i': 'int64[n] nullable', 't': 'int64[n] time=\"ms\" zone=\"UTC\" nullable'}\n"
            "def predict(batch):\n    return dict(batch)\n"
            "predict.signature = maitred.Signature(kinds, kinds)\n"
        )
        (place / "echo.py").write_text(source)
        times = pyarrow.array([0, None], pyarrow.timestamp("ns", "Asia/Kolkata"))
        pyarrow.parquet.write_table(pyarrow.table({"i": [9007199254740993, None], "t": times}), "rows.parquet")
        ran = cli("predict", "echo.py:predict", "--input", "rows.parquet")
        assert json.loads(ran.out) == [
            {"i": 9007199254740993, "t": "1970-01-01T00:00:00.000Z"}, {"i": None, "t": None},
        ]  # fmt: skip
        pyarrow.parquet.write_table(pyarrow.table({"i": [{"a": 1}], "t": times[:1]}), "rows.parquet")
        line = refused(cli("predict", "echo.py:predict", "--input", "rows.parquet"))
        assert "--input: column 'i': an Arrow column of struct<a: int64> is no tensor" in line

    def test_a_parquet_file(self, cli):
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"x": [[1.0, 2.0], [0.1, 4.0]], "name": ["a", "b"]})
        pyarrow.parquet.write_table(table, "rows.parquet")
        ran = cli("predict", "double.py:Double", "--input", "rows.parquet")
        assert json.loads(ran.out) == [{"y": [2, 4], "label": "a"}, {"y": [0.2, 8], "label": "b"}]

    @pytest.mark.parametrize(
        ("given", "line"),
        [
            ("", "the body is empty"),
            ('{"x": [1, 2', "--input: the body is not valid JSON"),
            ('{"x": [1, 2, 3]}', "input 'x'"),
            ('{"y": [1, 2]}', "unknown input 'y'"),
            ('[{"x": [1, 2]}, 5]', "--input: "),
            ('{"x": [1, "a"]}', "input 'x'"),
            ('{"x": [1, 2], "x": [3, 4]}', "'x' occurs twice"),
            ('{"columns": {"x": [[1, 2]]}, "x": [1, 2]}', "unknown input 'columns'"),
            ("[" * 1000, "--input: "),
            (b"\xff", "--input: "),
        ],
    )
    def test_a_wrong_input_is_refused(self, cli, given, line):
        assert line in refused(cli("predict", "double.py:Double", "--input", "-", stdin=given))

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["double.py:Double", "-i", "none.json"], "--input: there is no file none.json"),
            (["double.py:Double", "-i", "none.csv"], "--input: there is no file none.csv"),
            (["double.py:Double", "-i", "."], "--input: there is no file ."),
            (["none.py", "-i", "-"], "none.py"),
            (["double.py:None", "-i", "-"], "no 'None'"),
            (["double.py:Double", "-i", "wrong.csv"], "--input: wrong.csv: there is no column 'x'; there are 'a', 'b'"),
            (["double.py:Double", "-i", "wrong.parquet"], "--input: wrong.parquet: "),
            (["double.py:Double", "-i", "-", "-o", "xml"], "--output: expected json, got 'xml'"),
        ],
    )
    def test_a_wrong_argument_is_refused(self, cli, place, arguments, line):
        (place / "wrong.csv").write_text("a,b\n1,2\n")
        (place / "wrong.parquet").write_text("not a table")
        assert line in refused(cli("predict", *arguments, stdin='{"x": [1, 2]}'))

    def test_a_model_that_fails_is_not_the_callers_fault(self, cli):
        ran = cli("predict", "double.py:Double", "-i", "-", stdin='{"x": [13, 13]}')
        assert ran == Ran(1, "", "maitred: the model raised ValueError: thirteen (double.py:12, in predict)\n")


class TestPack:
    def test_pack_inspect_predict(self, cli, place):
        (place / "example.json").write_text('[{"x": [1, 2], "name": "a"}, {"x": [0.5, 4], "name": "b"}]')
        packed = cli("pack", "double.py:Double", "--out", "art", "--name", "twice", "--example", "example.json")
        assert (packed.code, packed.err) == (0, "") and packed.out.startswith("art: twice sha256:")

        text = cli("inspect", "art").out
        assert "twice" in text and "float32[n, 2]" in text and "--trust" in text
        record = json.loads(cli("inspect", "art", "--output", "json").out)
        assert packed.out.splitlines()[0] == f"art: twice {record['digest']}"
        assert "  label  str[n]" in packed.out.splitlines() and packed.out.endswith("example    its own\n")
        assert json.loads(record["description"]["example"])["inputs"][0]["data"] == [1, 2]

        assert "--trust" in refused(cli("predict", "art", "-i", "-", stdin='{"x": [1, 2]}'))
        ran = cli("predict", "art", "-i", "-", "--trust", "me: I wrote it", stdin='{"x": [1, 2]}')
        assert json.loads(ran.out) == {"y": [2, 4], "label": "none"}

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("s.toml", '[inputs]\nx = "float32[n]"\n[outputs]\ny = "float32[n]"\n'),
            ("s.toml", '[signature.inputs]\nx = "float32[n]"\n[signature.outputs]\ny = "float32[n]"\n'),
            ("s.json", '{"inputs": {"x": "float32[n]"}, "outputs": {"y": "float32[n]"}}'),
            ("", '{"inputs": {"x": "float32[n]"}, "outputs": {"y": "float32[n]"}}'),
        ],
    )
    def test_a_signature_that_the_model_does_not_tell(self, cli, place, name, text):
        (place / "plain.py").write_text("def predict(batch):\n    return {'y': batch['x'] + 1}\n")
        (place / "e.json").write_text('{"columns": {"x": [1, 2, 3]}}')
        if name:
            (place / name).write_text(text)
        ran = cli("pack", "plain.py:predict", "--out", "a", "--signature", name or text, "--example", "e.json")
        assert (ran.code, ran.err) == (0, "")
        record = json.loads(cli("inspect", "a", "-o", "json").out)
        assert record["description"]["signature"]["inputs"] == {"x": "float32[n]"}

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["none.py", "--out", "a"], "none.py"),
            (["double.py:Double"], "Missing option '--out'"),
            (["double.py:Double", "--out", "a", "--name", "../a"], "is not valid"),
            (["double.py:Double", "--out", "a", "--example", "none"], "--example: there is no file none"),
            (["double.py:Double", "--out", "a", "--example", "double.py"], "--example: double.py is not valid JSON"),
            (["double.py:Double", "--out", "a", "--example", "5.json"], "--example: expected an object, a list of"),
            (["double.py:Double", "--out", "a", "--example", "mixed.json"], "--example: row 1: 'name' is in some rows"),
            (["double.py:Double", "--out", "a", "--example", "bytes.json"], "--example: bytes.json is not UTF-8"),
            (["double.py:Double", "--out", "a", "--example", "other.json"], "the example does not fit the signature"),
            (["double.py:Double", "--out", "a", "--signature", "{"], "--signature: "),
            (["double.py:Double", "--out", "a", "--signature", "5.json"], "--signature: expected an object"),
            (["double.py:Double", "--out", "a", "--signature", '{"inputs": {"x": "float99[n]"}, "outputs": {}}'], "x"),
            (["double.py:Double", "--out", "."], "."),
        ],
    )
    def test_what_cannot_be_packed(self, cli, place, arguments, line):
        (place / "5.json").write_text("5")
        (place / "mixed.json").write_text('[{"x": [1, 2]}, {"x": [1, 2], "name": "a"}]')
        (place / "bytes.json").write_bytes(b"\xff")
        (place / "other.json").write_text('{"z": 1}')
        assert line in refused(cli("pack", *arguments))

    def test_options_reach_the_flavor_and_the_manifest(self, cli, place):
        import onnx
        from onnx import helper

        shape = ["n", 2]
        tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, place / "m.onnx")
        ran = cli("pack", "m.onnx", "--out", "a", "--option", 'labels={"y": ["no", "yes"]}', "--option", "threads=1")
        assert 'y  float32[n, 2] labels=["no", "yes"]' in ran.out and ran.err == ""
        assert "--option: expected KEY=VALUE, got 'threads'" in refused(
            cli("pack", "m.onnx", "--out", "b", "--option", "threads")
        )

    def test_libraries_of_the_models_own_code_are_recorded(self, cli):
        assert cli("pack", "double.py:Double", "--out", "a", "--library", "msgspec", "--library", "orjson").code == 0
        recorded = json.loads(cli("inspect", "a", "-o", "json").out)["libraries"]
        assert {"python", "numpy", "msgspec", "orjson"} == {library["name"] for library in recorded}
        line = refused(cli("pack", "double.py:Double", "--out", "b", "--library", "no-such-thing"))
        assert "no distribution named 'no-such-thing' is installed here" in line

    def test_a_model_is_compared_with_its_reference(self, cli, place):
        (place / "off.py").write_text(MODEL.replace('batch["x"] * 2', 'batch["x"] * 2 + (batch["x"] > 3)'))
        (place / "fine.json").write_text('[{"x": [1, 2]}, {"x": [0.5, 3]}]')
        (place / "wrong.json").write_text('[{"x": [1, 2]}, {"x": [0.5, 4]}]')
        pack = ("pack", "off.py:Double", "--out", "art", "--reference", "double.py:Double")
        ran = cli(*pack, "--example", "fine.json")
        assert "y: all 4 elements agree, the worst by 0" in ran.out and ran.code == 0
        assert "a comparison with a reference needs an example" in refused(cli(*pack))
        line = refused(cli(*pack, "--example", "wrong.json"))
        assert "y: 1 of 4 elements differ by more than the tolerance, the worst by 1 at [1][1]: 9.0, there 8.0" in line
        ran = cli(*pack, "--example", "wrong.json", "--accept-differences")
        assert ran.code == 0 and "1 of 4 elements differ" in ran.out
        assert "1 of 4 elements differ" in cli("inspect", "art").out

    @pytest.mark.parametrize("arguments", [["none"], ["."], ["double.py", "--output", "xml"]])
    def test_what_cannot_be_inspected(self, cli, arguments):
        refused(cli("inspect", *arguments))

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_problems_are_told_by_the_exit_code_and_missing_trust_is_none(self, cli, place, form):
        cli("pack", "double.py:Double", "--out", "art")
        assert cli("inspect", "art", "-o", form).code == 0
        (place / "art" / "code" / "double.py").write_text("changed")
        ran = cli("inspect", "art", "-o", form)
        assert (ran.code, ran.err) == (1, "") and "double.py" in ran.out

    def test_looking_runs_nothing_and_a_hostile_artifact_cannot_draw_on_the_terminal(self, cli, place):
        (place / "bomb.py").write_text("raise SystemExit('it ran')")
        ran = cli("inspect", "bomb.py")
        assert ran.code == 0 and "it ran" not in ran.out + ran.err
        cli("pack", "double.py:Double", "--out", "art")
        manifest = place / "art" / "maitred.toml"
        manifest.write_text(manifest.read_text().replace('numpy = "', 'numpy = "\\u001b[2J'))
        ran = cli("inspect", "art")
        assert r"\x1b[2J" in ran.out and "\x1b" not in ran.out + ran.err

    @pytest.mark.parametrize(
        ("line", "wanted"),
        [
            ("plain é", "plain é"),
            (r"""-d '{"a":"\\" \n"}'""", r"""-d '{"a":"\\" \n"}'"""),
            ("\x1b[2J\x9b\u202e\u2028\x00\r\ud800", r"\x1b[2J\x9b\u202e\u2028\x00\r\ud800"),
        ],
    )
    def test_lines_are_harmless_and_commands_stay_as_they_are(self, line, wanted):
        assert harmless(line) == wanted


class TestServe:
    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
        """The settings that the command hands to the one file that knows every room."""
        seen: list[ServerSettings] = []

        def serve(settings: ServerSettings, announce: Callable[[str], None]) -> int:
            seen.append(settings)
            announce("http://127.0.0.1:1")
            return 0

        fake = types.ModuleType("maitred.assemble")
        fake.serve = serve  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "maitred.assemble", fake)
        monkeypatch.setattr("maitred.assemble", fake, raising=False)
        return seen

    def test_flags_become_settings(self, cli, served):
        ran = cli(
            "serve", "double.py:Double", "other=double.py:Total", "--listen", "127.0.0.1:0", "--admin-listen",
            "[::1]:0", "--replicas", "2", "--kind", "thread", "--max-batch-rows", "16", "--deadline-seconds", "1.5",
            "--trust", "me: mine", "--allow-repository-control", "--home", "here", "--log-level", "error",
            "--log-format", "json",
        )  # fmt: skip
        assert ran == Ran(0, "http://127.0.0.1:1\n", "")
        [settings] = served
        assert (str(settings.listen), str(settings.admin_listen)) == ("127.0.0.1:0", "[::1]:0")
        assert settings.allow_repository_control and settings.home == Path("here")
        assert (settings.log_level, settings.log_format) == ("error", "json")
        assert {name: model.source for name, model in settings.models.items()} == {
            "double": "double.py:Double",
            "other": "double.py:Total",
        }
        for model in settings.models.values():
            assert (model.replicas.min, model.replicas.max, model.replicas.kind) == (2, 2, "thread")
            assert (model.batching.max_batch_rows, model.deadline_seconds, model.trust) == (16, 1.5, "me: mine")
        assert settings.origin("models.double.batching.max_batch_rows") == "--max-batch-rows"
        assert settings.origin("models.double.source") == "the command line"

    def test_nothing_given_is_nothing_set(self, cli, served, place):
        assert cli("serve", "double.py").code == 0
        [settings] = served
        assert settings.origins.keys() == {"models.double.source", "home"}
        assert settings.home == place / "home"  # MAITRED_HOME

    def test_unknown_environment_variables_are_one_warning(self, cli, served, monkeypatch):
        monkeypatch.setenv("MAITRED_LISTN", "127.0.0.1:1")
        monkeypatch.setenv("MAITRED_X\n", "1")
        ran = cli("serve", "double.py")
        assert (ran.code, len(served)) == (0, 1)
        assert ran.err.count("\n") == 1
        assert "WARNING maitred: unknown environment variables are ignored: " in ran.err
        assert "MAITRED_LISTN (did you mean MAITRED_LISTEN?)" in ran.err and r"MAITRED_X\n" in ran.err

    def test_known_environment_variables_are_no_warning(self, cli, served, monkeypatch):
        for name in ENVIRONMENT.keys() - {"MAITRED_HOME"}:
            monkeypatch.setenv(name, {"MAITRED_LOG_LEVEL": "info", "MAITRED_LOG_FORMAT": "json"}.get(name, "[::1]:0"))
        monkeypatch.setenv("MAITRED_ADMIN_LISTEN", "127.0.0.1:0")
        assert cli("serve", "double.py").err == ""

    def test_a_home_that_is_empty_is_never_the_working_directory(self, cli, served, monkeypatch):
        monkeypatch.setenv("MAITRED_HOME", "")
        assert cli("serve", "double.py").code == 0
        assert served[0].home == Path("~/.maitred").expanduser()

    def test_a_file_named_or_found(self, cli, served, place):
        (place / "maitred.yaml").write_text("models: {found: {source: double.py}}")
        (place / "named.yaml").write_text("models: {named: {source: double.py}}\nlog_level: error")
        assert [cli("serve").code, cli("serve", "--config", "named.yaml").code] == [0, 0]
        assert cli("serve", "--config", "named.yaml", "more=double.py").code == 0
        assert cli("serve", "double.py").code == 0
        assert [list(settings.models) for settings in served] == [["found"], ["named"], ["named", "more"], ["double"]]

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            ([], "there is nothing to serve"),
            (["none"], "none: there is no such file or folder"),
            (["none.py:Class"], "none.py:Class: there is no such file or folder"),
            (["a=none"], "none: there is no such file or folder"),
            (["double.py", "double.py:Total"], "there are two models of the name 'double'; write NAME=double.py:Total"),
            (["a b.onnx"], "'a b' cannot be a model's name; write NAME=a b.onnx"),
            (["a/b=double.py:Double"], "'a/b' cannot be a model's name: use 1 to 128 letters, digits, '.', '_' or '-'"),
            (["..=double.py"], "'..' cannot be a model's name: use 1 to 128 letters"),
            (["café=double.py"], "'café' cannot be a model's name: use 1 to 128 letters"),
            (["a b=package.module:Class"], "'a b' cannot be a model's name: use 1 to 128 letters"),
            (["=double.py"], "'' cannot be a model's name: use 1 to 128 letters"),
            (["a\nb\x1b[31m=double.py"], r"'a\nb\x1b[31m' cannot be a model's name: use 1 to 128 letters"),
            (["x/y=none.py"], "x/y=none.py: there is no such file or folder"),  # may as well be a path
            (["double.py", "--home", ""], "--home: home: expected"),
            (["double.py", "--listen", "8080"], "--listen: listen: expected HOST:PORT"),
            (["double.py", "--kind", "proces"], "--kind: models.double.replicas.kind: expected one of auto, process"),
            (
                ["double.py", "--replicas", "0"],
                "--replicas: models.double.replicas.min: expected a whole number from 1",
            ),
            (["double.py", "--max-batch-rows", "9999"], "models.double.batching.max_batch_rows: is more than"),
            (["double.py", "--listen", "0.0.0.0:1", "--allow-repository-control"], "needs `listen` on loopback"),
            (["--config", "none.yaml"], "none.yaml: cannot be read: No such file"),
            (["--config", "bad.yaml"], "bad.yaml:1:1: modls: unknown key; did you mean `models`?"),
        ],
    )
    def test_what_cannot_be_served(self, cli, served, place, arguments, line):
        (place / "a b.onnx").touch()
        (place / "bad.yaml").write_text("modls: {}")
        assert line in refused(cli("serve", *arguments))
        assert served == []

    @pytest.mark.parametrize(
        ("model", "line"),
        [
            ("{source: ./none.onnx}", "wrong.yaml:3:15: models.b.source: there is no file or folder at none.onnx"),
            ("{source: nothing}", "wrong.yaml:3:15: models.b.source: nothing holds no maitred.toml"),
            ("{source: double.py, options: {weigths: x}}", "wrong.yaml:3:3: models.b: flavor python has no option"),
        ],
    )
    def test_a_model_that_cannot_be_found_is_told_with_its_place(self, cli, place, model, line):
        (place / "nothing").mkdir()
        (place / "wrong.yaml").write_text(f"log_level: warning\nmodels:\n  b: {model}\n")
        assert line in refused(cli("serve", "--config", "wrong.yaml"))

    def test_what_the_house_refuses_is_one_line_too(self, cli, served, monkeypatch):
        def serve(settings: ServerSettings, announce: Callable[[str], None]) -> int:
            raise OSError(98, "Address already in use")

        monkeypatch.setattr(sys.modules["maitred.assemble"], "serve", serve)
        assert refused(cli("serve", "double.py")) == "maitred: Address already in use\n"

    @pytest.mark.parametrize(
        ("argument", "name", "path"),
        [
            ("double.py", "double", "double.py"),
            ("double.py:Double", "double", "double.py:Double"),
            ("./double.py", "double", "./double.py"),
            ("x=double.py", "x", "double.py"),
            ("folder.v1", "folder.v1", "folder.v1"),
            ("folder.v1/", "folder.v1", "folder.v1/"),
            ("a=b/m.onnx", "m", "a=b/m.onnx"),  # a path that exists
            ("package.module:Class", "class", "package.module:Class"),
            ("y=package.module:Class", "y", "package.module:Class"),
        ],
    )
    def test_names(self, place, argument, name, path):
        (place / "folder.v1").mkdir()
        (place / "a=b").mkdir()
        (place / "a=b" / "m.onnx").touch()
        assert named(argument) == (name, path)

    def test_an_artifact_has_the_name_that_inspect_shows(self, cli, place):
        cli("pack", "double.py:Double", "--out", "art", "--name", "twice")
        assert named("art") == ("twice", "art")
        assert "/v2/models/twice/infer" in cli("inspect", "art").out
        (place / "art" / "maitred.toml").write_text("broken")
        assert named("art") == ("art", "art")

    def test_the_working_directory_has_a_name(self, place):
        assert named(".")[0] == place.resolve().name


def test_model_faults_say_nothing_of_the_input():
    assert told(ModelFault("the model failed")) == ("maitred: the model failed", 1)


class TestNew:
    def test_what_it_writes_works_as_it_is(self, cli, place):
        ran = cli("new", "some-churn")
        assert (ran.code, ran.err) == (0, "")
        commands = dict(line.split("   ", 1) for line in ran.out.splitlines() if " it " in line)
        called = cli(*shlex.split(commands["call it"])[1:])
        assert [row["segment"] for row in json.loads(called.out)] == ["likely", "unknown", "unlikely"]
        packed = cli(*shlex.split(commands["pack it"])[1:])
        assert packed.out.startswith("some-churn.packed: some-churn sha256:") and packed.err == ""
        assert cli("predict", "some-churn.packed", "-i", "some-churn/example.json").out == called.out
        tested = [sys.executable, *shlex.split(commands["test it"])[1:], "-q", "-p", "no:cacheprovider"]
        assert subprocess.run(tested, capture_output=True, timeout=50, check=False).returncode == 0
        assert commands["serve it"].strip() == "maitred serve some-churn=some-churn/model.py"

    def test_it_overwrites_nothing(self, cli, place):
        (place / "full").mkdir()
        (place / "full" / "model.py").write_text("mine")
        assert "full exists and is not an empty folder" in refused(cli("new", "full"))
        assert "double.py" in refused(cli("new", "double.py"))
        assert (place / "full" / "model.py").read_text() == "mine"

    @pytest.mark.parametrize("name", ["1st", "a b", ".hidden", "ünder", "x" * 65])
    def test_a_name_that_no_model_can_have(self, cli, place, name):
        assert "cannot be a model's name" in refused(cli("new", name))
        assert not (place / name).exists()
