"""Moments as a set of answers (centre, width), some of which are right: matching, overlap and the losses of QD-DETR.

Every question here has one moment, so the cheapest matching of answers to moments is that of the one cheapest answer.
Weights are those of the authors' program, as read in its sources."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

L1, GIOU, LABEL = 10.0, 1.0, 4.0  # weights in the cost of a match and in the loss
WRONG = 0.1  # weight of answers that are not matched: there are many of them
MARGIN, TEMPERATURE = 0.2, 0.5  # of saliencies


class Detected(NamedTuple):
    """For B questions the Q answers after each layer of the decoder. Shares are of the video's length."""

    spans: Tensor  # (layers, B, Q, 2) centre and width
    logits: Tensor  # (layers, B, Q) of being right
    unfit: Tensor | None = None  # (B, T) in training: saliencies with the sentence of another question of the batch
    other: Tensor | None = None  # (B,) whether that is another sentence


def answers(detected: Detected) -> tuple[Tensor, Tensor]:
    """Start and end (B, Q, 2) of the last layer's answers, within the video, and their logits (B, Q)."""
    return ends(detected.spans[-1]).clamp(0.0, 1.0), detected.logits[-1]


def ends(spans: Tensor) -> Tensor:
    """(centre, width) as (start, end)."""
    centre, half = spans[..., 0], spans[..., 1] / 2
    return torch.stack([centre - half, centre + half], dim=-1)


def giou(a: Tensor, b: Tensor) -> Tensor:
    """Generalised overlap of (start, end) pairs, -1 to 1: intersection over union, less the share of the hull of both
    that neither covers."""
    common = (torch.minimum(a[..., 1], b[..., 1]) - torch.maximum(a[..., 0], b[..., 0])).clamp_min(0.0)
    hull = torch.maximum(a[..., 1], b[..., 1]) - torch.minimum(a[..., 0], b[..., 0])
    union = (a[..., 1] - a[..., 0]) + (b[..., 1] - b[..., 0]) - common
    least = torch.finfo(hull.dtype).eps
    return common / union.clamp_min(least) - (hull - union) / hull.clamp_min(least)


def costs(spans: Tensor, logits: Tensor, truth: Tensor) -> Tensor:
    """What it costs to take each answer (..., B, Q) for the true moment (B, 2), both as (centre, width)."""
    apart = (spans - truth.unsqueeze(-2)).abs().sum(-1)
    return L1 * apart - GIOU * giou(ends(spans), ends(truth).unsqueeze(-2)) - LABEL * logits.sigmoid()


def detection_loss(detected: Detected, saliency: Tensor, times: Tensor, inside: Tensor) -> Tensor:
    """`times` (B, 2) are start and end of the moments in shares, `inside` (B, T) is 1 where positions are. Where none
    is, the moment lies elsewhere: no answer is right, and nothing is to be located."""
    present = inside.amax(1)
    truth = torch.stack([times.mean(-1), times[:, 1] - times[:, 0]], dim=-1)
    best = costs(detected.spans, detected.logits, truth).detach().argmin(-1, keepdim=True)  # (layers, B, 1)
    matched = detected.spans.gather(-2, best.unsqueeze(-1).expand(*best.shape, 2)).squeeze(-2)
    apart = (matched - truth).abs().mean(-1)
    overlap = 1 - giou(ends(matched), times)
    right = torch.zeros_like(detected.logits).scatter(-1, best, 1.0) * present.unsqueeze(-1)
    label = F.binary_cross_entropy_with_logits(detected.logits, right, WRONG + (1 - WRONG) * right)
    layers = len(detected.spans)
    apart, overlap = (part @ present / present.sum().clamp_min(1.0) for part in (apart, overlap))
    located = (L1 * apart + GIOU * overlap).sum() + layers * LABEL * label
    return located + saliency_loss(saliency, inside, detected.unfit, detected.other)


def saliency_loss(saliency: Tensor, inside: Tensor, unfit: Tensor | None, other: Tensor | None) -> Tensor:
    """Positions inside the moment are to be more salient than those outside, by a margin; more than all the rest, the
    video with another sentence included; and with another sentence nothing is to be salient."""
    outside = 1 - inside
    pairs = inside.unsqueeze(2) * outside.unsqueeze(1)
    short = (MARGIN + saliency.unsqueeze(1) - saliency.unsqueeze(2)).relu()
    margin = ((short * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp_min(1.0)).mean()
    if unfit is None or other is None:
        return margin + _contrast(saliency, saliency, inside)
    weight = other.to(saliency.dtype)
    hidden = unfit.masked_fill(~other.unsqueeze(1), torch.finfo(unfit.dtype).min)
    refused = (F.softplus(unfit).mean(1) * weight).sum() / weight.sum().clamp_min(1.0)
    return margin + _contrast(saliency, torch.cat([saliency, hidden], dim=1), inside) + refused


def _contrast(saliency: Tensor, among: Tensor, inside: Tensor) -> Tensor:
    """-log of the share that positions inside have among all, the mean over them."""
    log_shares = saliency / TEMPERATURE - (among / TEMPERATURE).logsumexp(1, keepdim=True)
    return -((log_shares * inside).sum(1) / inside.sum(1).clamp_min(1.0)).mean()
