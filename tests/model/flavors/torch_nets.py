"""Small modules that the tests of PyTorch serve; a file of its own, so that a class can be packed with its code."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Small(torch.nn.Module):
    """Two layers, with a batch norm that behaves differently while training."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.last(torch.relu(self.norm(self.first(x)))), -1)


Pair = NamedTuple("Pair", [("mean", torch.Tensor), ("spread", torch.Tensor)])  # noqa: UP014  TorchScript's way


class TwoHeads(torch.nn.Module):
    """Two inputs, a dict of outputs, one of which is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.body(x) * weight[:, None]
        return {"logits": hidden[:, ::2], "energy": hidden.sum(-1)}


class Writer(torch.nn.Module):
    """Writes into its input, as an activation in place does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x, inplace=True) + 1


class Sometimes(torch.nn.Module):
    """Writes into its input where that is long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            x.mul_(2)
        return x + 1


class Answers(torch.nn.Module):
    """Gives back what it was made to give back."""

    def __init__(self, shape: str = "") -> None:
        super().__init__()
        self.shape = shape
        self.table = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        if self.shape == "tuple":
            return x + 1, (x + 2, x.sum(-1))
        if self.shape == "named":
            return Pair(x.mean(-1), x.std(-1))
        if self.shape == "dict":
            return {"a": x, "nested": {"b": x * 2, "c": None}}
        if self.shape == "table":
            return self.table
        if self.shape == "scalar":
            return x.sum()
        if self.shape == "sparse":
            return x.to_sparse()
        if self.shape == "number":
            return 3
        return x.T.contiguous().T


class Tokens(torch.nn.Module):
    """Numbers of words, with a mask, of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 6)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, shift: torch.Tensor | None = None
    ) -> torch.Tensor:
        vectors = self.embed(ids)
        weights = torch.ones_like(ids, dtype=vectors.dtype) if mask is None else mask.to(vectors.dtype)
        pooled = (vectors * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return pooled if shift is None else pooled + shift[:, None]


class Odds(torch.nn.Module):
    """All that a graph may take besides its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(4))
        self.register_buffer("kept", torch.rand(4))
        self.register_buffer("passing", torch.rand(4), persistent=False)
        self.constant = torch.rand(4)
        self.nothing = torch.empty(0)

    def forward(self, x: torch.Tensor, times: int, mask: torch.Tensor | None) -> torch.Tensor:
        total = x * self.weight + self.kept * self.passing + self.constant + self.nothing.sum()
        return total * times if mask is None else total * mask
