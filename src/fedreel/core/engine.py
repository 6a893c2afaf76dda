"""The seam of an engine: where client work runs. It takes orders and brings back replies or failures, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fedreel.core.update import Order, Result

if TYPE_CHECKING:
    from fedreel.core.blueprint import Blueprint
    from fedreel.core.job import Job


class Engine(Protocol):
    """An engine knows neither methods nor tasks; it carries orders to workers."""

    slots: int  # how many orders may be under way at once
    blueprint: Blueprint  # of the model: what the server starts from, and what travels

    @property
    def clients(self) -> Sequence[str]:
        """All of them; a pool of very many has no list."""
        ...

    @classmethod
    def begin(cls, job: Job) -> Engine:
        """The engine for a job, its clients found and their data looked at. Keyword arguments beyond the job are the
        recipe's [engine] section."""
        ...

    def describe(self) -> dict[str, Any]:
        """What is known of the clients' data, for the report."""
        ...

    def submit(self, order: Order) -> None: ...

    def next(self) -> Result | None:
        """Waits for one result; None if no order is under way. An order past its limit comes back as a failure."""
        ...

    def sync(self) -> None:
        """Make durable what the clients here have written. May be called from another thread, beside work."""
        ...

    def close(self) -> None: ...
