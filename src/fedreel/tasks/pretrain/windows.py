"""Clips as a client's examples: a batch is some frames of each, a square of them, held in memory or read in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedreel.config import DataConfig
from fedreel.core.task import Streamable, Tensors
from fedreel.data.shards import Shards
from fedreel.machine.device import sent
from fedreel.tasks.vision.clips import HeldClips
from fedreel.tasks.vision.footage import Held, Stored, bytes_of


class Picks(Protocol):
    """Which frames a pretext asks about."""

    @property
    def span(self) -> int:
        """Consecutive frames that a test's questions are made of."""

    def pick(self, lengths: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Frames (N, T) of clips that are so long, and what else their questions are made of (N rows each)."""


@dataclass(frozen=True)
class Windows(Streamable):
    """A batch is (clips (B, T, side, side, 3) of bytes, ...): the frames that a pretext picks, in a random square, and
    what else it picks. Batches are the same wherever the clips lie."""

    footage: Held | Stored
    asks: Picks

    @staticmethod
    def of(source: Shards, rows: Sequence[int], asks: Picks) -> Windows:
        """These clips of the shards, read when their turn comes."""
        return Windows(Stored(source, tuple(map(int, rows)), torch.device("cpu")), asks)

    def __len__(self) -> int:
        return len(self.footage.shapes)

    @property
    def nbytes(self) -> int:
        return bytes_of(self.footage)

    @property
    def resident(self) -> bool:
        return isinstance(self.footage, Held)

    def to(self, device: torch.device) -> Windows:
        if isinstance(self.footage, Stored):
            return Windows(replace(self.footage, device=device).held(), self.asks)
        if self.footage.device == device:
            return self
        return Windows(Held(tuple(c.to(device) for c in self.footage.clips), self.footage.side, device), self.asks)

    def streamed(self, device: torch.device) -> Windows:
        if isinstance(self.footage, Held):
            return self.to(device)
        return Windows(replace(self.footage, device=device), self.asks)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, ...]]:
        """Without a generator clips come in order, the square is that in the middle, and what is picked is the same
        every time."""
        draws = generator or torch.Generator().manual_seed(0)
        times, *picked = self.asks.pick(self._lengths, draws)
        corners = self._spare // 2
        order = torch.arange(len(self))
        if generator is not None:
            share = torch.rand(len(self), 1, generator=generator)
            corners = torch.minimum((share * (self._spare + 1)).long(), self._spare)
            order = torch.randperm(len(self), generator=generator)
        yield from self._read(size, order, times, corners, picked)

    def windows(self, size: int) -> Iterator[tuple[Tensor, ...]]:
        """To test with: `span` consecutive frames in the middle of each clip, in the square in the middle; and how many
        of them there are before a short clip stands still."""
        lengths, span = self._lengths, self.asks.span
        first = (lengths - span).clamp(min=0) // 2
        times = torch.minimum(first[:, None] + torch.arange(span), lengths[:, None] - 1)
        yield from self._read(size, torch.arange(len(self)), times, self._spare // 2, [lengths.clamp(max=span)])

    def _read(
        self, size: int, order: Tensor, times: Tensor, corners: Tensor, beside: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, ...]]:
        groups = [rows for (rows,) in Tensors((order,)).batches(size)]
        cuts = ([(i, times[i], corners[i].tolist()) for i in rows.tolist()] for rows in groups)
        for rows, clips in zip(groups, self.footage.read(cuts)):
            yield (clips, *(sent(column[rows], self.footage.device) for column in beside))

    @property
    def _lengths(self) -> Tensor:
        return torch.tensor([frames for frames, _, _ in self.footage.shapes], dtype=torch.int64)

    @property
    def _spare(self) -> Tensor:
        """(N, 2): rows and columns that clips have beyond the square."""
        side = self.footage.side
        return torch.tensor([(h - side, w - side) for _, h, w in self.footage.shapes], dtype=torch.int64).view(-1, 2)


class WindowPopulation(HeldClips):
    """Clients that hold whole clips, labelled or not."""

    def __init__(self, source: Shards, config: DataConfig, asks: Picks, seed: int) -> None:
        super().__init__(source, config, seed, needed=False)
        self.asks = asks

    def examples(self, rows: np.ndarray) -> Windows:
        return Windows.of(self.source, [int(i) for i in rows], self.asks)

    def frame_count(self, rows: np.ndarray) -> int:
        return sum(self.source.clips[int(i)].frames for i in rows)
