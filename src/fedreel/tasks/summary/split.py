"""Annotated videos as a federation: parts of videos, who holds which, and each client's share as sequences."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, ClientData, Population
from fedreel.data.division import check_training, class_names, make_partitioner
from fedreel.data.partition import IidPartitioner, NaturalIdPartitioner, Parts, histogram
from fedreel.errors import DataError
from fedreel.tasks.summary.data import SummaryVideo
from fedreel.tasks.summary.metrics import RATIO, Truth, summarize

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


WHOLE = 16  # on a GPU lengths are rounded up to a multiple of it: few lengths, so that recorded steps are replayed


class Videos:
    """Videos as tensors. A batch is (features (B, N, D), mask (B, N), target (B, N), index (B,)): shorter videos are
    padded with zeros at their ends, the mask is true for real steps, the index says which videos they are. `sources`
    are the videos' names, without the number of a part; `topics` how many of them are about each topic."""

    resident = True

    def __init__(
        self,
        sequences: Sequence[Tensor],
        targets: Sequence[Tensor],
        truths: Sequence[Truth],
        sources: Sequence[str] = (),
        topics: Sequence[int] = (),
        whole: int = 1,
    ) -> None:
        self._features, self._targets = ([_whole(row, whole) for row in rows] for rows in (sequences, targets))
        self.sequences = [rows[: len(row)] for rows, row in zip(self._features, sequences)]
        self.targets = [rows[: len(row)] for rows, row in zip(self._targets, targets)]
        self.truths, self.sources, self.topics, self.whole = list(truths), list(sources), list(topics), whole
        self._made: dict[int, Batch] = {}

    @classmethod
    def of(cls, videos: Sequence[SummaryVideo], topics: Sequence[int] = ()) -> Videos:
        sequences, targets = (
            [torch.from_numpy(np.ascontiguousarray(getattr(v, what))) for v in videos]
            for what in ("features", "target")
        )
        return cls(sequences, targets, [v.truth for v in videos], [v.source for v in videos], topics)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in (*self._features, *self._targets))

    def to(self, device: torch.device) -> Videos:
        if self.sequences and self.sequences[0].device == device:
            return self
        sequences, targets = ([t.to(device) for t in tensors] for tensors in (self.sequences, self.targets))
        whole = WHOLE if device.type == "cuda" else 1
        return Videos(sequences, targets, self.truths, self.sources, self.topics, whole)

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        n = len(self)
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        for index in order.split(size) if n else ():
            yield self._alone(int(index)) if len(index) == 1 else self._batch(index)

    def _alone(self, i: int) -> Batch:
        """A batch of one video, made once: on a GPU making it takes longer than replaying a step."""
        if i not in self._made:
            self._made[i] = self._batch(torch.tensor([i]))
        return self._made[i]

    def _batch(self, index: Tensor) -> Batch:
        rows = index.tolist()
        most = max(len(self._targets[i]) for i in rows)
        features, target = (_padded([of[i] for i in rows], most) for of in (self._features, self._targets))
        mask = torch.arange(most) < torch.tensor([len(self.targets[i]) for i in rows])[:, None]
        return features, mask.to(target.device), target, index.to(target.device)


def _whole(row: Tensor, whole: int) -> Tensor:
    """The row with zeros at its end, up to a multiple of so many steps."""
    return _padded([row], -(-len(row) // whole) * whole)[0]


def _padded(rows: Sequence[Tensor], length: int) -> Tensor:
    """The rows stacked, with zeros at their ends."""
    if len(rows) == 1 and len(rows[0]) == length:
        return rows[0][None]
    stacked = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
    for place, row in zip(stacked, rows):
        place[: len(row)] = row
    return stacked


class SummaryPopulation(Population):
    """Clients that hold videos, or with `fragments` > 0 up to so many parts of each. `held_out` names the videos that
    are for testing: nobody trains on them, not even where settings are chosen. A video's topic is its community where
    the data name one, else its category."""

    def __init__(
        self,
        videos: Sequence[SummaryVideo],
        config: DataConfig,
        seed: int,
        *,
        features: Mapping[str, Any],
        fragments: int = 0,
        ratio: float = RATIO,
    ) -> None:
        if fragments:
            videos = [part for video in videos for part in cut(video, fragments, seed, ratio)]
        self.videos = [replace(v, owner=v.owner or config.owner) for v in videos]
        self.features = dict(features)
        self.classes = class_names(sorted({v.category or UNKNOWN for v in self.videos}), config)
        self.labels = np.array([self.classes.index(v.category or UNKNOWN) for v in self.videos])
        about = [v.community or v.category or UNKNOWN for v in self.videos]
        self.topics = sorted({*about})
        self._topic = np.array([self.topics.index(topic) for topic in about])
        partitioner = make_partitioner(config.partition)
        self._check_known(partitioner, config)
        parts = partitioner.split(self.labels, np.array([v.owner for v in self.videos]), seed)
        held_out = self.held_out = held_out_sources(parts, self.videos, config.test_share, seed)
        test = np.array([v.source in held_out for v in self.videos])
        left_alone = np.array([v.split == "val" and v.source not in held_out for v in self.videos])
        if config.validate:
            valid = left_alone if left_alone.any() else self._drawn_again(parts, test, config.test_share, seed)
            test, left_alone = valid, test
        self._parts = {c: (rows[~test[rows] & ~left_alone[rows]], rows[test[rows]]) for c, rows in parts.items()}
        check_training(self._parts, config, "a lower data.test_share, or task.fragments")
        self.clients = tuple(self._parts)

    def _drawn_again(self, parts: Parts, test: np.ndarray, share: float, seed: int) -> np.ndarray:
        """Which videos that are not for testing are for validation."""
        rest = [replace(video, split="") for video in self.videos]
        held = held_out_sources({c: rows[~test[rows]] for c, rows in parts.items()}, rest, share, seed + 1)
        return np.array([v.source in held for v in self.videos]) & ~test

    def data(self, client: str) -> ClientData:
        if client == EVERYONE:
            train, test = (np.concatenate(rows) for rows in zip(*self._parts.values()))
        else:
            train, test = self._parts[client]
        frames = sum(len(self.videos[i].target) for i in train)
        return ClientData(self._of(train), self._of(test), {"frames": float(frames)})

    def agreement(self) -> dict[str, Any]:
        return {"features": self.features}

    def describe(self) -> dict[str, Any]:
        train, test = ({c: rows[i] for c, rows in self._parts.items()} for i in (0, 1))
        found = {c: {self.videos[i].community for i in np.concatenate(rows)} for c, rows in self._parts.items()}
        return {
            "classes": self.classes,
            "train": histogram(train, self.labels, len(self.classes)),
            "test": histogram(test, self.labels, len(self.classes)),
            "communities": {c: next(iter(names)) for c, names in found.items() if len(names) == 1 and names != {""}},
        }

    def _of(self, rows: np.ndarray) -> Videos:
        counts = np.bincount(self._topic[rows], minlength=len(self.topics)).tolist()
        return Videos.of([self.videos[i] for i in rows], counts)

    def _check_known(self, partitioner: Any, config: DataConfig) -> None:
        """What the partition goes by must be known of every video."""
        by = "owner" if isinstance(partitioner, NaturalIdPartitioner) else "category"
        without = [v.name for v in self.videos if not getattr(v, by)]
        if without and not isinstance(partitioner, IidPartitioner):
            raise DataError(
                f"some videos have no {by}",
                where=config.source,
                expected=f"the key or attribute `{by}` of every video in the h5 file",
                found=f"{len(without)} of {len(self.videos)}, the first is {without[0]}",
                hint="set data.owner, or data.partition={name='iid', num_partitions=4}",
            )


UNKNOWN = "unknown"


def cut(video: SummaryVideo, parts: int, seed: int, ratio: float = RATIO) -> list[SummaryVideo]:
    """The video as `parts` contiguous parts: balls and urns, that is, cuts drawn among the shots' boundaries without
    replacement. Every part has a step at least; a video with fewer shots gives fewer parts.

    Where summaries were made of users' scores (TVSum) they are made anew for each part, since each has its own budget;
    otherwise they are cut too, and a part may have users who chose nothing in it. Targets keep the video's scale.
    """
    truth = video.truth
    starts = truth.change_points[1:, 0]
    before = np.searchsorted(truth.picks, starts)  # steps before each boundary
    _, first = np.unique(before, return_index=True)  # of boundaries with no step between them, one
    inner = np.array([i for i in first if 0 < before[i] < len(truth.picks)], np.int64)
    rng = np.random.default_rng([seed, zlib.crc32(video.name.encode())])
    chosen = np.sort(rng.choice(inner, min(parts - 1, len(inner)), replace=False)) if len(inner) else inner
    frames, steps = [0, *starts[chosen], truth.n_frames], [0, *before[chosen], len(truth.picks)]
    return [
        _part(
            video,
            number,
            slice(*map(int, frames[number : number + 2])),
            slice(*map(int, steps[number : number + 2])),
            ratio,
        )
        for number in range(len(frames) - 1)
    ]


def _part(video: SummaryVideo, number: int, frames: slice, steps: slice, ratio: float) -> SummaryVideo:
    truth = video.truth
    shots = truth.change_points[(truth.change_points[:, 0] >= frames.start) & (truth.change_points[:, 1] < frames.stop)]
    given = None if truth.user_scores is None else truth.user_scores[:, steps]
    own = replace(
        truth,
        n_frames=frames.stop - frames.start,
        picks=truth.picks[steps] - frames.start,
        change_points=shots - frames.start,
        user_summary=truth.user_summary[:, frames],
        user_scores=given,
    )
    if given is not None and truth.how == "mean":
        own = replace(own, user_summary=_summaries(own, given, ratio))
    return replace(
        video,
        name=f"{video.name}#{number + 1}",
        features=video.features[steps],
        target=video.target[steps],
        truth=own,
    )


def _summaries(truth: Truth, scores: np.ndarray, ratio: float) -> np.ndarray:
    """The users' summaries (users, frames) of their scores. Runs of one process that share data share them: thousands
    of knapsacks take longer than a short run."""
    key: tuple[Any, ...] = (ratio, truth.n_frames, truth.spread, scores.shape, str(scores.dtype))
    key += tuple(np.ascontiguousarray(a).tobytes() for a in (truth.picks, truth.change_points, scores))
    if key not in _made:
        while len(_made) >= 512:
            del _made[next(iter(_made))]
        _made[key] = np.stack([summarize(s, truth, ratio) for s in scores]).astype(np.uint8)
    return _made[key]


_made: dict[tuple[Any, ...], np.ndarray] = {}


def held_out_sources(parts: Parts, videos: Sequence[SummaryVideo], share: float, seed: int) -> set[str]:
    """The source videos whose parts are for testing, wherever they lie: as marked in the data or, if nothing is,
    `share` of each client's, at least one and never all. A video that an earlier client trains on is not drawn: its
    other parts would be tested on what has been learned. Neither is the last that a client has to train on."""
    for held in ("test", "val"):
        marked = {v.source for v in videos if v.split == held}
        if marked:
            return marked
    rng = np.random.default_rng([seed, 0x7E57])
    test: set[str] = set()
    train: set[str] = set()
    sources = [{videos[i].source for i in rows} for rows in parts.values()]
    for own in sources:
        wanted = min(max(1, round(share * len(own))), len(own) - 1) if share else 0
        free = sorted(own - test - train)
        for name in (free[i] for i in rng.permutation(len(free))):
            if len(test & own) < wanted and all(other - test - {name} for other in sources if name in other):
                test.add(name)
        train |= own - test
    return test
