"""The arithmetic of sizes that programs of torch.export carry as text: judged, and rewritten so that it is safe."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from typing import Final

from maitred.model.refusals import CannotLoad

_MAX_CHARACTERS: Final = 2_000
_MAX_EXPONENT: Final = 8
_CHARACTERS: Final = re.compile(r"[\w\s'\"()+\-*/%,.<>=!&|~]*", re.ASCII)
_SYMBOL: Final = re.compile(r"[a-z]+\d+")
_FUNCTIONS: Final = frozenset(
    "Symbol Integer Rational Float Add Mul Pow PowByNatural Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv CeilToInt "
    "FloorToInt TruncToInt RoundToInt IntTrueDiv FloatTrueDiv ToFloat TruncToFloat ModularIndexing Where Identity "
    "Equality Unequality LessThan StrictLessThan GreaterThan StrictGreaterThan Eq Ne Le Lt Ge Gt And Or Not "
    "BooleanTrue BooleanFalse IsNonOverlappingAndDenseIndicator".split()
)
_WORDS: Final = frozenset({"true", "false", "oo", "zoo", "nan", "True", "False", "int_oo"})
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.cmpop)
_TEXT: Final = re.compile(r"[\w.+\-]{1,40}", re.ASCII)

_SIZE: Final = re.compile(r"L\['(\w+)'\]((?:\[(?:'\w+'|\d+)\])*)\.size\(\)\[(\d+)\]", re.ASCII)
_PART: Final = re.compile(r"\[(?:'(\w+)'|(\d+))\]")
_CONDITION_NODES: Final = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.Constant, ast.boolop,
    ast.cmpop, ast.unaryop, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
)  # fmt: skip


def harmless_expression(text: str) -> bool:
    """Whether a text is sums, products, comparisons and known functions of symbols and moderate numbers.

    PyTorch has sympy evaluate it, which runs any Python, and computes any power.
    """
    tree = _parsed(text)
    return tree is not None and all(_is_harmless(node) for node in ast.walk(tree))


def symbol_of(text: str) -> str:
    """The symbol that an expression consists of; empty where it is more than one."""
    match = re.fullmatch(r"(?:Symbol\('(\w+)'(?:, \w+=True)*\)|(\w+))", text)
    name = (match.group(1) or match.group(2)) if match else ""
    return name if _SYMBOL.fullmatch(name) else ""


def condition(guard: str, sizes: Mapping[tuple[str, int], int | str]) -> str:
    """A guard of the program as an expression over its symbols; empty where it always holds.

    `sizes` by the input and the axis. Raises `CannotLoad` for a guard that cannot be checked: what the program answers
    where it does not hold is wrong.
    """

    def size(match: re.Match[str]) -> str:
        parts = [part.group(1) or part.group(2) for part in _PART.finditer(match.group(2))]
        found = sizes.get(("_".join([match.group(1), *parts]), int(match.group(3))), "")
        return f"({found})" if found != "" else match.group(0)

    tree = _parsed(_SIZE.sub(size, guard))
    known = {size for size in sizes.values() if isinstance(size, str)}
    sound = tree is not None and all(
        isinstance(node, _CONDITION_NODES)
        and (not isinstance(node, ast.Name) or node.id in known)
        and (not isinstance(node, ast.Constant) or type(node.value) is int)
        for node in ast.walk(tree)
    )
    if tree is None or not sound:
        raise CannotLoad(
            f"the program holds for some inputs only, by a condition that cannot be checked ({guard[:100]}): export it "
            "with a torch.export.Dim for each open size"
        )
    body = tree.body
    same = isinstance(body, ast.Compare) and len(body.ops) == 1 and ast.dump(body.left) == ast.dump(body.comparators[0])
    if same and isinstance(body, ast.Compare) and isinstance(body.ops[0], (ast.Eq, ast.LtE, ast.GtE)):
        return ""
    return ast.unparse(tree)


def _parsed(text: str) -> ast.Expression | None:
    if len(text) > _MAX_CHARACTERS or not _CHARACTERS.fullmatch(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a hostile text may look odd; it is judged below
            return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return (
            isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and _power_is_small(node.func.id, node.args)
        )
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _power_is_small("Pow", [node.left, node.right])
        return isinstance(node.op, _OPERATORS)
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS | _WORDS or _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return _TEXT.fullmatch(value) is not None
        return isinstance(value, (int, float)) and abs(value) < 2**63
    kinds = (ast.Expression, ast.UnaryOp, ast.Compare, ast.keyword, ast.Load, ast.Pow, ast.BoolOp, ast.boolop)
    return isinstance(node, (*kinds, *_OPERATORS, ast.Not))


def _power_is_small(name: str, arguments: list[ast.expr]) -> bool:
    """No power of a power, and no exponent that makes numbers of millions of digits."""
    if name not in {"Pow", "PowByNatural"}:
        return True
    if len(arguments) != 2 or any(_is_power(node) for node in ast.walk(arguments[0])):
        return False
    exponents = [node.value for node in ast.walk(arguments[1]) if isinstance(node, ast.Constant)]
    few = all(isinstance(value, int) and abs(value) <= _MAX_EXPONENT for value in exponents)
    plain = not any(_is_power(node) or isinstance(node, ast.BinOp) for node in ast.walk(arguments[1]))
    return few and plain and len(exponents) == 1


def _is_power(node: ast.AST) -> bool:
    return isinstance(node, ast.Pow) or (isinstance(node, ast.Name) and node.id in {"Pow", "PowByNatural"})
