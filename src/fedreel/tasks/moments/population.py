"""Moments as a federation: who holds which videos, which of them are for testing, and each client's queries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedreel.config import DataConfig
from fedreel.core.task import EVERYONE, ClientData, Population
from fedreel.data.division import check_training, class_names, make_partitioner
from fedreel.data.partition import IidPartitioner, NaturalIdPartitioner, histogram
from fedreel.errors import DataError
from fedreel.models.sentences import SentenceEncoder, token_vectors
from fedreel.tasks.moments.annotations import Query, Repairs
from fedreel.tasks.moments.examples import Moments
from fedreel.tasks.moments.features import MomentFeatures
from fedreel.tasks.moments.pairs import cut_queries, ratings
from fedreel.tasks.moments.text import Words
from fedreel.tasks.moments.windows import cut

UNKNOWN = "unknown"
USUAL = 0.9  # of the training videos are at most as long as the record says that they are


class MomentPopulation(Population):
    """Clients that hold videos and sentences about them; all sentences about a video are with one client.

    Every video becomes `length` rows of features, every sentence its first `most` words or tokens. `by-owner` makes a
    client of every group (owner, scene or activity); others divide the videos by their groups. Without `words`, the
    list is that of the training sentences with every word that occurs `least` times. `repairs` is what reading the
    annotations has left out already, for the report. Videos more than one and a half times as long as a `window`
    (seconds; 0: none) are cut into overlapping ones of that length, each of which becomes `length` rows.
    """

    def __init__(
        self,
        queries: Sequence[Query],
        features: MomentFeatures,
        words: Words | SentenceEncoder | None,
        config: DataConfig,
        seed: int,
        *,
        length: int = 64,
        most: int = 15,
        least: int = 1,
        window: float = 0.0,
        repairs: Repairs | None = None,
    ) -> None:
        self.length, self.features, self.window = length, features, window
        windows = {q.video: cut(q.duration, window) for q in queries}
        rows, self.missing = features.pool_all(windows, length, windows)  # missing: video -> why it has no features
        self._windows = {video: windows[video] for video in rows}
        self.queries = [replace(q, group=q.group or config.owner) for q in queries if q.video in rows]
        train, test = sides(self.queries, 1 - config.test_share, config.validate)
        self.repairs = repairs or Repairs()
        self._lost = len(queries) - len(self.queries)
        self._place = {video: place for place, video in enumerate(rows)}
        self._which = np.array([self._place[q.video] for q in self.queries])
        groups = {q.video: q.group or UNKNOWN for q in self.queries}
        self.classes = class_names(sorted({*groups.values()}), config)
        labels = np.array([self.classes.index(groups[video]) for video in rows])
        self.labels = labels[self._which]
        parts = self._divided(labels, [groups[video] for video in rows], config, seed)
        self._parts = {client: (r[train[r]], r[test[r]]) for client, r in parts.items()}
        check_training(self._parts, config, "or a lower data.test_share")
        self.clients = tuple(self._parts)
        trained = np.concatenate([r for r, _ in self._parts.values()])
        self._seconds = [self._windows[v][0][1] for v in {self.queries[i].video for i in trained}]
        self.words = (
            words
            if words is not None
            else Words.of((q.sentence for q, mine in zip(self.queries, train) if mine), least)
        )
        self._windows = {video: windows[video] for video in self._side_by_side([*rows])}
        self._rows = cut_queries(self.queries, self._windows, length, seed)
        self._examples = self._tensors(np.concatenate([rows[video] for video in self._windows]), most)

    def data(self, client: str) -> ClientData:
        if client == EVERYONE:
            train, test = (np.concatenate(rows) for rows in zip(*self._parts.values()))
        else:
            train, test = self._parts[client]
        rows = self._rows.learned_from(train), self._rows.asked(test)
        own, held_out = (self._examples.select(torch.from_numpy(some)) for some in rows)
        return ClientData(own, held_out, {"frames": float(len(own) * self.length)})

    def rows(self, client: str) -> tuple[np.ndarray, np.ndarray]:
        """Which of `queries` a client trains on, and which it tests on, in the order of its data; these have further
        rows where videos are cut into windows."""
        return self._parts[client]

    def agreement(self) -> dict[str, Any]:
        return {"features": self.features.card, "length": self.length, "words": self.words.fingerprint}

    def describe(self) -> dict[str, Any]:
        train, test = ({c: rows[i] for c, rows in self._parts.items()} for i in (0, 1))
        known = {"words": list(self.words.words)} if isinstance(self.words, Words) else {}
        return {
            "classes": self.classes,
            "train": histogram(train, self.labels, len(self.classes)),
            "test": histogram(test, self.labels, len(self.classes)),
            "broken": self.repairs.dropped + self.repairs.malformed + self._lost,
            **known,
            "seconds": round(float(np.quantile(self._seconds, USUAL)), 1),
        }

    def _divided(self, labels: np.ndarray, groups: list[str], config: DataConfig, seed: int) -> dict[str, np.ndarray]:
        """Client -> its queries. What is divided are the videos."""
        partitioner = make_partitioner(config.partition)
        without = [video for video, place in self._place.items() if groups[place] == UNKNOWN]
        if without and not isinstance(partitioner, IidPartitioner):
            raise DataError(
                "some videos belong to no group",
                where=config.source,
                expected="an owner, scene or activity of every video: videos.csv with columns id and owner beside the "
                "annotations, Charades' own tables, or ActivityNet's label file",
                found=f"{len(without)} of {len(groups)}, the first is {without[0]}",
                hint="set data.owner, or data.partition={name='iid', num_partitions=4}",
            )
        owners = np.array(groups) if isinstance(partitioner, NaturalIdPartitioner) else None
        videos = partitioner.split(labels, owners, seed)
        return {client: np.flatnonzero(np.isin(self._which, places)) for client, places in videos.items()}

    def _side_by_side(self, videos: list[str]) -> list[str]:
        """In the order in which what one client trains on, or tests on, is one piece of memory."""
        turns = np.full(len(videos), 2 * len(self._parts))  # of those that nobody asks about
        for turn, rows in enumerate(rows for side in zip(*self._parts.values()) for rows in side):
            turns[self._which[rows]] = turn
        return [videos[i] for i in np.argsort(turns, kind="stable")]

    def _tensors(self, videos: np.ndarray, most: int) -> Moments:
        rows = self._rows
        words = self._read([q.sentence for q in self.queries], most)[rows.query]
        arrays = (videos, rows.window, words, rows.spans, rows.times.astype(np.float32), self.labels[rows.query])
        tensors = [torch.from_numpy(array) for array in arrays]
        several = len(videos) > len(self._windows)
        rated = ratings([q.ratings for q in self.queries])
        return replace(
            Moments(*tensors),
            asked=torch.from_numpy(rows.places(self.queries)) if several else None,
            ratings=None if rated is None else torch.from_numpy(rated[rows.query]),
        )

    def _read(self, sentences: Sequence[str], most: int) -> np.ndarray:
        if isinstance(self.words, Words):
            return np.stack([self.words.encode(sentence, most) for sentence in sentences])
        return token_vectors(self.words, sentences, most)


def sides(queries: Sequence[Query], share: float = 0.75, validate: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Which queries are for training and which for testing, never both of one video.

    As marked, where some are marked for testing (or else for validation) and others are not: a marked video is not
    trained on at all. If all or none are marked, `share` of the videos of each group are for training. To `validate`,
    the test is left out: what is marked for validation stands for it or, where nothing is beside a test, all but
    `share` of the training videos of each group.
    """
    train, test = _marked_or_drawn(queries, share)
    if not validate:
        return train, test
    marks = {q.split for q in queries}
    if {"test", "val"} <= marks:
        return train, np.array([q.split == "val" for q in queries])
    drawn = training_videos({q.video: q.group for q, trains in zip(queries, train) if trains}, share)
    kept = np.array([q.video in drawn for q in queries])
    return train & kept, train & ~kept


def _marked_or_drawn(queries: Sequence[Query], share: float) -> tuple[np.ndarray, np.ndarray]:
    marks = np.array([q.split for q in queries])
    held = np.isin(marks, ("test", "val"))
    if held.any() and not held.all():
        kept_away = {q.video for q in queries if q.split in ("test", "val")}
        train = np.array([q.video not in kept_away for q in queries])
        return train, marks == ("test" if (marks == "test").any() else "val")
    drawn = training_videos({q.video: q.group for q in queries}, share)
    train = np.array([q.video in drawn for q in queries])
    return train, ~train


def training_videos(groups: Mapping[str, str], share: float) -> set[str]:
    """The videos (video -> its group) to train on: group by group in the order of their names, its videos sorted and
    permuted by numpy's default_rng(0), one generator for all, up to `share` of them, at least one. It does not depend
    on a run's seed: results are comparable."""
    found: set[str] = set()
    draw = np.random.default_rng(0)
    for group in sorted({*groups.values()}):
        own = sorted(video for video, its in groups.items() if its == group)
        count = max(1, math.floor(share * len(own) + 1e-9))
        found |= {own[i] for i in draw.permutation(len(own))[:count]}
    return found
