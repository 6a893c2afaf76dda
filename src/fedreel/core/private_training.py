"""The local training loop with examples as units (DP-SGD, Abadi et al. 2016): gradients of single examples are clipped,
their sum gets noise. Batches are Poisson samples: each example is in each of them with the same probability."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedreel.config import TrainConfig
from fedreel.core.fused import Fuser
from fedreel.core.optim import Optimizer
from fedreel.core.task import Batch, Examples, Objective, Tensors
from fedreel.core.timing import Times
from fedreel.core.training import Fitted, LossOf, Pause
from fedreel.core.work import OutOfTime
from fedreel.errors import RecipeError

_MOST_BYTES = 256 * 2**20  # of gradients of single examples that lie in memory at once
_LOOKED_AT = 3  # examples, to see whether a batch's loss is the mean of theirs


@dataclass(frozen=True)
class Noise:
    """What one training order draws, all of a secret and a label: who is in a batch, at a `rate`, and normal noise of
    `spread` times the clip on the sum of its gradients."""

    secret: Any
    label: tuple[object, ...]
    spread: float
    clip: float
    rate: float

    def rows(self, count: int, step: int) -> list[int]:
        lots = self.secret.uniform(count, "batch", *self.label, step)
        return [int(i) for i in np.flatnonzero(lots <= self.rate)]

    def on(self, totals: Sequence[Tensor], step: int) -> list[Tensor]:
        """The sums with noise."""
        draws = torch.from_numpy(self.secret.normal(sum(t.numel() for t in totals), "gradient", *self.label, step))
        parts = draws.split([t.numel() for t in totals])
        return [t + (self.spread * self.clip * part).view(t.shape).to(t) for t, part in zip(totals, parts)]


def steps_of(samples: int, config: TrainConfig, epochs: int) -> tuple[float, int]:
    """The probability with which a sample is in a batch, and how many batches there are in so many epochs."""
    return min(1.0, config.batch_size / max(samples, 1)), epochs * max(1, round(samples / config.batch_size))


def fit_privately(
    model: nn.Module,
    task: Objective,
    examples: Examples,
    optimizer: Optimizer,
    config: TrainConfig,
    *,
    noise: Noise,
    steps: int,
    check: bool,
    deadline: float | None = None,
    pause: Pause | None = None,
    fuser: Fuser | None = None,
    **_: object,
) -> Fitted:
    """Take so many steps, each along (the sum of the clipped gradients of a batch, with noise) / batch_size. `check`
    that what a batch is to learn is the mean of what its examples are. The loss that it tells is of what it saw."""
    if fuser is not None:
        fuser.say("gradients are taken of single examples")
    gradients = ByExample(model, task, optimizer.params, noise.clip)
    single = Singles(examples)
    model.eval()
    if check:
        _check_apart(model, task, optimizer.params, single)
    model.train()
    total, seen = 0.0, 0
    for step in range(steps):
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime
        rows = noise.rows(len(single), step)
        sums, loss = gradients.of(single, rows)
        scale = 1 / min(config.batch_size, len(single))
        optimizer.step([g * scale for g in noise.on(sums, step)])
        total, seen = total + loss, seen + len(rows)
        if pause is not None:
            pause()
    if pause is not None:
        pause(until_done=True)
    return Fitted(total / max(seen, 1), seen, steps, optimizer.lr, Times())  # under [privacy] nobody is told


class Singles:
    """Examples one by one, or, where they are rows of tensors, several as one batch."""

    def __init__(self, examples: Examples) -> None:
        self.tensors = examples.tensors if isinstance(examples, Tensors) else None
        self._batches = [] if self.tensors is not None else [*examples.batches(1)]
        self._count = len(examples)

    def __len__(self) -> int:
        return self._count

    def together(self, rows: Sequence[int]) -> tuple[Tensor, ...] | None:
        """One batch of these rows, if they have one."""
        return None if self.tensors is None else tuple(t[list(rows)] for t in self.tensors)

    def alone(self, row: int) -> Batch:
        return self._batches[row] if self.tensors is None else tuple(t[row : row + 1] for t in self.tensors)


class ByExample:
    """Sums of the gradients of single examples, each no longer than `clip`: stacked by vmap where examples are rows of
    tensors and the network allows that, else one after another."""

    def __init__(self, model: nn.Module, task: Objective, params: Sequence[nn.Parameter], clip: float) -> None:
        self._model, self._task, self._params, self._clip = model, task, [*params], clip
        names = {id(p): n for n, p in model.named_parameters()}
        self._names = [f"model.{names[id(p)]}" for p in params]
        whole = LossOf(model, task)

        def objective(trained: dict[str, Tensor], *columns: Tensor) -> Tensor:
            loss: Tensor = functional_call(whole, trained, (tuple(c[None] for c in columns),))
            return loss

        self._stacked = grad_and_value(objective)
        self._at_once = max(1, _MOST_BYTES // max(1, sum(p.numel() * p.element_size() for p in params)))
        self._stackable = True

    def of(self, examples: Singles, rows: Sequence[int]) -> tuple[list[Tensor], float]:
        """The sum over these rows, and that of their losses."""
        sums, losses = [torch.zeros_like(p) for p in self._params], 0.0
        for start in range(0, len(rows), self._at_once):
            some = rows[start : start + self._at_once]
            batch = examples.together(some)
            done = self._together(self._task.augment(batch), sums) if batch is not None and self._stackable else None
            if done is None:
                done = sum(self._alone(self._task.augment(examples.alone(row)), sums) for row in some)
            losses += done
        return sums, losses

    def _together(self, batch: tuple[Tensor, ...], sums: list[Tensor]) -> float | None:
        trained = dict(zip(self._names, (p.detach() for p in self._params)))
        try:
            stacked = vmap(self._stacked, (None, *(0 for _ in batch)), randomness="different")
            grads, losses = stacked(trained, *batch)
        except Exception:  # vmap has no rule for an operation, or the code looks at values
            self._stackable = False
            return None
        found = [grads[name] for name in self._names]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found]).norm(dim=0)
        scale = (self._clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        for total, g in zip(sums, found):
            total += torch.tensordot(scale.to(g.dtype), g, dims=1)
        return float(losses.sum())

    def _alone(self, batch: Batch, sums: list[Tensor]) -> float:
        loss = self._task.loss(self._task.forward(self._model, batch), batch)
        grads = torch.autograd.grad(loss, self._params, allow_unused=True)
        norm = float(torch.stack([g.norm() for g in grads if g is not None]).norm())
        scale = min(1.0, self._clip / max(norm, 1e-12))
        for total, g in zip(sums, grads):
            if g is not None:
                total += scale * g
        return float(loss.detach())


def _check_apart(model: nn.Module, task: Objective, params: Sequence[nn.Parameter], examples: Singles) -> None:
    """Raise unless the gradient of a batch is the mean of those of its examples: else noise hides less than it says."""
    rows = range(min(_LOOKED_AT, len(examples)))
    batch = examples.together(rows)
    if batch is None or len(rows) < 2:
        return  # its batches are single examples

    def gradient(batch: Batch) -> list[Tensor]:
        grads = torch.autograd.grad(task.loss(task.forward(model, batch), batch), [*params], allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads)]

    together, apart = gradient(batch), [gradient(examples.alone(row)) for row in rows]
    means = [torch.stack(parts).mean(dim=0) for parts in zip(*apart)]
    if not all(torch.allclose(one, mean, rtol=1e-2, atol=1e-5) for one, mean in zip(together, means)):
        raise RecipeError(
            "what this task learns of an example depends on the others in its batch: its gradient is nobody's alone",
            where="[privacy] unit",
            expected="client, or a task that learns from single examples (no contrastive one)",
            found="example",
        )
