"""The protocol that a framework's flavor fulfils, and how a flavor is found for a file, an object or a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec

from maitred.messages import DType
from maitred.model.flavors.options import Check
from maitred.model.flavors.threads import threads_of
from maitred.model.predictor import Predictor, Traits
from maitred.model.refusals import CannotLoad, NotAnArtifact, NotFound
from maitred.model.signature import TOLERANCES, BadSignature, Signature, TensorSpec
from maitred.plugins import ExtensionPoint, PluginError
from maitred.spelling import did_you_mean

ROWS: Final = "n"
"""The symbol of the rows in derived signatures."""


_KEEP: Final = "pack it with files=[...] (--file PATH) and name it as it lies there"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a flavor gets to make a predictor of. Whoever calls has verified the files and settled trust."""

    root: Path
    """The artifact's folder, or the folder in which the bare file lies."""
    file: str = ""
    """The file to open, relative to `root`; empty for a module of the installed packages."""
    entry: str = ""
    """What to take from it: `Class`, `function` or, without `file`, `package.module:Class`."""
    signature: Signature | None = None
    """As the manifest says; None: derive it from the model."""
    traits: Traits | None = None
    options: dict[str, Any] = {}
    device: str = "cpu"
    trusted: bool = False
    """Whether code that comes with the files may run."""
    packed: bool = False
    """Whether the files are an artifact's, so that what they hold is not the operator's own word."""
    closed: bool = False
    """Whether all that it uses must lie in `root`: the folder is an artifact, or about to become one."""
    sample: Any = None
    """Inputs as the model's author writes them (a data frame, an array), where they are at hand: packing."""

    @property
    def path(self) -> Path:
        """The file to open."""
        return self.root / self.file

    def require_trust(self, what: str) -> None:
        """Raises `CannotLoad` where nobody has said that it may run; `what` says why: "m.pkl is a pickle"."""
        if not self.trusted:
            raise CannotLoad(f"{what}, and nobody has said that it may run")

    def beside(self, option: str, file: str) -> Path:
        """The file that an option names: in the model's folder or, unless that is closed, below the working folder.

        Raises `NotFound`, or `CannotLoad` for a place outside of an artifact.
        """
        path = (self.root / file).resolve()
        if self.closed and not path.is_relative_to(self.root.resolve()):
            raise CannotLoad(f"the option {option} names {file!r}, outside the model's own folder: {_KEEP}")
        if not path.is_file() and not self.closed:
            path = Path(file).resolve()
        if not path.is_file():
            raise NotFound(f"there is no file {file} for the option {option}: {_KEEP}")
        return path


class Found(msgspec.Struct, frozen=True):
    """What a file or an object says about itself."""

    signature: Signature
    traits: Traits


class Saved(msgspec.Struct, frozen=True):
    """What `save` wrote: the file to open later, what to take from it, and options to remember."""

    file: str
    entry: str = ""
    options: dict[str, Any] = {}


@runtime_checkable
class Flavor(Protocol):
    """How the models of one framework are recognised, saved and loaded. Stateless; safe to share between threads.

    Only `save` and `open` may import the framework; where it is missing they raise `MissingExtra`. It may also have
    `options`, the names of those that it takes, or a check for each (see `check_options`), a method `prepare` (see
    `prepared`), and `native` (see `is_native`).
    `maitred.testing.flavors` has the tests that a flavor must pass.
    """

    name: str
    suffixes: tuple[str, ...]
    """File names that it opens end so, lower case with the dot."""
    markers: tuple[str, ...]
    """File names of which each marks a folder that it opens as a whole; none for flavors of single files."""
    libraries: tuple[str, ...]
    """Distributions whose versions are recorded with the model."""

    def claims(self, model: object) -> bool:
        """Whether it can save this object. Imports nothing: an object's framework is loaded already."""
        ...

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """What of the files would run or be imported if they were opened, one line each; none for pure data.

        Runs nothing of it. A file that it cannot judge is a danger.
        """
        ...

    def derive(self, opening: Opening) -> Found | None:
        """What the file says about itself without running anything; None if only an opened model can tell."""
        ...

    def save(self, model: Any, folder: Path) -> Saved:
        """Write an object that it claims, or copy the file or folder at a `Path`, into an empty folder.

        Raises `CannotPack`.
        """
        ...

    def open(self, opening: Opening) -> Predictor:
        """The model, ready to predict. Raises `LoadRefused`."""
        ...


def bases_of(kind: type) -> set[tuple[str, str]]:
    """Module and name of a class and its bases: how a flavor knows what is its own without importing anything."""
    return {(base.__module__, base.__name__) for base in kind.__mro__}


def symbol_of(text: str) -> str:
    """A name that a framework gives to a size, as a symbol of a signature."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if not word[:1].isdigit() else f"_{word}"


def spec_of(name: str, dtype: str, shape: tuple[int | str, ...], labels: tuple[str, ...] | None = None) -> TensorSpec:
    """A derived tensor, with the tolerance that its dtype has by default."""
    known = cast(DType, dtype)
    return TensorSpec(name, known, shape, tolerance=TOLERANCES.get(known, (0.0, 0.0)), labels=labels)


def derived(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> Signature:
    """A signature of derived tensors. Raises `CannotLoad` where the model's own names or types cannot be served."""
    try:
        return Signature({spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs})
    except BadSignature as error:
        raise CannotLoad(f"the model's own signature cannot be served as it is: {error}") from error


def _check(name: str, found: object) -> Flavor:
    flavor = found() if isinstance(found, type) else found
    if not isinstance(flavor, Flavor):
        raise TypeError("it lacks a method or attribute of maitred.model.flavors.Flavor")
    if flavor.name != name:
        raise ValueError(f"it calls itself {flavor.name!r}")
    return flavor


FLAVORS: Final[ExtensionPoint[Flavor]] = ExtensionPoint(
    "maitred.flavors",
    {
        "python": "maitred.model.flavors.python:Python",
        "onnx": "maitred.model.flavors.onnx.flavor:Onnx",
        "huggingface": "maitred.model.flavors.huggingface.flavor:HuggingFace",
        "xgboost": "maitred.model.flavors.xgboost.flavor:Xgboost",
        "lightgbm": "maitred.model.flavors.lightgbm.flavor:Lightgbm",
        "catboost": "maitred.model.flavors.catboost.flavor:Catboost",
        "torch": "maitred.model.flavors.torch.flavor:Torch",
        "sklearn": "maitred.model.flavors.sklearn.flavor:Sklearn",
    },
    _check,
)
"""Flavors by name; packages add theirs with an entry point of the group `maitred.flavors`."""


def named(name: str) -> Flavor:
    """The flavor of that name. Raises `NotFound` saying which there are."""
    try:
        return FLAVORS.open(name)
    except PluginError as error:
        raise NotFound(str(error)) from error


def check_options(flavor: Flavor, options: Mapping[str, Any]) -> None:
    """Raises `CannotLoad` for an option that the flavor does not have, where it says which it has: `options`.

    Also for one of the wrong kind, where its `options` are a mapping to checks: a model with a signature of its own may
    never look at it. `threads` is every flavor's: a server that runs models in its own process says it to all.
    """
    stated: Collection[str] | Mapping[str, Check] | None = getattr(flavor, "options", None)
    if stated is None:
        return
    known = sorted({*stated, "threads"})
    for name in options:
        if name not in known:
            has = ", ".join(known)
            raise CannotLoad(f"flavor {flavor.name} has no option {name!r}, but {has}{did_you_mean(name, known)}")
        if isinstance(stated, Mapping) and name in stated:
            stated[name](options, name)
        if name == "threads":
            threads_of(options)


def is_native(flavor: Flavor, opening: Opening) -> bool:
    """Whether a native library does all the work of a model, as a flavor with a method `native(opening)` can say.

    Such a run lets go of the interpreter's lock, or takes microseconds; the flavor's own share is a few lines.
    """
    native = getattr(flavor, "native", None)
    return native is not None and bool(native(opening))


def for_file(path: str) -> Flavor:
    """The flavor that opens files named like this one. Raises `NotFound` naming all suffixes."""
    suffixes: list[str] = []
    for name in FLAVORS.names():
        flavor = named(name)
        if path.lower().endswith(flavor.suffixes):
            return flavor
        suffixes += flavor.suffixes
    raise NotFound(f"no flavor opens {Path(path).name!r}; known endings: {', '.join(suffixes)}, or a packed folder")


def for_folder(folder: Path) -> tuple[Flavor, str]:
    """The flavor that opens this folder, and the file that marks it. Raises `NotAnArtifact` naming all markers."""
    markers: list[str] = []
    for name in FLAVORS.names():
        flavor = named(name)
        for marker in flavor.markers:
            if (folder / marker).is_file():
                return flavor, marker
        markers += flavor.markers
    others = f", nor {' or '.join(markers)} of a library's own folder" if markers else ""
    raise NotAnArtifact(f"{folder} holds no maitred.toml{others}: pack the model with `maitred pack`")


def prepared(flavor: Flavor, model: Any, opening: Opening) -> Any:
    """What to save in place of an object: a flavor with a method `prepare` may need the example for that."""
    prepare = getattr(flavor, "prepare", None)
    return model if prepare is None else prepare(model, opening)


def for_object(model: object) -> Flavor:
    """The flavor that can save this object. Raises `NotFound`."""
    for name in FLAVORS.names():
        flavor = named(name)
        if flavor.claims(model):
            return flavor
    raise NotFound(f"no flavor can pack an object of type {type(model).__module__}.{type(model).__qualname__}")
