"""The local training loop. It exists once; methods add to it by terms, functions of what a step already has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedreel.config import TrainConfig
from fedreel.core.capture import Recorder, Replayed
from fedreel.core.optim import Optimizer
from fedreel.core.task import Batch, Examples, Lesson, Outputs, Studied, Task, Temporal, batch_length
from fedreel.core.weights import Weights
from fedreel.errors import FedreelError


@dataclass(frozen=True, slots=True)
class Step:
    """What a term may look at."""

    model: nn.Module
    batch: Batch
    outputs: Outputs


Term = Callable[[Step], Tensor]


class Pause(Protocol):
    """Lets others work, for a moment or until the device has done what it was given."""

    def __call__(self, until_done: bool = False) -> None: ...


class OutOfTime(Exception):
    """A client did not finish within its time limit."""


def fit(
    model: nn.Module,
    task: Lesson,
    examples: Examples,
    optimizer: Optimizer,
    config: TrainConfig,
    *,
    terms: Sequence[Term] = (),
    epochs: int,
    generator: torch.Generator,
    deadline: float | None = None,
    recorder: Recorder | None = None,
    pause: Pause | None = None,
) -> tuple[float, int]:
    """Train; returns the task's mean loss (without terms) and the number of samples seen. `pause` is called after each
    step."""
    model.train()  # its parts too: a part may come from a model in eval mode
    params = tuple(optimizer.params)
    device = params[0].device
    mixed = config.precision == "bf16" and device.type == "cuda"
    one = torch.ones((), device=device)

    def step(batch: Batch) -> Tensor:
        batch = task.augment(batch)
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed) if mixed else _nothing:
            outputs = task.forward(model, batch)
            loss = objective = task.loss(outputs, batch)
            for term in terms:
                objective = objective + term(Step(model, batch, outputs))
        grads = gradients(objective, params, one)
        if config.clip_norm:
            clip([g for g in grads if g is not None], config.clip_norm)
        optimizer.step(grads)
        return loss.detach()

    make = step
    if recorder is not None:
        same = None if terms else (model, task, optimizer, config)  # terms hold what belongs to one job
        make = Replayed(step, epochs * (len(examples) // config.batch_size), recorder, same)
    total: Tensor | float = 0.0
    seen = 0
    for _ in range(epochs):
        for batch in examples.batches(config.batch_size, generator if config.shuffle else None):
            if deadline is not None and time.monotonic() > deadline:
                raise OutOfTime
            loss = make(batch)
            n = batch_length(batch)
            total = total + (loss.item() if device.type == "cpu" else loss) * n
            seen += n
            if pause is not None:
                pause()
    if pause is not None:
        pause(until_done=True)  # so that reading the loss waits for nothing
    return (float(total) / seen if seen else math.nan), seen


def gradients(objective: Tensor, params: tuple[nn.Parameter, ...], one: Tensor) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad with allow_unused, without the checks that cost as much as a small network's arithmetic."""
    engine = torch.autograd.Variable._execution_engine
    seeds = (one if objective.dtype == one.dtype else one.to(objective.dtype),)
    return engine.run_backward((objective,), seeds, False, False, params, allow_unreachable=True, accumulate_grad=False)


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


def proximal(received: Weights, mu: float) -> Term:
    """FedProx: mu/2 ||w - w_received||^2 over the parameters that travel."""
    anchor: Tensor | None = None
    held: list[nn.Parameter] = []

    def term(step: Step) -> Tensor:
        nonlocal anchor
        if anchor is None:
            held.extend(p for n, p in step.model.named_parameters() if n in received and p.requires_grad)
            names = [n for n, p in step.model.named_parameters() if n in received and p.requires_grad]
            anchor = torch.cat([received[n].flatten() for n in names])
        moved = torch.cat([p.flatten() for p in held]) - anchor  # one vector: a few kernels instead of hundreds
        return 0.5 * mu * moved.dot(moved)

    return term


def model_contrastive(
    received: Callable[[Batch], Tensor], previous: Callable[[Batch], Tensor], mu: float, temperature: float
) -> Term:
    """MOON: pull the features towards the received model's, push them from the client's previous model's."""

    def term(step: Step) -> Tensor:
        z = step.outputs.features
        sims = [F.cosine_similarity(z, other(step.batch).to(z.dtype)) for other in (received, previous)]
        target = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return mu * F.cross_entropy(torch.stack(sims, dim=1) / temperature, target)

    return term


def multi_grain(task: Task, teacher: nn.Module, blocks: int, weight: float, detach: bool) -> Term:
    """FSAR's distillation. Streams m = 1 .. blocks go through the teacher's first m blocks and the rest of the client's
    model, to logits t_m: sum_m CE(t_m, y) + weight * sum_m KL(softmax(t_m) || softmax(z))."""

    def term(step: Step) -> Tensor:
        z = F.log_softmax(step.outputs.logits, dim=1)
        total = torch.zeros((), device=z.device)
        for mixed in task.streams(teacher, step.model, step.batch, blocks):
            t = F.log_softmax(mixed.logits.detach() if detach else mixed.logits, dim=1)
            total = total + task.loss(mixed, step.batch)
            total = total + weight * F.kl_div(z, t, reduction="batchmean", log_target=True)
        return total

    return term


def distribution_gap(
    task: Temporal, world: Tensor, bins: int, weight: float, memory: float, direction: Literal["prediction", "world"]
) -> Term:
    """FedVMR: weight * KL(q || p), p the share of each temporal class in the world, q that among predictions: a running
    estimate over batches, of which only the newest part has a gradient. q is smoothed as p is, by one count a class."""
    running: Tensor | None = None

    def term(step: Step) -> Tensor:
        nonlocal running
        p = world.to(step.outputs.features.device)
        predicted = task.temporal_distribution(step.outputs, bins)
        n = len(predicted)
        q = predicted.mean(dim=0)
        if running is None:
            running = q.detach().clone()
        else:
            q = memory * running + (1 - memory) * q
            running.copy_(q.detach())  # in place: a replayed step reads where it was recorded
        q = smoothed(n * q, n)
        return weight * (divergence(q, p) if direction == "prediction" else divergence(p, q))

    return term


def more_negatives(dictionary: Tensor, temperature: float) -> Term:
    """FedCA: entries (K, D) of a dictionary join the denominator of NT-Xent: the mean over views z of
    log(1 + sum_r exp(z.r / t) / sum_k exp(z.z_k / t))."""

    def term(step: Step) -> Tensor:
        z = F.normalize(step.outputs.logits.float(), dim=1)
        own = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -torch.inf)
        others = (z @ dictionary.T / temperature).logsumexp(dim=1)
        return F.softplus(others - own.logsumexp(dim=1)).mean()

    return term


def alignment(task: Studied, samples: Tensor, targets: Tensor, weight: float) -> Term:
    """FedCA: weight * mean ||f(x) - target|| over samples that everyone has, as many as the batch has, drawn anew in
    each step. Running statistics stay as the client's own samples make them."""

    def term(step: Step) -> Tensor:
        n = len(step.batch[0])
        which = torch.randint(len(samples), (n,), device=samples.device)
        with statistics_kept(step.model):
            found = task.vectors(step.model, samples[which])
        return weight * torch.linalg.vector_norm(found.float() - targets[which], dim=1).mean()

    return term


def smoothed(counts: Tensor, n: float | Tensor) -> Tensor:
    """FedVMR's "q + 1", on counts: (counts + 1) / (n + K), for counts (..., K) of n moments."""
    return (counts + 1) / (n + counts.shape[-1])


def divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) = sum q log(q / p). The paper prints it with a minus, which would drive q away from p."""
    return (q * (q / p).log()).sum()


@contextmanager
def statistics_kept(model: nn.Module) -> Iterator[None]:
    """Within this, a model in training mode normalises by its batches but leaves its running statistics alone."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def check_finite(loss: float, client: str) -> None:
    if not math.isfinite(loss):
        raise FedreelError(
            f"training diverged at client '{client}'",
            found=f"loss {loss}",
            hint="lower train.lr or set train.clip_norm",
        )


class _Nothing:
    """A context that does nothing, without the cost of contextlib's."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_nothing = _Nothing()
