"""Temperatures, calibration errors and guessing: closed forms, hand-worked sums, brute force."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedreel.metrics.calibration import (
    BINS,
    TEMPERATURES,
    beats_chance,
    beats_guesses,
    best_temperature,
    binned,
    binomial_tail,
    doubts,
    expected_calibration_error,
    loss_sums,
)


def believable(samples: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn with the probabilities that these say."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=draw, dtype=torch.float64)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=draw).flatten()


def test_logits_that_say_the_truth_keep_their_temperature() -> None:
    logits, labels = believable(20_000, 5)
    assert best_temperature(loss_sums(logits, labels).tolist()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("factor", [0.25, 2.0, 8.0])
def test_logits_times_a_factor_are_brought_back_by_it(factor: float) -> None:
    logits, labels = believable(500, 4)
    before, after = (best_temperature(loss_sums(x, labels).tolist()) for x in (logits, factor * logits))
    assert after == pytest.approx(factor * before, rel=1e-9)  # the grid has this factor


def test_the_temperature_is_that_of_a_fine_search() -> None:
    logits, labels = believable(300, 3, seed=4)
    fine = [0.2 * 1.002**k for k in range(1600)]
    sums = loss_sums(3 * logits, labels, fine)
    found = best_temperature(loss_sums(3 * logits, labels).tolist())
    assert found == pytest.approx(fine[int(sums.argmin())], rel=0.01)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0, 9.0])
def test_a_temperature_of_other_samples_lowers_the_error_of_what_is_too_sure_or_not_sure_enough(factor: float) -> None:
    (fitted, labels), (judged, truth) = believable(1000, 5, seed=1), believable(1000, 5, seed=2)
    found = best_temperature((loss_sums(factor * fitted, labels) + doubts()).tolist())
    before, after, least = (
        expected_calibration_error(binned(logits, truth, t))
        for logits, t in ((factor * judged, 1.0), (factor * judged, found), (judged, 1.0))
    )
    assert before > 0.1
    assert after < 0.5 * before
    assert after < least + 0.02  # that of logits which say the truth


def test_a_temperature_stays_on_the_grid() -> None:
    logits, labels = torch.tensor([[3.0, 0.0]] * 4), torch.tensor([1, 1, 1, 1])
    assert best_temperature(loss_sums(logits, labels).tolist()) == TEMPERATURES[-1]
    assert best_temperature(loss_sums(logits, 1 - labels).tolist()) == TEMPERATURES[0]


def test_a_few_samples_do_not_decide_a_temperature_alone_and_many_do() -> None:
    one = loss_sums(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert best_temperature(one.tolist()) == TEMPERATURES[0]
    assert 0.4 < best_temperature((one + doubts()).tolist()) < 1
    logits, labels = believable(2000, 3)
    many = loss_sums(4 * logits, labels)
    assert best_temperature((many + doubts()).tolist()) == pytest.approx(best_temperature(many.tolist()), rel=0.01)


def test_losses_are_those_of_cross_entropy() -> None:
    logits, labels = believable(7, 3)
    expected = [float(F.cross_entropy(logits / t, labels, reduction="sum")) for t in TEMPERATURES]
    assert loss_sums(logits, labels).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_calibration_error_worked_by_hand() -> None:
    def sure(share: float) -> list[float]:
        return [math.log(share / (1 - share)), 0.0]

    logits = torch.tensor([sure(0.9), sure(0.9), sure(0.6)], dtype=torch.float64)
    bins = binned(logits, torch.tensor([0, 1, 0]), 1.0)
    assert bins[13].tolist() == pytest.approx([2, 1.8, 1])  # 0.867 to 0.933
    assert bins[8].tolist() == pytest.approx([1, 0.6, 1])  # 0.533 to 0.6: closed at its upper end
    assert expected_calibration_error(bins) == pytest.approx((0.8 + 0.4) / 3)


def test_of_no_samples_there_is_no_error() -> None:
    assert expected_calibration_error(torch.zeros(BINS, 3)) == 0


def test_sums_of_owners_are_those_of_all_samples() -> None:
    logits, labels = believable(101, 4)
    owners = [slice(0, 3), slice(3, 50), slice(50, 101)]
    for whole, parts in (
        (loss_sums(logits, labels), [loss_sums(logits[o], labels[o]) for o in owners]),
        (binned(logits, labels, 1.7), [binned(logits[o], labels[o], 1.7) for o in owners]),
    ):
        torch.testing.assert_close(torch.stack(parts).sum(0), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("samples", "chance"), [(1, 0.5), (5, 0.5), (12, 0.125), (40, 0.3)])
def test_the_binomial_tail_is_the_sum_of_its_terms(samples: int, chance: float) -> None:
    for right in range(samples + 1):
        terms = [math.comb(samples, k) * chance**k * (1 - chance) ** (samples - k) for k in range(right, samples + 1)]
        assert binomial_tail(right, samples, chance) == pytest.approx(sum(terms), rel=1e-9)


def test_nine_coins_of_ten_are_not_luck_and_eight_may_be() -> None:
    assert binomial_tail(8, 10, 0.5) == pytest.approx(56 / 1024)
    assert not beats_chance(8, 10, 0.5)
    assert beats_chance(9, 10, 0.5)
    assert not beats_chance(0, 10, 0.1)
    assert not beats_chance(10, 10, 1.0)  # all are of one class


def test_scores_beat_guesses_if_luck_would_not_take_them_so_far() -> None:
    assert not beats_guesses(1.9, 1.0)
    assert beats_guesses(2.0, 1.0)
    assert not beats_guesses(-3.0, 1.0)
    assert not beats_guesses(0.0, 0.0)
