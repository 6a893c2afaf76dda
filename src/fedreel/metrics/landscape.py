"""The loss around a model: along two random directions, or mean over random changes of its weights (Li et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedreel.errors import DataError

Array = np.ndarray
Loss = Callable[[nn.Module], float]  # or any other number of a model; always on the same batches, changed the same way
Direction = dict[str, Tensor]  # by name of the parameter; those left out stay as they are
Noise = Literal["filter", "standard"]


@dataclass(frozen=True)
class Landscape:
    axis: Array  # (points,) steps along either direction, in units of the filters' norms; 0 in the middle
    values: Array  # (points, points) the loss at axis[i] along the first direction and axis[j] along the second


def landscape(model: nn.Module, loss: Loss, seed: int, points: int = 21, reach: float = 1.0) -> Landscape:
    """The loss on a grid around the model, in eval mode: batch norm keeps its statistics. The model is left as it was,
    also when the loss fails."""
    if points < 3 or points % 2 == 0 or not reach > 0:
        expected = "an odd number of points, 3 or more, so that the model is the middle; a reach above 0"
        raise DataError("this is no grid around a model", expected=expected, found=f"{points} points, reach {reach}")
    half = points // 2
    axis = reach * np.arange(-half, half + 1) / half
    first, second = directions(model, seed)
    with _evaluating(model, loss) as at:
        values = np.array([[at((a, first), (b, second)) for b in axis.tolist()] for a in axis.tolist()])
    return Landscape(axis, values)


def sharpness(landscape: Landscape, radius: float) -> float:
    """The mean loss on the grid within `radius` of the model, less the model's."""
    axis, values = landscape.axis, landscape.values
    half = len(axis) // 2
    slack = 1e-9 * axis[-1]  # a point on the circle counts, whatever its rounding
    if not axis[half + 1] - slack <= radius <= axis[-1] + slack:
        expected = f"from one step of the grid, {axis[half + 1]:g}, to its reach, {axis[-1]:g}"
        raise DataError("the grid does not cover this radius", expected=expected, found=str(radius))
    near = np.hypot(axis[:, None], axis) <= radius + slack
    return float(values[near].mean() - values[half, half])


def mean_perturbed_loss(
    model: nn.Module,
    loss: Loss,
    sizes: Sequence[float],
    seeds: Sequence[int],
    noise: Noise = "filter",
    norms: bool = True,
) -> list[tuple[float, float, float]]:
    """(size, mean, standard deviation over seeds) of the loss when the weights move by `size` times noise; each seed's
    noise is the same for all sizes. `filter` noise has the norm of each filter and leaves out 1-D tensors, `standard`
    noise is N(0, 1) on all parameters, batch norm's only with `norms`; its statistics stay. The deviation is that of a
    sample, nan for one seed. In eval mode; the model is left as it was."""
    if not len(seeds):
        raise DataError("no noise to take a mean over", expected="at least one seed", found="none")
    losses = np.empty((len(seeds), len(sizes)))
    for row, seed in zip(losses, seeds):
        generator = torch.Generator().manual_seed(seed)
        moves = _filter_noise(model, generator) if noise == "filter" else _standard_noise(model, generator, norms)
        with _evaluating(model, loss) as at:
            row[:] = [at((size, moves)) for size in sizes]
    spread = losses.std(axis=0, ddof=1) if len(seeds) > 1 else np.full(len(sizes), np.nan)
    return list(zip(map(float, sizes), losses.mean(axis=0).tolist(), spread.tolist()))


def directions(model: nn.Module, seed: int) -> tuple[Direction, Direction]:
    """Two random directions in which every filter has the norm of the model's, so that models with weights of
    different scale compare. 1-D tensors (biases, batch norm) are left out: they do not move."""
    generator = torch.Generator().manual_seed(seed)
    return _filter_noise(model, generator), _filter_noise(model, generator)


def _filter_noise(model: nn.Module, generator: torch.Generator) -> Direction:
    noise = {}
    for name, p in model.named_parameters():
        if p.ndim < 2:
            continue
        weight = p.detach()
        drawn = torch.randn(p.shape, generator=generator).to(weight)
        noise[name] = drawn * (_filter_norms(weight) / (_filter_norms(drawn) + 1e-10))
    return noise


def _standard_noise(model: nn.Module, generator: torch.Generator, norms: bool) -> Direction:
    """Drawn for all parameters, whether batch norm's are then left out or not: the others get the same."""
    noise = {name: torch.randn(p.shape, generator=generator).to(p.detach()) for name, p in model.named_parameters()}
    batch_norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    spared = set() if norms else {id(p) for m in batch_norms for p in m.parameters()}
    return {name: noise[name] for name, p in model.named_parameters() if id(p) not in spared}


def _filter_norms(weight: Tensor) -> Tensor:
    """Of every slice along the first dimension, in a shape to multiply with."""
    return torch.linalg.vector_norm(weight, dim=tuple(range(1, weight.ndim)), keepdim=True)


@contextmanager
def _evaluating(model: nn.Module, loss: Loss) -> Iterator[Callable[..., float]]:
    """A function that gives the loss at the model plus steps, each a size and a direction. Weights move in place, as
    others may hold on to them; at the end they are copied back, since subtracting the steps would leave rounding."""
    tensors = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    kept = {name: t.clone() for name, t in tensors.items()}
    modes = [(m, m.training) for m in model.modules()]

    def at(*steps: tuple[float, Direction]) -> float:
        for name in {name for _, direction in steps for name in direction}:
            tensors[name].copy_(kept[name])
        for size, direction in steps:
            for name, move in direction.items():
                tensors[name].add_(move, alpha=size)
        return float(loss(model))

    model.eval()
    try:
        with torch.no_grad():
            yield at
    finally:
        for name, before in kept.items():
            tensors[name].copy_(before)
        for module, mode in modes:
            module.training = mode
