"""One step of one client by the training loop itself, which moves nothing: to try steps out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.task import Batch, Objective, batch_length
from fedreel.core.terms import Adjust, Term
from fedreel.core.training import fit


def step_alone(
    model: nn.Module,
    task: Objective,
    params: list[nn.Parameter],
    config: TrainConfig,
    batch: Batch,
    terms: Sequence[Term] = (),
    adjust: Adjust | None = None,
) -> tuple[list[Tensor | None], Tensor]:
    """The gradients of `params`, not clipped, and the loss. Statistics and random numbers go on as in any step."""
    optimizer = _Noting(params)
    fitted = fit(
        model,
        task,
        _Once(batch),
        optimizer,
        replace(config, clip_norm=0.0),
        terms=terms,
        adjust=adjust,
        epochs=1,
        generator=torch.Generator(),
    )
    return optimizer.grads, torch.tensor(fitted.loss, device=params[0].device)


class _Noting:
    """An optimizer that keeps the gradients and moves nothing."""

    lr = 0.0

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.grads: list[Tensor | None] = []

    def reset(self, lr: float) -> None: ...

    def step(self, grads: Sequence[Tensor | None]) -> None:
        self.grads = [None if g is None else g.detach().clone() for g in grads]

    def state(self) -> dict[str, Tensor]:
        return {}

    def restore(self, state: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class _Once:
    """One batch."""

    batch: Batch

    def __len__(self) -> int:
        return batch_length(self.batch)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.batch)

    def to(self, device: torch.device) -> _Once:
        return self

    def batches(self, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
        yield self.batch
