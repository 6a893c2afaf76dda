"""Queries as tensors: videos are held once however many sentences ask about them, moments are spans of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedreel.core.task import Tensors

Batch = tuple[Tensor, Tensor, Tensor, Tensor]

ABSENT = -1
AT_ONCE = 1 << 21  # pairs of a query and a window that are compared in one step


@dataclass(frozen=True)
class Moments:
    """A batch is (video (B, T, d), words (B, L), spans (B, 2), times (B, 3)): features, indices of words (or vectors
    of tokens, (B, L, d)) padded with 0, the first and last of the T windows that fit the moment best, and start, end
    and the video's length in seconds."""

    resident: ClassVar = True
    videos: Tensor  # (V, T, d) float32
    which: Tensor  # (N,) int64, the video of each query
    words: Tensor  # (N, L) int64, or (N, L, d) float32
    spans: Tensor  # (N, 2) int64
    times: Tensor  # (N, 3) float32
    groups: Tensor  # (N,) int64, the group of each query's video; no part of a batch
    asked: Tensor | None = None  # (N, 4) float64, where long videos are cut into windows, `videos` are windows, and a
    # query has a row for each of several: its number, when the window begins, and the moment's start and end. Where
    # nothing of the moment lies in the window, its span is ABSENT and its times are 0
    ratings: Tensor | None = None  # (N, C, R) int8: how much of a highlight R people found each stretch of a video to
    # be, 0 to 4; -1 where nobody was asked

    def __len__(self) -> int:
        return self.which.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns.values())

    def to(self, device: torch.device) -> Moments:
        if self.videos.device == device:
            return self
        return self._changed(lambda name, column: column.to(device))

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        rows = Tensors((self.which, self.words, self.spans, self.times))
        for which, words, spans, times in rows.batches(size, generator):
            yield self.videos[which], words, spans, times

    def select(self, indices: Sequence[int] | Tensor) -> Moments:
        """These queries, and only those videos that they ask about, not copied where they lie side by side."""
        rows = torch.as_tensor(indices, dtype=torch.int64, device=self.which.device)
        kept, which = torch.unique(self.which[rows], return_inverse=True)
        near = len(kept) > 0 and int(kept[-1] - kept[0]) == len(kept) - 1
        made = {"videos": self.videos[kept[0] : kept[-1] + 1] if near else self.videos[kept], "which": which}
        return self._changed(lambda name, column: made[name] if name in made else column[rows])

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> Moments:
        """With other columns in place of those that there are."""
        changed: dict[str, Any] = {name: change(name, column) for name, column in self._columns.items()}
        return replace(self, **changed)

    @property
    def _columns(self) -> dict[str, Tensor]:
        """Those that there are."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in every.items() if column is not None}

    @property
    def present(self) -> Tensor:
        """Which rows have the moment in their window, or a part of it: all, where videos are not cut."""
        return self.spans[:, 0] != ABSENT


def best_window(start: np.ndarray, end: np.ndarray, duration: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first and last of `length` equal windows of a video which together overlap a moment best, that is, i <= j
    such that i * duration / length to (j + 1) * duration / length has the highest intersection over union with it.
    Among equals the lowest i, then the lowest j."""
    first, last = np.triu_indices(length)  # in the order of i, then j
    start, end, duration = (np.atleast_1d(np.asarray(x, np.float64)) for x in (start, end, duration))
    begin, stop = start * length / duration, end * length / duration
    best = np.empty(len(begin), np.int64)
    step = max(1, AT_ONCE // len(first))
    for at in range(0, len(begin), step):
        a, b = begin[at : at + step, None], stop[at : at + step, None]
        shared = np.minimum(b, last + 1) - np.maximum(a, first)
        whole = np.maximum(b, last + 1) - np.minimum(a, first)
        # rounded, since windows that fit equally well may differ in the last digit
        best[at : at + step] = np.round(np.maximum(shared, 0) / whole, 10).argmax(axis=1)
    return first[best], last[best]


def temporal_classes(times: np.ndarray, bins: int) -> np.ndarray:
    """Where moments begin and end, as classes: of `bins` equal parts of the video, bins * (that of the start) + (that
    of the end). Rows of `times` are start, end and the video's length."""
    times = np.asarray(times, np.float64).reshape(-1, 3)
    start, end = (np.minimum(np.floor(bins * times[:, i] / times[:, 2]), bins - 1).astype(np.int64) for i in (0, 1))
    return bins * start + end
