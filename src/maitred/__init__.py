"""maitred: describe a model once, and serve it in every way. The public names, loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maitred.embed import Handle, load
    from maitred.errors import InvalidInput
    from maitred.model.pack import pack
    from maitred.model.predictor import Context, Model
    from maitred.model.signature import Signature, TensorSpec

__version__ = "0.1.0"
__all__ = ["Context", "Handle", "InvalidInput", "Model", "Signature", "TensorSpec", "load", "pack", "__version__"]

_HOMES = {
    "Context": "maitred.model.predictor",
    "Handle": "maitred.embed",
    "InvalidInput": "maitred.errors",
    "Model": "maitred.model.predictor",
    "Signature": "maitred.model.signature",
    "TensorSpec": "maitred.model.signature",
    "load": "maitred.embed",
    "pack": "maitred.model.pack",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'maitred' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
