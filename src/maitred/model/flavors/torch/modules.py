"""Modules of PyTorch that are made in this process: of a class and its weights, of a script, of a pickle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from maitred.model.flavors import Opening, bases_of
from maitred.model.flavors.libraries import needs, words_of
from maitred.model.flavors.options import labels_in, texts_in
from maitred.model.flavors.threads import threads_of
from maitred.model.flavors.torch.archive import kind_of
from maitred.model.flavors.torch.learned import arrays_of, learned, parameters
from maitred.model.flavors.torch.run import TorchPredictor, leaves_by_structure
from maitred.model.flavors.torch.tensors import Tensors
from maitred.model.predictor import Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack
from maitred.model.signature import Signature

_MODULE: Final = ("torch.nn.modules.module", "Module")


def is_module(kind: type) -> bool:
    """Whether a class is a torch.nn.Module. Imports nothing."""
    return _MODULE in bases_of(kind)


def ready(opening: Opening, flavor: str = "torch") -> Tensors:
    """PyTorch with as many threads as this process may use. Raises `MissingExtra`, `CannotLoad`."""
    tensors = Tensors(flavor, opening.device)
    tensors.torch.set_num_threads(threads_of(opening.options))
    if tensors.torch.get_num_interop_threads() != 1:
        try:
            tensors.torch.set_num_interop_threads(1)
        except RuntimeError:  # work has begun on these threads: they stay, and hold nothing but themselves
            return tensors
    return tensors


def made(factory: Any, weights: Path | None, opening: Opening) -> Predictor:
    """A class (or function that makes a module), called with the option `arguments`, and its weights as a predictor.

    Raises `CannotLoad` for weights that do not fit, or that are missing.
    """
    tensors = ready(opening)
    arguments = opening.options.get("arguments", {})
    if not isinstance(arguments, Mapping):
        raise CannotLoad("the option arguments must be a table of the arguments of the model's class")
    module = factory(**arguments)
    if not isinstance(module, tensors.torch.nn.Module):
        raise CannotLoad(f"{_called(factory)} makes a {type(module).__name__}, which is no torch.nn.Module")
    if weights is not None:
        _fill(tensors.torch, module, weights)
    elif next(module.parameters(), None) is not None:
        raise CannotLoad(f"{_called(factory)} would have random weights: name their file with the option weights")
    stated = getattr(factory, "signature", None)
    return served(module, opening, tensors, stated if isinstance(stated, Signature) else None)


def served(module: Any, opening: Opening, tensors: Tensors, stated: Signature | None = None) -> Predictor:
    """A module as a predictor: its signature given, stated by its class, or learned from the example."""
    module = module.to(tensors.device).eval()
    names = parameters(module)

    def by_name(given: dict[str, Any]) -> Any:
        return module(**given)

    def by_place(given: dict[str, Any]) -> Any:
        return module(*given.values())

    signature = opening.signature or stated
    known = signature.inputs.keys() if signature is not None else names
    by_names = bool(names) and set(known) <= set(names)
    run = by_name if by_names else by_place
    if not by_names and (set(known) & set(names) or (names and len(known) > len(names))):
        raise CannotLoad(f"the model takes {', '.join(names)}; the signature has the inputs {', '.join(known)}")
    ordered = tuple(texts_in(opening.options, "outputs"))
    if signature is None:
        if opening.sample is None:
            raise CannotLoad(
                f"{_kind_of(module)} does not say what it takes: pack it with an example (example= or --example), or "
                "give a signature (signature= or --signature)"
            )
        arrays = arrays_of(module, opening.sample, None)
        learn_from = leaves_by_structure((), ordered)
        signature = learned(run, learn_from, arrays, tensors, labels_in(opening.options))
    if list(signature.inputs) == names[: len(signature.inputs)]:
        run = by_name if any(spec.optional for spec in signature.inputs.values()) else by_place  # which is quicker
    leaves = leaves_by_structure(tuple(signature.outputs), ordered)
    owned = [*module.parameters(), *module.buffers()]
    return TorchPredictor(run, leaves, signature, opening.traits or Traits(), tensors, owned)


def script(opening: Opening) -> Predictor:
    """A TorchScript archive. Whoever calls has settled trust: it is a program."""
    tensors = ready(opening)
    with quiet_script():
        module = tensors.torch.jit.load(str(opening.path), map_location=tensors.device)
    return served(module, opening, tensors)


def unpickled(opening: Opening) -> Predictor:
    """A whole module that `torch.save` pickled; with the trust that this needs, else nothing but tensors is read."""
    tensors = ready(opening)
    if opening.trusted:
        found = tensors.torch.load(str(opening.path), map_location="cpu", weights_only=False)
    else:
        found = _read(tensors.torch, opening.path)
    if isinstance(found, Mapping):
        raise whose(opening.file)
    if not isinstance(found, tensors.torch.nn.Module):
        raise CannotLoad(f"{opening.file} holds a {type(found).__name__}, which is no torch.nn.Module")
    return served(found, opening, tensors)


def whose(file: str) -> CannotLoad:
    """What to do about weights whose class nobody named."""
    return CannotLoad(
        f"{file} holds weights and no model: name the class that they are of with the option class, as in --option "
        "class=model.py:Net (or options={'class': 'model.py:Net'}); to pack them, also --file model.py"
    )


@contextmanager
def quiet_script() -> Iterator[None]:
    """Without hearing, at each use, that TorchScript will go one day: these files are there today."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning)
        yield


def save_weights(module: Any, path: Path) -> None:
    """Write a module's weights as safetensors. Raises `CannotPack`."""
    try:
        _safetensors().save_model(module, str(path))
    except (RuntimeError, ValueError, TypeError) as error:
        raise CannotPack(f"the weights of this {type(module).__name__} cannot be written: {words_of(error)}") from error


def _fill(torch: Any, module: Any, weights: Path) -> None:
    """Load weights as data: safetensors, or what `torch.load` can read without running anything."""
    kind = kind_of(weights)
    try:
        if kind == "tensors":
            _safetensors().load_model(module, str(weights), device="cpu")
            return
        if kind != "pickle":
            raise CannotLoad(f"{weights.name} holds a whole model, not the weights of one: serve it as it is")
        found = _read(torch, weights)
        inner = found.get("state_dict") if isinstance(found, Mapping) else None
        module.load_state_dict(inner if isinstance(inner, Mapping) else found)
    except CannotLoad:
        raise
    except Exception as error:  # the libraries' own classes for files that are damaged, hostile or of another model
        said = words_of(error, weights.parent)
        raise CannotLoad(f"{weights.name} does not hold the weights of {type(module).__name__}: {said}") from error


def _read(torch: Any, path: Path) -> Any:
    """What a pickle of tensors holds, read by PyTorch's reader that calls nothing else. Raises `CannotLoad`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about protocols that this reader may not know: it says so
            return torch.load(str(path), map_location="cpu", weights_only=True)
    except Exception as error:  # this reader's own classes, and any other for a file that is damaged or hostile
        raise CannotLoad(
            f"{path.name} cannot be read as data: it is damaged, or holds more than weights. Write it with "
            "torch.save(model.state_dict(), ...), or better as safetensors"
        ) from error


def _safetensors() -> Any:
    with needs("torch", "safetensors"):
        import safetensors.torch
    return safetensors.torch


def _kind_of(module: Any) -> str:
    """The name of the class that somebody wrote, which a script keeps."""
    return str(getattr(module, "original_name", type(module).__name__))


def _called(factory: Any) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))
