"""How unlike a sample is to those that a model learned from, from sums that can be added up over owners."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RATE = 0.05  # of held-out samples that may be called unlike
TOO_OFTEN = 0.05  # false alarms: with fewer than 19 held-out samples, nothing is called unlike
WIDTH = 96  # numbers of a look; longer ones are projected
STEPS = 16  # of the histogram of distances, for every doubling
LEAST, MOST = -6, 14  # doublings that it reaches over: from 1/64 to 16,384


@dataclass(frozen=True)
class Sums:
    """How many looks there are, their sum (D,), and that of their products (D, D)."""

    samples: float
    total: Tensor
    products: Tensor

    @classmethod
    def of(cls, looks: Tensor) -> Sums:
        exact = looks.double().cpu()
        return cls(float(len(exact)), exact.sum(0), exact.T @ exact)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.samples + other.samples, self.total + other.total, self.products + other.products)

    @property
    def possible(self) -> bool:
        """Whether any samples have these sums: then (samples, total; total, products) has no direction below 0."""
        top = torch.cat([torch.tensor([self.samples], dtype=torch.float64), self.total])[None]
        whole = torch.cat([top, torch.cat([self.total[:, None], self.products], 1)])
        turned = (whole - whole.T).abs().max()
        return bool(turned <= 1e-6 * whole.abs().max() and torch.linalg.eigvalsh(whole)[0] >= -1e-6 * whole.trace())

    def space(self) -> Space:
        """Where looks are compared: each number in its own deviations, and what they have in common taken out. As if
        as many samples more as a look has numbers had shown that they have nothing in common: of few samples, what
        they seem to have is luck."""
        mean = self.total / self.samples
        covariance = self.products / self.samples - torch.outer(mean, mean)
        deviation = covariance.diagonal().clamp(min=0).sqrt()
        scale = torch.where(deviation > 1e-6 * (1 + mean.abs()), deviation, 1.0)
        width = len(mean)
        share = width / (width + self.samples)
        common = (1 - share) * covariance / torch.outer(scale, scale) + share * torch.eye(width, dtype=torch.float64)
        return Space(mean, torch.linalg.inv(torch.linalg.cholesky(common)) / scale)


@dataclass(frozen=True)
class Space:
    """The mean look, and the matrix after which distances from it count the same in all directions."""

    mean: Tensor
    whitening: Tensor

    def distances(self, looks: Tensor) -> Tensor:
        """Of each look (N, D) from the mean; about 1 of those that the space is made of."""
        away = (looks.double().cpu() - self.mean) @ self.whitening.T
        return away.square().mean(1).sqrt()


def sequence_look(rows: Tensor) -> Tensor:
    """What sequences (N, T, D) of vectors look like: their mean and deviation over time, (N, 2 D)."""
    return torch.cat([rows.mean(1), rows.std(1, correction=0)], 1)


def projected(looks: Tensor, width: int = WIDTH) -> Tensor:
    """Looks (N, D) as so many numbers by a fixed random matrix, which keeps distances nearly as they are; those that
    have no more stay as they are."""
    given = looks.shape[1]
    if given <= width:
        return looks.double().cpu()
    drawn = torch.randn(given, width, generator=torch.Generator().manual_seed(given), dtype=torch.float64)
    return looks.double().cpu() @ (drawn / math.sqrt(width))


def histogram(distances: Tensor) -> Tensor:
    """How many distances lie in each step; those beyond either end are in the first and in the last."""
    where = (STEPS * (distances.double().clamp(min=2.0**LEAST).log2() - LEAST)).ceil().long()
    steps = STEPS * (MOST - LEAST)
    return torch.bincount(where.clamp(0, steps), minlength=steps + 1).double()


def threshold(counts: Tensor) -> tuple[float, float] | tuple[None, None]:
    """The distance beyond which a sample is unlike, an end of a step of the histogram, and how often a sample that is
    not unlike would be beyond it: (n + 1) (1 - RATE) of n held-out distances are not or, where there are too few for
    that, all of them, so that one more would be with a probability of 1 / (n + 1). None where that is too often."""
    n = int(counts.sum())
    if 1 / (n + 1) > TOO_OFTEN:
        return None, None
    needed = min(n, math.ceil((n + 1) * (1 - RATE)))
    where = int((counts.cumsum(0) >= needed).nonzero()[0])
    return 2.0 ** (LEAST + where / STEPS), max(RATE, 1 / (n + 1))
