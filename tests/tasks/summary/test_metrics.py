"""Summary measures against brute force, cases worked by hand, and the published human level on the real file."""

from __future__ import annotations

import itertools
import math

import h5py
import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.summary.metrics import (
    SummaryScores,
    Truth,
    centre_scores,
    constant_scores,
    f1,
    frame_scores,
    human_scores,
    kendall_tau,
    mean_defined,
    mean_scores,
    random_scores,
    rank_correlations,
    score,
    shot_scores,
    spearman_rho,
    summarize,
)
from support.shared import SHARED

DATA = SHARED


def exhaustive(values: np.ndarray, weights: np.ndarray, capacity: int) -> list[int]:
    """The best of all subsets; of equals the first in order of size, then of indices."""
    subsets = [s for n in range(len(values) + 1) for s in itertools.combinations(range(len(values)), n)]
    fitting = [s for s in subsets if sum(weights[i] for i in s) <= capacity]
    return list(max(fitting, key=lambda s: sum(values[i] for i in s)))


def table(values: np.ndarray, weights: np.ndarray, capacity: int) -> list[int]:
    """The textbook's table, for videos with too many shots for all subsets."""
    best = np.zeros((len(values) + 1, capacity + 1))
    for i, (value, weight) in enumerate(zip(values, weights)):
        best[i + 1] = best[i]
        if weight <= capacity:
            best[i + 1, weight:] = np.maximum(best[i, weight:], best[i, : capacity + 1 - weight] + value)
    chosen, left = [], capacity
    for i in reversed(range(len(values))):
        if best[i + 1, left] != best[i, left]:
            chosen.append(i)
            left -= int(weights[i])
    return chosen


def tau_b_over_all_pairs(x: np.ndarray, y: np.ndarray) -> float:
    dx, dy = (np.sign(np.subtract.outer(v, v)) for v in (x, y))
    return float((dx * dy).sum() / math.sqrt((dx != 0).sum() * (dy != 0).sum()))


def rho_by_counting(x: np.ndarray, y: np.ndarray) -> float:
    """A rank is one more than the number of smaller values and half the number of equal others."""
    ranks = [[1 + np.sum(v < a) + (np.sum(v == a) - 1) / 2 for a in v] for v in (x, y)]
    return float(np.corrcoef(ranks)[0, 1])


def ten_shots(**changes: object) -> Truth:
    """100 frames in shots of 10, a step every 5 frames; two users."""
    users = np.zeros((2, 100), np.uint8)
    users[0, 10:20] = users[1, 30:45] = 1
    starts = np.arange(0, 100, 10)
    made = {
        "n_frames": 100,
        "picks": np.arange(0, 100, 5),
        "change_points": np.stack([starts, starts + 9], axis=1),
        "user_summary": users,
    }
    return Truth(**{**made, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("levels", [2, 3, 5, 40, 10_000])
@pytest.mark.parametrize("n", [2, 3, 17, 64, 65])
def test_tau_and_rho_with_ties_are_those_over_all_pairs(n: int, levels: int) -> None:
    rng = np.random.default_rng(n * levels)
    for _ in range(5):
        x, y = rng.integers(0, levels, n), rng.integers(0, levels, n) / 7 - 1
        if len(set(x)) > 1 and len(set(y)) > 1:
            assert kendall_tau(x, y) == pytest.approx(tau_b_over_all_pairs(x, y), abs=1e-12)
            assert spearman_rho(x, y) == pytest.approx(rho_by_counting(x, y), abs=1e-12)


def test_tau_and_rho_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    rng = np.random.default_rng(0)
    for levels in (3, 100, 10**9):
        x, y = rng.integers(0, levels, (2, 5000))
        assert kendall_tau(x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)
        assert spearman_rho(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_tau_of_a_case_worked_by_hand() -> None:
    # Pairs: 4 in the same order, 1 not (the 3 and the 2), 1 tied in y alone. tau-b = 3 / sqrt(6 * 5).
    assert kendall_tau(np.array([1, 2, 3, 4]), np.array([1, 3, 2, 3])) == pytest.approx(3 / math.sqrt(30))


def test_a_monotone_transform_correlates_fully_even_on_every_frame_of_a_long_video() -> None:
    x = np.random.default_rng(0).normal(size=20_000)
    for correlate in (kendall_tau, spearman_rho):
        assert correlate(x, np.exp(3 * x)) == 1.0
        assert correlate(x, -(x**3)) == -1.0
        assert abs(correlate(x, np.random.default_rng(1).normal(size=20_000))) < 0.03


def test_correlation_with_a_constant_is_undefined() -> None:
    for correlate in (kendall_tau, spearman_rho):
        assert math.isnan(correlate(np.ones(5), np.arange(5)))
        assert math.isnan(correlate(np.arange(5), np.ones(5)))
        assert math.isnan(correlate(np.ones(1), np.ones(1)))


def test_a_step_score_is_held_until_the_next_pick_or_goes_to_the_nearest_frames() -> None:
    changes = {
        "n_frames": 10,
        "picks": np.array([2, 5, 8]),
        "change_points": np.array([[0, 9]]),
        "user_summary": np.ones((1, 10)),
    }
    scores = np.array([1.0, 2.0, 3.0])
    hold, nearest = (ten_shots(**changes, spread=spread) for spread in ("hold", "nearest"))
    assert frame_scores(scores, hold).tolist() == [1, 1, 1, 1, 1, 2, 2, 2, 3, 3]
    assert frame_scores(scores, nearest).tolist() == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_shot_scores_are_means_and_equal_for_equal_frames() -> None:
    frames = np.array([0.2, 0.4, 0.9, 0.1, 0.1, 0.1])
    assert shot_scores(frames, np.array([[0, 1], [2, 2], [3, 5]])) == pytest.approx([0.3, 0.9, 0.1])
    starts = np.cumsum([0, 3, 7, 1, 12])
    shots = np.stack([starts, np.append(starts[1:], 30) - 1], axis=1)
    assert len(set(shot_scores(np.full(30, 0.1), shots))) == 1


def test_a_summary_takes_the_best_shots_that_fit() -> None:
    truth, scores = ten_shots(), np.zeros(20)
    scores[[6, 7, 10, 18]] = 0.5, 0.5, 0.9, 0.2  # means of shots 3, 5 and 9: .5, .45, .1
    kept = [np.flatnonzero(summarize(scores, truth, ratio, exhaustive)).tolist() for ratio in (0.15, 0.2, 0.05)]
    assert kept == [list(range(30, 40)), [*range(30, 40), *range(50, 60)], []]


def test_the_knapsack_used_by_default_is_as_good_as_trying_all_subsets() -> None:
    for seed in range(5):
        scores = random_scores(20, seed)
        kept = summarize(scores, ten_shots(), 0.35)
        assert np.array_equal(kept, summarize(scores, ten_shots(), 0.35, exhaustive))
        assert kept.sum() == 30


def test_the_budget_is_not_lost_to_rounding() -> None:
    assert 0.29 * 100 < 29
    shots = np.array([[0, 28], [29, 99]])
    truth = ten_shots(change_points=shots)
    assert summarize(np.ones(20), truth, 0.29, exhaustive).sum() == 29


def test_f1_is_the_mean_over_users_or_the_best() -> None:
    kept = np.zeros(100, bool)
    kept[10:15] = kept[30:40] = True
    users = ten_shots().user_summary
    # user 0: 5 frames in common of 15 and 10; user 1: 10 of 15 and 15
    first, second = (2 * 5 / 25, 5 / 15, 5 / 10), (2 * 10 / 30, 10 / 15, 10 / 15)
    assert f1(kept, users, "max") == pytest.approx(second)
    assert f1(kept, users, "mean") == pytest.approx([(a + b) / 2 for a, b in zip(first, second)])
    assert f1(kept, users[::-1], "max") == pytest.approx(second)


def test_users_who_chose_nothing_are_left_out_and_without_users_nothing_is_defined() -> None:
    kept = np.arange(100) < 15
    users = np.stack([kept, np.zeros(100), kept])
    assert f1(kept, users, "mean") == (1.0, 1.0, 1.0)
    for how in ("mean", "max"):
        assert all(math.isnan(value) for value in f1(kept, np.zeros((2, 100)), how))
        assert f1(np.zeros(100, bool), users, how) == (0.0, 0.0, 0.0)


def test_correlations_are_with_each_users_scores_or_with_the_share_of_users_who_chose() -> None:
    scores = np.random.default_rng(0).random(20)
    given = np.stack([scores, -scores, np.ones(20), scores**2])  # the third user has no opinion
    users = np.zeros((4, 100), np.uint8)
    assert rank_correlations(scores, ten_shots(user_scores=given, user_summary=users)) == pytest.approx((1 / 3, 1 / 3))
    truth = ten_shots()
    share = truth.user_summary.mean(axis=0)[truth.picks]
    assert rank_correlations(share * 2 + 1, truth) == (1.0, 1.0)
    assert rank_correlations(-share, truth) == (-1.0, -1.0)


def test_a_perfect_scorer_of_one_user_gets_full_marks() -> None:
    truth = ten_shots(user_summary=ten_shots().user_summary[:1], user_scores=np.arange(20)[None])
    scores = np.zeros(20)
    scores[2:4] = 1
    assert score(scores, truth, knapsack=exhaustive).f1 == 1.0
    assert score(np.arange(20) / 20, truth, knapsack=exhaustive).tau == 1.0


def test_undefined_measures_do_not_enter_a_mean() -> None:
    videos = [SummaryScores(0.2, 0.1, 0.3, math.nan, math.nan), SummaryScores(0.4, 0.3, 0.5, 0.6, math.nan)]
    mean = mean_scores(videos)
    assert (mean.f1, mean.precision, mean.recall, mean.tau) == pytest.approx((0.3, 0.2, 0.4, 0.6))
    assert math.isnan(mean.rho)
    assert math.isnan(mean_defined([]))


def test_baseline_scores() -> None:
    assert np.array_equal(random_scores(9, seed=3), random_scores(9, seed=3))
    assert not np.array_equal(random_scores(9, seed=3), random_scores(9, seed=4))
    assert set(constant_scores(4)) == {1.0}
    assert centre_scores(5).tolist() == [0, 0.5, 1, 0.5, 0]
    for steps in (1, 2, 6, 177):
        assert np.array_equal(centre_scores(steps), centre_scores(steps)[::-1])


def test_human_level_of_users_who_agree_and_of_one_alone() -> None:
    same = np.tile(ten_shots().user_summary[:1], (3, 1))
    for scores in (None, np.tile(np.arange(20), (3, 1))):
        assert human_scores(ten_shots(user_summary=same, user_scores=scores)) == SummaryScores(1, 1, 1, 1, 1)
    alone = human_scores(ten_shots(user_summary=same[:1]))
    assert all(math.isnan(value) for value in (alone.f1, alone.precision, alone.recall, alone.tau, alone.rho))


def test_human_level_worked_by_hand() -> None:
    users = np.zeros((3, 100), np.uint8)
    users[0, :10] = users[1, 5:15] = users[2, 50:60] = 1  # overlap only of 0 and 1: F1 .5
    assert human_scores(ten_shots(user_summary=users)).f1 == pytest.approx((0.25 + 0.25 + 0) / 3)
    assert human_scores(ten_shots(user_summary=users, how="max")).f1 == pytest.approx((0.5 + 0.5 + 0) / 3)
    up = np.arange(20)
    scores = np.stack([up, up, -up])  # pairs: 1, -1, -1
    assert human_scores(ten_shots(user_summary=users, user_scores=scores)).tau == pytest.approx(-1 / 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("picks", np.array([5, 3])),
        ("picks", np.array([5, 3], np.uint32)),
        ("picks", np.array([0, 100])),
        ("picks", np.array([], int)),
        ("change_points", np.array([[0, 10], [10, 99]])),
        ("change_points", np.array([[0, 100]])),
        ("change_points", np.array([[9, 0]])),
        ("change_points", np.array([0, 50, 99])),
        ("user_summary", np.zeros((2, 99))),
        ("user_scores", np.zeros((2, 19))),
        ("user_scores", np.zeros((3, 20))),
        ("how", "median"),
        ("spread", "linear"),
    ],
)
def test_a_truth_that_does_not_fit_its_video_is_refused(name: str, value: object) -> None:
    with pytest.raises(DataError, match=name):
        ten_shots(**{name: value})


def test_scores_of_another_length_or_not_finite_are_refused() -> None:
    for scores in (np.ones(19), np.append(np.ones(19), np.nan)):
        with pytest.raises(DataError, match="not a video's scores"):
            summarize(scores, ten_shots(), knapsack=exhaustive)


def real(file: str, **options: str) -> tuple[list[Truth], list[np.ndarray]]:
    """The videos of a real file, and the mean scores of their users."""
    path = DATA / "summary" / file
    if not path.is_file():
        pytest.skip(f"no summaries at {path}; set FEDREEL_DATA")
    truths, means = [], []
    with h5py.File(path) as videos:
        for video in videos.values():
            scores = video["user_scores"][()] if "user_scores" in video else None
            arrays = [video[name][()] for name in ("picks", "change_points", "user_summary")]
            truths.append(Truth(int(video["n_frames"][()]), *arrays, scores, **options))  # type: ignore[arg-type]
            means.append(video["gtscore"][()])
    return truths, means


def in_table(scores: SummaryScores) -> tuple[float, ...]:
    """F1 in percent, tau and rho, as tables print them."""
    return round(100 * scores.f1, 1), round(scores.tau, 3), round(scores.rho, 3)


@pytest.mark.slow
def test_people_agree_on_tvsum_as_published() -> None:
    truths, _ = real("tvsum50_effnetlite0.h5", spread="nearest")
    assert len(truths) == 50
    assert in_table(mean_scores([human_scores(truth) for truth in truths])) == (55.1, 0.177, 0.204)


@pytest.mark.slow
def test_tvsum_baselines_are_those_of_an_independent_computation() -> None:
    truths, means = real("tvsum50_effnetlite0.h5", spread="nearest")
    steps = [len(truth.picks) for truth in truths]

    def row(scores: list[np.ndarray]) -> SummaryScores:
        return mean_scores([score(s, truth, knapsack=table) for s, truth in zip(scores, truths)])

    constant = row([constant_scores(n) for n in steps])
    assert (round(100 * constant.f1, 1), math.isnan(constant.tau), math.isnan(constant.rho)) == (57.2, True, True)
    assert in_table(row([centre_scores(n) for n in steps])) == (51.5, 0.1, 0.13)
    assert in_table(row(means)) == (63.5, 0.378, 0.473)
    chance = row([random_scores(n, seed) for seed, n in enumerate(steps)])
    assert 0.47 < chance.f1 < 0.53
    assert abs(chance.tau) < 0.03


def test_summe_baselines_take_the_best_user() -> None:
    truths, means = real("summe14_dino_vitb16.h5", how="max")

    def row(scores: list[np.ndarray]) -> SummaryScores:
        return mean_scores([score(s, truth, knapsack=table) for s, truth in zip(scores, truths)])

    assert in_table(mean_scores([human_scores(truth) for truth in truths])) == (58.1, 0.308, 0.343)
    assert round(100 * row([constant_scores(len(truth.picks)) for truth in truths]).f1, 1) == 43.7
    assert in_table(row([centre_scores(len(truth.picks)) for truth in truths])) == (40.4, 0.055, 0.086)
    assert in_table(row(means)) == (66.8, 1.0, 1.0)
