"""How long orders will take: as long as the client's last of the kind, or as its number of samples suggests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedreel.core.update import EVALUATE, Order


class Forecast:
    """Only the sequence of work depends on it, no result."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        """`told` is what the population says of its clients: how many samples each has, perhaps class by class."""
        self._samples = {part: _counts(told.get(part)) for part in ("train", "test")}
        self._seconds: dict[tuple[str, ...], float] = {}
        self._rates: dict[tuple[str, ...], float] = {}  # seconds for a sample, as last measured

    def seconds(self, order: Order) -> float:
        """A guess; clients of whom nothing is known come before all others, as they come."""
        kind = (order.kind, order.question)
        measured = self._seconds.get((*kind, order.client))
        if measured is not None:
            return measured
        return self._size(order) * self._rates.get(kind, 1.0) if self._size(order) else float("inf")

    def note(self, order: Order, seconds: float) -> None:
        """How long an order took."""
        kind = (order.kind, order.question)
        self._seconds[(*kind, order.client)] = seconds
        if size := self._size(order):
            self._rates[kind] = seconds / size

    def _size(self, order: Order) -> float:
        return self._samples["test" if order.kind == EVALUATE else "train"].get(order.client, 0.0)


def _counts(part: object) -> dict[str, float]:
    """Client -> number of samples; nothing where the population says it in another way."""
    if not isinstance(part, Mapping):
        return {}
    counts = {}
    for client, told in part.items():
        numbers = told.values() if isinstance(told, Mapping) else told if isinstance(told, list | tuple) else [told]
        if all(isinstance(n, int | float) for n in numbers):
            counts[str(client)] = float(sum(numbers))
    return counts
