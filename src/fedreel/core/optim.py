"""Optimizers for short local jobs: reset in place, not rebuilt, and stepped without torch.optim's per-call overhead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedreel.config import TrainConfig
from fedreel.core.weights import Layout, TensorInfo
from fedreel.errors import FedreelError

_GROUP = "optimizer"  # of a client's private tensors


class Optimizer(Protocol):
    """One object serves all clients: `reset` before each."""

    params: list[nn.Parameter]
    lr: float

    def reset(self, lr: float) -> None:
        """Forget everything and take this rate."""
        ...

    def step(self, grads: Sequence[Tensor | None]) -> None:
        """One gradient a parameter; None where the loss did not reach it."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must be kept to go on later, by the parameter's place in `params` and what it is: `3`, `3/exp_avg`."""
        ...

    def restore(self, state: dict[str, Tensor]) -> None: ...


def make_optimizer(params: Iterable[nn.Parameter], config: TrainConfig) -> Optimizer:
    """The recipe's optimizer. A parameter with the attribute `no_decay` is spared the weight decay; one with
    `rate_scale` has so many times the rate."""
    trained = [p for p in params if p.requires_grad]
    if config.optimizer == "sgd":
        return SGD(trained, config)
    return Torch(trained, config) if _on_gpu(trained) else Adam(trained, config)


class Optimizers:
    """Those of a model: of all that is trained, and of any choice of its tensors. Each is made once."""

    def __init__(self, model: nn.Module, moving: Layout, config: TrainConfig) -> None:
        self._model, self._moving, self._config = model, moving, config
        self._whole = make_optimizer(model.parameters(), config)
        self._chosen: dict[tuple[str, ...], Optimizer] = {}

    def of(self, only: Callable[[TensorInfo], bool] | None) -> Optimizer:
        """The optimizer of the whole model, or of some of its tensors."""
        if only is None:
            return self._whole
        chosen = {t.name for t in self._moving.tensors if only(t)}
        params = [(n, p) for n, p in self._model.named_parameters() if n in chosen and p.requires_grad]
        key = tuple(n for n, _ in params)
        if not key:
            raise FedreelError("there is nothing to train: no parameter of the model was chosen")
        if key not in self._chosen:
            self._chosen[key] = make_optimizer([p for _, p in params], self._config)
        return self._chosen[key]

    def group(self, optimizer: Optimizer) -> str:
        """Where a client keeps its state: apart for each choice of tensors that are trained."""
        if optimizer is self._whole:
            return _GROUP
        names = {id(p): n for n, p in self._model.named_parameters()}
        text = "\n".join(names[id(p)] for p in optimizer.params)
        return f"{_GROUP}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


class SGD:
    """torch.optim.SGD's arithmetic, to the bit on a CPU, over lists of tensors. All it keeps stays at one place in
    memory, the rate too on a GPU, so that a recorded step serves all clients and rounds."""

    def __init__(self, params: list[nn.Parameter], config: TrainConfig) -> None:
        self.params = params
        self._data = [p.data for p in params]  # the same memory, outside autograd
        self._decayed = [i for i, p in enumerate(params) if not getattr(p, "no_decay", False)]
        scales = [_scale(p) for p in params]
        self._scales = scales if {*scales} != {1.0} else []
        self._momentum, self._nesterov, self._decay = config.momentum, config.nesterov, config.weight_decay
        self._buffers: list[Tensor] = []
        self.lr = config.lr
        self._rates: dict[float, Tensor] = {}  # on a GPU, by how many times the rate it is
        self._alike: dict[tuple[float, float, torch.dtype], list[int]] = {}  # by weight decay, rate and dtype
        if _on_gpu(params):
            self._rates = {n: torch.full((), n * config.lr, device=params[0].device) for n in sorted({*scales})}
            for i, p in enumerate(params):
                decay = self._decay if i in self._decayed else 0.0
                self._alike.setdefault((decay, scales[i], p.dtype), []).append(i)

    def reset(self, lr: float) -> None:
        self.lr = lr
        for scale, rate in self._rates.items():
            rate.fill_(scale * lr)
        if self._buffers:
            torch._foreach_zero_(self._buffers)

    def step(self, grads: Sequence[Tensor | None]) -> None:
        move: Any = [g if g is not None else torch.zeros_like(p) for p, g in zip(self._data, grads)]
        if self._momentum and not self._buffers:
            self._buffers = [torch.zeros_like(p) for p in self._data]
        if self._rates:
            self._go_at_once(move)
            return
        if self._decay:
            decayed = [self._data[i] for i in self._decayed]
            for i, g in zip(
                self._decayed, torch._foreach_add([move[i] for i in self._decayed], decayed, alpha=self._decay)
            ):
                move[i] = g
        if self._momentum:
            torch._foreach_mul_(self._buffers, self._momentum)
            torch._foreach_add_(self._buffers, move)
            move = torch._foreach_add(move, self._buffers, alpha=self._momentum) if self._nesterov else self._buffers
        if self._scales:
            move = list(torch._foreach_mul(move, self._scales))
        torch._foreach_add_(self._data, move, alpha=-self.lr)

    def _go_at_once(self, grads: Sequence[Tensor]) -> None:
        """All of it by torch's fused kernel, which reads and writes everything once."""
        for (decay, scale, _), members in self._alike.items():
            torch._fused_sgd_(
                [as_line(self._data[i]) for i in members],
                [as_line(grads[i].contiguous()) for i in members],
                [as_line(self._buffers[i]) for i in members] if self._momentum else [],
                weight_decay=decay,
                momentum=self._momentum,
                lr=self._rates[scale],
                dampening=0.0,
                nesterov=self._nesterov,
                maximize=False,
                is_first_step=False,  # buffers begin with zeros
            )

    def state(self) -> dict[str, Tensor]:
        return {str(i): b.clone() for i, b in enumerate(self._buffers)}

    def restore(self, state: dict[str, Tensor]) -> None:
        if state and not self._buffers:
            self._buffers = [torch.zeros_like(p) for p in self._data]
        for i, buffer in enumerate(self._buffers):
            buffer.copy_(state[str(i)]) if str(i) in state else buffer.zero_()


class Adam:
    """torch's Adam and AdamW on a CPU, to the bit: its fused kernel, without the class around it, which imports the
    whole of torch.compile and takes longer over a small network than the kernel."""

    _SLOTS = ("step", "exp_avg", "exp_avg_sq")  # as torch.optim names them

    def __init__(self, params: list[nn.Parameter], config: TrainConfig) -> None:
        self.params, self.lr = params, config.lr
        self._data = [p.data for p in params]
        self._kernel = torch._fused_adam_ if config.optimizer == "adam" else torch._fused_adamw_
        self._groups: dict[tuple[float, float, torch.dtype], list[int]] = {}  # by weight decay, rate and dtype
        for i, p in enumerate(params):
            decay = 0.0 if getattr(p, "no_decay", False) else config.weight_decay
            self._groups.setdefault((decay, _scale(p), p.dtype), []).append(i)
        self._slots: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def reset(self, lr: float) -> None:
        self.lr = lr
        if self._slots:
            torch._foreach_zero_([t for slot in self._slots.values() for t in slot])

    def step(self, grads: Sequence[Tensor | None]) -> None:
        for (decay, scale, _), members in self._groups.items():
            moved = [(i, g.contiguous()) for i in members if (g := grads[i]) is not None]
            if not moved:
                continue
            steps, means, squares = map(list, zip(*(self._slot(i) for i, _ in moved)))
            torch._foreach_add_(steps, 1)
            self._kernel(
                [self._data[i] for i, _ in moved],
                [g for _, g in moved],
                means,
                squares,
                [],
                steps,
                amsgrad=False,
                lr=self.lr * scale,
                beta1=0.9,
                beta2=0.999,
                weight_decay=decay,
                eps=1e-8,
                maximize=False,
            )

    def state(self) -> dict[str, Tensor]:
        return {f"{i}/{k}": t.clone() for i, slot in sorted(self._slots.items()) for k, t in zip(self._SLOTS, slot)}

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            number, _, key = name.partition("/")
            self._slot(int(number))[self._SLOTS.index(key)].copy_(value)

    def _slot(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        if i not in self._slots:
            data = self._data[i]
            self._slots[i] = (torch.zeros(()), torch.zeros_like(data), torch.zeros_like(data))
        return self._slots[i]


class Torch:
    """Adam and AdamW on a GPU as torch has them, all parameters in one call; likewise at one place in memory."""

    def __init__(self, params: list[nn.Parameter], config: TrainConfig) -> None:
        self.params, self.lr = params, config.lr
        alike: dict[tuple[bool, float], list[nn.Parameter]] = {}
        for p in sorted(params, key=lambda p: getattr(p, "no_decay", False)):
            alike.setdefault((getattr(p, "no_decay", False), _scale(p)), []).append(p)
        self._scales = [scale for _, scale in alike]
        groups = [{"params": own, **({"weight_decay": 0.0} if spared else {})} for (spared, _), own in alike.items()]
        kind: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        rates = [torch.full((), config.lr * scale, device=params[0].device) for scale in self._scales]
        self._inner: torch.optim.Optimizer = kind(
            [{**group, "lr": rate} for group, rate in zip(groups, rates)],
            weight_decay=config.weight_decay,
            fused=True,
            capturable=True,
        )

    def reset(self, lr: float) -> None:
        self.lr = lr
        kept = [value for slot in self._inner.state.values() for value in slot.values()]
        if kept:
            torch._foreach_zero_(kept)
        for group, scale in zip(self._inner.param_groups, self._scales):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * scale)
            else:
                group["lr"] = lr * scale

    def step(self, grads: Sequence[Tensor | None]) -> None:
        for p, g in zip(self.params, grads):
            p.grad = g if g is None else g.contiguous()  # torch's fused step asks for it
        self._inner.step()

    def state(self) -> dict[str, Tensor]:
        slots = {i: self._inner.state[p] for i, p in enumerate(self.params) if p in self._inner.state}
        return {f"{i}/{k}": torch.as_tensor(v).clone() for i, slot in slots.items() for k, v in slot.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            number, _, key = name.partition("/")
            slots.setdefault(int(number), {})[key] = value
        for i, p in enumerate(self.params):
            held: dict[str, Tensor] = self._inner.state[p]
            for key, value in slots.get(i, {}).items():
                if key in held:
                    held[key].copy_(value)
                else:  # torch counts steps on the host if nothing is recorded
                    held[key] = value.to("cpu" if key == "step" and not p.is_cuda else p.device).clone()


def as_line(tensor: Tensor) -> Tensor:
    """The same memory, for torch's fused kernels: they want equal strides, also of dimensions that have one place."""
    return tensor.view(-1)


def _on_gpu(params: Sequence[nn.Parameter]) -> bool:
    return bool(params) and params[0].is_cuda


def _scale(parameter: nn.Parameter) -> float:
    return float(getattr(parameter, "rate_scale", 1.0))
