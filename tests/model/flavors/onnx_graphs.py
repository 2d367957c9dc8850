"""Small ONNX graphs, written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.helper
from onnx import TensorProto

value = onnx.helper.make_tensor_value_info
node = onnx.helper.make_node
tensor = onnx.helper.make_tensor
FLOAT = TensorProto.FLOAT


def graph(
    nodes: Any,
    inputs: Any,
    outputs: Any,
    weights: Any = (),
    *,
    ir: int = 8,
    opset: int = 17,
    domains: Any = (),
    functions: Any = (),
) -> onnx.ModelProto:
    made = onnx.helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    imports = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(domain, 1) for domain in domains)]
    return onnx.helper.make_model(made, opset_imports=imports, ir_version=ir, functions=list(functions))


def write(path: Path, *parts: Any, **more: Any) -> Path:
    path.write_bytes(graph(*parts, **more).SerializeToString())
    return path


def identity(path: Path, kind: int, shape: Any, out: Any = None) -> Path:
    return write(path, [node("Identity", ["x"], ["y"])], [value("x", kind, shape)], [value("y", kind, out or shape)])


def stored(weights: Any, location: str, offset: int = 0, length: int = 8) -> Any:
    """A tensor whose elements lie in a file."""
    for field in ("float_data", "int64_data", "raw_data"):
        weights.ClearField(field)
    weights.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = weights.external_data.add()
        entry.key, entry.value = key, text
    return weights
