"""What reviewers should not have to say twice: first lines, names, sizes, links, lock files and commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "maitred"
FILES = sorted(SOURCE.rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "bench").rglob("*.md"))]
OURS = ("src", "tests", "docs", "bench", "reliability", "examples", "requirements", ".ci")

ON_THE_PATH = ("http/one.py", "gateway/rest.py", "model/signature.py", "endpoint.py", "messages.py")
ROOMS_ON_THE_PATH = ("wire", "scheduling", "pool", "replica", "deployment")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_a_file_says_in_one_sentence_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    if path.name == "__init__.py" and not text.strip():
        return
    first = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    assert first.endswith("."), f"{relative(path)} opens with no sentence"


def test_files_are_named_after_what_they_hold() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
    assert not [relative(path) for path in FILES if vague & set(re.split(r"[_.]", path.stem))]


def test_functions_on_the_request_path_fit_on_a_screen() -> None:
    long = []
    for path in FILES:
        inside = path.relative_to(SOURCE).as_posix()
        if inside not in ON_THE_PATH and inside.split("/")[0] not in ROOMS_ON_THE_PATH:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 60:
                    long.append(f"{inside}:{node.lineno} {node.name}: {lines} lines")
    assert not long


def test_type_ignores_name_their_code() -> None:
    bare = re.compile(r"#\s*type:\s*ignore(?!\[)")
    assert not [relative(path) for path in FILES if bare.search(path.read_text())]


def text_files() -> list[Path]:
    suffixes = {".py", ".md", ".toml", ".txt", ".in", ".sh", ".lua", ".yaml", ".yml", ".json", ""}
    roots = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in suffixes and path.name != ".git"]
    inside = [path for room in OURS for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix in suffixes]
    return [path for path in roots + inside if "__pycache__" not in path.parts]


def test_nothing_names_a_machine_or_a_package_host() -> None:
    places = re.compile(r"/work/|/root/\.|/home/\w|/Users/\w|/opt/pypi|\bpypi\.org|pythonhosted|index-url\s+http")
    this = Path(__file__).resolve()
    found = [
        f"{relative(path)}: {match.group()}"
        for path in text_files()
        if path.resolve() != this and (match := places.search(path.read_text(errors="replace")))
    ]
    assert not found


def test_tests_and_pages_speak_of_behaviour_and_not_of_a_list_of_cases() -> None:
    number = re.compile(r"(?<![0-9A-Za-z-])c-[0-9a-f]{5}(?![0-9A-Za-z-])")
    found = [f"{relative(path)}: {match.group()}" for path in text_files()
             if (match := number.search(path.read_text(errors="replace")))]  # fmt: skip
    assert not found


@pytest.mark.parametrize("name", ["serve", "dev"])
def test_lock_files_pin_with_hashes_and_name_no_host(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert len(blocks) > 20
    for block in blocks:
        assert re.match(r"[\w.\[\]-]+==[\w.+!]+", block), f"not pinned: {block.splitlines()[0]}"
        assert "--hash=sha256:" in block, f"no hash: {block.splitlines()[0]}"


def test_the_development_set_agrees_with_the_serving_set() -> None:
    pins = {
        name: set(re.findall(r"^([\w.\[\]-]+==[^\\\n]+?) *\\?$", (ROOT / "requirements" / name).read_text(), re.M))
        for name in ("serve.txt", "dev.txt")
    }
    assert pins["serve.txt"] <= pins["dev.txt"]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_make_words_in_the_pages_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    words = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.M))
    assert words <= targets


def test_commands_of_the_command_line_are_those_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"(?:`|^|bin/)maitred ([a-z]+)", text, re.M))
    shown = subprocess.run(
        [sys.executable, "-m", "maitred.cli.main", "--help"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    commands = set(re.findall(r"^[\s│|]*([a-z]+)  ", shown, re.M))
    assert named
    assert named <= commands
