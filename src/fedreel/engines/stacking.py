"""Local training of several clients at once: their parameters are rows of one tensor, a step is one vmapped call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, repeat

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedreel.config import TrainConfig
from fedreel.core.optim import SGD
from fedreel.core.task import Batch, Task, Tensors, batch_length
from fedreel.core.training import LossOf
from fedreel.core.weights import Layout, Weights

Named = dict[str, Tensor]
Part = slice | Tensor  # some of the rows


class Rows:
    """Models of the same layout side by side: one (clients, size) tensor for each dtype."""

    def __init__(self, layout: Layout, clients: int, device: torch.device) -> None:
        self.flat = {d: torch.empty(clients, n, dtype=d, device=device) for d, n in layout.sizes.items()}
        self.layout, self.clients = layout, clients

    def __getitem__(self, client: int) -> Weights:
        """One client's model; the same memory."""
        return Weights(self.layout, {d: f[client] for d, f in self.flat.items()})

    def stacked(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors by name, each with a leading dimension of clients; the same memory."""
        places = [self.layout.place[n] for n in names]
        return {
            t.name: self.flat[t.dtype][:, start : start + t.size].view(self.clients, *t.shape) for t, start in places
        }


class StackedTraining:
    """core.training.fit and core.optim.SGD for many clients of one model and task, equal up to rounding."""

    def __init__(self, model: nn.Module, task: Task, layout: Layout, config: TrainConfig) -> None:
        """`layout` is what clients have each for themselves; the rest is the model's own, the same for all of them."""
        self._layout = layout
        self._model, self._task, self._config = model, task, config
        names = {id(p): n for n, p in model.named_parameters()}
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._trained = [names[id(p)] for p in self._params]
        self._fixed = [t.name for t in layout.tensors if t.name not in {*self._trained}]
        whole = LossOf(model, task)

        def objective(trained: Named, fixed: Named, batch: Batch) -> Tensor:
            loss: Tensor = functional_call(whole, {f"model.{n}": t for n, t in (trained | fixed).items()}, (batch,))
            return loss

        self._gradients = vmap(grad_and_value(objective))

    def fit(
        self, rows: Rows, examples: Sequence[Tensors], lr: float, generators: Sequence[torch.Generator | None]
    ) -> list[float]:
        """Train all rows in place; each client's mean loss. Clients with batches of equal length take a step together.
        Those with fewer batches begin later, so that all end an epoch, with their shorter batches, in the same step."""
        self._model.train()
        trained, fixed = rows.stacked(self._trained), rows.stacked(self._fixed)
        optimizer = _RowSGD(self._params, list(trained.values()), self._config, lr)
        device = next(iter(rows.flat.values())).device
        totals = torch.zeros(rows.clients, dtype=torch.float64, device=device)
        size = self._config.batch_size
        steps = [len(e.starts(size)) for e in examples]
        for _ in range(self._config.epochs):
            streams = [
                chain(repeat(None, max(steps) - n), e.batches(size, g)) for e, g, n in zip(examples, generators, steps)
            ]
            for batches in zip(*streams):
                for members in _by_length(batches):
                    part = _part(members, device)
                    batch = tuple(torch.stack(column) for column in zip(*(batches[i] for i in members)))
                    losses = self._step(optimizer, trained, fixed, batch, part)
                    totals[part] += losses.double() * batch[0].shape[1]
        seen = [self._config.epochs * len(e) for e in examples]
        return [total / n if n else math.nan for total, n in zip(totals.tolist(), seen)]

    def agrees(self, weights: Weights, batch: Batch) -> bool:
        """Whether a step of this model and task can be stacked: it gives equal gradients, draws no random numbers and
        changes no buffer. `weights` are the model's own."""
        self._model.train()
        buffers = {n: b.clone() for n, b in self._model.named_buffers()}
        random = _random_state(batch[0].device)
        loss = self._task.loss(self._task.forward(self._model, batch), batch)
        plain = torch.autograd.grad(loss, self._params, allow_unused=True)
        pure = torch.equal(random, _random_state(batch[0].device))
        for name, now in self._model.named_buffers():
            if not torch.equal(now, buffers[name]):
                pure = False
                now.copy_(buffers[name])
        if not pure:
            return False
        rows = Rows(self._layout, 2, batch[0].device)
        for client in range(2):
            rows[client].put(weights.take(self._layout))
        twice = tuple(torch.stack([column, column]) for column in batch)
        try:
            stacked, losses = self._gradients(rows.stacked(self._trained), rows.stacked(self._fixed), twice)
        except Exception:  # vmap has no rule for an operation, or the code looks at values
            return False
        zeros = [torch.zeros_like(p) if g is None else g for p, g in zip(self._params, plain)]
        pairs = [(loss.detach(), losses), *zip(zeros, stacked.values())]
        return all(torch.allclose(one.expand_as(two), two, rtol=1e-3, atol=1e-5, equal_nan=True) for one, two in pairs)

    def _step(self, optimizer: _RowSGD, trained: Named, fixed: Named, batch: Batch, part: Part) -> Tensor:
        """One step of some of the rows; their losses."""
        grads, losses = self._gradients(
            {n: _cut(t, part) for n, t in trained.items()}, {n: _cut(t, part) for n, t in fixed.items()}, batch
        )
        moves = list(grads.values())
        optimizer.step_rows(part, _clip(moves, self._config.clip_norm) if self._config.clip_norm else moves)
        return losses


class _RowSGD(SGD):
    """SGD whose tensors have a leading dimension of clients, and that can step some of them only."""

    def __init__(self, params: list[nn.Parameter], stacked: list[Tensor], config: TrainConfig, lr: float) -> None:
        super().__init__(params, config)
        self.reset(lr)
        self._rows = stacked
        # from zero, momentum * 0 + gradient is what a fresh buffer starts with
        self._momenta = [torch.zeros_like(t) for t in stacked] if config.momentum else []

    def step_rows(self, part: Part, grads: Sequence[Tensor]) -> None:
        self._data = [_cut(t, part) for t in self._rows]
        self._buffers = [_cut(b, part) for b in self._momenta]
        self.step(grads)
        if isinstance(part, Tensor):  # these were copies
            for whole, some in zip([*self._rows, *self._momenta], [*self._data, *self._buffers]):
                whole[part] = some


def _by_length(batches: Sequence[Batch | None]) -> list[list[int]]:
    """Which clients have batches of equal length."""
    members: dict[int, list[int]] = {}
    for i, batch in enumerate(batches):
        if batch is not None:
            members.setdefault(batch_length(batch), []).append(i)
    return list(members.values())


def _part(members: list[int], device: torch.device) -> Part:
    """A slice where it can be: its tensors are views, an index makes copies."""
    first, last = members[0], members[-1]
    return slice(first, last + 1) if last - first + 1 == len(members) else torch.tensor(members, device=device)


def _cut(tensor: Tensor, part: Part) -> Tensor:
    return tensor if isinstance(part, slice) and part == slice(0, len(tensor)) else tensor[part]


def _clip(grads: list[Tensor], most: float) -> list[Tensor]:
    """core.training.clip for every client."""
    norm = torch.linalg.vector_norm(torch.stack([g.flatten(1).norm(dim=1) for g in grads]), dim=0)
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    return [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in grads]


def _random_state(device: torch.device) -> Tensor:
    here = torch.get_rng_state()
    return torch.cat([here, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else here
