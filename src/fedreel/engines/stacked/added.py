"""What methods add to a step, for several clients: whose tensors are whose, and functions with these put in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from fedreel.core.terms import OfJob
from fedreel.core.weights import Weights
from fedreel.engines.stacked.rows import Named

Added = OfJob[Any]


def tensors_of(added: Added, place: int, shared: Collection[str]) -> Named:
    """The tensors that a job gave to the `place`-th function it adds, by a name that says where they belong. Those of
    models whose names are in `shared` are the same for everybody and left out."""
    found: Named = {}
    for i, value in enumerate(added.given):
        if isinstance(value, Tensor):
            found[f"{place}/{i}"] = value
        elif isinstance(value, Weights):
            found |= {f"{place}/{i}/{dtype}": flat for dtype, flat in value.flat.items()}
        elif isinstance(value, nn.Module):
            found |= {f"{place}/{i}/{name}": tensor for name, tensor in _state(value) if name not in shared}
    return found


def models_of(added: Added) -> dict[int, nn.Module]:
    """Models among what a job gave, by their place."""
    return {i: value for i, value in enumerate(added.given) if isinstance(value, nn.Module)}


def with_tensors(added: Added, place: int, named: Named) -> tuple[Any, ...]:
    """What the function is given, with other tensors. Models stay: theirs are put in by functional_call."""

    def value(i: int, mine: Any) -> Any:
        if isinstance(mine, Tensor):
            return named[f"{place}/{i}"]
        if isinstance(mine, Weights):
            return Weights(mine.layout, {dtype: named[f"{place}/{i}/{dtype}"] for dtype in mine.flat})
        return mine

    return tuple(value(i, mine) for i, mine in enumerate(added.given))


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers; tied ones once."""
    yield from ((name, p.detach()) for name, p in model.named_parameters())
    yield from model.named_buffers()
