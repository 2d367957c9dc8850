"""The arithmetic of sizes that programs of torch.export carry as text: judged, and rewritten so that it is safe."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Mapping
from typing import Final

from maitred.model.refusals import CannotLoad

_MAX_CHARACTERS: Final = 2_000
_MAX_EXPONENT: Final = 8
_MAX_TERMS: Final = 256
"""Of an expression, were all its products and powers multiplied out."""
_MAX_COMMON: Final = 16
"""Of the sums that a function gets, multiplied: what several of them have in common takes long to find."""
_MAX_PRECISION: Final = 1_000
"""Digits or bits that a text asks to compute a number with."""
_CHARACTERS: Final = re.compile(r"[\w\s'\"()+\-*/%,.<>=!&|~]*", re.ASCII)
_SYMBOL: Final = re.compile(r"[a-z]+\d+")
_FUNCTIONS: Final = frozenset(
    "Symbol Integer Rational Float Add Mul Pow PowByNatural Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv CeilToInt "
    "FloorToInt TruncToInt RoundToInt IntTrueDiv FloatTrueDiv ToFloat TruncToFloat ModularIndexing Where Identity "
    "Equality Unequality LessThan StrictLessThan GreaterThan StrictGreaterThan Eq Ne Le Lt Ge Gt And Or Not "
    "BooleanTrue BooleanFalse IsNonOverlappingAndDenseIndicator".split()
)
_POWERS: Final = frozenset({"Pow", "PowByNatural"})
_WORDS: Final = frozenset({"true", "false", "oo", "zoo", "nan", "True", "False", "int_oo"})
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.cmpop)
_NUMBER: Final = re.compile(r"[+\-]?\d{1,40}(\.\d{0,40})?(e[+\-]?\d{1,2})?", re.ASCII)
_HUGE: Final = re.compile(r"[\d._]e[+\-]?[\d_]{3,}", re.ASCII | re.IGNORECASE)
"""A number of so many digits that it takes forever to write it as a whole number."""

_SIZE: Final = re.compile(r"L\['(\w+)'\]((?:\[(?:'\w+'|\d+)\])*)\.size\(\)\[(\d+)\]", re.ASCII)
_PART: Final = re.compile(r"\[(?:'(\w+)'|(\d+))\]")
_CONDITION_NODES: Final = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.Constant, ast.boolop,
    ast.cmpop, ast.unaryop, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
)  # fmt: skip


def harmless_expression(text: str) -> bool:
    """Whether a text is sums, products, comparisons and known functions of symbols and moderate numbers.

    PyTorch has sympy evaluate it, which runs any Python, computes any number and power, and may multiply out.
    """
    tree = _parsed(text)
    if tree is None or _HUGE.search(text) or not all(_is_harmless(node) for node in ast.walk(tree)):
        return False
    try:
        return _terms(tree.body) <= _MAX_TERMS
    except RecursionError:
        return False


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
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and _is_bounded(node.func.id, node)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _power_is_small("Pow", [node.left, node.right])
        return isinstance(node.op, _OPERATORS)
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS | _WORDS or _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return _NUMBER.fullmatch(value) is not None or _SYMBOL.fullmatch(value) is not None
        return isinstance(value, (int, float)) and abs(value) < 2**63
    kinds = (ast.Expression, ast.UnaryOp, ast.Compare, ast.keyword, ast.Load, ast.Pow, ast.BoolOp, ast.boolop)
    return isinstance(node, (*kinds, *_OPERATORS, ast.Not))


def _is_bounded(name: str, call: ast.Call) -> bool:
    """Whether a known function, given this, does no more work than its arguments are long."""
    if name == "Float":
        settings = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        values = [setting.value if isinstance(setting, ast.Constant) else None for setting in settings]
        return all(isinstance(value, int) and 0 < value <= _MAX_PRECISION for value in values)
    return _power_is_small(name, call.args)


def _terms(node: ast.AST) -> int:
    """How many terms there are once products of sums are multiplied out, as sympy may do; no fewer than it makes."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return 1
    if isinstance(node, ast.UnaryOp):
        return _terms(node.operand)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _power_of(node.left, node.right)
        return _joined_terms(type(node.op).__name__, [node.left, node.right])
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        return _power_of(*node.args) if name in _POWERS else _joined_terms(name, node.args)
    return _joined_terms("", [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])


def _joined_terms(operation: str, parts: list[ast.expr]) -> int:
    """Of a sum, a product, or a function; a little beyond the limit all numbers are the same."""
    counts = [_terms(part) for part in parts]
    if operation in {"Add", "Sub"}:
        return min(sum(counts), _MAX_TERMS + 1)
    total = min(math.prod(counts), _MAX_TERMS + 1)
    several = sum(count > 1 for count in counts) > 1 and operation not in {"Mul", "Mult"}
    return total if not several or total <= _MAX_COMMON else _MAX_TERMS + 1


def _power_of(base: ast.expr, exponent: ast.expr) -> int:
    values = [node.value for node in ast.walk(exponent) if isinstance(node, ast.Constant)]
    power = max((abs(value) for value in values if isinstance(value, int)), default=_MAX_EXPONENT)
    return int(min(_terms(base) ** power, _MAX_TERMS + 1))


def _power_is_small(name: str, arguments: list[ast.expr]) -> bool:
    """No power of a power, and no exponent that makes numbers of millions of digits."""
    if name not in _POWERS:
        return True
    if len(arguments) != 2 or any(_is_power(node) for node in ast.walk(arguments[0])):
        return False
    exponents = [node.value for node in ast.walk(arguments[1]) if isinstance(node, ast.Constant)]
    few = all(isinstance(value, int) and abs(value) <= _MAX_EXPONENT for value in exponents)
    plain = not any(_is_power(node) or isinstance(node, ast.BinOp) for node in ast.walk(arguments[1]))
    return few and plain and len(exponents) == 1


def _is_power(node: ast.AST) -> bool:
    return isinstance(node, ast.Pow) or (isinstance(node, ast.Name) and node.id in _POWERS)
