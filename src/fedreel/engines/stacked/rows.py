"""Tensors of several clients side by side, each with a leading dimension of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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

    def copy(self) -> Rows:
        other = Rows(self.layout, 0, torch.device("cpu"))
        other.flat, other.clients = {d: f.clone() for d, f in self.flat.items()}, self.clients
        return other

    def fill(self, weights: Weights) -> None:
        """The same model for every client."""
        for dtype, flat in self.flat.items():
            flat.copy_(weights.flat[dtype].expand_as(flat))

    def stacked(self, names: Sequence[str]) -> Named:
        """Tensors by name, each with a leading dimension of clients; the same memory."""
        places = [self.layout.place[n] for n in names]
        return {
            t.name: self.flat[t.dtype][:, start : start + t.size].view(self.clients, *t.shape) for t, start in places
        }


@dataclass(frozen=True)
class Held:
    """All that clients have each for themselves while they are trained."""

    trained: Named  # parameters that are trained, by name
    fixed: Named  # the other tensors of the model
    given: Named  # what belongs to the terms and the adjustment of each (see `added.py`)
    slots: Named  # what the optimizer keeps
    totals: Tensor  # (clients,) sums of losses

    def cut(self, part: Part) -> Held:
        """Some of the clients: views if they are a slice, else copies."""
        return self._each(lambda t: cut(t, part))

    def clone(self) -> Held:
        return self._each(Tensor.clone)

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
