"""What a classifier makes of all that a backbone saw of a clip: (N, C, T, P), C numbers at T times of P places."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.errors import RecipeError

Head = Literal["linear", "motion", "changes", "attentive"]
PARTS = 3  # of a clip: whether a change comes early or late
THERE = 0.5  # the weight of what is there beside what changes, if nothing else is said
BASE = 10_000.0  # of the wavelengths of positions, as in Vaswani et al. 2017


def make_pool(head: Head, channels: int, width: int, places: int, there: float = THERE) -> Pool:
    """The part of a head before its classifier; `width` is the attentive one's (0: as many as there are channels),
    `there` that of changes. Of `places` the backbone has so many, whatever a clip's size (0: that depends on it)."""
    if head == "attentive":
        return Attentive(channels, width or channels)
    if head == "changes":
        if not places:
            raise RecipeError(
                "the head 'changes' tells places apart, and this backbone has no fixed number of them",
                where="[task] head",
                expected="linear, motion or attentive; or the backbone frames, with a grid",
            )
        return Changes(channels, places, there)
    return Motion(channels) if head == "motion" else Mean(channels)


def as_places(features: Tensor) -> Tensor:
    """A backbone's features as (N, C, T, P): maps (N, C, T, H, W), or tokens (N, C, T)."""
    return features.flatten(3) if features.ndim > 3 else features[..., None]


class Pool(nn.Module):
    """(N, C, T, P) to (N, `width`)."""

    width: int


class Mean(Pool):
    """The mean over times and places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = channels

    def forward(self, seen: Tensor) -> Tensor:
        return seen.flatten(2).mean(2)


class Motion(Pool):
    """What is there and what changes: of each channel the mean, the mean step from one time to the next, whatever its
    sign, at the same place, and how much more of it there is late than early. Each number is then brought to mean 0 and
    deviation 1 over the clips, by a batch norm that has nothing to learn: what all clips have in common says nothing,
    and changes are much smaller than what changes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = 3 * channels
        self.norm = nn.BatchNorm1d(self.width, affine=False)

    def forward(self, seen: Tensor) -> Tensor:
        times = seen.shape[2]
        steps = (seen[:, :, 1:] - seen[:, :, :-1]).abs() if times > 1 else torch.zeros_like(seen)
        late = torch.linspace(-1, 1, times, device=seen.device, dtype=seen.dtype)[:, None] * seen
        numbers = torch.cat([part.flatten(2).mean(2) for part in (seen, steps, late)], dim=1)
        normed: Tensor = self.norm(numbers)
        return normed


class Steady(nn.BatchNorm1d):
    """A batch norm with nothing to learn, which goes by all that it has seen in training as well: the statistics of a
    batch are so rough, where it is of a few clips, that a classifier would learn from other numbers than it is asked
    with."""

    def __init__(self, width: int) -> None:
        super().__init__(width, affine=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.training and self.track_running_stats:
            self._see(input)
        return F.batch_norm(input, self.running_mean, self.running_var, eps=self.eps)

    @torch.no_grad()
    def _see(self, input: Tensor) -> None:
        """Of the first batches a plain average, so that nothing is left of how it was initialised."""
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        assert isinstance(mean, Tensor)
        assert isinstance(var, Tensor)
        assert isinstance(count, Tensor)
        rate = 1 / count.add_(1)
        rate = rate if self.momentum is None else rate.clamp(min=self.momentum)
        mean.add_((input.mean(0) - mean) * rate)  # lerp_ has no rule for vmap
        if len(input) > 1:
            var.add_((input.var(0) - var) * rate)


class Changes(Pool):
    """How much changes, where and when: of each channel at each place the mean step from one time to the next, whatever
    its sign, in each part of the clip; and what is there, its mean. Each number is brought to mean 0 and deviation 1
    over the clips. Then what is `there` weighs half as much, if nothing else is said: a frozen network knows rooms and
    clothes best, and of few clips a classifier would learn those. All is brought to a length of about 1, so that the
    same learning rate fits any number of places and channels."""

    def __init__(self, channels: int, places: int, there: float = THERE) -> None:
        super().__init__()
        self.there = there
        self.width = (PARTS + 1) * channels * places
        self.norm = Steady(self.width)

    def forward(self, seen: Tensor) -> Tensor:
        steps = (seen[:, :, 1:] - seen[:, :, :-1]).abs() if seen.shape[2] > 1 else torch.zeros_like(seen)
        changes = torch.einsum("nctp,kt->nckp", steps, shares(steps.shape[2], PARTS, seen)).flatten(1)
        normed: Tensor = self.norm(torch.cat([changes, seen.mean(2).flatten(1)], dim=1))
        moving, there = normed.split([changes.shape[1], self.width - changes.shape[1]], dim=1)
        return torch.cat([moving, self.there * there], dim=1) / math.sqrt(self.width)


def shares(times: int, parts: int, like: Tensor) -> Tensor:
    """(parts, times): the weights by which the mean of each of equal parts of the times is taken. Where times cannot be
    shared out evenly, parts overlap; where there are fewer, one is in several parts."""
    part, time = torch.arange(parts, device=like.device)[:, None], torch.arange(times, device=like.device)
    first, stop = part * times // parts, ((part + 1) * times + parts - 1) // parts
    inside = ((first <= time) & (time < stop)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


class Attentive(Pool):
    """V-JEPA's attentive probe (Bardes et al. 2024): one learned query looks at all places of all times by
    cross-attention, without an output projection, and goes through an MLP, each with a residual. Before it, places are
    normed, brought to `width` numbers and, since a backbone may see every frame alone, told when and where they are."""

    def __init__(self, channels: int, width: int, heads: int = 0) -> None:
        super().__init__()
        self.width = width
        self.heads = heads or next(n for n in (8, 4, 2, 1) if width % n == 0)
        self.norm = nn.LayerNorm(channels)
        self.narrow = nn.Identity() if width == channels else nn.Linear(channels, width)
        self.query = nn.Parameter(torch.empty(1, 1, width))
        self.before = nn.LayerNorm(width)
        self.ask, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.after = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        nn.init.trunc_normal_(self.query, std=0.02)

    def forward(self, seen: Tensor) -> Tensor:
        n, _, times, places = seen.shape
        tokens = self.narrow(self.norm(seen.flatten(2).transpose(1, 2)))
        tokens = self.before(tokens + self._when_and_where(times, places, tokens))
        query = self.query.expand(n, 1, self.width)
        asked, keys, values = (self._by_head(x) for x in (self.ask(query), self.key(tokens), self.value(tokens)))
        found = F.scaled_dot_product_attention(asked, keys, values).transpose(1, 2).reshape(n, 1, self.width)
        query = query + found
        return (query + self.mlp(self.after(query)))[:, 0]

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def _when_and_where(self, times: int, places: int, like: Tensor) -> Tensor:
        """Half of the numbers tell the time, half the place."""
        half = self.width // 2
        when, where = waves(times, half, like), waves(places, self.width - half, like)
        both = (when[:, None].expand(times, places, half), where.expand(times, places, self.width - half))
        return torch.cat(both, dim=2).flatten(0, 1)


def waves(count: int, width: int, like: Tensor) -> Tensor:
    """Positions 0 to count - 1 as (count, width) sines, then cosines, of falling frequency."""
    half = width // 2
    numbers = torch.arange(max(half, 1), device=like.device, dtype=like.dtype)
    rate = torch.exp(-math.log(BASE) * numbers / max(half, 1))
    angles = torch.arange(count, device=like.device, dtype=like.dtype)[:, None] * rate
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width], (0, width - min(2 * len(rate), width)))
