"""Tensors of several clients side by side, each with a leading dimension of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedreel.core.weights import Layout, Weights

Named = dict[str, Tensor]
Part = slice | Tensor  # some of the rows
FEW_BYTES = 2**25  # of models on a CPU, of which all differences are taken at once


class Rows:
    """Models of the same layout side by side: one (clients, size) tensor for each dtype."""

    def __init__(self, layout: Layout, flat: dict[torch.dtype, Tensor]) -> None:
        self.layout, self.flat = layout, flat
        self.views = {dtype: f.unbind() for dtype, f in flat.items()}
        self._distances: _Distances | None = None
        fit = all(f.is_cuda or f.nbytes <= FEW_BYTES for f in flat.values())
        self.compared_at_once = fit and any(dtype.is_floating_point for dtype in flat)

    @staticmethod
    def empty(layout: Layout, clients: int, device: torch.device) -> Rows:
        return Rows(layout, {d: torch.empty(clients, n, dtype=d, device=device) for d, n in layout.sizes.items()})

    @staticmethod
    def zeros(layout: Layout, clients: int, device: torch.device) -> Rows:
        return Rows(layout, {d: torch.zeros(clients, n, dtype=d, device=device) for d, n in layout.sizes.items()})

    def __getitem__(self, client: int) -> Row:
        """One client's model; the same memory."""
        return Row(self, client)

    def take(self, layout: Layout) -> Rows:
        """The tensors that `layout` names: a copy, or these very ones if that is all."""
        if layout == self.layout:
            return self
        any_ = next(iter(self.flat.values()))
        part = {d: any_.new_zeros(len(any_), n, dtype=d) for d, n in layout.sizes.items()}
        for dtype, here, there, n in self.layout.runs(layout):
            part[dtype][:, there : there + n].copy_(self.flat[dtype][:, here : here + n])
        return Rows(layout, part)

    def fill(self, weights: Weights) -> None:
        """The same model for every client."""
        for dtype, flat in self.flat.items():
            flat.copy_(weights.flat[dtype].expand_as(flat))

    def stacked(self, names: Sequence[str]) -> Named:
        """Tensors by name, each with a leading dimension of clients; the same memory."""
        places = [self.layout.place[n] for n in names]
        return {
            t.name: (flat := self.flat[t.dtype])[:, start : start + t.size].view(len(flat), *t.shape)
            for t, start in places
        }

    def distances(self, other: Weights) -> list[tuple[float, float]]:
        """L2 distances of all clients from a model, over the floating-point tensors and over those that are trained.
        They are taken once, with one wait for the device, and again if anybody has written to these models or to that
        one."""
        kept = self._distances
        if kept is None or kept.other is not other or kept.written != self._written(other):
            kept = self.measure(other)
        return kept.values

    def measure(self, other: Weights) -> _Distances:
        """Have distances taken, without a wait for the device."""
        some = next(iter(other.flat.values()))
        squares = [torch.zeros(self.clients, dtype=torch.float64, device=some.device) for _ in range(2)]
        for dtype, start, end, trained in self.layout.stretches:
            squares[trained] += self._squares(other, dtype, start, end)
        found = torch.stack([squares[0] + squares[1], squares[1]], 1).sqrt()
        self._distances = _Distances(other, self._written(other), found)
        return self._distances

    def _written(self, other: Weights) -> list[int]:
        return [t._version for t in (*self.flat.values(), *other.flat.values())]

    @property
    def clients(self) -> int:
        return len(next(iter(self.views.values())))

    def _squares(self, other: Weights, dtype: torch.dtype, start: int, end: int) -> Tensor:
        mine, theirs = self.flat[dtype][:, start:end], other.flat[dtype][start:end]
        if dtype.itemsize < 4:
            mine, theirs = mine.float(), theirs.float()
        return torch.linalg.vector_norm(mine - theirs, dim=1).double().square()


class _Distances:
    """From a model as it was at some time, under way from the device."""

    def __init__(self, other: Weights, written: list[int], found: Tensor) -> None:
        self.other, self.written = other, written
        self._found = found.to("cpu", non_blocking=True)
        self._until = torch.cuda.current_stream(found.device).record_event() if found.is_cuda else None

    @cached_property
    def values(self) -> list[tuple[float, float]]:
        if self._until is not None:
            self._until.synchronize()
        return [(whole, trained) for whole, trained in self._found.tolist()]


class Row(Weights):
    """One of several models side by side. On a GPU, how far it is from another model is found for all of them at once:
    each question by itself would be a wait for the device."""

    __slots__ = ("_client", "_rows")

    def __init__(self, rows: Rows, client: int) -> None:
        super().__init__(rows.layout, {dtype: views[client] for dtype, views in rows.views.items()})
        self._rows, self._client = rows, client

    def apart(self, other: Weights) -> tuple[float, float]:
        if not self._as_it_was:
            return super().apart(other)
        self._check(other)
        return self._rows.distances(other)[self._client]

    @property
    def _as_it_was(self) -> bool:
        """Whether this is still that row, and of models that are compared at once."""
        if not self._rows.compared_at_once:
            return False
        views, client = self._rows.views, self._client
        return all(flat is views[dtype][client] for dtype, flat in self.flat.items())


@dataclass(frozen=True)
class Held:
    """All that clients have each for themselves while they are trained. A tensor of all clients lies together: then a
    few kernels serve all parameters, and PyTorch's batch norm changes statistics in place."""

    trained: Named  # parameters that are trained, by name
    fixed: Named  # the other tensors of the model
    given: Named  # what belongs to the terms and the adjustment of each (see `added.py`)
    slots: Named  # what the optimizer keeps
    totals: Tensor  # (clients,) sums of losses

    def cut(self, part: Part) -> Held:
        """Some of the clients: views if they are a slice, else copies."""
        return self._each(lambda t: cut(t, part))

    def tensors(self, changing: Callable[[str], bool]) -> Iterator[Tensor]:
        """What a step changes; `changing` says which of the fixed and the given tensors are that."""
        yield from (*self.trained.values(), *self.slots.values(), self.totals)
        yield from (t for named in (self.fixed, self.given) for name, t in named.items() if changing(name))

    def _each(self, function: Callable[[Tensor], Tensor]) -> Held:
        def each(named: Named) -> Named:
            return {name: function(tensor) for name, tensor in named.items()}

        groups = each(self.trained), each(self.fixed), each(self.given), each(self.slots)
        return Held(*groups, function(self.totals))


def cut(tensor: Tensor, part: Part) -> Tensor:
    return tensor if isinstance(part, slice) and part == slice(0, len(tensor)) else tensor[part]


def like(rows: Tensor, tensor: Tensor) -> Tensor:
    """A number for each client, in a form that multiplies or selects the rows of `tensor`."""
    return rows.view(-1, *[1] * (tensor.dim() - 1))
