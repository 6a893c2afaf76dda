"""Changes of a model that are clipped, added up and given noise."""

from __future__ import annotations

import math

import torch

from fedreel.core.weights import Weights
from fedreel.errors import FedreelError
from fedreel.privacy.noise import Secret


class ClippedSum:
    """Adds up changes of what is trained, none of them longer than `clip`, in double precision."""

    def __init__(self, sent: Weights, clip: float) -> None:
        self._sent, self._clip, self.count = sent, clip, 0
        self._layout = sent.layout.trained
        self._start = self._flat(sent)
        self._total = torch.zeros_like(self._start)

    def add(self, weights: Weights) -> bool:
        """Whether the change was within the clip as it was."""
        change = self._flat(weights) - self._start
        length = float(change.norm())
        if not math.isfinite(length):
            raise FedreelError("a change that is not finite cannot be clipped")
        self._total += change if length <= self._clip else change * (self._clip / length)
        self.count += 1
        return length <= self._clip

    def mean(self, over: float, spread: float, secret: Secret, *label: object) -> Weights:
        """What was sent, moved by the sum over so many, with normal noise of this spread on each number of the sum: the
        secret's for this label. What no gradient moves stays as it was."""
        noise = torch.from_numpy(secret.normal(len(self._total), *label)).to(self._total.device)
        moved = self._start + (self._total + spread * noise) / over
        result, at = self._sent.clone(), 0
        for tensor in self._layout.tensors:
            result[tensor.name].copy_(moved[at : at + tensor.size].view(tensor.shape))
            at += tensor.size
        return result

    def _flat(self, weights: Weights) -> torch.Tensor:
        return torch.cat([weights[t.name].double().flatten() for t in self._layout.tensors])
