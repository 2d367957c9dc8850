"""A session of ONNX Runtime: how it is made, what it can tell of a graph, and why it refuses one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from maitred.model.flavors import Opening
from maitred.model.flavors.libraries import needs, words_of
from maitred.model.flavors.onnx.graph import DTYPES, Graph, Value
from maitred.model.flavors.onnx.signature import found_in
from maitred.model.flavors.threads import threads_of
from maitred.model.refusals import CannotLoad
from maitred.wire.coerce import to_array

if TYPE_CHECKING:
    import onnxruntime

_RUNTIME_TYPES: Final = {
    "float": "float32", "double": "float64", "string": "str", **{name: name for name in DTYPES.values()},
}  # fmt: skip
_BFLOAT16: Final = 16
"""The number of the type in the format."""
_TRIAL_ROWS: Final = (2, 3)
_ADVICE: Final = {
    r"Unsupported model IR version: (\d+), max supported IR version: (\d+)": (
        "it is written in version {0} of the format and this runtime reads up to {1}: update onnxruntime, or export it "
        "with an older ir_version"
    ),
    r"Opset (\d+) is under development.* for domain (\S+) is till opset (\d+)": (
        "it needs opset {0} of {1} and this runtime has up to {2}: update onnxruntime, or export it with an older opset"
    ),
    r"([\w.-]+):(\w+)\(-?\d+\) is not a registered function/op": (
        "it needs the operator {1} of {0}, which ONNX Runtime does not have, and libraries of operators are not "
        "loaded, for they are code: export it without"
    ),
    r"No opset import for domain '([^']*)'": (
        "it uses operators of the domain {0!r} without saying which version: export it anew"
    ),
    r"No Op registered for (\w+) with domain_version of (\d+)": (
        "it needs the operator {0}, which opset {1} does not have: export it anew"
    ),
    r"Could not find an implementation for (\w+)\((\d+)\)": (
        "the runtime has no {0} (opset {1}) for the type of its elements: cast to float32 before it"
    ),
}
"""What the runtime says -> what that means, and what to do."""
_NOISE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/onnxruntime_src/\S+|(?<=\s)onnxruntime::.*\) (?=\w)")


def session_of(opening: Opening) -> onnxruntime.InferenceSession:
    """The model in the runtime. Raises `MissingExtra`, or `CannotLoad` with the runtime's reason."""
    with needs("onnx", "onnxruntime"):
        import onnxruntime
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads_of(opening.options)
    settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the server needs that processor too
    settings.log_severity_level = 3  # errors only: warnings are about the exporter, and go to the server's log
    providers = _providers(opening.device, onnxruntime.get_available_providers())
    try:
        return onnxruntime.InferenceSession(str(opening.path), settings, providers=providers)
    except Exception as error:  # the runtime has no common class for its reasons
        raise CannotLoad(f"ONNX Runtime cannot load {opening.file}: {_reason(error, opening.root)}") from error


def _providers(device: str, available: Iterable[str]) -> list[Any]:
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return ["CPUExecutionProvider"]
    if kind == "cuda" and "CUDAExecutionProvider" in available:
        return [("CUDAExecutionProvider", {"device_id": int(index or 0)}), "CPUExecutionProvider"]
    raise CannotLoad(f"the installed ONNX Runtime has no support for the device {device!r}; it has {list(available)}")


def _reason(error: Exception, root: Path) -> str:
    said = str(error).replace("\n", " ")
    for pattern, advice in _ADVICE.items():
        if match := re.search(pattern, said):
            return advice.format(*match.groups())
    return _NOISE.sub("", words_of(error, root).replace("\n", " ")).strip()


# --- what only the runtime can tell -----------------------------------------------------------------------------


def completed(graph: Graph, session: onnxruntime.InferenceSession) -> Graph:
    """The graph with the ranks of its outputs: as the runtime inferred them, or as they come out of a trial run."""
    inferred = {arg.name: arg for arg in session.get_outputs()}

    def complete(value: Value) -> Value:
        if value.kind != "tensor" or value.shape is not None:
            return value
        arg = inferred[value.name]
        match = re.fullmatch(r"tensor\((\w+)\)", arg.type)
        dtype = _RUNTIME_TYPES.get(match.group(1), "") if match else ""
        # an empty shape is a scalar's, or means that nothing is known
        shape = tuple(size if isinstance(size, (int, str)) else "" for size in arg.shape) if arg.shape else None
        return Value(value.name, value.kind, value.dtype or dtype, shape)

    graph = graph._replace(outputs=tuple(complete(value) for value in graph.outputs))
    missing = [value.name for value in graph.outputs if value.kind == "tensor" and value.shape is None]
    tried = _tried(graph, session, missing) if missing else {}
    outputs = (value._replace(shape=tried.get(value.name, value.shape)) for value in graph.outputs)
    return graph._replace(outputs=tuple(outputs))


def _tried(graph: Graph, session: onnxruntime.InferenceSession, names: list[str]) -> dict[str, tuple[int | str, ...]]:
    """The shapes of outputs, with every axis open, as made-up rows show them; none where the model refuses those."""
    found = found_in(graph._replace(outputs=(Value("any", "tensor", "float32", ("",)),)), {})
    if found is None:
        return {}
    from onnxruntime import RunOptions

    quiet = RunOptions()
    quiet.log_severity_level = 4
    shapes = []
    for rows in _TRIAL_ROWS:
        inputs = {name: to_array(tensor) for name, tensor in found.signature.example(rows).items()}
        try:
            shapes.append([np.shape(array) for array in session.run(names, inputs, quiet)])
        except Exception:  # whatever the runtime objects to: a signature has to say what cannot be found out
            return {}
    tried: dict[str, tuple[int | str, ...]] = {}
    for name, few, more in zip(names, *shapes, strict=True):
        if len(few) == len(more):
            follows = (few[:1], more[:1]) == (_TRIAL_ROWS[:1], _TRIAL_ROWS[1:])
            tried[name] = tuple("" if axis or follows else f"{name}_0" for axis in range(len(few)))
    return tried


# --- elements that numpy does not know --------------------------------------------------------------------------


def exchanges_half() -> bool:
    """Whether the installed runtime takes bfloat16 in any way."""
    from onnxruntime import OrtValue

    return hasattr(OrtValue, "ortvalue_from_numpy_with_onnx_type")


def run_half(session: onnxruntime.InferenceSession, wanted: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model that takes or gives bfloat16, which the runtime does not exchange as numpy arrays."""
    given = {name: _value(array) for name, array in inputs.items()}
    values = session.run_with_ort_values(wanted, given)
    return {
        name: _half(value) if "bfloat16" in value.data_type() else value.numpy()
        for name, value in zip(wanted, values, strict=True)
    }


def _value(array: Any) -> Any:
    from onnxruntime import OrtValue

    if array.dtype != ml_dtypes.bfloat16:
        return OrtValue.ortvalue_from_numpy(array)
    whole = array if array.flags.c_contiguous else array.copy()
    return OrtValue.ortvalue_from_numpy_with_onnx_type(whole.view(np.uint16), _BFLOAT16)


def _half(value: Any) -> Any:
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())  # a copy
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(value.shape())
