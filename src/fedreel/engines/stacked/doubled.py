"""A step of one client and the same step stacked, both in double precision: what then differs is not rounding."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedreel.core.task import Batch, Objective, Outputs
from fedreel.core.terms import OfJob
from fedreel.core.weights import Weights
from fedreel.engines.stacked.alone import step_alone
from fedreel.engines.stacked.ask import given_tensors
from fedreel.engines.stacked.draws import NoDraws, OwnDraws, generator_of
from fedreel.engines.stacked.rows import Held, Named
from fedreel.engines.stacked.step import Gradients, Kind

Pairs = list[tuple[Tensor, Tensor]]


def compared_in_double(
    kind: Kind,
    trained: Sequence[str],
    moving: Collection[str],
    shared: Collection[str],
    changing: frozenset[str],
    batch: Batch,
    random: Tensor | None,
) -> tuple[Pairs, Pairs]:
    """Loss and gradients, and tensors that a step changes: of one client, beside those of two who are both this one.
    `random` is where the random numbers of both begin; None: nothing is drawn. All of it is done on copies.

    Batch norms over a few examples make much of the last digits of float32: two ways to make the same step may differ
    by a hundredth in the gradient of a deep network. In double precision they still agree in ten digits."""
    device = next(kind.model.parameters()).device
    generator = generator_of(device)
    drawn = generator.get_state()
    try:
        with nullcontext() if random is not None else NoDraws():
            batch = tuple(_doubled(t) for t in kind.task.augment(batch))
            wide = _in_double(kind)
            named = {**dict(wide.model.named_parameters()), **dict(wide.model.named_buffers())}
            given = given_tensors(wide.added, shared)
            held = _twice({n: named[n] for n in moving}, trained, given, device)
            if random is not None:
                generator.set_state(random)
            params = [p for n in trained if isinstance(p := named[n], nn.Parameter)]
            found, loss = step_alone(wide.model, wide.task, params, wide.config, batch, wide.terms, wide.adjust)
            draws = None if random is None else OwnDraws([random, random], device)
            grads, losses = Gradients(wide)(held, tuple(torch.stack([c, c]) for c in batch), draws)
    finally:
        generator.set_state(drawn)
    moves = [(torch.zeros_like(named[n]) if g is None else g, grads[n]) for n, g in zip(trained, found)]
    after, stacked = {**named, **given}, {**held.fixed, **held.given}
    return [(loss, losses), *moves], [(after[n], stacked[n]) for n in changing if n in stacked]


def _in_double(kind: Kind) -> Kind:
    """The same kind of step on copies of its models."""
    memo: dict[int, Any] = {}
    model = copy.deepcopy(kind.model, memo).double()

    def wide(added: OfJob[Any]) -> OfJob[Any]:
        return OfJob(added.function, tuple(value(v) for v in added.given))

    def value(mine: Any) -> Any:
        if isinstance(mine, Tensor):
            return _doubled(mine)
        if isinstance(mine, Weights):
            return Weights(mine.layout, {dtype: _doubled(flat) for dtype, flat in mine.flat.items()})
        return copy.deepcopy(mine, memo).double() if isinstance(mine, nn.Module) else mine

    terms, adjust = tuple(map(wide, kind.terms)), None if kind.adjust is None else wide(kind.adjust)
    return replace(kind, model=model, task=_Augmented(kind.task), terms=terms, adjust=adjust)


def _twice(named: Named, trained: Sequence[str], given: Named, device: torch.device) -> Held:
    def twice(tensors: Named) -> Named:
        return {n: torch.stack([t.detach(), t.detach()]) for n, t in tensors.items()}

    fixed = {n: t for n, t in named.items() if n not in {*trained}}
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    return Held(twice({n: named[n] for n in trained}), twice(fixed), twice(given), {}, totals)


def _doubled(tensor: Tensor) -> Tensor:
    """A copy."""
    return tensor.detach().to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.detach().clone()


class _Augmented:
    """A task whose batches have been augmented."""

    def __init__(self, task: Objective) -> None:
        self._task = task

    def augment(self, batch: Batch) -> Batch:
        return batch

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        return self._task.forward(model, batch)

    def loss(self, outputs: Outputs, batch: Batch) -> Tensor:
        return self._task.loss(outputs, batch)
