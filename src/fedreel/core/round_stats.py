"""What a round cost and came to: who trained, with which loss, and how many bytes moved."""

from __future__ import annotations

import time
from typing import Any

from fedreel.core.update import EVALUATE, Update


class RoundStats:
    """Accounting of one round."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.bytes_up = self.bytes_down = self.bytes_testing = self.ordered = 0
        self.clients: list[str] = []
        self._loss = self._samples = 0.0

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
        }
