"""What a round cost and came to: who trained, with which loss, and how many bytes moved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fedreel.core.timing import Times
from fedreel.core.update import EVALUATE, Update


class RoundStats:
    """Accounting of one round."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.bytes_up = self.bytes_down = self.bytes_testing = self.ordered = 0
        self.clients: list[str] = []
        self._loss = self._samples = 0.0
        self._times = Times()

    def moved(self, kind: str, up: int = 0, down: int = 0) -> None:
        """Bytes of testing are kept apart: they are not the method's communication."""
        if kind == EVALUATE:
            self.bytes_testing += up + down
        else:
            self.bytes_up += up
            self.bytes_down += down

    def trained(self, update: Update) -> None:
        self.clients.append(update.client)
        samples = update.numbers.get("samples", 0.0)
        self._loss += update.numbers.get("loss", 0.0) * samples
        self._samples += samples
        self._times += update.times or Times()

    def summed(self, clients: list[str], loss: float | None) -> None:
        """Of so many clients only the mean loss is known."""
        self.clients += clients
        if loss is not None:
            self._loss, self._samples = loss, 1.0

    def summary(self) -> dict[str, Any]:
        loss = {"loss": self._loss / self._samples} if self._samples else {}
        return {
            **loss,
            "clients": self.clients,
            "ordered": self.ordered,
            "answered": len(self.clients),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_testing": self.bytes_testing,
            **self._seconds,
        }

    def add_to(self, totals: dict[str, float], seconds: float) -> None:
        """Add the round, which took so long, to those before it."""
        found = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "seconds": seconds, **self._seconds}
        for name, value in found.items():
            totals[name] = totals.get(name, 0) + value

    @property
    def _seconds(self) -> dict[str, float]:
        """Of clients, added up, if any have told theirs."""
        told = {"training_seconds": self._times.training, "waiting_seconds": self._times.waiting}
        return told if self._times.training else {}


def waiting_share(totals: Mapping[str, float]) -> float | None:
    """The share of the time that clients trained in which they waited for their data; None if they did not tell."""
    training = totals.get("training_seconds", 0.0)
    return round(totals["waiting_seconds"] / training, 4) if training else None
