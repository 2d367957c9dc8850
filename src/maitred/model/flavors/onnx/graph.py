"""What an ONNX file says about itself, read from its protobuf fields without loading weights or any library.

Only a few fields of the format are looked at (their numbers are those of onnx.proto); weights are stepped over, so a
file of gigabytes costs as much as a small one.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from maitred.model.refusals import CannotLoad

DTYPES: Final = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "str", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
"""TensorProto.DataType -> our names."""

MAX_FILE_BYTES: Final = (1 << 31) - 1
"""The most that one protobuf message can hold; larger models have their weights in files beside it."""
EXTERNAL_ADVICE: Final = "save it with onnx.save(model, path, save_as_external_data=True)"

_MODEL_IR, _MODEL_GRAPH, _MODEL_OPSET, _MODEL_FUNCTIONS = 1, 7, 8, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_TENSOR_DIMS, _TENSOR_NAME, _TENSOR_EXTERNAL = 1, 8, 13
_MAX_DEPTH: Final = 60
"""Messages inside messages: twenty branches inside each other, each a node, an attribute and a graph."""
_LOCATION: Final = b"location"
"""The key under which a tensor names the file that its elements are in."""
_INSIDE: Final = {
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "graph": {_GRAPH_NODE: "node", _GRAPH_INITIALIZER: "tensor", _GRAPH_SPARSE: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Where tensors hide: per kind of message, the fields that hold others."""
_MAX_FIELDS: Final = 5_000_000
"""Fields that are stepped over before a file counts as an attack: some seconds' work."""

Span = tuple[int, int]
Field = tuple[int, int | Span]


class Value(NamedTuple):
    """A graph's input or output. `dtype` is empty for what is no tensor (`kind` says what it is instead), and for
    elements of a type that we have no name for."""

    name: str
    kind: str
    """`tensor`, `sequence of maps`, `sequence`, `map`, `optional` or `sparse tensor`."""
    dtype: str
    shape: tuple[int | str, ...] | None
    """None where the file does not say; an empty string is an axis of unknown size without a name."""


class Graph(NamedTuple):
    """The outside of a model."""

    inputs: tuple[Value, ...]
    defaults: dict[str, int]
    """Inputs that may be left out, for the graph holds a value for each -> how many elements it has."""
    outputs: tuple[Value, ...]
    external: tuple[str, ...]
    """Files beside the model that hold weights, as the model names them."""
    class_labels: dict[str, tuple[str, ...]]
    """Output of a node that knows classes (ZipMap, a classifier) -> their labels, in order."""
    version: int = 0
    """Of the format (IR). Before 4, what has a value in the graph is fixed, although it is listed as an input."""


def read_graph(path: Path) -> Graph:
    """Look into an ONNX file. Raises `CannotLoad` if it is none."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise CannotLoad(f"{path.name} is larger than 2 GB, which no ONNX file can be: {EXTERNAL_ADVICE}")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).model()
    except (ValueError, IndexError, RecursionError) as error:  # an empty file cannot be mapped: ValueError
        raise CannotLoad(f"{path.name} is not a valid ONNX model") from error


class _Reader:
    """Steps over the fields of one file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.fields_left = _MAX_FIELDS
        self.external: set[str] = set()

    def model(self) -> Graph:
        graph: Span | None = None
        classic = False
        version = 0
        for number, value in self.fields((0, len(self.data))):
            if number == _MODEL_GRAPH:
                graph = self.span(value)
            elif number == _MODEL_IR:
                version = self.integer(value)
            elif number == _MODEL_OPSET:
                classic |= "ai.onnx.ml" in self.pair(value, frozenset({1}))
            elif number == _MODEL_FUNCTIONS:
                self.hidden("function", self.span(value))
        if graph is None:
            raise ValueError("no graph")
        return self.graph(graph, version, classic)

    def graph(self, graph: Span, version: int, classic: bool) -> Graph:
        nodes: list[Span] = []
        inputs: list[Value] = []
        outputs: list[Value] = []
        initial: dict[str, int] = {}
        for number, value in self.fields(graph):
            if number == _GRAPH_NODE:
                nodes.append(self.span(value))
                self.hidden("node", nodes[-1])
            elif number == _GRAPH_INITIALIZER:
                name, count = self.initializer(self.span(value))
                initial[name] = count
            elif number == _GRAPH_SPARSE:
                self.hidden("sparse", self.span(value))
            elif number == _GRAPH_INPUT:
                inputs.append(self.value(self.span(value)))
            elif number == _GRAPH_OUTPUT:
                outputs.append(self.value(self.span(value)))
        defaults = {value.name: initial[value.name] for value in inputs if value.name in initial}
        labels = self.labels(nodes) if classic else {}
        return Graph(tuple(inputs), defaults, tuple(outputs), tuple(sorted(self.external)), labels, version)

    def initializer(self, tensor: Span) -> tuple[str, int]:
        """The name of a tensor and how many elements it has; notes the file that they are in."""
        name, count = "", 1
        for number, value in self.fields(tensor):
            if number == _TENSOR_NAME:
                name = self.text(value)
            elif number == _TENSOR_DIMS:
                for size in [value] if isinstance(value, int) else self.packed(value):
                    count *= size
            elif number == _TENSOR_EXTERNAL:
                key, text = self.pair(value)
                if key == _LOCATION.decode():
                    self.external.add(text)
        return name, count

    def hidden(self, kind: str, message: Span, depth: int = 0) -> None:
        """Note the files that tensors inside a message (a constant, a branch, a function) keep their elements in."""
        if self.data.find(_LOCATION, *message) < 0:
            return
        if depth > _MAX_DEPTH:
            raise ValueError("messages too deep inside each other")
        if kind == "tensor":
            self.initializer(message)
            return
        inside = _INSIDE[kind]
        for number, value in self.fields(message):
            if number in inside:
                self.hidden(inside[number], self.span(value), depth + 1)

    def value(self, info: Span) -> Value:
        name, kind, dtype = "", "", ""
        shape: tuple[int | str, ...] | None = None
        for number, value in self.fields(info):
            if number == 1:
                name = self.text(value)
            elif number == 2:
                kind, dtype, shape = self.type(self.span(value))
        return Value(name, kind, dtype, shape)

    def type(self, span: Span) -> tuple[str, str, tuple[int | str, ...] | None]:
        for number, value in self.fields(span):
            if number == 1:
                return ("tensor", *self.tensor_type(self.span(value)))
            if number == 4:
                inner = [self.type(self.span(v))[0] for n, v in self.fields(self.span(value)) if n == 1]
                return "sequence of maps" if inner == ["map"] else "sequence", "", None
            if number in {5, 8, 9}:
                return {5: "map", 8: "sparse tensor", 9: "optional"}[number], "", None
        raise ValueError("a value without a type")

    def tensor_type(self, span: Span) -> tuple[str, tuple[int | str, ...] | None]:
        dtype = ""
        shape: tuple[int | str, ...] | None = None
        for number, value in self.fields(span):
            if number == 1:
                dtype = DTYPES.get(self.integer(value), "")
            elif number == 2:
                shape = tuple(self.dimension(self.span(v)) for n, v in self.fields(self.span(value)) if n == 1)
        return dtype, shape

    def dimension(self, span: Span) -> int | str:
        for number, value in self.fields(span):
            if number == 1:
                size = self.integer(value)
                return size if size < 1 << 63 else ""  # negative: some exporters write -1 for an open size
            if number == 2:
                name = self.text(value)
                return "" if name == "?" else name  # some exporters call every open axis so
        return ""

    def labels(self, nodes: list[Span]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for node in nodes:
            fields = list(self.fields(node))
            attributes = (self.attribute(self.span(value)) for number, value in fields if number == 5)
            labels = next((labels for labels in attributes if labels), ())
            if labels:
                found.update({self.text(value): labels for number, value in fields if number == 2})
        return found

    def attribute(self, span: Span) -> tuple[str, ...]:
        """The integers or strings of an attribute that holds class labels."""
        found: list[str] = []
        for number, value in self.fields(span):
            if number == 1 and not self.text(value).startswith("classlabels"):
                return ()
            if number == 8:
                values = [value] if isinstance(value, int) else self.packed(value)
                found += [str(item - (1 << 64) if item >= 1 << 63 else item) for item in values]
            elif number == 9:
                found.append(self.text(value))
        return tuple(found)

    def pair(self, value: int | Span, wanted: frozenset[int] = frozenset({1, 2})) -> tuple[str, str]:
        """Fields 1 and 2 of a message of two strings."""
        found = {number: self.text(text) for number, text in self.fields(self.span(value)) if number in wanted}
        return found.get(1, ""), found.get(2, "")

    def packed(self, span: Span) -> list[int]:
        found, at = [], span[0]
        while at < span[1]:
            number, at = self.varint(at)
            found.append(number)
        return found

    def fields(self, span: Span) -> Iterator[Field]:
        """Number and value of each field: an integer, or where its bytes lie."""
        at, end = span
        while at < end:
            self.fields_left -= 1
            if self.fields_left < 0:
                raise ValueError("too many fields")
            key, at = self.varint(at)
            number, wire = key >> 3, key & 7
            if wire == 0:
                value, at = self.varint(at)
                yield number, value
            elif wire == 2:
                length, at = self.varint(at)
                yield number, (at, at + length)
                at += length
            elif wire in {1, 5}:
                at += 8 if wire == 1 else 4
            else:
                raise ValueError("unknown wire type")
        if at != end:
            raise ValueError("a field longer than its message")

    def varint(self, at: int) -> tuple[int, int]:
        result = 0
        for shift in range(0, 70, 7):
            byte = self.data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result, at
        raise ValueError("a number longer than 64 bits")

    def span(self, value: int | Span) -> Span:
        if isinstance(value, int):
            raise ValueError("a number where a message is expected")
        return value

    def integer(self, value: int | Span) -> int:
        if not isinstance(value, int):
            raise ValueError("a message where a number is expected")
        return value

    def text(self, value: int | Span) -> str:
        start, stop = self.span(value)
        if stop > len(self.data):
            raise ValueError("a text outside the file")
        return self.data[start:stop].decode()


def safe_external(graph: Graph, folder: Path) -> None:
    """Raises `CannotLoad` for weights outside of the model's folder, and for files that are not there."""
    root = folder.resolve()
    for name in graph.external:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
            raise CannotLoad(f"the model asks for weights at {name!r}, outside its own folder")
        try:
            place = (root / name).resolve()
            present = place.is_file()
        except (OSError, RuntimeError):  # a name that no file can have, links in a circle
            place, present = root, False
        if not place.is_relative_to(root):
            raise CannotLoad(f"the model's weights {name!r} are a link that leads out of its folder: put a copy there")
        if not present:
            raise CannotLoad(f"the model's weights {name!r} are missing: that file belongs beside the model's own")
