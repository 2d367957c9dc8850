"""PyTorch in its three forms passes the contract that is asked of every flavor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maitred.model.pack import pack
from maitred.testing.flavors import FlavorContract

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'maitred[torch]'")

import torch_nets  # noqa: E402  it needs PyTorch


class TestExported(FlavorContract):
    name = "torch"
    frameworks = ("torch",)

    def model(self) -> Any:
        example = (torch.rand(3, 4), torch.rand(3))
        rows = torch.export.Dim("rows")
        net = torch_nets.TwoHeads().eval()
        return torch.export.export(net, example, dynamic_shapes={"x": {0: rows}, "weight": {0: rows}})

    def example(self) -> Any:
        return {"x": np.arange(12, dtype=np.float32).reshape(3, 4) / 10, "weight": np.array([1, 2, 0.5], np.float32)}


class TestModule(FlavorContract):
    """A module that is exported with its example."""

    name = "torch"
    frameworks = ("torch",)

    def model(self) -> Any:
        torch.manual_seed(1)
        return torch_nets.Small()

    def example(self) -> Any:
        return np.arange(12, dtype=np.float32).reshape(3, 4) / 10


class TestScript(FlavorContract):
    name = "torch"
    frameworks = ("torch",)

    def model(self) -> Any:
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`torch\.jit\.script` is deprecated")
            return torch.jit.script(torch_nets.Small().eval())

    def example(self) -> Any:
        return np.arange(12, dtype=np.float32).reshape(3, 4) / 10


class TestClassAndWeights(FlavorContract):
    name = "torch"
    frameworks = ("torch", "safetensors")

    def model(self) -> Any:
        torch.manual_seed(1)
        return torch_nets.Small()

    def example(self) -> Any:
        return np.arange(12, dtype=np.float32).reshape(3, 4) / 10

    @pytest.fixture
    def packed(self, tmp_path: Path, home: Path) -> Path:
        pack(self.model(), tmp_path / "packed", name="contract", example=self.example(), options={"form": "class"})
        return tmp_path / "packed"

    def test_it_was_packed_as_code_and_weights(self, packed: Path) -> None:
        assert {path.name for path in packed.rglob("*") if path.is_file()} >= {"model.safetensors", "torch_nets.py"}
