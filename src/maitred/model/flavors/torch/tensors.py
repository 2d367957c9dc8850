"""numpy arrays as PyTorch's tensors on one device, and tensors as arrays: nothing is copied on the CPU."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maitred.model.flavors.libraries import needs
from maitred.model.refusals import CannotLoad
from maitred.wire.coerce import NUMPY_TYPES, Array

if TYPE_CHECKING:
    import torch

DTYPES: Final = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    "bfloat16",
)  # fmt: skip
"""Our names of the dtypes that both know, which are PyTorch's names too."""

_DEVICE: Final = re.compile(r"(cpu|cuda)(?::(\d{1,3}))?")
_BFLOAT16: Final = NUMPY_TYPES["bfloat16"]


class Tensors:
    """The way to and from one device. Safe to share between threads.

    A tensor on the CPU is the array's own memory: who writes into it writes into the array, read-only or not.
    """

    def __init__(self, flavor: str, device: str = "cpu") -> None:
        """Raises `MissingExtra` without PyTorch, `CannotLoad` for a device that is not there."""
        with needs(flavor, "torch"):
            import torch
        self.torch = torch
        self.device: torch.device = _device(torch, device)
        self._near = self.device.type == "cpu"
        _hush(torch)

    def tensor(self, array: Array) -> torch.Tensor:
        """An array of any dtype of `DTYPES`, or of times (which become their counts)."""
        if array.dtype == _BFLOAT16:
            near = self.torch.from_numpy(array.view(np.uint16)).view(self.torch.bfloat16)
        elif array.dtype.kind == "M":
            near = self.torch.from_numpy(array.view(np.int64))
        else:
            near = self.torch.from_numpy(array)
        if self._near:
            return near
        return near.pin_memory().to(self.device, non_blocking=True)

    def array(self, tensor: torch.Tensor) -> Array:
        """A contiguous array; on the CPU it shares a contiguous tensor's memory and keeps it alive."""
        array: Array
        try:
            array = tensor.numpy()
        except (TypeError, RuntimeError):  # on a device, sparse, with a gradient, or of a dtype that numpy lacks
            return self._converted(tensor)
        return array if array.flags.c_contiguous else array.copy()

    def _converted(self, tensor: torch.Tensor) -> Array:
        if tensor.layout is not self.torch.strided:
            tensor = tensor.to_dense()
        if tensor.dtype is self.torch.bfloat16:
            return self.array(tensor.detach().contiguous().view(self.torch.uint16)).view(_BFLOAT16)
        array: Array = tensor.contiguous().numpy(force=True)
        return array


def dtype_name(dtype: torch.dtype) -> str:
    """Our name of a tensor's dtype; empty for one that cannot be served (complex, quantized)."""
    name = str(dtype).removeprefix("torch.")
    return name if name in DTYPES else ""


def _device(torch: Any, wanted: str) -> Any:
    match = _DEVICE.fullmatch(wanted)
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if match is not None and match.group(1) == "cpu" and match.group(2) in {None, "0"}:
        return torch.device("cpu")
    if match is not None and match.group(1) == "cuda" and int(match.group(2) or 0) < there:
        return torch.device("cuda", int(match.group(2) or 0))
    known = ["cpu", *(f"cuda:{index}" for index in range(there))]
    raise CannotLoad(f"the installed PyTorch has no device {wanted!r} here; it has {', '.join(known)}")


def _hush(torch: Any) -> None:
    """Let the library say here, unheard, what it says once in a process: that a read-only array became a tensor.

    Whoever calls a model through this file keeps it from writing into what it shares.
    """
    array = np.zeros(1, np.uint8)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        torch.from_numpy(array)
