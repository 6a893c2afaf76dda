"""Ways to make one model of many. A mean streams, with one accumulator; robust rules need all updates at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedreel.config import RoundConfig
from fedreel.core.update import Update, expect
from fedreel.core.weights import Layout, Weights
from fedreel.errors import RecipeError, RunError, nearest


def check_weighing(by: str, sends: Iterable[str]) -> None:
    """Raise, before anybody trains, if models cannot be weighed by this."""
    known = ["equal", *sends]
    if by not in known:
        raise RecipeError(
            f"clients of this task and method do not send '{by}', so their models cannot be weighed by it",
            where="[method] weight_by",
            hint=nearest(by, known),
        )


class Aggregator(Protocol):
    """Takes models one by one; `value` is the aggregate. `needs_all` warns that memory grows with the cohort."""

    needs_all: ClassVar[bool]

    def add(self, weights: Weights, weight: float = 1.0) -> None: ...

    def add_log(self, weights: Weights, log_weight: float) -> None: ...

    @property
    def value(self) -> Weights: ...


def make_aggregator(config: RoundConfig, max_weight: float = 0.0) -> Aggregator:
    """The rule that the recipe's [round] section names; where clients are not trusted, no model counts for more than
    `max_weight` times the middle one."""
    if config.aggregation == "median":
        return Median()
    if config.aggregation == "trimmed-mean":
        return TrimmedMean(config.trim)
    if config.aggregation == "krum":
        return Krum(config.byzantine)
    return CappedMean(max_weight) if max_weight else Mean()


class Average:
    """What a server learns of a round's updates in sums: the mean model, and means of the numbers and of the tensors in
    the model's shape that came with it, all weighed alike."""

    def __init__(self, by: str, make: Callable[[], Aggregator]) -> None:
        """`make` gives an empty mean for each group of tensors."""
        self.by, self._make = by, make
        self._model = make()
        self._tensors: dict[str, Aggregator] = {}
        self._log_weights: list[float] = []
        self._most = getattr(self._model, "most", 0.0)
        self.numbers: dict[str, dict[str, float]] = {}  # by client

    def add(self, update: Update) -> None:
        weight = self._log_weight(update)
        self._model.add_log(update.means.get(self.by, update.weights), weight)
        for name, tensor in update.tensors.items():
            self._tensors.setdefault(name, self._make()).add_log(expect(tensor, Weights, f"'{name}'"), weight)
        self._log_weights.append(weight)
        self.numbers[update.client] = update.numbers

    @property
    def weights(self) -> Weights:
        """The mean model."""
        return self._model.value

    @property
    def names(self) -> list[str]:
        """Of the tensors that clients sent beside their models."""
        return [*self._tensors]

    def tensors(self, name: str) -> Weights:
        """The mean of what clients sent under this name."""
        return self._tensors[name].value

    @property
    def count(self) -> int:
        """How many clients took part."""
        return len(self._log_weights)

    def number(self, name: str) -> float:
        """The mean of a number. Where no model counts for more than `most` times the middle one, no client's number
        is farther from 0 than so many times the middle one either."""
        weights, values = self._log_weights, [n[name] for n in self.numbers.values()]
        if self._most:
            bound = self._most * sorted(map(abs, values))[(len(values) - 1) // 2]
            weights, values = capped(weights, self._most), [max(-bound, min(v, bound)) for v in values]
        highest = max(weights)
        shares = [math.exp(w - highest) for w in weights]
        return sum(s * v for s, v in zip(shares, values)) / sum(shares)

    def _log_weight(self, update: Update) -> float:
        if self.by == "equal":
            return 0.0
        if self.by == "loss":
            return -update.loss  # a softmax of -loss
        value = update[self.by]
        return math.log(value) if value > 0 else -math.inf


class Mean:
    """Weighted mean as a running mean: m += (w / W)(x - m). Equal models are an exact fixed point of it. Half
    precision accumulates in float32; integer tensors are averaged in float64 and rounded."""

    needs_all: ClassVar[bool] = False

    def __init__(self) -> None:
        self._sum: dict[torch.dtype, Tensor] = {}
        self._layout: Layout | None = None
        self._log_total = -math.inf
        self._taken = False

    @property
    def total(self) -> float:
        """Sum of the weights so far."""
        return math.exp(self._log_total)

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        """Weights need not sum to one; zero counts for nothing."""
        if not weight >= 0 or math.isinf(weight):
            raise ValueError(f"an aggregation weight must be finite and not negative, found {weight}")
        self.add_log(weights, math.log(weight) if weight > 0 else -math.inf)

    def add_log(self, weights: Weights, log_weight: float) -> None:
        """Add with weight exp(log_weight). With log_weight = -loss this is a softmax of -loss, safe for any loss."""
        if self._taken:
            raise RuntimeError("this mean was already taken; start a new one")
        if log_weight == -math.inf:
            return
        first = self._layout is None
        if self._layout is not None and weights.layout != self._layout:
            raise ValueError("models with other tensors than the first one's cannot join its mean")
        self._log_total = log_weight if first else _log_add(self._log_total, log_weight)
        share = math.exp(log_weight - self._log_total)
        for dtype, flat in weights.flat.items():
            wide = _wide(dtype)
            if first:
                self._sum[dtype] = flat.to(wide, copy=True)
            else:
                self._sum[dtype].lerp_(flat if wide == dtype else flat.to(wide), share)
        self._layout = weights.layout

    @property
    def value(self) -> Weights:
        if self._layout is None:
            raise ValueError("the mean of no updates is undefined: nothing with a weight above zero was added")
        self._taken = True
        return Weights(self._layout, {d: narrowed(s, d) for d, s in self._sum.items()})


def capped(log_weights: Sequence[float], most: float) -> list[float]:
    """Weights, none of them above `most` times the middle one, the lower one of two."""
    counted = sorted(w for w in log_weights if w > -math.inf)
    bound = counted[(len(counted) - 1) // 2] + math.log(most) if counted else math.inf
    return [min(w, bound) for w in log_weights]


class _Collected:
    """Base of the rules that must see all updates before they can decide."""

    needs_all: ClassVar[bool] = True

    def __init__(self) -> None:
        self.updates: list[Weights] = []

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        """These rules count clients as equals: `weight` only excludes an update when it is zero."""
        self.add_log(weights, math.log(weight) if weight > 0 else -math.inf)

    def add_log(self, weights: Weights, log_weight: float) -> None:
        if log_weight > -math.inf:
            self.updates.append(weights)

    def _stacked(self) -> dict[torch.dtype, Tensor]:
        if not self.updates:
            raise ValueError("a robust aggregate of no updates is undefined")
        return {d: torch.stack([u.flat[d].to(_wide(d)) for u in self.updates]) for d in self.updates[0].flat}

    def _pack(self, flat: dict[torch.dtype, Tensor]) -> Weights:
        return Weights(self.updates[0].layout, {d: narrowed(f, d) for d, f in flat.items()})


class CappedMean:
    """The weighted mean in which no model counts for more than `most` times the middle one: what a client says of its
    samples, or of its loss, is its word alone. Where no weight is above that, it is `Mean` to the bit."""

    needs_all: ClassVar[bool] = True

    def __init__(self, most: float) -> None:
        self.most = most
        self._updates: list[tuple[Weights, float]] = []

    def add(self, weights: Weights, weight: float = 1.0) -> None:
        self.add_log(weights, math.log(weight) if weight > 0 else -math.inf)

    def add_log(self, weights: Weights, log_weight: float) -> None:
        self._updates.append((weights, log_weight))

    @property
    def value(self) -> Weights:
        mean = Mean()
        for (weights, _), log_weight in zip(self._updates, capped([w for _, w in self._updates], self.most)):
            mean.add_log(weights, log_weight)
        return mean.value


class Median(_Collected):
    """Coordinate-wise median (mean of the two middle values for an even number)."""

    @property
    def value(self) -> Weights:
        return self._pack({d: _middle_mean(s, (len(s) - 1) // 2) for d, s in self._stacked().items()})


class TrimmedMean(_Collected):
    """Coordinate-wise mean without the lowest and the highest `trim` share of the values."""

    def __init__(self, trim: float = 0.2) -> None:
        super().__init__()
        if not 0 <= trim < 0.5:
            raise ValueError(f"trim must be at least 0 and below 0.5, found {trim}")
        self.trim = trim

    @property
    def value(self) -> Weights:
        return self._pack({d: _middle_mean(s, int(self.trim * len(s))) for d, s in self._stacked().items()})


class Krum(_Collected):
    """The update closest to its n - byzantine - 2 nearest others (Blanchard et al. 2017); mean of the `keep` best."""

    def __init__(self, byzantine: int = 1, keep: int = 1) -> None:
        super().__init__()
        self.byzantine, self.keep = byzantine, keep

    def chosen(self) -> list[int]:
        """Indices of the kept updates, best first."""
        n = len(self.updates)
        if n < self.byzantine + 3:
            raise RunError(
                f"krum cannot withstand {self.byzantine} bad clients among so few",
                where="[round] byzantine",
                expected=f"at least {self.byzantine + 3} updates",
                found=str(n),
                hint="sample more clients, or use median",
            )
        points = torch.cat([s for d, s in self._stacked().items() if d.is_floating_point], dim=1).double()
        square = torch.cdist(points, points).square_()
        nearest = square.sort(dim=1).values[:, 1 : n - self.byzantine - 1]
        return nearest.sum(dim=1).argsort(stable=True)[: self.keep].tolist()

    @property
    def value(self) -> Weights:
        mean = Mean()
        for i in self.chosen():
            mean.add(self.updates[i])
        return mean.value


def _log_add(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high))


def _wide(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype.itemsize < 4 else dtype


def narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Wide numbers as a dtype has them: integers rounded, not cut."""
    if dtype == torch.bool:
        return values > 0.5
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)


def _middle_mean(stack: Tensor, cut: int) -> Tensor:
    return stack.sort(dim=0).values[cut : len(stack) - cut].mean(dim=0)
