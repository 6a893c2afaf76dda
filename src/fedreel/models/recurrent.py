"""Recurrent networks over the steps of a video or the words of a sentence, of which some may be padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TwoWayLSTM(nn.Module):
    """[forward state; backward state; input] of every step. The directions are two modules, because the backward one
    must start at a video's last real step, not in its padding."""

    def __init__(self, width_in: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(width_in, hidden, batch_first=True)
        self.backwards = nn.LSTM(width_in, hidden, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        before = self.forwards(x)[0]
        after = _reverse(self.backwards(_reverse(x, mask))[0], mask)
        return torch.cat([before, after, x], dim=-1)


def _reverse(x: Tensor, mask: Tensor | None) -> Tensor:
    """The real steps in reverse order, padding where it was; its own inverse."""
    if mask is None:
        return x.flip(-2)
    steps = torch.arange(x.shape[-2], device=x.device)
    order = torch.where(mask, mask.sum(-1, keepdim=True) - 1 - steps, steps)
    return x.gather(-2, order.unsqueeze(-1).expand_as(x))
