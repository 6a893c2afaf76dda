"""Windows that fit a moment best, temporal classes, and batches that lose nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedreel.tasks.moments.examples import Moments, best_window, temporal_classes


def by_brute_force(start: int, end: int, duration: int, length: int) -> tuple[int, int]:
    """In whole numbers, so that equals are equal."""
    best, found = Fraction(-1), (0, 0)
    for i in range(length):
        for j in range(i, length):
            low, high = Fraction(i * duration, length), Fraction((j + 1) * duration, length)
            shared = max(Fraction(0), min(high, Fraction(end)) - max(low, Fraction(start)))
            overlap = shared / (high - low + end - start - shared)
            if overlap > best:
                best, found = overlap, (i, j)
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 7, 12])
def test_the_best_window_is_that_of_brute_force(length: int) -> None:
    rng = np.random.default_rng(length)
    spans = []
    while len(spans) < 150:
        duration = int(rng.integers(2, 60))
        start, end = sorted(rng.integers(0, duration + 1, 2).tolist())
        if start < end:
            spans.append((start, end, duration))
    expected = [by_brute_force(*span, length) for span in spans]
    for unit in (1.0, 0.1, 1 / 3):  # seconds of which floating point knows no exact value
        first, last = best_window(*(unit * np.array(spans, np.float64)).T, length)
        assert [*zip(first.tolist(), last.tolist())] == expected


def test_windows_worked_out_by_hand() -> None:
    def best(start: float, end: float, duration: float, length: int) -> tuple[int, int]:
        first, last = best_window(np.array([start]), np.array([end]), np.array([duration]), length)
        return int(first[0]), int(last[0])

    assert best(0, 40, 40, 4) == (0, 3)
    assert best(10, 20, 40, 4) == (1, 1)
    assert best(12, 29, 40, 4) == (1, 2)
    assert best(39, 40, 40, 4) == (3, 3)
    assert best(5, 15, 40, 4) == (0, 1)  # half of two windows: both together share half with it, each a third
    assert best(8, 12, 40, 4) == (0, 1)  # 4 of 20 seconds, against 2 of 12 of either


@pytest.mark.parametrize("unit", [1.0, 0.1, 0.7, 1 / 3])
def test_among_equals_the_first_window_is_taken(unit: float) -> None:
    spans = unit * np.array([[1, 4, 6], [2, 5, 6]], np.float64)
    first, last = best_window(*spans.T, 2)
    assert (first[0], last[0]) == (0, 0)  # 2 of 4 seconds, as 3 of 6 with both windows
    assert (first[1], last[1]) == (0, 1)  # 3 of 6 with both, as 2 of 4 of the second


def test_many_moments_are_compared_in_parts() -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(0, 50, 1500)
    end = start + rng.uniform(1, 50, 1500)
    first, last = best_window(start, end, np.full(1500, 100.0), 100)
    assert (np.abs(first - start) <= 1).all()
    assert (np.abs(last + 1 - end) <= 1).all()
    again = best_window(start[1400:], end[1400:], np.full(100, 100.0), 100)
    np.testing.assert_array_equal(first[1400:], again[0])
    np.testing.assert_array_equal(last[1400:], again[1])


def test_temporal_classes_are_quarters_of_start_and_end() -> None:
    times = np.array([[0, 4, 16], [3.9, 4.1, 16], [4, 12, 16], [12, 16, 16], [0, 16, 16], [8, 11.9, 16]], np.float32)
    assert temporal_classes(times, 4).tolist() == [0 * 4 + 1, 0 * 4 + 1, 1 * 4 + 3, 3 * 4 + 3, 0 * 4 + 3, 2 * 4 + 2]
    assert temporal_classes(times, 2).tolist() == [0, 0, 1, 3, 1, 3]
    assert temporal_classes(times, 1).tolist() == [0] * 6
    assert temporal_classes(np.zeros((0, 3)), 4).shape == (0,)


def moments(n: int = 23, videos: int = 7) -> Moments:
    rng = torch.Generator().manual_seed(0)
    return Moments(
        torch.randn(videos, 5, 3, generator=rng),
        torch.randint(videos, (n,), generator=rng),
        torch.arange(n * 4).reshape(n, 4),
        torch.randint(5, (n, 2), generator=rng),
        torch.rand(n, 3, generator=rng),
        torch.arange(n) % 4,
    )


@pytest.mark.parametrize("size", [1, 4, 22, 23, 50])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_batches_lose_nothing_and_equal_direct_indexing(size: int, seed: int | None) -> None:
    data = moments()
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    seen = []
    for video, words, spans, times in data.batches(size, generator):
        rows = words[:, 0] // 4  # words were numbered by row
        seen += rows.tolist()
        assert len(rows) <= size + 1  # one that is left over joins the batch before it
        assert torch.equal(video, data.videos[data.which[rows]])
        assert torch.equal(words, data.words[rows])
        assert torch.equal(spans, data.spans[rows])
        assert torch.equal(times, data.times[rows])
    assert sorted(seen) == [*range(23)]
    assert (seen == [*range(23)]) == (seed is None)


def test_a_selection_holds_its_queries_and_only_their_videos() -> None:
    data = moments()
    rows = [5, 2, 2, 20]
    some = data.select(rows)
    assert len(some) == 4
    assert len(some.videos) == len({int(data.which[r]) for r in rows})
    (batch,) = some.batches(10)
    for found, expected in zip(batch, (data.videos[data.which], data.words, data.spans, data.times)):
        assert torch.equal(found, expected[rows])
    assert some.groups.tolist() == [1, 2, 2, 0]
    none = data.select([])
    assert (len(none), none.videos.shape, [*none.batches(4)]) == (0, (0, 5, 3), [])


def test_videos_side_by_side_are_selected_without_a_copy() -> None:
    data = replace(moments(7), which=torch.tensor([0, 3, 4, 2, 6, 3, 5]))
    for rows, shared in (([1, 2, 3, 5], True), ([4], True), ([1, 4], False)):
        some = data.select(rows)
        assert (some.videos.untyped_storage().data_ptr() == data.videos.untyped_storage().data_ptr()) == shared
        assert torch.equal(some.videos[some.which], data.videos[data.which[rows]])
        assert some.nbytes == sum(t.nbytes for t in vars(some).values() if t is not None)


def test_moments_move_to_a_device_whole() -> None:
    data = moments()
    assert data.to(torch.device("cpu")) is data
    moved = data.to(torch.device("meta"))
    assert {t.device.type for t in vars(moved).values() if t is not None} == {"meta"}
    assert len(moved) == 23
