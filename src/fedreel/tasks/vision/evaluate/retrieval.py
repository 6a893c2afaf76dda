"""Video retrieval: a video is the mean vector of ten of its clips; how many find one of their class, and how soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.core.abilities import Embeds, Pooling
from fedreel.core.batchnorm import active_norms, settling
from fedreel.core.residence import SHARE, memory_of
from fedreel.data.shards import Shards
from fedreel.errors import DataError, RecipeError
from fedreel.media.excerpts import EXCERPTS, excerpt_frames
from fedreel.media.video import middle_corner
from fedreel.metrics.neighbours import recall_at
from fedreel.tasks.vision.footage import Cut, Held, Stored, at_hand

Rows = Sequence[int] | np.ndarray
Compared = tuple[Tensor, list[int], Tensor, list[int]]

Places = Callable[[int, int], np.ndarray]  # frames of a video and of a clip -> (clips, frames) of frame numbers
KS = (1, 5, 10, 20, 50)
AT_ONCE = 16  # videos in one forward pass, ten clips of each
HELD_OUT = 5  # one of so many training videos is held out where settings are chosen
SETS = 4  # that share the part of a device's memory which is for data


def end_to_end(n_frames: int, frames: int) -> np.ndarray:
    """VCOP's: consecutive frames, the first clip at the beginning of the video, the last at its end, the others evenly
    between. A short video stands still at its end."""
    return excerpt_frames(n_frames, frames)


def in_ten_parts(n_frames: int, frames: int, stride: int = 2) -> np.ndarray:
    """Catch-the-Patch's: every second frame, from the middle of each tenth of the places where a clip can begin. A
    short video stands still at its end."""
    spare = max(n_frames - frames * stride + 1, 0)
    begin = (spare / EXCERPTS * (np.arange(EXCERPTS) + 0.5)).astype(np.int64)
    return np.minimum(begin[:, None] + stride * np.arange(frames), n_frames - 1)


@dataclass(frozen=True)
class LabelledSet:
    """Videos with classes. Its training part is the gallery, or what is learned from; its test part asks."""

    name: str
    source: Shards
    classes: tuple[str, ...]
    labels: np.ndarray  # of every clip of the source, places in `classes`
    train: np.ndarray  # rows of the source
    test: np.ndarray
    _near: dict[torch.device, Held | Stored] = field(default_factory=dict, repr=False, compare=False)

    def footage(self, device: torch.device) -> Held | Stored:
        """All its videos: on the device, for all that is measured there, if they fit; else they are read in turn."""
        if device not in self._near:
            stored = Stored(self.source, tuple(range(len(self.source))), device)
            self._near[device] = at_hand(stored, int(SHARE * memory_of(device)) // SETS)
        return self._near[device]

    def held_out(self) -> LabelledSet:
        """Only its training part, of which every fifth video, class by class, asks: to choose settings by."""
        by_class = self.train[np.argsort(self.labels[self.train], kind="stable")]
        asks = by_class[HELD_OUT - 1 :: HELD_OUT]
        if not len(asks):
            raise DataError(
                f"'{self.name}' has too few videos to choose settings by",
                where=str(self.source.folder),
                expected=f"{HELD_OUT} training videos or more",
                found=str(len(self.train)),
            )
        return replace(self, train=np.setdiff1d(self.train, asks), test=np.sort(asks))  # with its footage


def labelled_set(name: str, source: Shards) -> LabelledSet:
    """The clips marked `train` and those marked `test` (or `val`, where none is for testing)."""
    splits = np.array([clip.split for clip in source.clips])
    held = "test" if (splits == "test").any() else "val"
    train, test = np.flatnonzero(splits == "train"), np.flatnonzero(splits == held)
    unlabelled = sum(not clip.label for clip in source.clips)
    if unlabelled or not len(train) or not len(test):
        raise DataError(
            f"'{name}' cannot be used downstream",
            where=str(source.folder),
            expected="labelled clips for training and for testing: {train,test}/CLASS/*.mp4, an index.csv or lists",
            found=f"{len(train)} for training, {len(test)} for testing, {unlabelled} without a label",
        )
    labels = np.array([source.labels.index(clip.label) for clip in source.clips])
    return LabelledSet(name, source, tuple(source.labels), labels, train, test)


def retrieval(
    model: nn.Module, task: Embeds, among: LabelledSet, pooling: Pooling = "grid", ks: Sequence[int] = KS
) -> dict[int, float]:
    """R@k for each k: the share of test videos with at least one of their class among the k training videos nearest by
    cosine. (The paper speaks of a vote among neighbours; its R@5 above R@1 are of this kind.)"""
    return recall_at(*compared(model, task, among, (pooling,))[pooling], ks)


def compared(
    model: nn.Module, task: Embeds, among: LabelledSet, poolings: Sequence[Pooling]
) -> dict[Pooling, Compared]:
    """What neighbours are found by, by each pooling: features and classes of the training videos, then of the test
    videos. The videos are looked at once."""
    parts = [video_features(model, task, among, rows, poolings) for rows in (among.train, among.test)]
    train, test = (among.labels[rows].tolist() for rows in (among.train, among.test))
    return {pooling: (gallery, train, queries, test) for pooling, gallery, queries in zip(poolings, *parts)}


def video_features(
    model: nn.Module, task: Embeds, among: LabelledSet, rows: Rows, poolings: Sequence[Pooling] = ("grid",)
) -> list[Tensor]:
    """(N, D) by each pooling: the mean over clips of each video. `grid` keeps time and space (VCOP's), `mean` averages
    them away."""
    found = [[clips.mean(dim=1) for clips in all_of] for all_of in clip_features(model, task, among, rows, poolings)]
    return [torch.cat(by_pooling) for by_pooling in zip(*found)]


def clip_features(
    model: nn.Module,
    task: Embeds,
    among: LabelledSet,
    rows: Rows,
    poolings: Sequence[Pooling] = ("mean",),
    places: Places = end_to_end,
) -> Iterator[list[Tensor]]:
    """(some videos, ten clips, D) by each pooling, after each other. The model is taken as in use: batch norm by its
    statistics."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        for clips in ten_clips(among.footage(device), rows, task.frames, places):
            found = task.embeds(model, clips.flatten(0, 1), poolings)
            yield [vectors.unflatten(0, clips.shape[:2]) for vectors in found]


def settle(model: nn.Module, task: Embeds, among: LabelledSet) -> None:
    """Take the statistics of the backbone's batch norms anew, from the clips of the training videos that features are
    made of: those of a mean of models are means as well, which no model has."""
    backbone = cast(nn.Module, model.backbone)
    if not any(norm.track_running_stats for norm in active_norms(backbone)):
        raise RecipeError(
            "there are no statistics to be taken anew",
            where="settle",
            expected="a backbone with batch norms that are not frozen",
            found=type(backbone).__name__,
            hint="leave it out",
        )
    device = next(model.parameters()).device
    with torch.no_grad(), settling(backbone):
        for clips in ten_clips(among.footage(device), among.train, task.frames):
            task.embed(model, clips.flatten(0, 1))


def ten_clips(footage: Held | Stored, rows: Rows, frames: int, places: Places = end_to_end) -> Iterator[Tensor]:
    """(some videos, ten clips, frames, H, W, 3) of bytes: the square in the middle, on the footage's device."""
    shapes = footage.shapes

    def cut(row: int) -> Cut:
        length, height, width = shapes[row]
        return row, torch.from_numpy(places(length, frames).ravel()), [*middle_corner(height, width)]

    def batches() -> Iterable[list[Cut]]:
        for start in range(0, len(rows), AT_ONCE):
            yield [cut(int(i)) for i in rows[start : start + AT_ONCE]]

    for videos in footage.read(batches()):
        yield videos.unflatten(1, (EXCERPTS, frames))
