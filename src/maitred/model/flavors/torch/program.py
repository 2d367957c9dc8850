"""What a program of torch.export says about itself, and whether it is pure data: read without PyTorch.

PyTorch's own reader unpickles, evaluates expressions and looks operators up by dotted names, so a program counts as
data only if every member, name, expression and operator in it is one that is known to do no harm.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from maitred.model.flavors.torch.archive import TorchArchive, beyond_tensors
from maitred.model.flavors.torch.expressions import condition, harmless_expression, symbol_of
from maitred.model.refusals import CannotLoad

GRAPH: Final = "models/model.json"
_WEIGHTS: Final = "data/weights/model_weights_config.json"
_CONSTANTS: Final = "data/constants/model_constants_config.json"
_SAMPLE: Final = "data/sample_inputs/model.pt"
_MAX_DANGERS: Final = 40

_MEMBERS: Final = re.compile(
    r"archive_format|archive_version|version|byteorder|\.format_version|\.storage_alignment|\.data/\w+"
    r"|models/model\.json|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)|data/sample_inputs/model\.pt|extra/[\w.\-]+"
)
_ATEN: Final = re.compile(r"torch\.ops\.(?:aten|prims)\.((?!__)\w+|__i?(?:and|or|xor|lshift|rshift)__)\.(?!_)\w+")
_OTHERS: Final = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|getitem)"
    r"|math\.(ceil|floor|trunc|sqrt)|torch\._?sym_[a-z_]+|torch\._C\._set_grad_enabled"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|associative_scan|wrap_with_set_grad_enabled)"
    r"|torch\.ops\.higher_order\.wrap_with_autocast"
)
_AUTOCAST: Final = "torch.ops.higher_order.wrap_with_autocast"
_TAKES_TEXT: Final = re.compile(
    r"_?_?(functional_)?assert_(async|scalar)|conv[123]d|_convolution_mode|div_?|divide_?|einsum|fft_\w+|gelu\w*"
    r"|index_reduce_?|linalg_\w+|meshgrid|nanquantile|quantile|pad|pad_sequence|scatter_?|scatter_reduce_?"
    r"|searchsorted|bucketize|segment_reduce|stft|_upsample\w*|__interpolate"
)
"""Operators whose texts name a way of computing; any other text could be the name of a file."""
_PLAIN: Final = re.compile(r"[\w.\-+]{0,512}", re.ASCII)
_CONTAINERS: Final = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_DTYPES: Final[Mapping[int, str]] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 12: "bool",
    13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64",
}  # fmt: skip
"""Numbers that the format gives to dtypes."""


class Value(NamedTuple):
    """A tensor that goes in or comes out."""

    name: str
    dtype: str
    """Empty for one that cannot be served."""
    sizes: tuple[int | str, ...]
    """Whole numbers, and symbols of the program's own; empty text for a size that is computed."""


class Program(NamedTuple):
    """What a program takes and gives."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value | None, ...]
    """In order; None for those that are no tensors."""
    ranges: Mapping[str, tuple[int, int | None]]
    """The least and the most of each symbol."""
    conditions: tuple[str, ...]
    """What must hold of the symbols besides, as Python expressions; `ProgramRun` checks it before each run."""


def dangers_of(path: Path) -> tuple[str, ...]:
    """What of the archive PyTorch would run, unpickle or import. Raises `CannotLoad` for what is no archive."""
    with TorchArchive(path, path.name) as archive:
        found = [*_member_dangers(archive)]
        if GRAPH in archive.sizes:
            try:
                found += _graph_dangers(_document(archive, GRAPH))
            except RecursionError:
                found.append("a graph nested too deep to be judged")
        return tuple(dict.fromkeys(f"{danger} in {path.name}" for danger in found))[:_MAX_DANGERS]


def read_program(path: Path) -> Program:
    """The program's own signature. Raises `CannotLoad` saying what of it cannot be served."""
    with TorchArchive(path, path.name) as archive:
        if GRAPH not in archive.sizes:
            raise CannotLoad(f"{path.name} was written by an older torch.export: save it again with this PyTorch")
        document = _document(archive, GRAPH)
    try:
        return _program(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise CannotLoad(f"{path.name} is not a program of torch.export: {type(error).__name__} {error}") from error


# --- what it says ---------------------------------------------------------------------------------------------------


def _program(document: Mapping[str, Any]) -> Program:
    module = document["graph_module"]
    tensors, specs = module["graph"]["tensor_values"], module["signature"]
    call = module["module_call_graph"][0]["signature"]
    inputs = []
    for spec in specs["input_specs"]:
        if "user_input" in spec:
            argument = spec["user_input"]["arg"]
            if "as_tensor" not in argument:
                raise CannotLoad("the program takes an input that is no tensor: export it with that value fixed")
            inputs.append(_value(argument["as_tensor"]["name"], argument["as_tensor"]["name"], tensors))
    for spec in specs["output_specs"]:
        if changed := next((spec[kind] for kind in spec if kind.endswith("_mutation")), None):
            name = changed.get("buffer_name") or changed.get("parameter_name") or changed.get("user_input_name")
            raise CannotLoad(f"the program changes {name!r} while it runs: export it after model.eval()")
    given = [spec["user_output"]["arg"] for spec in specs["output_specs"] if "user_output" in spec]
    names = _leaf_names(json.loads(call["out_spec"])[1], module.get("treespec_namedtuple_fields") or {})
    outputs = [
        _value(name, argument["as_tensor"]["name"], tensors) if "as_tensor" in argument else None
        for name, argument in zip(names, given, strict=True)
    ]
    ranges = {
        str(symbol): (int(ends["min_val"] or 0), ends["max_val"])
        for symbol, ends in document.get("range_constraints", {}).items()
    }
    conditions = (condition(guard, _sizes_by_source(inputs)) for guard in document.get("guards_code") or ())
    return Program(tuple(inputs), tuple(outputs), ranges, tuple(text for text in conditions if text))


def _value(name: str, key: str, tensors: Mapping[str, Any]) -> Value:
    meta = tensors[key]
    sizes = (
        int(size["as_int"]) if "as_int" in size else symbol_of(size["as_expr"]["expr_str"]) for size in meta["sizes"]
    )
    return Value(name, _DTYPES.get(meta["dtype"], ""), tuple(sizes))


def _sizes_by_source(inputs: list[Value]) -> dict[tuple[str, int], int | str]:
    return {(value.name, axis): size for value in inputs for axis, size in enumerate(value.sizes)}


def _leaf_names(spec: Mapping[str, Any], fields: Mapping[str, Any], name: str = "") -> list[str]:
    """A name for each leaf of a structure: keys and fields as they are, places as `output_0`."""
    kind, children = spec["type"], spec["children_spec"]
    if kind is None:
        return [name or "output"]
    context = json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
    if kind == "collections.namedtuple":
        keys = [str(field) for field in fields[context]["field_names"]]
    elif isinstance(context, list) and len(context) == len(children):
        keys = [str(key) for key in context]
    else:
        keys = [f"output_{place}" if not name else str(place) for place in range(len(children))]
    parts = zip(children, keys, strict=True)
    return [leaf for child, key in parts for leaf in _leaf_names(child, fields, f"{name}_{key}" if name else key)]


# --- whether it is data ---------------------------------------------------------------------------------------------


def _member_dangers(archive: TorchArchive) -> Iterator[str]:
    for member in archive.sizes:
        if member.startswith("data/aotinductor/"):
            yield "machine code (data/aotinductor)"
        elif not _MEMBERS.fullmatch(member):
            yield f"the member {member}, which is not known to be data,"
    for place, member in (("weights", _WEIGHTS), ("constants", _CONSTANTS)):
        if member in archive.sizes:
            yield from _payload_dangers(archive, f"data/{place}/", _document(archive, member))
    if archive.sizes.get(_SAMPLE):
        yield from _pickled_dangers(archive, _SAMPLE)
    if GRAPH not in archive.sizes:
        yield "the pickles of an older format"


def _payload_dangers(archive: TorchArchive, folder: str, document: Mapping[str, Any]) -> Iterator[str]:
    """Of a table of weights: what is pickled, and what would take more memory than the file has bytes."""
    entries: Any = document.get("config")
    for name, entry in entries.items() if isinstance(entries, dict) else [("", None)]:
        path = entry.get("path_name") if isinstance(entry, dict) else None
        if entry is None or not isinstance(path, str) or folder + path not in archive.sizes:
            yield f"a weight {ascii(name)[:80]} that is not there"
        elif entry.get("use_pickle"):
            yield from _pickled_dangers(archive, folder + path)
        elif archive.sizes[folder + path] == 0 and not _is_empty(entry.get("tensor_meta")):
            yield f"a weight {ascii(name)[:80]} without its bytes"


def _is_empty(meta: Any) -> bool:
    """Whether a tensor has no elements; its sizes may be anything in a hostile file."""
    try:
        return math.prod(int(size["as_int"]) for size in meta["sizes"]) == 0
    except (KeyError, TypeError, ValueError):
        return False


def _pickled_dangers(archive: TorchArchive, member: str) -> Iterator[str]:
    try:
        with TorchArchive(BytesIO(archive.read(member)), member) as inner:
            if inner.kind != "pickle":
                yield f"a program inside {member}"
            yield from (f"{what} (of the pickle {member})" for what in beyond_tensors(inner))
    except CannotLoad:
        yield f"the pickle {member}, which cannot be judged,"


def _graph_dangers(document: Mapping[str, Any]) -> Iterator[str]:
    """Every text of the graph that PyTorch could run or look up, unless it is known to be harmless."""
    guards = document.get("guards_code")  # of these we run none but what `condition` has read and written anew
    stack: list[tuple[str, Any]] = [(key, value) for key, value in document.items() if value is not guards]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            yield from _keys(value)
            yield from _node(value) if "target" in value else ()
            stack += [item for item in value.items() if not _is_note(*item)]
        elif isinstance(value, list):
            stack += [(key, item) for item in value if not _is_argument_text(item)]
        elif isinstance(value, str):
            yield from _text(key, value)


def _is_note(key: str, value: Any) -> bool:
    """Whether it is what a node or graph says for people: texts by name, which nothing runs."""
    return key == "metadata" and isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_argument_text(item: Any) -> bool:
    """Whether it is an operator's argument that is a text, which `_node` judges together with the operator."""
    given = item.get("arg") if isinstance(item, dict) and item.keys() <= {"name", "arg", "kind"} else None
    if not isinstance(given, dict) or len(given) != 1 or not _PLAIN.fullmatch(str(item.get("name"))):
        return False
    texts = given.get("as_strings", [given.get("as_string")])
    return isinstance(texts, list) and all(isinstance(text, str) for text in texts)


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    for key in table:
        if not _PLAIN.fullmatch(key):
            yield f"the name {ascii(key)[:80]}"
    if table.get("custom_obj_values") or "as_custom_obj" in table or "custom_obj" in table:
        yield "a custom object"


def _node(node: Mapping[str, Any]) -> Iterator[str]:
    """An operator that may be used, and texts that it may be given."""
    match = _ATEN.fullmatch(str(node["target"]))
    arguments = node.get("inputs")
    for argument in arguments if isinstance(arguments, list) else ():
        given = argument.get("arg") if isinstance(argument, dict) else None
        texts = isinstance(given, dict) and {"as_string", "as_strings"} & given.keys()
        names_device = node["target"] == _AUTOCAST and given in ({"as_string": "cpu"}, {"as_string": "cuda"})
        if texts and not names_device and (match is None or not _TAKES_TEXT.fullmatch(match.group(1))):
            yield f"the text {ascii(given)[:80]} for the operator {ascii(node['target'])[:80]}"


def _text(key: str, value: str) -> Iterator[str]:
    if key in {"target", "as_operator"}:
        if not _ATEN.fullmatch(value) and not _OTHERS.fullmatch(value):
            yield f"the operator {ascii(value)[:80]}"
    elif key == "expr_str":
        if not harmless_expression(value):
            yield f"the expression {ascii(value)[:80]}"
    elif key in {"in_spec", "out_spec"}:
        yield from _structure(value)
    elif not _PLAIN.fullmatch(value):
        yield f"the text {ascii(value)[:80]}"


def _structure(text: str) -> Iterator[str]:
    """Types of a structure that PyTorch would have to look up or import."""
    try:
        stack = [msgspec.json.decode(text)[1]]
        while stack:
            spec = stack.pop()
            context = msgspec.json.decode(spec["context"]) if isinstance(spec["context"], str) else None
            keys = context if isinstance(context, list) else [] if context is None else [context]
            plain = all(isinstance(key, (str, int)) and _PLAIN.fullmatch(str(key)) for key in keys)
            named = spec["type"] == "collections.namedtuple" and isinstance(context, str)
            if not plain or not (spec["type"] is None or spec["type"] in _CONTAINERS or named):
                yield f"the type {ascii(spec['type'])[:80]}"
            stack += spec["children_spec"]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError, RecursionError):
        yield f"the structure {ascii(text)[:80]}"


def _document(archive: TorchArchive, member: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(archive.read(member))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CannotLoad(f"{archive.name}: {member} is not valid JSON") from error
    if not isinstance(found, dict):
        raise CannotLoad(f"{archive.name}: {member} is not an object")
    return found
