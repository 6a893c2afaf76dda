"""The local training loop. It exists once; methods add terms to its loss and may adjust its gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.capture import Recorder, Replayed
from fedreel.core.fused import Fuser
from fedreel.core.optim import Optimizer
from fedreel.core.task import Batch, Examples, Objective, batch_length
from fedreel.core.terms import Adjust, OfJob, Term
from fedreel.core.timing import Stopwatch, Times
from fedreel.core.work import OutOfTime, Work
from fedreel.errors import Diverged


@dataclass(frozen=True, slots=True)
class Fitted:
    """What happened in a training: the task's mean loss (without terms), how many samples were seen in how many steps,
    the learning rate, and how long it took."""

    loss: float
    samples: int
    steps: int
    lr: float
    times: Times


class Pause(Protocol):
    """Lets others work, for a moment or until the device has done what it was given."""

    def __call__(self, until_done: bool = False) -> None: ...


class LossOf(nn.Module):
    """A task's loss as a module: tasks call the parts of a model as they like, functional_call replaces them all."""

    def __init__(self, model: nn.Module, task: Objective) -> None:
        super().__init__()
        self.model, self._task = model, task

    def forward(self, batch: Batch) -> Tensor:
        return self._task.loss(self._task.forward(self.model, batch), batch)


def fit(
    model: nn.Module,
    task: Objective,
    examples: Examples,
    optimizer: Optimizer,
    config: TrainConfig,
    *,
    terms: Sequence[Term] = (),
    adjust: Adjust | None = None,
    epochs: int,
    generator: torch.Generator,
    deadline: float | None = None,
    recorder: Recorder | None = None,
    fuser: Fuser | None = None,
    pause: Pause | None = None,
) -> Fitted:
    """Train what the optimizer holds. Terms are added to the loss; `adjust` makes of the gradients those that count,
    before they are clipped. `fuser` compiles the steps, `pause` is called after each."""
    model.train()  # its parts too: a part may come from a model in eval mode
    params = tuple(optimizer.params)
    device = params[0].device
    mixed = config.precision == "bf16" and device.type == "cuda"
    if recorder is not None:
        *terms, adjust = (recorder.lasting(f, place) for place, f in enumerate((*terms, adjust)))
    names = {id(p): n for n, p in model.named_parameters()}
    trained = [names.get(id(p), "") for p in params]
    work = Work(model, task, params, trained, tuple(terms), adjust, mixed, torch.ones((), device=device))
    done = work if fuser is None else fuser.of(work, config.batch_size)

    def step(batch: Batch) -> Tensor:
        loss, grads = done(batch)
        if config.clip_norm:
            clip([g for g in grads if g is not None], config.clip_norm)
        optimizer.step(grads)
        return loss

    make = step
    if recorder is not None:
        plain = any(not isinstance(f, OfJob) for f in (*terms, adjust) if f is not None)  # holds what one job has
        same = None if plain else (model, task, optimizer, config, *terms, adjust)
        make = Replayed(step, epochs * (len(examples) // config.batch_size), recorder, same)
    total: Tensor | float = 0.0
    seen = steps = 0
    watch = Stopwatch(device)
    for _ in range(epochs):
        for batch in watch.batches(examples, config.batch_size, generator if config.shuffle else None):
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime
            loss = make(batch)
            n = batch_length(batch)
            total = total + (loss.item() if device.type == "cpu" else loss) * n
            seen += n
            steps += 1
            if pause is not None:
                watch.outside(pause)
    if pause is not None:
        watch.outside(partial(pause, until_done=True))  # so that reading the loss waits for nothing
    mean = float(total) / seen if seen else math.nan
    return Fitted(mean, seen, steps, optimizer.lr, watch.stop())


def clip(grads: list[Tensor], most: float) -> None:
    """Scale gradients in place so that their joint L2 norm is at most `most`."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, (most / (norm + 1e-6)).clamp(max=1.0))


def learning_rate(config: TrainConfig, round: int, rounds: int) -> float:
    """The rate of a round (1-based): constant, cosine to zero, or times `decay` after each milestone."""
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * (round - 1) / max(rounds, 1)))
    if config.schedule == "step":
        return config.lr * config.decay ** sum(round > m for m in config.milestones)
    return config.lr


def check_finite(loss: float, client: str) -> None:
    if not math.isfinite(loss):
        raise Diverged(
            f"training diverged at client '{client}'",
            found=f"loss {loss}",
            hint="lower train.lr or set train.clip_norm",
        )
