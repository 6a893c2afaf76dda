"""Questions and the windows of their videos: which of them are learned from, and which are looked at for an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedreel.tasks.moments.annotations import Query
from fedreel.tasks.moments.examples import ABSENT, best_window
from fedreel.tasks.moments.features import Window
from fedreel.tasks.moments.formats import Ratings


@dataclass(frozen=True)
class Pairs:
    """A row for every window of a question's video, in the order of the questions. Times are those of the window:
    start and end of what of the moment lies in it, and its length; start and end are 0 where nothing does."""

    query: np.ndarray  # (P,) the question
    window: np.ndarray  # (P,) the window, counted through all videos
    begins: np.ndarray  # (P,) seconds
    spans: np.ndarray  # (P, 2) first and last position, or ABSENT
    times: np.ndarray  # (P, 3)
    best: np.ndarray  # (questions,) the row whose window holds most of the moment
    without: np.ndarray  # (questions,) a row whose window holds nothing of it; ABSENT if there is none

    def learned_from(self, queries: np.ndarray) -> np.ndarray:
        """Rows: for each question the window that holds most of the moment and, of a video that has such, one that
        holds nothing of it: a model must also learn to say that it is not there."""
        rows = np.stack([self.best[queries], self.without[queries]], axis=1).reshape(-1)
        found: np.ndarray = rows[rows != ABSENT]
        return found

    def asked(self, queries: np.ndarray) -> np.ndarray:
        """Rows: all windows of each question's video."""
        first = np.searchsorted(self.query, queries)
        counts = np.searchsorted(self.query, queries, side="right") - first
        return np.concatenate([np.arange(a, a + n) for a, n in zip(first, counts)] or [np.zeros(0, np.int64)])

    def places(self, queries: Sequence[Query]) -> np.ndarray:
        """(P, 4): the question's number, when the window begins, and the moment in seconds of the video."""
        moments = np.array([(q.start, q.end) for q in queries])[self.query]
        return np.concatenate([self.query[:, None], self.begins[:, None], moments], axis=1, dtype=np.float64)


def cut_queries(queries: Sequence[Query], windows: Mapping[str, Sequence[Window]], length: int, seed: int) -> Pairs:
    """`windows` of all videos, in the order in which they are counted; positions of a window are `length`."""
    firsts = dict(zip(windows, np.cumsum([0, *map(len, windows.values())])))
    counts = [len(windows[q.video]) for q in queries]
    query = np.repeat(np.arange(len(queries)), counts)
    window = np.concatenate([firsts[q.video] + np.arange(n) for q, n in zip(queries, counts)])
    ends = np.concatenate([np.array(windows[q.video]) for q in queries])
    moments = np.array([(q.start, q.end) for q in queries])[query]
    sizes = ends[:, 1] - ends[:, 0]
    inside = np.clip(moments - ends[:, :1], 0.0, sizes[:, None])
    held = inside[:, 1] - inside[:, 0]
    present = held > 0
    spans = np.full((len(query), 2), ABSENT, np.int64)
    spans[present] = np.stack(best_window(inside[present, 0], inside[present, 1], sizes[present], length), axis=1)
    times = np.concatenate([np.where(present[:, None], inside, 0.0), sizes[:, None]], axis=1)
    return Pairs(query, window, ends[:, 0], spans, times, *_chosen(counts, held, seed))


def _chosen(counts: Sequence[int], held: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    best, without, at = [], [], 0
    for count in counts:
        mine = held[at : at + count]
        none = np.flatnonzero(mine <= 0)
        best.append(at + int(np.round(mine, 6).argmax()))
        without.append(at + int(rng.choice(none)) if len(none) else ABSENT)
        at += count
    return np.array(best), np.array(without)


def ratings(given: Sequence[Ratings]) -> np.ndarray | None:
    """(questions, stretches, people), -1 where nobody was asked; None if nobody was asked at all."""
    if not any(given):
        return None
    shape = max(map(len, given)), max(len(row) for told in given for row in told)
    found = np.full((len(given), *shape), -1, np.int8)
    for mine, told in zip(found, given):
        if told:
            mine[: len(told), : len(told[0])] = told
    return found
