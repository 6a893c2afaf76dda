"""Measures of moment retrieval: by hand, at the boundary, and against the paper's printed table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedreel.errors import DataError
from fedreel.tasks.moments.analysis import chosen
from fedreel.tasks.moments.metrics import (
    CVAL_WEIGHTS,
    best_mean,
    clock,
    cval_score,
    iou,
    prior_only,
    recalls,
    rounds_to_target,
)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 10), (0, 10), 1.0),
        ((0, 10), (5, 15), 5 / 15),
        ((2, 4), (0, 10), 0.2),
        ((0, 2), (2, 4), 0.0),  # they touch
        ((0, 1), (3, 4), 0.0),  # the gap between them is no overlap, not a negative one
        ((3, 3), (3, 3), 0.0),
        ((3, 3), (0, 10), 0.0),
    ],
)
def test_iou_by_hand(a: tuple[float, float], b: tuple[float, float], expected: float) -> None:
    assert iou(np.array(a), np.array(b)) == pytest.approx(expected)
    assert iou(np.array(b), np.array(a)) == pytest.approx(expected)


def test_iou_broadcasts_over_spans() -> None:
    spans = np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 2.0]])
    np.testing.assert_allclose(iou(spans[:, None], spans[None]), [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]])


def test_an_overlap_equal_to_the_threshold_does_not_count() -> None:
    truth = np.tile([[0.0, 10.0]], (3, 1))
    predicted = np.array([[0.0, 5.0], [0.0, 5.01], [0.0, 3.0]])
    assert recalls(predicted, truth) == pytest.approx(
        {"r30": 2 / 3, "r50": 1 / 3, "r70": 0.0, "miou": (0.5 + 0.501 + 0.3) / 3}
    )


def test_recalls_are_the_same_in_seconds_and_in_shares() -> None:
    rng = np.random.default_rng(0)
    a, b = np.sort(rng.random((2, 50, 2)), axis=-1)
    durations = rng.uniform(5, 50, (50, 1))
    assert recalls(a, b) == pytest.approx(recalls(a * durations, b * durations))


def test_spans_that_do_not_match_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        recalls(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(DataError, match="cannot be compared"):
        recalls(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(DataError, match="nothing to score"):
        cval_score(np.zeros(0))


def test_the_validation_score_by_hand() -> None:
    assert sum(CVAL_WEIGHTS.values()) == pytest.approx(1.0)
    assert cval_score(np.array([1.0, 0.95])) == pytest.approx(1.0)
    assert cval_score(np.array([0.6])) == pytest.approx(0.1 + 0.2 + 0.2)
    assert cval_score(np.array([0.7, 0.2])) == pytest.approx((0.1 + 0.2 + 0.2 + 0.1) / 2)  # .7 does not exceed .7
    assert cval_score(np.array([0.0, 0.1])) == 0.0


def test_the_best_constant_answer_is_the_moment_they_all_share() -> None:
    train = np.tile([[0.25, 0.5]], (5, 1))
    assert prior_only(train, grid=8)["miou"] == (0.25, 0.5)
    assert prior_only(train, grid=8, max_share=0.125)["miou"] in {(0.25, 0.375), (0.375, 0.5)}


def test_the_best_constant_answer_depends_on_the_measure_and_no_span_of_the_grid_beats_it() -> None:
    rng = np.random.default_rng(1)
    train = np.sort(rng.beta(1, 2, (60, 2)), axis=1)
    best = prior_only(train, grid=10, thresholds=(0.3, 0.7))
    assert set(best) == {"r30", "r70", "miou"}
    assert len(set(best.values())) > 1
    for name, answer in best.items():
        reached = recalls(np.tile(answer, (60, 1)), train, (0.3, 0.7))[name]
        others = [(i / 10, j / 10) for i in range(10) for j in range(i + 1, 11)]
        assert reached == max(recalls(np.tile(o, (60, 1)), train, (0.3, 0.7))[name] for o in others)


def test_the_clock_gives_the_time_column_of_table_2() -> None:
    rounds = {1: 4, 2: 3, 4: 5, 8: 6, 16: 34}
    times = {groups: clock(n, 16, groups) / clock(34, 16, 16) for groups, n in rounds.items()}
    assert {g: round(t, 2) for g, t in times.items()} == {1: 1.88, 2: 0.71, 4: 0.59, 8: 0.35, 16: 1.0}


def test_a_target_is_reached_by_the_mean_of_three_rounds() -> None:
    curve = [0.1, 0.9, 0.1, 0.4, 0.6, 0.5, 0.7]  # means from round 3 on: .367 .467 .367 .5 .6
    assert rounds_to_target(curve, 0.5) == 6
    assert rounds_to_target(curve, 0.36) == 3
    assert rounds_to_target(curve, 0.55) == 7
    assert rounds_to_target(curve, 0.61) is None
    assert rounds_to_target(curve, 0.5, window=1) == 2
    assert rounds_to_target([0.9, 0.9], 0.5) is None  # not yet three rounds


def test_the_best_of_three_in_a_row_by_hand() -> None:
    assert best_mean([0.0, 0.9, 0.3, 0.3, 0.6]) == pytest.approx(0.5)
    assert best_mean([0.2, 0.4]) == pytest.approx(0.3)


def test_the_round_that_the_validation_set_chooses(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for number, (score, hits) in enumerate([(0.2, 0.9), (0.5, 0.3), (0.5, 0.4)], 1):
        rows.append({"round": number, "phase": "validation", "score": score})
        rows.append({"round": number, "phase": "test", "metrics": dict.fromkeys(("r30", "r50", "r70", "miou"), hits)})
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert chosen(tmp_path) == dict.fromkeys(("r30 chosen", "r50 chosen", "r70 chosen", "miou chosen"), 0.3)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["phase"] == "test"))
    assert chosen(tmp_path) == {}
