"""The engine: fedreel's own, with a note of every order in the run's folder."""

from __future__ import annotations

from fedreel.core.job import Job
from fedreel.core.update import Order
from fedreel.engines.local import LocalEngine


class Noted(LocalEngine):
    """Writes down who is asked."""

    @classmethod
    def begin(cls, job: Job, file: str = "orders.txt") -> Noted:
        engine = cls(job.worker())
        engine.file = job.out / file  # type: ignore[attr-defined]
        return engine

    def submit(self, order: Order) -> None:
        with open(self.file, "a") as notes:  # type: ignore[attr-defined]
            notes.write(f"{order.round} {order.client}\n")
        super().submit(order)
