"""Settings: every source and its precedence, where a value came from, and one clear line for each wrong one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.errors import Malformed
from maitred.model.names import check_name
from maitred.settings import (
    ENVIRONMENT,
    NAME,
    Address,
    BatchingSettings,
    Given,
    HttpSettings,
    ModelSettings,
    PoolSettings,
    ReplicaSettings,
    ServerSettings,
    SettingsError,
    SloSettings,
    load_settings,
    unknown_variables,
)

DESIGN_EXAMPLE = """
models:
  churn: {source: ./models/churn}              # a path
  embed:
    source: embeddings@3
    replicas: {kind: process, min: 1, max: 4}
    batching: {max_batch_rows: 32}
    deadline_seconds: 0.5
    slo: {p99_seconds: 0.2}
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "maitred.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_defaults_are_those_of_the_design():
    settings = load_settings()
    assert (str(settings.listen), str(settings.admin_listen)) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert settings.home == Path("~/.maitred").expanduser()
    assert (settings.drain_notice_seconds, settings.drain_seconds) == (5, 30)
    assert not settings.allow_repository_control
    assert settings.fronts == 1
    assert settings.http == HttpSettings(
        max_body_bytes=64 * 1024 * 1024,
        max_head_bytes=64 * 1024,
        max_headers=100,
        header_seconds=30,
        keep_alive_seconds=75,
        first_byte_seconds=30,
        max_connections=10_000,
        compress_from_bytes=1024,
    )
    pool = ModelSettings(name="m", source="m").pool
    assert pool == PoolSettings()
    assert (pool.max_batch_rows, pool.max_waiting_rows) == (64, 4096)
    assert (pool.deadline_seconds, pool.guaranteed_share, pool.keep_free) == (30, 0.05, 0)


def test_the_example_of_the_design(write):
    path = write(DESIGN_EXAMPLE)
    settings = load_settings(path)
    assert list(settings.models) == ["churn", "embed"]
    assert settings.models["churn"] == ModelSettings(name="churn", source=str(path.parent / "models/churn"))
    embed = settings.models["embed"]
    assert embed.source == "embeddings@3"
    assert embed.replicas == ReplicaSettings(kind="process", min=1, max=4)
    assert embed.batching == BatchingSettings(max_batch_rows=32)
    assert embed.slo == SloSettings(p99_seconds=0.2)
    assert (embed.pool.max_batch_rows, embed.pool.deadline_seconds) == (32, 0.5)
    assert (embed.pool.background_seconds, embed.pool.keep_free) == (pytest.approx(0.02), 1)
    assert settings.origin("models.embed.batching.max_batch_rows") == f"{path}:7:32"
    assert settings.origin("models.embed.batching.max_waiting_rows") == "default"
    assert settings.origin("listen") == "default"


@pytest.mark.parametrize("wrong", ["0", "65", "many"])
def test_fronts_are_counted(write, wrong):
    assert load_settings(write("fronts: 4")).fronts == 4
    assert load_settings(write("fronts: 4"), {("fronts",): Given(2, "--fronts")}).fronts == 2
    with pytest.raises(SettingsError, match="fronts"):
        load_settings(write(f"fronts: {wrong}"))


def test_a_flag_wins_over_the_environment_that_over_the_file(write):
    path = write("listen: 127.0.0.1:1\nlog_level: debug\nhome: /from/file\ndrain_seconds: 7\n")
    environ = {"MAITRED_LISTEN": "127.0.0.1:2", "MAITRED_HOME": "/from/environment", "MAITRED_LOG_LEVEL": ""}
    settings = load_settings(path, {("listen",): Given("127.0.0.1:3", "--listen")}, environ)
    assert (settings.listen.port, settings.origin("listen")) == (3, "--listen")
    assert (settings.home, settings.origin("home")) == (Path("/from/environment"), "MAITRED_HOME")
    assert (settings.log_level, settings.origin("log_level")) == ("debug", f"{path}:2:12")
    assert (settings.drain_seconds, settings.origin("drain_seconds")) == (7, f"{path}:4:16")


ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\bMAITRED_[A-Z0-9_]+")


def test_every_environment_variable_of_the_source_is_in_the_table():
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    places += [*ROOT.glob("tests/*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "reliability").rglob("*.py")]
    found = {name: path.name for path in places for name in VARIABLE.findall(path.read_text())}
    assert found.keys() == ENVIRONMENT.keys(), found


def test_every_environment_variable_of_the_table_is_read_and_told_of():
    told = "".join(path.read_text() for path in (ROOT / "docs" / "settings.md", ROOT / "CONTRIBUTING.md"))
    code = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("tests/*.py")]
    read = "".join(path.read_text() for path in code if path.name != "settings.py")
    assert [name for name in ENVIRONMENT if f"`{name}`" not in told and f"{name}=" not in told] == []
    assert [name for name, key in ENVIRONMENT.items() if key is None and f'"{name}"' not in read] == []


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("MAITRED_LISTN", "127.0.0.1:1", "MAITRED_LISTN (did you mean MAITRED_LISTEN?)"),
        ("MAITRED_LOGLEVEL", "debug", "MAITRED_LOGLEVEL (did you mean MAITRED_LOG_LEVEL?)"),
        ("MAITRED_ADMIN_LISTENS", "x", "MAITRED_ADMIN_LISTENS (did you mean MAITRED_ADMIN_LISTEN?)"),
        ("MAITRED_WORKERS", "4", "MAITRED_WORKERS"),
        ("MAITRED_FOO", "4", "MAITRED_FOO"),
        ("MAITRED_", "4", "MAITRED_"),
        ("MAITRED_PORT", "8080", "MAITRED_PORT"),
        ("MAITRED_PORT", "tcp://10.0.0.1:8080", None),  # the rest is Kubernetes', where a service is named maitred
        ("MAITRED_ADMIN_PORT", "tcp://10.0.0.1:8080", None),
        ("MAITRED_PORT_8080_TCP", "tcp://10.0.0.1:8080", None),
        ("MAITRED_PORT_8080_TCP_ADDR", "10.0.0.1", None),
        ("MAITRED_SERVICE_HOST", "10.0.0.1", None),
        ("MAITRED_SERVICE_PORT", "8080", None),
        ("MAITRED_ADMIN_SERVICE_PORT_HTTP", "8080", None),
        ("MAITRED_LISTN", "", None),
        ("LISTN", "x", None),
        ("XMAITRED_LISTN", "x", None),
        *[(name, "x", None) for name in ENVIRONMENT],
    ],
)
def test_unknown_environment_variables_are_told_of(variable, text, told):
    assert unknown_variables({variable: text, "PATH": "/bin"}) == ([] if told is None else [told])


def test_a_flag_for_every_model_reaches_those_of_the_file_and_of_the_command_line(write):
    path = write("models: {a: {source: x, batching: {max_batch_rows: 2}}, b: {source: y}}")
    overrides = {
        ("models", "*", "batching", "max_batch_rows"): Given(16, "--max-batch-rows"),
        ("models", "c", "source"): Given("z", "the command line"),
    }
    settings = load_settings(path, overrides)
    assert {name: model.batching.max_batch_rows for name, model in settings.models.items()} == dict.fromkeys("abc", 16)
    assert settings.origin("models.a.batching.max_batch_rows") == "--max-batch-rows"
    assert settings.models["c"].source == "z"


@pytest.mark.parametrize(
    ("text", "counts"),
    [("{min: 3}", (3, 3)), ("{max: 3}", (1, 3)), ("{min: 2, max: 3}", (2, 3)), ("{}", (1, 1)), ("", (1, 1))],
)
def test_replica_counts(write, text, counts):
    replicas = load_settings(write(f"models: {{m: {{source: x, replicas: {text}}}}}")).models["m"].replicas
    assert (replicas.min, replicas.max) == counts


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("./m", "{folder}/m"),
        ("deep/m.onnx", "{folder}/deep/m.onnx"),
        ("here.py:Model", "{folder}/here.py:Model"),
        ("/abs/m", "/abs/m"),
        ("package.module:Class", "package.module:Class"),
        ("churn@champion", "churn@champion"),
    ],
)
def test_paths_are_seen_from_the_file(write, tmp_path, source, seen):
    (tmp_path / "here.py").touch()
    settings = load_settings(write(f'models: {{m: {{source: "{source}"}}}}'))
    assert settings.models["m"].source == seen.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("log_level: warning", "log_level", "warning"),
        ("allow_repository_control: true", "allow_repository_control", True),
        ("allow_repository_control: True", "allow_repository_control", True),
        ("drain_seconds: 1e1", "drain_seconds", 10.0),  # what YAML 1.1 reads as text
        ("drain_seconds: 3", "drain_seconds", 3.0),
        ("listen: '[::1]:80'", "listen", Address("::1", 80)),
        ("listen: localhost:0", "listen", Address("localhost", 0)),
        ("home: 2024-01-02", "home", Path("2024-01-02")),  # a date to YAML 1.1
        ("home: no", "home", Path("no")),  # a boolean to YAML 1.1
    ],
)
def test_the_key_decides_what_plain_text_means(write, text, key, value):
    assert getattr(load_settings(write(text)), key) == value


M = "models:\n  m:\n    source: x\n"

WRONG = [
    # file text, what the one line must hold
    ("lisen: x", "1:1: lisen: unknown key; did you mean `listen`?"),
    ("zzz: x", "1:1: zzz: unknown key; known here: listen, admin_listen"),
    ("http: {max_heders: 3}", "1:8: http.max_heders: unknown key; did you mean `max_headers`?"),
    (M + "    batching:\n      max_batch_row: 3", "5:7: models.m.batching.max_batch_row: unknown key; did you mean"),
    (M + "    name: y", "4:5: models.m.name: unknown key"),
    ("origins: {a: b}", "1:1: origins: unknown key"),
    (M + "    batching: {max_batch_rows: many}",
     "4:32: models.m.batching.max_batch_rows: expected a whole number of rows from 1 to 1048576, got 'many'"),
    (M + "    batching: {max_batch_rows: 0}", "expected a whole number of rows from 1 to 1048576, got '0'"),
    (M + "    batching: {max_batch_rows: 1.5}", "got '1.5'"),
    (M + "    batching: {max_batch_rows: true}", "got 'true'"),
    (M + "    batching: {max_batch_rows: '8'}", "expected a whole number"),  # quoted, so it is text
    (M + "    batching: {max_batch_rows: }", "got nothing"),
    (M + "    batching: {max_batch_rows: [8]}",
     "4:32: models.m.batching.max_batch_rows: expected a whole number of rows from 1 to 1048576, got a list"),
    (M + "    batching: 8", "4:15: models.m.batching: expected keys and values, such as {max_batch_rows: 64}, got '8'"),
    (M + "    replicas: 2", "4:15: models.m.replicas: expected keys and values, such as {max: 2}, got '2'"),
    (M + "    batching: {max_batch_rows: 100, max_waiting_rows: 10}", "max_batch_rows: is more than"),
    (M + "    replicas: {min: 3, max: 2}", "4:29: models.m.replicas.max: expected at least `min`, which is 3, got 2"),
    (M + "    replicas: {kind: proces}", "expected one of auto, process, thread, inline, got 'proces'"),
    (M + "    replicas: {threads: 0}", "threads: expected a whole number from 1 to 1024, or auto, got '0'"),
    (M + "    replicas: {threads: all}", "threads: expected a whole number from 1 to 1024, or auto, got 'all'"),
    (M + "    replicas: {threads: '2'}", "threads: expected a whole number"),
    (M + "    replicas: {threads: }", "threads: expected a whole number from 1 to 1024, or auto, got nothing"),
    (M + "    replicas: {restart_seconds: 50}", "max_restart_seconds: expected at least"),
    (M + "    deadline_seconds: -1", "expected a number of seconds above 0, up to 86400, got '-1'"),
    (M + "    deadline_seconds: .nan", "models.m.deadline_seconds: expected a number"),
    (M + "    deadline_seconds: nan", "models.m.deadline_seconds: expected a number"),
    (M + "    deadline_seconds: inf", "models.m.deadline_seconds: expected a number"),
    (M + "  m:\n    source: y", "4:3: models.m: is given twice; the first time at"),
    ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2", "2:1: listen: is given twice"),
    ("models: {m: }", "1:10: models.m: the key `source` is missing"),
    ("models: {m: {}}", "models.m: the key `source` is missing"),
    ("models: {m: {source: }}", "models.m.source: expected text, got nothing"),
    ("models: {m: {source: ''}}", "models.m.source: expected text, got ''"),
    ("models: [m]", "1:9: models: expected keys and values, got a list"),
    ("models: {../up: {source: x}}", "models.../up: a name starts with"),
    ("models: {'': {source: x}}", "a name starts with"),
    ("models: {[a]: {source: x}}", "1:10: models: a key must be plain text"),
    ("- a", "1:1: expected keys and values, got a list"),
    ("text", "1:1: expected keys and values, got 'text'"),
    ("listen: 8080", "listen: expected HOST:PORT with a port from 0 to 65535, got '8080'"),
    ("listen: host:99999", "expected HOST:PORT"),
    ("listen: 'a b:80'", "expected HOST:PORT"),
    ("listen: 127.0.0.1:9\nadmin_listen: 127.0.0.1:9", "2:15: admin_listen: expected another address"),
    ("listen: 0.0.0.0:80\nallow_repository_control: true",
     "2:27: allow_repository_control: needs `listen` on loopback"),
    ("allow_repository_control: yes", "expected true or false, got 'yes'"),
    ("a: b: c", "1:5: is not valid YAML: mapping values are not allowed here"),
    ("a: [", "is not valid YAML"),
    ("a: 1\n---\nb: 2", "is not valid YAML"),
    ("listen: *x", "1:9: is not valid YAML: found undefined alias"),
    ("home: !!python/object/apply:os.system [ls]", "home: expected a path, got a list"),
    ("home: !!python/name:os.system ''", "tags such as"),
    ("home: !mine x", "1:7: home: tags such as '!mine' are not used here"),
    ("&a models: &b {m: *b}", "m: unknown key"),
    (b"\xff\xfe\x00", "is not valid YAML"),
    (b"home: '\x00'", "is not valid YAML"),
    ("[" * 100_000, "is not valid YAML"),
    ("# " + "x" * (1 << 20), "is larger than"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[str(index) for index in range(len(WRONG))])
def test_a_wrong_file_is_one_line_that_names_place_and_key(write, text, message):
    path = write(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    line = str(caught.value)
    assert line.startswith(f"{path}") and message in line
    assert "\n" not in line and len(line) < 1000


def test_what_was_given_is_shown_short_and_escaped(write):
    with pytest.raises(SettingsError) as caught:
        load_settings(write('log_level: "a\\nforged \\e[31m' + "x" * 500 + '"'))
    line = str(caught.value)
    assert r"a\nforged \x1b" in line and "\n" not in line and len(line) < 300


@pytest.mark.parametrize(
    ("overrides", "environ", "line"),
    [
        ({("listen",): Given("8080", "--listen")}, {}, "--listen: listen: expected HOST:PORT"),
        ({}, {"MAITRED_LISTEN": "x"}, "MAITRED_LISTEN: listen: expected HOST:PORT"),
        ({}, {"MAITRED_LOG_LEVEL": "loud"}, "MAITRED_LOG_LEVEL: log_level: expected one of debug, info,"),
        ({("models", "m", "source"): Given("x", "PATH"),
          ("models", "*", "replicas", "min"): Given(0, "--replicas")}, {},
         "--replicas: models.m.replicas.min: expected a whole number from 1 to 4096, got 0"),
        ({("models", "m", "deadline_seconds"): Given(1.0, "--deadline-seconds")}, {}, "the key `source` is missing"),
    ],
)  # fmt: skip
def test_a_wrong_flag_or_variable_is_named(overrides, environ, line):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, overrides, environ)
    assert line in str(caught.value)


@pytest.mark.parametrize("make", [lambda path: path / "none.yaml", lambda path: path])
def test_a_file_that_cannot_be_read(tmp_path, make):
    with pytest.raises(SettingsError, match="cannot be read: "):
        load_settings(make(tmp_path))


@pytest.mark.parametrize(("text", "loopback"), [
    ("127.0.0.1:1", True), ("127.9.9.9:1", True), ("localhost:1", True), ("[::1]:1", True),
    ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("example.org:1", False),
])  # fmt: skip
def test_addresses(text, loopback):
    address = Address.parse(text)
    assert address.loopback is loopback
    assert str(address) == text


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerSettings().log_level = "debug"  # type: ignore[misc]


@given(st.text(max_size=140) | st.from_regex(NAME, fullmatch=True))
def test_names_are_judged_as_at_every_other_door(name):
    try:
        check_name(name)
    except Malformed:
        assert NAME.fullmatch(name) is None
    else:
        assert NAME.fullmatch(name) is not None


@given(st.integers(-5, 2_000_000))
def test_a_number_is_taken_exactly_where_it_is_in_range(rows):
    overrides = {
        ("models", "m", "source"): Given("x", "PATH"),
        ("models", "m", "batching", "max_waiting_rows"): Given(str(rows), "f", True),
        ("models", "m", "batching", "max_batch_rows"): Given(1, "f"),
    }
    if 1 <= rows <= 1 << 20:
        assert load_settings(None, overrides).models["m"].pool.max_waiting_rows == rows
    else:
        with pytest.raises(SettingsError):
            load_settings(None, overrides)


@pytest.mark.parametrize(
    ("text", "processors", "threads"),
    [
        ("{}", 1, 1), ("{}", 2, 1), ("{}", 3, 2), ("{}", 16, 15), ("{max: 4}", 16, 3), ("{max: 4}", 2, 1),
        ("{threads: auto, max: 2}", 8, 3), ("{threads: 'auto'}", 8, 7), ("{threads: 6, max: 2}", 2, 6),
        ("{}", 5000, 1024),
    ],
)  # fmt: skip
def test_one_processor_is_left_to_the_server_and_the_rest_is_shared_out(write, text, processors, threads):
    path = write(f"models: {{m: {{source: x, replicas: {text}}}}}")
    assert load_settings(path).models["m"].replicas.threads_each(processors) == threads


def test_a_flavors_options_are_any_values(tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    options = "{threads: 2, labels: {y: [no way, 'yes']}, on: 0.5}"
    path.write_text(f"models:\n  m:\n    source: m.onnx\n    options: {options}\n")
    assert load_settings(path).models["m"].options == {"threads": 2, "labels": {"y": ["no way", "yes"]}, "on": 0.5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("3", "expected keys and values, got 3"),
        ("{a: 1, a: 2}", "is given twice; the first time at "),
        ("{a: !!python/name:os.system x}", "tags such as"),
    ],
)
def test_wrong_options_are_told_with_their_place(tmp_path: Path, options: str, message: str) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text(f"models:\n  m:\n    source: m.onnx\n    options: {options}\n")
    with pytest.raises(SettingsError) as refused:
        load_settings(path)
    assert message in str(refused.value) and f"{path}:4:" in str(refused.value)
