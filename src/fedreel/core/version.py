"""A model that clients have begun with. It never changes again, so that a checkpoint need not write it twice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch

from fedreel.core.weights import Weights


@dataclass(frozen=True, eq=False)
class Version:
    """Weights that nobody may change. What the server's memory holds as a version is written to disk once, and stays
    there as long as one of the checkpoints needs it."""

    weights: Weights

    @cached_property
    def name(self) -> str:
        """By what it holds: two versions of the same name are the same to the bit."""
        found = hashlib.blake2b(self.weights.layout.id.encode(), digest_size=16)
        for tensor in self.weights.flat.values():
            found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()
