"""The optimizers of `core.optim` for several clients, equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.optim import SGD, as_line
from fedreel.engines.stacked.rows import Named, like
from fedreel.machine.device import sent

FUSED = ("cuda",)
BETAS, EPS = (0.9, 0.999), 1e-8  # torch's
RATE = "rate"  # the slot of clients' own


class RowOptimizer(Protocol):
    """What it keeps for clients lies in `slots`, by names of its own, so that a step can be of some clients only. One
    made `by_rate` keeps a rate for each, too; others have one for all, which takes fewer kernels."""

    def slots(self, data: Sequence[Tensor]) -> Named: ...

    def begin(self, slots: Named, rates: Sequence[float]) -> None:
        """Take the rates of the first clients; all else in the slots is set to zero by whoever has them."""
        ...

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None: ...

    def state(self, slots: Named, row: int) -> Named:
        """What a client keeps to go on later, as the optimizer of `core.optim` has it."""
        ...

    def restore(self, slots: Named, row: int, state: Named) -> None: ...


def make_row_optimizer(
    params: list[nn.Parameter], places: Sequence[int], config: TrainConfig, by_rate: bool = False
) -> RowOptimizer:
    """For these parameters, which have `places` in the optimizer of a single client."""
    if config.optimizer == "sgd":
        return RowSGD(params, config, by_rate)
    return RowAdam(params, places, config, by_rate)


class RowSGD(SGD):
    """SGD's own arithmetic."""

    def __init__(self, params: list[nn.Parameter], config: TrainConfig, by_rate: bool) -> None:
        super().__init__(params, config)
        self._by_rate = by_rate

    def slots(self, data: Sequence[Tensor]) -> Named:
        # from zero, momentum * 0 + gradient is what a fresh buffer starts with
        made = {str(i): torch.zeros_like(t) for i, t in enumerate(data)} if self._momentum else {}
        return made | _room_for_rates(data) if self._by_rate else made

    def begin(self, slots: Named, rates: Sequence[float]) -> None:
        if self._by_rate:
            _put_rates(slots, rates)
        else:
            self.reset(rates[0])

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None:
        buffers = [t for name, t in slots.items() if name != RATE]
        if not self._by_rate:
            self._step_of(data, buffers, grads)
            return
        for row, rate in enumerate(slots[RATE].unbind()):
            if self._rates:
                self._rates = {scale: scale * rate for scale in self._rates}
            else:
                self.lr = float(rate)
            self._step_of(*([t[row] for t in tensors] for tensors in (data, buffers, grads)))

    def _step_of(self, data: Sequence[Tensor], buffers: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        self._data, self._buffers = [*data], [*buffers]
        self.step(grads)
        self._data = self._buffers = []

    def state(self, slots: Named, row: int) -> Named:  # type: ignore[override]
        return {name: t[row].clone() for name, t in slots.items() if name != RATE}

    def restore(self, slots: Named, row: int, state: Named) -> None:  # type: ignore[override]
        for name, tensor in slots.items():
            if name in state:
                tensor[row].copy_(state[name])


class RowAdam:
    """Adam and AdamW; clients may have made different numbers of steps. On a GPU by torch's fused kernel, as for a
    single client."""

    def __init__(self, params: list[nn.Parameter], places: Sequence[int], config: TrainConfig, by_rate: bool) -> None:
        self._places, self._decoupled, self._by_rate = [*places], config.optimizer == "adamw", by_rate
        self._decay = [0.0 if getattr(p, "no_decay", False) else config.weight_decay for p in params]
        self._scales = [float(getattr(p, "rate_scale", 1.0)) for p in params]
        device = params[0].device
        self._rates = {n: torch.full((), n * config.lr, device=device) for n in sorted({*self._scales})}
        self._at_once = device.type in FUSED

    def slots(self, data: Sequence[Tensor]) -> Named:
        made = {"step": torch.zeros(len(data[0]), device=data[0].device)}
        for i, t in zip(self._places, data):
            made |= {f"{i}/{name}": torch.zeros_like(t) for name in ("exp_avg", "exp_avg_sq")}
        return made | _room_for_rates(data) if self._by_rate else made

    def begin(self, slots: Named, rates: Sequence[float]) -> None:
        if self._by_rate:
            _put_rates(slots, rates)
            return
        for scale, rate in self._rates.items():
            rate.fill_(scale * rates[0])

    def step_rows(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor]) -> None:
        steps = slots["step"].add_(1)
        if self._by_rate:
            self._rates = {scale: scale * slots[RATE] for scale in self._rates}
        if self._at_once and self._by_rate:
            rates = self._rates
            for row in range(len(steps)):
                part = slice(row, row + 1)
                self._rates = {scale: rate[row] for scale, rate in rates.items()}
                own = {name: t[part] for name, t in slots.items()}
                self._go_at_once([t[part] for t in data], own, [g[part] for g in grads], steps[part])
            return
        if self._at_once:
            self._go_at_once(data, slots, grads, steps)
            return
        one, two = (1 - beta**steps for beta in BETAS)
        for place, decay, scale, p, g in zip(self._places, self._decay, self._scales, data, grads):
            mean, square, rate = slots[f"{place}/exp_avg"], slots[f"{place}/exp_avg_sq"], self._rates[scale]
            if decay and self._decoupled:
                p.mul_(1 - like(rate * decay, p))
            elif decay:
                g = g + decay * p
            mean.lerp_(g, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
            p.sub_(like(rate / one, p) * mean / (square.sqrt() / like(two.sqrt(), p) + EPS))

    def _go_at_once(self, data: Sequence[Tensor], slots: Named, grads: Sequence[Tensor], steps: Tensor) -> None:
        """Every row of every parameter is a tensor to the kernel: it has a number of steps of its own."""
        kernel, counts = torch._fused_adamw_ if self._decoupled else torch._fused_adam_, [*steps.unbind()]
        alike: dict[tuple[float, float, torch.dtype], list[int]] = {}
        for i, (decay, scale) in enumerate(zip(self._decay, self._scales)):
            alike.setdefault((decay, scale, data[i].dtype), []).append(i)
        for (decay, scale, _), members in alike.items():
            kept = [[slots[f"{self._places[i]}/{name}"] for i in members] for name in ("exp_avg", "exp_avg_sq")]
            own, moves, means, squares = (
                [as_line(row) for t in tensors for row in t.contiguous().unbind()]  # all but gradients are so
                for tensors in ([data[i] for i in members], [grads[i] for i in members], *kept)
            )
            kernel(
                own,
                moves,
                means,
                squares,
                [],
                counts * len(members),
                lr=self._rates[scale],
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPS,
                amsgrad=False,
                maximize=False,
            )

    def state(self, slots: Named, row: int) -> Named:
        kept = {name: t[row].clone() for name, t in slots.items() if name not in ("step", RATE)}
        return kept | {f"{i}/step": slots["step"][row].clone() for i in self._places}

    def restore(self, slots: Named, row: int, state: Named) -> None:
        for name, tensor in slots.items():
            kept = f"{self._places[0]}/step" if name == "step" else name
            if kept in state:
                tensor[row].copy_(state[kept])


def _room_for_rates(data: Sequence[Tensor]) -> Named:
    return {RATE: torch.zeros(len(data[0]), device=data[0].device)}


def _put_rates(slots: Named, rates: Sequence[float]) -> None:
    room = slots[RATE][: len(rates)]
    room.copy_(sent(torch.tensor(rates), room.device))


def clip(grads: list[Tensor], most: float) -> list[Tensor]:
    """core.training.clip for every client."""
    norm = torch.linalg.vector_norm(torch.stack([g.flatten(1).norm(dim=1) for g in grads]), dim=0)
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    return [g * like(scale, g) for g in grads]
