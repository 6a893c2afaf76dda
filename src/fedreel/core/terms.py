"""What a method adds to a training step: functions of the step and of what belongs to one job."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from torch import Tensor, nn

from fedreel.core.task import Batch, Outputs
from fedreel.core.weights import Weights


@dataclass(frozen=True, slots=True)
class Step:
    """What a term or an adjustment may look at."""

    model: nn.Module
    batch: Batch
    outputs: Outputs


Term = Callable[[Step], Tensor]
Gradients = Mapping[str, Tensor]  # by the parameter's name
Adjust = Callable[[Step, Gradients], Gradients]

P = ParamSpec("P")
R = TypeVar("R")


class OfJob(Generic[R]):
    """A function of a step with what one job gives it. Two of them with the same `key` make the same step of other
    values, so one recording serves both, once the second's tensors lie where the first's did."""

    def __init__(self, function: Callable[..., R], given: tuple[Any, ...]) -> None:
        self.function, self.given = function, given

    def __call__(self, step: Step, *more: Any) -> R:
        return self.function(step, *more, *self.given)

    @property
    def key(self) -> Hashable:
        return (self.function, *map(_key, self.given))

    def held(self) -> OfJob[R]:
        """The same, with tensors of its own."""
        return OfJob(self.function, tuple(v.clone() if isinstance(v, Tensor | Weights) else v for v in self.given))

    def take(self, other: OfJob[R]) -> None:
        """Fill the tensors with another's of the same key."""
        for mine, theirs in zip(self.given, other.given):
            if isinstance(mine, Tensor):
                mine.copy_(theirs)
            elif isinstance(mine, Weights):
                mine.put(theirs)


def term(function: Callable[Concatenate[Step, P], Tensor]) -> Callable[P, OfJob[Tensor]]:
    """Marks a term of the loss, `f(step, ...)`: then `f(...)` is the term of one job. What it is given are tensors,
    weights, models, the task, and plain settings. A tensor that a step changes is changed in place."""

    form = signature(function)

    @wraps(function)
    def of_job(*args: P.args, **named: P.kwargs) -> OfJob[Tensor]:
        return OfJob(function, form.bind(None, *args, **named).args[1:])

    return of_job


def adjustment(function: Callable[Concatenate[Step, Gradients, P], Gradients]) -> Callable[P, OfJob[Gradients]]:
    """Marks a change of the gradients, `f(step, gradients, ...)`, as `term` marks a term."""

    form = signature(function)

    @wraps(function)
    def of_job(*args: P.args, **named: P.kwargs) -> OfJob[Gradients]:
        return OfJob(function, form.bind(None, {}, *args, **named).args[2:])

    return of_job


def _key(value: Any) -> Hashable:
    """Tensors by their form, settings by their value, and objects (a model, the task) by themselves."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Weights):
        return value.layout.id
    return value if value is None or isinstance(value, bool | int | float | str) else id(value)
