"""What a training step does with a batch up to its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedreel.core.task import Batch, Objective
from fedreel.core.terms import Adjust, Gradients, OfJob, Step, Term

Grads = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Work:
    """Of a model whose `params` are trained. Terms are added to the loss; `adjust` makes of the gradients those that
    count. `mixed` is bf16 on a GPU."""

    model: nn.Module
    task: Objective
    params: Sequence[Tensor]
    names: Sequence[str]  # of the parameters
    terms: Sequence[Term]
    adjust: Adjust | None
    mixed: bool
    one: Tensor  # a one on the device

    def __call__(self, batch: Batch) -> tuple[Tensor, Grads]:
        """The task's loss, without terms, and a gradient for each parameter that it reaches."""
        model, task = self.model, self.task
        batch = task.augment(batch)
        with torch.autocast("cuda", torch.bfloat16) if self.mixed else _nothing:
            outputs = task.forward(model, batch)
            loss = objective = task.loss(outputs, batch)
            for term in self.terms:
                if getattr(term, "slope", None) is None:
                    objective = objective + term(Step(model, batch, outputs))
        grads = gradients(objective, self.params, self.one)
        for term in self.terms:
            if isinstance(term, OfJob) and term.slope is not None:
                grads = self._with(grads, term.slope(Step(model, batch, outputs), *term.given))
        if self.adjust is not None:
            named = {name: g for name, g in zip(self.names, grads) if g is not None}
            changed = self.adjust(Step(model, batch, outputs), named)
            grads = tuple(changed.get(name) for name in self.names)
        return loss.detach(), grads

    def _with(self, grads: Grads, slope: Gradients) -> Grads:
        """Gradients and a term's, of all parameters in a few kernels."""
        found = [slope.get(name) if g is None else g for name, g in zip(self.names, grads)]
        both = [
            (i, g, slope[name]) for i, (name, g) in enumerate(zip(self.names, grads)) if name in slope and g is not None
        ]
        if both:
            places, mine, others = zip(*both)
            for i, g in zip(places, torch._foreach_add([g.contiguous() for g in mine], [*others])):
                found[i] = g
        return tuple(found)


def gradients(objective: Tensor, params: Sequence[Tensor], one: Tensor) -> Grads:
    """torch.autograd.grad with allow_unused, without the checks that cost as much as a small network's arithmetic."""
    engine = torch.autograd.Variable._execution_engine
    seeds = (one if objective.dtype == one.dtype else one.to(objective.dtype),)
    return engine.run_backward(
        (objective,), seeds, False, False, tuple(params), allow_unreachable=True, accumulate_grad=False
    )


class OutOfTime(Exception):
    """A client did not finish within its time limit."""


class _Nothing:
    """A context that does nothing, without the cost of contextlib's."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_nothing = _Nothing()
