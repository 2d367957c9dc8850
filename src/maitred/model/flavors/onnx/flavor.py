"""ONNX models, run by ONNX Runtime: pure data, so they need no trust."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors import Found, Opening, Saved
from maitred.model.flavors.onnx.graph import EXTERNAL_ADVICE, Graph, read_graph, safe_external
from maitred.model.flavors.onnx.session import completed, exchanges_half, run_half, session_of
from maitred.model.flavors.onnx.signature import MAPS, found_in, rows_in, settled
from maitred.model.flavors.options import Check, labels_in, texts_in
from maitred.model.manifest import EXAMPLE
from maitred.model.manifest import FILE as MANIFEST
from maitred.model.predictor import Context, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature

if TYPE_CHECKING:
    import onnxruntime

FILE: Final = "model.onnx"


class Onnx:
    """Options, besides those in `options.py`:

    - `labels` of outputs for which the model does not say them,
    - `optional`: those of the inputs with a value in the graph that callers may give,
    - `rows`: the size at which the graph fixes its rows, usually 1.
    """

    name = "onnx"
    suffixes = (".onnx",)
    markers = ()
    libraries = ("onnxruntime",)
    options: Mapping[str, Check] = {"labels": labels_in, "optional": texts_in, "rows": rows_in}

    def claims(self, model: object) -> bool:
        """Whether it is an onnx.ModelProto."""
        return type(model).__name__ == "ModelProto" and hasattr(model, "SerializeToString")

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """None: operators come from the runtime, never from the file. Raises `CannotLoad` for weights elsewhere."""
        safe_external(read_graph(opening.path), opening.path.parent)
        return ()

    def native(self, opening: Opening) -> bool:
        """Always: the file holds no code, and the library runs it."""
        return True

    def derive(self, opening: Opening) -> Found | None:
        """From the graph's inputs and outputs; None where it leaves out a rank."""
        return found_in(read_graph(opening.path), opening.options)

    def save(self, model: Any, folder: Path) -> Saved:
        """A `ModelProto`, or the path of a file, which is copied with the weights beside it."""
        if isinstance(model, (str, Path)):
            _copy(Path(model), folder)
            return Saved(FILE)
        try:
            (folder / FILE).write_bytes(model.SerializeToString(deterministic=True))
        except Exception as error:  # protobuf's own class, for what one message cannot hold
            raise CannotPack(f"the model is larger than 2 GB: {EXTERNAL_ADVICE} and pack that path") from error
        safe_external(read_graph(folder / FILE), folder)
        return Saved(FILE)

    def open(self, opening: Opening) -> Predictor:
        """A session of ONNX Runtime. Raises `MissingExtra`, or `CannotLoad` with the runtime's reason."""
        graph = read_graph(opening.path)
        safe_external(graph, opening.path.parent)
        session = session_of(opening)
        signature = opening.signature
        if signature is None:
            found = found_in(completed(graph, session), opening.options)
            if found is None:
                raise CannotLoad(f"{opening.file} does not say the rank of every tensor: pack it with a signature")
            signature = found.signature
        return OnnxPredictor(session, signature, settled(graph, signature, opening.traits), graph)


class OnnxPredictor:
    """A session. The runtime computes the whole graph; only the wanted outputs become arrays.

    Safe to call from several threads.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, signature: Signature, traits: Traits, graph: Graph
    ) -> None:
        """Raises `CannotLoad` for bfloat16 that cannot be exchanged."""
        self.signature = signature
        self.traits = traits
        self._session = session
        self._all = list(signature.outputs)
        kinds = {value.name: value.kind for value in graph.outputs}
        self._maps = {name: spec.labels or () for name, spec in signature.outputs.items() if kinds[name] == MAPS}
        self._times = tuple(name for name, spec in signature.inputs.items() if spec.time is not None)
        dtypes: set[str] = {spec.dtype for spec in signature.inputs.values()}
        dtypes |= {value.dtype for value in graph.outputs if value.name in signature.outputs}
        self._half = "bfloat16" in dtypes
        if self._half and (self._maps or "str" in dtypes):
            raise CannotLoad("bfloat16 and strings cannot be exchanged in one call: cast to float32 inside the model")
        if self._half and not exchanges_half():
            raise CannotLoad(
                "this ONNX Runtime cannot exchange bfloat16: update it, or cast to float32 inside the model"
            )

    def predict(self, inputs: dict[str, Any], context: Context) -> dict[str, Any]:
        """Arrays by output name."""
        wanted = list(context.outputs) if context.outputs else self._all
        if self._times:
            inputs = {**inputs, **{name: inputs[name].view(np.int64) for name in self._times if name in inputs}}
        if self._half:
            return run_half(self._session, wanted, inputs)
        values = dict(zip(wanted, self._session.run(wanted, inputs), strict=True))
        for name in values.keys() & self._maps.keys() if self._maps else ():
            values[name] = _matrix(values[name], self._maps[name])
        return values


def _copy(path: Path, folder: Path) -> None:
    graph = read_graph(path)
    safe_external(graph, path.parent)
    shutil.copyfile(path, folder / FILE)
    for name in graph.external:
        target = folder / name
        if target.relative_to(folder).as_posix() in (FILE, MANIFEST, EXAMPLE):
            raise CannotPack(
                f"the model's weights are in a file {name!r}, which is another one in an artifact: rename it"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path.parent / name, target)


def _matrix(rows: list[dict[Any, float]], labels: tuple[str, ...]) -> Any:
    """One row per map, its values in the order of the labels (the maps themselves are all ordered by key)."""
    if not rows:
        return np.empty((0, len(labels)), np.float32)
    values = np.fromiter(chain.from_iterable(map(dict.values, rows)), np.float32, len(rows) * len(labels))
    order = {str(key): at for at, key in enumerate(rows[0])}
    return values.reshape(len(rows), len(labels)).take([order[label] for label in labels], axis=1)
