"""Segmentation against all segmentations on tiny inputs, planted shots, and segments that tile the video."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreel.errors import DataError, RecipeError
from fedreel.kernels.kts import cpd, frame_segments, kts


def scatter(x: np.ndarray, starts: tuple[int, ...]) -> float:
    """Squared distances of the steps to the mean of their segment."""
    return sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in np.split(x, starts))


def penalty(n: int, k: int, vmax: float) -> float:
    return vmax * k / (2 * n) * (math.log(n / k) + 1) if k else 0.0


def segmentations(n: int, k: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(1, n), k))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def shots(lengths: list[int], noise: float, seed: int, d: int = 32) -> tuple[np.ndarray, list[int]]:
    """Features of shots around centres of their own, and where the shots after the first start."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(len(lengths), d)), lengths, axis=0)
    return x + noise * rng.normal(size=x.shape), np.cumsum(lengths)[:-1].tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_fixed_number_of_changes_equals_the_best_of_all_segmentations(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(n, 3))
    for k in range(n):
        for kernel, y in (("cosine", unit(x)), ("linear", x)):
            best = min(segmentations(n, k), key=lambda starts: scatter(y, starts))
            assert tuple(cpd(x, k, kernel=kernel)) == best


@pytest.mark.parametrize("vmax", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_automatic_number_equals_the_best_of_all_segmentations(vmax: float, seed: int) -> None:
    n, most = 9, 5
    x, _ = shots([3, 2, 4], 0.3, seed, d=4)
    every = [starts for k in range(most + 1) for starts in segmentations(n, k)]
    best = min(every, key=lambda starts: scatter(unit(x), starts) / n + penalty(n, len(starts), vmax))
    assert tuple(kts(x, most, vmax=vmax)) == best


def test_a_kernel_of_ones_own_equals_the_best_of_all_segmentations() -> None:
    x = np.random.default_rng(1).normal(size=(8, 2)).cumsum(axis=0)
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2))

    def within(starts: tuple[int, ...]) -> float:
        cuts = itertools.pairwise((0, *starts, 8))
        return sum(np.trace(kernel[i:j, i:j]) - kernel[i:j, i:j].sum() / (j - i) for i, j in cuts)

    for k in range(8):
        assert tuple(cpd(kernel, k, kernel="precomputed")) == min(segmentations(8, k), key=within)


@pytest.mark.parametrize(
    "lengths", [[40, 60], [5, 9, 3, 12, 7], [100, 156, 20, 200, 55, 90], [700, 324, 300, 60]], ids=str
)
def test_planted_shots_are_found_and_no_others(lengths: list[int]) -> None:
    x, starts = shots(lengths, 0.05, seed=2)
    assert kts(x, 20).tolist() == starts
    assert cpd(x, len(starts)).tolist() == starts
    assert kts(unit(x) @ unit(x).T, 20, kernel="precomputed").tolist() == starts


def test_a_large_common_offset_does_not_hide_the_shots() -> None:
    x, starts = shots([30, 20, 50], 0.05, seed=3)
    assert kts(x + 1e8, 10, kernel="linear").tolist() == starts


def test_the_penalty_decides_how_many_changes_there_are() -> None:
    x, starts = shots([10, 15, 12], 0.2, seed=4)
    assert len(kts(x, 7, vmax=0)) == 7
    assert kts(x, 7).tolist() == starts
    assert kts(x, 7, vmax=100).size == 0
    assert kts(x, 0).size == 0


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1])
@pytest.mark.parametrize("n", [1, 2, 50, 300])
def test_constant_features_have_no_change(value: float, n: int) -> None:
    starts = kts(np.full((n, 5), value), 10)
    assert starts.shape == (0,)
    assert np.issubdtype(starts.dtype, np.integer)


def test_every_step_can_be_a_segment_and_no_more() -> None:
    x = np.eye(4)
    assert kts(x, 99, vmax=0).tolist() == [1, 2, 3]
    assert cpd(x, 3).tolist() == [1, 2, 3]
    with pytest.raises(DataError, match="up to 3"):
        cpd(x, 4)


def test_what_cannot_be_segmented_is_refused() -> None:
    for features in (np.zeros((0, 3)), np.zeros(5), [[1.0, math.nan]]):
        with pytest.raises(DataError):
            kts(features, 2)
    for kernel in (np.ones((3, 2)), np.arange(9.0).reshape(3, 3)):
        with pytest.raises(DataError):
            kts(kernel, 2, kernel="precomputed")
    with pytest.raises(RecipeError, match="did you mean 'linear'"):
        kts(np.eye(3), 2, kernel="linea")
    with pytest.raises(RecipeError, match="0 or more"):
        kts(np.eye(3), -1)
    with pytest.raises(RecipeError, match="vmax"):
        kts(np.eye(3), 1, vmax=-1)


def test_frame_segments_of_a_worked_example() -> None:
    segments = frame_segments([2, 3], [0, 15, 30, 45], 52)
    assert segments.tolist() == [[0, 29], [30, 44], [45, 51]]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_frame_segments_tile_the_video(data: st.DataObject) -> None:
    n_frames = data.draw(st.integers(1, 60))
    picks = sorted(data.draw(st.sets(st.integers(0, n_frames - 1), min_size=1)))
    starts = sorted(data.draw(st.sets(st.integers(1, len(picks) - 1)))) if len(picks) > 1 else []
    segments = frame_segments(starts, np.array(picks, np.uint32), n_frames)
    assert [frame for first, last in segments for frame in range(first, last + 1)] == list(range(n_frames))
    assert [first for first, _ in segments[1:]] == [picks[start] for start in starts]


@pytest.mark.parametrize(
    ("starts", "picks", "n_frames"),
    [([0], [0, 5], 9), ([2], [0, 5], 9), ([1, 1], [0, 5], 9), ([1.0], [0, 5], 9), ([1], [5, 0], 9), ([1], [0, 9], 9),
     ([], [-1], 9), ([], [], 9)],
)  # fmt: skip
def test_starts_and_picks_outside_the_video_are_refused(starts: list[int], picks: list[int], n_frames: int) -> None:
    with pytest.raises(DataError, match="do not fit the video"):
        frame_segments(starts, picks, n_frames)
