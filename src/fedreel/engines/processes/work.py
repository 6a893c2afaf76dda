"""In a worker process: orders come, results go; what would be written to the ledger goes with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fedreel.core.admission import Yardstick
from fedreel.core.client import Worker
from fedreel.core.exchange import Ledger
from fedreel.core.update import Failure, Order, Reply, Update
from fedreel.engines.local import attempt
from fedreel.engines.processes.messages import Channel, Ended


def serve(channel: Channel, make: Callable[[], Worker], share: int) -> None:
    """Carry out orders until nobody sends any more. Whether it can begin is the first thing that a worker says."""
    try:
        worker = make()
        _try_out()
    except Exception as error:
        channel.send({"problem": f"{type(error).__name__}: {error}"})
        return
    departures, yardstick = Departures(worker.door.ledger), Yardstick()
    worker.door.ledger = departures
    worker.store.shared = True  # another worker may have written what this one read before
    worker.residence.budget //= share

    def work(order: Order) -> Reply:
        """What comes back is measured here, where it is at hand, unless the server has it on its GPU or decodes it."""
        reply = worker.execute(order)
        if isinstance(reply, Update) and order.models and worker.device.type == "cpu" and worker.coded is None:
            reply.moved = yardstick.moved(order, reply.weights)
        return reply

    channel.send({"problem": ""})
    while True:
        try:
            order = channel.receive_order()
        except Ended:
            return
        began = time.monotonic()
        result = attempt(order, work)
        beside: dict[str, Any] = {"departures": departures.taken(), "files": worker.store.taken_unsynced()}
        beside["seconds"] = time.monotonic() - began
        try:
            channel.send_result(result, **beside)
        except OSError as error:  # no memory left for its tensors
            detail = f"its result could not be handed over: {error}"
            channel.send_result(Failure(*order.key, order.client, "error", detail), **{**beside, "departures": []})


class Departures(Ledger):
    """Takes the ledger's place in a worker: the ledger is a chain and has one writer, who writes when a result comes
    and before anybody sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self.path, self.run = ledger.path, ledger.run
        self._noted: list[dict[str, Any]] = []

    def write(
        self,
        order: Order,
        reply: Reply,
        kinds: Mapping[str, str],
        together: Sequence[str] = (),
        epsilon: float | None = None,
    ) -> None:
        self._noted.append({"kinds": dict(kinds), "together": [*together], "epsilon": epsilon})

    def taken(self) -> list[dict[str, Any]]:
        """What was noted since this was last asked."""
        noted, self._noted = self._noted, []
        return noted

    def sync(self) -> None:
        """There is nothing here."""

    def close(self) -> None:
        """Nor is anything open."""


def _try_out() -> None:
    """Raises if this process cannot train: it was forked from one that had, on a machine with a GPU."""
    torch.ones(1, requires_grad=True).sum().backward()
