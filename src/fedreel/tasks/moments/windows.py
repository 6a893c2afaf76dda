"""Videos longer than those a model has learned from: overlapping windows, and their answers as one list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedreel.metrics.familiarity import sequence_look
from fedreel.tasks.moments.features import pool_part
from fedreel.tasks.moments.grounding import Grounder
from fedreel.tasks.moments.grounding_heads import OVERLAP, Located
from fedreel.tasks.moments.metrics import iou

LONGER = 1.5  # times as long as the model's own videos: from here on a video is cut into windows
AT_ONCE = 64  # windows that go through the network together


class Found(NamedTuple):
    """Spans (n, 2) in seconds with their scores (n,), logarithms of 0 to 1, the best first; and over equal parts of the
    video the probability (parts,) to be inside."""

    spans: np.ndarray
    scores: np.ndarray
    inside: np.ndarray


def cut(seconds: float, usual: float) -> list[tuple[float, float]]:
    """Start and end of the windows of a video: itself, or `usual` seconds each where it is much longer. Neighbours
    share at least a half, so that what is no longer than that lies whole in one of them."""
    if not 0 < usual * LONGER < seconds:
        return [(0.0, seconds)]
    count = math.ceil((seconds - usual) / (usual / 2) - 1e-9) + 1
    starts = np.linspace(0.0, seconds - usual, count)
    return [(float(start), float(start + usual)) for start in starts]


def answer(
    net: Grounder, rows: np.ndarray, tokens: np.ndarray, windows: Sequence[tuple[float, float]], length: int, top: int
) -> Found:
    """What a model finds in the windows of a video whose features are `rows`: the `top` best of all windows together.
    Of spans that overlap by more than OVERLAP only the best is given."""
    seconds, device = windows[-1][1], next(net.parameters()).device
    parts = [pool_part(rows, window, seconds, length) for window in windows]
    question = torch.from_numpy(tokens)[None].to(device)
    spans, scores, inside = [], [], []
    most = min(top, length * (length + 1) // 2)  # there are no more spans
    for at in range(0, len(parts), AT_ONCE):
        batch = torch.from_numpy(np.stack(parts[at : at + AT_ONCE])).to(device)
        with torch.inference_mode():
            located: Located = net(batch, question.expand(len(batch), *question.shape[1:]))
            shares, found = net.decode(located, most)
            if len(windows) > 1:
                found = found + _beside_others(located, shares)
        spans.append(shares.double().cpu().numpy())
        scores.append(found.double().cpu().numpy())
        inside.append(located.scores.double().sigmoid().cpu().numpy())
    starts = np.array(windows)[:, None, :1]
    times = starts + np.concatenate(spans) * (np.array(windows)[:, None, 1:] - starts)
    kept = _best(times.reshape(-1, 2), np.concatenate(scores).reshape(-1), top)
    return Found(*kept, joined(np.concatenate(inside), windows, seconds))


def joined(inside: np.ndarray, windows: Sequence[tuple[float, float]], seconds: float) -> np.ndarray:
    """For equal parts of the video, each as long as a window's positions, the highest of the windows that hold it."""
    if len(windows) == 1:
        return inside[0]
    length, usual = inside.shape[1], windows[0][1] - windows[0][0]
    middles = (np.arange(math.ceil(length * seconds / usual)) + 0.5) / math.ceil(length * seconds / usual) * seconds
    found = np.zeros(len(middles))
    for values, (start, end) in zip(inside, windows):
        held = (middles >= start) & (middles <= end)
        place = np.minimum(((middles[held] - start) / (end - start) * length).astype(int), length - 1)
        found[held] = np.maximum(found[held], values[place])
    return found


def looks(rows: np.ndarray, windows: Sequence[tuple[float, float]], length: int) -> Tensor:
    """What the windows of a video look like, (windows, D), as videos of the training do."""
    parts = [pool_part(rows, window, windows[-1][1], length) for window in windows]
    return sequence_look(torch.from_numpy(np.stack(parts)))


def _beside_others(located: Located, shares: Tensor) -> Tensor:
    """What makes scores of several windows comparable. Probabilities of spans sum to 1 in each window, whether or not
    anything is there: they count as much as the positions of the span are inside. Others are not made so."""
    if located.start is None:
        return torch.zeros_like(shares[..., 0])
    places = (torch.arange(located.scores.shape[1], device=shares.device) + 0.5) / located.scores.shape[1]
    within = (places >= shares[..., :1]) & (places <= shares[..., 1:])
    mean = (within * located.scores.sigmoid().unsqueeze(1)).sum(-1) / within.sum(-1).clamp_min(1)
    return mean.clamp_min(torch.finfo(mean.dtype).tiny).log()


def _best(spans: np.ndarray, scores: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    order = [i for i in np.argsort(-scores, kind="stable") if scores[i] > -math.inf or math.isnan(scores[i])]
    kept: list[int] = []
    for i in order:
        if len(kept) < top and all(iou(spans[i], spans[j]) <= OVERLAP for j in kept):
            kept.append(int(i))
    return spans[kept], scores[kept]
