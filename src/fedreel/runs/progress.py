"""Progress for a person: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedreel.core.server import ServerState, Watcher
from fedreel.machine.words import clock, size


class ProgressLine(Watcher):
    """Round, time left, clients done and failed, the last client's loss (at its end: the round's), clients per second,
    bytes."""

    def __init__(self, title: str, rounds: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False)
        self.title, self.rounds = title, rounds
        self._live = (
            Live(console=self.console, refresh_per_second=8, transient=True) if self.console.is_terminal else None
        )
        self._began = time.monotonic()
        self._first_round: int | None = None
        self._clients = self._failed = self._bytes = 0
        self._loss = float("nan")
        self._test = self._spent = ""
        self._drawn = 0.0

    def __enter__(self) -> ProgressLine:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def record(self, round: int, phase: str, values: Mapping[str, Any]) -> None:
        if phase == "test":
            shown = {k: v for k, v in values["metrics"].items() if not k.endswith("_clients")}
            self._test = " ".join(["test:", *(f"{k} {v:.3f}" for k, v in shown.items())])
        elif phase == "train" and "loss" in values:
            self._loss = values["loss"]  # of all clients of the round
        elif phase == "privacy":
            self._spent = f"epsilon {values['epsilon']:.2f}"
        elif phase == "refused":
            self._failed += 1
            self._say(
                f"round {round}: refused {values['client']}: {values['reason']} ({values['detail']})",
                "yellow",
            )
        elif phase == "note":
            self._say(f"round {round}: {values['text']}", "cyan")

    def client_done(self, round: int, done: int, failed: int, total: int, loss: float, nbytes: int) -> None:
        self._first_round = round if self._first_round is None else self._first_round
        self._clients += 1
        self._bytes += nbytes
        if loss == loss:
            self._loss = loss
        if self._live and time.monotonic() - self._drawn > 0.1:
            self._drawn = time.monotonic()
            self._live.update(Text(self._line(round, f"{done}/{total} clients", round - 1 + done / max(total, 1))))

    def round_done(self, progress: ServerState, sync: Callable[[], None]) -> None:
        line = self._line(progress.round, f"{self._clients} answers", progress.round)
        if self._live:
            self._live.update(Text(line))
        else:
            self._say(line)

    def _line(self, round: int, clients: str, done: float) -> str:
        spent = time.monotonic() - self._began
        worked = done - (self._first_round or 1) + 1
        left = f"{clock(max(spent / worked * (self.rounds - done), 0), 0)} left" if worked > 0 else ""
        parts = [
            f"{self.title}  round {round}/{self.rounds}",
            left,
            clients,
            f"{self._failed} failed",
            f"training loss {self._loss:.3f}" if self._loss == self._loss else "",
            self._test,
            self._spent,
            f"{self._clients / max(spent, 1e-9):.1f} clients/s",
            size(self._bytes),
        ]
        return "  ".join(p for p in parts if p)

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style or None, markup=False, soft_wrap=True)
