"""The optimizers of `core.optim` for several clients, equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.optim import SGD
from fedreel.engines.stacked.rows import Named, like

FEW = 16  # parameters, for which a kernel each is no more than a few for all of them


class RowOptimizer(Protocol):
    """What it keeps for clients lies in `slots`, by names of its own, so that a step can be of some clients only."""

    def slots(self, data: Sequence[Tensor]) -> Named: ...

    def reset(self, lr: float) -> None:
        """Take this rate; slots are set to zero by whoever has them."""
        ...

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None: ...

    def state(self, slots: Named, row: int) -> Named:
        """What a client keeps to go on later, as the optimizer of `core.optim` has it."""
        ...

    def restore(self, slots: Named, row: int, state: Named) -> None: ...


def make_row_optimizer(params: list[nn.Parameter], places: Sequence[int], config: TrainConfig) -> RowOptimizer:
    """For these parameters, which have `places` in the optimizer of a single client."""
    return RowSGD(params, config) if config.optimizer == "sgd" else RowAdam(params, places, config)


class RowSGD(SGD):
    """SGD's own arithmetic."""

    def slots(self, data: Sequence[Tensor]) -> Named:
        # from zero, momentum * 0 + gradient is what a fresh buffer starts with
        return {str(i): torch.zeros_like(t) for i, t in enumerate(data)} if self._momentum else {}

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None:
        self._data, self._buffers = [*data], [*slots.values()]
        self.step(grads)
        self._data = self._buffers = []

    def _go(self, move: list[Tensor]) -> None:
        if self._rate is None or len(move) > FEW:
            super()._go(move)
            return
        for data, by in zip(self._data, move):  # these are large: best read and written once each
            data.addcmul_(by, self._rate, value=-1)

    def state(self, slots: Named, row: int) -> Named:  # type: ignore[override]
        return {name: t[row].clone() for name, t in slots.items()}

    def restore(self, slots: Named, row: int, state: Named) -> None:  # type: ignore[override]
        for name, tensor in slots.items():
            if name in state:
                tensor[row].copy_(state[name])


class RowAdam:
    """Adam and AdamW; clients may have made different numbers of steps."""

    def __init__(self, params: list[nn.Parameter], places: Sequence[int], config: TrainConfig) -> None:
        self._places, self._decoupled = [*places], config.optimizer == "adamw"
        self._decay = [0.0 if getattr(p, "no_decay", False) else config.weight_decay for p in params]
        self._rate = torch.full((), config.lr, device=params[0].device)

    def slots(self, data: Sequence[Tensor]) -> Named:
        made = {"step": torch.zeros(len(data[0]), device=data[0].device)}
        for i, t in zip(self._places, data):
            made |= {f"{i}/{name}": torch.zeros_like(t) for name in ("exp_avg", "exp_avg_sq")}
        return made

    def reset(self, lr: float) -> None:
        self._rate.fill_(lr)

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None:
        steps = slots["step"].add_(1)
        one, two = 1 - 0.9**steps, (1 - 0.999**steps).sqrt()
        for place, decay, p, g in zip(self._places, self._decay, data, grads):
            mean, square = slots[f"{place}/exp_avg"], slots[f"{place}/exp_avg_sq"]
            if decay and self._decoupled:
                p.mul_(1 - self._rate * decay)
            elif decay:
                g = g + decay * p
            mean.lerp_(g, 1 - 0.9)
            square.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
            p.sub_(like(self._rate / one, p) * mean / (square.sqrt() / like(two, p) + 1e-8))

    def state(self, slots: Named, row: int) -> Named:
        kept = {name: t[row].clone() for name, t in slots.items() if name != "step"}
        return kept | {f"{i}/step": slots["step"][row].clone() for i in self._places}

    def restore(self, slots: Named, row: int, state: Named) -> None:
        for name, tensor in slots.items():
            kept = f"{self._places[0]}/step" if name == "step" else name
            if kept in state:
                tensor[row].copy_(state[kept])


def clip(grads: list[Tensor], most: float) -> list[Tensor]:
    """core.training.clip for every client."""
    norm = torch.linalg.vector_norm(torch.stack([g.flatten(1).norm(dim=1) for g in grads]), dim=0)
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    return [g * like(scale, g) for g in grads]
