"""FSAR's Adaptive Topology Structure: the graph of the skeleton, one that all clients learn, one that each keeps."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["graph", "inflected", "unique", "both", "learnable"]
INFLECTED, UNIQUE, COEFFICIENTS = "inflected", "unique", "coefficients"  # the names of its tensors
START = 1e-6  # of I and U, as in the authors' code


class Topology(nn.Module):
    """alpha A + beta I + gamma U for every subset (Eq. 5). I is shared, U and the coefficients are a client's own.
    Coefficients are 1 unless `learnable`; `graph` is A alone, `inflected` A + I, `unique` A + U. Weight decay would
    pull I, U and the coefficients to zero, so they are spared it."""

    graph: Tensor

    def __init__(self, graph: Tensor, kind: Kind = "graph") -> None:
        super().__init__()
        self.register_buffer("graph", graph.clone(), persistent=False)
        self.kind = kind
        if kind in ("inflected", "both", "learnable"):
            self.inflected = spared(torch.full_like(graph, START))
        if kind in ("unique", "both", "learnable"):
            self.unique = spared(torch.full_like(graph, START))
        if kind == "learnable":
            self.coefficients = spared(torch.ones(3))
        parts = {"unique": "unique topology", "coefficients": "coefficients"}
        self.model_parts = {name: part for name, part in parts.items() if hasattr(self, name)}

    def forward(self) -> Tensor:
        if self.kind == "learnable":
            alpha, beta, gamma = self.coefficients.unbind()
            return alpha * self.graph + beta * self.inflected + gamma * self.unique
        matrix = self.graph
        if self.kind != "unique" and self.kind != "graph":
            matrix = matrix + self.inflected
        return matrix + self.unique if self.kind in ("unique", "both") else matrix


def spared(tensor: Tensor) -> nn.Parameter:
    """A parameter without weight decay."""
    parameter = nn.Parameter(tensor)
    parameter.no_decay = True  # type: ignore[attr-defined]
    return parameter
