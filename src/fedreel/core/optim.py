"""Optimizers for short local jobs: reset in place, not rebuilt, and stepped without torch.optim's per-call overhead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..config import TrainConfig


class Optimizer(Protocol):
    """One object serves all clients: `reset` before each."""

    params: list[nn.Parameter]

    def reset(self, lr: float) -> None:
        """Forget everything and take this rate."""
        ...

    def step(self, grads: Sequence[Tensor | None]) -> None:
        """One gradient a parameter; None where the loss did not reach it."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must be kept to go on later."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None: ...


def make_optimizer(params: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """The recipe's optimizer. A parameter with the attribute `no_decay` is spared the weight decay."""
    trained = [p for p in params if p.requires_grad]
    return SGD(trained, config) if config.optimizer == "sgd" else Torch(trained, config)


class SGD:
    """torch.optim.SGD's arithmetic, to the bit, over lists of tensors."""

    def __init__(self, params: list[nn.Parameter], config: TrainConfig) -> None:
        self.params = params
        self._data = [p.data for p in params]  # the same memory, outside autograd
        self._decayed = [i for i, p in enumerate(params) if not getattr(p, "no_decay", False)]
        self._momentum, self._nesterov, self._decay = config.momentum, config.nesterov, config.weight_decay
        self._buffers: list[Tensor] = []
        self._lr = config.lr

    def reset(self, lr: float) -> None:
        self._lr = lr
        self._buffers = []

    def step(self, grads: Sequence[Tensor | None]) -> None:
        move: Any = [g if g is not None else torch.zeros_like(p) for p, g in zip(self._data, grads)]
        if self._decay:
            decayed = [self._data[i] for i in self._decayed]
            for i, g in zip(
                self._decayed, torch._foreach_add([move[i] for i in self._decayed], decayed, alpha=self._decay)
            ):
                move[i] = g
        if self._momentum:
            if self._buffers:
                torch._foreach_mul_(self._buffers, self._momentum)
                torch._foreach_add_(self._buffers, move)
            else:
                self._buffers = [g.clone() for g in move]
            move = torch._foreach_add(move, self._buffers, alpha=self._momentum) if self._nesterov else self._buffers
        torch._foreach_add_(self._data, move, alpha=-self._lr)

    def state(self) -> dict[str, Tensor]:
        return {str(i): b for i, b in enumerate(self._buffers)}

    def restore(self, state: dict[str, Tensor]) -> None:
        self._buffers = [state[str(i)].to(p.device).clone() for i, p in enumerate(self.params) if str(i) in state]


class Torch:
    """Adam and AdamW as torch has them."""

    def __init__(self, params: list[nn.Parameter], config: TrainConfig) -> None:
        self.params = params
        plain = [p for p in params if not getattr(p, "no_decay", False)]
        spared = [p for p in params if getattr(p, "no_decay", False)]
        groups: list[dict] = (
            [{"params": plain}, {"params": spared, "weight_decay": 0.0}] if spared else [{"params": plain}]
        )
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        self._inner: torch.optim.Optimizer = kind(groups, config.lr, weight_decay=config.weight_decay)

    def reset(self, lr: float) -> None:
        self._inner.state.clear()
        for group in self._inner.param_groups:
            group["lr"] = lr

    def step(self, grads: Sequence[Tensor | None]) -> None:
        for p, g in zip(self.params, grads):
            p.grad = g
        self._inner.step()

    def state(self) -> dict[str, Tensor]:
        slots = self._inner.state_dict()["state"]
        return {f"{i}/{k}": torch.as_tensor(v).clone() for i, slot in slots.items() for k, v in slot.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            i, _, key = name.partition("/")
            slots.setdefault(int(i), {})[key] = value.clone()
        groups = self._inner.state_dict()["param_groups"]
        self._inner.load_state_dict({"state": slots, "param_groups": groups})
