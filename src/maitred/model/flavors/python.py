"""Python models: a class or function of a file, of an installed module, or packed with its code."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from maitred.model.flavors import Found, Opening, Saved
from maitred.model.flavors.options import Check, labels_in, table_in, text_in, texts_in
from maitred.model.flavors.torch.modules import is_module, made
from maitred.model.predictor import Model, ModelPredictor, Predictor, Traits
from maitred.model.refusals import CannotLoad, CannotPack, LoadRefused, NotFound
from maitred.model.signature import Signature
from maitred.spelling import did_you_mean

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

CODE: Final = "code"
"""The folder of an artifact that holds its code."""

EXECUTING: Final[ContextVar[str]] = ContextVar("executing", default="")
"""The model's file whose top level runs just now: packing from there would go round in circles."""


class Python:
    """A subclass of `maitred.Model`, or a function that has (or whose file has) a `signature`.

    Or a torch.nn.Module: options `weights` (their file), `arguments` (of the class), `outputs` and `labels`.
    """

    name = "python"
    suffixes = (".py",)
    markers = ()
    libraries = ("numpy",)
    options: Mapping[str, Check] = {
        "arguments": table_in,
        "labels": labels_in,
        "outputs": texts_in,
        "weights": text_in,
    }

    def claims(self, model: object) -> bool:
        """Models and functions written in Python."""
        return isinstance(model, (Model, FunctionType)) or (isinstance(model, type) and issubclass(model, Model))

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """The code itself, if it comes with an artifact; a local path that the operator names is the operator's."""
        return (f"the Python code in {opening.file}",) if opening.packed else ()

    def derive(self, opening: Opening) -> Found | None:
        """None: only running the code would tell."""
        return None

    def save(self, model: Any, folder: Path) -> Saved:
        """Copy the file in which the class or function is written. Raises `CannotPack` if there is none."""
        if isinstance(model, Path):
            source, entry = model, ""
        else:
            source, entry = written(model)
        (folder / CODE).mkdir()
        shutil.copyfile(source, folder / CODE / source.name)
        return Saved(f"{CODE}/{source.name}", entry)

    def open(self, opening: Opening) -> Predictor:
        """Run the code, make the model and let it load. Raises `CannotLoad` with what it raised."""
        try:
            module = module_of(opening)
            found, entry = _entry(module, opening.entry.rpartition(":")[2])
            return _predictor(found, module, entry, opening)
        except LoadRefused:
            raise
        except (Exception, SystemExit) as error:  # the model's own code may raise anything
            what = opening.file or opening.entry
            raise CannotLoad(f"{what} raised {type(error).__name__}: {error}") from error


def module_of(opening: Opening) -> ModuleType:
    """The file's code, run; without a file the installed module of `entry`. Raises `NotFound`, or what it raises."""
    if not opening.file:
        name = opening.entry.partition(":")[0]
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and name.startswith(error.name):
                raise NotFound(f"there is no module {name}") from error
            raise
    if not opening.path.is_file():
        raise NotFound(f"there is no file {opening.file}")
    _Siblings.reach(opening.path.parent)
    name = f"maitred_model_{sha256(bytes(opening.path)).hexdigest()[:12]}"
    loader = _Loader(name, str(opening.path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the model look their module up
    token = EXECUTING.set(opening.file)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        EXECUTING.reset(token)
    return module


def _entry(module: ModuleType, name: str) -> tuple[Any, str]:
    """The model of a module. Raises `NotFound` naming what there is to choose from."""
    if name:
        return named_in(module, name), name
    candidates = _candidates(module)
    networks = _networks(module)
    if networks and not candidates:
        called = f"{Path(module.__file__ or '').name}:{networks[0]}"
        raise NotFound(
            f"the code holds {', '.join(networks)} and no weights: name both, as in {called} --option "
            "weights=weights.safetensors (or options={'weights': ...}); to pack them, also --file weights.safetensors"
        )
    if len(candidates) != 1:
        raise NotFound(f"the code holds {len(candidates)} models; {_choice(module)}")
    return getattr(module, candidates[0]), candidates[0]


def named_in(module: ModuleType, name: str, networks: bool = False) -> Any:
    """What `Class` or `Outer.Class` stands for in a module. Raises `NotFound` naming what there is to choose from.

    `networks`: a torch.nn.Module is wanted.
    """
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        others = _networks(module)
        close = did_you_mean(name, others if networks else [*_candidates(module), *others])
        if networks:
            choice = f"its networks are {', '.join(others)}" if others else "it holds no class of a torch.nn.Module"
        else:
            choice = _choice(module)
        raise NotFound(f"the code has no {name!r}{close or f'; {choice}'}")
    return found


def _candidates(module: ModuleType) -> list[str]:
    """Names of what the module itself defines and can be served."""
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__}
    models = [n for n, v in own.items() if isinstance(v, type) and issubclass(v, Model) and not n.startswith("_")]
    instances = [n for n, v in vars(module).items() if isinstance(v, Model)]
    functions = [n for n, v in own.items() if isinstance(v, FunctionType) and hasattr(v, "signature")]
    if models or instances or functions:
        return models + instances + functions
    return ["predict"] if isinstance(own.get("predict"), FunctionType) and hasattr(module, "signature") else []


def _networks(module: ModuleType) -> list[str]:
    """Names of the classes that are a torch.nn.Module, of those that the module itself defines."""
    own = {n: v for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__}
    return [n for n, v in own.items() if is_module(v) and not n.startswith("_")]


def _choice(module: ModuleType) -> str:
    names = _candidates(module)
    if names:
        return f"name one of {', '.join(names)}, as in file.py:{names[0]}"
    return "write a subclass of maitred.Model, or a function with a signature"


def _predictor(found: Any, module: ModuleType, entry: str, opening: Opening) -> Predictor:
    if isinstance(found, FunctionType):
        _check_no_module(opening.options)
        return ModelPredictor(_of_function(found, module, opening))
    if isinstance(found, type) and is_module(found):
        given = opening.options.get("weights")
        return made(found, None if given is None else opening.beside("weights", str(given)), opening)
    _check_no_module(opening.options)
    model = found() if isinstance(found, type) else found
    predictor = ModelPredictor(model)
    if opening.signature is not None and predictor.signature != opening.signature:
        raise CannotLoad(f"{entry} has a signature of its own, which is not the one that was given for it")
    if opening.traits is not None and predictor.traits != opening.traits:
        raise CannotLoad(f"{entry} has traits of its own, which are not those that were given for it")
    if hasattr(model, "load"):
        model.load(str(opening.root), opening.device)
    return predictor


def _check_no_module(options: Mapping[str, Any]) -> None:
    """Raises `CannotLoad` for an option that this model would not look at."""
    for name in Python.options:
        if name in options:
            raise CannotLoad(f"the option {name} is for a torch.nn.Module, and this model is none")


def _of_function(function: FunctionType, module: ModuleType, opening: Opening) -> SimpleNamespace:
    """A function with the attributes of a `Model`: its own, or those that were given when it was packed."""
    signature = opening.signature or getattr(function, "signature", None) or getattr(module, "signature", None)
    if not isinstance(signature, Signature):
        raise CannotLoad(
            f"the function {function.__name__} has no signature: set {function.__name__}.signature, or a variable "
            "`signature` in its file, to a maitred.Signature"
        )
    given = msgspec.structs.asdict(opening.traits) if opening.traits else vars(function)
    traits = {name: given[name] for name in Traits.__struct_fields__ if name in given and name != "asynchronous"}
    return SimpleNamespace(predict=function, signature=signature, __name__=function.__name__, **traits)


def written(model: Any) -> tuple[Path, str]:
    """Where a class, a function or an object's class is written, and its name there."""
    kind = type(model) if isinstance(model, Model) else model
    entry = str(kind.__qualname__)
    if "<" in entry:
        raise CannotPack(f"{entry} is written inside a function: move it to the top of a file")
    try:
        source = Path(inspect.getsourcefile(kind) or "")
    except TypeError:
        source = Path()
    if not source.is_file():
        raise CannotPack(f"{entry} has no source file: write it in one")
    return source, entry


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs source files and leaves no byte code beside them: an artifact's folder stays as it was packed."""

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0o666) -> None:
        """Keep nothing."""


class _Siblings(importlib.abc.MetaPathFinder):
    """Finds the modules that lie beside a model's file; installed modules win."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    @classmethod
    def reach(cls, folder: Path) -> None:
        """Make the files of `folder` importable for the rest of this process."""
        if not any(isinstance(finder, cls) and finder.folder == str(folder) for finder in sys.meta_path):
            sys.meta_path.append(cls(folder))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loader writes nothing."""
        places = [self.folder] if path is None else [place for place in path if place.startswith(self.folder)]
        for place in places:
            finder = importlib.machinery.FileFinder(place, (_Loader, importlib.machinery.SOURCE_SUFFIXES))
            spec = finder.find_spec(fullname)
            if spec is not None and spec.loader is not None:
                return spec
        return None
