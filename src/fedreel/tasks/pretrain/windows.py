"""Whole clips as a client's examples: a batch is a stretch of consecutive frames of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedreel.config import DataConfig
from fedreel.core.task import Tensors
from fedreel.data.shards import Shards
from fedreel.machine.device import sent
from fedreel.tasks.vision.clips import HeldClips


@dataclass(frozen=True)
class Windows:
    """A batch is (windows (B, span, H, W, 3),), uint8: `span` frames from a random place of each clip, or from its
    middle where batches are not shuffled. A clip shorter than that begins again at its end."""

    frames: Tensor  # (all frames of all clips, H, W, 3) uint8
    offsets: Tensor  # (N,) int64, where each clip begins
    lengths: Tensor  # (N,) int64, and how many frames it has
    span: int

    @staticmethod
    def of(source: Shards, rows: Sequence[int], span: int) -> Windows:
        """These clips of the shards."""
        lengths = np.array([source.clips[i].frames for i in rows], dtype=np.int64)
        ends = np.cumsum(lengths)
        frames = np.empty((int(lengths.sum()), source.height, source.width, 3), np.uint8)
        for i, end, length in zip(rows, ends, lengths):
            frames[end - length : end] = source.clip(i)
        return Windows(torch.from_numpy(frames), torch.from_numpy(ends - lengths), torch.from_numpy(lengths), span)

    def __len__(self) -> int:
        return self.lengths.shape[0]

    def to(self, device: torch.device) -> Windows:
        if self.frames.device == device:
            return self
        return Windows(self.frames.to(device), self.offsets.to(device), self.lengths.to(device), self.span)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[tuple[Tensor]]:
        device = self.frames.device
        spare = (self.lengths - self.span).clamp(min=0)
        starts = spare // 2
        if generator is not None:
            share = sent(torch.rand(len(self), generator=generator), device)
            starts = torch.minimum((share * (spare + 1)).long(), spare)
        steps = torch.arange(self.span, device=device)
        for offsets, lengths, begin in Tensors((self.offsets, self.lengths, starts)).batches(size, generator):
            within = (begin[:, None] + steps) % lengths[:, None]
            yield (self.frames[offsets[:, None] + within],)


class WindowPopulation(HeldClips):
    """Clients that hold whole clips, labelled or not."""

    def __init__(self, source: Shards, config: DataConfig, span: int, seed: int) -> None:
        super().__init__(source, config, seed, needed=False)
        self.span = span

    def examples(self, rows: np.ndarray) -> Windows:
        return Windows.of(self.source, [int(i) for i in rows], self.span)

    def frame_count(self, rows: np.ndarray) -> int:
        return sum(self.source.clips[int(i)].frames for i in rows)
