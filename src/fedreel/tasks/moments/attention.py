"""Attention, and the layers made of it, with places that are told to queries and keys and not to values."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

PADDING = 0  # index of what fills a short sentence; 1 is for unknown words
PER_HEAD = 32  # numbers that a head of attention has, about


def real_tokens(words: Tensor) -> Tensor:
    """Which of a sentence's words (B, L), or vectors of tokens (B, L, d), are no padding."""
    return words.any(-1) if words.is_floating_point() else words != PADDING


def hide(logits: Tensor, real: Tensor) -> Tensor:
    """Without padding. The least number, not -inf: a sentence of nothing but padding would give nan."""
    return logits.masked_fill(~real, torch.finfo(logits.dtype).min)


def waves(shares: Tensor, width: int) -> Tensor:
    """Numbers from 0 to 1 (...) as sines and cosines (..., width) of rising frequency, the slowest of
    which tells 0 from 1: near numbers are alike."""
    steps = torch.arange(width // 2, device=shares.device, dtype=shares.dtype)
    angles = math.pi * shares.unsqueeze(-1) * 256 ** (steps / max(1, width // 2))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Attention(nn.Module):
    """What each of (B, N, width) takes of (B, M, width), as far as `real` (B, M) lets it look."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = math.gcd(width, max(1, width // PER_HEAD))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor | None = None) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for project, x in ((self.query, queries), (self.key, keys), (self.value, values))
        )
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if real is not None:
            logits = hide(logits, real.unsqueeze(-2).unsqueeze(-2))
        y: Tensor = self.out((logits.softmax(-1) @ v).transpose(-3, -2).flatten(-2))
        return y


class Layer(nn.Module):
    """Attention and two dense layers, each with a way around it and a norm after it. Without `values` it looks at
    itself."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        place: Tensor,
        values: Tensor | None = None,
        values_place: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        told = x + place
        if values is None:
            seen = self.attention(told, told, x, real)
        else:
            seen = self.attention(told, values if values_place is None else values + values_place, values, real)
        x = self.norms[0](x + self.dropout(seen))
        y: Tensor = self.norms[1](x + self.dropout(self.narrow(self.dropout(self.wide(x).relu()))))
        return y
