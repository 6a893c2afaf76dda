"""The batches of several clients, step by step: those of equal form stacked, each client's in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat, zip_longest

import torch
from torch import Tensor

from fedreel.core.task import Batch, Examples, Tensors
from fedreel.machine.device import sent

Fed = tuple[Sequence[int], tuple[Tensor, ...]]  # which clients, and their batches
Form = tuple[tuple[torch.Size, torch.dtype], ...]
Inputs = Callable[[Form], tuple[Tensor, ...] | None]


def feed(
    examples: Sequence[Examples],
    generators: Sequence[torch.Generator | None],
    steps: Sequence[int],
    size: int,
    device: torch.device,
    inputs: Inputs,
) -> Iterator[Fed]:
    """An epoch. Clients with fewer of the `steps` begin later. Where `inputs` gives tensors for batches of a form, that
    is where they are stacked: what lay there before is gone."""
    tensors = [e for e in examples if isinstance(e, Tensors)]
    if len(tensors) == len(examples) and len({_form(e.tensors) for e in tensors}) == 1:
        yield from _equal(tensors, generators, size, device)
        return
    streams = [chain(repeat(None, max(steps) - n), e.batches(size, g)) for e, g, n in zip(examples, generators, steps)]
    for batches in zip_longest(*streams):
        for members in _alike(batches):
            yield members, _stacked([*zip(*(batches[i] for i in members))], inputs)


def steps_of(examples: Examples, size: int) -> int:
    """How many batches an epoch has."""
    return len(examples.starts(size)) if isinstance(examples, Tensors) else -(-len(examples) // size)


def _equal(
    examples: Sequence[Tensors], generators: Sequence[torch.Generator | None], size: int, device: torch.device
) -> Iterator[Fed]:
    """Clients with equally many examples of one form: all are stacked at once, and a step takes its rows."""
    everyone, starts = range(len(examples)), examples[0].starts(size)
    columns = [torch.stack(column) for column in zip(*(e.tensors for e in examples))]
    orders = [torch.randperm(len(examples[0]), generator=g) for g in generators if g is not None]
    order = sent(torch.stack(orders), device) if orders else None
    rows = torch.arange(len(examples), device=device)[:, None]
    for start, end in zip(starts, [*starts[1:], len(examples[0])]):
        some = slice(start, end)
        yield everyone, tuple(c[:, some] if order is None else c[rows, order[:, some]] for c in columns)


def _stacked(columns: Sequence[tuple[Tensor, ...]], inputs: Inputs) -> tuple[Tensor, ...]:
    there = inputs(tuple((torch.Size((len(c), *c[0].shape)), c[0].dtype) for c in columns))
    if there is None:
        return tuple(torch.stack(column) for column in columns)
    for column, place in zip(columns, there):
        torch.stack(column, out=place)
    return there


def _alike(batches: Sequence[Batch | None]) -> list[list[int]]:
    """Which clients have batches of equal form."""
    members: dict[object, list[int]] = {}
    for i, batch in enumerate(batches):
        if batch is not None:
            members.setdefault(_form(batch), []).append(i)
    return [*members.values()]


def _form(tensors: Sequence[Tensor]) -> object:
    return tuple((t.shape, t.dtype) for t in tensors)
