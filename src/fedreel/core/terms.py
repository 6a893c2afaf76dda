"""What a method adds to a training step: functions of the step and of what belongs to one job."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import update_wrapper, wraps
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

    def __init__(
        self, function: Callable[..., R], given: tuple[Any, ...], slope: Callable[..., Gradients] | None = None
    ) -> None:
        """`slope` is a term's gradient, where it is given in closed form."""
        self.function, self.given, self.slope = function, given, slope

    def __call__(self, step: Step, *more: Any) -> R:
        return self.function(step, *more, *self.given)

    @property
    def key(self) -> Hashable:
        return (self.function, *map(value_key, self.given))

    def held(self) -> OfJob[R]:
        """The same, with tensors of its own."""
        given = tuple(v.clone() if isinstance(v, Tensor | Weights) else v for v in self.given)
        return OfJob(self.function, given, self.slope)

    def take(self, other: OfJob[R]) -> None:
        """Fill the tensors with another's of the same key."""
        for mine, theirs in zip(self.given, other.given):
            if isinstance(mine, Tensor):
                mine.copy_(theirs)
            elif isinstance(mine, Weights):
                mine.put(theirs)


class MadeTerm(Generic[P]):
    """What `term` makes of a function."""

    def __init__(self, function: Callable[Concatenate[Step, P], Tensor]) -> None:
        self._function, self._form = function, signature(function)
        self._slope: Callable[..., Gradients] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **named: P.kwargs) -> OfJob[Tensor]:
        return OfJob(self._function, self._form.bind(None, *args, **named).args[1:], self._slope)

    def gradient(self, slope: Callable[Concatenate[Step, P], Gradients]) -> Callable[Concatenate[Step, P], Gradients]:
        """Marks a function as the term's gradient, by the parameter's name. Steps of single clients then add it to that
        of the rest, for all parameters at once, instead of having the term differentiated for one after another."""
        self._slope = slope
        return slope


def term(function: Callable[Concatenate[Step, P], Tensor]) -> MadeTerm[P]:
    """Marks a term of the loss, `f(step, ...)`: then `f(...)` is the term of one job. What it is given are tensors,
    weights, models, the task, and plain settings. A tensor that a step changes is changed in place."""
    return MadeTerm(function)


def adjustment(function: Callable[Concatenate[Step, Gradients, P], Gradients]) -> Callable[P, OfJob[Gradients]]:
    """Marks a change of the gradients, `f(step, gradients, ...)`, as `term` marks a term."""

    form = signature(function)

    @wraps(function)
    def of_job(*args: P.args, **named: P.kwargs) -> OfJob[Gradients]:
        return OfJob(function, form.bind(None, {}, *args, **named).args[2:])

    return of_job


def value_key(value: Any) -> Hashable:
    """Tensors by their form, settings by their value, and objects (a model, the task) by themselves."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, Weights):
        return value.layout.id
    return value if value is None or isinstance(value, bool | int | float | str) else id(value)
