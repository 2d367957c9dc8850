"""ONNX models, run by ONNX Runtime: pure data, so they need no trust."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors import Found, Opening, Saved, derived, spec_of
from maitred.model.flavors.onnx_graph import DTYPES, Graph, Value, read_graph, safe_external
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, MissingExtra
from maitred.model.signature import Signature, TensorSpec

if TYPE_CHECKING:
    import onnxruntime

FILE: Final = "model.onnx"
ROWS: Final = "n"
"""The name of a first axis that the model leaves unnamed: by convention the rows."""

_RUNTIME_TYPES: Final = {
    "float": "float32", "double": "float64", "float16": "float16", "string": "str",
    "bool": "bool", **{name: name for name in DTYPES.values() if "int" in name},
}  # fmt: skip


class Onnx:
    """Options: `threads` (of one run, default $MAITRED_THREADS or 1), `labels` ({output: [label, ...]} for a model that
    does not say)."""

    name = "onnx"
    suffixes = (".onnx",)
    markers = ()
    libraries = ("onnxruntime",)

    def claims(self, model: object) -> bool:
        """Whether it is an onnx.ModelProto."""
        return type(model).__name__ == "ModelProto" and hasattr(model, "SerializeToString")

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: operators come from the runtime, never from the file. Raises `CannotLoad` for weights elsewhere."""
        safe_external(read_graph(opening.path).external)
        return ()

    def derive(self, opening: Opening) -> Found | None:
        """From the graph's inputs and outputs; None where it leaves out a rank."""
        return _found(read_graph(opening.path), opening.options)

    def save(self, model: Any, folder: Path) -> Saved:
        """A `ModelProto`, or the path of a file, which is copied with the weights beside it."""
        if not isinstance(model, (str, Path)):
            (folder / FILE).write_bytes(model.SerializeToString(deterministic=True))
            return Saved(FILE)
        path = Path(model)
        external = read_graph(path).external
        safe_external(external)
        shutil.copyfile(path, folder / FILE)
        for name in external:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path.parent / name, folder / name)
        return Saved(FILE)

    def open(self, opening: Opening) -> Predictor:
        """A session of ONNX Runtime. Raises `MissingExtra`, or `CannotLoad` with the runtime's reason."""
        graph = read_graph(opening.path)
        safe_external(graph.external)
        session = _session(opening)
        found = _found(_completed(graph, session), opening.options)
        signature = opening.signature or (found.signature if found else None)
        if signature is None:
            raise CannotLoad(f"{opening.file} does not say the rank of every tensor: pack it with a signature")
        traits = opening.traits or Traits()
        return OnnxPredictor(session, signature, traits, _maps(graph))


class OnnxPredictor:
    """A session. The runtime computes the whole graph; only the wanted outputs become arrays.

    Safe to call from several threads.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        signature: Signature,
        traits: Traits,
        maps: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.signature = signature
        self.traits = traits
        self._session = session
        self._maps = maps
        self._all = list(signature.outputs)
        _check_names(session, signature)

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name."""
        wanted = list(context.outputs) if context.outputs else self._all
        values = dict(zip(wanted, self._session.run(wanted, inputs), strict=True))
        for name in values.keys() & self._maps.keys():
            values[name] = _columns(values[name], self._maps[name])
        return values


def _session(opening: Opening) -> onnxruntime.InferenceSession:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("onnx", "onnxruntime", "onnx") from error
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads_of(opening.options)
    settings.inter_op_num_threads = 1
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


def _completed(graph: Graph, session: onnxruntime.InferenceSession) -> Graph:
    """The graph, with the shapes that only the runtime could infer."""
    inferred = {arg.name: arg for arg in session.get_outputs()}

    def complete(value: Value) -> Value:
        if value.kind != "tensor" or value.shape is not None:
            return value
        arg = inferred[value.name]
        match = re.fullmatch(r"tensor\((\w+)\)", arg.type)
        dtype = _RUNTIME_TYPES.get(match.group(1), "") if match else ""
        shape = tuple("" if size is None else size for size in arg.shape) if arg.shape else None
        return Value(value.name, value.kind, value.dtype or dtype, shape)

    return graph._replace(outputs=tuple(complete(value) for value in graph.outputs))


def _found(graph: Graph, options: Mapping[str, Any]) -> Found | None:
    """The signature that a graph states. Raises `CannotLoad` for what cannot be served."""
    values = (*graph.inputs, *graph.outputs)
    if any(value.kind == "tensor" and value.shape is None for value in values):
        return None
    open_axes = (value.shape[0] for value in graph.inputs if value.shape and _is_open(value.shape[0]))
    rows = next(map(_symbol, open_axes), "") or ROWS
    given = {name: tuple(labels) for name, labels in options.get("labels", {}).items()}
    labels = {**graph.class_labels, **given}
    inputs = [_spec(value, rows) for value in graph.inputs]
    return Found(derived(inputs, [_output(value, rows, labels) for value in graph.outputs]), Traits())


def _spec(value: Value, rows: str, labels: tuple[str, ...] | None = None) -> TensorSpec:
    if value.kind != "tensor" or value.shape is None:
        raise CannotLoad(f"{value.name!r} is a {value.kind}, which cannot be served: export it as a tensor")
    if not value.dtype:
        raise CannotLoad(f"{value.name!r} has elements of a type that cannot be served: cast it inside the model")
    named = [
        _symbol(size) or (f"{_word(value.name)}_{axis}" if axis else rows) for axis, size in enumerate(value.shape)
    ]
    sizes = zip(value.shape, named, strict=True)
    shape = tuple(size if isinstance(size, int) and size >= 0 else name for size, name in sizes)
    return spec_of(value.name, value.dtype, shape, labels)


def _output(value: Value, rows: str, labels: Mapping[str, tuple[str, ...]]) -> TensorSpec:
    if value.kind == "sequence of maps":
        known = labels.get(value.name, ())
        if not known:
            raise CannotLoad(
                f"the output {value.name!r} is a sequence of maps without known labels: export the model with "
                "skl2onnx.to_onnx(model, sample, options={'zipmap': False})"
            )
        return spec_of(value.name, "float32", (rows, len(known)), known)
    last = value.shape[-1] if value.shape else None
    sets = {found for found in labels.values() if len(found) == last}
    fitting = labels.get(value.name, next(iter(sets)) if len(sets) == 1 and "float" in value.dtype else None)
    return _spec(value, rows, fitting if fitting is not None and len(fitting) == last else None)


def _maps(graph: Graph) -> dict[str, tuple[str, ...]]:
    kinds = {value.name: value.kind for value in graph.outputs}
    return {name: labels for name, labels in graph.class_labels.items() if kinds.get(name) == "sequence of maps"}


def _columns(rows: list[dict[Any, float]], labels: tuple[str, ...]) -> Any:
    """One row per map, its values in the order of the labels (the map itself is ordered by key)."""
    keys = {str(key): key for key in rows[0]} if rows else {}
    values = [[row[keys[label]] for label in labels] for row in rows]
    return np.array(values, dtype=np.float32).reshape(len(rows), len(labels))


def _is_open(size: int | str) -> bool:
    return isinstance(size, str) or size < 0


def _symbol(size: int | str) -> str:
    """The name of an axis as a symbol; empty if it has none."""
    if not isinstance(size, str) or not size:
        return ""
    return _word(size)


def _word(name: str) -> str:
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if not word[:1].isdigit() else f"_{word}"


def _check_names(session: onnxruntime.InferenceSession, signature: Signature) -> None:
    """Raises `CannotLoad` naming what the signature has and the graph has not, or the other way round."""
    inputs = {arg.name for arg in session.get_inputs()}
    outputs = {arg.name for arg in session.get_outputs()}
    if wrong := sorted(inputs ^ signature.inputs.keys()):
        raise CannotLoad(f"the input {wrong[0]!r} is in only one of graph and signature")
    if wrong := sorted(signature.outputs.keys() - outputs):
        raise CannotLoad(f"the signature's output {wrong[0]!r} is not in the graph, which has {sorted(outputs)}")


def _reason(error: Exception, root: Path) -> str:
    return str(error).replace(str(root), "").replace("\n", " ")[:500]
