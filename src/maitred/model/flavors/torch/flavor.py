"""PyTorch models: exported programs as data; TorchScript, classes with weights and pickles with trust only."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from maitred.model import pickles
from maitred.model.flavors import Found, Opening, Saved, bases_of
from maitred.model.flavors.options import Check, among, labels_in, one_of, table_in, text_in, texts_in
from maitred.model.flavors.python import CODE, module_of, named_in, written
from maitred.model.flavors.torch.archive import TENSORS, kind_of
from maitred.model.flavors.torch.exported import exported, found_in, open_program
from maitred.model.flavors.torch.modules import (
    is_module,
    made,
    quiet_script,
    ready,
    save_weights,
    script,
    unpickled,
    whose,
)
from maitred.model.flavors.torch.program import dangers_of, read_program
from maitred.model.predictor import Predictor
from maitred.model.refusals import CannotLoad, CannotPack

_PROGRAM: Final = ("torch.export.exported_program", "ExportedProgram")
_SCRIPT: Final = ("torch.jit._script", "ScriptModule")
_FORMS: Final = ("export", "class")


class Torch:
    """A program of torch.export (`.pt2`), TorchScript, weights with the class that takes them, or a pickled module.

    Options, besides those in `options.py`:

    - `outputs`: names for what the model returns, in order,
    - `class` of weights (`model.py:Net` beside them, or an installed `package.module:Net`), and its `arguments`,
    - `form` of a module that is packed: `export`, the default with an example, or `class`.
    """

    name = "torch"
    suffixes = (".pt2", ".ts", ".torchscript", ".pt", ".pth", ".safetensors")
    markers = ()
    libraries = ("torch",)
    options: Mapping[str, Check] = {
        "arguments": table_in,
        "class": text_in,
        "form": among(*_FORMS),
        "labels": labels_in,
        "outputs": texts_in,
    }

    def claims(self, model: object) -> bool:
        """Modules, scripts and exported programs."""
        return _PROGRAM in bases_of(type(model)) or is_module(type(model))

    def dangers(self, opening: Opening) -> tuple[str, ...]:
        """Scripts, code and pickles, and whatever of a program is not known to be data."""
        kind = kind_of(opening.path)
        if kind == "program":
            return dangers_of(opening.path)
        if kind == "script":
            return (f"the TorchScript program {opening.file}",)
        if text := _class_option(opening):
            return (f"the Python code {text}, called with arguments of the model's own",) if opening.packed else ()
        if kind == "tensors":
            return ()
        names = pickles.imports(opening.path)
        seen = {*names} - {pickles.UNREAD}
        if seen and seen <= TENSORS:
            return ()  # this permits nothing: without trust, `unpickled` reads tensors or refuses, whatever is in there
        return (pickles.danger(opening.path, names),)

    def native(self, opening: Opening) -> bool:
        """Exported programs only: the others are somebody's Python."""
        return kind_of(opening.path) == "program"

    def derive(self, opening: Opening) -> Found | None:
        """From an exported program's graph; None for everything else."""
        if kind_of(opening.path) != "program":
            return None
        return found_in(read_program(opening.path), opening.options)

    def prepare(self, model: Any, opening: Opening) -> Any:
        """A module as an exported program, where there is an example or a signature and no other form is wanted."""
        form = one_of(opening.options, "form", _FORMS)
        known = opening.sample is not None or opening.signature is not None
        if form == "class" or not known or not is_module(type(model)) or _SCRIPT in bases_of(type(model)):
            return model
        return exported(model, opening)

    def save(self, model: Any, folder: Path) -> Saved:
        """A program or script as such, another module as its code and its weights; or a copy of a file."""
        if isinstance(model, Path):
            kind_of(model)
            file = f"model{model.suffix.lower()}"
            shutil.copyfile(model, folder / file)
            return Saved(file)
        bases = bases_of(type(model))
        if _PROGRAM in bases:
            return _save_program(model, folder / "model.pt2")
        if _SCRIPT in bases:
            with quiet_script():
                model.save(str(folder / "model.ts"))
            return Saved("model.ts")
        source, entry = written(type(model))
        save_weights(model, folder / "model.safetensors")
        (folder / CODE).mkdir()
        shutil.copyfile(source, folder / CODE / source.name)
        return Saved("model.safetensors", options={"class": f"{CODE}/{source.name}:{entry}"})

    def open(self, opening: Opening) -> Predictor:
        """The model on its device. Raises `MissingExtra`, or `CannotLoad`."""
        kind = kind_of(opening.path)
        ready(opening)  # before code that comes with the model says in its own words that PyTorch is missing
        if kind == "program":
            return open_program(opening)
        if kind == "script":
            opening.require_trust(f"{opening.file} is a program")
            return script(opening)
        if text := _class_option(opening):
            if opening.packed:
                opening.require_trust(f"{opening.file} comes with a program")
            return made(_class(text, opening), opening.path, opening)
        if kind == "tensors":
            raise whose(opening.file)
        return unpickled(opening)


def _save_program(program: Any, path: Path) -> Saved:
    """Without the inputs that it was exported with: they may be anybody's data, and would be a pickle."""
    import torch

    kept = program.example_inputs
    program.example_inputs = None
    try:
        torch.export.save(program, str(path))
    except Exception as error:  # whatever of the program the format has no place for
        raise CannotPack(f"torch.export cannot save this program: {type(error).__name__}: {error}") from error
    finally:
        program.example_inputs = kept
    return Saved(path.name)


def _class_option(opening: Opening) -> str:
    text = opening.options.get("class", "")
    if not isinstance(text, str) or (text and ":" not in text):
        raise CannotLoad("the option class must be file.py:Class, or package.module:Class")
    return text


def _class(text: str, opening: Opening) -> Any:
    """What the option names: in a file, or installed."""
    place, _, entry = text.rpartition(":")
    if not place.endswith(".py"):
        return named_in(module_of(msgspec.structs.replace(opening, file="", entry=text)), entry, networks=True)
    path = opening.beside("class", place)
    return named_in(module_of(msgspec.structs.replace(opening, root=path.parent, file=path.name)), entry, networks=True)
