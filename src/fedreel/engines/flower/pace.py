"""How fast sites answer, and how long the slow ones among them are waited for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedreel.core.update import Order

_SLOW = 3600.0  # seconds that an order may take in any case


class Pace:
    """How fast orders are answered, of the newest round and the newest kind."""

    def __init__(self) -> None:
        self.stage: object = None
        self.orders, self.answered, self.slowest = 0, 0, 0.0

    def ordered(self, order: Order) -> None:
        if _stage(order) != self.stage:
            self.stage, self.orders, self.answered, self.slowest = _stage(order), 0, 0, 0.0
        self.orders += 1

    def took(self, orders: Sequence[Order], seconds: float) -> None:
        mine = sum(_stage(order) == self.stage for order in orders)
        self.answered += mine
        self.slowest = max(self.slowest, seconds) if mine else self.slowest

    def limit(self, times: float) -> float:
        """Seconds that an order may take."""
        return max(_SLOW, times * self.slowest) if times and 2 * self.answered >= self.orders else math.inf


def _stage(order: Order) -> object:
    return order.round, order.kind, order.question
