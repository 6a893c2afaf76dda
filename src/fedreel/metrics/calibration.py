"""How far a classifier's confidence can be believed, from sums that can be added up over owners: the temperature under
which it is most believable, the expected calibration error, and whether a test was better than guessing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

TEMPERATURES = tuple(2 ** (k / 4) for k in range(-16, 25))  # 1/16 to 64, four for every doubling
BINS = 15  # of confidence, equally wide
MANY = 100_000  # samples
SURE = 0.975  # a result is better than guessing if luck alone would give less with this probability


def loss_sums(logits: Tensor, labels: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
    """The summed negative log-likelihood of the labels at each temperature, of logits (N, C): (temperatures,)."""
    exact, target = logits.double().cpu(), labels.cpu()
    return torch.stack([F.cross_entropy(exact / t, target, reduction="sum") for t in temperatures])


def doubts(temperatures: Sequence[float] = TEMPERATURES) -> Tensor:
    """What to add to summed losses so that few samples do not decide alone: the negative logarithm of a normal density
    of the temperature's logarithm around 0, deviation 1. A hundred samples outweigh it."""
    return torch.tensor(temperatures, dtype=torch.float64).log().square() / 2


def best_temperature(sums: Sequence[float], temperatures: Sequence[float] = TEMPERATURES) -> float:
    """Where the summed losses are least. Between temperatures of the grid by the parabola, over the logarithm of the
    temperature, through the least sum and its neighbours; never beyond the grid."""
    least = min(range(len(sums)), key=sums.__getitem__)
    if least in (0, len(sums) - 1):
        return temperatures[least]
    below, at, above = sums[least - 1 : least + 2]
    bend = below - 2 * at + above
    step = math.log(temperatures[least + 1] / temperatures[least])
    return temperatures[least] * math.exp(step * (below - above) / (2 * bend) if bend > 0 else 0.0)


def binned(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """For each bin of confidence how many samples are in it, the sum of their confidences, and how many were right:
    (BINS, 3). A bin is open at its lower end: a confidence of exactly 1/15 is in the first."""
    sure, said = (logits.double().cpu() / temperature).softmax(1).max(1)
    right = (said == labels.cpu()).double()
    where = (sure * BINS).ceil().long().clamp(1, BINS) - 1
    sums = torch.zeros(BINS, 3, dtype=torch.float64)
    return sums.index_add_(0, where, torch.stack([torch.ones_like(sure), sure, right], 1))


def expected_calibration_error(bins: Tensor) -> float:
    """The mean distance between confidence and share of right answers, bin by bin, weighed by samples; 0 of none."""
    n = float(bins[:, 0].sum())
    return float((bins[:, 1] - bins[:, 2]).abs().sum()) / n if n else 0.0


def binomial_tail(right: int, samples: int, chance: float) -> float:
    """The probability of so many right answers or more, if each is right by chance."""
    if right <= 0 or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    if samples > MANY:  # the normal distribution is as good there, and no sum over all of them
        return 0.5 * math.erfc((right - 0.5 - samples * chance) / math.sqrt(2 * samples * chance * (1 - chance)))
    whole, odds = math.lgamma(samples + 1), (math.log(chance), math.log1p(-chance))
    terms = [
        whole - math.lgamma(k + 1) - math.lgamma(samples - k + 1) + k * odds[0] + (samples - k) * odds[1]
        for k in range(right, samples + 1)
    ]
    most = max(terms)
    return min(1.0, math.exp(most) * math.fsum(math.exp(term - most) for term in terms))


def beats_chance(right: int, samples: int, chance: float) -> bool:
    """Whether the exact 95 % interval of the share of right answers (Clopper and Pearson) lies above chance."""
    return binomial_tail(right, samples, chance) <= 1 - SURE


def beats_guesses(gain: float, squares: float) -> bool:
    """Whether scores that are no yes or no are better than guesses: from the sum of the differences, sample by sample,
    and that of their squares. If guessing were as good, the former would have the latter's root as standard error."""
    return gain > 1.96 * math.sqrt(squares)
