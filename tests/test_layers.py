"""The house's rules about imports: they go down only, rule files are pure, and three files alone know three things."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "maitred"

RANK = {
    **dict.fromkeys("errors clock messages endpoint events settings plugins host logline bridge".split(), 0),
    **dict.fromkeys("spelling loop".split(), 0),
    **dict.fromkeys("wire scheduling model".split(), 1),
    **dict.fromkeys("registry replica http".split(), 2),
    "pool": 3,
    "deployment": 4,
    **dict.fromkeys("rollout scaler".split(), 5),
    **dict.fromkeys("embed gateway jobs batch stream".split(), 6),
    **dict.fromkeys("cli console manifests assemble assemble_front".split(), 7),
    "": 8,  # maitred/__init__.py: the public names
    "__main__": 8,
}
"""Room -> layer. Ground rooms and faces may use each other; any other room uses lower layers only."""

ASIDE = {
    "client": {"wire"}, "loadtest": {"wire"}, "planner": {"scheduling"}, "observe": set[str](), "testing": {*RANK},
}  # fmt: skip
"""Rooms beside the layers, and what they may use besides the ground."""

MAY_ALSO = {
    ("model", "wire"), ("client", "model.signature"), ("loadtest", "model.signature"), ("embed", "observe"),
    ("", "testing"),
}  # fmt: skip
"""Single exceptions that the layer table names."""

RULES = {
    "errors", "messages", "events", "spelling", "model.signature", "model.ragged", "model.predictor", "wire.coerce",
    "wire.headings", "wire.tensors", "wire.arrays", "wire.arrow", "wire.columns", "wire.csv", "wire.direct",
    "wire.dtypes", "wire.elements", "wire.json_tensors", "wire.missing", "wire.nesting", "wire.raw", "wire.times",
    "wire.timetexts", "wire.sizes", "wire.pieces", "wire.outline", "wire.row_pieces", "wire.json_pieces",
    "wire.json_decoders", "wire.json_store", "wire.json_uneven", "model.answers", "model.forms",
    "scheduling.queue", "scheduling.admission", "scheduling.batching", "scheduling.fairness", "scheduling.recovery",
    "scheduling.returning", "scheduling.late",
    "scheduling.dispatcher", "scheduling.outage", "scheduling.curve", "scheduling.patience", "scheduling.aside",
    "scheduling.replicas", "pool.kinds", "registry.rules", "replica.lifecycle", "http.limits", "deployment.spec",
    "deployment.reconcile", "deployment.split", "rollout.steps", "rollout.guards", "rollout.decide", "scaler.policy",
    "gateway.claims",
    "jobs.states", "stream.windows", "planner.arrivals", "planner.service_times", "planner.simulate",
    "planner.capacity", "client.retry", "client.breaker", "client.hedge", "client.balance",
    "loadtest.answer", "loadtest.arrivals", "loadtest.bodies", "loadtest.checks", "loadtest.heads",
    "loadtest.histogram", "loadtest.metadata", "loadtest.plan", "loadtest.report", "loadtest.tally", "loadtest.timing",
    "loadtest.verdict",
}  # fmt: skip
"""Files that decide: time and chance are passed to them."""

IMPURE = {"asyncio", "socket", "time", "random", "os", "threading", "multiprocessing", "subprocess", "selectors"}

LATE = {
    "catboost", "joblib", "lightgbm", "onnx", "onnxruntime", "pandas", "pyarrow", "safetensors", "scipy", "skl2onnx",
    "PIL", "sklearn", "skops", "threadpoolctl", "tokenizers", "torch", "transformers", "uvloop", "xgboost",
}  # fmt: skip
"""Optional or slow libraries, which may be imported inside a function."""


class Import(NamedTuple):
    file: str  # "wire.json", relative to the package
    target: str  # absolute module name
    late: bool  # inside a function
    typing: bool  # under `if TYPE_CHECKING`
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target}"


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(file: str, tree: ast.Module) -> Iterator[Import]:
    def visit(node: ast.AST, late: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(file, alias.name, late, typing, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}:{child.lineno}: relative import; write the whole name"
                for alias in child.names:
                    submodule = child.module == "maitred" or (SOURCE.parent / _path(child.module, alias.name)).exists()
                    target = f"{child.module}.{alias.name}" if submodule else str(child.module)
                    yield Import(file, target, late, typing, child.lineno)
            else:
                inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                checking = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
                yield from visit(child, inside, checking)

    yield from visit(tree, False, False)


def _path(module: str | None, name: str) -> str:
    return f"{module}.{name}".replace(".", "/") + ".py"


FILES = {name_of(path): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
IMPORTS = [found for file, tree in FILES.items() for found in imports_in(file, tree)]
OURS = [found for found in IMPORTS if found.target.split(".")[0] == "maitred"]


def allowed(user: str, used: str) -> bool:
    """Whether the file `user` may import the module `used` (names relative to the package)."""
    room, other = user.split(".")[0], used.split(".")[0]
    if room == other or (room, other) in MAY_ALSO or (room, used) in MAY_ALSO:
        return True
    if RANK.get(other, 9) == 0 or used in {"", "__version__"}:  # the package itself imports nothing
        return True
    if room in ASIDE:
        return other in ASIDE[room]
    if other in ASIDE:
        return RANK[room] >= 7
    return RANK[other] < RANK[room] or RANK[room] == 7


@pytest.mark.parametrize("found", OURS, ids=str)
def test_imports_go_down_only(found: Import) -> None:
    used = found.target.removeprefix("maitred").removeprefix(".")
    assert allowed(found.file, used), f"{found}: an import goes up or sideways"


def test_every_room_has_a_place_in_the_table() -> None:
    rooms = {file.split(".")[0] for file in FILES}
    assert rooms <= RANK.keys() | ASIDE.keys()


def test_rule_files_take_time_and_chance_as_arguments() -> None:
    impure = [f for f in IMPORTS if f.file in RULES and f.target.split(".")[0] in IMPURE and not f.typing]
    assert not impure, [str(found) for found in impure]


def test_only_one_file_knows_uvloop() -> None:
    assert {f.file for f in IMPORTS if f.target.split(".")[0] == "uvloop"} <= {"loop"}


def test_only_host_asks_for_the_system() -> None:
    asked = {"sys.platform", "platform.system", "platform.machine", "os.uname", "os.name", "sysconfig.get_platform"}
    for file, tree in FILES.items():
        found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & asked
        assert not found or file == "host", f"{file} asks for {found}; host.py is the place"


def test_imports_inside_functions_are_optional_libraries_or_lazy_commands() -> None:
    late = [f for f in IMPORTS if f.late and f.file.split(".")[0] not in {"cli", ""}]
    wrong = [str(f) for f in late if f.target.split(".")[0] not in LATE]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("user", "used", "fine"),
    [
        ("gateway.rest", "wire.json", True),
        ("gateway.rest", "embed", False),
        ("replica.process", "http.one", False),
        ("scheduling.queue", "pool.pool", False),
        ("model.artifact", "wire.coerce", True),
        ("wire.json", "model.signature", False),
        ("errors", "messages", True),
        ("client.client", "model.signature", True),
        ("client.client", "model.artifact", False),
        ("loadtest.bodies", "model.signature", True),
        ("loadtest.ask", "gateway.rest", False),
        ("cli.bench", "loadtest.crew", True),
        ("pool.pool", "observe.metrics", False),
        ("assemble", "observe.metrics", True),
    ],
)
def test_the_check_itself(user: str, used: str, fine: bool) -> None:
    assert allowed(user, used) is fine
