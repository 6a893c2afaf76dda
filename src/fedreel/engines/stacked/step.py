"""One training step of several clients as one vmapped call; for some of them only, if the others have no batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedreel.config import TrainConfig
from fedreel.core.task import Batch, Objective, Outputs, Task
from fedreel.core.terms import Step
from fedreel.engines.stacked.added import Added, models_of, with_tensors
from fedreel.engines.stacked.convolutions import DEVICES, convolution, pays
from fedreel.engines.stacked.draws import OwnDraws
from fedreel.engines.stacked.dropout import dropout
from fedreel.engines.stacked.norms import batch_norm, layer_norm
from fedreel.engines.stacked.optimizers import RowOptimizer, clip
from fedreel.engines.stacked.pooling import max_pool
from fedreel.engines.stacked.rows import Held, Named, like


@dataclass(frozen=True)
class Kind:
    """A step of `core.training.fit`, for any client: the same for all that are trained together."""

    model: nn.Module
    task: Objective
    config: TrainConfig
    terms: tuple[Added, ...]
    adjust: Added | None
    mixed: bool  # bf16 on a GPU

    @property
    def added(self) -> tuple[Added, ...]:
        return (*self.terms, *(() if self.adjust is None else (self.adjust,)))


class Gradients:
    """Of several clients: a kind of step, differentiated, with a leading dimension of clients on all it sees."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._objective, self._adjusted = _Objective(kind), _Adjusted(kind)
        self._stacked = vmap(self._of_one, randomness="different")

    def __call__(self, held: Held, batch: Batch, draws: OwnDraws | None = None) -> tuple[Named, Tensor]:
        """Gradients by the parameter's name, and losses, of batches that are stacked."""
        if type(self._kind.task).augment is not Task.augment:
            batch = self._augmented(batch, draws)
        with draws if draws is not None else nullcontext(), ChannelsApart():
            grads, losses = self._stacked(held.trained, held.fixed, held.given, batch)
        return grads, losses

    def _augmented(self, batch: Batch, draws: OwnDraws | None) -> Batch:
        """One client after another, for what tasks do to batches is not made for vmap; or the examples of all at once,
        where clients need not draw their own random numbers and examples are augmented one by one."""
        task = self._kind.task
        if draws is None and isinstance(task, Task) and task.augments_each:
            whole = task.augment(tuple(column.flatten(0, 1) for column in batch))
            return tuple(column.unflatten(0, batch[0].shape[:2]) for column in whole)
        made = []
        for row in range(len(batch[0])):
            with draws.of(draws.members[row]) if draws is not None else nullcontext():
                made.append(task.augment(tuple(column[row] for column in batch)))
        return tuple(torch.stack(column) for column in zip(*made))

    def _of_one(self, trained: Named, fixed: Named, given: Named, batch: Batch) -> tuple[Named, Tensor]:
        """vmap sees to it that this is of all."""
        grads, (_, (loss, seen)) = grad_and_value(self._whole, has_aux=True)(trained, fixed, given, batch)
        if self._kind.adjust is not None:
            swapped = self._adjusted.named(trained, fixed, given)
            changed = functional_call(self._adjusted, swapped, (batch, seen, grads, given))
            grads = {name: changed.get(name, torch.zeros_like(grad)) for name, grad in grads.items()}
        return grads, loss

    def _whole(self, trained: Named, fixed: Named, given: Named, batch: Batch) -> tuple[Tensor, Any]:
        swapped = self._objective.named(trained, fixed, given)
        value: tuple[Tensor, Any] = functional_call(self._objective, swapped, (batch, given))
        return value


class _OfStep(nn.Module):
    """A part of the step as a module, so that functional_call can replace every tensor of its models."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.model, self._kind = kind.model, kind
        self.others = nn.ModuleDict()
        self._prefixes: dict[str, str] = {}  # of names of given tensors -> of the module's
        for place, added in enumerate(kind.added):
            for i, other in models_of(added).items():
                if other is not kind.model:
                    self.others[f"{place}-{i}"] = other
                    self._prefixes[f"{place}/{i}/"] = f"others.{place}-{i}."

    def named(self, trained: Named, fixed: Named, given: Named) -> Named:
        """Every tensor to be put in, by its name in this module."""
        swapped = {f"model.{name}": tensor for named in (trained, fixed) for name, tensor in named.items()}
        for prefix, place in self._prefixes.items():
            swapped |= {place + n.removeprefix(prefix): t for n, t in given.items() if n.startswith(prefix)}
        return swapped


class _Objective(_OfStep):
    """The loss with the terms that are added to it; beside it the loss alone, and what an adjustment looks at."""

    def forward(self, batch: Batch, given: Named) -> tuple[Tensor, tuple[Tensor, Named]]:
        kind = self._kind
        with torch.autocast("cuda", torch.bfloat16) if kind.mixed else nullcontext():
            outputs = kind.task.forward(self.model, batch)
            loss = objective = kind.task.loss(outputs, batch)
            for place, term in enumerate(kind.terms):
                value = term.function(Step(self.model, batch, outputs), *with_tensors(term, place, given))
                objective = objective + value
        seen = {} if kind.adjust is None else {"features": outputs.features, "logits": outputs.logits}
        return objective.float(), (loss, seen)


class ChannelsApart(TorchFunctionMode):
    """Within it, norms are given no maps whose channels lie together in memory: such a map's norm, or on a GPU the
    derivative of it, asks for others in the same layout, which vmap cannot make. Nor do the convolutions of a teacher,
    where nothing is differentiated, give any. Batch norms are those of `norms.py`, which lay maps as they need them;
    on a GPU so are layer norms, and pooling, dropout and convolutions are those of this folder where these are
    faster."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.batch_norm:
            return batch_norm(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        if func in _FASTER and args[0].device.type in DEVICES:
            return _FASTER[func](*args, **kwargs)
        if func in _NORMS:
            return func(_apart(args[0]), *args[1:], **kwargs)
        found = convolution(*args, **kwargs) if pays(func, args, kwargs) else func(*args, **kwargs)
        return _apart(found) if func in _CONVOLUTIONS and not torch.is_grad_enabled() else found


_FASTER: dict[Any, Callable[..., Any]] = {F.layer_norm: layer_norm, F.max_pool2d: max_pool, F.dropout: dropout}
_NORMS = (F.group_norm, F.instance_norm, torch.batch_norm, torch.group_norm, torch.instance_norm)
_CONVOLUTIONS = (torch.conv2d, torch.conv3d, torch.conv_transpose2d, torch.conv_transpose3d)


def _apart(maps: Tensor) -> Tensor:
    together = maps.dim() > 3 and maps.stride(1) <= maps.stride(-1) and not maps.is_contiguous()
    return maps.contiguous() if together else maps


class _Adjusted(_OfStep):
    """The gradients that count."""

    def forward(self, batch: Batch, seen: Named, grads: Named, given: Named) -> Named:
        kind = self._kind
        assert kind.adjust is not None
        own = with_tensors(kind.adjust, len(kind.terms), given)
        changed: Named = kind.adjust.function(Step(self.model, batch, Outputs(**seen)), grads, *own)
        return dict(changed)


class StackedStep:
    """A step of the first clients of a place, in place; made anew or replayed from a recording, it is the same."""

    def __init__(
        self, kind: Kind, held: Held, optimizer: RowOptimizer, changing: Collection[str], columns: int
    ) -> None:
        """`changing` names fixed and given tensors that a step changes; `columns` are the tensors of a batch."""
        self.held, self._optimizer, self._changing, self._columns = held, optimizer, changing, columns
        self._gradients, self._clip = Gradients(kind), kind.config.clip_norm
        self.draws: OwnDraws | None = None

    def __call__(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Batches of the first clients, stacked; behind them, if not all of these are to be trained, which are."""
        columns, active = batch[: self._columns], batch[self._columns :]
        held = self.held.cut(slice(0, len(columns[0])))
        if not active:
            return self.on(held, columns)
        changed = [*held.tensors(self._is_changing)]
        before = [tensor.clone() for tensor in changed]
        losses = self.on(held, columns)
        for mine, old in zip(changed, before):
            torch.where(like(active[0], mine), mine, old, out=mine)
        return losses

    def of(self, members: Sequence[int]) -> Callable[[tuple[Tensor, ...]], Tensor]:
        """The step of any clients, given batches of these. What is theirs is taken out and put back, if it does not lie
        together."""
        first, last = members[0], members[-1]
        if last - first + 1 == len(members):
            held = self.held.cut(slice(first, last + 1))
            return lambda batch: self.on(held, batch)
        part = torch.tensor(members, device=self.held.totals.device)

        def step(batch: tuple[Tensor, ...]) -> Tensor:
            held = self.held.cut(part)
            losses = self.on(held, batch)
            for whole, some in zip(self.held.tensors(self._is_changing), held.tensors(self._is_changing)):
                whole[part] = some
            return losses

        return step

    def on(self, held: Held, batch: tuple[Tensor, ...]) -> Tensor:
        named, losses = self._gradients(held, batch, self.draws)
        grads = [*named.values()]
        self._optimizer.step_rows(
            [*held.trained.values()], held.slots, clip(grads, self._clip) if self._clip else grads
        )
        held.totals.add_(losses.detach().double(), alpha=batch[0].shape[1])
        return losses.detach()

    def _is_changing(self, name: str) -> bool:
        return name in self._changing
